//! Devices by name.

use gristmill_spec::vocab::DeviceKind;

/// A device: `cpu`, `cuda:0`, `rocm:0`, `metal:0`. That it can be named says nothing about whether
/// it is there or has a kernel; `decide` says that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// Kind.
    pub kind: DeviceKind,
    /// Which one of its kind; 0 for the processor.
    pub index: u32,
}

impl Device {
    /// The processor this program runs on.
    pub const CPU: Device = Device { kind: DeviceKind::Cpu, index: 0 };

    /// The NVIDIA GPU of this number, as the driver counts them from 0: `cuda:0`.
    pub const fn cuda(index: u32) -> Device {
        Device { kind: DeviceKind::Cuda, index }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str(self.kind.name()),
            DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => {
                write!(f, "{}:{}", self.kind.name(), self.index)
            }
        }
    }
}
