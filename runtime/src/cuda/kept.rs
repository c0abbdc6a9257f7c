//! What was dropped while an engine captured its stream. Freeing would become a part of the engine's graph, or end its capture, so it is
//! kept for the whole process until somebody comes by behind that: the last handle of the device may have gone with it.

use super::capture::Dropped;
use super::device::Gpu;
use std::mem::take;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory or a graph, with the device that it is of.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) gpu: Arc<Gpu>,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// The address of memory.
    Memory(u64),
    Graph(Dropped),
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// How many there are, so that all who come by look without a lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn kept() -> MutexGuard<'static, Vec<Kept>> {
    // The list is whole whenever the lock is free.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps it.
pub(super) fn keep(gpu: &Arc<Gpu>, what: What) {
    let mut kept = kept();
    kept.push(Kept { gpu: Arc::clone(gpu), what });
    COUNT.store(kept.len(), Ordering::Relaxed);
}

/// Gives back to devices what was dropped while engines captured their streams, those of it whose streams are not captured any more: how
/// many buffers and graphs are left. Opening a device, allocating on one and waiting for one do the same, so that only an engine calls this
/// that is about to destroy a stream ([`Gpu::of_engine`]).
pub fn give_back() -> usize {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // Without the lock, since what is given back may hold more that goes with it.
    let waiting = {
        let mut kept = kept();
        COUNT.store(0, Ordering::Relaxed);
        take(&mut *kept)
    };
    for Kept { gpu, what } in waiting {
        match what {
            What::Memory(address) => gpu.free(address),
            What::Graph(dropped) => dropped.destroy(&gpu),
        }
    }
    kept().len()
}
