//! `gristmill plan --devices`: which device each tensor of a model goes to.

use super::environment::Environment;
use super::error::{CliError, Outcome};
use super::json::print_json;
use super::memory;
use super::plan::Arguments;
use super::run::threads;
use super::table::{Side, Table, bytes, counted};
use gristmill::gguf::{DevicePart, DevicePlan, DeviceRoom, LayerOptions, Model};
use gristmill::vocab::DeviceKind;
use gristmill::{Device, Threads};
use serde::Serialize;
use std::io::Write;

/// What `plan --devices --json` prints.
#[derive(Serialize)]
struct Planned<'a> {
    threads: usize,
    devices: Vec<PlannedDevice>,
    /// The device of each tensor, null for those that no device has a kernel for.
    tensors: Vec<PlannedTensor<'a>>,
    without_kernel: Vec<Without<'a>>,
}

#[derive(Serialize)]
struct PlannedDevice {
    device: String,
    pieces: Vec<String>,
    packed_bytes: u64,
    room_bytes: u64,
    speed: f64,
    /// Its part of the time of a token.
    time: f64,
}

#[derive(Serialize)]
struct PlannedTensor<'a> {
    tensor: &'a str,
    device: Option<String>,
}

#[derive(Serialize)]
struct Without<'a> {
    tensor: &'a str,
    why: &'a str,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let types = arguments.types.numbers()?;
    let rooms = rooms(arguments)?;
    let model = Model::open_with(&arguments.file, types)?;
    let threads = Threads::new(threads(arguments.threads))?;
    let options = LayerOptions { threads: &threads, linear: Environment::read()?.options() };
    let plan = DevicePlan::new(&model, &options, &rooms)?;
    if arguments.json {
        let device = |(part, room): (&DevicePart, &DeviceRoom)| PlannedDevice {
            device: part.device.to_string(),
            pieces: part.pieces.clone(),
            packed_bytes: part.bytes,
            room_bytes: part.room,
            speed: room.speed,
            time: part.time,
        };
        let tensors: Vec<_> = model.file().tensors().collect();
        let planned = Planned {
            threads: threads.count(),
            devices: plan.parts().iter().zip(&rooms).map(device).collect(),
            tensors: tensors
                .iter()
                .map(|tensor| PlannedTensor {
                    tensor: tensor.name(),
                    device: plan.device_of(tensor.name()).map(|device| device.to_string()),
                })
                .collect(),
            without_kernel: plan.without().iter().map(|(tensor, why)| Without { tensor, why }).collect(),
        };
        print_json(out, &planned)?;
    } else {
        print(&plan, &rooms, out)?;
    }
    Ok(if plan.without().is_empty() { Outcome::Yes } else { Outcome::NoKernel })
}

fn print(plan: &DevicePlan, rooms: &[DeviceRoom], out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("device", Side::Left),
        ("pieces", Side::Left),
        ("packed", Side::Right),
        ("room", Side::Right),
        ("speed", Side::Right),
        ("time", Side::Right),
    ]);
    let fastest = rooms.iter().map(|room| room.speed).fold(0.0, f64::max);
    for (part, room) in plan.parts().iter().zip(rooms) {
        let pieces = match &part.pieces[..] {
            [] => String::from("none"),
            [only] => only.clone(),
            [first, .., last] => format!("{first} to {last}"),
        };
        table.row([
            part.device.to_string(),
            pieces,
            bytes(part.bytes),
            bytes(part.room),
            format!("{:.2}", room.speed / fastest),
            format!("{:.0} %", 100.0 * part.time),
        ]);
    }
    table.print(out)?;
    writeln!(
        out,
        "\nspeed: beside the fastest; time: of one token, one device after the other. With several tokens on their way the longest decides."
    )?;
    if !plan.without().is_empty() {
        writeln!(out, "{} without a kernel on any of them:", counted(plan.without().len(), "tensor"))?;
        for (tensor, why) in plan.without() {
            let why = why.lines().next().unwrap_or_default();
            writeln!(out, "  {}: {}", gristmill::text::Printable(tensor), gristmill::text::Printable(why))?;
        }
    }
    Ok(())
}

/// The devices with what they have room for.
fn rooms(arguments: &Arguments) -> Result<Vec<DeviceRoom>, CliError> {
    let Arguments { devices, speeds, reserve, .. } = arguments;
    if !speeds.is_empty() && speeds.len() != devices.len() {
        let (speeds, devices) = (speeds.len(), devices.len());
        let what = format!("there are {speeds} speeds for {devices} devices");
        return Err(CliError::usage(what, "one for each, in the order of the devices"));
    }
    let room = |(at, device): (usize, &Device)| {
        let given = speeds.get(at).copied();
        let room = match (device.kind, given) {
            (DeviceKind::Cuda, _) => DeviceRoom::of_gpu(device.index)?,
            (DeviceKind::Cpu, Some(speed)) => {
                DeviceRoom { device: *device, bytes: memory::available().unwrap_or(u64::MAX), speed }
            }
            (DeviceKind::Cpu, None) => {
                let help = "`--speeds` says how fast each device is beside the others";
                return Err(CliError::usage("of cpu no multiprocessors and no clock are known", help));
            }
            _ => {
                let what = format!("no kernels are described for {device}");
                return Err(CliError::usage(what, "the devices are cpu and cuda:N"));
            }
        };
        let bytes = room.bytes.saturating_sub(*reserve);
        Ok(DeviceRoom { bytes, speed: given.unwrap_or(room.speed), ..room })
    };
    devices.iter().enumerate().map(room).collect()
}
