//! `gristmill validate`: one answer to "may this machine serve?".

mod apart;
mod arguments;

pub use arguments::Arguments;

use super::compare_backend;
use super::error::{CliError, Outcome};
use super::json::print_json;
use super::limited;
use super::output;
use super::run;
use super::say::say;
use super::table::{bytes, counted, measured};
use gristmill::text::{Printable, PrintableLines};
use gristmill::validate::{self, Baseline, LeftOut, Problem, Validation};
use gristmill::{Quarantine, REGISTRY, Threads};
use std::io::Write;
use std::path::Path;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let quarantine = match &arguments.quarantine {
        Some(folder) if !arguments.here => return apart::run(arguments, folder, out),
        Some(folder) => {
            apart::ends_with_its_parent()?;
            let quarantine = Quarantine::kept_in(folder)?;
            quarantine.mark_first_runs()?;
            Some(quarantine)
        }
        None => None,
    };
    let quarantined = quarantine.as_ref().map(Quarantine::kernels).unwrap_or_default();
    let baseline = arguments.baseline.as_deref().map(read).transpose()?;
    let names: Vec<&str> = arguments.format.iter().map(String::as_str).collect();
    let library =
        arguments.library.as_ref().map(|folder| compare_backend::load(folder.as_deref())).transpose()?;
    let options = validate::Options {
        device: arguments.device,
        library: library.as_ref(),
        formats: &names,
        quarantined: &quarantined,
        rounds: arguments.rounds,
        baseline: baseline.as_ref(),
        tolerance: f64::from(arguments.tolerance) / 100.0,
    };
    let threads = Threads::new(run::threads(arguments.threads))?;
    let validation = validate::validate(&REGISTRY, &options, &threads)?;
    if let Some(error) = quarantine.and_then(|quarantine| quarantine.not_kept()) {
        say(PrintableLines(&format!("{error}: what ends the program is not known for sure")));
    }
    let printed = if arguments.json { print_json(out, &validation) } else { print(&validation, out) };
    match &arguments.save_baseline {
        Some(path) if validation.success => {
            let text = serde_json::to_string_pretty(&validation.speed.baseline(&validation.machine));
            let text = text.map_err(|error| CliError::Output(error.into()))?;
            output::write(path, (text + "\n").as_bytes())?;
        }
        // Later runs would be held against what is wrong with this one.
        Some(path) => {
            let path = path.display().to_string();
            say(format_args!("{} is not written: a baseline is of a valid machine", Printable(&path)));
        }
        None => {}
    }
    printed?;
    Ok(if validation.success { Outcome::Yes } else { Outcome::Failed })
}

/// Bytes of the largest baseline that is read: one line for each format and number of tokens.
const MOST_BYTES: u64 = 16 << 20;

fn read(path: &Path) -> Result<Baseline, CliError> {
    let text = limited::read_text(path, MOST_BYTES, "a baseline")?;
    let help = "`gristmill validate --save-baseline FILE` writes one";
    let baseline: Baseline = serde_json::from_str(&text).map_err(|error| {
        CliError::usage(format!("{} is no baseline: {error}", Printable(&path.display().to_string())), help)
    })?;
    if baseline.schema != Baseline::SCHEMA {
        let (path, found) = (path.display().to_string(), &baseline.schema);
        return Err(CliError::usage(
            format!("{} is no baseline: its schema is `{}`", Printable(&path), Printable(found)),
            help,
        ));
    }
    // Whatever takes time is slower than no time, and nothing takes less: the machine would be judged by what is wrong with the file.
    if let Some(time) = baseline.times.iter().find(|time| !(time.seconds.is_normal() && time.seconds > 0.0)) {
        let (path, kernel) = (path.display().to_string(), &time.kernel);
        return Err(CliError::usage(
            format!(
                "{} is no baseline: `{}` with m={}: `seconds` is {:e}, expected a time above 0",
                Printable(&path),
                Printable(kernel),
                time.m,
                time.seconds
            ),
            help,
        ));
    }
    Ok(baseline)
}

