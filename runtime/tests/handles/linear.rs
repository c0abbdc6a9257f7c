//! Layers: kernels by shape, policies, and what receipts say of them.

use crate::toy::kernels::dequantize_header4;
use crate::toy::{FORMATS, HEADER4, REGISTRY, TABLES, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::abi::Fault;
use gristmill_runtime::half::f16;
use gristmill_runtime::registry::{Code, Entry, EntryFacts, KernelId, Registry, RegistryFacts};
use gristmill_runtime::vocab::{DType, DeviceKind, Op};
use gristmill_runtime::{
    Batch, Device, Error, Input, Linear, LinearOptions, Output, Policy, QuantizedMatrix, Recording, Request,
    Restrict, Shape, Threads, Workspace,
};
use std::sync::atomic::{AtomicUsize, Ordering};

const CUDA: Device = Device { kind: DeviceKind::Cuda, index: 0 };

fn options(device: Device, policy: Policy) -> LinearOptions {
    LinearOptions { device, policy, restrict: Some(Restrict::default()), ..LinearOptions::default() }
}

fn forward(layer: &Linear, x: &[f32], m: usize, threads: &Threads) -> Result<Vec<f32>, Error> {
    let mut workspace = layer.workspace(m, threads)?;
    let mut y = vec![f32::NAN; m * layer.n()];
    layer.forward(Input::F32(x), m, None, &mut y, &mut workspace, threads)?;
    Ok(y)
}

/// Rows of `header4` and their values.
fn header4(n: usize, k: usize) -> Result<(Vec<u8>, Vec<f32>), Error> {
    let format = &FORMATS[HEADER4];
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    let prepared = REGISTRY.prepare(&Request::quantize("header4", None, n, k))?;
    let quantizer = gristmill_runtime::Quantizer::new(&prepared.decide_as_asked())?;
    quantizer.run(&noise(n * k, 4), n, k, &mut bytes)?;
    let prepared = REGISTRY.prepare(&Request::dequantize("header4", n, k))?;
    let mut values = vec![0.0; n * k];
    gristmill_runtime::Dequantizer::new(&prepared.decide_as_asked())?
        .run(&QuantizedMatrix::new(format, n, k, &bytes)?, &mut values)?;
    Ok((bytes, values))
}

#[test]
fn a_warm_layer_needs_nothing_more() -> Result<(), Error> {
    let threads = Threads::new(2)?;
    let bytes = tail2(8, 16);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 8, 16, &bytes)?;
    let mut layer = Linear::new(&REGISTRY, &matrix, &options(Device::CPU, Policy::Strict), &threads)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    let mut workspace = Workspace::new();
    layer.warm_up(&[], &mut workspace, &threads)?;
    assert!(recording.receipt().kernels().is_empty());
    layer.warm_up(&[3, 1], &mut workspace, &threads)?;
    let launches = || {
        recording
            .receipt()
            .kernels()
            .iter()
            .filter(|used| used.name().starts_with("matmul"))
            .map(|used| used.launches())
            .sum::<u64>()
    };
    assert_eq!(launches(), 2, "{:?}", recording.receipt());
    let (x, mut y) = (noise(3 * 16, 1), vec![f32::NAN; 3 * 8]);
    layer.forward(Input::F32(&x), 3, None, &mut y, &mut workspace, &threads)?;
    assert_eq!(y, forward(&layer, &x, 3, &threads)?);
    let absurd = layer.warm_up(&[1, usize::MAX], &mut workspace, &threads);
    assert!(matches!(absurd, Err(Error::TooLarge { .. })), "{absurd:?}");
    Ok(())
}

