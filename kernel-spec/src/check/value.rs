//! `[value]`: what codes mean, and which fields are factors.

use super::outer;
use super::scope::Scope;
use crate::model::{Factor, FieldType, Format, Scalar, Shift, Signs, Value, ValueMap};
use crate::nearest::nearest;
use crate::parse::format::{RawField, RawFormat, scalar};
use crate::parse::value::{RawMap, RawValue};
use crate::toml_walk::{At, Span, unknown};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A value with what it says about the rest of the format.
pub(super) struct Checked {
    pub value: Value,
    pub row_header: Option<Scalar>,
    pub tensor_tail: Option<(Scalar, u32)>,
    /// Where the value is written.
    pub span: Span,
    /// The largest magnitude of a weight's integer, and where what says so is written.
    pub largest: At<u64>,
}

struct Context<'a> {
    raw: &'a RawFormat<'a>,
    value: &'a RawValue,
    elements: At<u32>,
    row: RefCell<Option<Scalar>>,
    tensor: RefCell<Option<Scalar>>,
}

pub(super) fn check(raw: &RawFormat<'_>, elements: At<u32>, scope: &Scope<'_>) -> Option<Checked> {
    let value = raw.value.as_ref()?;
    let context = Context { raw, value, elements, row: RefCell::new(None), tensor: RefCell::new(None) };
    let code = context.code();
    let map = code.and_then(|(_, field)| context.map(field, scope));
    let group = code.zip(map.as_ref()).and_then(|((_, field), map)| context.group(field, map));
    let signs = value.signs.as_ref().map(|name| context.signs(name));
    let shift = value.shift.as_ref().map(|(name, values, span)| context.shift(name, values, *span));
    let factors = |names: &[At<String>]| -> Option<Vec<Factor>> {
        let factors: Vec<_> = names.iter().map(|name| context.factor(name)).collect();
        factors.into_iter().collect()
    };
    let [scale, add, subtract] = [&value.scale, &value.add, &value.subtract].map(|names| factors(names));
    let tail = context.tail();
    let checked = Value {
        code: code?.0,
        group: group?,
        stride: match &value.map {
            RawMap::Codebook { stride, .. } => stride.value,
            RawMap::Affine { .. } | RawMap::Levels { .. } => 1,
        },
        map: map?,
        signs: signs.map_or(Some(None), |s| s.map(Some))?,
        shift: shift.map_or(Some(None), |s| s.map(Some))?,
        unit: value.unit.value as f32,
        scale: scale?,
        add: add?,
        subtract: subtract?,
    };
    outer::check(
        raw,
        value,
        [
            ("scale", &value.scale, &checked.scale),
            ("add", &value.add, &checked.add),
            ("subtract", &value.subtract, &checked.subtract),
        ],
    );
    let largest = context.range(&checked)?;
    context.use_of_fields(&checked);
    let row_header = *context.row.borrow();
    Some(Checked { value: checked, row_header, tensor_tail: tail?, span: value.span, largest })
}

impl<'a> Context<'a> {
    fn error(&self, code: &'static str, span: Span, message: String) {
        self.raw.file.report(self.raw.file.error(code, span, message));
    }

    /// A field by name.
    fn field(&self, name: &At<String>) -> Option<(usize, &'a RawField)> {
        let found = self.raw.fields.iter().enumerate().find(|(_, field)| field.name.value == name.value);
        // A field that could not be read is missing from the list; that is no second error.
        if found.is_none() && self.raw.complete {
            let names = self.raw.fields.iter().map(|f| f.name.value.as_str());
            self.raw.file.report(unknown(self.raw.file, name, "field", names));
        }
        found
    }

    fn code(&self) -> Option<(usize, &'a RawField)> {
        let name = &self.value.code;
        let (index, field) = self.field(name)?;
        if field.ty.value.range().is_none() {
            self.error(
                "wrong-field-type",
                name.span,
                format!("field `{}` is a number, not a code", name.value),
            );
            return None;
        }
        Some((index, field))
    }

