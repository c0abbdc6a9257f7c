//! `gristmill explain`: is there a kernel, which one, and why not the others?

use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::json::print_json;
use super::table::bytes;
use super::{external, gpu_kernels, request};
use gristmill::gguf::TypeNumbers;
use gristmill::runtime::import::{ImportError, Tiled};
use gristmill::vocab::{DType, DeviceKind, Op};
use gristmill::{Device, PrecisionMode, REGISTRY, Rejection, Request, Shape, Threads, json};
use gristmill_records::decision::Decision;
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
    decision: Decision,
    /// Null where products of the format are not asked for.
    external_backends: Option<Vec<external::Backend>>,
    /// The layout of a file whose tensors become the format.
    imported_from: Option<&'static str>,
    /// The product is that of one expert with its tokens.
    grouped: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let Arguments { op, format, input, device, shape, precision, working_set, threads, quantizer, json } =
        arguments;
    let tiled = Tiled::from_name(format);
    let rows = REGISTRY.imports.iter().find(|import| import.name == format);
    let imported = tiled.map(Tiled::name).or(rows.map(|import| import.name));
    let format = match tiled {
        Some(layout) => {
            let types = TypeNumbers::new(&REGISTRY);
            let none = || {
                let why = ImportError::NoFormat { format: layout.name(), k: shape.k }.to_string();
                CliError::usage(why, "`--shape MxNxK` says how long rows are")
            };
            types.imported_as(shape.k).ok_or_else(none)?.name
        }
        None => rows.map_or(format.as_str(), |import| super::list::imported(import)),
    };
    let Asked { op, grouped } = *op;
    let asked = Request {
        op,
        format,
        quantizer: quantizer.as_deref(),
        input: *input,
        device: *device,
        shape: *shape,
        precision: *precision,
        working_set: *working_set,
        threads: *threads,
    };
    let environment = Environment::read()?;
    let prepared = environment.prepare(&asked)?;
    let decision = prepared.decide_as_asked();
    let rejected: Vec<Rejection> = decision.rejected().collect();
    // A name that nothing knows is a mistake in the question, not an answer to it.
    if let Some(unknown) = rejected.iter().find(|rejection| rejection.reason.is_of_a_name()) {
        let help =
            unknown.reason.help().unwrap_or_else(|| "`gristmill list` prints what there is".to_owned());
        return Err(CliError::usage(unknown.to_string(), help));
    }
    // Products only: that is what a C++ backend would be used for.
    let outside = REGISTRY.format(format).ok().map(|(_, format)| format).filter(|_| op.info().product);
    let split_k = json::split_k(&decision);
    // Of products; what else there is takes no memory of its own.
    let memory = match decision.memory(&Threads::single()) {
        Ok(memory) => Some(memory),
        // A kernel that takes a shape which no memory has room for is no answer.
        Err(error) if decision.chosen().is_some() && op.info().product => {
            let Shape { m, n, k } = *shape;
            let help =
                "no memory has room for it: give a smaller --shape MxNxK (tokens, outputs, inner dimension)";
            return Err(CliError::usage(format!("--shape {m}x{n}x{k}: {error}"), help));
        }
        Err(_) => None,
    };
    if *json {
        let explained = Explained {
            decision: json::decision(&decision),
            external_backends: outside.map(|format| external::backends(&external::found(), Some(format))),
            imported_from: imported,
            grouped,
        };
        print_json(out, &explained)?;
    } else {
        if let Some(import) = rows {
            let what =
                "tensors are read as that, the same weights, where the layout is named (dequantize --raw)";
            writeln!(out, "{} is a layout of {format}: {}; {what}", import.name, import.doc)?;
        }
        if let Some(layout) = tiled {
            writeln!(
                out,
                "{} is {}; tensors are read as {format}, the same weights, given their tile sizes (--tiles, --kernel-config)",
                layout.name(),
                layout.doc()
            )?;
        }
        if grouped {
            writeln!(
                out,
                "{GROUPED}: each token is quantized once, and the tokens of an expert are one product, by the kernels of matmul that read \
                 quantized activations; for {} of them:",
                shape.m
            )?;
        }
        writeln!(out, "{decision}")?;
        if let Some(entry) = decision.chosen() {
            writeln!(out, "plan of `{}`: {}", entry.name, entry.plan)?;
        }
        gpu_kernels::explain(&decision, out)?;
        if let Some(memory) = &memory {
            writeln!(
                out,
                "memory: {} of weights, {:.2} bits each, as {}; {} of workspace for one thread",
                bytes(memory.weight_bytes as u64),
                memory.bits_per_weight,
                memory.packing.unwrap_or("the rows of the format"),
                bytes(memory.workspace.bytes() as u64)
            )?;
        }
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
        let place = match device.kind {
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
