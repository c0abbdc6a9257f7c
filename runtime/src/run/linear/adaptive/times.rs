//! Times of kernels that take turns.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs of each kernel whose times count.
pub(super) const ROUNDS: usize = 7;
/// A kernel that is that much slower than the fastest in its first run gets no more turns.
const HOPELESS: u64 = 2;
/// No time was taken.
const NONE: u64 = 0;

/// A time for each turn: of each round those of each kernel. The first round warms up and sorts out. Each round begins with the next
/// kernel: layers of a shape share turns, and those that alternate would each keep to kernels of their own.
#[derive(Debug)]
pub(super) struct Times {
    kernels: usize,
    turns: Vec<AtomicU64>,
}

impl Times {
    pub(super) fn of(kernels: usize) -> Times {
        Times { kernels, turns: (0..kernels * (ROUNDS + 1)).map(|_| AtomicU64::new(NONE)).collect() }
    }

    /// How many turns there are.
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Whose turn it is.
    pub(super) fn kernel(&self, turn: usize) -> usize {
        let kernels = self.kernels.max(1);
        (turn + turn / kernels) % kernels
    }

    /// The turn of a kernel in a round.
    fn turn_of(&self, round: usize, kernel: usize) -> usize {
        round * self.kernels + (kernel + self.kernels - round % self.kernels) % self.kernels
    }

    /// Keeps the time of a turn, in any unit.
    pub(super) fn keep(&self, turn: usize, time: u64) {
        if let Some(slot) = self.turns.get(turn) {
            slot.store(time.max(NONE + 1), Ordering::Relaxed);
        }
    }

    fn at(&self, turn: usize) -> Option<u64> {
        Some(self.turns.get(turn)?.load(Ordering::Relaxed)).filter(|time| *time != NONE)
    }

    /// Whether a kernel's first run was so slow that it gets no more.
    pub(super) fn given_up(&self, kernel: usize) -> bool {
        let best = (0..self.kernels).filter_map(|kernel| self.at(kernel)).min();
        matches!((self.at(kernel), best), (Some(own), Some(best)) if own > best.saturating_mul(HOPELESS))
    }

    /// The median of a kernel's rounds behind the first; `None` where fewer than half of them were timed.
    pub(super) fn median(&self, kernel: usize) -> Option<u64> {
        let mut times = [NONE; ROUNDS];
        let mut count = 0;
        for time in (1..=ROUNDS).filter_map(|round| self.at(self.turn_of(round, kernel))) {
            times[count] = time;
            count += 1;
        }
        times[..count].sort_unstable();
        (2 * count > ROUNDS).then(|| times[count / 2])
    }

    /// The kernel with the least median; of equal ones, and where there are none, the first.
    pub(super) fn fastest(&self) -> usize {
        let medians = (0..self.kernels).filter_map(|kernel| Some((self.median(kernel)?, kernel)));
        medians.min().map_or(0, |(_, kernel)| kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of each kernel, from the first round on.
    fn times(of_kernels: &[[u64; ROUNDS + 1]]) -> Times {
        let times = Times::of(of_kernels.len());
        for (kernel, all) in of_kernels.iter().enumerate() {
            for (round, time) in all.iter().enumerate().filter(|(_, time)| **time > 0) {
                times.keep(times.turn_of(round, kernel), *time);
            }
        }
        times
    }

    #[test]
    fn the_least_median_stays_whatever_single_runs_say() {
        // One run of the second is the shortest of all, and its first round the longest.
        let three = times(&[[10; 8], [19, 1, 11, 11, 11, 11, 12, 12], [10, 90, 9, 9, 9, 9, 90, 90]]);
        assert_eq!([0, 1, 2].map(|kernel| three.median(kernel)), [Some(10), Some(11), Some(9)]);
        assert_eq!(three.fastest(), 2);
        assert_eq!(times(&[[5; 8], [5; 8]]).fastest(), 0);
        assert_eq!(times(&[[0; 8], [0; 8]]).fastest(), 0);
    }

    #[test]
    fn what_was_timed_too_rarely_does_not_count() {
        let few = times(&[[10; 8], [10, 1, 1, 1, 0, 0, 0, 0]]);
        assert_eq!((few.median(1), few.fastest()), (None, 0));
        let enough = times(&[[10; 8], [10, 1, 1, 1, 1, 0, 0, 0]]);
        assert_eq!((enough.median(1), enough.fastest()), (Some(1), 1));
    }

    #[test]
    fn twice_as_slow_at_first_is_given_up() {
        let first = |times: [u64; 3]| {
            let all = Times::of(3);
            times
                .iter()
                .enumerate()
                .filter(|(_, time)| **time > 0)
                .for_each(|(at, time)| all.keep(at, *time));
            [0, 1, 2].map(|kernel| all.given_up(kernel))
        };
        assert_eq!(first([10, 20, 21]), [false, false, true]);
        assert_eq!(first([30, 14, 29]), [true, false, true]);
        // Of what was not run nothing is known.
        assert_eq!(first([10, 0, 0]), [false, false, false]);
        assert_eq!(Times::of(3).turns(), 24);
    }

    #[test]
    fn layers_that_alternate_run_each_kernel() {
        let three = Times::of(3);
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 9].map(|turn| three.kernel(turn)), [0, 1, 2, 1, 2, 0, 2, 0]);
        for times in [Times::of(1), Times::of(2), three] {
            for turn in 0..times.turns() {
                assert_eq!(times.turn_of(turn / times.kernels, times.kernel(turn)), turn);
            }
        }
        // Of two layers, by the timed rounds.
        let two = Times::of(2);
        let of_first =
            |kernel| (2..two.turns()).filter(|turn| turn % 2 == 0 && two.kernel(*turn) == kernel).count();
        assert_eq!([0, 1].map(of_first), [3, 4]);
    }
}
