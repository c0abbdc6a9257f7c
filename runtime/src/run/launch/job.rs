//! A product as a job: whole, or some of its rows at a time beside those of others.

use super::Launcher;
use super::order::Rows;
use super::product::{MatmulCode, Shared};
use crate::abi::MatmulArgs;
use crate::activations::{Activations, RowLayout};
use crate::error::Error;
use crate::observe::fell_back;
use crate::parallel::division::{granule_rows, split_range};
use crate::receipt::FallbackNote;
use crate::registry::Entry;
use crate::request::Shape;
use crate::run::product::{Columns, Destination};
use crate::threads::divide::SomeThreads;
use crate::weights::PackedMatrix;
use std::ops::Range;

/// Results that a part computes at a time where they are not written as they are: 32 KiB of its stack, which the first cache
/// holds beside what is read.
const TILE: usize = 8192;

impl Launcher<MatmulCode> {
    /// The product of `m > 0` quantized rows with some rows of `k > 0`, one at least. The caller has checked that this kernel
    /// reads `weights`, that `x` was laid out for it, and that `into` was made for `m` tokens and these weights.
    pub(crate) fn product(
        &self,
        weights: &PackedMatrix,
        x: &Activations<'_>,
        into: Destination<'_>,
        threads: SomeThreads<'_>,
    ) -> Result<(), Error> {
        let job = ProductJob::new(self, weights, *x, into)?;
        let Shape { m, n: rows, k } = job.shape();
        let work = (m as u64).saturating_mul(rows as u64).saturating_mul(k as u64);
        let granule = granule_rows(rows, job.panel, threads.most_parts(), threads.count());
        let granules = rows.div_ceil(granule);
        let part = |part: Range<usize>| {
            // SAFETY: parts are ranges of granules that no other part has, and granules are whole panels.
            unsafe { job.run((part.start * granule).min(rows)..(part.end * granule).min(rows)) };
        };
        self.launch(job.shape(), job.bytes, || {
            threads.divide_all(threads.parts(work, granules), 0..granules, &split_range, &part);
        });
        job.finish();
        Ok(())
    }

    /// How many rows and tokens a part computes at a time, for `m` tokens and panels of `panel` rows.
    fn tile(&self, m: usize, panel: usize) -> Result<[usize; 2], Error> {
        let rule = &self.entry.shape.m;
        // The least number of tokens that keeps the rule is a multiple too; so is `m`.
        let multiple = usize::try_from(rule.multiple_of.max(1)).unwrap_or(usize::MAX);
        let most = TILE / panel.max(1) / multiple * multiple;
        let tokens = m.min(most);
        if tokens == 0 || (tokens as u64) < rule.min {
            return Err(self.broken("it takes only more tokens at a time than results are stored of"));
        }
        Ok([(TILE / tokens / panel * panel).max(panel), tokens])
    }
}

/// A product that is ready to be computed, some rows at a time.
///
/// Where results go to `y` as they are, kernels write them there. Elsewhere each thread computes some of them at a time into
/// memory on its stack, and converts and stores them while they are in its cache.
pub(crate) struct ProductJob<'p> {
    launcher: &'p Launcher<MatmulCode>,
    weights: &'p PackedMatrix,
    x: Activations<'p>,
    columns: Columns<'p>,
    /// Rows of the weights that are asked for.
    rows: Range<usize>,
    /// First row that is computed: kernels begin at a panel, and what they compute in front of the first row is dropped.
    base: usize,
    /// Rows of a panel.
    pub(super) panel: usize,
    store: Stored,
    /// Bytes that are read and written.
    pub(super) bytes: [usize; 2],
    /// What it counts as besides, where it is something else than its layer was asked for.
    fallback: Option<&'p FallbackNote>,
}

/// How results get to `y`.
enum Stored {
    /// By the kernel.
    AsTheyAre(Shared<MatmulArgs>),
    /// By way of so many rows and tokens at a time.
    Tiled { rows: usize, tokens: usize },
}

