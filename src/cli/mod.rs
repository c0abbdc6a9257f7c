//! The command line: arguments, exit codes, and one file a command.
//!
//! Exit codes: 0 for yes, 2 where something has no kernel, 1 for everything that went wrong.

mod analyze_library;
mod bench;
mod check;
pub(crate) mod clock;
mod compare_backend;
mod dequantize;
mod device_report;
mod docs;
mod doctor;
mod emit;
mod environment;
mod error;
mod explain;
mod external;
mod files;
mod gpu_kernels;
#[cfg(feature = "cuda")]
mod gpu_time;
mod held;
#[cfg(feature = "ops")]
mod history;
mod inspect;
mod json;
mod limited;
mod list;
mod memory;
mod output;
mod plain;
mod plan;
mod plan_devices;
mod progress;
mod quantize;
mod raw;
#[cfg(feature = "ops")]
mod report;
mod request;
mod run;
mod say;
mod specs;
mod table;
#[cfg(feature = "ops")]
mod top;
mod tune;
mod unread;
mod validate;
mod verify;
mod verify_receipt;

use clap::{Parser, Subcommand};
pub(crate) use error::is_no_kernel;
use error::{CliError, Outcome};
use gristmill::text::PrintableLines;
use output::Files;
pub use plain::Plain;
use say::say;
use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use unread::Unread;

/// The one rule for exit codes.
const EXIT_CODES: &str = "\
Exit codes: 0 if all that was asked for has a kernel and is right; 2 if anything asked for has none, even a single tensor of a model \
whose other tensors ran; 1 after an error, a wrong result or defective data, whatever else there was. What nobody named (a format among all \
that `bench` or `tune` go through) is reported and does not count.";

/// Low-bit matrix kernels, generated from TOML: what there is, whether it is right, how fast it is.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::Arguments),
    List(list::Arguments),
    Explain(explain::Arguments),
    Inspect(inspect::Arguments),
    Plan(plan::Arguments),
    Verify(verify::Arguments),
    VerifyReceipt(verify_receipt::Arguments),
    Bench(bench::Arguments),
    Tune(tune::Arguments),
    Validate(validate::Arguments),
    DeviceReport(device_report::Arguments),
    Check(check::Arguments),
    Emit(emit::Arguments),
    Quantize(quantize::Arguments),
    Dequantize(dequantize::Arguments),
    Doctor(doctor::Arguments),
    Docs(docs::Arguments),
    #[cfg(feature = "ops")]
    History(history::Arguments),
    #[cfg(feature = "ops")]
    Report(report::Arguments),
    #[cfg(feature = "ops")]
    Top(top::Arguments),
    AnalyzeLibrary(analyze_library::Arguments),
    CompareBackend(compare_backend::Arguments),
}

