//! Launches as spans of `tracing`: those whose time a monitor takes, from their beginning to their end, on the thread that launches.
//!
//! A span is called `launch`, of target `gristmill` and level DEBUG, with the fields `kernel`, `op`, `device`, `m`, `n`, `k`, and at
//! its end `bytes_in`, `bytes_out`, `us` and `fault`. Fallbacks and steps of recovery are events of level WARN. Where no subscriber
//! wants them, `tracing` looks at one flag.

use gristmill_runtime::observe::{FellBack, Launch};
use gristmill_runtime::{Recovery, Registry, Shape};
use std::cell::RefCell;
use tracing::field::Empty;
use tracing::span::EnteredSpan;

thread_local! {
    /// The launch that has begun on this thread and has a span, by its kernel.
    static OPEN: RefCell<Option<(usize, EnteredSpan)>> = const { RefCell::new(None) };
}

/// A launch whose time is taken begins.
pub(crate) fn begin(registry: &'static Registry, index: usize, shape: Shape) {
    let Some(entry) = registry.entries.get(index) else { return };
    let Shape { m, n, k } = shape;
    let span = tracing::debug_span!(
        target: "gristmill",
        "launch",
        kernel = entry.name,
        op = entry.op.name(),
        device = entry.device.name(),
        m,
        n,
        k,
        bytes_in = Empty,
        bytes_out = Empty,
        us = Empty,
        fault = Empty,
    );
    if span.is_disabled() {
        return;
    }
    // One that a panic left open ends before the next one begins.
    OPEN.with_borrow_mut(|open| {
        drop(open.take());
        *open = Some((index, span.entered()));
    });
}

/// A launch ended.
pub(crate) fn end(launch: &Launch) {
    let taken = OPEN.with_borrow_mut(|open| open.take_if(|(index, _)| *index == launch.index));
    let Some((_, span)) = taken else { return };
    span.record("bytes_in", launch.bytes_in as u64);
    span.record("bytes_out", launch.bytes_out as u64);
    if let Some(time) = launch.time {
        span.record("us", time.as_secs_f64() * 1e6);
    }
    if let Some(fault) = launch.fault {
        span.record("fault", fault);
    }
}

pub(crate) fn fell_back(fallback: &FellBack<'_>) {
    let FellBack { policy, op, format, device, reason, instead } = fallback;
    tracing::warn!(target: "gristmill", policy, op = op.name(), format, %device, reason, instead, "fallback");
}

pub(crate) fn recovered(recovery: &Recovery) {
    tracing::warn!(
        target: "gristmill",
        step = recovery.step.name(),
        kernel = recovery.kernel,
        format = recovery.format.as_str(),
        success = recovery.success,
        reason = recovery.reason.as_str(),
        "recovery"
    );
}
