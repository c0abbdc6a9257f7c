//! Guarded layers on a GPU, on a fake driver: every error at every call of a layer's life, and where the layer is afterwards.

use crate::graphs::quantized;
use crate::images::{bits, has_images, parent, place_changed, place_units, settings, tried, values};
use crate::support::{can_run, child, fail, is_child, lose, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::registry::FormatInfo;
#[cfg(feature = "bitnet")]
use gristmill::vocab::Op;
use gristmill::{
    Device, Error, ExpertInput, Experts, GuardOptions, GuardedExperts, GuardedLinear, Input, Linear,
    LinearOptions, NoGpu, Policy, QuantizedBuf, Quarantine, REGISTRY, Receipt, Recording, RecoveryStep,
    Routes, Threads, Workspace,
};
use std::num::NonZeroU64;
use std::path::Path;
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

/// Errors, with whether a context or a device is lost by them: no memory, no resources for a launch, an operation that is not supported;
/// an illegal address, a failed launch, memory that failed; a device of which nothing more is known, one that is not there.
const ERRORS: [(u32, bool); 8] =
    [(2, false), (701, false), (801, false), (700, true), (719, true), (214, true), (999, true), (46, true)];

#[test]
fn every_error_at_every_call_of_a_run_is_recovered_from() {
    on_device("every_error_at_every_call_of_a_run_is_recovered_from", "", || {
        let right = expected(TOKENS);
        for policy in [Policy::Strict, Policy::Cpu] {
            for (error, lost) in ERRORS {
                let calls = (0..).take_while(|call| one_error(policy, error, lost, *call, &right)).count();
                assert!(calls > 10, "error {error} came at {calls} calls of a run");
            }
        }
    });
}

/// The errors of which `cuda.h` says that the context, or the whole process, is of no use afterwards; `None` without a toolkit.
fn fatal_by_the_header() -> Option<Vec<u32>> {
    use gristmill_codegen::cuda::toolchain::{Env, discover};
    let compiler = discover(&Env::of_process(), None).found?.path().canonicalize().ok()?;
    let header =
        compiler.ancestors().map(|folder| folder.join("include/cuda.h")).find(|file| file.is_file())?;
    let text = std::fs::read_to_string(header).ok()?;
    // A comment, then the name and the number.
    let errors = text.split_once("typedef enum cudaError_enum")?.1.split_once("} CUresult;")?.0;
    let fatal = |entry: &str| {
        let (comment, rest) = entry.split_once("*/")?;
        let words: Vec<&str> = comment.split_whitespace().filter(|word| *word != "*").collect();
        let words = words.join(" ");
        let said = ["must be terminated and relaunched", "context cannot be used anymore"];
        let code = rest.split_once('=')?.1.split([',', '\n']).next()?.trim().parse().ok()?;
        said.iter().any(|said| words.contains(said)).then_some(code)
    };
    Some(errors.split("/**").filter_map(fatal).collect())
}

#[test]
fn errors_that_end_a_context_are_known() {
    on_device("errors_that_end_a_context_are_known", "", || {
        let Some(fatal) = fatal_by_the_header() else {
            println!("SKIPPED: no cuda.h beside the compiler");
            return;
        };
        assert!(fatal.len() > 10 && fatal.contains(&700), "{fatal:?}");
        let right = expected(TOKENS);
        for error in fatal {
            assert!(one_error(Policy::Strict, error, true, 3, &right), "error {error}");
        }
    });
}

/// A layer of which call number `call` of its second run fails; whether it came to that call.
fn one_error(policy: Policy, error: u32, lost: bool, call: i32, right: &[u32]) -> bool {
    let about = format!("{}, error {error} at call {call}", policy.name());
    let layer = guarded(policy, GuardOptions::default()).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording)).expect("the same registry");
    let mut workspace = Workspace::new();
    assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
    fail::at(0, call, error);
    let found = run(&layer, TOKENS, &mut workspace);
    let came = fail::has_failed(0);
    fail::at(0, -1, 0);
    assert!(found.unwrap_or_else(|error| panic!("{about}: {error}")) == right, "{about}");
    let receipt = recording.receipt();
    let done = steps(&receipt);
    if came {
        let wanted = match (lost, error) {
            (true, _) => &[(RecoveryStep::Reopened, 1, true)][..],
            // Some of them are answered by parts of the tokens.
            (false, 2) if done.first().is_some_and(|step| step.0 == RecoveryStep::InParts) => {
                &[(RecoveryStep::InParts, 1, true)]
            }
            (false, _) => &[(RecoveryStep::FreedMemory, 1, true)],
        };
        assert_eq!(done, wanted, "{about}: {:?}", receipt.recoveries());
        let step = &receipt.recoveries()[0];
        assert!(step.time > Duration::ZERO && step.kernel.contains(".cuda"), "{about}: {step:?}");
        assert_eq!(step.then, Some(step.kernel), "{about}");
        assert!(step.reason.contains("cuda:0"), "{about}: {}", step.reason);
        let json = format!("\"step\":\"{}\"", step.step.name());
        assert!(receipt.to_json().contains(&json), "{about}");
    } else {
        assert_eq!(done, [], "{about}");
    }
    assert_eq!((layer.device(), fallbacks(&receipt)), (Some(GPU), 0), "{about}");
    assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right, "{about}");
    assert_eq!(steps(&recording.receipt()).len(), done.len(), "{about}: nothing is left to do");
    came
}

