//! What libFuzzer says on stderr, in a line.

/// Lines of a find that are shown.
const SHOWN: usize = 25;

fn after<'t>(text: &'t str, start: &str) -> Option<&'t str> {
    text.lines().rev().find_map(|line| line.trim().strip_prefix(start)).map(str::trim)
}

/// Inputs, speed and coverage of a run.
pub fn summary(text: &str) -> String {
    let number = |name: &str| after(text, &format!("stat::{name}:")).unwrap_or("?").to_owned();
    // `#4096 pulse  cov: 4321 ft: ...`, the last of them.
    let coverage = text.lines().rev().find_map(|line| line.split_once(" cov: ")?.1.split(' ').next());
    format!(
        "{} inputs, {} a second, {} places of the code reached, {} inputs kept, at most {} MiB",
        number("number_of_executed_units"),
        number("average_exec_per_sec"),
        coverage.unwrap_or("?"),
        number("new_units_added"),
        number("peak_rss_mb"),
    )
}

/// The file that the input of a find was kept in.
pub fn artifact(text: &str) -> Option<&str> {
    text.lines().rev().find_map(|line| line.split_once("Test unit written to "))?.1.split_whitespace().next()
}

/// What was said of a find: from the panic or the sanitizer's report on.
pub fn last_words(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let starts = ["panicked at", "ERROR: ", "memory allocation of", "SUMMARY: "];
    let first = lines.iter().position(|line| starts.iter().any(|start| line.contains(start)));
    let first = first.unwrap_or(lines.len().saturating_sub(SHOWN));
    lines.iter().skip(first).take(SHOWN).map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}