    fn map(&self, code: &RawField, scope: &Scope<'_>) -> Option<ValueMap> {
        let file = self.raw.file;
        let (low, high) = code.ty.value.range()?;
        let signed = |what: &str, span| {
            let message = format!(
                "`{what}` are looked up with codes from 0, but field `{}` is signed",
                code.name.value
            );
            let help = "give the field an unsigned type (`u2` instead of `i2`)";
            file.report(file.error("wrong-field-type", span, message).help(help));
        };
        let too_many = |what: &str, count: usize, span| {
            let message =
                format!("{count} {what}, but field `{}` has only {} codes", code.name.value, high + 1);
            let error = file.error("too-many-levels", span, message);
            file.report(error.also(file.path, code.ty.span, "the codes' type"));
        };
        match &self.value.map {
            RawMap::Affine { times, zero, .. } => Some(ValueMap::Affine { times: *times, zero: *zero }),
            RawMap::Levels { span, .. } if low < 0 => {
                signed("levels", *span);
                None
            }
            RawMap::Levels { levels, span } => {
                if levels.len() as i64 > high + 1 {
                    too_many("levels", levels.len(), *span);
                    return None;
                }
                Some(ValueMap::Levels(levels.clone()))
            }
            RawMap::Codebook { name, .. } if low < 0 => {
                signed("codebook entries", name.span);
                None
            }
            RawMap::Codebook { name, times, .. } => {
                let Some(entries) = scope.codebooks.get(&name.value) else {
                    if !scope.broken.contains(&name.value.as_str()) {
                        let known = scope.codebooks.keys().map(String::as_str);
                        file.report(unknown(file, name, "codebook", known));
                    }
                    return None;
                };
                let entries = entries.as_ref()?;
                if entries.len() as i64 > high + 1 {
                    too_many("codebook entries", entries.len(), name.span);
                    return None;
                }
                Some(ValueMap::Codebook { name: name.value.clone(), times: *times, entries: entries.clone() })
            }
        }
    }

    /// Elements a code stands for; together the codes must be the block.
    fn group(&self, code: &RawField, map: &ValueMap) -> Option<u32> {
        let group = match map {
            ValueMap::Codebook { entries, .. } => u32::try_from(entries.first()?.len()).ok()?,
            _ => 1,
        };
        let covered = u64::from(code.count) * u64::from(group);
        let file = self.raw.file;
        if covered == u64::from(self.elements.value) {
            let RawMap::Codebook { stride, .. } = &self.value.map else { return Some(group) };
            // As many codes are interleaved as an element is from the next one of its code.
            if code.count.is_multiple_of(stride.value) {
                return Some(group);
            }
            let message = format!(
                "elements {0} apart belong to {0} interleaved codes, but `{1}` holds {2}",
                stride.value, code.name.value, code.count
            );
            let error = file
                .error("count-mismatch", stride.span, message)
                .help("`stride` must divide the number of codes; 1, the default, is for neighbours");
            file.report(error.also(file.path, code.layout_span, "the codes"));
            return None;
        }
        let each = if group > 1 { format!(" of {group} elements each") } else { String::new() };
        let message = format!(
            "field `{}` holds {} codes{each}, but the block has {} elements",
            code.name.value, code.count, self.elements.value
        );
        let error = file.error("count-mismatch", code.layout_span, message);
        file.report(error.also(file.path, self.elements.span, "elements of the block"));
        None
    }

    fn signs(&self, name: &At<String>) -> Option<Signs> {
        let (index, field) = self.field(name)?;
        let FieldType::Unsigned(bits) = field.ty.value else {
            self.error(
                "wrong-field-type",
                name.span,
                format!("signs are bits: field `{}` must be unsigned", name.value),
            );
            return None;
        };
        let run = self.elements.value / field.count.max(1);
        let parity = self.value.parity;
        if bits + u32::from(parity) != run {
            let file = self.raw.file;
            let needed = run.saturating_sub(parity.into());
            let rule = if parity { "parity" } else { "mask" };
            let message = format!(
                "each value of `{}` has {bits} bits for {run} elements; with `sign_rule = \"{rule}\"` it needs {needed}",
                name.value
            );
            let error = file.error("sign-width", field.ty.span, message);
            file.report(error.also(file.path, name.span, "used for signs here"));
            return None;
        }
        Some(Signs { field: index, parity })
    }

    fn shift(&self, name: &At<String>, values: &[i32], span: Span) -> Option<Shift> {
        let (index, field) = self.field(name)?;
        let FieldType::Unsigned(bits) = field.ty.value else {
            let message = format!("a shift is looked up: field `{}` must be unsigned", name.value);
            self.error("wrong-field-type", name.span, message);
            return None;
        };
        if values.len() as u64 != 1 << bits {
            let message = format!(
                "`shift` has {} values, but field `{}` has {} codes",
                values.len(),
                name.value,
                1u64 << bits
            );
            self.error("too-many-levels", span, message);
            return None;
        }
        Some(Shift { field: index, values: values.to_vec() })
    }