/// A second failure, in a step or in the run behind it: results are right wherever there are any, an error is one of the device, and the
/// layer lives on.
#[test]
fn a_second_error_at_every_call_behind_the_first_is_survived() {
    on_device("a_second_error_at_every_call_behind_the_first_is_survived", "", || {
        let right = expected(TOKENS);
        for policy in [Policy::Strict, Policy::Cpu] {
            for (error, _) in [(2, false), (701, false), (700, true)] {
                let both = (0..)
                    .step_by(3)
                    .map_while(|call| {
                        let mut came = true;
                        let behind =
                            |behind: &i32| two_errors(policy, error, [call, *behind], &right, &mut came);
                        let both = (0..).take_while(behind).count();
                        came.then_some(both)
                    })
                    .sum::<usize>();
                assert!(both > 20, "{}, error {error} came twice in {both} runs", policy.name());
            }
        }
    });
}

/// A layer of which two calls of the second run fail; whether both came.
fn two_errors(policy: Policy, error: u32, at: [i32; 2], right: &[u32], first_came: &mut bool) -> bool {
    let about = format!("{}, error {error} at calls {at:?}", policy.name());
    let guard = GuardOptions { return_every: NonZeroU64::new(1), ..GuardOptions::default() };
    let layer = guarded(policy, guard).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording)).expect("the same registry");
    let mut workspace = Workspace::new();
    assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right);
    fail::twice(0, at, error);
    let found = run(&layer, TOKENS, &mut workspace);
    let failures = fail::failures(0);
    fail::at(0, -1, 0);
    *first_came = failures > 0;
    let done = steps(&recording.receipt());
    match found {
        // What fails while memory is given back, or while a run is given up, has no step of its own.
        Ok(found) => {
            assert!(found == right && done.last().is_none_or(|step| step.2), "{about}: {done:?}");
        }
        // Each step is done once, and none is left that would go elsewhere.
        Err(told) => {
            assert!(policy == Policy::Strict && failures == 2, "{about}: {told}");
            let of_device =
                matches!(told, Error::Gpu(_) | Error::OutOfDeviceMemory { .. } | Error::NoGpu { .. });
            assert!(of_device, "{about}: {told}");
        }
    }
    assert!(failures == 0 || !done.is_empty(), "{about}");
    assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == right, "{about}");
    assert_eq!(layer.device(), Some(GPU), "{about}: {:?}", steps(&recording.receipt()));
    failures == 2
}

