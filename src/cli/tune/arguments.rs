//! What `gristmill tune` is asked.

use super::super::request;
use gristmill::tuning::ShapeClass;
use gristmill::vocab::DeviceKind;
use gristmill::{Device, Shape};
use std::path::PathBuf;

/// Most tokens that are measured on a processor: more than a tile of any of its kernels, and no more seconds than need be.
pub(super) const TOKENS_ON_CPU: usize = 128;

/// Measure which kernel is fastest on this processor or GPU, and write it to a file
///
/// Decisions follow the file that the variable GRISTMILL_TUNING names: of the kernels that are available and take
/// the shape, the one that was fastest. A file has a part for each processor and GPU that was measured, for the kernels
/// of this build; what of it can't be used is set aside. Without a file kernels come in the order of their specs. Of each class
/// one shape is measured, with at most 6912x2560 weights and 2048 tokens; on the processor with 128, whose order goes for more. A
/// kernel that does not take that shape is not measured and keeps its place.
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
    shape: Vec<(usize, usize)>,
    /// Weights of few tokens come from the caches, not from memory as between the layers of a model
    #[arg(long)]
    pub(super) hot: bool,
    /// Shorter measurements
    #[arg(long)]
    pub(super) quick: bool,
    /// Measure nothing: say what of the file can be used here
    #[arg(long)]
    pub(super) check: bool,
}

impl Arguments {
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
