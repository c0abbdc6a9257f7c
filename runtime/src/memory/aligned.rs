//! Buffers that start on a cache line. Allocation can fail with an error and never aborts.

use crate::error::Error;
use crate::parallel::affinity::stay_on;
use crate::parallel::fork::OfProcess;
use crate::threads::Threads;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Bytes of a cache line, and of the widest vector that a kernel loads.
pub(crate) const LINE: usize = 64;

/// Bytes of a huge page on x86-64 and, with pages of 4 KiB, on aarch64.
const HUGE_PAGE: usize = 2 << 20;

#[repr(C, align(64))]
struct Line(#[allow(dead_code, reason = "for its size; read as numbers")] [u8; LINE]);

/// A number for which every bit pattern is a value.
///
/// # Safety
/// The type has no padding, no invalid bit patterns, and an alignment that divides 64.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for u8 {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for i8 {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for i32 {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for u32 {}
// SAFETY: a primitive number without invalid bit patterns.
unsafe impl Plain for f32 {}

/// `len` values of `T`, zero at first, starting at a multiple of 64 bytes; large ones lie on huge pages where the
/// system has them, which saves address translations and lets hardware prefetchers run on.
pub(crate) struct Aligned<T: Plain> {
    /// `lines` lines, all initialized; dangling where there are none.
    start: NonNull<Line>,
    lines: usize,
    /// The chunk that they are cut from; none where they were allocated for themselves.
    chunk: Option<Arc<Chunk>>,
    len: usize,
    kind: PhantomData<T>,
}

// SAFETY: the memory is owned, and numbers may be sent and shared.
unsafe impl<T: Plain> Send for Aligned<T> {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl<T: Plain> Sync for Aligned<T> {}

impl<T: Plain> Aligned<T> {
    pub(crate) const fn empty() -> Aligned<T> {
        Aligned { start: NonNull::dangling(), lines: 0, chunk: None, len: 0, kind: PhantomData }
    }

    /// As [`zeroed`](Aligned::zeroed), for what is kept long and read often: buffers too small to fill huge pages share
    /// them with others. Zeros are written by `threads`, since the system gives out pages when they are first written to, which takes
    /// longer than writing them.
    pub(crate) fn long_lived(len: usize, threads: &Threads) -> Result<Aligned<T>, Error> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| SHARED.contains(bytes));
        let lines = bytes.unwrap_or(0).div_ceil(LINE);
        let Some((chunk, start)) = bytes.and_then(|_| OPEN.lock()?.cut(lines)) else {
            return Aligned::zeroed_by(len, threads);
        };
        // SAFETY: so many lines were cut for this buffer, and nothing else refers to them.
        let room = unsafe { std::slice::from_raw_parts_mut(room(start), lines) };
        write_zeros(room, threads);
        Ok(Aligned { start, lines, chunk: Some(chunk), len, kind: PhantomData })
    }

    /// As [`long_lived`](Aligned::long_lived), with each of `shares` (bytes, one behind the other, and processors) in memory near these
    /// processors: a thread that stays on them writes there first, which is when the system gives out pages, where its policy for the
    /// program says nothing else. A share begins and ends at a page ([`rounded_to_pages`]); small pages lie around its ends and huge ones
    /// between. Where a thread can't be had, or can't stay there, its share lies where the system puts it.
    pub(crate) fn placed(len: usize, shares: &[(Range<usize>, &[usize])]) -> Result<Aligned<T>, Error> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { what: "a buffer" })?;
        if !is_placed(bytes) {
            return Aligned::long_lived(len, &Threads::single());
        }
        let refused = Error::OutOfMemory { required: bytes };
        let lines = bytes.div_ceil(LINE);
        let whole = lines.checked_next_multiple_of(HUGE_PAGE / LINE);
        let mut chunk = whole.and_then(Chunk::new).ok_or(refused)?;
        let start = chunk.start;
        // Pages that the allocator has used before are given back, so that all are given out anew.
        chunk.forget_pages();
        let mut left = chunk.room();
        std::thread::scope(|scope| {
            for (share, cpus) in shares {
                let share = rounded_to_pages(share);
                let lines = share.end.div_ceil(LINE).saturating_sub(share.start / LINE);
                let (mine, behind) =
                    std::mem::take(&mut left).split_at_mut_checked(lines).unwrap_or_default();
                left = behind;
                let cpus = *cpus;
                let near = std::thread::Builder::new().name("gristmill-first-touch".to_owned());
                // Where no thread is to be had the first to write is this one, below.
                let _ = near.spawn_scoped(scope, move || {
                    stay_on(cpus);
                    prefer_huge_pages(mine);
                    for line in mine.iter_mut().step_by(LINES_OF_SMALLEST_PAGE) {
                        *line = MaybeUninit::zeroed();
                    }
                });
            }
        });
        // SAFETY: the chunk has at least so many lines, which nothing else refers to any more.
        unsafe { start.write_bytes(0, lines) };
        Ok(Aligned { start, lines, chunk: Some(Arc::new(chunk)), len, kind: PhantomData })
    }

    pub(crate) fn zeroed(len: usize) -> Result<Aligned<T>, Error> {
        Aligned::zeroed_by(len, &Threads::single())
    }

    fn zeroed_by(len: usize, threads: &Threads) -> Result<Aligned<T>, Error> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { what: "a buffer" })?;
        let refused = Error::OutOfMemory { required: bytes };
        let lines = bytes.div_ceil(LINE);
        if lines == 0 {
            return Ok(Aligned::empty());
        }
        let Some(layout) = layout(lines) else { return Err(refused) };
        let large = layout.align() > LINE;
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { if large { alloc(layout) } else { alloc_zeroed(layout) } };
        let Some(start) = NonNull::new(memory.cast::<Line>()) else { return Err(refused) };
        if large {
            // SAFETY: so many lines were allocated, and nothing else refers to them.
            let room = unsafe { std::slice::from_raw_parts_mut(room(start), lines) };
            // Before the first write, which is when pages are given out.
            prefer_huge_pages(room);
            write_zeros(room, threads);
        }
        Ok(Aligned { start, lines, chunk: None, len, kind: PhantomData })
    }

    /// The same values in memory of their own.
    pub(crate) fn try_clone(&self) -> Result<Aligned<T>, Error> {
        let mut copy = Aligned::long_lived(self.len, &Threads::single())?;
        copy.copy_from_slice(self);
        Ok(copy)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The bytes of its values.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: as in `deref`; numbers have no bytes that are not initialized.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes()) }
    }
}

