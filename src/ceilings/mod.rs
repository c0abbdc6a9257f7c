//! What this machine can do at most: measured, in this process, so that a kernel's rate can be given as a
//! part of it.
//!
//! Two ceilings bound every kernel of this crate: how many int8 products the multiply units finish
//! ([`multiply_peak`]) and how many bytes of weights memory delivers ([`read_bandwidth`]). On shared
//! machines both change from minute to minute; compare only figures of one run.

mod multiply;
mod read;

pub use multiply::multiply_peak;
pub use read::read_bandwidth;

use std::time::Duration;

/// Runs of which the median is taken.
const RUNS: u32 = 7;

/// Time for one of [`RUNS`] runs that take `ms` milliseconds together.
fn time_of_run(ms: u32) -> Duration {
    Duration::from_millis(ms.into()) / RUNS
}

/// The median; `None` if there are no rates.
fn median(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }
}
