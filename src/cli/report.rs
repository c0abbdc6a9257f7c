//! `gristmill report`: what an operator should know of measurements.

use super::error::{CliError, Outcome};
use super::json::print_json;
use super::output::{self, Files};
use super::say::say;
use gristmill::text::PrintableLines;
use gristmill::{REGISTRY, kernels};
use gristmill_ops::Records;
use gristmill_ops::read::read;
use gristmill_ops::report::Report;
use std::io::Write;
use std::path::PathBuf;

/// Say what measurements show: which kernels cost most, trends, what is unusual, what to do
///
/// Each recommendation cites the numbers that it follows from. What was not measured is named.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Histories, and what `gristmill bench --json`, `gristmill tune` and `gristmill run --monitor` wrote
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write one page to this file, with plots; it needs no other file and no network
    #[arg(long, value_name = "PAGE.html")]
    html: Option<PathBuf>,
    /// Print JSON: one object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// What is read and what is written.
    pub fn files(&self) -> Files<'_> {
        Files::default().reads(&self.files).writes(&self.html)
    }
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let mut all = Records::default();
    for path in &arguments.files {
        let records = read(path, &REGISTRY, Some(kernels::COMPILER))?;
        all.records.extend(records.records);
        all.watches.extend(records.watches);
        for why in records.set_aside.iter().take(5) {
            say(PrintableLines(&format!("{}: set aside: {why}", path.display())));
        }
    }
    let report = Report::of(&all);
    let printed = if arguments.json {
        print_json(out, &report)
    } else {
        write!(out, "{}", PrintableLines(&report.to_text())).map_err(CliError::from)
    };
    if let Some(page) = &arguments.html {
        let html = report
            .to_html()
            .map_err(|error| CliError::usage(format!("the page can't be made: {error}"), "report this"))?;
        output::write(page, html.as_bytes())?;
    }
    printed.map(|()| Outcome::Yes)
}
