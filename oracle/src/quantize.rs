//! Quantizers, of weights and of activations: one value at a time, rounding decided in f64.

use super::FormatOracle;
use super::layout::number;
use gristmill_spec::model::{
    Activations, Factor, FieldType, Format, RoundRule, Rounding, Scalar, ScaleRule, Statistic, ValueMap, Via,
};

/// Why a quantizer must refuse its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// NaN or an infinity at this element of the tensor.
    NonFinite(usize),
    /// The scale of this block of this row does not fit its storage type (block 0 for scales that cover more).
    ScaleOverflow {
        /// The row.
        row: usize,
        /// The block.
        block: usize,
    },
}

/// A row of activations as int8.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Row {
    /// The values.
    pub q: Vec<i8>,
    /// One scale a block.
    pub scales: Vec<f32>,
}

/// What values are scaled with, and what is stored.
#[derive(Clone, Copy, Debug)]
struct Steps {
    apply: f32,
    stored: f32,
}

fn statistic(of: Statistic, x: &[f32]) -> f32 {
    match of {
        Statistic::AbsMax => x.iter().fold(0.0, |worst, x| if x.abs() > worst { x.abs() } else { worst }),
        Statistic::SignedAbsMax => {
            x.iter().fold(0.0, |worst: f32, x| if x.abs() > worst.abs() { *x } else { worst })
        }
        Statistic::AbsMean => {
            // Of each 4096 values, value i belongs to partial sum i % 16; partial sums are added in order, and so
            // are the 4096s.
            let lane = |x: &[f32], lane: usize| {
                x.iter().skip(lane).step_by(16).fold(0.0, |sum, x| sum + f64::from(x.abs()))
            };
            let chunk = |x: &[f32]| (0..16).fold(0.0, |sum, i| sum + lane(x, i));
            let sum = x.chunks(4096).fold(0.0, |sum, x| sum + chunk(x));
            if x.is_empty() { 0.0 } else { (sum / x.len() as f64) as f32 }
        }
    }
}

fn steps(rule: &ScaleRule, x: &[f32]) -> Steps {
    let s = statistic(rule.of, x);
    // Numerator and denominator of a division in f64 are exact there, but for the bound, which is not rounded to f32.
    let wide = if rule.floor != 0.0 && f64::from(s) < rule.floor { rule.floor } else { f64::from(s) };
    let narrow = if rule.floor != 0.0 && s < rule.floor as f32 { rule.floor as f32 } else { s };
    let levels = rule.levels;
    let (step, multiplier) = if rule.f64_division {
        ((wide / f64::from(levels)) as f32, (f64::from(levels) / wide) as f32)
    } else {
        (narrow / levels, levels / narrow)
    };
    match rule.via {
        Via::Step => {
            let inverse = 1.0 / step;
            // Too small for an inverse: as if all were zero.
            if inverse.is_finite() {
                Steps { apply: inverse, stored: step }
            } else {
                Steps { apply: 0.0, stored: 0.0 / rule.levels }
            }
        }
        Via::Multiplier => {
            if multiplier.is_finite() {
                Steps { apply: multiplier, stored: 1.0 / multiplier }
            } else {
                Steps { apply: 0.0, stored: 0.0 }
            }
        }
        Via::Divide => {
            // Division by an infinity makes every code zero.
            if step != 0.0 {
                Steps { apply: step, stored: step }
            } else {
                Steps { apply: f32::INFINITY, stored: 0.0 }
            }
        }
    }
}

/// The integer of `x`; `zero` is what the format subtracts from codes.
fn integer(
    x: f32,
    steps: Steps,
    via: Via,
    round: Rounding,
    threshold: f64,
    clamp: (i32, i32),
    zero: i32,
) -> i32 {
    let scaled = match via {
        Via::Divide => x / steps.apply,
        Via::Step | Via::Multiplier => x * steps.apply,
    };
    let rounded = match round {
        Rounding::Sign => match f64::from(x).abs() < threshold {
            true => 0.0,
            false if x.is_sign_negative() => -1.0,
            false => 1.0,
        },
        Rounding::HalfUp => {
            let shifted = scaled + (zero as f32 + 0.5);
            f64::from(shifted.trunc() - zero as f32)
        }
        Rounding::HalfEven | Rounding::HalfAway | Rounding::HalfTowardZero => {
            let magnitude = f64::from(scaled).abs();
            let whole = magnitude.floor();
            let up = match magnitude - whole {
                rest if rest != 0.5 => rest > 0.5,
                _ => match round {
                    Rounding::HalfEven => whole % 2.0 == 1.0,
                    Rounding::HalfAway => true,
                    Rounding::HalfTowardZero | Rounding::HalfUp | Rounding::Sign => false,
                },
            };
            (whole + f64::from(u8::from(up))).copysign(f64::from(scaled))
        }
    };
    // Exact: clamps are small integers.
    rounded.max(f64::from(clamp.0)).min(f64::from(clamp.1)) as i32
}

/// The bits of `value` in a scalar type; `None` if a finite value becomes infinite.
fn store(scalar: Scalar, value: f32) -> Option<u32> {
    let raw = match scalar {
        Scalar::F32 => value.to_bits(),
        Scalar::F16 => u32::from(half::f16::from_f32(value).to_bits()),
        Scalar::Bf16 => u32::from(half::bf16::from_f32(value).to_bits()),
        // The checker lets no quantizer store these.
        _ => return None,
    };
    number(scalar, raw).is_finite().then_some(raw)
}

