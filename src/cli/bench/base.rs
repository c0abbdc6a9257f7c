//! Records of an earlier run.

use super::super::error::CliError;
use serde_json::Value;
use std::path::Path;

/// Records of an earlier run.
pub struct Base {
    pub(super) records: Vec<BaseRecord>,
}

/// What of an earlier record is compared.
pub(super) struct BaseRecord {
    pub(super) key: Key,
    pub(super) us: f64,
    pub(super) percent: Option<f64>,
}

/// What was measured: the same in both runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) kernel: String,
    pub(super) numbers: [u64; 4],
    pub(super) memory: String,
    pub(super) quantizes: Option<bool>,
}

impl Base {
    /// Reads what `bench --json` wrote.
    pub fn read(path: &Path) -> Result<Base, CliError> {
        let bytes = std::fs::read(path).map_err(CliError::file("read", path))?;
        let bad = |what: String| {
            CliError::usage(
                format!("`{}` holds no records: {what}", path.display()),
                "`gristmill bench --json > BASE.json` writes them",
            )
        };
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        let Value::Array(records) = value else { return Err(bad("it is not an array".to_owned())) };
        let read = |(index, record): (usize, &Value)| {
            BaseRecord::read(record).map_err(|key| bad(format!("record {index} has no usable `{key}`")))
        };
        Ok(Base { records: records.iter().enumerate().map(read).collect::<Result<_, _>>()? })
    }

    pub(super) fn find(&self, key: &Key) -> Option<&BaseRecord> {
        self.records.iter().find(|record| record.key == *key)
    }
}

impl BaseRecord {
    /// The record, or the name of what is missing or senseless.
    pub(super) fn read(record: &Value) -> Result<BaseRecord, &'static str> {
        let text = |name: &'static str| record[name].as_str().map(str::to_owned).ok_or(name);
        let number = |name: &'static str| record[name].as_u64().ok_or(name);
        let us = record["us"].as_f64().filter(|us| us.is_finite() && *us > 0.0).ok_or("us")?;
        Ok(BaseRecord {
            key: Key {
                kernel: text("kernel")?,
                numbers: [number("m")?, number("n")?, number("k")?, number("threads")?],
                memory: text("memory")?,
                quantizes: record["includes_activation_quantization"].as_bool(),
            },
            us,
            percent: record["percent"].as_f64().filter(|percent| *percent > 0.0 && *percent <= 100.0),
        })
    }
}
