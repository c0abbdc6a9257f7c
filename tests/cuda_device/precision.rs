//! Products of floats through the runtime's handles, on a GPU that a fake driver stands for: precision as it was asked for,
//! activations of all types from both memories, conversions, and what is refused where.
//!
//! Without images in this build (no CUDA compiler) nothing can be loaded, and the tests say that they are skipped.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::images::{GPU, bits, devices, parent, settings, tried, values, with_warpgroups};
use crate::support::{is_child, said};
use gristmill::cuda::{Converter, DeviceBuffer, DeviceInput, Gpu};
use gristmill::half::{bf16, f16};
use gristmill::oracle::Oracle;
use gristmill::registry::FormatInfo;
use gristmill::vocab::Precision;
use gristmill::workspace::WorkspaceSize;
use gristmill::{
    CpuProfile, Dequantizer, Device, Error, Input, Linear, LinearOptions, Matmul, PackedMatrix, Policy,
    PrecisionMode, QuantizedMatrix, Quantizer, REGISTRY, Reason, Recording, Request, Restrict, Shape,
    Threads, Tuning, Workspace,
};

pub fn quantized(format: &FormatInfo, n: usize, k: usize) -> Result<Vec<u8>, Error> {
    let prepared = REGISTRY.prepare(&Request::quantize(format.name, None, n, k))?;
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    Quantizer::new(&prepared.decide_as_asked())?.run(&values(n * k, 7), n, k, &mut bytes)?;
    Ok(bytes)
}

/// The nearest number of what is multiplied.
fn rounded(precision: Precision, x: f32) -> f64 {
    f64::from(match precision {
        Precision::F16 => f16::from_f32(x).to_f32(),
        Precision::Bf16 => bf16::from_f32(x).to_f32(),
        Precision::F32 | Precision::Int8 | Precision::Fp4 => x,
    })
}

/// All of them as they are multiplied.
fn factors(precision: Precision, values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| rounded(precision, *x)).collect()
}

/// Panics where a result is beyond the bound of docs/cuda.md for weights and activations as they are multiplied.
pub fn within(case: &str, weights: &[f64], x: &[f64], bias: Option<&[f32]>, y: &[f32], k: usize) {
    let n = weights.len() / k;
    for (at, found) in y.iter().enumerate() {
        let (token, row) = (at / n, at % n);
        let terms = weights[row * k..][..k].iter().zip(&x[token * k..][..k]).map(|(w, x)| w * x);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let bias = f64::from(bias.map_or(0.0, |bias| bias[row]));
        let bound = (1.125 * k as f64 + 32.0) * 2f64.powi(-23) * (size + bias.abs());
        let away = (f64::from(*found) - sum - bias).abs();
        assert!(away <= bound, "{case}: y[{token}, {row}] = {found}, {away:e} away of {bound:e}");
    }
}

/// Runs a product with activations of each type and with bias, with operands of the processor, of the device and in a graph: `check`
/// is given what it is, the activations as f32, the bias and the results.
pub fn in_all_ways(
    matmul: &Matmul,
    packed: &PackedMatrix,
    m: usize,
    check: impl Fn(&str, &[f32], Option<&[f32]>, &[f32]),
) -> Result<(), Error> {
    let (n, k, threads) = (packed.n(), packed.k(), Threads::single());
    let mut workspace = Workspace::for_(matmul, m, k, &threads)?;
    let (x, bias) = (values(m * k, 3), values(n, 5));
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let of_halves: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
    let of_brains: Vec<f32> = brains.iter().map(|x| x.to_f32()).collect();
    let cases = [
        (Input::F32(&x), &x, None),
        (Input::F16(&halves), &of_halves, Some(&bias[..])),
        (Input::Bf16(&brains), &of_brains, None),
    ];
    for (input, plain, bias) in cases {
        let case = format!("{} m={m} {}", matmul.entry().name, input.dtype());
        let mut y = vec![f32::NAN; m * n];
        matmul.run(packed, input, m, bias, &mut y, &mut workspace, &threads)?;
        check(&case, plain, bias, &y);
        // The same with operands that are there already.
        let gpu = matmul.gpu().expect("it is a GPU's");
        let floats = DeviceBuffer::of(gpu, plain)?;
        let raw: Vec<u16> = match input {
            Input::F16(x) => x.iter().map(|x| x.to_bits()).collect(),
            Input::Bf16(x) => x.iter().map(|x| x.to_bits()).collect(),
            Input::F32(_) | Input::I8 { .. } => Vec::new(),
        };
        let raw = DeviceBuffer::of(gpu, &raw)?;
        let there = match input {
            Input::F16(_) => DeviceInput::F16(&raw),
            Input::Bf16(_) => DeviceInput::Bf16(&raw),
            Input::F32(_) | Input::I8 { .. } => DeviceInput::F32(&floats),
        };
        let bias = bias.map(|bias| DeviceBuffer::of(gpu, bias)).transpose()?;
        let mut out = DeviceBuffer::zeroed(gpu, m * n)?;
        matmul.run_on_device(packed, there, m, bias.as_ref(), &mut out, &mut workspace)?;
        workspace.finish()?;
        assert_eq!(bits(&out.to_vec()?), bits(&y), "{case}, on the device");
        let graph =
            gpu.capture(|| matmul.run_on_device(packed, there, m, bias.as_ref(), &mut out, &mut workspace))?;
        out.write(&vec![0.0; m * n])?;
        graph.launch()?;
        workspace.finish()?;
        assert_eq!(bits(&out.to_vec()?), bits(&y), "{case}, in a graph");
    }
    Ok(())
}

