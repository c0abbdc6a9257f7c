//! Times of products, against those that the same machine has had before.

use super::asked::{Options, Outcome, ValidateError};
use super::baseline::{Baseline, Time};
use super::tensor::{layer, matrix, row_of};
use crate::cli::clock::{Clock, median};
use crate::oracle::Random;
use crate::registry::FormatInfo;
use crate::vocab::DeviceKind;
use crate::{Device, Error, Input, Linear, Registry, Shape, Threads, Workspace};
use serde::Serialize;
use std::time::Duration;
use sysinfo::{CpuRefreshKind, RefreshKind, System};

/// Tokens of the products.
const TOKENS: [usize; 2] = [1, 32];
/// Rows of the weights.
const ROWS: usize = 1024;
/// Elements of a row, at least.
const LEAST_K: usize = 2048;
/// Readings of the clock of which the median is taken.
const READINGS: usize = 7;
/// Time between two readings, at least.
const BETWEEN: Duration = Duration::from_millis(1);
/// Times that a product which seems slower is measured again before it is called slower.
const AGAIN: usize = 2;

/// Times against those of a baseline.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Failed, if a product is slower by more than the tolerance; not run, where nothing could be compared.
    pub outcome: Outcome,
    /// Why nothing was compared.
    pub why: Option<String>,
    /// Products that the baseline has too.
    pub compared: usize,
    /// How many of them are slower by more than the tolerance.
    pub slower: usize,
    /// All times.
    pub times: Vec<Time>,
}

impl Speed {
    /// These times as a baseline of this machine.
    pub fn baseline(&self, machine: &str) -> Baseline {
        let times = self.times.iter().map(|time| Time { ratio: None, ..time.clone() }).collect();
        Baseline { schema: Baseline::SCHEMA.to_owned(), machine: machine.to_owned(), times }
    }
}

/// The name that times are kept by: of the processor and how many of them this program may use, or of the GPU and its driver.
pub(super) fn machine(device: Device) -> Result<String, Error> {
    if device.kind == DeviceKind::Cuda {
        return gpu(device.index);
    }
    let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
    let brand = system.cpus().first().map_or("", |cpu| cpu.brand()).trim();
    let brand = if brand.is_empty() { std::env::consts::ARCH } else { brand };
    Ok(format!("{brand}, {} processors", crate::CpuProfile::detect().cores))
}

#[cfg(feature = "cuda")]
fn gpu(index: u32) -> Result<String, Error> {
    let gpu = crate::cuda::Gpu::open(index)?;
    let profile = gpu.profile();
    Ok(format!("{} {}.{} driver {}", profile.name, profile.cc.0, profile.cc.1, profile.driver))
}

#[cfg(not(feature = "cuda"))]
fn gpu(index: u32) -> Result<String, Error> {
    Err(Error::NoGpu { index, why: crate::NoGpu::FeatureOff })
}

pub(super) fn measure(
    registry: &'static Registry,
    options: &Options<'_>,
    machine: &str,
    formats: &[&'static FormatInfo],
    threads: &Threads,
) -> Result<Speed, ValidateError> {
    let mut speed = Speed { outcome: Outcome::NotRun, why: None, compared: 0, slower: 0, times: Vec::new() };
    let base = match options.baseline {
        None => Err("no baseline was given".to_owned()),
        Some(base) if base.machine != machine => {
            Err(format!("the baseline is of another machine ({}), and this is {machine}", base.machine))
        }
        Some(base) => Ok(base),
    };
    for format in formats {
        let k = row_of(format, LEAST_K);
        let Some(weights) = matrix(registry, format, (ROWS, k), 1, options)? else { continue };
        let Some(layer) = layer(registry, &weights, options.device, options.restrict(), threads)? else {
            continue;
        };
        for m in TOKENS {
            let mut time = take(&layer, m, threads)?;
            let before =
                base.as_ref().ok().and_then(|base| base.times.iter().find(|before| before.is_of(&time)));
            if let Some(before) = before {
                let slower = |time: &Time| time.seconds > before.seconds * (1.0 + options.tolerance);
                for _ in 0..AGAIN {
                    if !slower(&time) {
                        break;
                    }
                    let again = take(&layer, m, threads)?;
                    time.seconds = time.seconds.min(again.seconds);
                }
                speed.compared += 1;
                speed.slower += usize::from(slower(&time));
                time.ratio = Some(time.seconds / before.seconds);
            }
            speed.times.push(time);
        }
    }
    (speed.outcome, speed.why) = match base {
        Err(why) => (Outcome::NotRun, Some(why)),
        Ok(_) if speed.compared == 0 => {
            (Outcome::NotRun, Some("the baseline has none of these kernels".to_owned()))
        }
        Ok(_) if speed.slower > 0 => (Outcome::Failed, None),
        Ok(_) => (Outcome::Passed, None),
    };
    Ok(speed)
}

fn take(layer: &Linear, m: usize, threads: &Threads) -> Result<Time, Error> {
    let (n, k) = (layer.n(), layer.k());
    let kernel = layer.prepared().decide(Shape::new(m, n, k)).kernel()?;
    let x = Random::new(3, kernel.name).gauss_vec(m * k, 1.0);
    let (mut y, mut workspace) = (vec![0.0; m * n], layer.workspace(m, threads)?);
    let mut run =
        |workspace: &mut Workspace| layer.forward(Input::F32(&x), m, None, &mut y, workspace, threads);
    let seconds = threads.awake(|| -> Result<f64, Error> {
        run(&mut workspace)?;
        let clock = Clock::start(threads.count());
        run(&mut workspace)?;
        let turns = (BETWEEN.as_secs_f64() / clock.seconds().max(1e-9)).ceil().clamp(1.0, 1e5) as usize;
        let mut readings = Vec::new();
        for _ in 0..READINGS {
            let clock = Clock::start(threads.count());
            for _ in 0..turns {
                run(&mut workspace)?;
            }
            readings.push(clock.seconds() / turns as f64);
        }
        Ok(median(&mut readings))
    })?;
    Ok(Time {
        kernel: kernel.name.to_owned(),
        id: kernel.id.to_string(),
        m,
        n,
        k,
        threads: threads.count(),
        seconds,
        ratio: None,
    })
}
