//! Times that nobody waits for, on a fake driver: an observer is told them.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::{layer, on_a_device};
use crate::images::{GPU, tried, values};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::observe::{FellBack, Launch, Observer, observe};
use gristmill::{Device, Registry, Shape, Threads};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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
    fn wants_time(&self, _: &'static Registry, _: usize, _: Shape, _: Device) -> bool {
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
        let [n, k] = [65, 2 * format.elements.max(128)];
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
