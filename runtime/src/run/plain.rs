//! The fallback of last resort: weights dequantized to f32, and a plain f32 product.
//!
//! It is portable Rust without fused multiply-add, in an order of additions that does not depend on
//! threads, so that a result can be reproduced. It is not meant to be fast.

use crate::activations::{Input, InputRows, NonFinite};
use crate::error::Error;
use crate::memory::aligned::Aligned;
use crate::parallel::division::split_range;
use crate::registry::ActivationInfo;
use crate::run::product::Destination;
use crate::threads::Threads;
use crate::workspace::{Workspace, WorkspaceSize};
use std::ops::Range;

/// Partial sums of a dot product, so that it does not wait for each addition.
const LANES: usize = 16;

/// Dequantized weights.
#[derive(Debug)]
pub(crate) struct PlainWeights {
    pub(crate) values: Aligned<f32>,
    pub(crate) k: usize,
    /// What the scales of int8 input mean.
    pub(crate) activations: &'static ActivationInfo,
}

impl PlainWeights {
    /// Scales of int8 input that belong to a row.
    pub(crate) fn blocks(&self) -> usize {
        self.activations.block.map_or(1, |block| self.k.div_ceil(block.max(1)).max(1))
    }

    pub(crate) fn workspace_size(&self, m: usize) -> Result<WorkspaceSize, Error> {
        PlainWeights::workspace_of(m, self.k)
    }

    /// What a product of `m` rows of `k` needs.
    pub(crate) fn workspace_of(m: usize, k: usize) -> Result<WorkspaceSize, Error> {
        let rows = m.checked_mul(k).ok_or(Error::TooLarge { what: "the workspace" })?;
        Ok(WorkspaceSize { rows, ..WorkspaceSize::default() })
    }

    /// `y = x w^T (+ bias)`. `m`, the columns and `k` are not 0.
    pub(crate) fn run(
        &self,
        x: InputRows<'_>,
        into: Destination<'_>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let (m, k) = (x.m, self.k);
        let dense = match x.dense_input() {
            Some(Input::F32(values)) => Some(values),
            _ => None,
        };
        let rows: &[f32] = match dense {
            Some(values) => values,
            None => {
                workspace.check(self.workspace_size(m)?)?;
                let rows = &mut workspace.rows[..m * k];
                self.convert(x, rows)?;
                rows
            }
        };
        let is_finite = |row: &[f32]| row.iter().all(|x| x.is_finite());
        if x.non_finite == NonFinite::Refuse
            && let Some(at) = rows.iter().position(|x| !x.is_finite())
        {
            return Err(Error::NonFinite { row: at / k, column: at % k });
        }
        let first = into.rows.start;
        let work = (m as u64).saturating_mul(into.rows.len() as u64).saturating_mul(k as u64);
        let all = into.rows.len();
        let columns = into.into_columns();
        // Each part streams its weights once for all tokens.
        let run = |part: Range<usize>| {
            for column in part {
                let row = first + column;
                let w = &self.values[row * k..][..k];
                for (token, x) in rows.chunks_exact(k).enumerate() {
                    // SAFETY: a token and a row of `into`; parts have rows of their own.
                    unsafe { columns.put(token, column, &mut [dot(x, w)]) };
                }
            }
        };
        threads.divide_all(threads.parts(work, all), 0..all, &split_range, &run);
        if x.non_finite == NonFinite::Nan {
            for (token, _) in rows.chunks_exact(k).enumerate().filter(|(_, row)| !is_finite(row)) {
                // SAFETY: a token of the destination, and no part runs any more.
                unsafe { columns.set_nan(token, all) };
            }
        }
        Ok(())
    }

    /// To rows of f32, one behind the other.
    fn convert(&self, x: InputRows<'_>, rows: &mut [f32]) -> Result<(), Error> {
        let k = self.k;
        for (token, to) in rows.chunks_exact_mut(k).enumerate() {
            match x.input {
                Input::I8 { q, scales } => {
                    let scales = &scales[token * self.blocks()..][..self.blocks()];
                    let block = self.activations.block.unwrap_or(k).max(1);
                    match (scales.iter().position(|scale| !scale.is_finite()), x.non_finite) {
                        (None, _) => {}
                        (Some(_), NonFinite::Nan) => {
                            to.fill(f32::NAN);
                            continue;
                        }
                        (Some(block), NonFinite::Refuse) => {
                            return Err(Error::NonFiniteScale { row: token, block });
                        }
                    }
                    let from = x.int8(q, token).chunks(block);
                    for ((to, from), scale) in to.chunks_mut(block).zip(from).zip(scales) {
                        for (to, from) in to.iter_mut().zip(from) {
                            let q = f32::from(*from);
                            *to = if self.activations.keeps_multiplier { q / scale } else { q * scale };
                        }
                    }
                }
                Input::F32(_) | Input::F16(_) | Input::Bf16(_) => x.read(token, to),
            }
        }
        Ok(())
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
}
