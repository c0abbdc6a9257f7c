//! What makes all kernels of a machine slower: weights on small pages, and a clock that is held back.

use super::{Newest, Report};
use crate::host::{Clock, Host, HugePages};
use crate::record::{Record, Source};
use crate::regression::{Series, median};
use std::collections::BTreeMap;

/// Bytes of memory for which huge pages were asked from which on it counts where they lie.
const WORTH: u64 = 64 << 20;
/// A part of them in percent below which there are unusually few huge pages.
const FEW: f64 = 50.0;
/// A clock below so many percent of the highest is held back.
const HELD_BACK: f64 = 98.0;
/// Multiply units that are so many times as slow as before are unusual.
const SLOWER: f64 = 1.1;
/// Measurements before the newest that it is held against at most.
const BEFORE: usize = 10;

impl Report {
    /// What the system said to monitors.
    pub(super) fn hosts(&mut self, newest: &Newest<'_>) {
        for watch in &newest.watches {
            let Host { huge_pages, clock } = watch.host.clone().unwrap_or_default();
            match huge_pages {
                Some(pages) => self.huge_pages(&pages, &watch.place()),
                None => self.absent.push(format!(
                    "whether weights lie on huge pages on {}: the system did not tell the monitor",
                    watch.place()
                )),
            }
            match clock {
                Some(clock) => self.clock(&clock, &watch.place(), watch.seconds),
                None => self
                    .absent
                    .push(format!("the clock of {}: the system did not tell the monitor", watch.place())),
            }
        }
    }

    fn huge_pages(&mut self, pages: &HugePages, machine: &str) {
        let HugePages { mode, asked_bytes, huge_bytes } = pages;
        let percent = 100.0 * *huge_bytes as f64 / (*asked_bytes).max(1) as f64;
        if *asked_bytes < WORTH || percent >= FEW {
            return;
        }
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        let advice = match mode.as_str() {
            "never" => {
                "let programs have them (`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, as root) and start the program again"
            }
            "always" | "madvise" => {
                "start the program again when memory is free in large pieces (`echo 1 > /proc/sys/vm/compact_memory`, as root, before it)"
            }
            _ => "start the program without what turns them off for it (PR_SET_THP_DISABLE)",
        };
        self.found(
            format!("packed weights lie on small pages on {machine}"),
            format!(
                "{:.0} MiB of {:.0} MiB that huge pages were asked for lie on them ({percent:.0} %); the system gives them out: {mode}",
                mib(huge_bytes),
                mib(asked_bytes)
            ),
            advice,
        );
    }

    fn clock(&mut self, clock: &Clock, machine: &str, seconds: f64) {
        if let Some(times) = clock.throttled.filter(|times| *times > 0) {
            self.found(
                format!("a processor was throttled on {machine}"),
                format!("it was too hot {times} times in the {seconds:.0} s of the monitor"),
                "look after its cooling and power limits; times that were measured meanwhile say nothing of the kernels",
            );
        }
        let (Some(allowed), Some(highest)) = (clock.allowed_mhz, clock.highest_mhz) else { return };
        let percent = 100.0 * allowed as f64 / highest.max(1) as f64;
        if percent < HELD_BACK {
            self.found(
                format!("the clock is held back on {machine}"),
                format!("a processor may run at {allowed} MHz of {highest} MHz ({percent:.0} %)"),
                "look at the system's power profile and limits (`cpupower frequency-info`)",
            );
        }
    }

    /// Machines whose multiply units, as `bench` measures them beside the kernels, are slower than before.
    pub(super) fn multiply_units(&mut self, all: &[Series<'_>]) {
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for series in all.iter().filter(|series| series.source == Source::Bench) {
            let Some((newest, before)) = series.records.split_last() else { continue };
            let before: Vec<f64> =
                before.iter().rev().take(BEFORE).filter_map(|record| least_us(record)).collect();
            if let (Some(now), Some(before)) = (least_us(newest), median(&before)) {
                ratios.entry(series.machine).or_default().push(now / before);
            }
        }
        for (machine, ratios) in ratios {
            let Some(ratio) = median(&ratios).filter(|ratio| *ratio > SLOWER) else { continue };
            self.found(
                format!("the multiply units of {machine} are slower than before"),
                format!(
                    "the least time that they need, which bench measures beside the kernels, is {ratio:.2} times as long: the median of \
                     {} works",
                    ratios.len()
                ),
                "the clock is throttled, or something else runs on the cores: look at temperature and power limits (`cpupower \
                 frequency-info`), and measure once more when nothing else runs",
            );
        }
    }
}

/// Microseconds that the machine's multiply units need at least, where they are the kernel's ceiling.
fn least_us(record: &Record) -> Option<f64> {
    (record.ceiling.as_deref() == Some("multiply")).then_some(record.us? * record.percent? / 100.0)
}
