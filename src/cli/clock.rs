//! Times of runs on a machine that others use too.

use std::time::{Duration, Instant, SystemTime};

/// Takes a time. On one thread, what the system took away for other programs is not counted.
pub struct Clock {
    start: Instant,
    cpu: Option<Duration>,
}

impl Clock {
    /// Starts it for work that `threads` threads do.
    pub fn start(threads: usize) -> Clock {
        let cpu = if threads == 1 { cpu_time() } else { None };
        Clock { cpu, start: Instant::now() }
    }

    /// Seconds since.
    pub fn seconds(self) -> f64 {
        let wall = self.start.elapsed();
        let cpu = self.cpu.and_then(|before| cpu_time()?.checked_sub(before));
        cpu.map_or(wall, |cpu| cpu.min(wall)).as_secs_f64()
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The middle; of an even number, the upper of both. Not of nothing.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Time that the processor spent on this thread; `None` where the system does not say.
#[cfg(unix)]
fn cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let refused = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (refused == 0).then(|| Duration::new(seconds, nanoseconds))
}

#[cfg(not(unix))]
fn cpu_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0]), 4.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn time_asleep_is_the_systems_on_one_thread_only() {
        let asleep = |threads| {
            let clock = Clock::start(threads);
            std::thread::sleep(Duration::from_millis(5));
            clock.seconds()
        };
        assert!(asleep(2) >= 0.005);
        if cfg!(unix) {
            assert!(asleep(1) < 0.004);
        }
    }
}
