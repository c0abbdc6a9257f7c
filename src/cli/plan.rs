//! `gristmill plan`: a decision for every tensor of a model, before anything is loaded.

use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::files::{self, Decided, Kind, Without};
use super::gpu_kernels::{Chosen, ChosenKernel};
use super::held::Held;
use super::json::print_json;
use super::table::{Side, Table, bytes, counted};
use gristmill::gguf::Transforms;
use gristmill::{Device, ProductMemory, Request, Shape, Threads};
use gristmill_records::run::{FromMemory, HeldOnce, WithoutKernel};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Decide a kernel for every tensor of a GGUF file
///
/// Exits with 2 if a quantized tensor has no kernel, as `run` does, or if the file declares a transform of activations that is
/// not understood.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// GGUF file
    pub(super) file: PathBuf,
    /// Device: cpu, cuda:0, rocm:0, metal:0
    #[arg(long, default_value = "cpu")]
    pub(super) device: Device,
    /// Divide the tensors over these devices, blocks together and in order: cuda:0,cuda:1
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["device", "m"])]
    pub(super) devices: Vec<Device>,
    /// How fast they are beside each other; multiprocessors times clock if it is not said
    #[arg(long, value_delimiter = ',', requires = "devices")]
    pub(super) speeds: Vec<f64>,
    /// Bytes of each device that are left for activations and the cache of keys and values
    #[arg(long, default_value_t = 0, requires = "devices")]
    pub(super) reserve: u64,
    /// Number of tokens
    #[arg(long, default_value_t = 1)]
    pub(super) m: usize,
    #[command(flatten)]
    pub(super) types: files::TypeArguments,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// What `plan --json` prints.
#[derive(Serialize)]
struct Planned<'a> {
    device: String,
    m: usize,
    /// Bytes of the tensors that have a kernel, in the file and packed for it.
    file_bytes: u64,
    packed_bytes: u64,
    working_set: Option<u64>,
    from_memory: Vec<FromMemory>,
    held_once: Vec<HeldOnce>,
    tensors: Vec<PlannedTensor<'a>>,
    /// Each kernel that tensors get on a GPU, once; empty on the processor.
    gpu_kernels: Vec<ChosenKernel>,
    transform: Option<files::Declared>,
    without_kernel: Vec<WithoutKernel>,
}

#[derive(Serialize)]
struct PlannedTensor<'a> {
    tensor: &'a str,
    #[serde(rename = "type")]
    type_name: String,
    shape: String,
    kernel: Option<&'static str>,
    file_bytes: Option<usize>,
    packed_bytes: Option<usize>,
    packing: Option<&'static str>,
    /// All that a layer holds, for whatever number of tokens.
    packings: Option<Vec<HeldPacking>>,
    bits_per_weight: Option<f64>,
    quantized: bool,
    type_number: u32,
    /// Null where the number alone says the type.
    type_decided_by: Option<&'static str>,
}

