//! What stands in front of units.

/// The vocabulary in front of every unit.
pub const DEVICE_HEADER: &str = include_str!("../../../cuda/device.h");

/// What stands behind it in units of `wgmma`.
pub(super) const HOPPER_HEADER: &str = include_str!("../../../cuda/hopper.h");
