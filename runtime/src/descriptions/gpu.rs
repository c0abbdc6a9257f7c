//! What decisions need to know about a GPU. Plain data: asking a driver is behind the feature `cuda`.

use crate::occupancy::Multiprocessor;

/// A version of CUDA: of a driver, the newest that it supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

impl CudaVersion {
    /// The oldest driver that this package talks to.
    pub const OLDEST: CudaVersion = CudaVersion { major: 12, minor: 0 };

    /// From the driver's number: 12090 is 12.9.
    pub const fn from_number(number: u32) -> CudaVersion {
        CudaVersion { major: number / 1000, minor: number % 1000 / 10 }
    }

    /// The first branch of NVIDIA's drivers that supports this CUDA (580 for "R580"), by the table of toolkits and drivers in the
    /// release notes of CUDA; `None` for versions that are not in it. Versions before [`CudaVersion::OLDEST`] need that one's.
    pub const fn driver_branch(self) -> Option<u16> {
        Some(match (self.major, self.minor) {
            (..12, _) | (12, 0) => 525,
            (12, 1) => 530,
            (12, 2) => 535,
            (12, 3) => 545,
            (12, 4) => 550,
            (12, 5) => 555,
            (12, 6) => 560,
            (12, 7) => 565,
            (12, 8) => 570,
            (12, 9) => 575,
            (13, 0) => 580,
            (13, 1) => 590,
            _ => return None,
        })
    }
}

impl std::fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A GPU, as far as decisions and launches need it. It can also be written by hand, to ask what would be chosen
/// elsewhere; handles are still made only for what the real device can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProfile {
    /// Which one: the N of `cuda:N`.
    pub index: u32,
    /// As the driver names it.
    pub name: String,
    /// Major and minor compute capability.
    pub cc: (u8, u8),
    /// The newest CUDA that its driver supports.
    pub driver: CudaVersion,
    /// Bytes of memory.
    pub memory: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// What each of them has.
    pub multiprocessor: Multiprocessor,
    /// Threads of a CUDA block, at most.
    pub block_threads: u32,
    /// Blocks of a grid along x and y, at most.
    pub grid: (u32, u32),
    /// Bytes of shared memory of a CUDA block that needs no permission.
    pub shared: u32,
    /// Bytes of the second-level cache.
    pub l2: u64,
}

impl GpuProfile {
    /// A device of this capability with a driver of this version, with the limits that all devices have at least.
    pub fn pretend(cc: (u8, u8), driver: CudaVersion) -> GpuProfile {
        GpuProfile {
            index: 0,
            name: format!("pretended, compute capability {}.{}", cc.0, cc.1),
            cc,
            driver,
            memory: 0,
            multiprocessors: 1,
            multiprocessor: Multiprocessor {
                threads: 1024,
                blocks: 16,
                registers: 65_536,
                shared: 64 * 1024,
                reserved_shared: 0,
                shared_granule: Multiprocessor::shared_granule_of(cc),
            },
            block_threads: 1024,
            grid: (i32::MAX as u32, 65_535),
            shared: 48 * 1024,
            l2: 0,
        }
    }
}

/// Why there is no GPU to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoGpu {
    /// This program was built without the feature `cuda`.
    FeatureOff,
    /// The driver's library is not there.
    NoDriver,
    /// What was found is a toolkit's stub, for linking only.
    Stub,
    /// There is a driver, and no device.
    NoDevice,
    /// The driver is older than the interface that is used.
    OldDriver {
        /// What it supports.
        found: CudaVersion,
    },
    /// There are devices, but not this one.
    NoSuchDevice {
        /// How many there are.
        count: u32,
    },
    /// The driver refuses.
    Failed {
        /// The function.
        call: &'static str,
        /// Its error, by name and code.
        error: String,
    },
    /// A kernel failed in a way that the device's context does not survive.
    Lost {
        /// What happened.
        error: String,
    },
}

impl NoGpu {
    /// What would help.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            NoGpu::FeatureOff => "cargo build --features cuda",
            NoGpu::NoDriver => {
                "install the NVIDIA driver (in a container: pass the GPU through), or ask for device `cpu`"
            }
            NoGpu::Stub => "take the toolkit's stubs folder out of LD_LIBRARY_PATH",
            NoGpu::NoDevice => {
                "see that the device is visible (CUDA_VISIBLE_DEVICES), or ask for device `cpu`"
            }
            NoGpu::OldDriver { .. } => "update the NVIDIA driver to 525 or newer",
            NoGpu::NoSuchDevice { .. } => "`gristmill doctor` lists the devices",
            NoGpu::Failed { .. } => "`gristmill doctor` says what there is",
            NoGpu::Lost { .. } => {
                "drop all handles, buffers, graphs and workspaces of this device, and open it again; where another library of this process uses the device too, start the process anew"
            }
        }
    }
}

impl std::fmt::Display for NoGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoGpu::FeatureOff => f.write_str("this program was built without the feature `cuda`"),
            NoGpu::NoDriver => f.write_str("no driver: the library libcuda is not there"),
            NoGpu::Stub => f.write_str("no driver: the library that was found is a toolkit's stub"),
            NoGpu::NoDevice => f.write_str("the driver finds no device"),
            NoGpu::OldDriver { found } => {
                write!(f, "the driver supports CUDA {found}, and {} is needed", CudaVersion::OLDEST)
            }
            NoGpu::NoSuchDevice { count } => write!(f, "no such device: there are {count}"),
            NoGpu::Failed { call, error } => write!(f, "the driver refuses: {call}: {error}"),
            NoGpu::Lost { error } => write!(f, "the device is lost: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(CudaVersion::from_number(12090).to_string(), "12.9");
    }
}
