//! An engine and gristmill in one context, on a fake driver: on the engine's stream, in its memory, between its kernels.
//!
//! The engine is played by cudarc: it makes the context, the stream and the buffers, and launches a kernel of its own.

use crate::engine_stream;
use crate::graphs::{layer, quantized};
use crate::images::{GPU, bits, parent, settings, tried, values};
use crate::support::{build, can_run, is_child, place_unit, said};
use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;
use gristmill::cuda::{
    self, Converter, DeviceBuffer, DeviceInput, Gpu, GpuQuantizer, LentFault, PinnedBuffer,
};
use gristmill::observe::{FellBack, Launch, Observer, observe};
use gristmill::registry::FormatInfo;
use gristmill::{
    Device, Error, Input, Linear, LinearOptions, QuantizedMatrix, REGISTRY, Registry, Request, Shape,
    Threads, Workspace,
};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

/// Runs a test's body where a fake device is, which also has the engine's kernel.
fn beside_an_engine(name: &str, settings: &str, body: fn()) {
    if !is_child() && can_run(name) {
        let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
        let unit = build("positive", include_str!("../cuda/kernels/positive.cu"));
        place_unit(&units, engine_stream::PTX.as_bytes(), &unit.unwrap_or_else(|said| panic!("{said}")));
    }
    if let Some(output) = parent(name, settings) {
        assert_eq!(said(&output), "", "what each of them owns is given back, once");
    }
    if is_child() {
        body();
    }
}

/// Another program of the process, which was there first.
struct Engine {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    positive: CudaFunction,
}

impl Engine {
    fn new() -> Engine {
        let context = CudaContext::new(0).expect("there is a device");
        // SAFETY: what several streams use is ordered by events of the test's own.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().expect("a stream");
        let module = context.load_module(Ptx::from_src(engine_stream::PTX)).expect("the image is taken");
        Engine { positive: module.load_function("positive").expect("is there"), stream, context }
    }

    /// gristmill on a stream of the engine's.
    fn gristmill(&self, stream: &CudaStream) -> Arc<Gpu> {
        // SAFETY: the stream is dropped after all that is made with this, by every test here.
        unsafe { Gpu::of_engine(0, self.context.cu_ctx().cast(), stream.cu_stream().cast()) }.expect("taken")
    }

    /// Enqueues the engine's kernel.
    fn positive(&self, stream: &Arc<CudaStream>, address: u64, count: usize) {
        let config = LaunchConfig {
            grid_dim: (count.div_ceil(64) as u32, 1, 1),
            block_dim: (64, 1, 1),
            shared_mem_bytes: 0,
        };
        let count = count as u32;
        // SAFETY: the arguments are those of the kernel, and there are so many values.
        unsafe { stream.launch_builder(&self.positive).arg(&address).arg(&count).launch(config) }
            .expect("enqueued");
    }
}

/// Memory of the engine's as a buffer.
fn lent(gpu: &Arc<Gpu>, slice: &CudaSlice<f32>) -> DeviceBuffer<f32> {
    // SAFETY: the engine's buffers are dropped after what borrows them, by every test here.
    unsafe { DeviceBuffer::lent(gpu, address(slice), slice.len()) }.expect("the engine's memory is taken")
}

