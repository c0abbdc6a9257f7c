//! On which GPUs kernels were launched.

use gristmill_runtime::Device;
use gristmill_runtime::tuning::gpu_at;
use gristmill_runtime::vocab::DeviceKind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A bit for each of the first 64.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    launched: AtomicU64,
    /// What those are called that were asked.
    known: Mutex<BTreeMap<u32, String>>,
}

impl Gpus {
    #[inline]
    pub(crate) fn launched(&self, device: Device) {
        if device.kind == DeviceKind::Cuda && device.index < 64 {
            let bit = 1 << device.index;
            // Almost always it is known, and reading does not take the cache line from other cores.
            if self.launched.load(Ordering::Relaxed) & bit == 0 {
                self.launched.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// What one is called in tuning files. One that can't be asked any more is `gpu cuda:0`, say.
    pub(crate) fn name(&self, index: u32) -> String {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&index) {
            Some(name) => name.clone(),
            None => match gpu_at(index) {
                Some(name) => known.entry(index).or_insert(name).clone(),
                None => format!("gpu {}", Device::cuda(index)),
            },
        }
    }

    /// What all are called, each name once.
    pub(crate) fn names(&self) -> Vec<String> {
        let launched = self.launched.load(Ordering::Relaxed);
        let launched = (0..64).filter(|index| launched >> index & 1 == 1);
        let mut names: Vec<String> = launched.map(|index| self.name(index)).collect();
        names.sort();
        names.dedup();
        names
    }
}