    /// A factor: a field, or a number outside blocks such as `tensor.f32`.
    fn factor(&self, name: &At<String>) -> Option<Factor> {
        let file = self.raw.file;
        if let Some((place, ty)) = name.value.split_once('.') {
            let ty = scalar(ty).filter(|ty| ty.is_signed());
            let (slot, factor) = match place {
                "row" => (&self.row, Factor::Row),
                "tensor" => (&self.tensor, Factor::Tensor),
                _ => (&self.row, Factor::Field(0)),
            };
            let (Some(ty), Factor::Row | Factor::Tensor) = (ty, factor) else {
                let known = ["row.f16", "row.bf16", "row.f32", "tensor.f16", "tensor.bf16", "tensor.f32"];
                file.report(unknown(file, name, "scale", known.into_iter()));
                return None;
            };
            if slot.replace(Some(ty)).is_some_and(|before| before != ty) {
                let message = format!("the number of the {place} has two types");
                let error = file.error("conflicting-keys", name.span, message);
                file.report(error.help(format!(
                    "it stands there once: name one of its types in all terms, as `{place}.f32`"
                )));
            }
            return Some(factor);
        }
        if self.raw.complete && !self.raw.fields.iter().any(|f| f.name.value == name.value) {
            let names = self.raw.fields.iter().map(|f| f.name.value.as_str());
            let near = nearest(&name.value, names.clone()).is_some();
            let mut error = unknown(file, name, "field", names);
            if !near {
                error = error.help("a scale is a field of the block, or a number outside it: `row.f32`, `tensor.f32` (or f16, bf16)");
            }
            file.report(error);
            return None;
        }
        let (index, field) = self.field(name)?;
        if name.value == self.value.code.value {
            self.error(
                "wrong-field-type",
                name.span,
                format!("`{}` holds the codes; it can't be a scale too", name.value),
            );
            return None;
        }
        if let FieldType::Digit(radix) = field.ty.value {
            self.error(
                "wrong-field-type",
                name.span,
                format!("`{}` holds {radix}; they can't be a scale", name.value),
            );
            return None;
        }
        Some(Factor::Field(index))
    }

    /// The tensor's tail; `None` after an error.
    fn tail(&self) -> Option<Option<(Scalar, u32)>> {
        let tail = *self.tensor.borrow();
        match (tail, self.raw.tail_bytes) {
            (Some(scalar), None) => Some(Some((scalar, scalar.bits() / 8))),
            (Some(scalar), Some(bytes)) if bytes.value >= scalar.bits() / 8 => {
                Some(Some((scalar, bytes.value)))
            }
            (Some(scalar), Some(bytes)) => {
                let message =
                    format!("a tail of {} bytes can't hold a number of {}", bytes.value, scalar.bits() / 8);
                self.error("out-of-range", bytes.span, message);
                None
            }
            (None, Some(bytes)) => {
                let file = self.raw.file;
                let error = file.error("conflicting-keys", bytes.span, "`tail_bytes` without a tensor scale");
                file.report(error.help("a tail exists if a scale is `tensor.f32` (or f16, bf16)"));
                None
            }
            (None, None) => Some(None),
        }
    }