/// Layout of so many lines: those that fill a huge page start on one. `None`: more than can be addressed.
fn layout(lines: usize) -> Option<Layout> {
    let bytes = lines.checked_mul(LINE)?;
    Layout::from_size_align(bytes, if bytes >= HUGE_PAGE { HUGE_PAGE } else { LINE }).ok()
}

/// Tells the system to put memory on huge pages, as far as it has and they fit in. What it holds is lost, as the type says: memory that the
/// allocator has had before lies on small pages, which go back to the system, so that all are given out anew. Advice: nothing depends on
/// it being taken.
pub fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    advise(memory, HUGE_PAGE, &[Advice::GiveBack, Advice::PreferHuge]);
}

/// What the system is told of pages.
#[derive(Clone, Copy)]
enum Advice {
    /// Nothing that they hold is kept.
    GiveBack,
    PreferHuge,
    KeepSmall,
}

/// Tells the system so of the memory that lies in whole pages of `page` bytes: one advice after the other.
fn advise<T>(memory: &mut [MaybeUninit<T>], page: usize, advices: &[Advice]) {
    // Miri has no `madvise`.
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let start = memory.as_mut_ptr() as usize;
        let end = start.saturating_add(size_of_val(memory)) / page * page;
        let start = start.next_multiple_of(page);
        if start < end {
            for advice in advices {
                let advice = match advice {
                    Advice::GiveBack => libc::MADV_DONTNEED,
                    Advice::PreferHuge => libc::MADV_HUGEPAGE,
                    Advice::KeepSmall => libc::MADV_NOHUGEPAGE,
                };
                // SAFETY: the range lies within `memory`, whole pages of which no value is kept.
                unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
            }
        }
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    let _ = (memory, page, advices);
}

/// Fills lines with zeros, a huge page at a time.
fn write_zeros(lines: &mut [MaybeUninit<Line>], threads: &Threads) {
    let filled = threads.chunks(lines, HUGE_PAGE / LINE, |_, lines| -> Result<(), Infallible> {
        // SAFETY: the slice is so long, and any bytes may be written to it.
        unsafe { lines.as_mut_ptr().write_bytes(0, lines.len()) };
        Ok(())
    });
    let Ok(()) = filled;
}

