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
    for part in parts(tile) {
        for (axis, name, wanted) in [(Axis::Row, "row", rows.value), (Axis::K, "k", tile.k.value)] {
            let digits = part.digits.iter().filter(|d| d.axis == axis);
            let extent: u64 = digits.map(|d| u64::from(d.extent)).fold(1, u64::saturating_mul);
            if extent != u64::from(wanted) {
                let message = format!("the digits along `{name}` count {extent}, but the tile has {wanted}");
                file.report(file.error("packing-not-bijective", part.span, message));
                return None;
            }
        }
    }
    bijective(raw, tile)?;
    Some(Tile {
        code: tile.code.value,
        k: tile.k.value,
        bytes: tile.bytes.value,
        offset: tile.offset,
        digits: tile.digits.clone(),
        upper: tile.upper.as_ref().map(|plane| plane.value.clone()),
    })
}

/// Bits of every code that lie together.
struct Part<'t> {
    digits: &'t [TileDigit],
    /// Bit of the tile at which they begin.
    offset: usize,
    /// Of each code.
    width: usize,
    /// What they are, in words.
    what: &'static str,
    span: Span,
}

/// The parts that codes lie in: one, or the lower bits and the upper ones.
fn parts(tile: &RawTile) -> Vec<Part<'_>> {
    let width = match tile.code.value {
        TileCode::Bits(bits) => bits as usize,
        TileCode::Trit => 1,
    };
    let offset = tile.offset as usize;
    let whole = |width, what| Part { digits: &tile.digits, offset, width, what, span: tile.layout_span };
    let Some(upper) = &tile.upper else { return vec![whole(width, "code")] };
    let plane = &upper.value;
    let bits = plane.bits as usize;
    vec![
        whole(width - bits, "lower bits"),
        Part {
            digits: &plane.digits,
            offset: plane.offset as usize,
            width: bits,
            what: "upper bits",
            span: upper.span,
        },
    ]
}

/// Each code lies inside the tile and on bits, or a trit, of its own; as the sizes agree, there are no holes then.
fn bijective(raw: &RawPacking<'_>, tile: &RawTile) -> Option<()> {
    let file = raw.file;
    // Places are bits, or trits numbered through all bytes.
    let (unit, to_a_byte) = match tile.code.value {
        TileCode::Bits(_) => ("bit", 8),
        TileCode::Trit => ("trit", TileCode::TRITS as usize),
    };
    let total = tile.bytes.value as usize * to_a_byte;
    let parts = parts(tile);
    let mut owner: Vec<Option<(&Part<'_>, u32)>> = vec![None; total];
    for part in &parts {
        let refuse = |message: String, help: Option<&str>| {
            let error = file.error("packing-not-bijective", part.span, message);
            file.report(match help {
                Some(help) => error.help(help),
                None => error,
            });
            None
        };
        // "the code ... is", "the upper bits ... are"
        let plural = part.what.ends_with('s');
        let count: u32 = part.digits.iter().map(|d| d.extent).product();
        for index in 0..count {
            let bit = part.offset + address(part.digits, index, |d| d.stride) as usize;
            let trit = address(part.digits, index, |d| d.trit) as usize;
            if to_a_byte <= trit {
                let place = place(part.digits, index);
                return refuse(
                    format!("the code of {place} is trit {trit} of its byte, which has five, 0 to 4"),
                    None,
                );
            }
            let first = bit / 8 * to_a_byte + bit % 8 + trit;
            let Some(places) = owner.get_mut(first..first.saturating_add(part.width)) else {
                let message = format!(
                    "the {} of {} {} {unit} {}, outside the tile's {total} {unit}s",
                    part.what,
                    place(part.digits, index),
                    if plural { "reach" } else { "reaches" },
                    first.saturating_add(part.width - 1),
                );
                return refuse(message, None);
            };
            if let Some((other, at)) = places.iter().find_map(|place| *place) {
                let (one, two) = (place(other.digits, at), place(part.digits, index));
                let whose = match (plural, other.what == part.what) {
                    (false, _) => format!("the codes of {one} and {two}"),
                    (true, true) => format!("the {} of {one} and {two}", part.what),
                    (true, false) => format!("the {} of {one} and the {} of {two}", other.what, part.what),
                };
                let message = format!("{whose} overlap at {unit} {first} of the tile");
                let help = match tile.code.value {
                    TileCode::Bits(_) if plural => {
                        "each (row, k) needs bits of its own: look for a stride or an offset that is too small or given twice"
                    }
                    TileCode::Bits(_) => {
                        "each (row, k) needs bits of its own: look for a stride that is too small or given twice"
                    }
                    TileCode::Trit => {
                        "each (row, k) needs a trit of its own: look for a stride or a digit that is too small or given twice"
                    }
                };
                return refuse(message, Some(help));
            }
            places.fill(Some((part, index)));
        }
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
