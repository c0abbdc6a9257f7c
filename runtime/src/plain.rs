//! The fallback of last resort: weights dequantized to f32, and a plain f32 product.
//!
//! It is portable Rust without fused multiply-add, in an order of additions that does not depend on
//! threads, so that a result can be reproduced. It is not meant to be fast.

use crate::activations::Input;
use crate::aligned::Aligned;
use crate::error::Error;
use crate::registry::ActivationInfo;
use crate::threads::{Threads, share};
use crate::workspace::{Workspace, WorkspaceSize};

/// Partial sums of a dot product, so that it does not wait for each addition.
const LANES: usize = 16;

/// Dequantized weights.
#[derive(Debug)]
pub(crate) struct PlainWeights {
    pub(crate) values: Aligned<f32>,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// What the scales of int8 input mean.
    pub(crate) activations: &'static ActivationInfo,
}

/// Some outputs: whole tokens, or a run of columns of one token.
struct Part<'y> {
    token: usize,
    column: usize,
    y: &'y mut [f32],
}

impl PlainWeights {
    /// Scales of int8 input that belong to a row.
    pub(crate) fn blocks(&self) -> usize {
        self.activations.block.map_or(1, |block| self.k.div_ceil(block.max(1)).max(1))
    }

    pub(crate) fn workspace_size(&self, m: usize) -> Result<WorkspaceSize, Error> {
        let rows = m.checked_mul(self.k).ok_or(Error::TooLarge { what: "the workspace" })?;
        Ok(WorkspaceSize { rows, ..WorkspaceSize::default() })
    }

    /// `y = x w^T (+ bias)`. The caller checked the sizes; `m`, `n` and `k` are not 0.
    pub(crate) fn run(
        &self,
        input: Input<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let (n, k) = (self.n, self.k);
        let x: &[f32] = match input {
            Input::F32(x) => x,
            Input::F16(_) | Input::Bf16(_) | Input::I8 { .. } => {
                workspace.check(self.workspace_size(m)?)?;
                let rows = &mut workspace.rows[..m * k];
                self.convert(input, rows);
                rows
            }
        };
        if let Some(at) = x.iter().position(|x| !x.is_finite()) {
            return Err(Error::NonFinite { row: at / k, column: at % k });
        }
        let work = |tokens: usize| (tokens as u64).saturating_mul(n as u64).saturating_mul(k as u64);
        let parts = threads.parts(work(m), m);
        if m >= threads.count() {
            // Each part streams the weights once for all its tokens.
            let split = |part, left, all| Part::split(part, n, left, all);
            return threads.divide(parts, Part { token: 0, column: 0, y }, &split, &|part| {
                self.tokens(x, bias, part);
                Ok(())
            });
        }
        for (token, y) in y.chunks_exact_mut(n).enumerate() {
            let split = |part, left, all| Part::split(part, 1, left, all);
            threads.divide(threads.parts(work(1), n), Part { token, column: 0, y }, &split, &|part| {
                self.columns(x, bias, part);
                Ok::<(), Error>(())
            })?;
        }
        Ok(())
    }

    fn tokens(&self, x: &[f32], bias: Option<&[f32]>, part: Part<'_>) {
        for (row, w) in self.values.chunks_exact(self.k).enumerate() {
            let bias = bias.map_or(0.0, |bias| bias[row]);
            for (token, y) in part.y.chunks_exact_mut(self.n).enumerate() {
                y[row] = dot(&x[(part.token + token) * self.k..][..self.k], w) + bias;
            }
        }
    }

    fn columns(&self, x: &[f32], bias: Option<&[f32]>, part: Part<'_>) {
        let x = &x[part.token * self.k..][..self.k];
        for (i, y) in part.y.iter_mut().enumerate() {
            let row = part.column + i;
            *y = dot(x, &self.values[row * self.k..][..self.k]) + bias.map_or(0.0, |bias| bias[row]);
        }
    }

    fn convert(&self, input: Input<'_>, rows: &mut [f32]) {
        match input {
            Input::F32(x) => rows.copy_from_slice(x),
            Input::F16(x) => rows.iter_mut().zip(x).for_each(|(to, from)| *to = from.to_f32()),
            Input::Bf16(x) => rows.iter_mut().zip(x).for_each(|(to, from)| *to = from.to_f32()),
            Input::I8 { q, scales } => {
                let block = self.activations.block.unwrap_or(self.k).max(1);
                let rows = rows.chunks_mut(self.k).zip(q.chunks(self.k)).zip(scales.chunks(self.blocks()));
                for ((to, from), scales) in rows {
                    for ((to, from), scale) in to.chunks_mut(block).zip(from.chunks(block)).zip(scales) {
                        for (to, from) in to.iter_mut().zip(from) {
                            let q = f32::from(*from);
                            *to = if self.activations.keeps_multiplier { q / scale } else { q * scale };
                        }
                    }
                }
            }
        }
    }
}

impl<'y> Part<'y> {
    /// Cuts at a multiple of `piece` outputs: `n` for whole tokens, 1 for columns.
    fn split(self, piece: usize, left: usize, all: usize) -> (Part<'y>, Part<'y>) {
        let pieces = share(self.y.len() / piece.max(1), left, all);
        let (first, second) = self.y.split_at_mut(pieces * piece);
        let (tokens, columns) = if piece == 1 { (0, pieces) } else { (pieces, 0) };
        (
            Part { token: self.token, column: self.column, y: first },
            Part { token: self.token + tokens, column: self.column + columns, y: second },
        )
    }
}

fn dot(x: &[f32], w: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (x_body, x_tail) = x.as_chunks::<LANES>();
    let (w_body, w_tail) = w.as_chunks::<LANES>();
    for (x, w) in x_body.iter().zip(w_body) {
        for i in 0..LANES {
            sums[i] += x[i] * w[i];
        }
    }
    let tail: f32 = x_tail.iter().zip(w_tail).map(|(x, w)| x * w).sum();
    sums.iter().sum::<f32>() + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_products() {
        let x: Vec<f32> = (0..37).map(|i| i as f32).collect();
        let w = vec![2.0; 37];
        assert_eq!(dot(&x, &w), 2.0 * 666.0);
        assert_eq!(dot(&[], &[]), 0.0);
    }

    #[test]
    fn parts_of_tokens_and_columns() {
        let mut y = [0.0; 12];
        let (a, b) = Part { token: 0, column: 0, y: &mut y }.split(4, 1, 3);
        assert_eq!((a.y.len(), b.y.len(), b.token, b.column), (4, 8, 1, 0));
        let mut y = [0.0; 12];
        let (a, b) = Part { token: 2, column: 0, y: &mut y }.split(1, 1, 2);
        assert_eq!((a.y.len(), b.y.len(), b.token, b.column), (6, 6, 2, 6));
    }
}
