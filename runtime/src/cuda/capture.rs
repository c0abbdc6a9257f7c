//! A device's capture: who makes a graph, and what that takes along.

use crate::observe::Transfer;
use crate::run::launch::Tally;
use cudarc::driver::CudaGraph;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::thread::ThreadId;

/// What a capture takes along.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) memory: Vec<Arc<dyn Any + Send + Sync>>,
    pub(super) launches: Vec<Tally>,
    pub(super) transfers: Vec<Transfer>,
}

/// A device's capture, if one is under way.
#[derive(Debug, Default)]
pub(super) struct Capture {
    /// Set while a capture is under way. Who captures has set it itself, so that for all others a look will do.
    pub(super) under_way: AtomicBool,
    /// Locked while something is enqueued: `stream.rs`.
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) owner: ThreadId,
    pub(super) held: Held,
    /// Addresses of memory that was given up meanwhile.
    pub(super) given_up: Vec<u64>,
    /// Graphs that were dropped meanwhile.
    pub(super) dropped: Vec<Dropped>,
}

/// The driver's graph, and what it uses for as long as it is there.
pub(super) struct Captured {
    pub(super) graph: CudaGraph,
    pub(super) held: Held,
}

/// A graph that nobody launches any more.
pub(super) struct Dropped(pub(super) Captured);

// SAFETY: a graph may be used by one thread at a time, and this one is only destroyed, by whoever ends the capture.
unsafe impl Send for Dropped {}

impl std::fmt::Debug for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dropped").field(&self.0.held).finish()
    }
}

impl Capture {
    pub(super) fn state(&self) -> MutexGuard<'_, Option<State>> {
        // What is in there is whole whenever the lock is free.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state of this thread's capture, if it has one.
    pub(super) fn of_this_thread<R>(&self, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        if !self.under_way.load(Ordering::Relaxed) {
            return None;
        }
        self.state().as_mut().filter(|state| state.owner == thread::current().id()).map(act)
    }
}
