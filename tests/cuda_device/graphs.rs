//! Work that stays on a GPU, on a fake driver: graphs of whole layers, what they keep and count, memory that is there before
//! it is needed, and conversions of tensors on the device.
//!
//! Without images in this build (no CUDA compiler) nothing can be loaded, and the tests say that they are skipped.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::images::{self, GPU, bits, devices, parent, settings, tried, values};
use crate::support::{is_child, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu, GpuQuantizer};
use gristmill::registry::FormatInfo;
use gristmill::{
    Dequantizer, Device, Error, Linear, LinearOptions, NoGpu, Packings, Policy, QuantizedMatrix, Quantizer,
    REGISTRY, Recording, Request, Restrict, Threads, Workspace,
};
use std::sync::Arc;

/// A format that is tried and that the device quantizes too.
fn quantized_there() -> Option<&'static FormatInfo> {
    let on_the_device = |format: &&FormatInfo| {
        images::entries().any(|entry| {
            entry.op == gristmill::vocab::Op::Quantize && REGISTRY.formats[entry.format].name == format.name
        })
    };
    tried().find(on_the_device)
}

/// A format's default quantizer on the processor.
pub fn quantized(format: &'static FormatInfo, x: &[f32], n: usize, k: usize) -> Vec<u8> {
    let prepared = REGISTRY.prepare(&Request::quantize(format.name, None, n, k)).expect("prepares");
    let mut bytes = vec![0xa5; format.tensor_bytes(n, k).expect("a size")];
    let quantizer = Quantizer::new(&prepared.decide_as_asked()).expect("a handle");
    quantizer.run(x, n, k, &mut bytes).expect("quantizes");
    bytes
}

/// A layer with weights of its own.
pub fn layer(format: &'static FormatInfo, n: usize, k: usize, device: Device) -> Linear {
    layer_in(format, n, k, device, Packings::One)
}

