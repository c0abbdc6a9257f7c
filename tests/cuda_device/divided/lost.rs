//! What becomes of a run when devices are lost, at each of its calls: who takes over, and what layer, receipt and observers say.

use super::{
    ROWS, divided, expected, k, on_device, on_three, on_three_with, one_token, one_token_expected, over,
    parts, ran, weights,
};
use crate::images::{bits, tried, values};
use crate::support::{is_child, lose};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::observe::{FellBack, Launch, Observer, observe};
use gristmill::{
    Device, DivideOptions, DividedLinear, Error, Input, Linear, LinearOptions, NoGpu, Policy, REGISTRY,
    Receipt, Recording, Recovery, RecoveryStep, Registry, Shape, Threads, Workspace,
};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

/// One run of a layer, and a look at what one gave in which a device was lost.
type Runs<'a> = dyn FnMut(&DividedLinear<'_>, &mut Workspace) -> Result<Vec<u32>, Error> + 'a;
type Checks<'a> = dyn FnMut(&DividedLinear<'_>, Result<Vec<u32>, Error>, &Receipt) + 'a;

/// A layer whose device `which` is lost at its call number `call` in a run; `None` where it makes fewer calls.
fn with_a_loss(
    options: &LinearOptions,
    which: u32,
    call: i32,
    run: &mut Runs<'_>,
    check: &mut Checks<'_>,
) -> Option<()> {
    let layer = divided(options, &over(3)).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording)).expect("the same registry");
    let mut workspace = Workspace::new();
    run(&layer, &mut workspace).expect("runs before anything is lost");
    lose::at(which, call);
    let outcome = run(&layer, &mut workspace);
    let lost = lose::is_lost(which);
    if lost {
        check(&layer, outcome, &recording.receipt());
    } else {
        outcome.expect("nothing was lost");
    }
    drop((layer, workspace));
    lose::never(which);
    lost.then_some(())
}

#[test]
fn others_take_over_at_whatever_call_a_device_is_lost() {
    let name = "others_take_over_at_whatever_call_a_device_is_lost";
    // By an error that a context does not survive, and by what a driver says of a device that is gone.
    for error in ["", GONE] {
        on_three_with(name, error, at_whatever_call);
        if is_child() {
            return;
        }
    }
}

const GONE: &str = ",lost_error=999";

/// How the driver's error of a lost device ends.
fn error_of_loss() -> &'static str {
    let settings = std::env::var("GRISTMILL_GPU_FAKE").unwrap_or_default();
    if settings.contains(GONE) { "CUDA_ERROR_UNKNOWN (999)" } else { "CUDA_ERROR_ECC_UNCORRECTABLE (214)" }
}

fn at_whatever_call() {
    let format = tried().next().expect("one is tried");
    let (m, k) = (3, k(format));
    let weights = weights(format, ROWS);
    let (x, bias) = (values(m * k, 3), values(ROWS, 5));
    let options = LinearOptions::default();
    let right = expected(&weights, &options, Input::F32(&x), m, Some(&bias));
    let mut on_processor = |layer: &DividedLinear<'_>, workspace: &mut Workspace| {
        let mut y = vec![f32::NAN; m * ROWS];
        layer.forward(Input::F32(&x), m, Some(&bias), &mut y, workspace, &Threads::single())?;
        Ok(bits(&y))
    };
    for which in [0, 1, 2] {
        let calls = (0..).take_while(|call| {
            let mut check =
                |layer: &DividedLinear<'_>, outcome: Result<Vec<u32>, Error>, receipt: &Receipt| {
                    // Its last calls give back what it had.
                    let after = receipt.recoveries().is_empty();
                    assert!(outcome.expect("others take over") == right, "cuda:{which} at call {call}");
                    if after {
                        return;
                    }
                    taken_over(layer, which, receipt);
                };
            with_a_loss(&options, which, *call, &mut on_processor, &mut check).is_some()
        });
        let calls = calls.count();
        assert!(calls > 10, "cuda:{which} was lost at {calls} calls of a run");
    }
}

