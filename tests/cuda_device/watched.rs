//! What an observer is told of memory, on a fake driver: copies, allocations and what is kept, exactly those of a known sequence of calls.
//!
//! Without images in this build (no CUDA compiler) nothing can be loaded, and the tests say that they are skipped.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::{layer, on_a_device};
use crate::images::{GPU, parent, settings, tried, values};
use crate::support::{is_child, said};
use gristmill::cuda::{DeviceBuffer, Gpu, PinnedBuffer};
use gristmill::observe::{
    Allocation, Cache, FellBack, Launch, Lookup, Observer, Transfer, TransferKind, held_memory, observe,
    set_observing,
};
use gristmill::{Device, Error, Input, Registry, Shape, Threads};
use std::sync::Mutex;

/// Keeps what it is told since it was asked.
#[derive(Default)]
struct Told {
    transfers: Mutex<Vec<Transfer>>,
    timed: Mutex<Vec<Transfer>>,
    allocations: Mutex<Vec<Allocation>>,
    lookups: Mutex<Vec<Lookup>>,
}

static TOLD: Told = Told {
    transfers: Mutex::new(Vec::new()),
    timed: Mutex::new(Vec::new()),
    allocations: Mutex::new(Vec::new()),
    lookups: Mutex::new(Vec::new()),
};

/// What is copied by whoever is told a time next: to, and from.
static COPIES: Mutex<Option<(DeviceBuffer<f32>, DeviceBuffer<f32>)>> = Mutex::new(None);

fn taken<T>(list: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *list.lock().expect("no panic"))
}

impl Observer for Told {
    fn wants_time(&self, _: &'static Registry, _: usize, _: Shape, _: Device) -> bool {
        false
    }

    fn launched(&self, _: &Launch) {}

    fn fell_back(&self, _: FellBack<'_>) {}

    fn wants_transfer_time(&self, _: &Transfer) -> bool {
        true
    }

    fn transferred(&self, transfer: &Transfer) {
        assert_eq!(transfer.time, None, "it is told later");
        self.transfers.lock().expect("no panic").push(*transfer);
    }

    fn transfer_timed(&self, transfer: &Transfer) {
        assert!(transfer.time.is_some());
        self.timed.lock().expect("no panic").push(Transfer { time: None, ..*transfer });
        let copies = COPIES.lock().expect("no panic").take();
        if let Some((mut to, from)) = copies {
            to.copy(&from).expect("is enqueued");
        }
    }

    fn allocated(&self, allocation: &Allocation) {
        self.allocations.lock().expect("no panic").push(*allocation);
    }

    fn looked_up(&self, lookup: Lookup) {
        self.lookups.lock().expect("no panic").push(lookup);
    }
}

/// Copies of one device, as kinds and bytes.
fn moved(transfers: &[Transfer]) -> Vec<(&'static str, u64)> {
    transfers.iter().map(|transfer| (transfer.kind.name(), transfer.bytes)).collect()
}

/// Bytes that each allocation took more than there was; `None` without pools.
fn grown() -> Vec<Option<u64>> {
    taken(&TOLD.allocations).iter().map(|allocation| allocation.grown).collect()
}

/// Hits and misses of a cache, of all that was looked up.
fn counted(lookups: &[Lookup], cache: Cache) -> (usize, usize) {
    let of = |hit| lookups.iter().filter(|lookup| lookup.cache == cache && lookup.hit == hit).count();
    (of(true), of(false))
}

fn copies_and_allocations() -> Result<(), Error> {
    let gpu = Gpu::open(0)?;
    drop(DeviceBuffer::of(&gpu, &[1.0f32; 100])?);
    gpu.synchronize()?;
    let nothing = || taken(&TOLD.transfers).is_empty() && taken(&TOLD.allocations).is_empty();
    assert!(nothing(), "nobody observes");
    observe(&TOLD)?;

    // The pool still has what the first buffer gave back, and no more.
    let mut x = DeviceBuffer::of(&gpu, &[2.0f32; 100])?;
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, 100)?;
    let asked: Vec<(Device, u64)> =
        TOLD.allocations.lock().expect("no panic").iter().map(|a| (a.device, a.bytes)).collect();
    assert_eq!(asked, [(Device::cuda(0), 400); 2]);
    assert_eq!(grown(), [Some(0), Some(400)]);
    let held = held_memory();
    assert_eq!(held.iter().map(|held| (held.bytes, held.reserved)).collect::<Vec<_>>(), [(800, Some(800))]);
    x.read(&mut [0.0; 50])?;
    x.write(&[])?;
    x.read(&mut [])?;
    assert_eq!(moved(&taken(&TOLD.transfers)), [("to-device", 400), ("from-device", 200)]);
    assert_eq!(
        moved(&taken(&TOLD.timed)),
        [("to-device", 400), ("from-device", 200)],
        "both were waited for"
    );

