//! Layers that are divided over several GPUs, on a fake driver with devices that differ: the bits of the undivided layer, outputs in the
//! processor's memory and on a device, and what becomes of a run when a device is lost at each of its calls.
//!
//! Without images in this build (no CUDA compiler) nothing can be loaded, and the tests say that they are skipped.
#![cfg(all(feature = "cuda", feature = "cli"))]

mod lost;
mod panics;

use crate::graphs::quantized;
use crate::images::{bits, devices, parent, tried, values};
use crate::support::{is_child, lose, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::half::f16;
use gristmill::registry::FormatInfo;
use gristmill::vocab::DType;
use gristmill::{
    Device, DivideOptions, DividedLinear, Error, Input, Linear, LinearOptions, NoGpu, Policy, QuantizedBuf,
    REGISTRY, Receipt, Recording, Shares, Threads, Workspace,
};

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
