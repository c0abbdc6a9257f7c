//! Loses devices of the fake driver that this process has loaded.

use super::fake::call;

fn set(device: u32, calls: i32) {
    // SAFETY: it sets numbers.
    call("gm_fake_lose", |lose: unsafe extern "C" fn(u32, i32)| unsafe { lose(device, calls) });
}

/// Device `device` is lost in front of its call number `calls` from now on.
pub fn at(device: u32, calls: i32) {
    set(device, calls);
}

/// It is whole again, in a context that is made from now on.
pub fn never(device: u32) {
    set(device, -1);
}

/// Whether it was lost.
pub fn is_lost(device: u32) -> bool {
    // SAFETY: it reads a number.
    call("gm_fake_is_lost", |lost: unsafe extern "C" fn(u32) -> bool| unsafe { lost(device) })
}
