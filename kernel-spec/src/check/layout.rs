//! Proof that the fields of a block cover its bits exactly once.

use super::bits::{BitMap, Conflict, Uncovered};
use crate::model::{FieldLayout, Radix, Segment, Slice};
use crate::parse::format::{RawField, RawFormat};
use crate::toml_walk::{At, Span};

/// Who owns a bit: a declared gap or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Unused,
    Field(usize),
}

struct Map<'a> {
    raw: &'a RawFormat<'a>,
    bits: BitMap<Owner>,
    block: At<u32>,
}

/// Reports overlaps, fields beyond the block, and uncovered bits.
pub(super) fn check(raw: &RawFormat<'_>, block: At<u32>) {
    let bits = BitMap::new(block.value as usize * 8);
    let mut map = Map { raw, bits, block };
    let mut sound = true;
    for (index, field) in raw.fields.iter().enumerate() {
        sound &= map.field(index, field);
    }
    for gap in &raw.unused {
        sound &= map.gap(gap);
    }
    // With an overlap or a stray field, what is uncovered says nothing new.
    if sound {
        map.uncovered();
    }
}

impl Map<'_> {
    fn field(&mut self, index: usize, field: &RawField) -> bool {
        let result = match &field.layout {
            FieldLayout::Bits(slices) => self.slices(index, field.count, slices).map(|()| true),
            FieldLayout::Digits { radix, segments, .. } => self.segments(index, field, *radix, segments),
        };
        match result {
            Ok(sound) => sound,
            Err(conflict) => {
                self.conflict(
                    &format!("field `{}`", field.name.value),
                    Owner::Field(index),
                    field.layout_span,
                    conflict,
                );
                false
            }
        }
    }

    fn slices(&mut self, index: usize, count: u32, slices: &[Slice]) -> Result<(), Conflict<Owner>> {
        for slice in slices {
            for value in 0..count {
                self.bits.claim(Owner::Field(index), slice.address(value), slice.bits)?;
            }
        }
        Ok(())
    }

    /// Digits share bytes with digits of their own field; each (byte, digit) and each element comes once.
    /// Says whether they do; what is wrong has been reported.
    fn segments(
        &mut self,
        index: usize,
        field: &RawField,
        radix: Radix,
        segments: &[Segment],
    ) -> Result<bool, Conflict<Owner>> {
        let file = self.raw.file;
        let total = self.bits.len() as i64;
        let most = radix.digits();
        let mut digits = vec![false; (self.block.value * most) as usize];
        let mut elements = vec![false; field.count as usize];
        for (number, segment) in segments.iter().enumerate() {
            let span = field.segment_spans.get(number).copied().unwrap_or(field.layout_span);
            let report = |message: String, help: &str| {
                file.report(file.error("digits-disagree", span, message).help(help))
            };
            for step in steps(segment) {
                if step.bit < 0 || step.bit + 8 > total {
                    return Err(Conflict::Beyond(if step.bit < 0 { step.bit } else { step.bit + 7 }));
                }
                let byte = step.bit as usize / 8;
                if step.digit >= most {
                    let message = format!(
                        "element {} is digit {} of byte {byte}; a byte holds {}, 0 to {}",
                        step.element,
                        step.digit,
                        ["two", "three", "four", "five"][(most - 2) as usize],
                        most - 1
                    );
                    report(
                        message,
                        "a loop that goes on to other bytes adds to the address (`stride`) and not to `digit`",
                    );
                    return Ok(false);
                }
                if std::mem::replace(&mut digits[byte * most as usize + step.digit as usize], true) {
                    let message = format!(
                        "digit {} of byte {byte} is described twice (again for element {})",
                        step.digit, step.element
                    );
                    report(
                        message,
                        "each step of a loop goes on to another byte (`stride`) or to another of its digits (`digit`)",
                    );
                    return Ok(false);
                }
                match elements.get_mut(step.element as usize) {
                    Some(seen) if !*seen => *seen = true,
                    Some(_) => {
                        let message = format!("element {} is described twice", step.element);
                        report(
                            message,
                            "segments go on where others end (`first`), and so do loops (`element`)",
                        );
                        return Ok(false);
                    }
                    None => {
                        let message = format!(
                            "there is no element {}: the segments describe {}",
                            step.element, field.count
                        );
                        report(message, "elements are counted from 0 on without gaps (`first`, `element`)");
                        return Ok(false);
                    }
                }
                if !self.bits.has(Owner::Field(index), step.bit as usize) {
                    self.bits.claim(Owner::Field(index), step.bit, 8)?;
                }
            }
        }
        Ok(true)
    }

    fn gap(&mut self, gap: &At<crate::parse::format::Unused>) -> bool {
        match self.bits.claim(Owner::Unused, i64::from(gap.value.offset), gap.value.bits) {
            Ok(()) => true,
            Err(conflict) => {
                self.conflict("the unused range", Owner::Unused, gap.span, conflict);
                false
            }
        }
    }

    fn conflict(&self, what: &str, owner: Owner, span: Span, conflict: Conflict<Owner>) {
        let file = self.raw.file;
        let error = match conflict {
            Conflict::Beyond(bit) => {
                let message = format!("{what} lies outside the block");
                let last = self.bits.len() - 1;
                let label = format!("reaches {}", place(bit));
                let at = self.block.span;
                file.error("field-beyond-block", span, message).label(label).also(
                    file.path,
                    at,
                    format!("the block ends with {}", place(last as i64)),
                )
            }
            Conflict::Taken(other, bit) if other == owner && owner != Owner::Unused => {
                let message = format!("{what} overlaps itself at {}", place(bit));
                file.error("field-overlap", span, message).label("two values share this bit")
            }
            Conflict::Taken(other, bit) => {
                let (name, at) = match other {
                    Owner::Field(index) => {
                        let field = &self.raw.fields[index];
                        (format!("field `{}`", field.name.value), Some(field.layout_span))
                    }
                    Owner::Unused => ("another unused range".to_owned(), None),
                };
                let message = format!("{what} overlaps {name} at {}", place(bit));
                let error = file.error("field-overlap", span, message).label("this claims the bit again");
                match at {
                    Some(at) => error.also(file.path, at, format!("{name} is here")),
                    None => error,
                }
            }
        };
        file.report(error);
    }

    fn uncovered(&self) {
        let Some(Uncovered { first, run, all }) = self.bits.uncovered() else { return };
        let file = self.raw.file;
        let more = if all > run { format!(" ({all} bits in all)") } else { String::new() };
        let message = format!("bits {first} to {} of the block belong to no field{more}", first + run - 1);
        let label = format!("from {} to {}", place(first as i64), place((first + run - 1) as i64));
        let help = format!(
            "if the format leaves them out, say so: `unused = [{{ offset = {first}, bits = {run} }}]`"
        );
        file.report(file.error("bits-uncovered", self.block.span, message).label(label).help(help));
    }
}

fn place(bit: i64) -> String {
    format!("byte {}, bit {}", bit.div_euclid(8), bit.rem_euclid(8))
}

struct Step {
    element: u64,
    bit: i64,
    digit: u32,
}

/// Every index tuple of a segment.
fn steps(segment: &Segment) -> impl Iterator<Item = Step> {
    let count: u32 = segment.digits.iter().map(|d| d.extent).product();
    (0..count).map(|index| {
        let mut rest = index;
        let mut step = Step { element: segment.first.into(), bit: segment.offset.into(), digit: 0 };
        for digit in segment.digits.iter().rev() {
            let i = rest % digit.extent;
            rest /= digit.extent;
            step.element += u64::from(i) * u64::from(digit.element);
            step.bit += i64::from(i) * digit.stride;
            step.digit = step.digit.saturating_add(i.saturating_mul(digit.digit));
        }
        step
    })
}
