//! Memory that is read soon.

use crate::memory::aligned::LINE;

/// Asks the processor to bring the memory of `values` into its caches, and does not wait for it: for readers who know what they read
/// next, since what a processor guesses ends where a page does. A few KiB at a time, of which the first are read some hundred
/// nanoseconds later. On processors for which there is no such instruction here (neither x86-64 nor aarch64) nothing happens.
#[inline]
pub fn prefetch<T>(values: &[T]) {
    let start = values.as_ptr().cast::<u8>();
    for at in (0..size_of_val(values)).step_by(LINE) {
        line(start.wrapping_add(at));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch touches no memory that the program could notice, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn line(address: *const u8) {
    // SAFETY: NEON is there on this architecture.
    unsafe { crate::simd::neon::prefetch(address) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn line(_: *const u8) {}
