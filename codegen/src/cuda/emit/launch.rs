//! What was decided for a CUDA kernel, as data: the registry's launch is printed from it, and so is `emit --cuda --plan`.

use super::tiles::Split;
use crate::text::joined;
use gristmill_spec::model::CudaBudget;
use gristmill_spec::vocab::{Op, Precision};
use std::fmt;

/// Everything that was decided for a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaPlan {
    /// What a CUDA block computes and how, in words; of a body by hand, what it is launched as.
    pub words: String,
    /// How the kernel is launched.
    pub launch: Launch,
    /// Bytes of shared memory of a CUDA block of a generated product.
    pub shared: Option<u32>,
    /// Bytes that so many packed weights take, of products of integers: codes and what goes with them.
    pub packed: Option<(u32, u32)>,
    /// Runs of a super-block, at whose end alone its sums are scaled; 1 where each run has a scale.
    pub runs: u32,
    /// Elements of k of a stage, where warps bring what others multiply.
    pub stage: Option<u32>,
    /// CUDA blocks that a multiprocessor holds, where registers are bounded so that it does.
    pub blocks_per_sm: Option<u32>,
    /// The code waits for the launches in front of it, and may be launched before they have ended.
    pub overlaps: bool,
    /// What the image may use.
    pub budget: CudaBudget,
}

impl fmt::Display for CudaPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; launch:", self.words)?;
        let numbers = self.launch.numbers();
        write!(f, " {}", joined(numbers.iter().map(|(name, number)| format!("{name} = {number}")), ", "))?;
        if let Some(shared) = self.shared {
            write!(f, "; {shared} bytes of shared memory")?;
        }
        if let Some(blocks) = self.blocks_per_sm {
            write!(f, "; {blocks} CUDA blocks on a multiprocessor")?;
        }
        if self.overlaps {
            f.write_str("; begins before the launch in front has ended")?;
        }
        let CudaBudget { registers, shared } = self.budget;
        write!(f, "; bounds: {registers} registers a thread, {shared} bytes of static shared memory")
    }
}

/// How a kernel is launched: `CudaLaunch` of the runtime, before it is Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Threads have some neighbouring elements each, whatever the shape.
    Elements {
        /// The op.
        op: Op,
        /// The kernel's name in its unit.
        function: String,
        /// Threads of a CUDA block.
        threads: u32,
        /// Elements of a thread.
        per_thread: u32,
    },
    /// A quantizer of weights.
    Quantize {
        /// The kernel's name in its unit.
        function: String,
        /// Threads of a CUDA block.
        threads: u32,
        /// Blocks of the format that a CUDA block does.
        blocks: u32,
        /// What is launched in front where a scale covers more than a block.
        step: Option<Step>,
    },
    /// A product of integers.
    Matmul {
        /// The kernel's name in its unit.
        function: String,
        /// Most threads of a CUDA block.
        threads: u32,
        /// Fewest threads of a CUDA block.
        fewest: u32,
        /// Rows that a CUDA block does.
        rows: u32,
        /// Tokens that a CUDA block does.
        tokens: u32,
        /// Names of the format and of the packing that it reads.
        packed: (String, String),
        /// Elements of a unit; 0: the row.
        elements: u32,
        /// Elements of a unit are padded to a multiple of this.
        multiple: u32,
        /// Split-K, where k may be divided over CUDA blocks.
        split: Option<Split>,
        /// Bytes of shared memory that the launch gives each CUDA block.
        shared: u32,
        /// CUDA blocks quantize their tokens for themselves.
        fused: bool,
        /// Name in the translation unit of the kernel's grouped form, if it has one.
        grouped: Option<String>,
    },
    /// A product of floats over the format's own rows.
    Rows {
        /// The kernel's name in its unit.
        function: String,
        /// The kernel that checks the weights.
        check: String,
        /// Threads of a CUDA block of that kernel.
        check_threads: u32,
        /// What is multiplied.
        precision: Precision,
        /// Most threads of a CUDA block.
        threads: u32,
        /// Fewest threads of a CUDA block.
        fewest: u32,
        /// Rows that a CUDA block does.
        rows: u32,
        /// Tokens that a CUDA block does.
        tokens: u32,
        /// Bytes of shared memory that the launch gives each CUDA block.
        shared: u32,
        /// The kernel that quantizes activations, where the product takes them so.
        quantizer: Option<RowsQuantizer>,
    },
    /// Rows of activations to int8, a CUDA block for a row.
    Activations {
        /// The op: with a prologue or without.
        op: Op,
        /// The kernel's name in its unit.
        function: String,
        /// Threads of a CUDA block.
        threads: u32,
    },
    /// Conversions between types of floats.
    Convert {
        /// The kernel's name in its unit.
        function: String,
        /// Threads of a CUDA block.
        threads: u32,
        /// Elements of a thread.
        per_thread: u32,
    },
    /// What experts need around their products.
    Experts {
        /// The kernel that sorts pairs of tokens and experts.
        route: String,
        /// The kernel that brings rows of activations together.
        gather: String,
        /// The kernel that brings results to their places.
        combine: String,
        /// Threads of a CUDA block of each.
        threads: u32,
    },
}

