//! `gristmill run`: every tensor of a model through the kernel that is chosen for it, against the oracle.

mod layer;
mod measure;

use super::error::{CliError, Outcome, is_no_kernel};
use super::files::{self, Decided, Kind, Without};
use super::table::{Side, Table, bytes, counted, measured};
use super::{output, print_json, progress, request};
use gristmill::gguf::TypeNumbers;
use gristmill::oracle::Oracle;
use gristmill::text::Printable;
use gristmill::{Device, PrecisionMode, QuantizedMatrix, REGISTRY, Recording, Threads, Workspace};
use indicatif::ProgressBar;
use measure::{Accuracy, Bench, Measured, Run};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// Run real tensors through the kernels chosen for them, checked against the oracle
///
/// Without a file, the tensors are a decoder layer of BitNet b1.58 2B-4T with seeded weights, quantized to i2_s
/// in memory. Times include quantizing or converting the activations. Exits with 1 if a result is wrong or data of
/// the file is defective (a scale that is NaN or infinite, a code without a meaning), else with 2 if a quantized tensor has
/// no kernel, as `plan` does.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// GGUF file
    file: Option<PathBuf>,
    /// Numbers of tokens
    #[arg(long, value_name = "M", value_delimiter = ',', default_value = "1,8,128")]
    m: Vec<usize>,
    /// Where products run: cpu, cuda:0. Times on a GPU include the way there and back
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    /// What products may multiply: int8, f32, f16, bf16 or auto
    #[arg(long, value_name = "PRECISION", default_value = "int8", value_parser = request::precision)]
    precision: PrecisionMode,
    /// Threads, at most 1024; all cores if not given
    #[arg(long, value_name = "N", value_parser = request::threads)]
    threads: Option<usize>,
    /// Write a receipt of what ran to this file
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Seed of activations (and of weights, without a file)
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Layers to make (without a file)
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    layers: u32,
    #[command(flatten)]
    types: files::TypeArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if arguments.m.contains(&0) {
        return Err(CliError::usage(
            "--m 0: there is nothing to multiply",
            "give numbers of tokens, such as --m 1,8,128",
        ));
    }
    if let (Some(receipt), Some(file)) = (&arguments.receipt, &arguments.file) {
        output::spares(receipt, &[file])?;
    }
    let threads = Threads::new(threads(arguments.threads))?;
    let oracle = Oracle::new(&REGISTRY)?;
    let recording = Recording::new(&REGISTRY);
    let workspace = Workspace::new();
    let mut bench = Bench {
        oracle: &oracle,
        threads,
        recording: &recording,
        device: arguments.device,
        precision: arguments.precision,
        tokens: &arguments.m,
        seed: arguments.seed,
        workspace,
    };
    let done = match &arguments.file {
        Some(file) => model(file, &arguments.types.numbers()?, &mut bench)?,
        None => layer::run(arguments.layers, &mut bench)?,
    };
    if let Some(path) = &arguments.receipt {
        output::write(path, (recording.receipt().to_json() + "\n").as_bytes())?;
    }
    let wrong = done.runs().filter(|run| run.accuracy.is_wrong()).count();
    if arguments.json {
        print_json(out, &done.json(arguments, bench.threads.count()))?;
    } else {
        done.print(arguments, bench.threads.count(), out)?;
    }
    Ok(match (wrong + done.defects.len(), done.without.count()) {
        (0, 0) => Outcome::Yes,
        (0, _) => Outcome::NoKernel,
        (_, _) => Outcome::Failed,
    })
}

/// The number of threads asked for, or all cores.
pub fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| gristmill::CpuProfile::detect().cores).clamp(1, request::MOST_THREADS)
}

