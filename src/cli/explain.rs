//! `gristmill explain`: is there a kernel, which one, and why not the others?

use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::json::print_json;
use super::table::bytes;
use super::{external, gpu_kernels, request};
use gristmill::gguf::TypeNumbers;
use gristmill::registry::ImportInfo;
use gristmill::runtime::import::{ImportError, Tiled};
use gristmill::vocab::{DType, DeviceKind, Op, Serves};
use gristmill::{Decision, Device, PrecisionMode, ProductMemory, REGISTRY, Request, Shape, Threads, json};
use gristmill_records::decision;
use serde::Serialize;
use std::io::Write;

/// Say which kernel would run, and why not the others
///
/// Exits with 0 if there is a kernel, 2 if there is none.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(value_parser = asked, help = format!("{}, {GROUPED}", request::ops("What is to be computed")))]
    op: Asked,
    /// Weight format, or a layout that becomes one (tl1, tl2, those of `list`); activation format where the op is for those
    #[arg(long, value_name = "NAME")]
    pub(super) format: String,
    /// Type of the operand that is not packed (of what decodes, the result): f32, f16, bf16, i8
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = request::dtype)]
    pub(super) input: DType,
    /// Device: cpu, cuda:0, rocm:0, metal:0
    #[arg(long, default_value = "cpu")]
    pub(super) device: Device,
    /// Tokens, outputs and inner dimension; NxK is 1xNxK
    #[arg(long, value_name = "MxNxK", default_value = "1x4096x4096", value_parser = request::shape)]
    shape: Shape,
    /// What a product may multiply: int8, f32, f16, bf16, fp4 or auto
    #[arg(long, value_name = "PRECISION", default_value = "int8", value_parser = request::precision)]
    pub(super) precision: PrecisionMode,
    /// Bytes of weights that take turns with these, as a model's total in its file: more than the last-level cache holds
    /// are read from memory, and held in the packing with the fewest bytes
    #[arg(long, value_name = "BYTES")]
    pub(super) working_set: Option<u64>,
    /// Threads that will work on it: a tuning has orders for several numbers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = request::threads)]
    pub(super) threads: usize,
    /// Quantizer of the format (for quantize); its first one if not given
    #[arg(long, value_name = "NAME")]
    pub(super) quantizer: Option<String>,
    /// Print JSON: chosen with its plan, and rejected as a list of {kernel, reason, help}
    #[arg(long)]
    pub(super) json: bool,
}

/// Products with experts, which run the kernels of products.
const GROUPED: &str = "matmul_grouped";

/// An op, or [`GROUPED`].
#[derive(Clone, Copy, Debug)]
struct Asked {
    op: Op,
    grouped: bool,
}

fn asked(text: &str) -> Result<Asked, String> {
    if text == GROUPED {
        return Ok(Asked { op: Op::Matmul, grouped: true });
    }
    match request::op(text) {
        Ok(op) => Ok(Asked { op, grouped: false }),
        Err(error) => Err(format!("{error}, {GROUPED}")),
    }
}

/// What `explain --json` prints.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    decision: decision::Decision,
    /// Null where products of the format are not asked for.
    external_backends: Option<Vec<external::Backend>>,
    /// The layout of a file whose tensors become the format.
    imported_from: Option<&'static str>,
    /// The product is that of one expert with its tokens.
    grouped: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let Asked { op, grouped } = arguments.op;
    let named = Named::of(&arguments.format, arguments.shape.k)?;
    let asked = Request {
        op,
        format: named.format,
        quantizer: arguments.quantizer.as_deref(),
        input: arguments.input,
        device: arguments.device,
        shape: arguments.shape,
        precision: arguments.precision,
        working_set: arguments.working_set,
        threads: arguments.threads,
    };
    // As text, the answer itself says what is set aside.
    let environment = if arguments.json { Environment::read()? } else { Environment::read_silently()? };
    let prepared = environment.prepare(&asked)?;
    let decision = prepared.decide_as_asked();
    names_are_known(&decision)?;
    // Products only: that is what a C++ backend would be used for.
    let outside = REGISTRY.format(named.format).ok().map(|(_, format)| format).filter(|_| op.info().product);
    let memory = memory(&decision, &asked)?;
    if arguments.json {
        let explained = Explained {
            decision: json::decision(&decision),
            external_backends: outside.map(|format| external::backends(&external::found(), Some(format))),
            imported_from: named.imported_from(),
            grouped,
        };
        print_json(out, &explained)?;
    } else {
        named.print(out)?;
        if grouped {
            writeln!(
                out,
                "{GROUPED}: each token is quantized once, and the tokens of an expert are one product, by the kernels of matmul that read \
                 quantized activations; for {} of them:",
                asked.shape.m
            )?;
        }
        print(&decision, memory.as_ref(), &environment, out)?;
        let place = match asked.device.kind {
            DeviceKind::Cpu => Some(gristmill_probe::Device::Cpu),
            DeviceKind::Cuda => Some(gristmill_probe::Device::Cuda),
            DeviceKind::Rocm | DeviceKind::Metal => None,
        };
        if let (Some(format), Some(place)) = (outside, place) {
            external::explain(&external::found(), format, place, out)?;
        }
    }
    Ok(if decision.chosen().is_some() { Outcome::Yes } else { Outcome::NoKernel })
}

