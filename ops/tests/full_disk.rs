//! A disk that is full, for which a limit on the size of files stands in. In a process of its own, whose limit it is.
#![cfg(unix)]

use gristmill_ops::{History, HistoryError, Record, Records, Source, Work};

fn limit(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit is a local; SIG_IGN is no function that could be called at a wrong time.
    let set = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn records(from: u64, count: u64) -> Records {
    let record = |at| Record {
        source: Source::Bench,
        at,
        machine: "a machine".to_owned(),
        compiler: None,
        kernel: "k".to_owned(),
        id: "an id".to_owned(),
        work: Work::Class { tokens: (1, None), weights: (0, None), threads: None },
        us: Some(1.0),
        rounds_us: vec![1.0; 100],
        percent: None,
        ceiling: None,
        memory_gb_s: None,
        serves: None,
        load: None,
        program: None,
    };
    Records { records: (from..from + count).map(record).collect(), ..Records::default() }
}

#[test]
fn what_was_there_before_is_kept() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("h");
    History::open(&path)?.add(&records(0, 10))?;
    limit(std::fs::metadata(&path)?.len());
    let error = History::open(&path)?.add(&records(100, 20_000)).err().ok_or("there is no room")?;
    assert!(matches!(error, HistoryError::File { .. }), "{error:?}");
    assert_eq!(History::open_existing(&path)?.records()?, records(0, 10));
    let error =
        History::open(&folder.path().join("new")).and_then(|mut new| new.add(&records(0, 20_000))).err();
    assert!(matches!(error, Some(HistoryError::File { .. })), "{error:?}");
    limit(libc::RLIM_INFINITY);
    History::open(&path)?.add(&records(100, 20_000))?;
    assert_eq!(History::open_existing(&path)?.records()?.records.len(), 20_010);
    Ok(())
}
