//! Whether a kernel became slower.
//!
//! The medians of the rounds of the latest measurements are held against those of the measurements before, for the same kernel (by
//! name: a new build's kernel is to be compared with the old one's), work and machine, by the one-sided Mann-Whitney U test in its
//! normal approximation with corrections for continuity and ties, which asks for more than counting all orders would where there are few rounds. It is a test of medians where
//! both sides are distributed alike but for a shift, and it takes rounds for independent. Over all that is tested in one go, p is
//! corrected by Holm's method. A regression is p below 1 % *and* a median that is slower by more than 5 %, since medians of two runs
//! differ by as much without a cause in the kernel.
//!
//! Rounds of one run share what else the machine did then. What its ceilings became slower by is taken off (up to 1.5 times);
//! what remains of it, no test can tell from the kernel, so a regression is to be measured once more.

use crate::record::{Record, Source, Work};
use serde::Serialize;
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};
use std::collections::BTreeMap;

/// How far another speed of the whole machine, as its ceilings show it, is taken into account.
const MOST_DRIFT: f64 = 1.5;

/// What is tested, and how strictly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// How many of the newest measurements are held against those before.
    pub newest: usize,
    /// How many of those before are taken, the newest of them.
    pub before: usize,
    /// Largest p, corrected.
    pub p: f64,
    /// Least part by which the median must be slower.
    pub least: f64,
}

impl Default for Test {
    fn default() -> Test {
        Test { newest: 1, before: 10, p: 0.01, least: 0.05 }
    }
}

/// All that was measured of one kernel at one work on one machine, by time.
#[derive(Clone, Debug)]
pub struct Series<'r> {
    /// The kernel's name.
    pub kernel: &'r str,
    /// The machine.
    pub machine: &'r str,
    /// What it computed.
    pub work: &'r Work,
    /// Where the records come from.
    pub source: Source,
    /// The records, which all have times.
    pub records: Vec<&'r Record>,
}

/// What a comparison gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The kernel's name.
    pub kernel: String,
    /// The machine.
    pub machine: String,
    /// What it computed.
    pub work: Work,
    /// Where the records come from.
    pub source: Source,
    /// Median microseconds before, with what the machine became slower by added.
    pub before_us: f64,
    /// Median microseconds now.
    pub now_us: f64,
    /// Rounds before.
    pub before_rounds: usize,
    /// Rounds now.
    pub now_rounds: usize,
    /// Now over before.
    pub ratio: f64,
    /// Of the test, corrected for the number of tests.
    pub p: f64,
    /// Whether it is a regression.
    pub slower: bool,
    /// Whether it became faster, by the same test and measure.
    pub faster: bool,
    /// Whether the newest measurement is of another build's kernel than the one before.
    pub rebuilt: bool,
}

/// Records by kernel, machine, work and source, each by time. Records without a time are in none.
pub fn series(records: &[Record]) -> Vec<Series<'_>> {
    let mut all: BTreeMap<(&str, &str, &Work, Source), Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.us.is_some()) {
        all.entry((&record.kernel, &record.machine, &record.work, record.source)).or_default().push(record);
    }
    let series = all.into_iter().map(|((kernel, machine, work, source), mut records)| {
        records.sort_by_key(|record| record.at);
        Series { kernel, machine, work, source, records }
    });
    series.collect()
}

/// The median; `None` of nothing.
pub fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

fn rounds(record: &Record) -> Vec<f64> {
    if record.rounds_us.is_empty() { record.us.into_iter().collect() } else { record.rounds_us.clone() }
}

/// By how much the machine is slower at `now` than at `before`, as the ceiling beside the kernel shows it; at least 1.
fn drift(before: &Record, now: &Record) -> f64 {
    match (before.us, before.percent, now.us, now.percent) {
        (Some(before_us), Some(before_percent), Some(now_us), Some(now_percent))
            if before.ceiling == now.ceiling =>
        {
            (now_us * now_percent / (before_us * before_percent)).clamp(1.0, MOST_DRIFT)
        }
        _ => 1.0,
    }
}