/// The kernels in front of a quantizer whose scale covers more than a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Takes the statistic of each chunk.
    pub chunks: String,
    /// Makes the step of them.
    pub finish: String,
    /// Threads of a CUDA block of both.
    pub threads: u32,
    /// Values of a chunk.
    pub chunk: u32,
}

/// The kernel in front of a product of floats that takes activations in stages of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsQuantizer {
    /// The kernel's name in its unit.
    pub function: String,
    /// Threads of a CUDA block.
    pub threads: u32,
    /// Elements of a stage.
    pub elements: u32,
    /// Bytes of a stage.
    pub bytes: u32,
}

impl Launch {
    /// The kernel's name in its unit.
    pub fn function(&self) -> &str {
        match self {
            Launch::Elements { function, .. }
            | Launch::Quantize { function, .. }
            | Launch::Matmul { function, .. }
            | Launch::Rows { function, .. }
            | Launch::Activations { function, .. }
            | Launch::Convert { function, .. } => function,
            Launch::Experts { combine, .. } => combine,
        }
    }

    /// Bytes of shared memory that the launch gives each CUDA block, beyond what the kernel declares.
    pub fn shared(&self) -> u32 {
        match *self {
            Launch::Matmul { shared, .. } | Launch::Rows { shared, .. } => shared,
            Launch::Elements { .. }
            | Launch::Quantize { .. }
            | Launch::Activations { .. }
            | Launch::Experts { .. }
            | Launch::Convert { .. } => 0,
        }
    }

    /// Its numbers, and those of its parts, each with its name.
    pub fn numbers(&self) -> Vec<(&'static str, u32)> {
        let mut numbers = self.fields();
        match self {
            Launch::Matmul { elements, multiple, split, .. } => {
                numbers.extend([("elements", *elements), ("multiple", *multiple)]);
                numbers.extend(split.iter().flat_map(|split| split.fields()));
            }
            Launch::Quantize { step: Some(step), .. } => numbers.push(("chunk", step.chunk)),
            Launch::Rows { quantizer: Some(RowsQuantizer { threads, elements, bytes, .. }), .. } => numbers
                .extend([("quantize_threads", *threads), ("stage", *elements), ("stage_bytes", *bytes)]),
            Launch::Elements { .. }
            | Launch::Quantize { step: None, .. }
            | Launch::Rows { quantizer: None, .. }
            | Launch::Activations { .. }
            | Launch::Convert { .. }
            | Launch::Experts { .. } => {}
        }
        numbers
    }

    /// Its own numbers, each by the name of its field in the registry.
    pub(crate) fn fields(&self) -> Vec<(&'static str, u32)> {
        match *self {
            Launch::Elements { threads, per_thread, .. } | Launch::Convert { threads, per_thread, .. } => {
                vec![("threads", threads), ("per_thread", per_thread)]
            }
            Launch::Quantize { threads, blocks, .. } => vec![("threads", threads), ("blocks", blocks)],
            Launch::Matmul { threads, fewest, rows, tokens, shared, .. } => vec![
                ("threads", threads),
                ("fewest", fewest),
                ("rows", rows),
                ("tokens", tokens),
                ("shared", shared),
            ],
            Launch::Rows { check_threads, threads, fewest, rows, tokens, shared, .. } => vec![
                ("check_threads", check_threads),
                ("threads", threads),
                ("fewest", fewest),
                ("rows", rows),
                ("tokens", tokens),
                ("shared", shared),
            ],
            Launch::Activations { threads, .. } | Launch::Experts { threads, .. } => {
                vec![("threads", threads)]
            }
        }
    }
}