/// Also layers of activations that have scales for blocks of a token, and those without a kernel.
#[test]
fn layers_of_every_input_can_be_warmed_up() -> Result<(), Error> {
    let (n, k, threads) = (8, 16, Threads::single());
    let tensors = [(TAIL2, tail2(n, k)), (TINY8, tiny8(n, k)), (HEADER4, header4(n, k)?.0)];
    let inputs = [DType::F32, DType::F16, DType::Bf16, DType::I8];
    for ((format, bytes), input) in tensors.iter().flat_map(|tensor| inputs.map(|input| (tensor, input))) {
        if *format == TINY8 && !matches!(input, DType::F32 | DType::I8) {
            continue;
        }
        let matrix = QuantizedMatrix::new(&FORMATS[*format], n, k, bytes)?;
        let options = LinearOptions { input, ..options(Device::CPU, Policy::Dequantize) };
        let mut workspace = Workspace::new();
        Linear::new(&REGISTRY, &matrix, &options, &threads)?.warm_up(&[1, 5], &mut workspace, &threads)?;
        assert!(workspace.bytes() > 0, "{format}, {input:?}");
    }
    Ok(())
}

#[test]
fn one_workspace_serves_all_layers() -> Result<(), Error> {
    let threads = Threads::new(2)?;
    let (small, wide) = (tail2(8, 16), header4(4, 32)?.0);
    let matrices = [
        QuantizedMatrix::new(&FORMATS[TAIL2], 8, 16, &small)?,
        QuantizedMatrix::new(&FORMATS[HEADER4], 4, 32, &wide)?,
    ];
    let options = options(Device::CPU, Policy::Dequantize);
    let layers = [
        Linear::new(&REGISTRY, &matrices[0], &options, &threads)?,
        Linear::new(&REGISTRY, &matrices[1], &options, &threads)?,
    ];
    let mut all = Workspace::for_all(&layers, 3, &threads)?;
    assert!(
        layers.iter().all(|layer| layer.workspace(3, &threads).is_ok_and(|one| one.bytes() <= all.bytes()))
    );
    for layer in &layers {
        let x = noise(3 * layer.k(), 1);
        let mut y = vec![f32::NAN; 3 * layer.n()];
        layer.forward(Input::F32(&x), 3, None, &mut y, &mut all, &threads)?;
        assert_eq!(y, forward(layer, &x, 3, &threads)?);
    }
    assert_eq!(Workspace::for_all(&[] as &[Linear], 3, &threads)?.bytes(), 0);
    assert!(matches!(Workspace::for_all(&layers, usize::MAX, &threads), Err(Error::TooLarge { .. })));
    // One that is too small says how to make it, for layers too.
    let (x, mut y) = (noise(16, 1), [0.0; 8]);
    let run = layers[0].forward(Input::F32(&x), 1, None, &mut y, &mut Workspace::new(), &threads);
    let error = run.expect_err("an empty workspace").to_string();
    assert!(error.contains("`Workspace::for_all` for layers or `Workspace::for_` for a kernel"), "{error}");
    Ok(())
}

#[test]
fn a_tuning_counts_where_it_is_given() -> Result<(), Error> {
    use gristmill_runtime::tuning::{self, Measured, ShapeClass, Tuning};
    let bytes = tail2(8, 16);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 8, 16, &bytes)?;
    let threads = Threads::single();
    let id = |name| REGISTRY.entries.iter().find(|entry| entry.name == name).map(|entry| entry.id);
    let scalar = id("matmul.tail2.scalar").expect("the reference");
    let decode = id("matmul.tail2.avx2.decode").expect("a kernel for one token");
    let tuning = Tuning::of(vec![Measured {
        on: tuning::cpu().to_owned(),
        op: gristmill_runtime::vocab::Op::Matmul,
        format: "tail2".to_owned(),
        quantizer: None,
        class: ShapeClass::of(Shape::new(1, 8, 16)),
        threads: 1,
        order: vec![(scalar, 1.0), (decode, 2.0)],
    }]);
    let mut options = options(Device::CPU, Policy::Strict);
    let chosen = |options: &LinearOptions| {
        let layer = Linear::new(&REGISTRY, &matrix, options, &threads)?;
        Ok::<_, Error>(layer.prepared().decide(Shape::new(1, 8, 16)).kernel()?.name)
    };
    let untuned = chosen(&options)?;
    options.tuning = Some(std::sync::Arc::new(tuning));
    assert_ne!(untuned, "matmul.tail2.scalar");
    assert_eq!(chosen(&options)?, "matmul.tail2.scalar");
    Ok(())
}

