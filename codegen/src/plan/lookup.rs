//! Plans of products by table lookup.
//!
//! Four bits of codes are an index into a table of the sixteen sums that they can stand for with the
//! activations at hand. A sum is held as two digits, each in a byte, so that a byte shuffle serves sixteen
//! rows or more; bytes are summed until they could overflow, then merged into i16 lanes, and those into i32.

use super::divisors::gcd;
use super::exact::{exact_over, longest_row, up_to};
use super::format::FormatPlan;
use super::primitives::features;
use super::{Error, PackPlan};
use crate::error::{OTHER_FORMATS, diagnostic, of_format};
use gristmill_spec::model::{CpuVariant, Packing};
use gristmill_spec::vocab::{Feature, Isa, Strategy};

/// Bits of an index.
const INDEX_BITS: u32 = 4;
/// Tables that are made at once: with two digits of sixteen bytes each, they fill half of the smallest L1.
const TABLES: u32 = 512;
/// The most tables a run may need: what is made at once covers whole runs, and lies on the stack.
const MOST_TABLES: u32 = 2048;

/// A lookup variant, resolved.
#[derive(Clone, Debug)]
pub struct LookupPlan<'a> {
    /// The format.
    pub format: &'a FormatPlan<'a>,
    /// Its codes in the packing.
    pub pack: PackPlan<'a>,
    /// Module of primitives.
    pub module: &'static str,
    /// i32 lanes of a vector; four times as many rows, a byte each, are looked up at once.
    pub lanes: u32,
    /// Features the code uses.
    pub features: Vec<Feature>,
    /// Vectors of rows computed at once.
    pub vectors: u32,
    /// Codes of an index.
    pub codes: u32,
    /// What each code counts as, in steps from the smallest value.
    pub operands: Vec<u8>,
    /// What a step counts as.
    pub step: u32,
    /// Bits of the low digit of a sum.
    pub split: u32,
    /// Added to each sum, so that none is negative.
    pub bias: u32,
    /// Tiles whose digits are summed in bytes.
    pub block: u32,
    /// Blocks whose sums are added in i16; none: all of a run, whose result fits i16 whatever is between.
    pub blocks_in_i16: Option<u32>,
    /// Tables made at once.
    pub tables: u32,
    /// Largest k for which every sum is exact.
    pub k_max: u64,
}

/// How sums are written in digits, and how many sums bytes can take.
struct Digits {
    step: u32,
    split: u32,
    lookups: u32,
}

impl<'a> LookupPlan<'a> {
    /// Plans a lookup variant and proves its sums.
    pub fn new(
        plan: &'a FormatPlan<'a>,
        packing: &'a Packing,
        variant: &CpuVariant,
    ) -> Result<LookupPlan<'a>, Error> {
        let origin = &variant.origin;
        let range = |reason: String| {
            let message = format!("format `{}`: {reason}", plan.format.name);
            let diagnostic = diagnostic("lookup-range", origin, message, OTHER_FORMATS);
            Err(Error::Spec(Box::new(of_format(plan.format, diagnostic))))
        };
        let (module, lanes) = match variant.isa {
            Isa::Scalar => return Err(Error::passed(plan.format, "a scalar variant reads a packing")),
            Isa::Sse41 => ("sse41", 4),
            Isa::Avx2 | Isa::AvxVnni => ("avx2", 8),
            Isa::Avx512 => ("avx512", 16),
            Isa::Neon => ("neon", 4),
        };
        let mut pack = PackPlan::new(plan, packing, Strategy::Lookup, origin)?;
        let rows = pack.rows_at_once(variant, 4 * lanes, "bytes")?;
        let values: Vec<u8> = match &pack.table {
            Some(table) => table.iter().copied().take(plan.values.len()).collect(),
            None => (0..=pack.operand_max as u8).collect(),
        };
        let codes = INDEX_BITS / pack.bits();
        let Some(Digits { step, split, lookups }) = digits(&values, codes) else {
            return range(format!(
                "sums of {codes} operands up to {} have no two digits that a byte could add twice",
                pack.operand_max
            ));
        };
        let mut operands: Vec<u8> = values.iter().map(|v| v / step as u8).collect();
        operands.resize(1 << pack.bits(), 0);
        let largest = operands.iter().copied().max().unwrap_or(0).into();
        let most = lookups / 2;
        // Tables are made from four activations at a time.
        let whole = 4u32.div_ceil(pack.tile.k) * pack.tile.k;
        let block = if plan.k_group == 0 {
            pack.multiple = whole.max(pack.tile.k * most);
            most
        } else {
            pack.multiple = whole;
            let tiles = plan.k_group.next_multiple_of(whole) / pack.tile.k;
            (1..=most).rev().find(|block| tiles.is_multiple_of(*block)).unwrap_or(1)
        };
        let weight = plan.largest();
        let short = plan.k_group != 0 && 128 * u64::from(plan.k_group) * weight <= i16::MAX as u64;
        let merged = most_of_a_block(largest, codes, block) * step;
        let tables = match plan.k_group {
            0 => TABLES,
            // A super-block is done at once.
            k_group => TABLES.max(2 * plan.runs() * k_group.next_multiple_of(whole) / pack.tile.k),
        };
        if tables > MOST_TABLES {
            return range(format!("runs of {} take more than {MOST_TABLES} tables", plan.k_group));
        }
        // With the bias a sum is up to twice as large.
        let worst = 256 * u64::from(pack.operand_max) + 128 * weight;
        // What runs are padded with adds the bias.
        let padding = match plan.k_group {
            0 => pack.multiple,
            k_group => k_group.next_multiple_of(pack.multiple) - k_group,
        };
        let k_max = longest_row(plan, exact_over(worst.max(1), padding), origin)?;
        Ok(LookupPlan {
            format: plan,
            module,
            lanes,
            features: features(variant),
            vectors: rows / (4 * lanes),
            codes,
            operands,
            step,
            split,
            bias: 128 * codes * largest,
            block,
            blocks_in_i16: (!short).then(|| (i16::MAX as u32 / merged.max(1)).max(1)),
            tables,
            k_max,
            pack,
        })
    }

    /// Tiles of a K group, its padding included; 0 where the whole row is one.
    pub fn k_group_tiles(&self) -> u32 {
        self.format.k_group.next_multiple_of(self.pack.multiple) / self.pack.tile.k
    }

    /// The plan in words.
    pub fn describe(&self) -> String {
        let k = up_to(self.k_max);
        let extent = self.format.extent();
        let wider = match self.blocks_in_i16 {
            None => "and i16".to_string(),
            Some(blocks) => format!("merged into i16, widened every {}", blocks * 2 * self.block),
        };
        format!(
            "{} rows x 1 token; {} of {} bits; lookup of sums of {} in tables of sixteen (byte shuffle), low digit of \
             {} bits; {} sums in bytes, {wider}; {extent}{k}",
            self.vectors * 4 * self.lanes,
            self.pack.packing.name,
            self.pack.bits(),
            self.codes,
            self.split,
            2 * self.block,
        )
    }
}

