//! Guarded layers on a GPU, on a fake driver: every error at every call of a layer's life, and where the layer is afterwards.

mod errors;
mod experts;
mod on_the_device;
#[cfg(feature = "bitnet")]
mod wrong;

use crate::graphs::quantized;
use crate::images::{bits, parent, settings, tried, values};
use crate::support::{fail, is_child, lose, said};
use gristmill::cuda::{DeviceBuffer, Gpu};
use gristmill::registry::FormatInfo;
use gristmill::{
    Device, Error, GuardOptions, GuardedLinear, Input, Linear, LinearOptions, NoGpu, Policy, QuantizedBuf,
    REGISTRY, Receipt, Recording, RecoveryStep, Threads, Workspace,
};
use std::num::NonZeroU64;
use std::time::Duration;

const ROWS: usize = 40;
const TOKENS: usize = 3;
const GPU: Device = Device::cuda(0);

/// Runs the test `name` with a device; nothing may be left of its memory.
fn on_device(name: &str, more: &str, body: fn()) {
    let output = parent(name, &format!("{}{more}", settings()));
    if is_child() {
        body();
    }
    if let Some(output) = output {
        assert_eq!(said(&output), "", "all memory is given back");
    }
}

fn format() -> &'static FormatInfo {
    tried().next().expect("one is tried")
}

fn k() -> usize {
    2 * format().elements.max(128)
}

fn weights() -> QuantizedBuf<'static> {
    QuantizedBuf::new(format(), ROWS, k(), quantized(format(), &values(ROWS * k(), 7), ROWS, k()))
        .expect("the right size")
}

fn guarded(policy: Policy, guard: GuardOptions) -> Result<GuardedLinear<'static>, Error> {
    let options = LinearOptions { policy, device: GPU, ..LinearOptions::default() };
    GuardedLinear::new(&REGISTRY, weights(), &options, guard, &Threads::single())
}

fn run(layer: &GuardedLinear<'_>, m: usize, workspace: &mut Workspace) -> Result<Vec<u32>, Error> {
    let (x, mut y) = (values(m * k(), 3), vec![f32::NAN; m * ROWS]);
    layer.forward(Input::F32(&x), m, None, &mut y, workspace, &Threads::single())?;
    Ok(bits(&y))
}

/// The same by the processor, without a guard.
fn expected(m: usize) -> Vec<u32> {
    let (threads, weights) = (Threads::single(), weights());
    let layer =
        Linear::new(&REGISTRY, &weights.matrix(), &LinearOptions::default(), &threads).expect("a layer");
    let mut workspace = layer.workspace(m, &threads).expect("memory");
    let (x, mut y) = (values(m * k(), 3), vec![f32::NAN; m * ROWS]);
    layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads).expect("runs");
    bits(&y)
}

/// Steps of a receipt: what, its number in the run, whether it was good.
fn steps(receipt: &Receipt) -> Vec<(RecoveryStep, u32, bool)> {
    receipt.recoveries().iter().map(|step| (step.step, step.attempt, step.success)).collect()
}

/// Runs on the processor in place of the GPU.
fn fallbacks(receipt: &Receipt) -> u64 {
    receipt.fallbacks().iter().map(|fallback| fallback.runs()).sum()
}

