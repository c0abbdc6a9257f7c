//! What kernels do now: the difference of two snapshots of one monitor.

use crate::date::date;
use crate::record::{Work, sum};
use crate::snapshot::{CacheLoad, KernelLoad, Row, Sampled, Snapshot, TransferLoad};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What happened between two looks at a monitor.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// When it was looked at last, in seconds since 1970.
    pub at: u64,
    /// The processor.
    pub machine: String,
    /// Seconds between the looks, or since the monitor began.
    pub seconds: f64,
    /// Whether that is since it began: it is the first look, or the program was started again.
    pub since_begin: bool,
    /// Kernels that were launched, those that took most time first.
    pub rows: Vec<LiveRow>,
    /// Fallbacks that were taken.
    pub fallbacks: u64,
    /// Steps that were done because a kernel failed.
    pub recoveries: u64,
    /// Copies of devices' memory, where there were some.
    pub transfers: Vec<LiveTransfer>,
    /// What was kept and was not there: its name and device, and how often.
    pub misses: Vec<(String, u64)>,
}

/// Copies of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveTransfer {
    /// Which way, with the devices.
    pub name: String,
    /// Copies in a second.
    pub per_second: f64,
    /// 1e6 bytes in a second.
    pub mb_s: f64,
}

/// A kernel in a class of shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRow {
    /// Its name.
    pub kernel: String,
    /// The class, and the GPU where it ran on one.
    pub work: String,
    /// Launches in a second.
    pub per_second: f64,
    /// Part of the time that one thread of launches had, in percent, were all as long as those that were timed meanwhile; `None` where
    /// none was.
    pub busy_percent: Option<f64>,
    /// Mean microseconds of those that were timed meanwhile.
    pub mean_us: Option<f64>,
    /// The 99th percentile since the monitor began.
    pub p99_us: Option<f64>,
    /// 1e9 bytes a second that the timed ones read.
    pub gb_s: Option<f64>,
    /// The part of their time that threads worked, in percent.
    pub threads_percent: Option<f64>,
    /// Launches that ended in a fault.
    pub faults: u64,
}

impl Live {
    /// What happened from `before` to `now`. A monitor of another program, or of one that was started again, begins anew.
    pub fn between(before: Option<&Snapshot>, now: &Snapshot) -> Live {
        let later = by_row(now);
        let same = |before: &&Snapshot| {
            before.machine == now.machine
                && (&before.package, &before.program) == (&now.package, &now.program)
                && before.seconds <= now.seconds
                && before
                    .kernels
                    .iter()
                    .all(|load| later.get(&load.row()).is_some_and(|later| later.launches >= load.launches))
        };
        let before = before.filter(same);
        let earlier = before.map(by_row).unwrap_or_default();
        let seconds = now.seconds - before.map_or(0.0, |before| before.seconds);
        let mut rows: Vec<(f64, LiveRow)> = Vec::new();
        for load in &now.kernels {
            let earlier = earlier.get(&load.row()).copied();
            let launches = load.launches.saturating_sub(earlier.map_or(0, |earlier| earlier.launches));
            if launches > 0 {
                let row = LiveRow::of(earlier, load, launches, seconds);
                rows.push((row.busy_percent.unwrap_or(0.0), row));
            }
        }
        rows.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| b.1.per_second.total_cmp(&a.1.per_second)));
        let fallbacks = |of: &Snapshot| sum(of.fallbacks.iter().map(|fallback| fallback.runs));
        let recoveries = |of: &Snapshot| sum(of.recoveries.iter().map(|step| step.count));
        Live {
            at: now.at,
            machine: now.machine.clone(),
            seconds,
            since_begin: before.is_none(),
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            fallbacks: fallbacks(now).saturating_sub(before.map_or(0, fallbacks)),
            recoveries: recoveries(now).saturating_sub(before.map_or(0, recoveries)),
            transfers: transfers(before, now, seconds),
            misses: misses(before, now),
        }
    }

    /// As text for people, with at most so many kernels.
    pub fn to_text(&self, most: usize) -> String {
        let mut out = String::new();
        // Writing to a String can't fail.
        let _ = self.write_text(most, &mut out);
        out
    }

    fn write_text(&self, most: usize, out: &mut String) -> std::fmt::Result {
        let since = if self.since_begin { " since the monitor began" } else { "" };
        writeln!(out, "{} (UTC), {:.1} s{since}, {}", date(self.at), self.seconds, self.machine)?;
        if self.rows.is_empty() {
            writeln!(out, "no launches")?;
        } else {
            writeln!(
                out,
                "{:>7} {:>10} {:>10} {:>10} {:>8} {:>8}  kernel",
                "busy %", "launches/s", "mean us", "p99 us", "GB/s", "threads"
            )?;
        }
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        for row in self.rows.iter().take(most) {
            writeln!(
                out,
                "{:>7} {:>10.1} {:>10} {:>10} {:>8} {:>8}  {} {}",
                number(row.busy_percent, 1),
                row.per_second,
                number(row.mean_us, 1),
                number(row.p99_us, 1),
                number(row.gb_s, 1),
                row.threads_percent.map_or("-".to_owned(), |percent| format!("{percent:.0} %")),
                row.kernel,
                row.work
            )?;
        }
        if self.rows.len() > most {
            writeln!(out, "and {} more", self.rows.len() - most)?;
        }
        let mut faults: Vec<&LiveRow> = self.rows.iter().filter(|row| row.faults > 0).collect();
        faults.sort_by_key(|row| Reverse(row.faults));
        for row in faults {
            writeln!(out, "{} refused its input {}", row.kernel, counted(row.faults, "time", "times"))?;
        }
        for LiveTransfer { name, per_second, mb_s } in &self.transfers {
            writeln!(out, "{name}: {per_second:.1} copies/s, {mb_s:.1} MB/s")?;
        }
        for (name, count) in &self.misses {
            writeln!(out, "{name}: {}", counted(*count, "miss", "misses"))?;
        }
        let fallbacks = (self.fallbacks, "fallback", "fallbacks");
        let recoveries = (self.recoveries, "step of recovery", "steps of recovery");
        for (count, one, many) in [fallbacks, recoveries] {
            if count > 0 {
                writeln!(out, "{}: `gristmill report` says which", counted(count, one, many))?;
            }
        }
        Ok(())
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn transfers(before: Option<&Snapshot>, now: &Snapshot, seconds: f64) -> Vec<LiveTransfer> {
    let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let moved = |load: &TransferLoad| {
        let earlier =
            before.and_then(|before| before.transfers.iter().find(|then| then.name() == load.name()));
        let since = |of: fn(&TransferLoad) -> u64| of(load).saturating_sub(earlier.map_or(0, of));
        let (copies, bytes) = (since(|load| load.copies), since(|load| load.bytes));
        let [per_second, mb_s] = [rate(copies), rate(bytes) / 1e6];
        (copies > 0).then(|| LiveTransfer { name: load.name(), per_second, mb_s })
    };
    now.transfers.iter().filter_map(moved).collect()
}

fn misses(before: Option<&Snapshot>, now: &Snapshot) -> Vec<(String, u64)> {
    let missed = |load: &CacheLoad| {
        let same = |then: &&CacheLoad| then.cache == load.cache && then.device == load.device;
        let earlier = before.and_then(|before| before.caches.iter().find(same)).map_or(0, |then| then.misses);
        let misses = load.misses.saturating_sub(earlier);
        (misses > 0).then(|| (format!("{} for {}", load.cache, load.device), misses))
    };
    now.caches.iter().filter_map(missed).collect()
}

fn by_row(snapshot: &Snapshot) -> BTreeMap<Row<'_>, &KernelLoad> {
    snapshot.kernels.iter().map(|load| (load.row(), load)).collect()
}

