//! How fast threads read memory.

use crate::device::Caches;
use crate::parallel::affinity::pin;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// A cache line of words, so that buffers are aligned for every vector width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Lines between two looks at the clock: 64 KiB.
const LINES_PER_LOOK: usize = 1024;

/// Lines that a reader with prefetch asks for ahead of those it reads: 4 KiB, since hardware prefetchers stop at
/// the end of a page.
#[cfg(target_arch = "x86_64")]
const LINES_AHEAD: usize = 64;

/// Where bytes are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Second-level caches, one a core.
    L2,
    /// The last-level cache, shared.
    L3,
    /// Memory.
    Dram,
}

impl Level {
    /// Every level, the fastest first.
    pub const ALL: &'static [Level] = &[Level::L2, Level::L3, Level::Dram];

    /// How it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Level::L2 => "L2",
            Level::L3 => "L3",
            Level::Dram => "DRAM",
        }
    }

    /// Bytes of a buffer that this level serves when `threads` threads read it over and over, each its part.
    pub fn typical_bytes(self, caches: &Caches, threads: usize) -> usize {
        let (l2, l3) = sizes(caches);
        match self {
            Level::L2 => threads.max(1).saturating_mul(l2 / 4 * 3),
            Level::L3 => (l3 / 4).max(threads.max(1).saturating_mul(2 * l2)),
            Level::Dram => l3.saturating_mul(8).clamp(256 << 20, 1 << 30),
        }
    }

    /// Bytes of `bytes`, read over and over by `threads` threads, that each level delivers where caches keep as
    /// much as they can hold: least favourable for a kernel that is measured against it, and never exceeded.
    pub fn shares(bytes: usize, caches: &Caches, threads: usize) -> [(Level, usize); 3] {
        let (l2, l3) = sizes(caches);
        let from_l2 = bytes.min(l2.saturating_mul(threads.max(1)));
        let from_l3 = (bytes - from_l2).min(l3.saturating_sub(from_l2));
        [(Level::L2, from_l2), (Level::L3, from_l3), (Level::Dram, bytes - from_l2 - from_l3)]
    }
}

/// Sizes of L2 (of a core) and L3; common ones where the system does not say.
fn sizes(caches: &Caches) -> (usize, usize) {
    let l2 = caches.l2.unwrap_or(1 << 20);
    (l2, caches.l3.unwrap_or(32 << 20).max(l2))
}

/// Bytes a second, in GB/s (1e9), at which `threads` threads together read a buffer of `bytes` bytes over
/// and over, each its own part; see [`ReadBuffers`].
///
/// `None` where the memory or the threads cannot be had.
pub fn read_bandwidth(bytes: usize, threads: usize, ms: u32) -> Option<f64> {
    ReadBuffers::new(bytes, threads)?.rate(ms)
}

/// Buffers that threads read, each its own, to find the rate at which memory delivers.
///
/// Buffers as large together as the L2 caches give the rate of these, buffers of several times the last-level
/// cache that of memory. Each thread fills its buffer first, so that on several NUMA nodes it reads memory of its
/// own.
#[derive(Debug)]
pub struct ReadBuffers {
    parts: Vec<Part>,
}

/// What one thread reads, and where it stands: a window goes on where the one before ended, or it would find in a
/// cache what that one read last.
#[derive(Debug)]
struct Part {
    lines: Vec<Line>,
    at: usize,
    /// The processor that its thread stays on, if it is to stay on one.
    cpu: Option<usize>,
}

impl ReadBuffers {
    /// Buffers of `bytes` bytes together. Zero `threads` count as one; a part has at least one cache line.
    ///
    /// `None` where the memory or the threads cannot be had.
    pub fn new(bytes: usize, threads: usize) -> Option<ReadBuffers> {
        ReadBuffers::of(bytes, threads, |_| None)
    }

    /// The same for a thread on each of these processors, so that buffers lie where their memory is.
    ///
    /// `None` besides where one is not a processor that this program may use.
    pub(crate) fn on_processors(bytes: usize, cpus: &[usize]) -> Option<ReadBuffers> {
        ReadBuffers::of(bytes, cpus.len(), |thread| cpus.get(thread).copied())
    }

    fn of(bytes: usize, threads: usize, cpu: impl Fn(usize) -> Option<usize>) -> Option<ReadBuffers> {
        let threads = threads.max(1);
        let count = (bytes / threads / size_of::<Line>()).max(1);
        let mut parts = Vec::new();
        for thread in 0..threads {
            let mut lines: Vec<Line> = Vec::new();
            lines.try_reserve_exact(count).ok()?;
            // As weights lie.
            crate::prefer_huge_pages(lines.spare_capacity_mut());
            parts.push(Part { lines, at: 0, cpu: cpu(thread) });
        }
        let mut buffers = ReadBuffers { parts };
        buffers.on_each(|part| part.lines.resize(count, Line([0x0123_4567_89ab_cdef; 8])))?;
        Some(buffers)
    }

