//! Stacks of experts: each product has the bits of the expert's own layer, sums have their stated order, and what is wrong
//! with lists is told by its place.

use crate::toy::{FORMATS, REGISTRY, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::half::{bf16, f16};
use gristmill_runtime::vocab::DeviceKind;
use gristmill_runtime::{
    Device, Error, ExpertInput, Experts, Input, Linear, LinearOptions, QuantizedMatrix, Recording, Restrict,
    Routes, Threads, Workspace,
};

fn options() -> LinearOptions {
    LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() }
}

/// Matrices that differ: rows of one tall tensor.
fn matrices(format: usize, count: usize, n: usize, k: usize) -> Result<Vec<Vec<u8>>, Error> {
    let info = &FORMATS[format];
    let tall = if format == TAIL2 { tail2(count * n, k) } else { tiny8(count * n, k) };
    let bytes = n * info.row_bytes(k)?;
    let tail = &tall[count * bytes..];
    Ok(tall[..count * bytes].chunks(bytes.max(1)).map(|rows| [rows, tail].concat()).collect())
}

struct Case {
    experts: Experts,
    alone: Vec<Linear>,
    n: usize,
    k: usize,
}

impl Case {
    fn new(format: usize, count: usize, n: usize, k: usize) -> Result<Case, Error> {
        let bytes = matrices(format, count, n, k)?;
        let matrices = bytes.iter().map(|bytes| QuantizedMatrix::new(&FORMATS[format], n, k, bytes));
        let matrices: Vec<_> = matrices.collect::<Result<_, _>>()?;
        let threads = Threads::single();
        let alone = matrices.iter().map(|matrix| Linear::new(&REGISTRY, matrix, &options(), &threads));
        Ok(Case {
            alone: alone.collect::<Result<_, _>>()?,
            experts: Experts::new(&REGISTRY, &matrices, &options(), &threads)?,
            n,
            k,
        })
    }

