//! Kernels that products are made without, since they are in quarantine: steps that are told when a layer is made, and stand in receipts.

use crate::decide::Prepared;
use crate::recovery::{Recovery, RecoveryStep};
use crate::request::Shape;
use std::time::Duration;

/// A step for each kernel in quarantine that this product could run otherwise, in order of preference.
pub(crate) fn left_out(prepared: &Prepared, format: &str, shape: Shape) -> Vec<Recovery> {
    prepared
        .quarantined()
        .map(|(entry, kernel, then)| Recovery {
            step: RecoveryStep::LeftOut,
            op: entry.op,
            format: format.to_owned(),
            kernel: entry.name,
            id: entry.id,
            reason: kernel.why.clone(),
            then: then.decide(shape).chosen().map(|entry| entry.name),
            attempt: 0,
            success: true,
            time: Duration::ZERO,
        })
        .collect()
}
