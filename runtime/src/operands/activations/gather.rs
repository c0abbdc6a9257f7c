//! Quantized rows in another order.

use super::Activations;
use super::quantize::{RowBuffers, Rows};
use crate::threads::Threads;

/// Row `rows[i]` of `x` as row `i`, in places of the caller's, whose sizes were checked.
pub(crate) fn gather<'w>(
    x: &Activations<'_>,
    rows: &[u32],
    buffers: RowBuffers<'w>,
    threads: &Threads,
) -> Activations<'w> {
    let (layout, m) = (x.layout, rows.len());
    let RowBuffers { q, scales, sums, scratch } = buffers;
    let job = Rows { first: 0, m, q: &mut *q, scales: &mut *scales, sums: &mut *sums, scratch };
    let split = |job, left, all| Rows::split(job, &layout, left, all);
    let run = |job: Rows<'_>| {
        for (i, row) in rows[job.first..][..job.m].iter().enumerate() {
            let from = x.rows(*row as usize, 1);
            job.q[i * layout.stride..][..layout.stride].copy_from_slice(from.q);
            job.scales[i * layout.blocks..][..layout.blocks].copy_from_slice(from.scales);
            job.sums[i * layout.units..][..layout.units].copy_from_slice(from.sums);
        }
    };
    let work = (m as u64).saturating_mul(layout.stride as u64);
    threads.divide_all(threads.parts(work, m), job, &split, &run);
    Activations { layout, m, q, scales, sums }
}
