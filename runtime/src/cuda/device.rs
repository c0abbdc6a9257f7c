//! An opened device: its context, its stream, the images that are loaded on it.

use super::capture::Capture;
use super::context::{Found, Restoring, relaxed};
use super::failure::{GpuFailure, words};
use super::parameters::Argument;
use super::pool::{MemoryPool, MemoryUse};
use super::waiting::Later;
use crate::device::Device;
use crate::error::Error;
use crate::gpu::{CudaVersion, GpuProfile};
use crate::observe::{Cache, looked_up};
use crate::occupancy::BlockNeeds;
use crate::registry::{CudaCode, CudaImage, NoImage, images_for};
use cudarc::driver::result::launch_kernel;
use cudarc::driver::sys::{
    CUfunction_attribute_enum, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUresult, cuLaunchKernelEx,
};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError};
use cudarc::nvrtc::Ptx;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// A device that is open. All handles and buffers of a device share one; when the last of them goes, it is closed.
///
/// It uses the device's primary context, as other libraries of the process do, with a stream and a pool of memory of its
/// own, or [an engine's stream](Gpu::of_engine). All threads may use it: what they enqueue runs in the order in which it was enqueued.
#[derive(Debug)]
pub struct Gpu {
    pub(super) profile: GpuProfile,
    /// Where memory comes from, if not from the device itself. It goes before the context does.
    pub(super) pool: Option<MemoryPool>,
    pub(super) context: Restoring<Arc<CudaContext>>,
    pub(super) stream: Restoring<Arc<CudaStream>>,
    /// The stream is an engine's, which may capture it.
    pub(super) lent: bool,
    /// The context is an engine's, of which a thread is left without one that had none.
    pub(super) in_engine: bool,
    /// Images by their address in the binary, for all streams of the context.
    pub(super) modules: Arc<Mutex<BTreeMap<usize, Image>>>,
    /// Set once a kernel failed in a way that the context does not survive.
    pub(super) lost: OnceLock<String>,
    /// What buffers hold.
    pub(super) memory_use: Arc<MemoryUse>,
    pub(super) capture: Capture,
    pub(super) later: Later,
    /// Other devices, and whether they reach its memory.
    pub(super) reached_by: Mutex<Vec<(Weak<Gpu>, bool)>>,
}

/// What became of an image.
#[derive(Debug)]
pub(super) enum Image {
    Loaded(Restoring<Arc<CudaModule>>),
    /// The driver does not take it.
    Refused(Box<GpuFailure>),
}

/// The open devices.
pub(super) static OPEN: Mutex<BTreeMap<u32, Weak<Gpu>>> = Mutex::new(BTreeMap::new());

/// What a kernel is launched with.
pub(crate) struct Geometry {
    pub(crate) blocks: (u32, u32),
    /// As many blocks behind each other: the third side of the grid.
    pub(crate) layers: u32,
    pub(crate) threads: u32,
}

/// What happened to an open device, if it is of no use any more.
pub(super) fn lost(index: u32) -> Option<String> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.get(&index)?.upgrade()?.lost.get().cloned()
}

impl Gpu {
    /// What it is.
    pub fn profile(&self) -> &GpuProfile {
        &self.profile
    }

    /// What its context was lost by, if it was.
    pub(crate) fn loss(&self) -> Option<String> {
        self.lost.get().cloned()
    }

