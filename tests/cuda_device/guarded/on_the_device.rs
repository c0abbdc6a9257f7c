//! Guarded layers whose operands are on the device.

use super::errors::ERRORS;
use super::{GPU, ROWS, TOKENS, expected, fallbacks, guarded, k, on_device, steps};
use crate::images::{bits, values};
use crate::support::fail;
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::{Error, GuardOptions, GuardedLinear, Policy, REGISTRY, Recording, RecoveryStep, Workspace};
use std::num::NonZeroU64;

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
