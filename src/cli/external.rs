//! C++ backends in `list` and `explain`: never gristmill's, each with its own device and reason.

use super::error::CliError;
use super::table::{Side, Table};
use gristmill::registry::FormatInfo;
use gristmill::text::Printable;
use gristmill_probe::backend::{External, State, externals};
use gristmill_probe::families::Device;
use gristmill_probe::{Search, Target, printable};
use serde::Serialize;
use std::io::Write;

/// What this machine has, by the usual variables and places.
pub fn found() -> Vec<External> {
    externals(&Search::from_env(Target::host()).run())
}

/// The function that shows that a backend computes products of a format.
fn product<'e>(external: &'e External, format: &FormatInfo) -> Option<&'e str> {
    external.product(format.name, format.gguf)
}

/// Why a backend is or is not there, and for a format, whether it computes with it.
fn reason(external: &External, format: Option<&FormatInfo>) -> String {
    // Each name for itself: a list of them may be long, and only names are cut.
    let list = |files: &[String]| files.iter().map(|file| printable(file)).collect::<Vec<_>>().join(", ");
    match (&external.state, format) {
        (State::Absent { reason, .. }, _) => reason.clone(),
        (State::Found { files, shown_by }, None) => format!("{} ({})", list(files), printable(shown_by)),
        (State::Found { files, .. }, Some(format)) => match product(external, format) {
            Some(function) => format!("{} ({})", list(files), printable(function)),
            None => format!("no products of `{}` in {}", format.name, list(files)),
        },
    }
}

/// Whether it can be used, for a format if one is given.
fn usable(external: &External, format: Option<&FormatInfo>) -> bool {
    external.is_found() && format.is_none_or(|format| product(external, format).is_some())
}

/// What would help, where something would.
fn help(external: &External) -> Option<&'static str> {
    match &external.state {
        State::Absent { help, .. } => Some(help),
        State::Found { .. } => None,
    }
}

/// A table of the backends; for one format, whether they compute with it.
pub fn print(found: &[External], format: Option<&FormatInfo>, out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("C++ backend", Side::Left),
        ("device", Side::Left),
        ("there", Side::Left),
        ("by", Side::Left),
    ]);
    for external in found {
        table.row([
            external.project.to_string(),
            external.device.to_string(),
            if usable(external, format) { "yes" } else { "no" }.to_owned(),
            reason(external, format),
        ]);
    }
    table.print(out)?;
    writeln!(out, "these are not gristmill's kernels: no decision chooses them, and no receipt names them")?;
    Ok(())
}

/// Lines for `explain`: backends that compute on the device that was asked for.
pub fn explain(
    found: &[External],
    format: &FormatInfo,
    device: Device,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    writeln!(out, "C++ backends, which are not gristmill's and are never chosen:")?;
    for external in found.iter().filter(|external| external.device == device) {
        let there = if usable(external, Some(format)) { "there" } else { "not there" };
        writeln!(
            out,
            "  - {} on {}: {there}: {}",
            external.project,
            external.device,
            Printable(&reason(external, Some(format)))
        )?;
        if let Some(help) = help(external) {
            writeln!(out, "    help: {help}")?;
        }
    }
    Ok(())
}

/// A backend in JSON; for one format, whether it computes with it.
#[derive(Serialize)]
pub struct Backend {
    backend: String,
    device: String,
    usable: bool,
    files: Vec<String>,
    reason: String,
    help: Option<&'static str>,
}

/// The backends as JSON.
pub fn backends(found: &[External], format: Option<&FormatInfo>) -> Vec<Backend> {
    let one = |external: &External| {
        let files = match &external.state {
            State::Found { files, .. } => files.clone(),
            State::Absent { .. } => Vec::new(),
        };
        Backend {
            backend: external.project.to_string(),
            device: external.device.to_string(),
            usable: usable(external, format),
            files,
            reason: reason(external, format),
            help: help(external),
        }
    };
    found.iter().map(one).collect()
}
