//! Launches that are captured once and enqueued again as one: what a decode step costs is then the kernels' time, and not
//! that of launching each of them.

use super::capture::{Captured, Dropped, Held, State};
use super::context::Found;
use super::device::Gpu;
use super::kept::{self, What};
use crate::device::Device;
use crate::error::Error;
use crate::observe::{Cache, Transfer, looked_up, observer};
use crate::run::launch::Tally;
use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use std::any::Any;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

/// Kernels on a device with everything that they read and write, to be launched together and as often as wanted.
///
/// It holds the memory of all buffers that its kernels use. A buffer that is dropped meanwhile leaves its memory to
/// the graph; one that still exists is where inputs are written before a launch and results read after it.
///
/// Launches count like any others: each writes the ids of its kernels into receipts and statistics, without times.
pub struct Graph {
    captured: ManuallyDrop<Captured>,
    gpu: Arc<Gpu>,
    launched: Cell<bool>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("kernels", &self.captured.held.launches).finish_non_exhaustive()
    }
}

/// Ends a capture, also where what was captured panics.
struct Ends<'g>(&'g Arc<Gpu>);

impl Ends<'_> {
    fn end(self) -> (Result<Option<CudaGraph>, Error>, Held) {
        let ended = end(self.0);
        std::mem::forget(self);
        ended
    }
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let _ = end(self.0);
    }
}

fn end(gpu: &Arc<Gpu>) -> (Result<Option<CudaGraph>, Error>, Held) {
    let _found = Found::now();
    let mut locked = gpu.capture.state();
    let graph = gpu.stream().end_capture(CUgraphInstantiate_flags(0));
    let state = locked.take();
    gpu.capture.under_way.store(false, Ordering::Relaxed);
    drop(locked);
    let held = state.map_or_else(Held::default, |State { held, given_up, dropped, .. }| {
        given_up.into_iter().for_each(|address| gpu.free(address));
        dropped.into_iter().for_each(|dropped| dropped.destroy(gpu));
        held
    });
    (gpu.check(None, "capturing a graph", graph), held)
}

impl Dropped {
    /// Destroys it when it does not run any more, and not in a capture.
    pub(super) fn destroy(self, gpu: &Arc<Gpu>) {
        loop {
            // An error besides that of a capture means that the device is lost, and nothing runs.
            let waited = gpu.synchronize();
            match &mut *gpu.capture.state() {
                Some(state) => return state.dropped.push(self),
                // An engine's capture ends when the engine ends it, which may be this thread.
                None if gpu.engine_captures().unwrap_or(false) => {
                    return kept::keep(gpu, What::Graph(self));
                }
                // The capture that was in the way has ended.
                None if matches!(waited, Err(Error::Capturing { .. })) => {}
                None => break,
            }
        }
        // Without the lock, which freeing the memory that goes with it takes.
        drop(self);
    }
}

impl Gpu {
    /// Captures what `enqueue` enqueues on this device instead of running it.
    ///
    /// All memory must be there already: run the same once before. While it lasts, other threads can't enqueue anything on
    /// this device, nor wait for it: they get [`Error::Capturing`]. What another thread has begun to enqueue is on the
    /// stream before the capture begins. `enqueue` can't allocate memory, copy from or to the processor's memory, or wait.
    /// Memory and graphs that are dropped meanwhile, by any thread, are given back when it ends.
    ///
    /// # Errors
    /// [`Error::Capturing`] for what can't be captured; those of `enqueue`; [`Error::Gpu`].
    pub fn capture(self: &Arc<Gpu>, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        {
            let mut state = self.capture.state();
            if state.is_some() {
                return Err(self.capturing("captured"));
            }
            let _found = Found::now();
            let begun = self.stream().begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            self.check(None, "capturing a graph", begun)?;
            let owner = thread::current().id();
            let (held, given_up, dropped) = (Held::default(), Vec::new(), Vec::new());
            *state = Some(State { owner, held, given_up, dropped });
            self.capture.under_way.store(true, Ordering::Relaxed);
        }
        let ends = Ends(self);
        let enqueued = enqueue();
        let (graph, held) = ends.end();
        enqueued?;
        let Some(graph) = graph? else {
            return Err(self.capturing("kept: the driver gave no graph"));
        };
        looked_up(Cache::Graph, Device::cuda(self.profile().index), false);
        let captured = ManuallyDrop::new(Captured { graph, held });
        Ok(Graph { captured, gpu: Arc::clone(self), launched: Cell::new(false) })
    }

    pub(super) fn capturing(&self, what: &'static str) -> Error {
        Error::Capturing { index: self.profile().index, what }
    }

    /// Whether this thread's launches go into a graph.
    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.of_this_thread(|_| ()).is_some()
    }

    /// Takes a launch of this thread along that will count whenever the graph is launched.
    pub(crate) fn count_later(&self, launch: Tally) {
        self.capture.of_this_thread(|state| state.held.launches.push(launch));
    }

    /// Takes a copy of this thread along that will count whenever the graph is launched.
    pub(super) fn copy_later(&self, transfer: Transfer) {
        self.capture.of_this_thread(|state| state.held.transfers.push(transfer));
    }

    /// Keeps memory that a kernel of this thread's capture uses.
    pub(super) fn keep_for_graph(&self, memory: impl FnOnce() -> Arc<dyn Any + Send + Sync>) {
        self.capture.of_this_thread(|state| state.held.memory.push(memory()));
    }

    /// Frees memory behind what was enqueued; in a capture, whoever's it is, once that has ended, since freeing would become
    /// a part of the graph.
    pub(super) fn free(self: &Arc<Gpu>, address: u64) {
        let mut state = self.capture.state();
        match &mut *state {
            Some(state) => state.given_up.push(address),
            // Freeing would become a part of the engine's graph, or end its capture.
            None if self.engine_captures().unwrap_or(false) => kept::keep(self, What::Memory(address)),
            None => self.free_now(address),
        }
    }
}

impl Graph {
    /// Enqueues all kernels, in the order in which they were captured, and does not wait for them.
    ///
    /// # Errors
    /// [`Error::Gpu`]; [`Error::Capturing`] while another graph is captured.
    pub fn launch(&self) -> Result<(), Error> {
        let Captured { graph, held } = &*self.captured;
        let launched = self.gpu.outside_capture("launched as a graph", |_| graph.launch())?;
        self.gpu.check(held.launches.first().map(Tally::kernel), "launching a graph", launched)?;
        held.launches.iter().for_each(Tally::count);
        if let Some(observer) = observer() {
            held.transfers.iter().for_each(|transfer| observer.transferred(transfer));
        }
        // The first launch of a graph is what it was captured for.
        if self.launched.replace(true) {
            looked_up(Cache::Graph, Device::cuda(self.gpu.profile().index), true);
        }
        Ok(())
    }

    /// Its kernels, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.captured.held.launches.iter().map(Tally::kernel)
    }

    /// Its device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        let captured = unsafe { ManuallyDrop::take(&mut self.captured) };
        Dropped(captured).destroy(&self.gpu);
    }
}
