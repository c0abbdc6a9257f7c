//! The records in `benches/record` are read whole: as many measurements as the file has, and nothing of them is lost.

use gristmill_records::committed::Formats;
use serde_json::Value;
use std::path::Path;

#[test]
fn records_of_formats_are_read_and_written_without_loss() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/record");
    let mut found = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.to_string_lossy().ends_with("-formats.json") {
            continue;
        }
        let value: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let record: Formats = gristmill_records::read(value.clone())?;
        assert!(record.records.len() > 100, "{}", path.display());
        record.records.iter().try_for_each(gristmill_records::bench::Measurement::check)?;
        // Both are long.
        assert!(serde_json::to_value(&record)? == value, "{} lost something", path.display());
        found += 1;
    }
    assert!(found > 0, "no record of formats");
    Ok(())
}
