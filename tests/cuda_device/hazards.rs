//! What goes wrong only when something is read, freed or enqueued later than usual, by another thread or for another
//! device: page-locked memory that is written again, workspaces of several devices, captures beside other threads' work,
//! contexts that others hold. The fake driver does everything as late as a driver may, and tells what uses freed memory.

use super::graphs::{layer, on_a_device, quantized};
use crate::images::{GPU, bits, entries, parent, settings, tried, values};
use crate::support::{at_every_call, busy, is_child, lose, said};
use cudarc::driver::sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
use cudarc::driver::{CudaContext, result};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu, GpuQuantizer, Graph};
use gristmill::registry::{Code, CudaLaunch, FormatInfo};
use gristmill::vocab::Op;
use gristmill::{
    Device, Error, Input, Linear, Matmul, QuantizedMatrix, REGISTRY, Recording, Request, Shape, Threads,
    Workspace,
};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// The format that is tried here.
fn format() -> &'static FormatInfo {
    tried().next().expect("one is tried")
}

/// Page-locked memory, as other libraries hand it out: a device reads and writes it without the processor.
struct Locked {
    memory: *mut f32,
    len: usize,
}

impl Locked {
    fn of(values: &[f32]) -> Locked {
        let context = CudaContext::new(0).expect("there is a device");
        context.bind_to_thread().expect("it is current");
        // SAFETY: a context is current; the memory is written before it is read.
        let memory = unsafe { result::malloc_host(size_of_val(values), 0) }.expect("memory").cast::<f32>();
        let mut locked = Locked { memory, len: values.len() };
        locked.values().copy_from_slice(values);
        locked
    }

    fn values(&mut self) -> &mut [f32] {
        // SAFETY: so many values were allocated, for this value alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.len) }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: it came from there, and nothing uses it any more.
        unsafe { result::free_host(self.memory.cast()) }.expect("it was allocated");
    }
}

/// A slice is its owner's again when a call returns, whatever memory it is: what is written to it then reaches no device,
/// and what a device has sent is there.
#[test]
fn slices_are_free_when_a_call_returns() {
    let name = "hazards::slices_are_free_when_a_call_returns";
    // The second reads ordinary memory late too.
    for settings in [settings(), format!("{},coherent", settings())] {
        if let Some(output) = parent(name, &settings) {
            assert_eq!(said(&output), "", "{settings}");
        }
    }
    if !is_child() {
        return;
    }
    let gpu = Gpu::open(0).expect("opens");
    let (first, second) = (values(1000, 1), values(1000, 2));
    let mut source = Locked::of(&first);
    let buffer = DeviceBuffer::of(&gpu, source.values()).expect("memory");
    source.values().fill(f32::NAN);
    assert_eq!(bits(&buffer.to_vec().expect("copies")), bits(&first), "of");
    let mut buffer = buffer;
    source.values().copy_from_slice(&second);
    buffer.write(source.values()).expect("copies");
    source.values().fill(f32::NAN);
    assert_eq!(bits(&buffer.to_vec().expect("copies")), bits(&second), "write");
    let mut ordinary = first.clone();
    buffer.write(&ordinary).expect("copies");
    ordinary.fill(f32::NAN);
    buffer.read(source.values()).expect("copies");
    assert_eq!(bits(source.values()), bits(&first), "read");

    // Handles: weights that are packed, activations, a bias and results.
    let (m, n, k) = (3, 20, 2 * format().elements.max(128));
    let mut bytes = quantized(format(), &values(n * k, 7), n, k);
    let threads = Threads::single();
    let (x, bias) = (values(m * k, 1), values(n, 3));
    let mut results = Vec::new();
    for device in [Device::CPU, GPU] {
        let request = Request::matmul(format().name, Shape { m, n, k }).on(device);
        let prepared = REGISTRY.prepare(&request).expect("prepares");
        let matmul = Matmul::new(&prepared.decide_as_asked()).expect("a handle");
        let matrix = QuantizedMatrix::new(format(), n, k, &bytes).expect("the right size");
        let packed = matmul.pack(&matrix).expect("packs");
        if device == GPU {
            bytes.fill(0xff);
        }
        let mut workspace = Workspace::for_(&matmul, m, k, &threads).expect("memory");
        let (mut x, mut bias, mut y) = (Locked::of(&x), Locked::of(&bias), Locked::of(&vec![0.0; m * n]));
        matmul
            .run(
                &packed,
                Input::F32(x.values()),
                m,
                Some(bias.values()),
                y.values(),
                &mut workspace,
                &threads,
            )
            .expect("runs");
        x.values().fill(f32::NAN);
        bias.values().fill(f32::NAN);
        results.push(bits(y.values()));
    }
    assert_eq!(results[0], results[1]);
}

