//! CUDA variants: what they may say, and that each can be chosen.

use super::body;
use super::scope::{Named, Scope, at, repeated, resolve, served_index};
use crate::model::{CudaVariant, Format, ShapeRules};
use crate::parse::kernel::{RawCudaVariant, RawKernel};
use crate::vocab::{CudaActivations, CudaAlgorithm, CudaSums, DType, Op, Precision, Serves};

/// Threads of a CUDA block where the variant says nothing.
const THREADS: u32 = 128;
/// The same for `wgmma`: a warpgroup that copies, and one that multiplies.
const WGMMA_THREADS: u32 = 256;
/// The same for `wgmma_f16` and `wgmma_bf16`: two warpgroups that multiply and one that rounds weights; the fewest tokens.
const HALVES: (u32, u32) = (64, 384);

/// The CUDA variants of a family; `None` where one has errors.
pub(super) fn check(
    raw: &RawKernel<'_>,
    op: Op,
    served: &[usize],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) -> Option<Vec<CudaVariant>> {
    let variants: Vec<Option<CudaVariant>> =
        raw.cuda.iter().map(|written| variant(raw, written, op, served, formats, scope)).collect();
    let variants = variants.into_iter().collect::<Option<Vec<CudaVariant>>>()?;
    let errors = raw.file.sink.errors();
    rivals(raw, served, &variants);
    (raw.file.sink.errors() == errors).then_some(variants)
}

fn variant(
    raw: &RawKernel<'_>,
    written: &RawCudaVariant,
    op: Op,
    served: &[usize],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) -> Option<CudaVariant> {
    let file = raw.file;
    let algorithm = written.algorithm.value;
    let errors = file.sink.errors();
    of_the_op(raw, written, op);
    fused(raw, written, op);
    if let Some(at) = written.sums.filter(|_| algorithm != CudaAlgorithm::Wgmma) {
        let message = format!("`{algorithm}` serves all formats alike; only `wgmma` has `sums`");
        file.report(file.error("not-for-this-op", at.span, message).help("leave it out"));
    }
    compute_capability(raw, written);
    let packing = match &written.packing {
        Some(name) => Some(resolve(file, name, "packing", &scope.packings, scope)?),
        None => None,
    };
    let narrowed = narrowed(raw, written, op, served, formats, scope)?;
    let (tokens, threads) = tile(raw, written);
    let body = match &written.body {
        Some(body) => {
            let body = body::cuda(raw, body, scope);
            if op.info().by_quantizer {
                in_blocks(raw, written, narrowed.as_deref().unwrap_or(served), formats);
            }
            body
        }
        None => None,
    };
    (file.sink.errors() == errors).then(|| CudaVariant {
        algorithm,
        min_cc: written.min_cc.map_or(algorithm.min_cc(), |min_cc| min_cc.value),
        label: written.label.as_ref().map_or(String::new(), |label| label.value.clone()),
        formats: narrowed,
        packing,
        activations: written.activations.map_or(CudaActivations::Separate, |activations| activations.value),
        sums: sums(written),
        tokens,
        threads,
        shape: written.shape.map_or(ShapeRules::default(), |shape| shape.value),
        budget: written.budget,
        body,
        origin: file.origin(written.span),
    })
}

/// Algorithms and keys are those of the op; products of integers name a packing, others none.
fn of_the_op(raw: &RawKernel<'_>, written: &RawCudaVariant, op: Op) {
    let (file, algorithm) = (raw.file, written.algorithm.value);
    let precision = algorithm.precision();
    // What multiplies floats reads the format's own rows.
    let packs = precision == Some(Precision::Int8);
    if precision.is_some() != op.info().product {
        let message = format!("`{algorithm}` does not compute `{op}`");
        let help = if op.info().product { "use `dp4a`, `mma` or `wgmma`" } else { "use `blocks`" };
        file.report(file.error("not-for-this-op", written.algorithm.span, message).help(help));
    }
    if !op.info().product {
        let keys = [
            ("packing", written.packing.as_ref().map(|p| p.span)),
            ("activations", written.activations.map(|a| a.span)),
            ("tile", written.tile.map(|t| t.span)),
            ("shape", written.shape.map(|s| s.span)),
        ];
        for (key, span) in keys.into_iter().filter_map(|(key, span)| Some((key, span?))) {
            let message = format!("`{key}` is for matmul; `{op}` goes over blocks one after the other");
            file.report(file.error("not-for-this-op", span, message).help("leave it out"));
        }
    } else if let (false, Some(packing)) = (packs, &written.packing) {
        let message = format!("`{algorithm}` reads the format's own rows");
        let error = file.error("not-for-this-op", packing.span, message);
        file.report(error.help("leave `packing` out"));
    } else if packs && written.packing.is_none() {
        let error = file.error("missing-key", written.span, format!("`{algorithm}` needs `packing`"));
        let packing = if algorithm == CudaAlgorithm::Dp4a { "r16k4" } else { "mma32x64" };
        file.report(error.help(format!("for example `packing = \"{packing}\"`")));
    }
}