#[test]
fn every_error_at_every_call_while_a_layer_is_made_is_told() {
    on_device("every_error_at_every_call_while_a_layer_is_made_is_told", "", || {
        let right = expected(1);
        for (error, _) in ERRORS {
            let calls = (0..).take_while(|call| {
                fail::at(0, *call, error);
                let made = guarded(Policy::Cpu, GuardOptions::default());
                let came = fail::has_failed(0);
                fail::at(0, -1, 0);
                match made {
                    // What failed gave something back, or the layer can do without.
                    Ok(layer) => {
                        let found = run(&layer, 1, &mut Workspace::new());
                        assert!(found.expect("runs") == right, "error {error} at call {call}");
                    }
                    Err(told) => {
                        assert!(came, "error {error} at call {call}: {told}");
                        let of_device = matches!(
                            told,
                            Error::Gpu(_) | Error::OutOfDeviceMemory { .. } | Error::NoGpu { .. }
                        );
                        assert!(of_device, "error {error} at call {call}: {told}");
                    }
                }
                came
            });
            assert!(calls.count() > 10, "error {error}");
        }
    });
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

/// The product of operands on the device, which it is waited for.
fn run_there(layer: &GuardedLinear<'_>, workspace: &mut Workspace) -> Result<Vec<u32>, Error> {
    let gpu = Gpu::open(0)?;
    let x = DeviceBuffer::of(&gpu, &values(TOKENS * k(), 3))?;
    let mut y = DeviceBuffer::<f32>::zeroed(&gpu, TOKENS * ROWS)?;
    layer.forward_on_device(DeviceInput::F32(&x), TOKENS, None, &mut y, workspace)?;
    workspace.finish()?;
    let mut found = vec![f32::NAN; TOKENS * ROWS];
    y.read(&mut found)?;
    Ok(bits(&found))
}

/// Operands that lie on the device: changed weights and kernels in quarantine have their steps, a lost device is the caller's.
#[test]
fn operands_on_the_device_stay_there() {
    on_device("operands_on_the_device_stay_there", "", || {
        let right = expected(TOKENS);
        for policy in [Policy::Strict, Policy::Cpu] {
            let guard = GuardOptions { check_every: NonZeroU64::new(1), ..GuardOptions::default() };
            let quarantine = guard.quarantine.clone();
            let layer = guarded(policy, guard).expect("a layer");
            let recording = Recording::new(&REGISTRY);
            layer.record(Some(&recording)).expect("the same registry");
            let mut workspace = Workspace::new();
            assert!(run_there(&layer, &mut workspace).expect("runs") == right);
            assert_eq!(steps(&recording.receipt()), []);
            fail::corrupt(0);
            assert!(run_there(&layer, &mut workspace).expect("runs") == right);
            assert_eq!(steps(&recording.receipt()), [(RecoveryStep::Repacked, 1, true)]);
            let receipt = recording.receipt();
            let product = receipt.kernels().iter().find(|kernel| kernel.name().starts_with("matmul."));
            quarantine.add(product.expect("it ran").id(), "a test");
            // Another kernel may do it, there: under no policy anything else does.
            match run_there(&layer, &mut workspace) {
                Ok(found) => assert!(found == right),
                Err(told) => assert!(matches!(told, Error::NoKernel(_)), "{told}"),
            }
            assert_eq!(steps(&recording.receipt())[1].0, RecoveryStep::DecidedAgain);
            assert_eq!(fallbacks(&recording.receipt()), 0);
        }
    });
}

/// Each error at each call of a run whose operands lie there: it is repeated where they are, or they are lost with the device; then the caller,
/// who has let go of them, runs again.
#[test]
fn every_error_at_every_call_leaves_operands_where_they_are() {
    on_device("every_error_at_every_call_leaves_operands_where_they_are", "", || {
        let right = expected(TOKENS);
        for policy in [Policy::Strict, Policy::Cpu] {
            for (error, lost) in ERRORS {
                let calls = (0..).take_while(|call| {
                    let about = format!("{}, error {error} at call {call}", policy.name());
                    let layer = guarded(policy, GuardOptions::default()).expect("a layer");
                    let recording = Recording::new(&REGISTRY);
                    layer.record(Some(&recording)).expect("the same registry");
                    let mut workspace = Workspace::new();
                    assert!(run_there(&layer, &mut workspace).expect("runs") == right);
                    fail::at(0, *call, error);
                    // Copies of the operands are calls, too, and not the layer's.
                    let found = run_there(&layer, &mut workspace);
                    let came = fail::has_failed(0);
                    fail::at(0, -1, 0);
                    let done = steps(&recording.receipt());
                    match found {
                        Ok(found) => assert!(found == right, "{about}"),
                        Err(told) => {
                            let of_device = matches!(
                                told,
                                Error::Gpu(_) | Error::OutOfDeviceMemory { .. } | Error::NoGpu { .. }
                            );
                            assert!(came && of_device, "{about}: {told}");
                        }
                    }
                    let known =
                        |step: &(RecoveryStep, u32, bool)| step.0 == RecoveryStep::FreedMemory && !lost;
                    assert!(done.iter().all(known), "{about}: {done:?}");
                    let again = run_there(&layer, &mut workspace).or_else(|told| {
                        // It showed where the program waited, of which no layer knows.
                        assert!(came, "{about}: {told}");
                        workspace = Workspace::new();
                        layer.let_go_of_lost(&told);
                        run_there(&layer, &mut workspace)
                    });
                    assert!(again.unwrap_or_else(|told| panic!("{about}: {told}")) == right, "{about}");
                    assert_eq!((layer.device(), fallbacks(&recording.receipt())), (Some(GPU), 0), "{about}");
                    came
                });
                assert!(calls.count() > 5, "error {error}");
            }
        }
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

/// Runs the test `name` as a process in which a text of a kernel is another.
#[cfg(feature = "bitnet")]
fn with_changed(name: &str, folder: &str, (kernel, from, to): (&str, &str, &str)) {
    if can_run(name) && has_images() {
        let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
        place_units(&units);
        place_changed(&units, kernel, from, to);
        assert_eq!(said(&child(name, &settings(), &units)), "");
    }
}

/// A quarantine of its own, and a guard with it that compares every run.
#[cfg(feature = "bitnet")]
fn comparing() -> (Quarantine, GuardOptions) {
    let quarantine = Quarantine::new();
    let guard = GuardOptions {
        check_every: NonZeroU64::new(1),
        quarantine: quarantine.clone(),
        ..GuardOptions::default()
    };
    (quarantine, guard)
}

/// The kernel that multiplies three tokens of `i2_s` where all numbers of tokens have one packing.
#[cfg(feature = "bitnet")]
const WRONG: &str = "matmul.i2_s.cuda.mma";

#[test]
#[cfg(feature = "bitnet")]
fn a_kernel_that_is_wrong_on_the_device_is_left() {
    let name = "a_kernel_that_is_wrong_on_the_device_is_left";
    if !is_child() {
        return with_changed(name, "cuda-wrong-units", (WRONG, "y = y / x_scale", "y = y * x_scale"));
    }
    let right = expected(TOKENS);
    let (quarantine, guard) = comparing();
    let layer = guarded(Policy::Strict, guard.clone()).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording)).expect("the same registry");
    assert!(run(&layer, TOKENS, &mut Workspace::new()).expect("another kernel is there") == right);
    let receipt = recording.receipt();
    assert_eq!(steps(&receipt), [(RecoveryStep::Repacked, 1, false), (RecoveryStep::Quarantined, 2, true)]);
    let step = &receipt.recoveries()[1];
    assert_eq!(step.kernel, WRONG);
    assert!(step.then.is_some_and(|kernel| kernel.contains(".cuda") && kernel != WRONG), "{step:?}");
    let [held] = &quarantine.kernels()[..] else { panic!("one kernel") };
    assert_eq!(held.id, step.id);
    // Another layer with this quarantine begins without it.
    let later = guarded(Policy::Strict, guard).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    later.record(Some(&recording)).expect("the same registry");
    assert!(run(&later, TOKENS, &mut Workspace::new()).expect("runs") == right);
    assert_eq!(steps(&recording.receipt()), [(RecoveryStep::LeftOut, 0, true)]);
    assert_eq!((layer.device(), later.device()), (Some(GPU), Some(GPU)));
}

/// What quantizes activations of `i2_s` in front of that kernel.
#[cfg(feature = "bitnet")]
const WRONG_QUANTIZER: &str = "quantize_activations.int8_row.cuda";

#[test]
#[cfg(feature = "bitnet")]
fn a_quantizer_that_is_wrong_on_the_device_is_blamed_and_no_product() {
    let name = "a_quantizer_that_is_wrong_on_the_device_is_blamed_and_no_product";
    if !is_child() {
        return with_changed(
            name,
            "cuda-wrong-quantizer-units",
            (WRONG_QUANTIZER, "gm_rint(x * apply)", "gm_rint(x * apply + 2.0f)"),
        );
    }
    let right = expected(TOKENS);
    let (quarantine, guard) = comparing();
    let layer = guarded(Policy::Cpu, guard.clone()).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording)).expect("the same registry");
    assert!(run(&layer, TOKENS, &mut Workspace::new()).expect("others are there") == right);
    let receipt = recording.receipt();
    // Without it no kernel of the GPU takes three tokens, and the policy allows the processor.
    let done = [
        (RecoveryStep::Repacked, 1, false),
        (RecoveryStep::Quarantined, 2, false),
        (RecoveryStep::MovedToProcessor, 3, true),
    ];
    assert_eq!(steps(&receipt), done);
    for step in &receipt.recoveries()[..2] {
        assert_eq!((step.kernel, step.op), (WRONG_QUANTIZER, Op::QuantizeActivations), "{step:?}");
    }
    let why = &receipt.recoveries()[2].reason;
    assert!(why.contains(&format!("{WRONG_QUANTIZER}: in quarantine: output ")), "{why}");
    assert_eq!((layer.device(), fallbacks(&receipt)), (Some(Device::CPU), 1));
    let [held] = &quarantine.kernels()[..] else { panic!("one kernel") };
    assert_eq!(held.kernel.as_deref(), Some(WRONG_QUANTIZER));
    // Experts with another quarantine find the same.
    let guard = GuardOptions { quarantine: Quarantine::new(), ..guard };
    let experts = experts(Policy::Cpu, guard).expect("experts");
    let recording = Recording::new(&REGISTRY);
    experts.record(Some(&recording)).expect("the same registry");
    assert!(mixed(&experts, &mut Workspace::new()).expect("others are there") == mixed_here());
    let receipt = recording.receipt();
    let blamed: Vec<_> = receipt.recoveries()[..2].iter().map(|step| (step.step, step.kernel)).collect();
    let quarantined = (RecoveryStep::Quarantined, WRONG_QUANTIZER);
    assert_eq!(blamed, [(RecoveryStep::Repacked, WRONG_QUANTIZER), quarantined]);
    assert_eq!((experts.device(), receipt.recoveries().len()), (Some(Device::CPU), 3));
    // Under a strict policy it is said which kernel is missing.
    let strict = guarded(Policy::Strict, GuardOptions { quarantine, ..GuardOptions::default() });
    let error = run(&strict.expect("one token has a kernel"), TOKENS, &mut Workspace::new());
    let error = error.expect_err("no kernel is left").to_string();
    assert!(error.contains(&format!("{WRONG_QUANTIZER}: in quarantine: output ")), "{error}");
}

