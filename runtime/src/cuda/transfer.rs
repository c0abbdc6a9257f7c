//! Copies of a device's memory, of which an observer is told.

use super::device::Gpu;
use super::stream::{Behind, How};
use crate::device::Device;
use crate::error::Error;
use crate::observe::{Observer, Transfer, TransferKind, observer};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUstream;
use std::time::Duration;

/// A copy, and who is told of it.
pub(super) struct Watched {
    observer: &'static dyn Observer,
    transfer: Transfer,
    /// Whether its time is wanted.
    timed: bool,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watched").field(&self.transfer).finish()
    }
}

impl Watched {
    /// Where somebody is to be told; a copy of nothing is none.
    pub(super) fn of(transfer: Transfer) -> Option<Watched> {
        let observer = observer().filter(|_| transfer.bytes > 0)?;
        Some(Watched { observer, transfer, timed: observer.wants_transfer_time(&transfer) })
    }

    /// Whether its time is wanted.
    pub(super) fn is_timed(watched: Option<&Watched>) -> bool {
        watched.is_some_and(|watched| watched.timed)
    }

    /// The driver has taken it.
    pub(super) fn taken(&self) {
        self.observer.transferred(&self.transfer);
    }

    /// It is done.
    pub(super) fn done(self, behind: &Behind) {
        if let Some(time) = behind.time() {
            self.took(time);
        }
    }

    fn took(self, time: Duration) {
        self.observer.transfer_timed(&Transfer { time: Some(time), ..self.transfer });
    }
}

/// A copy of so many bytes that one device has to do with.
pub(super) fn of_one(gpu: &Gpu, kind: TransferKind, bytes: usize) -> Transfer {
    let device = Device::cuda(gpu.profile().index);
    Transfer { kind, device, source: None, bytes: bytes as u64, time: None }
}

/// A copy of so many bytes from one device to another, or between streams of one.
pub(super) fn of_two(to: &Gpu, from: &Gpu, bytes: usize) -> Transfer {
    let [device, source] = [to, from].map(|gpu| Device::cuda(gpu.profile().index));
    match device == source {
        true => of_one(to, TransferKind::WithinDevice, bytes),
        false => Transfer { source: Some(source), ..of_one(to, TransferKind::BetweenDevices, bytes) },
    }
}

/// What is not done while somebody captures, and what is being done, for errors.
pub(super) fn words(kind: TransferKind) -> (&'static str, &'static str) {
    match kind {
        TransferKind::Weights | TransferKind::ToDevice => ("copied to the device", "copying to the device"),
        TransferKind::FromDevice => ("copied from the device", "copying from the device"),
        TransferKind::WithinDevice => ("copied on the device", "copying on the device"),
        TransferKind::BetweenDevices | TransferKind::ThroughHost => {
            ("copied between devices", "copying between devices")
        }
    }
}

impl Gpu {
    /// Does a copy that no graph can hold, and waits for it.
    pub(super) fn copy_and_wait(
        &self,
        transfer: Transfer,
        copy: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(), Error> {
        super::kept::give_back();
        let (what, doing) = words(transfer.kind);
        let watched = Watched::of(transfer);
        // The driver copies ordinary memory while it is called, when the stream has come to it: nobody else could enqueue until then.
        let how = How { timed: Watched::is_timed(watched.as_ref()), alone: true };
        let (behind, enqueued) = self.with_event(what, None, doing, how, copy)?;
        // Waited for also where not all of it was enqueued.
        let waited = behind.synchronize();
        self.check(None, doing, enqueued.and(waited))?;
        if let Some(watched) = watched {
            watched.taken();
            watched.done(&behind);
        }
        Ok(())
    }

    /// Enqueues a copy that a graph can hold.
    pub(super) fn copy_in_order(
        &self,
        transfer: Transfer,
        copy: impl FnOnce(CUstream) -> Result<(), DriverError>,
    ) -> Result<(), Error> {
        let (_, doing) = words(transfer.kind);
        let enqueue = || self.check(None, doing, self.enqueue(copy)?);
        if self.is_capturing() {
            enqueue()?;
            self.copy_later(transfer);
            return Ok(());
        }
        let Some(watched) = Watched::of(transfer) else { return enqueue() };
        self.tell_times();
        let observer = watched.observer;
        if watched.timed && self.takes_times() {
            self.time_later(enqueue, move |time| watched.took(time))?;
        } else {
            enqueue()?;
        }
        observer.transferred(&transfer);
        Ok(())
    }
}
