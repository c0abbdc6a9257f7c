//! `gristmill bench`: kernels against what this machine can do at most, measured in the same run.

use super::error::{CliError, Outcome};
use super::random::Random;
use super::run::threads;
use super::table::{Side, Table, bytes, counted, measured};
use super::verify::random_tensor;
use super::{print_json, progress, request};
use gristmill::ceilings::{multiply_peak, read_bandwidth};
use gristmill::oracle::{Int8Row, Oracle};
use gristmill::registry::{Entry, FormatInfo};
use gristmill::vocab::{DType, Isa, Op};
use gristmill::{
    CpuProfile, Device, Input, Matmul, PackedMatrix, Prepared, QuantizedMatrix, REGISTRY, Request, Restrict,
    Shape, Threads, Workspace,
};
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

/// Measure kernels, as a part of what memory and multiply units can do
///
/// Ceilings are measured in the same run: the rate at which memory delivers packed weights, and the products that
/// the multiply units finish. A kernel's ceiling is the lower of the two. Without --isa, the kernel that would be
/// chosen is measured; with it, every kernel of that ISA.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only this format; all if not given
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// Every kernel of this ISA: scalar, sse4.1, avx2, avxvnni, avx512
    #[arg(long, value_name = "NAME", value_parser = request::isa)]
    isa: Option<Isa>,
    /// Numbers of tokens
    #[arg(long, value_name = "M", value_delimiter = ',', default_value = "1,128")]
    m: Vec<usize>,
    /// Rows and elements of a row of the weights
    #[arg(long, value_name = "NxK", default_value = "2560x2560", value_parser = request::matrix)]
    shape: (usize, usize),
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Weights that stay in the caches, or come from memory in each run
    #[arg(long, default_value = "hot")]
    memory: Memory,
    /// Type of the activations; quantizing them is part of the time, unless they are i8 already
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = input)]
    input: DType,
    /// Shorter measurements
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Memory {
    /// The same weights in each run.
    Hot,
    /// So many copies in turn that none is still in a cache.
    Cold,
}

impl Memory {
    fn name(self) -> &'static str {
        match self {
            Memory::Hot => "hot",
            Memory::Cold => "cold",
        }
    }
}

fn input(text: &str) -> Result<DType, String> {
    match request::dtype(text)? {
        dtype @ (DType::F32 | DType::I8) => Ok(dtype),
        DType::F16 | DType::Bf16 => Err("activations are measured as f32 or i8".to_owned()),
    }
}