    /// Integers must be small enough for 16-bit arithmetic, and those of weights so near each other that eight bits tell
    /// them apart. Returns the largest magnitude.
    fn range(&self, value: &Value) -> Option<At<u64>> {
        let field = self.raw.fields.get(value.code)?;
        let (mut low, mut high) = map_range(&value.map, field.ty.value)?;
        if value.signs.is_some() {
            let size = low.abs().max(high.abs());
            (low, high) = (-size, size);
        }
        let file = self.raw.file;
        let beyond = |low: i64, high: i64| low < i64::from(i16::MIN) || high > i64::from(i16::MAX);
        let span = match &self.value.map {
            RawMap::Affine { span, .. } | RawMap::Levels { span, .. } => *span,
            RawMap::Codebook { name, .. } => name.span,
        };
        let report = |message: String, help: &str| {
            file.report(file.error("value-range", span, message).help(help));
        };
        let common = "put the common factor into a scale or `unit`";
        if let Some(shift) = &value.shift {
            if beyond(low, high) {
                let message = format!("before `shift` integers reach from {low} to {high}, beyond 16 bits");
                report(message, common);
                return None;
            }
            low += shift.values.iter().map(|v| i64::from(*v)).min().unwrap_or(0);
            high += shift.values.iter().map(|v| i64::from(*v)).max().unwrap_or(0);
        }
        if beyond(low, high) {
            report(format!("weights' integers reach from {low} to {high}, beyond 16 bits"), common);
            return None;
        }
        if high - low > 255 {
            let message = format!("weights' integers reach from {low} to {high}, more than 255 apart");
            let help =
                format!("products take weights of eight bits; {common}, or the rest into a field of its own");
            report(message, &help);
            return None;
        }
        Some(At { value: low.unsigned_abs().max(high.unsigned_abs()), span })
    }

    /// Fields nobody reads, and factors' keys on fields that are none.
    fn use_of_fields(&self, value: &Value) {
        let file = self.raw.file;
        for (index, field) in self.raw.fields.iter().enumerate() {
            let is_factor = |factors: &[Factor]| factors.contains(&Factor::Field(index));
            let factor = is_factor(&value.scale) || is_factor(&value.add) || is_factor(&value.subtract);
            let signs = value.signs.as_ref().is_some_and(|s| s.field == index);
            let shift = value.shift.as_ref().is_some_and(|s| s.field == index);
            if let Some(span) = field.factor_span
                && (!factor || matches!(field.ty.value, FieldType::Scalar(_)))
            {
                let message = format!(
                    "`times` and `plus` only count for integer fields used as factors; `{}` is none",
                    field.name.value
                );
                file.report(file.error("conflicting-keys", span, message));
            }
            if !factor && !signs && !shift && value.code != index {
                let message = format!("field `{}` is never used", field.name.value);
                let help = "use it in `[value]`, or declare its bits `unused`";
                file.report(file.error("unused-field", field.name.span, message).help(help).warning());
            }
        }
    }
}

/// Lowest and highest integer of a map, before signs and shift.
pub(super) fn map_range(map: &ValueMap, ty: FieldType) -> Option<(i64, i64)> {
    let ends = |values: &mut dyn Iterator<Item = i64>| {
        values.fold(None, |ends: Option<(i64, i64)>, v| {
            Some(ends.map_or((v, v), |(l, h)| (l.min(v), h.max(v))))
        })
    };
    match map {
        ValueMap::Affine { times, zero } => {
            let (low, high) = ty.range()?;
            let value = |code: i64| i64::from(*times) * code - i64::from(*zero);
            ends(&mut [value(low), value(high)].into_iter())
        }
        ValueMap::Levels(levels) => ends(&mut levels.iter().map(|v| i64::from(*v))),
        ValueMap::Codebook { times, entries, .. } => {
            ends(&mut entries.iter().flatten().map(|v| i64::from(*times) * i64::from(*v)))
        }
    }
}

impl Format {
    /// Every integer that a weight can be before shifts: what its codes stand for, negated by signs.
    pub fn unshifted(&self) -> BTreeSet<i32> {
        let ty = self.fields.get(self.value.code).map(|field| field.ty);
        let mut all: BTreeSet<i32> = match (&self.value.map, ty.and_then(FieldType::range)) {
            (ValueMap::Affine { times, zero }, Some((low, high))) => {
                (low as i32..=high as i32).map(|code| times * code - zero).collect()
            }
            (ValueMap::Affine { .. }, None) => BTreeSet::new(),
            (ValueMap::Levels(levels), _) => levels.iter().copied().collect(),
            (ValueMap::Codebook { times, entries, .. }, _) => {
                entries.iter().flatten().map(|v| v * times).collect()
            }
        };
        if self.value.signs.is_some() {
            all = all.iter().flat_map(|v| [*v, -v]).collect();
        }
        all
    }

    /// Every integer that a weight can be: what its codes stand for, negated by signs, plus shifts.
    pub fn integers(&self) -> BTreeSet<i32> {
        let all = self.unshifted();
        match &self.value.shift {
            Some(shift) => all.iter().flat_map(|v| shift.values.iter().map(move |s| v + s)).collect(),
            None => all,
        }
    }
}