/// What quantizes activations itself can, and is given floats.
fn fused(raw: &RawKernel<'_>, written: &RawCudaVariant, op: Op) {
    let (file, algorithm) = (raw.file, written.algorithm.value);
    let Some(at) = written.activations.filter(|at| at.value == CudaActivations::Fused) else { return };
    if !op.info().product {
        return;
    }
    let one_token = algorithm == CudaAlgorithm::Mma && written.tile.is_some_and(|tile| tile.value.0 == 1);
    let refused = if algorithm != CudaAlgorithm::Dp4a && !one_token {
        let help = "leave `activations` out, or use `dp4a`, or `mma` with a tile of one token";
        Some((format!("`{algorithm}` quantizes no activations; `dp4a` does, and `mma` of one token"), help))
    } else if written.body.is_some() {
        let message = "a kernel that is written by hand is given quantized activations";
        Some((message.to_string(), "leave `activations` out"))
    } else if raw.input.as_ref().is_some_and(|input| input.iter().all(|input| input.value == DType::I8)) {
        let message = "the family takes no floats, so there is nothing to quantize";
        Some((message.to_string(), "leave `activations` out, or add a float type to the family's `input`"))
    } else {
        None
    };
    if let Some((message, help)) = refused {
        file.report(file.error("not-for-this-op", at.span, message).help(help));
    }
}

/// A stated compute capability is one that the algorithm runs on.
fn compute_capability(raw: &RawKernel<'_>, written: &RawCudaVariant) {
    let (file, algorithm) = (raw.file, written.algorithm.value);
    let least = algorithm.min_cc();
    if let Some(min_cc) = written.min_cc.filter(|min_cc| min_cc.value < least) {
        let message = format!("`{algorithm}` needs compute capability {}.{}", least.0, least.1);
        file.report(file.error("out-of-range", min_cc.span, message).help("raise `min_cc`, or leave it out"));
    }
    if let (only @ [.., last], Some(min_cc)) = (algorithm.only_on(), written.min_cc)
        && min_cc.value > last.cc()
    {
        let only: Vec<String> = only.iter().map(ToString::to_string).collect();
        let message = format!("`{algorithm}` runs on architecture {} alone", only.join(" and "));
        file.report(file.error("out-of-range", min_cc.span, message).help("leave `min_cc` out"));
    }
}

