//! Codebooks: a small TOML file that holds its table, or has it beside it as `NAME.u16.bin` or `NAME.u32.bin`.

use crate::toml_walk::{At, File, Span, Table};
use toml::de::DeTable;

/// A codebook's description as it was written.
#[derive(Debug)]
pub(crate) struct RawCodebook<'a> {
    pub file: &'a File<'a>,
    pub name: &'a str,
    pub entries: Option<At<u32>>,
    pub width: Option<At<u32>>,
    pub bits: Option<At<u32>>,
    pub values: Option<At<Vec<i32>>>,
    /// `table`: `Some(None)` where it could not be read.
    pub table: Option<Option<At<Vec<u32>>>>,
}

/// The bytes of a table: one little-endian u16 or u32 an entry, digit e at bits `bits * e`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data<'a> {
    pub path: &'a str,
    pub bytes: &'a [u8],
}

const KEYS: &[&str] = &["doc", "entries", "width", "bits", "values", "table", "origin"];

pub(crate) fn parse<'a>(file: &'a File<'a>, name: &'a str, table: &DeTable<'_>) -> RawCodebook<'a> {
    let table = Table::open(file, "a codebook", table, Span::default(), KEYS);
    table.doc(name);
    table.need("origin").and_then(|n| n.doc());
    let values = table.need("values").and_then(|n| {
        let values = n.list(|n| n.signed(-32768..=32767))?;
        Some(At { value: values.iter().map(|at| at.value).collect(), span: n.span })
    });
    RawCodebook {
        file,
        name,
        entries: table.need("entries").and_then(|n| n.unsigned(1..=65536)),
        width: table.need("width").and_then(|n| n.unsigned(1..=16)),
        bits: table.need("bits").and_then(|n| n.unsigned(1..=16)),
        values,
        table: table.get("table").map(|n| {
            let table = n.list(|n| n.unsigned(0..=u32::MAX))?;
            Some(At { value: table.iter().map(|at| at.value).collect(), span: n.span })
        }),
    }
}

/// The codebook that a data file belongs to, and the bytes of an entry in it.
pub(crate) fn data_of(path: &str) -> Option<(&str, usize)> {
    let stem = super::stem(path);
    [(".u16.bin", 2), (".u32.bin", 4)]
        .into_iter()
        .find_map(|(suffix, bytes)| Some((stem.strip_suffix(suffix)?, bytes)))
}