/// The same with its weights in so many packings.
pub fn layer_in(
    format: &'static FormatInfo,
    n: usize,
    k: usize,
    device: Device,
    packings: Packings,
) -> Linear {
    let bytes = quantized(format, &values(n * k, 7), n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
    let restrict = Some(Restrict { packings, ..Restrict::default() });
    let options = LinearOptions { device, policy: Policy::Strict, restrict, ..LinearOptions::default() };
    Linear::new(&REGISTRY, &matrix, &options, &Threads::single()).expect("a layer")
}

/// Two layers one after the other on the processor.
fn expected(layers: &[Linear; 2], x: &[f32], m: usize) -> Vec<u32> {
    let threads = Threads::single();
    let mut out = x.to_vec();
    for layer in layers {
        let mut workspace = layer.workspace(m, &threads).expect("memory");
        let mut y = vec![f32::NAN; m * layer.n()];
        layer.forward(gristmill::Input::F32(&out), m, None, &mut y, &mut workspace, &threads).expect("runs");
        out = y;
    }
    bits(&out)
}

/// Runs a test's body where a fake device is, an old one and a new one; what the driver said must be nothing.
pub fn on_a_device(name: &str, body: fn()) {
    for device in devices() {
        if let Some(output) = parent(name, &device) {
            assert_eq!(said(&output), "", "{device}: all memory is given back");
        }
    }
    if is_child() {
        body();
    }
}

#[test]
fn a_graph_of_layers_runs_again_with_other_inputs() {
    on_a_device("a_graph_of_layers_runs_again_with_other_inputs", || {
        for format in tried() {
            // Rows of different length, so that a fault can't be told by its element alone.
            let (k, between) = (2 * format.elements.max(128), 3 * format.elements.max(128));
            // A layer of one token is one launch; of more it is two.
            for (m, packings, launches) in
                [(1, Packings::Fastest, 2), (1, Packings::One, 2), (2, Packings::One, 4)]
            {
                let [cpu, gpu] = [Device::CPU, GPU].map(|device| {
                    [(between, k), (5, between)].map(|(n, k)| layer_in(format, n, k, device, packings))
                });
                graph_of(cpu, gpu, (m, k), launches);
            }
        }
    });
}

fn graph_of(cpu: [Linear; 2], mut layers: [Linear; 2], (m, k): (usize, usize), each: usize) {
    let recording = Recording::new(&REGISTRY);
    for layer in &mut layers {
        layer.record(Some(&recording)).expect("the same registry");
    }
    let gpu = Gpu::open(0).expect("opens");
    let mut workspace = Workspace::new();
    let mut x = DeviceBuffer::of(&gpu, &values(m * k, 1)).expect("memory");
    let mut between = DeviceBuffer::<f32>::zeroed(&gpu, m * layers[0].n()).expect("memory");
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, m * layers[1].n()).expect("memory");
    let mut step = || {
        layers[0].forward_on_device(DeviceInput::F32(&x), m, None, &mut between, &mut workspace)?;
        layers[1].forward_on_device(DeviceInput::F32(&between), m, None, &mut y, &mut workspace)
    };
    step().expect("runs, and makes what memory it needs");
    let launches = || recording.receipt().kernels().iter().map(|kernel| kernel.launches()).sum::<u64>();
    let before = launches();
    let held = gpu.memory_held().expect("counts");
    let graph = gpu.capture(&mut step).expect("captures");
    assert_eq!(launches(), before, "what is captured did not run");
    assert_eq!(graph.kernels().count(), each);
    for seed in 2..5 {
        let input = values(m * k, seed);
        x.write(&input).expect("copies");
        graph.launch().expect("launches");
        workspace.finish().expect("no fault");
        assert_eq!(bits(&y.to_vec().expect("copies")), expected(&cpu, &input, m), "input {seed}");
    }
    assert_eq!(launches(), before + 3 * each as u64, "every launch of the graph counts");
    let after = gpu.memory_held().expect("counts");
    assert_eq!((after.allocations, after.bytes), (held.allocations, held.bytes), "a step allocates nothing");

    // A fault in a graph is found, at its place, and does not stay.
    let mut input = values(m * k, 9);
    input[(m - 1) * k + 3] = f32::NAN;
    x.write(&input).expect("copies");
    graph.launch().expect("launches");
    assert_eq!(workspace.finish(), Err(Error::NonFinite { row: m - 1, column: 3 }));
    x.write(&values(m * k, 2)).expect("copies");
    graph.launch().expect("launches");
    assert_eq!(workspace.finish(), Ok(()));

    // The graph keeps the memory that its kernels use.
    drop((x, between, layers, workspace));
    graph.launch().expect("launches");
    assert_eq!(bits(&y.to_vec().expect("copies")), expected(&cpu, &values(m * k, 2), m));
    drop(y);
    assert!(gpu.memory_held().expect("counts").bytes > 0);
    drop(graph);
    assert_eq!(gpu.memory_held().expect("counts").bytes, 0, "and then gives it back");
}

/// Kernels of a step begin while those in front of them still run, where the device has an instruction to wait with; the
/// fake device tells a kernel that reads what may still be written.
#[test]
fn launches_overlap_on_devices_that_can() {
    let name = "launches_overlap_on_devices_that_can";
    for device in devices() {
        let Some(output) = parent(name, &format!("{device},count")) else { continue };
        let cc: u32 = device["sm_".len()..].parse().expect("a number");
        let overlapping = if cc < 90 { 0 } else { 4 };
        let words = format!("4 kernels were launched, {overlapping} of them to overlap");
        assert!(said(&output).contains(&words), "{device}: {}", said(&output));
    }
    if !is_child() {
        return;
    }
    let Some(format) = tried().find(|format| format.name == "i2_s") else { return };
    let layers = [(256, 128), (5, 256)].map(|(n, k)| layer_in(format, n, k, GPU, Packings::Fastest));
    let gpu = Gpu::open(0).expect("opens");
    let mut workspace = Workspace::new();
    let x = DeviceBuffer::of(&gpu, &values(128, 1)).expect("memory");
    let mut between = DeviceBuffer::<f32>::zeroed(&gpu, 256).expect("memory");
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, 5).expect("memory");
    let mut step = || {
        layers[0].forward_on_device(DeviceInput::F32(&x), 1, None, &mut between, &mut workspace)?;
        layers[1].forward_on_device(DeviceInput::F32(&between), 1, None, &mut y, &mut workspace)
    };
    step().expect("runs");
    let graph = gpu.capture(&mut step).expect("captures");
    graph.launch().expect("launches");
    workspace.finish().expect("no fault");
}