/// The formats that the variant serves of those of its family; `None` inside for all of them, outside where one is unknown.
fn narrowed(
    raw: &RawKernel<'_>,
    written: &RawCudaVariant,
    op: Op,
    served: &[usize],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) -> Option<Option<Vec<usize>>> {
    let (file, algorithm) = (raw.file, written.algorithm.value);
    let over_blocks = !op.info().product && op.info().serves == Serves::Formats && written.body.is_none();
    let refused = |index: usize| {
        let format = at(formats, index).filter(|_| over_blocks)?;
        let of_quantizers = || format.quantizers.iter().find_map(|q| q.not_on_cuda(format));
        format.not_on_cuda().or_else(|| if op.info().by_quantizer { of_quantizers() } else { None })
    };
    let Some(names) = &written.formats else {
        let known = |index: usize| at(formats, index).is_some();
        let chosen =
            |fits: &dyn Fn(usize) -> bool| served.iter().copied().filter(|index| fits(*index)).collect();
        let some_refused = served.iter().any(|index| refused(*index).is_some());
        return Some(if over_blocks && (op.info().by_quantizer || some_refused) {
            Some(chosen(&|index| known(index) && refused(index).is_none()))
        } else if algorithm == CudaAlgorithm::Wgmma {
            let rows = sums(written) == CudaSums::Rows;
            Some(chosen(&|index| one_sum(index, formats, scope).is_none_or(|by_row| by_row == rows)))
        } else if algorithm == CudaAlgorithm::MmaFp4 {
            let fits = |index: usize| at(formats, index).is_none_or(|format| format.fp4().is_ok());
            Some(chosen(&fits))
        } else {
            None
        });
    };
    let mut indices = Vec::with_capacity(names.len());
    for (position, name) in names.iter().enumerate() {
        if repeated(file, names, position) {
            continue;
        }
        let index = served_index(file, op, name, formats, scope)?;
        if !served.contains(&index) {
            let message = format!("the family does not serve `{}`", name.value);
            let error = file.error("not-for-this-op", name.span, message);
            file.report(error.help("list it in the family's `formats`, or leave it out here"));
        }
        let other_rows = |by_row: &bool| *by_row != (sums(written) == CudaSums::Rows);
        if algorithm == CudaAlgorithm::Wgmma
            && let Some(by_row) = one_sum(index, formats, scope).filter(other_rows)
        {
            let (has, other) = match by_row {
                true => ("are one integer sum", "\"rows\"` or no `sums"),
                false => ("have runs with scales", "\"runs\"` or `sums = \"super-blocks\""),
            };
            let message = format!(
                "`{algorithm}` with `sums = \"{}\"` is for other rows than those of `{}`, which {has}",
                sums(written),
                name.value
            );
            let error = file.error("not-for-this-op", name.span, message);
            file.report(error.help(format!("leave it out here; a variant with `sums = {other}` serves it")));
        }
        if algorithm == CudaAlgorithm::MmaFp4
            && let Some(Err(reason)) = at(formats, index).map(Format::fp4)
        {
            let message = format!(
                "`{algorithm}` multiplies FP4 as it is stored, and `{}` is not: {reason}",
                name.value
            );
            file.report(file.error("not-for-this-op", name.span, message).help("leave it out here"));
        }
        if let Some(reason) = refused(index) {
            let done = if op.info().by_quantizer { "quantized" } else { "served" };
            let message = format!("`{}` can't be {done} here: {reason}", name.value);
            file.report(file.error("not-for-this-op", name.span, message).help("leave it out here"));
        }
        indices.push(index);
    }
    Some(Some(indices))
}

/// Tokens at once and threads of a CUDA block, as they are written or as is usual for the algorithm.
fn tile(raw: &RawKernel<'_>, written: &RawCudaVariant) -> (u32, u32) {
    let (file, algorithm) = (raw.file, written.algorithm.value);
    let usual = match algorithm {
        CudaAlgorithm::Wgmma => (0, WGMMA_THREADS),
        CudaAlgorithm::WgmmaF16 | CudaAlgorithm::WgmmaBf16 => HALVES,
        _ => (0, THREADS),
    };
    let Some(tile) = written.tile else { return usual };
    let (tokens, threads) = tile.value;
    if let Some(help) = unsound_tile(algorithm, sums(written), tokens, threads) {
        let message = format!("`{algorithm}` can't take {tokens} tokens at once with {threads} threads");
        file.report(file.error("out-of-range", tile.span, message).help(help));
    }
    (tokens, threads)
}

/// What tiles an algorithm takes, where it does not take this one.
fn unsound_tile(algorithm: CudaAlgorithm, sums: CudaSums, tokens: u32, threads: u32) -> Option<&'static str> {
    let (sound, takes) = match algorithm {
        CudaAlgorithm::Mma => (tokens <= 1 || tokens.is_multiple_of(8), "1, or a multiple of 8"),
        // A thread for each output of sixteen rows.
        CudaAlgorithm::Dp4a => {
            (tokens <= 8 && 16 * tokens <= threads, "1 to 8 tokens, and 16 threads for each at least")
        }
        // A thread has a sum for each token, of runs an f32 sum besides, of super-blocks those of scaled integers; 65536 registers are
        // shared by three warpgroups at most.
        CudaAlgorithm::Wgmma => {
            let (most, takes) = match sums {
                CudaSums::Rows => (128, "32, 64, 96 or 128 tokens with 256 or 384 threads"),
                CudaSums::Runs => (64, "32 or 64 tokens with 256 or 384 threads where runs have scales"),
                CudaSums::SuperBlocks => (32, "32 tokens with 256 or 384 threads where runs have integers"),
            };
            (tokens.is_multiple_of(32) && tokens <= most && matches!(threads, 256 | 384), takes)
        }
        CudaAlgorithm::Blocks => (tokens == 1, "one token"),
        // Sums of four rows stay in registers.
        CudaAlgorithm::Fma => (tokens <= 8 && threads <= 512, "1 to 8 tokens, and 512 threads at most"),
        // Warps of 32 rows, and of 64 tokens where there are so many.
        CudaAlgorithm::MmaF16 | CudaAlgorithm::MmaBf16 => (
            tokens.is_multiple_of(8)
                && (tokens <= 64 || tokens.is_multiple_of(64) && (threads / 32).is_multiple_of(tokens / 64)),
            "a multiple of 8 up to 64, or of 64 with a warp at least for each 64 of them",
        ),
        // A thread has a sum for each two tokens; the warps that bring share them by eights.
        CudaAlgorithm::WgmmaF16 | CudaAlgorithm::WgmmaBf16 => (
            tokens.is_multiple_of(HALVES.0) && tokens <= 256 && threads == HALVES.1,
            "64, 128, 192 or 256 tokens with 384 threads",
        ),
        // Warps of 32 rows by 32 or 64 tokens, whose scales the lanes of a quad hold for each other.
        CudaAlgorithm::MmaFp4 => (
            matches!(tokens, 32 | 64 | 128) && (threads / 32).is_multiple_of(tokens.div_ceil(64)),
            "32, 64 or 128 tokens, 128 with an even number of warps",
        ),
    };
    (!sound).then_some(takes)
}