/// What layer and receipt say after one device was lost.
fn taken_over(layer: &DividedLinear<'_>, which: u32, receipt: &Receipt) {
    let gone = format!("cuda:{which}");
    let [lost] = &layer.lost()[..] else { panic!("{:?}", layer.lost()) };
    assert!(lost.index == which && lost.why.contains(error_of_loss()), "{lost:?}");
    let now = parts(layer);
    assert!(now.iter().all(|(device, ..)| *device != gone), "{now:?}");
    let ends = now.iter().scan(0, |at, (_, from, to)| {
        assert_eq!(at, from, "{now:?}");
        *at = *to;
        Some(*to)
    });
    assert_eq!(ends.last(), Some(ROWS));
    let [step] = receipt.recoveries() else { panic!("{receipt:?}") };
    assert_eq!((step.step, step.attempt, step.success), (RecoveryStep::TakenOver, 1, true));
    assert!(step.reason.starts_with(&format!("{gone} was lost, rows ")), "{}", step.reason);
    assert!(step.reason.contains(error_of_loss()), "{}", step.reason);
    assert!(step.then.is_some_and(|kernel| kernel.contains("cuda")), "{step:?}");
    // The first run by all devices as they were, the second by those that were left.
    let runs = ran(receipt);
    assert!(runs.iter().any(|(device, _, _, runs)| (device, *runs) == (&gone, 1)), "{runs:?}");
    for (device, from, to) in now {
        let again = runs.iter().find(|run| (&run.0, run.1, run.2) == (&device, from, to));
        assert!(again.is_some_and(|run| run.3 <= 2), "{runs:?}");
    }
    assert!(receipt.to_json().contains("\"step\":\"taken-over\""), "{}", receipt.to_json());
}

#[test]
fn outputs_on_a_device_are_right_after_another_one_was_lost() {
    on_three("outputs_on_a_device_are_right_after_another_one_was_lost", || {
        let format = tried().next().expect("one is tried");
        let (m, k) = (3, k(format));
        let x = values(m * k, 3);
        let options = LinearOptions::default();
        let right = expected(&weights(format, ROWS), &options, Input::F32(&x), m, None);
        for (which, home) in [(1, 0), (2, 0)] {
            let mut run = |layer: &DividedLinear<'_>, workspace: &mut Workspace| {
                on_device(layer, home, &x, m, None, workspace)
            };
            let calls = (0..).take_while(|call| {
                let mut check =
                    |layer: &DividedLinear<'_>, outcome: Result<Vec<u32>, Error>, receipt: &Receipt| {
                        let found =
                            outcome.unwrap_or_else(|error| panic!("cuda:{which} at call {call}: {error}"));
                        assert!(found == right, "cuda:{which} at call {call}");
                        if !receipt.recoveries().is_empty() {
                            taken_over(layer, which, receipt);
                        }
                    };
                with_a_loss(&options, which, *call, &mut run, &mut check).is_some()
            });
            assert!(calls.count() > 10, "cuda:{which}");
        }
        // With the device that has the operands they are lost too.
        let mut run = |layer: &DividedLinear<'_>, workspace: &mut Workspace| {
            on_device(layer, 0, &x, m, None, workspace)
        };
        let mut check = |layer: &DividedLinear<'_>, outcome: Result<Vec<u32>, Error>, receipt: &Receipt| {
            assert!(matches!(outcome, Err(Error::Gpu(failure)) if failure.device == Device::cuda(0)));
            assert!(layer.lost().is_empty() && receipt.recoveries().is_empty());
        };
        with_a_loss(&options, 0, 12, &mut run, &mut check).expect("it was lost");
    });
}