fn address(slice: &CudaSlice<f32>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

/// Weights as a layer on an opened device.
fn layer_on(gpu: &Arc<Gpu>, format: &'static FormatInfo, n: usize, k: usize) -> Linear {
    let bytes = quantized(format, &values(n * k, 7), n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("the right size");
    Linear::new(&REGISTRY, &matrix, &LinearOptions::default().on_gpu(gpu), &Threads::single())
        .expect("a layer")
}

/// Two layers with the engine's kernel between, on the processor.
fn expected(format: &'static FormatInfo, [k, between, n]: [usize; 3], x: &[f32], m: usize) -> Vec<u32> {
    let threads = Threads::single();
    let mut out = x.to_vec();
    for (n, k) in [(between, k), (n, between)] {
        let layer = layer(format, n, k, Device::CPU);
        let mut workspace = layer.workspace(m, &threads).expect("memory");
        let mut y = vec![f32::NAN; m * n];
        layer.forward(Input::F32(&out), m, None, &mut y, &mut workspace, &threads).expect("runs");
        out = if n == between { y.iter().map(|y| y.max(0.0)).collect() } else { y };
    }
    bits(&out)
}

fn sizes(format: &FormatInfo) -> [usize; 3] {
    [2 * format.elements.max(128), 3 * format.elements.max(128), 5]
}

#[test]
fn an_engines_kernel_runs_between_two_layers() {
    beside_an_engine("an_engines_kernel_runs_between_two_layers", &settings(), || {
        let engine = Engine::new();
        for format in tried() {
            for m in [1, 3] {
                between_two_layers(&engine, format, m);
            }
        }
    });
}

/// The program that shows the same to authors of engines; it compares with the processor.
#[test]
fn the_example_of_an_engine_runs() {
    beside_an_engine("the_example_of_an_engine_runs", &settings(), || {
        engine_stream::main().unwrap_or_else(|error| panic!("{error}"));
    });
}

fn between_two_layers(engine: &Engine, format: &'static FormatInfo, m: usize) {
    let [k, between, n] = sizes(format);
    let stream = &engine.stream;
    let x = values(m * k, 1);
    let there = stream.clone_htod(&x).expect("memory");
    let (hidden, y) =
        (stream.alloc_zeros(m * between).expect("memory"), stream.alloc_zeros(m * n).expect("memory"));
    {
        let gpu = engine.gristmill(stream);
        assert_eq!(gpu.stream_handle(), stream.cu_stream().cast());
        assert_eq!(gpu.context_handle(), engine.context.cu_ctx().cast());
        let [up, down] = [(between, k), (n, between)].map(|(n, k)| layer_on(&gpu, format, n, k));
        let mut workspace = Workspace::new();
        let (x, mut hidden_here, mut y_here) = (lent(&gpu, &there), lent(&gpu, &hidden), lent(&gpu, &y));
        let held = gpu.memory_held().expect("counts").bytes;
        up.forward_on_device(DeviceInput::F32(&x), m, None, &mut hidden_here, &mut workspace)
            .expect("enqueued");
        assert_eq!(hidden_here.address(), address(&hidden));
        engine.positive(stream, hidden_here.address(), m * between);
        down.forward_on_device(DeviceInput::F32(&hidden_here), m, None, &mut y_here, &mut workspace)
            .expect("enqueued");
        // The engine waits for its stream, and for nothing else.
        let found = stream.clone_dtoh(&y).expect("copies");
        stream.synchronize().expect("all ran");
        assert_eq!(
            bits(&found),
            expected(format, [k, between, n], &x_of(m, k), m),
            "{}: m = {m}",
            format.name
        );
        workspace.finish().expect("no fault");
        assert!(gpu.memory_held().expect("counts").bytes >= held, "memory that is lent is not counted");
    }
    // It goes on with what is its own.
    assert_eq!(stream.clone_dtoh(&there).expect("copies"), x);
}

fn x_of(m: usize, k: usize) -> Vec<f32> {
    values(m * k, 1)
}

/// The same with the engine's kernel on another stream: events order them, and nothing else does.
#[test]
fn streams_are_ordered_by_events() {
    beside_an_engine("streams_are_ordered_by_events", &settings(), || {
        let engine = Engine::new();
        let format = tried().next().expect("one is tried");
        let [k, between, n] = sizes(format);
        let right = expected(format, [k, between, n], &x_of(1, k), 1);
        for ordered in [true, false] {
            let gpu = Gpu::open(0).expect("opens");
            let one = gpu.another_stream().expect("a stream");
            let two = one.another_stream().expect("a stream");
            assert!(one.stream_handle() != two.stream_handle() && gpu.stream_handle() != one.stream_handle());
            let (up, down) = (layer_on(&one, format, between, k), layer_on(&two, format, n, between));
            let mut workspaces = [Workspace::new(), Workspace::new()];
            let x = DeviceBuffer::of(&one, &x_of(1, k)).expect("memory");
            let mut hidden = DeviceBuffer::<f32>::zeroed(&one, between).expect("memory");
            let mut y = DeviceBuffer::<f32>::zeroed(&two, n).expect("memory");
            one.synchronize().expect("zeros are there");
            let input = DeviceInput::F32(&x);
            let wrong =
                down.forward_on_device(DeviceInput::F32(&hidden), 1, None, &mut y, &mut workspaces[1]);
            assert!(
                matches!(wrong, Err(Error::WrongDevice { .. })),
                "a buffer belongs to one stream: {wrong:?}"
            );
            // SAFETY: `hidden` outlives it, and is written in front of it in the order of events.
            let seen = unsafe { DeviceBuffer::lent(&two, hidden.address(), hidden.len()) }.expect("taken");
            up.forward_on_device(input, 1, None, &mut hidden, &mut workspaces[0]).expect("enqueued");
            if ordered {
                two.wait_for(&one.record().expect("recorded")).expect("waits");
            }
            // SAFETY: the stream outlives the wrapper, which is of the same context.
            let stream = unsafe { engine.context.wrap_borrowed_stream(two.stream_handle().cast()) };
            engine.positive(&stream, seen.address(), between);
            down.forward_on_device(DeviceInput::F32(&seen), 1, None, &mut y, &mut workspaces[1])
                .expect("enqueued");
            let event = two.record().expect("recorded");
            event.synchronize().expect("reached");
            assert_eq!(bits(&y.to_vec().expect("copies")) == right, ordered, "in order: {ordered}");
            for workspace in &mut workspaces {
                workspace.finish().expect("no fault");
            }
            // The engine's event, for one of ours to wait for.
            let theirs = engine.stream.record_event(None).expect("recorded");
            // SAFETY: the event is there until the end of the round.
            unsafe { one.wait_for_handle(theirs.cu_event().cast()) }.expect("waits");
            one.synchronize().expect("waited");
            engine.stream.synchronize().expect("done");
        }
    });
}

/// What is stacked for one launch is taken apart without a copy.
#[test]
fn a_stacked_output_is_split_by_views() {
    beside_an_engine("a_stacked_output_is_split_by_views", &settings(), || {
        let engine = Engine::new();
        #[cfg(feature = "cudarc")]
        let gpu = Gpu::of_cudarc(&engine.stream).expect("taken");
        #[cfg(not(feature = "cudarc"))]
        let gpu = engine.gristmill(&engine.stream);
        let format = tried().next().expect("one is tried");
        let k = 2 * format.elements.max(128);
        let rows = [32, 16, 16];
        let bytes = rows.map(|n| quantized(format, &values(n * k, n as u32), n, k));
        let matrices: Vec<_> = bytes
            .iter()
            .zip(rows)
            .map(|(bytes, n)| QuantizedMatrix::new(format, n, k, bytes).expect("the right size"))
            .collect();
        let threads = Threads::single();
        let options = LinearOptions::default().on_gpu(&gpu);
        let stacked = Linear::stacked(&REGISTRY, &matrices, &options, &threads).expect("a layer");
        let mut workspace = Workspace::new();
        let x = DeviceBuffer::of(&gpu, &x_of(1, k)).expect("memory");
        let mut y = DeviceBuffer::<f32>::zeroed(&gpu, 64).expect("memory");
        stacked.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace).expect("enqueued");
        let views = [0..32, 32..48, 48..64].map(|range| y.view(range).expect("aligned"));
        assert_eq!(views[1].address(), y.address() + 4 * 32);
        let misaligned = y.view(1..9).expect_err("it begins at four bytes");
        assert!(matches!(misaligned, Error::Lent { what: "a view", .. }), "{misaligned}");
        assert!(matches!(y.view(60..65), Err(Error::ShapeMismatch { expected: 65, found: 64, .. })));
        // The memory lives as long as a view of it.
        drop(y);
        for (view, matrix) in views.iter().zip(&matrices) {
            let alone = Linear::new(&REGISTRY, matrix, &LinearOptions::default(), &threads).expect("a layer");
            let mut workspace = alone.workspace(1, &threads).expect("memory");
            let mut expected = vec![f32::NAN; matrix.n()];
            alone
                .forward(Input::F32(&x_of(1, k)), 1, None, &mut expected, &mut workspace, &threads)
                .expect("runs");
            assert_eq!(bits(&view.to_vec().expect("copies")), bits(&expected));
        }
        drop(views);
        workspace.finish().expect("no fault");
    });
}

/// Other handles work on the engine's stream too.
#[test]
fn conversions_run_on_the_engines_stream() {
    beside_an_engine("conversions_run_on_the_engines_stream", &settings(), || {
        let engine = Engine::new();
        let stream = &engine.stream;
        let x = values(96, 4);
        let there = stream.clone_htod(&x).expect("memory");
        let gpu = engine.gristmill(stream);
        let converter = Converter::on_gpu(&REGISTRY, &gpu).expect("loads");
        let from = lent(&gpu, &there);
        let mut halves = DeviceBuffer::<u16>::zeroed(&gpu, 96).expect("memory");
        engine.positive(stream, from.address(), 96);
        converter.to_f16(DeviceInput::F32(&from), &mut halves).expect("enqueued");
        let right: Vec<u16> =
            x.iter().map(|x| gristmill::half::f16::from_f32(x.max(0.0)).to_bits()).collect();
        assert_eq!(halves.to_vec().expect("copies"), right);
        let format = REGISTRY.formats.iter().find(|format| format.name == "q8_0").expect("shipped");
        let mut quantizer = GpuQuantizer::on_gpu(&REGISTRY, format.name, None, &gpu).expect("loads");
        assert!(Arc::ptr_eq(quantizer.gpu(), &gpu));
        quantizer.finish().expect("nothing failed");
    });
}

/// The engine's graph holds our launches, and nothing that would break it.
#[test]
fn an_engines_graph_holds_our_launches() {
    beside_an_engine("an_engines_graph_holds_our_launches", &settings(), || {
        let engine = Engine::new();
        let format = tried().next().expect("one is tried");
        let [k, between, n] = sizes(format);
        let stream = &engine.stream;
        let mut x = stream.clone_htod(&x_of(1, k)).expect("memory");
        let (hidden, y) =
            (stream.alloc_zeros(between).expect("memory"), stream.alloc_zeros(n).expect("memory"));
        {
            let gpu = engine.gristmill(stream);
            let [up, down] = [(between, k), (n, between)].map(|(n, k)| layer_on(&gpu, format, n, k));
            let mut workspace = Workspace::new();
            let (x_here, mut hidden_here, mut y_here) = (lent(&gpu, &x), lent(&gpu, &hidden), lent(&gpu, &y));
            let spare = DeviceBuffer::<f32>::zeroed(&gpu, 8).expect("memory");
            let mut step = || {
                up.forward_on_device(DeviceInput::F32(&x_here), 1, None, &mut hidden_here, &mut workspace)?;
                engine.positive(stream, address(&hidden), between);
                down.forward_on_device(DeviceInput::F32(&hidden_here), 1, None, &mut y_here, &mut workspace)
            };
            step().expect("makes what memory it needs");
            stream.synchronize().expect("done");
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
            step().expect("captured");
            let refused = DeviceBuffer::<f32>::zeroed(&gpu, 8).expect_err("no graph holds an allocation");
            assert!(matches!(refused, Error::Capturing { index: 0, what: "allocated" }), "{refused}");
            let held = gpu.memory_held().expect("counts").pool.expect("has pools").used;
            drop(spare);
            let flags = cudarc::driver::sys::CUgraphInstantiate_flags(0);
            let graph = stream.end_capture(flags).expect("nothing broke it").expect("a graph");
            for seed in 2..4 {
                let input = values(k, seed);
                stream.memcpy_htod(&input, &mut x).expect("copies");
                graph.launch().expect("launches");
                let found = stream.clone_dtoh(&y).expect("copies");
                stream.synchronize().expect("all ran");
                assert_eq!(bits(&found), expected(format, [k, between, n], &input, 1), "input {seed}");
            }
            gpu.synchronize().expect("done");
            let freed = held - gpu.memory_held().expect("counts").pool.expect("has pools").used;
            assert_eq!(freed, 32, "what was dropped meanwhile is freed behind the capture");
            drop(graph);
        }
    });
}

/// A graph of ours that is dropped while the engine captures the same stream is destroyed behind that, with the memory that it held.
#[test]
fn a_graph_dropped_in_an_engines_capture_waits_for_its_end() {
    beside_an_engine("a_graph_dropped_in_an_engines_capture_waits_for_its_end", &settings(), || {
        let engine = Engine::new();
        let format = tried().next().expect("one is tried");
        let [k, n, _] = sizes(format);
        let stream = &engine.stream;
        let (x, y) =
            (stream.clone_htod(&x_of(1, k)).expect("memory"), stream.alloc_zeros(n).expect("memory"));
        let gpu = engine.gristmill(stream);
        let layer = layer_on(&gpu, format, n, k);
        let (x_here, mut y_here) = (lent(&gpu, &x), lent(&gpu, &y));
        let used = || {
            gpu.synchronize().expect("done");
            gpu.memory_held().expect("counts").pool.expect("has pools").used
        };
        let mut run = |workspace: &mut Workspace| {
            layer.forward_on_device(DeviceInput::F32(&x_here), 1, None, &mut y_here, workspace)
        };
        run(&mut Workspace::new()).expect("makes what it keeps itself");
        let before = used();
        let graph = {
            let mut workspace = Workspace::new();
            run(&mut workspace).expect("makes what memory it needs");
            gpu.capture(|| run(&mut workspace)).expect("captured")
        };
        graph.launch().expect("launches");
        let held = used();
        assert!(held > before, "the workspace's memory is the graph's");
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
        drop(graph);
        let flags = cudarc::driver::sys::CUgraphInstantiate_flags(0);
        stream.end_capture(flags).expect("nothing broke it");
        gpu.synchronize().expect("waits, destroys the graph and frees behind that");
        assert_eq!(used(), before, "it is gone with what it held");
    });
}

/// Whatever is done on the engine's stream, and dropped, leaves the thread the context that it had, or none.
#[test]
fn a_threads_context_is_its_own() {
    beside_an_engine("a_threads_context_is_its_own", &format!("{},devices=2", settings()), || {
        let engine = Engine::new();
        let other = CudaContext::new(1).expect("there is a second device");
        let format = tried().next().expect("one is tried");
        let [k, n, _] = sizes(format);
        for theirs in [other.cu_ctx(), null_mut(), engine.context.cu_ctx()] {
            // SAFETY: the context is there, or none.
            unsafe { result::ctx::set_current(theirs) }.expect("is current");
            let is_theirs = |what: &str| {
                let current = result::ctx::get_current().expect("known").unwrap_or(null_mut());
                assert_eq!(current, theirs, "{what}");
            };
            let gpu = engine.gristmill(&engine.stream);
            is_theirs("taking a stream");
            let layer = layer_on(&gpu, format, n, k);
            is_theirs("a layer, and its image");
            let x = DeviceBuffer::of(&gpu, &x_of(1, k)).expect("memory");
            let mut y = DeviceBuffer::<f32>::zeroed(&gpu, n).expect("memory");
            let mut workspace = Workspace::new();
            is_theirs("buffers");
            let mut run = || layer.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace);
            run().expect("enqueued");
            is_theirs("a product");
            let graph = gpu.capture(&mut run).expect("captured");
            is_theirs("a capture");
            graph.launch().expect("launched");
            is_theirs("a launch of a graph");
            workspace.finish().expect("no fault");
            is_theirs("waiting");
            y.to_vec().expect("copies");
            is_theirs("a copy");
            gpu.time(|| Ok(())).expect("timed");
            is_theirs("a time");
            let event = gpu.record().expect("recorded");
            gpu.wait_for(&event).expect("waits");
            event.synchronize().expect("reached");
            is_theirs("an event");
            let (_, total) = gpu.memory().expect("known");
            assert!(total > 0);
            gpu.memory_held().expect("counts");
            gpu.keep_memory(1 << 20).expect("sets");
            gpu.trim_memory(0).expect("trims");
            is_theirs("memory");
            let second = gpu.another_stream().expect("a stream");
            is_theirs("another stream");
            let locked = PinnedBuffer::of(&second, &x_of(1, k)).expect("memory");
            let (x, locked) = second.upload(locked, x).expect("enqueued").join().expect("waits");
            drop(locked.wait().expect("copied"));
            is_theirs("page-locked memory");
            let refused = unsafe {
                // SAFETY: what is taken is only looked at.
                Gpu::of_engine(0, other.cu_ctx().cast(), engine.stream.cu_stream().cast())
            };
            assert!(refused.is_err());
            is_theirs("a refusal");
            drop(event);
            is_theirs("an event that goes");
            drop((x, y, workspace));
            is_theirs("buffers that go");
            drop(graph);
            is_theirs("a graph that goes");
            drop(second);
            is_theirs("a stream that goes");
            drop(gpu);
            drop(layer);
            is_theirs("the last handle");
        }
        // A device that is opened here: nobody's context is displaced.
        other.bind_to_thread().expect("binds");
        let gpu = Gpu::open(0).expect("opens");
        drop(DeviceBuffer::of(&gpu, &[1u8, 2, 3]).expect("memory"));
        drop(gpu);
        assert_eq!(result::ctx::get_current().expect("known"), Some(other.cu_ctx()));
        engine.context.bind_to_thread().expect("binds");
    });
}

