//! `gristmill bench`: kernels against what this machine can do at most, measured in the same run.
//!
//! `machine` measures the ceilings, `measure` takes times, `product` and `blocks` say what is run,
//! `compare` holds records against earlier ones.

mod base;
mod blocks;
mod compare;
mod found;
#[cfg(feature = "cuda")]
mod gpu;
mod isa;
mod machine;
mod measure;
mod plan;
mod product;
mod record;

use super::clock::now;
use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::json::print_json;
use super::memory::Need;
use super::say::say;
use super::table::{Side, Table, measured};
use super::{progress, request};
use base::Base;
use compare::Verdict;
use found::Found;
use gristmill::registry::FormatInfo;
use gristmill::vocab::{DType, DeviceKind, Isa};
use gristmill::{Device, PrecisionMode, REGISTRY};
use machine::Machine;
use measure::Effort;
use plan::{Measured, Memory, Plan};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Measure kernels, as a part of what memory and multiply units can do
///
/// Ceilings are measured in the same run, beside each kernel: the rate at which caches and memory deliver packed
/// weights, and the products that the multiply units finish. A kernel's ceiling is the lower of the two. Without
/// --isa, the kernel that would be chosen is measured; with it, every kernel of that ISA. Several values are
/// separated by commas.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only these formats; all if not given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) format: Vec<String>,
    /// Where it runs: cpu, cuda:0. On a GPU, times are those of its own clock, operands stay there, and what stands beside
    /// them is a copy from memory to memory, cuBLASLt where it is there, and this processor; --isa, --threads, --cpus
    /// and --input are for cpu and refused
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: Device,
    /// Every kernel of this ISA: scalar, sse4.1, avx2, avxvnni, avx512, neon
    #[arg(long, value_name = "NAME", value_parser = request::isa)]
    pub(super) isa: Option<Isa>,
    /// Numbers of tokens [default: 1,8,32,128,512, on a GPU 1,8,64,512,1024,2048; with --quick 1,32]
    #[arg(long, value_name = "M", value_delimiter = ',')]
    pub(super) m: Vec<usize>,
    /// Rows and elements of a row of the weights [default: 2560x2560, 6912x2560, 2560x6912, 640x2560 and
    /// 128256x2560, on a GPU 13824x2560 and 20480x3200 instead of 640x2560; with --quick 2560x2560]
    #[arg(long, value_name = "NxK", value_delimiter = ',', value_parser = request::matrix)]
    shape: Vec<(usize, usize)>,
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = request::threads)]
    #[arg(help = request::up_to_threads("Numbers of threads, each", ""))]
    pub(super) threads: Vec<usize>,
    /// Processors to pin threads to, the main one not counted: `taskset` pins that
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Weights that stay in the caches as far as they fit, or come from memory in each run [default: both]
    #[arg(long, value_delimiter = ',')]
    memory: Vec<Memory>,
    /// Type of the activations; quantizing them is part of the time, unless they are i8 already
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = input)]
    pub(super) input: DType,
    /// What products may multiply: int8, f32, f16, bf16, fp4 or auto. On a GPU, f16 and bf16 products start from activations of
    /// that type
    #[arg(long, value_name = "PRECISION", default_value = "int8", value_parser = request::precision)]
    pub(super) precision: PrecisionMode,
    /// What is measured [default: matmul; on a GPU matmul,quantize,dequantize]
    #[arg(long, value_delimiter = ',')]
    op: Vec<Measured>,
    /// Shorter measurements of fewer things; ends within 30 seconds
    #[arg(long)]
    pub(super) quick: bool,
    /// Compare with records that an earlier run printed with --json, and exit with 1 if something became slower
    #[arg(long, value_name = "BASE.json")]
    compare: Option<PathBuf>,
    /// Print JSON: one array of records
    #[arg(long)]
    pub(super) json: bool,
}

fn input(text: &str) -> Result<DType, String> {
    match request::dtype(text)? {
        dtype @ (DType::F32 | DType::I8) => Ok(dtype),
        DType::F16 | DType::Bf16 => Err("activations are measured as f32 or i8".to_owned()),
    }
}

/// Shapes of BitNet b1.58 2B-4T: attention, feed-forward up and down, key and value, output.
const SHAPES: &[(usize, usize)] = &[(2560, 2560), (6912, 2560), (2560, 6912), (640, 2560), (128_256, 2560)];
/// Numbers of tokens.
const TOKENS: &[usize] = &[1, 8, 32, 128, 512];

/// Shapes, tokens and ops that are measured where none are named.
fn defaults(device: Device) -> (&'static [(usize, usize)], &'static [usize], &'static [Measured]) {
    #[cfg(feature = "cuda")]
    if device.kind == DeviceKind::Cuda {
        use gristmill::vocab::Op;
        return (
            gpu::SHAPES,
            gpu::TOKENS,
            &[Measured::MATMUL, Measured::Op(Op::Quantize), Measured::Op(Op::Dequantize)],
        );
    }
    let _ = device;
    (SHAPES, TOKENS, &[Measured::MATMUL])
}

