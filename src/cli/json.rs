//! JSON on standard output.

use super::error::CliError;
use gristmill::text::printable_json;
use serde::Serialize;
use std::io::Write;

/// Writes what has a JSON form, with a newline. Fields come in the order of their names, whichever type they are of.
pub(super) fn print_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CliError> {
    let value = serde_json::to_value(value).map_err(|error| CliError::Output(error.into()))?;
    let json = serde_json::to_string_pretty(&value).map_err(|error| CliError::Output(error.into()))?;
    writeln!(out, "{}", printable_json(&json))?;
    Ok(())
}