impl Command {
    /// The files that it reads and those that it writes.
    fn named(&self) -> Files<'_> {
        match self {
            Command::Run(arguments) => arguments.files(),
            Command::Tune(arguments) => arguments.files(),
            Command::Validate(arguments) => arguments.files(),
            Command::Quantize(arguments) => arguments.files(),
            Command::Dequantize(arguments) => arguments.files(),
            Command::DeviceReport(arguments) => arguments.files(),
            #[cfg(feature = "ops")]
            Command::History(arguments) => arguments.files(),
            #[cfg(feature = "ops")]
            Command::Report(arguments) => arguments.files(),
            // These print.
            Command::List(_)
            | Command::Explain(_)
            | Command::Inspect(_)
            | Command::Plan(_)
            | Command::Verify(_)
            | Command::VerifyReceipt(_)
            | Command::Bench(_)
            | Command::Check(_)
            | Command::Emit(_)
            | Command::Doctor(_)
            | Command::Docs(_)
            | Command::AnalyzeLibrary(_)
            | Command::CompareBackend(_) => Files::default(),
            #[cfg(feature = "ops")]
            Command::Top(_) => Files::default(),
        }
    }

    /// Whether it prints until it is stopped.
    fn goes_on(&self) -> bool {
        #[cfg(feature = "ops")]
        {
            matches!(self, Command::Top(_))
        }
        #[cfg(not(feature = "ops"))]
        {
            false
        }
    }
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    full_files_are_errors();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let printed = error.print().and_then(|()| io::stdout().flush()).map_err(CliError::Output);
            // clap's own code for a wrong argument, 2, means "no kernel" here.
            return match printed {
                _ if error.use_stderr() => ExitCode::from(1),
                Err(failed) if !failed.is_broken_pipe() => {
                    say(format_args!("\x1b[1;31merror\x1b[0m: {failed}"));
                    ExitCode::from(1)
                }
                // Nothing is left to do for somebody who closed the pipe.
                Ok(()) | Err(_) => ExitCode::SUCCESS,
            };
        }
    };
    let files = arguments.command.named();
    // What a command prints would be mixed into an output that goes there.
    let to: Box<dyn Write> = match files.has_standard_output() {
        true => Box::new(io::stderr()),
        // What goes on until it is stopped ends with its reader.
        false if arguments.command.goes_on() => Box::new(io::stdout().lock()),
        false => Box::new(Unread::new(io::stdout().lock())),
    };
    let mut out = Plain::new(io::BufWriter::new(to));
    let outcome = files.check().and_then(|()| dispatch(&arguments.command, &mut out)).and_then(|outcome| {
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
            let begin = if error.is_diagnostics() { "" } else { "\x1b[1;31merror\x1b[0m: " };
            say(format_args!("{begin}{}", PrintableLines(&error.to_string())));
            if error.is_no_kernel() { ExitCode::from(2) } else { ExitCode::from(1) }
        }
    }
}

/// Beyond a limit on the size of files, a write is to fail as on a full disk and not to end the process, which would leave
/// half a file behind.
#[cfg(unix)]
fn full_files_are_errors() {
    // SAFETY: SIG_IGN is no function that could be called at a wrong time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(not(unix))]
fn full_files_are_errors() {}

/// Runs one command. (The fuzz targets do so without a process.)
///
/// # Errors
/// What stopped it.
pub fn dispatch(command: &Command, out: &mut Plain<impl Write>) -> Result<Outcome, CliError> {
    match command {
        Command::Run(arguments) => run::run(arguments, out),
        Command::List(arguments) => list::run(arguments, out),
        Command::Explain(arguments) => explain::run(arguments, out),
        Command::Inspect(arguments) => inspect::run(arguments, out),
        Command::Plan(arguments) if !arguments.devices.is_empty() => plan_devices::run(arguments, out),
        Command::Plan(arguments) => plan::run(arguments, out),
        Command::Verify(arguments) => verify::run(arguments, out),
        Command::VerifyReceipt(arguments) => verify_receipt::run(arguments, out),
        Command::Bench(arguments) => bench::run(arguments, out),
        Command::Tune(arguments) => tune::run(arguments, out),
        Command::Validate(arguments) => validate::run(arguments, out),
        Command::DeviceReport(arguments) => device_report::run(arguments, out),
        Command::Check(arguments) if io::stdout().is_terminal() => check::run(arguments, out.with_colours()),
        Command::Check(arguments) => check::run(arguments, out),
        Command::Emit(arguments) => emit::run(arguments, out),
        Command::Quantize(arguments) => quantize::run(arguments, out),
        Command::Dequantize(arguments) => dequantize::run(arguments, out),
        Command::Doctor(arguments) => doctor::run(arguments, out),
        Command::Docs(arguments) => docs::run(arguments, out),
        #[cfg(feature = "ops")]
        Command::History(arguments) => history::run(arguments, out),
        #[cfg(feature = "ops")]
        Command::Report(arguments) => report::run(arguments, out),
        #[cfg(feature = "ops")]
        Command::Top(arguments) => top::run(arguments, io::stdout().is_terminal(), out),
        Command::AnalyzeLibrary(arguments) => analyze_library::run(arguments, out),
        Command::CompareBackend(arguments) => compare_backend::run(arguments, out),
    }
}