/// A driver copies ordinary memory when the stream has come to it, and returns then: whoever waits for that keeps nobody else from
/// enqueueing.
#[test]
fn a_copy_that_waits_keeps_nobody_from_enqueueing() {
    on_a_device("a_copy_that_waits_keeps_nobody_from_enqueueing", || {
        let gpu = Gpu::open(0).expect("opens");
        let x = values(100, 1);
        let from = DeviceBuffer::of(&gpu, &x).expect("memory");
        let mut to = DeviceBuffer::<f32>::zeroed(&gpu, 100).expect("memory");
        let mut other = DeviceBuffer::<f32>::zeroed(&gpu, 100).expect("memory");
        let mut written = DeviceBuffer::<f32>::zeroed(&gpu, 100).expect("memory");
        gpu.synchronize().expect("nothing is under way");
        let (tell, told) = mpsc::channel();
        let found = std::thread::scope(|scope| {
            let busy = busy::devices();
            to.copy(&from).expect("enqueued");
            let reads = scope.spawn(|| to.to_vec().expect("copies"));
            let writes = scope.spawn(|| written.write(&x).expect("copies"));
            // Both wait by then.
            std::thread::sleep(Duration::from_millis(100));
            scope.spawn(|| tell.send(other.copy(&from)).expect("somebody listens"));
            let enqueued = told.recv_timeout(Duration::from_secs(2));
            assert!(!reads.is_finished() && !writes.is_finished(), "the device is still busy");
            drop(busy);
            enqueued.expect("without waiting for the copies").expect("enqueued");
            writes.join().expect("no panic");
            reads.join().expect("no panic")
        });
        for found in [found, other.to_vec().expect("copies"), written.to_vec().expect("copies")] {
            assert_eq!(bits(&found), bits(&x));
        }
    });
}