/// The default stream is asked for nothing that is refused while another one is captured, whichever of its names it has.
#[test]
fn the_legacy_stream_has_two_names() {
    beside_an_engine("the_legacy_stream_has_two_names", &settings(), || {
        let engine = Engine::new();
        for name in [0, 1] {
            let context = engine.context.cu_ctx().cast();
            let stream = std::ptr::without_provenance_mut(name);
            // SAFETY: the default stream is always there.
            let gpu = unsafe { Gpu::of_engine(0, context, stream) }.expect("taken");
            assert_eq!(gpu.stream_handle(), stream, "it has the name that the engine gave it");
            let other = &engine.stream;
            other.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
            let buffer = DeviceBuffer::<f32>::zeroed(&gpu, 8);
            let flags = cudarc::driver::sys::CUgraphInstantiate_flags(0);
            other.end_capture(flags).expect("nothing broke it");
            assert_eq!(buffer.expect("memory").to_vec().expect("copies"), [0.0; 8], "stream {name}");
        }
    });
}

/// Wants to know how long everything takes.
struct Wants;

impl Observer for Wants {
    fn wants_time(&self, _: &'static Registry, _: usize, _: Shape, _: Device) -> bool {
        true
    }

    fn launched(&self, _: &Launch) {}

    fn fell_back(&self, _: FellBack<'_>) {}
}

/// An engine that captures in the global mode lets no other thread call what may wait, unless the thread says that it may: allocating, loading,
/// asking for times.
#[test]
fn a_global_capture_is_not_broken_by_other_threads() {
    let name = "a_global_capture_is_not_broken_by_other_threads";
    for more in ["", ",no_pools"] {
        beside_an_engine(name, &format!("{}{more}", settings()), || {
            let engine = Engine::new();
            let stream = &engine.stream;
            let gpu = Gpu::open(0).expect("opens");
            let format = tried().next().expect("one is tried");
            let [k, n, _] = sizes(format);
            // A process does both.
            let _ = observe(&Wants);
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).expect("begins");
            let theirs = || -> Result<(), Error> {
                let locked = PinnedBuffer::<f32>::of(&gpu, &x_of(1, k))?;
                let layer = layer_on(&gpu, format, n, k);
                let x = DeviceBuffer::of(&gpu, &locked)?;
                let mut y = DeviceBuffer::<f32>::zeroed(&gpu, n)?;
                let mut workspace = Workspace::new();
                // The second looks for the time of the first.
                for _ in 0..2 {
                    layer.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace)?;
                    workspace.finish()?;
                }
                gpu.memory_held()?;
                gpu.trim_memory(0)
            };
            let done = std::thread::scope(|scope| scope.spawn(theirs).join().expect("no panic"));
            let flags = cudarc::driver::sys::CUgraphInstantiate_flags(0);
            stream.end_capture(flags).expect("nothing broke it");
            done.expect("works");
        });
    }
}

