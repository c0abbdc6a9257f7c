//! Layers that are divided over several GPUs, on a fake driver with devices that differ: the bits of the undivided layer, outputs in the
//! processor's memory and on a device, and what becomes of a run when a device is lost at each of its calls.
//!
//! Without images in this build (no CUDA compiler) nothing can be loaded, and the tests say that they are skipped.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::quantized;
use crate::images::{bits, devices, parent, tried, values};
use crate::support::{is_child, lose, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::half::f16;
use gristmill::observe::{FellBack, Launch, Observer, observe};
use gristmill::registry::FormatInfo;
use gristmill::vocab::DType;
use gristmill::{
    Device, DivideOptions, DividedLinear, Error, Executor, Input, Linear, LinearOptions, NoGpu, Policy,
    QuantizedBuf, REGISTRY, Receipt, Recording, Recovery, RecoveryStep, Registry, Shape, Shares, Threads,
    Workspace,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

/// Three devices that differ in all that decisions and shares go by. The first two reach each other's memory.
fn three() -> String {
    let [oldest, newest] = devices();
    format!(
        "{oldest},devices=3,multiprocessors=4,1:{newest},1:multiprocessors=8,2:clock=750000,2:memory=1000000000,peer=0-1,pitch=2048,count"
    )
}

/// Runs the test `name` with such devices; what the driver said, but for its counts.
fn on_three(name: &str, body: fn()) -> Option<String> {
    on_three_with(name, "", body)
}

/// The same with more settings.
fn on_three_with(name: &str, more: &str, body: fn()) -> Option<String> {
    let output = parent(name, &format!("{}{more}", three()));
    if is_child() {
        body();
    }
    let said = said(&output?);
    let counts = |line: &&str| !line.contains("were launched") && !line.contains("between devices");
    assert_eq!(said.lines().filter(counts).collect::<Vec<_>>(), [""; 0], "all memory is given back");
    Some(said)
}

const ROWS: usize = 200;

fn weights(format: &'static FormatInfo, n: usize) -> QuantizedBuf<'static> {
    let k = k(format);
    QuantizedBuf::new(format, n, k, quantized(format, &values(n * k, 7), n, k)).expect("the right size")
}

fn k(format: &FormatInfo) -> usize {
    2 * format.elements.max(128)
}

fn over(count: u32) -> DivideOptions {
    DivideOptions::over((0..count).map(Device::cuda))
}

fn divided(options: &LinearOptions, divide: &DivideOptions) -> Result<DividedLinear<'static>, Error> {
    let format = tried().next().expect("one is tried");
    DividedLinear::new(&REGISTRY, weights(format, ROWS), options, divide, &Threads::single())
}

/// The undivided product on the processor.
fn expected(
    weights: &QuantizedBuf<'_>,
    options: &LinearOptions,
    input: Input<'_>,
    m: usize,
    bias: Option<&[f32]>,
) -> Vec<u32> {
    let threads = Threads::single();
    let options = LinearOptions { input: input.dtype(), ..options.clone() };
    let layer = Linear::new(&REGISTRY, &weights.matrix(), &options, &threads).expect("a layer");
    let mut workspace = layer.workspace(m, &threads).expect("memory");
    let mut y = vec![f32::NAN; m * layer.n()];
    layer.forward(input, m, bias, &mut y, &mut workspace, &threads).expect("runs");
    bits(&y)
}

fn parts(layer: &DividedLinear<'_>) -> Vec<(String, usize, usize)> {
    let parts = layer.parts();
    parts.into_iter().map(|part| (part.device.to_string(), part.rows.start, part.rows.end)).collect()
}

/// Parts that a receipt names, with how often they ran.
fn ran(receipt: &Receipt) -> Vec<(String, usize, usize, u64)> {
    let part = |part: &gristmill::receipt::PartUse| {
        (part.device().to_string(), part.rows().start, part.rows().end, part.runs())
    };
    receipt.parts().iter().map(part).collect()
}

#[test]
fn a_divided_layer_has_the_bits_of_the_undivided_one() {
    on_three("a_divided_layer_has_the_bits_of_the_undivided_one", || {
        let threads = Threads::single();
        let with_processor = DivideOptions::over([Device::cuda(0), Device::CPU, Device::cuda(2)]);
        let with_processor = with_processor.with_shares(Shares::Given(vec![1.0, 0.5, 2.0]));
        for format in tried() {
            let (weights, k) = (weights(format, ROWS), k(format));
            for divide in [over(3), over(2).with_shares(Shares::Equal), with_processor.clone()] {
                for m in [1, 3, 40] {
                    let (x, bias) = (values(m * k, 3), values(ROWS, 5));
                    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
                    let q: Vec<i8> = (0..m * k).map(|i| (i % 251) as u8 as i8).collect();
                    let block = REGISTRY.activations[format.activations].block.unwrap_or(k);
                    let scales = vec![0.5; m * k.div_ceil(block)];
                    let int8 = Input::I8 { q: &q, scales: &scales };
                    for input in [Input::F32(&x), Input::F16(&halves), int8] {
                        let options = LinearOptions { input: input.dtype(), ..LinearOptions::default() };
                        let layer =
                            DividedLinear::new(&REGISTRY, weights.clone(), &options, &divide, &threads)
                                .expect("a layer");
                        let recording = Recording::new(&REGISTRY);
                        layer.record(Some(&recording)).expect("the same registry");
                        let mut workspace = layer.workspace(m, &threads).expect("memory");
                        for bias in [None, Some(&bias[..])] {
                            let mut y = vec![f32::NAN; m * ROWS];
                            layer.forward(input, m, bias, &mut y, &mut workspace, &threads).expect("runs");
                            let right = expected(&weights, &LinearOptions::default(), input, m, bias);
                            assert!(bits(&y) == right, "{}, m = {m}, {:?}", format.name, input.dtype());
                        }
                        let named: Vec<_> = parts(&layer)
                            .into_iter()
                            .map(|(device, from, to)| (device, from, to, 2))
                            .collect();
                        assert_eq!(ran(&recording.receipt()), named);
                        assert_eq!(named.len(), divide.devices.len());
                    }
                }
            }
        }
    });
}

#[test]
fn rows_go_by_what_devices_are() {
    on_three("rows_go_by_what_devices_are", || {
        // 4 multiprocessors at 1.5 GHz, 8 of them, 4 at half of it: 2 to 4 to 1 of 200 rows, in whole panels.
        let layer = divided(&LinearOptions::default(), &over(3)).expect("a layer");
        let of = |device: &str, from, to| (device.to_owned(), from, to);
        let by_cycles = parts(&layer);
        let widths: Vec<usize> = by_cycles.iter().map(|(_, from, to)| to - from).collect();
        assert!(widths[1] > widths[0] && widths[0] > widths[2], "{widths:?}");
        assert!(by_cycles[..2].iter().all(|(_, _, to)| to % 16 == 0), "{by_cycles:?}");
        assert_eq!((by_cycles[0].1, by_cycles[2].2), (0, ROWS));
        let given = over(3).with_shares(Shares::Given(vec![0.0, 1.0, 1.0]));
        let layer = divided(&LinearOptions::default(), &given).expect("a layer");
        assert_eq!(parts(&layer), [of("cuda:1", 0, 96), of("cuda:2", 96, 200)]);
        let speeds = layer.speeds(2, &Threads::single()).expect("runs");
        assert!(
            speeds[0] == 0.0 && speeds[1..].iter().all(|speed| *speed > 0.0 && speed.is_finite()),
            "{speeds:?}"
        );
        divided(&LinearOptions::default(), &over(3).with_shares(Shares::Given(speeds))).expect("a layer");
    });
}

#[test]
fn what_nothing_can_be_divided_by_is_refused() {
    on_three("what_nothing_can_be_divided_by_is_refused", || {
        let refused =
            |divide: &DivideOptions| divided(&LinearOptions::default(), divide).expect_err("refused");
        let why = |divide: &DivideOptions| match refused(divide) {
            Error::Division { why } => why,
            other => panic!("{other}"),
        };
        assert_eq!(why(&over(0)), "there is no device");
        let twice = DivideOptions::over([Device::cuda(1), Device::cuda(1)]);
        assert_eq!(why(&twice), "cuda:1 is named twice");
        let processor = DivideOptions::over([Device::cuda(1), Device::CPU]);
        assert!(why(&processor).starts_with("of cpu no multiprocessors are known"), "{}", why(&processor));
        let few = over(2).with_shares(Shares::Given(vec![1.0]));
        assert_eq!(why(&few), "there are 1 shares for 2 devices");
        let none = Error::NoGpu { index: 3, why: NoGpu::NoSuchDevice { count: 3 } };
        assert_eq!(refused(&over(4)), none);

        let layer = divided(&LinearOptions::default(), &over(2)).expect("a layer");
        let threads = Threads::single();
        let (x, mut y) = (vec![1.0; 2 * layer.k()], vec![0.0; 2 * ROWS]);
        let run = |x: &[f32], y: &mut [f32], bias: Option<&[f32]>| {
            layer.forward(Input::F32(x), 2, bias, y, &mut Workspace::new(), &threads)
        };
        let is_mismatch = |outcome| matches!(outcome, Err(Error::ShapeMismatch { .. }));
        assert!(is_mismatch(run(&x[1..], &mut y, None)));
        assert!(is_mismatch(run(&x, &mut y[1..], None)));
        assert!(is_mismatch(run(&x, &mut y, Some(&[0.0; 3]))));
        let mut bad = x.clone();
        bad[layer.k() + 9] = f32::NAN;
        assert_eq!(run(&bad, &mut y, None), Err(Error::NonFinite { row: 1, column: 9 }));
        assert_eq!(run(&x, &mut y, None), Ok(()));
    });
}

/// A run on a device: activations there, and where the outputs come to.
fn on_device(
    layer: &DividedLinear<'_>,
    home: u32,
    x: &[f32],
    m: usize,
    bias: Option<&[f32]>,
    workspace: &mut Workspace,
) -> Result<Vec<u32>, Error> {
    let gpu = Gpu::open(home)?;
    let source = DeviceBuffer::of(&gpu, x)?;
    let mut input = DeviceBuffer::of(&gpu, &vec![f32::NAN; x.len()])?;
    let mut y = DeviceBuffer::of(&gpu, &vec![f32::NAN; m * layer.n()])?;
    // Enqueued, and not there yet.
    input.copy(&source)?;
    let threads = Threads::single();
    layer.forward_on_device(DeviceInput::F32(&input), m, bias, &mut y, workspace, &threads)?;
    Ok(bits(&y.to_vec()?))
}

#[test]
fn outputs_are_gathered_on_a_device() {
    let said = on_three("outputs_are_gathered_on_a_device", || {
        let format = tried().next().expect("one is tried");
        let (weights, k) = (weights(format, ROWS), k(format));
        let processor = DivideOptions::over([Device::cuda(0), Device::cuda(2), Device::CPU])
            .with_shares(Shares::Given(vec![1.0; 3]));
        let mut workspace = Workspace::new();
        for divide in [over(3), processor] {
            let layer = divided(&LinearOptions::default(), &divide).expect("a layer");
            let size = layer.workspace_size(7, &Threads::single()).expect("a size");
            workspace.grow(size).expect("memory");
            for (m, home) in [(1, 0), (7, 1), (7, 2), (2, 0)] {
                let (x, bias) = (values(m * k, m as u32), values(ROWS, 5));
                let found = on_device(&layer, home, &x, m, Some(&bias), &mut workspace).expect("runs");
                let right = expected(&weights, &LinearOptions::default(), Input::F32(&x), m, Some(&bias));
                assert!(found == right, "m = {m} on cuda:{home}");
            }
        }
        // bf16, which go another way to the other devices.
        let options = LinearOptions { input: DType::F16, ..LinearOptions::default() };
        let layer = divided(&options, &over(3)).expect("a layer");
        let halves: Vec<f16> = values(2 * k, 9).iter().map(|x| f16::from_f32(*x)).collect();
        let raw: Vec<u16> = halves.iter().map(|x| x.to_bits()).collect();
        let gpu = Gpu::open(0).expect("opens");
        let input = DeviceBuffer::of(&gpu, &raw).expect("memory");
        let mut y = DeviceBuffer::<f32>::zeroed(&gpu, 2 * ROWS).expect("memory");
        let run = |input, y: &mut DeviceBuffer<f32>| {
            layer.forward_on_device(input, 2, None, y, &mut Workspace::new(), &Threads::single())
        };
        run(DeviceInput::F16(&input), &mut y).expect("runs");
        let right = expected(&weights, &LinearOptions::default(), Input::F16(&halves), 2, None);
        assert!(bits(&y.to_vec().expect("copies")) == right);
        // Operands of two devices, and activations in the output.
        let mut elsewhere =
            DeviceBuffer::<f32>::zeroed(&Gpu::open(1).expect("opens"), 2 * ROWS).expect("memory");
        let error = run(DeviceInput::F16(&input), &mut elsewhere).expect_err("refused");
        assert!(matches!(error, Error::WrongDevice { index: 1, .. }), "{error}");
        let layer = divided(&LinearOptions::default(), &over(3)).expect("a layer");
        let whole = DeviceBuffer::<f32>::zeroed(&gpu, 2 * k.max(ROWS)).expect("memory");
        let (x, mut y) = (whole.view(0..k).expect("a view"), whole.view(0..ROWS).expect("a view"));
        let (mut workspace, threads) = (Workspace::new(), Threads::single());
        let overlap =
            layer.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace, &threads);
        assert!(matches!(overlap, Err(Error::Overlap { .. })), "{overlap:?}");
    });
    if let Some(said) = said {
        // Peers alone; what goes to and from the third device goes through the processor's memory.
        let copies = said.lines().find_map(|line| line.strip_suffix(" copies between devices"));
        let copies =
            copies.and_then(|line| line.rsplit(' ').next()).and_then(|count| count.parse::<u64>().ok());
        assert!(copies.is_some_and(|copies| copies > 10), "{said}");
    }
}

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
fn tokens_that_a_device_has_no_room_for_follow_one_another() {
    let name = "tokens_that_a_device_has_no_room_for_follow_one_another";
    // Room for the weights, and not for 64 tokens.
    if let Some(output) = parent(name, &format!("{},devices=2,1:memory=50000", devices()[0])) {
        assert_eq!(said(&output), "");
    }
    if !is_child() {
        return;
    }
    let format = tried().next().expect("one is tried");
    let (weights, k, m) = (weights(format, ROWS), k(format), 64);
    let layer = divided(&LinearOptions::default(), &over(2)).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording)).expect("the same registry");
    let mut x = values(m * k, 3);
    let (mut y, mut workspace, threads) = (vec![f32::NAN; m * ROWS], Workspace::new(), Threads::single());
    layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads).expect("runs");
    let right = expected(&weights, &LinearOptions::default(), Input::F32(&x), m, None);
    assert!(bits(&y) == right);
    let launches: u64 = recording.receipt().kernels().iter().map(|kernel| kernel.launches()).sum();
    assert!(launches > 8, "{launches} launches of two parts");
    x[63 * k + 5] = f32::NAN;
    let stopped = layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads);
    assert_eq!(stopped, Err(Error::NonFinite { row: 63, column: 5 }));
    // What is on a device goes at once, or not at all. What another device meets meanwhile is nothing that later runs are told.
    let gpu = Gpu::open(0).expect("opens");
    let input = DeviceBuffer::of(&gpu, &x).expect("memory");
    let mut there = DeviceBuffer::<f32>::zeroed(&gpu, m * ROWS).expect("memory");
    let stopped =
        layer.forward_on_device(DeviceInput::F32(&input), m, None, &mut there, &mut workspace, &threads);
    assert!(matches!(stopped, Err(Error::OutOfDeviceMemory { index: 1, .. })), "{stopped:?}");
    x[63 * k + 5] = 0.0;
    assert_eq!(layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads), Ok(()));
    assert!(layer.lost().is_empty());
}