/// A workspace serves layers of several devices in turn: each keeps what it has there, and a fault of any is told.
#[test]
fn a_workspace_keeps_the_faults_of_every_device() {
    let name = "hazards::a_workspace_keeps_the_faults_of_every_device";
    if let Some(output) = parent(name, &format!("{},devices=2", settings())) {
        assert_eq!(said(&output), "");
    }
    if !is_child() {
        return;
    }
    let (m, k) = (2, 2 * format().elements.max(128));
    let at = |index| Device { index, ..GPU };
    let layers = [0, 1].map(|index| layer(format(), 5, k, at(index)));
    let gpus = [0, 1].map(|index| Gpu::open(index).expect("opens"));
    let good = values(m * k, 1);
    let right = alone(&layer(format(), 5, k, Device::CPU), &good, m);
    let mut x = gpus.each_ref().map(|gpu| DeviceBuffer::of(gpu, &good).expect("memory"));
    let mut y = gpus.each_ref().map(|gpu| DeviceBuffer::<f32>::zeroed(gpu, m * 5).expect("memory"));
    let mut workspace = Workspace::new();
    // Kernels of a product read whatever one that was stopped has left, which must be something.
    for device in [0, 1] {
        let input = DeviceInput::F32(&x[device]);
        layers[device].forward_on_device(input, m, None, &mut y[device], &mut workspace).expect("enqueues");
    }
    assert_eq!(workspace.finish(), Ok(()));
    for faulty in [0, 1, 0] {
        let mut bad = good.clone();
        bad[k + 3] = f32::NAN;
        x[faulty].write(&bad).expect("copies");
        for device in [0, 1] {
            let input = DeviceInput::F32(&x[device]);
            layers[device]
                .forward_on_device(input, m, None, &mut y[device], &mut workspace)
                .expect("enqueues");
        }
        assert_eq!(workspace.finish(), Err(Error::NonFinite { row: 1, column: 3 }), "of device {faulty}");
        assert_eq!(workspace.finish(), Ok(()), "told once");
        x[faulty].write(&good).expect("copies");
    }
    // Each has kept its memory: what follows allocates nothing.
    let allocations = || gpus.each_ref().map(|gpu| gpu.memory_held().expect("counts").allocations);
    let before = allocations();
    for _ in 0..3 {
        for device in [0, 1] {
            let input = DeviceInput::F32(&x[device]);
            layers[device]
                .forward_on_device(input, m, None, &mut y[device], &mut workspace)
                .expect("enqueues");
        }
    }
    assert_eq!(workspace.finish(), Ok(()));
    assert_eq!(allocations(), before, "a step allocates nothing");
    assert!(workspace.device_bytes() > 0);
    for y in &y {
        assert_eq!(bits(&y.to_vec().expect("copies")), right);
    }

    // A graph of one device reports there for as long as the workspace is, whatever else it served.
    let step = || layers[0].forward_on_device(DeviceInput::F32(&x[0]), m, None, &mut y[0], &mut workspace);
    let graph = gpus[0].capture(step).expect("captures");
    let mut bad = good.clone();
    bad[7] = f32::INFINITY;
    x[0].write(&bad).expect("copies");
    graph.launch().expect("launches");
    let threads = Threads::single();
    let mut there = vec![0.0; m * 5];
    let run = layers[1].forward(Input::F32(&good), m, None, &mut there, &mut workspace, &threads);
    assert_eq!(run, Ok(()), "a run on one device is not to blame for what another found");
    assert_eq!(bits(&there), right);
    assert_eq!(workspace.finish(), Err(Error::NonFinite { row: 0, column: 7 }));
}

/// What one layer gives on the processor.
fn alone(layer: &Linear, x: &[f32], m: usize) -> Vec<u32> {
    let threads = Threads::single();
    let mut workspace = layer.workspace(m, &threads).expect("memory");
    let mut y = vec![f32::NAN; m * layer.n()];
    layer.forward(Input::F32(x), m, None, &mut y, &mut workspace, &threads).expect("runs");
    bits(&y)
}

/// A product that is run in parts for want of memory gives back what the workspace holds, but not where graphs report.
#[test]
fn a_graph_reports_after_its_workspace_gave_memory_back() {
    let name = "hazards::a_graph_reports_after_its_workspace_gave_memory_back";
    let name = (name, format!("{},memory=60000", settings()));
    if let Some(output) = parent(name.0, &name.1) {
        assert_eq!(said(&output), "");
    }
    if !is_child() {
        return;
    }
    let (m, n, k) = (64, 20, 256);
    let recording = Recording::new(&REGISTRY);
    let mut layer_there = layer(format(), n, k, GPU);
    layer_there.record(Some(&recording)).expect("the same registry");
    let gpu = Gpu::open(0).expect("opens");
    let mut workspace = Workspace::new();
    let mut x = DeviceBuffer::of(&gpu, &values(k, 1)).expect("memory");
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, n).expect("memory");
    let mut step = || layer_there.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace);
    step().expect("runs");
    let graph = gpu.capture(&mut step).expect("captures");
    let launches = || recording.receipt().kernels().iter().map(|kernel| kernel.launches()).sum::<u64>();
    let before = launches();
    let many = values(m * k, 2);
    let mut there = vec![0.0; m * n];
    let threads = Threads::single();
    layer_there.forward(Input::F32(&many), m, None, &mut there, &mut workspace, &threads).expect("in parts");
    assert!(launches() > before + 2, "it was more than the device has memory for");
    assert_eq!(bits(&there), alone(&layer(format(), n, k, Device::CPU), &many, m));
    let mut bad = values(k, 1);
    bad[9] = f32::NAN;
    x.write(&bad).expect("copies");
    graph.launch().expect("launches");
    assert_eq!(workspace.finish(), Err(Error::NonFinite { row: 0, column: 9 }));
}

