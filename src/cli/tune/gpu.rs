//! The same on a GPU: kernels that stay there, timed by its clock.

use super::super::error::CliError;
use super::super::{gpu_time, progress};
use super::arguments::Arguments;
use super::packed::place_of_packing;
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::oracle::Random;
use gristmill::registry::{Code, Entry, FormatInfo, KernelId};
use gristmill::tuning::{Measured, gpu};
use gristmill::vocab::Op;
use gristmill::{
    CpuProfile, Device, Matmul, PrecisionMode, QuantizedMatrix, REGISTRY, Request, Restrict, Shape, Threads,
};

/// Measures the kernels of each format on `device`.
pub fn tune(
    arguments: &Arguments,
    device: Device,
    formats: &[&'static FormatInfo],
) -> Result<Vec<Measured>, CliError> {
    let opened = Gpu::open(device.index)?;
    let on = gpu(opened.profile());
    let rounds = if arguments.quick { 5 } else { 20 };
    let threads = Threads::new(CpuProfile::detect().cores)?;
    let classes = arguments.classes();
    let bar = progress::bar((formats.len() * classes.iter().map(Vec::len).sum::<usize>()) as u64);
    let mut found = Vec::new();
    for &format in formats {
        bar.set_message(format.name);
        let mut random = Random::new(1, format.name);
        for classes in &classes {
            let Some(Shape { n, k, .. }) = classes.first().map(|class| class.example()) else { continue };
            let tensor = gpu_time::tensor(format, &mut random, n, k)?;
            let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
            let mut packed = Vec::new();
            for class in classes {
                bar.inc(1);
                let shape = class.example();
                let x = DeviceBuffer::of(&opened, &random.gauss_vec(shape.m * k, 1.0))?;
                let mut y = DeviceBuffer::zeroed(&opened, shape.m * n)?;
                let mut order: Vec<(KernelId, f64)> = Vec::new();
                for entry in candidates(format) {
                    let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
                    let request = Request::matmul(format.name, shape).on(device);
                    // Whoever asks for one precision finds its kernels in the same order.
                    let precision = entry.precision().map_or(PrecisionMode::Auto, PrecisionMode::from);
                    let request = request.with_precision(precision);
                    let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only)?;
                    // Not for this device, or not for these numbers of tokens.
                    let Ok(matmul) = Matmul::new(&prepared.decide(shape)) else { continue };
                    let at = place_of_packing(&mut packed, &matmul, &matrix, &threads)?;
                    let weights = &mut packed[at].1;
                    let wanted =
                        if arguments.hot { 1 } else { gpu_time::copies(&opened, weights[0].bytes()) };
                    while weights.len() < wanted {
                        weights.push(matmul.pack_on(&matrix, &threads)?);
                    }
                    let gpu_time::Times { seconds, .. } = gpu_time::seconds(
                        &opened,
                        &matmul,
                        weights,
                        DeviceInput::F32(&x),
                        &mut y,
                        shape.m,
                        rounds,
                    )?;
                    order.push((entry.id, 1e6 * seconds));
                }
                order.sort_by(|a, b| a.1.total_cmp(&b.1));
                if order.len() > 1 {
                    let (on, format) = (on.clone(), format.name.to_owned());
                    found.push(Measured {
                        on,
                        op: Op::Matmul,
                        format,
                        quantizer: None,
                        class: *class,
                        threads: 1,
                        order,
                    });
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(found)
}

/// Products of a format on GPUs.
fn candidates(format: &FormatInfo) -> impl Iterator<Item = &'static Entry> + '_ {
    REGISTRY.entries.iter().filter(|entry| {
        entry.op == Op::Matmul
            && matches!(entry.code, Code::Cuda(_))
            && REGISTRY.formats.get(entry.format).is_some_and(|info| info.name == format.name)
    })
}