/// What has been run.
#[derive(Default)]
struct Done {
    tensors: Vec<Measured>,
    without: Without,
    /// Tensors whose data is no weights, and why.
    defects: Vec<(String, String)>,
    /// Type numbers that were not enough.
    decided: Decided,
    /// Type and number of tensors that are not quantized.
    plain: Vec<(&'static str, usize)>,
}

fn model(path: &std::path::Path, types: &TypeNumbers, bench: &mut Bench<'_>) -> Result<Done, CliError> {
    let file = files::open(path, types)?;
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
            (Kind::Other, _) | (Kind::Format(_), None) => {
                done.without.add(types.name_of(&tensor), files::why_other(types, &tensor), tensor.name());
            }
            (Kind::Format(format), Some((n, k))) => {
                let data = tensor.data()?;
                let matrix = QuantizedMatrix::new(format, n, k, &data)?;
                match bench.tensor(tensor.name(), &matrix) {
                    Ok(measured) => done.tensors.push(measured),
                    Err(CliError::Runtime(error)) if is_no_kernel(&error) => {
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

/// Shows what is at work.
fn step(bar: &ProgressBar, tensor: &str) {
    progress::tensor(bar, tensor);
    bar.inc(1);
}

impl Done {
    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.tensors.iter().flat_map(|tensor| &tensor.runs)
    }

    fn print(&self, arguments: &Arguments, threads: usize, out: &mut dyn Write) -> Result<(), CliError> {
        let mut table = Table::new(&[
            ("tensor", Side::Left),
            ("type", Side::Left),
            ("NxK", Side::Right),
            ("m", Side::Right),
            ("kernel", Side::Left),
            ("error", Side::Left),
            ("rows checked", Side::Right),
            ("us", Side::Right),
            ("GB/s", Side::Right),
            ("GMAC/s", Side::Right),
        ]);
        for tensor in &self.tensors {
            for (i, run) in tensor.runs.iter().enumerate() {
                let first = |text: String| if i == 0 { text } else { String::new() };
                table.row([
                    first(tensor.name.clone()),
                    first(tensor.format.to_owned()),
                    first(format!("{}x{}", tensor.n, tensor.k)),
                    run.m.to_string(),
                    run.kernel.to_owned(),
                    run.accuracy.to_string(),
                    if run.rows_checked == tensor.n {
                        "all".to_owned()
                    } else {
                        run.rows_checked.to_string()
                    },
                    measured(run.seconds * 1e6),
                    measured(run.gigabytes_per_second()),
                    measured(run.gigamacs_per_second(tensor.n, tensor.k)),
                ]);
            }
        }
        if table.is_empty() {
            writeln!(
                out,
                "{}",
                match (self.without.count(), self.defects.len()) {
                    (0, 0) => "no tensor is quantized",
                    (_, 0) => "no quantized tensor has a kernel here",
                    (_, _) => "no tensor was run",
                }
            )?;
            return self.print_rest(arguments, out);
        }
        table.print(out)?;
        writeln!(out)?;
        let sum = |m: usize| -> f64 { self.runs().filter(|run| run.m == m).map(|run| run.seconds).sum() };
        let packed: usize = self.tensors.iter().map(|tensor| tensor.packed_bytes).sum();
        writeln!(
            out,
            "{} on {}, seed {}; {} of packed weights; times are medians and include what is done to the activations",
            counted(self.tensors.len(), "tensor"),
            counted(threads, "thread"),
            arguments.seed,
            bytes(packed as u64)
        )?;
        if self.tensors.len() > 1 {
            let sums: Vec<String> =
                arguments.m.iter().map(|&m| format!("{} us at m = {m}", measured(sum(m) * 1e6))).collect();
            writeln!(out, "all of them: {}", sums.join(", "))?;
        }
        self.print_rest(arguments, out)
    }

    /// What was not run, and what was wrong.
    fn print_rest(&self, arguments: &Arguments, out: &mut dyn Write) -> Result<(), CliError> {
        if !self.plain.is_empty() {
            let plain: Vec<String> =
                self.plain.iter().map(|(name, count)| format!("{count} of {name}")).collect();
            writeln!(out, "not quantized, so not run: {}", plain.join(", "))?;
        }
        self.decided.print(&arguments.types.numbers()?, out)?;
        self.without.print(out)?;
        for tensor in &self.tensors {
            for run in &tensor.runs {
                if let Accuracy::Wrong(what) = &run.accuracy {
                    let name = Printable(&tensor.name);
                    writeln!(out, "wrong: {name} by {}, m = {}: {what}", run.kernel, run.m)?;
                }
            }
        }
        for (tensor, what) in &self.defects {
            writeln!(out, "defective data: {}: {what}", Printable(tensor))?;
        }
        if let Some(path) = &arguments.receipt {
            writeln!(out, "receipt: {}", path.display())?;
        }
        Ok(())
    }

    fn json(&self, arguments: &Arguments, threads: usize) -> Value {
        let rows = self.tensors.iter().flat_map(|tensor| {
            tensor.runs.iter().map(move |run| {
                json!({
                    "tensor": tensor.name,
                    "type": tensor.format,
                    "n": tensor.n,
                    "k": tensor.k,
                    "m": run.m,
                    "kernel": run.kernel,
                    "correct": !run.accuracy.is_wrong(),
                    "exact": matches!(run.accuracy, Accuracy::Exact),
                    "nmse": match run.accuracy { Accuracy::Nmse(nmse) => Some(nmse), _ => None },
                    "problem": match &run.accuracy { Accuracy::Wrong(what) => Some(what), _ => None },
                    "rows_checked": run.rows_checked,
                    "us": run.seconds * 1e6,
                    "gb_s": run.gigabytes_per_second(),
                    "gmac_s": run.gigamacs_per_second(tensor.n, tensor.k),
                })
            })
        });
        json!({
            "tensors": rows.collect::<Vec<_>>(),
            "without_kernel": self.without.json(),
            "defective": self.defects.iter().map(|(tensor, what)| json!({"tensor": tensor, "problem": what})).collect::<Vec<_>>(),
            "not_quantized": self.plain.iter().map(|(name, count)| json!({"type": name, "count": count})).collect::<Vec<_>>(),
            "threads": threads,
            "seed": arguments.seed,
        })
    }
}
