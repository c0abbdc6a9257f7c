//! Rows on their way into the order of experts, and results on their way back.

use super::groups::Groups;
use super::routes::Routes;
use crate::activations::{Activations, RowLayout};
use crate::threads::{Threads, share};
use std::convert::Infallible;

/// Room for quantized rows in the order of places.
pub(super) struct Gathered<'w> {
    pub(super) first: usize,
    pub(super) q: &'w mut [i8],
    pub(super) scales: &'w mut [f32],
    pub(super) sums: &'w mut [i32],
}

impl Gathered<'_> {
    fn split(self, layout: &RowLayout, left: usize, all: usize) -> (Self, Self) {
        let rows = share(self.scales.len() / layout.blocks, left, all);
        let (q, q2) = self.q.split_at_mut(rows * layout.stride);
        let (scales, scales2) = self.scales.split_at_mut(rows * layout.blocks);
        let (sums, sums2) = self.sums.split_at_mut(rows * layout.units);
        let rest = Gathered { first: self.first + rows, q: q2, scales: scales2, sums: sums2 };
        (Gathered { first: self.first, q, scales, sums }, rest)
    }

    /// Copies the row of each place.
    pub(super) fn fill(self, x: &Activations<'_>, rows: &[u32], threads: &Threads) {
        let RowLayout { stride, blocks, units, .. } = x.layout;
        let split = |job, left, all| Gathered::split(job, &x.layout, left, all);
        let run = |job: Gathered<'_>| -> Result<(), Infallible> {
            let to =
                job.q.chunks_mut(stride).zip(job.scales.chunks_mut(blocks)).zip(job.sums.chunks_mut(units));
            for (((q, scales), sums), row) in to.zip(&rows[job.first..]) {
                let from = x.rows(*row as usize, 1);
                q.copy_from_slice(from.q);
                scales.copy_from_slice(from.scales);
                sums.copy_from_slice(from.sums);
            }
            Ok(())
        };
        let work = (rows.len() as u64).saturating_mul(stride as u64);
        match threads.divide(threads.parts(work, rows.len()), self, &split, &run) {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }
}

/// Results in the order of places to the caller's: for each pair its own, or with `weights` for each token the sum of its
/// pairs'. `n` is not 0.
pub(super) fn scatter(
    products: &[f32],
    n: usize,
    groups: &Groups<'_>,
    routes: &Routes<'_>,
    weights: Option<&[f32]>,
    y: &mut [f32],
    threads: &Threads,
) {
    let split = |(first, y): (usize, _), left, all| {
        let y: &mut [f32] = y;
        let mid = share(y.len(), left, all);
        let (before, behind) = y.split_at_mut(mid);
        ((first, before), (first + mid, behind))
    };
    let run = |(mut first, mut y): (usize, &mut [f32])| -> Result<(), Infallible> {
        while !y.is_empty() {
            let (row, column) = (first / n, first % n);
            let count = y.len().min(n - column);
            let (part, behind) = y.split_at_mut(count);
            let product = |pair: usize| &products[groups.place(pair) * n + column..][..count];
            match weights {
                None => part.copy_from_slice(product(row)),
                Some(weights) => {
                    part.fill(0.0);
                    for pair in routes.pairs_of(row) {
                        let weight = weights[pair];
                        for (y, product) in part.iter_mut().zip(product(pair)) {
                            *y += weight * product;
                        }
                    }
                }
            }
            first += count;
            y = behind;
        }
        Ok(())
    };
    let parts = threads.parts(products.len() as u64, y.len());
    match threads.divide(parts, (0, y), &split, &run) {
        Ok(()) => {}
        Err(never) => match never {},
    }
}
