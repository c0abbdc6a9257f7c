//! What the installed driver says about the devices of this machine, without starting a program and without a panic
//! where there is none. This is for `native` and `gristmill doctor`; kernels are launched by the runtime.

use super::problem::reason;
use libloading::Library;
use std::ffi::{c_char, c_int};

/// An installed driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA version that it supports: 12090 is 12.9.
    pub version: i32,
    /// Its devices.
    pub devices: Vec<Device>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// As the driver names it.
    pub name: String,
    /// Major and minor compute capability.
    pub cc: (u8, u8),
}

/// Why no driver answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The library can't be opened.
    #[error("no driver: {0}")]
    Absent(String),
    /// A toolkit's stub, for linking only.
    #[error(
        "the driver library that was found is a toolkit's stub; install the driver, or take the stubs folder out of LD_LIBRARY_PATH"
    )]
    Stub,
    /// A driver without a device.
    #[error("the driver finds no device")]
    NoDevice,
    /// The driver refuses.
    #[error("{call} returned {code}")]
    Failed {
        /// The function.
        call: &'static str,
        /// The driver's error code.
        code: i32,
    },
}

const NO_DEVICE: c_int = 100;
const STUB: c_int = 34;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Asks the driver.
///
/// # Errors
///
/// See [`DriverError`].
pub fn probe_driver() -> Result<Driver, DriverError> {
    let names: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };
    let mut first = None;
    for name in names {
        // SAFETY: opening a library runs its initializers; this is the system's GPU driver.
        match unsafe { Library::new(*name) } {
            Ok(library) => return ask(&library),
            Err(error) => {
                first.get_or_insert(reason(&error));
            }
        }
    }
    Err(DriverError::Absent(first.unwrap_or_default()))
}

fn ask(library: &Library) -> Result<Driver, DriverError> {
    macro_rules! call {
        ($name:literal, ($($type:ty),*), ($($argument:expr),*)) => {{
            // SAFETY: the type is that of the function of this name in cuda.h.
            let function = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> c_int>($name) }
                .map_err(|_| DriverError::Absent(format!("the library that was found has no {}", $name)))?;
            // SAFETY: pointers are to live values of the types that cuda.h names.
            match unsafe { function($($argument),*) } {
                0 => {}
                NO_DEVICE => return Err(DriverError::NoDevice),
                STUB => return Err(DriverError::Stub),
                code => return Err(DriverError::Failed { call: $name, code }),
            }
        }};
    }
    call!("cuInit", (u32), (0));
    let mut version = 0;
    call!("cuDriverGetVersion", (*mut c_int), (&mut version));
    let mut count = 0;
    call!("cuDeviceGetCount", (*mut c_int), (&mut count));
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let mut device = 0;
        call!("cuDeviceGet", (*mut c_int, c_int), (&mut device, ordinal));
        let mut name = [0u8; 256];
        call!(
            "cuDeviceGetName",
            (*mut c_char, c_int, c_int),
            (name.as_mut_ptr().cast(), name.len() as c_int, device)
        );
        let mut numbers = [0; 2];
        for (number, attribute) in numbers.iter_mut().zip([CAPABILITY_MAJOR, CAPABILITY_MINOR]) {
            call!("cuDeviceGetAttribute", (*mut c_int, c_int, c_int), (number, attribute, device));
        }
        let number = |at: usize| u8::try_from(numbers[at]).unwrap_or_default();
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        devices.push(Device {
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            cc: (number(0), number(1)),
        });
    }
    Ok(Driver { version, devices })
}
