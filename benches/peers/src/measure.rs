//! Ours and the peer's in turn, round after round, and whether they agree.

use crate::busy::{self, Watch, refuse_busy};
use crate::error::Error;
use crate::ours;
use crate::peer::{self, PACKAGE, PAIRS, Pair};
use crate::record::{self, date, load, machine, versions};
use clap::Args;
use gristmill::ceilings::{Level, ReadBuffers, multiply_peak};
use gristmill::vocab::Isa;
use gristmill::{CpuProfile, Restrict, Threads};
use gristmill_records::peers::{ProductCell, ProductRun, Products};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `measure`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Numbers of threads, separated by commas
    #[arg(long, default_value = "1,2", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Rounds, in each of which every side has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Formats of ours, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    formats: Vec<String>,
    /// Record to write; what it says of other peers of this machine is kept. Refused on a machine that other programs keep
    /// busy
    #[arg(long, conflicts_with = "formats")]
    record: Option<PathBuf>,
}

/// Rows and elements of a row: attention and feed-forward of BitNet b1.58 2B-4T.
const ATTENTION: (usize, usize) = (2560, 2560);
const FEED_FORWARD: (usize, usize) = (6912, 2560);
const TOKENS: &[usize] = &[1, 8, 32, 128, 512];

/// All copies of weights together, for cold memory.
const COLD_BYTES: usize = 320 << 20;

/// Time of one side in a round, about.
const TIME: Duration = Duration::from_millis(15);

/// Between turns: threads that look for work go to sleep meanwhile.
const PAUSE: Duration = Duration::from_millis(2);

/// Measures everything, and adds it to the record if there is one.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    let Arguments { threads, rounds, formats, record } = arguments;
    if record.is_some() {
        refuse_busy("before the measurement", busy::now())?;
    }
    peer::prepare()?;
    let compiled_for = peer::compiled_for();
    // A restricted ISA of ours holds both: who is compiled for more is no peer of it.
    let held = Restrict::from_env()?.isa;
    let beyond = |isa: &Isa| {
        let more: &[&str] = match isa {
            Isa::Avx512 => &[],
            Isa::AvxVnni => &["avx512f"],
            Isa::Avx2 => &["avx512f", "avxvnni"],
            _ => &["avx512f", "avxvnni", "avx2"],
        };
        more.iter().any(|feature| compiled_for.contains(feature))
    };
    if let Some(isa) = held.filter(beyond) {
        return Err(Error::CompiledFor {
            peer: PACKAGE,
            isa: isa.name(),
            compiled_for: compiled_for.join(", "),
        });
    }
    let before = load();
    let watch = Watch::start();
    let mut cells = Vec::new();
    let mut ceilings = Vec::new();
    let mut sides: Vec<(Threads, Ceilings)> = Vec::new();
    for count in threads {
        sides.push((Threads::new(*count)?, Ceilings::new(*count)));
    }
    if let Some(format) = formats.iter().find(|name| PAIRS.iter().all(|pair| pair.ours != **name)) {
        return Err(Error::NoPair { peer: PACKAGE, format: format.clone() });
    }
    for pair in PAIRS.iter().filter(|pair| formats.is_empty() || formats.iter().any(|name| name == pair.ours))
    {
        let shapes: &[_] = if pair.ternary { &[ATTENTION, FEED_FORWARD] } else { &[ATTENTION] };
        for shape in shapes {
            measure_pair(pair, *shape, *rounds as usize, &mut sides, &mut cells)?;
        }
    }
    for (_, side) in &mut sides {
        ceilings.extend(side.shown());
    }
    let others = watch.others();
    if let Some(others) = others {
        println!("others kept {others:.2} processors busy meanwhile");
    }
    let Some(path) = record else { return Ok(()) };
    refuse_busy("during the measurement", others)?;
    let suffix = held.map_or(String::new(), |isa| format!(", both held to {}", isa.name()));
    let run = ProductRun {
        peer: format!("{PACKAGE} {}{suffix}", locked_version()),
        held_to: held.map(|isa| isa.name().to_owned()),
        date: None,
        command: format!("peers measure --threads {} --rounds {rounds}", numbers(threads)),
        versions: versions(),
        load: [before, load()],
        others,
        notes: vec![
            format!(
                "medians of {rounds} rounds in which the ceilings, ours and theirs take turns; wall time; in brackets the least and \
                 the most of a round"
            ),
            "the peer runs products by its graph executor, many in one graph, so that what a graph costs is spread as in a model"
                .to_owned(),
            #[cfg(feature = "ggml")]
            "types with `CPU_REPACK` or `AMX` behind them are weights as its loader keeps them where nothing else is asked for"
                .to_owned(),
            format!("the peer says that it is compiled for {}", compiled_for.join(", ")),
        ],
        ceilings,
        cells,
    };
    let fresh = Products { date: date(), machine: machine(), runs: Vec::new() };
    record::add(path, fresh, run)
}

