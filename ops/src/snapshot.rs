//! What a monitor has seen. What was not measured is absent, never zero.

use serde::{Deserialize, Serialize};

/// What a monitor has seen up to a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`Snapshot::SCHEMA`].
    pub schema: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// How long the monitor has watched.
    pub seconds: f64,
    /// The processor, by the name that tuning files use.
    pub machine: String,
    /// What the kernels were compiled with, where the program says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    /// The crate whose kernels are watched.
    pub package: String,
    /// The clock was read for one of so many launches of a kernel and class.
    pub sampled_every: u64,
    /// Times that were taken and not kept, since another thread was keeping one of the same kernel and class.
    pub lost_samples: u64,
    /// Kernels that were launched, a row for each class of shapes.
    pub kernels: Vec<KernelLoad>,
    /// Fallbacks that were taken.
    pub fallbacks: Vec<FallbackCount>,
    /// What guarded layers did where a kernel failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<RecoveryCount>,
}

/// A kernel in one class of shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelLoad {
    /// Name.
    pub kernel: String,
    /// Identity.
    pub id: String,
    /// Kind of device.
    pub device: String,
    /// Fewest and most tokens of the class; without a most, it is open.
    pub tokens: (u64, Option<u64>),
    /// Fewest and most weights of the class.
    pub weights: (u64, Option<u64>),
    /// Launches.
    pub launches: u64,
    /// Bytes that the launches had to read, each operand of a launch once.
    pub bytes_in: u64,
    /// Bytes that they wrote.
    pub bytes_out: u64,
    /// Launches that ended in a fault of their input; absent for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<u64>,
    /// Times; absent where none were taken, as on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Sampled>,
}

/// Times of some launches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// How many launches they are of; those with a fault are not among them.
    pub samples: u64,
    /// Nanoseconds of all of them together.
    pub sum_ns: u64,
    /// Bytes that these launches had to read.
    pub bytes_in: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Percentiles, to two digits.
    pub p50_ns: u64,
    /// 90 of 100 were not longer.
    pub p90_ns: u64,
    /// 99 of 100 were not longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many were not longer than each of a row of times, the last of which is not below the longest.
    pub buckets: Vec<Bucket>,
}

/// Samples up to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The time, a power of two of a microsecond.
    pub le_ns: u64,
    /// Samples that were not longer, to two digits of the time.
    pub count: u64,
}

/// How often a fallback was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackCount {
    /// The policy that allowed it.
    pub policy: String,
    /// What was asked for.
    pub op: String,
    /// The format.
    pub format: String,
    /// The device that was asked for.
    pub device: String,
    /// Why there was no kernel.
    pub reason: String,
    /// What ran in its place.
    pub instead: String,
    /// How often.
    pub runs: u64,
}

/// How often a step was done because of a kernel that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryCount {
    /// Name of the step.
    pub step: String,
    /// The kernel.
    pub kernel: String,
    /// Its identity.
    pub id: String,
    /// The weight format.
    pub format: String,
    /// Whether the run that followed failed in no kernel.
    pub success: bool,
    /// What was seen, the first time.
    pub reason: String,
    /// The kernel that was there then, the last time; absent where none was left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// How often.
    pub count: u64,
    /// Seconds of all of them, with the runs that followed.
    pub seconds: f64,
}

impl Sampled {
    /// Mean nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.samples as f64
    }

    /// Gigabytes that were read in a second of these launches.
    pub fn gb_s(&self) -> f64 {
        self.bytes_in as f64 / self.sum_ns as f64
    }
}

impl KernelLoad {
    /// Seconds that all launches took, were they as long as those that were timed.
    pub fn estimated_seconds(&self) -> Option<f64> {
        Some(self.time.as_ref()?.mean_ns() * self.launches as f64 / 1e9)
    }
}

impl Snapshot {
    /// What [`schema`](Snapshot::schema) must be.
    pub const SCHEMA: &'static str = "gristmill monitor 1";

    /// As one JSON object.
    pub fn to_json(&self) -> String {
        // Numbers and strings, with strings for keys: nothing of it can fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
