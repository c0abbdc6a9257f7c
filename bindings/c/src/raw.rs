//! Pointers from C, checked as far as they can be.

use crate::error::{Failure, c_text, gm_status};
use serde::Serialize;
use std::ffi::{CStr, c_char};
use std::ops::Range;

/// Refuses what no slice may be: null, misaligned, or longer than memory. `None` for a null pointer to nothing.
fn check<T>(pointer: *const T, len: usize, what: &str) -> Result<Option<Range<usize>>, Failure> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    let end = bytes.and_then(|bytes| pointer.addr().checked_add(bytes));
    let Some(end) = end else {
        return Err(Failure::argument(format!("{what}: {len} elements are more than memory can hold")));
    };
    if pointer.is_null() {
        return match len {
            0 => Ok(None),
            _ => Err(Failure::argument(format!("{what} is NULL, expected {len} elements"))),
        };
    }
    if !pointer.is_aligned() {
        let align = align_of::<T>();
        return Err(Failure::argument(format!("{what} is not aligned to {align} bytes")));
    }
    Ok(Some(pointer.addr()..end))
}

/// A slice of `len` elements; a null pointer is an empty one.
///
/// # Safety
/// `len` elements are readable at `pointer`, and stay as they are for as long as the slice is used.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    match check(pointer, len, what)? {
        // SAFETY: not null, aligned and of a size that can be; the rest is the caller's promise.
        Some(_) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
        None => Ok(&[]),
    }
}

/// A slice to be written.
///
/// # Safety
/// `len` elements are writable at `pointer`, and nobody else uses them as long as the slice is used.
pub(crate) unsafe fn slice_mut<'a, T>(
    pointer: *mut T,
    len: usize,
    what: &str,
) -> Result<&'a mut [T], Failure> {
    match check(pointer, len, what)? {
        // SAFETY: not null, aligned and of a size that can be; the rest is the caller's promise.
        Some(_) => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) }),
        None => Ok(&mut []),
    }
}

/// Refuses an output that shares memory with an input: a slice of Rust may not.
pub(crate) fn apart<I, O>(input: &[I], output: *mut O, output_len: usize, what: &str) -> Result<(), Failure> {
    let Some(output) = check(output.cast_const(), output_len, what)? else { return Ok(()) };
    let input = input.as_ptr_range();
    match input.start.addr() < output.end && output.start < input.end.addr() {
        true => Err(Failure::argument(format!("{what} overlaps an input: give it memory of its own"))),
        false => Ok(()),
    }
}

/// A text; `None` for a null pointer.
///
/// # Safety
/// A text that ends with a zero byte, which stays as it is for as long as the result is used.
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// A text.
///
/// # Safety
/// As for [`optional_text`].
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: passed on to the caller.
    unsafe { optional_text(pointer, what) }?.ok_or_else(|| Failure::argument(format!("{what} is NULL")))
}

/// What a handle stands for.
///
/// # Safety
/// Null, or a handle that this library gave and that is not freed while the result is used.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument(format!("{what} is NULL")))
}

/// Where a result goes.
///
/// # Safety
/// Null, or writable and used by nobody else.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    if !pointer.is_null() && !pointer.is_aligned() {
        return Err(Failure::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    // SAFETY: the caller's promise; aligned.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::argument(format!("{what} is NULL")))
}

/// Where a handle or a text goes that is made: NULL until it is.
///
/// # Safety
/// As for [`place`].
pub(crate) unsafe fn made<'a, T>(pointer: *mut *mut T, what: &str) -> Result<&'a mut *mut T, Failure> {
    // SAFETY: the caller's promise.
    let place = unsafe { place(pointer, what) }?;
    *place = std::ptr::null_mut();
    Ok(place)
}

/// Frees what a handle stands for, where it is not null.
///
/// # Safety
/// Null, or a handle that was made by [`Box::into_raw`] and is not used any more.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise.
        let owned = unsafe { Box::from_raw(pointer) };
        // A panic must not cross the border, and nobody is left to be told of it.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(owned)));
    }
}

/// A text that C frees with `gm_string_free`.
pub(crate) fn owned_text(text: String) -> *mut c_char {
    c_text(text).into_raw()
}

/// The same of what has a JSON form.
pub(crate) fn owned_json(value: &impl Serialize) -> Result<*mut c_char, Failure> {
    let text = serde_json::to_string(value);
    text.map(owned_text).map_err(|error| Failure::new(gm_status::GM_INTERNAL, error.to_string()))
}