#[test]
fn the_kernel_follows_the_shape_and_weights_are_packed_once() -> Result<(), Error> {
    let (n, k) = (8, 16);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let threads = Threads::single();
    let mut layer = Linear::new(&REGISTRY, &matrix, &options(Device::CPU, Policy::Strict), &threads)?;
    // One packing serves both kernels: 2 panels of 4 rows by 16 bytes, and 8 outer scales.
    assert_eq!(layer.weight_bytes(), 2 * 64 + 8 * 4);
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    let x = noise(5 * k, 3);
    let all = forward(&layer, &x, 5, &threads)?;
    for token in 0..5 {
        let one = forward(&layer, &x[token * k..][..k], 1, &threads)?;
        assert_eq!(one, all[token * n..][..n], "token {token}");
    }
    let receipt = recording.receipt();
    let launches: Vec<(&str, u64)> = receipt.kernels().iter().map(|k| (k.name(), k.launches())).collect();
    let expected = [
        ("matmul.tail2.avx2.decode", 5),
        ("matmul.tail2.avx2.prefill", 1),
        ("quantize_activations.row.scalar", 6),
    ];
    assert_eq!(launches, expected);
    assert!(receipt.fallbacks().is_empty());
    assert_eq!(forward(&layer, &[], 0, &threads)?, []);
    Ok(())
}

#[test]
fn strict_layers_refuse_with_the_reasons() -> Result<(), Error> {
    let bytes = tail2(8, 16);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 8, 16, &bytes)?;
    let threads = Threads::single();
    let error =
        Linear::new(&REGISTRY, &matrix, &options(CUDA, Policy::Strict), &threads).expect_err("no GPU");
    assert!(matches!(error, Error::NoKernel(_)), "{error}");
    assert!(error.to_string().contains("the cargo feature `cuda` is off"), "{error}");
    // Dequantizing is done on the device that was asked for, and there is none.
    let error =
        Linear::new(&REGISTRY, &matrix, &options(CUDA, Policy::Dequantize), &threads).expect_err("no GPU");
    assert!(error.to_string().starts_with("no kernel for matmul of `tail2` (f32) on cuda:0"), "{error}");
    let (bytes, _) = header4(8, 16)?;
    let matrix = QuantizedMatrix::new(&FORMATS[HEADER4], 8, 16, &bytes)?;
    for policy in [Policy::Strict, Policy::Cpu] {
        let error =
            Linear::new(&REGISTRY, &matrix, &options(Device::CPU, policy), &threads).expect_err("no product");
        assert!(error.to_string().contains("no kernel of this build does matmul for this format"), "{error}");
    }
    Ok(())
}

#[test]
fn the_cpu_policy_moves_the_layer_and_says_so() -> Result<(), Error> {
    let (n, k) = (8, 16);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let threads = Threads::single();
    let mut layer = Linear::new(&REGISTRY, &matrix, &options(CUDA, Policy::Cpu), &threads)?;
    let here = Linear::new(&REGISTRY, &matrix, &options(Device::CPU, Policy::Strict), &threads)?;
    let x = noise(k, 3);
    forward(&layer, &x, 1, &threads)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    assert!(recording.receipt().fallbacks().is_empty(), "nothing ran while recorded");
    assert_eq!(forward(&layer, &x, 1, &threads)?, forward(&here, &x, 1, &threads)?);
    let receipt = recording.receipt();
    let [fallback] = receipt.fallbacks() else { panic!("one fallback: {receipt:?}") };
    assert_eq!((fallback.policy(), fallback.device(), fallback.runs()), ("cpu", CUDA, 1));
    assert!(fallback.reason().contains("the cargo feature `cuda` is off"), "{}", fallback.reason());
    let json = receipt.to_json();
    assert!(
        json.contains("\"policy\":\"cpu\",\"op\":\"matmul\",\"format\":\"tail2\",\"device\":\"cuda:0\""),
        "{json}"
    );
    Ok(())
}

