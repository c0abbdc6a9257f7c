//! In which types scales and minima lie in a packing.

use super::FormatPlan;
use gristmill_spec::model::{FieldType, Scalar};

/// The types in which a packing holds the scales and minima of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermTypes {
    /// Of scales; where runs have integers, of what the runs of a super-block share.
    pub scale: Scalar,
    /// Of minima, where there are any.
    pub min: Scalar,
    /// Units that share a scale and a minimum: more than one where activations have more scales than weights.
    pub span: u32,
}

impl TermTypes {
    /// Everything widened when weights are packed: what kernels of GPUs read.
    pub const F32: TermTypes = TermTypes { scale: Scalar::F32, min: Scalar::F32, span: 1 };

    /// As wide as the format stores them, in panels of `rows` rows: kernels widen them in registers, which changes no bit.
    /// Products of several fields, and what is multiplied by a constant, are f32. One for each run of the format, however many
    /// scales its activations have.
    pub(super) fn stored(plan: &FormatPlan<'_>, rows: u32) -> TermTypes {
        // Panels are whole words.
        if !plan.has_scales() || !rows.is_multiple_of(4) {
            return TermTypes::F32;
        }
        let span = match &plan.superblock {
            Some(_) => 1,
            None if plan.run().is_multiple_of(plan.unit) => plan.run() / plan.unit,
            None => 1,
        };
        let terms = TermTypes {
            span,
            scale: plan.scale_field().map_or(Scalar::F32, |field| scalar(plan, field)),
            min: match (plan.min_field(), plan.format.value.add.is_empty()) {
                (Some(field), true) => scalar(plan, field),
                // Packed with the other sign, for which types without one have no room.
                (Some(field), false) => match scalar(plan, field) {
                    Scalar::E8m0Half | Scalar::Ue4m3Half => Scalar::F32,
                    signed => signed,
                },
                (None, _) => Scalar::F32,
            },
        };
        // Super-blocks lie side by side at one distance.
        let unequal = plan.superblock.as_ref().is_some_and(|s| s.min.is_some() && terms.scale != terms.min);
        if unequal { TermTypes { span, ..TermTypes::F32 } } else { terms }
    }

    /// Words that the numbers which a super-block shares take in a panel.
    pub(crate) fn shared_words(&self, rows: u32) -> u32 {
        (rows * self.scale.bits()).div_ceil(32)
    }

    /// Words that the terms of a super-block take in a panel: the shared number of each row, then the integers of its runs,
    /// a byte each.
    pub(crate) fn words(&self, runs: u32, rows: u32) -> u32 {
        self.shared_words(rows) + (runs * rows).div_ceil(4)
    }

    /// Scales of a row in a panel, as an expression.
    pub(crate) fn of_a_row(&self) -> String {
        match self.span {
            1 => "a.units".to_string(),
            span => format!("(a.units / {span})"),
        }
    }

    /// Index of the scale of unit `unit` in a row: expressions.
    pub(crate) fn of_unit(&self, unit: &str) -> String {
        match self.span {
            1 => unit.to_string(),
            span => format!("{unit} / {span}"),
        }
    }

    /// What is behind the name of a packing where it holds these.
    pub fn suffix(&self) -> String {
        let types = match (self.scale, self.min) {
            (Scalar::F32, Scalar::F32) => String::new(),
            (scale, min) if scale == min || min == Scalar::F32 => format!("_{}", word(scale)),
            (scale, min) => format!("_{}_{}", word(scale), word(min)),
        };
        match self.span {
            1 => types,
            span => format!("{types}_for{span}"),
        }
    }
}

fn scalar(plan: &FormatPlan<'_>, field: usize) -> Scalar {
    match plan.format.fields[field].ty {
        FieldType::Scalar(scalar) => scalar,
        FieldType::Unsigned(_) | FieldType::Signed(_) | FieldType::Digit(_) => Scalar::F32,
    }
}

/// A type as it stands in names: of packings and of the primitives that load it.
pub fn word(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::F16 => "f16",
        Scalar::Bf16 => "bf16",
        Scalar::F32 => "f32",
        Scalar::E8m0Half => "e8m0_half",
        Scalar::Ue4m3Half => "ue4m3_half",
    }
}
