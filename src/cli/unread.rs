//! Output that nobody reads any more.

use std::io::{self, ErrorKind, Write};

/// Writes until the reader closes the pipe, and from then on to nowhere: what a command answers by its exit code does not depend on how much
/// of its words is read.
pub struct Unread<W> {
    inner: W,
    closed: bool,
}

impl<W: Write> Unread<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Unread<W> {
        Unread { inner, closed: false }
    }

    fn unless_closed<T>(&mut self, nothing: T, write: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        if self.closed {
            return Ok(nothing);
        }
        match write(&mut self.inner) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(nothing)
            }
            written => written,
        }
    }
}

impl<W: Write> Write for Unread<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |inner| inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), W::flush)
    }
}
