//! What was done where a kernel or a device failed.

use crate::registry::KernelId;
use gristmill_spec::vocab::Op;
use std::time::Duration;

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
    /// A kernel was in quarantine when a layer was made, and kernels were decided on without it.
    LeftOut,
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
        RecoveryStep::LeftOut,
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
            RecoveryStep::LeftOut => "left-out",
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
            OneThread | Repacked | Quarantined | DecidedAgain | LeftOut => false,
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
    /// The number of the step in its run, from 1 on; 0 for [`RecoveryStep::LeftOut`], which is none of a run.
    pub attempt: u32,
    /// Whether the run that followed failed in no kernel. For [`RecoveryStep::DecidedAgain`] and
    /// [`RecoveryStep::LeftOut`], whether kernels were found.
    pub success: bool,
    /// How long the step took, with the run that followed.
    pub time: Duration,
}