#[test]
fn products_as_precise_as_asked() {
    for device in devices().into_iter().chain(with_warpgroups()) {
        if let Some(output) = parent("products_as_precise_as_asked", &device) {
            assert_eq!(said(&output), "", "{device}: all memory is given back");
        }
    }
    if is_child() {
        for format in tried() {
            products(format).unwrap_or_else(|error| panic!("{}: {error}", format.name));
        }
    }
}

fn products(format: &'static FormatInfo) -> Result<(), Error> {
    use PrecisionMode::{Auto, Bf16, F16, F32, Int8};
    let (n, k) = (37, 2 * format.elements.max(128) + if format.elements <= 16 { 16 } else { 0 });
    let bytes = quantized(format, n, k)?;
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    let oracle = Oracle::new(&REGISTRY).expect("the specs check");
    let oracle = oracle.format(format.name).expect("described");
    let weights: Vec<f32> =
        (0..n).flat_map(|row| oracle.row(&bytes, n, k, row).expect("valid codes").f32s).collect();
    let recording = Recording::new(&REGISTRY);
    let threads = Threads::single();
    // Tensor cores before compute capability 8.0 know no bf16, and warpgroups multiply on 9.0 alone.
    let cc = Gpu::open(0)?.profile().cc;
    let for_bf16 = if cc < (8, 0) { "fma" } else { "mma_bf16" };
    let many = if cc == (9, 0) { "wgmma_f16" } else { "mma_f16" };
    for (mode, m, expected) in [
        (F32, 1, "fma"),
        (F32, 20, "fma"),
        (F16, 1, "fma"),
        (F16, 20, "mma_f16"),
        (F16, 130, many),
        (Bf16, 3, "fma"),
        (Bf16, 33, for_bf16),
        (Auto, 20, "mma"),
        (Int8, 20, "mma"),
    ] {
        let shape = Shape { m, n, k };
        let request = Request::matmul(format.name, shape).on(GPU).with_precision(mode);
        let prepared = REGISTRY.prepare(&request)?;
        let mut matmul = Matmul::new(&prepared.decide_as_asked())?;
        let name = matmul.entry().name;
        assert!(name.split('.').any(|word| word == expected), "{mode}, m = {m}: {name}");
        let precision = matmul.entry().precision().expect("a product");
        assert!(mode.allows(precision), "{mode}: {name}");
        if precision == Precision::Int8 {
            continue;
        }
        matmul.record(Some(&recording))?;
        let packed = matmul.pack(&matrix)?;
        let mut row = vec![0.0; k];
        matmul.unpack_row(&packed, n - 1, &mut row)?;
        assert_eq!(bits(&row), bits(&weights[(n - 1) * k..]), "{name}: a row unpacked");
        let weights = factors(precision, &weights);
        in_all_ways(&matmul, &packed, m, |case, x, bias, y| {
            within(case, &weights, &factors(precision, x), bias, y, k);
        })?;
    }
    let receipt = recording.receipt();
    for word in ["fma", "mma_f16", for_bf16] {
        let ran = |name: &str| name.split('.').any(|part| part == word);
        assert!(receipt.kernels().iter().any(|kernel| ran(kernel.name())), "{receipt:?}");
    }
    let options = LinearOptions { device: GPU, precision: PrecisionMode::F16, ..LinearOptions::default() };
    let layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
    let packed_once = n * (format.row_bytes(k)?.next_multiple_of(16) + 4);
    assert!(layer.weight_bytes() <= packed_once + 256, "{} bytes: held once", layer.weight_bytes());
    let mut workspace = layer.workspace(20, &threads)?;
    for m in [1, 20] {
        let (x, mut y) = (values(m * k, 9), vec![0.0; m * n]);
        layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
        let precision = if m == 1 { Precision::F32 } else { Precision::F16 };
        within("a layer", &factors(precision, &weights), &factors(precision, &x), None, &y, k);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_told_where_it_is() {
    parent("what_does_not_fit_is_told_where_it_is", &settings());
    if !is_child() {
        return;
    }
    let format = REGISTRY.format("q8_0").expect("in this build").1;
    let (n, k) = (6, 64);
    let mut bytes = quantized(format, n, k).expect("quantizes");
    let threads = Threads::single();
    let handle = |mode, m| {
        let request = Request::matmul(format.name, Shape { m, n, k }).on(GPU).with_precision(mode);
        let prepared = REGISTRY.prepare(&request).expect("prepares");
        Matmul::new(&prepared.decide_as_asked()).expect("a handle")
    };
    for (mode, m) in [(PrecisionMode::F32, 2), (PrecisionMode::F16, 20), (PrecisionMode::Bf16, 20)] {
        let matmul = handle(mode, m);
        let packed = matmul.pack(&QuantizedMatrix::new(format, n, k, &bytes).expect("sizes")).expect("packs");
        let mut workspace = Workspace::for_(&matmul, m, k, &threads).expect("memory");
        let mut run = |at: usize, value: f32| {
            let (mut x, mut y) = (values(m * k, 2), vec![0.0; m * n]);
            x[at] = value;
            matmul.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads)
        };
        assert_eq!(run(k + 9, f32::INFINITY), Err(Error::NonFinite { row: 1, column: 9 }), "{mode}");
        assert_eq!(run(3, f32::NAN), Err(Error::NonFinite { row: 0, column: 3 }), "{mode}");
        let large = match mode {
            PrecisionMode::F16 => Err(Error::BeyondPrecision { what: "the activation", row: 1, column: 2 }),
            _ => Ok(()),
        };
        assert_eq!(run(k + 2, 70000.0), large, "{mode}");
        assert_eq!(run(0, 0.0), Ok(()), "{mode}");
        let q = vec![1i8; m * k];
        let int8 = Input::I8 { q: &q, scales: &vec![1.0; 2 * m] };
        let refused = matmul.run(&packed, int8, m, None, &mut vec![0.0; m * n], &mut workspace, &threads);
        assert!(matches!(refused, Err(Error::WrongInput { .. })), "{refused:?}");
    }
    // A scale of 60000 in the second block of row 3: -2 of it and more is beyond f16.
    let at = 3 * format.bytes * 2 + format.bytes;
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(60000.0).to_le_bytes());
    bytes[at + 2..at + 34].fill(1);
    bytes[at + 2 + 5] = 2;
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("sizes");
    let beyond = Error::BeyondPrecision { what: "the weight", row: 3, column: 37 };
    assert_eq!(handle(PrecisionMode::F16, 20).pack(&matrix).err(), Some(beyond));
    assert!(handle(PrecisionMode::Bf16, 20).pack(&matrix).is_ok());
    assert!(handle(PrecisionMode::F32, 1).pack(&matrix).is_ok());
}

