//! What bindings to other languages have in common: questions whose words are texts, and how they are decided. Of the environment nothing counts
//! but kernels in quarantine, and layers are strict: a program gets what it asks for, or an error.

mod guard;
mod layer;

pub use guard::Guard;
pub use layer::Layer;

use gristmill_runtime::vocab::{DType, Op};
use gristmill_runtime::{
    CpuProfile, Device, Error, LinearOptions, Policy, PrecisionMode, Prepared, Registry, Request, Restrict,
    Shape, Tuning,
};

/// A request, by the name of an op, of an input type and of a device.
///
/// # Errors
/// [`Error::UnknownWord`], [`Error::UnknownDevice`].
pub fn request<'a>(
    op: &str,
    format: &'a str,
    input: &str,
    device: &str,
    shape: Shape,
) -> Result<Request<'a>, Error> {
    let unknown = |what, name: &str, known| Error::UnknownWord { what, name: name.to_owned(), known };
    let ops = || Op::ALL.iter().map(|op| op.name()).collect();
    let types = || DType::ALL.iter().map(|dtype| dtype.name()).collect();
    Ok(Request {
        op: Op::from_name(op).ok_or_else(|| unknown("op", op, ops()))?,
        format,
        quantizer: None,
        input: DType::from_name(input).ok_or_else(|| unknown("type", input, types()))?,
        device: device.parse()?,
        shape,
        precision: PrecisionMode::Int8,
        working_set: None,
        threads: 1,
    })
}

/// What a request comes to.
///
/// # Errors
/// As for [`Registry::prepare_tuned`] and [`Restrict::of_quarantine`].
pub fn prepared(registry: &'static Registry, request: &Request<'_>) -> Result<Prepared, Error> {
    registry.prepare_tuned(request, CpuProfile::detect(), &Restrict::of_quarantine()?, &Tuning::none())
}

/// What layers on a device are made with.
///
/// # Errors
/// As for [`Restrict::of_quarantine`].
pub fn layer_on(device: Device) -> Result<LinearOptions, Error> {
    let restrict = Some(Restrict::of_quarantine()?);
    Ok(LinearOptions { device, policy: Policy::Strict, restrict, ..LinearOptions::default() })
}
