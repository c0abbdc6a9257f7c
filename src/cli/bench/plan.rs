//! What a run measures.

use super::super::environment::Environment;
use super::super::error::CliError;
use super::base::Base;
use super::measure::Effort;
use gristmill::registry::FormatInfo;
use gristmill::vocab::{DType, Isa, Op, Serves};
use gristmill::{PrecisionMode, ThreadOptions, Threads};
use std::sync::LazyLock;
use std::time::Instant;

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Memory {
    /// The same weights in each run.
    Hot,
    /// So many copies in turn that none is still in a cache.
    Cold,
}

impl Memory {
    pub(super) fn name(self) -> &'static str {
        match self {
            Memory::Hot => "hot",
            Memory::Cold => "cold",
        }
    }
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measured {
    /// Kernels of an op.
    Op(Op),
    /// Blocks to what products read.
    Pack,
}

impl Measured {
    pub(super) const MATMUL: Measured = Measured::Op(Op::Matmul);
}

/// Ops of weight formats by their names, and `pack`.
impl clap::ValueEnum for Measured {
    fn value_variants<'a>() -> &'a [Measured] {
        static ALL: LazyLock<Vec<Measured>> = LazyLock::new(|| {
            Op::serving(Serves::Formats).map(Measured::Op).chain([Measured::Pack]).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let (name, help) = match self {
            Measured::Op(op) => (op.name(), op.info().doc),
            Measured::Pack => ("pack", "blocks to what products read"),
        };
        Some(clap::builder::PossibleValue::new(name).help(help))
    }
}

/// What a run measures, and how thoroughly.
pub(super) struct Plan {
    pub(super) formats: Vec<&'static FormatInfo>,
    pub(super) shapes: Vec<(usize, usize)>,
    pub(super) tokens: Vec<usize>,
    pub(super) threads: Vec<usize>,
    pub(super) cpus: Vec<usize>,
    pub(super) memory: Vec<Memory>,
    pub(super) ops: Vec<Measured>,
    pub(super) isa: Option<Isa>,
    /// Restrictions and measured orders, where no ISA was asked for.
    pub(super) environment: Environment,
    pub(super) input: DType,
    pub(super) precision: PrecisionMode,
    pub(super) effort: Effort,
    pub(super) deadline: Option<Instant>,
    pub(super) base: Option<Base>,
}

impl Plan {
    /// Threads to measure with.
    pub(super) fn make_threads(&self, count: usize) -> Result<Threads, CliError> {
        let options = ThreadOptions { count, cpus: self.cpus.clone(), ..ThreadOptions::default() };
        Ok(Threads::with_options(&options)?)
    }

    /// Whether a quick run is at its end.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}