#[test]
fn values_are_converted_there() {
    parent("values_are_converted_there", &settings());
    if !is_child() {
        return;
    }
    let converter = Converter::new(&REGISTRY, 0).expect("an image");
    let gpu = Gpu::open(0).expect("opens");
    let mut x = values(1003, 4);
    x.extend([f32::NAN, f32::INFINITY, -0.0, 65520.0, 1e-8, 3e-41]);
    let src = DeviceBuffer::of(&gpu, &x).expect("memory");
    let mut halves = DeviceBuffer::<u16>::zeroed(&gpu, x.len()).expect("memory");
    let mut brains = DeviceBuffer::<u16>::zeroed(&gpu, x.len()).expect("memory");
    let mut back = DeviceBuffer::<f32>::zeroed(&gpu, x.len()).expect("memory");
    converter.to_f16(DeviceInput::F32(&src), &mut halves).expect("enqueues");
    converter.to_f32(DeviceInput::F16(&halves), &mut back).expect("enqueues");
    let expected: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let found = halves.to_vec().expect("copies");
    assert_eq!(found, expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    let expected: Vec<f32> = expected.iter().map(|x| x.to_f32()).collect();
    assert_eq!(bits(&back.to_vec().expect("copies")), bits(&expected));
    converter.to_bf16(DeviceInput::F16(&halves), &mut brains).expect("enqueues");
    let expected: Vec<u16> = expected.iter().map(|x| bf16::from_f32(*x).to_bits()).collect();
    assert_eq!(brains.to_vec().expect("copies"), expected);
    let mut short = DeviceBuffer::<u16>::zeroed(&gpu, 3).expect("memory");
    let refused = converter.to_f16(DeviceInput::F32(&src), &mut short);
    assert!(matches!(refused, Err(Error::ShapeMismatch { expected: 1009, found: 3, .. })), "{refused:?}");
}

/// `Auto` takes what was measured to be fastest on this very device.
#[test]
fn auto_goes_by_measurement() {
    parent("auto_goes_by_measurement", &settings());
    if !is_child() {
        return;
    }
    let shape = Shape { m: 20, n: 64, k: 256 };
    let request = Request::matmul("q8_0", shape).on(GPU).with_precision(PrecisionMode::Auto);
    let of = |tuning: &Tuning| {
        let prepared = REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &Restrict::default(), tuning);
        prepared.expect("prepares").decide_as_asked().chosen().expect("a kernel")
    };
    let untuned = of(&Tuning::none());
    assert_eq!(untuned.precision(), Some(Precision::Int8), "{}", untuned.name);
    let half = REGISTRY.entries.iter().find(|entry| entry.name == "matmul.q8_0.cuda.mma_f16");
    let half = half.expect("in this build");
    let measured = gristmill::tuning::Measured {
        on: gristmill::tuning::gpu(Gpu::open(0).expect("opens").profile()),
        op: gristmill::vocab::Op::Matmul,
        format: "q8_0".to_owned(),
        quantizer: None,
        class: gristmill::tuning::ShapeClass::of(shape),
        threads: 1,
        order: vec![(half.id, 1.0), (untuned.id, 2.0)],
    };
    let tuned = Tuning::of(vec![measured]);
    assert_eq!(of(&tuned).name, half.name);
    // A measurement does not change what was asked for.
    let int8 = request.with_precision(PrecisionMode::Int8);
    let prepared = REGISTRY.prepare_tuned(&int8, CpuProfile::detect(), &Restrict::default(), &tuned);
    let chosen = prepared.expect("prepares").decide_as_asked().chosen().expect("a kernel");
    assert_eq!(chosen.precision(), Some(Precision::Int8));
}

