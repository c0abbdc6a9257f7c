//! What `gristmill quantize` is asked.

use super::super::files::TypeArguments;
use super::super::output::Files;
use super::super::request;
use std::path::PathBuf;

/// Quantize weights: a safetensors or GGUF file to a GGUF file, or raw f32 to raw bytes
///
/// Matrices whose rows are whole blocks of the format are quantized, and stacks of them, as experts have; other tensors are copied as they are. What GGUF has no
/// type or no room for (BOOL, F8, more than four dimensions) is refused by name, before anything is written, unless it is named
/// with --leave-out.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Model file (safetensors, or GGUF with f32, f16 or bf16); with --raw, little-endian f32
    pub(super) input: PathBuf,
    /// Output of --raw: the format's bytes
    #[arg(value_name = "OUT.bin", requires = "raw", required_if_eq("raw", "true"))]
    pub(super) raw_output: Option<PathBuf>,
    /// GGUF file to write
    #[arg(short, long, value_name = "OUT.gguf", conflicts_with = "raw", required_unless_present = "raw")]
    pub(super) output: Option<PathBuf>,
    /// Weight format
    #[arg(long, value_name = "NAME")]
    pub(super) format: String,
    /// Quantizer of the format; its first one if not given
    #[arg(long, value_name = "NAME")]
    pub(super) quantizer: Option<String>,
    /// Importance of columns, as llama.cpp's llama-imatrix writes it (GGUF): quantizers that search weigh errors by it. A
    /// matrix (of a stack, too) that the file has nothing of is quantized without, and said so
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(super) imatrix: Option<PathBuf>,
    /// A tensor that is not to be in the output; may be given several times
    #[arg(long, value_name = "TENSOR", conflicts_with = "raw")]
    pub(super) leave_out: Vec<String>,
    #[arg(long, value_name = "N", value_parser = request::threads)]
    #[arg(help = request::up_to_threads("Threads,", "; one for each physical core if not given"))]
    pub(super) threads: Option<usize>,
    /// Files are raw f32 and raw bytes
    #[arg(long, requires = "row")]
    raw: bool,
    /// Elements of a row (with --raw)
    #[arg(long, value_name = "K", requires = "raw", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) row: Option<u32>,
    #[command(flatten)]
    pub(super) types: TypeArguments,
    /// Print JSON
    #[arg(long, conflicts_with = "raw")]
    pub(super) json: bool,
}

impl Arguments {
    /// What is read and what is written.
    pub fn files(&self) -> Files<'_> {
        let files =
            Files::default().reads([&self.input]).reads(&self.imatrix).reads(self.types.kernel_config());
        files.writes(&self.output).writes(&self.raw_output)
    }
}
