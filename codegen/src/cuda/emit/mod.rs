//! CUDA C++ from the same plans as the CPU's code.
//!
//! A [`Unit`] is a translation unit: what one format, one activation format or one loop needs. Its text is complete: the
//! vocabulary of `cuda/device.h` stands in front, so that nvcc, NVRTC and a host compiler (against an emulator) can
//! all compile it without any other file.

mod activations;
mod blocks;
mod convert;
mod decode;
mod dequantize;
mod division;
mod dp4a;
mod embed;
mod encode;
mod epilogue;
mod experts;
mod fma;
mod form;
mod fused;
mod groups;
mod halves;
mod header;
mod launch;
mod matmul;
mod mma;
mod operands;
mod overlap;
mod parameters;
mod pipelined;
mod product;
mod prologue;
mod rows;
mod rows_product;
mod search;
mod split;
mod superblock;
mod terms;
mod tiles;
mod wgmma;
mod wgmma_halves;
mod wgmma_runs;

pub use blocks::CHUNK;
pub use convert::CONVERT;
pub use experts::EXPERTS;
use header::header;
pub use header::{DEVICE_HEADER, Part};
pub use launch::{CudaPlan, Launch, Step};
pub use product::CudaMatmul;
pub use rows_product::RowsProduct;
pub use tiles::Split;

use crate::Error;
use crate::emit::kernel_words;
use crate::error::once;
use crate::plan::pack::fitted;
use crate::plan::{FormatPlan, PackPlan, lcm};
use gristmill_spec::model::{CudaBody, CudaBudget, CudaVariant, Kernel, ShapeRules, SpecSet};
use gristmill_spec::vocab::{CudaAlgorithm, CudaArch, CudaSums, Op};
use std::collections::{BTreeMap, BTreeSet};

/// A translation unit.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its name: that of the image files.
    pub name: String,
    /// The whole text.
    pub text: String,
    /// Parts of the vocabulary that its kernels use.
    pub parts: BTreeSet<Part>,
    /// The kernels in it, each with what its image may use.
    pub kernels: Vec<(String, CudaBudget)>,
    /// The lowest compute capability that it can be compiled for.
    pub min_cc: (u8, u8),
    /// The one architecture that it can be compiled for, where that is so.
    pub only_on: Option<CudaArch>,
    /// Its kernels wait for the launches in front of them, so that they may be launched before those have ended.
    pub overlaps: bool,
}

impl Unit {
    /// What is compiled of it: machine code for those of `archs` that have its instructions, and PTX for the lowest that
    /// is not bound to one device.
    pub fn compiled_for(&self, archs: &[CudaArch]) -> super::compile::Unit {
        let fits = |arch: &CudaArch| self.only_on.is_none_or(|only| only == *arch);
        let archs: Vec<CudaArch> = archs.iter().copied().filter(fits).collect();
        super::compile::Unit::new(&self.name, &self.text, self.min_cc, &archs)
    }
}

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
    /// Its place among the variants of its family.
    pub order: usize,
    /// Index of the kernel family, for its input types.
    pub kernel: usize,
    /// The packing whose pack function it needs.
    pub packing: Option<usize>,
    /// It quantizes activations for itself, so that it takes floats alone.
    pub fused: bool,
}

/// What CUDA needs of a set.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    /// Units by name.
    pub units: Vec<Unit>,
    /// Kernels in the order of the formats.
    pub listed: Vec<CudaListed>,
}

/// The CUDA variants of `op` that serve a format.
fn serving(
    set: &SpecSet,
    op: Op,
    format: usize,
) -> impl Iterator<Item = (usize, &Kernel, usize, &CudaVariant)> {
    set.kernels
        .iter()
        .enumerate()
        .filter(move |(_, kernel)| kernel.op == op && kernel.formats.contains(&format))
        .flat_map(move |(index, kernel)| {
            let variants = kernel.cuda.iter().enumerate();
            variants.map(move |(order, variant)| (index, kernel, order, variant))
        })
        .filter(move |(_, _, _, variant)| {
            variant.formats.as_ref().is_none_or(|formats| formats.contains(&format))
        })
}

/// `matmul.i2_s.cuda.mma`, with the quantizer behind the format if there is one.
fn name(kernel: &Kernel, format: &str, quantizer: Option<&str>, variant: &CudaVariant) -> String {
    let algorithm = kernel.op.info().product.then(|| variant.algorithm.name());
    let label = Some(variant.label.as_str()).filter(|label| !label.is_empty());
    let words = ["cuda"].into_iter().chain(algorithm).chain(label);
    kernel_words(&kernel.name, format, quantizer, words)
}

