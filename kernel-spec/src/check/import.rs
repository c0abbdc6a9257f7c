//! Import layouts: proof that they hold every bit of a format's blocks exactly once, and where each goes.

use super::bits::{BitMap, Conflict, Uncovered};
use super::scope::{Named, Scope, at, resolve};
use crate::model::{Axis, Field, FieldLayout, Format, Import, Move};
use crate::parse::Raw;
use crate::parse::format::bits_of;
use crate::parse::import::{RawImport, RawPart, RawPlace};
use crate::toml_walk::{At, Span, unknown};
use std::collections::VecDeque;

/// Largest tile, in bytes.
const MAX_TILE_BYTES: u32 = 16384;
/// Most bits of a [`Move`].
const MAX_MOVE: u32 = 32;

/// Reports import layouts with the name of a format: both are chosen by it.
pub(super) fn names(raw: &Raw<'_>) {
    for import in &raw.imports {
        if let Some(format) = raw.formats.iter().find(|format| format.name == import.name) {
            let message = format!("`{}` is a format and an import layout", import.name);
            let error = import.file.error("duplicate-name", Span::default(), message).label("again here");
            let help = "both are chosen by name; rename one file";
            import.file.report(error.also(format.file.path, Span::default(), "first here").help(help));
        }
    }
}

pub(super) fn check(raw: &RawImport<'_>, formats: &Named<Format>, scope: &Scope<'_>) -> Option<Import> {
    let file = raw.file;
    let name = raw.format.as_ref();
    let index = name.and_then(|name| resolve(file, name, "format", formats, scope));
    let (index, rows) = (index?, raw.rows?);
    let format = at(formats, index)?;
    if !raw.complete || !complete(raw, format) {
        return None;
    }
    if u64::from(rows.value) * u64::from(format.bytes) > u64::from(MAX_TILE_BYTES) {
        let message = format!(
            "{} rows of a block of {} bytes are more than the {MAX_TILE_BYTES} bytes a tile may have",
            rows.value, format.bytes
        );
        file.report(file.error("out-of-range", rows.span, message));
        return None;
    }
    let mut tile = Tile { raw, taken: BitMap::new((rows.value * format.bytes * 8) as usize) };
    let mut moves = Vec::new();
    let mut sound = true;
    for (place_index, place) in raw.fields.iter().enumerate() {
        let placed = format
            .fields
            .iter()
            .find(|field| field.name == place.name.value)
            .and_then(|field| tile.place(place_index, place, field, rows, &mut moves));
        sound &= placed.is_some();
    }
    for gap in &raw.unused {
        sound &= tile.claim(raw.fields.len(), gap.value.offset.into(), gap.value.bits, gap.span).is_some();
    }
    if !sound || tile.uncovered(rows) {
        return None;
    }
    Some(Import {
        name: raw.name.to_owned(),
        doc: raw.doc.clone(),
        family: raw.family.clone(),
        origin: file.origin(Span::default()),
        format: index,
        rows: rows.value,
        moves: joined(moves),
    })
}

/// Every field of the format has one place, and no other is there.
fn complete(raw: &RawImport<'_>, format: &Format) -> bool {
    let file = raw.file;
    let mut sound = true;
    for (index, place) in raw.fields.iter().enumerate() {
        if let Some(first) = raw.fields[..index].iter().find(|p| p.name.value == place.name.value) {
            let message = format!("field `{}` is placed twice", place.name.value);
            let error = file.error("duplicate-name", place.name.span, message).label("again here");
            file.report(error.also(file.path, first.name.span, "first here"));
            sound = false;
        } else if !format.fields.iter().any(|field| field.name == place.name.value) {
            let what = format!("field of `{}`", format.name);
            file.report(unknown(file, &place.name, &what, format.fields.iter().map(|f| f.name.as_str())));
            sound = false;
        }
    }
    for field in &format.fields {
        if !raw.fields.iter().any(|place| place.name.value == field.name) {
            let message = format!("field `{}` of `{}` has no place in this layout", field.name, format.name);
            let span = raw.format.as_ref().map_or(Span::default(), |at| at.span);
            let help = format!("add a `[[field]]` with `name = \"{}\"` and its `layout`", field.name);
            file.report(file.error("missing-key", span, message).help(help));
            sound = false;
        }
    }
    sound
}

/// Which bits of a tile belong to which field (by its place in the file; gaps come after the last).
struct Tile<'a> {
    raw: &'a RawImport<'a>,
    taken: BitMap<usize>,
}

