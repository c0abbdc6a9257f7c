//! Who has which rows at the moment, and who was lost.

use crate::cuda::Gpu;
use crate::device::Device;
use crate::error::Error;
use crate::gpu::NoGpu;
use crate::linear::Linear;
use crate::receipt::{PartNote, Recording};
use crate::registry::Entry;
use crate::threads::Threads;
use crate::workspace::WorkspaceSize;
use gristmill_spec::vocab::Op;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) parts: Vec<Part>,
    /// Rows that no device has: those of a device that was lost while others could not take them.
    pub(super) homeless: Vec<Range<usize>>,
    pub(super) lost: Vec<LostGpu>,
    pub(super) recording: Option<Recording>,
}

/// Some rows on a device.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    pub(super) linear: Linear,
    /// `None` for the processor.
    pub(super) gpu: Option<Arc<Gpu>>,
    pub(super) note: Arc<PartNote>,
}

/// A part of a divided layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DividedPart {
    /// Rows of the weights, which are columns of the output.
    pub rows: Range<usize>,
    /// The device that has them.
    pub device: Device,
    /// Bytes of weights there.
    pub weight_bytes: usize,
}

/// A device that a divided layer had rows on, and which was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostGpu {
    /// Which: the N of `cuda:N`.
    pub index: u32,
    /// What was seen.
    pub why: String,
}

/// A device that may have rows.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) device: Device,
    pub(super) share: f64,
    /// Rows of a panel of its packing: fewer would be padded.
    pub(super) granule: usize,
}

/// A device that was lost, with what it had.
pub(super) struct Loss {
    pub(super) lost: LostGpu,
    pub(super) rows: Vec<Range<usize>>,
    /// A kernel that it ran; none where it was lost before it had one.
    pub(super) kernel: Option<&'static Entry>,
}

/// The GPU that an error says nothing can be expected of any more.
pub(super) fn lost_gpu(error: &Error) -> Option<u32> {
    match error {
        Error::Gpu(failure) if failure.is_lost() => Some(failure.device.index),
        Error::NoGpu { index, why: NoGpu::Lost { .. } } => Some(*index),
        _ => None,
    }
}

impl State {
    pub(super) fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        let mut size = WorkspaceSize::default();
        for part in &self.parts {
            size = size.max(part.linear.workspace_size(m, threads)?);
        }
        Ok(size)
    }

    /// Whether a GPU has rows.
    pub(super) fn has(&self, index: u32) -> bool {
        self.parts.iter().any(|part| part.is_on(index))
    }
}

impl Part {
    pub(super) fn is_on(&self, index: u32) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.profile().index == index)
    }

    pub(super) fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        self.linear.record(recording)?;
        if let Some(recording) = recording {
            recording.ledger.attach_part(&self.note);
        }
        Ok(())
    }
}
impl State {
    pub(super) fn is_lost(&self, device: Device) -> bool {
        self.lost.iter().any(|lost| Device::cuda(lost.index) == device)
    }

    /// Takes its rows from a device.
    pub(super) fn lose(&mut self, lost: LostGpu) -> Loss {
        let (gone, left) = self.parts.drain(..).partition::<Vec<_>, _>(|part| part.is_on(lost.index));
        self.parts = left;
        self.lost.push(lost.clone());
        let rows: Vec<_> = gone.iter().map(|part| part.rows.clone()).collect();
        self.homeless.extend(rows.iter().cloned());
        Loss { lost, rows, kernel: gone.iter().find_map(Part::product) }
    }
}

/// What there is to say where no device is left.
pub(super) fn nobody(lost: &[LostGpu]) -> Error {
    match lost.last() {
        Some(LostGpu { index, why }) => {
            Error::NoGpu { index: *index, why: NoGpu::Lost { error: why.clone() } }
        }
        None => Error::Division { why: String::from("there is no device") },
    }
}

/// Lets launches of all parts count in `recording`, in the place of the one that is `kept`.
pub(super) fn record<'p>(
    parts: impl Iterator<Item = &'p mut Part>,
    kept: &mut Option<Recording>,
    recording: Option<&Recording>,
) -> Result<(), Error> {
    let goes_on =
        matches!((&*kept, recording), (Some(one), Some(other)) if Arc::ptr_eq(&one.ledger, &other.ledger));
    for part in parts {
        if !goes_on {
            // The recording of before has the note of before, in which nobody counts any more.
            part.note = Arc::new(part.note.anew());
        }
        part.record(recording)?;
    }
    *kept = recording.cloned();
    Ok(())
}

impl Part {
    /// A kernel that multiplies here.
    pub(super) fn product(&self) -> Option<&'static Entry> {
        self.linear.kernels().find(|kernel| kernel.op == Op::Matmul)
    }
}
