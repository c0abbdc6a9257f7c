//! Activations that are quantized once on a GPU and read by several layers: the processor's bits, one launch that quantizes, graphs,
//! and what is refused.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::{layer, layer_in, on_a_device};
use crate::images::{GPU, bits, parent, settings, tried, values};
use crate::support::{is_child, said};
use cudarc::driver::sys;
use gristmill::cuda::{
    DeviceBatch, DeviceBuffer, DeviceInput, DevicePrologue, DevicePrologueInput, DeviceRows, Gpu,
};
use gristmill::half::f16;
use gristmill::half::slice::HalfFloatSliceExt;
use gristmill::registry::FormatInfo;
use gristmill::vocab::Op;
use gristmill::{
    Device, Error, Input, Linear, Packings, Prologue, PrologueInput, REGISTRY, Recording, Rows, Threads,
    Workspace,
};

/// Rows of query, key and value.
const ROWS: [usize; 3] = [48, 21, 5];

fn layers(format: &'static FormatInfo, k: usize, device: Device, packings: Packings) -> [Linear; 3] {
    ROWS.map(|n| layer_in(format, n, k, device, packings))
}

/// Outputs of separate runs on the processor.
fn expected(layers: &[Linear; 3], input: Input<'_>, m: usize) -> Result<Vec<Vec<u32>>, Error> {
    let threads = Threads::single();
    layers
        .iter()
        .map(|layer| {
            let mut workspace = layer.workspace(m, &threads)?;
            let mut y = vec![f32::NAN; m * layer.n()];
            layer.forward(input, m, None, &mut y, &mut workspace, &threads)?;
            Ok(bits(&y))
        })
        .collect()
}

fn outputs(gpu: &std::sync::Arc<Gpu>, m: usize) -> Result<Vec<DeviceBuffer<f32>>, Error> {
    ROWS.iter().map(|n| DeviceBuffer::of(gpu, &vec![f32::NAN; m * n])).collect()
}

fn read(outputs: &[DeviceBuffer<f32>]) -> Result<Vec<Vec<u32>>, Error> {
    outputs.iter().map(|y| Ok(bits(&y.to_vec()?))).collect()
}

#[test]
fn layers_that_share_activations_give_the_processors_bits() {
    on_a_device("layers_that_share_activations_give_the_processors_bits", || {
        for format in tried() {
            for packings in [Packings::One, Packings::Fastest] {
                for m in [1, 3, 17] {
                    shared(format, packings, m).expect("no error");
                }
            }
        }
    });
}

fn shared(format: &'static FormatInfo, packings: Packings, m: usize) -> Result<(), Error> {
    let k = 2 * format.elements.max(128);
    let case = format!("{}, {packings:?}, m = {m}", format.name);
    let gpu = Gpu::open(0)?;
    let here = layers(format, k, Device::CPU, packings);
    let mut there = layers(format, k, GPU, packings);
    let recording = Recording::new(&REGISTRY);
    there.iter_mut().try_for_each(|layer| layer.record(Some(&recording)))?;
    assert!(there[0].shares_activations_with(&there[2], m), "{case}");
    assert!(!there[0].shares_activations_with(&here[0], m), "{case}: nothing is shared with the processor");
    let mut x = DeviceBuffer::of(&gpu, &values(m * k, 1))?;
    let mut y = outputs(&gpu, m)?;
    let (mut activations, mut products) = (Workspace::new(), Workspace::new());
    let mut step = |x: DeviceInput<'_>, y: &mut [DeviceBuffer<f32>]| -> Result<(), Error> {
        let shared = there[0].quantize_on_device(x, m, &mut activations)?;
        assert_eq!((shared.m(), shared.k()), (m, k));
        for (layer, y) in there.iter().zip(y) {
            layer.forward_quantized_on_device(&shared, None, y, &mut products)?;
        }
        Ok(())
    };
    step(DeviceInput::F32(&x), &mut y)?;
    assert!(read(&y)? == expected(&here, Input::F32(&values(m * k, 1)), m)?, "{case}");
    // One launch quantized.
    let receipt = recording.receipt();
    let launches = |op: Op| -> u64 {
        let name = format!("{op}.");
        let of = receipt.kernels().iter().filter(|kernel| kernel.name().starts_with(&name));
        of.map(|kernel| kernel.launches()).sum()
    };
    assert_eq!((launches(Op::QuantizeActivations), launches(Op::Matmul)), (1, 3), "{case}: {receipt:?}");
    let halves: Vec<f16> = values(m * k, 5).iter().map(|value| f16::from_f32(*value)).collect();
    let of_two_bytes = DeviceBuffer::of(&gpu, halves.reinterpret_cast())?;
    step(DeviceInput::F16(&of_two_bytes), &mut y)?;
    assert!(read(&y)? == expected(&here, Input::F16(&halves), m)?, "{case}: f16");
    // As a graph, launched for other inputs, without memory that it did not have before.
    let held = gpu.memory_held()?;
    let graph = gpu.capture(|| step(DeviceInput::F32(&x), &mut y))?;
    assert_eq!(graph.kernels().count(), 4, "{case}");
    for seed in [2, 3] {
        x.write(&values(m * k, seed))?;
        graph.launch()?;
        assert!(read(&y)? == expected(&here, Input::F32(&values(m * k, seed)), m)?, "{case}: a graph");
    }
    assert_eq!(gpu.memory_held()?, held, "{case}: a step takes no memory");
    products.finish()?;
    activations.finish()
}

