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
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); turns.len()];
    for round in 0..=ROUNDS {
        for at in 0..turns.len() {
            let threads = turns[at].threads();
            let firsts = turns.iter().zip(&times).filter(|(turn, _)| turn.threads() == threads);
            let best = firsts.flat_map(|(_, times)| times.iter().copied()).fold(f64::INFINITY, f64::min);
            if times[at].first().is_some_and(|first| *first > HOPELESS * best) {
                continue;
            }
            // The first round is a single run, which warms up and sorts out.
            let limit = if round == 0 { Duration::ZERO } else { time };
            times[at].push(seconds(&mut turns[at], clock, limit)?);
        }
    }
    Ok(times.iter_mut().map(|times| 1e6 * median(times)).collect())
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
