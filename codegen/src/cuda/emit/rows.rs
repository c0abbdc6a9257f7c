//! Products that multiply floats: what [`fma`], [`halves`], [`wgmma_halves`] and [`fp4`] have in common.
//!
//! All read the format's own rows, without headers, each at a multiple of sixteen bytes. A weight is the f32 that the
//! format says, as `dequantize` has it. f32 sums are taken in no particular order, so what is promised of a result is a
//! bound of its error, and not its bits.

use super::division::{self, Division};
use super::header::Part;
use super::launch::RowsQuantizer;
use super::parameters::{BEYOND, INVALID_CODE, fields, parameters};
use super::rows_product::{RowsProduct, Skeleton, at_once};
use super::{decode, fma, fp4, halves, wgmma_halves};
use crate::Error;
use crate::lower::decode::scale_outside;
use crate::plan::{Decode, FormatPlan};
use crate::print::cuda;
use gristmill_spec::model::{CudaBudget, CudaVariant};
use gristmill_spec::vocab::{CudaAbi, CudaAlgorithm, Precision};

impl<'a> RowsProduct<'a> {
    /// Plans a variant that multiplies floats; `None` for all others.
    ///
    /// # Errors
    /// A tile beyond a CUDA block's shared memory; FP4 of a format that is not.
    pub fn new(plan: &'a FormatPlan<'a>, variant: &CudaVariant) -> Result<Option<RowsProduct<'a>>, Error> {
        let (threads, tokens) = (variant.threads, variant.tokens);
        let skeleton = match variant.algorithm {
            CudaAlgorithm::Blocks | CudaAlgorithm::Dp4a | CudaAlgorithm::Mma | CudaAlgorithm::Wgmma => None,
            CudaAlgorithm::Fma => Some(Skeleton::Fma),
            CudaAlgorithm::MmaF16 | CudaAlgorithm::MmaBf16 => Some(Skeleton::Halves),
            CudaAlgorithm::WgmmaF16 | CudaAlgorithm::WgmmaBf16 => {
                Some(Skeleton::Warpgroups(Division::new(plan, tokens)))
            }
            CudaAlgorithm::MmaFp4 => {
                let refused = |why| Error::passed(plan.format, format!("`{}`: {why}", variant.algorithm));
                Some(Skeleton::Fp4(plan.format.fp4().map_err(refused)?))
            }
        };
        let (Some(skeleton), Some(precision)) = (skeleton, variant.algorithm.precision()) else {
            return Ok(None);
        };
        let (tokens, rows, fewest, shared) = match &skeleton {
            Skeleton::Fma => {
                let tokens = tokens.max(1);
                // Threads of a block share k as far as there is room; sixty-four take a short row.
                (tokens, fma::ROWS, threads.min(64), fma::shared_bytes(threads, tokens))
            }
            Skeleton::Halves => {
                let tokens = tokens.max(8);
                let rows = halves::rows(threads, tokens);
                (tokens, rows, threads, halves::shared_bytes(rows, tokens))
            }
            Skeleton::Warpgroups(division) => (tokens, division::ROWS, threads, division.shared_bytes()),
            Skeleton::Fp4(fp4) => {
                let tokens = tokens.max(32);
                let rows = fp4::rows(threads, tokens);
                (tokens, rows, threads, fp4::shared_bytes(fp4, rows, tokens))
            }
        };
        let product =
            RowsProduct { format: plan, precision, threads, fewest, rows, tokens, shared, skeleton };
        let most = CudaBudget::default().shared;
        if product.shared_at_launch() == 0 && shared > most {
            let message = format!(
                "a tile of {tokens} tokens and {threads} threads needs {shared} bytes of shared memory, of which a CUDA block has {most}"
            );
            return Err(Error::shared_memory(plan.format, &variant.origin, &message));
        }
        Ok(Some(product))
    }

    /// Bytes of shared memory that a launch gives each CUDA block, beyond what the kernel declares.
    pub fn shared_at_launch(&self) -> u32 {
        if let Skeleton::Warpgroups(_) = self.skeleton { self.shared } else { 0 }
    }

    /// Elements of k of a stage, where warps bring what others multiply.
    pub fn stage(&self) -> Option<u32> {
        matches!(self.skeleton, Skeleton::Warpgroups(_)).then_some(division::STAGE)
    }

    /// Parts of the vocabulary that the kernel uses.
    pub(super) fn parts(&self) -> &'static [Part] {
        match self.skeleton {
            Skeleton::Fma => &[],
            Skeleton::Halves | Skeleton::Warpgroups(_) => &[Part::Copies, Part::Halves],
            Skeleton::Fp4(_) => &[Part::Copies, Part::Fp4],
        }
    }

    /// What stands in front of the kernels of its unit, of which `check` looks at weights and `quantize`, if there is one, at activations.
    pub fn front(&self, unit: &str) -> String {
        let prelude = prelude(self, unit);
        match &self.skeleton {
            Skeleton::Fma => prelude,
            Skeleton::Halves => prelude + halves::TILE,
            Skeleton::Warpgroups(_) => wgmma_halves::VOCABULARY.to_string() + &prelude,
            Skeleton::Fp4(fp4) => prelude + &fp4::prelude(fp4, &quantize_name(unit)),
        }
    }

    /// How activations come to be FP4, where they have to.
    pub fn quantizer(&self, unit: &str) -> Option<RowsQuantizer> {
        let Skeleton::Fp4(fp4) = &self.skeleton else { return None };
        Some(RowsQuantizer {
            function: quantize_name(unit),
            threads: fp4::QUANTIZE_THREADS,
            elements: fp4::STAGE,
            bytes: fp4::stage_bytes(fp4),
        })
    }

    /// The plan in words.
    pub fn describe(&self) -> String {
        let precision = self.precision;
        let how = match &self.skeleton {
            Skeleton::Fma => "weights in f32, f32 fused multiply-add".to_string(),
            Skeleton::Halves => format!(
                "weights rounded to {precision} in stages of {} k, {precision} x {precision} mma.sync into f32",
                halves::STAGE
            ),
            Skeleton::Warpgroups(division) => format!(
                "weights rounded to {precision}, {precision} x {precision} wgmma into f32; {}",
                division.describe()
            ),
            Skeleton::Fp4(_) => format!(
                "weights as they are and activations quantized to the same in stages of {} k, FP4 x FP4 block-scaled mma.sync into f32",
                fp4::STAGE
            ),
        };
        format!(
            "{} rows x {} tokens a CUDA block of {} threads; the format's own rows; {how}",
            self.rows, self.tokens, self.threads
        )
    }

    /// The kernel `function`.
    pub fn emit(&self, function: &str) -> String {
        match &self.skeleton {
            Skeleton::Fma => fma::emit(self, function),
            Skeleton::Halves => halves::emit(self, function),
            Skeleton::Warpgroups(division) => wgmma_halves::emit(self, division, function),
            Skeleton::Fp4(fp4) => fp4::emit(self, fp4, function),
        }
    }
}

