//! In which types scales and minima lie in a packing.

use super::{FormatPlan, RunTerm, Term};
use gristmill_spec::model::{FieldType, Scalar};
use gristmill_spec::vocab::Strategy;

/// The types in which a packing holds the scales and minima of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermTypes {
    /// Of scales; where runs have integers, of what the runs of a super-block share.
    pub scale: Scalar,
    /// Of minima, where there are any.
    pub min: Scalar,
    /// K groups that share a scale and a minimum: more than one where activations have more scales than weights.
    pub span: u32,
    /// Bits of the f32 that scales are multiplied by when they are widened: the format's constant factor, where they lie as stored.
    pub factor: u32,
    /// How the integers of runs lie, where they have some: those of scales.
    pub scale_integers: Integers,
    /// And those of minima.
    pub min_integers: Integers,
    /// Flags that a row has behind the integers of a super-block: one for each group of weights that has one of two shifts.
    pub flags: u32,
}

/// How the integers of runs lie in a packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// A byte each.
    Bytes,
    /// Codes of four bits, those of a row in the upper half of a panel above those of the row as far into the lower half: an integer is
    /// `(code << shift) + plus`.
    Nibbles {
        /// Binary logarithm of the factor.
        shift: u32,
        /// What is added.
        plus: u32,
    },
}

impl Integers {
    /// Nibbles where the field's codes fit and a shift and an addition make the integers.
    fn of(plan: &FormatPlan<'_>, term: &RunTerm) -> Integers {
        let field = &plan.format.fields[term.integer];
        match (field.ty, u32::try_from(field.times), u32::try_from(field.plus)) {
            (FieldType::Unsigned(..=4), Ok(times), Ok(plus)) if times.is_power_of_two() => {
                Integers::Nibbles { shift: times.trailing_zeros(), plus }
            }
            _ => Integers::Bytes,
        }
    }

    /// Bits of one.
    pub fn bits(self) -> u32 {
        match self {
            Integers::Bytes => 8,
            Integers::Nibbles { .. } => 4,
        }
    }
}

impl TermTypes {
    /// Everything widened when weights are packed: what kernels of GPUs read.
    pub const F32: TermTypes = TermTypes {
        scale: Scalar::F32,
        min: Scalar::F32,
        span: 1,
        factor: 1f32.to_bits(),
        scale_integers: Integers::Bytes,
        min_integers: Integers::Bytes,
        flags: 0,
    };

    /// As wide as the format stores them, in panels of `rows` rows: kernels widen them in registers, which changes no bit.
    /// Products of several fields are f32. One for each run of the format, however many scales its activations have. Integers of four
    /// bits or fewer take four where products multiply, unless that saves little
    /// ([`PackPlan::new`](super::PackPlan::new)); those by lookup take the runs one by one.
    pub(super) fn stored(plan: &FormatPlan<'_>, rows: u32, strategy: Strategy) -> TermTypes {
        // Panels are whole words.
        if !plan.has_scales() || !rows.is_multiple_of(4) {
            return TermTypes::F32;
        }
        let span = match &plan.superblock {
            Some(_) => 1,
            None if plan.run().is_multiple_of(plan.k_group) => plan.run() / plan.k_group,
            None => 1,
        };
        let integers = |term: Option<&RunTerm>| match (term, strategy) {
            // A vector of rows lies in one half of a panel, or is all of it.
            (Some(term), Strategy::Multiply | Strategy::Staged | Strategy::Tiles)
                if rows.is_power_of_two() =>
            {
                Integers::of(plan, term)
            }
            (_, Strategy::Multiply | Strategy::Staged | Strategy::Tiles | Strategy::Lookup) => {
                Integers::Bytes
            }
        };
        let superblock = plan.superblock.as_ref();
        let terms = TermTypes {
            span,
            scale_integers: integers(superblock.map(|superblock| &superblock.scale)),
            min_integers: integers(superblock.and_then(|superblock| superblock.min.as_ref())),
            scale: plan.field_of(Term::Scale).map_or(Scalar::F32, |field| scalar(plan, field)),
            min: match (plan.field_of(Term::Min), plan.format.value.add.is_empty()) {
                (Some(field), true) => scalar(plan, field),
                // Packed with the other sign, for which types without one have no room.
                (Some(field), false) if scalar(plan, field).is_signed() => scalar(plan, field),
                (Some(_), false) | (None, _) => Scalar::F32,
            },
            ..TermTypes::F32
        };
        let factor = if terms.scale == Scalar::F32 { 1.0 } else { plan.format.value.unit };
        let terms = TermTypes { factor: factor.to_bits(), ..terms };
        // Super-blocks lie side by side at one distance.
        let unequal = superblock.is_some_and(|s| s.min.is_some() && terms.scale != terms.min);
        if unequal {
            TermTypes { scale: Scalar::F32, min: Scalar::F32, factor: TermTypes::F32.factor, ..terms }
        } else {
            terms
        }
    }