/// Products with fewer tiles than the device has multiprocessors divide k over CUDA blocks: the bits are the same, in graphs
/// too, and a step takes no memory but in the beginning.
#[test]
fn products_of_few_tiles_divide_k() {
    let name = "products_of_few_tiles_divide_k";
    for device in devices() {
        let Some(output) = parent(name, &format!("{device},multiprocessors=132,count")) else { continue };
        let told = said(&output);
        assert!(
            told.contains(", 7 with a grid of several layers") && told.lines().count() == 1,
            "{device}: {told}"
        );
        // With as many tiles as multiprocessors nothing is left to divide.
        let Some(output) = parent(name, &format!("{device},multiprocessors=1,count")) else { continue };
        assert!(said(&output).contains(", 0 with a grid of several layers"));
    }
    if !is_child() {
        return;
    }
    let Some(format) = tried().find(|format| format.name == "i2_s") else { return };
    let (n, k) = (40, 12_288);
    let [cpu, layer] = [Device::CPU, GPU].map(|device| layer(format, n, k, device));
    let threads = Threads::single();
    let on_the_cpu = |x: &[f32], m: usize| {
        let mut workspace = cpu.workspace(m, &threads).expect("memory");
        let mut y = vec![f32::NAN; m * n];
        cpu.forward(gristmill::Input::F32(x), m, None, &mut y, &mut workspace, &threads).expect("runs");
        bits(&y)
    };
    let gpu = Gpu::open(0).expect("opens");
    let mut workspace = Workspace::new();
    let mut graphs = Vec::new();
    // Few tokens by warps that share k, and tiles that are copied ahead.
    for m in [5, 70] {
        let mut x = DeviceBuffer::of(&gpu, &values(m * k, 1)).expect("memory");
        let mut y = DeviceBuffer::<f32>::zeroed(&gpu, m * n).expect("memory");
        let mut step = || layer.forward_on_device(DeviceInput::F32(&x), m, None, &mut y, &mut workspace);
        step().expect("runs, and makes what memory it needs");
        let held = gpu.memory_held().expect("counts");
        let graph = gpu.capture(&mut step).expect("captures");
        assert_eq!(bits(&y.to_vec().expect("copies")), on_the_cpu(&values(m * k, 1), m), "{m} tokens");
        for seed in [2, 3] {
            let input = values(m * k, seed);
            x.write(&input).expect("copies");
            graph.launch().expect("launches");
            workspace.finish().expect("no fault");
            assert_eq!(bits(&y.to_vec().expect("copies")), on_the_cpu(&input, m), "{m} tokens, input {seed}");
        }
        let after = gpu.memory_held().expect("counts");
        assert_eq!(
            (after.allocations, after.bytes),
            (held.allocations, held.bytes),
            "a step allocates nothing"
        );
        graphs.push((graph, x, y));
    }
    // The graph of few tokens still has the memory that has grown since.
    let (graph, _, y) = &graphs[0];
    graph.launch().expect("launches");
    assert_eq!(bits(&y.to_vec().expect("copies")), on_the_cpu(&values(5 * k, 3), 5));
}

