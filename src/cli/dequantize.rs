//! `gristmill dequantize`: a format's bytes to f32.

use super::error::{CliError, Outcome};
use super::output::Files;
use super::{raw, request, run};
use gristmill::Threads;
use std::io::Write;
use std::path::PathBuf;

/// Turn a raw file of a format's bytes into f32
///
/// The input holds whole rows (with the format's row headers and tensor tail), the output little-endian f32.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Files are raw bytes and raw f32 (the only form there is)
    #[arg(long, required = true)]
    raw: bool,
    /// Weight format, or an import layout of one
    #[arg(long, value_name = "NAME")]
    pub(super) format: String,
    /// Elements of a row
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) row: u32,
    #[arg(long, value_name = "N", value_parser = request::threads)]
    #[arg(help = request::up_to_threads("Threads,", "; one for each physical core if not given"))]
    threads: Option<usize>,
    /// Input, the format's bytes
    pub(super) input: PathBuf,
    /// Output, f32
    pub(super) output: PathBuf,
}

impl Arguments {
    /// What is read and what is written.
    pub fn files(&self) -> Files<'_> {
        Files::default().reads([&self.input]).writes([&self.output])
    }
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let Arguments { format, row, threads, input, output, .. } = arguments;
    let threads = Threads::new(run::threads(*threads))?;
    raw::dequantize(format, *row as usize, [input, output], &threads, out)
}
