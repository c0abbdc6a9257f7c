//! Our kernels and our decoder beside others', on the same data in one process: times, whether the results agree, and a record.

#[cfg(any(feature = "ik", feature = "ggml"))]
mod busy;
mod error;
mod formats;
#[cfg(any(feature = "ik", feature = "ggml"))]
mod measure;
#[cfg(any(feature = "ik", feature = "ggml"))]
mod model;
#[cfg(any(feature = "ik", feature = "ggml"))]
mod ours;
#[cfg(any(feature = "ik", feature = "ggml"))]
mod peer;
mod picture;
mod plot;
mod plot_models;
mod record;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure our kernels beside others', and draw what was measured.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare and measure products beside the peer's; needs a build with `--features ik` or `--features ggml`
    #[cfg(any(feature = "ik", feature = "ggml"))]
    Measure(measure::Arguments),
    /// Compare and measure a whole model: our decoder and the peer on one GGUF file; needs such a build too
    #[cfg(any(feature = "ik", feature = "ggml"))]
    Model(model::Arguments),
    /// Compare and measure products or a whole model; needs a build with `--features ik` or `--features ggml`
    #[cfg(not(any(feature = "ik", feature = "ggml")))]
    #[command(visible_alias = "model")]
    Measure {
        /// As such a build has them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<String>,
    },
    /// Our decoder's own command, of which `make-model` makes models to compare with
    Decoder {
        #[command(subcommand)]
        command: decoder::commands::Command,
    },
    /// Run `gristmill bench --json` and record what it prints, with date and machine
    Formats {
        /// The command to run
        #[arg(long, default_value = "../../target/release/gristmill")]
        gristmill: PathBuf,
        /// Record to write
        #[arg(long)]
        record: PathBuf,
        /// Further arguments for `bench`
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Draw records of whole models
    PlotModels {
        /// Records to read, of which the newest of each processor is drawn
        #[arg(required = true)]
        records: Vec<PathBuf>,
        /// Picture to write
        #[arg(long)]
        svg: PathBuf,
    },
    /// Draw a record of products
    Plot {
        /// Record to read
        #[arg(long)]
        record: PathBuf,
        /// Picture to write
        #[arg(long)]
        svg: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        #[cfg(any(feature = "ik", feature = "ggml"))]
        Command::Measure(arguments) => measure::run(&arguments),
        #[cfg(any(feature = "ik", feature = "ggml"))]
        Command::Model(arguments) => model::run(&arguments),
        #[cfg(not(any(feature = "ik", feature = "ggml")))]
        Command::Measure { .. } => Err(error::Error::NoPeer),
        Command::Decoder { command } => {
            decoder::commands::run(command, &mut std::io::stdout().lock()).map_err(error::Error::from)
        }
        Command::Formats { gristmill, record, arguments } => formats::run(&gristmill, &record, &arguments),
        Command::Plot { record, svg } => plot::run(&record, &svg),
        Command::PlotModels { records, svg } => plot_models::run(&records, &svg),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
