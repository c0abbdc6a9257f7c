//! Two layers with one workspace in a graph, launched again and again: the bits of the last launch are those of the first.

use super::super::error::{CliError, Outcome};
use gristmill::Device;
use std::io::Write;

/// Whether the device can be opened.
///
/// # Errors
/// Why not.
pub fn open(device: Device) -> Result<(), CliError> {
    on_gpu::open(device).map(drop)
}

/// Runs it.
///
/// # Errors
/// What the device refuses.
pub fn run(
    device: Device,
    replays: u64,
    formats: &[String],
    out: &mut dyn Write,
) -> Result<Outcome, CliError> {
    on_gpu::run(device, replays, formats, out)
}

#[cfg(feature = "cuda")]
mod on_gpu {
    use super::super::super::error::{CliError, Outcome};
    use super::super::super::request;
    use super::super::super::verify::random_tensor;
    use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
    use gristmill::oracle::{Oracle, Random};
    use gristmill::registry::FormatInfo;
    use gristmill::{
        Device, Error, Linear, LinearOptions, Policy, QuantizedMatrix, REGISTRY, Restrict, Threads, Workspace,
    };
    use std::io::Write;
    use std::sync::Arc;

    /// Width of the layers, and how often their results are looked at.
    const WIDTH: usize = 512;
    const LOOKS: u64 = 100;
    /// Numbers of tokens that take turns in the graph: a decode step and a few together.
    const TOKENS: [usize; 2] = [1, 7];

    pub fn open(device: Device) -> Result<Arc<Gpu>, CliError> {
        Ok(Gpu::open(device.index)?)
    }

    /// `2 * WIDTH` by `WIDTH`, or the other way round.
    fn layer(
        oracle: &Oracle,
        format: &'static FormatInfo,
        device: Device,
        (n, k): (usize, usize),
    ) -> Result<Linear, CliError> {
        let mut random = Random::new(1, format.name);
        let bytes = random_tensor(&oracle.format(format.name)?, &mut random, n, k);
        let options = LinearOptions {
            device,
            policy: Policy::Strict,
            restrict: Some(Restrict::default()),
            ..LinearOptions::default()
        };
        Ok(Linear::new(
            &REGISTRY,
            &QuantizedMatrix::new(format, n, k, &bytes)?,
            &options,
            &Threads::single(),
        )?)
    }

    pub fn run(
        device: Device,
        replays: u64,
        formats: &[String],
        out: &mut dyn Write,
    ) -> Result<Outcome, CliError> {
        let gpu = open(device)?;
        let oracle = Oracle::new(&REGISTRY)?;
        let name = formats.first().map_or("i2_s", String::as_str);
        let format = request::format(name)?;
        let width = WIDTH.next_multiple_of(format.elements);
        let up = layer(&oracle, format, device, (2 * width, width))?;
        let down = layer(&oracle, format, device, (width, 2 * width))?;
        let mut random = Random::new(2, name);
        let mut buffers = Vec::new();
        for m in TOKENS {
            let x = DeviceBuffer::of(&gpu, &random.gauss_vec(m * width, 1.0))?;
            let between = DeviceBuffer::zeroed(&gpu, m * 2 * width)?;
            buffers.push((m, x, between, DeviceBuffer::<f32>::zeroed(&gpu, m * width)?));
        }
        let mut workspace = Workspace::new();
        let mut step = || -> Result<(), Error> {
            for (m, x, between, y) in &mut buffers {
                up.forward_on_device(DeviceInput::F32(x), *m, None, between, &mut workspace)?;
                down.forward_on_device(DeviceInput::F32(between), *m, None, y, &mut workspace)?;
            }
            Ok(())
        };
        // Makes what memory it needs.
        step()?;
        let graph = gpu.capture(&mut step)?;
        workspace.finish()?;
        let look = || -> Result<Vec<u32>, Error> {
            let mut all = Vec::new();
            for (m, _, _, y) in &buffers {
                let mut found = vec![0.0; m * width];
                y.read(&mut found)?;
                all.extend(found.iter().map(|value| value.to_bits()));
            }
            Ok(all)
        };
        let first = look()?;
        let held = gpu.memory_held()?.bytes;
        for replay in 1..=replays {
            graph.launch()?;
            if replay % (replays / LOOKS).max(1) == 0 || replay == replays {
                workspace.finish()?;
                let now = look()?;
                if let Some(at) = first.iter().zip(&now).position(|(first, now)| first != now) {
                    writeln!(
                        out,
                        "WRONG: replay {replay}: output {at} was 0x{:08x} and is 0x{:08x}",
                        first[at], now[at]
                    )?;
                    return Ok(Outcome::Failed);
                }
            }
        }
        let grown = gpu.memory_held()?.bytes.saturating_sub(held);
        writeln!(
            out,
            "{name}: {replays} replays of {} products, the same bits each time; {grown} bytes more are held",
            2 * TOKENS.len()
        )?;
        Ok(if grown == 0 { Outcome::Yes } else { Outcome::Failed })
    }
}

#[cfg(not(feature = "cuda"))]
mod on_gpu {
    use super::super::super::error::{CliError, Outcome};
    use gristmill::{Device, Error, NoGpu};
    use std::io::Write;

    pub fn open(device: Device) -> Result<(), CliError> {
        Err(Error::NoGpu { index: device.index, why: NoGpu::FeatureOff }.into())
    }

    pub fn run(device: Device, _: u64, _: &[String], _: &mut dyn Write) -> Result<Outcome, CliError> {
        open(device).map(|()| Outcome::Failed)
    }
}
