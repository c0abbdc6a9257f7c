//! Times: in rounds, each beside a look at the ceilings, so that a slow moment of a shared machine slows both.

use super::super::clock::{Clock, median};
use super::super::error::CliError;
use super::machine::{Ceiling, Demand, Machine};
use std::time::{Duration, Instant};

/// Least bytes of all copies together for cold memory: ten times the last-level cache of a common server part.
pub const COLD_BYTES: usize = 320 << 20;

/// Least time of a sample, where several runs are needed for it.
const SAMPLE: Duration = Duration::from_micros(50);

/// How long is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    rounds: usize,
    /// Time of a round, if that allows for more than one run.
    round: Duration,
}

impl Effort {
    pub const FULL: Effort = Effort { rounds: 7, round: Duration::from_millis(20) };
    pub const QUICK: Effort = Effort { rounds: 3, round: Duration::from_millis(8) };

    /// Rounds of which the median is taken.
    #[cfg(feature = "cuda")]
    pub fn rounds(self) -> usize {
        self.rounds
    }
}

/// What the rounds gave.
#[derive(Clone, Debug)]
pub struct Times {
    /// Median of the rounds' medians.
    pub seconds: f64,
    /// Medians of the rounds, in their order.
    pub rounds: Vec<f64>,
    /// Median deviation of the rounds' medians from it, as a part of it.
    pub noise: f64,
    pub ceiling: Ceiling,
    /// Median over the rounds of the least possible time in percent of the time taken.
    pub percent: f64,
}

/// Runs `work` over and over and takes its times. Its argument counts the runs.
pub fn times(
    effort: Effort,
    demand: &Demand,
    machine: &mut Machine,
    mut work: impl FnMut(usize) -> Result<(), CliError>,
) -> Result<Times, CliError> {
    let (mut medians, mut percents, mut ceilings) = (Vec::new(), Vec::new(), Vec::new());
    let mut run = 0;
    let mut next = |work: &mut dyn FnMut(usize) -> Result<(), CliError>| {
        run += 1;
        work(run - 1)
    };
    // Warms up pages and the pool.
    next(&mut work)?;
    let once = Instant::now();
    next(&mut work)?;
    let once = once.elapsed().max(Duration::from_nanos(1));
    // Short runs are timed together: reading clocks disturbs what comes next for a while.
    let together = usize::try_from(SAMPLE.as_nanos() / once.as_nanos()).unwrap_or(1).clamp(1, 1000);
    for _ in 0..effort.rounds {
        let least = machine.least_time(demand);
        let mut samples = Vec::new();
        // A look has filled the caches with other data.
        if demand.hot {
            next(&mut work)?;
        }
        let started = Instant::now();
        while samples.is_empty() || started.elapsed() < effort.round {
            let clock = Clock::start(demand.threads);
            for _ in 0..together {
                next(&mut work)?;
            }
            samples.push(clock.seconds() / together as f64);
        }
        let seconds = median(&mut samples);
        medians.push(seconds);
        if let Some((least, ceiling)) = least {
            // The best rate seen is the ceiling, and if it is the kernel's own.
            percents.push((100.0 * least / seconds).min(100.0));
            ceilings.push(ceiling);
        }
    }
    let rounds = medians.clone();
    let seconds = median(&mut medians);
    let mut deviations: Vec<f64> = medians.iter().map(|median| (median - seconds).abs()).collect();
    let reads = ceilings.iter().filter(|ceiling| **ceiling == Ceiling::Read).count();
    Ok(Times {
        seconds,
        rounds,
        noise: median(&mut deviations) / seconds,
        ceiling: if 2 * reads >= ceilings.len() { Ceiling::Read } else { Ceiling::Multiply },
        percent: if percents.is_empty() { f64::NAN } else { median(&mut percents) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_never_over_100() -> Result<(), CliError> {
        // More work asked of the machine than is done.
        let demand = Demand { gmacs: 0.0, units: None, bytes: 1 << 30, hot: false, threads: 1 };
        let times = times(Effort::QUICK, &demand, &mut Machine::new(), |_| Ok(()))?;
        assert_eq!((times.percent, times.ceiling), (100.0, Ceiling::Read));
        Ok(())
    }
}
