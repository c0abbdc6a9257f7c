//! One layer on several devices that differ and share its tokens, on a fake driver: the bits of one device, and a device that is lost at
//! each of its calls.

use crate::graphs::quantized;
use crate::images::{bits, devices, parent, tried, values};
use crate::support::{is_child, lose, said};
use gristmill::cuda::Gpu;
use gristmill::half::{bf16, f16};
use gristmill::registry::FormatInfo;
use gristmill::{
    Device, DivideOptions, Error, Input, Linear, LinearOptions, NoGpu, Policy, QuantizedBuf, REGISTRY,
    Receipt, Recording, RecoveryStep, ReplicatedLinear, Shares, Threads, Workspace,
};

const ROWS: usize = 40;

/// Three devices: the second has twice the multiprocessors, the third half of the clock.
fn on_three(name: &str, more: &str, body: fn()) {
    let [oldest, newest] = devices();
    let three =
        format!("{oldest},devices=3,multiprocessors=4,1:{newest},1:multiprocessors=8,2:clock=750000{more}");
    let output = parent(name, &three);
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

fn k(format: &FormatInfo) -> usize {
    2 * format.elements.max(128)
}

fn weights(format: &'static FormatInfo) -> QuantizedBuf<'static> {
    let k = k(format);
    QuantizedBuf::new(format, ROWS, k, quantized(format, &values(ROWS * k, 7), ROWS, k))
        .expect("the right size")
}

fn over(count: u32) -> DivideOptions {
    DivideOptions::over((0..count).map(Device::cuda))
}

fn replicated(options: &LinearOptions, divide: &DivideOptions) -> Result<ReplicatedLinear<'static>, Error> {
    ReplicatedLinear::new(&REGISTRY, weights(format()), options, divide, &Threads::single())
}

/// By the processor alone.
fn expected(format: &'static FormatInfo, input: Input<'_>, m: usize, bias: Option<&[f32]>) -> Vec<u32> {
    let threads = Threads::single();
    let options = LinearOptions { input: input.dtype(), ..LinearOptions::default() };
    let layer = Linear::new(&REGISTRY, &weights(format).matrix(), &options, &threads).expect("a layer");
    let mut workspace = layer.workspace(m, &threads).expect("memory");
    let mut y = vec![f32::NAN; m * ROWS];
    layer.forward(input, m, bias, &mut y, &mut workspace, &threads).expect("runs");
    bits(&y)
}

fn run(layer: &ReplicatedLinear<'_>, m: usize, workspace: &mut Workspace) -> Result<Vec<u32>, Error> {
    let (x, mut y) = (values(m * layer.k(), 3), vec![f32::NAN; m * ROWS]);
    layer.forward(Input::F32(&x), m, None, &mut y, workspace, &Threads::single())?;
    Ok(bits(&y))
}

fn right(m: usize) -> Vec<u32> {
    expected(format(), Input::F32(&values(m * k(format()), 3)), m, None)
}

/// Which device ran how often.
fn ran(receipt: &Receipt) -> Vec<(String, u64)> {
    receipt.parts().iter().map(|part| (part.device().to_string(), part.runs())).collect()
}

#[test]
fn tokens_have_the_bits_of_one_device() {
    on_three("tokens_have_the_bits_of_one_device", "", || {
        let threads = Threads::single();
        let with_processor =
            DivideOptions::over([Device::cuda(1), Device::CPU]).with_shares(Shares::Given(vec![2.0, 1.0]));
        for format in tried() {
            let k = k(format);
            let bias = values(ROWS, 5);
            for divide in [over(3), over(2).with_shares(Shares::Equal), with_processor.clone()] {
                for m in [1, 2, 7, 40] {
                    let x = values(m * k, 3);
                    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
                    let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
                    let q: Vec<i8> = (0..m * k).map(|i| (i % 251) as u8 as i8).collect();
                    let block = REGISTRY.activations[format.activations].block.unwrap_or(k);
                    let scales = vec![0.5; m * k.div_ceil(block)];
                    let int8 = Input::I8 { q: &q, scales: &scales };
                    for input in [Input::F32(&x), Input::F16(&halves), Input::Bf16(&brains), int8] {
                        let options = LinearOptions { input: input.dtype(), ..LinearOptions::default() };
                        let layer =
                            ReplicatedLinear::new(&REGISTRY, weights(format), &options, &divide, &threads)
                                .expect("a layer");
                        let size = layer.workspace_size(m, &threads).expect("a size");
                        let mut workspace = Workspace::of_size(size).expect("memory");
                        for bias in [None, Some(&bias[..])] {
                            let mut y = vec![f32::NAN; m * ROWS];
                            layer.forward(input, m, bias, &mut y, &mut workspace, &threads).expect("runs");
                            let right = expected(format, input, m, bias);
                            assert!(bits(&y) == right, "{}, m = {m}, {:?}", format.name, input.dtype());
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn tokens_go_by_speed() {
    on_three("tokens_go_by_speed", "", || {
        let layer = replicated(&LinearOptions::default(), &over(3)).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let mut workspace = Workspace::new();
        // By 2 to 4 to 1, one token is the second device's, two are the first two's.
        assert!(run(&layer, 1, &mut workspace).expect("runs") == right(1));
        assert_eq!(ran(&recording.receipt()), [("cuda:1".to_owned(), 1)]);
        // Once more is what it was.
        layer.record(Some(&recording)).expect("the same registry");
        assert!(run(&layer, 7, &mut workspace).expect("runs") == right(7));
        let all = ["cuda:0", "cuda:1", "cuda:2"].map(str::to_owned);
        assert_eq!(ran(&recording.receipt()), all.into_iter().zip([1, 2, 1]).collect::<Vec<_>>());
        let speeds = layer.speeds(8, &Threads::single()).expect("runs");
        assert!(speeds.len() == 3 && speeds.iter().all(|speed| *speed > 0.0 && speed.is_finite()));
        let given = over(3).with_shares(Shares::Given(speeds));
        replicated(&LinearOptions::default(), &given).expect("a layer");
        // One without a share has no weights.
        let two = over(3).with_shares(Shares::Given(vec![1.0, 0.0, 1.0]));
        let layer = replicated(&LinearOptions::default(), &two).expect("a layer");
        let held: Vec<Device> = layer.replicas().into_iter().map(|(device, _)| device).collect();
        assert_eq!(held, [Device::cuda(0), Device::cuda(2)]);
        assert!(layer.replicas().iter().all(|(_, bytes)| *bytes > 0));
        assert!(matches!(replicated(&LinearOptions::default(), &over(0)), Err(Error::Division { .. })));
        // Faults are where they are among all tokens.
        let mut x = values(7 * layer.k(), 3);
        x[5 * layer.k() + 9] = f32::NAN;
        let mut y = vec![0.0; 7 * ROWS];
        let threads = Threads::single();
        let outcome = layer.forward(Input::F32(&x), 7, None, &mut y, &mut workspace, &threads);
        assert_eq!(outcome, Err(Error::NonFinite { row: 5, column: 9 }));
        assert!(run(&layer, 7, &mut workspace).expect("runs") == right(7));
    });
}

#[test]
fn tokens_of_a_lost_device_are_computed_by_the_others() {
    let name = "tokens_of_a_lost_device_are_computed_by_the_others";
    for error in ["", ",lost_error=999"] {
        on_three(name, error, || {
            let m = 7;
            let right = right(m);
            for which in [0, 1, 2] {
                let calls = (0..).take_while(|call| one_loss(which, *call, m, &right)).count();
                assert!(calls > 10, "cuda:{which} was lost at {calls} calls of a run");
            }
        });
        if is_child() {
            return;
        }
    }
}

/// A layer whose device `which` is lost at its call number `call` in the second run; whether it came to that call.
fn one_loss(which: u32, call: i32, m: usize, right: &[u32]) -> bool {
    let about = format!("cuda:{which} at call {call}");
    let layer = replicated(&LinearOptions::default(), &over(3)).expect("a layer");
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording)).expect("the same registry");
    let mut workspace = Workspace::new();
    assert!(run(&layer, m, &mut workspace).expect("runs") == right);
    lose::at(which, call);
    let found = run(&layer, m, &mut workspace);
    let lost = lose::is_lost(which);
    assert!(found.unwrap_or_else(|error| panic!("{about}: {error}")) == right, "{about}");
    let receipt = recording.receipt();
    // Its last calls give back what it had.
    if let [step] = receipt.recoveries() {
        assert_eq!((step.step, step.attempt, step.success), (RecoveryStep::TakenOver, 1, true), "{about}");
        assert!(step.reason.starts_with(&format!("cuda:{which} was lost, tokens ")), "{}", step.reason);
        assert!(step.then.is_some_and(|kernel| kernel.contains(".cuda")), "{step:?}");
        let left: Vec<Device> = layer.replicas().into_iter().map(|(device, _)| device).collect();
        assert!(left.len() == 2 && !left.contains(&Device::cuda(which)), "{about}: {left:?}");
        assert_eq!(layer.lost().iter().map(|lost| lost.index).collect::<Vec<_>>(), [which]);
        // It ran once, the others twice, and those that took over once more.
        let runs = ran(&receipt);
        assert!(runs.iter().all(|(_, runs)| (1..=3).contains(runs)), "{about}: {runs:?}");
    } else {
        assert!(receipt.recoveries().is_empty() && layer.lost().is_empty(), "{about}: {receipt:?}");
    }
    assert!(run(&layer, m, &mut workspace).expect("runs") == right, "{about}");
    drop((layer, workspace));
    lose::never(which);
    lost
}

#[test]
fn the_processor_computes_tokens_where_no_device_is_left() {
    on_three("the_processor_computes_tokens_where_no_device_is_left", "", || {
        let m = 7;
        for policy in [Policy::Strict, Policy::Cpu] {
            let options = LinearOptions { policy, ..LinearOptions::default() };
            let layer = replicated(&options, &over(2)).expect("a layer");
            let recording = Recording::new(&REGISTRY);
            layer.record(Some(&recording)).expect("the same registry");
            let mut workspace = Workspace::new();
            lose::at(0, 5);
            lose::at(1, 9);
            let outcome = run(&layer, m, &mut workspace);
            assert_eq!(layer.lost().len(), 2);
            let receipt = recording.receipt();
            assert_eq!(receipt.recoveries().len(), 2);
            if policy == Policy::Cpu {
                assert!(outcome.expect("the processor takes over") == right(m));
                assert_eq!(
                    layer.replicas().iter().map(|(device, _)| *device).collect::<Vec<_>>(),
                    [Device::CPU]
                );
                assert!(receipt.recoveries().last().is_some_and(|step| step.success));
                assert!(run(&layer, m, &mut workspace).expect("runs") == right(m));
            } else {
                assert!(matches!(outcome, Err(Error::NoGpu { why: NoGpu::Lost { .. }, .. })), "{outcome:?}");
                assert!(receipt.recoveries().iter().all(|step| !step.success), "{receipt:?}");
                assert!(matches!(run(&layer, m, &mut workspace), Err(Error::NoGpu { .. })));
            }
            drop((layer, workspace));
            lose::never(0);
            lose::never(1);
        }
        // Nobody takes over where the caller says so.
        let layer = replicated(&LinearOptions::default(), &DivideOptions { keep_division: true, ..over(2) });
        let layer = layer.expect("a layer");
        lose::at(1, 3);
        let outcome = run(&layer, m, &mut Workspace::new());
        assert!(matches!(outcome, Err(Error::NoGpu { index: 1, .. })), "{outcome:?}");
        assert!(layer.lost().is_empty());
        drop(layer);
        lose::never(1);
    });
}

#[test]
fn tokens_that_have_no_room_at_once_follow_one_another() {
    on_three("tokens_that_have_no_room_at_once_follow_one_another", ",1:memory=50000", || {
        let layer = replicated(&LinearOptions::default(), &over(3)).expect("a layer");
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording)).expect("the same registry");
        let mut workspace = Workspace::new();
        assert!(run(&layer, 80, &mut workspace).expect("runs") == right(80));
        let launches: u64 = recording.receipt().kernels().iter().map(|kernel| kernel.launches()).sum();
        assert!(launches > 6, "{launches} launches of three devices");
        assert!(layer.lost().is_empty() && Gpu::open(1).is_ok());
    });
}