#[test]
fn layers_on_different_devices_hand_their_rows_on() {
    let said = on_three("layers_on_different_devices_hand_their_rows_on", || {
        let format = tried().next().expect("one is tried");
        let (k, m) = (k(format), 3);
        let (weights, threads) = (weights(format, k), Threads::single());
        let mut right = values(m * k, 3);
        let gpus = [0, 1, 2].map(|index| Gpu::open(index).expect("opens"));
        let mut x = DeviceBuffer::of(&gpus[0], &right).expect("memory");
        let mut workspace = Workspace::new();
        for gpu in &gpus {
            let options = LinearOptions::default().on_gpu(gpu);
            let layer = Linear::new(&REGISTRY, &weights.matrix(), &options, &threads).expect("a layer");
            // To the next device: from 0 to 0, to 1 as peers, to 2 through the processor's memory.
            let mut here = DeviceBuffer::of(gpu, &vec![f32::NAN; m * k + 1]).expect("memory");
            here.bring(&x).expect("copies");
            let input = here.view(0..m * k).expect("a view");
            let mut y = DeviceBuffer::<f32>::zeroed(gpu, m * k).expect("memory");
            layer
                .forward_on_device(DeviceInput::F32(&input), m, None, &mut y, &mut workspace)
                .expect("enqueues");
            let expected = expected(&weights, &LinearOptions::default(), Input::F32(&right), m, None);
            right = expected.into_iter().map(f32::from_bits).collect();
            x = y;
        }
        workspace.finish().expect("no fault");
        assert!(bits(&x.to_vec().expect("copies")) == bits(&right));
        let mut small = DeviceBuffer::<f32>::zeroed(&gpus[0], 5).expect("memory");
        assert!(matches!(small.bring(&x), Err(Error::ShapeMismatch { .. })));
        let other = gpus[0].another_stream().expect("a stream");
        // SAFETY: the memory outlives the buffer, and nothing is enqueued on it elsewhere.
        let same =
            unsafe { DeviceBuffer::<f32>::lent(&other, small.address(), 5) }.expect("the device's memory");
        assert!(matches!(small.bring(&same), Err(Error::Overlap { .. })));
    });
    if let Some(said) = said {
        assert!(said.contains("1 copies between devices"), "{said}");
    }
}

