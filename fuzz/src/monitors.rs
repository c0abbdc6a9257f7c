//! Snapshots of monitors: what `gristmill top` and a scrape show of one, and of two in turn.
//!
//! An input is the text of a snapshot, or of two with a NUL byte between them, which JSON has none of.

use crate::command;
use crate::seeds::{Seed, files};
use gristmill_ops::report::Report;
use gristmill_ops::{Live, Records, Snapshot, read};
use serde_json::Value;

/// Never panics; what is read is written as the same, and lines of a view are as many as it says.
pub fn run(data: &[u8]) {
    let mut texts = data.splitn(2, |byte| *byte == 0);
    let before = texts.next().and_then(snapshot);
    let now = texts.next().and_then(snapshot);
    let Some(newest) = now.as_ref().or(before.as_ref()) else { return };
    let live = Live::between(before.as_ref(), newest);
    assert!(live.rows.len() <= newest.kernels.len() && live.to_text(20).lines().count() > 1);
    assert!(newest.to_prometheus().ends_with('\n'));
    let mut all = Records::default();
    for seen in [before, now].into_iter().flatten() {
        let records = Records::of_snapshot(seen);
        all.records.extend(records.records);
        all.watches.extend(records.watches);
    }
    assert!(!Report::of(&all).to_text().is_empty());
}

fn snapshot(text: &[u8]) -> Option<Snapshot> {
    match read::snapshot(command::file(text)) {
        Ok(seen) => {
            let again = read::snapshot(command::file(seen.to_json().as_bytes())).expect("what was written");
            assert_eq!(again, seen);
            Some(seen)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// The snapshot of the pages: alone, in turn with a later one, with one of another program, and with one that has a row twice.
pub fn seeds() -> Vec<Seed> {
    let first = files("tests/data/operations").into_iter().find(|(name, _)| name == "monitor.json");
    let first = String::from_utf8(first.expect("a file of the pages").1).expect("JSON");
    let later = first.replace("\"launches\": ", "\"launches\": 1").replace("\"seconds\": ", "\"seconds\": 1");
    let other = first.replace("gristmill-kernels", "another");
    // Fuzzers seldom repeat what is as long as a row.
    let mut twice: Value = serde_json::from_str(&first).expect("JSON");
    let row = twice["kernels"][0].clone();
    twice["kernels"][0]["launches"] = 0.into();
    twice["kernels"].as_array_mut().expect("rows").push(row);
    let both = |second: &str| format!("{first}\0{second}");
    let seeds = [
        ("later", both(&later)),
        ("other", both(&other)),
        ("twice", both(&twice.to_string())),
        ("one", first),
    ];
    seeds.into_iter().map(|(name, text)| (name.to_owned(), text.into_bytes())).collect()
}
