//! What all measurements on a GPU share.

use super::super::plan::Plan;
use gristmill::Device;
use gristmill::cuda::Gpu;
use std::sync::Arc;

/// What all measurements share.
pub(super) struct Bench<'b> {
    pub(super) plan: &'b Plan,
    pub(super) gpu: &'b Arc<Gpu>,
    pub(super) device: Device,
    pub(super) rounds: usize,
    /// 1e9 bytes a second, read and written, of a copy on the device.
    pub(super) copy: f64,
}
