//! What a guarded layer is asked to do.

use crate::activations::{ActivationLayout, Input, QuantizedActivations};
#[cfg(feature = "cuda")]
use crate::cuda::{DeviceBuffer, DeviceInput};
use crate::prologue::{Prologue, PrologueInput, Rows};

/// A run of a layer, with the results that it writes.
pub(super) enum Work<'r> {
    /// The product of activations.
    Product { input: Input<'r>, m: usize, bias: Option<&'r [f32]>, y: &'r mut [f32] },
    /// The same on the layer's GPU, enqueued.
    #[cfg(feature = "cuda")]
    OnDevice {
        input: DeviceInput<'r>,
        m: usize,
        bias: Option<&'r DeviceBuffer<f32>>,
        y: &'r mut DeviceBuffer<f32>,
    },
    /// The product of activations that are quantized already.
    OfQuantized { x: &'r QuantizedActivations<'r>, bias: Option<&'r [f32]>, y: &'r mut [f32] },
    /// Activations quantized into the workspace.
    Quantize { input: Input<'r>, m: usize, layout: Option<ActivationLayout> },
    /// The same through a prologue.
    Prologue { prologue: &'r Prologue, rows: PrologueRows<'r>, m: usize, layout: Option<ActivationLayout> },
}

impl Work<'_> {
    /// Tokens.
    pub(super) fn m(&self) -> usize {
        match self {
            Work::Product { m, .. } | Work::Quantize { m, .. } | Work::Prologue { m, .. } => *m,
            Work::OfQuantized { x, .. } => x.m(),
            #[cfg(feature = "cuda")]
            Work::OnDevice { m, .. } => *m,
        }
    }

    /// Whether the operands lie on the layer's GPU, so that nothing else can do it.
    pub(super) fn lies_on_device(&self) -> bool {
        match self {
            #[cfg(feature = "cuda")]
            Work::OnDevice { .. } => true,
            Work::Product { .. }
            | Work::OfQuantized { .. }
            | Work::Quantize { .. }
            | Work::Prologue { .. } => false,
        }
    }
}

/// The rows of a prologue, which go through it again where a run is repeated.
pub(super) struct PrologueRows<'r> {
    x: Rows<'r>,
    up: Option<Rows<'r>>,
    residual: Option<Rows<'r>>,
    sum: Option<&'r mut [f32]>,
}

impl<'r> PrologueRows<'r> {
    pub(super) fn of(input: PrologueInput<'r>) -> PrologueRows<'r> {
        let PrologueInput { x, up, residual, sum } = input;
        PrologueRows { x, up, residual, sum }
    }

    /// All of them; sums are written.
    pub(super) fn input(&mut self) -> PrologueInput<'_> {
        PrologueInput { x: self.x, up: self.up, residual: self.residual, sum: self.sum.as_deref_mut() }
    }

    /// One token of `k` values; its sums are written to `sum`.
    pub(super) fn token<'t>(
        &'t self,
        token: usize,
        k: usize,
        sum: &'t mut [f32],
    ) -> Option<PrologueInput<'t>> {
        let row = |rows: &Rows<'t>| rows.row(token, k).map(Rows::dense);
        let each = |rows: &Option<Rows<'t>>| match rows {
            Some(rows) => row(rows).map(Some),
            None => Some(None),
        };
        Some(PrologueInput {
            x: row(&self.x)?,
            up: each(&self.up)?,
            residual: each(&self.residual)?,
            sum: self.sum.is_some().then_some(sum),
        })
    }

    /// The sum at a place, where sums are written.
    pub(super) fn sum_at(&self, at: usize) -> Option<f32> {
        self.sum.as_deref()?.get(at).copied()
    }
}
