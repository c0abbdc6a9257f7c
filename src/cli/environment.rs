//! What the environment asks of a command's decisions: read once, however many tensors the command decides for.

use super::error::CliError;
use super::say::say;
use super::table::counted;
use gristmill::text::PrintableLines;
use gristmill::{CpuProfile, LinearOptions, Prepared, REGISTRY, Request, Restrict, Tuning};
use std::sync::Arc;

/// Restrictions and measured orders of a command.
pub struct Environment {
    restrict: Restrict,
    tuning: Tuning,
}

impl Environment {
    /// Reads the variables, and the tuning file if one is named, and says on standard error if some of that can't be used here. What a
    /// file changes while the command runs changes nothing.
    ///
    /// # Errors
    /// As [`Restrict::from_env`] and [`Tuning::from_env`].
    pub fn read() -> Result<Environment, CliError> {
        let environment = Environment::read_silently()?;
        environment.say_what_is_set_aside();
        Ok(environment)
    }

    /// The same for who says itself what of the tuning is set aside.
    ///
    /// # Errors
    /// As of [`read`](Environment::read).
    pub fn read_silently() -> Result<Environment, CliError> {
        Ok(Environment { restrict: Restrict::from_env()?, tuning: Tuning::from_env(&REGISTRY)? })
    }

    /// One line, if something is set aside: whoever named the file expects its orders.
    fn say_what_is_set_aside(&self) {
        let [first, more @ ..] = self.tuning.set_aside() else { return };
        let file = std::env::var_os("GRISTMILL_TUNING").unwrap_or_default();
        let file = file.display();
        let rest = match more.len() {
            0 => String::new(),
            more => format!("; {} more", counted(more, "place")),
        };
        say(PrintableLines(&format!(
            "`{file}`, which GRISTMILL_TUNING names, is not used as a whole: {first}{rest}; `gristmill tune --check --out {file}` says all"
        )));
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
