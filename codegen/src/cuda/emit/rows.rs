//! Products that multiply floats: what [`fma`], [`halves`] and [`wgmma_halves`] have in common.
//!
//! All read the format's own rows, without headers, each at a multiple of sixteen bytes. A weight is the f32 that the
//! format says, as `dequantize` has it. f32 sums are taken in no particular order, so what is promised of a result is a
//! bound of its error, and not its bits.

use super::division::{self, Division};
use super::header::Part;
use super::parameters::{BEYOND, INVALID_CODE, fields, parameters};
use super::rows_product::{RowsProduct, at_once};
use super::{decode, fma, halves, wgmma_halves};
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
    /// A tile beyond a CUDA block's shared memory.
    pub fn new(plan: &'a FormatPlan<'a>, variant: &CudaVariant) -> Result<Option<RowsProduct<'a>>, Error> {
        let precision = match variant.algorithm {
            CudaAlgorithm::Blocks | CudaAlgorithm::Dp4a | CudaAlgorithm::Mma | CudaAlgorithm::Wgmma => {
                return Ok(None);
            }
            CudaAlgorithm::Fma => Precision::F32,
            CudaAlgorithm::MmaF16 | CudaAlgorithm::WgmmaF16 => Precision::F16,
            CudaAlgorithm::MmaBf16 | CudaAlgorithm::WgmmaBf16 => Precision::Bf16,
        };
        let (threads, tokens) = (variant.threads, variant.tokens);
        if matches!(variant.algorithm, CudaAlgorithm::WgmmaF16 | CudaAlgorithm::WgmmaBf16) {
            let division = Division::new(plan, tokens);
            let rows = division::ROWS;
            let fewest = threads;
            return Ok(Some(RowsProduct {
                format: plan,
                precision,
                threads,
                fewest,
                rows,
                tokens,
                shared: division.shared_bytes(),
                division: Some(division),
            }));
        }
        let (tokens, rows, fewest, shared) = if precision == Precision::F32 {
            let tokens = tokens.max(1);
            // Threads of a block share k as far as there is room; sixty-four take a short row.
            (tokens, fma::ROWS, threads.min(64), fma::shared_bytes(threads, tokens))
        } else {
            let tokens = tokens.max(8);
            let rows = halves::rows(threads, tokens);
            (tokens, rows, threads, halves::shared_bytes(rows, tokens))
        };
        let most = CudaBudget::default().shared;
        if shared > most {
            let message = format!(
                "a tile of {tokens} tokens and {threads} threads needs {shared} bytes of shared memory, of which a CUDA block has {most}"
            );
            return Err(Error::shared_memory(plan.format, &variant.origin, &message));
        }
        Ok(Some(RowsProduct {
            format: plan,
            precision,
            threads,
            fewest,
            rows,
            tokens,
            shared,
            division: None,
        }))
    }

    /// Bytes of shared memory that a launch gives each CUDA block, beyond what the kernel declares.
    pub fn shared_at_launch(&self) -> u32 {
        if self.division.is_some() { self.shared } else { 0 }
    }

    /// Parts of the vocabulary that the kernel uses.
    pub(super) fn parts(&self) -> &'static [Part] {
        if self.precision == Precision::F32 { &[] } else { &[Part::Copies, Part::Halves] }
    }

    /// What stands in front of the kernels of its unit.
    pub fn vocabulary(&self) -> &'static str {
        if self.division.is_some() { wgmma_halves::VOCABULARY } else { "" }
    }

    /// The plan in words.
    pub fn describe(&self) -> String {
        let how = match (self.precision, &self.division) {
            (precision, Some(division)) => {
                format!(
                    "weights rounded to {precision}, {precision} x {precision} wgmma into f32; {}",
                    division.describe()
                )
            }
            (Precision::F16 | Precision::Bf16, None) => format!(
                "weights rounded to {0} in stages of {1} k, {0} x {0} mma.sync into f32",
                self.precision,
                halves::STAGE
            ),
            (Precision::F32 | Precision::Int8, None) => "weights in f32, f32 fused multiply-add".to_string(),
        };
        format!(
            "{} rows x {} tokens a CUDA block of {} threads; the format's own rows; {how}",
            self.rows, self.tokens, self.threads
        )
    }

    /// The kernel `function`.
    pub fn emit(&self, function: &str) -> String {
        match (self.precision, &self.division) {
            (_, Some(division)) => wgmma_halves::emit(self, division, function),
            (Precision::F16 | Precision::Bf16, None) => halves::emit(self, function),
            (Precision::F32 | Precision::Int8, None) => fma::emit(self, function),
        }
    }
}

/// What stands before the kernels of a unit: the parameter, the format's weights, and the kernel `UNIT_check`.
pub fn prelude(product: &RowsProduct<'_>, unit: &str) -> String {
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
            if product.division.is_some()
                && plan.code_bits <= 8
                && value.signs.is_none()
                && value.shift.is_none() =>
        {
            format!("gm_float(0x4b000000u | (u32)(v[j] + ({zero}))) - {}.0f", 0x80_0000 + zero)
        }
        _ => "(f32)v[j]".to_string(),
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
            if (type == 2) held = gm_bf16_to_f32(gm_f32_to_bf16(w[j]));
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
