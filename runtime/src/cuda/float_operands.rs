//! What a product of floats needs besides its kernel: the check of its weights, the rounding of its activations.

use super::blocks::{looping, size};
use super::convert::Convert;
use super::device::{Function, Gpu};
use super::fault::{FaultKind, Faults, Rows};
use super::parameters::Check;
use super::types::{BF16, F16, F32, FP4};
use super::weights::Weights;
use crate::error::Error;
use crate::registry::{CudaCode, CudaLaunch, CudaRowsQuantizer, Entry, Registry};
use crate::weights::PackedMatrix;
use gristmill_spec::vocab::Precision;
use std::sync::Arc;

/// k of a stage of the kernels that round to halves: rows of activations are whole stages of them.
const STAGE: usize = 32;

/// Bytes at whose multiples rows of FP4 begin: kernels ask for 16, but their copies move 32 at a time.
const FP4_ALIGN: usize = 32;

/// What a product of floats needs besides its kernel.
#[derive(Clone, Debug)]
pub(crate) struct Floats {
    /// The type that activations are rounded to, as kernels are told; that of f32 for none.
    pub(super) word: u32,
    check: Function,
    check_threads: u32,
    /// Rounds activations, or looks at those that are of the type.
    pub(super) convert: Option<Convert>,
    /// How activations are quantized, where they are not rounded one by one.
    quantizer: Option<CudaRowsQuantizer>,
}

impl Floats {
    /// `None` where the code is another kernel's.
    pub(super) fn load(
        gpu: &Gpu,
        registry: &'static Registry,
        entry: &'static Entry,
        code: &CudaCode,
    ) -> Result<Option<Floats>, Error> {
        let CudaLaunch::Rows { check, check_threads, precision, quantizer, .. } = code.launch else {
            return Ok(None);
        };
        let word = match precision {
            Precision::F32 | Precision::Int8 => F32,
            Precision::F16 => F16,
            Precision::Bf16 => BF16,
            Precision::Fp4 => FP4,
        };
        let check = gpu.function(entry.name, code, check, check_threads)?;
        let convert = match quantizer {
            Some(quantizer) => Some(Convert::of_product(gpu, entry, code, &quantizer)?),
            None if word == F32 => None,
            None => Some(Convert::load(gpu, registry)?),
        };
        Ok(Some(Floats { word, check, check_threads, convert, quantizer }))
    }

    /// From one row of `k` rounded activations to the next, in values of the type (bytes of FP4).
    pub(super) fn stride(&self, k: usize) -> Option<usize> {
        match &self.quantizer {
            Some(CudaRowsQuantizer { elements, bytes, .. }) => k
                .div_ceil((*elements).max(1) as usize)
                .checked_mul(*bytes as usize)?
                .checked_next_multiple_of(FP4_ALIGN),
            None => k.checked_next_multiple_of(STAGE),
        }
    }

    /// Whether a kernel takes rows of `k` activations of this type where they are, once they were looked at.
    pub(super) fn takes(&self, word: u32, k: usize) -> bool {
        self.convert.is_none() || (word == self.word && k.is_multiple_of(STAGE))
    }

    /// Looks whether all weights can be used, and waits for the answer.
    pub(super) fn check(
        &self,
        gpu: &Arc<Gpu>,
        entry: &'static Entry,
        weights: &Weights,
        packed: &PackedMatrix,
    ) -> Result<(), Error> {
        let (n, k) = (packed.n(), packed.k());
        if n == 0 || k == 0 {
            return Ok(());
        }
        let mut faults = Faults::new(gpu)?;
        let arguments = Check {
            blocks: weights.codes.input(),
            row_bytes: packed.stride as u64,
            outer: weights.outer.input(),
            n: size("rows", n)?,
            k: size("a row", k)?,
            word: self.word,
            fault: faults.address(gpu, Rows { k, block: None })?,
        };
        let work = (n as u64).saturating_mul(k as u64).div_ceil(8 * u64::from(self.check_threads));
        let geometry = looping(gpu, &self.check, self.check_threads, work);
        // SAFETY: the parameters are those of docs/cuda.md; the weights are `n` rows of `k`, `stride` bytes apart.
        unsafe { gpu.launch(entry.name, &self.check, &geometry, &arguments.arguments()) }?;
        let Some((kind, at, _)) = faults.take()? else { return Ok(()) };
        let (row, column) = (at / k, at % k);
        Err(match kind {
            FaultKind::InvalidCode => Error::InvalidCode { format: packed.layout.format.name, row, column },
            FaultKind::NonFinite | FaultKind::ScaleOverflow | FaultKind::Beyond => {
                Error::BeyondPrecision { what: "the weight", row, column }
            }
        })
    }
}