/// Does something again as long as another thread captures, which is let go.
fn patiently<R>(let_go: &dyn Fn(), mut act: impl FnMut() -> Result<R, Error>) -> R {
    loop {
        match act() {
            Err(Error::Capturing { .. }) => let_go(),
            done => return done.expect("works"),
        }
    }
}

/// Whatever another thread does on the device, and wherever it is when a capture begins: it is done or refused, the graph
/// holds what its own thread enqueued and nothing else, and no capture is broken.
#[test]
fn nothing_of_another_thread_gets_into_a_capture() {
    on_a_device("hazards::nothing_of_another_thread_gets_into_a_capture", || {
        let gpu = Gpu::open(0).expect("opens");
        let (n, k) = (2, format().elements);
        let bytes = quantized(format(), &values(n * k, 3), n, k);
        let source = DeviceBuffer::of(&gpu, &bytes).expect("memory");
        let target = || DeviceBuffer::<f32>::zeroed(&gpu, n * k);
        let quantizer = GpuQuantizer::new(&REGISTRY, format().name, None, 0).expect("handles");
        let quantizer = Mutex::new(quantizer);
        let decode = || {
            let mut decoded = target()?;
            let mut quantizer = quantizer.lock().expect("no panic");
            quantizer.dequantize(&source, n, k, &mut decoded)?;
            quantizer.finish()?;
            decoded.to_vec()
        };
        let decoded = bits(&decode().expect("decodes"));
        let x = values(n * k, 4);
        let right = bits(&x);
        let given = DeviceBuffer::of(&gpu, &x).expect("memory");
        let shared = Mutex::new(target().expect("memory"));
        let shared = || shared.lock().expect("no panic");
        let is = |found: Vec<f32>, right: &[u32]| assert_eq!(bits(&found), right);

        // What the other thread does, and whether `shared` is then a copy of `given`.
        type Theirs<'a> = Box<dyn Fn() -> Result<(), Error> + Sync + 'a>;
        let theirs: [(&str, bool, Theirs<'_>); 9] = [
            ("write", true, Box::new(|| shared().write(&x))),
            (
                "of, read",
                false,
                Box::new(|| DeviceBuffer::of(&gpu, &x)?.to_vec().map(|found| is(found, &right))),
            ),
            ("copy", true, Box::new(|| shared().copy(&given))),
            ("zeroed, drop", false, Box::new(|| target().map(drop))),
            ("synchronize", false, Box::new(|| gpu.synchronize())),
            ("time", true, Box::new(|| gpu.time(|| shared().copy(&given)).map(drop))),
            ("dequantize", false, Box::new(|| decode().map(|found| is(found, &decoded)))),
            (
                "capture, launch, drop",
                true,
                Box::new(|| {
                    let mut buffer = shared();
                    gpu.capture(|| buffer.copy(&given))?.launch()
                }),
            ),
            ("memory", false, Box::new(|| gpu.memory_held().and_then(|_| gpu.trim_memory(0)))),
        ];
        let own = Mutex::new(target().expect("memory"));
        for (what, copies, theirs) in &theirs {
            let mut done = 0;
            let calls = at_every_call(
                theirs,
                |let_go| {
                    let mut own = own.lock().expect("no panic");
                    let capture = || {
                        gpu.capture(|| {
                            own.copy(&given)?;
                            let_go();
                            Ok(())
                        })
                    };
                    let graph = patiently(let_go, capture);
                    patiently(let_go, || graph.launch());
                },
                |outcome| {
                    let mut own = own.lock().expect("no panic");
                    is(own.to_vec().expect("copies"), &right);
                    own.fill_with_zeros();
                    match outcome {
                        Ok(()) => {
                            done += 1;
                            if *copies {
                                is(shared().to_vec().expect("copies"), &right);
                            }
                        }
                        Err(Error::Capturing { .. }) => {}
                        Err(error) => panic!("{what}: {error}"),
                    }
                    shared().fill_with_zeros();
                },
            );
            println!("{what}: held in front of {calls} calls, done {done} times");
            assert!(calls > 0 && done > 0, "{what}");
        }
        drop(theirs);
        drop((own, given, source));
    });
}

/// Sets values to zero.
trait Zeros {
    fn fill_with_zeros(&mut self);
}

impl Zeros for DeviceBuffer<f32> {
    fn fill_with_zeros(&mut self) {
        self.write(&vec![0.0; self.len()]).expect("copies");
    }
}

/// A launch that faults while another thread takes the faults is told by that thread, or the next time.
#[test]
fn no_fault_is_lost_between_being_read_and_being_reset() {
    on_a_device("hazards::no_fault_is_lost_between_being_read_and_being_reset", || {
        let k = 2 * format().elements.max(128);
        let there = layer(format(), 5, k, GPU);
        let gpu = Gpu::open(0).expect("opens");
        let [early, late] = [3, 70].map(|at| {
            let mut bad = values(k, 1);
            bad[at] = f32::NAN;
            DeviceBuffer::of(&gpu, &bad).expect("memory")
        });
        let mut y = DeviceBuffer::<f32>::zeroed(&gpu, 5).expect("memory");
        let mut workspace = Workspace::new();
        let mut enqueue = |x: &DeviceBuffer<f32>, workspace: &mut Workspace| {
            there.forward_on_device(DeviceInput::F32(x), 1, None, &mut y, workspace)
        };
        enqueue(&late, &mut workspace).expect("enqueues");
        assert_eq!(workspace.finish(), Err(Error::NonFinite { row: 0, column: 70 }));
        let graph: Graph = gpu.capture(|| enqueue(&early, &mut workspace)).expect("captures");
        let late_graph = gpu.capture(|| enqueue(&late, &mut workspace)).expect("captures");
        let workspace = Mutex::new(workspace);
        late_graph.launch().expect("launches");
        at_every_call(
            || workspace.lock().expect("no panic").finish(),
            |let_go| {
                graph.launch().expect("launches");
                let_go();
            },
            |first| {
                let early = Err(Error::NonFinite { row: 0, column: 3 });
                let second = workspace.lock().expect("no panic").finish();
                assert!(first.is_err() && (first == early || second == early), "{first:?}, {second:?}");
                late_graph.launch().expect("launches");
            },
        );
        assert_eq!(
            workspace.lock().expect("no panic").finish(),
            Err(Error::NonFinite { row: 0, column: 70 })
        );
    });
}

/// A graph may go at any time: when it was launched and has not run, in a capture, before or after what it uses.
#[test]
fn a_graph_that_is_dropped_while_it_runs() {
    on_a_device("hazards::a_graph_that_is_dropped_while_it_runs", || {
        let gpu = Gpu::open(0).expect("opens");
        let x = values(100, 1);
        let from = DeviceBuffer::of(&gpu, &x).expect("memory");
        let mut to = DeviceBuffer::<f32>::zeroed(&gpu, 100).expect("memory");
        let mut last = DeviceBuffer::<f32>::zeroed(&gpu, 100).expect("memory");
        let graph = gpu.capture(|| to.copy(&from)).expect("captures");
        graph.launch().expect("launches");
        drop(from);
        let mut graph = Some(graph);
        let next = gpu
            .capture(|| {
                last.copy(&to)?;
                graph = None;
                Ok(())
            })
            .expect("captures");
        assert_eq!(gpu.memory_held().expect("counts").bytes, 800, "and what it held is free");
        next.launch().expect("launches");
        drop((next, to));
        assert_eq!(bits(&last.to_vec().expect("copies")), bits(&x));
    });
}

/// Every thread can make, use and drop what is on a device, whether it has had no context before or that of another device.
#[test]
fn any_thread_will_do() {
    let name = "hazards::any_thread_will_do";
    for more in ["", ",devices=2", ",no_pools"] {
        if let Some(output) = parent(name, &format!("{}{more}", settings())) {
            assert_eq!(said(&output), "", "{more}");
        }
    }
    if !is_child() {
        return;
    }
    let other = Gpu::open(1).ok();
    fn elsewhere<R: Send>(other: Option<&Arc<Gpu>>, act: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                if let Some(other) = other {
                    other.synchronize().expect("its context is current then");
                }
                act()
            });
            thread.join().expect("no panic")
        })
    }
    let other = other.as_ref();
    let gpu = elsewhere(other, || Gpu::open(0).expect("opens"));
    let (n, k) = (2, format().elements);
    let x = values(n * k, 3);
    let bytes = quantized(format(), &x, n, k);
    let make = || GpuQuantizer::new(&REGISTRY, format().name, None, 0).expect("handles");
    let mut quantizer = elsewhere(other, make);
    // Its image is loaded by now.
    drop(elsewhere(other, make));
    let linear = || layer(format(), 5, 2 * format().elements.max(128), GPU);
    let linear = [elsewhere(other, linear), elsewhere(other, linear)];
    let src = elsewhere(other, || DeviceBuffer::of(&gpu, &x).expect("memory"));
    let mut dst = elsewhere(other, || DeviceBuffer::<u8>::zeroed(&gpu, bytes.len()).expect("memory"));
    elsewhere(other, || quantizer.quantize(&src, n, k, &mut dst).expect("enqueues"));
    elsewhere(other, || quantizer.finish().expect("no fault"));
    assert!(elsewhere(other, || dst.to_vec().expect("copies")) == bytes);
    elsewhere(other, || gpu.memory().expect("counts"));
    elsewhere(other, || gpu.memory_held().expect("counts"));
    elsewhere(other, || gpu.keep_memory(1 << 20).expect("sets"));
    elsewhere(other, || gpu.reserve_memory(100).expect("there is more"));
    elsewhere(other, || gpu.trim_memory(0).expect("trims"));
    elsewhere(other, || gpu.time(|| Ok(())).expect("times"));
    elsewhere(other, || drop(src));
    elsewhere(other, || drop((quantizer, linear)));
    assert_eq!(elsewhere(other, || gpu.memory_held().expect("counts")).bytes, bytes.len() as u64);
    elsewhere(other, || drop(dst));
    elsewhere(other, || drop(gpu));
}

