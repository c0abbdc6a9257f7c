//! How layers of other languages are guarded.

use gristmill_runtime::{Error, GuardOptions, Policy, Quarantine, Registry};
use std::num::NonZeroU64;

/// How layers go on where a kernel or their GPU fails: one for all layers of a program, which share what is in quarantine. Clones share it too.
#[derive(Clone, Debug)]
pub struct Guard {
    pub(super) options: GuardOptions,
    pub(super) policy: Policy,
}

impl Guard {
    /// One run of `check_every` is compared with the portable kernel, and where a GPU fails its layers move to the processor if
    /// `to_processor`, of which one run of `return_every` tries the GPU again. 0 is never. The folder of `GRISTMILL_QUARANTINE` keeps the
    /// quarantine, where it is set; else it is in memory.
    ///
    /// # Errors
    /// As for [`Quarantine::from_env`].
    pub fn new(check_every: u64, to_processor: bool, return_every: u64) -> Result<Guard, Error> {
        let quarantine = Quarantine::from_env()?.unwrap_or_default();
        let options = GuardOptions {
            check_every: NonZeroU64::new(check_every),
            quarantine,
            return_every: NonZeroU64::new(return_every),
        };
        Ok(Guard { options, policy: if to_processor { Policy::Cpu } else { Policy::Strict } })
    }

    /// Puts a kernel into quarantine, from the next run of each layer on; whether it was not there before.
    ///
    /// # Errors
    /// [`Error::UnknownKernel`].
    pub fn forbid(&self, registry: &'static Registry, kernel: &str, why: &str) -> Result<bool, Error> {
        self.options.quarantine.add_by_name(registry, kernel, why)
    }

    /// What is in quarantine.
    pub fn quarantine(&self) -> &Quarantine {
        &self.options.quarantine
    }
}