/// The kernel of a unit that quantizes activations.
fn quantize_name(unit: &str) -> String {
    format!("{unit}_quantize")
}

/// What stands before the kernels of a unit: the parameter, the format's weights, and the kernel `UNIT_check`.
fn prelude(product: &RowsProduct<'_>, unit: &str) -> String {
    let plan = product.format;
    let factor = if plan.has_scales() {
        "scale(bytes, at, e / RUN, outer)".to_string()
    } else {
        cuda::expr(&scale_outside(plan))
    };
    let (offset, minus) = if plan.offset {
        ("\n    const f32 o = offset(bytes, at, e / RUN, outer);", " - o")
    } else {
        ("", "")
    };
    // An unsigned code below the leading bit of 2^23 is that and the code, so one subtraction takes an integer's conversion's
    // place, exactly.
    let value = &plan.format.value;
    let number = match plan.decode() {
        Decode::Affine { times: 1, zero, signed: false }
            if product.stage().is_some()
                && plan.code_bits <= 8
                && value.signs.is_none()
                && value.shift.is_none() =>
        {
            format!("gm_float(0x4b000000u | (u32)(v[j] + ({zero}))) - {}.0f", 0x80_0000 + zero)
        }
        _ => "(f32)v[j]".to_string(),
    };
    // Twice the largest scale of FP4 is no number.
    let held = if product.precision == Precision::Fp4 {
        "\n            if (type == 3 && gm_abs(w[j]) >= 0x1p127f) held = gm_float(0x7f800000u);"
    } else {
        ""
    };
    let bad = if plan.last_code.is_some() {
        "if (first < N && bad == AT_ONCE) bad = i + first;"
    } else {
        "(void)first;"
    };
    format!(
        "{decode}// The parameter of products over rows: docs/cuda.md.
{parameter}// Elements that are computed at once; they are in one run.
enum : u32 {{ AT_ONCE = {at_once} }};

// What integers of the run of element e are multiplied with.
template <class Bytes> GM_DEVICE f32 factor(const Bytes &bytes, u32 at, u32 e, f32 outer) {{
    (void)bytes; (void)at; (void)e; (void)outer;
    return {factor};
}}

// The integers of elements e to e + AT_ONCE - 1 as f32; the first whose code means nothing, or AT_ONCE.
template <class Bytes> GM_DEVICE u32 integers(const Bytes &bytes, u32 at, u32 e, f32 (&q)[AT_ONCE]) {{
    u32 bad = AT_ONCE;
    GM_UNROLL for (u32 i = 0; i < AT_ONCE; i += N) {{
        i32 v[N];
        const u32 first = values(bytes, at, e + i, v);
        {bad}
        GM_UNROLL for (u32 j = 0; j < N; j++) q[i + j] = {number};
    }}
    return bad;
}}

// The weights of the same, as `dequantize` has them.
template <class Bytes> GM_DEVICE u32 weights(const Bytes &bytes, u32 at, u32 e, f32 outer, f32 (&w)[AT_ONCE]) {{
    const u32 bad = integers(bytes, at, e, w);
    const f32 s = factor(bytes, at, e, outer);{offset}
    GM_UNROLL for (u32 i = 0; i < AT_ONCE; i++) w[i] = s * w[i]{minus};
    return bad;
}}

// Whether all weights can be used: codes mean something (else fault 1), and numbers of type `type` hold them (else 3).
GM_KERNEL({threads}) {unit}_check({parameters}) {{
    const u64 count = (u64)n * (k / AT_ONCE);
    for (u64 i = (u64)gm_block() * {threads} + gm_thread(); i < count; i += (u64)gm_blocks() * {threads}) {{
        const u64 row = i / (k / AT_ONCE);
        const u32 e = (u32)(i % (k / AT_ONCE)) * AT_ONCE;
        const u8 *bytes = blocks + row * row_bytes;
        f32 w[AT_ONCE];
        const u32 bad = weights(bytes, e / ELEMENTS * BYTES, e % ELEMENTS, gm_load(outer + row), w);
        if (bad < AT_ONCE) gm_atomic_min(fault, (row * k + e + bad) * 4 + {INVALID_CODE});
        GM_UNROLL for (u32 j = 0; j < AT_ONCE; j++) {{
            f32 held = w[j];
            if (type == 1) held = gm_f16_to_f32(gm_f32_to_f16(w[j]));
            if (type == 2) held = gm_bf16_to_f32(gm_f32_to_bf16(w[j]));{held}
            if (bad == AT_ONCE && !gm_is_finite(held)) gm_atomic_min(fault, (row * k + e + j) * 4 + {BEYOND});
        }}
    }}
}}
GM_EXPORT({unit}_check)

",
        decode = decode::emit(plan),
        parameter = fields("Rows", &CudaAbi::ROWS, &[]),
        parameters = parameters(&CudaAbi::CHECK),
        at_once = at_once(plan),
        threads = CHECK_THREADS,
    ) + &fma::prelude(plan)
}

/// Threads of a CUDA block of the kernel that checks weights.
pub const CHECK_THREADS: u32 = 256;
