//! Ours and the peer's in turn, round after round, and whether they agree.

use crate::error::Error;
use crate::peer::{self, PACKAGE, PAIRS, Pair};
use crate::record::{Cell, Record, Run, load, versions};
use crate::{ours, record};
use gristmill::CpuProfile;
use gristmill::ceilings::{Level, ReadBuffers, multiply_peak};
use std::path::Path;
use std::time::{Duration, Instant};

/// Rows and elements of a row: attention and feed-forward of BitNet b1.58 2B-4T.
const SHAPES: &[(usize, usize)] = &[(2560, 2560), (6912, 2560)];
const TOKENS: &[usize] = &[1, 8, 32, 128, 512];

/// All copies of weights together, for cold memory.
const COLD_BYTES: usize = 320 << 20;

/// Most that two ways of quantizing activations to int8 make results differ: for values distributed normally, a
/// scale a row of 2560 gives each about 5e-5.
const NMSE_BOUND: f64 = 3e-4;

/// Time of one side in a round.
const TIME: Duration = Duration::from_millis(15);

/// Measures everything and adds it to the record.
pub fn run(path: &Path, quick: bool) -> Result<(), Error> {
    peer::prepare()?;
    let before = load();
    let rounds = if quick { 3 } else { 9 };
    let mut ceilings = Ceilings::new();
    let mut cells = Vec::new();
    for pair in PAIRS {
        for shape in SHAPES {
            measure_pair(pair, *shape, rounds, &mut ceilings, &mut cells)?;
        }
    }
    let overhead = overhead()?;
    record::Record::add(
        path,
        Run {
            peer: format!("{PACKAGE} {}", locked_version()),
            command: std::env::args().skip(1).fold("peers".to_owned(), |all, word| all + " " + &word),
            versions: versions(),
            load: [before, load()],
            notes: vec![
                "one thread; medians of rounds in which ours, theirs and the ceilings take turns; time that the system \
                 gave to other programs is not counted"
                    .to_owned(),
                format!(
                    "the peer runs through its graph executor, whose product of 64x64 takes {overhead:.1} us; all its \
                     times contain about that"
                ),
            ],
            ceilings: ceilings.shown(),
            cells,
        },
    )?;
    let read = Record::read(path)?;
    println!("{}: {} runs", path.display(), read.runs.len());
    Ok(())
}

/// The version that the lock file holds.
pub fn locked_version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let package =
        lock.split("[[package]]").find(|package| package.contains(&format!("name = \"{PACKAGE}\"")));
    package.and_then(|package| package.split("version = \"").nth(1)?.split('"').next()).unwrap_or("unknown")
}

fn measure_pair(
    pair: &Pair,
    (n, k): (usize, usize),
    rounds: usize,
    ceilings: &mut Ceilings,
    cells: &mut Vec<Cell>,
) -> Result<(), Error> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let values: Vec<f32> = match pair.ternary {
        true => (0..n * k).map(|_| 0.02 * random.ternary()).collect(),
        false => (0..n * k).map(|_| 0.02 * random.normal()).collect(),
    };
    let x: Vec<f32> = (0..512 * k).map(|_| random.normal()).collect();
    let mut theirs = peer::Weights::quantize(pair, &values, n, k)?;
    let mut ours = match pair.same_bytes {
        true => ours::Weights::new(pair.ours, theirs.copies[0].bytes(theirs.bytes), n, k)?,
        false => ours::Weights::quantize(pair.ours, &values, n, k)?,
    };
    for m in TOKENS {
        let memories: &[bool] = if *m == 1 { &[true, false] } else { &[true] };
        for hot in memories {
            let x = &x[..m * k];
            let at = ours.pack(*m, 1)?;
            let count = |bytes: usize| if *hot { 1 } else { COLD_BYTES.div_ceil(bytes).max(2) };
            let our_copies = count(ours.packed_bytes(at));
            ours.pack(*m, our_copies)?;
            let their_copies = count(theirs.bytes);
            theirs.copy(their_copies);
            let bytes = ours.file_bytes();
            let bits = |bytes: usize| Some(8.0 * bytes as f64 / (n as f64 * k as f64));
            let mut a = ours.product(at, our_copies, x, *m)?;
            let mut b = peer::Product::new(&mut theirs, their_copies, x, *m)?;
            a.run(0)?;
            b.run(0)?;
            let nmse = normalized_error(&a.y, &b.y());
            let disagreement = || Error::Disagree {
                ours: pair.ours.to_owned(),
                theirs: pair.theirs.to_owned(),
                m: *m,
                n,
                k,
                nmse,
                bound: NMSE_BOUND,
            };
            // Not a number is no agreement.
            if nmse.is_nan() || nmse > NMSE_BOUND {
                return Err(disagreement());
            }
            let gmacs = *m as f64 * n as f64 * k as f64 / 1e9;
            let (mut our_times, mut their_times, mut ratios, mut percents) = (vec![], vec![], vec![], vec![]);
            let (mut our_run, mut their_run) = (0, 0);
            for _ in 0..rounds {
                let least = ceilings.least_time(a.entry(), gmacs, bytes, *hot);
                let our_time = median_time(|| {
                    our_run += 1;
                    a.run(our_run)
                })?;
                let their_time = median_time(|| {
                    their_run += 1;
                    b.run(their_run)
                })?;
                our_times.push(our_time);
                their_times.push(their_time);
                ratios.push(their_time / our_time);
                percents.push((100.0 * least / our_time).min(100.0));
            }
            let (our_time, their_time) = (median(our_times), median(their_times));
            let cell = Cell {
                kernel: a.entry().name.to_owned(),
                format: pair.ours.to_owned(),
                theirs: pair.theirs.to_owned(),
                m: *m,
                n,
                k,
                threads: 1,
                memory: if *hot { "hot" } else { "cold" }.to_owned(),
                our_us: our_time * 1e6,
                their_us: their_time * 1e6,
                our_gmac_s: gmacs / our_time,
                their_gmac_s: gmacs / their_time,
                speedup: median(ratios),
                our_percent: median(percents),
                file_bits_per_weight: bits(bytes),
                memory_bits_per_weight: bits(ours.packed_bytes(at)),
                nmse,
            };
            println!(
                "{:10} {:8} m {m:4} {n}x{k} {:4}: ours {:8.1} us, theirs {:8.1} us, {:5.2} times, {:3.0} %, NMSE {nmse:.0e}",
                pair.theirs,
                pair.ours,
                cell.memory,
                cell.our_us,
                cell.their_us,
                cell.speedup,
                cell.our_percent
            );
            cells.push(cell);
        }
    }
    Ok(())
}

