//! JSON on standard output.

use super::error::CliError;
use gristmill::text::printable_json;
use std::io::Write;

/// Writes a JSON value with a newline.
pub(super) fn print_json(out: &mut dyn Write, value: &serde_json::Value) -> Result<(), CliError> {
    let json = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    writeln!(out, "{}", printable_json(&json))?;
    Ok(())
}