impl Tile<'_> {
    /// Claims the bits of a field and appends where they go.
    fn place(
        &mut self,
        index: usize,
        place: &RawPlace,
        field: &Field,
        rows: At<u32>,
        moves: &mut Vec<Move>,
    ) -> Option<()> {
        let file = self.raw.file;
        let refuse = |code, message: String| {
            file.report(file.error(code, place.span, message));
            None
        };
        let (FieldLayout::Bits(target), Some(width)) = (&field.layout, bits_of(field.ty)) else {
            return refuse(
                "wrong-field-type",
                format!(
                    "field `{}` holds digits that share bytes, whose rows can't be told apart by bits",
                    field.name
                ),
            );
        };
        let bits = |part: &RawPart| if place.whole { width } else { part.slice.bits };
        let sum: u32 = place.parts.iter().map(bits).sum();
        if sum != width {
            return refuse(
                "parts-disagree",
                format!("the parts have {sum} bits together, but field `{}` has {width}", field.name),
            );
        }
        for part in &place.parts {
            for (axis, name, wanted) in [(Axis::Row, "row", rows.value), (Axis::K, "k", field.count)] {
                let digits = part.slice.digits.iter().zip(&part.axes).filter(|(_, a)| **a == axis);
                let extent: u64 = digits.map(|(d, _)| u64::from(d.extent)).fold(1, u64::saturating_mul);
                if extent != u64::from(wanted) {
                    return refuse(
                        "import-not-bijective",
                        format!(
                            "the digits along `{name}` count {extent}, but there are {wanted} {}",
                            if axis == Axis::Row {
                                "rows".to_owned()
                            } else {
                                format!("values of `{}`", field.name)
                            }
                        ),
                    );
                }
            }
        }
        for row in 0..rows.value {
            for value in 0..field.count {
                let mut source = VecDeque::new();
                for part in &place.parts {
                    let (first, bits) = (address(part, row, value), bits(part));
                    self.claim(index, first, bits, place.span)?;
                    source.push_back((first as u32, bits));
                }
                // The format's own check holds its addresses within the block.
                let target = target.iter().map(|slice| (slice.address(value) as u32, slice.bits)).collect();
                moved(row, source, target, moves);
            }
        }
        Some(())
    }

    fn claim(&mut self, owner: usize, first: i64, bits: u32, span: Span) -> Option<()> {
        let file = self.raw.file;
        let name = |owner: usize| match self.raw.fields.get(owner) {
            Some(place) => format!("field `{}`", place.name.value),
            None => "an unused range".to_owned(),
        };
        let (message, help) = match self.taken.claim(owner, first, bits) {
            Ok(()) => return Some(()),
            Err(Conflict::Beyond(bit)) => {
                let bits = self.taken.len();
                (format!("{} reaches bit {bit}, outside the tile's {bits} bits", name(owner)), None)
            }
            Err(Conflict::Taken(other, bit)) => {
                let what = if other == owner { "itself".to_owned() } else { name(other) };
                let help = "each (row, value) needs bits of its own: look for a stride that is too small or given twice";
                (format!("{} overlaps {what} at bit {bit} of the tile", name(owner)), Some(help))
            }
        };
        let error = file.error("import-not-bijective", span, message);
        file.report(match help {
            Some(help) => error.help(help),
            None => error,
        });
        None
    }

    /// Reports bits that belong to nothing.
    fn uncovered(&self, rows: At<u32>) -> bool {
        let Some(Uncovered { first, run, .. }) = self.taken.uncovered() else { return false };
        let message = format!("bits {first} to {} of the tile belong to no field", first + run - 1);
        let help = format!(
            "if the layout leaves them out, say so: `unused = [{{ offset = {first}, bits = {run} }}]`"
        );
        self.raw.file.report(self.raw.file.error("bits-uncovered", rows.span, message).help(help));
        true
    }
}

/// Bit address of a value of a row.
fn address(part: &RawPart, row: u32, value: u32) -> i64 {
    let (mut row, mut k) = (row, value);
    let mut address = part.slice.offset;
    for (digit, axis) in part.slice.digits.iter().zip(&part.axes).rev() {
        let rest = match axis {
            Axis::Row => &mut row,
            Axis::K => &mut k,
        };
        address += i64::from(*rest % digit.extent) * digit.stride;
        *rest /= digit.extent;
    }
    address
}

/// The bits of one value, (first, count) from the lowest up, cut where either side is cut.
fn moved(
    row: u32,
    mut source: VecDeque<(u32, u32)>,
    mut target: VecDeque<(u32, u32)>,
    moves: &mut Vec<Move>,
) {
    while let (Some((from, available)), Some((to, wanted))) = (source.front_mut(), target.front_mut()) {
        let bits = (*available).min(*wanted);
        moves.push(Move { from: *from, row, to: *to, bits });
        for (first, count) in [(from, available), (to, wanted)] {
            *first += bits;
            *count -= bits;
        }
        for side in [&mut source, &mut target] {
            if side.front().is_some_and(|(_, left)| *left == 0) {
                side.pop_front();
            }
        }
    }
}

/// In the order of their targets, neighbours on both sides made one.
fn joined(mut moves: Vec<Move>) -> Vec<Move> {
    moves.sort_unstable_by_key(|m| (m.row, m.to));
    let mut all: Vec<Move> = Vec::with_capacity(moves.len());
    for next in moves {
        match all.last_mut() {
            Some(last)
                if last.row == next.row
                    && last.to + last.bits == next.to
                    && last.from + last.bits == next.from
                    && last.bits + next.bits <= MAX_MOVE =>
            {
                last.bits += next.bits;
            }
            Some(_) | None => all.push(next),
        }
    }
    all
}
