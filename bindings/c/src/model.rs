//! GGUF files.

use crate::error::{Failure, attempt, gm_status};
use crate::guard::gm_guard;
use crate::linear::gm_linear;
use crate::query::device_named;
use crate::raw;
use crate::threads::{gm_threads, threads};
use gristmill::gguf::{LayerOptions, Model};
use gristmill::json;
use gristmill::languages::{self, Layer};
use std::ffi::c_char;

/// A GGUF file. Its header is in memory; a tensor is read when a layer is made of it.
#[derive(Debug)]
pub struct gm_model(Model);

/// Opens a file. `path` is UTF-8.
///
/// # Safety
/// `path` is NULL or a text; `model` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_model_open(path: *const c_char, model: *mut *mut gm_model) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (place, path) = unsafe { (raw::made(model, "model")?, raw::text(path, "path")?) };
        *place = Box::into_raw(Box::new(gm_model(Model::open(path)?)));
        Ok(())
    })
}

/// Closes a file; layers that were made of it stay. NULL is left alone.
///
/// # Safety
/// A handle of `gm_model_open` that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_model_free(model: *mut gm_model) {
    // SAFETY: the caller's promise.
    unsafe { raw::free(model) }
}

/// A decision for each tensor of the file and products of `m` tokens, before anything is loaded, as a JSON array of objects
/// with "tensor", "type", "dims", "quantized", "kernel" (null where there is none) and "reason".
///
/// # Safety
/// `model` is NULL or a handle, `device` NULL or a text, `text` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_model_plan(
    model: *const gm_model,
    m: usize,
    device: *const c_char,
    text: *mut *mut c_char,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (place, model, device) =
            unsafe { (raw::made(text, "text")?, raw::handle(model, "model")?, device_named(device)?) };
        *place = raw::owned_json(&json::plan(&model.0, device, m)?)?;
        Ok(())
    })
}

/// Makes the layer of a quantized matrix of the file: reads it, chooses kernels and packs the weights for them. As
/// `gm_linear_new` otherwise.
///
/// # Safety
/// Handles are NULL or handles, texts NULL or texts, `layer` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_model_linear(
    model: *const gm_model,
    tensor: *const c_char,
    device: *const c_char,
    threads: *const gm_threads,
    layer: *mut *mut gm_linear,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(layer, "layer") }?;
        // SAFETY: likewise.
        *place = unsafe { made(model, tensor, device, None, threads) }?;
        Ok(())
    })
}

/// As `gm_model_linear`, of a layer that goes on as `guard` says where a kernel or its device fails. It keeps the bytes of the matrix; the
/// model may be freed before it.
///
/// # Safety
/// As for `gm_model_linear`; `guard` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_model_linear_guarded(
    model: *const gm_model,
    tensor: *const c_char,
    device: *const c_char,
    guard: *const gm_guard,
    threads: *const gm_threads,
    layer: *mut *mut gm_linear,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (place, guard) = unsafe { (raw::made(layer, "layer")?, raw::handle(guard, "guard")?) };
        // SAFETY: likewise.
        *place = unsafe { made(model, tensor, device, Some(&guard.0), threads) }?;
        Ok(())
    })
}

/// # Safety
/// As for [`gm_model_linear`].
unsafe fn made(
    model: *const gm_model,
    tensor: *const c_char,
    device: *const c_char,
    guard: Option<&languages::Guard>,
    threads: *const gm_threads,
) -> Result<*mut gm_linear, Failure> {
    // SAFETY: the caller's promise.
    let (model, tensor, device, threads) = unsafe {
        (
            raw::handle(model, "model")?,
            raw::text(tensor, "tensor")?,
            device_named(device)?,
            self::threads(threads),
        )
    };
    let options = LayerOptions { threads, linear: languages::layer_on(device)? };
    Ok(gm_linear::of(Layer::of_model(&model.0, tensor, options, guard)?))
}
