//! Files that records come from: what `gristmill bench --json`, `gristmill tune` and a monitor write, and histories.

use crate::history::{History, HistoryError};
use crate::record::{Record, Records, Source, Work};
use crate::regular::{self, NOT_REGULAR};
use crate::snapshot::Snapshot;
use gristmill_records::MOST_BYTES;
use gristmill_records::bench::{GpuConversion, GpuProduct, Line, Measurement, Published, Yardstick, is_part};
use gristmill_runtime::tuning::cpu;
use gristmill_runtime::vocab::DType;
use gristmill_runtime::{Registry, Tuning};
use serde_json::Value;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

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

/// The snapshot of a monitor that is in a file.
///
/// # Errors
/// [`ReadError`].
pub fn snapshot(path: &Path) -> Result<Snapshot, ReadError> {
    let foreign = |what: String| ReadError::Foreign { path: path.to_owned(), what };
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let bytes = of_regular(path)?.len();
    if bytes > MOST_BYTES {
        return Err(foreign(too_large(bytes)));
    }
    let text = std::fs::read(path).map_err(failed)?;
    let value = serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))?;
    of_monitor(value).map_err(foreign)
}

fn of_monitor(value: Value) -> Result<Snapshot, String> {
    let schema = value.get("schema").and_then(Value::as_str).unwrap_or("none");
    if schema != Snapshot::SCHEMA {
        return Err(format!("its schema is `{schema}`, and `{}` is read", Snapshot::SCHEMA));
    }
    let snapshot: Snapshot = gristmill_records::read(value)?;
    snapshot.check()?;
    Ok(snapshot)
}

fn of_regular(path: &Path) -> Result<Metadata, ReadError> {
    match regular::metadata(path) {
        Ok(Some(metadata)) => Ok(metadata),
        Ok(None) => Err(ReadError::Foreign { path: path.to_owned(), what: NOT_REGULAR.to_owned() }),
        Err(source) => Err(ReadError::File { path: path.to_owned(), source }),
    }
}

fn too_large(bytes: u64) -> String {
    format!("it has {bytes} bytes, more than {MOST_BYTES}")
}

/// The records of a file, whichever of them it is. Tuning files are read for `registry`, whose kernels were compiled with `compiler`.
///
/// # Errors
/// [`ReadError`].
pub fn read(path: &Path, registry: &Registry, compiler: Option<&str>) -> Result<Records, ReadError> {
    let failed = |source| ReadError::File { path: path.to_owned(), source };
    let foreign = |what: String| ReadError::Foreign { path: path.to_owned(), what };
    let metadata = of_regular(path)?;
    let file = File::open(path).map_err(failed)?;
    let mut head = [0; History::MAGIC.len()];
    let begins = (&file).read_exact(&mut head).is_ok();
    if begins && &head == History::MAGIC {
        return Ok(History::open_existing(path)?.records()?);
    }
    if metadata.len() > MOST_BYTES {
        return Err(foreign(too_large(metadata.len())));
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
        Value::Array(_) => bench(value).map_err(foreign),
        Value::Object(_) => Ok(Records::of_snapshot(of_monitor(value).map_err(foreign)?)),
        _ => Err(foreign("it is neither an array nor an object".to_owned())),
    }
}

/// Records of `gristmill bench --json`.
fn bench(value: Value) -> Result<Records, String> {
    let mut records = Records::default();
    for (index, line) in Line::read_all(value)?.into_iter().enumerate() {
        line.check().map_err(|why| format!("record {index}: {why}"))?;
        let record = match &line {
            Line::Processor(measurement) => one(measurement),
            Line::GpuProduct(product) => of_product(product),
            Line::GpuConversion(conversion) => of_conversion(conversion),
            Line::Yardstick(Yardstick { kernel, .. }) | Line::Published(Published { kernel, .. }) => {
                records.set_aside.push(format!(
                    "record {index}: of {kernel}; a history keeps those of gristmill's kernels"
                ));
                continue;
            }
        };
        records.records.push(record.ok_or_else(|| {
            format!("record {index} has no `at`, `id`, `machine` or `compiler`: an older version of gristmill did not write them")
        })?);
    }
    Ok(records)
}

/// What memory gives, where that is what holds the kernel back.
fn memory_gb_s(of: &Measurement) -> Option<f64> {
    let from_memory = of.memory == "cold" && of.ceiling.as_deref() == Some("read");
    from_memory.then_some(100.0 * of.gb_s / of.usable_percent()?)
}

/// A record, where it says when it was made, on which machine, by which compiler, and of which kernel; of ceilings it says nothing.
fn kept(
    at: Option<u64>,
    [machine, compiler, id]: [&Option<String>; 3],
    kernel: &str,
    work: Work,
    us: f64,
    rounds_us: Vec<f64>,
) -> Option<Record> {
    Some(Record {
        source: Source::Bench,
        at: at?,
        machine: machine.clone()?,
        compiler: Some(compiler.clone()?),
        kernel: kernel.to_owned(),
        id: id.clone()?,
        work,
        us: Some(us),
        rounds_us,
        percent: None,
        ceiling: None,
        memory_gb_s: None,
        serves: None,
        load: None,
        program: None,
    })
}

/// Of a measurement on the processor.
fn one(of: &Measurement) -> Option<Record> {
    let work = Work::Shape {
        m: of.m,
        n: of.n,
        k: of.k,
        threads: of.threads,
        memory: of.memory.clone(),
        quantizes: of.includes_activation_quantization,
        input: None,
    };
    let told = [&of.machine, &of.compiler, &of.id];
    let record = kept(of.at, told, &of.kernel, work, of.us, of.rounds_us.clone())?;
    let (percent, ceiling) = (of.usable_percent(), of.ceiling.clone());
    Some(Record { percent, ceiling, memory_gb_s: memory_gb_s(of), ..record })
}

/// Of a product on a GPU. For one token what a copy gives is its ceiling, for many nothing here says what is.
fn of_product(of: &GpuProduct) -> Option<Record> {
    let work = Work::Shape {
        m: of.m,
        n: of.n,
        k: of.k,
        threads: 1,
        memory: of.memory.clone(),
        quantizes: Some(true),
        input: Some(of.input.clone()).filter(|input| input != DType::F32.name()),
    };
    let told = [&of.machine, &of.compiler, &of.id];
    let record = kept(of.at, told, &of.kernel, work, of.seconds * 1e6, microseconds(&of.rounds))?;
    Some(if of.m == 1 { below_a_copy(record, of.percent_of_copy) } else { record })
}

/// Of quantizing or dequantizing on a GPU.
fn of_conversion(of: &GpuConversion) -> Option<Record> {
    let (memory, quantizes) = (of.memory.clone(), None);
    let work = Work::Shape { m: 1, n: of.n, k: of.k, threads: 1, memory, quantizes, input: None };
    let told = [&of.machine, &of.compiler, &of.id];
    let record = kept(of.at, told, &of.kernel, work, of.seconds * 1e6, microseconds(&of.rounds))?;
    Some(below_a_copy(record, of.percent_of_copy))
}

fn microseconds(seconds: &[f64]) -> Vec<f64> {
    seconds.iter().map(|seconds| seconds * 1e6).collect()
}

/// With a copy on the device as its ceiling; of what stays in caches that is none.
fn below_a_copy(record: Record, percent: f64) -> Record {
    let percent = Some(percent).filter(|percent| is_part(*percent));
    Record { percent, ceiling: Some("copy".to_owned()), ..record }
}
