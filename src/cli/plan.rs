//! `gristmill plan`: a decision for every tensor of a model, before anything is loaded.

use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::files::{self, Decided, Kind, Without};
use super::gpu_kernels::{Chosen, ChosenKernel};
use super::held::Held;
use super::json::print_json;
use super::request;
use super::run::threads;
use super::table::{Side, Table, bytes, counted};
use gristmill::gguf::{GgufFile, Tensor, Transforms, TypeNumbers};
use gristmill::registry::FormatInfo;
use gristmill::{Device, Request, Shape, Threads};
use gristmill_records::inspect::Transform;
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
    #[arg(long, default_value_t = 1, value_parser = super::request::count)]
    pub(super) m: usize,
    #[arg(long, value_name = "N", value_parser = request::threads)]
    #[arg(help = request::up_to_threads("Decide for so many threads,", "; one for each physical core if not given"))]
    pub(super) threads: Option<usize>,
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
    threads: usize,
    /// Bytes of the tensors that have a kernel, in the file and packed for it.
    file_bytes: u64,
    packed_bytes: u64,
    working_set: Option<u64>,
    from_memory: Vec<FromMemory>,
    held_once: Vec<HeldOnce>,
    tensors: Vec<PlannedTensor<'a>>,
    /// Each kernel that tensors get on a GPU, once; empty on the processor.
    gpu_kernels: Vec<ChosenKernel>,
    transform: Option<Transform>,
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

/// What is decided for a file, as far as its tensors have been looked at.
struct Plan<'a> {
    arguments: &'a Arguments,
    types: &'a TypeNumbers,
    environment: Environment,
    threads: Threads,
    tensors: Vec<PlannedTensor<'a>>,
    without: Without,
    decided: Decided,
    held: Held,
    on_gpu: Chosen,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let types = arguments.types.numbers()?;
    let file = files::open(&arguments.file, &types)?;
    let mut plan = Plan {
        arguments,
        types: &types,
        environment: Environment::read()?,
        threads: Threads::new(threads(arguments.threads))?,
        tensors: Vec::new(),
        without: Without::default(),
        decided: Decided::default(),
        held: Held::new(file.working_set()),
        on_gpu: Chosen::default(),
    };
    for tensor in file.tensors() {
        plan.add(&tensor)?;
    }
    let nothing_without = plan.without.count() == 0;
    if arguments.json {
        print_json(out, &plan.json(&file))?;
    } else {
        plan.print(&file, out)?;
    }
    Ok(if Transforms::of(&file).is_ok() && nothing_without { Outcome::Yes } else { Outcome::NoKernel })
}

impl<'a> Plan<'a> {
    /// Decides a kernel for a tensor.
    fn add(&mut self, tensor: &Tensor<'a>) -> Result<(), CliError> {
        let types = self.types;
        self.decided.add(types, tensor);
        let (kind, matrix) = (files::kind(types, tensor), files::matrix(tensor.dims()));
        let no_tiles = match (kind, matrix) {
            (Kind::Tiled(layout, _), Some((n, k))) => files::not_imported(types, layout, n, k),
            (_, _) => None,
        };
        let mut planned = PlannedTensor {
            tensor: tensor.name(),
            type_name: types.name_of(tensor),
            shape: files::shape(tensor.dims()),
            kernel: None,
            file_bytes: None,
            packed_bytes: None,
            packing: None,
            packings: None,
            bits_per_weight: None,
            quantized: !matches!(kind, Kind::Plain(_)),
            type_number: tensor.type_id(),
            type_decided_by: files::decided_by(types, tensor),
        };
        let why_not = match (kind, matrix, no_tiles) {
            (Kind::Plain(_), _, _) => None,
            (_, _, Some(why)) => Some(why),
            (Kind::Format(format) | Kind::Tiled(_, format), Some((n, k)), None) => {
                // A shape whose bytes do not fit the address space has no sizes.
                let in_file = match kind {
                    Kind::Tiled(..) => tensor.size().ok().and_then(|size| usize::try_from(size).ok()),
                    _ => format.tensor_bytes(n, k).ok(),
                };
                self.decide(&mut planned, format, (n, k), in_file)?
            }
            (Kind::Other, _, _) | (Kind::Format(_) | Kind::Tiled(..), None, _) => {
                Some(files::why_other(types, tensor))
            }
        };
        if let Some(why) = why_not {
            self.without.add(planned.type_name.clone(), why, tensor.name());
        }
        self.tensors.push(planned);
        Ok(())
    }

