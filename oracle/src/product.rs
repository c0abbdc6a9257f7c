//! Products in the order of operations that a format fixes: what every kernel's bits must be.
//!
//! Sums over elements that share their scales are integers; what is rounded, and when, is stated in
//! docs/architecture.md, and worked out here from the fields and their counts alone.

use super::FormatOracle;
use crate::row::{Row, Step};
use gristmill_spec::model::{Factor, FieldType, Scalar};

/// The fields of a term: those that a whole step shares, and the one of its runs' integers.
struct Split<'f> {
    shared: &'f [usize],
    integer: usize,
}

impl FormatOracle<'_> {
    /// Fields among some factors.
    fn fields_of(factors: &[Factor]) -> Vec<usize> {
        let field = |factor: &Factor| match factor {
            Factor::Field(field) => Some(*field),
            Factor::Row | Factor::Tensor => None,
        };
        factors.iter().filter_map(field).collect()
    }

    /// The smallest and the largest integer that a field counts as; none for numbers that are not integers.
    fn integers_of(&self, field: usize) -> Option<(i64, i64)> {
        let field = &self.format.fields[field];
        let raw: Vec<u32> = match field.ty {
            FieldType::Unsigned(bits) => vec![0, (1 << bits) - 1],
            FieldType::Signed(bits) => vec![1 << (bits - 1), (1 << (bits - 1)) - 1],
            FieldType::Digit(radix) => vec![0, radix.base() - 1],
            FieldType::Scalar(_) => return None,
        };
        use super::layout::Raw as _;
        let number =
            |raw: u32| i64::from(field.times) * i64::from(field.ty.signed(raw)) + i64::from(field.plus);
        let numbers: Vec<i64> = raw.into_iter().map(number).collect();
        Some((*numbers.iter().min()?, *numbers.iter().max()?))
    }

    /// A term as what is shared and an integer of eight bits, if its last field is one.
    fn split<'f>(&self, fields: &'f [usize]) -> Option<Split<'f>> {
        let (&integer, shared) = fields.split_last()?;
        let (low, high) = self.integers_of(integer)?;
        (!shared.is_empty() && low >= -128 && high <= 127).then_some(Split { shared, integer })
    }

    /// Elements of a step where runs have integers, which are multiplied before anything is rounded.
    fn superblock(&self) -> Option<usize> {
        let value = &self.format.value;
        let scale = Self::fields_of(&value.scale);
        let low = Self::fields_of(if value.add.is_empty() { &value.subtract } else { &value.add });
        if !value.add.is_empty() && !value.subtract.is_empty() {
            return None;
        }
        let mut terms = vec![self.split(&scale)?];
        if !(value.add.is_empty() && value.subtract.is_empty()) {
            terms.push(self.split(&low)?);
        }
        let exact_factor = |field: &usize| {
            let ty = self.format.fields[*field].ty;
            [FieldType::Scalar(Scalar::F16), FieldType::Scalar(Scalar::Ue4m3Half)].contains(&ty)
        };
        if value.unit != 1.0 && !matches!(terms[0].shared, [one] if exact_factor(one)) {
            return None;
        }
        let extents: Vec<usize> =
            terms.iter().flat_map(|term| term.shared).map(|field| self.run(*field)).collect();
        let block = self.activations.block.map(|block| block as usize);
        let length = extents.iter().copied().chain(block).min()?;
        let whole = |extent: &usize| extent.is_multiple_of(length);
        let run = self.common_run();
        if !extents.iter().chain(&block).all(whole)
            || !(self.format.elements as usize).is_multiple_of(length)
            || !length.is_multiple_of(2 * run)
        {
            return None;
        }
        // All sums stay within 32 bits, and those of a run's activations within 16.
        let most = |term: &Split<'_>| {
            self.integers_of(term.integer)
                .map_or(0, |(low, high)| low.unsigned_abs().max(high.unsigned_abs()))
        };
        let values = self.format.integers();
        let weight = values.iter().map(|v| u64::from(v.unsigned_abs())).max().unwrap_or(0);
        let sum = |weight: u64, term: &Split<'_>| 128 * length as u64 * weight * most(term);
        let fits = sum(weight, &terms[0]) < 1 << 31
            && terms.get(1).is_none_or(|low| sum(1, low) < 1 << 31 && run * 128 <= 1 << 15);
        fits.then_some(length)
    }

    /// The steps of a row's blocks.
    pub(super) fn steps(&self, blocks: &[u8]) -> Vec<Step> {
        let value = &self.format.value;
        let elements = self.format.elements as usize;
        let has_offset = !(value.add.is_empty() && value.subtract.is_empty());
        let in_block = has_offset || value.scale.iter().any(|factor| matches!(factor, Factor::Field(_)));
        let superblock = self.superblock();
        let block = self.activations.block.map(|block| block as usize);
        let (run, length) = match (superblock, in_block, block) {
            (Some(length), ..) => (self.common_run(), length),
            (None, true, block) => {
                let run = block.map_or(self.common_run(), |block| block.min(self.common_run()));
                (run, run)
            }
            (None, false, Some(block)) => (block.min(elements), block.min(elements)),
            (None, false, None) => {
                let all = blocks.len() / self.format.bytes as usize * elements;
                return vec![Step { elements: 0..all, scale: 1.0, low: 0.0, integers: vec![(1, 1)] }];
            }
        };
        let mut steps = Vec::new();
        for (index, block) in blocks.chunks_exact(self.format.bytes as usize).enumerate() {
            for first in (0..elements).step_by(length) {
                let term = |factors: &[Factor]| {
                    let fields = Self::fields_of(factors);
                    let shared = if superblock.is_some() { fields.len() - 1 } else { fields.len() };
                    let factors: Vec<Factor> = fields[..shared].iter().map(|f| Factor::Field(*f)).collect();
                    self.product(block, first, 1.0, &factors).map(|product| product.0)
                };
                let integer = |factors: &[Factor], element: usize| match Self::fields_of(factors).last() {
                    Some(field) if superblock.is_some() => {
                        let number = self.product(block, element, 1.0, &[Factor::Field(*field)]);
                        number.map_or(1, |number| number.1 as i64)
                    }
                    Some(_) | None => 1,
                };
                let low = match (value.add.is_empty(), value.subtract.is_empty()) {
                    (true, true) => 0.0,
                    (true, false) => term(&value.subtract).unwrap_or(1.0),
                    (false, true) => -term(&value.add).unwrap_or(1.0),
                    (false, false) => term(&value.subtract).unwrap_or(1.0) - term(&value.add).unwrap_or(1.0),
                };
                let lows = if value.add.is_empty() { &value.subtract } else { &value.add };
                steps.push(Step {
                    elements: index * elements + first..index * elements + first + length,
                    scale: if in_block { term(&value.scale).unwrap_or(1.0) * value.unit } else { 1.0 },
                    low,
                    integers: (first..first + length)
                        .step_by(run)
                        .map(|element| (integer(&value.scale, element), integer(lows, element)))
                        .collect(),
                });
            }
        }
        steps
    }

    /// One output of a product from int8 activations and their scales, by single f32 operations in the order that the
    /// format fixes.
    pub fn product_f32(&self, row: &Row, q: &[i8], x_scales: &[f32], bias: Option<f32>) -> f32 {
        let value = &self.format.value;
        let mut y = 0.0f32;
        let has_offset = !(value.add.is_empty() && value.subtract.is_empty());
        let in_block = has_offset || value.scale.iter().any(|factor| matches!(factor, Factor::Field(_)));
        for step in &row.steps {
            let (mut sum, mut low) = (0i64, 0i64);
            let run = step.elements.len() / step.integers.len().max(1);
            for (element, at) in step.elements.clone().enumerate() {
                let (scale, min) = step.integers[element / run.max(1)];
                sum += scale * i64::from(row.integers[at]) * i64::from(q[at]);
                low += min * i64::from(q[at]);
            }
            let Some(block) = self.activations.block else {
                match in_block {
                    true => y += step.scale * sum as f32,
                    false => y = sum as f32,
                }
                if has_offset {
                    y -= step.low * low as f32;
                }
                continue;
            };
            let x = x_scales[step.elements.start / block as usize];
            y += if in_block { step.scale * x * sum as f32 } else { x * sum as f32 };
            if has_offset {
                y -= step.low * x * low as f32;
            }
        }
        if self.activations.block.is_none() {
            y = if self.activations.keeps_multiplier { y / x_scales[0] } else { y * x_scales[0] };
        }
        let outer = |factor: &Factor| matches!(factor, Factor::Row | Factor::Tensor);
        if value.scale.iter().chain(&value.add).chain(&value.subtract).any(outer) {
            y *= row.outer;
        }
        if !in_block {
            y *= value.unit;
        }
        bias.map_or(y, |bias| y + bias)
    }
}
