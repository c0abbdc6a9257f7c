//! How large a job is.

/// The shape of a job. `n` and `k` are the weights (rows, elements of a row), `m` the tokens; jobs
/// without activations (quantize, dequantize) have `m = 1`, jobs without weights `n = 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Tokens: rows of the activations.
    pub m: usize,
    /// Outputs: rows of the weights.
    pub n: usize,
    /// Inner dimension.
    pub k: usize,
}

impl Shape {
    /// A matrix product.
    pub const fn new(m: usize, n: usize, k: usize) -> Shape {
        Shape { m, n, k }
    }

    /// A matrix of `n` rows of `k` (quantize, dequantize).
    pub const fn matrix(n: usize, k: usize) -> Shape {
        Shape { m: 1, n, k }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "m={} n={} k={}", self.m, self.n, self.k)
    }
}
