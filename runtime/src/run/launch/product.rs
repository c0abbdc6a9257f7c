//! Launches of products, and how weights get into what they read.

use super::Launcher;
use super::distance::prefetch_distance;
use crate::abi::{MatmulArgs, MatmulFn};
use crate::activations::{Activations, RowLayout};
use crate::decide::Candidate;
use crate::device::CpuProfile;
use crate::error::Error;
use crate::parallel::division::share;
use crate::registry::{Code, PackInfo, Registry, Unit};
use crate::weights::{PackedMatrix, Stack, WeightLayout};
use gristmill_spec::vocab::Op;

/// Code of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatmulCode {
    run: MatmulFn,
    pub(crate) packing: Option<&'static PackInfo>,
    pub(crate) unit: Unit,
}

/// Panels of one matrix on their way into a packing.
pub(crate) struct Panels<'p> {
    pub(crate) first: usize,
    pub(crate) codes: &'p mut [u8],
    pub(crate) scales: &'p mut [f32],
    pub(crate) mins: &'p mut [f32],
}

/// Sizes of one panel.
#[derive(Clone, Copy)]
pub(crate) struct PanelSize {
    pub(crate) rows: usize,
    pub(crate) stride: usize,
    pub(crate) scales: usize,
    pub(crate) mins: usize,
}

impl Panels<'_> {
    fn count(&self, size: &PanelSize) -> usize {
        self.codes.len() / size.stride.max(1)
    }

    pub(crate) fn split(self, size: &PanelSize, left: usize, all: usize) -> (Self, Self) {
        let panels = share(self.count(size), left, all);
        let (codes, codes2) = self.codes.split_at_mut(panels * size.stride);
        let (scales, scales2) = self.scales.split_at_mut(panels * size.scales);
        let (mins, mins2) = self.mins.split_at_mut(panels * size.mins);
        let first = Panels { first: self.first, codes, scales, mins };
        let second = Panels { first: self.first + panels, codes: codes2, scales: scales2, mins: mins2 };
        (first, second)
    }
}

/// Packs the rows of `matrix` that belong to `panels`, whose buffers are zero. Pack functions are written for every
/// processor, whatever device reads the packing.
pub(crate) fn pack(
    packing: &PackInfo,
    matrix: &Stack<'_, '_>,
    panels: Panels<'_>,
    size: &PanelSize,
) -> Result<(), Error> {
    let mut gathered = Vec::new();
    for panel in 0..panels.count(size) {
        let row = (panels.first + panel) * size.rows;
        let rows = matrix.n().saturating_sub(row).min(size.rows);
        let (blocks, stride) = matrix.rows(row, rows, &mut gathered);
        let codes = &mut panels.codes[panel * size.stride..][..size.stride];
        let scales = &mut panels.scales[panel * size.scales..][..size.scales];
        let mins = &mut panels.mins[panel * size.mins..][..size.mins];
        let needed = if rows == 0 {
            0
        } else {
            (rows - 1) * stride + matrix.row_bytes() - matrix.format().header_bytes()
        };
        assert!(blocks.len() >= needed, "a matrix is as long as its shape says");
        // SAFETY: no feature of the processor is needed. The blocks of all rows lie in `blocks`, `stride` apart, as was
        // just seen; the places have the sizes of one panel of this packing.
        let packed = unsafe {
            (packing.pack)(
                blocks.as_ptr(),
                stride,
                rows,
                matrix.k(),
                codes.as_mut_ptr(),
                pointer_mut(scales),
                pointer_mut(mins),
            )
        };
        packed.map_err(|fault| fault.in_rows(matrix.format(), row, matrix.k()))?;
    }
    Ok(())
}

/// Row `row` of one panel to `k` values.
#[expect(clippy::too_many_arguments, reason = "the parts of a panel")]
pub(crate) fn unpack_panel(
    packing: &PackInfo,
    codes: &[u8],
    scales: &[f32],
    mins: &[f32],
    outer: f32,
    row: usize,
    k: usize,
    dst: &mut [f32],
) {
    assert!(dst.len() == k && row < packing.rows, "the handle compares sizes with the shape");
    // SAFETY: no feature of the processor is needed; the slices are the panel's, by the layout with which the matrix
    // was packed; `dst` holds k values.
    unsafe {
        (packing.unpack)(codes.as_ptr(), pointer(scales), pointer(mins), outer, row, k, dst.as_mut_ptr());
    }
}

