//! GMAC/s of this layer beside candle's `QMatMul`, in one process, on the same number of threads, for one token and for several:
//! prints each pair and their ratio, for every format of this build, or for those that are named.
//!
//! Types that candle has are compared on the same bytes, and their results with each other. Of the others it has floats alone, so there
//! the same weights are beside its f32: blocks of the golden vectors in random order.
//!
//!     RAYON_NUM_THREADS=1 cargo run --release --features iq --example ratio -- [N] [K] [FORMAT...] [--record FILE]
//!
//! `--record` adds the run to a record of this day and machine, from which `docs/performance.md` is made.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Tensor};
use gristmill::{CpuProfile, REGISTRY};
use gristmill_candle::{Linear, TYPES, Threads, format_of};
use gristmill_records::committed::{Candle, CandleCell, CandleRun, Machine};
use gristmill_records::daily::with_run;
use serde_json::Value;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns of each layer.
const TURNS: usize = 9;

const TOKENS: [usize; 3] = [1, 32, 512];

/// Most that results may differ: both round activations to int8, candle by blocks of 32 or 256 values.
const NMSE_BOUND: f64 = 3e-4;

struct Arguments {
    n: usize,
    k: usize,
    formats: Vec<String>,
    record: Option<PathBuf>,
}

impl Arguments {
    fn read() -> Result<Arguments, Box<dyn Error>> {
        let (mut plain, mut record) = (Vec::new(), None);
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            if argument == "--record" {
                record = Some(arguments.next().ok_or("--record expects a file")?.into());
            } else {
                plain.push(argument);
            }
        }
        let size = |at: usize| {
            plain.get(at).map_or(Ok(2560), |size| {
                size.parse::<usize>()
                    .map_err(|error| format!("`{size}` is no number of rows or columns: {error}"))
            })
        };
        Ok(Arguments { n: size(0)?, k: size(1)?, formats: plain.split_off(plain.len().min(2)), record })
    }
}

/// candle's layer and ours, and candle's type of the weights.
struct Pair {
    format: &'static str,
    theirs: Option<GgmlDType>,
    /// Whether candle's weights are exactly ours, and not what ours were quantized from.
    same: bool,
    layers: [Box<dyn Module>; 2],
}

/// Blocks of a format and the weights that they are, as its reference made them of normally distributed values.
struct Golden {
    blocks: Vec<u8>,
    weights: Vec<f32>,
}

impl Golden {
    /// `None`: there are none of whole blocks.
    fn of(format: &str) -> Result<Option<Golden>, Box<dyn Error>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/vectors");
        let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("manifest.json"))?)?;
        let entries = manifest["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of_format = |entry: &&Value| {
            entry["case"] == "gauss"
                && entry["block_bytes"].is_u64()
                && entry["format"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(format))
        };
        let Some(entry) = entries.iter().find(of_format) else { return Ok(None) };
        let bytes = |key: &str| -> Result<Vec<u8>, Box<dyn Error>> {
            let part = &entry[key];
            let file = std::fs::read(folder.join(part["file"].as_str().ok_or("no file")?))?;
            let at = |key: &str| part[key].as_u64().map_or(usize::MAX, |at| at as usize);
            Ok(file
                .get(at("offset")..)
                .and_then(|rest| rest.get(..at("bytes")))
                .ok_or("a file cut off")?
                .to_vec())
        };
        let weights = bytes("y")?.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        Ok(Some(Golden { blocks: bytes("q")?, weights }))
    }

    /// A matrix of them, in our layer and as candle's f32.
    fn layers(
        &self,
        format: &str,
        n: usize,
        k: usize,
        threads: &Arc<Threads>,
    ) -> Result<[Box<dyn Module>; 2], Box<dyn Error>> {
        let info = REGISTRY.format(format)?.1;
        let (elements, bytes) = (info.elements, info.bytes);
        let (blocks, weights) = (self.blocks.chunks_exact(bytes), self.weights.chunks_exact(elements));
        let golden: Vec<_> = blocks.zip(weights).collect();
        // In any order, so that rows differ.
        let order =
            Tensor::rand(0f32, golden.len() as f32, n * k / elements, &Device::Cpu)?.to_vec1::<f32>()?;
        let chosen: Vec<_> = order.iter().map(|at| golden[*at as usize % golden.len()]).collect();
        let blocks: Vec<u8> = chosen.iter().flat_map(|(block, _)| *block).copied().collect();
        let weights: Vec<f32> = chosen.iter().flat_map(|(_, weights)| *weights).copied().collect();
        let ours = Linear::from_blocks(format, n, k, &blocks, &Device::Cpu, threads)?;
        let theirs = QMatMul::Tensor(Tensor::from_vec(weights, (n, k), &Device::Cpu)?);
        Ok([Box::new(theirs), Box::new(ours)])
    }
}

