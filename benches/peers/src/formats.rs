//! A record of every format: what `gristmill bench --json` prints, with date and machine.

use crate::error::Error;
use crate::record::{date, load, machine, versions, write};
use gristmill_records::bench::Measurement;
use gristmill_records::committed::Formats;
use std::path::Path;
use std::process::Command;

/// Runs the command and writes the record.
pub fn run(gristmill: &Path, record: &Path, arguments: &[String]) -> Result<(), Error> {
    let before = load();
    let output = Command::new(gristmill)
        .args(["bench", "--json"])
        .args(arguments)
        .output()
        .map_err(Error::file("run", gristmill))?;
    let command = format!("gristmill bench --json {}", arguments.join(" "));
    if !output.status.success() {
        return Err(Error::Command(command, String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let records: Vec<Measurement> = serde_json::from_slice(&output.stdout)
        .map_err(|source| Error::Record { path: gristmill.to_owned(), source })?;
    let whole = Formats {
        date: date(),
        machine: machine(),
        command: command.trim_end().to_owned(),
        versions: versions(),
        load: [before, load()],
        records,
    };
    write(record, &whole)
}
