//! What an operator should know of some records: which kernels cost most, how their times went, what is unusual, what to do.
//!
//! Each recommendation cites the numbers that it follows from. What was not measured is named, and nothing follows from it.

use crate::date::date;
use crate::record::{Record, Records, Source, Watch};
use crate::regression::{Series, Test, Verdict, compare, series};
use crate::snapshot::{CacheLoad, PoolLoad, RecoveryCount, Sampled, ThreadLoad};
use gristmill_runtime::RecoveryStep;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

mod html;
mod machine;
mod memory;
mod moved;
mod tuned;

pub use moved::{Moved, On};

/// Rows of the tables of a report.
const MOST: usize = 20;
/// Samples from which on percentiles are believed.
const ENOUGH: u64 = 100;
/// A 99th percentile that is so many times the median is unusual.
const LONG_TAIL: f64 = 3.0;
/// A part of their time in percent below which threads are unusually idle.
const IDLE: f64 = 50.0;
/// A busiest thread that works so many times as long as the mean is unusual.
const UNEVEN: f64 = 1.5;
/// A part of the ceiling in percent below which a measurement is unusual.
const FAR_BELOW: f64 = 40.0;

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `gristmill report 1`.
    pub schema: &'static str,
    /// The first record, in seconds since 1970.
    pub from: Option<u64>,
    /// The last.
    pub to: Option<u64>,
    /// How many there are.
    pub records: usize,
    /// Of which machines.
    pub machines: Vec<String>,
    /// Kernels that cost most, by the newest look of a monitor of each program on a machine.
    pub cost: Vec<Cost>,
    /// Copies of devices' memory, by the same look.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Moved>,
    /// Allocations of devices' memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<On<PoolLoad>>,
    /// What is made once and used again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<On<CacheLoad>>,
    /// What was compared and is slower or faster.
    pub changes: Vec<Verdict>,
    /// Times of each kernel and work that was measured more than once, those that changed most first.
    pub trends: Vec<Trend>,
    /// What is unusual.
    pub anomalies: Vec<Finding>,
    /// What to do.
    pub recommendations: Vec<Finding>,
    /// What these records do not say.
    pub absent: Vec<String>,
}

/// What a kernel costs in a class of shapes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The kernel's name.
    pub kernel: String,
    /// Its identity.
    pub id: String,
    /// The machine.
    pub machine: String,
    /// The class, and the GPU where it ran on one.
    pub work: String,
    /// Launches.
    pub launches: u64,
    /// Launches that were timed.
    pub samples: u64,
    /// Seconds of all launches, were they as long as those that were timed.
    pub seconds: f64,
    /// Part of the estimated seconds of all kernels of the machine, in percent.
    pub percent: f64,
    /// Median microseconds.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// Gigabytes that were read in a second of timed launches.
    pub gb_s: f64,
    /// The same in percent of what memory gives, as `bench` measured it on this machine: of one token, whose ceiling that is. More than 100
    /// where weights came from caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of_memory: Option<f64>,
}

/// Times of one kernel and work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// The kernel's name.
    pub kernel: String,
    /// The machine.
    pub machine: String,
    /// What it computed.
    pub work: String,
    /// Where the times come from.
    pub source: Source,
    /// Seconds since 1970, and median microseconds.
    pub points: Vec<(u64, f64)>,
    /// The last over the first.
    pub ratio: f64,
}

/// Something that was found, with the numbers that show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What.
    pub what: String,
    /// The numbers.
    pub because: String,
}

