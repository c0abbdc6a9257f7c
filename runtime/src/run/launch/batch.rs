//! Launches of several products as one job.

use super::job::ProductJob;
use crate::observe::{RanBatch, asked};
use crate::parallel::division::{granule_rows, split_range};
use crate::parallel::thread_use::measured;
use crate::quarantine::first_run;
use crate::request::Shape;
use crate::threads::Threads;
use std::ops::Range;
use std::time::Instant;

/// Multiply-accumulates that take about as long as reading and unpacking a byte of weights.
const MACS_OF_A_BYTE: u64 = 16;

/// What of a product its division among threads depends on.
#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    /// Rows that can't be divided.
    panel: usize,
    /// What a row costs, in multiply-accumulates.
    row: u64,
}

/// Threads as a job sees them.
#[derive(Clone, Copy)]
struct Hands {
    count: usize,
    most_parts: usize,
}

impl Size {
    fn of(job: &ProductJob<'_>) -> Size {
        let Shape { m, n, k } = job.shape();
        let macs = (m as u64).saturating_mul(k as u64);
        let row = (job.row_bytes() as u64).saturating_mul(MACS_OF_A_BYTE).saturating_add(macs);
        Size { rows: n, panel: job.panel, row }
    }

    /// Rows of a granule and what one costs, of one of `products`, where costs are told in units of `unit`.
    fn granule(self, unit: u64, products: usize, hands: Hands) -> (usize, usize) {
        let each = |of: usize| of.div_ceil(products.max(1));
        let granule = granule_rows(self.rows, self.panel, each(hands.most_parts), each(hands.count));
        let cost = self.row.saturating_mul(granule as u64) / unit.max(1);
        (granule, usize::try_from(cost).unwrap_or(usize::MAX).max(1))
    }
}

/// What a unit of cost is: so little that granules of one product can be told from those of another, and so much that the
/// cost of a product is at most 2^20, beside the least of 1 for a granule.
fn unit(sizes: impl Iterator<Item = Size>) -> u64 {
    let dearest = sizes.map(|size| size.row.saturating_mul(size.rows as u64)).max();
    (dearest.unwrap_or(0) >> 20).max(1)
}

/// Runs all `jobs` as one, whose parts have about as much to do each, and counts a launch of each.
pub(crate) fn run_together<'j, 'p: 'j, I>(jobs: impl Fn() -> I + Sync, threads: &Threads)
where
    I: Iterator<Item = &'j ProductJob<'p>>,
{
    let hands = Hands { count: threads.count(), most_parts: threads.most_parts() };
    let (products, unit) = (jobs().count(), unit(jobs().map(Size::of)));
    let rows = |job: &'j ProductJob<'p>| {
        let (granule, cost) = Size::of(job).granule(unit, products, hands);
        job.rows(granule, cost)
    };
    let macs = |job: &ProductJob<'_>| {
        let Shape { m, n, k } = job.shape();
        (m as u64).saturating_mul(n as u64).saturating_mul(k as u64)
    };
    let macs = jobs().map(macs).fold(0, u64::saturating_add);
    let laid = threads.node_order().lay(|| jobs().map(rows));
    let run = |part: Range<usize>| {
        laid.visit(
            || jobs().map(|job| (job, rows(job))),
            part,
            // SAFETY: parts are ranges that follow one another, so no two have one granule; granules are whole panels.
            |job, rows| unsafe { job.run(rows) },
        );
    };
    let run = || threads.divide_all(threads.parts(macs, laid.granules), 0..laid.room(), &split_range, &run);
    let asked = asked();
    let observer = asked.observer().filter(|_| products > 0);
    let first: Vec<_> = match asked.marks() {
        true => jobs().filter_map(|job| first_run(job.entry(), job.shape())).collect(),
        false => Vec::new(),
    };
    let wants = observer.filter(|observer| observer.wants_batch(products));
    let started = wants.is_some().then(Instant::now);
    let used = match wants.is_some_and(|observer| observer.wants_threads()) {
        true => measured(run).1,
        false => {
            run();
            None
        }
    };
    let time = started.map(|started| started.elapsed());
    drop(first);
    for job in jobs() {
        job.count();
        job.finish();
    }
    if let Some(observer) = observer {
        observer.ran_batch(&RanBatch { products, time, threads: used });
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::{NodeOrder, Rows};
    use super::*;
    use crate::parallel::division::{PARTS_PER_THREAD, parts};

    /// Query, key and value; gate and up; a layer and a small one: rows, and bytes of a row at 4096 values.
    const BATCHES: [&[(usize, usize)]; 4] = [
        &[(4096, 2304), (1024, 2304), (1024, 3360)],
        &[(14_336, 2304), (14_336, 2816)],
        &[(2560, 640), (16, 8192)],
        &[(640, 2304), (640, 1024), (6912, 640), (100, 4096), (32, 64)],
    ];

    #[test]
    fn parts_cost_about_as_much() {
        for batch in BATCHES {
            for (m, panel, count) in [1, 3, 512]
                .into_iter()
                .flat_map(|m| [16, 32, 64].map(|panel| (m, panel)))
                .flat_map(|(m, panel)| (1..=16).map(move |count| (m, panel, count)))
            {
                let hands = Hands { count, most_parts: count * PARTS_PER_THREAD };
                let row = |bytes: usize| bytes as u64 * MACS_OF_A_BYTE + 4096 * m;
                let sizes: Vec<Size> =
                    batch.iter().map(|(rows, bytes)| Size { rows: *rows, panel, row: row(*bytes) }).collect();
                let unit = unit(sizes.iter().copied());
                let rows = |size: &Size| {
                    let (granule, cost) = size.granule(unit, sizes.len(), hands);
                    Rows { shares: &[], panel, first: 0, count: size.rows, granule, cost }
                };
                let all = || sizes.iter().map(|size| (size, rows(size)));
                let laid = NodeOrder::of(None).lay(|| all().map(|(_, rows)| rows));
                let pieces = parts(count, usize::MAX, laid.granules);
                let mut busy = vec![0u64; count];
                let mut rest = 0..laid.room();
                for piece in 0..pieces {
                    let (part, after) = split_range(rest, 1, pieces - piece);
                    rest = after;
                    let mut cost = 0;
                    laid.visit(all, part, |size, rows| cost += rows.len() as u64 * size.row);
                    // Whoever is free takes the next part.
                    if let Some(free) = busy.iter_mut().min() {
                        *free += cost;
                    }
                }
                let total: u64 = busy.iter().sum();
                let longest = busy.iter().copied().max().unwrap_or(0);
                let dearest = all().map(|(size, rows)| rows.granule as u64 * size.row).max();
                let whole: u64 = sizes.iter().map(|size| size.rows as u64 * size.row).sum();
                assert_eq!(total, whole, "every row is in one part: {count} threads, {panel} rows a panel");
                // A thread can have a granule more than its share, of each of the parts that it takes one at most.
                let most = total.div_ceil(count as u64) + 2 * dearest.unwrap_or(0);
                assert!(longest <= most, "{count} threads, {panel} rows, m = {m}: {longest} of {total}");
            }
        }
    }
}
