//! Memory of runs on a device.

use super::buffer::{DeviceBuffer, Number, room};
use super::device::{Geometry, Gpu};
use super::fault::{FaultKind, Faults, Rows, fault_at};
use super::operands::Operands;
use crate::activations::RowLayout;
use crate::device::Device;
use crate::error::Error;
use crate::observe::{Cache, looked_up};
use std::sync::Arc;

/// Memory of a workspace's runs on devices. What it has on one stays there while others are used: faults that are to be
/// told, and memory that the next run there needs again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    devices: Vec<DeviceScratch>,
    /// Why tokens followed one another in parts, if some did since it was asked.
    in_parts: Option<Error>,
    /// Whether a guard tells of it.
    guarded: bool,
}

/// Memory of runs on a device, grown where a run needs more.
#[derive(Debug)]
pub(crate) struct DeviceScratch {
    gpu: Arc<Gpu>,
    pub(super) x: Option<DeviceBuffer<f32>>,
    /// Activations of two bytes, as their bits.
    pub(super) halves: Option<DeviceBuffer<u16>>,
    /// Activations that were rounded to two bytes, or quantized to FP4.
    pub(super) rounded: Option<DeviceBuffer<u16>>,
    /// Rows behind a prologue.
    rows: Option<DeviceBuffer<f32>>,
    pub(super) q: Option<DeviceBuffer<i8>>,
    pub(super) scales: Option<DeviceBuffer<f32>>,
    pub(super) sums: Option<DeviceBuffer<i32>>,
    pub(super) bias: Option<DeviceBuffer<f32>>,
    pub(super) y: Option<DeviceBuffer<f32>>,
    /// Counters, and behind them sums of parts of k. Between launches counters are zero, since the last to count puts one back.
    parts: Option<DeviceBuffer<i32>>,
    /// How many of those are counters.
    counters: usize,
    /// Lists of experts' tokens, and the weights of sums over a token's experts.
    pub(super) lists: Option<DeviceBuffer<u32>>,
    pub(super) weights: Option<DeviceBuffer<f32>>,
    /// Rows that were brought together by expert, and their products.
    pub(super) gathered_q: Option<DeviceBuffer<i8>>,
    pub(super) gathered_scales: Option<DeviceBuffer<f32>>,
    pub(super) gathered_sums: Option<DeviceBuffer<i32>>,
    pub(super) products: Option<DeviceBuffer<f32>>,
    /// Those of parts of divided layers.
    operands: Operands,
    faults: Option<Faults>,
    /// What is wrong with lists of experts that the device sorts.
    pub(super) list_faults: Option<Faults>,
    /// Whether something was enqueued since the fault was read.
    pub(super) pending: bool,
    /// Whether a graph, of ours or an engine's, has runs that report in no word: it may run at any time.
    captured: bool,
}

/// Activations as kernels of a GPU made them.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedActivations {
    /// int8 values, each unit padded with zeros: `[m][units * padded]`.
    pub q: Vec<i8>,
    /// One scale for each block: `[m][blocks]`.
    pub scales: Vec<f32>,
    /// The sum of each unit: `[m][units]`.
    pub sums: Vec<i32>,
}

/// Addresses of quantized activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(super) q: u64,
    pub(super) stride: usize,
    pub(super) scales: u64,
    pub(super) sums: u64,
    pub(super) fault: u64,
}

/// As [`room`], with zeros where it is new: a quantizer that meets a fault leaves the row unwritten, and the product behind it reads
/// that row before anybody knows.
pub(super) fn zeroed_room<'b, T: Number>(
    buffer: &'b mut Option<DeviceBuffer<T>>,
    gpu: &Arc<Gpu>,
    len: usize,
) -> Result<&'b mut DeviceBuffer<T>, Error> {
    let grows = buffer.as_ref().is_none_or(|buffer| buffer.len() < len);
    let buffer = room(buffer, gpu, len)?;
    if grows {
        buffer.fill_bytes(0)?;
    }
    Ok(buffer)
}

