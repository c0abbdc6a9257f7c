//! Buffers between pages that nobody may touch, and a report when somebody does.

use super::super::error::CliError;
use std::marker::PhantomData;

/// Which end of a buffer lies against a forbidden page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The byte before the first one is forbidden.
    Start,
    /// The byte behind the last one is forbidden.
    End,
}

/// Types of which every bit pattern is a value.
///
/// # Safety
/// Any bytes must be a valid value.
pub unsafe trait Plain: Copy {}
// SAFETY: every bit pattern is a value of a primitive number.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}

/// What fills a buffer's bytes, and the page's bytes beside it, before a kernel writes.
const FILL: u8 = 0xa5;

/// `len` values that end (or start) where a page starts (or ends) that can't be touched.
#[derive(Debug)]
pub struct Guarded<T> {
    map: pages::Map,
    /// Byte at which the values start in the accessible part.
    at: usize,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Plain> Guarded<T> {
    /// A buffer of `len` values whose bytes are all `0xa5`.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(len: usize, edge: Edge) -> Result<Guarded<T>, CliError> {
        let bytes = len * size_of::<T>();
        let mut map = pages::Map::new(bytes).map_err(CliError::Guard)?;
        map.bytes_mut().fill(FILL);
        let at = match edge {
            Edge::Start => 0,
            Edge::End => map.bytes().len() - bytes,
        };
        Ok(Guarded { map, at, len, values: PhantomData })
    }

    /// A buffer that holds a copy of `values`.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn of(values: &[T], edge: Edge) -> Result<Guarded<T>, CliError> {
        let mut guarded = Guarded::new(values.len(), edge)?;
        guarded.values_mut().copy_from_slice(values);
        Ok(guarded)
    }

    /// The values.
    pub fn values(&self) -> &[T] {
        // SAFETY: `at` and `len` lie in the map by construction, `at` is a multiple of the type's size on
        // pages aligned to more, and every bit pattern is a value.
        unsafe { std::slice::from_raw_parts(self.map.bytes().as_ptr().add(self.at).cast(), self.len) }
    }

    /// The values.
    pub fn values_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the map is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.map.bytes_mut().as_mut_ptr().add(self.at).cast(), self.len)
        }
    }

    /// The first value.
    pub fn pointer(&self) -> *const T {
        self.values().as_ptr()
    }

    /// The first value.
    pub fn pointer_mut(&mut self) -> *mut T {
        self.values_mut().as_mut_ptr()
    }

    /// Whether nothing was written beside the values, on the pages where that was possible.
    pub fn intact(&self) -> bool {
        let bytes = self.map.bytes();
        let (before, rest) = bytes.split_at(self.at);
        let after = &rest[self.len * size_of::<T>()..];
        is_filled(before) && is_filled(after)
    }
}

/// Whether nothing but [`FILL`] is there. Each byte is compared with the one before it, all at once: a loop over the bytes of all
/// buffers would take longer than the kernels, since the command is compiled unoptimized.
fn is_filled(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return true };
    *first == FILL && rest == &bytes[..rest.len()]
}

#[cfg(unix)]
mod pages {
    use std::io;

    /// Whole pages of memory with a forbidden page on either side.
    #[derive(Debug)]
    pub struct Map {
        start: *mut u8,
        page: usize,
        bytes: usize,
    }

    impl Map {
        /// At least `bytes` bytes, and at least a page.
        pub fn new(bytes: usize) -> io::Result<Map> {
            // SAFETY: asks for a constant of the system.
            let page =
                usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(4096);
            let bytes = bytes.max(1).next_multiple_of(page);
            let (whole, flags) = (bytes + 2 * page, libc::MAP_PRIVATE | libc::MAP_ANON);
            // SAFETY: a new private mapping touches nothing that exists.
            let start = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let map = Map { start: start.cast(), page, bytes };
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the pages between the first and the last one of the mapping just made.
            let opened = unsafe { libc::mprotect(map.start.add(page).cast(), bytes, access) };
            if opened == 0 { Ok(map) } else { Err(io::Error::last_os_error()) }
        }

        /// The pages that may be touched.
        pub fn bytes(&self) -> &[u8] {
            // SAFETY: `new` opened these pages, zeroed, and they live as long as the map.
            unsafe { std::slice::from_raw_parts(self.start.add(self.page), self.bytes) }
        }

        /// The pages that may be touched.
        pub fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above, borrowed mutably.
            unsafe { std::slice::from_raw_parts_mut(self.start.add(self.page), self.bytes) }
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: the mapping of `new`, which nothing borrows any more. Unmapping fails only for
            // arguments that are not a mapping.
            unsafe { libc::munmap(self.start.cast(), self.bytes + 2 * self.page) };
        }
    }
}

#[cfg(not(unix))]
mod pages {
    use std::io;

