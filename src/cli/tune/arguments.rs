//! What `gristmill tune` is asked.

use super::super::error::CliError;
use super::super::output::Files;
use super::super::request;
use clap::ValueEnum;
use gristmill::tuning::ShapeClass;
use gristmill::vocab::{DeviceKind, Op};
use gristmill::{Device, Shape, ThreadOptions};
use std::path::PathBuf;

/// Most tokens that are measured on a processor: more than a tile of any of its kernels, and no more seconds than need be.
pub(super) const TOKENS_ON_CPU: usize = 128;

/// Matrices by which quantizing and dequantizing are measured where none are named: rows are converted one by one, so that larger
/// ones are the same work more often, and quantizers that search take seconds for them.
const OF_BLOCKS: (usize, usize) = (512, 1024);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Tuned {
    /// Products
    Matmul,
    /// f32 to blocks, by each quantizer
    Quantize,
    /// Blocks to f32
    Dequantize,
}

impl Tuned {
    pub(super) fn op(self) -> Op {
        match self {
            Tuned::Matmul => Op::Matmul,
            Tuned::Quantize => Op::Quantize,
            Tuned::Dequantize => Op::Dequantize,
        }
    }
}

/// Measure which kernel is fastest on this processor or GPU, and write it to a file
///
/// Decisions follow the file that the variable GRISTMILL_TUNING names: of the kernels that are available and take
/// the shape, the one that was fastest, but for products on a processor of those that read one packing, the one that loses
/// least over all numbers of tokens, so that weights are held once. `explain` says what is chosen and why. A file has a part for each
/// processor and GPU that was measured, for the kernels of this build; what of it can't be used is set aside. Without a file
/// kernels come in the order of their specs. Of each class one shape is measured, with at most 6912x2560 weights and 2048
/// tokens; on the processor with 128, whose order goes for more. Quantizing and dequantizing are measured with 512x1024 weights,
/// whose order goes for more; so do those of --shape. A kernel that does not take that shape is not measured and keeps its place.
///
/// On the processor each is measured on several numbers of threads, which take turns. A program with other numbers follows what
/// was measured on the most threads that are not more than its own; where fewer were faster by more than 5 %, it follows these
/// and uses no more. A program says its number of threads by what it gives to `Linear::new` (`Request::threads`).
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "gristmill.tuning")]
    pub(super) out: PathBuf,
    /// Where the kernels run
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: Device,
    /// Only these formats; all if not given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) format: Vec<String>,
    /// Only classes with these numbers of tokens
    #[arg(long, value_name = "M", value_delimiter = ',')]
    pub(super) m: Vec<usize>,
    /// Only classes of weights like these, as NxK
    #[arg(long, value_name = "NxK", value_delimiter = ',', value_parser = request::matrix)]
    pub(super) shape: Vec<(usize, usize)>,
    /// Only these ops [default: all; on a GPU matmul]
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    op: Vec<Tuned>,
    /// Numbers of threads; on the processor only [default: powers of two up to the physical cores, and these]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = request::threads)]
    threads: Vec<usize>,
    /// Weights of few tokens come from the caches, not from memory as between the layers of a model
    #[arg(long)]
    pub(super) hot: bool,
    /// Shorter measurements
    #[arg(long)]
    pub(super) quick: bool,
    /// Measure nothing: say what of the file can be used here
    #[arg(long, conflicts_with_all = ["format", "m", "shape", "op", "threads", "hot", "quick"])]
    pub(super) check: bool,
}

impl Arguments {
    /// What is written. The file keeps what it has of other formats and machines, so it may be the one that decisions follow.
    pub fn files(&self) -> Files<'_> {
        if self.check { Files::default() } else { Files::default().updates([&self.out]) }
    }

    /// What is measured on the processor.
    pub(super) fn ops(&self) -> Vec<Tuned> {
        match self.op.is_empty() {
            true => Tuned::value_variants().to_vec(),
            false => self.op.clone(),
        }
    }

    /// On how many threads, each number once, the fewest first.
    pub(super) fn numbers_of_threads(&self) -> Vec<usize> {
        let cores = ThreadOptions::default().count.max(1);
        let mut numbers = match self.threads.is_empty() {
            true => (0..usize::BITS).map(|bit| 1 << bit).take_while(|n| *n < cores).chain([cores]).collect(),
            false => self.threads.clone(),
        };
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Refuses what a GPU has no use for.
    pub(super) fn on_gpu(&self) -> Result<(), CliError> {
        let given = match (self.op.iter().find(|op| **op != Tuned::Matmul), self.threads.is_empty()) {
            (None, true) => return Ok(()),
            (Some(op), _) => format!("--op {}", op.op().name()),
            (None, false) => "--threads".to_owned(),
        };
        Err(CliError::usage(
            format!("{given} is measured on the processor, not on {}", self.device),
            "leave it away, or take --device cpu",
        ))
    }

    /// The classes of weights by which quantizing and dequantizing are measured.
    pub(super) fn classes_of_blocks(&self) -> Vec<ShapeClass> {
        let asked = if self.shape.is_empty() { &[OF_BLOCKS][..] } else { &self.shape };
        let mut classes: Vec<ShapeClass> =
            asked.iter().map(|(n, k)| ShapeClass::of(Shape::matrix(*n, *k))).collect();
        classes.sort_unstable_by_key(|class| class.index());
        classes.dedup();
        classes
    }

    /// The classes that were asked for, those whose weights are of one size together. On the processor those of the most tokens
    /// are one.
    pub(super) fn classes(&self) -> Vec<Vec<ShapeClass>> {
        let most = match self.device.kind {
            DeviceKind::Cpu => TOKENS_ON_CPU,
            DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => usize::MAX,
        };
        let wanted = |class: &ShapeClass| {
            let Shape { m, n, k } = class.example();
            let tokens = match &self.m[..] {
                [] => class.tokens().0 <= most,
                asked => asked.iter().any(|m| ShapeClass::of(Shape { m: *m.min(&most), n, k }) == *class),
            };
            let weights = self.shape.is_empty()
                || self.shape.iter().any(|&(n, k)| ShapeClass::of(Shape { m, n, k }) == *class);
            tokens && weights
        };
        let all: Vec<ShapeClass> = ShapeClass::all().filter(wanted).collect();
        all.chunk_by(|a, b| a.example().n == b.example().n).map(<[ShapeClass]>::to_vec).collect()
    }
}
