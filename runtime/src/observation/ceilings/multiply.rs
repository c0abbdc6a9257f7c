//! Peak of the int8 multiply units.
//!
//! Each loop keeps so many independent sums that the multiply units, not the latency of an addition, are
//! the limit, and touches no memory. It returns its sums, which the tests compare with the exact ones: a
//! loop that the compiler has thinned out gives wrong sums.

use crate::vocab::{FeatureSet, Isa};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// Multiply-accumulates of int8 values that `threads` threads together finish with `isa`, in GMAC/s (1e9 a
/// second): what a quarter of the windows reach in which about `ms` milliseconds are divided. Zero threads
/// count as one.
///
/// The products are summed by the cheapest instructions that `features` and this processor both have: with AVX-512 by those of tiles
/// (AMX), `vpdpbusd` into i32 where there is one, else `pmaddubsw` with its pairs added in i16 (`paddw`). Kernels
/// without `vpdpbusd` have to widen their sums now and then besides, so they stay below this.
///
/// `None` where the processor (or `features`) lacks `isa`, for `scalar`, which names no instructions, and
/// where the threads can't be started.
pub fn multiply_peak(isa: Isa, features: FeatureSet, threads: usize, ms: u32) -> Option<f64> {
    let peak = Loop::choose(isa, features)?;
    let threads = threads.max(1);
    let windows = super::windows(threads, ms);
    let limit = super::window(threads);
    if threads == 1 {
        return super::upper_quartile((0..windows).map(|_| rate(peak, limit)).collect());
    }
    let barrier = Barrier::new(threads);
    // Whether all threads could be started: the barrier must not be waited at by fewer.
    let complete: OnceLock<bool> = OnceLock::new();
    let per_thread: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let mut started = Vec::new();
        for _ in 0..threads {
            let (barrier, complete) = (&barrier, &complete);
            let count = move || {
                let in_step = |_| {
                    barrier.wait();
                    rate(peak, limit)
                };
                complete.wait().then(|| (0..windows).map(in_step).collect())
            };
            match std::thread::Builder::new().name("multiply-peak".to_owned()).spawn_scoped(scope, count) {
                Ok(thread) => started.push(thread),
                Err(_) => break,
            }
        }
        // Set here and only here.
        complete.get_or_init(|| started.len() == threads);
        started.into_iter().map(|thread| thread.join().ok()?).collect::<Option<_>>()
    })
    .filter(|rates: &Vec<_>| rates.len() == threads)?;
    let sum_of = |window: usize| per_thread.iter().map(|rates| rates[window]).sum();
    super::upper_quartile((0..windows as usize).map(sum_of).collect())
}

/// GMAC/s of this thread in one window.
fn rate(peak: Loop, limit: Duration) -> f64 {
    // Short enough to end a window in time, long enough to hide what reading the clock costs.
    const ITERATIONS: u32 = 1000;
    peak.run(ITERATIONS); // Wakes the wide units up.
    let start = Instant::now();
    let mut iterations = 0u64;
    loop {
        std::hint::black_box(peak.run(ITERATIONS));
        iterations += u64::from(ITERATIONS);
        let elapsed = start.elapsed();
        if elapsed >= limit {
            return (iterations * peak.macs()) as f64 / elapsed.as_secs_f64() / 1e9;
        }
    }
}