    /// Bytes a second, in GB/s (1e9), that all threads together read: what a quarter of the windows reach in which
    /// about `ms` milliseconds are divided. Readers with and without prefetching in software take turns.
    ///
    /// `None` where the threads cannot be had.
    pub fn rate(&mut self, ms: u32) -> Option<f64> {
        let threads = self.parts.len();
        let windows = super::windows(threads, ms / 2) as usize;
        let limit = super::window(threads);
        let barrier = Barrier::new(threads);
        let in_step = |part: &mut Part| -> [Vec<f64>; 2] {
            let mut rates = [Vec::new(), Vec::new()];
            for _ in 0..windows {
                for (reader, rates) in Reader::best().iter().zip(&mut rates) {
                    barrier.wait();
                    rates.push(part.read(*reader, limit));
                }
            }
            rates
        };
        let per_thread = self.on_each(in_step)?;
        let rates_of = |reader: usize| -> Vec<f64> {
            let all = |window: usize| per_thread.iter().map(|rates| rates[reader][window]).sum();
            (0..windows).map(all).collect()
        };
        (0..2).filter_map(|reader| super::upper_quartile(rates_of(reader))).max_by(f64::total_cmp)
    }

    /// Runs `work` on each part, each on a thread of its own; a single part that is pinned nowhere on this one. `None` if a thread could
    /// not be started, when none has begun, or could not be kept on its processor.
    fn on_each<R: Send>(&mut self, work: impl Fn(&mut Part) -> R + Sync) -> Option<Vec<R>> {
        if let [part @ Part { cpu: None, .. }] = self.parts.as_mut_slice() {
            return Some(vec![work(part)]);
        }
        let threads = self.parts.len();
        let barrier = Barrier::new(threads);
        // Whether all threads could be started: the barriers must not be waited at by fewer.
        let complete: OnceLock<bool> = OnceLock::new();
        std::thread::scope(|scope| {
            let mut started = Vec::new();
            for part in &mut self.parts {
                let (barrier, complete, work) = (&barrier, &complete, &work);
                let run = move || {
                    let pinned = part.cpu.is_none_or(pin);
                    let done = complete.wait().then(|| {
                        barrier.wait();
                        work(part)
                    });
                    // It worked all the same, since the others wait for it.
                    done.filter(|_| pinned)
                };
                match std::thread::Builder::new().name("read-bandwidth".to_owned()).spawn_scoped(scope, run) {
                    Ok(thread) => started.push(thread),
                    Err(_) => break,
                }
            }
            // Set here and only here.
            complete.get_or_init(|| started.len() == threads);
            started.into_iter().map(|thread| thread.join().ok()?).collect()
        })
    }
}

impl Part {
    /// GB/s of this thread in one window.
    fn read(&mut self, reader: Reader, limit: Duration) -> f64 {
        let start = Instant::now();
        let mut read = 0u64;
        loop {
            let end = (self.at + LINES_PER_LOOK).min(self.lines.len());
            let piece = &self.lines[self.at..end];
            std::hint::black_box(reader.xor(std::hint::black_box(piece)));
            read += size_of_val(piece) as u64;
            self.at = if end == self.lines.len() { 0 } else { end };
            let elapsed = start.elapsed();
            if elapsed >= limit {
                return read as f64 / elapsed.as_secs_f64() / 1e9;
            }
        }
    }
}

/// A way to read that this processor has: made only by [`Reader::best`].
#[derive(Clone, Copy, Debug)]
struct Reader {
    width: Width,
    prefetch: bool,
}

#[derive(Clone, Copy, Debug)]
enum Width {
    /// What the compiler makes of it: 128-bit vectors on x86-64 and aarch64.
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Reader {
    /// The widest, without prefetching and with it.
    fn best() -> [Reader; 2] {
        let width = Reader::widest();
        [Reader { width, prefetch: false }, Reader { width, prefetch: true }]
    }

    fn widest() -> Width {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Width::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Width::Avx2;
            }
        }
        Width::Plain
    }

    /// The exclusive or of all words: as good as no work, and no line can be left out.
    fn xor(self, lines: &[Line]) -> u64 {
        match (self.width, self.prefetch) {
            (Width::Plain, _) => plain(lines),
            // SAFETY: `widest` chose it after the processor was found to have AVX2.
            #[cfg(target_arch = "x86_64")]
            (Width::Avx2, prefetch) => unsafe { x86::avx2(lines, prefetch) },
            // SAFETY: `widest` chose it after the processor was found to have AVX-512F.
            #[cfg(target_arch = "x86_64")]
            (Width::Avx512, prefetch) => unsafe { x86::avx512(lines, prefetch) },
        }
    }
}