/// What goes with the last handles while the engine captures is given back behind that: memory, and a graph with what it held.
#[test]
fn what_goes_with_its_last_handle_in_a_capture_is_given_back() {
    beside_an_engine("what_goes_with_its_last_handle_in_a_capture_is_given_back", &settings(), || {
        let engine = Engine::new();
        let stream = &engine.stream;
        let format = tried().next().expect("one is tried");
        let [k, n, _] = sizes(format);
        let unused = || {
            engine.context.bind_to_thread().expect("binds");
            stream.synchronize().expect("done");
            engine.context.mem_get_info().expect("counts").0
        };
        let before = unused();
        type Comes = Box<dyn Fn()>;
        let comes_by: [(&str, Comes); 3] = [
            ("an engine that is about to destroy its stream", Box::new(|| assert_eq!(cuda::give_back(), 0))),
            ("a device is opened", Box::new(|| drop(Gpu::open(0).expect("opens")))),
            ("its stream is taken again", {
                let (context, stream) = (Arc::clone(&engine.context), Arc::clone(stream));
                Box::new(move || {
                    // SAFETY: the stream is dropped after it.
                    drop(unsafe { Gpu::of_engine(0, context.cu_ctx().cast(), stream.cu_stream().cast()) })
                })
            }),
        ];
        for (what, comes_by) in &comes_by {
            let gpu = engine.gristmill(stream);
            let layer = layer_on(&gpu, format, n, k);
            let x = DeviceBuffer::of(&gpu, &x_of(1, k)).expect("memory");
            let mut y = DeviceBuffer::<f32>::zeroed(&gpu, n).expect("memory");
            let mut workspace = Workspace::new();
            let mut run = || layer.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace);
            run().expect("makes what memory it needs");
            let graph = gpu.capture(&mut run).expect("captured");
            graph.launch().expect("launches");
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
            drop((graph, layer, x, y, workspace, gpu));
            assert!(cuda::give_back() > 0, "{what}: not yet");
            let flags = cudarc::driver::sys::CUgraphInstantiate_flags(0);
            stream.end_capture(flags).expect("nothing broke it");
            comes_by();
            assert_eq!(cuda::give_back(), 0, "{what}");
            assert_eq!(unused(), before, "{what}");
        }
    });
}

