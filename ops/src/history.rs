//! Records of one or more machines in one file: a SQLite database.
//!
//! A record is kept under its kernel's identity, machine, compiler and time; a record that is there already is not kept twice. What
//! is added is added as a whole, on the disk, or not at all. Processes wait for each other.
//!
//! SQLite has no checksums of its pages. Records stand in the file twice, in their table and in the index that keeps them apart, and
//! opening a history compares the two.

use crate::beside::beside;
use crate::record::Records;
use crate::regular::{self, NOT_REGULAR};
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, params};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What tells our files from other programs' databases: `grml`.
const APPLICATION: i64 = 0x6772_6d6c;
/// The version of what is kept.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE records (id TEXT NOT NULL, machine TEXT NOT NULL, compiler TEXT NOT NULL, at INTEGER NOT NULL,
        json TEXT NOT NULL, UNIQUE (id, machine, compiler, at, json)) STRICT;
    CREATE TABLE watches (machine TEXT NOT NULL, at INTEGER NOT NULL, json TEXT NOT NULL,
        UNIQUE (machine, at, json)) STRICT;";

/// How long is waited for other processes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a history can't be read or added to. What was in it stays.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file can't be read or written; a full disk is one reason.
    #[error(
        "can't use the history `{}`: {source}\n  help: what was in it before is kept; make room or give another path, and \
         add again",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not there.
    #[error("there is no history `{}`\n  help: `gristmill history --add FILE` makes one", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error("the history `{}` was in use by another process for {} seconds\n  help: try again when that has ended", path.display(), PATIENCE.as_secs())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// It is no history.
    #[error("`{}` is no history: {what}\n  help: name another file; this one was not changed", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// It is one of another version of gristmill.
    #[error("`{}` is a history of another version: {found}, and this build reads {VERSION}\n  help: use the gristmill that wrote it", path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// It was one.
    #[error(
        "the history `{}` is damaged: {what}\n  help: put a copy of it in its place, or move it away and add records again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
}

/// How many records were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// New ones.
    pub new: usize,
    /// Those that were there already.
    pub known: usize,
}

/// Records in a file.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    connection: Connection,
}

impl History {
    /// What a history's file begins with.
    pub const MAGIC: &'static [u8; 16] = b"SQLite format 3\0";

    /// Opens a history, or makes an empty one.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn open(path: &Path) -> Result<History, HistoryError> {
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
            Ok(_) | Err(_) => {}
        }
        History::open_existing(path)
    }

    /// Opens a history.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn open_existing(path: &Path) -> Result<History, HistoryError> {
        let foreign = |what: &str| HistoryError::Foreign { path: path.to_owned(), what: what.to_owned() };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => HistoryError::Missing { path: path.to_owned() },
            _ => HistoryError::File { path: path.to_owned(), source },
        };
        if regular::metadata(path).map_err(failed)?.is_none() {
            return Err(foreign(NOT_REGULAR));
        }
        let mut file = File::open(path).map_err(failed)?;
        let mut head = [0; 16];
        match file.read_exact(&mut head) {
            Ok(()) if &head == History::MAGIC => {}
            Ok(()) => return Err(foreign("it does not begin as one")),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(foreign("it is empty or nearly so"));
            }
            Err(error) => return Err(failed(error)),
        }
        drop(file);
        let connection = connect(path).map_err(|error| of(path, error))?;
        let number = |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
        if number("application_id").map_err(|error| of(path, error))? != APPLICATION {
            return Err(foreign("it is a database of another program"));
        }
        let found = number("user_version").map_err(|error| of(path, error))?;
        if found != VERSION {
            return Err(HistoryError::OtherVersion { path: path.to_owned(), found });
        }
        let check: String = connection
            .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
            .map_err(|error| of(path, error))?;
        if check != "ok" {
            return Err(HistoryError::Damaged { path: path.to_owned(), what: check });
        }
        Ok(History { path: path.to_owned(), connection })
    }

    /// Adds records, all of them or none.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn add(&mut self, records: &Records) -> Result<Added, HistoryError> {
        write(&mut self.connection, records).map_err(|error| of(&self.path, error))
    }

    /// All records, by time.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn records(&self) -> Result<Records, HistoryError> {
        let records = self.all("SELECT json FROM records ORDER BY at, rowid")?;
        let watches = self.all("SELECT json FROM watches ORDER BY at, rowid")?;
        Ok(Records { records, watches, set_aside: Vec::new() })
    }

    fn all<T: DeserializeOwned>(&self, query: &str) -> Result<Vec<T>, HistoryError> {
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection.prepare(query)?.query_map([], |row| row.get(0))?.collect()
        };
        let texts = read().map_err(|error| of(&self.path, error))?;
        let parsed = texts.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>();
        parsed.map_err(|error| HistoryError::Damaged { path: self.path.clone(), what: error.to_string() })
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // A path is a path, and no URI that says more.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    Ok(connection)
}

fn write(connection: &mut Connection, records: &Records) -> rusqlite::Result<Added> {
    let mut added = Added::default();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut insert = transaction.prepare("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?)")?;
        for record in &records.records {
            let compiler = record.compiler.as_deref().unwrap_or("");
            let rows = insert.execute(params![
                record.id,
                record.machine,
                compiler,
                record.at as i64,
                json(record)
            ])?;
            added.new += rows;
            added.known += 1 - rows.min(1);
        }
        let mut insert = transaction.prepare("INSERT OR IGNORE INTO watches VALUES (?, ?, ?)")?;
        for watch in &records.watches {
            insert.execute(params![watch.machine, watch.at as i64, json(watch)])?;
        }
    }
    transaction.commit()?;
    Ok(added)
}

/// An empty history, which is at `path` as a whole or not at all. If another process was faster, its one stays.
fn make(path: &Path) -> Result<(), HistoryError> {
    let failed = |source| HistoryError::File { path: path.to_owned(), source };
    let new = beside(path).map_err(failed)?;
    let create = || -> rusqlite::Result<()> {
        let connection = connect(new.path())?;
        connection.execute_batch(TABLES)?;
        connection.pragma_update(None, "application_id", APPLICATION)?;
        connection.pragma_update(None, "user_version", VERSION)
    };
    create().map_err(|error| of(path, error))?;
    match new.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error.error)),
    }
}

/// An error of SQLite as ours.
fn of(path: &Path, error: rusqlite::Error) -> HistoryError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => HistoryError::Busy { path },
        Some(
            ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::OutOfMemory,
        ) => HistoryError::File { path, source: io::Error::other(error.to_string()) },
        _ => HistoryError::Damaged { path, what: error.to_string() },
    }
}

fn json(value: &impl Serialize) -> String {
    // Numbers and strings, with strings for keys: nothing of it can fail.
    serde_json::to_string(value).unwrap_or_default()
}