fn code_of(format: &Format, v: i32) -> u32 {
    match &format.value.map {
        ValueMap::Affine { times, zero } => (v + zero).checked_div(*times).unwrap_or(0) as u32,
        ValueMap::Levels(levels) => levels.iter().position(|level| *level == v).unwrap_or(0) as u32,
        // The checker lets no quantizer make entries of a codebook.
        ValueMap::Codebook { .. } => 0,
    }
}

impl FormatOracle<'_> {
    /// The tensor that a quantizer by `rule` makes of `n` rows of `k` values, headers and tail included.
    ///
    /// # Errors
    /// What the quantizer must refuse.
    pub fn quantize(&self, rule: &RoundRule, x: &[f32], n: usize, k: usize) -> Result<Vec<u8>, Refused> {
        let format = self.format();
        if let Some(at) = x.iter().position(|x| !x.is_finite()) {
            return Err(Refused::NonFinite(at));
        }
        let mut tensor = Vec::new();
        let whole = format.tensor_tail.map(|_| if x.is_empty() { None } else { Some(steps(&rule.scale, x)) });
        for row in 0..n {
            let values = &x[row * k..][..k];
            let mut outer = whole.flatten();
            if let Some(scalar) = format.row_header {
                let steps = steps(&rule.scale, values);
                outer = Some(steps);
                let raw = store(scalar, steps.stored).ok_or(Refused::ScaleOverflow { row, block: 0 })?;
                tensor.extend(&raw.to_le_bytes()[..scalar.bits() as usize / 8]);
            }
            for (block, values) in values.chunks(format.elements as usize).enumerate() {
                let bytes = self.block(rule, values, outer);
                tensor.extend(bytes.ok_or(Refused::ScaleOverflow { row, block })?);
            }
        }
        if let Some((scalar, bytes)) = format.tensor_tail {
            let end = tensor.len() + bytes as usize;
            let stored = whole.flatten().map_or(0.0, |steps| steps.stored);
            let raw = store(scalar, stored).ok_or(Refused::ScaleOverflow { row: 0, block: 0 })?;
            tensor.extend(&raw.to_le_bytes()[..scalar.bits() as usize / 8]);
            tensor.resize(end, 0);
        }
        Ok(tensor)
    }

    /// One block; `None` if its scale can't be stored.
    fn block(&self, rule: &RoundRule, x: &[f32], outer: Option<Steps>) -> Option<Vec<u8>> {
        let format = self.format();
        let mut block = vec![0; format.bytes as usize];
        let steps = outer.unwrap_or_else(|| steps(&rule.scale, x));
        let zero = match &format.value.map {
            ValueMap::Affine { zero, .. } => *zero,
            ValueMap::Levels(levels) => -levels.first().copied().unwrap_or(0),
            ValueMap::Codebook { .. } => 0,
        };
        for (i, x) in x.iter().enumerate() {
            let RoundRule { scale, round, threshold, clamp } = rule;
            let v = integer(*x, steps, scale.via, *round, *threshold, *clamp, zero);
            self.set_raw(&mut block, format.value.code, i, code_of(format, v));
        }
        if let [Factor::Field(field)] = format.value.scale[..]
            && let FieldType::Scalar(scalar) = format.fields[field].ty
        {
            self.set_raw(&mut block, field, 0, store(scalar, steps.stored)?);
        }
        Some(block)
    }
}

impl Int8Row {
    /// What a row of activations becomes.
    ///
    /// # Errors
    /// What the quantizer must refuse, as row 0.
    pub fn quantize(activations: &Activations, x: &[f32]) -> Result<Int8Row, Refused> {
        let mut row = Int8Row { q: Vec::with_capacity(x.len()), scales: Vec::new() };
        let block = activations.block.map_or(x.len().max(1), |block| block as usize);
        for (index, values) in x.chunks(block).enumerate() {
            if let Some(at) = values.iter().position(|x| !x.is_finite()) {
                return Err(Refused::NonFinite(index * block + at));
            }
            let steps = steps(&activations.scale, values);
            let kept = match (activations.keeps_multiplier, activations.stored_f16) {
                (true, _) => steps.apply,
                (false, true) => {
                    let raw = store(Scalar::F16, steps.stored);
                    let raw = raw.ok_or(Refused::ScaleOverflow { row: 0, block: index })?;
                    number(Scalar::F16, raw) as f32
                }
                (false, false) => steps.stored,
            };
            row.scales.push(kept);
            for x in values {
                let Activations { scale, round, clamp, .. } = activations;
                // Activation formats clamp within int8.
                row.q.push(integer(*x, steps, scale.via, *round, 0.0, *clamp, 0) as i8);
            }
        }
        Ok(row)
    }

    /// Sums over runs of `unit` values; the last run may be shorter.
    pub fn sums(&self, unit: usize) -> Vec<i32> {
        self.q.chunks(unit.max(1)).map(|unit| unit.iter().map(|q| i32::from(*q)).sum()).collect()
    }
}
