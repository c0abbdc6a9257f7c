//! How a row of activations is laid out for a kernel.

use crate::error::Error;
use crate::memory::aligned::LINE;
use crate::registry::Unit;
use crate::workspace::WorkspaceSize;

/// How one row of activations is laid out for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
    pub(crate) k: usize,
    /// Elements of a unit.
    pub(crate) unit: usize,
    /// Bytes from one unit to the next.
    pub(crate) unit_padded: usize,
    /// Units of a row.
    pub(crate) units: usize,
    /// Bytes from one row to the next: whole cache lines, so that every row starts on one.
    pub(crate) stride: usize,
    /// Scales of a row.
    pub(crate) blocks: usize,
}

impl RowLayout {
    /// `unit.multiple` and `block` must not be 0 (checked where handles are made).
    pub(crate) fn new(unit: Unit, k: usize, block: Option<usize>) -> Result<RowLayout, Error> {
        let too_large = Error::TooLarge { what: "a row of activations" };
        let elements = if unit.elements == 0 { k.max(1) } else { unit.elements };
        let units = k.div_ceil(elements).max(1);
        let padded = elements.checked_next_multiple_of(unit.multiple);
        let Some((padded, bytes)) = padded.and_then(|padded| Some((padded, padded.checked_mul(units)?)))
        else {
            return Err(too_large);
        };
        let stride = bytes.checked_next_multiple_of(LINE).ok_or(too_large)?;
        let blocks = block.map_or(1, |block| k.div_ceil(block.max(1)).max(1));
        Ok(RowLayout { k, unit: elements, unit_padded: padded, units, stride, blocks })
    }

    /// Bytes of a row that kernels read.
    pub(crate) fn bytes(&self) -> usize {
        self.unit_padded * self.units
    }

    /// What a workspace must hold for `m` rows; `parts` rows of f32 besides.
    pub(crate) fn workspace(&self, m: usize, parts: usize) -> Result<WorkspaceSize, Error> {
        let times = |a: usize, b: usize| a.checked_mul(b).ok_or(Error::TooLarge { what: "the workspace" });
        Ok(WorkspaceSize {
            q: times(m, self.stride)?,
            scales: times(m, self.blocks)?,
            sums: times(m, self.units)?,
            rows: times(parts.min(m), self.k)?,
            ..WorkspaceSize::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() -> Result<(), Error> {
        let whole = RowLayout::new(Unit { elements: 0, multiple: 16 }, 100, None)?;
        assert_eq!((whole.unit, whole.unit_padded, whole.units), (100, 112, 1));
        assert_eq!((whole.stride, whole.blocks, whole.bytes()), (128, 1, 112));
        let units = RowLayout::new(Unit { elements: 20, multiple: 16 }, 50, Some(32))?;
        assert_eq!((units.unit, units.unit_padded, units.units), (20, 32, 3));
        assert_eq!((units.stride, units.blocks, units.bytes()), (128, 2, 96));
        let wide = RowLayout::new(Unit { elements: 0, multiple: 16 }, usize::MAX, None);
        assert_eq!(wide, Err(Error::TooLarge { what: "a row of activations" }));
        Ok(())
    }
}