/// The chance of ranks like these, or more extreme ones, were `larger` not larger.
fn p_of(larger: &[f64], smaller: &[f64]) -> f64 {
    // Not the exact method: in statrs 0.19.1 it gives the chance of the other side where both have as many rounds.
    let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
    // No ranks at all, or all the same, show nothing.
    mannwhitneyu(larger, smaller, method, Alternative::Greater)
        .map_or(1.0, |(_, p)| if p.is_finite() { p } else { 1.0 })
}

/// Holm's correction, in the order given.
fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut corrected = vec![1.0; p.len()];
    let mut least: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max(p[index] * (p.len() - rank) as f64).min(1.0);
        corrected[index] = least;
    }
    corrected
}

/// Holds the newest measurements of each series against those before. Series with too few are left out.
pub fn compare(series: &[Series<'_>], test: Test) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let (mut slower, mut faster) = (Vec::new(), Vec::new());
    for series in series {
        let Some(at) = series.records.len().checked_sub(test.newest.max(1)).filter(|at| *at > 0) else {
            continue;
        };
        let (before, now) = series.records.split_at(at);
        let before = &before[before.len().saturating_sub(test.before.max(1))..];
        let (Some(last), Some(newest)) = (before.last(), now.last()) else { continue };
        let earlier: Vec<f64> = before
            .iter()
            .flat_map(|record| rounds(record).into_iter().map(|us| us * drift(record, newest)))
            .collect();
        let later: Vec<f64> = now.iter().flat_map(|record| rounds(record)).collect();
        let (Some(before_us), Some(now_us)) = (median(&earlier), median(&later)) else { continue };
        slower.push(p_of(&later, &earlier));
        faster.push(p_of(&earlier, &later));
        verdicts.push(Verdict {
            kernel: series.kernel.to_owned(),
            machine: series.machine.to_owned(),
            work: series.work.clone(),
            source: series.source,
            before_us,
            now_us,
            before_rounds: earlier.len(),
            now_rounds: later.len(),
            ratio: now_us / before_us,
            p: 1.0,
            slower: false,
            faster: false,
            rebuilt: last.id != newest.id,
        });
    }
    let (slower, faster) = (holm(&slower), holm(&faster));
    for (verdict, (slower, faster)) in verdicts.iter_mut().zip(slower.into_iter().zip(faster)) {
        verdict.p = slower.min(faster);
        verdict.slower = slower < test.p && verdict.ratio > 1.0 + test.least;
        verdict.faster = faster < test.p && verdict.ratio < 1.0 / (1.0 + test.least);
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers with a normal distribution's median and deviation, roughly: a sum of twelve.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            let uniform = |state: &mut u64| {
                // Steele, Lea and Flood's splitmix64.
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                (z ^ (z >> 31)) as f64 / u64::MAX as f64
            };
            (0..12).map(|_| uniform(&mut self.0)).sum::<f64>() - 6.0
        }
    }

    fn record(kernel: usize, at: u64, rounds_us: Vec<f64>) -> Record {
        Record {
            source: Source::Bench,
            at,
            machine: "a machine".to_owned(),
            compiler: Some("a compiler".to_owned()),
            kernel: format!("matmul.{kernel}"),
            id: format!("{at:016x}"),
            work: Work::Shape {
                m: 1,
                n: 2,
                k: 3,
                threads: 1,
                memory: "hot".to_owned(),
                quantizes: Some(true),
                input: None,
            },
            us: median(&rounds_us),
            rounds_us,
            percent: None,
            ceiling: None,
            memory_gb_s: None,
            serves: None,
            load: None,
            program: None,
        }
    }

    /// Runs of some kernels, whose rounds have a deviation of 3 %; in the last run, kernel 5 takes `factor` times as long.
    fn runs(seed: u64, kernels: usize, factor: f64) -> Vec<Record> {
        let mut noise = Noise(seed);
        let mut all = Vec::new();
        for at in 0..6 {
            for kernel in 0..kernels {
                let factor = if at == 5 && kernel == 5 { factor } else { 1.0 };
                let rounds = (0..7).map(|_| factor * 100.0 * (1.0 + 0.03 * noise.next()));
                all.push(record(kernel, at, rounds.collect()));
            }
        }
        all
    }

    #[test]
    fn a_planted_regression_is_found_and_equal_times_are_rarely_called_slower() {
        const SEEDS: u64 = 200;
        let (mut alarms, mut missed) = (0, 0);
        for seed in 0..SEEDS {
            let verdicts = compare(&series(&runs(seed, 20, 1.0)), Test::default());
            assert_eq!(verdicts.len(), 20);
            alarms += usize::from(verdicts.iter().any(|verdict| verdict.slower || verdict.faster));

            let verdicts = compare(&series(&runs(seed, 20, 1.1)), Test::default());
            let planted =
                verdicts.iter().find(|verdict| verdict.kernel == "matmul.5").expect("it was measured");
            assert!(planted.rebuilt && (1.04..1.16).contains(&planted.ratio), "seed {seed}: {planted:?}");
            missed += usize::from(!planted.slower);

            let verdicts = compare(&series(&runs(seed, 20, 0.9)), Test::default());
            let planted =
                verdicts.iter().find(|verdict| verdict.kernel == "matmul.5").expect("it was measured");
            assert!(!planted.slower, "seed {seed}: {planted:?}");
        }
        // One in a hundred for each of the two sides is what the test promises of times that are equal.
        assert!(alarms <= 4, "{alarms} of {SEEDS}");
        // Of a part of ten in a hundred, noise may leave less than five.
        assert!(missed <= 2, "{missed} of {SEEDS}");
    }

    #[test]
    fn what_the_whole_machine_became_slower_by_is_not_the_kernels() {
        let slow = |factor: f64, percent: f64| {
            let mut all = runs(1, 6, factor);
            for record in &mut all {
                record.ceiling = Some("read".to_owned());
                record.percent = Some(if record.at == 5 { percent } else { 50.0 });
            }
            let verdicts = compare(&series(&all), Test::default());
            verdicts.iter().find(|verdict| verdict.kernel == "matmul.5").map(|verdict| verdict.slower)
        };
        assert_eq!(slow(1.3, 50.0), Some(false));
        assert_eq!(slow(1.3, 50.0 / 1.3), Some(true));
    }

    #[test]
    fn few_and_equal_numbers_show_nothing() {
        let one = [record(0, 0, vec![1.0]), record(0, 1, vec![2.0])];
        let [verdict] = compare(&series(&one), Test::default()).try_into().expect("one comparison");
        assert!(!verdict.slower && verdict.p == 0.5, "{verdict:?}");
        let same = [record(0, 0, vec![1.0; 30]), record(0, 1, vec![1.0; 30])];
        let [verdict] = compare(&series(&same), Test::default()).try_into().expect("one comparison");
        assert!(!verdict.slower && !verdict.faster, "{verdict:?}");
        assert!(compare(&series(&one[..1]), Test::default()).is_empty());
    }

    #[test]
    fn p_is_that_of_the_formula() {
        // U = 9, its mean 4.5, its deviation sqrt(9 / 12 * 7); the normal distribution beyond 4 / 2.2913, from a table.
        assert!((p_of(&[4.0, 5.0, 6.0], &[1.0, 2.0, 3.0]) - 0.0404).abs() < 1e-4);
        // U = 8: beyond 3 / 2.2913.
        assert!((p_of(&[3.0, 5.0, 6.0], &[1.0, 2.0, 4.0]) - 0.0952).abs() < 1e-4);
        // U = 7 with ties of two and two: the deviation is sqrt(9 / 12 * (7 - 12 / 30)).
        assert!((p_of(&[2.0, 3.0, 4.0], &[1.0, 2.0, 3.0]) - 0.1844).abs() < 1e-4);
        // Holm: the smallest times three, the next times two, never below the one before.
        let corrected = holm(&[0.04, 0.01, 0.021]);
        let right = [0.042, 0.03, 0.042];
        assert!(
            corrected.iter().zip(right).all(|(found, right)| (found - right).abs() < 1e-12),
            "{corrected:?}"
        );
    }
}