    /// Free and total bytes of its memory.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn memory(&self) -> Result<(u64, u64), Error> {
        let _found = Found::now();
        let (free, total) = self.check(None, "asking for free memory", self.context.mem_get_info())?;
        Ok((free as u64, total as u64))
    }

    /// Waits for everything that was enqueued.
    ///
    /// # Errors
    /// [`Error::Gpu`], also of a kernel that was launched before.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.and_wait("waited for", None, "waiting for the device", |_| Ok(()))
    }

    /// Waits for a kernel, whose error it is if there is one.
    pub(crate) fn wait(&self, kernel: &'static str) -> Result<(), Error> {
        self.and_wait("waited for", Some(kernel), "running", |_| Ok(()))
    }

    /// How long the device takes for what `enqueue` enqueues, by the device's own clock. Waits for it.
    ///
    /// # Errors
    /// Those of `enqueue`; [`Error::Gpu`].
    pub fn time<R>(&self, enqueue: impl FnOnce() -> Result<R, Error>) -> Result<(R, Duration), Error> {
        let begin = self.timing_event()?;
        let result = enqueue()?;
        let end = self.timing_event()?;
        let _found = Found::now();
        let milliseconds = self.check(None, "reading a time", begin.elapsed_ms(&end))?;
        Ok((result, Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3)))
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Makes the context this thread's, until what is returned is dropped. A thread without one keeps that of a device that was opened
    /// here, since nobody else's is displaced, and the next call finds it.
    pub(super) fn bind(&self) -> Result<Found, Error> {
        let found = Found::now();
        let is_current = found.is(self.context.cu_ctx());
        // What cudarc could not tell where something was dropped is told now.
        let bound = if is_current { self.context.check_err() } else { self.context.bind_to_thread() };
        self.check(None, "binding the context", bound)?;
        Ok(match (is_current, self.in_engine) {
            (true, _) => found.left(),
            (false, true) => found,
            (false, false) => found.unless_none(),
        })
    }

    /// An outcome of the driver as one of this package. Remembers errors that the context does not survive.
    pub(crate) fn check<T>(
        &self,
        kernel: Option<&'static str>,
        doing: &'static str,
        outcome: Result<T, DriverError>,
    ) -> Result<T, Error> {
        outcome.map_err(|error| {
            let failure = GpuFailure::new(self.profile.index, kernel, doing, error);
            if failure.sticky {
                // The first failure is the cause; those after it only repeat it.
                self.lost.get_or_init(|| match kernel {
                    Some(kernel) => format!("kernel `{kernel}`: {}", words(error)),
                    None => words(error),
                });
            }
            Error::Gpu(Box::new(failure))
        })
    }

    pub(crate) fn out_of_memory(&self, required: usize, error: DriverError) -> Error {
        if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let _found = Found::now();
            let available = self.context.mem_get_info().ok().map(|(free, _)| free);
            return Error::OutOfDeviceMemory { index: self.profile.index, required, available };
        }
        match self.check::<()>(None, "allocating memory", Err(error)) {
            Err(error) => error,
            Ok(()) => Error::OutOfMemory { required },
        }
    }

    /// The images of a kernel for this device, the one that decide chooses first.
    fn images(&self, kernel: &'static str, code: &CudaCode) -> Result<Vec<&'static CudaImage>, Error> {
        let GpuProfile { cc, driver, index, .. } = self.profile;
        let refused = |why| Error::CannotRunOnGpu { kernel, index, why };
        if cc < code.min_cc {
            let (major, minor) = code.min_cc;
            return Err(refused(format!(
                "it needs compute capability {major}.{minor}, and has {}.{}",
                cc.0, cc.1
            )));
        }
        images_for(code.images, cc, driver).map_err(|why| match why {
            NoImage::Architecture { .. } => refused(String::from("no image was built for it")),
            NoImage::Driver { needed } => {
                refused(format!("its driver supports CUDA {driver}, and the image needs {needed}"))
            }
        })
    }

    /// A function of a kernel's image, loaded if it is not yet.
    pub(crate) fn function(
        &self,
        kernel: &'static str,
        code: &CudaCode,
        name: &str,
        threads: u32,
    ) -> Result<Function, Error> {
        let images = self.images(kernel, code)?;
        // Another thread may have loaded the image.
        let _bound = self.bind()?;
        let (image, module) = self.module(kernel, &images)?;
        let function = relaxed(|| module.load_function(name));
        let function = self.check(Some(kernel), "finding the function in its image", function)?;
        let number = |attribute| {
            let value = relaxed(|| function.get_attribute(attribute));
            let value = self.check(Some(kernel), "asking for the function's limits", value)?;
            Ok::<_, Error>(u32::try_from(value).unwrap_or_default())
        };
        let limit = number(CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        let limit = limit.min(self.profile.block_threads);
        if threads > limit {
            return Err(Error::CannotRunOnGpu {
                kernel,
                index: self.profile.index,
                why: format!("its blocks have {threads} threads, and the device allows {limit}"),
            });
        }
        // Code for older devices has no instruction to wait with, also where a newer one compiled it from PTX.
        let (cc, driver) = OVERLAPPING;
        let can = image.arch.cc() >= cc && self.profile.driver >= driver;
        let registers = number(CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NUM_REGS)?;
        let declared = number(CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let handle = Restoring::new(function);
        Ok(Function { handle, overlaps: code.overlaps && can, shared: 0, registers, declared })
    }

    /// The function with so many bytes of shared memory for each block, given by its launches.
    pub(crate) fn sharing(
        &self,
        kernel: &'static str,
        function: Function,
        bytes: u32,
    ) -> Result<Function, Error> {
        if bytes == 0 {
            return Ok(function);
        }
        let _bound = self.bind()?;
        let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let allowed = function.handle.set_attribute(attribute, i32::try_from(bytes).unwrap_or(i32::MAX));
        self.check(Some(kernel), "asking for its shared memory", allowed)?;
        Ok(Function { shared: bytes, ..function })
    }

    /// The first of these images that the driver takes, loaded if it is not yet. The context is current.
    fn module(
        &self,
        kernel: &'static str,
        images: &[&'static CudaImage],
    ) -> Result<(&'static CudaImage, Arc<CudaModule>), Error> {
        let mut refused: Option<GpuFailure> = None;
        // Held while loading, so that no image is loaded twice.
        let mut known = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        for &image in images {
            let key = image.packed.as_ptr() as usize;
            let tell = |hit| {
                let cache = if image.ptx { Cache::Ptx } else { Cache::Image };
                looked_up(cache, Device::cuda(self.profile.index), hit);
            };
            let failure = match known.get(&key) {
                Some(Image::Loaded(module)) => {
                    let module = Arc::clone(module);
                    drop(known);
                    tell(true);
                    return Ok((image, module));
                }
                Some(Image::Refused(failure)) => GpuFailure { kernel: Some(kernel), ..(**failure).clone() },
                None => match self.load(kernel, image) {
                    Ok(module) => {
                        known.insert(key, Image::Loaded(Restoring::new(Arc::clone(&module))));
                        drop(known);
                        tell(false);
                        return Ok((image, module));
                    }
                    Err(Error::Gpu(failure)) if failure.refuses_an_image() => {
                        known.insert(key, Image::Refused(failure.clone()));
                        *failure
                    }
                    Err(error) => return Err(error),
                },
            };
            let line = format!("{}: {} ({})", image.target(), failure.name, failure.code);
            match &mut refused {
                // The first is what should have been taken; of the others there may be a log.
                Some(first) => {
                    first.log = first.log.take().or(failure.log);
                    first.images.push(line);
                }
                None => refused = Some(GpuFailure { images: vec![line], ..failure }),
            }
        }
        match refused {
            Some(failure) => Err(Error::Gpu(Box::new(failure))),
            None => Err(self.damaged(kernel, "it has no image")),
        }
    }

    fn damaged(&self, kernel: &'static str, why: &'static str) -> Error {
        Error::CannotRunOnGpu { kernel, index: self.profile.index, why: String::from(why) }
    }

    fn load(&self, kernel: &'static str, image: &'static CudaImage) -> Result<Arc<CudaModule>, Error> {
        let Some(mut bytes) = image.unpacked() else {
            return Err(self.damaged(kernel, "its image in this binary is damaged"));
        };
        if image.ptx && bytes.last() != Some(&0) {
            bytes.push(0);
        }
        // Only of PTX there is a log to be had, for which the driver is asked once more.
        let text = image.ptx.then(|| bytes.clone());
        let module = relaxed(|| self.context.load_module(Ptx::from_binary(bytes)));
        self.check(Some(kernel), "loading the image", module).map_err(|error| match (error, text) {
            (Error::Gpu(mut failure), Some(text)) if !failure.sticky => {
                failure.log = relaxed(|| super::jit::log(&text));
                Error::Gpu(failure)
            }
            (error, _) => error,
        })
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// `arguments` are the function's parameters, in order, each a pointer to a value of the parameter's size; memory
    /// that they point to is large enough for the geometry, and lives until the kernel has run.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &'static str,
        function: &Function,
        geometry: &Geometry,
        arguments: &[Argument],
    ) -> Result<(), Error> {
        let (x, y) = geometry.blocks;
        if x > self.profile.grid.0 || y > self.profile.grid.1 {
            return Err(Error::TooLarge { what: "a grid" });
        }
        let parameter = |argument: &Argument| match argument {
            Argument::U32(value) => std::ptr::from_ref(value).cast(),
            Argument::F32(value) => std::ptr::from_ref(value).cast(),
            Argument::U64(value) => std::ptr::from_ref(value).cast(),
            Argument::Product(value) => std::ptr::from_ref(value).cast(),
            Argument::Groups(value) => std::ptr::from_ref(value).cast(),
            Argument::Fused(value) => std::ptr::from_ref(value).cast(),
            Argument::Rows(value) => std::ptr::from_ref(value).cast(),
        };
        let mut parameters: Vec<*mut c_void> =
            arguments.iter().map(|argument| <*const c_void>::cast_mut(parameter(argument))).collect();
        let handle = function.handle.cu_function();
        let launched = self.enqueue(|stream| {
            if !function.overlaps {
                let (grid, block) = ((x, y, geometry.layers), (geometry.threads, 1, 1));
                // SAFETY: parameters live until the call returns, which copies them; the rest is the caller's.
                return unsafe {
                    launch_kernel(handle, grid, block, function.shared, stream, &mut parameters)
                };
            }
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            value.programmaticStreamSerializationAllowed = 1;
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            let mut attribute = CUlaunchAttribute { id, pad: [0; 4], value };
            let config = CUlaunchConfig {
                gridDimX: x,
                gridDimY: y,
                gridDimZ: geometry.layers,
                blockDimX: geometry.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: function.shared,
                hStream: stream,
                attrs: &raw mut attribute,
                numAttrs: 1,
            };
            // SAFETY: configuration and parameters live until the call returns, which copies them; the rest is the
            // caller's. Drivers have had this function for longer than they have known the devices of such images.
            unsafe { cuLaunchKernelEx(&raw const config, handle, parameters.as_mut_ptr(), null_mut()) }
                .result()
        })?;
        self.check(Some(kernel), "launching", launched)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _found = Found::now();
        // An engine's capture would be broken by whoever waits, and nothing runs in it.
        if self.engine_captures().unwrap_or(false) {
            return;
        }
        // What was enqueued must not outlive what it uses; an error was reported to whoever waited, or to nobody.
        let _ = self.stream.synchronize();
    }
}

/// The compute capability from which kernels can wait for those in front of them, and the driver that captures such launches.
const OVERLAPPING: ((u8, u8), CudaVersion) = ((9, 0), CudaVersion { major: 12, minor: 3 });

/// A kernel that is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    handle: Restoring<CudaFunction>,
    /// It waits for the launches in front of it by itself.
    overlaps: bool,
    /// Bytes of shared memory that its launches give each block.
    shared: u32,
    /// Registers of a thread.
    registers: u32,
    /// Bytes of shared memory that it declares.
    declared: u32,
}

impl Gpu {
    /// Occupancy: how many blocks of so many threads of a function a multiprocessor holds at once; 1 at least, since what is loaded
    /// can be launched.
    pub(crate) fn held(&self, function: &Function, threads: u32) -> u32 {
        let Function { registers, shared, declared, .. } = *function;
        let block = BlockNeeds { threads, registers, shared: declared.saturating_add(shared) };
        self.profile.multiprocessor.blocks(&block).max(1)
    }
}
