//! Records against those of an earlier run: what became slower by more than the measurement's own noise.

use super::super::error::CliError;
use super::super::table::{Side, Table, counted, measured};
use super::base::{Base, BaseRecord, Key};
use super::plan::Plan;
use super::record::Record;
use std::fmt::Write;

/// Times that a kernel which seems slower is measured again before it is called slower.
const AGAIN: usize = 2;

/// What is allowed at least: medians of one kernel in two runs differ by that much without any cause in it.
const LEAST_TOLERANCE: f64 = 0.05;

/// Median deviations that count as noise: three standard deviations, were times distributed normally.
const DEVIATIONS: f64 = 3.0 * 1.4826;

/// How far another speed of the whole machine, as its ceilings show it, is taken into account.
const MOST_DRIFT: f64 = 1.5;

/// How a record compares with the earlier one.
pub struct Verdict {
    key: Key,
    before: f64,
    now: f64,
    /// Time over the time expected: from the earlier record, for the machine's speed of today.
    ratio: f64,
    tolerance: f64,
}

impl Verdict {
    pub fn is_slower(&self) -> bool {
        self.ratio > 1.0 + self.tolerance
    }

    fn is_faster(&self) -> bool {
        self.ratio < 1.0 - self.tolerance
    }
}

impl Record {
    fn key(&self) -> Key {
        Key {
            kernel: self.kernel.to_owned(),
            numbers: [self.m, self.n, self.k, self.threads].map(|number| number as u64),
            memory: self.memory.name().to_owned(),
            quantizes: self.quantizes_activations,
        }
    }

    fn against(&self, base: &BaseRecord) -> Verdict {
        let now = self.seconds * 1e6;
        // The ceiling as a time, then and now.
        let drift = match base.percent {
            Some(percent) if self.percent.is_finite() && self.percent > 0.0 => {
                (now * self.percent / (base.us * percent)).clamp(1.0 / MOST_DRIFT, MOST_DRIFT)
            }
            Some(_) | None => 1.0,
        };
        // A machine that is faster today does not make a kernel slower that takes as long as before.
        let expected = base.us * drift.max(1.0);
        Verdict {
            key: base.key.clone(),
            before: base.us,
            now,
            ratio: now / expected,
            tolerance: LEAST_TOLERANCE.max(DEVIATIONS * self.noise),
        }
    }
}

/// Compares a record with the base, if there is one, and measures again what seems slower. The fastest
/// measurement is given back.
pub fn judge(
    plan: &Plan,
    record: Record,
    verdicts: &mut Vec<Verdict>,
    mut again: impl FnMut() -> Result<Record, CliError>,
) -> Result<Record, CliError> {
    let Some(base) = plan.base.as_ref().and_then(|base| base.find(&record.key())) else { return Ok(record) };
    let mut best = record;
    for _ in 0..AGAIN {
        if !best.against(base).is_slower() || plan.is_over() {
            break;
        }
        let record = again()?;
        if record.seconds < best.seconds {
            best = record;
        }
    }
    verdicts.push(best.against(base));
    Ok(best)
}

/// What became slower or faster, in words.
pub fn report(base: &Base, verdicts: &[Verdict]) -> Result<String, CliError> {
    if verdicts.is_empty() {
        return Err(CliError::usage(
            "none of the records of the base was measured in this run",
            "select with --format, --m, --shape, --threads, --memory and --isa what the base holds",
        ));
    }
    let mut table = Table::new(&[
        ("kernel", Side::Left),
        ("m, n, k, threads", Side::Left),
        ("memory", Side::Left),
        ("us before", Side::Right),
        ("us now", Side::Right),
        ("slower by %", Side::Right),
        ("noise %", Side::Right),
    ]);
    let shown = verdicts.iter().filter(|verdict| verdict.is_slower() || verdict.is_faster());
    for verdict in shown {
        let [m, n, k, threads] = verdict.key.numbers;
        table.row([
            verdict.key.kernel.clone(),
            format!("{m}, {n}, {k}, {threads}"),
            verdict.key.memory.clone(),
            measured(verdict.before),
            measured(verdict.now),
            format!("{:.0}", 100.0 * (verdict.ratio - 1.0)),
            format!("{:.0}", 100.0 * verdict.tolerance),
        ]);
    }
    let mut text = Vec::new();
    if !table.is_empty() {
        table.print(&mut text)?;
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    let slower = verdicts.iter().filter(|verdict| verdict.is_slower()).count();
    let faster = verdicts.iter().filter(|verdict| verdict.is_faster()).count();
    let _ = writeln!(
        text,
        "\n{} compared with the base ({} in it): {slower} slower, {faster} faster, the rest the same within the noise",
        counted(verdicts.len(), "record"),
        base.records.len()
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::Memory;
    use super::super::machine::Ceiling;
    use super::*;
    use gristmill::vocab::Isa;
    use serde_json::json;

    fn record(us: f64, percent: f64, noise: f64) -> Record {
        Record {
            kernel: "matmul.a",
            id: gristmill::registry::KernelId(7),
            format: "a",
            isa: Some(Isa::Scalar),
            m: 1,
            n: 2,
            k: 3,
            threads: 1,
            memory: Memory::Hot,
            quantizes_activations: Some(true),
            seconds: us / 1e6,
            rounds: vec![us / 1e6],
            noise,
            gmac_s: Some(1.0),
            gb_s: 1.0,
            ceiling: Ceiling::Read,
            percent,
            file_bits: 4.5,
            memory_bits: 5.0,
        }
    }

    fn verdict(before: &Record, now: &Record) -> Verdict {
        now.against(&BaseRecord::read(&before.json()).expect("its own record"))
    }

    #[test]
    fn slower_is_slower_than_noise_and_machine() {
        let before = record(100.0, 50.0, 0.0);
        let cases = [
            (record(100.0, 50.0, 0.0), false),
            (record(104.0, 48.0, 0.0), false),
            (record(110.0, 45.5, 0.0), true),
            // Noise of that size says nothing.
            (record(110.0, 45.5, 0.03), false),
            // The whole machine is slower today.
            (record(130.0, 50.0, 0.0), false),
            // It is that too, but not so much.
            (record(200.0, 50.0, 0.0), true),
            // Faster, on a machine that is much faster today.
            (record(90.0, 30.0, 0.0), false),
        ];
        for (now, slower) in cases {
            assert_eq!(verdict(&before, &now).is_slower(), slower, "{now:?}");
        }
    }

    #[test]
    fn a_base_without_sense_is_refused_with_its_place() {
        let mut senseless = record(100.0, 50.0, 0.0).json();
        senseless["us"] = json!(-1);
        assert_eq!(BaseRecord::read(&senseless).err(), Some("us"));
        senseless["us"] = json!(1);
        senseless["m"] = json!("one");
        assert_eq!(BaseRecord::read(&senseless).err(), Some("m"));
    }

    #[test]
    fn different_things_are_not_compared() {
        let base = record(100.0, 50.0, 0.0);
        let cold = Record { memory: Memory::Cold, ..base.clone() };
        assert_ne!(base.key(), cold.key());
        assert_ne!(base.key(), Record { threads: 2, ..base.clone() }.key());
        assert_eq!(base.key(), base.clone().key());
    }
}