#[test]
fn who_takes_over_is_said_before() {
    on_three("who_takes_over_is_said_before", || {
        let format = tried().next().expect("one is tried");
        let threads = Threads::single();
        let x = values(k(format), 3);
        let right = expected(&weights(format, ROWS), &LinearOptions::default(), Input::F32(&x), 1, None);
        let run = |layer: &DividedLinear<'_>| {
            let (mut y, mut workspace) =
                (vec![f32::NAN; ROWS], layer.workspace(1, &threads).expect("memory"));
            layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads).map(|()| bits(&y))
        };
        let lost = |outcome: Result<Vec<u32>, Error>| match outcome {
            Err(Error::Gpu(failure)) => failure.device.to_string(),
            other => panic!("{other:?}"),
        };
        let health = |index| gristmill::cuda::health(index).expect("there is such a device");
        // Nobody.
        let layer = divided(&LinearOptions::default(), &DivideOptions { keep_division: true, ..over(2) });
        let layer = layer.expect("a layer");
        let before = parts(&layer);
        let well = health(0);
        assert!(well.memory.is_some_and(|(free, total)| free < total && total == 8 << 30), "{well:?}");
        assert_eq!((well.errors, well.last_error, well.lost), (0, None, None));
        assert_eq!(health(2).memory, None, "it is not open");
        lose::at(1, 3);
        assert_eq!((lost(run(&layer)), lost(run(&layer))), ("cuda:1".to_owned(), "cuda:1".to_owned()));
        assert_eq!((parts(&layer), layer.lost()), (before, vec![]));
        let ill = health(1);
        let lost = ill.lost.expect("it is said");
        assert!(lost.contains("CUDA_ERROR_ECC_UNCORRECTABLE (214)"), "{lost}");
        assert!(ill.errors >= 2 && ill.last_error.is_some() && ill.memory.is_none());
        assert_eq!(health(0).errors, 0);
        drop(layer);
        assert_eq!(health(1).lost, Some(lost));
        lose::never(1);
        let again = Gpu::open(1).expect("opens");
        assert_eq!((health(1).lost, health(1).memory.is_some()), (None, true));
        drop(again);
        assert_eq!(gristmill::cuda::health(3), Err(NoGpu::NoSuchDevice { count: 3 }));

        // The processor, where the policy lets it.
        for (policy, device) in [(Policy::Strict, None), (Policy::Cpu, Some("cpu"))] {
            let options = LinearOptions { policy, ..LinearOptions::default() };
            let layer = divided(&options, &over(2)).expect("a layer");
            let recording = Recording::new(&REGISTRY);
            layer.record(Some(&recording)).expect("the same registry");
            lose::at(0, 5);
            lose::at(1, 9);
            let outcome = run(&layer);
            let order: Vec<u32> = layer.lost().iter().map(|lost| lost.index).collect();
            assert_eq!(order, [0, 1]);
            let receipt = recording.receipt();
            match device {
                Some(device) => {
                    assert!(outcome.expect("the processor takes over") == right);
                    assert!(parts(&layer).iter().all(|part| part.0 == device));
                    assert!(run(&layer).expect("runs") == right);
                    assert!(
                        receipt.recoveries().last().is_some_and(|step| step.reason.contains("went to cpu ("))
                    );
                    assert!(receipt.recoveries().last().is_some_and(|step| step.success), "{receipt:?}");
                }
                None => {
                    let nobody = Err(Error::NoGpu {
                        index: 1,
                        why: NoGpu::Lost { error: layer.lost()[1].why.clone() },
                    });
                    assert_eq!(outcome, nobody);
                    // Again, and not another error.
                    assert_eq!(run(&layer), nobody);
                    assert!(receipt.recoveries().iter().all(|step| !step.success), "{receipt:?}");
                }
            }
            drop(layer);
            lose::never(0);
            lose::never(1);
        }
    });
}

#[test]
fn one_takes_over_from_two_that_are_lost_at_once() {
    on_three("one_takes_over_from_two_that_are_lost_at_once", || {
        let right = one_token_expected();
        for policy in [Policy::Strict, Policy::Cpu] {
            let options = LinearOptions { policy, ..LinearOptions::default() };
            let layer = divided(&options, &over(3)).expect("a layer");
            let (mut workspace, threads) = (Workspace::new(), Threads::single());
            // What the workspace then has on a device is asked for faults when another one is lost, and shows the second loss.
            assert!(one_token(&layer, &mut workspace, &threads).expect("runs") == right);
            lose::at(1, 0);
            lose::at(2, 0);
            for run in ["the run that loses them", "the next one"] {
                let found = one_token(&layer, &mut workspace, &threads);
                assert!(found.unwrap_or_else(|error| panic!("{run}: {error}")) == right, "{run}");
            }
            let lost: Vec<u32> = layer.lost().iter().map(|lost| lost.index).collect();
            assert_eq!(lost, [1, 2]);
            assert!(parts(&layer).iter().all(|(device, ..)| device == "cuda:0"), "{:?}", parts(&layer));
            drop((layer, workspace));
            lose::never(1);
            lose::never(2);
        }
    });
}

#[test]
fn other_workspaces_serve_after_a_device_was_lost() {
    on_three("other_workspaces_serve_after_a_device_was_lost", || {
        let (right, threads) = (one_token_expected(), Threads::single());
        let options = LinearOptions { policy: Policy::Cpu, ..LinearOptions::default() };
        let layer = divided(&options, &over(1)).expect("a layer");
        let mut workspaces = [Workspace::new(), Workspace::new()];
        lose::at(0, 0);
        for workspace in &mut workspaces {
            assert!(one_token(&layer, workspace, &threads).expect("the processor takes over") == right);
        }
        drop((layer, workspaces));
        lose::never(0);
    });
}

