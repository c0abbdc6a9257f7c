//! Import files: how another program interleaves the rows of a format.

use super::format::{Unused, same_length, slice, unused_list};
use super::name::ident;
use crate::model::{Axis, Slice};
use crate::toml_walk::{At, File, Node, Span, Table};
use toml::de::DeTable;

/// An import layout as it was written.
#[derive(Debug)]
pub(crate) struct RawImport<'a> {
    pub file: &'a File<'a>,
    pub name: &'a str,
    pub doc: String,
    pub family: String,
    pub format: Option<At<String>>,
    pub rows: Option<At<u32>>,
    pub unused: Vec<At<Unused>>,
    pub fields: Vec<RawPlace>,
    /// Every field and gap could be read.
    pub complete: bool,
}

/// Where the values of a field lie.
#[derive(Debug)]
pub(crate) struct RawPlace {
    pub name: At<String>,
    /// The only part has the width of the field.
    pub whole: bool,
    pub parts: Vec<RawPart>,
    /// Where the layout is written.
    pub span: Span,
}

/// Some bits of each value; `axes` says what each digit of the slice counts along.
#[derive(Debug)]
pub(crate) struct RawPart {
    pub slice: Slice,
    pub axes: Vec<Axis>,
}

const KEYS: &[&str] = &["doc", "family", "format", "rows", "unused", "field"];
const PART_KEYS: &[&str] = &["bits", "axes", "shape", "stride", "offset"];

pub(crate) fn parse<'a>(file: &'a File<'a>, name: &'a str, table: &DeTable<'_>) -> RawImport<'a> {
    let table = Table::open(file, "an import layout", table, Span::default(), KEYS);
    let tables = table
        .need("field")
        .and_then(|_| table.tables("field", "a field of an import layout", &["name", "layout", "parts"]));
    let all = tables.as_ref().map_or(usize::MAX, Vec::len);
    let fields: Vec<RawPlace> = tables.unwrap_or_default().iter().filter_map(place).collect();
    let unused = unused_list(&table);
    RawImport {
        file,
        name,
        doc: table.doc(name),
        family: table.get("family").and_then(|n| ident(&n)).map(|at| at.value).unwrap_or_default(),
        format: table.need("format").and_then(|n| n.string()),
        rows: table.need("rows").and_then(|n| n.unsigned(1..=1024)),
        complete: fields.len() == all && unused.is_some(),
        unused: unused.unwrap_or_default(),
        fields,
    }
}

fn place(table: &Table<'_>) -> Option<RawPlace> {
    let name = table.need("name").and_then(|n| ident(&n));
    let (whole, node) = match (table.get("layout"), table.get("parts")) {
        (Some(layout), Some(parts)) => {
            let error =
                table.file.error("conflicting-keys", parts.span, "a field has either `layout` or `parts`");
            table.file.report(error.also(table.file.path, layout.span, "the other one"));
            return None;
        }
        (None, Some(parts)) => (false, parts),
        (layout, None) => (true, layout.or_else(|| table.need("layout"))?),
    };
    let parts = if whole {
        // The width is the field's, which is not known here.
        part(&node.table("a layout", &PART_KEYS[1..])?, Some(0)).map(|part| vec![part])
    } else {
        node.list(|n: &Node<'_>| part(&n.table("a part", PART_KEYS)?, None))
    };
    Some(RawPlace { name: name?, whole, parts: parts?, span: node.span })
}

fn part(table: &Table<'_>, bits: Option<u32>) -> Option<RawPart> {
    let axes = match table.get("axes") {
        None => Some(Vec::new()),
        Some(node) => node.list(|n| n.word("axis", &[("row", Axis::Row), ("k", Axis::K)])),
    };
    let (slice, _) = slice(table, bits)?;
    let axes = axes?;
    same_length(table, slice.digits.len(), "axes", axes.len())?;
    Some(RawPart { slice, axes: axes.into_iter().map(|at| at.value).collect() })
}
