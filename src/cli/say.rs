//! Lines to standard error.

use std::fmt::Display;
use std::io::Write as _;

/// A line to standard error. That it can't be written changes nothing of what a command answers.
pub fn say(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}
