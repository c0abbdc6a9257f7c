//! The library itself, loaded when it is there.

use super::super::super::super::clock::median;
use super::super::super::super::gpu_time::{BATCH, launches};
use super::Kind;
use super::operands::{Operands, check};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr as _, DevicePtrMut as _, DriverError};
use gristmill::cuda::Gpu;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes that the library may use besides, as its authors advise for the newest devices.
const WORKSPACE: usize = 32 << 20;

/// A handle of the library, on a stream of its own.
pub struct Library {
    handle: sys::cublasLtHandle_t,
    stream: Arc<CudaStream>,
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made in `open`, and destroyed once; nothing can be done about a failure.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// What the library says, in its words.
fn refused(what: &str) -> impl Fn(result::CublasError) -> String + '_ {
    move |error| format!("{what}: {error}")
}

fn failed(error: DriverError) -> String {
    format!("the driver refuses: {error}")
}

/// A matrix of `rows x columns`, column after column.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(ty: sys::cudaDataType, rows: usize, columns: usize) -> Result<Layout, String> {
        let ld = i64::try_from(rows).map_err(|_| "too many rows".to_owned())?;
        result::create_matrix_layout(ty, rows as u64, columns as u64, ld)
            .map(Layout)
            .map_err(refused("a layout"))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// Which product.
struct Description(sys::cublasLtMatmulDesc_t);

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made in `seconds`, and destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// How the library may go about it.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made in `algorithm`, and destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

impl Library {
    /// The library, on the device of `gpu`.
    pub fn open(gpu: &Gpu) -> Result<Library, String> {
        // SAFETY: loads a library of this name, if there is one, as its users do.
        if !unsafe { sys::is_culib_present() } {
            return Err("the library libcublasLt is not there".to_owned());
        }
        let context = CudaContext::new(gpu.profile().index as usize).map_err(failed)?;
        let stream = context.new_stream().map_err(failed)?;
        let handle = result::create_handle().map_err(refused("its handle"))?;
        Ok(Library { handle, stream })
    }

