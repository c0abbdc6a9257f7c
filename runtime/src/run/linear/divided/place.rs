//! Which rows go to which device, at first and where one is lost.

use super::DividedLinear;
use super::options::DivideOptions;
use super::shares;
use super::state::{Candidate, Loss, LostGpu, Part, State, lost_gpu, nobody};
use crate::cuda::detect;
use crate::device::Device;
use crate::error::Error;
use crate::gpu::NoGpu;
use crate::linear::{Linear, LinearOptions, Policy};
use crate::operands::packed_size::layout_of;
use crate::operands::quantized_buf::QuantizedBuf;
use crate::receipt::PartNote;
use crate::request::Shape;
use crate::threads::Threads;
use gristmill_spec::vocab::DeviceKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Devices that had no room for rows, and what the last of them said.
#[derive(Default)]
struct Full {
    devices: Vec<Device>,
    why: Option<Error>,
}

impl DividedLinear<'_> {
    /// The devices with their shares.
    pub(super) fn candidates(&self, divide: &DivideOptions) -> Result<Vec<Candidate>, Error> {
        let DivideOptions { devices, shares, .. } = divide;
        let shares = shares::of(devices, shares)?;
        let candidate = |(device, share): (&Device, f64)| {
            let granule = if share > 0.0 { self.granule(*device)? } else { 1 };
            Ok(Candidate { device: *device, share, granule })
        };
        devices.iter().zip(shares).map(candidate).collect()
    }

    fn options_on(&self, device: Device) -> LinearOptions {
        let gpu = self.options.gpu.clone().filter(|gpu| Device::cuda(gpu.profile().index) == device);
        LinearOptions { device, gpu, ..self.options.clone() }
    }

    /// Rows of the largest panel that kernels of a device read.
    fn granule(&self, device: Device) -> Result<usize, Error> {
        let (n, k) = (self.n(), self.k());
        let name = self.weights.format().name;
        // A tuning for more threads may take other panels: rows are then cut less evenly, and as right.
        let (one, shape) = (Threads::single(), Shape { m: 1, n, k });
        let prepared = self.options_on(device).prepare(self.registry, name, shape, &one)?;
        let mut granule = 1;
        for candidate in prepared.covering(n, k).needed {
            granule = granule.max(layout_of(self.registry, candidate.entry)?.panel_rows());
        }
        Ok(granule)
    }

    /// Gives rows that no device has to those that are left. With `losses` a device that is lost meanwhile, or was lost by somebody
    /// else, is one of them, and others have its rows, as they have those that a device has no room for; without, its error ends it.
    /// After an error or a panic rows may still be without a device, and no others: they are until their part is there.
    pub(super) fn place(
        &self,
        state: &mut State,
        mut losses: Option<&mut Vec<Loss>>,
        threads: &Threads,
    ) -> Result<(), Error> {
        let mut full = Full::default();
        while let Some(rows) = state.homeless.pop() {
            if rows.is_empty() {
                continue;
            }
            let mut parts = self.divided(state, &full, rows.clone());
            if parts.is_empty() && self.options.policy == Policy::Cpu {
                parts.push((rows.clone(), Device::CPU));
            }
            if parts.is_empty() {
                state.homeless.push(rows);
                return Err(full.why.unwrap_or_else(|| nobody(&state.lost)));
            }
            state.homeless.extend(parts.iter().map(|(rows, _)| rows.clone()));
            for (rows, device) in parts {
                if state.is_lost(device) || full.devices.contains(&device) {
                    continue;
                }
                // Asked first: a layer for a device that is known to be lost is refused as one without a kernel, or goes to the processor.
                let known = if losses.is_some() { self.known_loss(device) } else { None };
                let stopped = match known.map_or_else(|| self.part(state, rows.clone(), device, threads), Err)
                {
                    Ok(part) => {
                        state.parts.push(part);
                        state.homeless.retain(|left| *left != rows);
                        continue;
                    }
                    Err(error) => error,
                };
                match (&mut losses, stopped) {
                    (Some(losses), error)
                        if lost_gpu(&error).is_some_and(|index| Device::cuda(index) == device) =>
                    {
                        losses.push(state.lose(LostGpu { index: device.index, why: error.to_string() }));
                    }
                    (Some(_), error @ Error::OutOfDeviceMemory { .. }) => {
                        full.devices.push(device);
                        full.why = Some(error);
                    }
                    (_, error) => return Err(error),
                }
            }
        }
        state.parts.sort_by_key(|part| part.rows.start);
        Ok(())
    }

    /// The loss of a GPU, where this process has seen it already: in a run of another layer, say.
    fn known_loss(&self, device: Device) -> Option<Error> {
        if device.kind != DeviceKind::Cuda {
            return None;
        }
        let given = self.options_on(device).gpu.and_then(|gpu| gpu.loss());
        let why = given.map(|error| NoGpu::Lost { error }).or_else(|| detect(device.index).err())?;
        matches!(why, NoGpu::Lost { .. }).then_some(Error::NoGpu { index: device.index, why })
    }

    /// Rows by the shares of the devices that are left and have room, without those that get none.
    fn divided(&self, state: &State, full: &Full, rows: Range<usize>) -> Vec<(Range<usize>, Device)> {
        let takes = |device| !state.is_lost(device) && !full.devices.contains(&device);
        let left = || self.candidates.iter().filter(|candidate| takes(candidate.device));
        let shares: Vec<f64> = left().map(|candidate| candidate.share).collect();
        if shares::check(&shares, shares.len()).is_err() {
            return Vec::new();
        }
        let granule = left().map(|candidate| candidate.granule).max().unwrap_or(1);
        let mut start = rows.start;
        let ends = shares::ends(rows.len(), &shares, granule);
        let part = |(candidate, end): (&Candidate, usize)| {
            let part = start..rows.start + end;
            start = part.end;
            (!part.is_empty()).then_some((part, candidate.device))
        };
        left().zip(ends).filter_map(part).collect()
    }

    /// The layer of some rows on a device.
    fn part(
        &self,
        state: &State,
        rows: Range<usize>,
        device: Device,
        threads: &Threads,
    ) -> Result<Part, Error> {
        let whole = self.weights.matrix();
        let weights = QuantizedBuf::rows_of(&whole, rows.clone())?;
        let linear = Linear::new(self.registry, &weights.matrix(), &self.options_on(device), threads)?;
        let gpu = linear.gpu().cloned();
        let note = Arc::new(PartNote {
            format: whole.format().name,
            shape: [whole.n(), whole.k()],
            rows: rows.clone(),
            // A policy may have moved it.
            device: linear.prepared().device(),
            runs: AtomicU64::new(0),
        });
        let mut part = Part { rows, linear, gpu, note };
        part.record(state.recording.as_ref())?;
        Ok(part)
    }
}
