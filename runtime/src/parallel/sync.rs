//! What the pool is built of: atomics, threads, and a cell that several threads share.
//!
//! `runtime/model` compiles `pool.rs` over a module with these names of the model checker loom, which tries the
//! orders in which threads can run and in which they can see each other's writes.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::mpsc::channel;
pub(crate) use std::thread::{Builder, JoinHandle, Thread, park, yield_now};

/// Looks for a job, or for the end of one, before the processor is offered to other threads in between.
pub(crate) const SPINS: u32 = 256;

/// Sleeping threads that one thread wakes.
pub(crate) const WAKES: usize = 2;

/// A value that several threads share, whose owner sees to it that nobody reads while somebody writes.
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Cell<T> {
        Cell(std::cell::UnsafeCell::new(value))
    }

    /// For reading, while nobody writes.
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// For writing, while nobody else reads or writes.
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
