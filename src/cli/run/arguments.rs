//! What `gristmill run` is asked.

use super::super::files::TypeArguments;
use super::super::output::Files;
use super::super::request;
use gristmill::{Device, PrecisionMode};
use std::path::PathBuf;

/// Run real tensors through the kernels chosen for them, checked against the oracle
///
/// Without a file, the tensors are a decoder layer of BitNet b1.58 2B-4T with seeded weights, quantized to i2_s
/// in memory. A tensor of three dimensions, the stacked matrices of experts, also runs as such: each token goes through up to
/// eight of them (the op matmul_grouped). Times include quantizing or converting the activations. Exits with 1 if a result is wrong or data of
/// the file is defective (a scale that is NaN or infinite, weights whose products are beyond f32, a code without a meaning), else with 2 if a quantized tensor has
/// no kernel, as `plan` does.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// GGUF file
    pub(super) file: Option<PathBuf>,
    /// Numbers of tokens
    #[arg(long, value_name = "M", value_delimiter = ',', default_value = "1,8,128")]
    pub(super) m: Vec<usize>,
    /// Where products run: cpu, cuda:0. Times on a GPU include the way there and back
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: Device,
    /// What products may multiply: int8, f32, f16, bf16, fp4 or auto
    #[arg(long, value_name = "PRECISION", default_value = "int8", value_parser = request::precision)]
    pub(super) precision: PrecisionMode,
    #[arg(long, value_name = "N", value_parser = request::threads)]
    #[arg(help = request::up_to_threads("Threads,", "; one for each physical core if not given"))]
    pub(super) threads: Option<usize>,
    /// Watch the launches, and write what a monitor saw of them to this file
    #[cfg(feature = "ops")]
    #[arg(long, value_name = "FILE")]
    pub(super) monitor: Option<PathBuf>,
    /// Write a receipt of what ran to this file
    #[arg(long, value_name = "FILE")]
    pub(super) receipt: Option<PathBuf>,
    /// Seed of activations (and of weights, without a file)
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Layers to make (without a file)
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) layers: u32,
    #[command(flatten)]
    pub(super) types: TypeArguments,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Arguments {
    /// What is read and what is written.
    pub fn files(&self) -> Files<'_> {
        let files =
            Files::default().reads(&self.file).reads(self.types.kernel_config()).writes(&self.receipt);
        #[cfg(feature = "ops")]
        let files = files.writes(&self.monitor);
        files
    }
}
