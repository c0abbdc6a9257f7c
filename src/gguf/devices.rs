//! Which device each tensor of a model goes to, before anything is loaded.
//!
//! Blocks of a model stay together and in order, so that activations go from one device to the next as seldom as can be. Of the ways to
//! do that the one is taken by which the device with most to do is done first, where each reads its weights at its speed: with several tokens on
//! their way, that one decides.

use super::divide::{Room, divide};
use super::model::{LayerOptions, Model};
use super::model_error::ModelError;
use super::types::TensorType;
use gristmill_runtime::{Device, Error, Linear, LinearOptions, Threads};
use std::collections::BTreeMap;

/// A device that tensors may go to.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceRoom {
    /// Which.
    pub device: Device,
    /// Bytes that it has for weights.
    pub bytes: u64,
    /// How fast it is beside the others: in any unit, measured ones best.
    pub speed: f64,
}

impl DeviceRoom {
    /// A GPU with all of its memory, and the cycles of its multiprocessors in a second for its speed, as the driver tells them.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    #[cfg(feature = "cuda")]
    pub fn of_gpu(index: u32) -> Result<DeviceRoom, Error> {
        let failed = |why| Error::NoGpu { index, why };
        let profile = gristmill_runtime::cuda::detect(index).map_err(failed)?;
        let speed = gristmill_runtime::cuda::cycles(index).map_err(failed)?;
        Ok(DeviceRoom { device: Device::cuda(index), bytes: profile.memory, speed })
    }

    /// There are none in this build.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    #[cfg(not(feature = "cuda"))]
    pub fn of_gpu(index: u32) -> Result<DeviceRoom, Error> {
        Err(Error::NoGpu { index, why: gristmill_runtime::NoGpu::FeatureOff })
    }
}

/// Which device each tensor of a model goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePlan {
    parts: Vec<DevicePart>,
    tensors: BTreeMap<String, usize>,
    without: Vec<(String, String)>,
}

/// What a device gets.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePart {
    /// Which.
    pub device: Device,
    /// What stays together, in order: `start`, `blk.N`, `end`.
    pub pieces: Vec<String>,
    /// Bytes of weights there, packed for it.
    pub bytes: u64,
    /// Bytes that it has for them.
    pub room: u64,
    /// Its part of the time of all, 0 to 1, one token at a time.
    pub time: f64,
}

/// Tensors that stay together.
#[derive(Debug)]
struct Piece {
    name: String,
    tensors: Vec<String>,
    /// Bytes on each device; `None` where one of them has no kernel there.
    bytes: Vec<Option<u64>>,
}

impl DevicePlan {
    /// The plan of a model's tensors over devices, in their order, for layers that are made with `options` but for the device. Nothing is
    /// loaded. What the workspaces, activations and a cache of keys and values take has to be left out of [`DeviceRoom::bytes`].
    ///
    /// Tensors that no device has a kernel for are in [`without`](DevicePlan::without) and nowhere else.
    ///
    /// # Errors
    /// [`ModelError::Devices`] where no division fits, or devices nothing can be divided over.
    pub fn new(
        model: &Model,
        options: &LayerOptions<'_>,
        devices: &[DeviceRoom],
    ) -> Result<DevicePlan, ModelError> {
        check(devices)?;
        let (pieces, without) = pieces(model, options, devices);
        let costs: Vec<Vec<Option<u64>>> = pieces.iter().map(|piece| piece.bytes.clone()).collect();
        let rooms: Vec<Room> =
            devices.iter().map(|room| Room { bytes: room.bytes, speed: room.speed }).collect();
        let ends = divide(&costs, &rooms).ok_or_else(|| no_room(&pieces, devices))?;
        let mut parts = Vec::new();
        let mut tensors = BTreeMap::new();
        let mut start = 0;
        for (at, (room, end)) in devices.iter().zip(ends).enumerate() {
            let of_device = &pieces[start..end];
            start = end;
            let bytes = of_device.iter().filter_map(|piece| piece.bytes[at]).sum();
            for tensor in of_device.iter().flat_map(|piece| &piece.tensors) {
                tensors.insert(tensor.clone(), at);
            }
            let pieces = of_device.iter().map(|piece| piece.name.clone()).collect();
            let time = bytes as f64 / room.speed;
            parts.push(DevicePart { device: room.device, pieces, bytes, room: room.bytes, time });
        }
        let all: f64 = parts.iter().map(|part| part.time).sum();
        if all > 0.0 {
            parts.iter_mut().for_each(|part| part.time /= all);
        }
        Ok(DevicePlan { parts, tensors, without })
    }

    /// What each device gets, in their order; nothing for some, perhaps.
    pub fn parts(&self) -> &[DevicePart] {
        &self.parts
    }

    /// Tensors that no device has a kernel for, each with why the first has none.
    pub fn without(&self) -> &[(String, String)] {
        &self.without
    }

    /// The device of a tensor; `None` for one that no device has a kernel for, or that the model does not have.
    pub fn device_of(&self, tensor: &str) -> Option<Device> {
        self.tensors.get(tensor).map(|at| self.parts[*at].device)
    }

    /// The options by which the layer of a tensor is made where it goes, for [`Model::linear`].
    ///
    /// # Errors
    /// [`ModelError::Devices`] for a tensor that goes nowhere.
    pub fn options<'t>(
        &self,
        tensor: &str,
        options: &LayerOptions<'t>,
    ) -> Result<LayerOptions<'t>, ModelError> {
        let none = || ModelError::Devices { why: format!("tensor `{tensor}` goes to no device") };
        let device = self.device_of(tensor).ok_or_else(none)?;
        Ok(LayerOptions { linear: on(&options.linear, device), ..options.clone() })
    }
}

