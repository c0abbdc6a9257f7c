//! `gristmill check`: whether specs can be compiled.

use super::error::{CliError, Outcome};
use super::specs;
use super::table::counted;
use gristmill_codegen::builder::BuildError;
use gristmill_codegen::{Error, by_message};
use gristmill_spec::{Severity, check, render};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Check spec files and folders: every mistake, where it is, and what would be right
///
/// Specs may refer to those in this binary. Exits with 1 if there are errors.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// TOML files, or folders with formats/, packings/, imports/, kernels/, activations/, codebooks/
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let (sources, read) = specs::with_built_in(&arguments.paths)?;
    let mut report = check(&sources);
    // Specs that are right may still ask for what no exact loop can be written for.
    let mut refused = Vec::new();
    for error in report.set.iter().flat_map(gristmill_codegen::refusals) {
        match error {
            Error::Spec(diagnostic) => refused.push(*diagnostic),
            defect @ (Error::Passed { .. } | Error::Emitted { .. }) => {
                return Err(BuildError::Compiler(defect).into());
            }
        }
    }
    report.diagnostics.extend(by_message(refused));
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    write!(out, "{}", render(&sources, &report.diagnostics, color))?;
    let errors = report.diagnostics.iter().any(|d| d.severity == Severity::Error);
    let Some(set) = report.set.filter(|_| !errors) else { return Ok(Outcome::Failed) };
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