    // A copy that nobody waits for has its time when the next one goes out.
    y.copy(&x)?;
    assert_eq!(moved(&taken(&TOLD.timed)), []);
    gpu.synchronize()?;
    y.copy(&x)?;
    assert_eq!(moved(&taken(&TOLD.timed)), [("within-device", 400)]);
    assert_eq!(moved(&taken(&TOLD.transfers)), [("within-device", 400); 2]);

    // In a graph it counts each time that the graph is launched, and has no time.
    assert_eq!(taken(&TOLD.lookups), []);
    let graph = gpu.capture(|| y.copy(&x))?;
    assert_eq!(moved(&taken(&TOLD.transfers)), []);
    (0..3).try_for_each(|_| graph.launch())?;
    assert_eq!(moved(&taken(&TOLD.transfers)), [("within-device", 400); 3]);
    let lookups = taken(&TOLD.lookups);
    assert_eq!((counted(&lookups, Cache::Graph), lookups.len()), ((2, 1), 3));
    drop(graph);

    // From page-locked memory on a stream of its own, and to another stream of the device, which has a pool of its own.
    let copies = gpu.another_stream()?;
    let (x, pinned) = copies.upload(PinnedBuffer::of(&gpu, &[3.0f32; 70])?, x)?.join()?;
    assert_eq!(moved(&taken(&TOLD.transfers)), [("to-device", 280)]);
    taken(&TOLD.timed);
    drop(pinned);
    assert_eq!(moved(&taken(&TOLD.timed)), [("to-device", 280)], "it was waited for");
    drop(copies.upload(PinnedBuffer::<f32>::zeroed(&gpu, 0)?, DeviceBuffer::<f32>::zeroed(&gpu, 1)?)?);
    assert_eq!(moved(&taken(&TOLD.transfers)), [], "a copy of nothing is none");
    grown();
    let mut there = DeviceBuffer::<f32>::zeroed(&copies, 100)?;
    assert_eq!(grown(), [Some(400)]);
    there.bring(&x)?;
    assert_eq!(moved(&taken(&TOLD.transfers)), [("within-device", 400)]);

    // What is refused, and what is done while the observer is off, is not told.
    there.write(&[0.0; 101]).unwrap_err();
    set_observing(false);
    there.write(&[0.0; 100])?;
    set_observing(true);
    assert!(nothing());
    // A trim leaves the pool what is used.
    drop(y);
    gpu.trim_memory(0)?;
    assert_eq!(
        held_memory().iter().map(|held| (held.bytes, held.reserved)).collect::<Vec<_>>(),
        [(800, Some(800))]
    );
    drop((there, copies));
    assert_eq!(
        held_memory().iter().map(|held| (held.bytes, held.reserved)).collect::<Vec<_>>(),
        [(400, Some(400))]
    );

    // An observer that is told a time may enqueue what is timed itself.
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, 100)?;
    *COPIES.lock().expect("no panic") =
        Some((DeviceBuffer::zeroed(&gpu, 8)?, DeviceBuffer::of(&gpu, &[1.0; 8])?));
    taken(&TOLD.timed);
    for _ in 0..3 {
        y.copy(&x)?;
        gpu.synchronize()?;
    }
    let timed = moved(&taken(&TOLD.timed));
    assert!(timed.contains(&("within-device", 32)), "{timed:?}");
    Ok(())
}

#[test]
fn copies_and_allocations_are_those_of_the_calls() {
    on_a_device("copies_and_allocations_are_those_of_the_calls", || {
        copies_and_allocations().expect("runs");
    });
}

#[test]
fn without_pools_nothing_is_said_of_them() {
    let name = "without_pools_nothing_is_said_of_them";
    if let Some(output) = parent(name, &format!("{},no_pools", settings())) {
        assert_eq!(said(&output), "");
    }
    if is_child() {
        observe(&TOLD).expect("the first");
        let gpu = Gpu::open(0).expect("opens");
        let buffer = DeviceBuffer::<u8>::zeroed(&gpu, 10).expect("memory");
        assert_eq!(grown(), [None]);
        let held = held_memory();
        assert_eq!(held.iter().map(|held| (held.bytes, held.reserved)).collect::<Vec<_>>(), [(10, None)]);
        drop(buffer);
    }
}

