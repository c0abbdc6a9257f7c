//! Histories: what is added is there afterwards, whatever else happens to the file.

use gristmill_ops::record::Watch;
use gristmill_ops::{Added, History, HistoryError, Record, Records, Source, Work};
use rusqlite::Connection;
use std::error::Error;
use std::fs;

fn record(kernel: &str, at: u64, us: f64) -> Record {
    Record {
        source: Source::Bench,
        at,
        machine: "a machine".to_owned(),
        compiler: None,
        kernel: kernel.to_owned(),
        id: format!("id of {kernel}"),
        work: Work::Shape {
            m: 1,
            n: 2,
            k: 3,
            threads: 1,
            memory: "hot".to_owned(),
            quantizes: None,
            input: None,
        },
        us: Some(us),
        rounds_us: vec![us, us + 0.1],
        percent: Some(50.0),
        ceiling: Some("read".to_owned()),
        memory_gb_s: None,
        serves: None,
        load: None,
        program: None,
    }
}

fn records(records: Vec<Record>) -> Records {
    Records { records, ..Records::default() }
}

#[test]
fn what_is_added_is_there_once() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("h");
    let mut first = records(vec![record("b", 2, 1.5), record("a", 1, 2.5)]);
    // Two processes may have looked in the same second.
    first.records.push(record("a", 1, 3.5));
    first.watches.push(Watch {
        at: 3,
        machine: "a machine".to_owned(),
        program: Some("a program".to_owned()),
        gpus: Vec::new(),
        seconds: 1.0,
        sampled_every: 61,
        lost_samples: 0,
        host: None,
        transfers: Vec::new(),
        pools: Vec::new(),
        caches: Vec::new(),
        fallbacks: Vec::new(),
        recoveries: Vec::new(),
    });
    assert_eq!(History::open(&path)?.add(&first)?, Added { new: 3, known: 0 });
    let second = records(vec![record("b", 2, 1.5), record("c", 3, 1.0)]);
    assert_eq!(History::open(&path)?.add(&second)?, Added { new: 1, known: 1 });
    let all = History::open_existing(&path)?.records()?;
    let names: Vec<(&str, Option<f64>)> =
        all.records.iter().map(|record| (record.kernel.as_str(), record.us)).collect();
    assert_eq!(names, [("a", Some(2.5)), ("a", Some(3.5)), ("b", Some(1.5)), ("c", Some(1.0))]);
    assert_eq!(all.watches, first.watches);
    assert_eq!(fs::read_dir(folder.path())?.count(), 1, "nothing else is left behind");
    Ok(())
}

/// Numbers come back to the last bit, so what a store gives is what the store knows.
#[test]
fn what_is_read_is_what_was_added() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    // A parser that rounds twice misses one of nine of these by a bit.
    let all: Vec<Record> = (1..200).map(|at| record("k", at, at as f64 * 0.731_011_7 / 3.0)).collect();
    let mut first = History::open(&folder.path().join("first"))?;
    first.add(&records(all.clone()))?;
    let read = first.records()?;
    assert_eq!(read.records, all);
    assert_eq!(first.add(&read)?, Added { new: 0, known: all.len() });
    Ok(())
}

#[test]
fn many_at_once_lose_nothing() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("h");
    // Each opens the file for itself, as a process does: the lock is the file's.
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let path = path.clone();
            std::thread::spawn(move || -> Result<(), HistoryError> {
                for at in 0..5 {
                    History::open(&path)?.add(&records(vec![record(&format!("k{writer}"), at, 1.0)]))?;
                }
                Ok(())
            })
        })
        .collect();
    for writer in writers {
        writer.join().map_err(|_| "a writer panicked")??;
    }
    assert_eq!(History::open_existing(&path)?.records()?.records.len(), 20);
    Ok(())
}

#[test]
fn foreign_files_and_other_versions_are_refused_and_kept() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("h");
    for bytes in [&b""[..], b"red", b"GGUF and more", b"SQLite format 3\0 and no more of it"] {
        fs::write(&path, bytes)?;
        let error = History::open(&path).err().ok_or("it is no history")?;
        let expected = if bytes.starts_with(b"SQLite") {
            matches!(error, HistoryError::Damaged { .. })
        } else {
            matches!(error, HistoryError::Foreign { .. })
        };
        assert!(expected, "{bytes:?}: {error:?}");
        assert_eq!(fs::read(&path)?, bytes);
    }
    assert!(matches!(History::open(folder.path()), Err(HistoryError::Foreign { .. })));
    assert!(matches!(History::open_existing(&folder.path().join("none")), Err(HistoryError::Missing { .. })));

    // Stores of others, and of a later version.
    let other = folder.path().join("other");
    Connection::open(&other)?.execute_batch("CREATE TABLE records (of_somebody_else)")?;
    let before = fs::read(&other)?;
    assert!(matches!(History::open(&other), Err(HistoryError::Foreign { .. })));
    assert_eq!(fs::read(&other)?, before);
    let later = folder.path().join("later");
    History::open(&later)?.add(&records(vec![record("k", 1, 1.0)]))?;
    Connection::open(&later)?.pragma_update(None, "user_version", 2)?;
    let error = History::open(&later).err().ok_or("another version")?;
    assert!(matches!(&error, HistoryError::OtherVersion { found: 2, .. }), "{error:?}");
    Ok(())
}

#[test]
fn damage_is_an_error_and_no_panic() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("h");
    let all = records((0..300).map(|at| record("k", at, 1.0 + at as f64)).collect());
    History::open(&path)?.add(&all)?;
    let whole = fs::read(&path)?;
    let damaged = folder.path().join("damaged");
    let (mut refused, mut read) = (0, 0);
    let mut look = |bytes: &[u8]| -> Result<(), Box<dyn Error>> {
        fs::write(&damaged, bytes)?;
        match History::open(&damaged).and_then(|history| history.records()) {
            // A number that was changed must not be taken for one that was measured.
            Ok(found) => {
                assert_eq!(found, all);
                read += 1;
            }
            Err(_) => refused += 1,
        }
        Ok(())
    };
    for length in (0..whole.len()).step_by(whole.len() / 40) {
        look(&whole[..length])?;
    }
    for place in 0..240 {
        let mut bytes = whole.clone();
        // The header closely, the rest in strides.
        let at = if place < 120 { place * 3 } else { place * 7919 * 13 % whole.len() };
        bytes[at] ^= 0x55;
        look(&bytes)?;
    }
    assert!(refused > 100 && read > 0, "{refused} refused, {read} read");
    Ok(())
}
