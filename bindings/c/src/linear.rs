//! A layer: weights packed once, products of any number of tokens.

use crate::error::{Failure, gm_status, guard};
use crate::query::device_named;
use crate::raw;
use crate::threads::{gm_threads, gm_workspace, threads};
use gristmill::{Input, Linear, QuantizedMatrix, REGISTRY, Recording, Threads, languages};
use std::ffi::c_char;

/// A layer: `y = x w^T + bias` with quantized weights `w`, `n` rows of `k`. May be used by several threads at a time, each with
/// a workspace of its own.
#[derive(Debug)]
pub struct gm_linear {
    layer: Linear,
    recording: Recording,
}

/// A handle of a layer whose runs are recorded.
pub(crate) fn recorded(mut layer: Linear) -> Result<*mut gm_linear, Failure> {
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    Ok(Box::into_raw(Box::new(gm_linear { layer, recording })))
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
    guard(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(layer, "layer") }?;
        // SAFETY: likewise.
        let (name, blocks, device, threads): (_, _, _, &Threads) = unsafe {
            (
                raw::text(format, "format")?,
                raw::slice(blocks, blocks_len, "blocks")?,
                device_named(device)?,
                self::threads(threads),
            )
        };
        let matrix = QuantizedMatrix::new(REGISTRY.format(name)?.1, n, k, blocks)?;
        *place = recorded(Linear::new(&REGISTRY, &matrix, &languages::layer_on(device)?, threads)?)?;
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
    unsafe { layer.as_ref() }.map_or(0, |layer| layer.layer.n())
}

/// Inputs of a layer; 0 for NULL.
///
/// # Safety
/// NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_k(layer: *const gm_linear) -> usize {
    // SAFETY: the caller's promise.
    unsafe { layer.as_ref() }.map_or(0, |layer| layer.layer.k())
}

/// Bytes that a layer holds for its weights; 0 for NULL.
///
/// # Safety
/// NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_weight_bytes(layer: *const gm_linear) -> usize {
    // SAFETY: the caller's promise.
    unsafe { layer.as_ref() }.map_or(0, |layer| layer.layer.weight_bytes())
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
    guard(|| {
        // SAFETY: the caller's promise.
        let (layer, workspace, threads) = unsafe {
            (
                &raw::handle(layer, "layer")?.layer,
                raw::handle(workspace, "workspace")?,
                self::threads(threads),
            )
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
        workspace.grow(layer.workspace_size(m, threads)?)?;
        layer.forward(Input::F32(x), m, bias, y, &mut workspace, threads)?;
        Ok(())
    })
}

/// Which kernels ran for a layer since it was made, as JSON (a receipt of gristmill: "kernels" with "id", "name", "launches").
///
/// # Safety
/// `layer` is NULL or a handle; `text` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_linear_receipt(layer: *const gm_linear, text: *mut *mut c_char) -> gm_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (place, layer) = unsafe { (raw::made(text, "text")?, raw::handle(layer, "layer")?) };
        *place = raw::owned_text(layer.recording.receipt().to_json());
        Ok(())
    })
}
