//! What stopped a kernel, as kernels leave it in memory: `docs/cuda.md`.

use super::buffer::DeviceBuffer;
use super::device::Gpu;
use crate::abi::Fault;
use crate::error::Error;
use std::sync::Arc;

/// What a word holds while nothing has stopped a kernel.
const NONE: u64 = u64::MAX;

/// The word in which kernels leave the first thing that stopped them.
#[derive(Debug)]
pub(super) struct FaultWord(DeviceBuffer<u64>);

impl FaultWord {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<FaultWord, Error> {
        let mut word = DeviceBuffer::uninitialized(gpu, 1)?;
        word.fill_bytes(0xff)?;
        Ok(FaultWord(word))
    }

    pub(super) fn address(&mut self) -> u64 {
        self.0.output()
    }

    /// Waits for what was enqueued, and tells what stopped it, with the index of an element. The word is as new then.
    pub(super) fn take(&mut self) -> Result<Option<(FaultKind, usize)>, Error> {
        let mut word = [0];
        self.0.read(&mut word)?;
        let found = decode(word[0]);
        if found.is_some() {
            self.0.fill_bytes(0xff)?;
        }
        Ok(found)
    }
}

/// What stopped a kernel and at which element.
fn decode(word: u64) -> Option<(FaultKind, usize)> {
    let kind = match word % 4 {
        _ if word == NONE => return None,
        0 => FaultKind::NonFinite,
        1 => FaultKind::InvalidCode,
        _ => FaultKind::ScaleOverflow,
    };
    Some((kind, usize::try_from(word / 4).unwrap_or(usize::MAX)))
}

/// What can stop a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    NonFinite,
    InvalidCode,
    ScaleOverflow,
}

impl FaultKind {
    /// As kernels of the processor report it: overflowed scales by block and not by element.
    pub(super) fn at(self, index: usize, block: usize) -> Fault {
        match self {
            FaultKind::NonFinite => Fault::NonFinite(index),
            FaultKind::InvalidCode => Fault::InvalidCode(index),
            FaultKind::ScaleOverflow => Fault::ScaleOverflow(index / block.max(1)),
        }
    }
}

/// Rows of activations: `k` values, in blocks that share a scale or with one for the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) k: usize,
    pub(super) block: Option<usize>,
}

/// Words for many runs, of which each says where in its own rows it was stopped. They are read all at once.
#[derive(Debug)]
pub(super) struct RowFaults {
    words: DeviceBuffer<u64>,
    rows: Vec<Rows>,
}

impl RowFaults {
    /// More than a model has different layers.
    const WORDS: usize = 64;

    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<RowFaults, Error> {
        let mut words = DeviceBuffer::uninitialized(gpu, RowFaults::WORDS)?;
        words.fill_bytes(0xff)?;
        Ok(RowFaults { words, rows: Vec::new() })
    }

    /// Where a run over such rows reports; `None` while all words are taken by others.
    pub(super) fn address(&mut self, rows: Rows) -> Option<u64> {
        let at = match self.rows.iter().position(|known| *known == rows) {
            Some(at) => at,
            None if self.rows.len() < RowFaults::WORDS => {
                self.rows.push(rows);
                self.rows.len() - 1
            }
            None => return None,
        };
        Some(self.words.output() + 8 * at as u64)
    }

    /// Waits for all runs, and reports what stopped one of them. All words are as new then.
    pub(super) fn take(&mut self) -> Result<(), Error> {
        let mut words = [0; RowFaults::WORDS];
        self.words.read(&mut words)?;
        let found = words.iter().zip(&self.rows).find_map(|(word, rows)| Some((decode(*word)?, *rows)));
        let Some(((kind, at), Rows { k, block })) = found else { return Ok(()) };
        self.words.fill_bytes(0xff)?;
        let (row, column) = (at / k.max(1), at % k.max(1));
        Err(kind.at(column, block.unwrap_or(k)).in_activations(row))
    }

    /// Forgets which rows the words are for; after [`RowFaults::take`].
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }
}