    /// The product of one row with one expert, by a layer of its own.
    fn product(&self, expert: u32, row: Input<'_>) -> Result<Vec<f32>, Error> {
        let threads = Threads::single();
        let layer = &self.alone[expert as usize];
        let mut workspace = layer.workspace(1, &threads)?;
        let mut y = vec![f32::NAN; self.n];
        layer.forward(row, 1, None, &mut y, &mut workspace, &threads)?;
        Ok(y)
    }
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Lists of different lengths, empty ones among them, over `count` experts of which some get nothing.
fn lists(tokens: usize, count: usize) -> (Vec<usize>, Vec<u32>) {
    let (mut ends, mut list) = (Vec::new(), Vec::new());
    for token in 0..tokens {
        let length = [3, 0, 1, 2][token % 4].min(count - 1);
        // From above, so that lists are not in the order of experts.
        list.extend((0..length).rev().map(|i| ((token + i * 2) % (count - 1)) as u32));
        ends.push(list.len());
    }
    (ends, list)
}

#[test]
fn every_pair_gives_what_its_expert_gives_alone() -> Result<(), Error> {
    for format in [TAIL2, TINY8] {
        for (count, n) in [(6, 5), (4, 70), (9, 1)] {
            let case = Case::new(format, count, n, 24)?;
            let Case { k, .. } = case;
            for threads in [Threads::single(), Threads::new(3)?.with_grain(1)] {
                for tokens in [1, 2, 7, 20] {
                    let (ends, list) = lists(tokens, count);
                    let routes = Routes::lists(&ends, &list)?;
                    let pairs = list.len();
                    assert_eq!((routes.tokens(), routes.pairs()), (tokens, pairs));
                    let weights = noise(pairs, 5);
                    let mut workspace = case.experts.workspace(tokens, pairs, &threads)?;
                    for by_pair in [false, true] {
                        let x = noise(if by_pair { pairs } else { tokens } * k, 11);
                        let input = match by_pair {
                            true => ExpertInput::Pairs(Input::F32(&x)),
                            false => ExpertInput::Tokens(Input::F32(&x)),
                        };
                        let mut y = vec![f32::NAN; pairs * n];
                        case.experts.forward(input, &routes, None, &mut y, &mut workspace, &threads)?;
                        let mut sums = vec![f32::NAN; tokens * n];
                        let sum = Some(&weights[..]);
                        case.experts.forward(input, &routes, sum, &mut sums, &mut workspace, &threads)?;
                        let mut pair = 0;
                        for (token, end) in ends.iter().enumerate() {
                            let mut expected = vec![0.0f32; n];
                            while pair < *end {
                                let row = if by_pair { pair } else { token };
                                let product = case.product(list[pair], Input::F32(&x[row * k..][..k]))?;
                                assert_eq!(bits(&y[pair * n..][..n]), bits(&product), "pair {pair}");
                                for (sum, product) in expected.iter_mut().zip(&product) {
                                    *sum += weights[pair] * product;
                                }
                                pair += 1;
                            }
                            assert_eq!(bits(&sums[token * n..][..n]), bits(&expected), "token {token}");
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn halves_int8_and_quantized_rows_are_taken() -> Result<(), Error> {
    let case = Case::new(TAIL2, 5, 9, 24)?;
    let Case { k, n, .. } = case;
    let threads = Threads::new(2)?.with_grain(1);
    let list = [4, 0, 0, 1, 1, 3];
    let routes = Routes::each(3, 2, &list)?;
    let x = noise(3 * k, 2);
    let f16s: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let bf16s: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
    let q: Vec<i8> = x.iter().map(|x| (x * 127.0) as i8).collect();
    let scales = [90.0, 100.0, 110.0];
    let mut workspace = case.experts.workspace(3, 6, &threads)?;
    let row = |input: Input<'_>, token: usize| {
        let (from, to) = (token * k, (token + 1) * k);
        match input {
            Input::F16(_) => case.product(list[2 * token], Input::F16(&f16s[from..to])),
            Input::Bf16(_) => case.product(list[2 * token], Input::Bf16(&bf16s[from..to])),
            Input::I8 { .. } => {
                case.product(list[2 * token], Input::I8 { q: &q[from..to], scales: &scales[token..=token] })
            }
            Input::F32(_) => case.product(list[2 * token], Input::F32(&x[from..to])),
        }
    };
    let inputs =
        [Input::F32(&x), Input::F16(&f16s), Input::Bf16(&bf16s), Input::I8 { q: &q, scales: &scales }];
    for input in inputs {
        let mut y = vec![f32::NAN; 6 * n];
        let tokens = ExpertInput::Tokens(input);
        case.experts.forward(tokens, &routes, None, &mut y, &mut workspace, &threads)?;
        for token in 0..3 {
            assert_eq!(bits(&y[2 * token * n..][..n]), bits(&row(input, token)?), "{:?}", input.dtype());
        }
        let mut other = Workspace::of_size(case.experts.workspace_size(3, 6, &threads)?)?;
        let shared = case.experts.quantize(input, 3, &mut other, &threads)?;
        let mut again = vec![f32::NAN; 6 * n];
        let shared = ExpertInput::Quantized(&shared);
        case.experts.forward(shared, &routes, None, &mut again, &mut workspace, &threads)?;
        assert_eq!(bits(&y), bits(&again));
    }
    let row = Case::new(TINY8, 2, 9, 24)?.experts;
    assert!(case.experts.shares_activations_with(&case.experts));
    assert!(!case.experts.shares_activations_with(&row));
    let mut other = row.workspace(3, 6, &threads)?;
    let shared = row.quantize(Input::F32(&x), 3, &mut other, &threads)?;
    let mut y = vec![0.0; 6 * n];
    let shared = ExpertInput::Quantized(&shared);
    let refused = case.experts.forward(shared, &routes, None, &mut y, &mut workspace, &threads);
    assert!(matches!(refused, Err(Error::ActivationLayout { .. })), "{refused:?}");
    Ok(())
}

#[test]
fn wrong_lists_are_refused_by_place() -> Result<(), Error> {
    let case = Case::new(TAIL2, 3, 4, 24)?;
    let threads = Threads::single();
    let x = noise(2 * 24, 2);
    let mut workspace = case.experts.workspace(2, 4, &threads)?;
    let mut y = vec![7.0; 4 * 4];
    let mut forward = |list: &[u32], x: &[f32]| {
        let routes = Routes::each(2, 2, list)?;
        let input = ExpertInput::Tokens(Input::F32(x));
        case.experts.forward(input, &routes, None, &mut y, &mut workspace, &threads)
    };
    let beyond = Error::NoSuchExpert { token: 1, position: 0, expert: 3, experts: 3 };
    assert_eq!(forward(&[0, 1, 3, 0], &x), Err(beyond));
    let most = forward(&[0, u32::MAX, 0, 1], &x);
    assert_eq!(most, Err(Error::NoSuchExpert { token: 0, position: 1, expert: u32::MAX, experts: 3 }));
    let twice = Error::DuplicateExpert { token: 1, position: 1, expert: 2 };
    assert_eq!(forward(&[2, 1, 2, 2], &x), Err(twice));
    let mismatch = |what, expected, found| Error::ShapeMismatch { what, unit: "values", expected, found };
    assert_eq!(forward(&[0, 1, 2], &x), Err(mismatch("the list of experts", 4, 3)));
    assert_eq!(forward(&[0, 1, 2, 0], &x[1..]), Err(mismatch("activations", 48, 47)));
    let mut nan = x.clone();
    nan[24 + 7] = f32::NAN;
    assert_eq!(forward(&[0, 1, 2, 0], &nan), Err(Error::NonFinite { row: 1, column: 7 }));
    assert_eq!(forward(&[0, 1, 2, 0], &x), Ok(()));
    let ends = |ends: &[usize], list: &[u32]| Routes::lists(ends, list).map(drop);
    assert_eq!(ends(&[2, 1], &[0, 1]), Err(Error::ExpertLists { token: 1, begin: 2, end: 1 }));
    assert_eq!(ends(&[2, 3], &[0, 1]), Err(mismatch("the list of experts", 3, 2)));
    assert_eq!(ends(&[], &[0]), Err(mismatch("the list of experts", 0, 1)));
    let large = Routes::each(usize::MAX, 2, &[]).map(drop);
    assert_eq!(large, Err(Error::TooLarge { what: "the list of experts" }));
    Ok(())
}

#[test]
fn wrong_operands_are_refused_by_name() -> Result<(), Error> {
    let case = Case::new(TAIL2, 3, 4, 24)?;
    let threads = Threads::single();
    let x = noise(2 * 24, 2);
    let input = ExpertInput::Tokens(Input::F32(&x));
    let routes = Routes::each(2, 2, &[0, 1, 1, 2])?;
    let mut workspace = case.experts.workspace(2, 4, &threads)?;
    let mut y = [0.0; 17];
    let mismatch = |what, expected, found| Error::ShapeMismatch { what, unit: "values", expected, found };
    let mut forward = |input, weights: Option<&[f32]>, length: usize, workspace: &mut Workspace| {
        case.experts.forward(input, &routes, weights, &mut y[..length], workspace, &threads)
    };
    assert_eq!(forward(input, None, 17, &mut workspace), Err(mismatch("the output", 16, 17)));
    assert_eq!(forward(input, Some(&[1.0; 4]), 16, &mut workspace), Err(mismatch("the output", 8, 16)));
    let short = forward(input, Some(&[1.0; 3]), 8, &mut workspace);
    assert_eq!(short, Err(mismatch("the weights of the sum", 4, 3)));
    let nan = forward(input, Some(&[1.0, 1.0, 1.0, f32::INFINITY]), 8, &mut workspace);
    assert_eq!(nan, Err(Error::NonFiniteWeight { token: 1, position: 1 }));
    let small = forward(input, None, 16, &mut Workspace::new());
    assert!(matches!(small, Err(Error::WorkspaceTooSmall { .. })), "{small:?}");
    let mut of_layer = case.alone[0].workspace(9, &threads)?;
    let small = forward(input, None, 16, &mut of_layer);
    let what = "results of experts";
    assert_eq!(small, Err(Error::WorkspaceTooSmall { what, needed: 16, found: 0 }));
    let mut other = case.experts.workspace(2, 4, &threads)?;
    let shared = case.experts.quantize(Input::F32(&x[..24]), 1, &mut other, &threads)?;
    let one = forward(ExpertInput::Quantized(&shared), None, 16, &mut workspace);
    let what = "the quantized activations";
    assert_eq!(one, Err(Error::ShapeMismatch { what, unit: "tokens", expected: 2, found: 1 }));
    assert_eq!(forward(input, None, 16, &mut workspace), Ok(()));
    Ok(())
}

#[test]
fn nothing_to_do_is_done() -> Result<(), Error> {
    let case = Case::new(TAIL2, 3, 4, 24)?;
    let threads = Threads::single();
    let mut workspace = case.experts.workspace(2, 0, &threads)?;
    let none = Routes::each(0, 2, &[])?;
    let empty = ExpertInput::Tokens(Input::F32(&[]));
    case.experts.forward(empty, &none, None, &mut [], &mut workspace, &threads)?;
    // Tokens without an expert: no pairs, and sums of nothing.
    let x = noise(2 * 24, 2);
    let nowhere = Routes::each(2, 0, &[])?;
    let tokens = ExpertInput::Tokens(Input::F32(&x));
    case.experts.forward(tokens, &nowhere, None, &mut [], &mut workspace, &threads)?;
    let mut y = vec![f32::NAN; 8];
    case.experts.forward(tokens, &nowhere, Some(&[]), &mut y, &mut workspace, &threads)?;
    assert_eq!(y, [0.0; 8]);
    Ok(())
}

#[test]
fn experts_that_differ_are_refused() -> Result<(), Error> {
    let (a, b, c) = (tail2(4, 24), tail2(5, 24), tail2(4, 16));
    let eight = tiny8(4, 24);
    let [a, b, c] = [(4, 24, &a), (5, 24, &b), (4, 16, &c)]
        .map(|(n, k, bytes)| QuantizedMatrix::new(&FORMATS[TAIL2], n, k, bytes).expect("whole rows"));
    let eight = QuantizedMatrix::new(&FORMATS[TINY8], 4, 24, &eight)?;
    let threads = Threads::single();
    let make = |matrices: &[QuantizedMatrix<'_>]| {
        Experts::new(&REGISTRY, matrices, &options(), &threads).map(|experts| experts.count())
    };
    assert_eq!(make(&[a, a, a]), Ok(3));
    assert_eq!(make(&[]), Err(Error::NothingStacked));
    assert_eq!(make(&[a, eight]), Err(Error::MixedFormats { first: "tail2", other: "tiny8" }));
    let what = "an expert";
    assert_eq!(make(&[a, b]), Err(Error::ShapeMismatch { what, unit: "rows", expected: 4, found: 5 }));
    let shorter = Error::ShapeMismatch { what, unit: "elements a row", expected: 24, found: 16 };
    assert_eq!(make(&[a, c]), Err(shorter));
    let gpu = LinearOptions { device: Device { kind: DeviceKind::Cuda, index: 0 }, ..options() };
    let gpu = Experts::new(&REGISTRY, &[a], &gpu, &threads).map(drop);
    assert!(
        matches!(gpu, Err(Error::NoKernel(_))),
        "this registry has kernels of the processor alone: {gpu:?}"
    );
    Ok(())
}

#[test]
fn experts_of_several_matrices_give_the_outputs_of_each() -> Result<(), Error> {
    let (gate, up) = (matrices(TAIL2, 3, 5, 24)?, matrices(TAIL2, 3, 6, 24)?);
    let info = &FORMATS[TAIL2];
    let mut stacks = Vec::new();
    for (gate, up) in gate.iter().zip(&up) {
        stacks.push([QuantizedMatrix::new(info, 5, 24, gate)?, QuantizedMatrix::new(info, 6, 24, up)?]);
    }
    let threads = Threads::single();
    let mut experts = Experts::stacked(&REGISTRY, &stacks, &options(), &threads)?;
    let recording = Recording::new(&REGISTRY);
    experts.record(Some(&recording))?;
    assert_eq!((experts.count(), experts.n(), experts.k(), experts.format().name), (3, 11, 24, "tail2"));
    let x = noise(24, 3);
    let mut workspace = experts.workspace(1, 2, &threads)?;
    let mut y = vec![f32::NAN; 22];
    let routes = Routes::each(1, 2, &[2, 0])?;
    let input = ExpertInput::Tokens(Input::F32(&x));
    experts.forward(input, &routes, None, &mut y, &mut workspace, &threads)?;
    for (pair, expert) in [2, 0].into_iter().enumerate() {
        let layer = Linear::stacked(&REGISTRY, &stacks[expert], &options(), &threads)?;
        let mut alone = vec![f32::NAN; 11];
        layer.forward(Input::F32(&x), 1, None, &mut alone, &mut layer.workspace(1, &threads)?, &threads)?;
        assert_eq!(bits(&y[pair * 11..][..11]), bits(&alone));
    }
    // One launch for both experts, and one that quantized the token.
    let launches: Vec<u64> = recording.receipt().kernels().iter().map(|kernel| kernel.launches()).collect();
    assert_eq!(launches, [1, 1]);
    Ok(())
}
