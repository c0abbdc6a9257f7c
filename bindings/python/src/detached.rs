//! Work without the GIL, and the end of the interpreter.
//!
//! CPython before 3.14 ends a daemon thread that wants the GIL of an interpreter that is ending with `pthread_exit`, which
//! unwinds through frames of Rust and aborts the process. So the end waits until no call of this module is without the GIL, and
//! calls that come later keep it.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Calls that have released the GIL and not yet got it back. Changed with the GIL held.
static DETACHED: AtomicUsize = AtomicUsize::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);

struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        DETACHED.fetch_sub(1, Ordering::Release);
    }
}

/// Runs `run` with the GIL released, where the interpreter is not ending.
pub(crate) fn detached<T: Send>(py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
    if ENDING.load(Ordering::Acquire) {
        return run();
    }
    DETACHED.fetch_add(1, Ordering::Relaxed);
    // Dropped when the GIL is back.
    let _counted = Counted;
    py.detach(run)
}

#[pyfunction]
fn at_exit(py: Python<'_>) {
    ENDING.store(true, Ordering::Release);
    py.detach(|| {
        while DETACHED.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// The calls of other threads went on in the parent alone.
#[pyfunction]
fn in_child() {
    DETACHED.store(0, Ordering::Release);
}

/// Lets the interpreter say when it ends and when it was forked.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(at_exit, module)?,))?;
    let os = py.import("os")?;
    if os.hasattr("register_at_fork")? {
        let hooks = pyo3::types::PyDict::new(py);
        hooks.set_item("after_in_child", wrap_pyfunction!(in_child, module)?)?;
        os.call_method("register_at_fork", (), Some(&hooks))?;
    }
    Ok(())
}