impl Launcher<MatmulCode> {
    pub(crate) fn matmul(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::Matmul, |code| match code {
            Code::Matmul { run, packing, unit } => Some(MatmulCode { run, packing, unit }),
            _ => None,
        })
    }

    /// Row `row` of `weights` (made with `packing`) to `k` values, some; the handle has checked both.
    pub(crate) fn unpack(&self, packing: &PackInfo, weights: &PackedMatrix, row: usize, dst: &mut [f32]) {
        let (panel, row_in_panel) = (row / packing.rows, row % packing.rows);
        let codes = &weights.codes[panel * weights.stride..][..weights.stride];
        // Sizes were computed when these were packed.
        let (scales, mins) = (packing.scale_words(weights.units), packing.min_words(weights.units));
        let (scales, mins) = (scales.unwrap_or(0), mins.unwrap_or(0));
        let scales = &weights.scales[panel * scales..][..scales];
        let mins = &weights.mins[panel * mins..][..mins];
        unpack_panel(packing, codes, scales, mins, weights.outer[row], row_in_panel, weights.k, dst);
    }

    /// The product of all rows of `weights` by this kernel, with the results at `y`.
    pub(super) fn args(
        &self,
        weights: &PackedMatrix,
        x: &Activations<'_>,
        bias: Option<&[f32]>,
        y: *mut f32,
    ) -> MatmulArgs {
        let RowLayout { k, units, stride, blocks, .. } = x.layout;
        let packing = weights.layout.packing;
        let table = packing.and_then(|packing| packing.table);
        MatmulArgs {
            codes: weights.codes.as_ptr(),
            stride: weights.stride,
            scales: pointer(&weights.scales),
            mins: pointer(&weights.mins),
            min: packing.map_or(0, |packing| packing.min),
            table: table.map_or(std::ptr::null(), std::ptr::from_ref),
            outer: weights.outer.as_ptr(),
            k,
            units,
            x: x.q.as_ptr(),
            x_stride: stride,
            x_share: CpuProfile::detect().caches.activations(),
            prefetch: prefetch_distance(self.entry.features),
            x_scales: x.scales.as_ptr(),
            x_blocks: blocks,
            x_sums: x.sums.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            y,
            m: x.m,
            n: weights.n,
            row_begin: 0,
            row_end: weights.n,
        }
    }

    /// Runs the code.
    ///
    /// # Safety
    /// As for [`MatmulFn`]: `args` describe buffers in the layout that the kernel reads, and nobody else touches the part of
    /// `y` that they name.
    pub(super) unsafe fn run(&self, args: &MatmulArgs) {
        // SAFETY: passed on to the caller; `admit` checked the processor.
        unsafe { (self.code.run)(args) };
    }
}

impl MatmulArgs {
    /// The same with row `row` of `weights`, the first of a panel, as row 0.
    pub(super) fn starting_at(self, weights: &PackedMatrix, row: usize) -> MatmulArgs {
        let WeightLayout { packing, .. } = weights.layout;
        let panel = row / weights.layout.panel_rows();
        let words = |of: Option<usize>| of.unwrap_or(0) * panel;
        let scales = words(packing.and_then(|packing| packing.scale_words(weights.units)));
        let mins = words(packing.and_then(|packing| packing.min_words(weights.units)));
        MatmulArgs {
            codes: weights.codes[panel * weights.stride..].as_ptr(),
            scales: pointer(&weights.scales[scales..]),
            mins: pointer(&weights.mins[mins..]),
            outer: weights.outer[row..].as_ptr(),
            ..self
        }
    }
}

/// Arguments that several threads read, or the output that they write.
pub(super) struct Shared<T>(pub(super) T);

impl<T> Shared<T> {
    /// Through a method, so that closures capture the wrapper and not the pointers in it.
    pub(super) fn get(&self) -> &T {
        &self.0
    }
}

// SAFETY: threads only read the arguments. What they point to is read-only but for `y`, of which each
// thread writes columns of its own (who calls `ProductJob::run` hands out disjoint row ranges, `Launcher::grouped` those of rows
// of `y` that are a group's own).
unsafe impl Sync for Shared<MatmulArgs> {}
// SAFETY: as above.
unsafe impl Sync for Shared<*mut f32> {}

/// Null for an empty slice, as the ABI wants it.
fn pointer<T>(slice: &[T]) -> *const T {
    if slice.is_empty() { std::ptr::null() } else { slice.as_ptr() }
}

fn pointer_mut<T>(slice: &mut [T]) -> *mut T {
    if slice.is_empty() { std::ptr::null_mut() } else { slice.as_mut_ptr() }
}