#[test]
fn what_did_not_run_is_no_fallback() -> Result<(), Error> {
    let (n, k) = (8, 16);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let threads = Threads::single();
    let mut layer = Linear::new(&REGISTRY, &matrix, &options(CUDA, Policy::Cpu), &threads)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    let counted = || recording.receipt().fallbacks().iter().map(|fallback| fallback.runs()).sum::<u64>();
    let (x, mut y) = (noise(k, 3), vec![0.0; n]);
    let (mut workspace, mut own) = (layer.workspace(1, &threads)?, layer.workspace(1, &threads)?);
    let shared = layer.quantize(Input::F32(&x), 1, &mut workspace, &threads)?;
    // Refused, by each way to the kernel.
    layer.forward(Input::F32(&x), 1, None, &mut y[1..], &mut own, &threads).expect_err("a short output");
    layer.forward_quantized(&shared, None, &mut y[1..], &threads).expect_err("a short output");
    layer.forward(Input::F32(&[f32::NAN; 16]), 1, None, &mut y, &mut own, &threads).expect_err("no number");
    // Nothing to compute.
    layer.forward(Input::F32(&[]), 0, None, &mut [], &mut own, &threads)?;
    let mut batch = Batch::new();
    batch.push(layer.product_of(&shared), Output::F32(&mut y))?;
    drop(batch);
    assert_eq!(counted(), 0);
    let mut batch = Batch::new();
    batch.push(layer.product_of(&shared), Output::F32(&mut y))?;
    batch.run(&threads);
    assert_eq!(counted(), 1);
    layer.forward_quantized(&shared, None, &mut y, &threads)?;
    layer.forward(Input::F32(&x), 1, None, &mut y, &mut own, &threads)?;
    assert_eq!(counted(), 3);
    // Nor is an input of a plain product of f32 that is not finite.
    let (bytes, _) = header4(n, k)?;
    let matrix = QuantizedMatrix::new(&FORMATS[HEADER4], n, k, &bytes)?;
    let mut plain = Linear::new(&REGISTRY, &matrix, &options(Device::CPU, Policy::Dequantize), &threads)?;
    let recording = Recording::new(&REGISTRY);
    plain.record(Some(&recording))?;
    let mut workspace = plain.workspace(1, &threads)?;
    let refused = plain.forward(Input::F32(&[f32::NAN; 16]), 1, None, &mut y, &mut workspace, &threads);
    assert!(matches!(refused, Err(Error::NonFinite { .. })), "{refused:?}");
    assert!(recording.receipt().fallbacks().is_empty());
    Ok(())
}

/// A kernel that is asked for by name is that of its op and format, also where a layer needs it for something else.
#[test]
fn a_restriction_to_a_dequantizer_holds_for_layers() -> Result<(), Error> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    unsafe fn counted(src: *const u8, dst: *mut f32, count: usize, outer: f32) -> Result<(), Fault> {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the ABI.
        unsafe { dequantize_header4(src, dst, count, outer) }
    }
    let name = "dequantize.header4.counted";
    let facts = EntryFacts {
        id: KernelId(0x2000),
        name,
        code: Code::Dequantize(counted),
        ..*REGISTRY.entries[7].facts()
    };
    // SAFETY: the function is that of the toy registry for the format.
    let second = unsafe { Entry::new(facts) };
    // SAFETY: as above.
    let copy = |entry: &Entry| unsafe { Entry::new(*entry.facts()) };
    let entries = REGISTRY.entries.iter().map(copy).chain([second]).collect();
    let facts = RegistryFacts {
        entries: Vec::leak(entries),
        candidates: |op, format, dtype, device| match (op, format) {
            (Op::Dequantize, HEADER4) => &[7, 14],
            _ => (REGISTRY.candidates)(op, format, dtype, device),
        },
        ..TABLES
    };
    // SAFETY: as above.
    let registry: &'static Registry = Box::leak(Box::new(unsafe { Registry::new(facts) }));
    let (n, k) = (4, 20);
    let (bytes, _) = header4(n, k)?;
    let matrix = QuantizedMatrix::new(&FORMATS[HEADER4], n, k, &bytes)?;
    for (kernel, calls) in [(None, false), (Some("dequantize.header4.scalar"), false), (Some(name), true)] {
        let restrict = Restrict { kernel: kernel.map(str::to_owned), ..Restrict::default() };
        let options = LinearOptions { restrict: Some(restrict), ..options(Device::CPU, Policy::Dequantize) };
        Linear::new(registry, &matrix, &options, &Threads::single())?;
        assert_eq!(CALLS.swap(0, Ordering::Relaxed) > 0, calls, "{kernel:?}");
    }
    Ok(())
}