/// One token by a layer, with a workspace of its own or a given one.
fn one_token(
    layer: &DividedLinear<'_>,
    workspace: &mut Workspace,
    threads: &Threads,
) -> Result<Vec<u32>, Error> {
    let (x, mut y) = (values(layer.k(), 3), vec![f32::NAN; layer.n()]);
    layer.forward(Input::F32(&x), 1, None, &mut y, workspace, threads)?;
    Ok(bits(&y))
}

/// What it should give.
fn one_token_expected() -> Vec<u32> {
    let format = tried().next().expect("one is tried");
    let x = values(k(format), 3);
    expected(&weights(format, ROWS), &LinearOptions::default(), Input::F32(&x), 1, None)
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

/// A thread of the program's that panics when it is told to, once.
struct Panics(Arc<AtomicBool>);

impl Executor for Panics {
    fn count(&self) -> usize {
        2
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        assert!(!self.0.swap(false, Ordering::Relaxed), "as it was told");
        (0..parts).for_each(part);
    }
}

#[test]
fn rows_are_not_lost_by_a_panic() {
    on_three("rows_are_not_lost_by_a_panic", || {
        let right = one_token_expected();
        let panics = Arc::new(AtomicBool::new(false));
        let threads = Threads::lent(Panics(Arc::clone(&panics))).expect("two threads").with_grain(1);
        for count in [1, 2] {
            let options = LinearOptions { policy: Policy::Cpu, ..LinearOptions::default() };
            let layer = divided(&options, &over(count)).expect("a layer");
            let mut workspace = Workspace::new();
            (0..count).for_each(|device| lose::at(device, 0));
            panics.store(true, Ordering::Relaxed);
            let stopped = catch_unwind(AssertUnwindSafe(|| one_token(&layer, &mut workspace, &threads)));
            assert!(stopped.is_err() && !panics.load(Ordering::Relaxed), "packing for the processor panics");
            assert!(one_token(&layer, &mut workspace, &threads).expect("runs") == right);
            assert_eq!(parts(&layer).iter().map(|(_, from, to)| to - from).sum::<usize>(), ROWS);
            drop((layer, workspace));
            (0..count).for_each(lose::never);
        }
    });
}

#[test]
fn activations_are_the_callers_again_after_a_panic() {
    on_three("activations_are_the_callers_again_after_a_panic", || {
        let panics = Arc::new(AtomicBool::new(false));
        let threads = Threads::lent(Panics(Arc::clone(&panics))).expect("two threads").with_grain(1);
        let divide = DivideOptions::over([Device::cuda(1), Device::CPU]).with_shares(Shares::Equal);
        let layer = divided(&LinearOptions::default(), &divide).expect("a layer");
        let mut workspace = layer.workspace(1, &threads).expect("memory");
        let (home, other) = (Gpu::open(0).expect("opens"), Gpu::open(1).expect("opens"));
        let x = DeviceBuffer::of(&home, &values(layer.k(), 3)).expect("memory");
        let mut y = DeviceBuffer::<f32>::zeroed(&home, ROWS).expect("memory");
        panics.store(true, Ordering::Relaxed);
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            layer.forward_on_device(DeviceInput::F32(&x), 1, None, &mut y, &mut workspace, &threads)
        }));
        assert!(stopped.is_err() && !panics.load(Ordering::Relaxed), "the processor's part panics");
        // The other device copies nothing from there any more.
        drop((x, y));
        home.synchronize().expect("nothing failed");
        assert_eq!(other.synchronize(), Ok(()));
    });
}