/// Lines as memory that nothing has been written to.
fn room(start: NonNull<Line>) -> *mut MaybeUninit<Line> {
    start.as_ptr().cast()
}

/// Bytes of a chunk.
const CHUNK: usize = 32 << 20;
/// Sizes of buffers that are cut from chunks.
const SHARED: std::ops::Range<usize> = 64 << 10..CHUNK / 4;

/// Huge pages that buffers are cut from, one behind the other. It is given back when its last buffer is.
struct Chunk {
    start: NonNull<Line>,
    lines: usize,
}

/// Lines of the smallest page.
const LINES_OF_SMALLEST_PAGE: usize = 4096 / LINE;

/// Whether a buffer of so many bytes is divided among NUMA nodes: from 1 MiB on. Each has a mapping for every share, of which systems
/// have some ten thousand for a program, and of what is smaller much would lie on the pages at the ends of shares.
pub(crate) const fn is_placed(bytes: usize) -> bool {
    // An interpreter takes minutes for a MiB.
    bytes >= if cfg!(miri) { SHARED.start } else { 1 << 20 }
}

/// Bytes of a page, as the system gives them out.
pub(crate) fn page() -> usize {
    #[cfg(all(unix, not(miri)))]
    {
        // SAFETY: it asks the system for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(page).unwrap_or(4096).max(4096)
    }
    #[cfg(not(all(unix, not(miri))))]
    4096
}

/// Whole pages for a share of a buffer that starts on one: those that begin in it.
pub(crate) fn rounded_to_pages(bytes: &Range<usize>) -> Range<usize> {
    let page = page();
    let up = |at: usize| at.checked_next_multiple_of(page).unwrap_or(at);
    up(bytes.start)..up(bytes.end)
}

// SAFETY: the memory is owned; buffers refer to parts of it that don't overlap.
unsafe impl Send for Chunk {}
// SAFETY: as above; a chunk itself is never read or written through.
unsafe impl Sync for Chunk {}

impl Chunk {
    const LINES: usize = CHUNK / LINE;

    fn new(lines: usize) -> Option<Chunk> {
        let layout = layout(lines).filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) }.cast::<Line>())?;
        Some(Chunk { start, lines })
    }

    /// All of it, as long as no buffer has been cut from it.
    fn room(&mut self) -> &mut [MaybeUninit<Line>] {
        // SAFETY: so many lines were allocated, and nothing else refers to them: who has buffers of a chunk shares it.
        unsafe { std::slice::from_raw_parts_mut(room(self.start), self.lines) }
    }

    /// Leaves what it holds, which nothing refers to, and lets it lie on small pages unless somebody prefers others.
    fn forget_pages(&mut self) {
        advise(self.room(), HUGE_PAGE, &[Advice::GiveBack, Advice::KeepSmall]);
    }
}

/// The chunks that buffers are cut from at present, each with its first free line. More than one, since large and small tensors take turns
/// in a model: the small ones fill what the large ones left.
struct OpenChunks([(Weak<Chunk>, usize); 4]);

/// Those of this process.
static OPEN: OfProcess<OpenChunks> = OfProcess::new(OpenChunks::none());

impl OpenChunks {
    const fn none() -> OpenChunks {
        OpenChunks([const { (Weak::new(), Chunk::LINES) }; 4])
    }

