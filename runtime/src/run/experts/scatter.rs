//! Results on their way back from the order of experts.

use super::groups::Groups;
use super::routes::Routes;
use crate::parallel::division::share;
use crate::threads::Threads;

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
    let run = |(mut first, mut y): (usize, &mut [f32])| {
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
    };
    let parts = threads.parts(products.len() as u64, y.len());
    threads.divide_all(parts, (0, y), &split, &run);
}
