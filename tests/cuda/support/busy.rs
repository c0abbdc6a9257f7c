//! Keeps devices of the fake driver busy that this process has loaded.

use super::fake::call;

/// Devices do nothing that is enqueued until the result is dropped; who waits for them does so meanwhile, for some seconds at most.
pub fn devices() -> Busy {
    set(true);
    Busy
}

pub struct Busy;

impl Drop for Busy {
    fn drop(&mut self) {
        set(false);
    }
}

fn set(are: bool) {
    // SAFETY: it sets a flag.
    call("gm_fake_busy", |busy: unsafe extern "C" fn(bool)| unsafe { busy(are) });
}
