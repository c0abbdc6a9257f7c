//! Small matrices of a format, and layers of them.

use super::asked::Options;
use crate::oracle::Random;
use crate::registry::FormatInfo;
use crate::{
    Device, Error, Linear, LinearOptions, Policy, QuantizedBuf, Quantizer, Registry, Request, Restrict,
    Threads,
};

/// The formats of these names; all, where there is none.
pub(super) fn formats(
    registry: &'static Registry,
    names: &[&str],
) -> Result<Vec<&'static FormatInfo>, Error> {
    if names.is_empty() {
        return Ok(registry.formats.iter().collect());
    }
    names.iter().map(|name| registry.format(name).map(|(_, format)| format)).collect()
}

/// Elements of a row: whole blocks, `least` or the first number above it.
pub(super) fn row_of(format: &FormatInfo, least: usize) -> usize {
    least.next_multiple_of(format.elements.max(1))
}

/// `n` rows of `k` weights: `distinct` rows of normal random numbers, quantized by the format's first quantizer, in turn. `None` for
/// formats that nothing quantizes to (layouts that are read only).
pub(super) fn matrix(
    registry: &'static Registry,
    format: &'static FormatInfo,
    (n, k): (usize, usize),
    distinct: usize,
    options: &Options<'_>,
) -> Result<Option<QuantizedBuf<'static>>, Error> {
    let distinct = distinct.min(n);
    let prepared = registry.prepare_for(
        &Request::quantize(format.name, None, distinct, k),
        crate::CpuProfile::detect(),
        &options.restrict(),
    );
    let quantizer = match prepared.and_then(|prepared| Quantizer::new(&prepared.decide_as_asked())) {
        Ok(quantizer) => quantizer,
        Err(_) if format.quantizers.is_empty() => return Ok(None),
        Err(error) => return Err(error),
    };
    let weights = Random::new(1, format.name).gauss_vec(distinct * k, 0.05);
    let mut few = vec![0; format.tensor_bytes(distinct, k)?];
    quantizer.run(&weights, distinct, k, &mut few)?;
    let (rows, tail) = few.split_at(distinct * format.row_bytes(k)?);
    let mut bytes = rows.repeat(n.div_ceil(distinct.max(1)));
    bytes.truncate(n * format.row_bytes(k)?);
    bytes.extend_from_slice(tail);
    QuantizedBuf::new(format, n, k, bytes).map(Some)
}

/// A layer on a device, of kernels up to `restrict`; `None` where the device has no kernel.
pub(super) fn layer(
    registry: &'static Registry,
    matrix: &QuantizedBuf<'_>,
    device: Device,
    restrict: Restrict,
    threads: &Threads,
) -> Result<Option<Linear>, Error> {
    let options = LinearOptions {
        device,
        policy: Policy::Strict,
        restrict: Some(restrict),
        ..LinearOptions::default()
    };
    match Linear::new(registry, &matrix.matrix(), &options, threads) {
        Ok(layer) => Ok(Some(layer)),
        Err(error) if crate::cli::is_no_kernel(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
