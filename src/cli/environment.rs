//! What the environment asks of a command's decisions: read once, however many tensors the command decides for.

use super::error::CliError;
use gristmill::{CpuProfile, LinearOptions, Prepared, REGISTRY, Request, Restrict, Tuning};
use std::sync::Arc;

/// Restrictions and measured orders of a command.
pub struct Environment {
    restrict: Restrict,
    tuning: Tuning,
}

impl Environment {
    /// Reads the variables, and the tuning file if one is named. What a file changes while the command runs changes nothing.
    ///
    /// # Errors
    /// As [`Restrict::from_env`] and [`Tuning::from_env`].
    pub fn read() -> Result<Environment, CliError> {
        Ok(Environment { restrict: Restrict::from_env()?, tuning: Tuning::from_env(&REGISTRY)? })
    }

    /// As `Registry::prepare_from_env`, of what was read.
    ///
    /// # Errors
    /// A restriction or tuning that names what is not there.
    pub fn prepare(&self, request: &Request<'_>) -> Result<Prepared, CliError> {
        Ok(REGISTRY.prepare_tuned(request, CpuProfile::detect(), &self.restrict, &self.tuning)?)
    }

    /// The same for layers.
    pub fn options(&self) -> LinearOptions {
        LinearOptions {
            restrict: Some(self.restrict.clone()),
            tuning: Some(Arc::new(self.tuning.clone())),
            ..LinearOptions::default()
        }
    }

    /// The measured orders.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }
}
