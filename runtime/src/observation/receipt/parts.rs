//! Which device computed which rows of layers that are divided over several.

use crate::device::Device;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A part of a divided layer, and how often it ran.
#[derive(Debug)]
pub(crate) struct PartNote {
    pub(crate) format: &'static str,
    /// Rows and elements of the whole layer.
    pub(crate) shape: [usize; 2],
    pub(crate) rows: Range<usize>,
    pub(crate) device: Device,
    pub(crate) runs: AtomicU64,
}

impl PartNote {
    /// The same part, for another recording.
    #[cfg(feature = "cuda")]
    pub(crate) fn anew(&self) -> PartNote {
        PartNote { rows: self.rows.clone(), runs: AtomicU64::new(0), ..*self }
    }
}

/// A part that counts in a recording.
#[derive(Debug)]
pub(super) struct PartRow {
    note: Arc<PartNote>,
    /// Runs that the note had seen when it was attached.
    before: u64,
}

impl PartRow {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs divide layers"))]
    pub(super) fn new(note: &Arc<PartNote>) -> PartRow {
        PartRow { note: Arc::clone(note), before: note.runs.load(Ordering::Relaxed) }
    }

    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs divide layers"))]
    pub(super) fn is(&self, note: &Arc<PartNote>) -> bool {
        Arc::ptr_eq(&self.note, note)
    }

    pub(super) fn taken(&self) -> Option<PartUse> {
        let PartNote { format, shape: [n, k], rows, device, runs } = &*self.note;
        let runs = runs.load(Ordering::Relaxed).saturating_sub(self.before);
        let (rows, device) = (rows.clone(), *device);
        (runs > 0).then_some(PartUse { device, format, n: *n, k: *k, rows, runs })
    }
}

/// A part of a divided layer that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartUse {
    pub(super) device: Device,
    pub(super) format: &'static str,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) rows: Range<usize>,
    pub(super) runs: u64,
}

impl PartUse {
    /// The device that computed it.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The format of the weights.
    pub fn format(&self) -> &'static str {
        self.format
    }

    /// Rows of the whole layer: its outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The rows of the layer that it has.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Runs of the layer while recorded; at least 1.
    pub fn runs(&self) -> u64 {
        self.runs
    }
}
