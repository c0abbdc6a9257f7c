//! What a differential run prints.

use super::super::error::{CliError, Outcome};
use super::super::json::print_json;
use super::super::list::name_of;
use super::super::table::{Side, Table, counted};
use super::arguments::Arguments;
use super::guard;
use super::session::{Report, Session};
use gristmill::REGISTRY;
use gristmill::registry::Entry;
use gristmill_records::verify::{Kernel, Skipped, Verification};
use std::io::Write;

/// The variable that turns skips into failures.
const NO_SKIP: &str = "GRISTMILL_NO_SKIP";

type Line<'l> = (&'static Entry, &'l Report);

fn status(report: &Report) -> &'static str {
    match report {
        Report { skipped: Some(_), .. } => "skipped",
        Report { problem: Some(_), .. } => "wrong",
        Report { cases: 0, .. } => "not run",
        Report { .. } => "ok",
    }
}

fn kernel((entry, report): &Line<'_>) -> Kernel {
    Kernel {
        kernel: entry.name.to_owned(),
        id: entry.id.to_string(),
        status: status(report).to_owned(),
        cases: report.cases as u64,
        nmse: report.nmse,
        skipped: report.skipped.clone(),
        problem: report.problem.as_ref().map(ToString::to_string),
    }
}

/// Prints the outcome for the kernels that were asked for.
///
/// # Errors
/// When `out` refuses.
pub fn report(
    arguments: &Arguments,
    session: &Session<'_>,
    out: &mut dyn Write,
) -> Result<Outcome, CliError> {
    let no_skip = std::env::var_os(NO_SKIP).is_some_and(|value| !value.is_empty() && value != "0");
    let all: Vec<Line<'_>> =
        REGISTRY.entries.iter().zip(&session.reports).filter(|(_, report)| report.selected).collect();
    let ran = all.iter().filter(|(_, report)| report.cases > 0).count();
    let wrong: Vec<&Line<'_>> = all.iter().filter(|(_, report)| report.problem.is_some()).collect();
    let mut reasons: Vec<(String, usize)> = Vec::new();
    for (_, report) in all.iter().filter(|(_, report)| report.cases == 0) {
        let reason = report.skipped.clone().unwrap_or_else(|| "no shape of this run fits it".to_owned());
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    let skipped: usize = reasons.iter().map(|(_, count)| count).sum();
    let failed = !wrong.is_empty() || (no_skip && skipped > 0);
    let outcome = match (failed, ran) {
        (true, _) => Outcome::Failed,
        // Of what was selected nothing was checked, which must not look like a check that passed.
        (false, 0) => Outcome::NoKernel,
        (false, _) => Outcome::Yes,
    };
    let digest = format!("{:016x}", session.digest.get());
    if arguments.json {
        let verification = Verification {
            kernels: all.iter().map(kernel).collect(),
            ran: ran as u64,
            of: all.len() as u64,
            skipped: reasons
                .into_iter()
                .map(|(reason, count)| Skipped { reason, kernels: count as u64 })
                .collect(),
            wrong: wrong.len() as u64,
            guard_pages: guard::GUARDS,
            digest,
            quick: session.quick,
        };
        print_json(out, &verification)?;
        return Ok(outcome);
    }
    if arguments.kernel.is_some() || arguments.format.is_some() {
        by_kernel(&all).print(out)?;
    } else {
        by_format(&all).print(out)?;
    }
    writeln!(out)?;
    for (entry, report) in &wrong {
        if let Some(problem) = &report.problem {
            writeln!(out, "wrong: {}\n  {problem}\n  described in {}", entry.name, entry.source)?;
        }
    }
    let words: Vec<String> = reasons.iter().map(|(reason, count)| format!("{count}: {reason}")).collect();
    let skips =
        if skipped == 0 { String::new() } else { format!("; skipped {skipped} ({})", words.join("; ")) };
    writeln!(out, "ran {ran} of {}{skips}", counted(all.len(), "kernel"))?;
    let guards =
        if guard::GUARDS { "between guard pages" } else { "without guard pages (not on this system)" };
    writeln!(out, "{} wrong; every buffer {guards}", wrong.len())?;
    let scope = match (arguments.quick, arguments.format.is_some() || arguments.kernel.is_some()) {
        (true, true) => "of this selection, quick",
        (false, true) => "of this selection",
        (true, false) => "quick; the same on every machine for these formats",
        (false, false) => "the same on every machine for these formats",
    };
    writeln!(out, "digest of integer results: {digest} ({scope})")?;
    if no_skip && skipped > 0 {
        writeln!(out, "failed: {NO_SKIP} is set, and {} did not run", counted(skipped, "kernel"))?;
    }
    Ok(outcome)
}

fn accuracy(nmse: Option<f64>) -> String {
    nmse.map_or_else(|| "exact".to_owned(), |worst| format!("NMSE {worst:.0e}"))
}

fn by_kernel(all: &[Line<'_>]) -> Table {
    let columns =
        [("kernel", Side::Left), ("cases", Side::Right), ("result", Side::Left), ("accuracy", Side::Left)];
    let mut table = Table::new(&columns);
    for (entry, report) in all {
        let accuracy = if report.cases > 0 { accuracy(report.nmse) } else { String::new() };
        table.row([entry.name.to_owned(), report.cases.to_string(), status(report).to_owned(), accuracy]);
    }
    table
}

fn by_format(all: &[Line<'_>]) -> Table {
    let mut table = Table::new(&[
        ("format", Side::Left),
        ("op", Side::Left),
        ("kernels", Side::Right),
        ("ran", Side::Right),
        ("cases", Side::Right),
        ("result", Side::Left),
        ("accuracy", Side::Left),
    ]);
    let mut rest = all;
    while let Some((first, _)) = rest.first() {
        let same = |(entry, _): &&Line<'_>| entry.op == first.op && entry.format == first.format;
        let (group, after) = rest.split_at(rest.iter().take_while(same).count());
        rest = after;
        let ran = group.iter().filter(|(_, report)| report.cases > 0).count();
        let wrong = group.iter().filter(|(_, report)| report.problem.is_some()).count();
        let worst = group.iter().filter_map(|(_, report)| report.nmse).reduce(f64::max);
        let result = match (wrong, ran) {
            (0, 0) => "not run".to_owned(),
            (0, _) => "ok".to_owned(),
            (wrong, _) => format!("{wrong} wrong"),
        };
        table.row([
            name_of(first).to_owned(),
            first.op.name().to_owned(),
            group.len().to_string(),
            ran.to_string(),
            group.iter().map(|(_, report)| report.cases).sum::<usize>().to_string(),
            result,
            if ran > 0 { accuracy(worst) } else { String::new() },
        ]);
    }
    table
}
