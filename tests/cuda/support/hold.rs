//! Two threads and the fake driver in every order: one is held in front of each of its calls in turn, and the other does
//! all of its work there.

use libloading::{Library, Symbol};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The driver that this process has loaded.
struct Driver(Library);

impl Driver {
    fn loaded() -> Driver {
        // SAFETY: the fake driver, which is loaded already; its initializers only read the environment.
        Driver(unsafe { Library::new("libcuda.so.1") }.expect("this is a process with a fake driver"))
    }

    fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the types are those of the functions in driver.cc.
        let symbol: Symbol<'_, F> = unsafe { self.0.get(name) }.expect("the fake driver has it");
        *symbol
    }

    /// Stops this thread in front of its call number `calls` from now on; below 0 of none.
    fn hold(&self, calls: i32) {
        // SAFETY: it sets numbers.
        unsafe { self.call::<unsafe extern "C" fn(i32)>("gm_fake_hold")(calls) }
    }

    fn holds(&self) -> bool {
        // SAFETY: it reads a number.
        unsafe { self.call::<unsafe extern "C" fn() -> bool>("gm_fake_holds")() }
    }

    fn go(&self) {
        // SAFETY: it sets a number.
        unsafe { self.call::<unsafe extern "C" fn()>("gm_fake_go")() }
    }
}

/// Runs `theirs` on a thread of its own, held in front of its first call of the driver, then anew and held in front of its
/// second, and so on until it makes no more. Held there, `ours` runs, and what it is given lets the other thread go on and
/// waits for it for a while. Then `check` gets what `theirs` returned. How many calls there were.
///
/// A thread that holds a lock which `ours` waits for is let go after a moment.
pub fn at_every_call<T: Send>(
    theirs: impl Fn() -> T + Sync,
    ours: impl Fn(&dyn Fn()),
    mut check: impl FnMut(T),
) -> i32 {
    let driver = Driver::loaded();
    for call in 0.. {
        driver.hold(-1);
        let done = AtomicBool::new(false);
        let wait_for = |what: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !what() && start.elapsed() < Duration::from_secs(2) {
                thread::sleep(Duration::from_micros(100));
            }
        };
        let (outcome, held) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                driver.hold(call);
                let outcome = theirs();
                done.store(true, Ordering::Release);
                outcome
            });
            wait_for(&|| driver.holds() || done.load(Ordering::Acquire));
            let held = driver.holds();
            ours(&|| {
                driver.go();
                wait_for(&|| done.load(Ordering::Acquire));
            });
            driver.go();
            (other.join().expect("no panic"), held)
        });
        check(outcome);
        if !held {
            return call;
        }
    }
    i32::MAX
}