/// The largest biased sum of `codes` operands up to `largest`.
fn top(largest: u32, codes: u32) -> u32 {
    255 * largest * codes
}

/// What `block` tiles, two lookups each, add up to at most.
fn most_of_a_block(largest: u32, codes: u32, block: u32) -> u32 {
    2 * block * top(largest, codes)
}

/// The digits whose bytes take the most sums, at least the two of a tile.
fn digits(values: &[u8], codes: u32) -> Option<Digits> {
    let common = values.iter().fold(0u32, |a, &b| gcd(a.into(), b.into()) as u32).max(1);
    let largest = u32::from(*values.iter().max()?);
    let mut best: Option<Digits> = None;
    for step in [common, 1] {
        let largest = largest / step;
        // Merging multiplies the high digit by a signed byte.
        for split in (1..=6).filter(|split| step << split <= 127) {
            let high = top(largest, codes) >> split;
            let in_bytes = (255 / ((1 << split) - 1)).min(255 / high.max(1));
            let in_i16 = i16::MAX as u32 / (top(largest, codes) * step).max(1);
            let lookups = in_bytes.min(in_i16) / 2 * 2;
            if lookups >= 2 && best.as_ref().is_none_or(|best| lookups > best.lookups) {
                best = Some(Digits { step, split, lookups });
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every digit sum of the most extreme lookups stays in its byte, and the merged sum in i16.
    #[test]
    fn digits_fit_bytes() {
        for (values, codes) in [(&[0u8, 2][..], 4), (&[0, 1, 2], 2), (&[0, 1, 2, 3], 2), (&[0, 5, 15], 1)] {
            let Some(Digits { step, split, lookups }) = digits(values, codes) else {
                panic!("{values:?}: no digits")
            };
            let largest = u32::from(values.iter().copied().max().unwrap_or(0)) / step;
            // The largest low digit and the largest high one, wherever they occur.
            let sums = 0..=255 * largest * codes;
            let low = sums.clone().map(|sum| sum & ((1 << split) - 1)).max().unwrap_or(0);
            let high = sums.map(|sum| sum >> split).max().unwrap_or(0);
            assert!(low * lookups <= 255 && high * lookups <= 255, "{values:?}");
            assert!((low + (high << split)) * lookups * step <= 32767 + (1 << split), "{values:?}");
            assert!(step << split <= 127, "{values:?}");
        }
        assert_eq!(digits(&[0, 2], 4).map(|d| (d.step, d.split, d.lookups)), Some((2, 5, 8)));
        assert!(digits(&[0, 240], 1).is_none(), "one digit would take more than a byte");
    }
}
