//! Guarded experts.

use super::{GPU, ROWS, TOKENS, expected, fallbacks, format, guarded, k, on_device, run, steps};
use crate::graphs::quantized;
use crate::images::{bits, values};
use crate::support::{fail, lose};
use gristmill::{
    Device, Error, ExpertInput, Experts, GuardOptions, GuardedExperts, Input, LinearOptions, Policy,
    QuantizedBuf, REGISTRY, Recording, RecoveryStep, Routes, Threads, Workspace,
};
use std::num::NonZeroU64;

/// Three experts, of which each of four tokens goes through two.
pub(super) fn experts(policy: Policy, guard: GuardOptions) -> Result<GuardedExperts<'static>, Error> {
    let options = LinearOptions { policy, device: GPU, ..LinearOptions::default() };
    GuardedExperts::new(&REGISTRY, matrices(), &options, guard, &Threads::single())
}

fn matrices() -> Vec<Vec<QuantizedBuf<'static>>> {
    let bytes = |seed| quantized(format(), &values(ROWS * k(), seed), ROWS, k());
    let matrix = |seed| QuantizedBuf::new(format(), ROWS, k(), bytes(seed)).expect("the right size");
    (0..3).map(|seed| vec![matrix(seed)]).collect()
}

const LISTS: [u32; 8] = [0, 2, 1, 0, 0, 2, 2, 1];

pub(super) fn mixed(experts: &GuardedExperts<'_>, workspace: &mut Workspace) -> Result<Vec<u32>, Error> {
    let (x, weights, mut y) = (values(4 * k(), 5), values(8, 6), vec![f32::NAN; 4 * ROWS]);
    let input = ExpertInput::Tokens(Input::F32(&x));
    let routes = Routes::each(4, 2, &LISTS)?;
    workspace.grow(experts.workspace_size(4, 8, &Threads::single())?)?;
    experts.forward(input, &routes, Some(&weights), &mut y, workspace, &Threads::single())?;
    Ok(bits(&y))
}

/// The same by the processor, without a guard.
pub(super) fn mixed_here() -> Vec<u32> {
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
        // A call that is refused runs nowhere.
        let (x, routes) = (values(4 * k(), 5), Routes::each(4, 2, &LISTS).expect("lists"));
        let input = ExpertInput::Tokens(Input::F32(&x));
        let refused = experts.forward(input, &routes, None, &mut [0.0], &mut workspace, &Threads::single());
        assert!(matches!(refused, Err(Error::ShapeMismatch { .. })), "{refused:?}");
        assert_eq!(fallbacks(&recording.receipt()), 1);
        lose::never(0);
        // The layer let go of it too, so that it can be opened.
        assert!(mixed(&experts, &mut workspace).expect("runs") == right);
        let returned = [(RecoveryStep::Returned, 1, false), (RecoveryStep::Returned, 1, true)];
        assert_eq!(steps(&recording.receipt())[2..], returned);
        assert!(run(&layer, TOKENS, &mut workspace).expect("runs") == of_layer);
        assert_eq!((experts.device(), layer.device()), (Some(GPU), Some(GPU)));
    });
}