    /// So many lines, at most [`Chunk::LINES`], that no other buffer has, and the chunk that they are part of.
    fn cut(&mut self, lines: usize) -> Option<(Arc<Chunk>, NonNull<Line>)> {
        let fits = self.0.iter_mut().find_map(|(chunk, free)| {
            let from = *free;
            let chunk = chunk.upgrade().filter(|_| lines <= Chunk::LINES - from)?;
            *free += lines;
            Some((chunk, from))
        });
        let (chunk, from) = match fits {
            Some(fits) => fits,
            None => {
                let mut chunk = Chunk::new(Chunk::LINES)?;
                prefer_huge_pages(chunk.room());
                let chunk = Arc::new(chunk);
                // In place of one that is gone, or of the one with the fewest lines left.
                let full = self.0.iter_mut().max_by_key(|(chunk, free)| (chunk.strong_count() == 0, *free));
                if let Some(full) = full {
                    *full = (Arc::downgrade(&chunk), lines);
                }
                (chunk, 0)
            }
        };
        // SAFETY: `from + lines` is at most the number of lines of the chunk.
        let start = unsafe { chunk.start.add(from) };
        Some((chunk, start))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.lines) {
            // SAFETY: `new` allocated it with this layout, and no buffer is left that refers to it.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Plain> Drop for Aligned<T> {
    fn drop(&mut self) {
        match (&self.chunk, layout(self.lines).filter(|layout| layout.size() > 0)) {
            (Some(_), _) => {
                /// A multiple of every size of small pages.
                const PAGES: usize = 64 << 10;
                // SAFETY: these lines were cut for this buffer, which is the last to refer to them: nobody gets them again.
                let room = unsafe { std::slice::from_raw_parts_mut(room(self.start), self.lines) };
                advise(room, PAGES, &[Advice::GiveBack]);
            }
            // SAFETY: `zeroed` allocated the lines with this layout; they are given back once.
            (None, Some(layout)) => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
            (None, None) => {}
        }
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` points to at least `len * size_of::<T>()` initialized bytes (`zeroed`), is a multiple of 64
        // (as is the dangling one), and every bit pattern is a value of a `Plain` type.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> std::fmt::Debug for Aligned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aligned({} bytes)", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all bytes are `value`: page by page, as neither an unoptimized build nor Miri is fast byte by byte.
    fn is_filled(buffer: &[u8], value: u8) -> bool {
        let page = [value; 4096];
        buffer.chunks(page.len()).all(|bytes| *bytes == page[..bytes.len()])
    }

    #[test]
    fn starts_on_a_line_and_is_zero() -> Result<(), Error> {
        for len in [0, 1, 15, 16, 17, 1000] {
            let buffer = Aligned::<f32>::zeroed(len)?;
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % LINE, 0);
            assert!(buffer.iter().all(|v| v.to_bits() == 0));
        }
        Ok(())
    }

    #[test]
    fn large_buffers_start_on_a_huge_page() -> Result<(), Error> {
        let mut buffer = Aligned::<u8>::zeroed(2 * HUGE_PAGE + 1)?;
        assert_eq!(buffer.as_ptr() as usize % HUGE_PAGE, 0);
        assert!(is_filled(&buffer, 0));
        buffer[2 * HUGE_PAGE] = 7;
        let copy = buffer.try_clone()?;
        assert_eq!((copy.len(), copy[2 * HUGE_PAGE]), (2 * HUGE_PAGE + 1, 7));
        Ok(())
    }

    /// What an allocator has had before lies on small pages, on which it would stay.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn memory_on_huge_pages_is_given_out_anew() {
        let mut memory = vec![MaybeUninit::new(7u8); 3 * HUGE_PAGE];
        prefer_huge_pages(&mut memory);
        let start = memory.as_ptr().cast::<u8>();
        let first = (start as usize).next_multiple_of(HUGE_PAGE) - start as usize;
        for at in (first..first + 2 * HUGE_PAGE).step_by(page()) {
            // SAFETY: three huge pages of bytes have two whole ones in them, wherever they start; all were written.
            assert_eq!(unsafe { start.add(at).read_volatile() }, 0, "byte {at}");
        }
    }

    /// Buffers that are cut from one chunk keep their own values, whatever becomes of their neighbours.
    #[test]
    fn long_lived_buffers_share_pages_and_nothing_else() -> Result<(), Error> {
        let (count, size) = if cfg!(miri) { (6, 70_000) } else { (40, 1_300_000) };
        for round in 0..3u8 {
            let mut kept: Vec<Aligned<u8>> = Vec::new();
            for i in 0..count {
                let mut buffer =
                    Aligned::<u8>::long_lived(size + usize::from(i), &Threads::new(2).expect("threads"))?;
                assert_eq!(buffer.as_ptr() as usize % LINE, 0);
                assert!(is_filled(&buffer, 0));
                buffer.fill(i + round);
                // Every third is dropped again.
                if i % 3 != 0 {
                    kept.push(buffer);
                }
            }
            for (buffer, i) in kept.iter().zip((0..count).filter(|i| i % 3 != 0)) {
                assert_eq!(buffer.len(), size + usize::from(i));
                assert!(is_filled(buffer, i + round), "buffer {i}");
            }
        }
        Ok(())
    }

    /// Tensors of layers of BitNet 2B at 1.6 bits a weight, two layers of which leave 5 MiB of a chunk: less than the largest takes.
    #[test]
    fn small_buffers_fill_what_large_ones_leave_of_a_chunk() {
        let mut open = OpenChunks::none();
        let layers = [2560 * 3840, 2560 * 2560, 2560 * 13824, 2560 * 6912].map(|weights: usize| weights / 5);
        let (mut kept, mut bytes): (Vec<Arc<Chunk>>, usize) = (Vec::new(), 0);
        for tensor in layers.into_iter().cycle().take(30 * layers.len()) {
            let (chunk, _) = open.cut(tensor.div_ceil(LINE)).expect("memory");
            bytes += tensor;
            if !kept.iter().any(|held| Arc::ptr_eq(held, &chunk)) {
                kept.push(chunk);
            }
        }
        assert_eq!(kept.len(), bytes.div_ceil(CHUNK), "chunks for {bytes} bytes");
    }

    /// On a machine with one node all lies there; what is looked at is that shares of any size leave every byte zero and the buffer's own.
    #[test]
    fn placed_buffers_are_zero_wherever_their_shares_end() -> Result<(), Error> {
        let cpus: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        let size = if cfg!(miri) { 70_000 } else { 5 << 20 };
        for (len, ends) in [
            (size, vec![size / 2, size]),
            (size + 17, vec![1, 5000, size + 17]),
            (SHARED.start, vec![SHARED.start]),
            // Shares that end too early, too late, or are none.
            (size, vec![100]),
            (size, vec![size, 9 * size, 9 * size]),
            (size, vec![]),
            (1000, vec![500, 1000]),
        ] {
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let shares: Vec<(Range<usize>, &[usize])> =
                starts.zip(&ends).map(|(start, end)| (start..*end, cpus.as_slice())).collect();
            let mut first = Aligned::<u8>::placed(len, &shares)?;
            assert_eq!((first.len(), first.as_ptr() as usize % LINE), (len, 0));
            assert!(is_filled(&first, 0), "{ends:?}");
            first.fill(7);
            let second = Aligned::<u8>::placed(len, &shares)?;
            assert!(is_filled(&second, 0) && is_filled(&first, 7), "{ends:?}");
        }
        assert!(matches!(Aligned::<f32>::placed(usize::MAX, &[]), Err(Error::TooLarge { .. })));
        assert!(matches!(Aligned::<u8>::placed(usize::MAX - 64, &[]), Err(Error::OutOfMemory { .. })));
        Ok(())
    }

    /// What is cut from a chunk leaves memory when it is dropped, though the chunk stays for its neighbours.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn pages_of_dropped_buffers_are_given_back() -> Result<(), Error> {
        const LEN: usize = 4 << 20;
        // SAFETY: it asks the system for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut buffer = Aligned::<u8>::long_lived(LEN, &Threads::new(2).expect("threads"))?;
        let _neighbour = Aligned::<u8>::long_lived(SHARED.start, &Threads::new(2).expect("threads"))?;
        buffer.fill(1);
        // Without what the first and the last page share with other buffers.
        let from = (buffer.as_ptr() as usize).next_multiple_of(64 << 10);
        let mut resident = vec![0u8; (LEN - (128 << 10)) / page];
        // SAFETY: the range lies within the buffer, and the vector has a byte for each of its pages.
        let mut ask =
            || unsafe { libc::mincore(from as *mut _, resident.len() * page, resident.as_mut_ptr()) };
        assert_eq!(ask(), 0);
        drop(buffer);
        // An error if the chunk has gone altogether, as the neighbour lies in the next one.
        if ask() == 0 {
            assert_eq!(resident.iter().filter(|page| **page & 1 == 1).count(), 0, "pages are still held");
        }
        Ok(())
    }

    #[test]
    fn a_copy_is_equal_and_apart() -> Result<(), Error> {
        let mut buffer = Aligned::<i32>::zeroed(17)?;
        buffer[16] = 7;
        let copy = buffer.try_clone()?;
        buffer[0] = 1;
        assert_eq!((copy.len(), copy[0], copy[16]), (17, 0, 7));
        assert_eq!(copy.as_ptr() as usize % LINE, 0);
        Ok(())
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(Aligned::<f32>::zeroed(usize::MAX), Err(Error::TooLarge { .. })));
        assert!(matches!(Aligned::<u8>::zeroed(usize::MAX - 64), Err(Error::OutOfMemory { .. })));
    }
}