/// What the peer's executor takes for a product of almost nothing, in us.
fn overhead() -> Result<f64, Error> {
    let Some(pair) = PAIRS.iter().find(|pair| pair.ours == "q8_0") else { return Ok(f64::NAN) };
    let mut weights = peer::Weights::quantize(pair, &[0.5; 64 * 64], 64, 64)?;
    let mut product = peer::Product::new(&mut weights, 1, &[1.0; 64], 1)?;
    Ok(median_time(|| product.run(0))? * 1e6)
}

/// The ceilings of one thread.
struct Ceilings {
    buffers: Vec<(Level, Option<ReadBuffers>)>,
}

impl Ceilings {
    fn new() -> Ceilings {
        let caches = &CpuProfile::detect().caches;
        let buffers = |level: &Level| (*level, ReadBuffers::new(level.typical_bytes(caches, 1), 1));
        Ceilings { buffers: Level::ALL.iter().map(buffers).collect() }
    }

    fn rate(&mut self, level: Level, ms: u32) -> Option<f64> {
        let (_, buffers) = self.buffers.iter_mut().find(|(known, _)| *known == level)?;
        buffers.as_mut()?.rate(1)?;
        buffers.as_mut()?.rate(ms)
    }

    /// Seconds in which the machine could do it right now; 0 if that can't be found out.
    fn least_time(&mut self, entry: &gristmill::registry::Entry, gmacs: f64, bytes: usize, hot: bool) -> f64 {
        let peak = entry.isa.and_then(|isa| multiply_peak(isa, entry.features, 1, 1));
        let multiply = peak.map_or(0.0, |rate| gmacs / rate);
        let shares = match hot {
            true => Level::shares(bytes, &CpuProfile::detect().caches, 1),
            false => [(Level::L2, 0), (Level::L3, 0), (Level::Dram, bytes)],
        };
        let time = |(level, bytes): (Level, usize)| match bytes {
            0 => 0.0,
            _ => self.rate(level, 1).map_or(0.0, |rate| bytes as f64 / 1e9 / rate),
        };
        multiply.max(shares.into_iter().map(time).sum())
    }

    fn shown(&mut self) -> Vec<(String, f64, String)> {
        let mut shown = Vec::new();
        for level in Level::ALL {
            if let Some(rate) = self.rate(*level, 40) {
                shown.push((format!("read {}", level.name()), rate, "GB/s".to_owned()));
            }
        }
        for isa in gristmill::vocab::Isa::ALL {
            let vectors = CpuProfile::detect().features.without(gristmill::vocab::Feature::AmxInt8);
            if let Some(rate) = multiply_peak(*isa, vectors, 1, 40) {
                shown.push((format!("multiply {}", isa.name()), rate, "GMAC/s".to_owned()));
            }
        }
        shown
    }
}

/// Median time of runs.
fn median_time(mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    run()?;
    let started = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || started.elapsed() < TIME {
        let (cpu, wall) = (cpu_time(), Instant::now());
        run()?;
        let wall = wall.elapsed();
        let cpu = cpu.and_then(|before| cpu_time()?.checked_sub(before));
        times.push(cpu.map_or(wall, |cpu| cpu.min(wall)).as_secs_f64());
    }
    Ok(median(times))
}

/// Time that the processor spent on this thread.
fn cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let refused = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (refused == 0).then(|| Duration::new(seconds, nanoseconds))
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

/// Seeded values (xorshift).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// -1, 0 or 1.
    fn ternary(&mut self) -> f32 {
        ((self.bits() >> 33) % 3) as f32 - 1.0
    }

    /// Mean 0, variance 1: the sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.bits() >> 40) as f32 / (1u32 << 24) as f32).sum::<f32>() - 6.0
    }
}
