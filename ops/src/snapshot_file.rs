//! A file with a monitor's newest snapshot, for `gristmill top` and `gristmill report` in another process.

use crate::beside::beside;
use crate::monitor::Monitor;
use crate::snapshot::Snapshot;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Writes a monitor's snapshot again and again until it is [finished](SnapshotFile::finish) or dropped, on a thread of its own. Readers
/// see a whole snapshot at any time.
#[derive(Debug)]
pub struct SnapshotFile {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl SnapshotFile {
    /// Begins to write `monitor`'s snapshots to `path`, one now and one each time that `every` is over.
    ///
    /// # Errors
    /// If the file can't be written, or the system refuses a thread.
    pub fn start(monitor: &'static Monitor, path: &Path, every: Duration) -> io::Result<SnapshotFile> {
        write(&monitor.snapshot(), path)?;
        let (stop, stopped) = mpsc::channel::<()>();
        let path: PathBuf = path.to_owned();
        let work = move || {
            // A disk that is full for a while is no reason to stop.
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                let _ = write(&monitor.snapshot(), &path);
            }
            write(&monitor.snapshot(), &path)
        };
        let thread = std::thread::Builder::new().name("gristmill-monitor".to_owned()).spawn(work)?;
        Ok(SnapshotFile { stop: Some(stop), thread: Some(thread) })
    }

    /// Writes the last snapshot and ends.
    ///
    /// # Errors
    /// If that can't be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        drop(self.stop.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            Some(Err(_)) => Err(io::Error::other("the thread that writes snapshots panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        // Who wants to know whether the last one was written calls `finish`.
        let _ = self.end();
    }
}

/// Writes a snapshot in the place of what there was: whole, or not at all.
///
/// # Errors
/// What the system says.
pub fn write(snapshot: &Snapshot, path: &Path) -> io::Result<()> {
    let mut new = beside(path)?;
    new.write_all(snapshot.to_json().as_bytes())?;
    new.write_all(b"\n")?;
    new.persist(path).map_err(|error| error.error)?;
    Ok(())
}
