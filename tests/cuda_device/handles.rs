//! The handles of the runtime on a GPU that a fake driver stands for: the images of this build are loaded, launched
//! and waited for as on a real one, and the emulated kernels behind them must give the same bits as the processor.
//!
//! Without images in this build (no CUDA compiler) nothing can be loaded, and the tests say that they are skipped.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::images::{GPU, bits, entries, has_images, parent, settings, tried, values};
use crate::support::{is_child, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::observe::{FellBack, Launch, Observer, observe};
use gristmill::registry::{Code, FormatInfo};
use gristmill::vocab::{DType, Op};
use gristmill::{
    CpuProfile, CudaVersion, Dequantizer, Device, Embedder, Error, GpuProfile, HeldOnce, Input, Linear,
    LinearOptions, Matmul, NoGpu, Output, Packings, Policy, QuantizedMatrix, Quantizer, REGISTRY, Reason,
    Recording, Recovery, RecoveryStep, Registry, Request, Restrict, Shape, Threads, Workspace,
};
use std::path::Path;
use std::sync::Mutex;

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
    // One token has kernels of its own where the fastest packings are asked for.
    for (device, packings) in [(Device::CPU, Packings::One), (GPU, Packings::One), (GPU, Packings::Fastest)] {
        if m > 1 && packings == Packings::Fastest {
            continue;
        }
        let restrict = Restrict { packings, ..Restrict::default() };
        let mut of_device = Vec::new();
        for (input, bias) in [
            (Input::F32(&x), None),
            (Input::F32(&x), Some(&bias[..])),
            (Input::F16(&halves), None),
            (Input::Bf16(&brains), None),
        ] {
            let request = Request::matmul(format.name, shape).with_input(input.dtype()).on(device);
            let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &restrict)?;
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
    let same = results.iter().all(|result| *result == results[0]);
    assert!(same, "{}: m = {m}: another product", format.name);
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

/// One token, where the fastest packing of each number of tokens was asked for: floats are quantized in the product, int8 goes to another kernel, of a handle and of a layer.
fn one_token(format: &'static FormatInfo, matrix: &QuantizedMatrix<'_>) {
    let (n, k) = (matrix.n(), matrix.k());
    let shape = Shape { m: 1, n, k };
    let threads = Threads::single();
    let fastest = Restrict { packings: Packings::Fastest, ..Restrict::default() };
    let request = Request::matmul(format.name, shape).on(GPU);
    let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &fastest).expect("prepares");
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
        let restrict = Some(fastest.clone());
        let options = LinearOptions { device, policy: Policy::Strict, restrict, ..LinearOptions::default() };
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
            let fastest = Restrict { packings: Packings::Fastest, ..Restrict::default() };
            REGISTRY.prepare_on(&request, cpu, Some(Ok(gpu.clone())), &fastest).expect("prepares")
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
    // On the GPU weights are held once, unless the fastest packing of each number of tokens is asked for.
    for (device, packings) in [(Device::CPU, Packings::One), (GPU, Packings::Fastest), (GPU, Packings::One)] {
        let restrict = Restrict { packings, ..Restrict::default() };
        let options = LinearOptions {
            device,
            policy: Policy::Strict,
            restrict: Some(restrict),
            ..LinearOptions::default()
        };
        let mut layer = Linear::new(&REGISTRY, &matrix, &options, &threads).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let foreseen = layer.prepared().packings(n, k).expect("sizes");
        assert_eq!(foreseen.len(), if packings == Packings::Fastest { 2 } else { 1 }, "{foreseen:?}");
        assert_eq!(foreseen.iter().map(|(_, bytes)| bytes).sum::<usize>(), layer.weight_bytes());
        let mut of_layer = Vec::new();
        for m in [1, 3] {
            let mut workspace = layer.workspace(m, &threads).expect("memory");
            let mut y = vec![0.0; m * n];
            let x = values(m * k, 9);
            layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads).expect("runs");
            of_layer.push(bits(&y));
        }
        let receipt = recording.receipt();
        let reasons =
            receipt.kernels().iter().filter_map(|kernel| kernel.once_reason().copied()).collect::<Vec<_>>();
        let once = HeldOnce { packing: "mma32x64", instead_of: "r16k4" };
        // Of the kernel for one token, and of that for three.
        let expected = if device == GPU && packings == Packings::One { vec![once; 2] } else { vec![] };
        assert_eq!(reasons, expected);
        let said = receipt.to_json().contains(r#""held_once":{"packing":"mma32x64","instead_of":"r16k4"}"#);
        assert_eq!(said, !expected.is_empty());
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

/// A driver that refuses the image that a device should run is given the next one; where it refuses all, the error is that of the first and
/// names the others.
#[test]
fn another_image_is_taken_where_one_is_refused() {
    // PTX comes first where code of another device is not promised to run, as on 8.7.
    for settings in
        ["sm_86", "sm_86,refuse_code=80", "sm_86,refuse_code=80,refuse_ptx", "sm_87", "sm_87,refuse_ptx"]
    {
        parent("another_image_is_taken_where_one_is_refused", settings);
    }
    if !is_child() {
        return;
    }
    let settings = std::env::var("GRISTMILL_GPU_FAKE").expect("set by the parent");
    let Some(format) = tried().next() else { return };
    let k = format.elements * 2;
    // Kept open, so that the second handle finds what became of the images.
    let _gpu = gristmill::cuda::Gpu::open(0).expect("opens");
    let mut outcomes = Vec::new();
    for n in [3, 4] {
        let bytes = quantized(format, n, k, Device::CPU).expect("quantizes");
        let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
        let request = Request::dequantize(format.name, n, k).on(GPU);
        let prepared = REGISTRY.prepare(&request).expect("prepares");
        let decision = prepared.decide_as_asked();
        let first = decision.image().expect("it has one").target();
        assert_eq!(first.starts_with("compute_"), settings.contains("sm_87"), "{first}");
        let mut found = vec![0.0; n * k];
        let outcome = Dequantizer::new(&decision).and_then(|handle| handle.run(&matrix, &mut found));
        if outcome.is_ok() {
            let request = Request::dequantize(format.name, n, k);
            let prepared = REGISTRY.prepare(&request).expect("prepares");
            let mut expected = vec![0.0; n * k];
            let handle = Dequantizer::new(&prepared.decide_as_asked()).expect("a handle");
            handle.run(&matrix, &mut expected).expect("runs");
            assert_eq!(bits(&found), bits(&expected), "{settings}");
        }
        outcomes.push(outcome);
    }
    let errors = gristmill::cuda::health(0).expect("there is one").errors;
    if !settings.contains("refuse_ptx") {
        assert!(outcomes.iter().all(Result::is_ok), "{settings}: {outcomes:?}");
        assert_eq!(
            errors,
            u64::from(settings.contains("refuse_code")),
            "{settings}: asked once, and counted"
        );
        return;
    }
    assert_eq!(outcomes[0], outcomes[1], "{settings}");
    let Err(Error::Gpu(failure)) = &outcomes[0] else { panic!("{settings}: {outcomes:?}") };
    let text = failure.to_string();
    let (first, next) = match settings.contains("sm_87") {
        true => ("CUDA_ERROR_INVALID_PTX (218)", "sm_80: CUDA_ERROR_NO_BINARY_FOR_GPU (209)"),
        false => ("CUDA_ERROR_NO_BINARY_FOR_GPU (209)", "compute_75: CUDA_ERROR_INVALID_PTX (218)"),
    };
    assert!(text.contains(&format!("loading the image: {first}")) && text.contains(next), "{text}");
    assert!(text.contains("the driver's compiler says: ptxas fatal : refused"), "{text}");
    assert!(!failure.sticky);
}

#[test]
fn a_failed_launch_names_its_kernel_and_loses_the_device() {
    let failing = entries().find(|entry| entry.op == Op::Dequantize);
    let function = failing.and_then(|entry| match entry.code {
        Code::Cuda(code) => match code.launch {
            gristmill::registry::CudaLaunch::Elements { function, .. } => Some(function),
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
/// Steps of recovery that an observer is told.
struct Steps(Mutex<Vec<Recovery>>);

static STEPS: Steps = Steps(Mutex::new(Vec::new()));

impl Observer for Steps {
    fn wants_time(&self, _: &'static Registry, _: usize, _: Shape, _: Device) -> bool {
        false
    }

    fn launched(&self, _: &Launch) {}

    fn fell_back(&self, _: FellBack<'_>) {}

    fn recovered(&self, step: &Recovery) {
        self.0.lock().expect("no panic").push(step.clone());
    }
}

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
    let recording = Recording::new(&REGISTRY);
    let run = |device, x: &[f32]| {
        let prepared = REGISTRY.prepare(&Request::matmul(format.name, Shape { m, n, k }).on(device))?;
        let mut matmul = Matmul::new(&prepared.decide_as_asked())?;
        matmul.record(Some(&recording))?;
        let packed = matmul.pack(&matrix)?;
        let mut workspace = Workspace::for_(&matmul, m, k, &threads)?;
        let mut y = vec![f32::NAN; m * n];
        matmul.run(&packed, Input::F32(x), m, None, &mut y, &mut workspace, &threads)?;
        Ok::<_, Error>((bits(&y), matmul.entry().name))
    };
    observe(&STEPS).expect("the first one");
    let (here, _) = run(Device::CPU, &x).expect("runs");
    assert_eq!((recording.receipt().recoveries().len(), STEPS.0.lock().expect("no panic").len()), (0, 0));
    let (there, kernel) = run(GPU, &x).expect("in parts");
    assert_eq!(there, here);
    // Once, however many parts there were.
    let receipt = recording.receipt();
    let [step] = receipt.recoveries() else { panic!("one step: {receipt:?}") };
    assert_eq!((step.step, step.attempt, step.success), (RecoveryStep::InParts, 1, true));
    assert_eq!((step.kernel, step.then, step.format.as_str()), (kernel, Some(kernel), format.name));
    assert!(step.reason.contains("cuda:0") && step.reason.contains("bytes"), "{step:?}");
    assert_eq!(*STEPS.0.lock().expect("no panic"), receipt.recoveries());
    x[40 * k + 7] = f32::NAN;
    let error = run(GPU, &x).expect_err("not finite");
    assert!(matches!(error, Error::NonFinite { row: 40, column: 7 }), "{error}");
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
