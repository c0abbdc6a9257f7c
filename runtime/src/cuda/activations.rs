//! Activations on a device: given there or copied there, and quantized.

use super::blocks::size;
use super::buffer::room;
use super::device::{Function, Geometry, Gpu};
use super::parameters::QuantizeActivations;
use super::place::Place;
use super::scratch::{DeviceScratch, Places, QuantizedActivations};
use super::types::{BF16, F16, F32, width};
use crate::activations::{Input, RowLayout};
use crate::decide::{Candidate, Decision};
use crate::error::Error;
use crate::registry::{CudaLaunch, Registry, Unit};
use crate::request::Shape;
use crate::run::launch::Launcher;
use gristmill_spec::vocab::{DType, Op};
use half::slice::HalfFloatSliceExt as _;
use std::sync::Arc;

/// A quantizer of activations on a device.
#[derive(Clone, Debug)]
pub(crate) struct ActivationCode {
    gpu: Arc<Gpu>,
    function: Function,
    threads: u32,
}

impl Launcher<ActivationCode> {
    pub(crate) fn cuda(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
    ) -> Result<Self, Error> {
        Launcher::on_gpu(registry, candidate, Op::QuantizeActivations, |code| {
            let CudaLaunch::Activations { op: Op::QuantizeActivations, function, threads } = code.launch
            else {
                return Ok(None);
            };
            let gpu = place.open()?;
            let function = gpu.function(candidate.entry.name, code, function, threads)?;
            Ok(Some(ActivationCode { gpu, function, threads }))
        })
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.code().gpu
    }

    /// Enqueues `m > 0` rows of type `word` at `x` into the scratch's places, which are large enough.
    ///
    /// # Safety
    /// `x` is the address of `m * layout.k` values of that type on this device, which live until the kernel has run.
    pub(crate) unsafe fn rows(
        &self,
        x: u64,
        word: u32,
        m: usize,
        layout: &RowLayout,
        places: &Places,
    ) -> Result<(), Error> {
        let ActivationCode { gpu, function, threads } = self.code();
        let arguments = QuantizeActivations {
            x,
            word,
            m: size("tokens", m)?,
            k: size("a row", layout.k)?,
            unit: size("a unit", layout.unit)?,
            unit_padded: size("a unit", layout.unit_padded)?,
            units: size("units", layout.units)?,
            q: places.q,
            scales: places.scales,
            sums: places.sums,
            fault: places.fault,
        };
        let runs = if layout.blocks > 1 { layout.blocks } else { layout.units };
        let held = gpu.profile().multiprocessors.saturating_mul(gpu.held(function, *threads));
        let shares = row_shares(runs, *threads, m, held);
        let geometry = Geometry { blocks: (size("tokens", m)?, shares), threads: *threads, layers: 1 };
        let out = layout.bytes() + 4 * (layout.blocks + layout.units);
        self.enqueued(
            gpu,
            Shape { m, n: 1, k: layout.k },
            [m.saturating_mul(layout.k).saturating_mul(width(word)), m.saturating_mul(out)],
            || {
                // SAFETY: the parameters are those of docs/cuda.md; places have the layout's sizes for `m` rows
                // (`Scratch::places`), and `x` is the caller's.
                unsafe { gpu.launch(self.entry.name, function, &geometry, &arguments.arguments()) }
            },
        )
    }
}

/// Quantizes `m` rows of `k` values by the kernel that a decision for `quantize_activations` on a GPU chose, in
/// units as a product wants them. Products do this for themselves; this is for looking at what they do.
///
/// # Errors
/// Why nothing was chosen; [`Error::ShapeMismatch`], also for a unit that is no part of a block with a scale;
/// [`Error::NonFinite`], [`Error::ScaleOverflow`]; [`Error::Gpu`].
pub fn quantize_activations(
    decision: &Decision<'_>,
    unit: Unit,
    x: &[f32],
    m: usize,
    k: usize,
) -> Result<QuantizedActivations, Error> {
    let registry = decision.prepared().registry();
    let place = decision.prepared().place();
    let launcher = Launcher::<ActivationCode>::cuda(registry, decision.candidate()?, place)?;
    let block = registry.activations[launcher.entry.format].block;
    if unit.multiple == 0 {
        return Err(launcher.broken("a unit is empty"));
    }
    let expected =
        m.checked_mul(k).filter(|values| *values > 0).ok_or(Error::TooLarge { what: "activations" })?;
    if x.len() != expected {
        return Err(Error::ShapeMismatch { what: "activations", unit: "values", expected, found: x.len() });
    }
    let layout = RowLayout::new(unit, k, block)?;
    within_blocks(&layout, block)?;
    let gpu = Arc::clone(launcher.gpu());
    let mut scratch = DeviceScratch::new(&gpu);
    let places = scratch.places(&gpu, m, &layout, block, layout.bytes())?;
    let (x, word) = upload(&gpu, &mut scratch, Input::F32(x))?;
    // SAFETY: all `m * k` values were copied to `x` just now; the scratch lives until the wait below.
    unsafe { launcher.rows(x, word, m, &layout, &places) }?;
    gpu.wait(launcher.entry.name)?;
    scratch.finish()?;
    scratch.quantized()
}

/// Refuses units that are no parts of blocks: the kernels go block by block, and no product has others.
pub(super) fn within_blocks(layout: &RowLayout, block: Option<usize>) -> Result<(), Error> {
    match block {
        Some(block) if !block.is_multiple_of(layout.unit) => Err(Error::ShapeMismatch {
            what: "a unit of activations (their block, or a divisor of it)",
            unit: "elements",
            expected: block,
            found: layout.unit,
        }),
        _ => Ok(()),
    }
}

/// CUDA blocks that share the blocks or units of a row of activations: one for each warp's worth, where so few rows leave
/// multiprocessors idle, which hold so many blocks at once.
fn row_shares(runs: usize, threads: u32, m: usize, held: u32) -> u32 {
    let warps = (threads / 32).max(1) as usize;
    let most = (held as usize / m.max(1)).clamp(1, 1024);
    runs.div_ceil(warps).clamp(1, most) as u32
}

/// Copies floats to the scratch; their address and the word of their type.
pub(super) fn upload(
    gpu: &Arc<Gpu>,
    scratch: &mut DeviceScratch,
    input: Input<'_>,
) -> Result<(u64, u32), Error> {
    let (bits, word) = match input {
        Input::F32(x) => {
            let room = room(&mut scratch.x, gpu, x.len())?;
            room.write(x)?;
            return Ok((room.input(), F32));
        }
        Input::F16(x) => (x.reinterpret_cast(), F16),
        Input::Bf16(x) => (x.reinterpret_cast(), BF16),
        Input::I8 { .. } => {
            return Err(Error::WrongInput {
                kernel: "quantize_activations",
                expected: vec![DType::F32, DType::F16, DType::Bf16],
                found: DType::I8,
            });
        }
    };
    let room = room(&mut scratch.halves, gpu, bits.len())?;
    room.write(bits)?;
    Ok((room.input(), word))
}

#[cfg(test)]
mod tests {
    use super::row_shares;

    #[test]
    fn few_rows_are_shared() {
        let shares = |runs, m| row_shares(runs, 256, m, 8 * 132);
        // 2560 values in blocks of 32; rows with one unit; many rows.
        assert_eq!((shares(80, 1), shares(1, 1), shares(80, 512), shares(80, 5000)), (10, 1, 2, 1));
        assert_eq!((shares(usize::MAX, 1), row_shares(3, 0, 0, 0)), (1024, 1));
    }
}
