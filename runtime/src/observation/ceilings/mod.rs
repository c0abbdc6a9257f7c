//! What this machine can do at most: measured, in this process, so that a kernel's rate can be given as a
//! part of it.
//!
//! Two ceilings bound every kernel of this crate: how many int8 products the multiply units finish
//! ([`multiply_peak`]) and how many bytes of weights memory delivers ([`ReadBuffers`]). On shared
//! machines both change from moment to moment; compare only figures of one moment.

mod multiply;
mod nodes;
mod read;

pub use multiply::multiply_peak;
pub use read::{Level, ReadBuffers, read_bandwidth};

use std::time::Duration;

/// Windows in which rates are taken, at least.
const LEAST_WINDOWS: u32 = 3;

/// Length of a window. Short, so that most windows pass between two interruptions by other programs; several
/// threads need longer ones, or those that start late would not overlap the others.
const fn window(threads: usize) -> Duration {
    if threads > 1 { Duration::from_millis(1) } else { Duration::from_micros(200) }
}

/// How many windows `ms` milliseconds are.
fn windows(threads: usize, ms: u32) -> u32 {
    let fit = Duration::from_millis(ms.into()).as_micros() / window(threads).as_micros().max(1);
    u32::try_from(fit).unwrap_or(u32::MAX).max(LEAST_WINDOWS)
}

/// The rate that a quarter of the windows reach: a ceiling is what the machine does when it is left alone.
/// `None` if there are no rates.
fn upper_quartile(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() * 3 / 4).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_reaches_the_upper_quartile() {
        assert_eq!(upper_quartile(vec![3.0, 1.0, 4.0, 2.0]), Some(4.0));
        assert_eq!(upper_quartile(vec![5.0, 1.0, 4.0, 2.0, 3.0]), Some(4.0));
        assert_eq!(upper_quartile(vec![7.0]), Some(7.0));
        assert_eq!(upper_quartile(vec![]), None);
    }

    #[test]
    fn there_are_always_some_windows() {
        assert_eq!(windows(1, 0), LEAST_WINDOWS);
        assert_eq!(windows(1, 2), 10);
        assert_eq!(windows(2, 10), 10);
    }
}
