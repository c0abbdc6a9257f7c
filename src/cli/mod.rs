//! The command line: arguments, exit codes, and one file a command.
//!
//! Exit codes: 0 for yes, 2 for "there is no kernel", 1 for everything that went wrong.

mod analyze_library;
mod bench;
mod check;
mod clock;
mod compare_backend;
mod dequantize;
mod docs;
mod doctor;
mod emit;
mod error;
mod explain;
mod external;
mod files;
#[cfg(feature = "cuda")]
mod gpu_time;
mod inspect;
mod list;
mod plan;
mod progress;
mod quantize;
mod random;
mod raw;
mod request;
mod run;
mod specs;
mod table;
mod tune;
mod verify;
mod verify_receipt;

use clap::{Parser, Subcommand};
use error::{CliError, Outcome};
use std::io::{self, Write};
use std::process::ExitCode;

/// Low-bit matrix kernels, generated from TOML: what there is, whether it is right, how fast it is.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    List(list::Arguments),
    Explain(explain::Arguments),
    Inspect(inspect::Arguments),
    Plan(plan::Arguments),
    Verify(verify::Arguments),
    VerifyReceipt(verify_receipt::Arguments),
    Bench(bench::Arguments),
    Tune(tune::Arguments),
    Check(check::Arguments),
    Emit(emit::Arguments),
    Quantize(quantize::Arguments),
    Dequantize(dequantize::Arguments),
    Doctor(doctor::Arguments),
    Docs(docs::Arguments),
    AnalyzeLibrary(analyze_library::Arguments),
    CompareBackend(compare_backend::Arguments),
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing is left to do for somebody who closed the pipe.
            let _ = error.print();
            // clap's own code for a wrong argument, 2, means "no kernel" here.
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let outcome = dispatch(arguments.command, &mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match outcome {
        Ok(Outcome::Yes) => ExitCode::SUCCESS,
        Ok(Outcome::NoKernel) => ExitCode::from(2),
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // What was written before the error belongs before it.
            let _ = out.flush();
            anstream::eprintln!("\x1b[1;31merror\x1b[0m: {error}");
            if error.is_no_kernel() { ExitCode::from(2) } else { ExitCode::from(1) }
        }
    }
}

fn dispatch(command: Command, out: &mut dyn Write) -> Result<Outcome, CliError> {
    match command {
        Command::Run(arguments) => run::run(&arguments, out),
        Command::List(arguments) => list::run(&arguments, out),
        Command::Explain(arguments) => explain::run(&arguments, out),
        Command::Inspect(arguments) => inspect::run(&arguments, out),
        Command::Plan(arguments) => plan::run(&arguments, out),
        Command::Verify(arguments) => verify::run(&arguments, out),
        Command::VerifyReceipt(arguments) => verify_receipt::run(&arguments, out),
        Command::Bench(arguments) => bench::run(&arguments, out),
        Command::Tune(arguments) => tune::run(&arguments, out),
        Command::Check(arguments) => check::run(&arguments, out),
        Command::Emit(arguments) => emit::run(&arguments, out),
        Command::Quantize(arguments) => quantize::run(&arguments, out),
        Command::Dequantize(arguments) => dequantize::run(&arguments, out),
        Command::Doctor(arguments) => doctor::run(&arguments, out),
        Command::Docs(arguments) => docs::run(&arguments, out),
        Command::AnalyzeLibrary(arguments) => analyze_library::run(&arguments, out),
        Command::CompareBackend(arguments) => compare_backend::run(&arguments, out),
    }
}

/// Writes a JSON value with a newline.
fn print_json(out: &mut dyn Write, value: &serde_json::Value) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(|error| CliError::Output(error.into()))?;
    writeln!(out)?;
    Ok(())
}
