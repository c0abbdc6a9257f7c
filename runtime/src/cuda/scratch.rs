//! Memory of runs on a device.

use super::buffer::{DeviceBuffer, Number};
use super::device::{Geometry, Gpu};
use super::fault::{FaultKind, Faults, Rows};
use crate::activations::RowLayout;
use crate::error::Error;
use std::sync::Arc;

/// Memory of runs on a device, grown where a run needs more.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(super) x: Option<DeviceBuffer<f32>>,
    /// Activations of two bytes, as their bits.
    pub(super) halves: Option<DeviceBuffer<u16>>,
    /// Activations that were rounded to two bytes.
    pub(super) rounded: Option<DeviceBuffer<u16>>,
    pub(super) q: Option<DeviceBuffer<i8>>,
    pub(super) scales: Option<DeviceBuffer<f32>>,
    pub(super) sums: Option<DeviceBuffer<i32>>,
    pub(super) bias: Option<DeviceBuffer<f32>>,
    pub(super) y: Option<DeviceBuffer<f32>>,
    /// Counters, and behind them sums of parts of k. Between launches counters are zero, since the last to count puts one back.
    parts: Option<DeviceBuffer<i32>>,
    /// How many of those are counters.
    counters: usize,
    faults: Option<Faults>,
    /// Whether something was enqueued since the fault was read.
    pending: bool,
    /// The device that all of this is on.
    gpu: Option<Arc<Gpu>>,
}

/// Addresses of quantized activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) q: u64,
    pub(super) stride: usize,
    pub(super) scales: u64,
    pub(super) sums: u64,
    pub(super) fault: u64,
}

/// A buffer with room for `len` numbers.
pub(super) fn room<'b, T: Number>(
    buffer: &'b mut Option<DeviceBuffer<T>>,
    gpu: &Arc<Gpu>,
    len: usize,
) -> Result<&'b mut DeviceBuffer<T>, Error> {
    if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
        // The old one goes first: there may not be room for both.
        *buffer = None;
        *buffer = Some(DeviceBuffer::uninitialized(gpu, len)?);
    }
    buffer.as_mut().ok_or(Error::TooLarge { what: "a buffer of a device" })
}

impl Scratch {
    /// Everything is on `gpu` from now on.
    pub(super) fn on(&mut self, gpu: &Arc<Gpu>) {
        if !self.gpu.as_ref().is_some_and(|old| Arc::ptr_eq(old, gpu)) {
            *self = Scratch { gpu: Some(Arc::clone(gpu)), ..Scratch::default() };
        }
    }

    /// Where runs over such rows report what stops them.
    pub(super) fn fault_address(&mut self, gpu: &Arc<Gpu>, rows: Rows) -> Result<u64, Error> {
        let faults = match &mut self.faults {
            Some(faults) => faults,
            none => none.insert(Faults::new(gpu)?),
        };
        self.pending = true;
        faults.address(gpu, rows)
    }

    /// Copies a bias; its address, or 0 for none.
    pub(super) fn bias_at(&mut self, gpu: &Arc<Gpu>, bias: Option<&[f32]>) -> Result<u64, Error> {
        let Some(bias) = bias else { return Ok(0) };
        let room = room(&mut self.bias, gpu, bias.len())?;
        room.write(bias)?;
        Ok(room.input())
    }

    /// Room for the sums of a product that divides k, `outputs` for each of its CUDA blocks, with a counter for each warp of a
    /// tile in front; the address of the sums.
    pub(super) fn parts(&mut self, gpu: &Arc<Gpu>, geometry: &Geometry, outputs: u32) -> Result<u64, Error> {
        let tiles = u64::from(geometry.blocks.0) * u64::from(geometry.blocks.1);
        let times = |factors: [u32; 2]| {
            let all = factors.iter().try_fold(tiles, |all, factor| all.checked_mul(u64::from(*factor)));
            let all = all.and_then(|all| usize::try_from(all).ok());
            all.ok_or(Error::TooLarge { what: "sums of parts of k" })
        };
        let (counters, sums) =
            (times([geometry.threads.div_ceil(32), 1])?, times([geometry.layers, outputs])?);
        let held = self.parts.as_ref().map_or(0, |parts| parts.len() - self.counters);
        if self.counters < counters || held < sums {
            // Whole lines, so that the sums are aligned.
            let counters = counters.max(self.counters).next_multiple_of(64);
            let len = counters.checked_add(sums.max(held));
            let len = len.ok_or(Error::TooLarge { what: "sums of parts of k" })?;
            (self.parts, self.counters) = (None, 0);
            // Whatever counters there were are at zero again once kernels that use them have ended; so are new ones.
            self.parts = Some(DeviceBuffer::zeroed(gpu, len)?);
            self.counters = counters;
        }
        let first = self.parts.as_mut().map_or(0, DeviceBuffer::output);
        Ok(first + 4 * self.counters as u64)
    }

    /// Room for `m` rows of this layout, `stride` bytes apart.
    pub(super) fn places(
        &mut self,
        gpu: &Arc<Gpu>,
        m: usize,
        layout: &RowLayout,
        block: Option<usize>,
        stride: usize,
    ) -> Result<Places, Error> {
        let times = |a: usize| a.checked_mul(m).ok_or(Error::TooLarge { what: "activations" });
        Ok(Places {
            q: room(&mut self.q, gpu, times(stride)?)?.output(),
            stride,
            scales: room(&mut self.scales, gpu, times(layout.blocks)?)?.output(),
            sums: room(&mut self.sums, gpu, times(layout.units)?)?.output(),
            fault: self.fault_address(gpu, Rows { k: layout.k, block })?,
        })
    }

    /// As [`Scratch::finish`], where something was enqueued by this scratch's owner.
    pub(super) fn finish_pending(&mut self) -> Result<(), Error> {
        if self.pending { self.finish() } else { Ok(()) }
    }

    /// Waits for the runs since the last time, those of graphs included, and reports what stopped one of them.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        self.pending = false;
        let Some(faults) = &mut self.faults else { return Ok(()) };
        let Some((kind, at, Rows { k, block })) = faults.take()? else { return Ok(()) };
        let (row, column) = (at / k.max(1), at % k.max(1));
        if kind == FaultKind::Beyond {
            return Err(Error::BeyondPrecision { what: "the activation", row, column });
        }
        Err(kind.at(column, block.unwrap_or(k)).in_activations(row))
    }

    pub(crate) fn bytes(&self) -> usize {
        let f32s = [&self.x, &self.scales, &self.bias, &self.y];
        let f32s: usize = f32s.iter().map(|buffer| buffer.as_ref().map_or(0, DeviceBuffer::bytes)).sum();
        let halves = [&self.halves, &self.rounded];
        let halves: usize = halves.iter().map(|buffer| buffer.as_ref().map_or(0, DeviceBuffer::bytes)).sum();
        f32s + halves
            + self.q.as_ref().map_or(0, DeviceBuffer::bytes)
            + self.sums.as_ref().map_or(0, DeviceBuffer::bytes)
            + self.parts.as_ref().map_or(0, DeviceBuffer::bytes)
    }
}
