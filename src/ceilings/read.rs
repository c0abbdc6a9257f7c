//! How fast threads read memory.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// A cache line of words, so that buffers are aligned for every vector width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Lines between two looks at the clock: 256 KiB.
const LINES_PER_LOOK: usize = 4096;

/// Bytes a second, in GB/s (1e9), at which `threads` threads together read a buffer of `bytes` bytes over
/// and over, each its own part: the median of several runs that take about `ms` milliseconds together.
///
/// A buffer as large as the L2 caches gives the hot ceiling, one of several times the last-level cache the
/// cold one. Each thread fills its own part first, so that on several NUMA nodes it reads memory of its own.
/// Zero `threads` count as one; a part has at least one cache line.
///
/// `None` where the memory or the threads cannot be had.
pub fn read_bandwidth(bytes: usize, threads: usize, ms: u32) -> Option<f64> {
    let threads = threads.max(1);
    let lines = (bytes / threads / size_of::<Line>()).max(1);
    let limit = super::time_of_run(ms);
    let reader = Reader::best();
    let mut parts = Vec::new();
    for _ in 0..threads {
        let mut part: Vec<Line> = Vec::new();
        part.try_reserve_exact(lines).ok()?;
        parts.push(part);
    }
    let barrier = Barrier::new(threads);
    // Whether all threads could be started: the barrier must not be waited at by fewer.
    let complete: OnceLock<bool> = OnceLock::new();
    let per_thread: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let mut started = Vec::new();
        for part in parts {
            let (barrier, complete) = (&barrier, &complete);
            let read = move || complete.wait().then(|| read_part(reader, part, lines, barrier, limit));
            match std::thread::Builder::new().name("read-bandwidth".to_owned()).spawn_scoped(scope, read) {
                Ok(thread) => started.push(thread),
                Err(_) => break,
            }
        }
        // Set here and only here.
        complete.get_or_init(|| started.len() == threads);
        started.into_iter().map(|thread| thread.join().ok()?).collect::<Option<_>>()
    })
    .filter(|rates: &Vec<_>| rates.len() == threads)?;
    let rates = (0..super::RUNS as usize).map(|run| per_thread.iter().map(|rates| rates[run]).sum());
    super::median(rates.collect())
}

/// Fills `part` and reads it, run after run, in step with the other threads. Rates of the runs in GB/s.
fn read_part(
    reader: Reader,
    mut part: Vec<Line>,
    lines: usize,
    barrier: &Barrier,
    limit: Duration,
) -> Vec<f64> {
    part.resize(lines, Line([0x0123_4567_89ab_cdef; 8]));
    (0..super::RUNS)
        .map(|_| {
            barrier.wait();
            let start = Instant::now();
            let mut read = 0u64;
            loop {
                for piece in part.chunks(LINES_PER_LOOK) {
                    std::hint::black_box(reader.xor(std::hint::black_box(piece)));
                    read += size_of_val(piece) as u64;
                    let elapsed = start.elapsed();
                    if elapsed >= limit {
                        return read as f64 / elapsed.as_secs_f64() / 1e9;
                    }
                }
            }
        })
        .collect()
}

/// The widest way to read that this processor has: made only by [`Reader::best`].
#[derive(Clone, Copy, Debug)]
struct Reader(Width);

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
    fn best() -> Reader {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Reader(Width::Avx512);
            }
            if is_x86_feature_detected!("avx2") {
                return Reader(Width::Avx2);
            }
        }
        Reader(Width::Plain)
    }

    /// The exclusive or of all words: as good as no work, and no line can be left out.
    fn xor(self, lines: &[Line]) -> u64 {
        match self.0 {
            Width::Plain => plain(lines),
            // SAFETY: `best` chose it after the processor was found to have AVX2.
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => unsafe { x86::avx2(lines) },
            // SAFETY: `best` chose it after the processor was found to have AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => unsafe { x86::avx512(lines) },
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
    use super::{Line, plain};
    use std::arch::x86_64::*;

    /// Lines in a step: eight loads of 64 bytes in flight, each with a sum of its own.
    const STEP: usize = 8;

    /// [`plain`] with 256-bit loads.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(lines: &[Line]) -> u64 {
        let (steps, rest) = lines.as_chunks::<STEP>();
        let mut sums = [_mm256_setzero_si256(); STEP];
        for step in steps {
            for (sum, line) in sums.iter_mut().zip(step) {
                let at = (&raw const *line).cast::<__m256i>();
                // SAFETY: a line is two 32-byte halves and aligned to 64 bytes.
                let (low, high) = unsafe { (_mm256_load_si256(at), _mm256_load_si256(at.add(1))) };
                *sum = _mm256_xor_si256(*sum, _mm256_xor_si256(low, high));
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
    pub(super) fn avx512(lines: &[Line]) -> u64 {
        let (steps, rest) = lines.as_chunks::<STEP>();
        let mut sums = [_mm512_setzero_si512(); STEP];
        for step in steps {
            for (sum, line) in sums.iter_mut().zip(step) {
                // SAFETY: a line is 64 bytes and aligned to 64.
                let words = unsafe { _mm512_load_si512((&raw const *line).cast()) };
                *sum = _mm512_xor_si512(*sum, words);
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
        let readers = [
            Reader(Width::Plain),
            Reader::best(),
            #[cfg(target_arch = "x86_64")]
            Reader(if is_x86_feature_detected!("avx2") { Width::Avx2 } else { Width::Plain }),
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
    fn memory_that_cannot_be_had_is_no_rate() {
        assert_eq!(read_bandwidth(usize::MAX, 1, 7), None);
    }
}