/// The fault of what should be refused.
fn fault<T: std::fmt::Debug>(outcome: Result<T, Error>) -> LentFault {
    match outcome.expect_err("it is refused") {
        Error::Lent { index: 0, why, .. } => *why,
        other => panic!("{other}"),
    }
}

#[test]
fn what_an_engine_lends_is_looked_at() {
    beside_an_engine("what_an_engine_lends_is_looked_at", &format!("{},devices=2", settings()), || {
        let engine = Engine::new();
        let other = CudaContext::new(1).expect("there is a second device");
        let elsewhere = other.new_stream().expect("a stream");
        let (context, stream) = (engine.context.cu_ctx(), engine.stream.cu_stream());
        // SAFETY: every stream here outlives the test, or is none.
        let of = |context: *mut std::ffi::c_void, stream: *mut std::ffi::c_void| unsafe {
            Gpu::of_engine(0, context, stream)
        };
        assert_eq!(fault(of(null_mut(), stream.cast())), LentFault::NullContext);
        assert_eq!(fault(of(other.cu_ctx().cast(), stream.cast())), LentFault::OtherContext);
        assert_eq!(fault(of(context.cast(), elsewhere.cu_stream().cast())), LentFault::ForeignStream);
        assert_eq!(fault(of(context.cast(), 2 as *mut _)), LentFault::PerThreadStream);
        // SAFETY: as above.
        let none = unsafe { Gpu::of_engine(7, context.cast(), stream.cast()) };
        assert!(matches!(none, Err(Error::NoGpu { index: 7, .. })));
        of(context.cast(), null_mut()).expect("null is the default stream");

        let gpu = of(context.cast(), stream.cast()).expect("taken");
        let x = engine.stream.alloc_zeros::<f32>(64).expect("memory");
        let there = elsewhere.alloc_zeros::<f32>(64).expect("memory");
        let here = [0f32; 64];
        // SAFETY: what is taken is only looked at here.
        let of = |address: u64, len: usize| unsafe { DeviceBuffer::<f32>::lent(&gpu, address, len) };
        assert_eq!(fault(of(0, 1)), LentFault::NullAddress);
        let at = address(&x) + 4;
        assert_eq!(fault(of(at, 1)), LentFault::Misaligned { address: at, needed: 16 });
        assert_eq!(fault(of(address(&there), 64)), LentFault::OtherDevice { found: 1 });
        assert_eq!(fault(of(u64::MAX - 15, 64)), LentFault::TooLong);
        let host = here.as_ptr() as u64 & !15;
        let unknown = fault(of(host, 1));
        assert!(matches!(unknown, LentFault::UnknownAddress { address, .. } if address == host), "{unknown}");

        // A layer of another device, operands that overlap, and outputs that are too small.
        let request = Request::dequantize("q8_0", 1, 32).on(Device::cuda(1));
        let refused = REGISTRY.prepare(&request).expect("prepares").on_gpu(&gpu).expect_err("another device");
        assert_eq!(refused, Error::OtherGpu { expected: Device::cuda(1), found: GPU });
        let format = REGISTRY.formats.iter().find(|format| format.name == "q8_0").expect("shipped");
        let layer = layer_on(&gpu, format, 32, 32);
        let elsewhere_asked = LinearOptions { device: Device::CPU, ..LinearOptions::default().on_gpu(&gpu) };
        let bytes = quantized(format, &values(32 * 32, 7), 32, 32);
        let matrix = QuantizedMatrix::new(format, 32, 32, &bytes).expect("the right size");
        let refused =
            Linear::new(&REGISTRY, &matrix, &elsewhere_asked, &Threads::single()).expect_err("two devices");
        assert_eq!(refused, Error::OtherGpu { expected: Device::CPU, found: GPU });
        let all = of(address(&x), 64).expect("taken");
        let (input, mut output) = (all.view(0..32).expect("aligned"), all.view(28..60).expect("aligned"));
        let mut workspace = Workspace::new();
        let mut run = |bias: Option<&DeviceBuffer<f32>>, y: &mut DeviceBuffer<f32>| {
            layer.forward_on_device(DeviceInput::F32(&input), 1, bias, y, &mut workspace)
        };
        assert!(matches!(run(None, &mut output), Err(Error::Overlap { what: "the activations", .. })));
        let mut behind = all.view(32..64).expect("aligned");
        let bias = all.view(32..64).expect("aligned");
        assert!(matches!(run(Some(&bias), &mut behind), Err(Error::Overlap { what: "the bias", .. })));
        let mut short = all.view(32..63).expect("aligned");
        assert!(matches!(run(None, &mut short), Err(Error::ShapeMismatch { expected: 32, found: 31, .. })));
        run(None, &mut behind).expect("runs");
        workspace.finish().expect("no fault");
        let twice = behind.copy(&all.view(28..60).expect("aligned")).expect_err("it overlaps");
        assert!(matches!(twice, Error::Overlap { kernel: "copy", .. }));
        // cudarc frees memory in whatever context is current.
        other.bind_to_thread().expect("binds");
        drop(there);
        engine.context.bind_to_thread().expect("binds");
    });
}