#[test]
fn a_layer_s_memory_is_told() {
    on_a_device("a_layer_s_memory_is_told", || {
        observe(&TOLD).expect("the first");
        let Some(format) = tried().next() else { return };
        let [n, k] = [65, 2 * format.elements.max(128)];
        let first = layer(format, n, k, GPU);
        let weights: Vec<Transfer> = taken(&TOLD.transfers);
        assert!(weights.iter().all(|transfer| transfer.kind == TransferKind::Weights), "{weights:?}");
        let bytes: u64 = weights.iter().map(|transfer| transfer.bytes).sum();
        assert_eq!(bytes, first.weight_bytes() as u64);
        let kept = |lookups: &[Lookup]| {
            let (image, ptx) = (counted(lookups, Cache::Image), counted(lookups, Cache::Ptx));
            (image.0 + ptx.0, image.1 + ptx.1)
        };
        let loaded = kept(&taken(&TOLD.lookups));
        assert!(loaded.1 > 0, "{loaded:?}");
        // A second layer loads nothing.
        let second = layer(format, n, k, GPU);
        assert_eq!(kept(&taken(&TOLD.lookups)), (loaded.0 + loaded.1, 0));
        taken(&TOLD.transfers);

        let threads = Threads::single();
        let mut workspace = second.workspace(1, &threads).expect("memory");
        taken(&TOLD.lookups);
        grown();
        let (x, mut y) = (values(k, 3), vec![0.0; n]);
        let mut run = || {
            second.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads).expect("runs");
            let lookups = taken(&TOLD.lookups);
            assert!(lookups.iter().all(|lookup| lookup.device == GPU), "{lookups:?}");
            (counted(&lookups, Cache::Workspace), grown().len(), moved(&taken(&TOLD.transfers)))
        };
        let ((hits, misses), allocations, transfers) = run();
        // A buffer for each, and one for the words that faults are left in, which is no part of the workspace's sizes.
        assert_eq!((hits, allocations), (0, misses + 1));
        assert!(misses > 1, "activations and results");
        // Activations there, the words of faults and the results back.
        let [(there, x_bytes), (back, words), (results, y_bytes)] = transfers[..] else {
            panic!("three copies: {transfers:?}")
        };
        assert_eq!((there, x_bytes), ("to-device", 4 * k as u64));
        assert_eq!((back, words), ("from-device", 8 * 64));
        assert_eq!((results, y_bytes), ("from-device", 4 * n as u64));
        // The workspace is prepared now.
        assert_eq!(run(), ((misses, 0), 0, transfers));
    });
}

#[test]
fn copies_between_devices_are_told_with_their_way() {
    let name = "copies_between_devices_are_told_with_their_way";
    if let Some(output) = parent(name, &format!("{},devices=3,peer=0-1", settings())) {
        let counts = |line: &&str| !line.contains("between devices");
        assert_eq!(said(&output).lines().filter(counts).collect::<Vec<_>>(), [""; 0]);
    }
    if is_child() {
        observe(&TOLD).expect("the first");
        let gpus: Vec<_> = (0..3).map(|index| Gpu::open(index).expect("opens")).collect();
        let x = DeviceBuffer::of(&gpus[0], &[1.0f32; 25]).expect("memory");
        taken(&TOLD.transfers);
        let copied = |to: usize| {
            let mut y = DeviceBuffer::<f32>::zeroed(&gpus[to], 25).expect("memory");
            y.bring(&x).expect("copies");
            let told = taken(&TOLD.transfers);
            assert_eq!(y.to_vec().expect("copies"), [1.0; 25]);
            taken(&TOLD.transfers);
            told.iter().map(|t| (t.kind, t.device, t.source, t.bytes)).collect::<Vec<_>>()
        };
        let device = Device::cuda;
        assert_eq!(copied(1), [(TransferKind::BetweenDevices, device(1), Some(device(0)), 100)]);
        let through = TransferKind::ThroughHost;
        assert_eq!(copied(2), [(through, device(0), None, 100), (through, device(2), None, 100)]);
    }
}
