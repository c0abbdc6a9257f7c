//! Every error of the driver at every call of a run, one and two of them, and while a layer is made.

use super::{GPU, TOKENS, expected, fallbacks, guarded, on_device, run, steps};
use crate::support::fail;
use gristmill::{Error, GuardOptions, Policy, REGISTRY, Recording, RecoveryStep, Workspace};
use std::num::NonZeroU64;
use std::time::Duration;

/// Errors, with whether a context or a device is lost by them: no memory, no resources for a launch, an operation that is not supported;
/// an illegal address, a failed launch, memory that failed; a device of which nothing more is known, one that is not there.
pub(super) const ERRORS: [(u32, bool); 8] =
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