impl LiveRow {
    fn of(earlier: Option<&KernelLoad>, now: &KernelLoad, launches: u64, seconds: f64) -> LiveRow {
        let per_second = if seconds > 0.0 { launches as f64 / seconds } else { 0.0 };
        let then = earlier.and_then(|earlier| earlier.time.as_ref());
        let meanwhile = now.time.as_ref().and_then(|time| Meanwhile::of(then, time));
        let mean_us = meanwhile.as_ref().map(|timed| timed.ns / timed.samples / 1e3);
        LiveRow {
            kernel: now.kernel.clone(),
            work: format!(
                "{}{}",
                Work::Class { tokens: now.tokens, weights: now.weights, threads: None },
                now.on()
            ),
            per_second,
            busy_percent: mean_us.map(|us| us * per_second / 1e4),
            mean_us,
            p99_us: now.time.as_ref().map(|time| time.p99_ns as f64 / 1e3),
            gb_s: meanwhile.as_ref().map(|timed| timed.bytes / timed.ns),
            threads_percent: meanwhile.and_then(|timed| timed.threads_percent),
            faults: now
                .faults
                .unwrap_or(0)
                .saturating_sub(earlier.and_then(|earlier| earlier.faults).unwrap_or(0)),
        }
    }
}

/// Sums of launches that were timed between two looks.
struct Meanwhile {
    samples: f64,
    ns: f64,
    bytes: f64,
    threads_percent: Option<f64>,
}

impl Meanwhile {
    fn of(then: Option<&Sampled>, now: &Sampled) -> Option<Meanwhile> {
        let since =
            |of: fn(&Sampled) -> u64| of(now).checked_sub(then.map_or(0, of)).map(|count| count as f64);
        let samples = since(|time| time.samples).filter(|samples| *samples > 0.0)?;
        let threads = |of: fn(&crate::ThreadLoad) -> u64| {
            let now = of(now.threads.as_ref()?);
            let then = then.and_then(|then| then.threads.as_ref()).map_or(0, of);
            now.checked_sub(then).map(|ns| ns as f64)
        };
        let percent = threads(|load| load.busy_ns).zip(threads(|load| load.available_ns));
        Some(Meanwhile {
            samples,
            ns: since(|time| time.sum_ns)?.max(1.0),
            bytes: since(|time| time.bytes_in)?,
            threads_percent: percent
                .filter(|(_, available)| *available > 0.0)
                .map(|(busy, available)| 100.0 * busy / available),
        })
    }
}