#[test]
fn the_dequantize_policy_multiplies_in_f32_and_says_so() -> Result<(), Error> {
    let (n, k) = (37, 20);
    let (bytes, w) = header4(n, k)?;
    let matrix = QuantizedMatrix::new(&FORMATS[HEADER4], n, k, &bytes)?;
    let bias = noise(n, 8);
    let single = Threads::single();
    for count in [1, 3] {
        let threads = Threads::new(count)?.with_grain(1);
        let mut layer = Linear::new(&REGISTRY, &matrix, &options(Device::CPU, Policy::Dequantize), &threads)?;
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording))?;
        for m in [1, 2, 7] {
            let x: Vec<f16> = noise(m * k, 3).into_iter().map(f16::from_f32).collect();
            let as_f32: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
            let mut workspace = layer.workspace(m, &threads)?;
            let mut y = vec![f32::NAN; m * n];
            layer.forward(Input::F16(&x), m, Some(&bias), &mut y, &mut workspace, &threads)?;
            for (at, y) in y.iter().enumerate() {
                let (token, row) = (at / n, at % n);
                let products = (0..k).map(|i| f64::from(as_f32[token * k + i]) * f64::from(w[row * k + i]));
                let expected = products.sum::<f64>() + f64::from(bias[row]);
                assert!((f64::from(*y) - expected).abs() < 1e-5, "{y} instead of {expected}");
            }
            let mut alone = vec![f32::NAN; m * n];
            layer.forward(Input::F32(&as_f32), m, Some(&bias), &mut alone, &mut workspace, &single)?;
            assert_eq!(y, alone, "the same bits whatever the threads and the type");
        }
        let receipt = recording.receipt();
        let [fallback] = receipt.fallbacks() else { panic!("one fallback: {receipt:?}") };
        assert_eq!((fallback.policy(), fallback.runs()), ("dequantize", 6));
        assert!(receipt.kernels().is_empty());
    }
    Ok(())
}

#[test]
fn the_dequantize_policy_takes_int8_with_scales() -> Result<(), Error> {
    let (n, k) = (3, 8);
    let (bytes, w) = header4(n, k)?;
    let matrix = QuantizedMatrix::new(&FORMATS[HEADER4], n, k, &bytes)?;
    let threads = Threads::single();
    let asked = LinearOptions { input: DType::I8, ..options(Device::CPU, Policy::Dequantize) };
    let layer = Linear::new(&REGISTRY, &matrix, &asked, &threads)?;
    let q: Vec<i8> = vec![-128, 127, 3, 0, 1, -1, 64, 32];
    let mut workspace = layer.workspace(1, &threads)?;
    let mut y = vec![0.0; n];
    // `header4` pairs with an activation format that keeps the multiplier: values are q / scale.
    layer.forward(Input::I8 { q: &q, scales: &[4.0] }, 1, None, &mut y, &mut workspace, &threads)?;
    for (row, y) in y.iter().enumerate() {
        let expected: f32 = (0..k).map(|i| f32::from(q[i]) / 4.0 * w[row * k + i]).sum();
        assert!((y - expected).abs() < 1e-3, "{y} instead of {expected}");
    }
    Ok(())
}