/// Products that read what another workspace has, and tells of, are waited for by their own all the same.
#[test]
fn products_of_shared_activations_are_waited_for() {
    on_a_device("products_of_shared_activations_are_waited_for", || waited_for().expect("no error"));
}

fn waited_for() -> Result<(), Error> {
    let (gpu, m) = (Gpu::open(0)?, 3);
    let format = tried().next().expect("one is tried");
    let k = 2 * format.elements.max(128);
    let layer = layer(format, 5, k, GPU);
    let x = DeviceBuffer::of(&gpu, &values(m * k, 1))?;
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, m * 5)?;
    // SAFETY: the stream is the device's.
    let is_done = || unsafe { sys::cuStreamQuery(gpu.stream_handle().cast()) }.result().is_ok();
    let (mut activations, mut products) = (Workspace::new(), Workspace::new());
    let shared = layer.quantize_on_device(DeviceInput::F32(&x), m, &mut activations)?;
    assert!(!is_done(), "the device is slow");
    products.finish()?;
    assert!(!is_done(), "nothing of this workspace's");
    layer.forward_quantized_on_device(&shared, None, &mut y, &mut products)?;
    assert!(!is_done());
    products.finish()?;
    assert!(is_done(), "a product");
    let run = |y: &mut DeviceBuffer<f32>, products: &mut Workspace| {
        let mut batch = DeviceBatch::new();
        batch.push(&layer, &shared, None, y)?;
        batch.run(products)
    };
    run(&mut y, &mut products)?;
    assert!(!is_done());
    products.finish()?;
    assert!(is_done(), "a batch");
    let graph = gpu.capture(|| layer.forward_quantized_on_device(&shared, None, &mut y, &mut products))?;
    products.finish()?;
    for launch in 1..3 {
        graph.launch()?;
        assert!(!is_done());
        products.finish()?;
        assert!(is_done(), "launch {launch} of a graph");
    }
    activations.finish()
}

#[test]
fn activations_behind_a_prologue_are_shared() {
    on_a_device("activations_behind_a_prologue_are_shared", || {
        for format in tried() {
            for packings in [Packings::One, Packings::Fastest] {
                behind_a_prologue(format, packings, 3).expect("no error");
                behind_a_prologue(format, packings, 1).expect("no error");
            }
        }
    });
}

fn behind_a_prologue(format: &'static FormatInfo, packings: Packings, m: usize) -> Result<(), Error> {
    let k = 2 * format.elements.max(128);
    let (gpu, threads) = (Gpu::open(0)?, Threads::single());
    let prologue = Prologue::new(k).rms_norm(&values(k, 11), 1e-5)?;
    let (input, residual) = (values(m * k, 1), values(m * k, 2));
    let here = layers(format, k, Device::CPU, packings);
    let mut sum = vec![0.0; m * k];
    let mut workspace = Workspace::for_all(&here, m, &threads)?;
    let rows = PrologueInput::new(Rows::dense(&input)).add(Rows::dense(&residual), &mut sum);
    let quantized = here[0].quantize_with(&prologue, rows, m, &mut workspace, &threads)?;
    let mut expected = Vec::new();
    for layer in &here {
        let mut y = vec![f32::NAN; m * layer.n()];
        layer.forward_quantized(&quantized, None, &mut y, &threads)?;
        expected.push(bits(&y));
    }
    let there = layers(format, k, GPU, packings);
    let prologue = DevicePrologue::new(&gpu, prologue)?;
    let [x, residual] = [DeviceBuffer::of(&gpu, &input)?, DeviceBuffer::of(&gpu, &residual)?];
    let (mut sums, mut y) = (DeviceBuffer::<f32>::zeroed(&gpu, m * k)?, outputs(&gpu, m)?);
    let (mut activations, mut products) = (Workspace::new(), Workspace::new());
    let rows = DevicePrologueInput::new(DeviceRows::dense(&x)).add(DeviceRows::dense(&residual), &mut sums);
    let shared = there[0].quantize_on_device_with(&prologue, rows, m, &mut activations)?;
    for (layer, y) in there.iter().zip(&mut y) {
        layer.forward_quantized_on_device(&shared, None, y, &mut products)?;
    }
    activations.finish()?;
    assert!(read(&y)? == expected, "{}, {packings:?}, m = {m}", format.name);
    assert!(bits(&sums.to_vec()?) == bits(&sum), "{}: the sum", format.name);
    Ok(())
}