fn on(options: &LinearOptions, device: Device) -> LinearOptions {
    #[cfg(feature = "cuda")]
    let options = &{
        let gpu = options.gpu.clone().filter(|gpu| Device::cuda(gpu.profile().index) == device);
        LinearOptions { gpu, ..options.clone() }
    };
    LinearOptions { device, ..options.clone() }
}

/// Refuses devices that nothing can be divided over.
fn check(devices: &[DeviceRoom]) -> Result<(), ModelError> {
    let refused = |why: String| Err(ModelError::Devices { why });
    if devices.is_empty() {
        return refused(String::from("there is no device"));
    }
    for (at, room) in devices.iter().enumerate() {
        if devices[..at].iter().any(|other| other.device == room.device) {
            return refused(format!("{} is named twice", room.device));
        }
        // Times are bytes by speeds, and have to be numbers too.
        if !(1e-100..=1e100).contains(&room.speed) {
            let (device, speed) = (room.device, room.speed);
            return refused(format!("the speed of {device} is {speed:?}; speeds are from 1e-100 to 1e100"));
        }
    }
    Ok(())
}

/// What stays together, in the order of the model; and tensors that no device has a kernel for.
fn pieces(
    model: &Model,
    options: &LayerOptions<'_>,
    devices: &[DeviceRoom],
) -> (Vec<Piece>, Vec<(String, String)>) {
    // Who makes logits of the embedding's rows has them at the end.
    // Asked once: it is the sum over all tensors.
    let asked = model.asked(options);
    let asked: Vec<LinearOptions> = devices.iter().map(|room| on(&asked, room.device)).collect();
    let tied = model.file().tensor("output.weight").is_none();
    let mut pieces: BTreeMap<(u8, u64), Piece> = BTreeMap::new();
    let mut without = Vec::new();
    for tensor in model.file().tensors() {
        let name = tensor.name();
        let on_each: Vec<Result<u64, String>> =
            asked.iter().map(|asked| bytes_on(model, name, asked, options.threads)).collect();
        if let Some(Err(why)) = on_each.first()
            && on_each.iter().all(Result::is_err)
        {
            without.push((name.to_owned(), why.clone()));
            continue;
        }
        let block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let at_end = name.starts_with("output") || (tied && name.starts_with("token_embd"));
        let (key, piece) = match block {
            Some(block) => ((1, block), format!("blk.{block}")),
            None if at_end => ((2, 0), String::from("end")),
            None => ((0, 0), String::from("start")),
        };
        let piece = pieces.entry(key).or_insert_with(|| Piece {
            name: piece,
            tensors: Vec::new(),
            bytes: vec![Some(0); devices.len()],
        });
        piece.tensors.push(name.to_owned());
        for (sum, bytes) in piece.bytes.iter_mut().zip(on_each) {
            *sum = sum.zip(bytes.ok()).and_then(|(sum, bytes)| sum.checked_add(bytes));
        }
    }
    (pieces.into_values().collect(), without)
}

/// Bytes of a tensor on the device of `asked`, or why it can't be there.
fn bytes_on(model: &Model, name: &str, asked: &LinearOptions, threads: &Threads) -> Result<u64, String> {
    let tensor = model.tensor(name).map_err(|error| error.to_string())?;
    if let TensorType::Plain(_) = model.type_of(&tensor).map_err(|error| error.to_string())? {
        return tensor.size().map_err(|error| error.to_string());
    }
    let rows = model.rows(&tensor).map_err(|error| error.to_string())?;
    let size = [rows.n, rows.k];
    if let Some(transform) = model.of_inputs(name) {
        transform.check_device(asked.device).map_err(|error| error.to_string())?;
    }
    let memory = Linear::memory(model.registry(), rows.format.name, size, asked, 1, threads);
    memory.map(|memory| memory.weight_bytes as u64).map_err(|error| error.to_string())
}

fn no_room(pieces: &[Piece], devices: &[DeviceRoom]) -> ModelError {
    let nowhere = pieces.iter().find(|piece| piece.bytes.iter().all(Option::is_none));
    if let Some(piece) = nowhere {
        let why = format!("no device has kernels for all tensors of `{}`, which stay together", piece.name);
        return ModelError::Devices { why };
    }
    let least = |piece: &Piece| piece.bytes.iter().flatten().copied().min().unwrap_or(0);
    let all = pieces.iter().map(least).fold(0u64, u64::saturating_add);
    let room = devices.iter().map(|room| room.bytes).fold(0u64, u64::saturating_add);
    let largest = pieces.iter().map(least).max().unwrap_or(0);
    let why = format!(
        "the weights take {all} bytes, the largest piece {largest}, and the devices have room for {room} together: pieces in order fit in no way"
    );
    ModelError::Devices { why }
}

#[cfg(test)]
mod tests {
    use super::{DeviceRoom, check};
    use gristmill_runtime::Device;

    #[test]
    fn devices_that_nothing_can_be_divided_over() {
        let room = |speed| DeviceRoom { device: Device::cuda(0), bytes: 1, speed };
        assert!(check(&[room(1.0)]).is_ok());
        // The last is a number so small that times beside it are none.
        for bad in [
            vec![],
            vec![room(0.0)],
            vec![room(f64::NAN)],
            vec![room(-1.0)],
            vec![room(1.0); 2],
            vec![room(1e-320)],
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
    }
}
