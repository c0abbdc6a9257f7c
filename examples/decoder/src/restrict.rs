//! Which kernels may be used: `--isa`, and what the environment says to every program on gristmill (`GRISTMILL_ISA` and so on).

use crate::error::Error;
use gristmill::registry::Registry;
use gristmill::vocab::{Arch, Isa};
use gristmill::{CpuProfile, Restrict, Tuning};

/// The restrictions of the environment; `isa` goes before its `GRISTMILL_ISA`.
///
/// # Errors
/// A variable that can't be understood; an instruction set of other processors, which no kernel here is of.
pub fn restricted(isa: Option<Isa>) -> Result<Restrict, Error> {
    let environment = Restrict::from_env()?;
    if let (None, Some(isa)) = (isa, environment.isa)
        && let Err(why) = of_this_processor(isa)
    {
        return Err(Error::Asked(format!("GRISTMILL_ISA={}: {why}", isa.name())));
    }
    Ok(Restrict { isa: isa.or(environment.isa), ..environment })
}

/// The measured orders of kernels that `GRISTMILL_TUNING` names, if it does.
///
/// # Errors
/// A file that can't be read.
pub fn tuned(registry: &Registry) -> Result<Tuning, Error> {
    Ok(Tuning::from_env(registry)?)
}

/// The instruction set called `name`.
///
/// # Errors
/// There is none, or not for this processor: a line that says so.
pub fn isa_named(name: &str) -> Result<Isa, String> {
    match Isa::ALL.iter().find(|isa| isa.name() == name) {
        Some(isa) => of_this_processor(*isa).map(|()| *isa),
        None => Err(format!("expected one of {}", known())),
    }
}

/// Below an instruction set of another architecture there is portable code alone, which nobody means who names it.
fn of_this_processor(isa: Isa) -> Result<(), String> {
    if fits(isa) {
        return Ok(());
    }
    Err(format!(
        "an instruction set of another processor architecture than this one; expected one of {}",
        known()
    ))
}

/// Whether an instruction set is one of this processor architecture.
pub(crate) fn fits(isa: Isa) -> bool {
    isa.arch() == Arch::Any || isa.arch() == CpuProfile::detect().arch
}

fn known() -> String {
    Isa::ALL.iter().filter(|isa| fits(**isa)).map(|isa| isa.name()).collect::<Vec<_>>().join(", ")
}
