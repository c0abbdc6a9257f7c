//! `gristmill quantize`: weights to a format, from a model file to a GGUF file or from raw f32 to raw bytes.

mod arguments;
mod fate;
mod importance;
mod model;

pub use arguments::Arguments;

use super::error::{CliError, Outcome};
use super::raw;
use super::run::threads;
use gristmill::Threads;
use std::io::Write;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let Arguments { input, raw_output, output, format, quantizer, .. } = arguments;
    // clap does not hold an argument to what it needs where that would conflict with another one.
    if let (Some(row), Some(_)) = (arguments.row, output) {
        return Err(CliError::usage(
            format!("--row {row} is for --raw: rows of a model file are as long as its tensors say"),
            "leave --row away, or give --raw, IN.f32 and OUT.bin instead of --output",
        ));
    }
    match (raw_output, arguments.row, output) {
        (Some(output), Some(row), _) => {
            let threads = Threads::new(threads(arguments.threads))?;
            raw::quantize(format, quantizer.as_deref(), row as usize, [input, output], &threads, out)
        }
        (_, _, Some(output)) => model::run(arguments, output, out),
        // clap asks for one of the two forms.
        (_, _, None) => Err(CliError::usage(
            "neither an output file nor --raw is given",
            "gristmill quantize IN -o OUT.gguf --format NAME, or quantize --raw --format NAME --row K IN.f32 OUT.bin",
        )),
    }
}
