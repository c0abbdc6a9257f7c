//! The records in `benches/record` are read whole: as many measurements as the file has, and nothing of them is lost.

use gristmill_records::committed::{Candle, Formats};
use gristmill_records::daily::with_run;
use gristmill_records::peers::{ModelRun, Models, ProductRun, Products};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::error::Error;
use std::path::Path;

/// The records of a kind, of which there is one at least, read without loss.
fn records<T: DeserializeOwned + Serialize>(kind: &str) -> Result<Vec<T>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/record");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.to_string_lossy().ends_with(&format!("-{kind}.json")) {
            continue;
        }
        let value: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let record: T = gristmill_records::read(value.clone())?;
        // Both are long.
        assert!(serde_json::to_value(&record)? == value, "{} lost something", path.display());
        found.push(record);
    }
    assert!(!found.is_empty(), "no record of {kind}");
    Ok(found)
}

#[test]
fn records_of_formats_are_read_and_written_without_loss() -> Result<(), Box<dyn Error>> {
    for record in records::<Formats>("formats")? {
        assert!(record.records.len() > 100, "{} of {}", record.records.len(), record.date);
        record.records.iter().try_for_each(gristmill_records::bench::Measurement::check)?;
    }
    Ok(())
}

/// Every type that candle's files and ours have in common, for one token and for many, on each way to build it.
#[test]
fn records_of_candle_are_read_and_written_without_loss() -> Result<(), Box<dyn Error>> {
    for record in records::<Candle>("candle")? {
        assert!(!record.candle.is_empty());
        for run in &record.candle {
            for m in [1, 32, 512] {
                let types = run.cells.iter().filter(|cell| cell.m == m && cell.theirs.is_some()).count();
                assert_eq!(types, 10, "{}, m = {m}", run.command);
            }
            for cell in &run.cells {
                assert!(cell.our_gmac_s > 0.0 && cell.their_gmac_s > 0.0 && cell.ratio > 0.0, "{cell:?}");
                assert!(cell.theirs.is_none() || cell.nmse.is_some(), "{cell:?}");
                assert!(cell.nmse.is_none_or(|nmse| (0.0..3e-4).contains(&nmse)), "{cell:?}");
            }
        }
    }
    Ok(())
}

/// Ratios that say of themselves how far they spread hold their median between both ends.
#[test]
fn records_of_products_beside_peers_are_read_and_written_without_loss() -> Result<(), Box<dyn Error>> {
    for record in records::<Products>("peers")? {
        assert!(!record.runs.is_empty());
        for run in &record.runs {
            assert!(run.cells.len() > 20, "{} cells of {}", run.cells.len(), run.peer);
            for cell in &run.cells {
                let least = cell.least_speedup.unwrap_or(cell.speedup);
                let most = cell.most_speedup.unwrap_or(cell.speedup);
                assert!(0.0 < least && least <= cell.speedup && cell.speedup <= most, "{cell:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn records_of_models_beside_peers_are_read_and_written_without_loss() -> Result<(), Box<dyn Error>> {
    for record in records::<Models>("models")? {
        for speed in record.models.iter().flat_map(|run| &run.speeds) {
            assert!(0.0 < speed.min && speed.min <= speed.median && speed.median <= speed.max, "{speed:?}");
        }
    }
    Ok(())
}

/// A run takes the place of the one that it repeats, and says its day where it is another than the record's. A record of another machine is
/// not replaced by it.
#[test]
fn a_run_is_added_to_a_record_of_its_machine() -> Result<(), Box<dyn Error>> {
    let mut there = records::<Models>("models")?.swap_remove(0);
    let count = there.models.len();
    let fresh = Models { models: Vec::new(), ..there.clone() };
    let again = there.models[0].clone();
    let mut other = again.clone();
    other.model.push_str("-2");
    let with = |there: Option<&Models>, run: &ModelRun| with_run(there.cloned(), fresh.clone(), run.clone());

    let replaced = with(Some(&there), &again).ok_or("refused")?;
    assert_eq!(replaced.models.len(), count);
    assert_eq!(replaced.models.last(), Some(&again));
    let more = with(Some(&there), &other).ok_or("refused")?;
    assert_eq!(more.models[..count], there.models[..]);
    assert_eq!(more.models.len(), count + 1);
    assert_eq!(with(None, &again).ok_or("refused")?.models, std::slice::from_ref(&again));

    there.date.push('1');
    let later = with(Some(&there), &other).ok_or("refused")?;
    assert_eq!(later.models[..count], there.models[..]);
    assert_eq!(later.models[count].date.as_ref(), Some(&fresh.date));
    let candle = Candle { date: there.date.clone(), machine: there.machine.clone(), candle: Vec::new() };
    let of_candle = records::<Candle>("candle")?.swap_remove(0).candle.swap_remove(0);
    assert!(
        with_run(Some(candle.clone()), Candle { date: fresh.date.clone(), ..candle }, of_candle).is_none()
    );
    there.machine.cores += 1;
    assert!(with(Some(&there), &again).is_none());
    Ok(())
}

/// Products of one library stay beside those of another that were measured on another day, which they say.
#[test]
fn products_of_another_day_say_that_day() -> Result<(), Box<dyn Error>> {
    let there = records::<Products>("peers")?.into_iter().find(|record| record.runs.len() > 1);
    let there = there.ok_or("a record of several runs")?;
    let run = ProductRun { date: None, ..there.runs[0].clone() };
    let fresh = Products { date: "2027-01-01".to_owned(), runs: Vec::new(), ..there.clone() };
    let later = with_run(Some(there.clone()), fresh.clone(), run.clone()).ok_or("refused")?;
    assert_eq!((&later.date, later.runs.len()), (&there.date, there.runs.len()));
    assert_eq!(later.runs[..later.runs.len() - 1], there.runs[1..]);
    let dated = ProductRun { date: Some(fresh.date.clone()), ..run.clone() };
    assert_eq!(later.runs.last(), Some(&dated));
    let mut elsewhere = fresh.clone();
    elsewhere.machine.cores += 1;
    assert!(with_run(Some(there), elsewhere, run).is_none());
    Ok(())
}
