//! The memory that a run needs besides its operands, made once and reused.

mod size;

pub use size::WorkspaceSize;

use crate::device::Device;
use crate::error::Error;
use crate::memory::aligned::{Aligned, Plain};
use crate::observe::{Cache, looked_up};

/// Scratch memory for runs. One workspace serves one run at a time; it may be shared by all layers of
/// a model if it is made [for all](Workspace::for_all) of them or [`grow`](Workspace::grow)n for the largest, and by layers on several devices: what it has on each
/// stays there until the workspace is dropped.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) q: Aligned<i8>,
    pub(crate) scales: Aligned<f32>,
    pub(crate) sums: Aligned<i32>,
    pub(crate) rows: Aligned<f32>,
    pub(crate) outputs: Aligned<f32>,
    pub(crate) indices: Aligned<u32>,
    /// What runs on GPUs need there; made by the first of them.
    pub(crate) gpu: Option<Box<crate::cuda::Scratch>>,
}

impl Default for Workspace {
    fn default() -> Workspace {
        Workspace::new()
    }
}

impl Workspace {
    /// An empty workspace; allocates nothing.
    pub const fn new() -> Workspace {
        Workspace {
            q: Aligned::empty(),
            scales: Aligned::empty(),
            sums: Aligned::empty(),
            rows: Aligned::empty(),
            outputs: Aligned::empty(),
            indices: Aligned::empty(),
            gpu: None,
        }
    }

    /// A workspace of a given size.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`].
    pub fn of_size(size: WorkspaceSize) -> Result<Workspace, Error> {
        let mut workspace = Workspace::new();
        workspace.grow(size)?;
        Ok(workspace)
    }

    /// Makes it at least as large as `size`. What it held is lost.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`]; then it may be smaller than it was.
    pub fn grow(&mut self, size: WorkspaceSize) -> Result<(), Error> {
        if self.lacks(size).is_none() {
            return Ok(());
        }
        looked_up(Cache::Workspace, Device::CPU, false);
        at_least(&mut self.q, size.q)?;
        at_least(&mut self.scales, size.scales)?;
        at_least(&mut self.sums, size.sums)?;
        at_least(&mut self.rows, size.rows)?;
        at_least(&mut self.outputs, size.outputs)?;
        at_least(&mut self.indices, size.indices)
    }

    /// Waits for the runs on GPUs that were enqueued with this workspace since the last time, and for those of graphs that
    /// were captured with it. Where several were stopped, one of them is reported; the next call is about what is enqueued
    /// from now on. A workspace that gave memory back, since a product needed it, still reports what its graphs find.
    ///
    /// # Errors
    /// [`Error::NonFinite`] of one of them, with the token and the column; [`Error::Gpu`]; [`Error::Capturing`] while a graph
    /// is captured, and then what was found is kept for the next call.
    #[cfg(feature = "cuda")]
    pub fn finish(&mut self) -> Result<(), Error> {
        match &mut self.gpu {
            Some(scratch) => scratch.finish(),
            None => Ok(()),
        }
    }

    /// Gives up what it has on GPUs that were lost: waiting for them would give their errors for ever.
    #[cfg(feature = "cuda")]
    pub(crate) fn forget(&mut self, lost: impl Fn(u32) -> bool) {
        if let Some(scratch) = &mut self.gpu {
            scratch.forget(|gpu| lost(gpu.profile().index));
        }
    }

    /// Bytes held on GPUs.
    #[cfg(feature = "cuda")]
    pub fn device_bytes(&self) -> usize {
        self.gpu.as_ref().map_or(0, |scratch| scratch.bytes())
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let rows = self.q.bytes() + self.scales.bytes() + self.sums.bytes() + self.rows.bytes();
        rows + self.outputs.bytes() + self.indices.bytes()
    }

    /// Refuses if some part is smaller than `size`.
    pub(crate) fn check(&self, size: WorkspaceSize) -> Result<(), Error> {
        if let Some((what, needed, found)) = self.lacks(size) {
            return Err(Error::WorkspaceTooSmall { what, needed, found });
        }
        looked_up(Cache::Workspace, Device::CPU, true);
        Ok(())
    }

    /// The first part that is smaller than `size`, with what is needed and what is there.
    fn lacks(&self, size: WorkspaceSize) -> Option<(&'static str, usize, usize)> {
        let parts = [
            ("int8 activations", size.q, self.q.len()),
            ("activation scales", size.scales, self.scales.len()),
            ("activation sums", size.sums, self.sums.len()),
            ("f32 rows", size.rows, self.rows.len()),
            ("results of experts", size.outputs, self.outputs.len()),
            ("the order of experts", size.indices, self.indices.len()),
        ];
        parts.into_iter().find(|(_, needed, found)| found < needed)
    }
}

/// Makes a part at least so large; what was there is given back before.
fn at_least<T: Plain>(part: &mut Aligned<T>, len: usize) -> Result<(), Error> {
    if part.len() < len {
        *part = Aligned::empty();
        *part = Aligned::zeroed(len)?;
    }
    Ok(())
}

/// A workspace and its f32 rows, which a run reads beside the rest of it. They are back there when this is dropped, also by a
/// panic: a guarded layer runs again with the workspace that it was given.
pub(crate) struct LentRows<'w> {
    pub workspace: &'w mut Workspace,
    pub rows: Aligned<f32>,
}

impl LentRows<'_> {
    pub fn of(workspace: &mut Workspace) -> LentRows<'_> {
        let rows = std::mem::replace(&mut workspace.rows, Aligned::empty());
        LentRows { workspace, rows }
    }
}

impl Drop for LentRows<'_> {
    fn drop(&mut self) {
        std::mem::swap(&mut self.workspace.rows, &mut self.rows);
    }
}
