//! Lets calls of the fake driver that this process has loaded fail, and its memory.

use super::fake::call;

/// Call number `calls` of `device` from now on fails with `error`, once; its context may not survive that.
pub fn at(device: u32, calls: i32, error: u32) {
    twice(device, [calls, -1], error);
}

/// The same, and call number `behind` from there on fails so too.
pub fn twice(device: u32, [calls, behind]: [i32; 2], error: u32) {
    type Fail = unsafe extern "C" fn(u32, i32, i32, u32);
    // SAFETY: it sets numbers.
    call("gm_fake_fail", |fail: Fail| unsafe { fail(device, calls, behind, error) });
}

/// Whether it came to that call.
pub fn has_failed(device: u32) -> bool {
    failures(device) > 0
}

/// How many of these calls it came to.
pub fn failures(device: u32) -> u32 {
    // SAFETY: it reads a number.
    call("gm_fake_failures", |failures: unsafe extern "C" fn(u32) -> u32| unsafe { failures(device) })
}

/// Inverts the bits of the largest allocation on `device`; its bytes.
pub fn corrupt(device: u32) -> u64 {
    // SAFETY: it writes to memory that the driver gave away, which no other thread uses meanwhile.
    call("gm_fake_corrupt", |corrupt: unsafe extern "C" fn(u32) -> u64| unsafe { corrupt(device) })
}