    /// The type of a term.
    pub(crate) fn scalar(&self, term: Term) -> Scalar {
        match term {
            Term::Scale => self.scale,
            Term::Min => self.min,
        }
    }

    /// How the integers of a term lie.
    pub(crate) fn integers(&self, term: Term) -> Integers {
        match term {
            Term::Scale => self.scale_integers,
            Term::Min => self.min_integers,
        }
    }

    /// The same with a byte for each integer.
    pub(super) fn with_bytes(self) -> TermTypes {
        TermTypes { scale_integers: Integers::Bytes, min_integers: Integers::Bytes, ..self }
    }

    /// Words that the numbers which a super-block shares take in a panel.
    pub(crate) fn shared_words(&self, rows: u32) -> u32 {
        (rows * self.scale.bits()).div_ceil(32)
    }

    /// Words behind which the flags of a super-block stand: the shared scale of each row, then the integers of its runs.
    pub(crate) fn words_before_flags(&self, runs: u32, rows: u32) -> u32 {
        self.shared_words(rows) + (runs * rows * self.scale_integers.bits()).div_ceil(32)
    }

    /// Words that a term of a super-block takes in a panel, with the integers of its runs; with scales its flags.
    pub(crate) fn words(&self, term: Term, runs: u32, rows: u32) -> u32 {
        match term {
            Term::Scale => self.words_before_flags(runs, rows) + (rows * self.flag_bits()).div_ceil(32),
            Term::Min => self.shared_words(rows) + (runs * rows * self.min_integers.bits()).div_ceil(32),
        }
    }

    /// Bits in which a row's flags of a super-block lie: a byte or a word.
    pub fn flag_bits(&self) -> u32 {
        match self.flags {
            0 => 0,
            1..=8 => 8,
            _ => 32,
        }
    }

    /// Scales of a row in a panel, as an expression.
    pub(crate) fn of_a_row(&self) -> String {
        match self.span {
            1 => "a.units".to_string(),
            span => format!("(a.units / {span})"),
        }
    }

    /// What a loop's name says of the constant that it multiplies scales by.
    pub(crate) fn factor_word(&self) -> String {
        if self.factor == TermTypes::F32.factor { String::new() } else { format!("_unit{:08x}", self.factor) }
    }

    /// Index of the scale of K group `unit` in a row: expressions.
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
            (scale, min) if scale == min || min == Scalar::F32 => format!("_{}", scale.word()),
            (scale, min) => format!("_{}_{}", scale.word(), min.word()),
        };
        let integers = |of: Integers| match of {
            Integers::Bytes => "_i8".to_string(),
            Integers::Nibbles { shift: 0, plus: 0 } => "_u4".to_string(),
            Integers::Nibbles { shift, plus } => format!("_u4x{}p{plus}", 1 << shift),
        };
        let types = match (self.scale_integers, self.min_integers) {
            (Integers::Bytes, Integers::Bytes) => types,
            (scale, Integers::Bytes) => format!("{types}{}", integers(scale)),
            (scale, min) => format!("{types}{}{}", integers(scale), integers(min)),
        };
        let types = match self.flags {
            0 => types,
            flags => format!("{types}_flags{flags}"),
        };
        match self.span {
            1 => types,
            span => format!("{types}_for{span}"),
        }
    }
}

/// The type in which a packing holds a field's numbers: as stored, where a primitive of each ISA widens it (`simd::load_f16`).
fn scalar(plan: &FormatPlan<'_>, field: usize) -> Scalar {
    match plan.format.fields[field].ty {
        FieldType::Scalar(scalar @ (Scalar::F16 | Scalar::Bf16 | Scalar::E8m0Half | Scalar::Ue4m3Half)) => {
            scalar
        }
        _ => Scalar::F32,
    }
}
