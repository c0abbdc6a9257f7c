//! What is computed between products. Each function computes an element in one order of operations, whatever the processor, the
//! number of threads and the tokens beside it: multiplications and additions are not fused (those of attention always are, by `mul_add`,
//! which is exact everywhere and slow on x86 processors without FMA), sums run in sixteen lanes, and nothing else of the system's libm
//! is called. So logits are the same bits everywhere.

use crate::config::{Gate, RopePairs};
use multiversion::multiversion;

/// Partial sums that a sum of many elements has: those of one register of 512 bits, or of several smaller ones.
const LANES: usize = 16;

/// e^x, within 2 units in the last place from -87 to 88; beyond, what it is there. (Reduction by multiples of ln 2 in two parts,
/// and a polynomial of degree 6: Cephes' `expf`.)
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r
        + 1.666_666_5e-1)
        * r
        + 5e-1;
    let p = p * (r * r) + r + 1.0;
    let power = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    p * f32::from_bits(power)
}

/// The sum of a lane-wise map over two slices of one length.
#[inline(always)]
fn sum_of(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[lane] += a * b;
    }
    folded(lanes, |a, b| a + b)
}

/// One value of `N`, a power of two: halves are brought together again and again.
#[inline(always)]
fn folded<const N: usize>(mut all: [f32; N], both: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = N / 2;
    while width > 0 {
        for lane in 0..width {
            all[lane] = both(all[lane], all[lane + width]);
        }
        width /= 2;
    }
    all[0]
}

/// The sum of products.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    sum_of(a, b)
}

/// `y += x`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn add(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// `y += factor * x`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn add_scaled(factor: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// `y = x / sqrt(mean(x^2) + eps) * weight`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let factor = 1.0 / (sum_of(x, x) / x.len() as f32 + eps).sqrt();
    for (y, (x, weight)) in y.iter_mut().zip(x.iter().zip(weight)) {
        *y = x * factor * weight;
    }
}

/// [`norm`] where it lies.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let factor = 1.0 / (sum_of(x, x) / x.len() as f32 + eps).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * factor * weight;
    }
}

/// `y = act(gate) * up`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn gated(kind: Gate, gate: &[f32], up: &[f32], y: &mut [f32]) {
    match kind {
        Gate::Silu => {
            for (y, (gate, up)) in y.iter_mut().zip(gate.iter().zip(up)) {
                *y = gate / (1.0 + exp(-gate)) * up;
            }
        }
        Gate::SquaredRelu => {
            for (y, (gate, up)) in y.iter_mut().zip(gate.iter().zip(up)) {
                let positive = gate.max(0.0);
                *y = positive * positive * up;
            }
        }
    }
}

/// Softmax where it lies.
pub fn softmax(x: &mut [f32]) {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = exp(*x - most);
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}

/// Turns one head: pair `i` by the angle whose cosine and sine are `cos[i]` and `sin[i]`. Elements behind the pairs stay.
pub fn rotate(pairs: RopePairs, cos: &[f32], sin: &[f32], head: &mut [f32]) {
    let count = cos.len();
    for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
        let (a, b) = match pairs {
            RopePairs::Neighbours => (2 * i, 2 * i + 1),
            RopePairs::Halves => (i, i + count),
        };
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos - y * sin;
        head[b] = x * sin + y * cos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_that_of_f64() {
        let mut worst = 0.0f64;
        for i in -86_000..=88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / exact - 1.0).abs());
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(-1e30) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }

    /// Without fused operations, in the same lanes, one element after the other.
    #[test]
    fn sums_have_one_order() {
        let a: Vec<f32> = (0..133).map(|i| (i * 37 % 101) as f32 / 7.0 - 6.0).collect();
        let b: Vec<f32> = (0..133).map(|i| (i * 53 % 89) as f32 / 5.0 - 9.0).collect();
        let mut lanes = [0.0f32; 16];
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            let product = std::hint::black_box(a * b);
            lanes[i % 16] += product;
        }
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
        }
        assert_eq!(dot(&a, &b).to_bits(), lanes[0].to_bits());
    }
}
