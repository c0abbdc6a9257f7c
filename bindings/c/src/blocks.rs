//! f32 to the bytes of a format, and back.

use crate::error::{attempt, gm_status};
use crate::raw;
use crate::threads::{gm_threads, threads};
use gristmill::{Dequantizer, QuantizedMatrix, Quantizer, REGISTRY, Request, languages};
use std::ffi::c_char;

/// Quantizes `n` rows of `k` values, row after row: `values_len` is n * k, `blocks_len` what `gm_format_bytes` says.
/// `quantizer` is one of the format's, its first where NULL. After an error `blocks` holds nothing of use. One thread.
///
/// # Safety
/// Texts are NULL or texts; the buffers have the lengths that are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_quantize(
    format: *const c_char,
    quantizer: *const c_char,
    n: usize,
    k: usize,
    values: *const f32,
    values_len: usize,
    blocks: *mut u8,
    blocks_len: usize,
) -> gm_status {
    // SAFETY: the caller's promise.
    unsafe {
        gm_quantize_on(format, quantizer, n, k, values, values_len, blocks, blocks_len, std::ptr::null())
    }
}

/// Quantizes `n` rows of `k` values, row after row: `values_len` is n * k, `blocks_len` what `gm_format_bytes` says.
/// `quantizer` is one of the format's, its first where NULL. After an error `blocks` holds nothing of use. The bytes are the same
/// for any `threads`; NULL is the calling one alone.
///
/// # Safety
/// Texts are NULL or texts, `threads` is NULL or a handle; the buffers have the lengths that are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_quantize_on(
    format: *const c_char,
    quantizer: *const c_char,
    n: usize,
    k: usize,
    values: *const f32,
    values_len: usize,
    blocks: *mut u8,
    blocks_len: usize,
    threads: *const gm_threads,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let (format, quantizer) =
            unsafe { (raw::text(format, "format")?, raw::optional_text(quantizer, "quantizer")?) };
        // SAFETY: likewise.
        let values = unsafe { raw::slice(values, values_len, "values") }?;
        raw::apart(values, blocks, blocks_len, "blocks")?;
        // SAFETY: the caller's promise, and nothing that is read overlaps it.
        let blocks = unsafe { raw::slice_mut(blocks, blocks_len, "blocks") }?;
        // SAFETY: likewise.
        let used = unsafe { self::threads(threads) };
        let prepared = languages::prepared(&REGISTRY, &Request::quantize(format, quantizer, n, k))?;
        Quantizer::new(&prepared.decide_as_asked())?.run_on(values, n, k, blocks, used)?;
        Ok(())
    })
}

/// The values of `rows` rows from `first_row` on of a tensor of `n` rows of `k` weights: `values_len` is rows * k. One thread.
///
/// # Safety
/// `format` is NULL or a text; the buffers have the lengths that are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_dequantize(
    format: *const c_char,
    n: usize,
    k: usize,
    blocks: *const u8,
    blocks_len: usize,
    first_row: usize,
    rows: usize,
    values: *mut f32,
    values_len: usize,
) -> gm_status {
    // SAFETY: the caller's promise.
    unsafe {
        gm_dequantize_on(
            format,
            n,
            k,
            blocks,
            blocks_len,
            first_row,
            rows,
            values,
            values_len,
            std::ptr::null(),
        )
    }
}

/// The values of `rows` rows from `first_row` on of a tensor of `n` rows of `k` weights: `values_len` is rows * k.
/// They are the same for any `threads`; NULL is the calling one alone.
///
/// # Safety
/// `format` is NULL or a text, `threads` NULL or a handle; the buffers have the lengths that are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gm_dequantize_on(
    format: *const c_char,
    n: usize,
    k: usize,
    blocks: *const u8,
    blocks_len: usize,
    first_row: usize,
    rows: usize,
    values: *mut f32,
    values_len: usize,
    threads: *const gm_threads,
) -> gm_status {
    attempt(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { raw::text(format, "format") }?;
        // SAFETY: likewise.
        let blocks = unsafe { raw::slice(blocks, blocks_len, "blocks") }?;
        raw::apart(blocks, values, values_len, "values")?;
        // SAFETY: the caller's promise, and nothing that is read overlaps it.
        let values = unsafe { raw::slice_mut(values, values_len, "values") }?;
        let matrix = QuantizedMatrix::new(REGISTRY.format(name)?.1, n, k, blocks)?;
        let last = first_row.checked_add(rows).ok_or(gristmill::Error::TooLarge { what: "the rows" })?;
        // SAFETY: likewise.
        let used = unsafe { self::threads(threads) };
        let prepared = languages::prepared(&REGISTRY, &Request::dequantize(name, n, k))?;
        Dequantizer::new(&prepared.decide_as_asked())?.rows_on(&matrix, first_row..last, values, used)?;
        Ok(())
    })
}
