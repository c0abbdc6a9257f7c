//! Files that records come from: what `gristmill bench --json`, `gristmill tune` and a monitor write, and histories.

use crate::history::{History, HistoryError};
use crate::record::{Record, Records, Source, Work};
use crate::snapshot::Snapshot;
use gristmill_runtime::tuning::cpu;
use gristmill_runtime::{Registry, Tuning};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of the largest file of records that is read.
const LARGEST: u64 = 256 << 20;

/// Why a file gave no records.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It can't be read.
    #[error("can't read `{}`: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It holds something else.
    #[error(
        "`{}` holds no records: {what}\n  help: give what `gristmill bench --json`, `gristmill tune` or `gristmill run --monitor` \
         wrote, or a history",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// It is a history that can't be read.
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// The records of a file, whichever of them it is. Tuning files are read for `registry`, whose kernels were compiled with `compiler`.
///
/// # Errors
/// [`ReadError`].
pub fn read(path: &Path, registry: &Registry, compiler: Option<&str>) -> Result<Records, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let foreign = |what: String| ReadError::Foreign { path: path.to_owned(), what };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(foreign("it is no regular file".to_owned()));
    }
    let mut head = [0; History::MAGIC.len()];
    let begins = (&file).read_exact(&mut head).is_ok();
    if begins && &head == History::MAGIC {
        return Ok(History::open_existing(path)?.records()?);
    }
    if metadata.len() > LARGEST {
        return Err(foreign(format!("it has {} bytes, more than {LARGEST}", metadata.len())));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    if text.starts_with("gristmill tuning ") {
        let written =
            metadata.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let at = written.unwrap_or_default().as_secs();
        return Ok(Records::of_tuning(&Tuning::parse(&text, registry, cpu()), registry, compiler, at));
    }
    let value: Value = serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
    match value {
        Value::Array(records) => bench(&records).map_err(foreign),
        Value::Object(_) => {
            let schema = value.get("schema").and_then(Value::as_str).unwrap_or("none");
            if schema != Snapshot::SCHEMA {
                return Err(foreign(format!("its schema is `{schema}`, and `{}` is read", Snapshot::SCHEMA)));
            }
            let snapshot: Snapshot =
                serde_json::from_value(value).map_err(|error| foreign(error.to_string()))?;
            Ok(Records::of_snapshot(snapshot))
        }
        _ => Err(foreign("it is neither an array nor an object".to_owned())),
    }
}

/// Records of `gristmill bench --json` on the processor.
fn bench(values: &[Value]) -> Result<Records, String> {
    let mut records = Records::default();
    for (index, value) in values.iter().enumerate() {
        if let Some(device) = value.get("device").and_then(Value::as_str) {
            records
                .set_aside
                .push(format!("record {index}: of {device}; a history keeps those of the processor"));
            continue;
        }
        let record = one(value).map_err(|key| {
            format!("record {index} has no usable `{key}`; older versions of gristmill did not write `at`, `id`, `machine`, `compiler`")
        })?;
        records.records.push(record);
    }
    Ok(records)
}

fn one(value: &Value) -> Result<Record, &'static str> {
    let text = |name: &'static str| value[name].as_str().map(str::to_owned).ok_or(name);
    let number = |name: &'static str| value[name].as_u64().ok_or(name);
    let time = |value: &Value| value.as_f64().filter(|us| us.is_finite() && *us > 0.0);
    let rounds = value["rounds_us"].as_array().ok_or("rounds_us")?;
    Ok(Record {
        source: Source::Bench,
        at: number("at")?,
        machine: text("machine")?,
        compiler: Some(text("compiler")?),
        kernel: text("kernel")?,
        id: text("id")?,
        work: Work::Shape {
            m: number("m")?,
            n: number("n")?,
            k: number("k")?,
            threads: number("threads")?,
            memory: text("memory")?,
            quantizes: value["includes_activation_quantization"].as_bool(),
        },
        us: Some(time(&value["us"]).ok_or("us")?),
        rounds_us: rounds.iter().map(time).collect::<Option<_>>().ok_or("rounds_us")?,
        percent: value["percent"].as_f64().filter(|percent| *percent > 0.0 && *percent <= 100.0),
        ceiling: value["ceiling"].as_str().map(str::to_owned),
        load: None,
    })
}
