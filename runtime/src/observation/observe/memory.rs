//! What an observer is told of memory: copies, allocations of a pool, and whether what is kept was used again.

use crate::device::Device;
use std::time::Duration;

/// Which way memory was copied, or what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransferKind {
    /// Weights, to the device that they were packed for.
    Weights,
    /// Anything else from the processor's memory to a device.
    ToDevice,
    /// From a device to the processor's memory.
    FromDevice,
    /// Within one device.
    WithinDevice,
    /// From one device to another that reaches its memory.
    BetweenDevices,
    /// From one device to another that does not: once to page-locked memory, once from there, each counted on its device.
    ThroughHost,
}

impl TransferKind {
    /// `weights`, `to-device`, `from-device`, `within-device`, `between-devices` or `through-host`.
    pub fn name(self) -> &'static str {
        match self {
            TransferKind::Weights => "weights",
            TransferKind::ToDevice => "to-device",
            TransferKind::FromDevice => "from-device",
            TransferKind::WithinDevice => "within-device",
            TransferKind::BetweenDevices => "between-devices",
            TransferKind::ThroughHost => "through-host",
        }
    }
}

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub kind: TransferKind,
    /// The device; of two the one that the copy goes to.
    pub device: Device,
    /// The device that it comes from, where that is another one.
    pub source: Option<Device>,
    /// Bytes.
    pub bytes: u64,
    /// How long the device took, by its own clock; of ordinary memory of the processor with what the driver does to copy it.
    pub time: Option<Duration>,
}

/// An allocation of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The device.
    pub device: Device,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Bytes that the pool took from the device for it: 0 where it had them. `None` where the device has no pools.
    pub grown: Option<u64>,
}

/// Something that is made once and used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cache {
    /// Memory of a workspace. On the processor a run that finds its memory there is a hit, and a workspace that is made or made larger a
    /// miss; on a GPU each buffer of a run.
    Workspace,
    /// Machine code of a kernel on a device: loaded already, or loaded now.
    Image,
    /// The same of PTX, which the driver compiles when it is loaded; a cache of the driver's may save it that.
    Ptx,
    /// Graphs: a graph that was launched before is launched again, or one is captured.
    Graph,
    /// A tuning that is there: it has times for the op, format and threads that were asked for, or none.
    Tuning,
}

impl Cache {
    /// `workspace`, `image`, `ptx`, `graph` or `tuning`.
    pub fn name(self) -> &'static str {
        match self {
            Cache::Workspace => "workspace",
            Cache::Image => "image",
            Cache::Ptx => "ptx",
            Cache::Graph => "graph",
            Cache::Tuning => "tuning",
        }
    }
}

/// A look for something that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// What was looked for.
    pub cache: Cache,
    /// The device that it is for.
    pub device: Device,
    /// Whether it was there; else it was made, but for times of a tuning.
    pub hit: bool,
}

/// What this process holds of a device's memory through gristmill, in all streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldMemory {
    /// The device.
    pub device: Device,
    /// Bytes in buffers.
    pub bytes: u64,
    /// Bytes that pools have taken from the device, as of the last allocation or `Gpu::trim_memory` while an observer
    /// was on; `None` where there was none of these, or a pool is not there.
    pub reserved: Option<u64>,
}