/// Numbers as an argument has them.
pub fn numbers(all: &[usize]) -> String {
    let all: Vec<String> = all.iter().map(usize::to_string).collect();
    all.join(",")
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
    sides: &mut [(Threads, Ceilings)],
    cells: &mut Vec<ProductCell>,
) -> Result<(), Error> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let values: Vec<f32> = match pair.ternary {
        true => (0..n * k).map(|_| 0.02 * random.ternary()).collect(),
        false => (0..n * k).map(|_| 0.02 * random.normal()).collect(),
    };
    let x: Vec<f32> = (0..512 * k).map(|_| random.normal()).collect();
    let mut theirs = peer::Weights::quantize(pair.id, pair.bytes, &values, n, k)?;
    let mut ours = match pair.bytes {
        Some(id) => {
            let plain = peer::Weights::quantize(id, None, &values, n, k)?;
            ours::Weights::new(pair.ours, plain.rows(), n, k)?
        }
        None => ours::Weights::quantize(pair.ours, &values, n, k)?,
    };
    let cases = TOKENS.iter().flat_map(|m| [(*m, true), (*m, false)]).filter(|(m, hot)| *hot || *m == 1);
    for form in peer::Form::all(pair, n, k)? {
        theirs.take_form(form);
        for (threads, ceilings) in &mut *sides {
            for (m, hot) in cases.clone() {
                let x = &x[..m * k];
                let name = form.name(pair);
                let cell = measure_cell(
                    (pair, name),
                    (m, hot),
                    x,
                    rounds,
                    threads,
                    ceilings,
                    &mut ours,
                    &mut theirs,
                )?;
                println!(
                    "{:15} {:8} {} threads, m {m:4} {n}x{k} {:4}: ours {:8.1} us, theirs {:8.1} us, {:5.2} times ({:.2} to {:.2}), \
                     {:3.0} %, NMSE {:.0e}",
                    cell.theirs,
                    pair.ours,
                    cell.threads,
                    cell.memory,
                    cell.our_us,
                    cell.their_us,
                    cell.speedup,
                    cell.least_speedup.unwrap_or(f64::NAN),
                    cell.most_speedup.unwrap_or(f64::NAN),
                    cell.our_percent,
                    cell.nmse
                );
                cells.push(cell);
            }
        }
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "what is measured, by what, and both sides")]
fn measure_cell(
    (pair, name): (&Pair, String),
    (m, hot): (usize, bool),
    x: &[f32],
    rounds: usize,
    threads: &Threads,
    ceilings: &mut Ceilings,
    ours: &mut ours::Weights,
    theirs: &mut peer::Weights,
) -> Result<ProductCell, Error> {
    let (n, k) = (ours.n, ours.k);
    let at = ours.pack(m, 1)?;
    let count = |bytes: usize| if hot { 1 } else { COLD_BYTES.div_ceil(bytes).max(2) };
    let (packed, bytes) = (ours.packed_bytes(at), ours.file_bytes());
    let (our_copies, their_copies) = (count(packed), count(theirs.bytes));
    ours.pack(m, our_copies)?;
    theirs.copy(their_copies)?;
    // As many products in a turn as one took of the time when it was tried; where memory is cold, each copy once.
    let (nmse, tried) = {
        let mut a = ours.products(at, (1, 1), x, m, threads)?;
        let mut b = peer::Products::new(theirs, 1, 1, x, m, threads.count())?;
        let tried = [time(|| a.run())?, time(|| b.run())?];
        (normalized_error(&a.y, &b.y()), tried)
    };
    // Not a number is no agreement.
    if nmse.is_nan() || nmse > pair.bound {
        return Err(Error::Disagree {
            ours: pair.ours.to_owned(),
            theirs: name,
            m,
            n,
            k,
            nmse,
            bound: pair.bound,
        });
    }
    let products = |copies: usize, tried: f64| match hot {
        true => ((TIME.as_secs_f64() / tried) as usize).clamp(1, 1024),
        false => copies,
    };
    let [our_count, their_count] = [products(our_copies, tried[0]), products(their_copies, tried[1])];
    let mut a = ours.products(at, (our_copies, our_count), x, m, threads)?;
    let mut b = peer::Products::new(theirs, their_copies, their_count, x, m, threads.count())?;
    let gmacs = m as f64 * n as f64 * k as f64 / 1e9;
    let (mut our_times, mut their_times, mut ratios, mut percents) = (vec![], vec![], vec![], vec![]);
    for round in 0..rounds {
        let least = ceilings.least_time(a.entry(), gmacs, bytes, hot);
        let (mut our_time, mut their_time) = (0.0, 0.0);
        // Nobody is always first.
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => our_time = time(|| a.run())? / our_count as f64,
                _ => their_time = time(|| b.run())? / their_count as f64,
            }
            std::thread::sleep(PAUSE);
        }
        our_times.push(our_time);
        their_times.push(their_time);
        ratios.push(their_time / our_time);
        percents.push((100.0 * least / our_time).min(100.0));
    }
    let (our_time, their_time) = (median(our_times), median(their_times));
    ratios.sort_by(f64::total_cmp);
    let bits = |bytes: usize| Some(8.0 * bytes as f64 / (n as f64 * k as f64));
    Ok(ProductCell {
        kernel: a.entry().name.to_owned(),
        format: pair.ours.to_owned(),
        theirs: name,
        m: m as u64,
        n: n as u64,
        k: k as u64,
        threads: threads.count() as u64,
        memory: if hot { "hot" } else { "cold" }.to_owned(),
        our_us: our_time * 1e6,
        their_us: their_time * 1e6,
        our_gmac_s: gmacs / our_time,
        their_gmac_s: gmacs / their_time,
        least_speedup: ratios.first().copied(),
        most_speedup: ratios.last().copied(),
        speedup: median(ratios),
        our_percent: median(percents),
        file_bits_per_weight: bits(bytes),
        memory_bits_per_weight: bits(packed),
        nmse,
    })
}

