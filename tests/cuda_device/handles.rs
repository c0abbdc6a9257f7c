//! The handles of the runtime on a GPU that a fake driver stands for: the images of this build are loaded, launched
//! and waited for as on a real one, and the emulated kernels behind them must give the same bits as the processor.
//!
//! Without images in this build (no CUDA compiler) nothing can be loaded, and the tests say that they are skipped.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::images::{GPU, bits, entries, has_images, parent, place_units, settings, tried, values};
use crate::support::{can_run, fake_driver, is_child, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::registry::{Code, FormatInfo};
use gristmill::vocab::{DType, Op};
use gristmill::{
    CpuProfile, CudaVersion, Dequantizer, Device, Embedder, Error, GpuProfile, Input, Linear, LinearOptions,
    Matmul, NoGpu, Output, Policy, QuantizedMatrix, Quantizer, REGISTRY, Reason, Recording, Request,
    Restrict, Shape, Threads, Workspace,
};
use std::path::Path;
use std::process::Command;

/// The bytes of a quantized tensor, by the default quantizer.
fn quantized(format: &FormatInfo, n: usize, k: usize, device: Device) -> Result<Vec<u8>, Error> {
    let prepared = REGISTRY.prepare(&Request::quantize(format.name, None, n, k).on(device))?;
    let quantizer = Quantizer::new(&prepared.decide_as_asked())?;
    assert_eq!(quantizer.entry().device, device.kind);
    let mut bytes = vec![0xa5; format.tensor_bytes(n, k)?];
    quantizer.run(&values(n * k, 7), n, k, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn the_same_bits_as_the_processor() {
    if let Some(output) = parent("the_same_bits_as_the_processor", &settings()) {
        assert_eq!(said(&output), "", "all memory is given back");
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    if is_child() {
        same_bits().expect("no error");
    }
}

fn same_bits() -> Result<(), Error> {
    let recording = Recording::new(&REGISTRY);
    for format in tried() {
        let (n, k) = (37, 2 * format.elements.max(128));
        let bytes = quantized(format, n, k, Device::CPU)?;
        match quantized(format, n, k, GPU) {
            Ok(there) => assert!(there == bytes, "{}: quantized otherwise", format.name),
            Err(Error::NoKernel(_)) => println!("{}: no quantizer for the device", format.name),
            Err(error) => return Err(error),
        }
        let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
        let mut results = Vec::new();
        for device in [Device::CPU, GPU] {
            let prepared = REGISTRY.prepare(&Request::dequantize(format.name, n, k).on(device))?;
            let mut dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
            dequantizer.record(Some(&recording))?;
            let mut out = vec![f32::NAN; n * k];
            dequantizer.run(&matrix, &mut out)?;
            results.push(bits(&out));
        }
        assert!(results[0] == results[1], "{}: dequantized otherwise", format.name);
        rows_by_index(&matrix, &recording)?;
        for m in [1, 2, 5, 40] {
            product(format, &matrix, m, &recording)?;
        }
        println!("{}: the same", format.name);
    }
    let receipt = recording.receipt();
    assert!(receipt.devices().contains(&GPU.kind), "{receipt:?}");
    assert!(receipt.kernels().iter().any(|kernel| kernel.name().contains(".cuda")), "{receipt:?}");
    Ok(())
}

/// Rows by index on both devices, as values of every type.
fn rows_by_index(matrix: &QuantizedMatrix<'_>, recording: &Recording) -> Result<(), Error> {
    use gristmill::half::{bf16, f16};
    let (n, k, name) = (matrix.n(), matrix.k(), matrix.format().name);
    let rows = [n as u32 - 1, 0, 5, 5];
    let mut results = Vec::new();
    for device in [Device::CPU, GPU] {
        let handle = |to| {
            let prepared = REGISTRY.prepare(&Request::embed(name, n, k).with_input(to).on(device))?;
            let mut handle = Embedder::new(&prepared.decide_as_asked())?;
            assert_eq!(handle.entry().device, device.kind);
            handle.record(Some(recording))?;
            Ok::<_, Error>(handle)
        };
        let mut full = vec![f32::NAN; rows.len() * k];
        handle(DType::F32)?.run(matrix, &rows, Output::F32(&mut full))?;
        let mut halves = vec![f16::NAN; rows.len() * k];
        handle(DType::F16)?.run(matrix, &rows, Output::F16(&mut halves))?;
        let mut brains = vec![bf16::NAN; rows.len() * k];
        let brain = handle(DType::Bf16)?;
        brain.run(matrix, &rows, Output::Bf16(&mut brains))?;
        let error = brain.run(matrix, &[0, n as u32], Output::Bf16(&mut brains)).expect_err("no such row");
        assert_eq!(error, Error::RowIndexOutOfRange { position: 1, index: n as u32, rows: n });
        results.push((
            bits(&full),
            halves.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            brains.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        ));
    }
    assert!(results[0] == results[1], "{name}: other rows");
    Ok(())
}

/// One product on both devices, from all types, with and without a bias, and with operands that stay on the device.
fn product(
    format: &'static FormatInfo,
    matrix: &QuantizedMatrix<'_>,
    m: usize,
    recording: &Recording,
) -> Result<(), Error> {
    let (n, k) = (matrix.n(), matrix.k());
    let shape = Shape { m, n, k };
    let threads = Threads::single();
    let x = values(m * k, 3);
    let halves: Vec<gristmill::half::f16> = x.iter().map(|x| gristmill::half::f16::from_f32(*x)).collect();
    let brains: Vec<gristmill::half::bf16> = x.iter().map(|x| gristmill::half::bf16::from_f32(*x)).collect();
    let bias = values(n, 5);
    let mut results: Vec<Vec<Vec<u32>>> = Vec::new();
    for device in [Device::CPU, GPU] {
        let mut of_device = Vec::new();
        for (input, bias) in [
            (Input::F32(&x), None),
            (Input::F32(&x), Some(&bias[..])),
            (Input::F16(&halves), None),
            (Input::Bf16(&brains), None),
        ] {
            let request = Request::matmul(format.name, shape).with_input(input.dtype()).on(device);
            let prepared = REGISTRY.prepare(&request)?;
            let mut matmul = Matmul::new(&prepared.decide_as_asked())?;
            assert_eq!(matmul.entry().device, device.kind);
            matmul.record(Some(recording))?;
            let packed = matmul.pack(matrix)?;
            let mut workspace = Workspace::for_(&matmul, m, k, &threads)?;
            let mut y = vec![f32::NAN; m * n];
            matmul.run(&packed, input, m, bias, &mut y, &mut workspace, &threads)?;
            let mut row = vec![0.0; k];
            matmul.unpack_row(&packed, n - 1, &mut row)?;
            of_device.push(bits(&y));
            of_device.push(bits(&row));
            if let (Some(gpu), Input::F32(x), None) = (matmul.gpu(), input, bias) {
                let x = DeviceBuffer::of(gpu, x)?;
                let mut out = DeviceBuffer::zeroed(gpu, m * n)?;
                matmul.run_on_device(&packed, DeviceInput::F32(&x), m, None, &mut out, &mut workspace)?;
                workspace.finish()?;
                assert!(bits(&out.to_vec()?) == bits(&y), "{}: m = {m}, on the device", format.name);
            }
        }
        results.push(of_device);
    }
    assert!(results[0] == results[1], "{}: m = {m}: another product", format.name);
    Ok(())
}

#[test]
fn faults_are_found_where_they_are() {
    parent("faults_are_found_where_they_are", &settings());
    if !is_child() {
        return;
    }
    let format = tried().next().expect("one is tried");
    let (n, k) = (5, 2 * format.elements);
    let mut x = values(n * k, 1);
    x[3 * k + 17] = f32::NAN;
    let prepared = REGISTRY.prepare(&Request::quantize(format.name, None, n, k).on(GPU)).expect("prepares");
    let quantizer = Quantizer::new(&prepared.decide_as_asked()).expect("a handle");
    let mut bytes = vec![0; format.tensor_bytes(n, k).expect("a size")];
    assert_eq!(quantizer.run(&x, n, k, &mut bytes), Err(Error::NonFinite { row: 3, column: 17 }));
    // The same handle works afterwards.
    x[3 * k + 17] = 0.5;
    assert_eq!(quantizer.run(&x, n, k, &mut bytes), Ok(()));
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
    let shape = Shape { m: 2, n, k };
    let prepared = REGISTRY.prepare(&Request::matmul(format.name, shape).on(GPU)).expect("prepares");
    let matmul = Matmul::new(&prepared.decide_as_asked()).expect("a handle");
    let packed = matmul.pack(&matrix).expect("packs");
    let threads = Threads::single();
    let mut workspace = Workspace::for_(&matmul, 2, k, &threads).expect("memory");
    let mut y = vec![0.0; 2 * n];
    let mut x = values(2 * k, 2);
    x[k + 9] = f32::INFINITY;
    let run = |x: &[f32], y: &mut [f32], workspace: &mut Workspace| {
        matmul.run(&packed, Input::F32(x), 2, None, y, workspace, &threads)
    };
    assert_eq!(run(&x, &mut y, &mut workspace), Err(Error::NonFinite { row: 1, column: 9 }));
    x[k + 9] = 0.0;
    assert_eq!(run(&x, &mut y, &mut workspace), Ok(()));
    one_token(format, &matrix);
    // int8 with scales, as the processor takes it.
    let q: Vec<i8> = (0..2 * k).map(|i| (i % 251) as u8 as i8).collect();
    let mut scales = vec![0.5; 2 * k.div_ceil(REGISTRY.activations[format.activations].block.unwrap_or(k))];
    let mut results = Vec::new();
    for device in [Device::CPU, GPU] {
        let request = Request::matmul(format.name, shape).with_input(DType::I8).on(device);
        let prepared = REGISTRY.prepare(&request).expect("prepares");
        let matmul = Matmul::new(&prepared.decide_as_asked()).expect("a handle");
        let packed = matmul.pack(&matrix).expect("packs");
        let mut workspace = Workspace::for_(&matmul, 2, k, &threads).expect("memory");
        let mut y = vec![0.0; 2 * n];
        let input = Input::I8 { q: &q, scales: &scales };
        matmul.run(&packed, input, 2, None, &mut y, &mut workspace, &threads).expect("runs");
        results.push(bits(&y));
    }
    assert_eq!(results[0], results[1]);
    scales[0] = f32::NAN;
    let input = Input::I8 { q: &q, scales: &scales };
    let error = matmul.run(&packed, input, 2, None, &mut y, &mut workspace, &threads);
    assert!(error.is_err(), "a scale that is not finite");
}

/// One token: floats are quantized in the product, int8 goes to another kernel, of a handle and of a layer.
fn one_token(format: &'static FormatInfo, matrix: &QuantizedMatrix<'_>) {
    let (n, k) = (matrix.n(), matrix.k());
    let shape = Shape { m: 1, n, k };
    let threads = Threads::single();
    let prepared = REGISTRY.prepare(&Request::matmul(format.name, shape).on(GPU)).expect("prepares");
    let recording = Recording::new(&REGISTRY);
    let mut matmul = Matmul::new(&prepared.decide_as_asked()).expect("a handle");
    matmul.record(Some(&recording)).expect("the same registry");
    assert!(matmul.entry().quantizes_activations(), "{}", matmul.entry().name);
    assert_eq!(matmul.dtypes(), [DType::F32, DType::F16, DType::Bf16]);
    let packed = matmul.pack(matrix).expect("packs");
    let mut workspace = Workspace::for_(&matmul, 1, k, &threads).expect("memory");
    let mut y = vec![0.0; n];
    let mut x = values(k, 2);
    for (place, value) in [(k - 1, f32::NAN), (9, f32::NEG_INFINITY)] {
        x[place] = value;
        let found = matmul.run(&packed, Input::F32(&x), 1, None, &mut y, &mut workspace, &threads);
        assert_eq!(found, Err(Error::NonFinite { row: 0, column: place }));
    }
    let x = values(k, 2);
    matmul.run(&packed, Input::F32(&x), 1, None, &mut y, &mut workspace, &threads).expect("runs");
    let receipt = recording.receipt();
    let kernels: Vec<_> = receipt.kernels().iter().map(|kernel| (kernel.name(), kernel.launches())).collect();
    assert_eq!(kernels, [(matmul.entry().name, 3)], "one launch a run, and no quantization");
    let q: Vec<i8> = (0..k).map(|i| (i % 251) as u8 as i8).collect();
    let scales = vec![0.5; k.div_ceil(REGISTRY.activations[format.activations].block.unwrap_or(k))];
    let int8 = Input::I8 { q: &q, scales: &scales };
    let refused = matmul.run(&packed, int8, 1, None, &mut y, &mut workspace, &threads);
    assert!(matches!(refused, Err(Error::WrongInput { found: DType::I8, .. })), "{refused:?}");
    let mut results = Vec::new();
    for device in [Device::CPU, GPU] {
        let options = LinearOptions { device, policy: Policy::Strict, ..LinearOptions::default() };
        let mut layer = Linear::new(&REGISTRY, matrix, &options, &threads).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let mut workspace = layer.workspace(1, &threads).expect("memory");
        let (mut floats, mut ints) = (vec![0.0; n], vec![0.0; n]);
        layer.forward(Input::F32(&x), 1, None, &mut floats, &mut workspace, &threads).expect("runs");
        layer.forward(int8, 1, None, &mut ints, &mut workspace, &threads).expect("runs");
        results.push((bits(&floats), bits(&ints)));
        if device == GPU {
            let launches: u64 = recording.receipt().kernels().iter().map(|kernel| kernel.launches()).sum();
            assert_eq!(launches, 2, "a launch for each: {:?}", recording.receipt());
        }
    }
    assert!(results[0] == results[1] && results[0].0 == bits(&y));
}

/// What decides about one token: floats are quantized in the product, but for rows longer than shared memory holds, with
/// the rule as the reason; int8 never comes into question there.
#[test]
fn one_token_goes_where_it_fits() {
    if !has_images() {
        return;
    }
    let [_, newest] = crate::images::devices();
    let cc: u8 = newest["sm_".len()..].parse().expect("a number");
    let gpu = GpuProfile::pretend((cc / 10, cc % 10), CudaVersion { major: 13, minor: 0 });
    for format in tried() {
        let prepare = |input| {
            let request = Request::matmul(format.name, Shape { m: 1, n: 64, k: 1 });
            let request = request.with_input(input).on(GPU);
            let cpu = CpuProfile::detect();
            REGISTRY.prepare_on(&request, cpu, Some(Ok(gpu.clone())), &Restrict::default()).expect("prepares")
        };
        let floats = prepare(DType::F16);
        let at = |k| Shape { m: 1, n: 64, k };
        let chosen = floats.decide(at(format.elements)).kernel().expect("a kernel");
        assert!(chosen.quantizes_activations(), "{}", chosen.name);
        let longest = chosen.shape.k.max as usize / format.elements * format.elements;
        assert!(longest >= 6144, "{}: rows up to {longest}", chosen.name);
        assert_eq!(floats.decide(at(longest)).chosen().map(|entry| entry.name), Some(chosen.name));
        let beyond = floats.decide(at(longest + format.elements));
        let other = beyond.kernel().expect("a kernel");
        assert!(!other.quantizes_activations(), "{}", other.name);
        let why = beyond.rejected().find(|rejection| rejection.kernel == Some(chosen.name));
        let why = why.map(|rejection| rejection.reason.to_string()).expect("a reason");
        assert!(why.contains(&format!("at most {}", chosen.shape.k.max)), "{why}");
        let int8 = prepare(DType::I8);
        let chosen = int8.decide(at(format.elements)).kernel().expect("a kernel");
        assert!(chosen.name.ends_with("dp4a"), "{}", chosen.name);
        let several = floats.decide(Shape { m: 2, n: 64, k: format.elements }).kernel().expect("a kernel");
        assert!(!several.quantizes_activations(), "{}", several.name);
    }
}

#[test]
fn layers_run_there_and_say_so() {
    parent("layers_run_there_and_say_so", &settings());
    if !is_child() {
        return;
    }
    let format = tried().next().expect("one is tried");
    let (n, k) = (20, 2 * format.elements);
    let bytes = quantized(format, n, k, Device::CPU).expect("quantizes");
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
    let threads = Threads::single();
    let (mut results, mut sizes) = (Vec::new(), Vec::new());
    // On the GPU one token and many have packings of their own, unless one is asked for.
    for (device, packing) in [(Device::CPU, None), (GPU, None), (GPU, Some("mma32x64"))] {
        let restrict = Restrict { packing: packing.map(str::to_owned), ..Restrict::default() };
        let options = LinearOptions {
            device,
            policy: Policy::Strict,
            restrict: Some(restrict),
            ..LinearOptions::default()
        };
        let layer = Linear::new(&REGISTRY, &matrix, &options, &threads).expect("a layer");
        let mut of_layer = Vec::new();
        for m in [1, 3] {
            let mut workspace = layer.workspace(m, &threads).expect("memory");
            let mut y = vec![0.0; m * n];
            let x = values(m * k, 9);
            layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads).expect("runs");
            of_layer.push(bits(&y));
        }
        results.push(of_layer);
        sizes.push(layer.weight_bytes());
    }
    assert!(results.iter().all(|result| *result == results[0]));
    assert!(sizes[2] < sizes[1], "weights held once: {} bytes, twice: {}", sizes[2], sizes[1]);
}

/// Drivers before CUDA 13.0 take no machine code of its compilers, but PTX, and on every device from 7.5 on there is some for
/// every kernel but those that newer devices alone have.
#[test]
fn older_drivers_compile_ptx() {
    let settings = ["sm_75,driver=12000", "sm_86,driver=12000", "sm_90,driver=12020", "sm_120,driver=12080"];
    for settings in settings {
        parent("older_drivers_compile_ptx", settings);
    }
    // The log of the driver's compiler, where it takes none.
    parent("older_drivers_compile_ptx", "sm_80,driver=12040,refuse_ptx");
    if !is_child() {
        return;
    }
    let refuses = std::env::var("GRISTMILL_GPU_FAKE").is_ok_and(|words| words.contains("refuse_ptx"));
    for format in tried() {
        let (n, k) = (4, format.elements * 2);
        let bytes = quantized(format, n, k, Device::CPU).expect("quantizes");
        let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
        let request = Request::dequantize(format.name, n, k).on(GPU);
        let prepared = REGISTRY.prepare(&request).expect("prepares");
        let decision = prepared.decide_as_asked();
        let kernel = decision.kernel().expect("every driver that is talked to has one");
        let Code::Cuda(code) = kernel.code else { panic!("a kernel of the processor") };
        assert!(code.images.iter().any(|image| image.ptx), "{}", kernel.name);
        let mut found = vec![0.0; n * k];
        let outcome = Dequantizer::new(&decision).and_then(|handle| handle.run(&matrix, &mut found));
        if refuses {
            let error = outcome.expect_err("no image is taken").to_string();
            assert!(error.contains("CUDA_ERROR_INVALID_PTX"), "{error}");
            assert!(
                error.contains("the driver's compiler says: ptxas fatal : refused, as was asked for"),
                "{error}"
            );
            continue;
        }
        outcome.expect("runs");
        let mut expected = vec![0.0; n * k];
        let request = Request::dequantize(format.name, n, k);
        let prepared = REGISTRY.prepare(&request).expect("prepares");
        let handle = Dequantizer::new(&prepared.decide_as_asked()).expect("a handle");
        handle.run(&matrix, &mut expected).expect("runs");
        assert_eq!(bits(&found), bits(&expected), "{}", format.name);
    }
}

#[test]
fn a_failed_launch_names_its_kernel_and_loses_the_device() {
    let failing = entries().find(|entry| entry.op == Op::Dequantize);
    let function = failing.and_then(|entry| match entry.code {
        Code::Cuda(code) => match code.launch {
            gristmill::registry::CudaLaunch::Dequantize { function, .. } => Some(function),
            _ => None,
        },
        _ => None,
    });
    let (Some(entry), Some(function)) = (failing, function) else {
        assert!(!has_images());
        return;
    };
    parent(
        "a_failed_launch_names_its_kernel_and_loses_the_device",
        &format!("{},fail_launch={function}", settings()),
    );
    if !is_child() {
        return;
    }
    let format = &REGISTRY.formats[entry.format];
    let (n, k) = (4, format.elements * 2);
    let bytes = vec![0; format.tensor_bytes(n, k).expect("a size")];
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
    let request = Request::dequantize(format.name, n, k).on(GPU);
    let decide = || REGISTRY.prepare(&request).expect("prepares");
    let prepared = decide();
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked()).expect("a handle");
    let mut out = vec![0.0; n * k];
    let error = dequantizer.run(&matrix, &mut out).expect_err("it was to fail");
    let Error::Gpu(failure) = &error else { panic!("{error}") };
    assert_eq!((failure.kernel, failure.code, failure.sticky), (Some(entry.name), 719, true));
    assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");
    // Decisions know it, as long as the device is held.
    let after = decide();
    let reasons: Vec<Reason> = after.decide_as_asked().rejected().map(|rejection| rejection.reason).collect();
    assert!(
        reasons.iter().all(
            |reason| matches!(reason, Reason::NoGpu(NoGpu::Lost { error }) if error.contains(entry.name))
        ),
        "{reasons:?}"
    );
    assert!(matches!(Gpu::open(0), Err(Error::NoGpu { why: NoGpu::Lost { .. }, .. })));
}

#[test]
fn memory_that_ends_is_an_error_with_numbers() {
    parent("memory_that_ends_is_an_error_with_numbers", &format!("{},oom_after=1", settings()));
    if !is_child() {
        return;
    }
    let gpu = Gpu::open(0).expect("opens");
    let first = DeviceBuffer::<u8>::zeroed(&gpu, 1000).expect("the first");
    let error = DeviceBuffer::<f32>::zeroed(&gpu, 1000).expect_err("the second");
    assert!(
        matches!(error, Error::OutOfDeviceMemory { index: 0, required: 4000, available: Some(_) }),
        "{error}"
    );
    assert_eq!(first.to_vec().expect("it still works"), vec![0; 1000]);
}

#[test]
fn machines_without_a_usable_device_say_why() {
    for settings in ["no_device", "init=34", "driver=11080", "devices=1"] {
        parent("machines_without_a_usable_device_say_why", settings);
    }
    if !is_child() {
        return;
    }
    let settings = std::env::var("GRISTMILL_GPU_FAKE").expect("set by the parent");
    let index = if settings == "devices=1" { 1 } else { 0 };
    let expected = match settings.as_str() {
        "no_device" => NoGpu::NoDevice,
        "init=34" => NoGpu::Stub,
        "driver=11080" => NoGpu::OldDriver { found: gristmill::CudaVersion { major: 11, minor: 8 } },
        _ => NoGpu::NoSuchDevice { count: 1 },
    };
    assert_eq!(gristmill::cuda::detect(index), Err(expected.clone()));
    assert!(matches!(Gpu::open(index), Err(Error::NoGpu { why, .. }) if why == expected));
}

/// Tokens of which the device has memory for half at most.
#[test]
fn what_is_too_much_at_once_runs_in_parts() {
    const MEMORY: usize = 60_000;
    parent("what_is_too_much_at_once_runs_in_parts", &format!("{},memory={MEMORY}", settings()));
    if !is_child() {
        return;
    }
    let format = tried().next().expect("one is tried");
    let (m, n, k) = (64, 20, 256);
    let bytes = quantized(format, n, k, Device::CPU).expect("quantizes");
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
    let mut x = values(m * k, 4);
    assert!(4 * x.len() > MEMORY);
    let threads = Threads::single();
    let run = |device, x: &[f32]| {
        let prepared = REGISTRY.prepare(&Request::matmul(format.name, Shape { m, n, k }).on(device))?;
        let matmul = Matmul::new(&prepared.decide_as_asked())?;
        let packed = matmul.pack(&matrix)?;
        let mut workspace = Workspace::for_(&matmul, m, k, &threads)?;
        let mut y = vec![f32::NAN; m * n];
        matmul.run(&packed, Input::F32(x), m, None, &mut y, &mut workspace, &threads)?;
        Ok::<_, Error>(bits(&y))
    };
    assert_eq!(run(GPU, &x).expect("in parts"), run(Device::CPU, &x).expect("runs"));
    x[40 * k + 7] = f32::NAN;
    let error = run(GPU, &x).expect_err("not finite");
    assert!(matches!(error, Error::NonFinite { row: 40, column: 7 }), "{error}");
}

/// The command with these arguments: on a fake GPU, or where no driver is to be found.
fn command(arguments: &[&str], gpu: Option<&Path>) -> (i32, String) {
    command_on(&settings(), arguments, gpu)
}

/// The same on a fake GPU with these settings.
fn command_on(settings: &str, arguments: &[&str], gpu: Option<&Path>) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.args(arguments).env_remove("GRISTMILL_NO_SKIP").env_remove("LD_LIBRARY_PATH");
    if let Some(units) = gpu {
        command
            .env("LD_LIBRARY_PATH", fake_driver())
            .env("GRISTMILL_GPU_FAKE", settings)
            .env("GRISTMILL_GPU_FAKE_UNITS", units);
    }
    let output = command.output().expect("it starts");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let code = output.status.code();
    (code.unwrap_or_else(|| panic!("{arguments:?}: {}: {text}", output.status)), text)
}

#[test]
fn the_command_runs_there() {
    let explain = ["explain", "matmul", "--format", "i2_s", "--device", "cuda:0", "--shape", "1x256x256"];
    if !can_run("the_command_runs_there") {
        return;
    }
    if !has_images() {
        // Whether for want of a driver or of images: no, and the true reason.
        let (code, text) = command(&explain, None);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("not compiled: the build found no CUDA compiler"), "{text}");
        return;
    }
    if !Path::new("/dev/nvidiactl").exists() {
        let (code, text) = command(&explain, None);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("no driver: the library libcuda is not there"), "{text}");
        assert!(text.contains("help: install the NVIDIA driver"), "{text}");
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    place_units(&units);
    let (code, text) = command(&explain, Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("chosen: matmul.i2_s.cuda."), "{text}");
    let few_tiles = ["--shape", "5x40x12288"];
    let (code, text) = command(&[&explain[..6], &few_tiles[..]].concat(), Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("k divided over CUDA blocks by stages of 2048"), "{text}");
    assert!(text.contains("k is divided into 6 parts"), "{text}");
    let halves = ["--precision", "f16", "--shape", "40x256x256"];
    let (code, text) = command(&[&explain[..6], &halves[..]].concat(), Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("chosen: matmul.i2_s.cuda.mma_f16 "), "{text}");
    assert!(text.contains("multiplies int8, and f16 was asked for"), "{text}");
    let (code, text) = command(&["doctor"], Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("cuda:0: Fake sm_"), "{text}");
    if text.contains("nvcc 13.") {
        let (code, text) = command_on(&format!("{},driver=12080", settings()), &["doctor"], Some(&units));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("supports CUDA up to 12.8"), "{text}");
        assert!(text.contains("pip install --no-deps nvidia-cuda-nvrtc-cu12==12.9.86"), "{text}");
    }
    for format in ["i2_s", "int8_row"] {
        let (code, text) =
            command(&["verify", "--quick", "--device", "cuda:0", "--format", format], Some(&units));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(".cuda"), "{text}");
        assert!(!text.contains("skipped:") && !text.contains("wrong:"), "{text}");
    }
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf/i2_s.gguf");
    for (precision, kernel, accuracy) in [("int8", "dp4a", "exact"), ("f32", "fma.decode", "NMSE")] {
        let run = ["run", model, "--device", "cuda:0", "--m", "1", "--precision", precision];
        let (code, text) = command(&run, Some(&units));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(&format!("matmul.i2_s.cuda.{kernel}")) && text.contains(accuracy), "{text}");
    }
    let bench = [
        "bench", "--device", "cuda:0", "--quick", "--format", "i2_s", "--shape", "64x256", "--m", "1",
        "--json",
    ];
    for precision in ["f16", "bf16", "f32", "auto"] {
        let more = [&bench[..], &["--precision", precision]].concat();
        let (code, text) = command(&more, Some(&units));
        assert_eq!(code, 0, "{text}");
        let records: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let word = if precision == "auto" { "dp4a" } else { "fma" };
        assert_eq!(
            records[0]["kernel"].as_str().and_then(|name| name.split('.').nth(3)),
            Some(word),
            "{text}"
        );
    }
    let (code, text) = command(&bench, Some(&units));
    assert_eq!(code, 0, "{text}");
    // A fake driver has no cuBLASLt, and a line says so instead.
    let records: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let all = records.as_array().expect("a list");
    let last = all.last().expect("a record");
    assert_eq!(last["kernel"], "cublaslt", "{text}");
    for op in ["quantize", "dequantize"] {
        let of_op = all.iter().filter(|record| record["op"] == op);
        let measured = of_op.inspect(|record| {
            let positive = ["seconds", "seconds_with_copies", "cpu_seconds", "times_cpu_with_copies"];
            assert!(positive.iter().all(|key| record[key].as_f64() > Some(0.0)), "{record}");
            let kernels =
                [&record["kernel"], &record["cpu_kernel"]].map(|name| name.as_str().unwrap_or_default());
            assert!(kernels[0].contains(".cuda") && !kernels[1].contains(".cuda"), "{record}");
        });
        // Hot and cold.
        assert_eq!(measured.count(), 2, "{text}");
    }
    let (code, said) = command(&[&bench[..10], &["--op", "pack"]].concat(), Some(&units));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("packed by the processor"), "{said}");
    let why = last["why_not"].as_str().unwrap_or_default();
    let absent = if cfg!(feature = "cublaslt") { "libcublasLt is not there" } else { "built without it" };
    assert!(why.contains(absent), "{text}");
    let tuning = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handles.tuning");
    // What there is of another GPU stays, and is told.
    let other = "gristmill tuning 1\ngpu Another 9.9 driver 99.0\nmatmul i2_s 0 0000000000000001:1.000\n";
    std::fs::write(&tuning, other).expect("a file");
    let path = tuning.to_str().expect("UTF-8");
    let tune = [
        "tune", "--device", "cuda:0", "--quick", "--hot", "--format", "i2_s", "--m", "4", "--shape",
        "512x1024", "--out", path,
    ];
    let (tuned, said) = command(&tune, Some(&units));
    assert_eq!(tuned, 0, "{said}");
    assert!(said.contains("1 class"), "{said}");
    let written = std::fs::read_to_string(&tuning).expect("it was written");
    assert!(written.starts_with(other) && written.contains("\ngpu Fake sm_"), "{written}");
    let line = written.lines().last().expect("a line");
    assert!(line.starts_with("matmul i2_s 1 ") && line.split(' ').count() > 4, "two kernels: {written}");
    let record = &records[0];
    assert!(record["kernel"].as_str().is_some_and(|name| name.starts_with("matmul.i2_s.cuda.")), "{text}");
    assert!(record["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{text}");
    assert!(record["copy_gb_s"].as_f64().is_some_and(|rate| rate > 0.0), "{text}");
}

