//! Launches of products whose tokens go to matrices of their own.

use super::Launcher;
use super::order::Rows;
use super::product::{MatmulCode, Shared};
use crate::abi::MatmulArgs;
use crate::activations::Activations;
use crate::parallel::division::{granule_rows, split_range};
use crate::request::Shape;
use crate::threads::Threads;
use crate::weights::PackedMatrix;
use std::ops::Range;

/// One matrix with its tokens.
pub(crate) struct Group<'g> {
    pub(crate) weights: &'g PackedMatrix,
    /// Its tokens, one behind the other.
    pub(crate) x: Activations<'g>,
    /// Row of the output that its first token's results are.
    pub(crate) first: usize,
}

/// What is to be done: the rows of all matrices, weighted by what they cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct GroupedWork {
    /// Matrices with tokens.
    pub(crate) groups: usize,
    /// Tokens of all of them.
    pub(crate) tokens: usize,
}

/// What a granule of rows costs for so many tokens: reading and unpacking weights takes about as long as one token's
/// multiplications.
fn cost(tokens: usize) -> usize {
    tokens + 1
}

impl Launcher<MatmulCode> {
    /// The products of every group of `groups` (which are `work` together), whose matrices have `n > 0` rows of `k > 0`, as
    /// one launch. No group has no tokens, and each `Group::first` leaves its tokens their rows of `y`, which has `n`
    /// values for each. The caller has checked that this kernel reads the weights and that activations were laid out for it.
    pub(crate) fn grouped<'g, I>(
        &self,
        groups: impl Fn() -> I + Sync,
        work: GroupedWork,
        [n, k]: [usize; 2],
        y: &mut [f32],
        threads: &Threads,
    ) where
        I: Iterator<Item = Group<'g>>,
    {
        let mut bytes_in = 0;
        let (mut next, mut panel) = (0, 1);
        for Group { weights, x, first } in groups() {
            // The kernel writes these rows, so they are compared here once more, in safe code.
            assert!(
                first >= next && x.m > 0 && (weights.n, weights.k) == (n, k) && x.layout.k == k,
                "groups lie one behind the other, in one shape"
            );
            assert!(
                x.layout.units == weights.units
                    && x.q.len() == x.m * x.layout.stride
                    && x.scales.len() == x.m * x.layout.blocks
                    && x.sums.len() == x.m * x.layout.units,
                "rows are cut by the layout"
            );
            next = first + x.m;
            panel = weights.layout.panel_rows();
            bytes_in += weights.bytes() + x.m * (x.layout.bytes() + 4 * (x.layout.blocks + x.layout.units));
        }
        assert!(y.len() / n >= next, "the output has a row for each token");
        let macs = (work.tokens as u64).saturating_mul(n as u64).saturating_mul(k as u64);
        let each = |of: usize| of.div_ceil(work.groups.max(1));
        let rows = granule_rows(n, panel, each(threads.most_parts()), each(threads.count()));
        let own = || {
            groups().map(|group| {
                let (shares, cost) = (&*group.weights.shares, cost(group.x.m));
                (group, Rows { shares, panel, first: 0, count: n, granule: rows, cost })
            })
        };
        let laid = threads.node_order().lay(|| own().map(|(_, rows)| rows));
        let y = Shared(y.as_mut_ptr());
        let run = |job: Range<usize>| {
            laid.visit(own, job, |Group { weights, x, first }, rows| {
                // SAFETY: `y` has `n` values for each of the rows from `first` on, as was compared above.
                let y = unsafe { y.get().add(first * n) };
                let args =
                    MatmulArgs { row_begin: rows.start, row_end: rows.end, ..self.args(weights, x, None, y) };
                // SAFETY: `admit` checked the processor; pointers and sizes come from buffers that outlive this call, in
                // the layout this kernel reads (the caller checked). Groups have rows of `y` of their own, and parts of
                // one write columns that no other part touches; `row_begin` is a multiple of the packing's rows.
                unsafe { self.run(&args) };
            });
        };
        self.launch(Shape { m: work.tokens, n, k }, [bytes_in, work.tokens * n * 4], || {
            threads.divide_all(threads.parts(macs, laid.granules), 0..laid.room(), &split_range, &run);
        });
    }
}