impl Report {
    /// A report of these records.
    pub fn of(records: &Records) -> Report {
        let all = series(&records.records);
        let newest = Newest::of(records);
        let verdicts = compare(&all, Test::default());
        let mut report = Report {
            schema: "gristmill report 1",
            from: records.records.iter().map(|record| record.at).min(),
            to: records.records.iter().map(|record| record.at).max(),
            records: records.records.len(),
            machines: records
                .records
                .iter()
                .map(|record| record.machine.clone())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            cost: cost(records, &newest),
            transfers: Vec::new(),
            pools: Vec::new(),
            caches: Vec::new(),
            changes: verdicts.iter().filter(|verdict| verdict.slower || verdict.faster).cloned().collect(),
            trends: trends(&all),
            anomalies: Vec::new(),
            recommendations: Vec::new(),
            absent: Vec::new(),
        };
        report.changes.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        report.slower();
        report.loads(&newest);
        report.memory(&newest);
        report.far_below(&all);
        report.multiply_units(&all);
        report.tuned(records, &newest);
        report.untuned(records);
        report.hosts(&newest);
        report.absent(records, &newest, verdicts.len());
        report
    }

    fn found(&mut self, what: String, because: String, advice: &str) {
        self.recommendations.push(Finding { what: advice.to_owned(), because: format!("{what}: {because}") });
        self.anomalies.push(Finding { what, because });
    }

    fn slower(&mut self) {
        for verdict in self.changes.clone().iter().filter(|verdict| verdict.slower) {
            let because = format!(
                "{:.3} us before ({} rounds), {:.3} us now ({} rounds), {:.2} times, p = {:.1e}",
                verdict.before_us,
                verdict.before_rounds,
                verdict.now_us,
                verdict.now_rounds,
                verdict.ratio,
                verdict.p
            );
            let advice = match verdict.rebuilt {
                true => {
                    "measure it once more; if it stays, go back to the build before or report the kernel, whose code changed"
                }
                false => {
                    "measure it once more; its code is the same, so look for other work on the machine and a throttled clock"
                }
            };
            self.found(format!("{} became slower at {}", verdict.kernel, verdict.work), because, advice);
        }
    }

    fn loads(&mut self, newest: &Newest<'_>) {
        for record in &newest.loads {
            let Some(load) = &record.load else { continue };
            let work = format!("{}{}", record.work, load.on());
            if let Some(faults) = load.faults.filter(|faults| *faults > 0) {
                self.found(
                    format!("{} refused its input", record.kernel),
                    format!("{faults} of {} launches at {work} ended in a fault", load.launches),
                    "run `gristmill inspect` on the model, and look for activations that overflow in a layer before",
                );
            }
            let Some(time) = &load.time else { continue };
            self.threads(record, time);
            let tail = time.p99_ns as f64 / time.p50_ns.max(1) as f64;
            if time.samples >= ENOUGH && tail > LONG_TAIL {
                self.found(
                    format!("{} has a long tail at {work}", record.kernel),
                    format!(
                        "99th percentile {:.1} us, median {:.1} us ({tail:.1} times) of {} samples",
                        time.p99_ns as f64 / 1e3,
                        time.p50_ns as f64 / 1e3,
                        time.samples
                    ),
                    "look for other work on these processors; use fewer threads, pin them, or keep them awake through a step \
                     (`Threads::awake`)",
                );
            }
        }
        for watch in &newest.watches {
            for fallback in &watch.fallbacks {
                self.found(
                    format!(
                        "{} of {} did not run on {} on {}",
                        fallback.op,
                        fallback.format,
                        fallback.device,
                        watch.place()
                    ),
                    format!(
                        "{} runs of {} instead, by policy {}: {}",
                        fallback.runs, fallback.instead, fallback.policy, fallback.reason
                    ),
                    "`gristmill explain` says what is missing; policy Strict makes it an error",
                );
            }
            for step in &watch.recoveries {
                let outcome = if step.success { "the run that followed was good" } else { "it did not help" };
                let (what, advice) = advice(step);
                self.found(
                    format!("{what} on {}", watch.place()),
                    format!(
                        "step {} {} times, {:.3} s, {outcome}: {}",
                        step.step, step.count, step.seconds, step.reason
                    ),
                    advice,
                );
            }
        }
    }

