//! `gristmill top`: what a watched program's kernels do now.

use super::error::{CliError, Outcome};
use super::plain::Plain;
use gristmill_ops::Live;
use gristmill_ops::read::snapshot;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Show what the kernels of a running program do, again and again
///
/// Reads the file that `gristmill run --monitor` or an engine (`SnapshotFile` of gristmill-ops) writes again and again, and shows
/// what happened between two looks: launches in a second, time by those that were timed, bytes, use of threads. On a terminal the
/// screen is cleared each time; elsewhere looks follow each other with an empty line between.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The file
    file: PathBuf,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    every: f64,
    /// Looks before it ends [default: without end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Kernels that are shown at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "seconds are a number from 0.01 to 86400".to_owned())
}

pub fn run(arguments: &Arguments, terminal: bool, out: &mut Plain<impl Write>) -> Result<Outcome, CliError> {
    let mut before = None;
    // What is no snapshot at first is a mistake in the question; later it is a file that is being replaced.
    let mut now = Ok(snapshot(&arguments.file)?);
    for look in 1.. {
        if terminal {
            out.clear_screen()?;
        } else if look > 1 {
            writeln!(out)?;
        }
        match now {
            Ok(now) => {
                let newer = before.as_ref() != Some(&now);
                if newer {
                    write!(out, "{}", Live::between(before.as_ref(), &now).to_text(arguments.rows))?;
                } else {
                    writeln!(out, "nothing newer than {} (UTC)", gristmill_ops::date::date(now.at))?;
                }
                before = Some(now);
            }
            Err(error) => writeln!(out, "not read: {error}")?,
        }
        out.flush()?;
        if arguments.count.is_some_and(|count| look >= count) {
            break;
        }
        std::thread::sleep(Duration::from_secs_f64(arguments.every));
        now = snapshot(&arguments.file);
    }
    Ok(Outcome::Yes)
}