/// Three experts, of which each of four tokens goes through two.
fn experts(policy: Policy, guard: GuardOptions) -> Result<GuardedExperts<'static>, Error> {
    let options = LinearOptions { policy, device: GPU, ..LinearOptions::default() };
    GuardedExperts::new(&REGISTRY, matrices(), &options, guard, &Threads::single())
}

fn matrices() -> Vec<Vec<QuantizedBuf<'static>>> {
    let bytes = |seed| quantized(format(), &values(ROWS * k(), seed), ROWS, k());
    let matrix = |seed| QuantizedBuf::new(format(), ROWS, k(), bytes(seed)).expect("the right size");
    (0..3).map(|seed| vec![matrix(seed)]).collect()
}

const LISTS: [u32; 8] = [0, 2, 1, 0, 0, 2, 2, 1];

fn mixed(experts: &GuardedExperts<'_>, workspace: &mut Workspace) -> Result<Vec<u32>, Error> {
    let (x, weights, mut y) = (values(4 * k(), 5), values(8, 6), vec![f32::NAN; 4 * ROWS]);
    let input = ExpertInput::Tokens(Input::F32(&x));
    let routes = Routes::each(4, 2, &LISTS)?;
    workspace.grow(experts.workspace_size(4, 8, &Threads::single())?)?;
    experts.forward(input, &routes, Some(&weights), &mut y, workspace, &Threads::single())?;
    Ok(bits(&y))
}

