//! Records against those of an earlier run: what became slower by more than the measurement's own noise.

use super::super::error::CliError;
use super::super::table::{Side, Table, counted, measured};
use super::base::{Base, Compared, Key};
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

/// What can be compared with an earlier record.
pub trait Measured {
    /// What of it is compared.
    fn compared(&self) -> Compared;
}

impl Measured for Record {
    fn compared(&self) -> Compared {
        // As it was measured: over all samples, not only the rounds.
        Compared { noise: self.noise, ..Compared::of_processor(&self.measurement()) }
    }
}

impl Compared {
    fn against(&self, base: &Compared) -> Verdict {
        // The ceiling as a time, then and now.
        let drift = match (base.percent, self.percent) {
            (Some(then), Some(now)) => (self.us * now / (base.us * then)).clamp(1.0 / MOST_DRIFT, MOST_DRIFT),
            (_, _) => 1.0,
        };
        // A machine that is faster today does not make a kernel slower that takes as long as before.
        let expected = base.us * drift.max(1.0);
        Verdict {
            key: base.key.clone(),
            before: base.us,
            now: self.us,
            ratio: self.us / expected,
            tolerance: LEAST_TOLERANCE.max(DEVIATIONS * self.noise),
        }
    }
}

/// Compares a record with the base, if there is one, and measures again what seems slower. The fastest
/// measurement is given back.
pub fn judge<R: Measured>(
    plan: &Plan,
    record: R,
    verdicts: &mut Vec<Verdict>,
    mut again: impl FnMut() -> Result<R, CliError>,
) -> Result<R, CliError> {
    let Some(base) = plan.base.as_ref() else { return Ok(record) };
    let Some(base) = base.find(&record.compared().key) else { return Ok(record) };
    let mut best = record;
    for _ in 0..AGAIN {
        if !best.compared().against(base).is_slower() || plan.is_over() {
            break;
        }
        let record = again()?;
        if record.compared().us < best.compared().us {
            best = record;
        }
    }
    verdicts.push(best.compared().against(base));
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
        table.row([
            verdict.key.kernel.clone(),
            verdict.key.numbers(),
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
    use gristmill_records::bench::{GpuProduct, Line, Measurement};
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
        let written = serde_json::to_value(Line::Processor(before.measurement())).expect("JSON");
        let read = Line::read(written).expect("its own record");
        now.compared().against(&Compared::of(&read).expect("one of ours"))
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
        let of = |change: fn(&mut Measurement)| {
            let mut senseless = record(100.0, 50.0, 0.0).measurement();
            change(&mut senseless);
            senseless.check()
        };
        assert_eq!(of(|_| {}), Ok(()));
        assert_eq!(of(|record| record.us = -1.0), Err("`us`: -1, expected a time above 0".to_owned()));
        let rounds = of(|record| record.rounds_us.push(0.0));
        assert!(rounds.is_err_and(|why| why.starts_with("`rounds_us`: 0")));
        let mut words = serde_json::to_value(record(100.0, 50.0, 0.0).measurement()).expect("JSON");
        words["m"] = json!("one");
        let refused = Line::read_all(json!([words])).expect_err("no number");
        assert!(refused.starts_with("record 0: `m`: invalid type: string"), "{refused}");
    }

    /// A GPU that copies more slowly today is as slow as its products.
    #[test]
    fn a_gpus_products_are_compared_like_a_processors() {
        let product = |us: f64, percent_of_copy: f64, rounds: Vec<f64>| GpuProduct {
            at: None,
            compiler: None,
            op: "matmul".to_owned(),
            kernel: "matmul.a.cuda".to_owned(),
            id: None,
            format: "a".to_owned(),
            device: "cuda:0".to_owned(),
            machine: None,
            input: "f32".to_owned(),
            m: 1,
            n: 2,
            k: 3,
            memory: "cold".to_owned(),
            seconds: us / 1e6,
            rounds,
            gmac_s: 1.0,
            gb_s: 1.0,
            copy_gb_s: 1.0,
            percent_of_copy,
            file_bits_per_weight: 2.0,
            memory_bits_per_weight: 2.0,
            percent_of_cublaslt_int8: None,
            percent_of_cublaslt_f16: None,
        };
        let base = Compared::of_product(&product(100.0, 50.0, Vec::new()));
        let slower = |us, percent, rounds| {
            Compared::of_product(&product(us, percent, rounds)).against(&base).is_slower()
        };
        assert!(!slower(104.0, 48.0, Vec::new()));
        assert!(slower(110.0, 45.5, Vec::new()));
        assert!(!slower(110.0, 45.5, vec![100.0, 110.0, 121.0]));
        assert!(!slower(130.0, 50.0, Vec::new()));
        // Another type of activations is other work.
        let halves = GpuProduct { input: "f16".to_owned(), ..product(100.0, 50.0, Vec::new()) };
        assert_ne!(Compared::of_product(&halves).key, base.key);
    }

    #[test]
    fn different_things_are_not_compared() {
        let base = record(100.0, 50.0, 0.0);
        let cold = Record { memory: Memory::Cold, ..base.clone() };
        assert_ne!(base.compared().key, cold.compared().key);
        assert_ne!(base.compared().key, Record { threads: 2, ..base.clone() }.compared().key);
        assert_eq!(base.compared().key, base.clone().compared().key);
    }
}