/// The ceilings of a number of threads.
struct Ceilings {
    threads: usize,
    buffers: Vec<(Level, Option<ReadBuffers>)>,
}

impl Ceilings {
    fn new(threads: usize) -> Ceilings {
        let caches = &CpuProfile::detect().caches;
        let buffers =
            |level: &Level| (*level, ReadBuffers::new(level.typical_bytes(caches, threads), threads));
        Ceilings { threads, buffers: Level::ALL.iter().map(buffers).collect() }
    }

    fn rate(&mut self, level: Level, ms: u32) -> Option<f64> {
        let (_, buffers) = self.buffers.iter_mut().find(|(known, _)| *known == level)?;
        buffers.as_mut()?.rate(1)?;
        buffers.as_mut()?.rate(ms)
    }

    /// Seconds in which the machine could do it right now; 0 if that can't be found out.
    fn least_time(&mut self, entry: &gristmill::registry::Entry, gmacs: f64, bytes: usize, hot: bool) -> f64 {
        let peak = entry.isa.and_then(|isa| multiply_peak(isa, entry.features, self.threads, 1));
        let multiply = peak.map_or(0.0, |rate| gmacs / rate);
        let shares = match hot {
            true => Level::shares(bytes, &CpuProfile::detect().caches, self.threads),
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
        let on = if self.threads == 1 { String::new() } else { format!(", {} threads", self.threads) };
        for level in Level::ALL {
            if let Some(rate) = self.rate(*level, 40) {
                shown.push((format!("read {}{on}", level.name()), rate, "GB/s".to_owned()));
            }
        }
        for isa in gristmill::vocab::Isa::ALL {
            let vectors = CpuProfile::detect().features.without(gristmill::vocab::Feature::AmxInt8);
            if let Some(rate) = multiply_peak(*isa, vectors, self.threads, 40) {
                shown.push((format!("multiply {}{on}", isa.name()), rate, "GMAC/s".to_owned()));
            }
        }
        shown
    }
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
