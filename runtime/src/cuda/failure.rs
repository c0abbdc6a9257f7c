//! Errors of the driver, with the kernel that they belong to.

use super::seen;
use crate::device::Device;
use cudarc::driver::DriverError;
use gristmill_spec::vocab::DeviceKind;

/// What is being done when a device is opened.
pub(super) const OPENING: &str = "opening the device";

/// An error of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFailure {
    /// Which device.
    pub device: Device,
    /// The kernel that was launched, or whose launch was waited for.
    pub kernel: Option<&'static str>,
    /// What was being done.
    pub doing: &'static str,
    /// The driver's error code.
    pub code: u32,
    /// Its name.
    pub name: String,
    /// The device's context does not survive it: every later call fails too.
    pub sticky: bool,
    /// What the driver's compiler said of PTX that it did not take.
    pub log: Option<String>,
    /// Where a kernel has several images and the driver takes none of them: each that was tried, with the error. The first is this one.
    pub images: Vec<String>,
}

impl GpuFailure {
    /// Every error of a driver comes through here, and is counted.
    pub(crate) fn new(
        index: u32,
        kernel: Option<&'static str>,
        doing: &'static str,
        error: DriverError,
    ) -> GpuFailure {
        let code = error.0 as u32;
        let failure = GpuFailure {
            device: Device { kind: DeviceKind::Cuda, index },
            kernel,
            doing,
            code,
            name: name(error),
            sticky: is_sticky(code),
            log: None,
            images: Vec::new(),
        };
        seen::error(index, &format!("{doing}: {}", words(error)), failure.is_lost());
        failure
    }
}

/// Errors that a device gives that is not there any more, beside those that its context does not survive: `CUDA_ERROR_UNKNOWN`, and
/// `CUDA_ERROR_DEVICE_UNAVAILABLE` where it is opened.
const GONE: [u32; 2] = [46, 999];

impl GpuFailure {
    /// Whether another image may be taken where one was not: the driver refused what it was given, and nothing else happened.
    pub(super) fn refuses_an_image(&self) -> bool {
        // Invalid image, no binary for the GPU, invalid PTX, no compiler for PTX, a PTX version that is not known, compiling
        // is disabled, invalid source.
        matches!(self.code, 200 | 209 | 218 | 221 | 222 | 223 | 300)
    }

    /// Whether nothing can be expected of the device any more, as far as this process goes.
    pub fn is_lost(&self) -> bool {
        self.sticky || GONE.contains(&self.code)
    }
}

impl std::fmt::Display for GpuFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.device)?;
        if let Some(kernel) = self.kernel {
            write!(f, ", kernel `{kernel}`")?;
        }
        write!(f, ": {}: {} ({})", self.doing, self.name, self.code)?;
        for image in &self.images {
            write!(f, "\n  {image}")?;
        }
        if let Some(log) = &self.log {
            write!(f, "\n  the driver's compiler says: {}", log.replace('\n', "\n    "))?;
        }
        match (self.sticky, self.doing) {
            (true, OPENING) => f.write_str(
                "\n  help: the device's primary context was lost before it was opened here, and something else in this process holds it; start the process anew",
            ),
            (true, _) => f.write_str(
                "\n  help: the device's context is lost; drop all its handles, buffers, graphs and workspaces, and open it again; where another library of this process uses the device too, start the process anew",
            ),
            (false, _) => Ok(()),
        }
    }
}

/// Errors after which a context is of no use (`cuda.h` says of each that the process must be started anew, or the
/// context made anew).
fn is_sticky(code: u32) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721..=723 | 810 | 911)
}

fn name(error: DriverError) -> String {
    match error.error_name() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => String::from("unknown error"),
    }
}

/// Name and code.
pub(super) fn words(error: DriverError) -> String {
    format!("{} ({})", name(error), error.0 as u32)
}