#[test]
fn a_layer_leaves_a_device_that_is_gone_and_comes_back() {
    on_device("a_layer_leaves_a_device_that_is_gone_and_comes_back", "", || {
        let right = expected(TOKENS);
        let calls = (0..).take_while(|call| {
            let guard = GuardOptions { return_every: NonZeroU64::new(2), ..GuardOptions::default() };
            let layer = guarded(Policy::Cpu, guard).expect("a layer");
            let recording = Recording::new(&REGISTRY);
            layer.record(Some(&recording)).expect("the same registry");
            let mut workspace = Workspace::new();
            let mut again =
                || assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right, "call {call}");
            again();
            lose::at(0, *call);
            again();
            let lost = lose::is_lost(0);
            let so_far = steps(&recording.receipt());
            if !lost || so_far.is_empty() {
                // Its last calls give back what it had.
                lose::never(0);
                return lost;
            }
            let moved = [(RecoveryStep::Reopened, 1, false), (RecoveryStep::MovedToProcessor, 2, true)];
            assert_eq!(so_far, moved, "call {call}");
            assert_eq!(layer.device(), Some(Device::CPU));
            again();
            assert_eq!((steps(&recording.receipt()).len(), fallbacks(&recording.receipt())), (2, 2));
            // It is tried every other run, and not there yet.
            again();
            assert_eq!(steps(&recording.receipt())[2..], [(RecoveryStep::Returned, 1, false)]);
            assert_eq!((layer.device(), fallbacks(&recording.receipt())), (Some(Device::CPU), 3));
            lose::never(0);
            again();
            assert_eq!(layer.device(), Some(Device::CPU));
            again();
            let receipt = recording.receipt();
            assert_eq!(steps(&receipt)[3..], [(RecoveryStep::Returned, 1, true)]);
            assert_eq!((layer.device(), fallbacks(&receipt)), (Some(GPU), 4));
            assert!(receipt.recoveries()[3].then.is_some_and(|kernel| kernel.contains(".cuda")));
            again();
            assert_eq!(steps(&recording.receipt()).len(), 4);
            true
        });
        assert!(calls.count() > 10);
    });
}

#[test]
fn without_a_policy_the_error_is_the_callers_until_the_device_is_there() {
    on_device("without_a_policy_the_error_is_the_callers_until_the_device_is_there", "", || {
        let right = expected(TOKENS);
        let layer = guarded(Policy::Strict, GuardOptions::default()).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let mut workspace = Workspace::new();
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
        lose::at(0, 3);
        for attempt in 1..3 {
            let error = run(&layer, TOKENS, &mut workspace).expect_err("it is lost");
            assert!(matches!(&error, Error::Gpu(failure) if failure.code == 214), "{error}");
            assert_eq!(steps(&recording.receipt()), vec![(RecoveryStep::Reopened, 1, false); attempt]);
            assert_eq!((layer.device(), layer.weight_bytes()), (None, 0));
        }
        lose::never(0);
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
        assert_eq!(steps(&recording.receipt())[2..], [(RecoveryStep::Reopened, 1, true)]);
        assert_eq!(layer.device(), Some(GPU));
    });
}

/// A model stops at its first layer that fails, so that no other one could let go of the device by running.
#[test]
fn layers_of_one_device_let_go_of_it_together() {
    on_device("layers_of_one_device_let_go_of_it_together", "", || {
        let right = expected(TOKENS);
        for policy in [Policy::Strict, Policy::Cpu] {
            for failing in 0..3 {
                let layers: Vec<_> =
                    (0..3).map(|_| guarded(policy, GuardOptions::default()).expect("a layer")).collect();
                let recordings: Vec<_> = layers.iter().map(|_| Recording::new(&REGISTRY)).collect();
                let mut workspace = Workspace::new();
                for (layer, recording) in layers.iter().zip(&recordings) {
                    layer.record(Some(recording)).expect("the same registry");
                    assert!(run(layer, TOKENS, &mut workspace).expect("runs") == right);
                }
                fail::at(0, 3, 700);
                assert!(run(&layers[failing], TOKENS, &mut workspace).expect("runs") == right);
                assert!(fail::has_failed(0));
                fail::at(0, -1, 0);
                for turn in 0..2 {
                    for (layer, recording) in layers.iter().zip(&recordings) {
                        assert!(run(layer, TOKENS, &mut workspace).expect("runs") == right);
                        let receipt = recording.receipt();
                        let about = format!("{}, turn {turn}", policy.name());
                        assert_eq!(steps(&receipt), [(RecoveryStep::Reopened, 1, true)], "{about}");
                        assert!(receipt.recoveries()[0].reason.contains("(700)"), "{about}");
                        assert_eq!((layer.device(), fallbacks(&receipt)), (Some(GPU), 0), "{about}");
                    }
                }
            }
        }
    });
}

