//! What `gristmill doctor --json` prints.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What this machine has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Doctor {
    /// Nodes, cores and caches.
    pub processor: Processor,
    /// CUDA kernels of this binary.
    pub built: Built,
    /// The compiler that the next build takes.
    pub compiler: Option<Compiler>,
    /// Places where one was looked for in vain.
    pub looked: Vec<Looked>,
    /// The driver.
    pub driver: Driver,
    /// Variables that are set.
    pub environment: BTreeMap<String, String>,
    /// What to do.
    pub advice: Vec<String>,
}

/// Nodes, cores and caches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    /// NUMA nodes.
    pub nodes: Vec<Node>,
    /// Processors of each physical core.
    pub cores: Vec<Vec<usize>>,
    /// Caches.
    pub caches: Vec<Cache>,
    /// What the system said that makes no sense.
    pub problems: Vec<String>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub node: u64,
    /// Its processors.
    pub processors: Vec<usize>,
    /// Its memory, where that is known.
    pub memory_bytes: Option<u64>,
    /// Distances to nodes.
    pub distances: Vec<Distance>,
    /// 1e6 bytes a second that it reads of its own memory, where that was measured.
    pub read_mb_s: Option<u64>,
}

/// A distance between nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// To which.
    pub to: u64,
    /// 10 is the node itself.
    pub distance: u64,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u64,
    /// Whether it is for instructions.
    pub instructions: bool,
    /// Its size, where the system says it.
    pub bytes: Option<u64>,
    /// The processors that share it.
    pub processors: Vec<usize>,
}

/// CUDA kernels of a binary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state")]
pub enum Built {
    /// It was built without the feature.
    #[serde(rename = "feature off")]
    FeatureOff,
    /// No compiler was there.
    #[serde(rename = "no toolchain")]
    NoToolchain {
        /// Where it was looked for.
        looked: Vec<String>,
    },
    /// It has images.
    #[serde(rename = "built")]
    Built {
        /// The compiler.
        compiler: String,
        /// For which architectures.
        architectures: Vec<String>,
    },
}

/// A CUDA compiler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compiler {
    /// `images`, `nvcc` or `nvrtc`.
    pub kind: String,
    /// What it says it is.
    pub identity: String,
    /// Where it is.
    pub path: String,
    /// What it compiles for.
    pub architectures: Vec<String>,
}

/// A place without a compiler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Looked {
    /// Where.
    pub place: String,
    /// Why not.
    pub why_not: String,
}

/// The driver, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Driver {
    /// There is one.
    There {
        /// The newest CUDA that it supports.
        cuda: String,
        /// Its devices.
        devices: Vec<Device>,
    },
    /// There is none.
    Absent {
        /// Why.
        error: String,
    },
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Such as `9.0`.
    pub compute_capability: String,
    /// Degrees Celsius, where a sensor says them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<u32>,
    /// Why its clock is held down, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_by: Option<Vec<String>>,
}
