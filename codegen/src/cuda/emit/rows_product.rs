//! A product that multiplies floats, resolved.

use super::decode;
use super::division::Division;
use super::parameters::exported;
use crate::plan::FormatPlan;
use gristmill_spec::model::Fp4;
use gristmill_spec::vocab::Precision;

/// A product over rows, resolved.
#[derive(Clone, Debug)]
pub struct RowsProduct<'a> {
    /// The format.
    pub format: &'a FormatPlan<'a>,
    /// What is multiplied.
    pub precision: Precision,
    /// Most threads of a CUDA block.
    pub threads: u32,
    /// Fewest threads of a CUDA block; any whole number of warps from there on will do.
    pub fewest: u32,
    /// Rows that a CUDA block does.
    pub rows: u32,
    /// Tokens that a CUDA block does.
    pub tokens: u32,
    /// Bytes of shared memory of a CUDA block.
    pub shared: u32,
    /// How it multiplies.
    pub(super) skeleton: Skeleton,
}

/// What a kernel is written by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Skeleton {
    /// Weights and activations in f32.
    Fma,
    /// Weights rounded to halves, by `mma.sync`.
    Halves,
    /// The same by warpgroups, which share memory so.
    Warpgroups(Division),
    /// FP4 whose codes and scales lie so.
    Fp4(Fp4),
}

impl Skeleton {
    /// What tells units of the same format and devices apart: each has the vocabulary of one skeleton.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Skeleton::Fma => "fma",
            Skeleton::Halves => "halves",
            Skeleton::Warpgroups(_) => "warpgroups",
            Skeleton::Fp4(_) => "fp4",
        }
    }
}

/// A product's kernel of so many threads; `body` has its statements, lines of text.
pub(super) fn product_kernel(threads: u32, function: &str, body: &str) -> String {
    exported(&format!("GM_KERNEL_WIDE({threads})"), function, "Rows a", body) + "\n"
}

/// Elements that a thread takes at once: neighbours that share a scale.
pub fn at_once(plan: &FormatPlan<'_>) -> u32 {
    match plan.run().is_multiple_of(8) && plan.format.elements.is_multiple_of(8) {
        true => 8,
        false => decode::together(plan),
    }
}
