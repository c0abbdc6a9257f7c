//! What cuBLASLt multiplies, and whether its results are right. Random numbers, as our own products get: on zeros a device
//! draws less power and keeps higher clocks.

use super::Kind;
use gristmill::half::f16;
use gristmill::oracle::Random;

/// Results that are computed again here, at most.
const CHECKED: usize = 64;
/// Rows of weights that differ; others repeat them, as in our own tensors: making random numbers takes longer than multiplying.
const DISTINCT: usize = 64;
/// Of f16 results: of the sum of magnitudes that went into one.
const TOLERANCE: f64 = 2e-3;

/// Weights (`n` rows of `k`) and activations (`m` rows of `k`) as the library reads them.
pub struct Operands {
    pub weights: Vec<u8>,
    pub x: Vec<u8>,
}

impl Operands {
    /// Of a normal distribution; as int8 scaled so that four standard deviations are 127, as the largest of some thousand
    /// activations is.
    pub fn random(kind: Kind, (m, n, k): (usize, usize, usize)) -> Operands {
        let mut random = Random::new(1, kind.name());
        let mut numbers = |count: usize| -> Vec<u8> {
            let each = random.gauss_vec(count, 1.0).into_iter();
            match kind {
                // The cast saturates.
                Kind::Int8 => each.map(|value| ((value * 127.0 / 4.0).round() as i8) as u8).collect(),
                Kind::F16 => each.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
            }
        };
        let mut weights = numbers(n.min(DISTINCT) * k).repeat(n.div_ceil(DISTINCT));
        weights.truncate(n * k * kind.width());
        Operands { weights, x: numbers(m * k) }
    }

    fn value(kind: Kind, bytes: &[u8], at: usize) -> f64 {
        match kind {
            Kind::Int8 => f64::from(bytes[at] as i8),
            Kind::F16 => f64::from(f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])),
        }
    }
}

/// Compares some of a product's results (row after row of `n` outputs a token) with sums in f64.
///
/// # Errors
/// The first that is wrong.
pub fn check(
    kind: Kind,
    operands: &Operands,
    (m, n, k): (usize, usize, usize),
    result: &[u8],
) -> Result<(), String> {
    let count = m * n;
    for turn in 0..CHECKED.min(count) {
        let at = turn * (count / CHECKED.min(count));
        let (token, row) = (at / n, at % n);
        let terms = (0..k).map(|i| {
            Operands::value(kind, &operands.weights, row * k + i)
                * Operands::value(kind, &operands.x, token * k + i)
        });
        let (sum, magnitude) =
            terms.fold((0.0, 0.0), |(sum, magnitude), term: f64| (sum + term, magnitude + term.abs()));
        let (found, allowed) = match kind {
            Kind::Int8 => {
                let bytes = [0, 1, 2, 3].map(|byte| result[4 * at + byte]);
                (f64::from(i32::from_le_bytes(bytes)), 0.0)
            }
            Kind::F16 => (Operands::value(kind, result, at), TOLERANCE * magnitude),
        };
        let difference = (found - sum).abs();
        if difference.is_nan() || difference > allowed {
            return Err(format!("its result is wrong: row {row} of token {token} is {found}, and not {sum}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a right library gives, by another way of summing.
    fn product(kind: Kind, operands: &Operands, (m, n, k): (usize, usize, usize)) -> Vec<u8> {
        let mut out = Vec::new();
        for token in 0..m {
            for row in 0..n {
                match kind {
                    Kind::Int8 => {
                        let (w, x) = (&operands.weights[row * k..][..k], &operands.x[token * k..][..k]);
                        let sum: i32 =
                            w.iter().zip(x).map(|(w, x)| i32::from(*w as i8) * i32::from(*x as i8)).sum();
                        out.extend(sum.to_le_bytes());
                    }
                    Kind::F16 => {
                        let halves = |bytes: &[u8], at: usize| -> Vec<f32> {
                            let row = bytes[2 * at * k..][..2 * k].chunks_exact(2);
                            row.map(|two| f16::from_le_bytes([two[0], two[1]]).to_f32()).collect()
                        };
                        let (w, x) = (halves(&operands.weights, row), halves(&operands.x, token));
                        let sum: f32 = w.iter().zip(&x).map(|(w, x)| w * x).sum();
                        out.extend(f16::from_f32(sum).to_le_bytes());
                    }
                }
            }
        }
        out
    }

    #[test]
    fn right_results_pass_and_wrong_ones_are_named() {
        let shape = (3, 20, 64);
        for kind in [Kind::Int8, Kind::F16] {
            let operands = Operands::random(kind, shape);
            assert!(
                operands.weights.iter().any(|byte| *byte != 0)
                    && operands.weights.len() == 20 * 64 * kind.width()
            );
            let mut result = product(kind, &operands, shape);
            assert_eq!(check(kind, &operands, shape, &result), Ok(()));
            // The highest byte of the first result of the second token.
            let width = result.len() / 60;
            result[20 * width + width - 1] ^= 0x40;
            let why = check(kind, &operands, shape, &result).expect_err("wrong");
            assert!(why.starts_with("its result is wrong: row 0 of token 1 is "), "{why}");
        }
    }
}
