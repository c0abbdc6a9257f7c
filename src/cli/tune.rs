//! `gristmill tune`: which kernel is fastest here, for each format and class of shapes, measured once and kept in a file.

mod arguments;
#[cfg(feature = "cuda")]
mod gpu;
mod packed;

pub use arguments::Arguments;

use super::clock::{Clock, median};
use super::error::{CliError, Outcome};
use super::random::Random;
use super::table::{Side, Table, counted, measured};
use super::verify::random_tensor;
use super::{output, progress, request};
use arguments::TOKENS_ON_CPU;
use gristmill::oracle::Oracle;
use gristmill::registry::{Entry, FormatInfo, KernelId};
use gristmill::tuning::{Measured, ShapeClass, Tuning, cpu};
use gristmill::vocab::{DeviceKind, Isa, Op};
use gristmill::{
    CpuProfile, Device, Input, Matmul, PackedMatrix, QuantizedMatrix, REGISTRY, Request, Restrict, Shape,
    Threads, Workspace,
};
use packed::place_of_packing;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Rounds in which the kernels of a class take turns.
const ROUNDS: usize = 5;
/// A kernel that is that much slower than the best in its first run is not measured further.
const HOPELESS: f64 = 2.0;
/// Tokens up to which weights come from memory: with more, the products take longer than the reading.
const COLD_TOKENS: usize = 4;
/// All copies of weights together, for cold memory.
const COLD_BYTES: usize = 320 << 20;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if arguments.check {
        return check(arguments, out);
    }
    let named: Vec<&FormatInfo> =
        arguments.format.iter().map(|name| request::format(name)).collect::<Result<_, _>>()?;
    let chosen = |format: &&'static FormatInfo| {
        named.is_empty() || named.iter().any(|named| named.name == format.name)
    };
    let formats: Vec<&'static FormatInfo> = REGISTRY.formats.iter().filter(chosen).collect();
    // Parts of other processors and GPUs stay. Read first, so that what can't be kept is refused before anything is measured.
    let existing = existing(&arguments.out)?;
    let tuning = Tuning::of(match arguments.device.kind {
        DeviceKind::Cpu => on_cpu(arguments, &formats)?,
        DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => on_gpu(arguments, &formats)?,
    });
    output::write(&arguments.out, tuning.text(&existing).as_bytes())?;
    print(&tuning, arguments.device, out)?;
    writeln!(out, "written to {}; GRISTMILL_TUNING names it to programs", arguments.out.display())?;
    Ok(if tuning.measured().is_empty() { Outcome::NoKernel } else { Outcome::Yes })
}

/// The text of the tuning file that is to be written, if it is there.
///
/// # Errors
/// If it can't be read, or is another kind of file, which would be lost.
fn existing(path: &Path) -> Result<String, CliError> {
    // A pipe or a device has nothing that could be lost, and reading it would wait.
    if !std::fs::metadata(path).is_ok_and(|old| old.is_file()) {
        return Ok(String::new());
    }
    let bytes = std::fs::read(path).map_err(CliError::file("read", path))?;
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() || text.starts_with("gristmill tuning") => Ok(text),
        Ok(_) | Err(_) => Err(CliError::usage(
            format!("`{}` is no tuning file, and would be overwritten", path.display()),
            "name a new file with --out, or one that `gristmill tune` wrote",
        )),
    }
}

