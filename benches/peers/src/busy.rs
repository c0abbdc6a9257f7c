//! How busy other programs keep the machine, from the kernel's count of processor time.

use crate::error::Error;
use std::time::{Duration, Instant};

/// Processors that others may keep busy on average while something is measured for a record.
const MOST: f64 = 0.1;

/// A span of time.
pub struct Watch {
    started: Instant,
    all: Option<Duration>,
    own: Option<Duration>,
}

impl Watch {
    /// Begins now.
    pub fn start() -> Watch {
        Watch { started: Instant::now(), all: all(), own: own() }
    }

    /// Processors that other programs kept busy since then, on average; `None` if the system does not tell. Time that a hypervisor
    /// gave to other machines counts too, where it says so.
    pub fn others(&self) -> Option<f64> {
        let all = all()?.saturating_sub(self.all?);
        let own = own()?.saturating_sub(self.own?);
        Some(all.saturating_sub(own).as_secs_f64() / self.started.elapsed().as_secs_f64())
    }
}

/// An error if others keep more of the machine busy than a record may have beside it.
pub fn refuse_busy(when: &'static str, others: Option<f64>) -> Result<(), Error> {
    match others {
        Some(others) if others > MOST => Err(Error::Busy { when, others, most: MOST }),
        _ => Ok(()),
    }
}

/// Watches for two seconds in which this program does nothing.
pub fn now() -> Option<f64> {
    let watch = Watch::start();
    std::thread::sleep(Duration::from_secs(2));
    watch.others()
}

/// Time in which processors were not idle, all together.
fn all() -> Option<Duration> {
    let ticks = ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    // SAFETY: it takes a number and gives one.
    let a_second =
        u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|ticks| *ticks > 0)?;
    Some(Duration::from_micros(ticks.saturating_mul(1_000_000) / a_second))
}

/// What `/proc/stat` counts of all processors but idleness.
fn ticks(stat: &str) -> Option<u64> {
    let mut words = stat.lines().next()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of user.
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum())
}

/// Time that processors spent on this program, all threads.
fn own() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let refused = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (refused == 0).then(|| Duration::new(seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::ticks;

    #[test]
    fn idleness_and_guests_are_not_counted() {
        let stat = "cpu  1 10 100 7777 7777 1000 10000 100000 7777 7777\ncpu0 5 5 5 5 5 5 5 5 5 5\n";
        assert_eq!(ticks(stat), Some(111_111));
        assert_eq!(ticks("intr 1 2 3"), None);
    }
}