#[derive(Serialize)]
struct HeldPacking {
    packing: Option<&'static str>,
    bytes: usize,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let types = arguments.types.numbers()?;
    let file = files::open(&arguments.file, &types)?;
    let mut table = Table::new(&[
        ("tensor", Side::Left),
        ("type", Side::Left),
        ("shape", Side::Right),
        ("kernel", Side::Left),
    ]);
    let mut rows = Vec::new();
    let mut without = Without::default();
    let mut decided = Decided::default();
    let (mut served, mut twice) = (0, 0);
    let mut held = Held::new(file.working_set());
    let mut on_gpu = Chosen::default();
    // Of tensors with a kernel: as in the file, and packed for it.
    let (mut file_sum, mut packed_sum) = (0u64, 0u64);
    let threads = Threads::new(1)?;
    let environment = Environment::read()?;
    for tensor in file.tensors() {
        let type_name = types.name_of(&tensor);
        decided.add(&types, &tensor);
        let kind = files::kind(&types, &tensor);
        let (mut chosen, mut sizes) = (None, None);
        let matrix = files::matrix(tensor.dims());
        let no_tiles = match (kind, matrix) {
            (Kind::Tiled(layout, _), Some((n, k))) => files::not_imported(&types, layout, n, k),
            (_, _) => None,
        };
        let shown = match (kind, matrix, no_tiles) {
            (Kind::Plain(_), _, _) => "not quantized".to_owned(),
            (_, _, Some(why)) => {
                without.add(type_name.clone(), why, tensor.name());
                "none".to_owned()
            }
            (Kind::Format(format) | Kind::Tiled(_, format), Some((n, k)), None) => {
                let shape = Shape::new(arguments.m, n, k);
                let request = Request::matmul(format.name, shape).on(arguments.device);
                let prepared = environment.prepare(&request.with_working_set(held.working_set()))?;
                let decision = prepared.decide_as_asked();
                held.add(&decision);
                on_gpu.add(&decision);
                chosen = decision.chosen().map(|entry| entry.name);
                // A shape whose bytes do not fit the address space has no sizes.
                let in_file = match kind {
                    Kind::Tiled(..) => tensor.size().ok().and_then(|size| usize::try_from(size).ok()),
                    _ => format.tensor_bytes(n, k).ok(),
                };
                // All packings that a layer holds, for whatever number of tokens.
                let packings = prepared.packings(n, k).unwrap_or_default();
                twice += usize::from(packings.len() > 1);
                let held = |mut memory: ProductMemory| {
                    let all = packings.iter().fold(0, |sum: usize, (_, bytes)| sum.saturating_add(*bytes));
                    let bits = memory.bits_per_weight / (memory.weight_bytes.max(1) as f64);
                    (memory.weight_bytes, memory.bits_per_weight) = (all, bits * all as f64);
                    (memory, packings)
                };
                sizes = in_file.zip(decision.memory(&threads).ok().map(held));
                match chosen {
                    Some(name) => name.to_owned(),
                    None => {
                        let why = decision.kernel().err().map(|error| files::why_no_kernel(&error));
                        without.add(type_name.clone(), why.unwrap_or_default(), tensor.name());
                        "none".to_owned()
                    }
                }
            }
            (Kind::Other, _, _) | (Kind::Format(_) | Kind::Tiled(..), None, _) => {
                without.add(type_name.clone(), files::why_other(&types, &tensor), tensor.name());
                "none".to_owned()
            }
        };
        served += usize::from(chosen.is_some());
        if let Some((file, (memory, _))) = &sizes {
            file_sum = file_sum.saturating_add(*file as u64);
            packed_sum = packed_sum.saturating_add(memory.weight_bytes as u64);
        }
        rows.push(PlannedTensor {
            tensor: tensor.name(),
            type_name: type_name.clone(),
            shape: files::shape(tensor.dims()),
            kernel: chosen,
            file_bytes: sizes.as_ref().map(|(file, _)| *file),
            packed_bytes: sizes.as_ref().map(|(_, (memory, _))| memory.weight_bytes),
            packing: sizes.as_ref().and_then(|(_, (memory, _))| memory.packing),
            packings: sizes.as_ref().map(|(_, (_, packings))| {
                packings.iter().map(|&(packing, bytes)| HeldPacking { packing, bytes }).collect()
            }),
            bits_per_weight: sizes.as_ref().map(|(_, (memory, _))| memory.bits_per_weight),
            quantized: !matches!(kind, Kind::Plain(_)),
            type_number: tensor.type_id(),
            type_decided_by: files::decided_by(&types, &tensor),
        });
        table.row([tensor.name().to_owned(), type_name, files::shape(tensor.dims()), shown]);
    }
    let understood = Transforms::of(&file).is_ok();
    if arguments.json {
        let planned = Planned {
            device: arguments.device.to_string(),
            m: arguments.m,
            file_bytes: file_sum,
            packed_bytes: packed_sum,
            working_set: held.working_set(),
            from_memory: held.json(),
            held_once: held.once_json(),
            tensors: rows,
            gpu_kernels: on_gpu.json(),
            transform: files::transforms_json(&file),
            without_kernel: without.json(),
        };
        print_json(out, &planned)?;
    } else {
        table.print(out)?;
        let (all, none) = (counted(rows.len(), "tensor"), without.count());
        let plain = rows.len() - served - none;
        writeln!(
            out,
            "\n{all} on {}: {served} with a kernel, {none} without, {plain} not quantized",
            arguments.device
        )?;
        if served > 0 {
            writeln!(
                out,
                "weights with a kernel: {} in the file, {} packed for it",
                bytes(file_sum),
                bytes(packed_sum)
            )?;
        }
        if twice > 0 {
            writeln!(out, "{} are held in several packings, counted above", counted(twice, "tensor"))?;
        }
        on_gpu.print(out)?;
        held.print(out)?;
        decided.print(&types, out)?;
        files::print_transforms(&file, out)?;
        without.print(out)?;
    }
    Ok(if understood && without.count() == 0 { Outcome::Yes } else { Outcome::NoKernel })
}