    /// Threads that wait, and work that is uneven.
    fn threads(&mut self, record: &Record, time: &Sampled) {
        let several = |threads: &&ThreadLoad| threads.samples >= ENOUGH && threads.most_threads > 1;
        let Some(threads) = time.threads.as_ref().filter(several) else { return };
        let (Some(used), Some(uneven)) = (threads.utilisation(), threads.imbalance()) else { return };
        let of = format!("of {} threads, {} samples", threads.most_threads, threads.samples);
        if 100.0 * used < IDLE {
            self.found(
                format!("threads of {} wait at {}", record.kernel, record.work),
                format!("they work {:.0} % of the time, {of}", 100.0 * used),
                "use fewer threads, or keep them awake through a step (`Threads::awake`): `gristmill tune` measures which number is \
                 the fastest",
            );
        }
        if uneven > UNEVEN {
            self.found(
                format!("threads of {} work unevenly at {}", record.kernel, record.work),
                format!("the busiest works {uneven:.2} times as long as the mean, {of}"),
                "look for other work on some of these processors, and pin threads to cores that are alike (`ThreadOptions::cpus`)",
            );
        }
    }

    fn far_below(&mut self, all: &[Series<'_>]) {
        let newest = all.iter().filter_map(|series| series.records.last());
        let mut below: Vec<_> = newest
            .filter_map(|record| Some((*record, record.percent.filter(|percent| *percent < FAR_BELOW)?)))
            .collect();
        below.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (record, percent) in below.into_iter().take(5) {
            self.found(
                format!("{} is far below its ceiling at {}", record.kernel, record.work),
                format!(
                    "{percent:.0} % of what the machine's {} allows, {:.1} us",
                    record.ceiling.as_deref().unwrap_or("ceiling"),
                    record.us.unwrap_or(f64::NAN)
                ),
                "try other packings and threads: `gristmill tune`, `gristmill bench --isa`, `gristmill explain`",
            );
        }
    }

    fn untuned(&mut self, records: &Records) {
        let tuned: BTreeSet<&str> = records
            .records
            .iter()
            .filter(|record| record.source == Source::Tune)
            .map(|record| record.machine.as_str())
            .collect();
        let untuned: Vec<&Cost> =
            self.cost.iter().filter(|cost| !tuned.contains(cost.machine.as_str())).collect();
        if let Some(most) = untuned.first() {
            let because = format!(
                "no tuning of {} is in these records; {} takes {:.0} % of the estimated time ({} launches)",
                most.machine, most.kernel, most.percent, most.launches
            );
            let what = "run `gristmill tune` there, and set GRISTMILL_TUNING".to_owned();
            self.recommendations.push(Finding { what, because });
        }
    }

    fn absent(&mut self, records: &Records, newest: &Newest<'_>, compared: usize) {
        let has = |source| records.records.iter().any(|record| record.source == source);
        let mut absent = |what: &str| self.absent.push(what.to_owned());
        if !has(Source::Monitor) {
            absent("no monitor's snapshot: what kernels cost in the service is not known");
        }
        if !has(Source::Bench) {
            absent("no `gristmill bench --json`: parts of the machine's ceilings are not known");
        }
        if compared == 0 {
            absent("nothing was measured twice: there is no trend and no regression to be found");
        }
        let untimed = newest.loads.iter().filter(|record| record.us.is_none()).count();
        if untimed > 0 {
            self.absent.push(format!("{untimed} kernels and classes ran without a time being taken"));
        }
    }

    /// As text for people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String can't fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let when = |at: Option<u64>| at.map_or("never".to_owned(), date);
        writeln!(
            out,
            "{} records from {} to {} (UTC), of {}",
            self.records,
            when(self.from),
            when(self.to),
            match self.machines.as_slice() {
                [one] => one.clone(),
                all => format!("{} machines", all.len()),
            }
        )?;
        if !self.cost.is_empty() {
            writeln!(out, "\nKernels that cost most (estimated from timed launches)")?;
        }
        for cost in &self.cost {
            writeln!(
                out,
                "  {:5.1} %  {:.3} s  {} at {}: {} launches, {} timed, median {:.1} us, 99th percentile {:.1} us, {:.1} GB/s{}",
                cost.percent,
                cost.seconds,
                cost.kernel,
                cost.work,
                cost.launches,
                cost.samples,
                cost.p50_us,
                cost.p99_us,
                cost.gb_s,
                cost.percent_of_memory
                    .map_or(String::new(), |percent| format!(" ({percent:.0} % of what memory gives)"))
            )?;
        }
        self.write_memory(out)?;
        if !self.trends.is_empty() {
            writeln!(out, "\nTrends")?;
        }
        for trend in &self.trends {
            let (Some(first), Some(last)) = (trend.points.first(), trend.points.last()) else { continue };
            writeln!(
                out,
                "  {:.2} times  {} at {} ({}): {:.1} us on {}, {:.1} us on {}, {} measurements",
                trend.ratio,
                trend.kernel,
                trend.work,
                trend.source.name(),
                first.1,
                date(first.0),
                last.1,
                date(last.0),
                trend.points.len()
            )?;
        }
        for (title, findings) in [("Unusual", &self.anomalies), ("To do", &self.recommendations)] {
            if !findings.is_empty() {
                writeln!(out, "\n{title}")?;
            }
            for Finding { what, because } in findings {
                writeln!(out, "  {what}\n    {because}")?;
            }
        }
        if !self.absent.is_empty() {
            writeln!(out, "\nNot known")?;
        }
        self.absent.iter().try_for_each(|what| writeln!(out, "  {what}"))
    }
}

