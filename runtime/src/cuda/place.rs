//! On which opened device handles work.

use super::device::Gpu;
use crate::error::Error;
use crate::gpu::NoGpu;
use std::sync::Arc;

/// A device by its index, or one that is open already.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    index: u32,
    opened: Option<Arc<Gpu>>,
}

impl Place {
    pub(crate) fn at(index: u32) -> Place {
        Place { index, opened: None }
    }

    pub(crate) fn on(gpu: &Arc<Gpu>) -> Place {
        Place { index: gpu.profile().index, opened: Some(Arc::clone(gpu)) }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The device, opened if it is not yet.
    pub(crate) fn open(&self) -> Result<Arc<Gpu>, Error> {
        let Some(gpu) = &self.opened else { return Gpu::open(self.index) };
        match gpu.lost.get() {
            Some(error) => Err(Error::NoGpu { index: self.index, why: NoGpu::Lost { error: error.clone() } }),
            None => Ok(Arc::clone(gpu)),
        }
    }
}