#[test]
fn a_layer_with_a_gap_refuses_just_that_m() -> Result<(), Error> {
    let bytes = tail2(4, 8);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 4, 8, &bytes)?;
    let threads = Threads::single();
    let restrict = Restrict {
        disabled: vec![String::from("matmul.tail2.avx2.prefill"), String::from("matmul.tail2.scalar")],
        ..Restrict::default()
    };
    let strict = LinearOptions { restrict: Some(restrict), ..options(Device::CPU, Policy::Strict) };
    let layer = Linear::new(&REGISTRY, &matrix, &strict, &threads)?;
    forward(&layer, &noise(3 * 8, 1), 3, &threads)?;
    let error = forward(&layer, &noise(4 * 8, 1), 4, &threads).expect_err("no kernel for four").to_string();
    assert!(error.contains("matmul.tail2.avx2.decode: m = 4, but must be at most 3"), "{error}");
    assert!(error.contains("matmul.tail2.{avx2.prefill, scalar}: disabled by name"), "{error}");
    let lenient = LinearOptions { policy: Policy::Dequantize, ..strict };
    let layer = Linear::new(&REGISTRY, &matrix, &lenient, &threads)?;
    assert!(forward(&layer, &noise(4 * 8, 1), 4, &threads)?.iter().all(|y| y.is_finite()));
    // A packing, and f32 for tokens that have no kernel.
    let memory = Linear::memory(&REGISTRY, "tail2", [layer.n(), layer.k()], &lenient, 4, &threads)?;
    assert_eq!((memory.packings.len(), memory.plain_bytes), (1, 4 * layer.n() * layer.k()));
    assert_eq!(memory.weight_bytes, layer.weight_bytes());
    assert_eq!(memory.workspace, layer.workspace_size(4, &threads)?);
    Ok(())
}

#[test]
fn weights_are_packed_for_each_packing_that_some_m_needs() -> Result<(), Error> {
    let (n, k) = (8, 16);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let threads = Threads::single();
    let restrict =
        Restrict { disabled: vec![String::from("matmul.tail2.avx2.prefill")], ..Restrict::default() };
    let asked = LinearOptions { restrict: Some(restrict), ..options(Device::CPU, Policy::Strict) };
    let layer = Linear::new(&REGISTRY, &matrix, &asked, &threads)?;
    // Panels for m up to 3, and 8 rows of 4 bytes for the scalar kernel above; outer scales for both.
    assert_eq!(layer.weight_bytes(), (2 * 64 + 8 * 4) + (8 * 4 + 8 * 4));
    let memory = Linear::memory(&REGISTRY, "tail2", [n, k], &asked, 5, &threads)?;
    let bytes_of: Vec<usize> = memory.packings.iter().map(|(_, bytes)| *bytes).collect();
    assert_eq!((bytes_of, memory.plain_bytes), (vec![2 * 64 + 8 * 4, 8 * 4 + 8 * 4], 0));
    assert_eq!((memory.weight_bytes, memory.bits_per_weight), (layer.weight_bytes(), 8.0 * 224.0 / 128.0));
    assert_eq!(memory.workspace, layer.workspace_size(5, &threads)?);
    let huge = Linear::memory(&REGISTRY, "tail2", [usize::MAX / 16, k], &asked, 1, &threads);
    assert!(matches!(huge, Err(Error::TooLarge { .. })), "{huge:?}");
    let odd = Linear::memory(&REGISTRY, "tail2", [n, k + 1], &asked, 1, &threads);
    assert!(odd.is_err(), "{odd:?}");
    let none = Linear::memory(&REGISTRY, "nowhere", [n, k], &asked, 1, &threads);
    assert!(matches!(none, Err(Error::UnknownFormat { .. })), "{none:?}");
    let x = noise(5 * k, 3);
    let all = forward(&layer, &x, 5, &threads)?;
    let one = forward(&layer, &x[..k], 1, &threads)?;
    assert_eq!(one, all[..n], "sums are integers, so both kernels give the same bits");
    Ok(())
}

#[test]
fn one_layer_serves_several_threads_at_once() -> Result<(), Error> {
    // Miri runs one thread at a time, and none of them fast.
    const RUNS: u64 = if cfg!(miri) { 2 } else { 50 };
    let (n, k) = (40, 32);
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let threads = Threads::new(2)?.with_grain(1);
    let mut layer = Linear::new(&REGISTRY, &matrix, &options(Device::CPU, Policy::Strict), &threads)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    let x = noise(k, 3);
    let expected = forward(&layer, &x, 1, &Threads::single())?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..RUNS {
                    assert_eq!(forward(&layer, &x, 1, &threads).expect("a run"), expected);
                }
            });
        }
    });
    let launches = recording.receipt().kernels().iter().map(|kernel| kernel.launches()).sum::<u64>();
    assert_eq!(launches, 2 * (1 + 4 * RUNS));
    Ok(())
}
