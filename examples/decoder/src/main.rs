//! The `decoder` command.

use clap::Parser;
use decoder::commands::{Command, run};
use gristmill::text::PrintableLines;
use std::process::ExitCode;

/// Runs language models from GGUF files on gristmill's kernels.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let Arguments { command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help is no error; what can't be understood is one as all others are.
        Err(error) => {
            let code = if error.use_stderr() { 1 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(command, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Names and texts of files are whatever somebody wrote there.
            eprintln!("error: {}", PrintableLines(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
