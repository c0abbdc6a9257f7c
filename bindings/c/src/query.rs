//! What this build holds, and how it decides.

use crate::error::{Failure, attempt, gm_status};
use crate::raw;
use gristmill::{Device, Prepared, REGISTRY, Shape, json, languages};
use std::ffi::c_char;

/// Frees a text that a function of this library gave. NULL is left alone.
///
/// # Safety
/// A text of this library that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: such texts are made by `CString::into_raw`.
        drop(unsafe { std::ffi::CString::from_raw(text) });
    }
}

/// The formats of this build, as a JSON array of objects with "name", "elements" and "bytes" of a block, "quantizers" and more.
///
/// # Safety
/// `text` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_formats_json(text: *mut *mut c_char) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(text, "text") }?;
        *place = raw::owned_json(&json::formats(&REGISTRY))?;
        Ok(())
    })
}

/// The kernels of this build (with NULL), or those of a format, as a JSON array of objects with "name", "op", "format", "isa",
/// "runs_here", "shape" and more.
///
/// # Safety
/// `format` is NULL or a text; `text` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_kernels_json(format: *const c_char, text: *mut *mut c_char) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (place, only) = unsafe { (raw::made(text, "text")?, raw::optional_text(format, "format")?) };
        *place = raw::owned_json(&json::kernels(&REGISTRY, only)?)?;
        Ok(())
    })
}

/// Bytes of a tensor of `n` rows of `k` weights in a format.
///
/// # Safety
/// `format` is NULL or a text; `bytes` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_format_bytes(
    format: *const c_char,
    n: usize,
    k: usize,
    bytes: *mut usize,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (format, place) = unsafe { (raw::text(format, "format")?, raw::place(bytes, "bytes")?) };
        *place = REGISTRY.format(format)?.1.tensor_bytes(n, k)?;
        Ok(())
    })
}

/// # Safety
/// The texts are null or texts.
unsafe fn prepared(
    op: *const c_char,
    format: *const c_char,
    input: *const c_char,
    device: *const c_char,
    shape: Shape,
) -> Result<Prepared, Failure> {
    // SAFETY: passed on to the caller.
    let (op, format, input, device) = unsafe {
        (
            raw::text(op, "op")?,
            raw::text(format, "format")?,
            raw::optional_text(input, "input")?,
            raw::optional_text(device, "device")?,
        )
    };
    let request = languages::request(op, format, input.unwrap_or("f32"), device.unwrap_or("cpu"), shape)?;
    Ok(languages::prepared(&REGISTRY, &request)?)
}

/// The device of a name; the processor where there is none.
///
/// # Safety
/// Null or a text.
pub(crate) unsafe fn device_named(device: *const c_char) -> Result<Device, Failure> {
    // SAFETY: passed on to the caller.
    match unsafe { raw::optional_text(device, "device") }? {
        Some(name) => Ok(name.parse::<Device>()?),
        None => Ok(Device::CPU),
    }
}

/// The name of the kernel that serves a request. Without one the status is GM_NO_KERNEL and the message says why.
///
/// `op` is the name of an op ("matmul"; a wrong one is answered with all of them); `input` the type of the operand that is
/// not packed ("f32" where NULL); `device` "cpu" (where NULL), "cuda:0" and so on.
///
/// # Safety
/// Texts are NULL or texts; `kernel` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_decide(
    op: *const c_char,
    format: *const c_char,
    input: *const c_char,
    device: *const c_char,
    m: usize,
    n: usize,
    k: usize,
    kernel: *mut *mut c_char,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(kernel, "kernel") }?;
        // SAFETY: likewise.
        let prepared = unsafe { prepared(op, format, input, device, Shape::new(m, n, k)) }?;
        *place = raw::owned_text(prepared.decide_as_asked().kernel()?.name.to_owned());
        Ok(())
    })
}

/// Which kernel serves a request and why not the others, as text for people. That there is none is an answer too: GM_OK.
///
/// # Safety
/// As for `gm_decide`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_explain(
    op: *const c_char,
    format: *const c_char,
    input: *const c_char,
    device: *const c_char,
    m: usize,
    n: usize,
    k: usize,
    text: *mut *mut c_char,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(text, "text") }?;
        // SAFETY: likewise.
        let prepared = unsafe { prepared(op, format, input, device, Shape::new(m, n, k)) }?;
        *place = raw::owned_text(prepared.decide_as_asked().to_string());
        Ok(())
    })
}

/// The same as one JSON object: "chosen" (null where there is none), "plan", "memory", and "rejected" as an array of
/// {"kernel", "reason", "help"}.
///
/// # Safety
/// As for `gm_decide`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_explain_json(
    op: *const c_char,
    format: *const c_char,
    input: *const c_char,
    device: *const c_char,
    m: usize,
    n: usize,
    k: usize,
    text: *mut *mut c_char,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(text, "text") }?;
        // SAFETY: likewise.
        let prepared = unsafe { prepared(op, format, input, device, Shape::new(m, n, k)) }?;
        *place = raw::owned_json(&json::decision(&prepared.decide_as_asked()))?;
        Ok(())
    })
}