#[test]
fn rows_that_a_gpu_has_no_room_for_go_to_another_one() {
    let name = "rows_that_a_gpu_has_no_room_for_go_to_another_one";
    on_three_with(name, ",1:memory=1000000", || {
        let (right, threads) = (one_token_expected(), Threads::single());
        for policy in [Policy::Strict, Policy::Cpu] {
            let options = LinearOptions { policy, ..LinearOptions::default() };
            let layer = divided(&options, &over(3).with_shares(Shares::Equal)).expect("a layer");
            let mut workspace = Workspace::new();
            assert!(one_token(&layer, &mut workspace, &threads).expect("runs") == right);
            let [_, second, third] = &parts(&layer)[..] else { panic!("three parts") };
            let gpu = Gpu::open(1).expect("opens");
            let (free, _) = gpu.memory().expect("says");
            let all = DeviceBuffer::<u8>::zeroed(&gpu, free as usize).expect("memory");
            lose::at(0, 0);
            assert!(one_token(&layer, &mut workspace, &threads).expect("others take over") == right);
            let now = parts(&layer);
            let (of_first, others) = now.split_at(now.len() - 2);
            assert_eq!(others, [second.clone(), third.clone()]);
            assert!(of_first.iter().all(|(device, ..)| device == "cuda:2"), "{now:?}");
            drop((layer, workspace, all, gpu));
            lose::never(0);
        }
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
fn a_part_counts_for_one_recording_at_a_time() {
    on_three("a_part_counts_for_one_recording_at_a_time", || {
        let layer = divided(&LinearOptions::default(), &over(2)).expect("a layer");
        let recordings = [(); 2].map(|()| Recording::new(&REGISTRY));
        let [first, second] = &recordings;
        let (mut workspace, threads) = (Workspace::new(), Threads::single());
        for recording in [Some(first), Some(first), None, Some(second), None] {
            layer.record(recording).expect("the same registry");
            one_token(&layer, &mut workspace, &threads).expect("runs");
        }
        let counts = recordings
            .map(|recording| ran(&recording.receipt()).iter().map(|part| part.3).collect::<Vec<_>>());
        assert_eq!(counts, [vec![2, 2], vec![1, 1]]);
    });
}

#[test]
fn a_device_without_a_clock_has_no_share_of_cycles() {
    on_three_with("a_device_without_a_clock_has_no_share_of_cycles", ",1:clock=0", || {
        match divided(&LinearOptions::default(), &over(2)) {
            Err(Error::Division { why }) => {
                assert!(why.contains("cuda:1") && why.contains("Shares::Equal"), "{why}")
            }
            other => panic!("{other:?}"),
        }
        divided(&LinearOptions::default(), &over(2).with_shares(Shares::Equal)).expect("a layer");
    });
}

#[test]
fn a_layer_without_rows_is_one() {
    on_three("a_layer_without_rows_is_one", || {
        let format = tried().next().expect("one is tried");
        let (threads, divide) = (Threads::single(), over(2));
        let layer =
            DividedLinear::new(&REGISTRY, weights(format, 0), &LinearOptions::default(), &divide, &threads);
        let layer = layer.expect("a layer");
        assert_eq!((layer.n(), parts(&layer)), (0, vec![]));
        let mut workspace = layer.workspace(1, &threads).expect("memory");
        assert_eq!(one_token(&layer, &mut workspace, &threads), Ok(vec![]));
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

#[test]
fn devices_with_too_many_peers_copy_through_the_processors_memory() {
    let name = "devices_with_too_many_peers_copy_through_the_processors_memory";
    let said = on_three_with(name, ",too_many_peers", || {
        let format = tried().next().expect("one is tried");
        let (m, k) = (3, k(format));
        let x = values(m * k, 3);
        let layer = divided(&LinearOptions::default(), &over(3)).expect("a layer");
        let right = expected(&weights(format, ROWS), &LinearOptions::default(), Input::F32(&x), m, None);
        let mut workspace = Workspace::new();
        for home in [0, 1] {
            let found = on_device(&layer, home, &x, m, None, &mut workspace).expect("runs");
            assert!(found == right, "on cuda:{home}");
        }
    });
    if let Some(said) = said {
        // What the device with the operands computed itself, once in each run.
        assert!(said.contains("fake CUDA: 2 copies between devices"), "{said}");
    }
}