    /// Decides a kernel for `n x k` weights that take `in_file` bytes there; why there is none.
    fn decide(
        &mut self,
        planned: &mut PlannedTensor<'_>,
        format: &FormatInfo,
        (n, k): (usize, usize),
        in_file: Option<usize>,
    ) -> Result<Option<String>, CliError> {
        let shape = Shape::new(self.arguments.m, n, k);
        let request = Request::matmul(format.name, shape).on(self.arguments.device);
        let request = request.with_threads(self.threads.count());
        let prepared = self.environment.prepare(&request.with_working_set(self.held.working_set()))?;
        let decision = prepared.decide_as_asked();
        self.held.add(&decision);
        self.on_gpu.add(&decision);
        planned.kernel = decision.chosen().map(|entry| entry.name);
        if decision.chosen().is_none() {
            let why = decision.kernel().err().map(|error| files::why_no_kernel(&error)).unwrap_or_default();
            return Ok(Some(why));
        }
        let memory = match decision.memory(&self.threads) {
            Ok(memory) => memory,
            // Nobody can run what no memory has room for.
            Err(error) => {
                planned.kernel = None;
                return Ok(Some(files::why_no_kernel(&error)));
            }
        };
        if let Some(in_file) = in_file {
            let packings = prepared.packings(n, k).unwrap_or_default();
            let all = packings.iter().fold(0, |sum: usize, (_, bytes)| sum.saturating_add(*bytes));
            planned.file_bytes = Some(in_file);
            planned.packed_bytes = Some(all);
            planned.packing = memory.packing;
            planned.bits_per_weight =
                Some(memory.bits_per_weight / (memory.weight_bytes.max(1) as f64) * all as f64);
            let each = packings.into_iter().map(|(packing, bytes)| HeldPacking { packing, bytes });
            planned.packings = Some(each.collect());
        }
        Ok(None)
    }

    /// Bytes of all tensors that have a kernel: in the file, and packed for it.
    fn bytes(&self) -> (u64, u64) {
        let sum = |of: fn(&PlannedTensor<'_>) -> Option<usize>| {
            self.tensors.iter().filter_map(of).fold(0, |sum: u64, bytes| sum.saturating_add(bytes as u64))
        };
        (sum(|tensor| tensor.file_bytes), sum(|tensor| tensor.packed_bytes))
    }

    fn json(self, file: &GgufFile) -> Planned<'a> {
        let (file_bytes, packed_bytes) = self.bytes();
        Planned {
            device: self.arguments.device.to_string(),
            m: self.arguments.m,
            threads: self.threads.count(),
            file_bytes,
            packed_bytes,
            working_set: self.held.working_set(),
            from_memory: self.held.json(),
            held_once: self.held.once_json(),
            tensors: self.tensors,
            gpu_kernels: self.on_gpu.json(),
            transform: files::transforms_json(file),
            without_kernel: self.without.json(),
        }
    }

    fn print(&self, file: &GgufFile, out: &mut dyn Write) -> Result<(), CliError> {
        let mut table = Table::new(&[
            ("tensor", Side::Left),
            ("type", Side::Left),
            ("shape", Side::Right),
            ("kernel", Side::Left),
        ]);
        for tensor in &self.tensors {
            let without = if tensor.quantized { "none" } else { "not quantized" };
            let kernel = tensor.kernel.unwrap_or(without).to_owned();
            table.row([tensor.tensor.to_owned(), tensor.type_name.clone(), tensor.shape.clone(), kernel]);
        }
        table.print(out)?;
        let count = |of: fn(&PlannedTensor<'_>) -> bool| self.tensors.iter().filter(|t| of(t)).count();
        let (all, none) = (counted(self.tensors.len(), "tensor"), self.without.count());
        let served = count(|tensor| tensor.kernel.is_some());
        let plain = self.tensors.len() - served - none;
        writeln!(
            out,
            "\n{all} on {}, {}: {served} with a kernel, {none} without, {plain} not quantized",
            self.arguments.device,
            counted(self.threads.count(), "thread")
        )?;
        if served > 0 {
            let (in_file, packed) = self.bytes();
            let (in_file, packed) = (bytes(in_file), bytes(packed));
            writeln!(out, "weights with a kernel: {in_file} in the file, {packed} packed for it")?;
        }
        let twice = count(|tensor| tensor.packings.as_ref().is_some_and(|packings| packings.len() > 1));
        if twice > 0 {
            writeln!(out, "{} are held in several packings, counted above", counted(twice, "tensor"))?;
        }
        self.on_gpu.print(out)?;
        self.held.print(out)?;
        self.decided.print(self.types, out)?;
        files::print_transforms(file, out)?;
        Ok(self.without.print(out)?)
    }
}