#[test]
fn what_was_enqueued_on_a_device_that_is_gone_concerns_nobody() {
    on_three_with("what_was_enqueued_on_a_device_that_is_gone_concerns_nobody", GONE, || {
        let (right, threads) = (one_token_expected(), Threads::single());
        let format = tried().next().expect("one is tried");
        let linear = |options: &LinearOptions| {
            Linear::new(&REGISTRY, &weights(format, ROWS).matrix(), options, &threads).expect("a layer")
        };
        let options = LinearOptions { policy: Policy::Cpu, ..LinearOptions::default() };
        let layer = divided(&options, &over(1)).expect("a layer");
        let gpu = Gpu::open(0).expect("opens");
        let other = linear(&LinearOptions::default().on_gpu(&gpu));
        let mut late = linear(&LinearOptions::default()).workspace(1, &threads).expect("memory");
        let x = DeviceBuffer::of(&gpu, &values(layer.k(), 3)).expect("memory");
        let mut y = DeviceBuffer::<f32>::zeroed(&gpu, ROWS).expect("memory");
        other.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut late).expect("enqueues");
        lose::at(0, 0);
        for workspace in [&mut Workspace::new(), &mut late] {
            assert!(one_token(&layer, workspace, &threads).expect("the processor takes over") == right);
        }
        drop((layer, late, other, x, y, gpu));
        lose::never(0);
    });
}

/// Asks the layer when it is told of a step.
struct Asks(Mutex<Vec<Vec<String>>>);

static LAYER: OnceLock<Mutex<Option<Arc<DividedLinear<'static>>>>> = OnceLock::new();

impl Observer for Asks {
    fn wants_time(&self, _: &'static Registry, _: usize, _: Shape, _: Device) -> bool {
        false
    }

    fn launched(&self, _: &Launch) {}

    fn fell_back(&self, _: FellBack<'_>) {}

    fn recovered(&self, _: &Recovery) {
        let layer = LAYER.get().and_then(|layer| layer.lock().expect("no panic").clone()).expect("it is set");
        // By another thread, so that an answer that never comes ends the test.
        let (send, answer) = mpsc::channel();
        std::thread::spawn(move || {
            let devices = layer.parts().iter().map(|part| part.device.to_string()).collect();
            // Whoever has the answer may end the process.
            drop(layer);
            let _ = send.send(devices);
        });
        let devices = answer.recv_timeout(Duration::from_secs(60)).expect("the layer answers");
        self.0.lock().expect("no panic").push(devices);
    }
}

#[test]
fn an_observer_may_ask_the_layer_who_took_over() {
    on_three("an_observer_may_ask_the_layer_who_took_over", || {
        static ASKS: Asks = Asks(Mutex::new(Vec::new()));
        observe(&ASKS).expect("the first");
        let layer = Arc::new(divided(&LinearOptions::default(), &over(2)).expect("a layer"));
        let _ = LAYER.set(Mutex::new(Some(Arc::clone(&layer))));
        lose::at(1, 0);
        let mut workspace = Workspace::new();
        let found = one_token(&layer, &mut workspace, &Threads::single()).expect("the other one takes over");
        assert!(found == one_token_expected());
        assert_eq!(*ASKS.0.lock().expect("no panic"), [vec!["cuda:0"; 2]]);
        LAYER.get().expect("it is set").lock().expect("no panic").take();
        lose::never(1);
    });
}

#[test]
fn a_lost_device_is_not_blamed_on_another_one() {
    on_three("a_lost_device_is_not_blamed_on_another_one", || {
        // cuda:1 brings values from cuda:0, which is lost at each of its calls in turn: in front of what asks both too.
        let numbers = values(1000, 3);
        let calls = (0..).take_while(|call| {
            let [from, to] = [0, 1].map(|index| Gpu::open(index).expect("opens"));
            let there = DeviceBuffer::of(&from, &numbers).expect("memory");
            let mut here = DeviceBuffer::<f32>::zeroed(&to, numbers.len()).expect("memory");
            lose::at(0, *call);
            let outcome = here.bring(&there);
            let lost = lose::is_lost(0);
            match outcome {
                Ok(()) => assert!(!lost),
                Err(Error::Gpu(failure)) => {
                    assert_eq!(failure.device, Device::cuda(0), "call {call}: {failure}");
                }
                Err(other) => panic!("call {call}: {other}"),
            }
            assert_eq!(gristmill::cuda::health(1).expect("it is there").lost, None, "call {call}");
            assert_eq!(gristmill::cuda::detect(1).map(|profile| profile.index), Ok(1), "call {call}");
            drop((there, here, from, to));
            lose::never(0);
            lost
        });
        let calls = calls.count();
        assert!(calls > 4, "cuda:0 was asked {calls} times");
    });
}