#[test]
fn the_processor_says_what_it_multiplies() {
    if is_child() {
        return;
    }
    let request = Request::matmul("q8_0", Shape { m: 1, n: 16, k: 64 }).on(Device::CPU);
    let prepared = REGISTRY.prepare(&request.with_precision(PrecisionMode::F16)).expect("prepares");
    let decision = prepared.decide_as_asked();
    assert!(decision.chosen().is_none());
    let text = decision.to_string();
    assert!(text.contains("multiplies int8, and f16 was asked for"), "{text}");
    let asked = |reason: &Reason| {
        matches!(reason, Reason::Precision { asked: PrecisionMode::F16, found: Precision::Int8 })
    };
    assert!(decision.rejected().any(|rejection| asked(&rejection.reason)));
    let prepared = REGISTRY.prepare(&request.with_precision(PrecisionMode::Auto)).expect("prepares");
    assert!(prepared.decide_as_asked().chosen().is_some());
}

#[test]
fn the_dequantize_policy_multiplies_in_f32_on_the_device() {
    let output = parent("the_dequantize_policy_multiplies_in_f32_on_the_device", &settings());
    if let Some(output) = output {
        assert_eq!(said(&output), "");
    }
    if is_child() {
        for format in tried() {
            dequantizes(format).expect("runs");
        }
    }
}