/// The rows that a variant is for.
fn sums(written: &RawCudaVariant) -> CudaSums {
    written.sums.map_or(CudaSums::Rows, |sums| sums.value)
}

/// Whether a row of the format is one integer sum; `None` for one with mistakes, which are reported elsewhere.
fn one_sum(index: usize, formats: &Named<Format>, scope: &Scope<'_>) -> Option<bool> {
    let format = at(formats, index)?;
    Some(format.scales_stand_outside() && at(&scope.activations, format.activations)?.block.is_none())
}

/// A body quantizes one block after the other: it serves formats with one quantizer whose scale is the block's.
fn in_blocks(raw: &RawKernel<'_>, written: &RawCudaVariant, served: &[usize], formats: &Named<Format>) {
    for &index in served {
        let Some(format) = at(formats, index) else { continue };
        if format.row_header.is_some() || format.tensor_tail.is_some() || format.quantizers.len() != 1 {
            let message = format!("no hand-written kernel can quantize `{}`", format.name);
            let error = raw.file.error("not-for-this-op", written.span, message);
            raw.file.report(error.help(
                "a body needs formats with one quantizer and without a scale outside their blocks; name some in `formats`",
            ));
        }
    }
}

/// Among CUDA variants the order of the file decides: one whose shapes, devices and formats an earlier one takes all
/// would never be chosen.
fn rivals(raw: &RawKernel<'_>, served: &[usize], variants: &[CudaVariant]) {
    for (position, later) in variants.iter().enumerate() {
        let of = |variant: &CudaVariant| variant.formats.clone().unwrap_or_else(|| served.to_vec());
        for (earlier, at) in variants[..position].iter().zip(&raw.cuda) {
            let (file, span) = (raw.file, raw.cuda[position].span);
            let shared = of(later).iter().any(|format| of(earlier).contains(format));
            let (a, b) = (&earlier.shape, &later.shape);
            // Only one of them can be meant where they multiply different things, or rows of different sums.
            let alike = earlier.algorithm.precision() == later.algorithm.precision()
                && (earlier.algorithm != later.algorithm || earlier.sums == later.sums);
            // One that quantizes takes no int8, and rows only as long as shared memory holds.
            let quantizes = |variant: &CudaVariant| variant.activations == CudaActivations::Fused;
            // One of another packing is chosen where weights are held in that, which they are for shapes that the earlier one doesn't take.
            let within =
                |shape: &ShapeRules| shape.m.within(&a.m) && shape.n.within(&a.n) && shape.k.within(&a.k);
            let held = earlier.packing != later.packing
                && variants.iter().any(|other| other.packing == later.packing && !within(&other.shape));
            // One whose formats are not in this set is not looked at.
            let covered = alike
                && !held
                && !of(later).is_empty()
                && (quantizes(later) || !quantizes(earlier))
                && of(later).iter().all(|format| of(earlier).contains(format))
                && earlier.min_cc <= later.min_cc
                && [&[], later.algorithm.only_on()].contains(&earlier.algorithm.only_on())
                && within(b);
            if covered {
                let message = "this CUDA variant is never chosen: an earlier one takes all its shapes";
                let error = file.error("unreachable-variant", span, message).label("this variant");
                let error = error.also(file.path, at.span, "the earlier variant");
                file.report(error.help("put the more special variant first"));
            } else if shared && earlier.algorithm == later.algorithm && earlier.label == later.label {
                let message = "two CUDA variants of one algorithm have the same name";
                let error = file.error("duplicate-name", span, message).label("this variant");
                let error = error.also(file.path, at.span, "the earlier variant");
                file.report(error.help("tell them apart with `name`, for example `name = \"decode\"`"));
            }
        }
    }
}
