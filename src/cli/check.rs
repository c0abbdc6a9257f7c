//! `gristmill check`: whether specs can be compiled.

use super::error::{CliError, Outcome};
use super::specs;
use super::table::counted;
use gristmill_codegen::Options;
use gristmill_spec::{Severity, check, render};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Check spec files and folders: every mistake, where it is, and what would be right
///
/// Specs may refer to those in this binary. Exits with 1 if there are errors.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// TOML files, or folders with formats/, packings/, kernels/, activations/, codebooks/
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let (sources, read) = specs::with_built_in(&arguments.paths)?;
    let report = check(&sources);
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    write!(out, "{}", render(&sources, &report.diagnostics, color))?;
    let Some(set) = report.set else { return Ok(Outcome::Failed) };
    // Specs that are right may still ask for sums that can't be proven exact.
    if let Err(errors) = gristmill_codegen::compile(&set, &sources, &Options::default()) {
        for error in &errors {
            writeln!(out, "error: {error}")?;
        }
        writeln!(out, "found {}", counted(errors.len(), "error"))?;
        return Ok(Outcome::Failed);
    }
    let warnings = report.diagnostics.iter().filter(|d| d.severity == Severity::Warning).count();
    let warned = if warnings > 0 { format!(", {}", counted(warnings, "warning")) } else { String::new() };
    writeln!(
        out,
        "checked {}: no errors{warned} (with those of this build: {} and {})",
        counted(read, "file"),
        counted(set.formats.len(), "format"),
        counted(set.kernels.len(), "kernel file"),
    )?;
    Ok(Outcome::Yes)
}
