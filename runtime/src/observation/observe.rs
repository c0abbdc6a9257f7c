//! An observer of launches: what a program that watches its kernels is told by each of them, and of the memory around them.
//!
//! There is none at first, and a launch, a copy or an allocation then reads one flag more. `gristmill-ops` has an observer that keeps histograms.

mod memory;

pub use memory::{Allocation, Cache, HeldMemory, Lookup, Transfer, TransferKind};

use crate::device::Device;
use crate::error::Error;
use crate::parallel::thread_use::ThreadUse;
use crate::receipt::FallbackNote;
use crate::recovery::Recovery;
use crate::registry::{Entry, Registry};
use crate::request::Shape;
use gristmill_spec::vocab::Op;
use std::cell::{Cell, RefCell};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// What launches do besides, in bits: [`OBSERVING`], [`MARKING`]. One number, so that they read one where nothing is asked for.
static ASKED: AtomicU8 = AtomicU8::new(0);
/// The observer is told.
const OBSERVING: u8 = 1;
/// First runs of kernels are marked.
const MARKING: u8 = 2;
static OBSERVER: OnceLock<Told> = OnceLock::new();

/// Is told of launches by the threads that launch, so it should neither wait nor allocate. Guarded and divided layers are locked while they
/// run, so it can ask them for nothing but in [`recovered`](Observer::recovered). A panic of its own goes on to whoever launched, and is not
/// blamed on a kernel.
pub trait Observer: Send + Sync {
    /// Whether the time of a launch that begins now on a device is wanted. On the processor two readings of the clock are taken for it; on a GPU two
    /// events, whose time is [told](Observer::timed) by a later launch there. Launches in a graph have no times.
    fn wants_time(&self, registry: &'static Registry, index: usize, shape: Shape, device: Device) -> bool;

    /// Whether the use of threads is wanted of the launches whose time is: two readings of the clock more for each part of a job, and an
    /// allocation for each job. Not, unless an observer says so.
    fn wants_threads(&self) -> bool {
        false
    }

    /// Whether the time of a [`Batch`](crate::Batch) of so many products that begins now is wanted, and with
    /// [`wants_threads`](Observer::wants_threads) how its threads are used. Not, unless an observer says so.
    fn wants_batch(&self, products: usize) -> bool {
        let _ = products;
        false
    }

    /// A batch has ended; its launches were told before.
    fn ran_batch(&self, batch: &RanBatch) {
        let _ = batch;
    }

    /// A launch has ended, on a GPU has been enqueued. Launches in a graph come each time that the graph is launched.
    fn launched(&self, launch: &Launch);

    /// The time of a launch on a GPU that was told to [`launched`](Observer::launched) before: it ended meanwhile. Called by whoever launches
    /// next on that device.
    fn timed(&self, launch: &Launch) {
        let _ = launch;
    }

    /// A layer did something else than it was asked for, as its policy allows.
    fn fell_back(&self, fallback: FellBack<'_>);

    /// A guarded layer ([`GuardedLinear`](crate::GuardedLinear)) did something because a kernel or a GPU failed, a `DividedLinear` or `ReplicatedLinear` because
    /// one was lost, any layer because a GPU had no memory for all tokens or because a kernel was in quarantine when it was made.
    /// Told when the layer is not locked any more: it may be asked for its device, its parts and what it holds here.
    fn recovered(&self, recovery: &Recovery) {
        let _ = recovery;
    }

    /// Whether the time of a copy that begins now is wanted: two events are taken for it. Copies in a graph have no times. Not, unless an
    /// observer says so.
    fn wants_transfer_time(&self, transfer: &Transfer) -> bool {
        let _ = transfer;
        false
    }

    /// The driver has taken a copy of a device's memory. Copies in a graph come each time that the graph is launched; those that an engine
    /// captures itself once.
    fn transferred(&self, transfer: &Transfer) {
        let _ = transfer;
    }

    /// The time of a copy that was told to [`transferred`](Observer::transferred) before, once it is known. Nobody waits for it: where the
    /// copy is not waited for anyway, whoever launches next on that device, or copies within it, tells it.
    fn transfer_timed(&self, transfer: &Transfer) {
        let _ = transfer;
    }

    /// Memory of a device was allocated.
    fn allocated(&self, allocation: &Allocation) {
        let _ = allocation;
    }

    /// Something that is kept was looked for.
    fn looked_up(&self, lookup: Lookup) {
        let _ = lookup;
    }
}

/// A launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Whose kernel it is.
    pub registry: &'static Registry,
    /// The kernel's index in the registry.
    pub index: usize,
    /// The kernel.
    pub entry: &'static Entry,
    /// Where it ran.
    pub device: Device,
    /// What it computed. Jobs without activations have `m = 1`, jobs without weights `n = 1`; of experts `m` are the tokens of all.
    pub shape: Shape,
    /// Bytes that it had to read, each operand once.
    pub bytes_in: usize,
    /// Bytes that it wrote.
    pub bytes_out: usize,
    /// Wall time, where it was taken; on a GPU the device's, which is told later.
    pub time: Option<Duration>,
    /// How its threads were used, where that was wanted. Products that were launched together in a [`Batch`](crate::Batch) have none: it is the
    /// batch's ([`RanBatch`]).
    pub threads: Option<ThreadUse>,
    /// Whether it ended in a fault of its input: a number that is not finite, an invalid code, a scale that overflows. `None` on a
    /// GPU, where that is known only later.
    pub fault: Option<bool>,
}

/// Products that ran as one job.
#[derive(Clone, Copy, Debug)]
pub struct RanBatch {
    /// How many, of those that had something to compute.
    pub products: usize,
    /// Wall time, where it was taken.
    pub time: Option<Duration>,
    /// How its threads were used, where that was wanted.
    pub threads: Option<ThreadUse>,
}

/// A fallback, each time that it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FellBack<'a> {
    /// The policy that allowed it.
    pub policy: &'static str,
    /// What was asked for.
    pub op: Op,
    /// The format.
    pub format: &'a str,
    /// The device that was asked for.
    pub device: Device,
    /// Why there was no kernel.
    pub reason: &'a str,
    /// What ran in its place.
    pub instead: &'static str,
}

