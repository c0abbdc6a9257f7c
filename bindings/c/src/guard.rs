//! How layers go on where a kernel or their device fails.

use crate::error::{attempt, gm_status};
use crate::raw;
use gristmill::languages::Guard;
use gristmill::{REGISTRY, json};
use std::ffi::c_char;

/// How layers go on where a kernel or their device fails, and which kernels are not to be used any more: one for all layers of a program. May be
/// used by several threads at a time.
#[derive(Debug)]
pub struct gm_guard(pub(crate) Guard);

/// A guard: one run of `check_every` of a layer is compared with the portable kernel, in one output; where a device fails its layers move to the
/// processor if `to_processor`, and one run of `return_every` tries the device again. 0 is never. Without `to_processor` the errors of a device
/// for which no other step helps are the caller's. GRISTMILL_QUARANTINE in the environment names a folder that keeps the kernels.
///
/// # Safety
/// `guard` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_guard_new(
    check_every: u64,
    to_processor: bool,
    return_every: u64,
    guard: *mut *mut gm_guard,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { raw::made(guard, "guard") }?;
        let made = Guard::new(check_every, to_processor, return_every)?;
        *place = Box::into_raw(Box::new(gm_guard(made)));
        Ok(())
    })
}

/// Frees a guard; its layers stay guarded. NULL is left alone.
///
/// # Safety
/// A handle of `gm_guard_new` that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_guard_free(guard: *mut gm_guard) {
    // SAFETY: the caller's promise.
    unsafe { raw::free(guard) }
}

/// Puts the kernel of this name into quarantine, for the reason `why`: layers under the guard do without it from their next run on.
///
/// # Safety
/// `guard` is NULL or a handle, `kernel` and `why` NULL or texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_guard_forbid(
    guard: *const gm_guard,
    kernel: *const c_char,
    why: *const c_char,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (guard, kernel, why) =
            unsafe { (raw::handle(guard, "guard")?, raw::text(kernel, "kernel")?, raw::text(why, "why")?) };
        guard.0.forbid(&REGISTRY, kernel, why)?;
        Ok(())
    })
}

/// The kernels in quarantine, as a JSON array of objects with "id", "kernel" (null where its name is not known) and "why".
///
/// # Safety
/// `guard` is NULL or a handle; `text` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_guard_quarantined_json(
    guard: *const gm_guard,
    text: *mut *mut c_char,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (place, guard) = unsafe { (raw::made(text, "text")?, raw::handle(guard, "guard")?) };
        *place = raw::owned_json(&json::quarantined(guard.0.quarantine()))?;
        Ok(())
    })
}
