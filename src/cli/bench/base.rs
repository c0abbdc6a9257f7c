//! Records of an earlier run.

use super::super::error::CliError;
use super::super::limited;
use gristmill_records::MOST_BYTES;
use gristmill_records::bench::{GpuConversion, GpuProduct, Line, Measurement};
use std::path::Path;

/// Records of an earlier run.
pub struct Base {
    pub(super) records: Vec<Compared>,
    /// Processors that some of them were measured on.
    pub(super) cpus: Vec<String>,
    /// GPUs that some of them were measured on.
    #[cfg(feature = "cuda")]
    pub(super) gpus: Vec<String>,
}

/// What of a record is compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compared {
    pub(super) key: Key,
    pub(super) us: f64,
    pub(super) percent: Option<f64>,
    /// Median deviation of the rounds, as a part of the time.
    pub(super) noise: f64,
}

/// What was measured: the same in both runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) kernel: String,
    /// m, n, k; m is 1 where there are no tokens.
    pub(super) shape: [u64; 3],
    /// `None` on a GPU.
    pub(super) threads: Option<u64>,
    pub(super) memory: String,
    pub(super) quantizes: Option<bool>,
    /// Type of the activations of a GPU's product, whose kernels take several.
    pub(super) input: Option<String>,
}

impl Key {
    /// The shape, and threads where there are some.
    pub(super) fn numbers(&self) -> String {
        let [m, n, k] = self.shape;
        match self.threads {
            Some(threads) => format!("{m}, {n}, {k}, {threads}"),
            None => format!("{m}, {n}, {k}"),
        }
    }
}

impl Base {
    /// Reads what `bench --json` wrote.
    pub fn read(path: &Path) -> Result<Base, CliError> {
        let bytes = limited::read(path, MOST_BYTES, "records of `bench`")?;
        let bad = |what: String| {
            CliError::usage(
                format!("`{}` holds no records: {what}", path.display()),
                "`gristmill bench --json > BASE.json` writes them",
            )
        };
        let value = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        let lines = Line::read_all(value).map_err(bad)?;
        let check =
            |(index, line): (usize, &Line)| line.check().map_err(|why| bad(format!("record {index}: {why}")));
        lines.iter().enumerate().try_for_each(check)?;
        Ok(Base {
            records: lines.iter().filter_map(Compared::of).collect(),
            cpus: lines.iter().filter_map(|line| cpu(line).cloned()).collect(),
            #[cfg(feature = "cuda")]
            gpus: lines.iter().filter_map(|line| machine(line).cloned()).collect(),
        })
    }

    /// Refuses records of another processor. Older ones did not say of which they are.
    pub(super) fn of_this_processor(&self) -> Result<(), CliError> {
        let this = gristmill::tuning::cpu();
        match self.cpus.iter().find(|other| *other != this) {
            None => Ok(()),
            Some(other) => Err(CliError::usage(
                format!("the base was measured on `{other}`, this is `{this}`"),
                "compare with records of this processor; other ones say nothing of what changed",
            )),
        }
    }

    pub(super) fn find(&self, key: &Key) -> Option<&Compared> {
        self.records.iter().find(|record| record.key == *key)
    }
}

/// The processor that a line was measured on, where it says so.
fn cpu(line: &Line) -> Option<&String> {
    match line {
        Line::Processor(measurement) => measurement.machine.as_ref(),
        Line::GpuProduct(_) | Line::GpuConversion(_) | Line::Yardstick(_) | Line::Published(_) => None,
    }
}

/// The GPU that a line was measured on, where it says so.
#[cfg(feature = "cuda")]
fn machine(line: &Line) -> Option<&String> {
    match line {
        Line::GpuProduct(product) => product.machine.as_ref(),
        Line::GpuConversion(conversion) => conversion.machine.as_ref(),
        Line::Processor(_) | Line::Yardstick(_) | Line::Published(_) => None,
    }
}

impl Compared {
    /// `None` for what is not of ours.
    pub(super) fn of(line: &Line) -> Option<Compared> {
        match line {
            Line::Processor(measurement) => Some(Compared::of_processor(measurement)),
            Line::GpuProduct(product) => Some(Compared::of_product(product)),
            Line::GpuConversion(conversion) => Some(Compared::of_conversion(conversion)),
            Line::Yardstick(_) | Line::Published(_) => None,
        }
    }

    pub(super) fn of_processor(of: &Measurement) -> Compared {
        Compared {
            key: Key {
                kernel: of.kernel.clone(),
                shape: [of.m, of.n, of.k],
                threads: Some(of.threads),
                memory: of.memory.clone(),
                quantizes: of.includes_activation_quantization,
                input: None,
            },
            us: of.us,
            percent: of.usable_percent(),
            noise: noise(&of.rounds_us),
        }
    }

    pub(super) fn of_product(of: &GpuProduct) -> Compared {
        Compared {
            key: Key {
                kernel: of.kernel.clone(),
                shape: [of.m, of.n, of.k],
                threads: None,
                memory: of.memory.clone(),
                quantizes: None,
                input: Some(of.input.clone()),
            },
            us: of.seconds * 1e6,
            percent: usable(of.percent_of_copy),
            noise: noise(&of.rounds),
        }
    }

    pub(super) fn of_conversion(of: &GpuConversion) -> Compared {
        Compared {
            key: Key {
                kernel: of.kernel.clone(),
                shape: [1, of.n, of.k],
                threads: None,
                memory: of.memory.clone(),
                quantizes: None,
                input: None,
            },
            us: of.seconds * 1e6,
            percent: usable(of.percent_of_copy),
            noise: noise(&of.rounds),
        }
    }
}

/// Weights from a GPU's cache are read faster than a copy in its memory is made, so more than 100 is no mistake there.
fn usable(percent: f64) -> Option<f64> {
    (percent.is_finite() && percent > 0.0).then_some(percent)
}

/// Median deviation of rounds from their median, as a part of it; 0 where there are none.
fn noise(rounds: &[f64]) -> f64 {
    let middle = |mut values: Vec<f64>| super::super::clock::median(&mut values);
    if rounds.is_empty() {
        return 0.0;
    }
    let median = middle(rounds.to_vec());
    middle(rounds.iter().map(|round| (round - median).abs()).collect()) / median
}
