//! Is there a driver, and what devices does it have? Asked without a context, so that asking costs little and leaves
//! nothing behind.

use super::device;
use super::failure::words;
use crate::gpu::{CudaVersion, GpuProfile, NoGpu};
use crate::occupancy::Multiprocessor;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{DriverError, result};
use std::sync::OnceLock;

/// The driver's version and number of devices. Asked once: a process keeps the driver that it has loaded.
fn driver() -> Result<(CudaVersion, u32), NoGpu> {
    static DRIVER: OnceLock<Result<(CudaVersion, u32), NoGpu>> = OnceLock::new();
    let ask = || {
        if !is_there() {
            return Err(NoGpu::NoDriver);
        }
        let mut number = 0;
        // SAFETY: the pointer is to one int. This call needs no initialization.
        unsafe { sys::cuDriverGetVersion(&mut number) }
            .result()
            .map_err(|error| failed("cuDriverGetVersion", error))?;
        let found = CudaVersion::from_number(u32::try_from(number).unwrap_or_default());
        // The stub tells no version of its own, and says what it is when it is initialized.
        if found < CudaVersion::OLDEST && number > 0 {
            return Err(NoGpu::OldDriver { found });
        }
        result::init().map_err(|error| failed("cuInit", error))?;
        let count = result::device::get_count().map_err(|error| failed("cuDeviceGetCount", error))?;
        match u32::try_from(count) {
            Ok(0) | Err(_) => Err(NoGpu::NoDevice),
            Ok(count) => Ok((found, count)),
        }
    };
    DRIVER.get_or_init(ask).clone()
}

/// Whether the driver's library can be loaded, by one of the names under which cudarc then loads it. Asked without cudarc, whose
/// own question is not there where another crate of the program links the driver.
#[cfg(unix)]
fn is_there() -> bool {
    [c"libcuda.so.1", c"libcuda.so"].iter().any(|name| {
        // SAFETY: opening a library runs its initializers; this is the system's GPU driver. It stays open.
        !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null()
    })
}

#[cfg(not(unix))]
fn is_there() -> bool {
    // SAFETY: opening a library runs its initializers; this is the system's GPU driver.
    unsafe { sys::is_culib_present() }
}

fn failed(call: &'static str, error: DriverError) -> NoGpu {
    match error.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => NoGpu::NoDevice,
        CUresult::CUDA_ERROR_STUB_LIBRARY => NoGpu::Stub,
        _ => NoGpu::Failed { call, error: words(error) },
    }
}

/// How many GPUs there are.
///
/// # Errors
/// Why there is none.
pub fn count() -> Result<u32, NoGpu> {
    driver().map(|(_, count)| count)
}

/// Cycles of all multiprocessors of `cuda:index` in a second, at the highest clock: what devices of one kind differ by.
///
/// # Errors
/// Why it can't be used.
pub fn cycles(index: u32) -> Result<f64, NoGpu> {
    let multiprocessors = detect(index)?.multiprocessors;
    let ordinal = i32::try_from(index).unwrap_or(i32::MAX);
    let device = result::device::get(ordinal).map_err(|error| failed("cuDeviceGet", error))?;
    // SAFETY: the device is the driver's own.
    let kilohertz =
        unsafe { result::device::get_attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE) }
            .map_err(|error| failed("cuDeviceGetAttribute", error))?;
    Ok(f64::from(multiprocessors) * f64::from(kilohertz.max(0)) * 1e3)
}

/// What the GPU `cuda:index` is.
///
/// # Errors
/// Why it can't be used.
pub fn detect(index: u32) -> Result<GpuProfile, NoGpu> {
    let (driver, count) = driver()?;
    if index >= count {
        return Err(NoGpu::NoSuchDevice { count });
    }
    if let Some(error) = device::lost(index) {
        return Err(NoGpu::Lost { error });
    }
    let ordinal = i32::try_from(index).map_err(|_| NoGpu::NoSuchDevice { count })?;
    let device = result::device::get(ordinal).map_err(|error| failed("cuDeviceGet", error))?;
    let number = |attribute: Attribute| {
        // SAFETY: the device is the driver's own.
        unsafe { result::device::get_attribute(device, attribute) }
            .map_err(|error| failed("cuDeviceGetAttribute", error))
            .map(|value| u32::try_from(value).unwrap_or_default())
    };
    let cc = |attribute| number(attribute).map(|value| u8::try_from(value).unwrap_or_default());
    // SAFETY: as above.
    let memory =
        unsafe { result::device::total_mem(device) }.map_err(|error| failed("cuDeviceTotalMem", error))?;
    let cc = (
        cc(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        cc(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let multiprocessor = Multiprocessor {
        threads: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        blocks: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
        registers: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        shared: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        reserved_shared: number(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
        shared_granule: Multiprocessor::shared_granule_of(cc),
    };
    Ok(GpuProfile {
        index,
        name: result::device::get_name(device).map_err(|error| failed("cuDeviceGetName", error))?,
        cc,
        driver,
        memory: memory as u64,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        multiprocessor,
        block_threads: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        grid: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
        ),
        shared: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        l2: u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
    })
}
