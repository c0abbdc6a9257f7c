//! What a registry that was joined from others has in place of generated code.

use gristmill_spec::vocab::{DType, DeviceKind, Op};
use std::collections::BTreeMap;

/// What a joined registry has besides its tables: what a generated one has as code.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) lists: BTreeMap<Key, Box<[u16]>>,
    /// The package of each entry.
    pub(super) packages: Box<[&'static str]>,
}

/// An op, a format, an input type and a kind of device.
pub(super) type Key = (usize, usize, usize, usize);

pub(super) const fn key(op: Op, format: usize, dtype: DType, device: DeviceKind) -> Key {
    (op as usize, format, dtype as usize, device as usize)
}
