//! What stopped a kernel, as kernels leave it in memory: `docs/cuda.md`.

use super::buffer::DeviceBuffer;
use super::device::Gpu;
use crate::abi::Fault;
use crate::error::Error;
pub(crate) use gristmill_spec::vocab::CudaFault as FaultKind;
use std::sync::Arc;

/// What a word holds while nothing has stopped a kernel.
const NONE: u64 = u64::MAX;

/// What stopped a kernel and at which element.
fn decode(word: u64) -> Option<(FaultKind, usize)> {
    let kind = *FaultKind::ALL.get((word % 4) as usize)?;
    (word != NONE).then(|| (kind, usize::try_from(word / 4).unwrap_or(usize::MAX)))
}

/// A fault as kernels of the processor report it: overflowed scales by block and not by element.
pub(crate) fn fault_at(kind: FaultKind, index: usize, block: usize) -> Fault {
    match kind {
        // Rounded, it is not finite; who rounds values asks for this kind before.
        FaultKind::NonFinite | FaultKind::Beyond => Fault::NonFinite(index),
        FaultKind::InvalidCode => Fault::InvalidCode(index),
        FaultKind::ScaleOverflow => Fault::ScaleOverflow(index / block.max(1)),
    }
}

/// Rows in which elements are counted: `k` values, in blocks that share a scale or with one for the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) k: usize,
    pub(crate) block: Option<usize>,
}

/// The words in which kernels leave the first thing that stopped them, one for each kind of rows: an element's index means
/// nothing without them. A word stays with its rows, since graphs go on writing there.
#[derive(Debug)]
pub(crate) struct Faults {
    words: Vec<DeviceBuffer<u64>>,
    rows: Vec<Rows>,
}

impl Faults {
    /// More than most models have different layers.
    const WORDS: usize = 64;

    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Faults, Error> {
        let mut faults = Faults { words: Vec::new(), rows: Vec::new() };
        faults.grow(gpu)?;
        Ok(faults)
    }

    fn grow(&mut self, gpu: &Arc<Gpu>) -> Result<(), Error> {
        let mut words = DeviceBuffer::uninitialized(gpu, Faults::WORDS)?;
        words.fill_bytes(0xff)?;
        self.words.push(words);
        Ok(())
    }

    /// Where a run over such rows reports.
    pub(crate) fn address(&mut self, gpu: &Arc<Gpu>, rows: Rows) -> Result<u64, Error> {
        let at = self.rows.iter().position(|known| *known == rows).unwrap_or(self.rows.len());
        let (buffer, word) = (at / Faults::WORDS, at % Faults::WORDS);
        if buffer == self.words.len() {
            self.grow(gpu)?;
        }
        if at == self.rows.len() {
            self.rows.push(rows);
        }
        Ok(self.words[buffer].output() + 8 * word as u64)
    }

    /// Waits for all runs, those of graphs included, and tells what stopped one of them at which element of its rows.
    /// All words that were looked at are as new then; what is enqueued meanwhile writes to them before, and is told now, or
    /// behind, and is told the next time.
    pub(crate) fn take(&mut self) -> Result<Option<(FaultKind, usize, Rows)>, Error> {
        let mut found = None;
        for (words, rows) in self.words.iter_mut().zip(self.rows.chunks(Faults::WORDS)) {
            let mut seen = [NONE; Faults::WORDS];
            let mut look = || {
                words.read(&mut seen[..])?;
                if seen == [NONE; Faults::WORDS] {
                    return Ok(());
                }
                // Read again, since others may have enqueued something behind what was read.
                words.read_and_fill(&mut seen[..], 0xff)
            };
            match look() {
                Ok(()) => {}
                // What was found is told now or never; the error comes again.
                Err(_) if found.is_some() => return Ok(found),
                Err(error) => return Err(error),
            }
            found = found.or_else(|| {
                seen.iter().zip(rows).find_map(|(word, rows)| {
                    let (kind, at) = decode(*word)?;
                    Some((kind, at, *rows))
                })
            });
        }
        Ok(found)
    }
}
