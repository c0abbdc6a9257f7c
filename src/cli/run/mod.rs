//! `gristmill run`: every tensor of a model through the kernel that is chosen for it, against the oracle.

mod arguments;
mod grouped;
mod layer;
mod measure;
mod report;

pub use arguments::Arguments;

use super::environment::Environment;
use super::error::{CliError, Outcome, is_no_kernel};
use super::files::{self, Kind};
use super::held::Held;
use super::json::print_json;
use super::progress::step;
use super::{output, progress};
use gristmill::gguf::{ModelError, Tensor, Transforms, TypeNumbers};
use gristmill::oracle::Oracle;
use gristmill::{
    ErrorClass, PrecisionMode, QuantizedBuf, QuantizedMatrix, REGISTRY, Recording, Threads, Workspace,
};
use measure::Bench;
use report::Done;
use std::io::Write;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if arguments.m.contains(&0) {
        return Err(CliError::usage(
            "--m 0: there is nothing to multiply",
            "give numbers of tokens, such as --m 1,8,128",
        ));
    }
    #[cfg(feature = "ops")]
    let monitor = monitor(arguments)?;
    #[cfg(feature = "ops")]
    let live = live(arguments, monitor)?;
    let threads = Threads::new(threads(arguments.threads))?;
    let oracle = Oracle::new(&REGISTRY)?;
    let recording = Recording::new(&REGISTRY);
    let workspace = Workspace::new();
    let mut bench = Bench {
        oracle: &oracle,
        environment: Environment::read()?,
        threads,
        recording: &recording,
        device: arguments.device,
        precision: arguments.precision,
        tokens: &arguments.m,
        seed: arguments.seed,
        held: Held::default(),
        workspace,
    };
    let done = match &arguments.file {
        Some(file) => model(file, &arguments.types.numbers()?, &mut bench)?,
        None => layer::run(arguments.layers, &mut bench)?,
    };
    let receipt = recording.receipt().to_json() + "\n";
    #[cfg(feature = "ops")]
    drop(live);
    #[cfg(feature = "ops")]
    let snapshot = monitor.map(|monitor| monitor.snapshot().to_json() + "\n");
    let wrong = done.runs().filter(|run| run.accuracy.is_wrong()).count();
    // What was measured is printed whatever becomes of the files, and written whatever becomes of what is printed.
    let printed = match arguments.json {
        true => print_json(out, &done.json(arguments, bench.threads.count(), &bench.held)),
        false => done.print(arguments, bench.threads.count(), &bench.held, out),
    };
    if let Some(path) = &arguments.receipt {
        output::write(path, receipt.as_bytes())?;
    }
    #[cfg(feature = "ops")]
    if let (Some(path), Some(snapshot)) = (&arguments.monitor, snapshot) {
        output::write(path, snapshot.as_bytes())?;
    }
    printed?;
    Ok(match (wrong + done.defects.len(), done.without.count()) {
        (0, 0) => Outcome::Yes,
        (0, _) => Outcome::NoKernel,
        (_, _) => Outcome::Failed,
    })
}

/// A monitor, where one was asked for.
#[cfg(feature = "ops")]
fn monitor(arguments: &Arguments) -> Result<Option<&'static gristmill_ops::Monitor>, CliError> {
    if arguments.monitor.is_none() {
        return Ok(None);
    }
    let options = gristmill_ops::MonitorOptions {
        // A run is short, and every launch of it is of interest.
        sample_every: 1,
        threads: true,
        compiler: Some(gristmill::kernels::COMPILER.to_owned()),
        program: None,
    };
    Ok(Some(gristmill_ops::Monitor::start(&REGISTRY, options)?))
}

/// The monitor's file, kept up to date while the command runs, for `gristmill top`. A pipe or a device gets the last snapshot alone.
#[cfg(feature = "ops")]
fn live(
    arguments: &Arguments,
    monitor: Option<&'static gristmill_ops::Monitor>,
) -> Result<Option<gristmill_ops::SnapshotFile>, CliError> {
    let (Some(path), Some(monitor)) = (&arguments.monitor, monitor) else { return Ok(None) };
    if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Ok(None);
    }
    let file = gristmill_ops::SnapshotFile::start(monitor, path, std::time::Duration::from_secs(1));
    Ok(Some(file.map_err(CliError::file("write", path))?))
}

/// The number of threads asked for, or one for each physical core.
pub fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| gristmill::CpuProfile::detect().physical_cores).clamp(1, gristmill::MAX_THREADS)
}

fn model(path: &std::path::Path, types: &TypeNumbers, bench: &mut Bench<'_>) -> Result<Done, CliError> {
    let file = files::open(path, types)?;
    let transforms = Transforms::of(&file)?;
    bench.held = Held::new(file.working_set());
    let mut done = Done::default();
    let bar = progress::bar(file.tensors().len() as u64);
    for tensor in file.tensors() {
        step(&bar, tensor.name());
        done.decided.add(types, &tensor);
        match (files::kind(types, &tensor), files::matrix(tensor.dims())) {
            (Kind::Plain(plain), _) => match done.plain.iter_mut().find(|(name, _)| *name == plain.name) {
                Some((_, count)) => *count += 1,
                None => done.plain.push((plain.name, 1)),
            },
            (Kind::Other, _) | (Kind::Format(_) | Kind::Tiled(..), None) => {
                done.without.add(types.name_of(&tensor), files::why_other(types, &tensor), tensor.name());
            }
            (Kind::Tiled(layout, _), Some((n, k))) if files::not_imported(types, layout, n, k).is_some() => {
                let why = files::not_imported(types, layout, n, k).unwrap_or_default();
                done.without.add(types.name_of(&tensor), why, tensor.name());
            }
            (kind @ (Kind::Format(format) | Kind::Tiled(_, format)), Some((n, k))) => {
                let read = match kind {
                    Kind::Tiled(layout, _) => match types.import(&tensor, layout) {
                        Ok(read) => read,
                        Err(ModelError::Import { tensor, why }) if why.class() != ErrorClass::Memory => {
                            done.defects.push((tensor, why.to_string()));
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    },
                    _ => QuantizedBuf::new(format, n, k, tensor.data()?)?,
                };
                let matrix = read.matrix();
                let transform = transforms
                    .as_ref()
                    .and_then(|transforms| transforms.of_inputs(tensor.name()))
                    .map(|of| &**of);
                done.transformed += usize::from(transform.is_some());
                let ran = bench.tensor(tensor.name(), &matrix, transform).and_then(|mut measured| {
                    if let Some(count) = experts_of(&tensor, &matrix, bench.precision) {
                        let runs = bench.experts(tensor.name(), &matrix, count, transform)?;
                        measured.runs.extend(runs);
                    }
                    Ok(measured)
                });
                match ran {
                    Ok(measured) => done.tensors.push(measured),
                    Err(CliError::Runtime(error))
                        if is_no_kernel(&error) || matches!(error, gristmill::Error::TooLarge { .. }) =>
                    {
                        done.without.add(format.name.to_owned(), files::why_no_kernel(&error), tensor.name());
                    }
                    Err(CliError::Defect { tensor, what }) => done.defects.push((tensor, what)),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(done)
}

/// How many matrices a tensor of three dimensions is a stack of, where tokens can go through some of them: their products are of integers.
fn experts_of(tensor: &Tensor<'_>, matrix: &QuantizedMatrix<'_>, precision: PrecisionMode) -> Option<usize> {
    let [_, _, count] = tensor.dims() else { return None };
    let count = usize::try_from(*count).ok()?;
    (precision == PrecisionMode::Int8 && matrix.n() > 0 && matrix.k() > 0).then_some(count)
}
