//! Whether a format has the structure that a named algorithm fills in.

use super::value::Checked;
use crate::model::{Factor, FieldType, Scalar, Search, Value, ValueMap};
use crate::parse::format::{RawField, RawFormat};

/// `Err`: what the algorithm needs and the format has not.
pub(super) fn fits(raw: &RawFormat<'_>, checked: &Checked, search: Search) -> Result<(), String> {
    let value = &checked.value;
    let parts = Parts { raw };
    let code = raw.fields.get(value.code).ok_or("its codes are not known")?;
    let Some((0, top)) = code.ty.value.range() else { return Err("its codes are signed".to_owned()) };
    if let FieldType::Digit(radix) = code.ty.value {
        return Err(format!("its codes are {radix}"));
    }
    let grid = matches!(search, Search::GridSearch { .. });
    if !grid && (value.shift.is_some() || value.signs.is_some() || value.unit != 1.0) {
        return Err("it has signs, a shift or a unit apart from the code".to_owned());
    }
    let minimum = match search {
        Search::MinMax => !value.subtract.is_empty() || value.add.is_empty(),
        Search::KMin { .. } => !value.add.is_empty() || value.subtract.is_empty(),
        _ => !value.add.is_empty() || !value.subtract.is_empty(),
    };
    if minimum {
        return Err(match search {
            Search::MinMax => "it needs a minimum that is added",
            Search::KMin { .. } => "it needs a minimum that is subtracted",
            _ => "it has a minimum term",
        }
        .to_owned());
    }
    let affine = |times: i32, zero: i64| matches!(value.map, ValueMap::Affine { times: t, zero: z } if t == times && i64::from(z) == zero);
    // Codes are kept as u16, and in f32 while they are searched for.
    let counts_from = |zero: i64| match affine(1, zero) {
        true => Ok(()),
        false => Err(format!("its codes must count up by one from {}", -zero)),
    };
    match search {
        Search::MinMax => {
            counts_from(0)?;
            parts.one("scale", &value.scale)?;
            parts.one("add", &value.add)
        }
        Search::Mean => {
            if top != 1 || !affine(2, 1) {
                return Err("its codes must be one bit with `times = 2` and `zero = 1`".to_owned());
            }
            parts.one("scale", &value.scale)
        }
        Search::KMin { .. } => {
            counts_from(0)?;
            let runs = parts.with_runs("scale", &value.scale, Integers::FromZero)?;
            if runs != parts.with_runs("subtract", &value.subtract, Integers::FromZero)? {
                return Err("its scales and its minima are for runs of different length".to_owned());
            }
            let ty = |factors: &[Factor]| parts.field(*factors.first()?).map(|field| field.ty.value);
            if ty(&value.scale) != ty(&value.subtract) {
                return Err("its scale and its minimum are floats of different types".to_owned());
            }
            Ok(())
        }
        Search::KRefine { .. } | Search::KScan { .. } => {
            counts_from((top + 1) / 2)?;
            parts.with_runs("scale", &value.scale, Integers::BothSigns).map(|_| ())
        }
        Search::LevelScan { .. } => level_scan_fits(&parts, value),
        Search::NearestLevel => nearest_level_fits(raw, value),
        Search::GridSearch { .. } => grid_fits(&parts, checked),
        Search::Alternating { .. } => {
            let ValueMap::Codebook { entries, .. } = &value.map else {
                return Err("it has no `codebook`".to_owned());
            };
            if entries.iter().flatten().all(|v| *v == 0) {
                return Err("its codebook holds nothing but zeros".to_owned());
            }
            parts.one("scale", &value.scale)
        }
    }
}

fn level_scan_fits(parts: &Parts<'_>, value: &Value) -> Result<(), String> {
    let ValueMap::Levels(levels) = &value.map else { return Err("it has no `levels`".to_owned()) };
    if levels.len() < 2 || levels[0] >= 0 || !levels.is_sorted_by(|a, b| a < b) {
        return Err("its levels must ascend from a negative one".to_owned());
    }
    // The largest weight of a run goes to the first level, or near it.
    if levels.iter().any(|level| level.unsigned_abs() > levels[0].unsigned_abs()) {
        return Err(
            "no level may be further from 0 than the first, which is for the largest weight".to_owned()
        );
    }
    match value.scale.len() {
        1 => parts.one("scale", &value.scale),
        _ => parts.with_runs("scale", &value.scale, Integers::BothSigns).map(|_| ()),
    }
}

fn nearest_level_fits(raw: &RawFormat<'_>, value: &Value) -> Result<(), String> {
    let ValueMap::Levels(levels) = &value.map else { return Err("it has no `levels`".to_owned()) };
    if levels.first() != Some(&0) || levels.iter().all(|level| *level <= 0) {
        return Err("its first level must be 0, and one must be positive".to_owned());
    }
    // The largest magnitude of a run goes to the greatest level.
    let greatest = levels.iter().fold(0, |most, level| most.max(*level));
    let least = levels.iter().fold(0, |least, level| least.min(*level));
    if least != 0 && i64::from(least) != -i64::from(greatest) {
        return Err(format!(
            "its least level must be as far from 0 as its greatest, or 0: not {least} and {greatest}"
        ));
    }
    let [Factor::Field(index)] = value.scale[..] else {
        return Err("it needs one field as `scale`".to_owned());
    };
    match raw.fields.get(index).map(|field| field.ty.value) {
        Some(FieldType::Scalar(Scalar::E8m0Half | Scalar::Ue4m3Half)) => Ok(()),
        _ => Err("its scale must be of type `e8m0-half` or `ue4m3-half`".to_owned()),
    }
}

