//! What stands between launches and the observer: whose a panic is, and what is told when no layer is locked.

use super::{Allocation, FellBack, Launch, Lookup, Observer, RanBatch, Transfer};
use crate::device::Device;
use crate::recovery::Recovery;
use crate::registry::Registry;
use crate::request::Shape;
use std::cell::{Cell, RefCell};
use std::mem;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// A panic of the observer has begun on this thread since this was last asked.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
    /// Layers that this thread has locked.
    static LOCKS: Cell<usize> = const { Cell::new(0) };
    /// Steps of recovery that wait until it has let go of them.
    static WAITING: RefCell<Vec<Recovery>> = const { RefCell::new(Vec::new()) };
}

/// The program's observer. Its panics are marked: those that are caught around a kernel are the kernel's otherwise.
pub(super) struct Told(pub(super) &'static dyn Observer);

/// Marks the panic that drops it.
struct Unwinds;

impl Drop for Unwinds {
    fn drop(&mut self) {
        PANICKED.set(true);
    }
}

impl Told {
    fn tell<T>(&self, what: impl FnOnce(&'static dyn Observer) -> T) -> T {
        let unwinds = Unwinds;
        let answer = what(self.0);
        mem::forget(unwinds);
        answer
    }
}

impl Observer for Told {
    fn wants_time(&self, registry: &'static Registry, index: usize, shape: Shape, device: Device) -> bool {
        self.tell(|observer| observer.wants_time(registry, index, shape, device))
    }

    fn wants_threads(&self) -> bool {
        self.tell(|observer| observer.wants_threads())
    }

    fn wants_batch(&self, products: usize) -> bool {
        self.tell(|observer| observer.wants_batch(products))
    }

    fn ran_batch(&self, batch: &RanBatch) {
        self.tell(|observer| observer.ran_batch(batch));
    }

    fn launched(&self, launch: &Launch) {
        self.tell(|observer| observer.launched(launch));
    }

    fn timed(&self, launch: &Launch) {
        self.tell(|observer| observer.timed(launch));
    }

    fn fell_back(&self, fallback: FellBack<'_>) {
        self.tell(|observer| observer.fell_back(fallback));
    }

    fn recovered(&self, recovery: &Recovery) {
        self.tell(|observer| observer.recovered(recovery));
    }

    fn wants_transfer_time(&self, transfer: &Transfer) -> bool {
        self.tell(|observer| observer.wants_transfer_time(transfer))
    }

    fn transferred(&self, transfer: &Transfer) {
        self.tell(|observer| observer.transferred(transfer));
    }

    fn transfer_timed(&self, transfer: &Transfer) {
        self.tell(|observer| observer.transfer_timed(transfer));
    }

    fn allocated(&self, allocation: &Allocation) {
        self.tell(|observer| observer.allocated(allocation));
    }

    fn looked_up(&self, lookup: Lookup) {
        self.tell(|observer| observer.looked_up(lookup));
    }
}

/// Whether a panic that was caught on this thread was the observer's. Asked before what may panic, it forgets those of before.
pub(crate) fn panicked() -> bool {
    PANICKED.replace(false)
}

/// The lock of a layer. While a thread holds one, steps of recovery wait, and when it has let go of the last they are told: the observer may
/// ask the layer for what it is by then.
#[derive(Debug)]
pub(crate) struct Locked<G> {
    // Dropped first.
    guard: G,
    _later: Later,
}

impl<G> Locked<G> {
    /// What `lock` gives.
    pub(crate) fn by(lock: impl FnOnce() -> G) -> Locked<G> {
        let later = Later::new();
        Locked { guard: lock(), _later: later }
    }
}

impl<G: Deref> Deref for Locked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Locked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// One of the locks that this thread holds.
#[derive(Debug)]
struct Later(());

impl Later {
    fn new() -> Later {
        LOCKS.set(LOCKS.get() + 1);
        Later(())
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        LOCKS.set(LOCKS.get() - 1);
        // What an observer does in a panic that goes on would end the program.
        if LOCKS.get() > 0 || std::thread::panicking() {
            return;
        }
        for recovery in WAITING.take() {
            if let Some(observer) = super::observer() {
                observer.recovered(&recovery);
            }
        }
    }
}

/// Tells of a step of recovery, now or when this thread has let go of its layers.
pub(super) fn now_or_later(observer: &'static dyn Observer, recovery: &Recovery) {
    if LOCKS.get() == 0 {
        observer.recovered(recovery);
    } else {
        WAITING.with_borrow_mut(|waiting| waiting.push(recovery.clone()));
    }
}
