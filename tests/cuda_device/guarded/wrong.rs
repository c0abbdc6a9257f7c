//! Kernels and quantizers whose results are wrong: who is blamed, and what is left.

use super::experts::{experts, mixed, mixed_here};
use super::{GPU, TOKENS, expected, fallbacks, guarded, run, steps};
use crate::images::{has_images, place_changed, place_units, settings};
use crate::support::{can_run, child, is_child, said};
use gristmill::vocab::Op;
use gristmill::{Device, GuardOptions, Policy, Quarantine, REGISTRY, Recording, RecoveryStep, Workspace};
use std::num::NonZeroU64;
use std::path::Path;

/// Runs the test `name` as a process in which a text of a kernel is another.
fn with_changed(name: &str, folder: &str, (kernel, from, to): (&str, &str, &str)) {
    if can_run(name) && has_images() {
        let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
        place_units(&units);
        place_changed(&units, kernel, from, to);
        assert_eq!(said(&child(name, &settings(), &units)), "");
    }
}

/// A quarantine of its own, and a guard with it that compares every run.
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
const WRONG: &str = "matmul.i2_s.cuda.mma";

#[test]
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
const WRONG_QUANTIZER: &str = "quantize_activations.int8_row.cuda";

#[test]
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
