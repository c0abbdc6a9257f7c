//! Loses devices of the fake driver that this process has loaded.

use libloading::{Library, Symbol};

fn call<F: Copy, R>(name: &str, act: impl FnOnce(F) -> R) -> R {
    // SAFETY: the fake driver, which is loaded already; its initializers only read the environment.
    let driver = unsafe { Library::new("libcuda.so.1") }.expect("this is a process with a fake driver");
    // SAFETY: the types are those of the functions in driver.cc.
    let symbol: Symbol<'_, F> = unsafe { driver.get(name) }.expect("the fake driver has it");
    act(*symbol)
}

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