/// The same by the processor, without a guard.
fn mixed_here() -> Vec<u32> {
    let (threads, matrices) = (Threads::single(), matrices());
    let lent: Vec<_> = matrices.iter().map(|expert| expert[0].matrix()).collect();
    let experts = Experts::new(&REGISTRY, &lent, &LinearOptions::default(), &threads).expect("experts");
    let (x, weights, mut y) = (values(4 * k(), 5), values(8, 6), vec![f32::NAN; 4 * ROWS]);
    let routes = Routes::each(4, 2, &LISTS).expect("lists");
    let mut workspace = experts.workspace(4, 8, &threads).expect("memory");
    let input = ExpertInput::Tokens(Input::F32(&x));
    experts.forward(input, &routes, Some(&weights), &mut y, &mut workspace, &threads).expect("runs");
    bits(&y)
}

#[test]
fn experts_go_on_after_every_error_at_every_call_of_a_run() {
    on_device("experts_go_on_after_every_error_at_every_call_of_a_run", "", || {
        let right = mixed_here();
        for (policy, error, lost) in
            [(Policy::Strict, 701, false), (Policy::Strict, 700, true), (Policy::Cpu, 2, false)]
        {
            let calls = (0..).take_while(|call| {
                let about = format!("{}, error {error} at call {call}", policy.name());
                let experts = experts(policy, GuardOptions::default()).expect("experts");
                let recording = Recording::new(&REGISTRY);
                experts.record(Some(&recording)).expect("the same registry");
                let mut workspace = Workspace::new();
                assert!(mixed(&experts, &mut workspace).expect("runs") == right, "{about}");
                fail::at(0, *call, error);
                let found = mixed(&experts, &mut workspace);
                let came = fail::has_failed(0);
                fail::at(0, -1, 0);
                assert!(found.unwrap_or_else(|error| panic!("{about}: {error}")) == right, "{about}");
                let done = steps(&recording.receipt());
                let step = match done.first() {
                    // Some of them are answered by parts of the tokens.
                    Some((RecoveryStep::InParts, ..)) if error == 2 => RecoveryStep::InParts,
                    _ if lost => RecoveryStep::Reopened,
                    _ => RecoveryStep::FreedMemory,
                };
                let wanted = if came { vec![(step, 1, true)] } else { Vec::new() };
                assert_eq!(done, wanted, "{about}");
                assert_eq!(experts.device(), Some(GPU), "{about}");
                came
            });
            assert!(calls.count() > 10, "error {error}");
        }
    });
}

