//! Launches that are captured once and enqueued again as one: what a decode step costs is then the kernels' time, and not
//! that of launching each of them.

use super::device::Gpu;
use crate::error::Error;
use crate::launch::Tally;
use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Kernels on a device with everything that they read and write, to be launched together and as often as wanted.
///
/// It holds the memory of all buffers that its kernels use. A buffer that is dropped meanwhile leaves its memory to
/// the graph; one that still exists is where inputs are written before a launch and results read after it.
///
/// Launches count like any others: each writes the ids of its kernels into receipts and statistics, without times.
pub struct Graph {
    graph: CudaGraph,
    held: Held,
    gpu: Arc<Gpu>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("kernels", &self.held.launches).finish_non_exhaustive()
    }
}

/// What a capture takes along.
#[derive(Debug, Default)]
struct Held {
    memory: Vec<Arc<dyn Any + Send + Sync>>,
    launches: Vec<Tally>,
}

/// A device's capture, if one is under way.
#[derive(Debug, Default)]
pub(super) struct Capture {
    /// Looked at without the lock by every launch.
    under_way: AtomicBool,
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    owner: ThreadId,
    held: Held,
    /// Memory that was given up meanwhile.
    given_up: Vec<Box<dyn Any + Send>>,
}

impl Capture {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        // What is in there is whole whenever the lock is free.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state of a capture, if there is one.
    fn during<R>(&self, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        if !self.under_way.load(Ordering::Acquire) {
            return None;
        }
        self.state().as_mut().map(act)
    }
}

/// Ends a capture, also where what was captured panics.
struct Ends<'g>(&'g Arc<Gpu>);

impl Ends<'_> {
    fn end(self) -> (Result<Option<CudaGraph>, Error>, Option<State>) {
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

fn end(gpu: &Gpu) -> (Result<Option<CudaGraph>, Error>, Option<State>) {
    let graph = gpu.stream().end_capture(CUgraphInstantiate_flags(0));
    // What is freed from now on is freed on the stream.
    let state = gpu.capture.state().take();
    gpu.capture.under_way.store(false, Ordering::Release);
    (gpu.check(None, "capturing a graph", graph), state)
}

impl Gpu {
    /// Captures what `enqueue` enqueues on this device instead of running it.
    ///
    /// All memory must be there already: run the same once before. While it lasts, other threads can't enqueue anything on
    /// this device, and `enqueue` can't allocate memory, copy from or to the processor's memory, or wait.
    ///
    /// # Errors
    /// [`Error::Capturing`] for what can't be captured; those of `enqueue`; [`Error::Gpu`].
    pub fn capture(self: &Arc<Gpu>, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        {
            let mut state = self.capture.state();
            if state.is_some() {
                return Err(self.capturing("captured"));
            }
            let begun = self.stream().begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            self.check(None, "capturing a graph", begun)?;
            let owner = thread::current().id();
            *state = Some(State { owner, held: Held::default(), given_up: Vec::new() });
            self.capture.under_way.store(true, Ordering::Release);
        }
        let ends = Ends(self);
        let enqueued = enqueue();
        let (graph, state) = ends.end();
        enqueued?;
        let (Some(graph), Some(state)) = (graph?, state) else {
            return Err(self.capturing("kept: the driver gave no graph"));
        };
        Ok(Graph { graph, held: state.held, gpu: Arc::clone(self) })
    }

    fn capturing(&self, what: &'static str) -> Error {
        Error::Capturing { index: self.profile().index, what }
    }

    /// Refuses what no graph can hold.
    pub(super) fn outside_capture(&self, what: &'static str) -> Result<(), Error> {
        match self.capture.during(|_| ()) {
            Some(()) => Err(self.capturing(what)),
            None => Ok(()),
        }
    }

    /// Refuses to enqueue into another thread's capture.
    pub(super) fn may_enqueue(&self) -> Result<(), Error> {
        match self.capture.during(|state| state.owner == thread::current().id()) {
            Some(false) => Err(self.capturing("enqueued by another thread")),
            Some(true) | None => Ok(()),
        }
    }

    /// Whether launches go into a graph.
    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.during(|_| ()).is_some()
    }

    /// Takes a launch along that will count whenever the graph is launched.
    pub(crate) fn count_later(&self, launch: Tally) {
        self.capture.during(|state| state.held.launches.push(launch));
    }

    /// Keeps memory that a captured kernel uses.
    pub(super) fn keep_for_graph(&self, memory: impl FnOnce() -> Arc<dyn Any + Send + Sync>) {
        self.capture.during(|state| state.held.memory.push(memory()));
    }

    /// Drops `memory`, in a capture once that has ended.
    pub(super) fn after_capture(&self, memory: impl Any + Send) {
        let mut memory = Some(memory);
        self.capture.during(|state| {
            state.given_up.extend(memory.take().map(|memory| Box::new(memory) as Box<dyn Any + Send>));
        });
    }
}

impl Graph {
    /// Enqueues all kernels, in the order in which they were captured, and does not wait for them.
    ///
    /// # Errors
    /// [`Error::Gpu`]; [`Error::Capturing`] while another graph is captured.
    pub fn launch(&self) -> Result<(), Error> {
        self.gpu.outside_capture("launched as a graph")?;
        self.gpu.check(
            self.held.launches.first().map(Tally::kernel),
            "launching a graph",
            self.graph.launch(),
        )?;
        self.held.launches.iter().for_each(Tally::count);
        Ok(())
    }

    /// Its kernels, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.held.launches.iter().map(Tally::kernel)
    }

    /// Its device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Memory is freed behind what was enqueued; the graph itself must not go while it runs.
        let _ = self.gpu.synchronize();
    }
}
