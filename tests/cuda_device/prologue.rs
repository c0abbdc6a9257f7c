//! Layers behind a prologue on a GPU: the bits of the processor's, the place of what stops a row, and what is refused.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::{layer, quantized};
use crate::images::{GPU, bits, parent, settings, tried, values};
use crate::support::{is_child, said};
use gristmill::cuda::{DeviceBuffer, DevicePrologue, DevicePrologueInput, DeviceRows, Gpu};
use gristmill::registry::FormatInfo;
use gristmill::{
    Device, Error, GateFunction, Hadamard, Linear, LinearOptions, PrecisionMode, Prologue, PrologueInput,
    QuantizedMatrix, REGISTRY, Recording, Rows, Threads, Workspace,
};
use std::sync::Arc;

const N: usize = 21;

/// Elements from one row to the next of what is a part of wider rows.
fn stride(k: usize) -> usize {
    k + 8
}

/// A prologue, and which rows it takes besides.
struct Taken {
    prologue: Prologue,
    gated: bool,
    added: bool,
}

/// Every step alone and together.
fn prologues(k: usize) -> Result<Vec<Taken>, Error> {
    let signs: Vec<i8> = (0..k).map(|i| if i % 3 == 0 { -1 } else { 1 }).collect();
    let transform = Arc::new(Hadamard::new(k, 64, Some(&signs))?);
    let norm = |prologue: Prologue| prologue.rms_norm(&values(k, 11), 1e-5);
    let taken = |prologue, gated, added| Taken { prologue, gated, added };
    Ok(vec![
        taken(Prologue::new(k), false, false),
        taken(Prologue::new(k).gated(GateFunction::SquaredRelu), true, false),
        taken(norm(Prologue::new(k))?, false, true),
        taken(Prologue::new(k).transformed(Arc::clone(&transform))?, false, false),
        taken(norm(Prologue::new(k).gated(GateFunction::Silu))?.transformed(transform)?, true, true),
    ])
}

/// Outputs and sums on the processor.
fn expected(layer: &Linear, taken: &Taken, m: usize) -> Result<[Vec<u32>; 2], Error> {
    let Taken { prologue, gated, added } = taken;
    let (k, threads) = (layer.k(), Threads::single());
    let [x, up, residual] = operands(m, k);
    let mut sum = vec![0.0; if *added { m * k } else { 0 }];
    let mut input = PrologueInput::new(Rows::strided(&x, stride(k)));
    if *gated {
        input = input.gate(Rows::strided(&up, stride(k)));
    }
    if *added {
        input = input.add(Rows::dense(&residual), &mut sum);
    }
    let mut workspace = layer.workspace(m, &threads)?;
    let mut y = vec![f32::NAN; m * N];
    let shared = layer.quantize_with(prologue, input, m, &mut workspace, &threads)?;
    layer.forward_quantized(&shared, None, &mut y, &threads)?;
    Ok([bits(&y), bits(&sum)])
}

/// `x` and `up` with gaps, and the residual without.
fn operands(m: usize, k: usize) -> [Vec<f32>; 3] {
    let wide = (m - 1) * stride(k) + k;
    [values(wide, 3), values(wide, 4), values(m * k, 5)]
}

#[test]
fn layers_behind_a_prologue_give_the_processors_bits() {
    if let Some(output) = parent("layers_behind_a_prologue_give_the_processors_bits", &settings()) {
        assert_eq!(said(&output), "", "all memory is given back");
    }
    if is_child() {
        same_bits().expect("no error");
    }
}