#[test]
fn experts_leave_a_device_that_is_gone_with_the_layers_on_it() {
    on_device("experts_leave_a_device_that_is_gone_with_the_layers_on_it", "", || {
        let (right, of_layer) = (mixed_here(), expected(TOKENS));
        let guard = GuardOptions { return_every: NonZeroU64::new(1), ..GuardOptions::default() };
        let experts = experts(Policy::Cpu, guard.clone()).expect("experts");
        let layer = guarded(Policy::Cpu, guard).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        experts.record(Some(&recording)).expect("the same registry");
        let mut workspace = Workspace::new();
        assert!(mixed(&experts, &mut workspace).expect("runs") == right);
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == of_layer);
        lose::at(0, 2);
        assert!(mixed(&experts, &mut workspace).expect("the processor is there") == right);
        let moved = [(RecoveryStep::Reopened, 1, false), (RecoveryStep::MovedToProcessor, 2, true)];
        assert_eq!(steps(&recording.receipt()), moved);
        assert_eq!((experts.device(), fallbacks(&recording.receipt())), (Some(Device::CPU), 1));
        lose::never(0);
        // The layer let go of it too, so that it can be opened.
        assert!(mixed(&experts, &mut workspace).expect("runs") == right);
        assert_eq!(steps(&recording.receipt())[2..], [(RecoveryStep::Returned, 1, true)]);
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == of_layer);
        assert_eq!((experts.device(), layer.device()), (Some(GPU), Some(GPU)));
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
