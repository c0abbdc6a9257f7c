//! Times of launches and copies: a histogram that whoever has a time adds to without waiting.

use crate::snapshot::{Bucket, Sampled, ThreadLoad};
use gristmill_runtime::ThreadUse;
use hdrhistogram::Histogram;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// The longest time that a histogram tells from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;
/// Digits to which it keeps times.
const DIGITS: u8 = 2;

/// Times of one kind of work; none at first.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<Option<Kept>>);

#[derive(Clone, Debug)]
struct Kept {
    histogram: Histogram<u64>,
    sum_ns: u64,
    bytes_in: u64,
    min_ns: u64,
    max_ns: u64,
    threads: Option<ThreadLoad>,
}

impl Times {
    /// Adds a time; whether it was kept: not where another thread adds one at this moment.
    pub(crate) fn take(&self, time: Duration, bytes_in: u64, threads: Option<&ThreadUse>) -> bool {
        let mut kept = match self.0.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if kept.is_none() {
            *kept = Kept::new();
        }
        if let Some(kept) = kept.as_mut() {
            kept.take(time, bytes_in);
            if let Some(seen) = threads {
                kept.threads.get_or_insert_default().take(seen);
            }
        }
        true
    }

    /// What was kept so far; `None` where nothing was.
    pub(crate) fn sampled(&self) -> Option<Sampled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Kept::sampled)
    }
}

impl Kept {
    /// `None` never, since the bounds are such that a histogram takes them.
    fn new() -> Option<Kept> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).ok()?;
        Some(Kept { histogram, sum_ns: 0, bytes_in: 0, min_ns: u64::MAX, max_ns: 0, threads: None })
    }

    fn take(&mut self, time: Duration, bytes_in: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(ns.max(1));
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.bytes_in = self.bytes_in.saturating_add(bytes_in);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    fn sampled(&self) -> Sampled {
        let at = |percent: f64| self.histogram.value_at_percentile(percent).clamp(self.min_ns, self.max_ns);
        let mut buckets = Vec::new();
        let mut le_ns: u64 = 1000;
        loop {
            buckets.push(Bucket { le_ns, count: self.histogram.count_between(0, le_ns) });
            if le_ns >= self.max_ns || le_ns > LONGEST_NS {
                break;
            }
            le_ns *= 2;
        }
        Sampled {
            samples: self.histogram.len(),
            sum_ns: self.sum_ns,
            bytes_in: self.bytes_in,
            min_ns: self.min_ns,
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            max_ns: self.max_ns,
            threads: self.threads.clone(),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut times = Kept::new().expect("the bounds are good");
        // A stride that is coprime to the count gives each number once, out of order.
        let mut all: Vec<u64> = (0..10_007u64).map(|i| 900 + i * 7919 % 10_007 * 321).collect();
        for ns in &all {
            times.take(Duration::from_nanos(*ns), 10);
        }
        all.sort_unstable();
        let sampled = times.sampled();
        let rank = |percent: f64| all[(percent / 100.0 * all.len() as f64).ceil() as usize - 1];
        for (percent, found) in [(50.0, sampled.p50_ns), (90.0, sampled.p90_ns), (99.0, sampled.p99_ns)] {
            let (found, right) = (found as f64, rank(percent) as f64);
            assert!((found / right - 1.0).abs() < 0.01, "p{percent}: {found}, sorted {right}");
        }
        assert_eq!((sampled.min_ns, Some(&sampled.max_ns)), (all[0], all.last()));
        assert_eq!(sampled.sum_ns, all.iter().sum::<u64>());
        assert_eq!((sampled.samples, sampled.bytes_in), (10_007, 100_070));
        for bucket in &sampled.buckets {
            let right = all.iter().filter(|ns| **ns <= bucket.le_ns).count() as f64;
            // Times within a hundredth of the bound may be on its other side.
            let near = all.iter().filter(|ns| ns.abs_diff(bucket.le_ns) * 100 <= bucket.le_ns).count() as f64;
            assert!((bucket.count as f64 - right).abs() <= near, "{bucket:?}: {right}");
        }
        assert_eq!(sampled.buckets.last().map(|bucket| bucket.count), Some(10_007));
    }

    #[test]
    fn a_time_beyond_the_longest_is_counted_and_kept_as_the_longest() {
        let mut times = Kept::new().expect("the bounds are good");
        times.take(Duration::from_secs(200), 0);
        let sampled = times.sampled();
        assert_eq!((sampled.samples, sampled.max_ns), (1, 200_000_000_000));
        assert_eq!(sampled.sum_ns, 200_000_000_000);
    }
}
