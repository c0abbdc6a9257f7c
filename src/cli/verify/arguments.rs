//! What `gristmill verify` is asked.

use super::super::request;
use gristmill::Device;
use gristmill::vocab::Isa;

/// Run every kernel that this processor can run against the oracle
///
/// Exits with 1 if a result is wrong, or (with GRISTMILL_NO_SKIP=1) if a kernel was skipped; with 2 if nothing of what was selected by name,
/// ISA or format can run here.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only this kernel
    pub(super) kernel: Option<String>,
    /// Only kernels of this ISA: scalar, sse4.1, avx2, avxvnni, avx512, neon
    #[arg(long, value_name = "NAME", value_parser = request::isa)]
    pub(super) isa: Option<Isa>,
    /// Only this format (or activation format)
    #[arg(long, value_name = "NAME")]
    pub(super) format: Option<String>,
    /// Kernels of this device: cpu, cuda:0; with a GPU, the scalar kernels too, which the others must agree with
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: Device,
    /// Fewer shapes, no long rows
    #[arg(long)]
    pub(super) quick: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}