/// The newest moment at which a monitor of each program on each machine was looked at.
struct Newest<'r> {
    watches: Vec<&'r Watch>,
    /// What was seen of kernels then.
    loads: Vec<&'r Record>,
}

impl<'r> Newest<'r> {
    fn of(records: &'r Records) -> Newest<'r> {
        // Looks of older versions, which name no program, may be of any: a later one of the machine takes the place of them all.
        let mut last: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
        let mut of_any: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
        for watch in &records.watches {
            let at = last.entry((&watch.machine, watch.program.as_deref())).or_default();
            *at = watch.at.max(*at);
            let any = of_any.entry(&watch.machine).or_default();
            *any = (watch.at, watch.program.is_some()).max(*any);
        }
        let is_last = |watch: &&Watch| {
            let (machine, program) = (watch.machine.as_str(), watch.program.as_deref());
            last.get(&(machine, program)) == Some(&watch.at)
                && (program.is_some() || of_any.get(machine) == Some(&(watch.at, false)))
        };
        let watches: Vec<&Watch> = records.watches.iter().filter(is_last).collect();
        let mut by_time: BTreeMap<u64, Vec<&Watch>> = BTreeMap::new();
        for watch in &watches {
            by_time.entry(watch.at).or_default().push(watch);
        }
        let seen = |record: &&Record| {
            let then = by_time.get(&record.at).filter(|_| record.load.is_some());
            then.is_some_and(|then| then.iter().any(|watch| watch.is_of(record)))
        };
        Newest { watches, loads: records.records.iter().filter(seen).collect() }
    }
}

fn cost(records: &Records, newest: &Newest<'_>) -> Vec<Cost> {
    // What memory of each machine gives at most, in 1e9 bytes a second.
    let mut memory_gb_s: BTreeMap<&str, f64> = BTreeMap::new();
    for record in &records.records {
        if let Some(gb_s) = record.memory_gb_s {
            let most = memory_gb_s.entry(&record.machine).or_insert(gb_s);
            *most = most.max(gb_s);
        }
    }
    let mut all: Vec<Cost> = newest
        .loads
        .iter()
        .filter_map(|record| {
            let load = record.load.as_ref()?;
            let time = load.time.as_ref()?;
            Some(Cost {
                kernel: record.kernel.clone(),
                id: record.id.clone(),
                machine: record.machine.clone(),
                work: format!("{}{}", record.work, load.on()),
                launches: load.launches,
                samples: time.samples,
                seconds: load.estimated_seconds()?,
                percent: 0.0,
                p50_us: time.p50_ns as f64 / 1e3,
                p99_us: time.p99_ns as f64 / 1e3,
                gb_s: time.gb_s(),
                percent_of_memory: memory_gb_s
                    .get(record.machine.as_str())
                    .filter(|_| load.tokens.1 == Some(1) && load.device == "cpu")
                    .map(|memory| 100.0 * time.gb_s() / memory),
            })
        })
        .collect();
    let mut seconds: BTreeMap<String, f64> = BTreeMap::new();
    for cost in &all {
        *seconds.entry(cost.machine.clone()).or_default() += cost.seconds;
    }
    for cost in &mut all {
        cost.percent = 100.0 * cost.seconds / seconds[&cost.machine];
    }
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    all.truncate(MOST);
    all
}

fn trends(all: &[Series<'_>]) -> Vec<Trend> {
    let trend = |series: &Series<'_>| {
        let points: Vec<(u64, f64)> =
            series.records.iter().filter_map(|record| Some((record.at, record.us?))).collect();
        let ratio = points.last()?.1 / points.first()?.1;
        (points.len() > 1).then(|| Trend {
            kernel: series.kernel.to_owned(),
            machine: series.machine.to_owned(),
            work: series.work.to_string(),
            source: series.source,
            points,
            ratio,
        })
    };
    let mut trends: Vec<Trend> = all.iter().filter_map(trend).collect();
    trends.sort_by(|a, b| b.ratio.ln().abs().total_cmp(&a.ratio.ln().abs()));
    trends.truncate(MOST);
    trends
}

/// What a step of recovery says of the machine, and what to do about it.
fn advice(step: &RecoveryCount) -> (String, &'static str) {
    use RecoveryStep::*;
    let lost = "look after the device (`nvidia-smi -q`, the system's log for Xid errors)";
    let Some(known) = RecoveryStep::from_name(&step.step) else {
        return (
            format!("a layer with {} recovered by a step that this version does not know", step.kernel),
            "read it with the version of gristmill that wrote it",
        );
    };
    match known {
        OneThread => (
            format!("{} panicked where several threads ran it", step.kernel),
            "look for what else the program's threads do, and report the panic",
        ),
        Repacked => (
            format!("{} computed something else than the portable kernel", step.kernel),
            "memory or a processor may be failing: `gristmill validate`, then take the machine out of service",
        ),
        Quarantined => (
            format!("{} is used no more", step.kernel),
            "take the machine out of service and run `gristmill verify` there; until then GRISTMILL_DISABLE leaves the kernel out \
             from the start",
        ),
        DecidedAgain => (
            format!("layers do without {}, which is in quarantine", step.kernel),
            "the reason is what the program, or a layer with the same quarantine, saw of it",
        ),
        LeftOut => (
            format!("layers were made without {}, which was in quarantine", step.kernel),
            "the reason is what was seen of it; run `gristmill verify` with its name, and remove its file from the folder that \
             GRISTMILL_QUARANTINE names where it is right",
        ),
        TakenOver => (
            String::from("a GPU was lost"),
            "look after the device (`nvidia-smi -q`, the system's log for Xid errors); a layer that is made anew takes it again",
        ),
        Reopened => (String::from("a GPU was lost and opened again"), lost),
        MovedToProcessor => (
            format!("a layer of {} left its GPU", step.format),
            "look after the device (`nvidia-smi -q`, the system's log for Xid errors); the processor is slower: `GuardOptions::return_every` says when \
             the GPU is tried again",
        ),
        Returned => (format!("a layer of {} came back to its GPU", step.format), lost),
        FreedMemory => (
            String::from("a GPU had too little memory for one token, or a call of its driver failed"),
            "with the reason out of memory: less of it for layers and others on this device (`Gpu::memory`, `nvidia-smi`); else look after the device",
        ),
        InParts => (
            String::from("a GPU had too little memory"),
            "fewer tokens at a time, fewer layers on this device, or less memory for others that use it (`Gpu::memory`, `nvidia-smi`)",
        ),
    }
}