/// An engine opens its device itself, and gives it to its layers.
#[test]
fn a_layer_on_an_engines_device_waits_for_the_next_one() {
    on_device("a_layer_on_an_engines_device_waits_for_the_next_one", "", || {
        let right = expected(TOKENS);
        for (policy, failed) in [(Policy::Strict, true), (Policy::Cpu, false)] {
            let gpu = Gpu::open(0).expect("the fake has one");
            let options = LinearOptions { policy, ..LinearOptions::default() }.on_gpu(&gpu);
            let guard = GuardOptions { return_every: NonZeroU64::new(1), ..GuardOptions::default() };
            let layer = GuardedLinear::new(&REGISTRY, weights(), &options, guard, &Threads::single());
            // Options hold it as well.
            drop(options);
            let (layer, mut workspace) = (layer.expect("a layer"), Workspace::new());
            assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
            fail::at(0, 3, 700);
            for turn in 0..2 {
                let found = run(&layer, TOKENS, &mut workspace);
                assert_eq!(found.is_err(), failed, "turn {turn}");
                let device = (!failed).then_some(Device::CPU);
                assert_eq!(layer.device(), device, "turn {turn}");
                match found {
                    Ok(found) => assert!(found == right),
                    Err(error) => {
                        assert!(matches!(&error, Error::Gpu(failure) if failure.code == 700), "{error}");
                    }
                }
            }
            // The layer does not keep it from being opened again.
            drop(gpu);
            let gpu = Gpu::open(0).expect("nobody holds it");
            layer.on_gpu(&gpu).expect("the same device");
            let recording = Recording::new(&REGISTRY);
            layer.record(Some(&recording)).expect("the same registry");
            assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
            let step = if failed { RecoveryStep::Reopened } else { RecoveryStep::Returned };
            assert_eq!(steps(&recording.receipt()), [(step, 1, true)]);
            assert_eq!(layer.device(), Some(GPU));
        }
    });
}

#[test]
fn a_device_that_others_hold_is_opened_again_when_they_let_go() {
    on_device("a_device_that_others_hold_is_opened_again_when_they_let_go", "", || {
        let right = expected(TOKENS);
        let guard = GuardOptions { return_every: NonZeroU64::new(1), ..GuardOptions::default() };
        let layer = guarded(Policy::Cpu, guard).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let (mut workspace, mut others) = (Workspace::new(), Workspace::new());
        for workspace in [&mut workspace, &mut others] {
            assert!(run(&layer, TOKENS, workspace).expect("runs") == right);
        }
        fail::at(0, 4, 700);
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
        let moved = [(RecoveryStep::Reopened, 1, false), (RecoveryStep::MovedToProcessor, 2, true)];
        assert_eq!(steps(&recording.receipt()), moved);
        let held = NoGpu::Lost { error: String::new() }.to_string();
        let last = recording.receipt().recoveries()[1].reason.clone();
        assert!(last.contains(held.trim_end_matches(": ")), "{last}");
        // The other workspace gives up what it had there in its next run, and then the device can be opened.
        assert!(run(&layer, TOKENS, &mut others).expect("runs") == right);
        assert_eq!(steps(&recording.receipt())[2..], [(RecoveryStep::Returned, 1, true)]);
        assert_eq!(layer.device(), Some(GPU));
    });
}

#[test]
fn what_has_no_room_goes_in_parts_then_to_the_processor() {
    // Room for the weights, and not for 64 tokens.
    on_device("what_has_no_room_goes_in_parts_then_to_the_processor", ",memory=50000", || {
        let (right, many) = (expected(1), expected(64));
        let guard = GuardOptions { return_every: NonZeroU64::new(1), ..GuardOptions::default() };
        let layer = guarded(Policy::Cpu, guard).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let mut workspace = Workspace::new();
        assert!(run(&layer, 64, &mut workspace).expect("runs") == many);
        assert_eq!(steps(&recording.receipt()), [(RecoveryStep::InParts, 1, true)]);
        let why = recording.receipt().recoveries()[0].reason.clone();
        assert!(why.contains("cuda:0") && why.contains("bytes"), "{why}");
        // Nothing is left for a single one.
        let gpu = Gpu::open(0).expect("is open");
        workspace = Workspace::new();
        gpu.trim_memory(0).expect("no error");
        let (free, _) = gpu.memory().expect("says");
        let all = DeviceBuffer::<u8>::zeroed(&gpu, free as usize).expect("memory");
        assert!(run(&layer, 1, &mut workspace).expect("the processor has room") == right);
        let moved = [(RecoveryStep::FreedMemory, 1, false), (RecoveryStep::MovedToProcessor, 2, true)];
        assert_eq!(steps(&recording.receipt())[1..], moved);
        drop(all);
        assert!(run(&layer, 1, &mut workspace).expect("runs") == right);
        assert_eq!(steps(&recording.receipt())[3..], [(RecoveryStep::Returned, 1, true)]);
    });
}