    /// Plain memory with room on either side that is looked at afterwards.
    #[derive(Debug)]
    pub struct Map {
        memory: Vec<u64>,
    }

    impl Map {
        pub fn new(bytes: usize) -> io::Result<Map> {
            Ok(Map { memory: vec![0; bytes.div_ceil(8) + 512] })
        }

        pub fn bytes(&self) -> &[u8] {
            let (memory, len) = (self.memory.as_ptr().cast(), self.memory.len() * 8);
            // SAFETY: the bytes of the vector's own integers.
            unsafe { std::slice::from_raw_parts(memory, len) }
        }

        pub fn bytes_mut(&mut self) -> &mut [u8] {
            let (memory, len) = (self.memory.as_mut_ptr().cast(), self.memory.len() * 8);
            // SAFETY: as above, borrowed mutably.
            unsafe { std::slice::from_raw_parts_mut(memory, len) }
        }
    }
}

/// Whether forbidden pages are there on this system.
pub const GUARDS: bool = cfg!(unix);

#[cfg(unix)]
mod crash {
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    static NAME: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
    static LENGTH: AtomicUsize = AtomicUsize::new(0);

    /// Remembers the kernel that runs next, for the report of a crash.
    pub fn running(kernel: &'static str) {
        LENGTH.store(0, Ordering::SeqCst);
        NAME.store(kernel.as_ptr().cast_mut(), Ordering::SeqCst);
        LENGTH.store(kernel.len(), Ordering::SeqCst);
    }

    extern "C" fn report(signal: libc::c_int) {
        let say = |text: *const u8, len: usize| {
            // SAFETY: `write` may be called in a signal handler; the text is a static string.
            unsafe { libc::write(2, text.cast(), len) };
        };
        let (before, after) = match signal {
            libc::SIGILL => ("error: kernel `", "` has an instruction that this processor refuses\n"),
            _ => ("error: kernel `", "` touched memory outside its buffers\n"),
        };
        say(before.as_ptr(), before.len());
        say(NAME.load(Ordering::SeqCst), LENGTH.load(Ordering::SeqCst));
        say(after.as_ptr(), after.len());
        // SAFETY: ends the process at once, as a signal handler may.
        unsafe { libc::_exit(1) };
    }

    /// From here on, a touch of a forbidden page, or an instruction that there is none of, ends the process with the name of the kernel.
    pub fn watch() {
        let handler: extern "C" fn(libc::c_int) = report;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
            // SAFETY: the handler only calls what signal handlers may call.
            unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        }
    }
}

#[cfg(not(unix))]
mod crash {
    pub fn running(_: &'static str) {}
    pub fn watch() {}
}

pub use crash::{running, watch};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_at_the_edge_and_writes_beside_them_show() -> Result<(), CliError> {
        for edge in [Edge::Start, Edge::End] {
            let mut buffer = Guarded::of(&[1.0f32, 2.0, 3.0], edge)?;
            assert_eq!(buffer.values(), [1.0, 2.0, 3.0]);
            assert!(buffer.intact());
            let beside = if edge == Edge::Start { 3 } else { -1 };
            // SAFETY: that side of the values is the rest of the same page.
            unsafe { buffer.pointer_mut().offset(beside).write(0.0) };
            assert!(!buffer.intact());
        }
        assert!(Guarded::<u8>::new(0, Edge::End)?.values().is_empty());
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn what_a_kernel_must_not_do_ends_the_process_with_its_name() -> Result<(), CliError> {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let buffer = Guarded::of(&[1u8, 2, 3], Edge::End)?;
        // SAFETY: not sound, on purpose: the byte is on a page without access.
        let touches = || i32::from(unsafe { buffer.pointer().add(3).read_volatile() });
        // SAFETY: what the processor does for an instruction that it does not have.
        let lacks = || unsafe { libc::raise(libc::SIGILL) };
        let cases: [(&dyn Fn() -> i32, &str); 2] = [
            (&touches, "error: kernel `kernel.under.test` touched memory outside its buffers\n"),
            (&lacks, "error: kernel `kernel.under.test` has an instruction that this processor refuses\n"),
        ];
        for (misdeed, expected) in cases {
            let (mut reader, writer) = std::io::pipe().expect("a pipe");
            // SAFETY: the child only installs a handler, does its misdeed and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: both are open.
                unsafe { libc::dup2(writer.as_raw_fd(), 2) };
                watch();
                running("kernel.under.test");
                let code = misdeed();
                // SAFETY: ends the child, which should not have got here.
                unsafe { libc::_exit(40 + code) };
            }
            drop(writer);
            let mut said = String::new();
            reader.read_to_string(&mut said).expect("text");
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was killed");
            assert_eq!((libc::WEXITSTATUS(status), said.as_str()), (1, expected));
        }
        Ok(())
    }
}
