//! Activations through a prologue to the int8 rows that kernels read.

use super::Activations;
use super::layout::RowLayout;
use super::quantize::Rows;
use crate::error::Error;
use crate::prologue::{Prologue, PrologueInput};
use crate::run::launch::{Launcher, PrologueCode, PrologueRow};
use crate::threads::Threads;
use crate::workspace::Workspace;

/// Some rows on their way.
struct Job<'w> {
    rows: Rows<'w>,
    /// Places for their sums, where something is added; else empty.
    sum: &'w mut [f32],
}

impl<'w> Job<'w> {
    fn split(self, layout: &RowLayout, left: usize, all: usize) -> (Job<'w>, Job<'w>) {
        let (rows, others) = self.rows.split(layout, left, all);
        let kept = if self.sum.is_empty() { 0 } else { rows.m * layout.k };
        let (sum, sums) = self.sum.split_at_mut(kept);
        (Job { rows, sum }, Job { rows: others, sum: sums })
    }
}

/// Fills the workspace with `m` rows, whose sizes were checked; `m` and `k` are not 0.
pub(crate) fn quantize_with<'w>(
    launcher: &Launcher<PrologueCode>,
    prologue: &Prologue,
    input: PrologueInput<'_>,
    m: usize,
    layout: RowLayout,
    workspace: &'w mut Workspace,
    threads: &Threads,
) -> Result<Activations<'w>, Error> {
    let parts = threads.parts_of_rows(m, layout.k);
    let size = layout.workspace(m, parts)?;
    workspace.check(size)?;
    let Workspace { q, scales, sums, rows: scratch, .. } = workspace;
    let (q, scales, sums) = (&mut q[..size.q], &mut scales[..size.scales], &mut sums[..size.sums]);
    let PrologueInput { x, up, residual, sum } = input;
    let operands = 1 + usize::from(up.is_some()) + usize::from(residual.is_some());
    let results = usize::from(sum.is_some());
    let run = |job: Job<'_>| {
        let Job { rows, sum } = job;
        let scratch = &mut rows.scratch[..layout.k];
        let mut sums_left = sum;
        for i in 0..rows.m {
            let token = rows.first + i;
            let short =
                || Error::ShapeMismatch { what: "activations", unit: "rows", expected: m, found: token };
            // Lengths were compared before; rows that are missing all the same are an error, and no panic.
            let residual = match residual {
                Some(residual) => {
                    let (here, left) = std::mem::take(&mut sums_left).split_at_mut(layout.k);
                    sums_left = left;
                    Some((residual.row(token, layout.k).ok_or_else(short)?, here))
                }
                None => None,
            };
            let row = PrologueRow {
                x: x.row(token, layout.k).ok_or_else(short)?,
                up: up.map(|up| up.row(token, layout.k).ok_or_else(short)).transpose()?,
                residual,
                scratch: &mut *scratch,
            };
            let q = &mut rows.q[i * layout.stride..][..layout.bytes()];
            let scales = &mut rows.scales[i * layout.blocks..][..layout.blocks];
            let sums = &mut rows.sums[i * layout.units..][..layout.units];
            launcher
                .row(prologue, row, &layout, q, scales, sums)
                .map_err(|fault| fault.in_activations(token))?;
        }
        Ok::<(), Error>(())
    };
    let rows = Rows {
        first: 0,
        m,
        q: &mut *q,
        scales: &mut *scales,
        sums: &mut *sums,
        scratch: &mut scratch[..size.rows],
    };
    let job = Job { rows, sum: sum.unwrap_or_default() };
    let split = |job, left, all| Job::split(job, &layout, left, all);
    launcher.counted(m, [operands, results], &layout, || threads.divide(parts, job, &split, &run))?;
    Ok(Activations { layout, m, q, scales, sums })
}
