//! The kernels of a format, and the units that they are in.

use super::blocks::{self, CHUNK};
use super::convert::CONVERT;
use super::experts::EXPERTS;
use super::launch::{CudaPlan, Launch, Step};
use super::listed::{CudaListed, OfVariant, function, hand_written, inputs, parts, planned, serving, waits};
use super::product::CudaMatmul;
use super::rows_product::RowsProduct;
use super::unit::Units;
use super::{convert, decode, encode, experts, form, fused, matmul, rows};
use crate::Error;
use crate::plan::pack::fitted;
use crate::plan::{CudaQuantizerPlan, FormatPlan, PackPlan, lcm, of_whole_blocks};
use gristmill_spec::model::{CudaBudget, CudaVariant, SpecSet, quantizer_function};
use gristmill_spec::vocab::{CudaActivations, CudaSums, Op};

/// An op whose kernel gives each thread some neighbouring elements, whatever the shape.
pub(super) struct Elementwise {
    pub(super) op: Op,
    /// Threads of a CUDA block.
    pub(super) threads: u32,
    /// Elements of a thread.
    pub(super) per_thread: fn(&FormatPlan<'_>) -> u32,
    /// The kernel of a name, behind what decodes the format.
    pub(super) kernel: fn(&FormatPlan<'_>, &str) -> String,
}

/// Whether a format's integer sums are those that a variant is for; the checker has looked at whole rows.
fn takes(plan: &FormatPlan<'_>, variant: &CudaVariant) -> bool {
    match variant.sums {
        CudaSums::Rows => true,
        CudaSums::Runs => plan.superblock.is_none(),
        CudaSums::SuperBlocks => plan.superblock.is_some(),
    }
}

/// Whether a variant that names no formats leaves this one to others: the tokens that it quantizes don't fit into shared memory.
fn leaves(variant: &CudaVariant, error: &Error) -> bool {
    let large = matches!(error, Error::Spec(diagnostic) if diagnostic.code == "shared-memory");
    large && variant.formats.is_none() && variant.activations == CudaActivations::Fused
}

/// What of the CUDA kernels of a format can't be planned: its quantizers, and its products.
pub(crate) fn refusals(set: &SpecSet, plan: &FormatPlan<'_>, index: usize) -> Vec<Error> {
    let one = |variant: &CudaVariant| match (RowsProduct::new(plan, variant), variant.packing) {
        (Err(error), _) => Some(error),
        (Ok(Some(_)), _) | (Ok(None), None) => None,
        (Ok(None), Some(packing)) => {
            let error = CudaMatmul::new(plan, &set.packings[packing], variant).err();
            error.filter(|error| !leaves(variant, error))
        }
    };
    let generated = serving(set, Op::Quantize, index).any(|(_, _, variant)| variant.body.is_none());
    let quantizers = plan.format.quantizers.iter().filter(|_| generated);
    let quantizers = quantizers.filter_map(|quantizer| CudaQuantizerPlan::new(plan, quantizer).err());
    let here = serving(set, Op::Matmul, index).filter(|(_, _, variant)| takes(plan, variant));
    quantizers.chain(here.filter_map(|(_, _, variant)| one(variant))).collect()
}

/// A format whose kernels are listed.
struct Listing<'a> {
    set: &'a SpecSet,
    plan: &'a FormatPlan<'a>,
    /// Index of the format.
    index: usize,
}

/// Adds the kernels of a format, and what they are in.
pub(super) fn of_format(
    set: &SpecSet,
    plan: &FormatPlan<'_>,
    index: usize,
    elementwise: &[Elementwise],
    (units, listed): (&mut Units, &mut Vec<CudaListed>),
) -> Result<(), Vec<Error>> {
    let listing = Listing { set, plan, index };
    listing.elementwise(elementwise, units, listed);
    let mut errors = listing.quantizers(units, listed);
    for of_variant @ (_, _, variant) in serving(set, Op::Matmul, index) {
        if !takes(plan, variant) {
            continue;
        }
        let product = match (RowsProduct::new(plan, variant), variant.packing) {
            (Err(error), _) => Err(error),
            (Ok(Some(product)), _) => Ok(listing.rows_product(of_variant, &product, units)),
            (Ok(None), None) => continue,
            (Ok(None), Some(packing)) => CudaMatmul::new(plan, &set.packings[packing], variant)
                .map(|resolved| listing.product(of_variant, &resolved, units)),
        };
        match product {
            Ok(product) => listed.push(product),
            Err(error) if leaves(variant, &error) => {}
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

impl Listing<'_> {
    fn entry(
        &self,
        of_variant: OfVariant<'_>,
        quantizer: Option<&str>,
        unit: &str,
        plan: CudaPlan,
    ) -> CudaListed {
        let format = self.plan.format;
        let shape = of_whole_blocks(of_variant.2.shape, format.elements);
        CudaListed::new(of_variant, (self.index, &format.name), quantizer, unit, shape, plan)
    }

    fn elementwise(&self, ops: &[Elementwise], units: &mut Units, listed: &mut Vec<CudaListed>) {
        for &Elementwise { op, threads, per_thread, kernel: emit } in ops {
            for of_variant @ (kernel, _, variant) in serving(self.set, op, self.index) {
                let unit = variant.unit(op.name(), &self.plan.format.name, kernel);
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
        for of_variant @ (kernel, _, variant) in serving(self.set, Op::Quantize, self.index) {
            for (position, quantizer) in format.quantizers.iter().enumerate() {
                let unit = variant.unit(&quantizer_function(&quantizer.name), &format.name, kernel);
                let function = function(variant, &unit);
                let (text, steps) = match (&variant.body, CudaQuantizerPlan::new(plan, quantizer)) {
                    (Some(body), _) => (hand_written(plan, body), false),
                    (None, Ok(planned)) => blocks::quantize(plan, quantizer, &planned, function),
                    (None, Err(error)) => {
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

    /// Puts a product of integers into its unit.
    fn product(&self, of_variant: OfVariant<'_>, resolved: &CudaMatmul<'_>, units: &mut Units) -> CudaListed {
        let (kernel, _, variant) = of_variant;
        let format = self.plan.format;
        // Formats share a generated loop; what is written by hand is the spec's own.
        let unit = match &variant.body {
            Some(_) => variant.unit("matmul", &format.name, kernel),
            None => resolved.name(),
        };
        let function = function(variant, &unit);
        let has_form = variant.body.is_none() && resolved.is_grouped();
        let grouped = has_form.then(|| form::grouped_name(function));
        if has_form {
            units.add_shared(EXPERTS, &[experts::ROUTE, experts::GATHER, experts::COMBINE], experts::emit);
        }
        let of_grouped = grouped.clone().map(|name| (name, form::budget(variant.budget)));
        let kernels = [(function.to_string(), variant.budget)].into_iter().chain(of_grouped.clone());
        let overlaps = match units.join(&unit, variant.min_cc, &kernels.collect::<Vec<_>>()) {
            Some(unit) => unit.overlaps,
            None => {
                let text = matmul::emit(resolved, variant.body.as_ref().map(|body| body.text.as_str()));
                let text = (parts(variant, resolved.parts()), text.as_str());
                let unit = units.add(&unit, variant.min_cc, &[function.to_string()], variant.budget, text);
                unit.kernels.extend(of_grouped);
                unit.only_on = variant.algorithm.only_on();
                unit.overlaps = waits(variant);
                unit.overlaps
            }
        };
        let generated = variant.body.is_none();
        let launch = Launch::Matmul {
            function: function.to_string(),
            threads: resolved.threads,
            fewest: resolved.fewest,
            rows: resolved.rows,
            tokens: resolved.tokens,
            packed: (format.name.clone(), resolved.pack.packing.name.clone()),
            elements: self.plan.k_group,
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
            overlaps,
            ..planned(variant, resolved.describe(), launch)
        };
        let fused = resolved.fused.is_some();
        let mut listed = CudaListed {
            input: inputs(kernel, fused),
            packing: variant.packing,
            fused,
            ..self.entry(of_variant, None, &unit, plan)
        };
        let k = &mut listed.shape.k;
        k.max = k.max.min(resolved.k_max);
        if fused {
            // Each block of activations is quantized by threads that all have values.
            let blocks = self.plan.activations.block.map_or(1, u64::from);
            k.multiple_of = lcm(lcm(k.multiple_of, fused::MULTIPLE), blocks);
        }
        listed
    }

    /// Puts a product over rows into its unit.
    fn rows_product(
        &self,
        of_variant: OfVariant<'_>,
        product: &RowsProduct<'_>,
        units: &mut Units,
    ) -> CudaListed {
        let (kernel, _, variant) = of_variant;
        let (plan, (major, minor)) = (product.format, variant.min_cc);
        // What one skeleton generates for a format and the same devices is one unit, so that its weights are decoded by one text.
        let unit = match &variant.body {
            Some(_) => variant.unit("matmul", &plan.format.name, kernel),
            None => {
                let arch = variant
                    .algorithm
                    .only_on()
                    .first()
                    .map_or(format!("{major}{minor}"), ToString::to_string);
                format!("rows_{}_{}_sm{arch}", plan.format.name, product.skeleton.name())
            }
        };
        let own = format!("{unit}_{}_{}x{}", variant.algorithm, product.threads, product.tokens);
        let function = function(variant, &own);
        let check = format!("{unit}_check");
        let quantizer = product.quantizer(&unit);
        if units.get(&unit).is_none() {
            let kernels: Vec<String> = [check.clone()]
                .into_iter()
                .chain(quantizer.clone().map(|quantizer| quantizer.function))
                .collect();
            let (text, budget) = (product.front(&unit), CudaBudget::default());
            units.add(&unit, variant.min_cc, &kernels, budget, (&[], &text)).only_on =
                variant.algorithm.only_on();
        }
        if units.join(&unit, variant.min_cc, &[(function.to_string(), variant.budget)]).is_none() {
            let text = variant.body.as_ref().map_or_else(|| product.emit(function), |body| body.text.clone());
            let text = (parts(variant, product.parts()), text.as_str());
            units.add(&unit, variant.min_cc, &[function.to_string()], variant.budget, text);
        }
        units.add_shared(CONVERT, &[CONVERT], convert::emit);
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
            quantizer,
        };
        let plan = CudaPlan {
            shared: variant.body.is_none().then_some(product.shared),
            stage: product.stage(),
            ..planned(variant, product.describe(), launch)
        };
        self.entry(of_variant, None, &unit, plan)
    }
}

/// The pack plans that CUDA kernels of a format need, by packing, whatever the loops of processors need of them.
///
/// # Errors
/// A packing without a tile wide enough.
pub(crate) fn packings<'a>(
    set: &'a SpecSet,
    plan: &FormatPlan<'_>,
    index: usize,
) -> Result<Vec<PackPlan<'a>>, Error> {
    let mut used: Vec<(usize, &CudaVariant)> = serving(set, Op::Matmul, index)
        .filter(|(_, _, variant)| takes(plan, variant))
        .filter_map(|(_, _, variant)| Some((variant.packing?, variant)))
        .collect();
    used.sort_unstable_by_key(|(packing, _)| *packing);
    used.dedup_by_key(|(packing, _)| *packing);
    let one =
        |(packing, variant): (usize, &CudaVariant)| fitted(plan, &set.packings[packing], &variant.origin);
    used.into_iter().map(one).collect()
}