#[test]
fn weights_that_changed_on_the_device_are_packed_again() {
    on_device("weights_that_changed_on_the_device_are_packed_again", "", || {
        let right = expected(TOKENS);
        let guard = GuardOptions { check_every: NonZeroU64::new(1), ..GuardOptions::default() };
        let layer = guarded(Policy::Strict, guard).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let mut workspace = Workspace::new();
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
        assert_eq!(steps(&recording.receipt()), []);
        let bytes = fail::corrupt(0);
        assert!(bytes as usize >= ROWS * k() / 4, "{bytes} bytes are the weights");
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
        assert_eq!(steps(&recording.receipt()), [(RecoveryStep::Repacked, 1, true)]);
        let why = recording.receipt().recoveries()[0].reason.clone();
        assert!(why.starts_with("output ") && why.contains("by the portable kernel"), "{why}");
    });
}

#[test]
fn a_device_may_fail_while_weights_are_packed_again() {
    on_device("a_device_may_fail_while_weights_are_packed_again", "", || {
        let right = expected(TOKENS);
        for policy in [Policy::Strict, Policy::Cpu] {
            for error in [2, 700] {
                let mut repacked = 0;
                let calls = (0..).take_while(|call| {
                    let about = format!("{}, error {error} at call {call}", policy.name());
                    let guard = GuardOptions { check_every: NonZeroU64::new(1), ..GuardOptions::default() };
                    let layer = guarded(policy, guard).expect("a layer");
                    let recording = Recording::new(&REGISTRY);
                    layer.record(Some(&recording)).expect("the same registry");
                    let mut workspace = Workspace::new();
                    assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
                    fail::corrupt(0);
                    fail::at(0, *call, error);
                    let found = run(&layer, TOKENS, &mut workspace);
                    let came = fail::has_failed(0);
                    fail::at(0, -1, 0);
                    let receipt = recording.receipt();
                    let done = steps(&receipt);
                    let found = found.unwrap_or_else(|told| panic!("{about}: {told}, {done:?}"));
                    assert!(found == right, "{about}: {done:?}");
                    assert!(done.last().is_some_and(|step| step.2), "{about}: {done:?}");
                    // Each step has its number in the run.
                    assert!((1..).zip(&done).all(|(number, step)| step.1 == number), "{about}: {done:?}");
                    repacked += usize::from(done.first() == Some(&(RecoveryStep::Repacked, 1, false)));
                    assert_eq!(layer.device(), Some(GPU), "{about}");
                    assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right, "{about}");
                    came
                });
                assert!(calls.count() > 20);
                assert!(repacked > 5, "{} times it failed while weights were packed", repacked);
            }
        }
    });
}

#[test]
fn threads_that_share_a_layer_lose_no_run() {
    on_device("threads_that_share_a_layer_lose_no_run", "", || {
        let right = expected(TOKENS);
        let guard = GuardOptions { return_every: NonZeroU64::new(3), ..GuardOptions::default() };
        let layer = guarded(Policy::Cpu, guard).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut workspace = Workspace::new();
                    for number in 0..40 {
                        let found = run(&layer, TOKENS, &mut workspace);
                        assert!(found.unwrap_or_else(|error| panic!("run {number}: {error}")) == right);
                    }
                });
            }
            // Meanwhile the device is lost again and again, by errors that a context does not survive.
            scope.spawn(|| {
                for call in 0..30 {
                    fail::at(0, call, 700);
                    std::thread::sleep(Duration::from_millis(10));
                }
                fail::at(0, -1, 0);
            });
        });
        let receipt = recording.receipt();
        let lost = receipt.recoveries().iter().filter(|step| step.step == RecoveryStep::Reopened).count();
        assert!(lost > 0, "it was lost at least once: {:?}", steps(&receipt));
        // Nobody holds it any more but the layer, so it comes back.
        let mut workspace = Workspace::new();
        for _ in 0..4 {
            assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
        }
        assert_eq!(layer.device(), Some(GPU));
    });
}
