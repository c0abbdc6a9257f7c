//! Packings: each tile's layout is a bijection between (row, k) and the bits of the tile, or the trits of its bytes.

use crate::model::{Axis, Packing, Tile, TileCode, TileDigit};
use crate::parse::packing::{RawPacking, RawTile};
use crate::toml_walk::{At, Span};

pub(super) fn check(raw: &RawPacking<'_>) -> Option<Packing> {
    let rows = raw.rows?;
    let tiles: Vec<Option<Tile>> = raw.tiles.iter().map(|tile| check_tile(raw, tile, rows)).collect();
    let mut tiles = tiles.into_iter().collect::<Option<Vec<Tile>>>().filter(|_| raw.complete)?;
    for (index, tile) in raw.tiles.iter().enumerate() {
        if let Some(first) = raw.tiles[..index].iter().find(|t| t.code.value == tile.code.value) {
            let message = format!("two tiles are for codes of {}", tile.code.value);
            let error = raw.file.error("duplicate-name", tile.code.span, message);
            raw.file.report(error.also(raw.file.path, first.code.span, "first here"));
            return None;
        }
    }
    tiles.sort_by_key(|tile| tile.code.levels());
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
    let codes = u64::from(rows.value) * u64::from(tile.k.value);
    let bytes = u64::from(tile.bytes.value);
    if tile.code.value.bytes(codes) != Some(bytes) {
        let message = match tile.code.value {
            TileCode::Bits(bits) => format!(
                "{} rows of {} codes of {bits} bits take {} bits, but the tile has {bytes} bytes ({} bits)",
                rows.value,
                tile.k.value,
                codes * u64::from(bits),
                bytes * 8
            ),
            TileCode::Trit => format!(
                "{} rows of {} trits are {codes}, but the tile has {bytes} bytes (room for {})",
                rows.value,
                tile.k.value,
                bytes * u64::from(TileCode::TRITS)
            ),
        };
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
        code: tile.code.value,
        k: tile.k.value,
        bytes: tile.bytes.value,
        digits: tile.digits.clone(),
    })
}

/// Each code lies inside the tile and on bits, or a trit, of its own; as the sizes agree, there are no holes then.
fn bijective(raw: &RawPacking<'_>, tile: &RawTile) -> Option<()> {
    let file = raw.file;
    let refuse = |message: String, help: Option<&str>| {
        let error = file.error("packing-not-bijective", tile.layout_span, message);
        file.report(match help {
            Some(help) => error.help(help),
            None => error,
        });
        None
    };
    // Places are bits, or trits numbered through all bytes.
    let (unit, to_a_byte, width) = match tile.code.value {
        TileCode::Bits(bits) => ("bit", 8, bits as usize),
        TileCode::Trit => ("trit", TileCode::TRITS as usize, 1),
    };
    let total = tile.bytes.value as usize * to_a_byte;
    let mut owner: Vec<Option<u32>> = vec![None; total];
    let count: u32 = tile.digits.iter().map(|d| d.extent).product();
    for index in 0..count {
        let bit = address(&tile.digits, index, |d| d.stride) as usize;
        let trit = address(&tile.digits, index, |d| d.trit) as usize;
        if to_a_byte <= trit {
            let place = place(&tile.digits, index);
            return refuse(
                format!("the code of {place} is trit {trit} of its byte, which has five, 0 to 4"),
                None,
            );
        }
        let first = bit / 8 * to_a_byte + bit % 8 + trit;
        let Some(places) = owner.get_mut(first..first.saturating_add(width)) else {
            let place = place(&tile.digits, index);
            let last = first.saturating_add(width - 1);
            let message =
                format!("the code of {place} reaches {unit} {last}, outside the tile's {total} {unit}s");
            return refuse(message, None);
        };
        if let Some(other) = places.iter().find_map(|place| *place) {
            let message = format!(
                "the codes of {} and {} overlap at {unit} {first} of the tile",
                place(&tile.digits, other),
                place(&tile.digits, index)
            );
            let help = match tile.code.value {
                TileCode::Bits(_) => {
                    "each (row, k) needs bits of its own: look for a stride that is too small or given twice"
                }
                TileCode::Trit => {
                    "each (row, k) needs a trit of its own: look for a stride or a digit that is too small or given twice"
                }
            };
            return refuse(message, Some(help));
        }
        places.fill(Some(index));
    }
    Some(())
}

fn address(digits: &[TileDigit], index: u32, step: impl Fn(&TileDigit) -> u32) -> u64 {
    let mut rest = index;
    let mut address = 0;
    for digit in digits.iter().rev() {
        address += u64::from(rest % digit.extent) * u64::from(step(digit));
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