struct Units(BTreeMap<String, Unit>);

impl Units {
    /// Adds kernels to a unit, or finds that it has them.
    fn add(
        &mut self,
        name: &str,
        min_cc: (u8, u8),
        kernels: &[String],
        budget: CudaBudget,
        (parts, text): (&[Part], &str),
    ) {
        let unit = self.0.entry(name.to_string()).or_insert_with(|| Unit {
            name: name.to_string(),
            text: String::new(),
            parts: BTreeSet::new(),
            kernels: Vec::new(),
            min_cc,
            only_on: None,
            overlaps: false,
        });
        unit.min_cc = unit.min_cc.max(min_cc);
        unit.parts.extend(parts);
        unit.text.push_str(text);
        unit.kernels.extend(kernels.iter().map(|kernel| (kernel.clone(), budget)));
    }

    /// All of them, with what stands in front of their kernels.
    fn finished(self) -> Vec<Unit> {
        let front = format!("// @generated by gristmill-codegen {}.\n", env!("CARGO_PKG_VERSION"));
        let finished = |unit: Unit| {
            let text = format!("{front}{}{}", header(unit.parts.iter().copied()), unit.text);
            Unit { text, ..unit }
        };
        self.0.into_values().map(finished).collect()
    }

    /// Says of a unit whether its kernels wait for the launches in front of them; what is written by hand says so itself.
    fn overlap(&mut self, name: &str, body: Option<&CudaBody>) {
        if let Some(unit) = self.0.get_mut(name) {
            unit.overlaps = body.is_none_or(CudaBody::waits);
        }
    }

    /// Whether the kernels of a unit wait for the launches in front of them.
    fn overlaps(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|unit| unit.overlaps)
    }
}

