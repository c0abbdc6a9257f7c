//! Quantized activations that several products read.

use super::{Activations, RowLayout};
use crate::error::Error;
use crate::registry::ActivationInfo;
use crate::workspace::Workspace;
use std::fmt::{Display, Formatter};

/// What products must agree on to read the same rows: the activation format, and how a row of it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationLayout {
    pub(crate) format: &'static ActivationInfo,
    pub(crate) row: RowLayout,
}

impl ActivationLayout {
    /// Whether rows of one are rows of the other. Kernels that quantize to one format write the same bits, so which of
    /// them did does not matter.
    pub(crate) fn same_as(&self, other: &ActivationLayout) -> bool {
        let (one, two) = (self.format, other.format);
        let same_format = std::ptr::eq(one, two)
            || (one.name == two.name
                && one.block == two.block
                && one.keeps_multiplier == two.keeps_multiplier);
        same_format && self.row == other.row
    }

    /// Refuses rows of this layout for a kernel that reads `expected` and would take them for something else.
    pub(crate) fn check(&self, kernel: &'static str, expected: &ActivationLayout) -> Result<(), Error> {
        if self.same_as(expected) {
            return Ok(());
        }
        if self.row.k != expected.row.k {
            return Err(Error::ShapeMismatch {
                what: "a token of the quantized activations",
                unit: "values",
                expected: expected.row.k,
                found: self.row.k,
            });
        }
        let (expected, found) = (expected.to_string(), self.to_string());
        Err(Error::ActivationLayout { kernel, expected, found })
    }
}

impl Display for ActivationLayout {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let RowLayout { k, unit, unit_padded, .. } = self.row;
        let name = self.format.name;
        write!(f, "`{name}` rows of {k}, in sums over {unit} of them that take {unit_padded} bytes")
    }
}

/// Activations of the processor, quantized once for several products: query, key and value; gate and up; the experts
/// that tokens go to. They lie in the workspace that they were quantized into, and it is free again when nobody has
/// them any more.
///
/// Which products may share them is up to their formats and kernels: [`Linear::shares_activations_with`] says so, and one
/// that reads another layout refuses them. Results have the same bits as those of separate runs.
///
/// Made by [`Linear::quantize`] and [`Matmul::quantize`].
///
/// ```
/// use gristmill_runtime::{Error, Input, Linear, Threads, Workspace};
///
/// /// Query, key and value of one token.
/// fn project(
///     layers: [&Linear; 3],
///     x: &[f32],
///     outputs: [&mut [f32]; 3],
///     workspace: &mut Workspace,
///     threads: &Threads,
/// ) -> Result<(), Error> {
///     let shared = layers[0].quantize(Input::F32(x), 1, workspace, threads)?;
///     for (layer, y) in layers.into_iter().zip(outputs) {
///         layer.forward_quantized(&shared, None, y, threads)?;
///     }
///     Ok(())
/// }
/// # let _ = project;
/// ```
///
/// [`Linear::quantize`]: crate::Linear::quantize
/// [`Linear::shares_activations_with`]: crate::Linear::shares_activations_with
/// [`Matmul::quantize`]: crate::Matmul::quantize
#[derive(Clone, Copy, Debug)]
pub struct QuantizedActivations<'w> {
    pub(crate) format: &'static ActivationInfo,
    pub(crate) rows: Activations<'w>,
}

impl<'w> QuantizedActivations<'w> {
    /// What was quantized into a workspace, of this layout.
    pub(crate) fn in_workspace(
        layout: ActivationLayout,
        m: usize,
        workspace: &'w Workspace,
    ) -> Result<QuantizedActivations<'w>, Error> {
        let ActivationLayout { format, row } = layout;
        if m == 0 || row.k == 0 {
            let rows = Activations { layout: row, m, q: &[], scales: &[], sums: &[] };
            return Ok(QuantizedActivations { format, rows });
        }
        let size = row.workspace(m, 0)?;
        workspace.check(size)?;
        let (q, scales, sums) = (&workspace.q, &workspace.scales, &workspace.sums);
        let (q, scales, sums) = (&q[..size.q], &scales[..size.scales], &sums[..size.sums]);
        Ok(QuantizedActivations { format, rows: Activations { layout: row, m, q, scales, sums } })
    }
}

impl QuantizedActivations<'_> {
    /// Tokens.
    pub fn m(&self) -> usize {
        self.rows.m
    }

    /// Elements of a token.
    pub fn k(&self) -> usize {
        self.rows.layout.k
    }

    /// Name of the activation format.
    pub fn format(&self) -> &'static str {
        self.format.name
    }

    pub(crate) fn layout(&self) -> ActivationLayout {
        ActivationLayout { format: self.format, row: self.rows.layout }
    }

    /// Refuses what a kernel that reads `expected` would take for something else.
    pub(crate) fn check(&self, kernel: &'static str, expected: &ActivationLayout) -> Result<(), Error> {
        self.layout().check(kernel, expected)
    }
}
