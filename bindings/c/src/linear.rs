//! A layer: weights packed once, products of any number of tokens.

use crate::error::{Failure, attempt, gm_status};
use crate::guard::gm_guard;
use crate::query::device_named;
use crate::raw;
use crate::threads::{gm_threads, gm_workspace, threads};
use gristmill::languages::{self, Layer};
use gristmill::{QuantizedMatrix, REGISTRY, Threads};
use std::ffi::c_char;

/// A layer: `y = x w^T + bias` with quantized weights `w`, `n` rows of `k`. May be used by several threads at a time, each with
/// a workspace of its own.
#[derive(Debug)]
pub struct gm_linear(Layer);

impl gm_linear {
    /// A handle.
    pub(crate) fn of(layer: Layer) -> *mut gm_linear {
        Box::into_raw(Box::new(gm_linear(layer)))
    }
}

/// What a layer is made of, and where.
struct Making {
    format: *const c_char,
    n: usize,
    k: usize,
    blocks: *const u8,
    blocks_len: usize,
    device: *const c_char,
    threads: *const gm_threads,
}

impl Making {
    /// # Safety
    /// As for [`gm_linear_new`].
    unsafe fn layer(self, guard: Option<&languages::Guard>) -> Result<*mut gm_linear, Failure> {
        // SAFETY: the caller's promise.
        let (name, blocks, device, threads): (_, _, _, &Threads) = unsafe {
            (
                raw::text(self.format, "format")?,
                raw::slice(self.blocks, self.blocks_len, "blocks")?,
                device_named(self.device)?,
                threads(self.threads),
            )
        };
        let matrix = QuantizedMatrix::new(REGISTRY.format(name)?.1, self.n, self.k, blocks)?;
        let options = languages::layer_on(device)?;
        Ok(gm_linear::of(Layer::of_matrix(&REGISTRY, &matrix, options, guard, threads)?))
    }
}

/// Makes a layer of the bytes of a format: `n` rows of `k` weights. The bytes are packed for the kernels that were chosen
/// and not needed afterwards. `device` is "cpu" (where NULL), "cuda:0" and so on; `threads` pack (the calling one where
/// NULL). Strict: without a kernel it is an error, and nothing else runs instead.
///
/// # Safety
/// Texts are NULL or texts; `blocks` has the length that is said; `threads` is NULL or a handle; `layer` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_new(
    format: *const c_char,
    n: usize,
    k: usize,
    blocks: *const u8,
    blocks_len: usize,
    device: *const c_char,
    threads: *const gm_threads,
    layer: *mut *mut gm_linear,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(layer, "layer") }?;
        let making = Making { format, n, k, blocks, blocks_len, device, threads };
        // SAFETY: likewise.
        *place = unsafe { making.layer(None) }?;
        Ok(())
    })
}

/// As `gm_linear_new`, of a layer that goes on as `guard` says where a kernel or its device fails. It keeps a copy of the bytes.
///
/// # Safety
/// As for `gm_linear_new`; `guard` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_new_guarded(
    format: *const c_char,
    n: usize,
    k: usize,
    blocks: *const u8,
    blocks_len: usize,
    device: *const c_char,
    guard: *const gm_guard,
    threads: *const gm_threads,
    layer: *mut *mut gm_linear,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (place, guard) = unsafe { (raw::made(layer, "layer")?, raw::handle(guard, "guard")?) };
        let making = Making { format, n, k, blocks, blocks_len, device, threads };
        // SAFETY: likewise.
        *place = unsafe { making.layer(Some(&guard.0)) }?;
        Ok(())
    })
}

/// Frees a layer. NULL is left alone.
///
/// # Safety
/// A handle of a layer that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_free(layer: *mut gm_linear) {
    // SAFETY: the caller's promise.
    unsafe { raw::free(layer) }
}

/// Outputs of a layer; 0 for NULL.
///
/// # Safety
/// NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_n(layer: *const gm_linear) -> usize {
    // SAFETY: the caller's promise.
    unsafe { layer.as_ref() }.map_or(0, |layer| layer.0.n())
}

/// Inputs of a layer; 0 for NULL.
///
/// # Safety
/// NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_k(layer: *const gm_linear) -> usize {
    // SAFETY: the caller's promise.
    unsafe { layer.as_ref() }.map_or(0, |layer| layer.0.k())
}

/// Bytes that a layer holds for its weights; 0 for NULL.
///
/// # Safety
/// NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_weight_bytes(layer: *const gm_linear) -> usize {
    // SAFETY: the caller's promise.
    unsafe { layer.as_ref() }.map_or(0, |layer| layer.0.weight_bytes())
}

/// Bytes that a guard keeps for a layer besides; 0 without a guard and for NULL.
///
/// # Safety
/// NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_kept_bytes(layer: *const gm_linear) -> usize {
    // SAFETY: the caller's promise.
    unsafe { layer.as_ref() }.map_or(0, |layer| layer.0.kept_bytes())
}

/// Computes `m` rows of `n` outputs from `m` rows of `k` inputs: `x_len` is m * k, `y_len` is m * n. `bias` is NULL or has
/// `n` values. The workspace grows to what this layer and `m` need; `threads` is NULL for the calling thread alone. After an
/// error `y` holds nothing of use.
///
/// # Safety
/// Handles are NULL or handles; the buffers have the lengths that are said, and `y` is used by nobody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_forward(
    layer: *const gm_linear,
    x: *const f32,
    x_len: usize,
    m: usize,
    bias: *const f32,
    y: *mut f32,
    y_len: usize,
    workspace: *const gm_workspace,
    threads: *const gm_threads,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (layer, workspace, threads) = unsafe {
            (&raw::handle(layer, "layer")?.0, raw::handle(workspace, "workspace")?, self::threads(threads))
        };
        let bias_len = if bias.is_null() { 0 } else { layer.n() };
        // SAFETY: likewise.
        let (x, b) = unsafe { (raw::slice(x, x_len, "x")?, raw::slice(bias, bias_len, "bias")?) };
        raw::apart(x, y, y_len, "y")?;
        raw::apart(b, y, y_len, "y")?;
        // SAFETY: the caller's promise, and nothing that is read overlaps it.
        let y = unsafe { raw::slice_mut(y, y_len, "y") }?;
        let bias = if bias.is_null() { None } else { Some(b) };
        let mut workspace = workspace.take()?;
        layer.forward(x, m, bias, y, &mut workspace, threads)?;
        Ok(())
    })
}

/// Which kernels ran for a layer since it was made, as JSON (a receipt of gristmill: "kernels" with "id", "name", "launches"), and
/// what was done, if one failed ("recoveries").
///
/// # Safety
/// `layer` is NULL or a handle; `text` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_receipt(layer: *const gm_linear, text: *mut *mut c_char) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (place, layer) = unsafe { (raw::made(text, "text")?, raw::handle(layer, "layer")?) };
        *place = raw::owned_text(layer.0.receipt().to_json());
        Ok(())
    })
}