/// The function of a kernel that dequantizes.
fn dequantizing() -> Option<&'static str> {
    entries().filter(|entry| entry.op == Op::Dequantize).find_map(|entry| match entry.code {
        Code::Cuda(code) => match code.launch {
            CudaLaunch::Elements { function, .. } => Some(function),
            _ => None,
        },
        _ => None,
    })
}

/// A context that a kernel broke is made anew where nobody else holds it. Where another library does, it stays broken,
/// and the error says that only a new process helps.
#[test]
fn a_lost_device_opens_again_unless_it_is_held() {
    let name = "hazards::a_lost_device_opens_again_unless_it_is_held";
    let Some(failing) = dequantizing() else { return };
    for held in ["", ",held"] {
        if let Some(output) = parent(name, &format!("{},fail_launch={failing}{held}", settings())) {
            assert_eq!(said(&output), format!("fake CUDA: launch of {failing}: a failure was asked for"));
        }
    }
    if !is_child() {
        return;
    }
    let held = std::env::var("GRISTMILL_GPU_FAKE").expect("set by the parent").ends_with(",held");
    let (n, k) = (2, format().elements);
    let bytes = quantized(format(), &values(n * k, 3), n, k);
    {
        let mut quantizer = GpuQuantizer::new(&REGISTRY, format().name, None, 0).expect("handles");
        let src = DeviceBuffer::of(quantizer.gpu(), &bytes).expect("memory");
        let mut dst = DeviceBuffer::zeroed(quantizer.gpu(), n * k).expect("memory");
        quantizer.dequantize(&src, n, k, &mut dst).expect("enqueues");
        let Err(Error::Gpu(failure)) = quantizer.finish() else { panic!("it was to fail") };
        assert!(failure.sticky);
        assert!(failure.to_string().contains("open it again"), "{failure}");
    }
    match Gpu::open(0) {
        Ok(gpu) => {
            assert!(!held);
            assert_eq!(DeviceBuffer::of(&gpu, &bytes).expect("memory").to_vec().expect("copies"), bytes);
        }
        Err(error) => {
            assert!(held, "{error}");
            let text = error.to_string();
            assert!(text.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{text}");
            assert!(text.contains("something else in this process holds it"), "{text}");
            assert!(text.contains("start the process anew"), "{text}");
        }
    }
}

/// The process has a pool for each device that all libraries share; what is set for ours is not set for theirs.
#[test]
fn the_pool_of_others_stays_as_it_is() {
    let name = "hazards::the_pool_of_others_stays_as_it_is";
    if let Some(output) = parent(name, &settings()) {
        assert_eq!(said(&output), "");
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let theirs = || {
        let mut keeps = u64::MAX;
        // SAFETY: the attribute is a u64, and the pool the device's own.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device()).expect("there is one");
            let to = (&raw mut keeps).cast();
            result::mem_pool::get_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, to).expect("known");
        }
        keeps
    };
    assert_eq!(theirs(), 0);
    let gpu = Gpu::open(0).expect("opens");
    assert_eq!(theirs(), 0);
    gpu.keep_memory(1 << 30).expect("sets");
    assert_eq!(theirs(), 0);
    let other = context.default_stream().alloc_zeros::<u8>(1000).expect("memory");
    let pool = gpu.memory_held().expect("counts").pool.expect("the fake device has pools");
    assert_eq!((pool.used, pool.most_used), (0, 0), "what others take is not counted");
    drop(other);
}

/// With the management library, without it, and of a device that does not answer.
#[test]
fn sensors_are_read_where_there_are_some() {
    let name = "sensors_are_read_where_there_are_some";
    for library in ["", ",nvml"] {
        let settings = format!(
            "{},devices=3,temperature=61,throttle=36,1:temperature=-1,1:throttle=1{library}",
            settings()
        );
        parent(name, &settings);
    }
    if !is_child() {
        return;
    }
    let there = cfg!(feature = "nvml")
        && std::env::var("GRISTMILL_GPU_FAKE").is_ok_and(|settings| settings.ends_with(",nvml"));
    let health = |index| gristmill::cuda::health(index).expect("there is such a device");
    let read = |index| (health(index).temperature, health(index).throttled_by);
    if !there {
        assert_eq!((read(0), read(1)), ((None, None), (None, None)));
        return;
    }
    assert_eq!(read(0), (Some(61), Some(vec!["power limit", "temperature, by the driver"])));
    // Without a sensor there is no temperature, and what is idle is not throttled.
    assert_eq!(read(1), (None, Some(vec![])));
    lose::at(2, 0);
    assert!(Gpu::open(2).is_err());
    assert_eq!(read(2), (None, None));
    lose::never(2);
}