/// When a quick run begins nothing new. What it has begun ends well within 30 seconds.
const QUICK: Duration = Duration::from_secs(22);

impl Plan {
    fn of(arguments: &Arguments) -> Result<Plan, CliError> {
        let named: Vec<&FormatInfo> =
            arguments.format.iter().map(|name| request::format(name)).collect::<Result<_, _>>()?;
        let chosen = |format: &&'static FormatInfo| {
            named.is_empty() || named.iter().any(|named| named.name == format.name)
        };
        let quick = arguments.quick;
        let (shapes, tokens, ops) = defaults(arguments.device);
        let or = |given: &[usize], default: &[usize]| -> Vec<usize> {
            if given.is_empty() { default.to_vec() } else { given.to_vec() }
        };
        let plan = Plan {
            formats: REGISTRY.formats.iter().filter(chosen).collect(),
            shapes: match arguments.shape.as_slice() {
                [] if quick => SHAPES[..1].to_vec(),
                [] => shapes.to_vec(),
                given => given.to_vec(),
            },
            tokens: or(&arguments.m, if quick { &[1, 32] } else { tokens }),
            threads: arguments.threads.clone(),
            cpus: arguments.cpus.clone(),
            memory: match arguments.memory.as_slice() {
                [] => vec![Memory::Hot, Memory::Cold],
                given => given.to_vec(),
            },
            ops: if arguments.op.is_empty() { ops.to_vec() } else { arguments.op.clone() },
            isa: arguments.isa,
            environment: Environment::read()?,
            input: arguments.input,
            precision: arguments.precision,
            effort: if quick { Effort::QUICK } else { Effort::FULL },
            deadline: quick.then(|| Instant::now() + QUICK),
            base: arguments.compare.as_deref().map(Base::read).transpose()?,
        };
        request::check_sizes(&plan.tokens, &plan.shapes, "measure")?;
        if arguments.device == Device::CPU && !plan.cpus.is_empty() {
            // One that is not there is an error for whatever number of threads, and before anything is measured.
            plan.make_threads(plan.cpus.len() + 1)?;
        }
        plan.room()?;
        Ok(plan)
    }

    /// Whether memory has room for the largest measurement.
    fn room(&self) -> Result<(), CliError> {
        let m = self.tokens.iter().copied().max().unwrap_or(0);
        for &(n, k) in &self.shapes {
            // Rows that are no whole blocks are refused with their reason later.
            let sizes = self.formats.iter().filter_map(|format| match format.tensor_bytes(n, k) {
                Ok(bytes) => Some(bytes),
                Err(gristmill::Error::TooLarge { .. }) => Some(usize::MAX),
                Err(_) => None,
            });
            let Some(bytes) = sizes.max() else { continue };
            let mut need = Need::new().and(&[bytes], 1);
            if self.ops.contains(&Measured::Pack) {
                need = need.and(&[bytes], 3);
            }
            if self.ops.contains(&Measured::MATMUL) {
                // Of a token: f32, int8 and the workspace's; packed weights: one copy, or two and more.
                let copies = if self.memory.contains(&Memory::Cold) { 3 } else { 2 };
                let cold = if copies > 2 { measure::COLD_BYTES } else { 0 };
                need = need.and(&[m, k], 8).and(&[m, n], 4).and(&[bytes], copies).and(&[cold], 1);
            }
            if self.ops.iter().any(|op| matches!(op, Measured::Op(op) if !op.info().product)) {
                need = need.and(&[n.min(blocks::MOST_ROWS), k], 4);
            }
            need.check(
                || format!("--m {m} --shape {n}x{k}"),
                "give fewer tokens with --m or less with --shape",
            )?;
        }
        Ok(())
    }
}

/// The products on another device.
fn on_gpu(plan: &Plan, arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let device = arguments.device;
    if device.kind != DeviceKind::Cuda {
        return Err(CliError::usage(
            format!("--device {device}: no kernel is described for it"),
            "measured are cpu and cuda:0",
        ));
    }
    #[cfg(feature = "cuda")]
    {
        let named = !arguments.format.is_empty();
        let (any, verdicts) = gpu::run(plan, device, named, arguments.json, out)?;
        conclude(plan, any, &verdicts, arguments.json, out)
    }
    #[cfg(not(feature = "cuda"))]
    {
        // Nothing is measured, so nothing is planned or written.
        let _ = (plan, out);
        let why = gristmill::NoGpu::FeatureOff;
        Err(gristmill::Error::NoGpu { index: device.index, why }.into())
    }
}

