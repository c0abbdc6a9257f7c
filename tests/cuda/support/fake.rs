//! Functions of the fake driver that a real one has not.

use libloading::{Library, Symbol};

/// Calls the function `name` of the driver that this process has loaded.
pub fn call<F: Copy, R>(name: &str, act: impl FnOnce(F) -> R) -> R {
    // SAFETY: the fake driver, which is loaded already; its initializers only read the environment.
    let driver = unsafe { Library::new("libcuda.so.1") }.expect("this is a process with a fake driver");
    // SAFETY: the types are those of the functions in driver.cc.
    let symbol: Symbol<'_, F> = unsafe { driver.get(name) }.expect("the fake driver has it");
    act(*symbol)
}