impl Pair {
    /// `None`, and why is printed, where there are no weights of the format.
    fn new(
        format: &'static str,
        n: usize,
        k: usize,
        threads: &Arc<Threads>,
    ) -> Result<Option<Pair>, Box<dyn Error>> {
        let theirs = TYPES.iter().copied().find(|dtype| format_of(*dtype) == Some(format));
        if let (None, Some(golden)) = (theirs, Golden::of(format)?) {
            let layers = golden.layers(format, n, k, threads)?;
            return Ok(Some(Pair { format, theirs, same: true, layers }));
        }
        let weights = Tensor::randn(0f32, 1.0, (n, k), &Device::Cpu)?;
        let (same, layers): (bool, [Box<dyn Module>; 2]) = match theirs {
            Some(dtype) => {
                let weights = QTensor::quantize(&weights, dtype)?;
                let ours = Linear::from_qtensor(&weights, threads)?;
                (true, [Box::new(QMatMul::from_qtensor(weights)?), Box::new(ours)])
            }
            None => match Linear::quantize(&weights, format, threads) {
                Ok(ours) => (false, [Box::new(QMatMul::Tensor(weights)), Box::new(ours)]),
                Err(error) => {
                    println!("{format:<12} {}", error.to_string().lines().next().unwrap_or_default());
                    return Ok(None);
                }
            },
        };
        Ok(Some(Pair { format, theirs, same, layers }))
    }

    fn measure(&self, [m, n, k]: [usize; 3], threads: usize) -> Result<CandleCell, Box<dyn Error>> {
        let x = Tensor::randn(0f32, 1.0, (m, k), &Device::Cpu)?;
        let results = [self.layers[0].forward(&x)?, self.layers[1].forward(&x)?];
        let nmse = self.same.then(|| difference(&results)).transpose()?;
        // Not a number is no agreement.
        if nmse.is_some_and(|nmse| nmse.is_nan() || nmse > NMSE_BOUND) {
            return Err(
                format!("{}, {m} tokens: candle's results are others, NMSE {nmse:?}", self.format).into()
            );
        }
        let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..TURNS {
            // In turn, so that what else the machine does meets both.
            let [theirs, ours] = [each(&*self.layers[0], &x, threads)?, each(&*self.layers[1], &x, threads)?];
            times[0].push(theirs);
            times[1].push(ours);
            ratios.push(theirs / ours);
        }
        let work = (m * n * k) as f64 / 1e9;
        let [their_gmac_s, our_gmac_s] = times.map(|mut times| work / median(&mut times));
        let theirs = self.theirs.map(|dtype| format!("{dtype:?}"));
        let (format, ratio) = (self.format.to_owned(), median(&mut ratios));
        let [m, n, k] = [m, n, k].map(|size| size as u64);
        Ok(CandleCell { format, theirs, m, n, k, our_gmac_s, their_gmac_s, ratio, nmse })
    }
}

/// Seconds of one call, of as many as can be measured: of time that the processor spent on this process where `threads` is one, so that
/// what the system gave to other programs is not counted, and else of the clock.
fn each(layer: &dyn Module, x: &Tensor, threads: usize) -> candle_core::Result<f64> {
    let (started, spent, mut count) = (Instant::now(), processor_time(), 0u32);
    while started.elapsed() < Duration::from_millis(20) {
        layer.forward(x)?;
        count += 1;
    }
    let clock = started.elapsed();
    let spent = spent.filter(|_| threads == 1).and_then(|before| processor_time()?.checked_sub(before));
    Ok(spent.map_or(clock, |spent| spent.min(clock)).as_secs_f64() / f64::from(count))
}