/// The first argument that has no meaning on a GPU.
fn of_the_processor(arguments: &Arguments) -> Option<&'static str> {
    [
        ("--isa", arguments.isa.is_some()),
        ("--threads", arguments.threads != [1]),
        ("--cpus", !arguments.cpus.is_empty()),
        ("--input", arguments.input != DType::F32),
    ]
    .into_iter()
    .find_map(|(name, given)| given.then_some(name))
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if arguments.device != Device::CPU
        && let Some(name) = of_the_processor(arguments)
    {
        return Err(CliError::usage(
            format!("{name} is for --device cpu, not for {}", arguments.device),
            "leave it away: work on a GPU is measured with f32, f16 or bf16 activations",
        ));
    }
    let plan = Plan::of(arguments)?;
    if arguments.device != Device::CPU {
        return on_gpu(&plan, arguments, out);
    }
    if let Some(base) = &plan.base {
        base.of_this_processor()?;
    }
    isa::is_here(&plan)?;
    let mut machine = Machine::new();
    let mut found = Found::default();
    let bar = progress::bar((plan.formats.len() * plan.shapes.len()) as u64);
    for format in &plan.formats {
        bar.set_message(format.name);
        for shape in &plan.shapes {
            bar.inc(1);
            let outcome = plan.ops.iter().try_for_each(|op| match op {
                Measured::Op(op) if op.info().product => {
                    product::measure(&plan, format, *shape, &mut machine, &mut found)
                }
                Measured::Op(_) | Measured::Pack => {
                    blocks::measure(&plan, *op, format, *shape, &mut machine, &mut found)
                }
            });
            match outcome {
                // With a format named, a refusal is the answer; among all, it is a line at the end.
                Err(error) if arguments.format.is_empty() && error.is_no_kernel() => {
                    let why = error.to_string();
                    found.left.push(format!("{}: {}", format.name, why.lines().next().unwrap_or_default()));
                }
                outcome => outcome?,
            }
        }
    }
    bar.finish_and_clear();
    if arguments.json {
        let at = now();
        print_json(out, &found.records.iter().map(|record| record.dated(at)).collect::<Vec<_>>())?;
        // The array has no place for it, and it must not pass unnoticed.
        if found.skipped > 0 {
            say(found.out_of_time());
        }
    } else {
        machine.print(&plan.threads, out)?;
        print(&plan, &found, out)?;
    }
    conclude(&plan, !found.records.is_empty(), &found.verdicts, arguments.json, out)
}

/// What a run ends with: whether something became slower, where there is a base.
fn conclude(
    plan: &Plan,
    any: bool,
    verdicts: &[Verdict],
    json: bool,
    out: &mut dyn Write,
) -> Result<Outcome, CliError> {
    let Some(base) = &plan.base else { return Ok(if any { Outcome::Yes } else { Outcome::NoKernel }) };
    // With --json, standard output is for records alone.
    let report = compare::report(base, verdicts)?;
    match json {
        true => anstream::eprint!("{report}"),
        false => write!(out, "{report}")?,
    }
    Ok(if verdicts.iter().any(Verdict::is_slower) { Outcome::Failed } else { Outcome::Yes })
}

fn print(plan: &Plan, found: &Found, out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("kernel", Side::Left),
        ("NxK", Side::Right),
        ("m", Side::Right),
        ("threads", Side::Right),
        ("memory", Side::Left),
        ("bits", Side::Right),
        ("us", Side::Right),
        ("+-%", Side::Right),
        ("GB/s", Side::Right),
        ("GMAC/s", Side::Right),
        ("%", Side::Right),
        ("of", Side::Left),
    ]);
    for record in &found.records {
        table.row([
            record.kernel.to_owned(),
            format!("{}x{}", record.n, record.k),
            record.m.to_string(),
            record.threads.to_string(),
            record.memory.name().to_owned(),
            format!("{:.2}", record.memory_bits),
            measured(record.seconds * 1e6),
            format!("{:.1}", 100.0 * record.noise),
            measured(record.gb_s),
            record.gmac_s.map_or(String::new(), measured),
            format!("{:.0}", record.percent),
            record.ceiling.name().to_owned(),
        ]);
    }
    if !table.is_empty() {
        table.print(out)?;
        let quantized = match plan.input {
            DType::I8 => "activations are int8",
            DType::F32 | DType::F16 | DType::Bf16 => "quantizing f32 activations is part of the time",
        };
        writeln!(
            out,
            "\nmedians; +-% is their median deviation from round to round; {quantized}\n\
             GB/s counts each byte once that the weights take in a file; % is of the lower ceiling as measured beside the\n\
             kernel, reading that of the file's bytes; bits are those of a weight in memory, scales included\n\
             hot: the same weights in each run; cold: copies of {} MB in turn",
            measure::COLD_BYTES / 1_000_000
        )?;
    }
    if cfg!(debug_assertions) {
        writeln!(out, "this is a debug build: only figures of a release build mean something")?;
    }
    for line in &found.left {
        writeln!(out, "not measured: {line}")?;
    }
    if found.skipped > 0 {
        writeln!(out, "{}", found.out_of_time())?;
    }
    Ok(())
}
