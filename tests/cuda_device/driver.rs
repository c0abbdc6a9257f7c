//! The fake driver of `tests/cuda/fake_driver` under an unmodified cudarc: a whole launch path without a GPU, and
//! every failure that a machine can have.
//!
//! Each test starts itself again as a process that finds the fake driver first, since a process loads its driver once.

#![cfg(target_os = "linux")]

use crate::support::{build, can_run, child, is_child, place_unit, said};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, result, sys,
};
use cudarc::nvrtc::Ptx;
use std::path::Path;
use std::process::Output;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// What stands for the image of the reduction. A kernel's name must be in it, as in a real one.
const IMAGE: &str = ".version 7.4\n.target sm_75\n.address_size 64\n.visible .entry reduction\n";
/// The same from a newer compiler.
const NEWER: &str = ".version 9.0\n.target sm_75\n.address_size 64\n.visible .entry reduction\n";

/// Machine code for `sm`, as far as a driver looks at it before it looks for kernels: an ELF header without sections,
/// as compilers of CUDA 12 (version 7 of the ABI) and of CUDA 13 (8) write it, and the kernel's name.
fn machine_code(abi: u8, sm: u32) -> Vec<u8> {
    let mut image = vec![0u8; 64];
    image[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0x33, abi]);
    image[18..20].copy_from_slice(&190u16.to_le_bytes());
    image[48..52].copy_from_slice(&if abi >= 8 { sm << 8 | 4 } else { sm << 16 | 0x500 | sm }.to_le_bytes());
    image.extend(b"reduction\0");
    let end = image.len() as u64;
    image[40..48].copy_from_slice(&end.to_le_bytes());
    image
}

