//! `runtime/src/parallel/sync.rs` over loom.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use loom::sync::mpsc::channel;
pub(crate) use loom::thread::{Builder, JoinHandle, Thread, park, yield_now};

/// One look, then another thread's turn: each look is a branch of the model.
pub(crate) const SPINS: u32 = 1;

/// Each wakes one, so that already the second worker of a pool is woken by the first.
pub(crate) const WAKES: usize = 1;

/// Loom notices if one thread reads while another writes, or reads what it can't be sure to see.
pub(crate) struct Cell<T>(loom::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Cell<T> {
        Cell(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        self.0.with(read)
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(write)
    }
}