#[test]
fn what_a_graph_can_t_hold_is_refused() {
    on_a_device("what_a_graph_can_t_hold_is_refused", || {
        let gpu = Gpu::open(0).expect("opens");
        let refused = |what: &str, enqueue: &mut dyn FnMut(&Arc<Gpu>) -> Result<(), Error>| {
            let error = gpu.capture(|| enqueue(&gpu)).expect_err(what);
            assert!(matches!(error, Error::Capturing { index: 0, .. }), "{what}: {error}");
        };
        let mut buffer = DeviceBuffer::<u8>::zeroed(&gpu, 100).expect("memory");
        refused("an allocation", &mut |gpu| DeviceBuffer::<u8>::zeroed(gpu, 10).map(drop));
        refused("a copy to it", &mut |_| buffer.write(&[1, 2]));
        refused("a copy from it", &mut |_| buffer.to_vec().map(drop));
        refused("waiting", &mut |gpu| gpu.synchronize());
        refused("a time", &mut |gpu| gpu.time(|| Ok(())).map(drop));
        refused("a capture", &mut |gpu| gpu.capture(|| Ok(())).map(drop));
        let other = DeviceBuffer::<u8>::zeroed(&gpu, 100).expect("memory");
        refused("another thread", &mut |_| {
            std::thread::scope(|scope| scope.spawn(|| buffer.copy(&other)).join().expect("no panic"))
        });
        // A panic ends the capture too.
        let panic = std::panic::catch_unwind(|| gpu.capture(|| panic!("in a capture")).map(drop));
        assert!(panic.is_err());
        // Memory that is given up meanwhile is freed afterwards.
        let mut given_up = Some(DeviceBuffer::<u8>::zeroed(&gpu, 50).expect("memory"));
        let mut unused = Some(DeviceBuffer::<u8>::zeroed(&gpu, 0).expect("memory"));
        let held = gpu.memory_held().expect("counts").bytes - 1;
        let graph = gpu.capture(|| {
            buffer.copy(given_up.as_ref().expect("not yet"))?;
            given_up = None;
            unused = None;
            Ok(())
        });
        let graph = graph.expect("captures");
        assert_eq!(gpu.memory_held().expect("counts").bytes, held, "the graph still copies from it");
        for _ in 0..2 {
            graph.launch().expect("launches");
            gpu.synchronize().expect("runs, and frees nothing");
        }
        drop(graph);
        assert_eq!(gpu.memory_held().expect("counts").bytes, held - 50);
        assert_eq!(buffer.to_vec().expect("copies"), vec![0; 100]);
    });
}

#[test]
fn memory_is_counted_kept_and_given_back() {
    on_a_device("memory_is_counted_kept_and_given_back", || {
        let gpu = Gpu::open(0).expect("opens");
        gpu.reserve_memory(5000).expect("there is more");
        let held = gpu.memory_held().expect("counts");
        let pool = held.pool.expect("the fake device has one");
        assert_eq!((held.bytes, held.buffers, held.most_bytes, held.allocations), (0, 0, 5000, 1));
        assert_eq!((pool.used, pool.most_used), (0, 5000));
        assert!(pool.reserved >= 5000, "what was reserved stays: {pool:?}");
        let first = DeviceBuffer::<f32>::zeroed(&gpu, 1000).expect("memory");
        let second = DeviceBuffer::<u8>::zeroed(&gpu, 500).expect("memory");
        let held = gpu.memory_held().expect("counts");
        assert_eq!((held.bytes, held.buffers), (4500, 2));
        drop(first);
        gpu.trim_memory(0).expect("trims");
        let held = gpu.memory_held().expect("counts");
        let pool = held.pool.expect("a pool");
        assert_eq!((held.bytes, held.buffers, pool.used, pool.reserved), (500, 1, 500, 500));
        drop(second);
        gpu.keep_memory(0).expect("sets");
        gpu.synchronize().expect("waits");
        assert_eq!(gpu.memory_held().expect("counts").pool.expect("a pool").reserved, 0);
    });
}