/// Gives the program its observer and turns it on. A program has one, for good.
///
/// # Errors
/// [`Error::SecondObserver`] where there is one already.
pub fn observe(observer: &'static dyn Observer) -> Result<(), Error> {
    OBSERVER.set(Told(observer)).map_err(|_| Error::SecondObserver)?;
    set_observing(true);
    Ok(())
}

/// Turns the observer, if there is one, on or off. Launches that are under way may still be told to it.
pub fn set_observing(on: bool) {
    match on {
        true => ASKED.fetch_or(OBSERVING, Ordering::Relaxed),
        false => ASKED.fetch_and(!OBSERVING, Ordering::Relaxed),
    };
}

/// Lets first runs of kernels be marked from now on.
pub(crate) fn set_marking() {
    ASKED.fetch_or(MARKING, Ordering::Relaxed);
}

/// What is asked of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Asked(u8);

/// What is asked of a launch that begins now.
#[inline]
pub(crate) fn asked() -> Asked {
    Asked(ASKED.load(Ordering::Relaxed))
}

impl Asked {
    /// The observer, if it is on.
    #[inline]
    pub(crate) fn observer(self) -> Option<&'static dyn Observer> {
        if self.0 & OBSERVING != 0 { OBSERVER.get().map(|told| told as &dyn Observer) } else { None }
    }

    /// Whether first runs are marked.
    #[inline]
    pub(crate) fn marks(self) -> bool {
        self.0 & MARKING != 0
    }
}

/// The observer, if it is on.
#[inline]
pub(crate) fn observer() -> Option<&'static dyn Observer> {
    asked().observer()
}

/// Counts one run of a fallback.
pub(crate) fn fell_back(note: &FallbackNote) {
    note.runs.fetch_add(1, Ordering::Relaxed);
    if let Some(observer) = observer() {
        let FallbackNote { policy, op, format, device, reason, instead, .. } = note;
        observer.fell_back(FellBack { policy, op: *op, format, device: *device, reason, instead });
    }
}

/// Tells of a step of recovery, as soon as the layer is not [`Locked`].
pub(crate) fn recovered(recovery: &Recovery) {
    if let Some(observer) = observer() {
        now_or_later(observer, recovery);
    }
}

/// Tells whether something that is kept was there.
#[inline]
pub(crate) fn looked_up(cache: Cache, device: Device, hit: bool) {
    if let Some(observer) = observer() {
        observer.looked_up(Lookup { cache, device, hit });
    }
}

// What stands between launches and the observer: whose a panic is, and what is told when no layer is locked.

thread_local! {
    /// A panic of the observer has begun on this thread in what is caught.
    static PANICKED: Cell<bool> = const { Cell::new(false) };
    /// Layers that this thread has locked.
    static LOCKS: Cell<usize> = const { Cell::new(0) };
    /// Steps of recovery that wait until it has let go of them.
    static WAITING: RefCell<Vec<Recovery>> = const { RefCell::new(Vec::new()) };
}

/// The program's observer. Its panics are marked: those that are caught around a kernel are the kernel's otherwise.
struct Told(&'static dyn Observer);

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

/// What `run` gives, or the panic that ended it. A panic of the observer is none of `run`'s, and goes on.
pub(crate) fn catching<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    PANICKED.set(false);
    let ran = catch_unwind(AssertUnwindSafe(run));
    match ran {
        Err(payload) if PANICKED.get() => resume_unwind(payload),
        ran => ran,
    }
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
            if let Some(observer) = observer() {
                observer.recovered(&recovery);
            }
        }
    }
}

/// Tells of a step of recovery, now or when this thread has let go of its layers.
fn now_or_later(observer: &'static dyn Observer, recovery: &Recovery) {
    if LOCKS.get() == 0 {
        observer.recovered(recovery);
    } else {
        WAITING.with_borrow_mut(|waiting| waiting.push(recovery.clone()));
    }
}

/// What this process holds of each device's memory through gristmill, by device; nothing without the feature `cuda`. No driver is
/// asked, and nothing is waited for.
pub fn held_memory() -> Vec<HeldMemory> {
    crate::cuda::held_memory()
}

/// What a launch on the processor ends with.
pub(crate) trait Ending {
    /// Whether it is a fault.
    fn is_fault(&self) -> bool;
}

impl Ending for () {
    fn is_fault(&self) -> bool {
        false
    }
}

impl<T, E> Ending for Result<T, E> {
    fn is_fault(&self) -> bool {
        self.is_err()
    }
}