fn same_bits() -> Result<(), Error> {
    let recording = Recording::new(&REGISTRY);
    let gpu = Gpu::open(0)?;
    for format in tried() {
        let k = 2 * format.elements.max(128);
        let (here, mut there) = (layer(format, N, k, Device::CPU), layer(format, N, k, GPU));
        there.record(Some(&recording))?;
        for taken in prologues(k)? {
            let Taken { ref prologue, gated, added } = taken;
            let on_gpu = DevicePrologue::new(&gpu, prologue.clone())?;
            for m in [1, 3, 17] {
                let [y_expected, sum_expected] = expected(&here, &taken, m)?;
                let [x, up, residual] = operands(m, k);
                let [x, up] = [x, up].map(|values| DeviceBuffer::of(&gpu, &values).expect("memory"));
                let residual = DeviceBuffer::of(&gpu, &residual)?;
                let mut sum = DeviceBuffer::<f32>::zeroed(&gpu, m * k)?;
                let mut y = DeviceBuffer::<f32>::zeroed(&gpu, m * N)?;
                let mut workspace = Workspace::new();
                let run =
                    |workspace: &mut Workspace, sum: &mut DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>| {
                        let mut input = DevicePrologueInput::new(DeviceRows::strided(&x, stride(k)));
                        if gated {
                            input = input.gate(DeviceRows::strided(&up, stride(k)));
                        }
                        if added {
                            input = input.add(DeviceRows::dense(&residual), sum);
                        }
                        there.forward_on_device_with(&on_gpu, input, m, None, y, workspace)
                    };
                run(&mut workspace, &mut sum, &mut y)?;
                workspace.finish()?;
                let what = format!("{}, m = {m}, {prologue:?}", format.name);
                assert!(bits(&y.to_vec()?) == y_expected, "{what}");
                if added {
                    assert!(bits(&sum.to_vec()?) == sum_expected, "{what}: the sum");
                }
                // The same as a graph, which is launched twice.
                y.write(&vec![0.0; m * N])?;
                let graph = gpu.capture(|| run(&mut workspace, &mut sum, &mut y))?;
                graph.launch()?;
                graph.launch()?;
                workspace.finish()?;
                assert!(bits(&y.to_vec()?) == y_expected, "{what}: as a graph");
            }
        }
    }
    let receipt = recording.receipt();
    assert!(receipt.kernels().iter().any(|kernel| kernel.name().starts_with("prologue.")), "{receipt:?}");
    Ok(())
}

#[test]
fn what_stops_a_row_is_told_with_its_place() {
    if let Some(output) = parent("what_stops_a_row_is_told_with_its_place", &settings()) {
        assert_eq!(said(&output), "", "all memory is given back");
    }
    if is_child() {
        faults().expect("no error");
    }
}

fn faults() -> Result<(), Error> {
    let gpu = Gpu::open(0)?;
    for format in tried() {
        let k = 2 * format.elements.max(128);
        let there = layer(format, N, k, GPU);
        let norm = DevicePrologue::new(&gpu, Prologue::new(k).rms_norm(&vec![1.0; k], 1e-5)?)?;
        let mut y = DeviceBuffer::<f32>::zeroed(&gpu, 3 * N)?;
        let mut workspace = Workspace::new();
        for (row, column, value) in [(0, 0, f32::NAN), (2, k - 1, f32::INFINITY), (1, 5, f32::NEG_INFINITY)] {
            let mut values = vec![0.5; 3 * k];
            values[row * k + column] = value;
            let (bad, good) =
                (DeviceBuffer::of(&gpu, &values)?, DeviceBuffer::of(&gpu, &vec![0.5f32; 3 * k])?);
            let input = DevicePrologueInput::new(DeviceRows::dense(&bad));
            there.forward_on_device_with(&norm, input, 3, None, &mut y, &mut workspace)?;
            assert_eq!(workspace.finish(), Err(Error::NonFinite { row, column }), "{}", format.name);
            // In what is added; the row's sum stays as it was.
            let mut sum = DeviceBuffer::of(&gpu, &vec![7.0f32; 3 * k])?;
            let input =
                DevicePrologueInput::new(DeviceRows::dense(&good)).add(DeviceRows::dense(&bad), &mut sum);
            there.forward_on_device_with(&norm, input, 3, None, &mut y, &mut workspace)?;
            assert_eq!(workspace.finish(), Err(Error::NonFinite { row, column }), "{}", format.name);
            assert!(sum.to_vec()?[row * k..][..k].iter().all(|sum| *sum == 7.0));
            // The same workspace serves again.
            let input = DevicePrologueInput::new(DeviceRows::dense(&good));
            there.forward_on_device_with(&norm, input, 3, None, &mut y, &mut workspace)?;
            workspace.finish()?;
        }
    }
    Ok(())
}

