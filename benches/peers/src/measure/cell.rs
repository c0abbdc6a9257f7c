//! One cell of a record: a product of both sides, taking turns.

use super::ceilings::Ceilings;
use crate::error::Error;
use crate::ours;
use crate::peer::{self, Pair};
use gristmill::Threads;
use gristmill_records::peers::ProductCell;
use std::time::{Duration, Instant};

/// All copies of weights together, for cold memory.
const COLD_BYTES: usize = 320 << 20;

/// Time of one side in a round, about.
const TIME: Duration = Duration::from_millis(15);

/// Between turns: threads that look for work go to sleep meanwhile.
const PAUSE: Duration = Duration::from_millis(2);

/// The same weights of both sides.
pub struct Weights {
    pub ours: ours::Weights,
    pub theirs: peer::Weights,
}

impl Weights {
    /// Quantizes `n` rows of `k`.
    pub fn quantize(pair: &Pair, values: &[f32], n: usize, k: usize) -> Result<Weights, Error> {
        let theirs = peer::Weights::quantize(pair.id, pair.bytes, values, n, k)?;
        let ours = match pair.bytes {
            Some(id) => {
                let plain = peer::Weights::quantize(id, None, values, n, k)?;
                ours::Weights::new(pair.ours, plain.rows(), n, k)?
            }
            None => ours::Weights::quantize(pair.ours, values, n, k)?,
        };
        Ok(Weights { ours, theirs })
    }
}

/// What is measured.
pub struct Case<'c> {
    pub pair: &'c Pair,
    /// What a record calls the peer's type, in its form.
    pub theirs: String,
    pub m: usize,
    /// Weights are in caches.
    pub hot: bool,
    pub x: &'c [f32],
}

/// Measures a case in so many rounds.
pub fn measure(
    case: Case<'_>,
    rounds: usize,
    threads: &Threads,
    ceilings: &mut Ceilings,
    weights: &mut Weights,
) -> Result<ProductCell, Error> {
    let mut prepared = Prepared::new(case, threads, weights)?;
    let (nmse, tried) = prepared.agree()?;
    let times = prepared.time(rounds, tried, ceilings)?;
    Ok(prepared.record(nmse, times))
}

/// A case whose weights lie in memory as it says.
struct Prepared<'p> {
    case: Case<'p>,
    threads: &'p Threads,
    weights: &'p mut Weights,
    /// The place of our kernel.
    at: usize,
    /// Copies of weights that take turns, ours and theirs.
    copies: [usize; 2],
}

/// Of each round.
struct Times {
    /// The kernel of ours.
    kernel: &'static str,
    /// Seconds of a product, ours and theirs.
    ours: Vec<f64>,
    theirs: Vec<f64>,
    /// Seconds in which the machine could do it.
    least: Vec<f64>,
}

