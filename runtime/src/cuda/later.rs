//! Times by a device's clock that nobody waits for: of events in front of what is enqueued and behind it, which later launches look at.

use super::context::{Found, Restoring, relaxed};
use super::device::Gpu;
use super::waiting::Waiting;
use crate::error::Error;
use cudarc::driver::sys::{CUevent_flags, CUresult};
use cudarc::driver::{CudaEvent, result};
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

/// Times that are waiting at most; beyond that none is taken.
const MOST: usize = 64;

impl Gpu {
    /// Whether times can be taken of what this thread enqueues: not of what goes into a graph.
    pub(crate) fn takes_times(&self) -> bool {
        !self.is_capturing() && !self.engine_captures().unwrap_or(true)
    }

    /// Enqueues, and gives `tell` how long the device took for it, by its own clock, when a later launch finds that it is done. Does not wait.
    /// Where no time can be had `tell` is dropped.
    ///
    /// # Errors
    /// Those of `enqueue`.
    pub(crate) fn time_later<R>(
        &self,
        enqueue: impl FnOnce() -> Result<R, Error>,
        tell: impl FnOnce(Duration) + Send + 'static,
    ) -> Result<R, Error> {
        let room = self.later.count.load(Ordering::Relaxed) < MOST;
        // An error of an event is one that what is enqueued will meet too, or of no interest.
        let begin = if room { self.timing_event().ok() } else { None };
        let done = enqueue()?;
        if let Some((begin, end)) = begin.and_then(|begin| Some((begin, self.timing_event().ok()?))) {
            let mut waiting = self.later.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push_back(Waiting { begin, end, tell: Box::new(tell) });
            self.later.count.store(waiting.len(), Ordering::Relaxed);
        }
        Ok(done)
    }

    /// An event behind everything that is enqueued by now, which knows its time.
    pub(super) fn timing_event(&self) -> Result<Restoring<CudaEvent>, Error> {
        let _found = Found::now();
        let event = self.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let event = Restoring::new(self.check(None, "making an event", event)?);
        let recorded = self.outside_capture("timed", |stream| {
            // SAFETY: the event and the stream are of the context that is current.
            unsafe { result::event::record(event.cu_event(), stream) }
        })?;
        self.check(None, "recording an event", recorded)?;
        Ok(event)
    }

    /// Tells the times that are known by now. Waits for nothing: not for the device, nor for another thread that does this.
    #[inline]
    pub(crate) fn tell_times(&self) {
        if self.later.count.load(Ordering::Relaxed) > 0 {
            self.tell_those_that_are_known();
        }
    }

    #[cold]
    fn tell_those_that_are_known(&self) {
        let mut waiting = match self.later.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut known = Vec::new();
        while let Some(first) = waiting.front() {
            let end = first.end.cu_event();
            // SAFETY: the event is one of the driver's, which is there until it is dropped.
            let query = || unsafe { result::event::query(end) };
            let reached = self.outside_capture("looked at", |_| relaxed(query));
            match reached {
                // Somebody captures: a later launch will look.
                Err(_) => break,
                Ok(Err(error)) if error.0 == CUresult::CUDA_ERROR_NOT_READY => break,
                // The device was lost, with all times.
                Ok(Err(_)) => waiting.clear(),
                Ok(Ok(())) => known.extend(waiting.pop_front()),
            }
        }
        self.later.count.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        // An observer may panic, or enqueue something itself that is timed.
        for Waiting { begin, end, tell } in known {
            let found = Found::now();
            let elapsed = begin.elapsed_ms(&end);
            drop(found);
            if let Ok(milliseconds) = elapsed {
                tell(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3));
            }
        }
    }
}