/// A layer whose int8 products are forbidden, under each policy.
fn dequantizes(format: &'static FormatInfo) -> Result<(), Error> {
    let (n, k, m) = (20, 2 * format.elements.max(128), 3);
    let bytes = quantized(format, n, k)?;
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    let threads = Threads::single();
    let products = || {
        REGISTRY.entries.iter().filter(|entry| {
            entry.device == GPU.kind && entry.precision().is_some() && entry.name.contains(format.name)
        })
    };
    let of = |precision: Precision| {
        let named = products().filter(move |entry| entry.precision() == Some(precision));
        named.map(|entry| entry.name.to_owned()).collect::<Vec<String>>()
    };
    let layer = |policy, disabled: Vec<String>| {
        let restrict = Some(Restrict { disabled, ..Restrict::default() });
        let options = LinearOptions { device: GPU, policy, restrict, ..LinearOptions::default() };
        Linear::new(&REGISTRY, &matrix, &options, &threads)
    };
    let int8 = of(Precision::Int8);
    assert!(!int8.is_empty() && !of(Precision::F32).is_empty(), "{}", format.name);
    let refused = layer(Policy::Strict, int8.clone()).expect_err("there is no kernel");
    assert!(matches!(refused, Error::NoKernel(_)), "{refused}");
    // Without products of f32 it is no answer either.
    let both = int8.iter().cloned().chain(of(Precision::F32)).collect();
    let refused = layer(Policy::Dequantize, both).expect_err("there is no kernel");
    assert!(matches!(refused, Error::NoKernel(_)), "{refused}");

    let mut layer = layer(Policy::Dequantize, int8)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    let mut workspace = layer.workspace(m, &threads)?;
    let (x, bias) = (values(m * k, 3), values(n, 5));
    let mut y = vec![f32::NAN; m * n];
    layer.forward(Input::F32(&x), m, Some(&bias), &mut y, &mut workspace, &threads)?;
    let mut weights = vec![0.0; n * k];
    let prepared = REGISTRY.prepare(&Request::dequantize(format.name, n, k))?;
    Dequantizer::new(&prepared.decide_as_asked())?.run(&matrix, &mut weights)?;
    let (weights, factors_of_x) = (factors(Precision::F32, &weights), factors(Precision::F32, &x));
    within(format.name, &weights, &factors_of_x, Some(&bias), &y, k);
    // The same where activations are on the device.
    let gpu = Gpu::open(0)?;
    let (on_gpu, mut there) = (DeviceBuffer::of(&gpu, &x)?, DeviceBuffer::<f32>::zeroed(&gpu, m * n)?);
    layer.forward_on_device(DeviceInput::F32(&on_gpu), m, None, &mut there, &mut workspace)?;
    workspace.finish()?;
    within(format.name, &weights, &factors_of_x, None, &there.to_vec()?, k);

    let receipt = recording.receipt();
    let [fallback] = receipt.fallbacks() else { panic!("one fallback: {receipt:?}") };
    assert_eq!((fallback.policy(), fallback.device(), fallback.runs()), ("dequantize", GPU, 2));
    assert_eq!(fallback.instead(), "a product of f32 over weights dequantized on the device");
    assert!(fallback.reason().contains("disabled by name"), "{}", fallback.reason());
    let ran = receipt.kernels().iter().map(|kernel| kernel.name()).collect::<Vec<_>>();
    assert!(ran.iter().all(|name| of(Precision::F32).iter().any(|other| other == name)), "{ran:?}");
    // What weighs is the format's own blocks, and nothing besides.
    let memory = Linear::memory(
        &REGISTRY,
        format.name,
        [n, k],
        &LinearOptions { device: GPU, precision: PrecisionMode::F32, ..LinearOptions::default() },
        m,
        &threads,
    )?;
    assert_eq!((layer.weight_bytes(), memory.plain_bytes), (memory.weight_bytes, 0));
    // Nothing on the processor is read.
    let of_kernels = layer.workspace_size(m, &threads)?;
    assert_eq!([of_kernels, memory.workspace], [WorkspaceSize::default(); 2]);
    Ok(())
}
