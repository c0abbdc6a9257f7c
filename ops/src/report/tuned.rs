//! What a tuning of a machine says of the work that a monitor saw there: other kernels, another packing, or fewer threads would be faster.
//!
//! Times of a tuning are those of one shape for each class, so what follows from them is told with the launches and times behind it.

use super::{ENOUGH, Newest, Report};
use crate::record::{Record, Records, Serves, Source, Work, range, sum};
use std::collections::BTreeMap;

/// What is so many times as fast is worth a change.
const WORTH: f64 = 1.05;
/// Findings at most, those that save most.
const MOST: usize = 5;

type Class = (u64, Option<u64>);

/// Times of a tuning of one machine for one op, format and class of weights.
struct Times<'r> {
    /// By tokens, threads and kernel; the newest measurement of each.
    all: BTreeMap<(Class, u64, &'r str), &'r Record>,
}

/// Launches of a kernel that a monitor saw.
struct Seen<'r> {
    kernel: &'r str,
    id: &'r str,
    tokens: Class,
    launches: u64,
    /// Threads that it had, where that was measured.
    threads: Option<u64>,
}

/// Something that would be faster.
struct Faster {
    /// Seconds that it would save of the launches seen, by the times of the tuning.
    saves: f64,
    what: String,
    because: String,
    advice: String,
}

impl Report {
    /// Work that would be faster by the times of a tuning.
    pub(super) fn tuned(&mut self, records: &Records, newest: &Newest<'_>) {
        let mut faster = Vec::new();
        for ((machine, serves, weights), (times, seen)) in groups(records, newest) {
            let of = format!("{} of {} with weights={}", serves.0, serves.1, range(weights));
            faster.extend(times.other_kernels(&seen, &of, machine));
            faster.extend(seen.iter().filter_map(|seen| times.fewer_threads(seen, &of, machine)));
        }
        faster.sort_by(|a, b| b.saves.total_cmp(&a.saves));
        for Faster { what, because, advice, .. } in faster.into_iter().take(MOST) {
            self.found(what, because, &advice);
        }
    }
}