/// The error of one token of zeros through a layer.
fn refused(
    there: &Linear,
    prologue: &DevicePrologue,
    input: DevicePrologueInput<'_>,
    y: &mut DeviceBuffer<f32>,
) -> Error {
    let mut workspace = Workspace::new();
    there.forward_on_device_with(prologue, input, 1, None, y, &mut workspace).expect_err("it is wrong")
}

#[test]
fn rows_that_do_not_fit_are_refused_before_anything_runs() {
    if let Some(output) = parent("rows_that_do_not_fit_are_refused_before_anything_runs", &settings()) {
        assert_eq!(said(&output), "", "all memory is given back");
    }
    if is_child() {
        refusals().expect("no error");
    }
}

fn refusals() -> Result<(), Error> {
    let gpu = Gpu::open(0)?;
    let format = tried().next().expect("there is one");
    let k = 2 * format.elements.max(128);
    let there = layer(format, N, k, GPU);
    let zeros = |len| DeviceBuffer::<f32>::zeroed(&gpu, len);
    let (x, short, mut y) = (zeros(k)?, zeros(k - 4)?, zeros(N)?);
    let on = |prologue| DevicePrologue::new(&gpu, prologue);
    let (none, gate) = (on(Prologue::new(k))?, on(Prologue::new(k).gated(GateFunction::Silu))?);
    let rows = || DevicePrologueInput::new(DeviceRows::dense(&x));
    let narrow = on(Prologue::new(k / 2))?;
    for error in [
        refused(&there, &narrow, rows(), &mut y),
        refused(&there, &none, DevicePrologueInput::new(DeviceRows::dense(&short)), &mut y),
        refused(&there, &gate, rows().gate(DeviceRows::dense(&short)), &mut y),
        refused(&there, &none, rows().add(DeviceRows::dense(&short), &mut zeros(k)?), &mut y),
        refused(&there, &none, rows().add(DeviceRows::dense(&x), &mut zeros(3)?), &mut y),
    ] {
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    }
    for error in [
        refused(&there, &gate, rows(), &mut y),
        refused(&there, &none, rows().gate(DeviceRows::dense(&x)), &mut y),
    ] {
        assert!(matches!(error, Error::Prologue { .. }), "{error}");
    }
    // A sum that is one of the operands, and an output that is.
    let (whole, other) = (zeros(2 * k)?, zeros(k)?);
    let mut view = whole.view(0..k)?;
    let overlapping =
        DevicePrologueInput::new(DeviceRows::dense(&other)).add(DeviceRows::dense(&whole), &mut view);
    let error = refused(&there, &none, overlapping, &mut y);
    assert!(matches!(error, Error::ShapeMismatch { .. } | Error::Overlap { .. }), "{error}");
    let part = whole.view(0..k)?;
    let mut sum = whole.view(k - 8..2 * k - 8)?;
    let overlapping =
        DevicePrologueInput::new(DeviceRows::dense(&other)).add(DeviceRows::dense(&part), &mut sum);
    let error = refused(&there, &none, overlapping, &mut y);
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    let mut into = whole.view(0..N)?;
    let error = refused(&there, &none, DevicePrologueInput::new(DeviceRows::dense(&part)), &mut into);
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    // Products of floats take no int8 in front, and a layer of the processor none of this.
    let bytes = quantized_of(format, k);
    let matrix = QuantizedMatrix::new(format, N, k, &bytes)?;
    let threads = Threads::single();
    let floats = LinearOptions { device: GPU, precision: PrecisionMode::F16, ..LinearOptions::default() };
    let floats = Linear::new(&REGISTRY, &matrix, &floats, &threads)?;
    let error = refused(&floats, &none, rows(), &mut y);
    assert!(
        matches!(error, Error::WrongInput { .. } | Error::NoKernel(_) | Error::BrokenRegistry { .. }),
        "{error}"
    );
    let here = layer(format, N, k, Device::CPU);
    let error = refused(&here, &none, rows(), &mut y);
    assert!(matches!(error, Error::CannotDrive { .. }), "{error}");
    Ok(())
}

fn quantized_of(format: &'static FormatInfo, k: usize) -> Vec<u8> {
    quantized(format, &values(N * k, 7), N, k)
}