    /// Median seconds of a product of `m` tokens with `n` rows of `k` dense weights, `copies` of them in turn.
    pub fn seconds(
        &self,
        kind: Kind,
        (m, n, k): (usize, usize, usize),
        copies: usize,
        rounds: usize,
    ) -> Result<f64, String> {
        use sys::{cublasComputeType_t as Compute, cudaDataType_t as Type};
        let (compute, scale, ty, out, out_width) = match kind {
            Kind::Int8 => {
                (Compute::CUBLAS_COMPUTE_32I, Type::CUDA_R_32I, Type::CUDA_R_8I, Type::CUDA_R_32I, 4)
            }
            Kind::F16 => {
                (Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F, Type::CUDA_R_16F, Type::CUDA_R_16F, 2)
            }
        };
        let bytes = n * k * kind.width();
        let stream = &self.stream;
        let operands = Operands::random(kind, (m, n, k));
        let mut weights = stream.alloc_zeros::<u8>(copies * bytes).map_err(failed)?;
        for copy in 0..copies {
            let mut place = weights.slice_mut(copy * bytes..(copy + 1) * bytes);
            stream.memcpy_htod(&operands.weights, &mut place).map_err(failed)?;
        }
        let x = stream.clone_htod(&operands.x).map_err(failed)?;
        let mut y = stream.alloc_zeros::<u8>(m * n * out_width).map_err(failed)?;
        let mut workspace = stream.alloc_zeros::<u8>(WORKSPACE).map_err(failed)?;
        // Rows of ours are the columns of the library: y^T = (w^T)^T x^T.
        let (w_layout, x_layout) = (Layout::new(ty, k, n)?, Layout::new(ty, k, m)?);
        let y_layout = Layout::new(out, n, m)?;
        let description =
            result::create_matmul_desc(compute, scale).map(Description).map_err(refused("a product"))?;
        let algorithm = self.algorithm(&description, [&w_layout, &x_layout, &y_layout])?;
        // The numbers one and zero of the scale's type.
        let (one, zero) = match kind {
            Kind::Int8 => (1u32, 0u32),
            Kind::F16 => (1f32.to_bits(), 0),
        };
        let (w_at, _w) = weights.device_ptr(stream);
        let (x_at, _x) = x.device_ptr(stream);
        let (y_at, _y) = y.device_ptr_mut(stream);
        let (workspace_at, _workspace) = workspace.device_ptr_mut(stream);
        let product = |copy: usize| {
            // SAFETY: the memory has the sizes of the layouts, and lives until the last wait below.
            unsafe {
                result::matmul(
                    self.handle,
                    description.0,
                    (&raw const one).cast(),
                    (&raw const zero).cast(),
                    (w_at + (copy * bytes) as u64) as *const c_void,
                    w_layout.0,
                    x_at as *const c_void,
                    x_layout.0,
                    y_at as *const c_void,
                    y_layout.0,
                    y_at as *mut c_void,
                    y_layout.0,
                    &raw const algorithm,
                    workspace_at as *mut c_void,
                    WORKSPACE,
                    stream.cu_stream().cast(),
                )
            }
        };
        product(0).map_err(refused("the product"))?;
        stream.synchronize().map_err(failed)?;
        let mut result = vec![0u8; m * n * out_width];
        // SAFETY: so many bytes lie there, which the product has written; nothing else is enqueued.
        unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut result, y_at) }.map_err(failed)?;
        check(kind, &operands, (m, n, k), &result)?;
        self.timed(product, copies.max(1), rounds)
    }

    /// What the library would multiply matrices of these layouts with: the first, transposed, by the second into the third.
    fn algorithm(
        &self,
        description: &Description,
        [w, x, y]: [&Layout; 3],
    ) -> Result<sys::cublasLtMatmulAlgo_t, String> {
        // CUBLAS_OP_T, which the bindings leave out, and the bytes of the workspace.
        let (transposed, room) = (1i32, WORKSPACE);
        let preference = result::create_matmul_pref().map(Preference).map_err(refused("a preference"))?;
        // SAFETY: the attributes have the types that the library documents, and live during the calls.
        let found = unsafe {
            result::set_matmul_desc_attribute(
                description.0,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of_val(&transposed),
            )
            .and_then(|()| {
                result::set_matmul_pref_attribute(
                    preference.0,
                    sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    (&raw const room).cast(),
                    size_of_val(&room),
                )
            })
            .and_then(|()| {
                result::get_matmul_algo_heuristic(
                    self.handle,
                    description.0,
                    w.0,
                    x.0,
                    y.0,
                    y.0,
                    preference.0,
                )
            })
        };
        found.map(|found| found.algo).map_err(refused("it has no kernel for this shape"))
    }

    /// Median seconds of a product that is enqueued for one of `copies` of the weights at a time.
    fn timed(
        &self,
        product: impl Fn(usize) -> Result<(), result::CublasError>,
        copies: usize,
        rounds: usize,
    ) -> Result<f64, String> {
        let stream = &self.stream;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(failed)?;
        let batch = BATCH.next_multiple_of(copies);
        let enqueued = (0..batch).try_for_each(|i| product(i % copies));
        // Ended in any case: the stream is of no use before.
        let graph = stream
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
            .map_err(failed)?;
        enqueued.map_err(refused("the product"))?;
        let graph = graph.ok_or_else(|| "the driver captured nothing".to_owned())?;
        let (mut times, launches) = (Vec::new(), launches(batch, rounds));
        let event = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed);
        for _ in 0..rounds {
            // As our own products are timed: warm, and many between two readings of the clock.
            graph.launch().map_err(failed)?;
            let begin = event()?;
            (0..launches).try_for_each(|_| graph.launch()).map_err(failed)?;
            let milliseconds = begin.elapsed_ms(&event()?).map_err(failed)?;
            times.push(f64::from(milliseconds) / 1e3 / (launches * batch) as f64);
        }
        Ok(median(&mut times))
    }
}