#[test]
fn a_device_without_pools_works_too() {
    let name = "a_device_without_pools_works_too";
    if let Some(output) = parent(name, &format!("{},no_pools", settings())) {
        assert_eq!(said(&output), "");
    }
    if is_child() {
        let gpu = Gpu::open(0).expect("opens");
        let buffer = DeviceBuffer::<f32>::zeroed(&gpu, 10).expect("memory");
        gpu.reserve_memory(10).expect("nothing to keep");
        gpu.trim_memory(0).expect("nothing to give");
        let held = gpu.memory_held().expect("counts");
        assert_eq!((held.bytes, held.pool), (40, None));
        assert_eq!(buffer.to_vec().expect("copies"), vec![0.0; 10]);
    }
}

#[test]
fn tensors_are_quantized_where_they_are() {
    on_a_device("tensors_are_quantized_where_they_are", || {
        for format in tried() {
            let made = GpuQuantizer::new(&REGISTRY, format.name, None, 0);
            let mut quantizer = match made {
                Err(Error::NoKernel(_)) => continue,
                made => made.expect("handles"),
            };
            quantizer.ensure_ready().expect("the device works");
            let recording = Recording::new(&REGISTRY);
            quantizer.record(Some(&recording)).expect("the same registry");
            let gpu = Arc::clone(quantizer.gpu());
            for (n, blocks) in [(3, 2), (1, 5), (4, 1)] {
                on_device(format, &mut quantizer, &gpu, n, blocks * format.elements);
            }
            assert!(recording.receipt().devices().contains(&GPU.kind));
        }
        let format = quantized_there().expect("one is").name;
        let absent = GpuQuantizer::new(&REGISTRY, format, None, 7).expect_err("there is one device");
        assert!(matches!(absent, Error::NoKernel(_)), "{absent}");
    });
}

fn on_device(format: &'static FormatInfo, quantizer: &mut GpuQuantizer, gpu: &Arc<Gpu>, n: usize, k: usize) {
    let x = values(n * k, 3);
    let bytes = quantized(format, &x, n, k);
    let estimate = quantizer.memory_estimate(n, k).expect("a size");
    assert_eq!((estimate.values, estimate.quantized), (4 * n * k, bytes.len()));
    assert!(estimate.total() < 2 * 4 * n * k + 64, "{estimate:?}");
    let src = DeviceBuffer::of(gpu, &x).expect("memory");
    let mut there = DeviceBuffer::<u8>::zeroed(gpu, bytes.len()).expect("memory");
    quantizer.quantize(&src, n, k, &mut there).expect("enqueues");
    quantizer.finish().expect("no fault");
    assert!(there.to_vec().expect("copies") == bytes, "{}: {n} x {k}", format.name);

    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
    let prepared = REGISTRY.prepare(&Request::dequantize(format.name, n, k)).expect("prepares");
    let mut values_of = vec![0.0; n * k];
    Dequantizer::new(&prepared.decide_as_asked())
        .expect("a handle")
        .run(&matrix, &mut values_of)
        .expect("runs");
    let mut back = DeviceBuffer::<f32>::zeroed(gpu, n * k).expect("memory");
    quantizer.dequantize(&there, n, k, &mut back).expect("enqueues");
    quantizer.finish().expect("no fault");
    assert_eq!(bits(&back.to_vec().expect("copies")), bits(&values_of), "{}", format.name);

    let error = quantizer.validate(&src, &there, n, k).expect("valid");
    let differences = x.iter().zip(&values_of).map(|(x, w)| (x - w).abs());
    assert_eq!(error.largest, differences.clone().fold(0.0, f32::max), "{}", format.name);
    assert_eq!(differences.clone().nth(error.row * k + error.column), Some(error.largest));
    assert!(error.normalized_square > 0.0 && error.normalized_square < 1.0, "{error:?}");

    let mut bad = x.clone();
    bad[n * k - 1] = f32::INFINITY;
    let bad = DeviceBuffer::of(gpu, &bad).expect("memory");
    quantizer.quantize(&bad, n, k, &mut there).expect("enqueues");
    assert_eq!(quantizer.finish(), Err(Error::NonFinite { row: n - 1, column: k - 1 }));
    let mut short = DeviceBuffer::<u8>::zeroed(gpu, bytes.len() - 1).expect("memory");
    let error = quantizer.quantize(&src, n, k, &mut short).expect_err("too small");
    assert!(matches!(error, Error::ShapeMismatch { unit: "bytes", .. }), "{error}");
    let empty = DeviceBuffer::of(gpu, &[]).expect("memory");
    let mut nothing = DeviceBuffer::zeroed(gpu, format.tensor_bytes(0, k).expect("a size")).expect("memory");
    quantizer.quantize(&empty, 0, k, &mut nothing).expect("nothing to do");
    quantizer.finish().expect("nothing was done");
}