#[test]
fn activations_that_a_layer_does_not_read_are_refused() {
    if let Some(output) = parent("activations_that_a_layer_does_not_read_are_refused", &settings()) {
        assert_eq!(said(&output), "", "all memory is given back");
    }
    if is_child() {
        refused().expect("no error");
    }
}

fn refused() -> Result<(), Error> {
    let gpu = Gpu::open(0)?;
    let mut formats = tried();
    let (Some(first), Some(other)) =
        (formats.next(), formats.find(|format| REGISTRY.activations[format.activations].block.is_some()))
    else {
        panic!("formats of two kinds of activations are tried");
    };
    let (m, k) = (2, 512);
    let [one, two] = [first, other].map(|format| layer(format, 32, k, GPU));
    let (mut activations, mut products) = (Workspace::new(), Workspace::new());
    let x = DeviceBuffer::of(&gpu, &values(m * k, 1))?;
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, m * 32)?;
    let shared = one.quantize_on_device(DeviceInput::F32(&x), m, &mut activations)?;
    // Both layouts are named.
    assert!(!one.shares_activations_with(&two, m));
    let error = two.forward_quantized_on_device(&shared, None, &mut y, &mut products).unwrap_err();
    assert!(matches!(error, Error::ActivationLayout { .. }), "{error}");
    let text = error.to_string();
    for format in [first, other] {
        let name = REGISTRY.activations[format.activations].name;
        assert!(text.contains(&format!("`{name}` rows of {k}")), "{text}");
    }
    let longer = layer(first, 32, 2 * k, GPU);
    let error = longer.forward_quantized_on_device(&shared, None, &mut y, &mut products).unwrap_err();
    assert!(
        matches!(error, Error::ShapeMismatch { expected, found, .. } if (expected, found) == (2 * k, k)),
        "{error}"
    );
    let mut short = DeviceBuffer::<f32>::zeroed(&gpu, m * 32 - 1)?;
    let error = one.forward_quantized_on_device(&shared, None, &mut short, &mut products).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    let bias = y.view(0..32)?;
    let error = one.forward_quantized_on_device(&shared, Some(&bias), &mut y, &mut products).unwrap_err();
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    // The processor neither makes nor takes them, and a GPU not those of the processor.
    let here = layer(first, 32, k, Device::CPU);
    let error = here.forward_quantized_on_device(&shared, None, &mut y, &mut products).unwrap_err();
    assert!(matches!(error, Error::CannotDrive { .. }), "{error}");
    let error = here.quantize_on_device(DeviceInput::F32(&x), m, &mut products).unwrap_err();
    assert!(matches!(error, Error::CannotDrive { .. }), "{error}");
    let error =
        one.quantize(Input::F32(&values(m * k, 1)), m, &mut products, &Threads::single()).unwrap_err();
    assert!(matches!(error, Error::ProcessorOnly { .. }), "{error}");
    // Nothing, and not enough.
    for (tokens, of) in [(0, 0), (1, m * k)] {
        let x = x.view(0..of)?;
        let error = one.quantize_on_device(DeviceInput::F32(&x), tokens, &mut products).unwrap_err();
        assert!(matches!(error, Error::ShapeRule { .. } | Error::ShapeMismatch { .. }), "{error}");
    }
    // What stops a row is told by the workspace that quantized it, once, and the next run is as if it had not been.
    one.forward_quantized_on_device(&shared, None, &mut y, &mut products)?;
    activations.finish()?;
    let good = bits(&y.to_vec()?);
    let mut bad = values(m * k, 1);
    bad[k + 7] = f32::NAN;
    let bad = DeviceBuffer::of(&gpu, &bad)?;
    let shared = one.quantize_on_device(DeviceInput::F32(&bad), m, &mut activations)?;
    one.forward_quantized_on_device(&shared, None, &mut y, &mut products)?;
    products.finish()?;
    let error = activations.finish().unwrap_err();
    assert_eq!(error, Error::NonFinite { row: 1, column: 7 });
    let shared = one.quantize_on_device(DeviceInput::F32(&x), m, &mut activations)?;
    one.forward_quantized_on_device(&shared, None, &mut y, &mut products)?;
    activations.finish()?;
    assert!(bits(&y.to_vec()?) == good);
    Ok(())
}
