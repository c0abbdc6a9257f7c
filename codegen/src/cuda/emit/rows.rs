//! Products that multiply floats: what [`fma`], [`halves`], [`wgmma_halves`] and [`fp4`] have in common.
//!
//! All read the format's own rows, without headers, each at a multiple of sixteen bytes. A weight is the f32 that the
//! format says, as `dequantize` has it. f32 sums are taken in no particular order, so what is promised of a result is a
//! bound of its error, and not its bits.

use super::division::{self, Division};
use super::header::Part;
use super::launch::RowsQuantizer;
use super::parameters::{BEYOND, INVALID_CODE, enumerators, fields, kernel};
use super::rows_product::{RowsProduct, Skeleton, at_once};
use super::{decode, fma, fp4, halves, wgmma_halves};
use crate::Error;
use crate::plan::{Decode, FormatPlan};
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
                let rows = halves::rows(threads, tokens);
                (tokens, rows, threads, fp4::shared_bytes(fp4, rows, tokens))
            }
        };
        let product =
            RowsProduct { format: plan, precision, threads, fewest, rows, tokens, shared, skeleton };
        if product.shared_at_launch() == 0 && shared > CudaBudget::default().shared {
            return Err(Error::large_tile(plan.format, &variant.origin, (tokens, threads), shared));
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
            Skeleton::Fma => prelude + &enumerators(&[("FMA_ROWS", fma::ROWS)]) + fma::HEADER,
            Skeleton::Halves => prelude + halves::HEADERS,
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
    let numbers = [
        ("AT_ONCE", at_once(plan)),
        ("IS_FP4", u32::from(product.precision == Precision::Fp4)),
        ("CHECK_THREADS", CHECK_THREADS),
        ("INVALID_CODE", u32::from(INVALID_CODE)),
        ("BEYOND", u32::from(BEYOND)),
    ];
    format!(
        "{decode}// The parameter of products over rows: docs/cuda.md.
{parameter}{numbers}
// An integer as f32.
GM_DEVICE f32 number(i32 v) {{ return {number}; }}

{header}{kernel}
",
        decode = decode::emit(plan),
        parameter = fields("Rows", &CudaAbi::ROWS, &[]),
        numbers = enumerators(&numbers),
        number = number(product),
        header = include_str!("../../../cuda/rows.h"),
        kernel = kernel(
            CHECK_THREADS,
            &format!("{unit}_check"),
            &CudaAbi::CHECK,
            "    check_weights(blocks, row_bytes, outer, n, k, type, fault);\n"
        ),
    )
}

/// An expression of an integer `v` as f32.
fn number(product: &RowsProduct<'_>) -> String {
    let plan = product.format;
    let value = &plan.format.value;
    let plain = value.signs.is_none() && value.shift.is_none();
    match plan.decode() {
        // An unsigned code below the leading bit of 2^23 is that and the code, so one subtraction takes an integer's conversion's
        // place, exactly.
        Decode::Affine { times: 1, zero, signed: false }
            if product.stage().is_some() && plan.code_bits <= 8 && plain =>
        {
            format!("gm_float(0x4b000000u | (u32)(v + ({zero}))) - {}.0f", 0x80_0000 + zero)
        }
        _ => "(f32)v".to_string(),
    }
}

/// Threads of a CUDA block of the kernel that checks weights.
pub const CHECK_THREADS: u32 = 256;