impl<'p> ProductJob<'p> {
    /// The conditions are those of [`Launcher::product`].
    pub(crate) fn new(
        launcher: &'p Launcher<MatmulCode>,
        weights: &'p PackedMatrix,
        x: Activations<'p>,
        into: Destination<'p>,
    ) -> Result<ProductJob<'p>, Error> {
        let RowLayout { k, units, blocks, .. } = x.layout;
        let (m, rows, bias, written) = (x.m, into.rows.clone(), into.bias, into.bytes());
        assert!(
            k == weights.k && units == weights.units && m == into.m() && rows.end <= weights.n,
            "the handle compares sizes with the shape"
        );
        let panel = weights.layout.panel_rows();
        let read = (weights.bytes() as u128 * rows.len() as u128 / weights.n.max(1) as u128) as usize;
        let read = read + m * (x.layout.bytes() + 4 * (blocks + units));
        let base = rows.start - rows.start % panel;
        let columns = into.into_columns();
        let store = match columns.plain().filter(|_| base == rows.start) {
            Some((y, stride)) => {
                let args = launcher.args(weights, &x, bias, y).starting_at(weights, base);
                Stored::AsTheyAre(Shared(MatmulArgs { n: stride, row_end: rows.len(), ..args }))
            }
            None => {
                let [rows, tokens] = launcher.tile(m, panel)?;
                Stored::Tiled { rows, tokens }
            }
        };
        Ok(ProductJob {
            launcher,
            weights,
            x,
            columns,
            rows,
            base,
            panel,
            store,
            bytes: [read, written],
            fallback: None,
        })
    }

    /// The same, whose run counts as a fallback too.
    pub(crate) fn noting(self, fallback: Option<&'p FallbackNote>) -> ProductJob<'p> {
        ProductJob { fallback, ..self }
    }

    /// The kernel.
    pub(super) fn entry(&self) -> &'static Entry {
        self.launcher.entry
    }

    /// Tokens, rows that are computed, and their length.
    pub(super) fn shape(&self) -> Shape {
        Shape { m: self.x.m, n: self.rows.end - self.base, k: self.x.layout.k }
    }

    /// The rows that are computed, where a granule of some of them costs so much.
    pub(super) fn rows(&self, granule: usize, cost: usize) -> Rows<'_> {
        let Shape { n: count, .. } = self.shape();
        Rows { shares: &self.weights.shares, panel: self.panel, first: self.base, count, granule, cost }
    }

    /// Bytes of a row of the weights.
    pub(super) fn row_bytes(&self) -> usize {
        self.weights.bytes() / self.weights.n.max(1)
    }

    /// Counts it as a launch that was not timed: for those that go out with others.
    pub(super) fn count(&self) {
        self.launcher.ran_with_others(self.shape(), self.bytes);
        if let Some(note) = self.fallback {
            fell_back(note);
        }
    }

    /// Computes some of the rows, which count from the first that is computed.
    ///
    /// # Safety
    /// The range begins at a panel, ends at one or at the last row, and no other thread has any of it.
    pub(super) unsafe fn run(&self, part: Range<usize>) {
        if part.is_empty() {
            return;
        }
        match &self.store {
            Stored::AsTheyAre(args) => {
                let args = MatmulArgs { row_begin: part.start, row_end: part.end, ..*args.get() };
                // SAFETY: `admit` checked the processor; pointers and sizes come from buffers that outlive this job, in the
                // layout this kernel reads (the caller of `new` checked). The caller answers for columns of `y` that no
                // other thread touches, and for `row_begin`.
                unsafe { self.launcher.run(&args) };
            }
            // SAFETY: the same condition.
            Stored::Tiled { rows, tokens } => unsafe { self.tiled(part, [*rows, *tokens]) },
        }
    }

    /// The same by way of the stack.
    ///
    /// # Safety
    /// As for [`run`](ProductJob::run).
    unsafe fn tiled(&self, part: Range<usize>, [tile_rows, tokens]: [usize; 2]) {
        let ProductJob { launcher, weights, x, columns, rows, base, .. } = self;
        let mut tile = [0.0f32; TILE];
        for row in (base + part.start..base + part.end).step_by(tile_rows) {
            let end = (row + tile_rows).min(base + part.end);
            let width = end - row;
            let first_row = row.max(rows.start);
            for token in (0..x.m).step_by(tokens) {
                // All have as many tokens, as the kernel's rules may want; some are computed twice.
                let first = token.min(x.m - tokens);
                let args = launcher.args(weights, &x.rows(first, tokens), None, tile.as_mut_ptr());
                let args = MatmulArgs { n: width, row_end: width, ..args.starting_at(weights, row) };
                // SAFETY: as in `run`; the tile has room for `width` values of each of `tokens`.
                unsafe { launcher.run(&args) };
                for token in token..first + tokens {
                    let values = &mut tile[(token - first) * width..][..width][first_row - row..];
                    // SAFETY: tokens and rows of the destination; the caller of `run` answers for it that these are this
                    // thread's alone.
                    unsafe { columns.put(token, first_row - rows.start, values) };
                }
            }
        }
    }

    /// What is left when all rows are computed: tokens that were set aside have no results.
    pub(super) fn finish(&self) {
        for token in (0..self.x.m).filter(|token| self.x.is_set_aside(*token)) {
            // SAFETY: a token of the destination, and no part runs any more.
            unsafe { self.columns.set_nan(token, self.rows.len()) };
        }
    }
}