impl<'p> Prepared<'p> {
    fn new(case: Case<'p>, threads: &'p Threads, weights: &'p mut Weights) -> Result<Prepared<'p>, Error> {
        let Weights { ours, theirs } = &mut *weights;
        let at = ours.pack(case.m, 1)?;
        let copies = [ours.packed_bytes(at), theirs.bytes]
            .map(|bytes| if case.hot { 1 } else { COLD_BYTES.div_ceil(bytes).max(2) });
        ours.pack(case.m, copies[0])?;
        theirs.copy(copies[1])?;
        Ok(Prepared { case, threads, weights, at, copies })
    }

    /// The normalized error, and the seconds of a product of ours and of theirs.
    fn agree(&mut self) -> Result<(f64, [f64; 2]), Error> {
        let Prepared {
            case: Case { pair, m, x, .. }, threads, weights: Weights { ours, theirs }, at, ..
        } = self;
        let (nmse, tried) = {
            let mut a = ours.products(*at, (1, 1), x, *m, threads)?;
            let mut b = peer::Products::new(theirs, 1, 1, x, *m, threads.count())?;
            let tried = [time(|| a.run())?, time(|| b.run())?];
            (normalized_error(&a.y, &b.y()), tried)
        };
        // Not a number is no agreement.
        if nmse.is_nan() || nmse > pair.bound {
            return Err(Error::Disagree {
                ours: pair.ours.to_owned(),
                theirs: self.case.theirs.clone(),
                m: *m,
                n: ours.n,
                k: ours.k,
                nmse,
                bound: pair.bound,
            });
        }
        Ok((nmse, tried))
    }

    /// Both sides and the ceilings take turns. A turn has as many products as one took of the time when it was tried; where memory is
    /// cold, each copy once.
    fn time(&mut self, rounds: usize, tried: [f64; 2], ceilings: &mut Ceilings) -> Result<Times, Error> {
        let Prepared { case: Case { m, x, hot, .. }, threads, weights: Weights { ours, theirs }, .. } = self;
        let products = |copies: usize, tried: f64| match hot {
            true => ((TIME.as_secs_f64() / tried) as usize).clamp(1, 1024),
            false => copies,
        };
        let [our_copies, their_copies] = self.copies;
        let [our_count, their_count] = [products(our_copies, tried[0]), products(their_copies, tried[1])];
        let (gmacs, bytes) = (gmacs(*m, ours), ours.file_bytes());
        let mut a = ours.products(self.at, (our_copies, our_count), x, *m, threads)?;
        let mut b = peer::Products::new(theirs, their_copies, their_count, x, *m, threads.count())?;
        let entry = a.entry();
        let mut times = Times { kernel: entry.name, ours: vec![], theirs: vec![], least: vec![] };
        for round in 0..rounds {
            times.least.push(ceilings.least_time(entry, gmacs, bytes, *hot));
            // Nobody is always first.
            for turn in 0..2 {
                match (round + turn) % 2 {
                    0 => times.ours.push(time(|| a.run())? / our_count as f64),
                    _ => times.theirs.push(time(|| b.run())? / their_count as f64),
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(times)
    }

    fn record(self, nmse: f64, times: Times) -> ProductCell {
        let Prepared { case, threads, weights: Weights { ours, .. }, at, .. } = self;
        let gmacs = gmacs(case.m, ours);
        let mut ratios: Vec<f64> = times.theirs.iter().zip(&times.ours).map(|(b, a)| b / a).collect();
        ratios.sort_by(f64::total_cmp);
        let percent = |(least, time): (&f64, &f64)| (100.0 * least / time).min(100.0);
        let percents = times.least.iter().zip(&times.ours).map(percent).collect();
        let (our_time, their_time) = (median(times.ours), median(times.theirs));
        let bits = |bytes: usize| Some(8.0 * bytes as f64 / (ours.n as f64 * ours.k as f64));
        ProductCell {
            kernel: times.kernel.to_owned(),
            format: case.pair.ours.to_owned(),
            theirs: case.theirs,
            m: case.m as u64,
            n: ours.n as u64,
            k: ours.k as u64,
            threads: threads.count() as u64,
            memory: if case.hot { "hot" } else { "cold" }.to_owned(),
            our_us: our_time * 1e6,
            their_us: their_time * 1e6,
            our_gmac_s: gmacs / our_time,
            their_gmac_s: gmacs / their_time,
            least_speedup: ratios.first().copied(),
            most_speedup: ratios.last().copied(),
            speedup: median(ratios),
            our_percent: median(percents),
            file_bits_per_weight: bits(ours.file_bytes()),
            memory_bits_per_weight: bits(ours.packed_bytes(at)),
            nmse,
        }
    }
}

/// 1e9 multiply-accumulates of a product.
fn gmacs(m: usize, weights: &ours::Weights) -> f64 {
    m as f64 * weights.n as f64 * weights.k as f64 / 1e9
}

/// Seconds of a run, after one that is not counted.
fn time(mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    run()?;
    let started = Instant::now();
    run()?;
    Ok(started.elapsed().as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Mean square difference, relative to the mean square of `b`.
fn normalized_error(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    difference / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()
}
