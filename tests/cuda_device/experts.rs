//! Experts on a GPU: the bits of the processor's, how many launches that takes, memory, what is refused, and what a fault leaves.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::{on_a_device, quantized};
use crate::images::{self, GPU, bits, parent, settings, tried, values};
use crate::support::{is_child, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::half::f16;
use gristmill::registry::FormatInfo;
use gristmill::{
    Device, DeviceExpertInput, DeviceRoutes, Error, ExpertInput, Experts, Input, LinearOptions, Packings,
    QuantizedMatrix, REGISTRY, Recording, RecoveryStep, Restrict, Routes, Threads, Workspace,
};

/// Rows of an expert.
const N: usize = 37;

fn experts(
    format: &'static FormatInfo,
    count: usize,
    k: usize,
    device: Device,
    packings: Packings,
) -> Experts {
    let bytes: Vec<Vec<u8>> =
        (0..count).map(|expert| quantized(format, &values(N * k, 7 + expert as u32), N, k)).collect();
    let matrices: Vec<QuantizedMatrix<'_>> = bytes
        .iter()
        .map(|bytes| QuantizedMatrix::new(format, N, k, bytes).expect("the right size"))
        .collect();
    let restrict = Some(Restrict { packings, ..Restrict::default() });
    let options = LinearOptions { device, restrict, ..LinearOptions::default() };
    Experts::new(&REGISTRY, &matrices, &options, &Threads::single()).expect("experts")
}

/// Lists of several lengths, empty ones and falling ones among them; expert 0 has most tokens, and the last one none.
fn lists(tokens: usize, count: usize) -> (Vec<usize>, Vec<u32>) {
    let (mut ends, mut list) = (Vec::new(), Vec::new());
    for token in 0..tokens {
        let others = [2, 0, 1][token % 3].min(count - 2);
        if token % 4 != 3 {
            list.push(0);
        }
        list.extend((0..others).rev().map(|i| 1 + ((token + i) % (count - 2)) as u32));
        ends.push(list.len());
    }
    (ends, list)
}

#[test]
fn experts_give_the_processors_bits() {
    on_a_device("experts_give_the_processors_bits", || {
        for format in tried() {
            for packings in [Packings::One, Packings::Fastest] {
                same_bits(format, packings).expect("no error");
            }
        }
    });
}

fn same_bits(format: &'static FormatInfo, packings: Packings) -> Result<(), Error> {
    let (count, k) = (5, format.elements.max(128));
    let (gpu, threads) = (Gpu::open(0)?, Threads::single());
    let here = experts(format, count, k, Device::CPU, packings);
    let mut there = experts(format, count, k, GPU, packings);
    let recording = Recording::new(&REGISTRY);
    there.record(Some(&recording))?;
    // One token; some; more than a tile of eight for one expert.
    for tokens in [1, 4, 14] {
        let (ends, list) = lists(tokens, count);
        let routes = Routes::lists(&ends, &list)?;
        let pairs = list.len();
        let weights = values(pairs, 3);
        let mut on_cpu = here.workspace(tokens, pairs, &threads)?;
        let mut workspace = there.workspace(tokens, pairs, &threads)?;
        for by_pair in [false, true] {
            let x = values(if by_pair { pairs } else { tokens } * k, 11);
            let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
            for input in [Input::F32(&x), Input::F16(&halves)] {
                let input = if by_pair { ExpertInput::Pairs(input) } else { ExpertInput::Tokens(input) };
                for weights in [None, Some(&weights[..])] {
                    let case = format!("{}, {packings:?}, {tokens} tokens, {by_pair}", format.name);
                    let results = if weights.is_some() { tokens } else { pairs };
                    let [mut expected, mut y] = [(); 2].map(|()| vec![f32::NAN; results * N]);
                    here.forward(input, &routes, weights, &mut expected, &mut on_cpu, &threads)?;
                    there.forward(input, &routes, weights, &mut y, &mut workspace, &threads)?;
                    assert!(bits(&y) == bits(&expected), "{case}: {y:?} {expected:?}");
                }
            }
            on_the_device(&gpu, [&here, &there], &routes, &weights, (&x, by_pair))?;
        }
    }
    // What ran is in the receipt.
    let receipt = recording.receipt();
    assert!(receipt.kernels().iter().any(|kernel| kernel.name().starts_with("matmul.")), "{receipt:?}");
    Ok(())
}

/// Rows and results on the device, and tokens that are quantized there for several; a run takes no memory that the one before took.
fn on_the_device(
    gpu: &std::sync::Arc<Gpu>,
    [here, there]: [&Experts; 2],
    routes: &Routes<'_>,
    weights: &[f32],
    (x, by_pair): (&[f32], bool),
) -> Result<(), Error> {
    let threads = Threads::single();
    let (tokens, pairs) = (routes.tokens(), routes.pairs());
    let mut expected = vec![f32::NAN; tokens * N];
    let mut on_cpu = here.workspace(tokens, pairs, &threads)?;
    let input = Input::F32(x);
    let given = if by_pair { ExpertInput::Pairs(input) } else { ExpertInput::Tokens(input) };
    here.forward(given, routes, Some(weights), &mut expected, &mut on_cpu, &threads)?;
    let x = DeviceBuffer::of(gpu, x)?;
    let mut y = DeviceBuffer::of(gpu, &vec![f32::NAN; tokens * N])?;
    let mut workspace = there.workspace(tokens, pairs, &threads)?;
    let mut activations = Workspace::new();
    let rows = DeviceInput::F32(&x);
    let given = if by_pair { DeviceExpertInput::Pairs(rows) } else { DeviceExpertInput::Tokens(rows) };
    there.forward_on_device(given, routes, Some(weights), &mut y, &mut workspace)?;
    let held = gpu.memory_held()?;
    there.forward_on_device(given, routes, Some(weights), &mut y, &mut workspace)?;
    assert_eq!(gpu.memory_held()?, held, "a run takes no memory");
    workspace.finish()?;
    assert!(bits(&y.to_vec()?) == bits(&expected), "{}, on the device", there.format().name);
    if !by_pair {
        y.write(&vec![f32::NAN; tokens * N])?;
        let shared = there.quantize_on_device(rows, tokens, &mut activations)?;
        let shared = DeviceExpertInput::Quantized(&shared);
        there.forward_on_device(shared, routes, Some(weights), &mut y, &mut workspace)?;
        activations.finish()?;
        assert!(bits(&y.to_vec()?) == bits(&expected), "{}, quantized", there.format().name);
    }
    Ok(())
}

#[test]
fn a_token_through_several_experts_is_one_launch() {
    on_a_device("a_token_through_several_experts_is_one_launch", || {
        let format = tried().next().expect("one is tried");
        let (count, k) = (16, 256);
        let mut experts = experts(format, count, k, GPU, Packings::One);
        let recording = Recording::new(&REGISTRY);
        experts.record(Some(&recording)).expect("the same registry");
        let list = [3, 15, 0, 7, 1, 9, 12, 4];
        let routes = Routes::each(1, 8, &list).expect("lists");
        let threads = Threads::single();
        let mut workspace = experts.workspace(1, 8, &threads).expect("memory");
        let mut y = vec![f32::NAN; 8 * N];
        let x = values(k, 1);
        let input = ExpertInput::Tokens(Input::F32(&x));
        experts.forward(input, &routes, None, &mut y, &mut workspace, &threads).expect("runs");
        let receipt = recording.receipt();
        let launches: Vec<(&str, u64)> =
            receipt.kernels().iter().map(|kernel| (kernel.name(), kernel.launches())).collect();
        assert!(launches.len() == 2 && launches.iter().all(|(_, count)| *count == 1), "{launches:?}");
    });
}

#[test]
fn lists_that_lie_on_the_device_are_sorted_there() {
    on_a_device("lists_that_lie_on_the_device_are_sorted_there", || {
        for format in tried() {
            for packings in [Packings::One, Packings::Fastest] {
                routed(format, packings).expect("no error");
            }
        }
    });
}

/// Experts of each token, all different; the last one has none.
fn routes_of(tokens: usize, each: usize, count: usize, seed: usize) -> Vec<u32> {
    (0..tokens)
        .flat_map(|token| (0..each).map(move |i| ((seed + 3 * token + i) % (count - 1)) as u32))
        .collect()
}

fn routed(format: &'static FormatInfo, packings: Packings) -> Result<(), Error> {
    let (count, k, each) = (6, format.elements.max(128), 3);
    let (gpu, threads) = (Gpu::open(0)?, Threads::single());
    let here = experts(format, count, k, Device::CPU, packings);
    let mut there = experts(format, count, k, GPU, packings);
    let recording = Recording::new(&REGISTRY);
    there.record(Some(&recording))?;
    for (tokens, by_pair) in [(1, false), (5, false), (5, true), (40, false)] {
        let pairs = tokens * each;
        let weights = values(pairs, 3);
        let mut on_cpu = here.workspace(tokens, pairs, &threads)?;
        let mut expected = |seed: usize, x: &[f32], weights: Option<&[f32]>| -> Result<Vec<u32>, Error> {
            let list = routes_of(tokens, each, count, seed);
            let routes = Routes::each(tokens, each, &list)?;
            let mut y = vec![f32::NAN; if weights.is_some() { tokens } else { pairs } * N];
            let x = Input::F32(x);
            let input = if by_pair { ExpertInput::Pairs(x) } else { ExpertInput::Tokens(x) };
            here.forward(input, &routes, weights, &mut y, &mut on_cpu, &threads)?;
            Ok(bits(&y))
        };
        let rows = if by_pair { pairs } else { tokens } * k;
        let mut list = DeviceBuffer::of(&gpu, &routes_of(tokens, each, count, 0))?;
        let mut x = DeviceBuffer::of(&gpu, &values(rows, 1))?;
        let factors = DeviceBuffer::of(&gpu, &weights)?;
        let mut sums = DeviceBuffer::of(&gpu, &vec![f32::NAN; tokens * N])?;
        let mut y = DeviceBuffer::of(&gpu, &vec![f32::NAN; pairs * N])?;
        let mut workspace = Workspace::new();
        let case = format!("{}, {packings:?}, {tokens} tokens, {by_pair}", format.name);
        let mut step = |list: &DeviceBuffer<u32>, x: &DeviceBuffer<f32>| -> Result<(), Error> {
            let routes = DeviceRoutes::each(tokens, each, list)?;
            let x = DeviceInput::F32(x);
            let input = if by_pair { DeviceExpertInput::Pairs(x) } else { DeviceExpertInput::Tokens(x) };
            there.forward_routed_on_device(input, &routes, Some(&factors), &mut sums, &mut workspace)?;
            there.forward_routed_on_device(input, &routes, None, &mut y, &mut workspace)
        };
        step(&list, &x)?;
        let held = gpu.memory_held()?;
        let graph = gpu.capture(|| step(&list, &x))?;
        // What was captured goes by the lists that are there when it is launched.
        for seed in [0, 1, 4] {
            list.write(&routes_of(tokens, each, count, seed))?;
            let input = values(rows, 1 + seed as u32);
            x.write(&input)?;
            graph.launch()?;
            assert!(bits(&sums.to_vec()?) == expected(seed, &input, Some(&weights))?, "{case}, {seed}: sums");
            assert!(bits(&y.to_vec()?) == expected(seed, &input, None)?, "{case}, {seed}");
        }
        assert_eq!(gpu.memory_held()?, held, "{case}: a run takes no memory");
        workspace.finish()?;
    }
    let receipt = recording.receipt();
    assert!(receipt.kernels().iter().any(|kernel| kernel.name().starts_with("matmul.")), "{receipt:?}");
    wrong_lists(&gpu, &there, (count, k))
}

#[test]
fn a_graph_keeps_the_weights_of_all_experts() {
    on_a_device("a_graph_keeps_the_weights_of_all_experts", || kept().expect("no error"));
}

fn kept() -> Result<(), Error> {
    let (format, count, k) = (tried().next().expect("one is tried"), 4, 128);
    let gpu = Gpu::open(0)?;
    let x = DeviceBuffer::of(&gpu, &values(k, 1))?;
    let mut y = DeviceBuffer::of(&gpu, &vec![f32::NAN; 3 * N])?;
    let list = DeviceBuffer::of(&gpu, &[3u32, 0, 2])?;
    let mut workspace = Workspace::new();
    let graph = {
        let there = experts(format, count, k, GPU, Packings::One);
        let mut step = || {
            let (input, routes) =
                (DeviceExpertInput::Tokens(DeviceInput::F32(&x)), DeviceRoutes::each(1, 3, &list)?);
            there.forward_routed_on_device(input, &routes, None, &mut y, &mut workspace)
        };
        step()?;
        gpu.capture(step)?
    };
    let expected = bits(&y.to_vec()?);
    y.write(&vec![f32::NAN; 3 * N])?;
    graph.launch()?;
    assert!(bits(&y.to_vec()?) == expected);
    workspace.finish()
}

/// What is wrong with a list is told by its place, by whoever finishes, and the next run is as if it had not been.
fn wrong_lists(gpu: &std::sync::Arc<Gpu>, there: &Experts, (count, k): (usize, usize)) -> Result<(), Error> {
    let x = DeviceBuffer::of(gpu, &values(2 * k, 1))?;
    let mut y = DeviceBuffer::of(gpu, &vec![f32::NAN; 4 * N])?;
    let mut workspace = Workspace::new();
    let mut run = |list: &[u32]| -> Result<Vec<u32>, Error> {
        let list = DeviceBuffer::of(gpu, list)?;
        let input = DeviceExpertInput::Tokens(DeviceInput::F32(&x));
        let routes = DeviceRoutes::each(2, 2, &list)?;
        there.forward_routed_on_device(input, &routes, None, &mut y, &mut workspace)?;
        workspace.finish()?;
        Ok(bits(&y.to_vec()?))
    };
    let good = run(&[0, 1, 2, 0])?;
    for expert in [count as u32, u32::MAX] {
        let missing = run(&[0, 1, 2, expert]).unwrap_err();
        assert_eq!(missing, Error::NoSuchExpert { token: 1, position: 1, expert, experts: count });
    }
    let twice = run(&[0, 0, count as u32, 2]).unwrap_err();
    assert_eq!(twice, Error::DuplicateExpert { token: 0, position: 1, expert: 0 });
    assert_eq!(run(&[0, 1, 2, 0])?, good);
    // Sizes, places, and nothing at all.
    let list = DeviceBuffer::of(gpu, &[0u32, 1, 2, 0])?;
    assert!(matches!(DeviceRoutes::each(3, 2, &list), Err(Error::ShapeMismatch { .. })));
    let mut sums = DeviceBuffer::of(gpu, &vec![5.0; 2 * N])?;
    let few = DeviceBuffer::of(gpu, &[1.0f32; 3])?;
    let (input, routes) = (DeviceExpertInput::Tokens(DeviceInput::F32(&x)), DeviceRoutes::each(2, 2, &list)?);
    let mut workspace = Workspace::new();
    for weights in [Some(&few), None] {
        let error =
            there.forward_routed_on_device(input, &routes, weights, &mut sums, &mut workspace).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    }
    let none = DeviceBuffer::<u32>::zeroed(gpu, 0)?;
    let (routes, weights) = (DeviceRoutes::each(2, 0, &none)?, DeviceBuffer::<f32>::zeroed(gpu, 0)?);
    there.forward_routed_on_device(input, &routes, Some(&weights), &mut sums, &mut workspace)?;
    assert!(sums.to_vec()?.iter().all(|sum| sum.to_bits() == 0));
    Ok(())
}

/// A kernel without a grouped form takes an expert with many tokens, others go through a grouped one.
#[test]
fn an_expert_with_many_tokens_has_its_own_kernel() {
    let Some(device) = images::with_warpgroups().or_else(|| images::devices().into_iter().nth(1)) else {
        return;
    };
    if let Some(output) = parent("an_expert_with_many_tokens_has_its_own_kernel", &device) {
        assert_eq!(said(&output), "", "all memory is given back");
    }
    if is_child() {
        many_tokens().expect("no error");
    }
}

fn many_tokens() -> Result<(), Error> {
    let (format, count, k, tokens) = (tried().next().expect("one is tried"), 4, 128, 515);
    let threads = Threads::single();
    let list: Vec<u32> = (0..tokens).flat_map(|token| [0, 1 + token as u32 % 3]).collect();
    let routes = Routes::each(tokens, 2, &list)?;
    let x = values(tokens * k, 1);
    let input = ExpertInput::Tokens(Input::F32(&x));
    let recording = Recording::new(&REGISTRY);
    let run = |mut experts: Experts| -> Result<Vec<u32>, Error> {
        experts.record(Some(&recording))?;
        let mut workspace = experts.workspace(tokens, list.len(), &threads)?;
        let mut y = vec![f32::NAN; list.len() * N];
        experts.forward(input, &routes, None, &mut y, &mut workspace, &threads)?;
        Ok(bits(&y))
    };
    let expected = run(experts(format, count, k, Device::CPU, Packings::One))?;
    let found = run(experts(format, count, k, GPU, Packings::One))?;
    assert!(found == expected);
    let receipt = recording.receipt();
    let products = receipt.kernels().iter().filter(|kernel| kernel.name().contains(".cuda."));
    let products = products.filter(|kernel| kernel.name().starts_with("matmul."));
    assert!(products.clone().count() >= 2, "one kernel for 515 tokens and one for 172: {receipt:?}");
    Ok(())
}

#[test]
fn what_experts_on_a_gpu_refuse() {
    if let Some(output) = parent("what_experts_on_a_gpu_refuse", &settings()) {
        assert_eq!(said(&output), "", "all memory is given back");
    }
    if is_child() {
        refused().expect("no error");
    }
}

fn refused() -> Result<(), Error> {
    let (format, count, k) = (tried().next().expect("one is tried"), 4, 128);
    let (gpu, threads) = (Gpu::open(0)?, Threads::single());
    let there = experts(format, count, k, GPU, Packings::One);
    let x = values(2 * k, 1);
    let on_gpu = DeviceBuffer::of(&gpu, &x)?;
    let mut y = DeviceBuffer::of(&gpu, &vec![5.0; 4 * N])?;
    let mut workspace = there.workspace(2, 4, &threads)?;
    let input = DeviceExpertInput::Tokens(DeviceInput::F32(&on_gpu));
    let mut run = |list: &[u32], weights: Option<&[f32]>, y: &mut DeviceBuffer<f32>| {
        let routes = Routes::each(2, list.len() / 2, list)?;
        there.forward_on_device(input, &routes, weights, y, &mut workspace)
    };
    let missing = run(&[1, 2, 3, 4], None, &mut y).unwrap_err();
    assert_eq!(missing, Error::NoSuchExpert { token: 1, position: 1, expert: 4, experts: 4 });
    let twice = run(&[1, 2, 3, 3], None, &mut y).unwrap_err();
    assert_eq!(twice, Error::DuplicateExpert { token: 1, position: 1, expert: 3 });
    let mut sums = DeviceBuffer::of(&gpu, &vec![5.0; 2 * N])?;
    let error = run(&[1, 2, 3, 0], Some(&[1.0, 2.0, 3.0, f32::NAN]), &mut sums).unwrap_err();
    assert_eq!(error, Error::NonFiniteWeight { token: 1, position: 1 });
    for weights in [None, Some(&[1.0, 2.0, 3.0][..])] {
        let error = run(&[1, 2, 3, 0], weights, &mut sums).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    }
    // Nothing was written by any of them.
    assert!(y.to_vec()?.iter().chain(&sums.to_vec()?).all(|y| *y == 5.0));
    // No experts at all: sums of nothing.
    run(&[], Some(&[]), &mut sums)?;
    assert!(sums.to_vec()?.iter().all(|y| y.to_bits() == 0));
    // A graph can't hold the copies of lists.
    let error = gpu.capture(|| run(&[1, 2, 3, 0], None, &mut y)).unwrap_err();
    assert!(matches!(error, Error::Capturing { .. }), "{error}");
    // A row that is not finite is told by its number, and the next run is as if it had not been.
    run(&[1, 2, 3, 0], None, &mut y)?;
    let good = bits(&y.to_vec()?);
    let mut bad = x.clone();
    bad[k + 9] = f32::INFINITY;
    let bad = DeviceBuffer::of(&gpu, &bad)?;
    let routes = Routes::each(2, 2, &[1, 2, 3, 0])?;
    let given = DeviceExpertInput::Tokens(DeviceInput::F32(&bad));
    there.forward_on_device(given, &routes, None, &mut y, &mut workspace)?;
    assert_eq!(workspace.finish().unwrap_err(), Error::NonFinite { row: 1, column: 9 });
    there.forward_on_device(input, &routes, None, &mut y, &mut workspace)?;
    workspace.finish()?;
    assert!(bits(&y.to_vec()?) == good);
    // Elsewhere, too small, in the output.
    let here = experts(format, count, k, Device::CPU, Packings::One);
    let error = here.forward_on_device(input, &routes, None, &mut y, &mut workspace).unwrap_err();
    assert!(matches!(error, Error::CannotDrive { .. }), "{error}");
    let error = there.forward_on_device(input, &routes, None, &mut y, &mut Workspace::new()).unwrap_err();
    assert!(matches!(error, Error::WorkspaceTooSmall { .. }), "{error}");
    let own = DeviceBuffer::of(&gpu, &vec![0.5; 4 * N.max(k)])?;
    let (rows, mut results) = (own.view(0..2 * k)?, own.view(0..4 * N)?);
    let within = DeviceExpertInput::Tokens(DeviceInput::F32(&rows));
    let error = there.forward_on_device(within, &routes, None, &mut results, &mut workspace).unwrap_err();
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    Ok(())
}

/// More tokens than a device has memory for, by token and by pair, with sums and without: in parts, with the same bits, and what is wrong with
/// one of them is told of that one.
#[test]
fn tokens_that_are_too_many_at_once_run_in_parts() {
    const NAME: &str = "tokens_that_are_too_many_at_once_run_in_parts";
    parent(NAME, &format!("{},memory=100000", settings()));
    if is_child() {
        in_parts().expect("no error");
    }
}

fn in_parts() -> Result<(), Error> {
    let (format, count, k, tokens) = (tried().next().expect("one is tried"), 4, 256, 90);
    let (ends, list) = lists(tokens, count);
    let routes = Routes::lists(&ends, &list)?;
    let threads = Threads::single();
    let here = experts(format, count, k, Device::CPU, Packings::One);
    let mut there = experts(format, count, k, GPU, Packings::One);
    let pairs = routes.pairs();
    let (x, of_sums) = (values(pairs.max(tokens) * k, 3), values(pairs, 9));
    assert!(4 * tokens * k > 90_000, "activations alone are most of the memory");
    for (by_pair, sums) in [(false, true), (false, false), (true, true), (true, false)] {
        let recording = Recording::new(&REGISTRY);
        there.record(Some(&recording))?;
        let rows = if by_pair { pairs } else { tokens };
        let weights = sums.then_some(&of_sums[..]);
        let run = |experts: &Experts, x: &[f32]| {
            let x = Input::F32(&x[..rows * k]);
            let input = if by_pair { ExpertInput::Pairs(x) } else { ExpertInput::Tokens(x) };
            let mut y = vec![f32::NAN; if sums { tokens } else { pairs } * N];
            let mut workspace = experts.workspace(tokens, pairs, &threads)?;
            experts.forward(input, &routes, weights, &mut y, &mut workspace, &threads)?;
            Ok::<_, Error>(bits(&y))
        };
        let what = format!("by pair {by_pair}, sums {sums}");
        assert_eq!(run(&there, &x)?, run(&here, &x)?, "{what}");
        // Once, however many parts there were.
        let receipt = recording.receipt();
        let [step] = receipt.recoveries() else { panic!("{what}: one step: {receipt:?}") };
        assert_eq!((step.step, step.attempt, step.success), (RecoveryStep::InParts, 1, true), "{what}");
        assert_eq!((step.format.as_str(), step.kernel.contains(".cuda")), (format.name, true), "{what}");
        let mut wrong = x.clone();
        wrong[(rows - 5) * k + 7] = f32::NAN;
        let error = run(&there, &wrong).expect_err("not finite");
        assert!(matches!(error, Error::NonFinite { row, column: 7 } if row == rows - 5), "{what}: {error}");
    }
    // An expert that there is not, which is seen after the tokens in front of it went.
    let mut list = list;
    let last = list.len() - 1;
    list[last] = 99;
    let mut y = vec![f32::NAN; tokens * N];
    let mut workspace = there.workspace(tokens, pairs, &threads)?;
    let routes = Routes::lists(&ends, &list)?;
    let input = ExpertInput::Tokens(Input::F32(&x[..tokens * k]));
    let error = there.forward(input, &routes, Some(&of_sums), &mut y, &mut workspace, &threads);
    let token = ends.iter().position(|end| *end > last).expect("a token");
    match error {
        Err(Error::NoSuchExpert { token: found, expert: 99, .. }) => assert_eq!(found, token),
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// What a process says when no allocation failed.
const THROUGH: &str = "ran through";

/// Every allocation of making experts and of a first run fails once: a typed error, and nothing is held.
#[test]
fn experts_without_memory_say_so() {
    let mut allocations = 0;
    while let Some(output) =
        parent("experts_without_memory_say_so", &format!("{},oom_after={allocations}", settings()))
    {
        assert_eq!(said(&output), "", "{allocations}: all memory is given back");
        if String::from_utf8_lossy(&output.stdout).contains(THROUGH) {
            assert!(allocations > 10, "weights, lists, activations and results are memory: {allocations}");
            break;
        }
        allocations += 1;
    }
    if is_child() {
        without_memory();
    }
}

fn without_memory() {
    let (format, k) = (tried().next().expect("one is tried"), 128);
    let bytes = quantized(format, &values(N * k, 7), N, k);
    let matrices = [(); 2].map(|()| QuantizedMatrix::new(format, N, k, &bytes).expect("the right size"));
    let restrict = Some(Restrict::default());
    let options = LinearOptions { device: GPU, restrict, ..LinearOptions::default() };
    let threads = Threads::single();
    let outcome = Experts::new(&REGISTRY, &matrices, &options, &threads).and_then(|experts| {
        let mut workspace = experts.workspace(3, 5, &threads)?;
        let routes = Routes::lists(&[2, 3, 5], &[1, 0, 0, 0, 1])?;
        let x = values(3 * k, 1);
        let mut y = vec![f32::NAN; 3 * N];
        let input = ExpertInput::Tokens(Input::F32(&x));
        experts.forward(input, &routes, Some(&[0.5; 5]), &mut y, &mut workspace, &threads)
    });
    match outcome {
        Ok(()) => println!("{THROUGH}"),
        Err(Error::OutOfDeviceMemory { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}