fn problems(problems: &[Problem], out: &mut dyn Write) -> Result<(), CliError> {
    for Problem { format, kernel, m, what } in problems {
        writeln!(out, "  {format}, m={m}, {kernel}: {what}")?;
    }
    Ok(())
}

fn print(validation: &Validation, out: &mut dyn Write) -> Result<(), CliError> {
    let Validation { accuracy, cross_check, library, speed, memory, .. } = validation;
    writeln!(
        out,
        "{}: {}, {}",
        validation.device,
        Printable(&validation.machine),
        counted(validation.threads, "thread")
    )?;
    for LeftOut { kernel, why, .. } in &validation.quarantined {
        writeln!(out, "  {kernel} was left out, in quarantine: {}", Printable(why))?;
    }
    writeln!(
        out,
        "accuracy     {}: {} with the oracle's bits, {} wrong",
        accuracy.outcome.name(),
        counted(accuracy.right, "product"),
        accuracy.wrong.len()
    )?;
    problems(&accuracy.wrong, out)?;
    for (names, why) in [
        (&accuracy.without_kernel, "no kernel on this device"),
        (&accuracy.without_quantizer, "no weights: nothing quantizes to it"),
    ] {
        if !names.is_empty() {
            writeln!(out, "  {why}: {}", names.join(", "))?;
        }
    }
    writeln!(
        out,
        "cross-check  {}: {} with the bits of {}, {} with others",
        cross_check.outcome.name(),
        counted(cross_check.same, "product"),
        cross_check.against,
        cross_check.different.len()
    )?;
    problems(&cross_check.different, out)?;
    if let Some(file) = &library.library {
        let error = library.largest_error.map_or_else(String::new, |error| format!(" up to {error:.1e}"));
        writeln!(
            out,
            "library      {}: {} that agree with {}{error}, {} that do not",
            library.outcome.name(),
            counted(library.agree, "product"),
            Printable(file),
            library.disagree.len()
        )?;
        problems(&library.disagree, out)?;
        let names: Vec<&str> = library.not_compared.iter().map(|left| left.format.as_str()).collect();
        if !names.is_empty() {
            writeln!(out, "  it has no product of {}", names.join(", "))?;
        }
    }
    match &speed.why {
        Some(why) => {
            writeln!(
                out,
                "speed        {}: {}; {why}",
                speed.outcome.name(),
                counted(speed.times.len(), "time")
            )?;
        }
        None => writeln!(
            out,
            "speed        {}: {} compared with the baseline, {} slower than allowed",
            speed.outcome.name(),
            counted(speed.compared, "time"),
            speed.slower
        )?,
    }
    let mut slowest: Vec<_> =
        speed.times.iter().filter(|time| time.ratio.is_some_and(|ratio| ratio > 1.0)).collect();
    slowest.sort_by(|a, b| b.ratio.unwrap_or(0.0).total_cmp(&a.ratio.unwrap_or(0.0)));
    for time in slowest.iter().take(5) {
        let ratio = time.ratio.unwrap_or(1.0);
        writeln!(
            out,
            "  {} m={}: {} us, {:.2} times the baseline's",
            time.kernel,
            time.m,
            measured(time.seconds * 1e6),
            ratio
        )?;
    }
    match &memory.why {
        Some(why) => writeln!(out, "memory       {}: {why}", memory.outcome.name())?,
        None => writeln!(
            out,
            "memory       {}: {} before, {} at most, {} after {}",
            memory.outcome.name(),
            bytes(memory.before),
            bytes(memory.peak),
            bytes(memory.after),
            counted(memory.rounds, "layer")
        )?,
    }
    if let Some(held) = memory.held_on_device {
        writeln!(out, "  on the device, {} are held that were not before", bytes(held))?;
    }
    let word = if validation.success { "valid" } else { "NOT VALID" };
    writeln!(out, "{word}, in {:.1} s", validation.seconds)?;
    Ok(())
}