#[test]
fn every_launch_of_a_graph_of_conversions_is_checked() {
    on_a_device("every_launch_of_a_graph_of_conversions_is_checked", || {
        let format = quantized_there().expect("one is");
        let k = 2 * format.elements;
        let mut quantizer = GpuQuantizer::new(&REGISTRY, format.name, None, 0).expect("handles");
        let gpu = Arc::clone(quantizer.gpu());
        let mut src = DeviceBuffer::of(&gpu, &values(3 * k, 3)).expect("memory");
        let bytes = |n, k| format.tensor_bytes(n, k).expect("a size");
        let mut dst = DeviceBuffer::<u8>::zeroed(&gpu, bytes(3, k)).expect("memory");
        let mut longer = DeviceBuffer::<u8>::zeroed(&gpu, bytes(1, 3 * k)).expect("memory");
        quantizer.quantize(&src, 3, k, &mut dst).expect("makes what memory it needs");
        let graph = gpu.capture(|| quantizer.quantize(&src, 3, k, &mut dst)).expect("captures");
        let other = DeviceBuffer::of(&gpu, &values(3 * k, 4)).expect("memory");
        quantizer.finish().expect("no fault");
        for (row, column) in [(2, k - 1), (0, 1), (1, format.elements)] {
            let mut x = values(3 * k, 3);
            x[row * k + column] = f32::NAN;
            src.write(&x).expect("copies");
            graph.launch().expect("launches");
            // Rows of another length since then don't move the place that is reported.
            quantizer.quantize(&other, 1, 3 * k, &mut longer).expect("enqueues");
            let found = quantizer.finish();
            assert_eq!(found, Err(Error::NonFinite { row, column }));
            src.write(&values(3 * k, 3)).expect("copies");
            graph.launch().expect("launches");
            assert_eq!(quantizer.finish(), Ok(()));
        }
    });
}

#[test]
fn a_lost_device_is_not_ready() {
    let Some(format) = quantized_there() else { return };
    let failing = format!("dequantize_{}", format.name);
    parent("a_lost_device_is_not_ready", &format!("{},fail_launch={failing}", settings()));
    if !is_child() {
        return;
    }
    let (k, mut quantizer) =
        (format.elements, GpuQuantizer::new(&REGISTRY, format.name, None, 0).expect("handles"));
    quantizer.ensure_ready().expect("ready");
    let gpu = Arc::clone(quantizer.gpu());
    let bytes = format.tensor_bytes(1, k).expect("a size");
    let src = DeviceBuffer::<u8>::zeroed(&gpu, bytes).expect("memory");
    let mut dst = DeviceBuffer::zeroed(&gpu, k).expect("memory");
    quantizer.dequantize(&src, 1, k, &mut dst).expect("enqueues");
    assert!(matches!(quantizer.finish(), Err(Error::Gpu(_))));
    assert!(matches!(quantizer.ensure_ready(), Err(Error::NoGpu { why: NoGpu::Lost { .. }, .. })));
}