/// Each of the eight words of a line has a sum of its own, so that lines do not wait for each other.
fn plain(lines: &[Line]) -> u64 {
    let mut sums = [0u64; 8];
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line.0) {
            *sum ^= word;
        }
    }
    sums.into_iter().fold(0, |sum, word| sum ^ word)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LINES_AHEAD, Line, plain};
    use std::arch::x86_64::*;

    /// Lines in a step: eight loads of 64 bytes in flight, each with a sum of its own. Loops over them go by
    /// number: adapters of iterators are calls that stay in an incremental build.
    const STEP: usize = 8;

    #[expect(clippy::needless_range_loop, reason = "see `STEP`")]
    /// Asks for the lines that stand some way behind those of `step`; past the end of a buffer it is for nothing.
    #[inline(always)]
    fn ask_for(step: &[Line; STEP]) {
        for i in 0..STEP {
            let ahead = (&raw const step[i]).wrapping_add(LINES_AHEAD);
            // SAFETY: a prefetch touches no memory that the program could notice, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
        }
    }

    /// [`plain`] with 256-bit loads.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(lines: &[Line], prefetch: bool) -> u64 {
        let (steps, rest) = lines.as_chunks::<STEP>();
        let mut sums = [_mm256_setzero_si256(); STEP];
        for step in steps {
            if prefetch {
                ask_for(step);
            }
            for i in 0..STEP {
                let at = (&raw const step[i]).cast::<__m256i>();
                // SAFETY: a line is two 32-byte halves and aligned to 64 bytes.
                let (low, high) = unsafe { (_mm256_load_si256(at), _mm256_load_si256(at.add(1))) };
                sums[i] = _mm256_xor_si256(sums[i], _mm256_xor_si256(low, high));
            }
        }
        let sum = sums.into_iter().fold(_mm256_setzero_si256(), |sum, part| _mm256_xor_si256(sum, part));
        let mut words = Line([0; 8]);
        // SAFETY: the line has room for 32 bytes and is aligned to 64.
        unsafe { _mm256_store_si256((&raw mut words).cast(), sum) };
        plain(&[words]) ^ plain(rest)
    }

    /// [`plain`] with 512-bit loads.
    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(lines: &[Line], prefetch: bool) -> u64 {
        let (steps, rest) = lines.as_chunks::<STEP>();
        let mut sums = [_mm512_setzero_si512(); STEP];
        for step in steps {
            if prefetch {
                ask_for(step);
            }
            for i in 0..STEP {
                // SAFETY: a line is 64 bytes and aligned to 64.
                let words = unsafe { _mm512_load_si512((&raw const step[i]).cast()) };
                sums[i] = _mm512_xor_si512(sums[i], words);
            }
        }
        let sum = sums.into_iter().fold(_mm512_setzero_si512(), |sum, part| _mm512_xor_si512(sum, part));
        let mut words = Line([0; 8]);
        // SAFETY: the line has room for 64 bytes and is aligned to 64.
        unsafe { _mm512_store_si512((&raw mut words).cast(), sum) };
        plain(&[words]) ^ plain(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of distinct words, in number no multiple of a step.
    fn lines(count: usize) -> Vec<Line> {
        let mut word = 1u64;
        let mut next = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word
        };
        (0..count).map(|_| Line(std::array::from_fn(|_| next()))).collect()
    }

    #[test]
    fn every_reader_reads_every_word() {
        let [plain, prefetching] = Reader::best();
        let readers = [
            Reader { width: Width::Plain, prefetch: false },
            plain,
            prefetching,
            #[cfg(target_arch = "x86_64")]
            Reader {
                width: if is_x86_feature_detected!("avx2") { Width::Avx2 } else { Width::Plain },
                prefetch: true,
            },
        ];
        for count in [0, 1, 7, 8, 9, 40, 43] {
            let lines = lines(count);
            let exact = lines.iter().flat_map(|line| line.0).fold(0, |sum, word| sum ^ word);
            for reader in &readers {
                assert_eq!(reader.xor(&lines), exact, "{reader:?}, {count} lines");
            }
        }
    }

    #[test]
    fn rates_are_positive_for_odd_requests_too() {
        for (bytes, threads) in [(1 << 20, 1), (1 << 20, 3), (0, 0), (65, 2)] {
            let rate = read_bandwidth(bytes, threads, 7).expect("a megabyte and three threads");
            assert!(rate.is_finite() && rate > 0.0, "{bytes} bytes, {threads} threads: {rate}");
        }
    }

    #[test]
    fn caches_keep_what_they_can_hold() {
        let caches = Caches { l1d: None, l2: Some(1000), l3: Some(10_000) };
        let bytes = |bytes, threads| Level::shares(bytes, &caches, threads).map(|(_, share)| share);
        assert_eq!(bytes(900, 1), [900, 0, 0]);
        assert_eq!(bytes(1500, 1), [1000, 500, 0]);
        assert_eq!(bytes(1500, 2), [1500, 0, 0]);
        assert_eq!(bytes(25_000, 2), [2000, 8000, 15_000]);
        assert_eq!(bytes(0, 0), [0, 0, 0]);
        for level in Level::ALL {
            let size = level.typical_bytes(&Caches::default(), 2);
            let shares = Level::shares(size, &Caches::default(), 2);
            let most = shares.iter().max_by_key(|(_, bytes)| *bytes).map(|(level, _)| *level);
            assert_eq!(most, Some(*level), "{size} bytes");
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_no_rate() {
        assert_eq!(read_bandwidth(usize::MAX, 1, 7), None);
    }
}
