//! What can be said of CUDA kernels without a GPU: how many of their blocks a multiprocessor holds, and how long they should take.
#![cfg(feature = "cli")]

mod occupancy;
mod predictions;

/// Says why a test was not run, or fails where that is not allowed.
fn skipped(why: &str) {
    assert!(std::env::var_os("GRISTMILL_NO_SKIP").is_none_or(|value| value != "1"), "{why}");
    println!("skipped: {why}");
}
