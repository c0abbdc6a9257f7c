//! Packing files: `rows` and one `[[tile]]` for each code width.

use super::format::{same_length, shape};
use crate::model::{Axis, TileDigit};
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
    pub bits: At<u32>,
    pub k: At<u32>,
    pub bytes: At<u32>,
    pub digits: Vec<TileDigit>,
    pub layout_span: Span,
}

pub(crate) fn parse<'a>(file: &'a File<'a>, name: &'a str, table: &DeTable<'_>) -> RawPacking<'a> {
    let table = Table::open(file, "a packing", table, Span::default(), &["doc", "rows", "tile"]);
    let tables =
        table.need("tile").and_then(|_| table.tables("tile", "a tile", &["bits", "k", "bytes", "layout"]));
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
    let bits = table.need("bits").and_then(|n| n.unsigned(1..=16));
    let k = table.need("k").and_then(|n| n.unsigned(1..=65536));
    let bytes = table.need("bytes").and_then(|n| n.unsigned(1..=MAX_TILE_BYTES));
    let layout = table.need("layout");
    let layout_span = layout.map_or(table.span, |n| n.span);
    let digits = layout.and_then(|n| digits(&n));
    Some(RawTile { bits: bits?, k: k?, bytes: bytes?, digits: digits?, layout_span })
}

fn digits(node: &Node<'_>) -> Option<Vec<TileDigit>> {
    let table = node.table("a tile's layout", &["axes", "shape", "stride"])?;
    let axes =
        table.need("axes").and_then(|n| n.list(|n| n.word("axis", &[("row", Axis::Row), ("k", Axis::K)])));
    table.need("shape");
    let shape = shape(&table);
    let stride = table.need("stride").and_then(|n| n.list(|n| n.unsigned(0..=MAX_TILE_BYTES * 8)));
    let (axes, (shape, _), stride) = (axes?, shape?, stride?);
    same_length(&table, shape.len(), "axes", axes.len())?;
    same_length(&table, shape.len(), "stride", stride.len())?;
    let digit = |i: usize| TileDigit { axis: axes[i].value, extent: shape[i], stride: stride[i].value };
    Some((0..shape.len()).map(digit).collect())
}
