//! Receipts, as `Receipt::to_json` of the runtime writes them. The runtime has no serde: a test holds what it writes to this type.

use serde::{Deserialize, Serialize};

/// What ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// Version of this schema.
    pub schema_version: u64,
    /// The crate whose registry the kernels are from; of a joined registry all, with ` + ` between.
    pub package: String,
    /// Kinds of devices on which a kernel ran.
    pub devices: Vec<String>,
    /// The processor; absent in what others wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Kernels that ran.
    pub kernels: Vec<Kernel>,
    /// Fallbacks that were taken.
    #[serde(default)]
    pub fallbacks: Vec<Fallback>,
    /// Parts of layers that are divided over devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// What was done where a kernel failed or a device was lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<Recovery>,
    /// How many steps came behind these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_recoveries: Option<u64>,
}

/// A processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Architecture.
    pub arch: String,
    /// Features.
    pub features: Vec<String>,
}

/// A kernel that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Identity.
    pub id: String,
    /// Name.
    pub name: String,
    /// `file:line` of the variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The crate that brought it, where that is not the receipt's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Launches.
    pub launches: u64,
    /// Why weights were packed for it, where its packing has the fewest bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_memory: Option<FromMemory>,
    /// Why weights were packed for it, where a GPU holds them once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_once: Option<HeldOnce>,
}

/// Why weights are held in the packing with the fewest bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FromMemory {
    /// The packing.
    pub packing: String,
    /// The one that is fastest from caches.
    pub instead_of: String,
    /// Bytes of weights that take turns.
    pub working_set: u64,
    /// Bytes of the last-level cache.
    pub cache: u64,
}

/// Why weights are held once on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOnce {
    /// The packing.
    pub packing: String,
    /// The one that is preferred for one token.
    pub instead_of: String,
}

/// A fallback that was taken, here and in the snapshots of a monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
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

/// A part of a layer that was divided over devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Where.
    pub device: String,
    /// The weight format.
    pub format: String,
    /// Rows of the whole layer.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// The part's rows: from, and up to without it.
    pub rows: [u64; 2],
    /// Runs.
    pub runs: u64,
}

/// A step that was done because a kernel failed or a device was lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Which.
    pub step: String,
    /// The op.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The weight format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The kernel.
    pub kernel: String,
    /// Its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What was seen.
    pub reason: String,
    /// The kernel that was there then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// Its number in the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// Whether the run after it was good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// Microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<u64>,
}
