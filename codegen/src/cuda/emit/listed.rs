//! Kernels as they will stand in the registry: which variants serve a format, what they are called, and where their code is.

use super::decode;
use super::header::Part;
use super::launch::{CudaPlan, Launch};
use crate::emit::kernel_words;
use crate::plan::FormatPlan;
use gristmill_spec::model::{CudaBody, CudaVariant, Kernel, ShapeRules, SpecSet};
use gristmill_spec::vocab::{CudaAlgorithm, DType, Op};

/// A CUDA kernel as it will stand in the registry.
#[derive(Clone, Debug)]
pub struct CudaListed {
    /// Facts in order: `matmul.i2_s.cuda.mma`.
    pub name: String,
    /// The op.
    pub op: Op,
    /// Index of the format, or of the activation format.
    pub format: usize,
    /// Index of the quantizer.
    pub quantizer: usize,
    /// Name of the unit that holds its code.
    pub unit: String,
    /// The spec names a body for it.
    pub hand_written: bool,
    /// The compute capability it needs.
    pub min_cc: (u8, u8),
    /// What its products are taken with.
    pub algorithm: CudaAlgorithm,
    /// Shape rules, those of the spec and the derived ones.
    pub shape: ShapeRules,
    /// `file:line` of the variant.
    pub source: String,
    /// What was decided for it.
    pub plan: CudaPlan,
    /// Its place among the variants of its op.
    pub order: usize,
    /// Accepted input types.
    pub input: Vec<DType>,
    /// The packing whose pack function it needs.
    pub packing: Option<usize>,
    /// It quantizes activations for itself, so that it takes floats alone.
    pub fused: bool,
}

/// A variant with its kernel family, and its place among all of the op.
pub(super) type OfVariant<'a> = (&'a Kernel, usize, &'a CudaVariant);

impl CudaListed {
    /// The kernel of a variant for a format, given by its index and name, in a unit.
    pub(super) fn new(
        (kernel, order, variant): OfVariant<'_>,
        (index, format): (usize, &str),
        quantizer: Option<&str>,
        unit: &str,
        shape: ShapeRules,
        plan: CudaPlan,
    ) -> CudaListed {
        CudaListed {
            name: name(kernel, format, quantizer, variant),
            op: kernel.op,
            format: index,
            quantizer: 0,
            unit: unit.to_string(),
            hand_written: variant.body.is_some(),
            min_cc: variant.min_cc,
            algorithm: variant.algorithm,
            shape,
            source: format!("{}:{}", variant.origin.file, variant.origin.line),
            plan,
            order,
            input: inputs(kernel, kernel.op.info().product),
            packing: None,
            fused: false,
        }
    }
}

/// The input types of a kernel family; of those that multiply or quantize `floats`, floats alone.
pub(super) fn inputs(kernel: &Kernel, floats: bool) -> Vec<DType> {
    kernel.input.iter().copied().filter(|input| !floats || *input != DType::I8).collect()
}

/// The CUDA variants of `op` that serve a format.
pub(super) fn serving(set: &SpecSet, op: Op, format: usize) -> impl Iterator<Item = OfVariant<'_>> {
    set.kernels
        .iter()
        .filter(move |kernel| kernel.op == op)
        .flat_map(|kernel| kernel.cuda.iter().map(move |variant| (kernel, variant)))
        .enumerate()
        .map(|(order, (kernel, variant))| (kernel, order, variant))
        .filter(move |(kernel, _, variant)| {
            let of_variant = variant.formats.as_ref();
            kernel.formats.contains(&format) && of_variant.is_none_or(|formats| formats.contains(&format))
        })
}

/// `matmul.i2_s.cuda.mma`, with the quantizer behind the format if there is one.
fn name(kernel: &Kernel, format: &str, quantizer: Option<&str>, variant: &CudaVariant) -> String {
    let algorithm = kernel.op.info().product.then(|| variant.algorithm.name());
    let label = Some(variant.label.as_str()).filter(|label| !label.is_empty());
    let words = ["cuda"].into_iter().chain(algorithm).chain(label);
    kernel_words(&kernel.name, format, quantizer, words)
}

/// Parts of the vocabulary that a variant's kernel uses: those of what is generated, or any.
pub(super) fn parts(variant: &CudaVariant, generated: &'static [Part]) -> &'static [Part] {
    if variant.body.is_some() { Part::ALL } else { generated }
}

/// The kernel's name in its unit.
pub(super) fn function<'a>(variant: &'a CudaVariant, unit: &'a str) -> &'a str {
    variant.body.as_ref().map_or(unit, |body| body.function.as_str())
}

/// Whether a variant's kernel waits for the launches in front of it; what is written by hand says so itself.
pub(super) fn waits(variant: &CudaVariant) -> bool {
    variant.body.as_ref().is_none_or(CudaBody::waits)
}

/// A plan in `words`, which a body by hand need not follow, of a kernel that waits for no other.
pub(super) fn planned(variant: &CudaVariant, words: String, launch: Launch) -> CudaPlan {
    let words = match &variant.body {
        Some(body) => format!("`{}` of {}, launched as: {words}", body.function, body.file),
        None => words,
    };
    CudaPlan {
        words,
        launch,
        shared: None,
        packed: None,
        runs: 1,
        stage: None,
        blocks_per_sm: None,
        overlaps: false,
        budget: variant.budget,
    }
}

/// A hand-written kernel over blocks: the format's constants and functions stand before it.
pub(super) fn hand_written(plan: &FormatPlan<'_>, body: &CudaBody) -> String {
    format!("{}\n{}", decode::emit(plan), body.text)
}
