//! Layers that are made, run and dropped, many times: whether memory comes back.

use super::asked::{Options, Outcome, ValidateError};
use super::tensor::{layer, matrix, row_of};
use crate::own_process;
use crate::registry::FormatInfo;
use crate::{Error, Input, QuantizedBuf, Registry, Threads};
use serde::Serialize;
use sysinfo::System;

/// Rounds in front of the first reading, in which threads and caches take what they keep.
const WARM_UP: usize = 50;
/// Rounds between two readings.
const BETWEEN: usize = 50;
/// Bytes by which the process may have grown at the end: the allocator gives pages back when it likes. A layer that keeps a
/// seventh of its weights (32 KiB at two bits) is beyond it after a thousand rounds.
const ALLOWED: u64 = 4 << 20;
/// Rows of the weights.
const ROWS: usize = 256;
/// Elements of a row, at least.
const LEAST_K: usize = 512;

/// Memory before, during and after many layers.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Failed, if more is held afterwards; not run, if the system does not tell, or no format has a kernel.
    pub outcome: Outcome,
    /// Why it was not run.
    pub why: Option<String>,
    /// Layers that were made, run and dropped.
    pub rounds: usize,
    /// Bytes of memory that the process had before.
    pub before: u64,
    /// The most that it had at any reading.
    pub peak: u64,
    /// Bytes that it had afterwards.
    pub after: u64,
    /// Bytes on the device that buffers held afterwards, more than before; absent on the processor.
    pub held_on_device: Option<u64>,
}

/// Bytes of memory that this process has; `None` where the system does not tell.
fn resident(system: &mut System) -> Option<u64> {
    own_process::with_memory(system).map(sysinfo::Process::memory).filter(|bytes| *bytes > 0)
}

/// Bytes that buffers of a device hold; none on the processor.
#[cfg(feature = "cuda")]
fn on_device(device: crate::Device) -> Result<Option<u64>, Error> {
    match device.kind {
        crate::vocab::DeviceKind::Cuda => {
            Ok(Some(crate::cuda::Gpu::open(device.index)?.memory_held()?.bytes))
        }
        _ => Ok(None),
    }
}

#[cfg(not(feature = "cuda"))]
fn on_device(_: crate::Device) -> Result<Option<u64>, Error> {
    Ok(None)
}

pub(super) fn watch(
    registry: &'static Registry,
    options: &Options<'_>,
    formats: &[&'static FormatInfo],
    threads: &Threads,
) -> Result<Memory, ValidateError> {
    let mut memory = Memory {
        outcome: Outcome::NotRun,
        why: None,
        rounds: 0,
        before: 0,
        peak: 0,
        after: 0,
        held_on_device: None,
    };
    let mut weights = None;
    for format in formats {
        if let Some(made) = matrix(registry, format, (ROWS, row_of(format, LEAST_K)), 1, options)?
            && layer(registry, &made, options.device, options.restrict(), threads)?.is_some()
        {
            weights = Some(made);
            break;
        }
    }
    let Some(weights) = weights else {
        memory.why = Some("no format has a kernel on this device".to_owned());
        return Ok(memory);
    };
    let mut system = System::new();
    for _ in 0..WARM_UP {
        round(registry, &weights, options, threads)?;
    }
    let held = on_device(options.device)?;
    let Some(before) = resident(&mut system) else {
        memory.why = Some("the system does not tell how much memory a process has".to_owned());
        return Ok(memory);
    };
    (memory.before, memory.peak, memory.after) = (before, before, before);
    for done in 1..=options.rounds {
        round(registry, &weights, options, threads)?;
        if done % BETWEEN == 0 || done == options.rounds {
            memory.after = resident(&mut system).unwrap_or(memory.after);
            memory.peak = memory.peak.max(memory.after);
        }
    }
    memory.rounds = options.rounds;
    memory.held_on_device = match (held, on_device(options.device)?) {
        (Some(before), Some(after)) => Some(after.saturating_sub(before)),
        _ => None,
    };
    let kept = memory.after.saturating_sub(memory.before) > ALLOWED
        || memory.held_on_device.is_some_and(|held| held > 0);
    memory.outcome = if kept { Outcome::Failed } else { Outcome::Passed };
    Ok(memory)
}

/// The life of a layer.
fn round(
    registry: &'static Registry,
    weights: &QuantizedBuf<'_>,
    options: &Options<'_>,
    threads: &Threads,
) -> Result<(), Error> {
    let Some(layer) = layer(registry, weights, options.device, options.restrict(), threads)? else {
        return Ok(());
    };
    let mut workspace = layer.workspace(1, threads)?;
    let (x, mut y) = (vec![1.0; layer.k()], vec![0.0; layer.n()]);
    layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, threads)
}
