//! Whether devices do what they should, as far as this process can tell.

use super::device::OPEN;
use super::probe;
use super::seen;
use super::sensors::{self, Sensors};
use crate::gpu::NoGpu;
use std::sync::{PoisonError, Weak};

/// What this process knows of a device's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuHealth {
    /// Which: the N of `cuda:N`.
    pub index: u32,
    /// Free and total bytes of its memory; `None` where it is not open here, or does not answer. Nothing is opened for it.
    pub memory: Option<(u64, u64)>,
    /// Errors that the driver gave for it in this process. A lost device gives one for every call.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<String>,
    /// The error by which it was lost, unless it was opened anew since.
    pub lost: Option<String>,
    /// Its temperature in degrees Celsius; `None` without the feature `nvml`, without NVIDIA's management library (which comes with the
    /// driver), and where that does not answer.
    pub temperature: Option<u32>,
    /// What lowers its clock at the moment (power, temperature), empty where nothing does; `None` as for the temperature.
    pub throttled_by: Option<Vec<&'static str>>,
}

/// The health of `cuda:index`.
///
/// # Errors
/// Why there is no such device.
pub fn health(index: u32) -> Result<GpuHealth, NoGpu> {
    let count = probe::count()?;
    if index >= count {
        return Err(NoGpu::NoSuchDevice { count });
    }
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).get(&index).and_then(Weak::upgrade);
    let memory = open.filter(|gpu| gpu.lost.get().is_none()).and_then(|gpu| gpu.memory().ok());
    // Asking may have been one more.
    let seen::Seen { errors, last, lost } = seen::so_far(index);
    let Sensors { temperature, throttled_by } = sensors::read(index);
    Ok(GpuHealth { index, memory, errors, last_error: last, lost, temperature, throttled_by })
}