/// Runs the test `name` of this file as a process with a fake driver that is set to `settings`; `None` if this is that
/// process, and the test's body is to run, or if nothing can be compiled here.
fn parent(name: &str, settings: &str) -> Option<Output> {
    if is_child() || !can_run(name) {
        return None;
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-driver-units");
    let unit = build("reduction", include_str!("../cuda/kernels/reduction.cu"))
        .unwrap_or_else(|said| panic!("{said}"));
    place_unit(&units, IMAGE.as_bytes(), &unit);
    place_unit(&units, NEWER.as_bytes(), &unit);
    for (abi, sm) in [(7, 80), (7, 86), (8, 80)] {
        place_unit(&units, &machine_code(abi, sm), &unit);
    }
    Some(child(name, settings, &units))
}

fn reduction(context: &Arc<CudaContext>, image: &str) -> Result<CudaFunction, DriverError> {
    context.load_module(Ptx::from_src(image))?.load_function("reduction")
}

/// Sums of `x` in blocks of 256 by the kernel, with `n` as its argument.
fn sums(stream: &Arc<CudaStream>, kernel: &CudaFunction, x: &[i32], n: u32) -> Result<Vec<i32>, DriverError> {
    let blocks = x.len().div_ceil(256);
    let input = stream.clone_htod(x)?;
    let mut output = stream.alloc_zeros::<i32>(blocks)?;
    let config =
        LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    let mut launch = stream.launch_builder(kernel);
    launch.arg(&input).arg(&mut output).arg(&n);
    // SAFETY: the arguments are those of the kernel; what it reads beyond `x` is what the tests are about.
    unsafe { launch.launch(config) }?;
    stream.clone_dtoh(&output)
}

#[test]
fn a_launch_goes_all_the_way() {
    if let Some(output) = parent("a_launch_goes_all_the_way", "sm_86,driver=12040") {
        assert_eq!(said(&output), "", "everything is given back");
    }
    if !is_child() {
        return;
    }
    // SAFETY: only whether the library loads is asked.
    assert!(unsafe { sys::is_culib_present() });
    let context = CudaContext::new(0).expect("there is a device");
    assert_eq!(context.name().expect("a name"), "Fake sm_86");
    assert_eq!(context.compute_capability().expect("known"), (8, 6));
    let stream = context.new_stream().expect("a stream");
    let kernel = reduction(&context, IMAGE).expect("the image is taken");
    assert_eq!(kernel.max_threads_per_block().expect("known"), 256);
    let x: Vec<i32> = (0..1000).collect();
    let expected: Vec<i32> = x.chunks(256).map(|chunk| chunk.iter().sum()).collect();
    assert_eq!(sums(&stream, &kernel, &x, 1000).expect("runs"), expected);
    assert_eq!(sums(&context.default_stream(), &kernel, &x, 1000).expect("runs"), expected);
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let first = stream.record_event(flags).expect("recorded");
    sums(&stream, &kernel, &x, 1000).expect("runs");
    let last = stream.record_event(flags).expect("recorded");
    let elapsed = first.elapsed_ms(&last).expect("both have happened");
    assert!(elapsed > 0.0 && elapsed < 10_000.0, "{elapsed} ms");
}

#[test]
fn work_waits_for_its_events_and_no_longer() {
    if let Some(output) = parent("work_waits_for_its_events_and_no_longer", "") {
        assert_eq!(said(&output), "");
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    // SAFETY: nothing is used by several streams but what this test is about.
    unsafe { context.disable_event_tracking() };
    let (one, other) = (context.new_stream().expect("a stream"), context.new_stream().expect("a stream"));
    let mut data = one.alloc_zeros::<u8>(4).expect("memory");
    one.synchronize().expect("done");
    one.memcpy_htod(&[7u8; 4], &mut data).expect("queued");
    // Nothing makes the other stream wait.
    assert_eq!(other.clone_dtoh(&data).expect("read"), [0; 4]);
    other.wait(&one.record_event(None).expect("recorded")).expect("queued");
    assert_eq!(other.clone_dtoh(&data).expect("read"), [7; 4]);
}

#[test]
fn a_graph_is_captured_and_launched() {
    if let Some(output) = parent("a_graph_is_captured_and_launched", "") {
        assert_eq!(said(&output), "");
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    // SAFETY: one stream only.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().expect("a stream");
    let kernel = reduction(&context, IMAGE).expect("taken");
    let input = stream.clone_htod(&[3i32; 256]).expect("memory");
    let mut output = stream.alloc_zeros::<i32>(1).expect("memory");
    stream.synchronize().expect("done");
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("begins");
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are those of the kernel.
    unsafe { stream.launch_builder(&kernel).arg(&input).arg(&mut output).arg(&256u32).launch(config) }
        .expect("captured");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).expect("ends").expect("there is one");
    assert_eq!(stream.clone_dtoh(&output).expect("read"), [0], "captured, not run");
    graph.launch().expect("launched");
    assert_eq!(stream.clone_dtoh(&output).expect("read"), [768]);
}

#[test]
fn machines_without_a_device_say_so() {
    for settings in ["no_device", "init=34"] {
        if let Some(output) = parent("machines_without_a_device_say_so", settings) {
            assert_eq!(said(&output), "");
        }
    }
    if !is_child() {
        return;
    }
    let error = result::init().expect_err("there is no device");
    assert!(
        ["CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY"]
            .contains(&error.error_name().expect("named").to_str().expect("text"))
    );
}

#[test]
fn memory_ends_where_it_is_said_to() {
    parent("memory_ends_where_it_is_said_to", "oom_after=2");
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let stream = context.default_stream();
    let kept = [stream.alloc_zeros::<u8>(16).expect("first"), stream.alloc_zeros::<u8>(16).expect("second")];
    let error = stream.alloc_zeros::<u8>(16).expect_err("the third");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    // Not sticky.
    assert_eq!(stream.clone_dtoh(&kept[1]).expect("read"), [0; 16]);
}

#[test]
fn a_failed_launch_stays_failed() {
    if let Some(output) = parent("a_failed_launch_stays_failed", "fail_launch=reduction") {
        assert_eq!(said(&output), "fake CUDA: launch of reduction: a failure was asked for");
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let stream = context.default_stream();
    let kernel = reduction(&context, IMAGE).expect("taken");
    let failed = sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;
    assert_eq!(sums(&stream, &kernel, &[1; 256], 256).expect_err("fails").0, failed);
    assert_eq!(stream.alloc_zeros::<u8>(16).expect_err("stays failed").0, failed);
    assert_eq!(context.synchronize().expect_err("stays failed").0, failed);
}

#[test]
fn a_mistake_of_a_kernel_is_an_error_of_the_device() {
    if let Some(output) = parent("a_mistake_of_a_kernel_is_an_error_of_the_device", "seed=3") {
        let said = said(&output);
        assert!(
            said.contains("kernel reduction, block (1, 0, 0)") && said.contains("which has 1024 bytes"),
            "{said}"
        );
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let kernel = reduction(&context, IMAGE).expect("taken");
    // 256 numbers, and the kernel is told of more.
    let stream = context.default_stream();
    let input = stream.clone_htod(&[1i32; 256]).expect("memory");
    let mut output = stream.alloc_zeros::<i32>(2).expect("memory");
    let config = LaunchConfig { grid_dim: (2, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: what it reads beyond `input` is refused by the emulator.
    unsafe { stream.launch_builder(&kernel).arg(&input).arg(&mut output).arg(&300u32).launch(config) }
        .expect("queued");
    let error = stream.synchronize().expect_err("beyond the input");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn images_are_refused_as_a_driver_refuses_them() {
    for settings in ["driver=12040", "sm_70"] {
        parent("images_are_refused_as_a_driver_refuses_them", settings);
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let error = |image| reduction(&context, image).expect_err("refused").0;
    if context.compute_capability().expect("known") == (7, 0) {
        assert_eq!(error(IMAGE), sys::CUresult::CUDA_ERROR_INVALID_PTX);
    } else {
        assert_eq!(error(NEWER), sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
        assert_eq!(error("no image"), sys::CUresult::CUDA_ERROR_INVALID_IMAGE);
        let module = context.load_module(Ptx::from_src(IMAGE)).expect("taken");
        let error = module.load_function("gemv").expect_err("another kernel");
        assert_eq!(error.0, sys::CUresult::CUDA_ERROR_NOT_FOUND);
    }
}

#[test]
fn machine_code_runs_where_it_was_compiled_for() {
    for settings in ["sm_89,driver=13000", "sm_80,driver=12040"] {
        parent("machine_code_runs_where_it_was_compiled_for", settings);
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let load = |abi, sm| {
        let module = context.load_module(Ptx::from_binary(machine_code(abi, sm)));
        module.and_then(|module| module.load_function("reduction")).map(drop).map_err(|error| error.0)
    };
    let no_binary = Err(sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(load(7, 80), Ok(()), "the same major, no higher minor");
    assert_eq!(load(7, 75), no_binary);
    assert_eq!(load(7, 90), no_binary);
    if context.compute_capability().expect("known") == (8, 9) {
        assert_eq!((load(7, 86), load(8, 80)), (Ok(()), Ok(())));
    } else {
        assert_eq!(load(7, 86), no_binary, "a higher minor");
        assert_eq!(load(8, 80), Err(sys::CUresult::CUDA_ERROR_INVALID_IMAGE), "a driver of CUDA 12");
    }
}

#[test]
fn what_is_not_given_back_is_told() {
    if let Some(output) = parent("what_is_not_given_back_is_told", "") {
        assert_eq!(said(&output), "fake CUDA: 1 allocations, 100 bytes, were not freed");
    }
    if is_child() {
        let context = CudaContext::new(0).expect("there is a device");
        // SAFETY: a context is current; the address is not used.
        unsafe { result::malloc_sync(100) }.expect("memory");
        drop(context);
    }
}

#[test]
fn a_copy_of_what_nobody_wrote_is_told() {
    if let Some(output) = parent("a_copy_of_what_nobody_wrote_is_told", "") {
        assert_eq!(said(&output), "fake CUDA: a copy of 8 bytes, of which 4 were never written");
    }
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let stream = context.default_stream();
    // SAFETY: bytes, which may be anything.
    let mut memory = unsafe { stream.alloc::<u8>(8) }.expect("memory");
    stream.memcpy_htod(&[1u8; 4], &mut memory.slice_mut(..4)).expect("copied");
    assert_eq!(stream.clone_dtoh(&memory).expect("read")[..4], [1; 4]);
}

#[test]
fn a_launch_beyond_the_limits_is_refused() {
    parent("a_launch_beyond_the_limits_is_refused", "");
    if !is_child() {
        return;
    }
    let context = CudaContext::new(0).expect("there is a device");
    let kernel = reduction(&context, IMAGE).expect("taken");
    let stream = context.default_stream();
    let input = stream.clone_htod(&[1i32; 256]).expect("memory");
    let output = stream.alloc_zeros::<i32>(1).expect("memory");
    for (grid, block, expected) in [
        ((0, 1, 1), 256, sys::CUresult::CUDA_ERROR_INVALID_VALUE),
        ((1, 65536, 1), 256, sys::CUresult::CUDA_ERROR_INVALID_VALUE),
        ((1, 1, 1), 512, sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
        ((1, 1, 1), 2048, sys::CUresult::CUDA_ERROR_INVALID_VALUE),
    ] {
        let config = LaunchConfig { grid_dim: grid, block_dim: (block, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: nothing is launched.
        let result =
            unsafe { stream.launch_builder(&kernel).arg(&input).arg(&output).arg(&256u32).launch(config) };
        assert_eq!(result.expect_err("refused").0, expected, "{grid:?} {block}");
    }
}

/// A copy of `bytes` from one device to another, enqueued on a stream of the first.
fn between(
    [from, to]: [&Arc<CudaContext>; 2],
    stream: &Arc<CudaStream>,
    [source, target]: [sys::CUdeviceptr; 2],
    bytes: usize,
) -> Result<(), DriverError> {
    from.bind_to_thread()?;
    let copy = sys::CUDA_MEMCPY3D_PEER {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null(),
        srcDevice: source,
        srcArray: null_mut(),
        srcContext: from.cu_ctx(),
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: target,
        dstArray: null_mut(),
        dstContext: to.cu_ctx(),
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    };
    // SAFETY: what is wrong with the addresses is what the driver is asked.
    unsafe { sys::cuMemcpy3DPeerAsync(&raw const copy, stream.cu_stream()) }.result()
}

#[test]
fn devices_have_properties_memory_and_peers_of_their_own() {
    let name = "devices_have_properties_memory_and_peers_of_their_own";
    let settings =
        "devices=3,multiprocessors=8,1:sm_75,1:memory=4096,2:multiprocessors=2,2:clock=900000,peer=0-1";
    if let Some(output) = parent(name, settings) {
        let said = said(&output);
        assert!(said.contains("which is memory of device 2 and out of reach of device 0"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    if !is_child() {
        return;
    }
    let contexts = [0, 1, 2].map(|index| CudaContext::new(index).expect("there is a device"));
    let capabilities = contexts.each_ref().map(|context| context.compute_capability().expect("known"));
    assert_eq!(capabilities, [(9, 0), (7, 5), (9, 0)]);
    let number = |attribute| contexts.each_ref().map(|context| context.attribute(attribute).expect("known"));
    assert_eq!(number(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), [8, 8, 2]);
    assert_eq!(
        number(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        [1_500_000, 1_500_000, 900_000]
    );
    let can = |one: usize, other: usize| {
        let mut can = 0;
        // SAFETY: the pointer is to an int.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, one as i32, other as i32) }
            .result()
            .expect("known");
        can
    };
    assert_eq!([can(0, 1), can(1, 0), can(0, 2), can(2, 1)], [1, 1, 0, 0]);

    let memory = |index: usize, bytes| {
        contexts[index].bind_to_thread().expect("it is current");
        // SAFETY: a context is current.
        unsafe { result::malloc_sync(bytes) }
    };
    assert_eq!(memory(1, 8192).expect_err("more than it has").0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let of = [0, 1, 2].map(|index| memory(index, 4).expect("memory"));
    let streams = contexts.each_ref().map(|context| context.new_stream().expect("a stream"));
    contexts[0].bind_to_thread().expect("it is current");
    // SAFETY: four bytes lie there.
    unsafe { result::memcpy_htod_async(of[0], &[1u8, 2, 3, 4], streams[0].cu_stream()) }.expect("queued");
    let copy = |to: usize| between([&contexts[0], &contexts[to]], &streams[0], [of[0], of[to]], 4);
    let enable = |peer: usize| {
        contexts[0].bind_to_thread().expect("it is current");
        // SAFETY: the context is there.
        unsafe { sys::cuCtxEnablePeerAccess(contexts[peer].cu_ctx(), 0) }.result().map_err(|error| error.0)
    };
    assert_eq!(enable(1), Ok(()));
    assert_eq!(enable(1), Err(sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
    assert_eq!(enable(2), Err(sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
    assert_eq!(copy(1), Ok(()));
    assert_eq!(copy(2).expect_err("out of reach").0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    streams[0].synchronize().expect("done");
    let mut there = [0u8; 4];
    contexts[1].bind_to_thread().expect("it is current");
    // SAFETY: four bytes lie there; the copy is waited for.
    unsafe { result::memcpy_dtoh_async(&mut there, of[1], streams[1].cu_stream()) }.expect("queued");
    streams[1].synchronize().expect("done");
    assert_eq!(there, [1, 2, 3, 4]);
    for (context, address) in contexts.iter().zip(of) {
        context.bind_to_thread().expect("it is current");
        // SAFETY: it was allocated there, and nothing uses it any more.
        unsafe { result::free_sync(address) }.expect("freed");
    }
}

#[test]
fn a_device_is_lost_alone_and_for_good() {
    if let Some(output) = parent("a_device_is_lost_alone_and_for_good", "devices=2,1:lost_after=4") {
        assert_eq!(said(&output), "");
    }
    if !is_child() {
        return;
    }
    let ask = |context: &Arc<CudaContext>| context.bind_to_thread().and_then(|()| context.mem_get_info());
    let [first, second] = [0, 1].map(|index| CudaContext::new(index).expect("there is a device"));
    let lost = |outcome: Result<(usize, usize), DriverError>| outcome.map_err(|error| error.0);
    // Its first call made the context.
    let answers: Vec<_> = (0..5).map(|_| lost(ask(&second))).collect();
    let ecc = Err(sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
    assert!(answers[..3].iter().all(Result::is_ok) && answers[3..] == [ecc, ecc], "{answers:?}");
    assert!(ask(&first).is_ok());
    drop(second);
    let unavailable = sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE;
    assert_eq!(CudaContext::new(1).expect_err("it is lost").0, unavailable);
    assert!(ask(&first).is_ok());
}
