//! Products over stacks of experts against the oracle, bit by bit, in every format that has a quantizer; and layers of
//! several formats that share their activations.
#![cfg(feature = "cli")]

use crate::random::Random;
use gristmill::oracle::{Int8Row, Oracle};
use gristmill::registry::FormatInfo;
use gristmill::{
    Batch, Error, ExpertInput, Experts, Input, Linear, LinearOptions, Output, QuantizedMatrix, Quantizer,
    REGISTRY, Request, Restrict, Routes, Threads,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const EXPERTS: usize = 5;
const N: usize = 37;

/// Rows of an expert, elements of a row (whole blocks from there on), and tokens: with three of five experts each, some experts
/// have one token, some more than a decode kernel takes, and the last one has many rows and tokens for several parts.
const SHAPES: [(usize, usize, usize); 3] = [(N, 128, 9), (N, 512, 9), (200, 384, 14)];

fn options() -> LinearOptions {
    LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() }
}

/// A tensor by the format's default quantizer; `None` if it has none.
fn quantized(format: &FormatInfo, n: usize, k: usize, seed: u64) -> Result<Option<Vec<u8>>, Error> {
    if format.quantizers.is_empty() {
        return Ok(None);
    }
    let prepared = REGISTRY.prepare(&Request::quantize(format.name, None, n, k))?;
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    let values = Random::new(seed, "grouped").gauss_vec(n * k, 0.1 * (seed + 1) as f32);
    Quantizer::new(&prepared.decide_as_asked())?.run(&values, n, k, &mut bytes)?;
    Ok(Some(bytes))
}

/// For token `t` the experts `0`, then two that move on with it; in falling order for odd tokens.
fn list(tokens: usize) -> Vec<u32> {
    let mut list = Vec::new();
    for token in 0..tokens {
        let second = if token < 7 { 1 } else { 2 };
        let mut own = [0, second, 3 + (token == 4) as u32];
        if token % 2 == 1 {
            own.reverse();
        }
        list.extend(own);
    }
    list
}

#[test]
fn experts_give_the_bits_of_the_oracle() -> Outcome {
    let oracle = Oracle::new(&REGISTRY)?;
    let mut tried = 0;
    for (format, (n, k, tokens)) in
        REGISTRY.formats.iter().flat_map(|format| SHAPES.map(|shape| (format, shape)))
    {
        let list = list(tokens);
        let weights: Vec<f32> = Random::new(1, "weights").gauss_vec(list.len(), 0.3);
        let k = k.next_multiple_of(format.elements);
        let tensors = (0..EXPERTS).map(|expert| quantized(format, n, k, expert as u64));
        let Some(tensors) = tensors.collect::<Result<Option<Vec<_>>, _>>()? else { continue };
        let of_format = oracle.format(format.name)?;
        let matrices = tensors.iter().map(|bytes| QuantizedMatrix::new(format, n, k, bytes));
        let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
        let rows = tensors.iter().map(|bytes| (0..n).map(|row| of_format.row(bytes, n, k, row)).collect());
        let rows = rows.collect::<Result<Vec<Vec<_>>, _>>()?;
        for threads in [Threads::single(), Threads::new(2)?.with_grain(1)] {
            let experts = Experts::new(&REGISTRY, &matrices, &options(), &threads)?;
            let mut workspace = experts.workspace(tokens, list.len(), &threads)?;
            let routes = Routes::each(tokens, 3, &list)?;
            for by_pair in [false, true] {
                let count = if by_pair { list.len() } else { tokens };
                let x = Random::new(by_pair.into(), format.name).gauss_vec(count * k, 1.0);
                let input = Input::F32(&x);
                let input = if by_pair { ExpertInput::Pairs(input) } else { ExpertInput::Tokens(input) };
                let mut y = vec![f32::NAN; list.len() * n];
                experts.forward(input, &routes, None, &mut y, &mut workspace, &threads)?;
                let mut sums = vec![f32::NAN; tokens * n];
                experts.forward(input, &routes, Some(&weights), &mut sums, &mut workspace, &threads)?;
                let mut expected_sums = vec![0.0f32; tokens * n];
                for (pair, expert) in list.iter().enumerate() {
                    let x = &x[if by_pair { pair } else { pair / 3 } * k..][..k];
                    let x = Int8Row::quantize(of_format.activations(), x).map_err(|_| "finite values")?;
                    for (row, weight) in rows[*expert as usize].iter().enumerate() {
                        let expected = of_format.product_f32(weight, &x.q, &x.scales, None);
                        let found = y[pair * n + row];
                        assert_eq!(
                            found.to_bits(),
                            expected.to_bits(),
                            "{}, pair {pair}, row {row}: {found}, expected {expected}",
                            format.name
                        );
                        expected_sums[pair / 3 * n + row] += weights[pair] * expected;
                    }
                }
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&sums), bits(&expected_sums), "{}", format.name);
            }
        }
        tried += 1;
    }
    println!("{tried} formats and shapes");
    assert!(tried > 15, "only {tried} formats and shapes were tried");
    Ok(())
}

#[test]
fn layers_of_several_formats_share_activations() -> Outcome {
    let k = 512;
    let mut layers = Vec::new();
    for format in REGISTRY.formats {
        let Some(bytes) = quantized(format, N, k, 3)? else { continue };
        let matrix = QuantizedMatrix::new(format, N, k, &bytes)?;
        layers.push((format.name, Linear::new(&REGISTRY, &matrix, &options(), &Threads::single())?));
    }
    let threads = Threads::new(2)?.with_grain(1);
    let mut shared_by_two_formats = 0;
    for m in [1, 5] {
        let x = Random::new(9, "shared").gauss_vec(m * k, 1.0);
        for (from, one) in &layers {
            let mut workspace = one.workspace(m, &threads)?;
            let shared = one.quantize(Input::F32(&x), m, &mut workspace, &threads)?;
            // All that read these activations, as one job.
            let readers = || layers.iter().filter(|(_, other)| one.shares_activations_with(other, m));
            let mut outputs = vec![f32::NAN; readers().count() * m * N];
            let mut batch = Batch::new();
            for ((_, other), y) in readers().zip(outputs.chunks_exact_mut(m * N)) {
                batch.push(other.product_of(&shared), Output::F32(y))?;
            }
            batch.run(&threads);
            let mut together = outputs.chunks_exact(m * N);
            for (to, other) in &layers {
                let mut y = vec![f32::NAN; m * N];
                let outcome = other.forward_quantized(&shared, None, &mut y, &threads);
                if !one.shares_activations_with(other, m) {
                    assert!(
                        matches!(outcome, Err(Error::ActivationLayout { .. })),
                        "{from} {to}: {outcome:?}"
                    );
                    continue;
                }
                outcome?;
                let mut alone = vec![f32::NAN; m * N];
                let mut own = other.workspace(m, &threads)?;
                other.forward(Input::F32(&x), m, None, &mut alone, &mut own, &threads)?;
                assert_eq!(y, alone, "{to} from the activations of {from}");
                let batched = together.next().ok_or("outputs of each that reads them")?;
                assert_eq!(batched, alone, "{to} in a batch of the activations of {from}");
                shared_by_two_formats += usize::from(from != to);
            }
        }
    }
    println!("{shared_by_two_formats} pairs of formats and numbers of tokens");
    assert!(shared_by_two_formats > 0);
    Ok(())
}
