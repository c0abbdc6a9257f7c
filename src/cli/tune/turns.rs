//! Candidates that take turns, so that a slow moment of the machine slows all of them.

use super::super::clock::{Clock, median};
use super::super::error::CliError;
use std::time::{Duration, Instant};

/// Rounds in which the candidates take turns.
const ROUNDS: usize = 5;
/// A candidate that is that much slower in its first run than the best on as many threads is not measured further.
const HOPELESS: f64 = 2.0;

/// A kernel on a number of threads.
pub(super) trait Turn {
    /// On how many threads.
    fn threads(&self) -> usize;

    /// One run.
    fn run(&mut self) -> Result<(), CliError>;
}

/// Median microseconds of each of them. What is compared is measured by one clock: as soon as several threads work in one, by the
/// wall's.
pub(super) fn medians<T: Turn>(turns: &mut [T], quick: bool) -> Result<Vec<f64>, CliError> {
    let time = Duration::from_micros(if quick { 500 } else { 3000 });
    let clock = turns.iter().map(Turn::threads).max().unwrap_or(1);
    let mut times: Vec<Times> = Vec::new();
    // The first round is a single run, which warms up and sorts out.
    for turn in &mut *turns {
        let first = seconds(turn, clock, Duration::ZERO)?;
        times.push(Times { threads: turn.threads(), first, later: Vec::new() });
    }
    let left: Vec<usize> = (0..times.len()).filter(|at| !given_up(&times, *at)).collect();
    for _ in 0..ROUNDS {
        for at in &left {
            times[*at].later.push(seconds(&mut turns[*at], clock, time)?);
        }
    }
    Ok(times.iter_mut().map(|times| 1e6 * times.median()).collect())
}

/// What was measured of a candidate, in seconds.
struct Times {
    threads: usize,
    /// Its first run, with nothing of it in any cache yet. It is compared with other first runs alone.
    first: f64,
    later: Vec<f64>,
}

impl Times {
    /// Of the rounds behind the first; the first run of a candidate that was given up.
    fn median(&mut self) -> f64 {
        if self.later.is_empty() { self.first } else { median(&mut self.later) }
    }
}

/// Whether the first run of one of them was so slow that it is not measured further.
fn given_up(all: &[Times], at: usize) -> bool {
    let as_many = all.iter().filter(|times| times.threads == all[at].threads);
    all[at].first > HOPELESS * as_many.map(|times| times.first).fold(f64::INFINITY, f64::min)
}

/// Median seconds of as many runs as take `limit`, at least one.
fn seconds(turn: &mut impl Turn, clock: usize, limit: Duration) -> Result<f64, CliError> {
    let started = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || started.elapsed() < limit {
        let clock = Clock::start(clock);
        turn.run()?;
        times.push(clock.seconds());
    }
    Ok(median(&mut times))
}

/// The order of each number of threads, from kernels and their times: those with more than one candidate.
pub(super) fn orders<K>(found: Vec<(usize, K, f64)>) -> Vec<(usize, Vec<(K, f64)>)> {
    let mut orders: Vec<(usize, Vec<(K, f64)>)> = Vec::new();
    for (threads, kernel, us) in found {
        match orders.iter_mut().find(|(known, _)| *known == threads) {
            Some((_, order)) => order.push((kernel, us)),
            None => orders.push((threads, vec![(kernel, us)])),
        }
    }
    for (_, order) in &mut orders {
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_runs_are_held_against_first_runs() {
        let of = |threads, first, later: &[f64]| Times { threads, first, later: later.to_vec() };
        // Warm, all of them run several times as fast as at first.
        let all = [of(1, 10.0, &[2.0, 3.0]), of(1, 20.0, &[1.0]), of(1, 20.1, &[]), of(2, 50.0, &[9.0])];
        assert_eq!([0, 1, 2, 3].map(|at| given_up(&all, at)), [false, false, true, false]);
    }

    #[test]
    fn a_first_run_counts_only_where_nothing_followed() {
        let of = |later: &[f64]| Times { threads: 1, first: 100.0, later: later.to_vec() }.median();
        assert_eq!([of(&[3.0, 1.0]), of(&[3.0, 1.0, 2.0]), of(&[])], [3.0, 2.0, 100.0]);
    }

    /// A candidate that counts its runs, of which the first sleeps longer.
    struct Counted {
        first: Duration,
        runs: usize,
    }

    impl Turn for Counted {
        /// Several, so that time asleep counts.
        fn threads(&self) -> usize {
            2
        }

        fn run(&mut self) -> Result<(), CliError> {
            std::thread::sleep(if self.runs == 0 { self.first } else { Duration::from_micros(100) });
            self.runs += 1;
            Ok(())
        }
    }

    #[test]
    fn who_starts_slowly_is_measured_and_who_is_hopeless_is_not() -> Result<(), CliError> {
        let of = |milliseconds| Counted { first: Duration::from_millis(milliseconds), runs: 0 };
        // By far more than twice the warm times, but not twice the first of the other.
        let mut turns = [of(60), of(70), of(240)];
        let times = medians(&mut turns, true)?;
        assert!(turns[0].runs > ROUNDS && turns[1].runs > ROUNDS, "{} {}", turns[0].runs, turns[1].runs);
        assert_eq!(turns[2].runs, 1);
        assert!(times[0] < 40e3 && times[1] < 40e3 && times[2] >= 240e3, "{times:?}");
        Ok(())
    }
}
