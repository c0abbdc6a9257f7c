//! Rows by index on a device.

use crate::cuda::{DeviceBuffer, Elements, Faults, Place, Rows, fault_at, parameters, size, types};
use crate::decide::Candidate;
use crate::error::Error;
use crate::operands::output::Output;
use crate::registry::Registry;
use crate::request::Shape;
use crate::room::room;
use crate::run::launch::Launcher;
use crate::weights::QuantizedMatrix;
use gristmill_spec::vocab::Op;

/// Code that gives rows by index, on a device.
#[derive(Clone, Debug)]
pub(super) struct EmbedCode(Elements);

impl Launcher<EmbedCode> {
    pub(super) fn cuda(
        registry: &'static Registry,
        candidate: Candidate,
        place: &Place,
    ) -> Result<Self, Error> {
        Elements::load(registry, candidate, place, Op::Embed, EmbedCode)
    }

    /// Rows of a matrix by index; the caller found that each index is of a row and that `dst`, not empty, holds their values.
    /// Only the bytes of these rows, and the tensor's tail, are brought to the device.
    pub(super) fn rows(
        &self,
        matrix: &QuantizedMatrix<'_>,
        rows: &[u32],
        dst: Output<'_>,
    ) -> Result<(), Error> {
        let EmbedCode(elements) = self.code();
        let Elements { gpu, function, .. } = elements;
        let (format, k, row_bytes) = (matrix.format(), matrix.k(), matrix.row_bytes());
        let too_large = || Error::TooLarge { what: "the rows" };
        let tail = &matrix.data()[matrix.n() * row_bytes..];
        let needed = row_bytes
            .checked_mul(rows.len())
            .and_then(|b| b.checked_add(tail.len()))
            .ok_or_else(too_large)?;
        let mut bytes = room(needed)?;
        for &row in rows {
            bytes.extend_from_slice(&matrix.data()[row as usize * row_bytes..][..row_bytes]);
        }
        bytes.extend_from_slice(tail);
        let count = size("rows", rows.len())?;
        let to = match &dst {
            Output::F32(_) => types::F32,
            Output::F16(_) => types::F16,
            Output::Bf16(_) => types::BF16,
        };
        let dst = dst.into_bytes();
        let src = DeviceBuffer::of(gpu, &bytes)?;
        let places: Vec<u32> = (0..count).collect();
        let indices = DeviceBuffer::of(gpu, &places)?;
        let mut out = DeviceBuffer::<u8>::uninitialized(gpu, dst.len())?;
        let mut faults = Faults::new(gpu)?;
        let values = (rows.len() as u64).saturating_mul(k as u64);
        let geometry = elements.geometry(values);
        let arguments = parameters::Embed {
            src: src.input(),
            indices: indices.input(),
            dst: out.output(),
            to,
            count,
            rows: count,
            k: size("a row", k)?,
            row_bytes: row_bytes as u64,
            fault: faults.address(gpu, Rows { k, block: Some(format.elements) })?,
        };
        let shape = Shape { m: rows.len(), n: matrix.n(), k };
        self.enqueued(gpu, shape, [src.bytes() + indices.bytes(), dst.len()], || {
            // SAFETY: the parameters are those of docs/cuda.md: `src` holds `count` rows and the tail, `indices` a number below
            // `count` for each, `out` has room for their values; what is dropped meanwhile is freed behind the kernel.
            unsafe { gpu.launch(self.entry.name, function, &geometry, &arguments.arguments()) }
        })?;
        gpu.wait(self.entry.name)?;
        if let Some((kind, at, Rows { k, .. })) = faults.take()? {
            // Rows are numbered by position on the device.
            let row = rows.get(at / k.max(1)).map_or(0, |row| *row as usize);
            return Err(fault_at(kind, at % k.max(1), format.elements).in_rows(format, row, k));
        }
        out.read(dst)
    }
}
