//! Packings: each tile's layout is a bijection between (row, k) and the bits of the tile.

use crate::model::{Axis, Packing, Tile, TileDigit};
use crate::parse::packing::{RawPacking, RawTile};
use crate::toml_walk::{At, Span};

pub(super) fn check(raw: &RawPacking<'_>) -> Option<Packing> {
    let rows = raw.rows?;
    let tiles: Vec<Option<Tile>> = raw.tiles.iter().map(|tile| check_tile(raw, tile, rows)).collect();
    let mut tiles = tiles.into_iter().collect::<Option<Vec<Tile>>>().filter(|_| raw.complete)?;
    for (index, tile) in raw.tiles.iter().enumerate() {
        if let Some(first) = raw.tiles[..index].iter().find(|t| t.bits.value == tile.bits.value) {
            let message = format!("two tiles are for codes of {} bits", tile.bits.value);
            let error = raw.file.error("duplicate-name", tile.bits.span, message);
            raw.file.report(error.also(raw.file.path, first.bits.span, "first here"));
            return None;
        }
    }
    tiles.sort_by_key(|tile| tile.bits);
    Some(Packing {
        name: raw.name.to_owned(),
        doc: raw.doc.clone(),
        origin: raw.file.origin(Span::default()),
        rows: rows.value,
        tiles,
    })
}

fn check_tile(raw: &RawPacking<'_>, tile: &RawTile, rows: At<u32>) -> Option<Tile> {
    let file = raw.file;
    let needed = u64::from(rows.value) * u64::from(tile.k.value) * u64::from(tile.bits.value);
    if needed != u64::from(tile.bytes.value) * 8 {
        let message = format!(
            "{} rows of {} codes of {} bits take {needed} bits, but the tile has {} bytes ({} bits)",
            rows.value,
            tile.k.value,
            tile.bits.value,
            tile.bytes.value,
            u64::from(tile.bytes.value) * 8
        );
        file.report(file.error("packing-size", tile.bytes.span, message));
        return None;
    }
    for (axis, name, wanted) in [(Axis::Row, "row", rows.value), (Axis::K, "k", tile.k.value)] {
        let digits = tile.digits.iter().filter(|d| d.axis == axis);
        let extent: u64 = digits.map(|d| u64::from(d.extent)).fold(1, u64::saturating_mul);
        if extent != u64::from(wanted) {
            let message = format!("the digits along `{name}` count {extent}, but the tile has {wanted}");
            file.report(file.error("packing-not-bijective", tile.layout_span, message));
            return None;
        }
    }
    bijective(raw, tile)?;
    Some(Tile {
        bits: tile.bits.value,
        k: tile.k.value,
        bytes: tile.bytes.value,
        digits: tile.digits.clone(),
    })
}

/// Each code lies inside the tile and on bits of its own; as the sizes agree, there are no holes then.
fn bijective(raw: &RawPacking<'_>, tile: &RawTile) -> Option<()> {
    let file = raw.file;
    let total = tile.bytes.value as usize * 8;
    let width = tile.bits.value as usize;
    let mut owner: Vec<Option<u32>> = vec![None; total];
    let count: u32 = tile.digits.iter().map(|d| d.extent).product();
    for index in 0..count {
        let first = address(&tile.digits, index) as usize;
        let Some(bits) = owner.get_mut(first..first.saturating_add(width)) else {
            let message = format!(
                "the code of {} lies at bit {first}, outside the tile's {total} bits",
                place(&tile.digits, index)
            );
            file.report(file.error("packing-not-bijective", tile.layout_span, message));
            return None;
        };
        if let Some(other) = bits.iter().find_map(|bit| *bit) {
            let message = format!(
                "the codes of {} and {} overlap at bit {first} of the tile",
                place(&tile.digits, other),
                place(&tile.digits, index)
            );
            let help =
                "each (row, k) needs bits of its own: look for a stride that is too small or given twice";
            file.report(file.error("packing-not-bijective", tile.layout_span, message).help(help));
            return None;
        }
        bits.fill(Some(index));
    }
    Some(())
}

fn address(digits: &[TileDigit], index: u32) -> u64 {
    let mut rest = index;
    let mut address = 0;
    for digit in digits.iter().rev() {
        address += u64::from(rest % digit.extent) * u64::from(digit.stride);
        rest /= digit.extent;
    }
    address
}

fn place(digits: &[TileDigit], index: u32) -> String {
    let (mut rest, mut row, mut k) = (index, 0, 0);
    let (mut row_step, mut k_step) = (1, 1);
    for digit in digits.iter().rev() {
        let (at, step) = match digit.axis {
            Axis::Row => (&mut row, &mut row_step),
            Axis::K => (&mut k, &mut k_step),
        };
        *at += rest % digit.extent * *step;
        *step *= digit.extent;
        rest /= digit.extent;
    }
    format!("(row {row}, k {k})")
}