fn on_cpu(arguments: &Arguments, formats: &[&'static FormatInfo]) -> Result<Vec<Measured>, CliError> {
    let classes = arguments.classes();
    let bar = progress::bar((formats.len() * classes.iter().map(Vec::len).sum::<usize>()) as u64);
    let mut all = Vec::new();
    for format in formats {
        bar.set_message(format.name);
        for weights in &classes {
            all.extend(tune(arguments, format, weights, &bar)?);
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

fn on_gpu(arguments: &Arguments, formats: &[&'static FormatInfo]) -> Result<Vec<Measured>, CliError> {
    let device = arguments.device;
    if device.kind != DeviceKind::Cuda {
        return Err(CliError::usage(
            format!("--device {device}: no kernel is described for it"),
            "measured are cpu and cuda:0",
        ));
    }
    #[cfg(feature = "cuda")]
    {
        gpu::tune(arguments, device, formats)
    }
    #[cfg(not(feature = "cuda"))]
    {
        // Nothing is measured.
        let _ = formats;
        Err(gristmill::Error::NoGpu { index: device.index, why: gristmill::NoGpu::FeatureOff }.into())
    }
}

fn check(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let tuning = Tuning::read(&arguments.out, &REGISTRY);
    print(&tuning, arguments.device, out)?;
    for aside in tuning.set_aside() {
        writeln!(out, "set aside: {aside}")?;
    }
    writeln!(
        out,
        "{}: {} of it can be used here",
        arguments.out.display(),
        counted(tuning.measured().len(), "line")
    )?;
    Ok(if tuning.set_aside().is_empty() { Outcome::Yes } else { Outcome::Failed })
}

/// One kernel of a class.
struct Runner {
    entry: &'static Entry,
    matmul: Matmul,
    /// Place of its packing among the packed weights.
    packed: usize,
    workspace: Workspace,
    runs: usize,
    times: Vec<f64>,
}

/// Measures classes whose weights are of one size.
fn tune(
    arguments: &Arguments,
    format: &'static FormatInfo,
    classes: &[ShapeClass],
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Measured>, CliError> {
    let Some(Shape { n, k, .. }) = classes.first().map(|class| class.example()) else {
        return Ok(Vec::new());
    };
    let oracle = Oracle::new(&REGISTRY)?;
    let meaning = oracle.format(format.name)?;
    let mut random = Random::new(1, format.name);
    let tensor = random_tensor(&meaning, &mut random, n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
    let example = |class: &ShapeClass| {
        let shape = class.example();
        Shape { m: shape.m.min(TOKENS_ON_CPU), ..shape }
    };
    let most = classes.iter().map(|class| example(class).m).max().unwrap_or(1);
    let x = random.gauss_vec(most * k, 1.0);
    let mut y = vec![0.0; most * n];
    let threads = Threads::single();
    let mut packed = Vec::new();
    let mut found = Vec::new();
    for class in classes {
        bar.inc(1);
        let shape = example(class);
        let cold = !arguments.hot && shape.m <= COLD_TOKENS;
        let mut runners = Vec::new();
        for entry in candidates(format) {
            let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
            let request = Request::matmul(format.name, shape);
            let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only)?;
            // Not for these numbers of tokens.
            let Ok(matmul) = Matmul::new(&prepared.decide(shape)) else { continue };
            let at = place_of_packing(&mut packed, &matmul, &matrix, &threads)?;
            let copies = &mut packed[at].1;
            let wanted = if cold { COLD_BYTES.div_ceil(copies[0].bytes().max(1)) } else { 1 };
            while copies.len() < wanted {
                let copy = copies[0].try_clone()?;
                copies.push(copy);
            }
            let workspace = Workspace::for_(&matmul, shape.m, k, &threads)?;
            runners.push(Runner { entry, matmul, packed: at, workspace, runs: 0, times: Vec::new() });
        }
        let time = Duration::from_micros(if arguments.quick { 500 } else { 3000 });
        let mut best = f64::INFINITY;
        for round in 0..=ROUNDS {
            for runner in &mut runners {
                // The first round is a single run, which warms up and sorts out.
                let limit = if round == 0 { Duration::ZERO } else { time };
                if runner.times.first().is_some_and(|first| *first > HOPELESS * best) {
                    continue;
                }
                let copies = &packed[runner.packed].1;
                let copies = if cold { copies } else { &copies[..1] };
                let seconds =
                    runner.measure(copies, &x[..shape.m * k], &mut y[..shape.m * n], limit, &threads)?;
                runner.times.push(seconds);
                best = best.min(seconds);
            }
        }
        let mut order: Vec<(KernelId, f64)> =
            runners.iter_mut().map(|runner| (runner.entry.id, 1e6 * median(&mut runner.times))).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        if order.len() > 1 {
            let (on, format) = (cpu().to_owned(), format.name.to_owned());
            found.push(Measured { on, op: Op::Matmul, format, class: *class, order });
        }
    }
    Ok(found)
}

/// Kernels of a format that this processor can run; the scalar reference only where it is the only one.
fn candidates(format: &FormatInfo) -> Vec<&'static Entry> {
    let of_format = |entry: &&Entry| {
        let named = REGISTRY.formats.get(entry.format).is_some_and(|info| info.name == format.name);
        named && entry.op == Op::Matmul && gristmill::json::runs_here(entry)
    };
    let all: Vec<&Entry> = REGISTRY.entries.iter().filter(of_format).collect();
    let fast: Vec<&Entry> = all.iter().copied().filter(|entry| entry.isa != Some(Isa::Scalar)).collect();
    if fast.is_empty() { all } else { fast }
}

impl Runner {
    /// Median seconds of as many runs as take `limit`, at least one.
    fn measure(
        &mut self,
        copies: &[PackedMatrix],
        x: &[f32],
        y: &mut [f32],
        limit: Duration,
        threads: &Threads,
    ) -> Result<f64, CliError> {
        let m = y.len() / copies[0].n().max(1);
        let started = Instant::now();
        let mut times = Vec::new();
        while times.is_empty() || started.elapsed() < limit {
            let weights = &copies[self.runs % copies.len()];
            self.runs += 1;
            let clock = Clock::start(1);
            self.matmul.run(weights, Input::F32(x), m, None, y, &mut self.workspace, threads)?;
            times.push(clock.seconds());
        }
        Ok(median(&mut times))
    }
}

/// Shows where the measured order begins with another kernel than the listed one, and what decisions take with it.
fn print(tuning: &Tuning, device: Device, out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("format", Side::Left),
        ("tokens", Side::Left),
        ("like NxK", Side::Right),
        ("fastest", Side::Left),
        ("us", Side::Right),
        ("untuned", Side::Left),
        ("us", Side::Right),
        ("chosen now", Side::Left),
        ("us", Side::Right),
    ]);
    let name =
        |id: KernelId| REGISTRY.entries.iter().find(|entry| entry.id == id).map_or("", |entry| entry.name);
    let here = |measured: &&Measured| measured.on.starts_with("cpu ") == (device == Device::CPU);
    // What was measured of so many goes for more.
    let most = if device == Device::CPU { TOKENS_ON_CPU } else { usize::MAX };
    for Measured { format, class, order, .. } in tuning.measured().iter().filter(here) {
        let shape = class.example();
        let request = Request::matmul(format, shape).on(device);
        let untuned = REGISTRY.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
        let tuned = REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &Restrict::default(), tuning)?;
        let (Some((fastest, us)), Some(default), Some(chosen)) =
            (order.first(), untuned.decide(shape).chosen(), tuned.decide(shape).chosen())
        else {
            continue;
        };
        if *fastest == default.id && chosen.id == default.id {
            continue;
        }
        let took = |entry: &Entry| {
            let us = order.iter().find(|(id, _)| *id == entry.id).map(|(_, us)| *us);
            us.map_or("-".to_owned(), measured)
        };
        let (from, to) = class.tokens();
        table.row([
            format.clone(),
            if to >= most { format!("{from} and more") } else { format!("{} to {to}", from.max(1)) },
            format!("{}x{}", shape.n, shape.k),
            name(*fastest).to_owned(),
            measured(*us),
            default.name.to_owned(),
            took(default),
            chosen.name.to_owned(),
            took(chosen),
        ]);
    }
    let classes = counted(tuning.measured().iter().filter(here).count(), "class");
    if table.is_empty() {
        writeln!(
            out,
            "in each of {classes} of shapes the fastest kernel is the one that comes first untuned"
        )?;
    } else {
        table.print(out)?;
        writeln!(
            out,
            "\nof {classes} of shapes, those in which another kernel is the fastest, or chosen now, than comes first untuned\n\
             (weights are held in one packing for all numbers of tokens, so the fastest is not always chosen)"
        )?;
    }
    Ok(())
}