#[cfg(target_arch = "x86_64")]
use x86::Loop;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{FeatureSet, Isa};
    use crate::CpuProfile;
    use crate::simd::amx;
    use crate::vocab::Feature;
    use std::arch::x86_64::*;

    /// Independent sums of a loop around `vpdpbusd`: at least two units times five cycles of latency. They
    /// leave three of sixteen registers for the factors.
    const DOT_CHAINS: usize = 12;
    /// Independent sums of a loop around `pmaddubsw`, where only the addition waits for the one before it.
    const MADD_CHAINS: usize = 6;
    /// Independent sums of a loop around `tdpbusd`: sixteen cycles each are more than its latency of 52.
    const TILE_CHAINS: usize = 4;
    /// First factor: unsigned bytes.
    const A: i8 = 3;
    /// What the first factor of a `pmaddubsw` grows by from iteration to iteration. No product of such a
    /// byte and a [`factor`] saturates: 2 * 255 * 6 fits an i16. (Their sum over iterations wraps.)
    const STEP: i8 = 1;
    /// Second factor of a `vpdpbusd`.
    const B: i8 = -5;

    /// Second factor of a `pmaddubsw`, another one for each chain lest they be computed once for all.
    const fn factor(chain: usize) -> i8 {
        chain as i8 + 1
    }

    /// A loop that this processor can run: made only by [`Loop::choose`].
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Loop(Kind);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        Sse41,
        Avx2,
        AvxVnni,
        Avx512Bw,
        Avx512Vnni,
        AmxInt8,
    }

    impl Loop {
        /// The best loop of `isa` within `features` that this processor can run.
        ///
        /// `features` may be those of a pretended machine, so the processor is asked as well.
        pub(super) fn choose(isa: Isa, features: FeatureSet) -> Option<Loop> {
            let detected = CpuProfile::detect().features;
            let has = |feature: Feature| features.has(feature) && detected.has(feature);
            if !isa.features().iter().all(|&feature| has(feature)) {
                return None;
            }
            match isa {
                Isa::Scalar | Isa::Neon => None,
                Isa::Sse41 => Some(Loop(Kind::Sse41)),
                Isa::Avx2 => Some(Loop(Kind::Avx2)),
                Isa::AvxVnni => Some(Loop(Kind::AvxVnni)),
                Isa::Avx512 if has(Feature::AmxInt8) => Some(Loop(Kind::AmxInt8)),
                Isa::Avx512 if has(Feature::Avx512vnni) => Some(Loop(Kind::Avx512Vnni)),
                Isa::Avx512 => Some(Loop(Kind::Avx512Bw)),
            }
        }

        /// Multiply-accumulates of an iteration.
        pub(super) fn macs(self) -> u64 {
            let (bytes, chains) = match self.0 {
                Kind::Sse41 => (16, MADD_CHAINS),
                Kind::Avx2 => (32, MADD_CHAINS),
                Kind::Avx512Bw => (64, MADD_CHAINS),
                Kind::AvxVnni => (32, DOT_CHAINS),
                Kind::Avx512Vnni => (64, DOT_CHAINS),
                Kind::AmxInt8 => (16 * 16 * 64, TILE_CHAINS),
            };
            bytes * chains as u64
        }

        /// Runs the loop and returns the wrapping sum of one lane over all chains.
        pub(super) fn run(self, iterations: u32) -> i32 {
            match self.0 {
                // SAFETY: `choose` made this value only after the processor was found to have the features.
                Kind::Sse41 => unsafe { sse41(iterations) },
                // SAFETY: as above.
                Kind::Avx2 => unsafe { avx2(iterations) },
                // SAFETY: as above.
                Kind::AvxVnni => unsafe { avxvnni(iterations) },
                // SAFETY: as above.
                Kind::Avx512Bw => unsafe { avx512bw(iterations) },
                // SAFETY: as above.
                Kind::Avx512Vnni => unsafe { avx512vnni(iterations) },
                // SAFETY: as above; `iterations` is not 0.
                Kind::AmxInt8 => unsafe { amx::peak(A.cast_unsigned(), B, iterations.max(1)) },
            }
        }
    }

    /// A loop around `vpdpbusd`. The factors are always the same: the instruction reads the sum it adds to, so
    /// the compiler cannot move it out of the loop. The sums start from different values, so that it cannot
    /// take one chain for another.
    macro_rules! dot_loop {
        ($(#[$meta:meta])* $name:ident, $set1:ident, $set1d:ident, $dot:ident, $lane:expr) => {
            $(#[$meta])*
            fn $name(iterations: u32) -> i32 {
                let a = $set1(std::hint::black_box(A));
                let b = $set1(std::hint::black_box(B));
                let mut sums = [a; DOT_CHAINS];
                for (chain, sum) in sums.iter_mut().enumerate() {
                    *sum = $set1d(std::hint::black_box(chain as i32));
                }
                for _ in 0..iterations {
                    for sum in &mut sums {
                        *sum = $dot(*sum, a, b);
                    }
                }
                sums.into_iter().map($lane).fold(0, i32::wrapping_add)
            }
        };
    }

    /// A loop around `pmaddubsw` and `paddw`. Products do not depend on the sum, so the first factor changes
    /// from iteration to iteration lest they be computed once: an instruction for all chains, on a unit that
    /// does not multiply.
    macro_rules! madd_loop {
        ($(#[$meta:meta])* $name:ident, $set1:ident, $zero:ident, $maddubs:ident, $add:ident, $add8:ident,
         $lane:expr) => {
            $(#[$meta])*
            fn $name(iterations: u32) -> i32 {
                let mut a = $set1(std::hint::black_box(A));
                let step = $set1(std::hint::black_box(STEP));
                let mut sums = [$zero(); MADD_CHAINS];
                for _ in 0..iterations {
                    for (chain, sum) in sums.iter_mut().enumerate() {
                        *sum = $add(*sum, $maddubs(a, $set1(factor(chain))));
                    }
                    a = $add8(a, step);
                }
                sums.into_iter().map($lane).fold(0, i32::wrapping_add)
            }
        };
    }

    madd_loop! {
        #[target_feature(enable = "ssse3,sse4.1")]
        sse41, _mm_set1_epi8, _mm_setzero_si128, _mm_maddubs_epi16, _mm_add_epi16, _mm_add_epi8,
        |sum| i32::from(_mm_cvtsi128_si32(sum) as i16)
    }
    madd_loop! {
        #[target_feature(enable = "avx2")]
        avx2, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_maddubs_epi16, _mm256_add_epi16,
        _mm256_add_epi8, |sum| i32::from(_mm256_cvtsi256_si32(sum) as i16)
    }
    madd_loop! {
        #[target_feature(enable = "avx512f,avx512bw")]
        avx512bw, _mm512_set1_epi8, _mm512_setzero_si512, _mm512_maddubs_epi16, _mm512_add_epi16,
        _mm512_add_epi8, |sum| i32::from(_mm512_cvtsi512_si32(sum) as i16)
    }
    dot_loop! {
        #[target_feature(enable = "avx2,avxvnni")]
        avxvnni, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_dpbusd_avx_epi32,
        |sum| _mm256_cvtsi256_si32(sum)
    }
    dot_loop! {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        avx512vnni, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_dpbusd_epi32,
        |sum| _mm512_cvtsi512_si32(sum)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::vocab::Arch;

        fn all_features() -> FeatureSet {
            Feature::ALL.iter().copied().collect()
        }

        #[test]
        fn every_loop_multiplies_as_often_as_it_says() {
            let iterations = 1001u32;
            let mut ran = 0;
            let without_tiles = all_features().without(Feature::AmxInt8);
            let without_vnni = without_tiles.without(Feature::Avx512vnni);
            for features in [all_features(), without_tiles, without_vnni] {
                for &isa in Isa::ALL.iter().filter(|isa| isa.arch() == Arch::X86) {
                    let Some(peak) = Loop::choose(isa, features) else {
                        eprintln!("skipped {isa}: this processor lacks it");
                        continue;
                    };
                    let exact: i64 = match peak.0 {
                        // Four products to a lane of 32 bits.
                        Kind::AvxVnni | Kind::Avx512Vnni => (0..DOT_CHAINS as i64)
                            .map(|start| start + 4 * i64::from(iterations) * i64::from(A) * i64::from(B))
                            .sum(),
                        // Two to a lane of 16 bits, whose sum wraps.
                        Kind::Sse41 | Kind::Avx2 | Kind::Avx512Bw => {
                            let first = |i: u32| A.wrapping_add(STEP.wrapping_mul(i as i8)).cast_unsigned();
                            let firsts: i64 = (0..iterations).map(|i| i64::from(first(i))).sum();
                            let lane = |chain| (2 * firsts * i64::from(factor(chain))) as i16;
                            (0..MADD_CHAINS).map(|chain| i64::from(lane(chain))).sum()
                        }
                        // 64 products to a sum.
                        Kind::AmxInt8 => {
                            TILE_CHAINS as i64 * 64 * i64::from(iterations) * i64::from(A) * i64::from(B)
                        }
                    };
                    assert_eq!(i64::from(peak.run(iterations)), exact, "{isa} {peak:?}");
                    ran += 1;
                }
            }
            eprintln!("ran {ran} loops");
            assert!(ran > 0 || !CpuProfile::detect().features.has(Feature::Sse41));
        }

        #[test]
        fn a_pretended_machine_gets_no_more_than_it_has() {
            assert!(Loop::choose(Isa::Avx512, FeatureSet::EMPTY).is_none());
            assert!(Loop::choose(Isa::Sse41, FeatureSet::EMPTY.with(Feature::Sse41)).is_none());
            assert!(Loop::choose(Isa::Scalar, all_features()).is_none());
            let avx512 = FeatureSet::EMPTY.with(Feature::Avx512f).with(Feature::Avx512bw);
            if let Some(peak) = Loop::choose(Isa::Avx512, avx512) {
                assert_eq!(peak.0, Kind::Avx512Bw);
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use elsewhere::Loop;

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::{FeatureSet, Isa};

    /// No loop is written for other architectures: their peak is not known.
    #[derive(Clone, Copy, Debug)]
    pub(super) enum Loop {}

    impl Loop {
        pub(super) fn choose(_: Isa, _: FeatureSet) -> Option<Loop> {
            None
        }

        pub(super) fn macs(self) -> u64 {
            match self {}
        }

        pub(super) fn run(self, _: u32) -> i32 {
            match self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocab::Feature;

    #[test]
    fn rates_are_positive_where_there_are_any() {
        let features: FeatureSet = Feature::ALL.iter().copied().collect();
        for (&isa, threads) in Isa::ALL.iter().flat_map(|isa| [(isa, 0), (isa, 1), (isa, 3)]) {
            match multiply_peak(isa, features, threads, 1) {
                Some(rate) => assert!(rate.is_finite() && rate > 0.0, "{isa}: {rate}"),
                None => eprintln!("{isa}: no rate here"),
            }
        }
    }
}
