//! Packing files: `rows` and one `[[tile]]` for each kind of code.

use super::format::{same_length, shape};
use crate::model::{Axis, Plane, TileCode, TileDigit};
use crate::toml_walk::{At, File, Node, Span, Table};
use toml::de::DeTable;

/// Largest tile: rows * k * bits / 8.
const MAX_TILE_BYTES: u32 = 65536;

/// A packing as it was written.
#[derive(Debug)]
pub(crate) struct RawPacking<'a> {
    pub file: &'a File<'a>,
    pub name: &'a str,
    pub doc: String,
    pub rows: Option<At<u32>>,
    pub tiles: Vec<RawTile>,
    /// Every tile could be read.
    pub complete: bool,
}

/// A tile as it was written.
#[derive(Debug)]
pub(crate) struct RawTile {
    pub code: At<TileCode>,
    pub k: At<u32>,
    pub bytes: At<u32>,
    pub offset: u32,
    pub digits: Vec<TileDigit>,
    pub layout_span: Span,
    pub upper: Option<At<Plane>>,
}

pub(crate) fn parse<'a>(file: &'a File<'a>, name: &'a str, table: &DeTable<'_>) -> RawPacking<'a> {
    let table = Table::open(file, "a packing", table, Span::default(), &["doc", "rows", "tile"]);
    let tables = table
        .need("tile")
        .and_then(|_| table.tables("tile", "a tile", &["bits", "type", "k", "bytes", "layout", "upper"]));
    let all = tables.as_ref().map_or(usize::MAX, Vec::len);
    let tiles: Vec<RawTile> = tables.unwrap_or_default().iter().filter_map(tile).collect();
    RawPacking {
        file,
        name,
        doc: table.doc(name),
        rows: table.need("rows").and_then(|n| n.unsigned(1..=1024)),
        complete: tiles.len() == all,
        tiles,
    }
}

fn tile(table: &Table<'_>) -> Option<RawTile> {
    let code = code(table);
    let k = table.need("k").and_then(|n| n.unsigned(1..=65536));
    let bytes = table.need("bytes").and_then(|n| n.unsigned(1..=MAX_TILE_BYTES));
    let layout = table.need("layout");
    let layout_span = layout.map_or(table.span, |n| n.span);
    let code = code?;
    let upper = match table.get("upper") {
        Some(node) => Some(upper(table, &node, code)?),
        None => None,
    };
    let (offset, digits) = layout.and_then(|n| digits(&n, code.value))?;
    Some(RawTile { code, k: k?, bytes: bytes?, offset, digits, layout_span, upper })
}

/// `upper = { bits = N, ... }`: where the topmost bits of the codes lie.
fn upper(tile: &Table<'_>, node: &Node<'_>, code: At<TileCode>) -> Option<At<Plane>> {
    let TileCode::Bits(all @ 2..) = code.value else {
        let message = format!("codes of {} have no upper bits apart from others", code.value);
        let error = tile.file.error("conflicting-keys", node.span, message);
        tile.file.report(error.also(tile.file.path, code.span, "the code"));
        return None;
    };
    let table = node.table("an upper plane", &["bits", "offset", "axes", "shape", "stride"])?;
    let bits = table.need("bits").and_then(|n| n.unsigned(1..=all - 1))?;
    let (offset, digits) = (offset(&table)?, digits_of(&table, code.value)?);
    Some(At { value: Plane { bits: bits.value, offset, digits }, span: node.span })
}

/// `bits = N`, or `type = "trit"`.
fn code(table: &Table<'_>) -> Option<At<TileCode>> {
    let Some(ty) = table.get("type") else {
        let bits = table.need("bits").and_then(|n| n.unsigned(1..=16))?;
        return Some(At { value: TileCode::Bits(bits.value), span: bits.span });
    };
    if let Some(bits) = table.get("bits") {
        let error = table.file.error("conflicting-keys", bits.span, "trits have no `bits`");
        let error = error.also(table.file.path, ty.span, "the type");
        table.file.report(error.help("leave out one of the two"));
        return None;
    }
    ty.word("type of code", &[("trit", TileCode::Trit)])
}

/// Where the digits begin, and the digits.
fn digits(node: &Node<'_>, code: TileCode) -> Option<(u32, Vec<TileDigit>)> {
    let what = "a tile's layout";
    let table = match code {
        TileCode::Bits(_) => node.table(what, &["offset", "axes", "shape", "stride"])?,
        TileCode::Trit => {
            let table = node.table(what, &["axes", "shape", "stride", "digit"])?;
            return Some((0, digits_of(&table, code)?));
        }
    };
    Some((offset(&table)?, digits_of(&table, code)?))
}

/// `offset = N`, 0 where it is left out: the bit of the tile at which digits begin.
fn offset(table: &Table<'_>) -> Option<u32> {
    match table.get("offset") {
        Some(node) => node.unsigned(0..=MAX_TILE_BYTES * 8).map(|at| at.value),
        None => Some(0),
    }
}

fn digits_of(table: &Table<'_>, code: TileCode) -> Option<Vec<TileDigit>> {
    let axes =
        table.need("axes").and_then(|n| n.list(|n| n.word("axis", &[("row", Axis::Row), ("k", Axis::K)])));
    table.need("shape");
    let shape = shape(table);
    let stride = table.need("stride").and_then(|n| n.list(|n| n.unsigned(0..=MAX_TILE_BYTES * 8)));
    let (axes, (shape, _), stride) = (axes?, shape?, stride?);
    same_length(table, shape.len(), "axes", axes.len())?;
    same_length(table, shape.len(), "stride", stride.len())?;
    let trits = match code {
        TileCode::Bits(_) => vec![0; shape.len()],
        TileCode::Trit => {
            let trits = table.need("digit").and_then(|n| n.list(|n| n.unsigned(0..=TileCode::TRITS - 1)))?;
            same_length(table, shape.len(), "digit", trits.len())?;
            if let Some(stride) = stride.iter().find(|at| at.value % 8 != 0) {
                let message = "trits live in whole bytes: strides must be multiples of 8";
                table.file.report(table.file.error("out-of-range", stride.span, message));
                return None;
            }
            trits.iter().map(|at| at.value).collect()
        }
    };
    let digit = |i: usize| TileDigit {
        axis: axes[i].value,
        extent: shape[i],
        stride: stride[i].value,
        trit: trits[i],
    };
    Some((0..shape.len()).map(digit).collect())
}