fn grid_fits(parts: &Parts<'_>, checked: &Checked) -> Result<(), String> {
    let value = &checked.value;
    let ValueMap::Codebook { entries, times, .. } = &value.map else {
        return Err("it has no `codebook`".to_owned());
    };
    if value.stride != 1 {
        return Err("the elements of a code are not neighbours".to_owned());
    }
    let count = |field: usize| parts.raw.fields.get(field).map_or(1, |field| field.count.max(1));
    let elements = parts.raw.elements.map_or(0, |at| at.value);
    let group = value.group.max(1);
    let integers = || entries.iter().flatten().map(|v| v * times);
    match (&value.signs, &value.shift) {
        (Some(_), Some(_)) => Err("it has both `signs` and a `shift`".to_owned()),
        (None, None) => Err("it has neither `signs` nor a `shift`".to_owned()),
        (Some(signs), None) => {
            if integers().any(|v| v < 0) || integers().all(|v| v == 0) {
                return Err("its codebook must hold magnitudes, from 0 up".to_owned());
            }
            let run = elements / parts.with_runs("scale", &value.scale, Integers::Positive)?.max(1);
            if !run.is_multiple_of(group) || elements / count(signs.field) > 16 {
                return Err("a run must hold whole groups, and a sign mask no more than 16 signs".to_owned());
            }
            Ok(())
        }
        (None, Some(shift)) => {
            if integers().all(|v| shift.values.iter().all(|shift| v + shift == 0)) {
                return Err("its weights are zero whatever the code".to_owned());
            }
            let run = elements / parts.with_runs("scale", &value.scale, Integers::Positive)?.max(1);
            let shifted = elements / count(shift.field);
            if !run.is_multiple_of(shifted) || !shifted.is_multiple_of(group) {
                return Err("a shift must be for whole groups, and a run for whole shifts".to_owned());
            }
            Ok(())
        }
    }
}

struct Parts<'a> {
    raw: &'a RawFormat<'a>,
}

impl Parts<'_> {
    fn field(&self, factor: Factor) -> Option<&RawField> {
        match factor {
            Factor::Field(index) => self.raw.fields.get(index),
            Factor::Row | Factor::Tensor => None,
        }
    }

    /// One float of the block.
    fn float(&self, key: &str, factor: Factor) -> Result<(), String> {
        let float = |field: &RawField| {
            field.count == 1 && matches!(field.ty.value, FieldType::Scalar(scalar) if scalar.is_signed())
        };
        match self.field(factor).is_some_and(float) {
            true => Ok(()),
            false => Err(format!("`{key}` must start with a single f16, bf16 or f32 of the block")),
        }
    }

    fn one(&self, key: &str, factors: &[Factor]) -> Result<(), String> {
        match factors {
            [factor] => self.float(key, *factor),
            _ => Err(format!("`{key}` must be one number of the block")),
        }
    }

    /// A float of the block and an integer a run; returns how many.
    fn with_runs(&self, key: &str, factors: &[Factor], integers: Integers) -> Result<u32, String> {
        let [float, runs] = factors else {
            return Err(format!("`{key}` must be a number of the block and an integer for each run"));
        };
        self.float(key, *float)?;
        let field = self.field(*runs).ok_or_else(|| format!("the runs' part of `{key}` is no field"))?;
        let number = |raw: i64| raw * i64::from(field.times) + i64::from(field.plus);
        let Some((low, high)) = field.ty.value.range().map(|(low, high)| (number(low), number(high))) else {
            return Err(format!("the runs' part of `{key}` is no integer"));
        };
        let counts = field.times == 1;
        let (sound, wanted) = match integers {
            Integers::Positive if field.times <= 0 => (false, "must count upward, by a `times` above 0"),
            Integers::Positive if low <= 0 => (false, "must be positive (`plus` moves where it begins)"),
            Integers::Positive => (
                (high - low) / i64::from(field.times) < MOST_FACTORS,
                "must have no more than 256 values, which are all tried",
            ),
            Integers::FromZero => (counts && low == 0, "must count up by one from 0"),
            Integers::BothSigns => (
                counts && (high..=2 * high).contains(&-low) && high > 0,
                "must count by one, without `times`, from a negative number to about as far above 0 (`plus`)",
            ),
        };
        match sound {
            true => Ok(field.count),
            false => Err(format!("the runs' part of `{key}` {wanted}; it goes from {low} to {high}")),
        }
    }
}

/// Most integers that `grid-search` tries for a run. Of each it holds on the stack what every code of a run would be.
const MOST_FACTORS: i64 = 256;

/// Which integers an algorithm finds for runs.
#[derive(Clone, Copy, Debug)]
enum Integers {
    /// Positive ones, ascending: it is given a list, of which each is tried for every code.
    Positive,
    /// All from 0 up.
    FromZero,
    /// All between a negative one, by which the largest weight is divided, and one about as large.
    BothSigns,
}
