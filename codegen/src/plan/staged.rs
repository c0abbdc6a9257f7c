//! The buffer in which codes that many tokens share wait as operands, and what those are.

use super::exact::steps_in_i16;
use super::format::FormatPlan;
use super::pack::PackPlan;
use super::primitives::Primitives;

/// Elements of k that the buffer of a staged product holds of each of its rows, unless a super-block has more: with thirty-two rows half
/// of a first cache of 32 or 48 KiB, so that activations have the other half.
const STAGED_K: u32 = 512;

/// Elements of k whose activations are widened to i16 together: a vector of AVX2.
pub(super) const WORDS_K: u32 = 32;

/// What the operands of a staged product are where they are not what codes stand for: values times the integers of their runs, so that
/// products are summed up over a super-block, and scaled once; or values alone, as wide as they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaled {
    /// Bytes, less this number.
    Bytes {
        /// The least of them, or the odd number below it.
        zero: i32,
        /// Half of what is left, which is even: what is odd times what is odd.
        halved: bool,
    },
    /// i16: the first and the third of each four k, and behind those of all rows the second and the fourth. Where runs have no
    /// integers, values alone.
    Words,
}

impl Scaled {
    /// The narrowest that holds all products and whose sums over a super-block, or a run, fit in 32 bits; none where `primitives` have
    /// none, or where operands would be widened for nothing else: `wide`, they are in any case. With AVX-512 it costs up to 8 % (Zen 4,
    /// `q8_0`) to widen values ahead that are not multiplied by anything.
    fn new(plan: &FormatPlan<'_>, primitives: &Primitives, wide: bool) -> Option<Scaled> {
        let values = (plan.min(), plan.max());
        let (least, most) = match &plan.superblock {
            Some(superblock) => superblock.products(values),
            None => (values.0.into(), values.1.into()),
        };
        let k = u64::from(plan.k_group * plan.runs());
        let exact = |largest: i64| 128 * k * largest.unsigned_abs() <= i32::MAX as u64;
        if let (Some(superblock), true) = (&plan.superblock, primitives.times) {
            let byte = u8::MAX.into();
            let halved = most - least > byte && superblock.products_are_odd(&plan.values);
            // From an odd number odd ones are an even distance away; the least is 0 where all are positive.
            let zero = if halved && least % 2 == 0 { least - 1 } else { least };
            if (most - zero) >> u32::from(halved) <= byte && exact(most - zero) {
                return Some(Scaled::Bytes { zero: zero as i32, halved });
            }
        }
        let fits = |product: i64| i16::try_from(product).is_ok() && exact(product);
        let runs = plan.k_group != 0 && plan.k_group.is_multiple_of(WORDS_K);
        let pays = plan.superblock.is_some() || primitives.stages;
        let words = wide && primitives.words && runs && pays;
        (words && fits(least) && fits(most)).then_some(Scaled::Words)
    }
}

/// The buffer of operands of a staged product.
#[derive(Clone, Debug)]
pub struct Staged<'a> {
    /// How operands lie in it.
    pub operands: PackPlan<'a>,
    /// Elements of k that are never apart: a super-block, a run, or a tile of codes where a row is one run.
    pub step: u32,
    /// Steps that it holds.
    pub steps: u32,
    /// Where operands are values times the integers of their runs, how.
    pub scaled: Option<Scaled>,
    /// What sums of runs are multiplied by waits beside the operands, so that integers are taken apart once too.
    pub integers: bool,
    /// Operands are even, and half of each waits: sums in i16 take twice as many and are widened less often.
    pub halved: bool,
    /// Fewest tokens for which codes that cost little are decoded once.
    least: u64,
}

impl<'a> Staged<'a> {
    /// The buffer for `pack` and tiles of so many `tokens`; none where it would save nothing, or where each tile has to decode codes for itself. `wide`:
    /// two products leave i16, so each takes more instructions, behind which taking codes apart hides less; with `signs` operands may
    /// stay bytes all the same.
    pub(super) fn new(
        plan: &FormatPlan<'_>,
        pack: &PackPlan<'a>,
        primitives: &Primitives,
        tokens: u32,
        wide: bool,
        signs: bool,
    ) -> Option<Staged<'a>> {
        let step = match plan.k_group {
            0 => pack.tile.k,
            k_group => k_group * plan.runs(),
        };
        let scaled = Scaled::new(plan, primitives, wide);
        // As `MatmulPlan::widens_by_integers` has it.
        let in_pairs = tokens > 1 && (!wide || signs) && plan.corrects_in_pairs(signs);
        let integers = scaled.is_none() && primitives.sum_pairs && plan.superblock.is_some() && in_pairs;
        let costly = pack.costly() || wide && pack.fields > 1;
        let plain = primitives.stages && pack.plain();
        if scaled.is_none() && !integers && !costly && !plain {
            return None;
        }
        let words = scaled == Some(Scaled::Words);
        // On Zen 3 `q2_k` and `q3_k`, which keep integers, are 4 to 8 % slower at 8 tokens, and others up to 3 % at 16; so is `q8_0` on Zen 4,
        // whose codes are only widened.
        let least = match (plain || words && pack.fields == 1, integers) {
            (false, _) => 0,
            (true, true) => 16,
            (true, false) => 32,
        };
        let bytes = matches!(scaled, Some(Scaled::Bytes { .. }));
        let mut operands = pack.operands(plan, primitives.direct || words, bytes || integers)?;
        // A tile for each run, whose sums need no registers beside those that they are widened into before it ends. With the signs of
        // activations there are none in i16, and loops over smaller tiles are faster.
        if integers && !signs && plan.k_group <= WORDS_K {
            operands = operands.in_tiles_of(plan.k_group);
        }
        let halved = integers
            && !signs
            && pack.even_operands()
            && steps_in_i16(0, pack.operand_max.into(), primitives.paired.into()) < (plan.k_group / 4).into();
        if halved {
            operands.operand_max /= 2;
        }
        let held = if words { STAGED_K / 2 } else { STAGED_K };
        let steps = (held / step).max(1);
        (step <= 4 * held).then_some(Staged { operands, step, steps, scaled, integers, halved, least })
    }

    /// Fewest tokens for which multiplying operands by the integers of their runs pays. Measured on Zen 5: with vectors of 256 bits
    /// `iq1_s`, `q3_k` and `q2_k` are 4 to 15 % slower at 16 tokens and no slower at 24; with those of 512, `iq1_s` alone is.
    pub(super) fn least_tokens(&self, primitives: &Primitives) -> u64 {
        match self.scaled {
            Some(Scaled::Bytes { halved, .. }) if halved || primitives.lanes < 16 => 24,
            Some(Scaled::Bytes { .. }) => 0,
            Some(Scaled::Words) | None => self.least,
        }
    }

    /// Operands are i16.
    pub fn of_words(&self) -> bool {
        self.scaled == Some(Scaled::Words)
    }

    /// Bytes of an operand.
    pub fn operand_bytes(&self) -> u32 {
        if self.of_words() { 2 } else { 1 }
    }
}