/// Machine, op with its quantizer and format, and class of weights.
type Key<'r> = (&'r str, (&'r str, &'r str, Option<&'r str>), Class);

/// Tunings and what monitors saw of the same work, where there are both.
fn groups<'r>(records: &'r Records, newest: &Newest<'r>) -> BTreeMap<Key<'r>, (Times<'r>, Vec<Seen<'r>>)> {
    let mut groups: BTreeMap<Key<'_>, (Times<'_>, Vec<Seen<'_>>)> = BTreeMap::new();
    let mut keys: BTreeMap<(&str, &str, Class), Key<'_>> = BTreeMap::new();
    for record in records.records.iter().filter(|record| record.source == Source::Tune) {
        let (
            Some(Serves { op, format, quantizer, .. }),
            Work::Class { tokens, weights, threads: Some(threads) },
        ) = (&record.serves, &record.work)
        else {
            continue;
        };
        let key: Key<'_> = (&record.machine, (op, format, quantizer.as_deref()), *weights);
        keys.insert((&record.machine, &record.id, *weights), key);
        let times = &mut groups.entry(key).or_insert((Times { all: BTreeMap::new() }, Vec::new())).0.all;
        let known = times.entry((*tokens, *threads, &record.id)).or_insert(record);
        if known.at < record.at {
            *known = record;
        }
    }
    for record in &newest.loads {
        let (Some(load), Work::Class { tokens, weights, .. }) = (&record.load, &record.work) else {
            continue;
        };
        let key = keys.get(&(record.machine.as_str(), record.id.as_str(), *weights));
        let Some((_, seen)) = key.and_then(|key| groups.get_mut(key)) else { continue };
        let threads = load.time.as_ref().and_then(|time| Some(time.threads.as_ref()?.most_threads));
        seen.push(Seen {
            kernel: &record.kernel,
            id: &record.id,
            tokens: *tokens,
            launches: load.launches,
            threads,
        });
    }
    groups.retain(|_, (_, seen)| sum(seen.iter().map(|seen| seen.launches)) >= ENOUGH);
    groups
}

impl<'r> Times<'r> {
    fn of(&self, seen: &Seen<'r>, threads: u64) -> Option<f64> {
        self.all.get(&(seen.tokens, threads, seen.id))?.us
    }

    /// Kernels of the packing that takes least for what was seen, where those that ran take more.
    fn other_kernels(&self, seen: &[Seen<'r>], of: &str, machine: &str) -> Option<Faster> {
        let most = self.all.keys().map(|(_, threads, _)| *threads).max()?;
        let had = seen.iter().filter_map(|seen| seen.threads).max();
        let threads = had.filter(|had| self.all.keys().any(|(_, threads, _)| threads == had)).unwrap_or(most);
        let sum = |us: &dyn Fn(&Seen<'r>) -> Option<f64>| -> Option<f64> {
            seen.iter().map(|seen| Some(us(seen)? * seen.launches as f64 / 1e6)).sum()
        };
        let ran = sum(&|seen| self.of(seen, threads))?;
        // The fastest kernel of a packing for each class.
        let in_packing = |wanted: Option<&str>| {
            sum(&|seen| {
                let here = self.all.iter().filter(|((tokens, with, _), record)| {
                    (*tokens, *with) == (seen.tokens, threads) && packing(record) == wanted
                });
                here.filter_map(|(_, record)| record.us).min_by(f64::total_cmp)
            })
        };
        let packings = self.all.values().map(|record| packing(record));
        let (best, wanted) = packings
            .filter_map(|packing| Some((in_packing(packing)?, packing)))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        let same = seen.iter().all(|seen| {
            self.all.get(&(seen.tokens, threads, seen.id)).is_some_and(|record| packing(record) == wanted)
        });
        if ran < WORTH * best {
            return None;
        }
        let launches: Vec<String> = seen
            .iter()
            .map(|seen| format!("{} launches of {} at m={}", seen.launches, seen.kernel, range(seen.tokens)))
            .collect();
        let because = format!(
            "{of} on {threads} threads: {} take {ran:.3} s by the times of the tuning, the fastest {} {best:.3} s ({:.2} times as fast)",
            launches.join(", "),
            match (same, wanted) {
                (false, Some(packing)) => format!("kernels of the packing `{packing}`"),
                (false, None) => "kernels for unpacked rows".to_owned(),
                (true, _) => "kernels of the same packing".to_owned(),
            },
            ran / best
        );
        let (what, advice) = match (same, wanted) {
            (false, Some(packing)) => (
                format!("another packing is faster on {machine}"),
                format!(
                    "let decisions follow the tuning (GRISTMILL_TUNING), or hold these weights in `{packing}` (`Restrict::packing`, \
                     GRISTMILL_PACKING={packing})"
                ),
            ),
            _ => (
                format!("other kernels are faster on {machine}"),
                "let decisions follow the tuning (GRISTMILL_TUNING)".to_owned(),
            ),
        };
        Some(Faster { saves: ran - best, what, because, advice })
    }

    /// Fewer threads than a kernel had, where these are faster.
    fn fewer_threads(&self, seen: &Seen<'r>, of: &str, machine: &str) -> Option<Faster> {
        let had = seen.threads?;
        let now = self.of(seen, had)?;
        let counts = self
            .all
            .keys()
            .filter(|(tokens, threads, id)| *tokens == seen.tokens && *id == seen.id && *threads < had);
        let (best, threads) = counts
            .filter_map(|(_, threads, _)| Some((self.of(seen, *threads)?, *threads)))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        if seen.launches < ENOUGH || now < WORTH * best {
            return None;
        }
        let because = format!(
            "{of} at m={}: {} takes {now:.1} us on the {had} threads that it had in {} launches, and {best:.1} us on {threads} ({:.2} times as fast), \
             by the times of the tuning",
            range(seen.tokens),
            seen.kernel,
            seen.launches,
            now / best
        );
        Some(Faster {
            saves: (now - best) * seen.launches as f64 / 1e6,
            what: format!("fewer threads are faster on {machine}"),
            because,
            advice: format!(
                "let decisions follow the tuning (GRISTMILL_TUNING), or make {threads} threads for this work"
            ),
        })
    }
}

/// The packing that a kernel reads.
fn packing(record: &Record) -> Option<&str> {
    record.serves.as_ref()?.packing.as_deref()
}
