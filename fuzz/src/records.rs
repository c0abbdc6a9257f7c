//! What `gristmill report` and `gristmill history` are given: JSON of `bench`, snapshots, and histories, which are databases.

use crate::command;
use crate::seeds::{Seed, files};
use gristmill::REGISTRY;
use gristmill_ops::regression::{Test, compare, series};
use gristmill_ops::report::Report;
use gristmill_ops::{History, Records, read};
use serde_json::Value;
use std::path::Path;

/// Never panics; what is read has a report.
pub fn run(data: &[u8]) {
    let path = command::file(data);
    // A database may have left these beside it, of an input before.
    for end in ["-journal", "-shm", "-wal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let _ = std::fs::remove_file(name);
    }
    match read::read(path, &REGISTRY, None) {
        Ok(records) => report(&records),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn report(records: &Records) {
    for verdict in compare(&series(&records.records), Test::default()) {
        assert!((0.0..=1.0).contains(&verdict.p), "{verdict:?}");
    }
    let report = Report::of(records);
    assert!(!report.to_text().is_empty());
    assert!(report.to_html().is_ok_and(|page| page.contains("</html>")));
}

/// Measurements of each record of the repository, a snapshot, and a history that holds them.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = files("tests/data/operations");
    for (name, text) in files("benches/record") {
        let Ok(record) = serde_json::from_slice::<Value>(&text) else { continue };
        let lines: Vec<&Value> = record["records"].as_array().into_iter().flatten().take(3).collect();
        if !lines.is_empty() {
            seeds.push((name, serde_json::to_vec(&lines).expect("values")));
        }
    }
    let folder = tempfile::tempdir().expect("a folder for files of some kilobytes");
    let path = folder.path().join("history");
    let history = kept(folder.path(), &path, &seeds).expect("what was measured can be kept");
    seeds.push(("history".to_owned(), history));
    seeds
}

/// A history with what can be read of some files.
fn kept(folder: &Path, path: &Path, files: &[Seed]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut history = History::open(path)?;
    for (_, bytes) in files {
        let file = folder.join("file");
        std::fs::write(&file, bytes)?;
        if let Ok(records) = read::read(&file, &REGISTRY, None) {
            history.add(&records)?;
        }
    }
    drop(history);
    Ok(std::fs::read(path)?)
}
