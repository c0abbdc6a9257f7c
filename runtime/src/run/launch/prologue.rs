//! Launches of what takes activations through a prologue and makes them int8.

use super::Launcher;
use crate::abi::{Fault, PrologueArgs, PrologueFn};
use crate::activations::RowLayout;
use crate::decide::Candidate;
use crate::error::Error;
use crate::observe::Ending;
use crate::prologue::Prologue;
use crate::registry::{Code, Registry};
use crate::request::Shape;
use gristmill_spec::vocab::Op;
use std::ptr::{null, null_mut};

/// Code of a prologue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrologueCode(PrologueFn);

/// What a row is made of, each of the prologue's `k` values.
#[derive(Debug)]
pub(crate) struct PrologueRow<'r> {
    pub(crate) x: &'r [f32],
    /// There exactly where the prologue has a gate.
    pub(crate) up: Option<&'r [f32]>,
    /// What is added, and where the sum goes.
    pub(crate) residual: Option<(&'r [f32], &'r mut [f32])>,
    pub(crate) scratch: &'r mut [f32],
}

impl Launcher<PrologueCode> {
    pub(crate) fn prologue(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::Prologue, |code| match code {
            Code::Prologue(run) => Some(PrologueCode(run)),
            _ => None,
        })
    }

    /// `m` rows, each made of `operands` rows and giving `results` besides the int8 one, as one launch.
    pub(crate) fn counted<R: Ending>(
        &self,
        m: usize,
        [operands, results]: [usize; 2],
        layout: &RowLayout,
        run: impl FnOnce() -> R,
    ) -> R {
        let row = 4 * layout.k;
        let out = layout.bytes() + 4 * (layout.blocks + layout.units) + results * row;
        let shape = Shape { m, n: 1, k: layout.k };
        self.launch(shape, [m.saturating_mul(operands * row), m.saturating_mul(out)], run)
    }

    /// One row to places of exactly the layout's sizes.
    pub(crate) fn row(
        &self,
        prologue: &Prologue,
        row: PrologueRow<'_>,
        layout: &RowLayout,
        q: &mut [i8],
        scales: &mut [f32],
        sums: &mut [i32],
    ) -> Result<(), Fault> {
        let RowLayout { k, unit, unit_padded, units, blocks, .. } = *layout;
        let PrologueRow { x, up, residual, scratch } = row;
        let added = residual.as_ref().is_none_or(|(residual, sum)| residual.len() == k && sum.len() == k);
        // A few comparisons a row; the caller cuts all buffers by the same layout.
        assert!(
            prologue.k() == k
                && x.len() == k
                && up.is_none_or(|up| up.len() == k)
                && added
                && scratch.len() == k,
            "rows are as long as the prologue says"
        );
        assert!(
            q.len() == layout.bytes() && scales.len() == blocks && sums.len() == units,
            "rows are cut by the layout"
        );
        if k == 0 {
            return Ok(());
        }
        let (weight, epsilon) =
            prologue.norm().map_or((null(), 0.0), |(weight, epsilon)| (weight.as_ptr(), epsilon));
        let (residual, sum) =
            residual.map_or((null(), null_mut()), |(r, sum)| (r.as_ptr(), sum.as_mut_ptr()));
        let transform = prologue.transform();
        let args = PrologueArgs {
            x: x.as_ptr(),
            k,
            up: up.map_or(null(), <[f32]>::as_ptr),
            function: prologue.gate().map_or(0, |function| function as u32),
            residual,
            sum,
            weight,
            epsilon,
            block: transform.map_or(0, |transform| transform.block()),
            signs: transform.and_then(|transform| transform.signs()).map_or(null(), <[f32]>::as_ptr),
            row: scratch.as_mut_ptr(),
            unit,
            unit_padded,
            q: q.as_mut_ptr(),
            scales: scales.as_mut_ptr(),
            sums: sums.as_mut_ptr(),
        };
        // SAFETY: `admit` checked the processor. Every operand has `k` values: those of the call were just compared, the norm's
        // weight and the transform's signs were when the prologue was made, and the transform's block divides its width, which
        // is `k`. `&mut` slices overlap nothing. The others have the sizes that the ABI asks for this `k` and unit.
        unsafe { (self.code.0)(&args) }
    }
}
