//! Which tests a run takes: a representative choice in some minutes, or everything, with `GRISTMILL_TESTS=all`.

use std::io::Write as _;

/// Whether this run takes everything.
pub fn everything() -> bool {
    match std::env::var("GRISTMILL_TESTS") {
        Err(std::env::VarError::NotPresent) => false,
        Ok(value) if value.is_empty() => false,
        Ok(value) if value == "all" => true,
        other => panic!("GRISTMILL_TESTS can be `all` or unset, and is {other:?}"),
    }
}

/// Whether `what` is left to runs of everything; if so, says it.
pub fn left_out(what: &str) -> bool {
    if everything() {
        return false;
    }
    // Not by a macro, whose output the test harness keeps to itself.
    let told = writeln!(std::io::stderr(), "LEFT OUT: {what}; GRISTMILL_TESTS=all runs it");
    told.expect("stderr is there");
    true
}
