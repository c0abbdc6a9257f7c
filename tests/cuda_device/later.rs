//! Times that nobody waits for, on a fake driver: kernels of a layer take turns by them, and an observer is told them.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::{layer, on_a_device, quantized};
use crate::images::{GPU, bits, tried, values};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::observe::{FellBack, Launch, Observer, observe};
use gristmill::registry::FormatInfo;
use gristmill::{
    Adaptive, CpuProfile, Error, Input, Linear, LinearOptions, QuantizedMatrix, REGISTRY, Registry, Request,
    Restrict, Shape, Threads, Tuning, tuning,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Sizes for which kernels of one packing are several.
fn sizes(format: &FormatInfo) -> [usize; 2] {
    [65, 2 * format.elements.max(128)]
}

#[test]
fn kernels_take_turns_on_a_device() {
    on_a_device("kernels_take_turns_on_a_device", || {
        let mut tried_out = 0;
        for format in tried() {
            for m in [1, 3, 20] {
                tried_out += usize::from(takes_turns(format, m).expect("no error"));
            }
        }
        assert!(tried_out > 0, "no layer had several kernels for its packing");
    });
}

/// Whether kernels took turns.
fn takes_turns(format: &'static FormatInfo, m: usize) -> Result<bool, Error> {
    let ([n, k], threads) = (sizes(format), Threads::single());
    let bytes = quantized(format, &values(n * k, 7), n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    let adaptive = Adaptive::default();
    let options = LinearOptions { device: GPU, adaptive: Some(adaptive.clone()), ..LinearOptions::default() };
    let one = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
    let Some(first) = one.adapted(m) else { return Ok(false) };
    let gpu = Gpu::open(0)?;
    let on = tuning::gpu(gpu.profile());
    assert_eq!((&first.on, first.threads, first.turns, first.chosen), (&on, 1, 0, None));
    let plain = layer(format, n, k, GPU);
    assert_eq!(one.weight_bytes(), plain.weight_bytes(), "weights are held once");
    let x = values(m * k, 3);
    let mut expected = vec![f32::NAN; m * n];
    let mut workspace = one.workspace(m, &threads)?;
    plain.forward(Input::F32(&x), m, None, &mut expected, &mut workspace, &threads)?;
    let on_device = DeviceBuffer::of(&gpu, &x)?;
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, m * n)?;
    let adapted = || one.adapted(m).expect("it takes turns");

    // What is captured has no turn.
    one.forward_on_device(DeviceInput::F32(&on_device), m, None, &mut y, &mut workspace)?;
    workspace.finish()?;
    let graph =
        gpu.capture(|| one.forward_on_device(DeviceInput::F32(&on_device), m, None, &mut y, &mut workspace))?;
    graph.launch()?;
    workspace.finish()?;
    drop(graph);
    // Calls that are enqueued wait for nothing, so nothing is known of them until somebody has waited.
    let known = adapted().turns;
    assert!(known <= 1);
    for _ in 0..3 {
        one.forward_on_device(DeviceInput::F32(&on_device), m, None, &mut y, &mut workspace)?;
    }
    assert!(adapted().turns <= 1, "{}", adapted());
    workspace.finish()?;
    one.forward_on_device(DeviceInput::F32(&on_device), m, None, &mut y, &mut workspace)?;
    assert_eq!(adapted().turns, 4, "a launch looks what is done: {}", adapted());
    workspace.finish()?;
    assert_eq!(bits(&y.to_vec()?), bits(&expected));

    let mut found = vec![f32::NAN; m * n];
    for call in 5..=first.of {
        assert_eq!(adapted().chosen, None, "call {call}");
        found.fill(f32::NAN);
        one.forward(Input::F32(&x), m, None, &mut found, &mut workspace, &threads)?;
        assert_eq!(bits(&found), bits(&expected), "call {call}");
    }
    // The next one looks whether the last turn is over, and begins with what was found.
    one.forward(Input::F32(&x), m, None, &mut found, &mut workspace, &threads)?;
    let adapted = adapted();
    let chosen = adapted.chosen.unwrap_or_else(|| panic!("not decided: {adapted}"));
    let timed = adapted.kernels.iter().filter_map(|(name, us)| Some((*name, (*us)?)));
    let best = timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, _)| name);
    assert_eq!(Some(chosen), best, "{adapted}");

    // As a tuning of the device, other programs begin with it.
    let text = Tuning::of(adaptive.measured()).text("");
    let tuning = Tuning::parse(&text, &REGISTRY, &on);
    assert!(tuning.set_aside().is_empty() && !tuning.measured().is_empty(), "{text}");
    let shape = Shape::new(m, n, k);
    let request = Request::matmul(format.name, shape).on(GPU);
    let prepared = REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &Restrict::default(), &tuning)?;
    assert_eq!(prepared.decide(shape).chosen().map(|entry| entry.name), Some(chosen), "{text}");
    Ok(true)
}

/// Keeps what it is told of GPUs.
#[derive(Default)]
struct Told {
    wants: AtomicBool,
    launches: AtomicU64,
    times: Mutex<Vec<(&'static str, Duration)>>,
}

static TOLD: Told =
    Told { wants: AtomicBool::new(true), launches: AtomicU64::new(0), times: Mutex::new(Vec::new()) };

impl Observer for Told {
    fn wants_time(&self, _: &'static Registry, _: usize, _: Shape) -> bool {
        self.wants.load(Ordering::Relaxed)
    }

    fn launched(&self, launch: &Launch) {
        assert_eq!(launch.time, None, "it is not known yet");
        self.launches.fetch_add(1, Ordering::Relaxed);
    }

    fn timed(&self, launch: &Launch) {
        let time = launch.time.expect("a time");
        self.times.lock().expect("no panic").push((launch.entry.name, time));
    }

    fn fell_back(&self, _: FellBack<'_>) {}
}

#[test]
fn an_observer_is_told_times_of_a_device() {
    on_a_device("an_observer_is_told_times_of_a_device", || {
        let Some(format) = tried().next() else { return };
        let [n, k] = sizes(format);
        let (layer, gpu) = (layer(format, n, k, GPU), Gpu::open(0).expect("opens"));
        let mut workspace = layer.workspace(1, &Threads::single()).expect("memory");
        let x = DeviceBuffer::of(&gpu, &values(k, 3)).expect("memory");
        let mut y = DeviceBuffer::<f32>::zeroed(&gpu, n).expect("memory");
        let mut call = |finish: bool| {
            layer.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace).expect("runs");
            if finish {
                workspace.finish().expect("no fault");
            }
        };
        call(true);
        observe(&TOLD).expect("the first");
        let times = || TOLD.times.lock().expect("no panic").clone();
        call(false);
        let each = TOLD.launches.load(Ordering::Relaxed) as usize;
        assert!(each > 0);
        assert_eq!(times(), [], "nobody waits");
        call(true);
        assert_eq!(times(), [], "nobody looked");
        TOLD.wants.store(false, Ordering::Relaxed);
        call(false);
        let told = times();
        assert_eq!(told.len(), 2 * each, "the next launch looked: {told:?}");
        assert!(told.iter().all(|(_, time)| !time.is_zero()), "{told:?}");
        // More than are kept are left out, and nothing is lost but their times.
        TOLD.wants.store(true, Ordering::Relaxed);
        for _ in 0..100 {
            call(false);
        }
        call(true);
        call(true);
        let told = times().len() - 2 * each;
        assert!((64..100 * each).contains(&told), "{told}");
        assert_eq!(TOLD.launches.load(Ordering::Relaxed) as usize, 105 * each);
    });
}