impl Scratch {
    /// What there is on `gpu`.
    pub(crate) fn on(&mut self, gpu: &Arc<Gpu>) -> &mut DeviceScratch {
        let at = self.devices.iter().position(|there| Arc::ptr_eq(&there.gpu, gpu));
        let at = at.unwrap_or_else(|| {
            self.devices.push(DeviceScratch::new(gpu));
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    /// Waits for the runs since the last time on all devices, those of graphs included, and reports what stopped one of them.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        // All are waited for, whatever one of them says. A fault goes before an error of the driver: it is told once, and
        // the other will be there the next time too.
        let (mut fault, mut failed) = (None, Ok(()));
        for device in &mut self.devices {
            match device.fault() {
                Ok(found) => fault = fault.or(found),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        fault.map_or(failed, Err)
    }

    /// As [`finish`](Scratch::finish), of one device.
    pub(crate) fn finish_on(&mut self, gpu: &Arc<Gpu>) -> Result<(), Error> {
        self.on(gpu).finish()
    }

    /// Memory of a divided layer's operands on a device.
    pub(crate) fn operands(&mut self, gpu: &Arc<Gpu>) -> &mut Operands {
        &mut self.on(gpu).operands
    }

    /// As [`finish`](Scratch::finish), of devices on which something was enqueued since they were asked.
    pub(crate) fn finish_pending(&mut self) -> Result<(), Error> {
        self.devices.iter_mut().try_for_each(DeviceScratch::finish_pending)
    }

    /// Waits for all devices, and leaves nothing of their runs to be told: what was enqueued for a run that is given up.
    pub(crate) fn settle(&mut self) {
        for device in &mut self.devices {
            let _ = device.gpu.synchronize();
            let _ = device.fault();
        }
    }

    /// Gives memory back to all devices, with what their pools keep.
    pub(crate) fn give_back(&mut self) -> Result<(), Error> {
        self.devices.iter_mut().try_for_each(|device| {
            device.give_back();
            device.gpu.trim_memory(0)
        })
    }

    /// Gives up what there is on devices that are lost, and on those of `gone`.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Arc<Gpu>) -> bool) {
        self.devices.retain(|device| device.gpu.lost.get().is_none() && !gone(&device.gpu));
    }

    /// Lets a guard tell of parts of tokens that follow one another, or the run itself. What others left is theirs.
    pub(crate) fn set_guarded(&mut self, guarded: bool) {
        if guarded {
            self.in_parts = None;
        }
        self.guarded = guarded;
    }

    /// Keeps why tokens follow one another in parts, where a guard asks for it: the first reason since it was asked. Whether it does.
    pub(crate) fn goes_in_parts(&mut self, why: &Error) -> bool {
        if self.guarded {
            self.in_parts.get_or_insert_with(|| why.clone());
        }
        self.guarded
    }

    /// Why tokens followed one another in parts, if some did since the last time.
    pub(crate) fn went_in_parts(&mut self) -> Option<Error> {
        self.in_parts.take()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.devices.iter().map(DeviceScratch::bytes).sum()
    }
}

impl DeviceScratch {
    pub(super) fn new(gpu: &Arc<Gpu>) -> DeviceScratch {
        DeviceScratch {
            gpu: Arc::clone(gpu),
            x: None,
            halves: None,
            rounded: None,
            rows: None,
            q: None,
            scales: None,
            sums: None,
            bias: None,
            y: None,
            parts: None,
            counters: 0,
            lists: None,
            weights: None,
            gathered_q: None,
            gathered_scales: None,
            gathered_sums: None,
            products: None,
            operands: Operands::default(),
            faults: None,
            list_faults: None,
            pending: false,
            captured: false,
        }
    }

    /// Gives its memory back, but for the words of faults: graphs that were captured with it go on writing there.
    pub(super) fn give_back(&mut self) {
        let (faults, list_faults) = (self.faults.take(), self.list_faults.take());
        let DeviceScratch { pending, captured, .. } = *self;
        *self = DeviceScratch { faults, list_faults, pending, captured, ..DeviceScratch::new(&self.gpu) };
    }

    /// Something is enqueued that reports in no word, since somebody else tells what stops it: it is waited for all the same.
    pub(super) fn without_fault(&mut self) -> Result<(), Error> {
        self.captured = self.captured || self.gpu.is_capturing() || self.gpu.engine_captures()?;
        self.pending = true;
        Ok(())
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
        let fits = self.counters >= counters && held >= sums;
        looked_up(Cache::Workspace, Device::cuda(gpu.profile().index), fits);
        if !fits {
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

    /// Room for `values` values of rows behind a prologue.
    pub(super) fn rows_at(&mut self, gpu: &Arc<Gpu>, values: usize) -> Result<u64, Error> {
        Ok(room(&mut self.rows, gpu, values)?.output())
    }

    /// What kernels left in the places.
    pub(super) fn quantized(&self) -> Result<QuantizedActivations, Error> {
        let nothing = || Error::TooLarge { what: "activations" };
        Ok(QuantizedActivations {
            q: self.q.as_ref().ok_or_else(nothing)?.to_vec()?,
            scales: self.scales.as_ref().ok_or_else(nothing)?.to_vec()?,
            sums: self.sums.as_ref().ok_or_else(nothing)?.to_vec()?,
        })
    }

    /// Room for `m` rows of this layout, `stride` bytes apart.
    pub(crate) fn places(
        &mut self,
        gpu: &Arc<Gpu>,
        m: usize,
        layout: &RowLayout,
        block: Option<usize>,
        stride: usize,
    ) -> Result<Places, Error> {
        let times = |a: usize| a.checked_mul(m).ok_or(Error::TooLarge { what: "activations" });
        Ok(Places {
            q: zeroed_room(&mut self.q, gpu, times(stride)?)?.output(),
            stride,
            scales: zeroed_room(&mut self.scales, gpu, times(layout.blocks)?)?.output(),
            sums: zeroed_room(&mut self.sums, gpu, times(layout.units)?)?.output(),
            fault: self.fault_address(gpu, Rows { k: layout.k, block })?,
        })
    }

    /// As [`finish`](DeviceScratch::finish), where something was enqueued by this scratch's owner.
    pub(super) fn finish_pending(&mut self) -> Result<(), Error> {
        if self.pending { self.finish() } else { Ok(()) }
    }

    /// Waits for the runs since the last time, those of graphs included, and reports what stopped one of them.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        self.fault()?.map_or(Ok(()), Err)
    }

    /// As [`finish`](DeviceScratch::finish), with what stopped a run apart from errors of waiting for it.
    fn fault(&mut self) -> Result<Option<Error>, Error> {
        // A wrong list comes before the rows that it names. What is found of one is told also where the other can't be read.
        let wrong = self.list_error()?;
        let found = match &mut self.faults {
            // Both words are read, or the next run would be told of this one's rows.
            Some(faults) => match (faults.take(), &wrong) {
                (Err(_), Some(_)) => None,
                (found, _) => found?,
            },
            // Reading a word waits.
            None if self.list_faults.is_none() && (self.pending || self.captured) => {
                self.gpu.synchronize()?;
                None
            }
            None => None,
        };
        self.pending = false;
        if wrong.is_some() {
            return Ok(wrong);
        }
        Ok(found.map(|(kind, at, Rows { k, block })| {
            let (row, column) = (at / k.max(1), at % k.max(1));
            match kind {
                FaultKind::Beyond => Error::BeyondPrecision { what: "the activation", row, column },
                FaultKind::NonFinite | FaultKind::InvalidCode | FaultKind::ScaleOverflow => {
                    fault_at(kind, column, block.unwrap_or(k)).in_activations(row)
                }
            }
        }))
    }

    fn bytes(&self) -> usize {
        let f32s = [&self.x, &self.rows, &self.scales, &self.bias, &self.y];
        let of_experts = [&self.weights, &self.gathered_scales, &self.products];
        let i32s = [&self.sums, &self.gathered_sums, &self.parts];
        all(&f32s)
            + all(&of_experts)
            + all(&[&self.halves, &self.rounded])
            + all(&[&self.q, &self.gathered_q])
            + all(&i32s)
            + all(&[&self.lists])
            + self.operands.bytes()
    }
}

/// Bytes of buffers that are there.
fn all<T: Number>(buffers: &[&Option<DeviceBuffer<T>>]) -> usize {
    buffers.iter().map(|buffer| buffer.as_ref().map_or(0, DeviceBuffer::bytes)).sum()
}