/// One measurement.
struct Record {
    kernel: &'static str,
    format: &'static str,
    isa: Isa,
    m: usize,
    seconds: f64,
    gmac_s: f64,
    gb_s: f64,
    /// Bytes of packed weights that a run reads, and those that all copies take.
    packed_bytes: usize,
    footprint: usize,
    /// Key of the multiply units.
    units: (Isa, u64),
    /// Ceiling in GMAC/s and what sets it; known when all is measured.
    ceiling: Option<(f64, &'static str)>,
}

/// The best rate seen of each ceiling. Every kernel measures its own again, before and after, since on a shared
/// machine a single look may fall into a slow moment.
#[derive(Default)]
struct Ceilings {
    /// By ISA and features, in GMAC/s of one core.
    multiply: Vec<((Isa, u64), f64)>,
    /// By bytes that are read over and over, in GB/s.
    read: Vec<(usize, f64)>,
}

/// Notes a rate if it is the best.
fn note<K: PartialEq>(rates: &mut Vec<(K, f64)>, key: K, rate: Option<f64>) {
    let Some(rate) = rate else { return };
    match rates.iter_mut().find(|(known, _)| *known == key) {
        Some((_, best)) => *best = best.max(rate),
        None => rates.push((key, rate)),
    }
}

fn best<K: PartialEq>(rates: &[(K, f64)], key: K) -> Option<f64> {
    rates.iter().find(|(known, _)| *known == key).map(|(_, rate)| *rate)
}

/// Least bytes of all copies together for cold memory: twice the largest cache, where its size is known.
fn cold_bytes() -> usize {
    let largest = CpuProfile::detect().caches.l3.unwrap_or(64 << 20);
    (2 * largest).clamp(64 << 20, 1 << 30)
}

/// Milliseconds for one ceiling, or one kernel.
fn time(quick: bool) -> u32 {
    if quick { 30 } else { 200 }
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let only = arguments.format.as_deref().map(request::format).transpose()?;
    if arguments.m.contains(&0) || arguments.shape.0 == 0 || arguments.shape.1 == 0 {
        return Err(CliError::usage(
            "a dimension is 0: there is nothing to measure",
            "for example --m 1 --shape 2560x2560",
        ));
    }
    let oracle = Oracle::new(&REGISTRY)?;
    let count = threads(Some(arguments.threads));
    let threads = Threads::new(count)?;
    let formats: Vec<&'static FormatInfo> =
        REGISTRY.formats.iter().filter(|format| only.is_none_or(|only| only.name == format.name)).collect();
    let bar = progress::bar(formats.len() as u64);
    let (mut records, mut ceilings, mut left) = (Vec::new(), Ceilings::default(), Vec::new());
    for format in formats {
        bar.set_message(format.name);
        bar.inc(1);
        match one(arguments, &oracle, format, &threads, &mut ceilings) {
            Ok(more) => records.extend(more),
            // With a format named, a refusal is the answer; among all, it is a line at the end.
            Err(error) if only.is_none() && error.is_no_kernel() => {
                left.push(format!(
                    "{}: {}",
                    format.name,
                    error.to_string().lines().next().unwrap_or_default()
                ));
            }
            Err(error) => return Err(error),
        }
    }
    bar.finish_and_clear();
    let (n, k) = arguments.shape;
    for record in &mut records {
        record.ceiling = ceilings.of(record, record.m as f64 * n as f64 * k as f64, count);
    }
    if arguments.json {
        print_json(out, &records.iter().map(|record| record.json(arguments, count)).collect())?;
    } else {
        print(arguments, count, &records, &left, out)?;
    }
    Ok(if records.is_empty() { Outcome::NoKernel } else { Outcome::Yes })
}

/// The requests to measure: the one that the environment decides, or one for each kernel of an ISA.
fn prepared(arguments: &Arguments, format: &'static FormatInfo) -> Result<Vec<Prepared>, CliError> {
    let (n, k) = arguments.shape;
    let asked = Request::matmul(format.name, Shape::new(1, n, k)).with_input(arguments.input);
    let Some(isa) = arguments.isa else { return Ok(vec![REGISTRY.prepare(&asked)?]) };
    let of_isa = |entry: &&Entry| {
        let named = REGISTRY.formats.get(entry.format).is_some_and(|info| info.name == format.name);
        entry.op == Op::Matmul && named && entry.isa == Some(isa)
    };
    let only = |entry: &Entry| Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
    let each = REGISTRY.entries.iter().filter(of_isa);
    each.map(|entry| Ok(REGISTRY.prepare_for(&asked, CpuProfile::detect(), &only(entry))?)).collect()
}

fn one(
    arguments: &Arguments,
    oracle: &Oracle,
    format: &'static FormatInfo,
    threads: &Threads,
    ceilings: &mut Ceilings,
) -> Result<Vec<Record>, CliError> {
    let (n, k) = arguments.shape;
    let meaning = oracle.format(format.name)?;
    // Refuses rows that are not whole blocks, before bytes are made for them.
    format.tensor_bytes(n, k)?;
    let mut random = Random::new(1, format.name);
    let tensor = random_tensor(&meaning, &mut random, n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
    let (mut records, mut refused) = (Vec::new(), None);
    for prepared in prepared(arguments, format)? {
        for &m in &arguments.m {
            let decision = prepared.decide(Shape::new(m, n, k));
            let matmul = match Matmul::new(&decision) {
                Ok(matmul) => matmul,
                // A kernel of the ISA that is for other numbers of tokens.
                Err(error) => {
                    refused.get_or_insert(error);
                    continue;
                }
            };
            let x = random.gauss_vec(m * k, 1.0);
            let mut int8 = (Vec::new(), Vec::new());
            for row in x.chunks(k) {
                if let Ok(row) = Int8Row::quantize(meaning.activations(), row) {
                    int8.0.extend(row.q);
                    int8.1.extend(row.scales);
                }
            }
            let input = match arguments.input {
                DType::I8 => Input::I8 { q: &int8.0, scales: &int8.1 },
                DType::F32 | DType::F16 | DType::Bf16 => Input::F32(&x),
            };
            records.push(kernel(arguments, &matmul, &matrix, input, m, threads, ceilings)?);
        }
    }
    match (records.is_empty(), refused) {
        (true, Some(error)) => Err(error.into()),
        (_, _) => Ok(records),
    }
}

fn kernel(
    arguments: &Arguments,
    matmul: &Matmul,
    matrix: &QuantizedMatrix<'_>,
    input: Input<'_>,
    m: usize,
    threads: &Threads,
    ceilings: &mut Ceilings,
) -> Result<Record, CliError> {
    let (n, k) = (matrix.n(), matrix.k());
    let mut weights: Vec<PackedMatrix> = vec![matmul.pack_on(matrix, threads)?];
    let packed_bytes = weights[0].bytes().max(1);
    if arguments.memory == Memory::Cold {
        for _ in 1..cold_bytes().div_ceil(packed_bytes) {
            weights.push(matmul.pack_on(matrix, threads)?);
        }
    }
    let entry = matmul.entry();
    let Some(isa) = entry.isa else {
        let device = Device { kind: entry.device, index: 0 };
        return Err(gristmill::Error::CannotDrive { kernel: entry.name, device }.into());
    };
    let footprint = if arguments.memory == Memory::Hot { packed_bytes } else { cold_bytes() };
    ceilings.look(isa, entry, footprint, threads.count(), arguments.quick);
    let mut workspace = Workspace::for_(matmul, m, k, threads)?;
    let mut y = vec![0.0; m * n];
    let limit = Duration::from_millis(time(arguments.quick).into());
    let mut times = Vec::new();
    let started = Instant::now();
    // The first run of each copy warms up pages, not caches.
    for weights in &weights {
        matmul.run(weights, input, m, None, &mut y, &mut workspace, threads)?;
    }
    let warm = started.elapsed();
    while times.len() < 5 || started.elapsed() < warm + limit {
        let weights = &weights[times.len() % weights.len()];
        let start = Instant::now();
        matmul.run(weights, input, m, None, &mut y, &mut workspace, threads)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let seconds = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    let gmacs = m as f64 * n as f64 * k as f64 / 1e9;
    ceilings.look(isa, entry, footprint, threads.count(), arguments.quick);
    Ok(Record {
        kernel: entry.name,
        format: matmul.format().name,
        isa,
        m,
        seconds,
        gmac_s: gmacs / seconds,
        gb_s: packed_bytes as f64 / seconds / 1e9,
        packed_bytes,
        footprint,
        units: (isa, entry.features.0),
        ceiling: None,
    })
}

impl Ceilings {
    /// Measures both ceilings of an entry once more.
    fn look(&mut self, isa: Isa, entry: &Entry, footprint: usize, threads: usize, quick: bool) {
        let peak = multiply_peak(isa, entry.features, time(quick) / 2);
        note(&mut self.multiply, (isa, entry.features.0), peak);
        note(&mut self.read, footprint, read_bandwidth(footprint, threads, time(quick) / 2));
    }

    /// The lower of both ceilings, in GMAC/s for `macs` products that read `bytes`.
    fn of(&self, record: &Record, macs: f64, threads: usize) -> Option<(f64, &'static str)> {
        let bytes = record.packed_bytes as f64;
        let read = best(&self.read, record.footprint).map(|rate| (macs / bytes * rate, "read bandwidth"));
        let multiply =
            best(&self.multiply, record.units).map(|rate| (rate * threads as f64, "multiply peak"));
        read.into_iter().chain(multiply).min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

impl Record {
    fn percent(&self) -> Option<f64> {
        self.ceiling.map(|(rate, _)| 100.0 * self.gmac_s / rate)
    }

    fn json(&self, arguments: &Arguments, threads: usize) -> Value {
        json!({
            "kernel": self.kernel,
            "format": self.format,
            "isa": self.isa.name(),
            "m": self.m,
            "n": arguments.shape.0,
            "k": arguments.shape.1,
            "threads": threads,
            "memory": arguments.memory.name(),
            "includes_activation_quantization": arguments.input != DType::I8,
            "us": self.seconds * 1e6,
            "gmac_s": self.gmac_s,
            "gb_s": self.gb_s,
            "ceiling": self.ceiling.map(|(rate, _)| rate),
            "ceiling_set_by": self.ceiling.map(|(_, what)| what),
            "percent": self.percent(),
        })
    }
}

fn print(
    arguments: &Arguments,
    threads: usize,
    records: &[Record],
    left: &[String],
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("kernel", Side::Left),
        ("m", Side::Right),
        ("us", Side::Right),
        ("GB/s", Side::Right),
        ("GMAC/s", Side::Right),
        ("ceiling", Side::Right),
        ("%", Side::Right),
        ("set by", Side::Left),
    ]);
    for record in records {
        table.row([
            record.kernel.to_owned(),
            record.m.to_string(),
            measured(record.seconds * 1e6),
            measured(record.gb_s),
            measured(record.gmac_s),
            record.ceiling.map_or(String::new(), |(rate, _)| measured(rate)),
            record.percent().map_or(String::new(), |percent| format!("{percent:.0}")),
            record.ceiling.map_or(String::new(), |(_, what)| what.to_owned()),
        ]);
    }
    if !table.is_empty() {
        table.print(out)?;
        writeln!(out)?;
    }
    let (n, k) = arguments.shape;
    let memory = match arguments.memory {
        Memory::Hot => "hot (the same weights in each run)".to_owned(),
        Memory::Cold => format!("cold (copies of {} in turn)", bytes(cold_bytes() as u64)),
    };
    let quantized =
        if arguments.input == DType::I8 { "int8 activations" } else { "quantizing f32 activations included" };
    writeln!(out, "weights {n}x{k}, {}, memory {memory}, {quantized}; medians", counted(threads, "thread"))?;
    if !records.is_empty() {
        writeln!(
            out,
            "GB/s counts each byte of packed weights once; the ceiling is in GMAC/s, the best seen in this run"
        )?;
    }
    if cfg!(debug_assertions) {
        writeln!(out, "this is a debug build: only figures of a release build mean something")?;
    }
    for line in left {
        writeln!(out, "not measured: {line}")?;
    }
    Ok(())
}
