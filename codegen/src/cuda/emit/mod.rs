//! CUDA C++ from the same plans as the CPU's code.
//!
//! A [`Unit`] is a translation unit: what one format, one activation format or one loop needs. Its text is complete: the
//! vocabulary of `cuda/device.h` stands in front, so that nvcc, NVRTC and a host compiler (against an emulator) can
//! all compile it without any other file.

mod accumulators;
mod activations;
mod adding;
mod arrays;
mod blocks;
mod convert;
mod decode;
mod dequantize;
mod division;
mod dp4a;
mod embed;
mod encode;
mod ends;
mod epilogue;
mod experts;
mod fields;
mod fma;
mod form;
mod fp4;
mod fragments;
mod fused;
mod groups;
mod halves;
mod header;
mod launch;
mod listed;
mod matmul;
mod mma;
mod of_format;
mod one_token;
mod operands;
mod outer;
mod overlap;
mod parameters;
mod pipelined;
mod product;
mod prologue;
mod rows;
mod rows_product;
mod search;
mod split;
mod statistic;
mod superblock;
mod terms;
mod tiles;
mod unit;
mod wgmma;
mod wgmma_halves;
mod wgmma_row;
mod wgmma_runs;

pub use blocks::CHUNK;
pub use convert::CONVERT;
pub use experts::EXPERTS;
pub use header::{DEVICE_HEADER, Part};
pub use launch::{CudaPlan, Launch, RowsQuantizer, Step};
pub use listed::CudaListed;
pub(crate) use of_format::{packings, refusals};
pub use tiles::Split;
pub use unit::Unit;

use crate::Error;
use crate::error::once;
use crate::plan::{FormatPlan, of_whole_blocks};
use gristmill_spec::model::SpecSet;
use gristmill_spec::vocab::Op;
use listed::{function, parts, planned, serving, waits};
use of_format::{Elementwise, of_format};
use unit::Units;

/// What CUDA needs of a set.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    /// Units by name.
    pub units: Vec<Unit>,
    /// Kernels in the order of the formats.
    pub listed: Vec<CudaListed>,
}

const ELEMENTWISE: &[Elementwise] = &[
    Elementwise {
        op: Op::Dequantize,
        threads: dequantize::THREADS,
        per_thread: dequantize::per_thread,
        kernel: dequantize::dequantize,
    },
    Elementwise {
        op: Op::Embed,
        threads: embed::THREADS,
        per_thread: embed::per_thread,
        kernel: embed::embed,
    },
];

/// Emits all units of a set, with the kernels they make possible.
///
/// # Errors
/// Plans that can't be proven exact, packings that a skeleton can't read.
pub fn emit(set: &SpecSet) -> Result<Emitted, Vec<Error>> {
    let mut errors = Vec::new();
    let mut units = Units::default();
    let mut listed = Vec::new();
    for (index, format) in set.formats.iter().enumerate() {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        if let Err(more) = of_format(set, &plan, index, ELEMENTWISE, (&mut units, &mut listed)) {
            errors.extend(more);
        }
    }
    for index in 0..set.activations.len() {
        of_activations(set, index, &mut units, &mut listed);
    }
    if errors.is_empty() { Ok(Emitted { units: units.finished(), listed }) } else { Err(once(errors)) }
}

/// How the conversions between types of numbers are launched.
pub(crate) fn convert_launch() -> Launch {
    Launch::Convert {
        function: CONVERT.to_string(),
        threads: convert::THREADS,
        per_thread: convert::PER_THREAD,
    }
}

/// How what experts need around their products is launched.
pub(crate) fn experts_launch() -> Launch {
    Launch::Experts {
        route: experts::ROUTE.to_string(),
        gather: experts::GATHER.to_string(),
        combine: experts::COMBINE.to_string(),
        threads: experts::THREADS,
    }
}

fn of_activations(set: &SpecSet, index: usize, units: &mut Units, listed: &mut Vec<CudaListed>) {
    let format = &set.activations[index];
    let ops = [Op::QuantizeActivations, Op::Prologue];
    for of_variant @ (kernel, _, variant) in ops.into_iter().flat_map(|op| serving(set, op, index)) {
        let unit = variant.unit(kernel.op.name(), &format.name, kernel);
        let function = function(variant, &unit).to_string();
        let text = match &variant.body {
            Some(body) => body.text.clone(),
            None if kernel.op == Op::Prologue => prologue::emit(format, &function),
            None => activations::emit(format, &function),
        };
        let text = (parts(variant, &[Part::Overlap]), text.as_str());
        let overlaps = waits(variant);
        units.add(&unit, variant.min_cc, std::slice::from_ref(&function), variant.budget, text).overlaps =
            overlaps;
        let shape = of_whole_blocks(variant.shape, format.block.unwrap_or(1));
        let launch = Launch::Activations { op: kernel.op, function, threads: activations::THREADS };
        let words = "a CUDA block for each row".to_string();
        let plan = CudaPlan { overlaps, ..planned(variant, words, launch) };
        listed.push(CudaListed::new(of_variant, (index, &format.name), None, &unit, shape, plan));
    }
}
