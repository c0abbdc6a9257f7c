//! Kernels that are not to be used any more, and what was done where one failed.

use crate::registry::KernelId;
use gristmill_spec::vocab::Op;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Kernels that are not to be used any more, by id, each with why. Clones share what they hold, so that what one layer finds out
/// all of them obey; an engine adds what it knows from elsewhere (a signal, a test at its start).
///
/// It lasts as long as the program. To forbid a kernel from the start: [`Restrict::disabled`](crate::Restrict::disabled), or
/// `GRISTMILL_DISABLE` in the environment.
#[derive(Clone, Debug, Default)]
pub struct Quarantine(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    /// How many there are: layers compare it in each run.
    count: AtomicU64,
    kernels: Mutex<Vec<Quarantined>>,
}

/// A kernel that is not to be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Which.
    pub id: KernelId,
    /// Why.
    pub why: String,
}

impl Quarantine {
    /// An empty one.
    pub fn new() -> Quarantine {
        Quarantine::default()
    }

    /// Forbids a kernel from the next run of each layer on; whether it was not forbidden before. What was said first stays.
    pub fn add(&self, id: KernelId, why: impl Into<String>) -> bool {
        // The list is whole whenever the lock is free, even after a panic elsewhere.
        let mut kernels = self.0.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if kernels.iter().any(|kernel| kernel.id == id) {
            return false;
        }
        kernels.push(Quarantined { id, why: why.into() });
        self.0.count.store(kernels.len() as u64, Ordering::Release);
        true
    }

    /// The kernels, in the order in which they came.
    pub fn kernels(&self) -> Vec<Quarantined> {
        self.0.kernels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }
}

/// What is done where a kernel failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecoveryStep {
    /// The run was repeated on the calling thread alone.
    OneThread,
    /// The weights were packed again from those that are kept, and the run repeated.
    Repacked,
    /// The kernel was put into quarantine, kernels were decided on without it, and the run repeated.
    Quarantined,
    /// A kernel was found in quarantine before a run, and kernels were decided on without it.
    DecidedAgain,
    /// A GPU was lost: its rows of a divided layer were packed for other devices, and the run repeated; or its tokens of a replicated
    /// layer were computed by others.
    TakenOver,
    /// A GPU had no memory for all tokens: what the workspace and the device's pool kept was given back, and parts of the tokens followed
    /// one another.
    InParts,
    /// A GPU had no memory, or a call failed that its context survives: what the workspace and the device's pool kept was given back, and the
    /// run repeated.
    FreedMemory,
    /// A GPU was lost: it was opened again, the weights were packed for it from those that are kept, and the run repeated.
    Reopened,
    /// The weights were packed for the processor instead of the GPU, as the policy allows, and the run repeated there.
    MovedToProcessor,
    /// A layer that had been moved to the processor was packed for its GPU again, and ran there.
    Returned,
}

impl RecoveryStep {
    /// Every step.
    pub const ALL: &'static [RecoveryStep] = &[
        RecoveryStep::OneThread,
        RecoveryStep::Repacked,
        RecoveryStep::Quarantined,
        RecoveryStep::DecidedAgain,
        RecoveryStep::TakenOver,
        RecoveryStep::InParts,
        RecoveryStep::FreedMemory,
        RecoveryStep::Reopened,
        RecoveryStep::MovedToProcessor,
        RecoveryStep::Returned,
    ];

    /// The spelling in receipts and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            RecoveryStep::OneThread => "one-thread",
            RecoveryStep::Repacked => "repacked",
            RecoveryStep::Quarantined => "quarantined",
            RecoveryStep::DecidedAgain => "decided-again",
            RecoveryStep::TakenOver => "taken-over",
            RecoveryStep::InParts => "in-parts",
            RecoveryStep::FreedMemory => "freed-memory",
            RecoveryStep::Reopened => "reopened",
            RecoveryStep::MovedToProcessor => "moved-to-processor",
            RecoveryStep::Returned => "returned",
        }
    }

    /// The step spelled `name`.
    pub fn from_name(name: &str) -> Option<RecoveryStep> {
        RecoveryStep::ALL.iter().copied().find(|step| step.name() == name)
    }

    /// Whether it was done because of a device, and no kernel is to blame.
    pub const fn is_of_device(self) -> bool {
        use RecoveryStep::*;
        match self {
            OneThread | Repacked | Quarantined | DecidedAgain => false,
            TakenOver | InParts | FreedMemory | Reopened | MovedToProcessor | Returned => true,
        }
    }
}

/// A step that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// What.
    pub step: RecoveryStep,
    /// What the kernel computes.
    pub op: Op,
    /// The weight format of the layer.
    pub format: String,
    /// The kernel because of which it was done; where a device is to blame, one that it ran.
    pub kernel: &'static str,
    /// Its identity.
    pub id: KernelId,
    /// What was seen.
    pub reason: String,
    /// The kernel of this op that the layer has then; `None` where there is none.
    pub then: Option<&'static str>,
    /// The number of the step in its run, from 1 on.
    pub attempt: u32,
    /// Whether the run that followed failed in no kernel. For [`RecoveryStep::DecidedAgain`], whether kernels were found.
    pub success: bool,
    /// How long the step took, with the run that followed.
    pub time: Duration,
}
