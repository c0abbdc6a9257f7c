//! What this build holds, and how it decides.

use crate::error::{Failure, gm_status, guard};
use crate::raw;
use gristmill::vocab::{DType, Op};
use gristmill::{
    CpuProfile, Device, PrecisionMode, Prepared, REGISTRY, Request, Restrict, Shape, Tuning, json,
};
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
    guard(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(text, "text") }?;
        let formats: Vec<_> = REGISTRY.formats.iter().map(|format| json::format(&REGISTRY, format)).collect();
        *place = raw::owned_json(&formats)?;
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
    guard(|| {
        // SAFETY: the caller's promise.
        let (place, only) = unsafe { (raw::made(text, "text")?, raw::optional_text(format, "format")?) };
        if let Some(only) = only {
            REGISTRY.format(only)?;
        }
        let kernels: Vec<_> = REGISTRY
            .entries
            .iter()
            .filter(|entry| only.is_none_or(|only| json::format_name(&REGISTRY, entry) == only))
            .map(|entry| json::kernel(&REGISTRY, entry))
            .collect();
        *place = raw::owned_json(&kernels)?;
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
    guard(|| {
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
    let (op, format, input) =
        unsafe { (raw::text(op, "op")?, raw::text(format, "format")?, raw::optional_text(input, "input")?) };
    let unknown = |what: &str, name: &str, known: Vec<&str>| {
        let known = known.join(", ");
        Failure::new(
            gm_status::GM_UNKNOWN_NAME,
            format!("unknown {what} `{name}`\n  help: there are {known}"),
        )
    };
    let op =
        Op::from_name(op).ok_or_else(|| unknown("op", op, Op::ALL.iter().map(|op| op.name()).collect()))?;
    let input = match input {
        None => DType::F32,
        Some(input) => DType::from_name(input)
            .ok_or_else(|| unknown("type", input, DType::ALL.iter().map(|dtype| dtype.name()).collect()))?,
    };
    // SAFETY: passed on to the caller.
    let device = unsafe { device_named(device) }?;
    let precision = PrecisionMode::Int8;
    let request = Request {
        op,
        format,
        quantizer: None,
        input,
        device,
        shape,
        precision,
        working_set: None,
        threads: 1,
    };
    // The same as layers are made with: of the environment nothing counts but kernels in quarantine.
    let restrict = Restrict::of_quarantine()?;
    Ok(REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &restrict, &Tuning::none())?)
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
    guard(|| {
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
    guard(|| {
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
    guard(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(text, "text") }?;
        // SAFETY: likewise.
        let prepared = unsafe { prepared(op, format, input, device, Shape::new(m, n, k)) }?;
        *place = raw::owned_json(&json::decision(&prepared.decide_as_asked()))?;
        Ok(())
    })
}