/// Time that processors spent on this process, all threads.
fn processor_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let refused = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (refused == 0).then(|| Duration::new(seconds, nanoseconds))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Mean square difference of two results, relative to the mean square of the first.
fn difference([a, b]: &[Tensor; 2]) -> candle_core::Result<f64> {
    let [a, b] = [a.flatten_all()?.to_vec1::<f32>()?, b.flatten_all()?.to_vec1::<f32>()?];
    let square = |x: f64| x * x;
    let apart: f64 = a.iter().zip(&b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    Ok(apart / a.iter().map(|a| square(f64::from(*a))).sum::<f64>())
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { n, k, formats, record } = Arguments::read()?;
    let count = candle_core::utils::get_num_threads();
    let threads = Arc::new(Threads::new(count)?);
    let (before, mut cells) = (load(), Vec::new());
    println!("{n}x{k}, {count} threads, GMAC/s");
    println!("{:<12} {:>4} {:>8} {:>10} {:>6}", "format", "m", "candle", "gristmill", "ratio");
    formats.iter().try_for_each(|name| REGISTRY.format(name).map(drop))?;
    let asked = |name: &str| formats.is_empty() || formats.iter().any(|format| format == name);
    for info in REGISTRY.formats.iter().filter(|info| asked(info.name)) {
        let Some(pair) = Pair::new(info.name, n, k, &threads)? else { continue };
        for m in TOKENS {
            let cell = pair.measure([m, n, k], count)?;
            let (theirs, ours, ratio) = (cell.their_gmac_s, cell.our_gmac_s, cell.ratio);
            let beside = if cell.theirs.is_none() { " (f32)" } else { "" };
            println!("{:<12} {m:>4} {theirs:>8.1} {ours:>10.1} {ratio:>6.2}{beside}", info.name);
            cells.push(cell);
        }
    }
    let Some(path) = record else { return Ok(()) };
    let run = CandleRun {
        peer: format!("candle-core {}", locked_version("candle-core")),
        command: std::env::args().skip(1).fold("ratio".to_owned(), |all, word| all + " " + &word),
        versions: versions(),
        target_features: target_features(),
        threads: count as u64,
        load: [before, load()],
        cells,
    };
    add(&path, run)
}

/// Adds a run to a record of this day and machine, in place of one that was made in the same way, or begins one where there is none.
fn add(path: &Path, run: CandleRun) -> Result<(), Box<dyn Error>> {
    let said = |error: &dyn Error| format!("{}: {error}", path.display());
    let fresh = Candle {
        date: jiff::Timestamp::now().strftime("%F").to_string(),
        machine: machine(),
        candle: Vec::new(),
    };
    let there = path.exists().then(|| std::fs::read(path)).transpose().map_err(|error| said(&error))?;
    let there =
        there.map(|bytes| serde_json::from_slice(&bytes)).transpose().map_err(|error| said(&error))?;
    let record = with_run(there, fresh, run).ok_or_else(|| {
        format!("{}: a record of another day or machine; name another file", path.display())
    })?;
    std::fs::write(path, serde_json::to_string_pretty(&record)? + "\n").map_err(|error| said(&error).into())
}

/// This machine.
fn machine() -> Machine {
    let cpu = CpuProfile::detect();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |name: &str| {
        let line = info.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name);
        line.map_or("unknown", |(_, value)| value.trim())
    };
    Machine {
        cpu: format!("{} (family {}, model {})", of("model name"), of("cpu family"), of("model")),
        cores: cpu.cores as u64,
        features: cpu.features.iter().map(|feature| feature.name().to_owned()).collect(),
        l2_bytes: cpu.caches.l2.map(|bytes| bytes as u64),
        l3_bytes: cpu.caches.l3.map(|bytes| bytes as u64),
    }
}

/// Programs that wanted to run, over the last minute, where the system tells.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The version of a package that the lock file holds.
fn locked_version(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let entry = lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{package}\"")));
    entry.and_then(|entry| entry.split("version = \"").nth(1)?.split('"').next()).unwrap_or("unknown")
}

/// The compiler and our commit.
fn versions() -> Vec<String> {
    let first_line = |program: &str, arguments: &[&str]| {
        let output =
            Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
    };
    let commit =
        first_line("git", &["rev-parse", "--short=12", "HEAD"]).map(|commit| format!("gristmill {commit}"));
    first_line("rustc", &["--version"]).into_iter().chain(commit).collect()
}

/// What candle has code for that the compiler could rely on in this build.
fn target_features() -> Vec<String> {
    let known = [
        ("avx", cfg!(target_feature = "avx")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("fma", cfg!(target_feature = "fma")),
        ("f16c", cfg!(target_feature = "f16c")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("avx512bw", cfg!(target_feature = "avx512bw")),
        ("avx512vnni", cfg!(target_feature = "avx512vnni")),
        ("neon", cfg!(target_feature = "neon")),
        ("dotprod", cfg!(target_feature = "dotprod")),
    ];
    known.into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned()).collect()
}