/// What a name on the command line stands for: a format, or a layout of other programs whose tensors become one.
struct Named<'a> {
    format: &'a str,
    tiled: Option<Tiled>,
    interleaved: Option<&'static ImportInfo>,
}

impl<'a> Named<'a> {
    /// For rows of `k`.
    fn of(name: &'a str, k: usize) -> Result<Named<'a>, CliError> {
        if let Some(layout) = Tiled::from_name(name) {
            let none = || {
                let why = ImportError::NoFormat { format: layout.name(), k }.to_string();
                CliError::usage(why, "`--shape MxNxK` says how long rows are")
            };
            let format = TypeNumbers::new(&REGISTRY).imported_as(k).ok_or_else(none)?.name;
            return Ok(Named { format, tiled: Some(layout), interleaved: None });
        }
        let interleaved = REGISTRY.imports.iter().find(|import| import.name == name);
        let format = interleaved.map_or(name, |import| super::list::imported(import));
        Ok(Named { format, tiled: None, interleaved })
    }

    fn imported_from(&self) -> Option<&'static str> {
        self.tiled.map(Tiled::name).or(self.interleaved.map(|import| import.name))
    }

    /// Says what a layout becomes; of a format, nothing.
    fn print(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let format = self.format;
        if let Some(import) = self.interleaved {
            let what =
                "tensors are read as that, the same weights, where the layout is named (dequantize --raw)";
            writeln!(out, "{} is a layout of {format}: {}; {what}", import.name, import.doc)?;
        }
        if let Some(layout) = self.tiled {
            writeln!(
                out,
                "{} is {}; tensors are read as {format}, the same weights, given their tile sizes (--tiles, --kernel-config)",
                layout.name(),
                layout.doc()
            )?;
        }
        Ok(())
    }
}

/// A name that nothing knows is a mistake in the question, not an answer to it.
fn names_are_known(decision: &Decision<'_>) -> Result<(), CliError> {
    match decision.rejected().find(|rejection| rejection.reason.is_of_a_name()) {
        Some(unknown) => {
            let help =
                unknown.reason.help().unwrap_or_else(|| "`gristmill list` prints what there is".to_owned());
            Err(CliError::usage(unknown.to_string(), help))
        }
        None => Ok(()),
    }
}

/// Of products; what else there is takes no memory of its own, but its operands must have room.
fn memory(decision: &Decision<'_>, asked: &Request<'_>) -> Result<Option<ProductMemory>, CliError> {
    match decision.memory(&Threads::single()) {
        Ok(memory) => Ok(Some(memory)),
        // A kernel that takes a shape which no memory has room for is no answer.
        Err(error) if decision.chosen().is_some() && asked.op.info().product => {
            Err(too_large(asked.shape, error.to_string()))
        }
        Err(_) if decision.chosen().is_some() && asked.op.info().serves == Serves::Formats => {
            let Shape { n, k, .. } = asked.shape;
            let (_, format) = REGISTRY.format(asked.format)?;
            let blocks =
                format.tensor_bytes(n, k).map_err(|error| too_large(asked.shape, error.to_string()))?;
            // f32 take more than the blocks; no allocation is larger than half the address space.
            let floats = (n as u128) * (k as u128) * 4;
            match floats.max(blocks as u128) > isize::MAX as u128 {
                true => Err(too_large(asked.shape, format!("{n} rows of {k} f32 are {floats} bytes"))),
                false => Ok(None),
            }
        }
        Err(_) => Ok(None),
    }
}

fn too_large(Shape { m, n, k }: Shape, why: String) -> CliError {
    let help = "no memory has room for it: give a smaller --shape MxNxK (tokens, outputs, inner dimension)";
    CliError::usage(format!("--shape {m}x{n}x{k}: {why}"), help)
}

/// The decision, with what is to be known of the chosen kernel, and what of a tuning was not followed.
fn print(
    decision: &Decision<'_>,
    memory: Option<&ProductMemory>,
    environment: &Environment,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    writeln!(out, "{decision}")?;
    if let Some(entry) = decision.chosen() {
        writeln!(out, "plan of `{}`: {}", entry.name, entry.plan)?;
    }
    gpu_kernels::explain(decision, out)?;
    if let Some(memory) = memory {
        writeln!(
            out,
            "memory: {} of weights, {:.2} bits each, as {}; {} of workspace for one thread",
            bytes(memory.weight_bytes as u64),
            memory.bits_per_weight,
            memory.packing.unwrap_or("the rows of the format"),
            bytes(memory.workspace.bytes() as u64)
        )?;
    }
    let split_k = json::split_k(decision);
    if split_k > 1 {
        writeln!(out, "split-K: k is divided into {split_k} parts for this shape and device")?;
    }
    let tuning = environment.tuning();
    for aside in tuning.set_aside() {
        writeln!(out, "of the tuning file that GRISTMILL_TUNING names, set aside: {aside}")?;
    }
    if let Some(why) = decision.prepared().gpu().and_then(|gpu| tuning.not_for(gpu)) {
        writeln!(out, "the tuning file that GRISTMILL_TUNING names is not used: {why}")?;
    }
    Ok(())
}