/// An op whose kernel gives each thread some neighbouring elements, whatever the shape.
struct Elementwise {
    op: Op,
    /// Threads of a CUDA block.
    threads: u32,
    /// Elements of a thread.
    per_thread: fn(&FormatPlan<'_>) -> u32,
    /// The kernel of a name, behind what decodes the format.
    kernel: fn(&FormatPlan<'_>, &str) -> String,
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
    let mut units = Units(BTreeMap::new());
    let mut listed = Vec::new();
    for (index, format) in set.formats.iter().enumerate() {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        if let Err(more) = of_format(set, &plan, index, &mut units, &mut listed) {
            errors.extend(more);
        }
    }
    for index in 0..set.activations.len() {
        of_activations(set, index, &mut units, &mut listed);
    }
    if errors.is_empty() { Ok(Emitted { units: units.finished(), listed }) } else { Err(once(errors)) }
}

/// Whether a format's integer sums are those that a variant is for; the checker has looked at whole rows.
fn takes(plan: &FormatPlan<'_>, variant: &CudaVariant) -> bool {
    match variant.sums {
        CudaSums::Rows => true,
        CudaSums::Runs => plan.superblock.is_none(),
        CudaSums::SuperBlocks => plan.superblock.is_some(),
    }
}

/// What of the CUDA products of a format can't be planned.
pub(crate) fn refusals(set: &SpecSet, plan: &FormatPlan<'_>, index: usize) -> Vec<Error> {
    let one = |variant: &CudaVariant| match (RowsProduct::new(plan, variant), variant.packing) {
        (Err(error), _) => Some(error),
        (Ok(Some(_)), _) | (Ok(None), None) => None,
        (Ok(None), Some(packing)) => CudaMatmul::new(plan, &set.packings[packing], variant).err(),
    };
    let here = serving(set, Op::Matmul, index).filter(|(_, _, _, variant)| takes(plan, variant));
    here.filter_map(|(_, _, _, variant)| one(variant)).collect()
}

/// A format whose kernels are listed.
struct Listing<'a> {
    set: &'a SpecSet,
    plan: &'a FormatPlan<'a>,
    /// Index of the format.
    index: usize,
}

fn of_format(
    set: &SpecSet,
    plan: &FormatPlan<'_>,
    index: usize,
    units: &mut Units,
    listed: &mut Vec<CudaListed>,
) -> Result<(), Vec<Error>> {
    let listing = Listing { set, plan, index };
    listing.elementwise(units, listed);
    let mut errors = listing.quantizers(units, listed);
    for of_variant @ (_, _, _, variant) in serving(set, Op::Matmul, index) {
        if !takes(plan, variant) {
            continue;
        }
        let product = match RowsProduct::new(plan, variant) {
            Ok(Some(product)) => Ok(Some(listing.rows_product(of_variant, &product, units))),
            Ok(None) => listing.product(of_variant, units),
            Err(error) => Err(error),
        };
        match product {
            Ok(product) => listed.extend(product),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// A variant with its kernel family, and the places of both.
type OfVariant<'a> = (usize, &'a Kernel, usize, &'a CudaVariant);

impl Listing<'_> {
    fn k_rule(&self, mut shape: ShapeRules, k_max: u64) -> ShapeRules {
        shape.k.max = shape.k.max.min(k_max);
        shape.k.multiple_of = lcm(shape.k.multiple_of.max(1), u64::from(self.plan.format.elements));
        shape
    }

    fn entry(
        &self,
        (number, kernel, order, variant): OfVariant<'_>,
        quantizer: Option<&str>,
        unit: &str,
        plan: CudaPlan,
    ) -> CudaListed {
        CudaListed {
            name: name(kernel, &self.plan.format.name, quantizer, variant),
            op: kernel.op,
            format: self.index,
            quantizer: 0,
            unit: unit.to_string(),
            hand_written: variant.body.is_some(),
            min_cc: variant.min_cc,
            algorithm: variant.algorithm,
            shape: self.k_rule(variant.shape, u64::MAX),
            source: format!("{}:{}", variant.origin.file, variant.origin.line),
            plan,
            order,
            kernel: number,
            packing: None,
            fused: false,
        }
    }

    fn elementwise(&self, units: &mut Units, listed: &mut Vec<CudaListed>) {
        for &Elementwise { op, threads, per_thread, kernel: emit } in ELEMENTWISE {
            for of_variant @ (_, kernel, _, variant) in serving(self.set, op, self.index) {
                let unit = unit_name(op.name(), &self.plan.format.name, kernel, variant);
                let function = function(variant, &unit);
                let text = match &variant.body {
                    Some(body) => hand_written(self.plan, body),
                    None => decode::emit(self.plan) + &emit(self.plan, function),
                };
                units.add(
                    &unit,
                    variant.min_cc,
                    &[function.to_string()],
                    variant.budget,
                    (parts(variant, &[]), &text),
                );
                let per_thread = per_thread(self.plan);
                let launch = Launch::Elements { op, function: function.to_string(), threads, per_thread };
                let plan = planned(variant, format!("{per_thread} elements a thread"), launch);
                listed.push(self.entry(of_variant, None, &unit, plan));
            }
        }
    }

    /// Quantizers of weights; what can't be planned of them.
    fn quantizers(&self, units: &mut Units, listed: &mut Vec<CudaListed>) -> Vec<Error> {
        let (plan, format) = (self.plan, self.plan.format);
        let mut errors = Vec::new();
        for of_variant @ (_, kernel, _, variant) in serving(self.set, Op::Quantize, self.index) {
            for (position, quantizer) in format.quantizers.iter().enumerate() {
                let unit = unit_name(&format!("quantize_{}", quantizer.name), &format.name, kernel, variant);
                let function = function(variant, &unit);
                let generated = || {
                    let (text, steps) = blocks::quantize(plan, quantizer, function)?;
                    Ok((format!("{}{}{text}", decode::sizes(plan), blocks::HELPERS), steps))
                };
                let written = variant.body.as_ref().map(|body| Ok((hand_written(plan, body), false)));
                let (text, steps) = match written.unwrap_or_else(generated) {
                    Ok(text) => text,
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                };
                let (threads, blocks) = (32 * encode::WARPS, blocks::blocks_at_once(format, quantizer));
                let step = steps.then(|| Step {
                    chunks: format!("{function}_chunks"),
                    finish: format!("{function}_finish"),
                    threads,
                    chunk: CHUNK,
                });
                let mut kernels = vec![function.to_string()];
                kernels.extend(step.iter().flat_map(|step| [step.chunks.clone(), step.finish.clone()]));
                units.add(&unit, variant.min_cc, &kernels, variant.budget, (parts(variant, &[]), &text));
                let words = format!(
                    "{} over the {}; {blocks} blocks to a CUDA block",
                    quantizer.name,
                    if steps { "row or tensor" } else { "block" }
                );
                let launch = Launch::Quantize { function: function.to_string(), threads, blocks, step };
                let plan = planned(variant, words, launch);
                let entry = self.entry(of_variant, Some(&quantizer.name), &unit, plan);
                listed.push(CudaListed { quantizer: position, ..entry });
            }
        }
        errors
    }

    /// Puts a product of integers into its unit, where the variant is one.
    fn product(&self, of_variant: OfVariant<'_>, units: &mut Units) -> Result<Option<CudaListed>, Error> {
        let (_, kernel, _, variant) = of_variant;
        let format = self.plan.format;
        let Some(packing) = variant.packing else { return Ok(None) };
        let resolved = CudaMatmul::new(self.plan, &self.set.packings[packing], variant)?;
        // Formats share a generated loop; what is written by hand is the spec's own.
        let unit = match &variant.body {
            Some(_) => unit_name("matmul", &format.name, kernel, variant),
            None => resolved.name(),
        };
        let function = function(variant, &unit);
        let has_form = variant.body.is_none() && resolved.is_grouped();
        let grouped = has_form.then(|| form::grouped_name(function));
        if has_form && !units.0.contains_key(EXPERTS) {
            let kernels = [experts::ROUTE, experts::GATHER, experts::COMBINE].map(String::from);
            units.add(EXPERTS, (5, 0), &kernels, CudaBudget::default(), (&[], &experts::emit()));
        }
        if !units.0.contains_key(&unit) {
            let text = matmul::emit(&resolved, variant.body.as_ref().map(|body| body.text.as_str()));
            let text = (parts(variant, resolved.parts()), text.as_str());
            units.add(&unit, variant.min_cc, &[function.to_string()], variant.budget, text);
            if let (Some(grouped), Some(unit)) = (&grouped, units.0.get_mut(&unit)) {
                unit.kernels.push((grouped.clone(), form::budget(variant.budget)));
            }
            units.overlap(&unit, variant.body.as_ref());
            if let Some(unit) = units.0.get_mut(&unit) {
                unit.only_on = variant.algorithm.only_on();
            }
        }
        let generated = variant.body.is_none();
        let launch = Launch::Matmul {
            function: function.to_string(),
            threads: resolved.threads,
            fewest: resolved.fewest,
            rows: resolved.rows,
            tokens: resolved.tokens,
            packed: (format.name.clone(), self.set.packings[packing].name.clone()),
            elements: self.plan.unit,
            multiple: resolved.pack.multiple,
            split: resolved.split,
            shared: if generated { resolved.shared_at_launch() } else { 0 },
            fused: resolved.fused.is_some(),
            grouped,
        };
        let plan = CudaPlan {
            shared: generated.then(|| resolved.shared_bytes()),
            packed: Some(resolved.packed_size()),
            runs: self.plan.runs(),
            stage: resolved.division.map(|_| resolved.pack.tile.k),
            blocks_per_sm: resolved.fused.filter(|_| generated).map(|room| room.blocks_per_sm),
            overlaps: units.overlaps(&unit),
            ..planned(variant, resolved.describe(), launch)
        };
        let mut shape = self.k_rule(variant.shape, resolved.k_max);
        if resolved.fused.is_some() {
            shape.k.multiple_of = lcm(shape.k.multiple_of, fused::MULTIPLE);
        }
        Ok(Some(CudaListed {
            shape,
            packing: Some(packing),
            fused: resolved.fused.is_some(),
            ..self.entry(of_variant, None, &unit, plan)
        }))
    }

    /// Puts a product over rows into its unit.
    fn rows_product(
        &self,
        of_variant: OfVariant<'_>,
        product: &RowsProduct<'_>,
        units: &mut Units,
    ) -> CudaListed {
        let (_, kernel, _, variant) = of_variant;
        let (plan, (major, minor)) = (product.format, variant.min_cc);
        // What is generated for a format and the same devices is one unit, so that its weights are decoded by one text.
        let unit = match &variant.body {
            Some(_) => unit_name("matmul", &plan.format.name, kernel, variant),
            None => {
                let arch =
                    variant.algorithm.only_on().map_or(format!("{major}{minor}"), |only| only.to_string());
                format!("rows_{}_sm{arch}", plan.format.name)
            }
        };
        let own = format!("{unit}_{}_{}x{}", variant.algorithm, product.threads, product.tokens);
        let function = function(variant, &own);
        let check = format!("{unit}_check");
        if !units.0.contains_key(&unit) {
            let text = format!("{}{}", product.vocabulary(), rows::prelude(product, &unit));
            let (check, budget) = (std::slice::from_ref(&check), CudaBudget::default());
            units.add(&unit, variant.min_cc, check, budget, (&[], &text));
            if let Some(unit) = units.0.get_mut(&unit) {
                unit.only_on = variant.algorithm.only_on();
            }
        }
        let there =
            units.0.get(&unit).is_some_and(|unit| unit.kernels.iter().any(|(name, _)| name == function));
        if !there {
            let text = variant.body.as_ref().map_or_else(|| product.emit(function), |body| body.text.clone());
            let text = (parts(variant, product.parts()), text.as_str());
            units.add(&unit, variant.min_cc, &[function.to_string()], variant.budget, text);
        }
        if !units.0.contains_key(CONVERT) {
            let kernels = [CONVERT.to_string()];
            units.add(CONVERT, (5, 0), &kernels, CudaBudget::default(), (&[], &convert::emit()));
        }
        let launch = Launch::Rows {
            function: function.to_string(),
            check,
            check_threads: rows::CHECK_THREADS,
            precision: product.precision,
            threads: product.threads,
            fewest: product.fewest,
            rows: product.rows,
            tokens: product.tokens,
            shared: product.shared_at_launch(),
        };
        let plan = CudaPlan {
            shared: variant.body.is_none().then_some(product.shared),
            stage: product.division.map(|_| division::STAGE),
            ..planned(variant, product.describe(), launch)
        };
        self.entry(of_variant, None, &unit, plan)
    }
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
    for (number, kernel, order, variant) in ops.into_iter().flat_map(|op| serving(set, op, index)) {
        let unit = unit_name(kernel.op.name(), &format.name, kernel, variant);
        let function = function(variant, &unit);
        let text = match &variant.body {
            Some(body) => body.text.clone(),
            None if kernel.op == Op::Prologue => prologue::emit(format, function),
            None => activations::emit(format, function),
        };
        let text = (parts(variant, &[Part::Overlap]), text.as_str());
        units.add(&unit, variant.min_cc, &[function.to_string()], variant.budget, text);
        units.overlap(&unit, variant.body.as_ref());
        let mut shape = variant.shape;
        shape.k.multiple_of = lcm(shape.k.multiple_of.max(1), u64::from(format.block.unwrap_or(1)));
        let launch = Launch::Activations {
            op: kernel.op,
            function: function.to_string(),
            threads: activations::THREADS,
        };
        listed.push(CudaListed {
            name: name(kernel, &format.name, None, variant),
            op: kernel.op,
            format: index,
            quantizer: 0,
            unit: unit.clone(),
            hand_written: variant.body.is_some(),
            min_cc: variant.min_cc,
            algorithm: variant.algorithm,
            shape,
            source: format!("{}:{}", variant.origin.file, variant.origin.line),
            plan: CudaPlan {
                overlaps: units.overlaps(&unit),
                ..planned(variant, "a CUDA block for each row".to_string(), launch)
            },
            order,
            kernel: number,
            packing: None,
            fused: false,
        });
    }
}

/// What is generated has one unit for each op, format and label; what is written by hand, one for each variant.
fn unit_name(function: &str, format: &str, kernel: &Kernel, variant: &CudaVariant) -> String {
    let mut name = format!("{function}_{format}");
    if !variant.label.is_empty() {
        name = format!("{name}_{}", variant.label);
    }
    match &variant.body {
        Some(body) => format!("{name}_{}_{}", kernel.name, body.function),
        None => name,
    }
}

/// Parts of the vocabulary that a variant's kernel uses: those of what is generated, or any.
fn parts(variant: &CudaVariant, generated: &'static [Part]) -> &'static [Part] {
    if variant.body.is_some() { Part::ALL } else { generated }
}

/// The kernel's name in its unit.
fn function<'a>(variant: &'a CudaVariant, unit: &'a str) -> &'a str {
    variant.body.as_ref().map_or(unit, |body| body.function.as_str())
}

/// A plan in `words`, which a body by hand need not follow, of a kernel that waits for no other.
fn planned(variant: &CudaVariant, words: String, launch: Launch) -> CudaPlan {
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
fn hand_written(plan: &FormatPlan<'_>, body: &CudaBody) -> String {
    format!("{}\n{}", decode::emit(plan), body.text)
}

/// The pack plans that CUDA kernels of a format need, by packing: [`PackPlan::fit`] without a skeleton of the CPU.
///
/// # Errors
/// A packing without a tile wide enough.
pub(crate) fn packings<'a>(
    set: &'a SpecSet,
    plan: &FormatPlan<'_>,
    index: usize,
) -> Result<Vec<PackPlan<'a>>, Error> {
    let mut used: Vec<(usize, &CudaVariant)> = serving(set, Op::Matmul, index)
        .filter(|(_, _, _, variant)| takes(plan, variant))
        .filter_map(|(_, _, _, variant)| Some((variant.packing?, variant)))
        .collect();
    used.sort_unstable_by_key(|(packing, _)| *packing);
    used.dedup_by_key(|(packing, _)| *packing);
    let one =
        |(packing, variant): (usize, &CudaVariant)| fitted(plan, &set.packings[packing], &variant.origin);
    used.into_iter().map(one).collect()
}