/// The report of a device, whole, and of one on which a kernel fails: it goes on, and says so.
#[test]
fn a_report_of_a_device_goes_on_after_failures() {
    if is_child() || !can_run("a report of a device") || !has_images() {
        return;
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    place_units(&units);
    let folder = tempfile::tempdir().expect("a folder");
    let report = |words: &str, stages: &str, name: &str| {
        let path = folder.path().join(name);
        let out = path.to_str().expect("UTF-8").to_owned();
        let line = [
            "device-report",
            "--device",
            "cuda:0",
            "--quick",
            "--format",
            "i2_s",
            "--shape",
            "64x256",
            "--replays",
            "20",
            "--stage",
            stages,
            "--out",
            &out,
        ];
        let (code, said) = command_on(words, &line, Some(&units));
        let text = std::fs::read_to_string(path.join("summary.json"))
            .unwrap_or_else(|error| panic!("{error}: {said}"));
        let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(path.join("summary.md").is_file());
        (code, said, summary)
    };
    // Without `tune`, whose shapes take the emulator hours; a test of its own runs it.
    let all = "doctor,list,validate,memcheck,bench,soak";
    let (code, said, summary) = report(&settings(), all, "whole");
    assert_eq!((code, &summary["success"]), (0, &true.into()), "{said}\n{summary}");
    let stages = summary["stages"].as_array().expect("a list");
    assert_eq!(stages.len(), 6, "{summary}");
    for stage in stages {
        let skipped = stage["stage"] == "memcheck" && stage["outcome"] == "skipped";
        assert!(skipped || stage["outcome"] == "ok", "{stage}");
    }
    let goals = summary["goals"].as_array().expect("a list");
    assert!(goals.iter().any(|goal| goal["measured"].is_number()), "{summary}");
    let bench = std::fs::read_to_string(folder.path().join("whole/bench.json")).expect("it was written");
    assert!(bench.contains("percent_of_copy"), "{bench}");

    let failing = entries().find_map(|entry| match entry.code {
        Code::Cuda(code) => match code.launch {
            gristmill::registry::CudaLaunch::Dequantize { function, .. } => Some(function),
            _ => None,
        },
        _ => None,
    });
    let words = format!("{},fail_launch={}", settings(), failing.expect("a kernel"));
    let (code, said, summary) = report(&words, "verify-quick,soak", "failing");
    assert_eq!((code, &summary["success"]), (1, &false.into()), "{said}");
    let outcome = |at: usize| summary["stages"][at]["outcome"].as_str().unwrap_or_default().to_owned();
    assert_eq!((outcome(0), outcome(1)), ("failed".to_owned(), "ok".to_owned()), "{summary}");
    assert!(summary["stages"][0]["why"].as_str().is_some_and(|why| why.contains("719")), "{summary}");
}

#[test]
fn without_a_driver_everything_else_works() {
    // Not in the process of another test, and with no driver to be found there.
    if !is_child() && !Path::new("/dev/nvidiactl").exists() {
        assert_eq!(gristmill::cuda::detect(0), Err(NoGpu::NoDriver));
        let prepared =
            REGISTRY.prepare(&Request::matmul("i2_s", Shape { m: 1, n: 16, k: 128 })).expect("prepares");
        assert!(prepared.decide_as_asked().chosen().is_some());
    }
}
