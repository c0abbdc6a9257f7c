//! The launch trampolines: the only callers of entry code, and the only writers of counters and ledgers.
//!
//! A [`Launcher`] exists only for an entry that this processor can run ([`admit`]); that, and the size
//! invariants of the types passed in, is what the unsafe calls below rest on. A registry itself is
//! trusted: its entries are generated together with the sizes that its formats state.

use crate::abi::{
    DequantizeFn, Fault, MatmulArgs, MatmulFn, QuantizeActivationsFn, QuantizeFn, Step, StepFn,
};
use crate::activations::{Activations, RowLayout};
use crate::decide::Candidate;
use crate::device::{CpuProfile, Device};
use crate::error::Error;
use crate::receipt::{Ledger, Recording};
use crate::registry::{Code, Entry, FormatInfo, PackInfo, Registry, Unit};
use crate::stats::timing;
use crate::threads::{Threads, share};
use crate::weights::{PackedMatrix, QuantizedMatrix, Stack};
use gristmill_spec::vocab::{DeviceKind, Op};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Rows that a part of a product takes at least, where there are enough: a multiple of the row tiles
/// that kernels use.
const ROWS_PER_GRANULE: usize = 64;

/// Code that may run here, with its bookkeeping.
#[derive(Clone, Debug)]
pub(crate) struct Launcher<C> {
    pub(crate) entry: &'static Entry,
    index: usize,
    registry: &'static Registry,
    code: C,
    ledger: Option<Arc<Ledger>>,
}

/// Code of a quantizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizeCode {
    step: Option<StepFn>,
    blocks: QuantizeFn,
}

/// Code of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatmulCode {
    run: MatmulFn,
    pub(crate) packing: Option<&'static PackInfo>,
    pub(crate) unit: Unit,
}

/// Code of an activation quantizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationCode(QuantizeActivationsFn);

/// Code of a dequantizer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DequantizeCode(DequantizeFn);

/// Refuses an entry that can't run on this machine, whatever profile it was chosen for.
fn admit(entry: &Entry) -> Result<(), Error> {
    match entry.device {
        DeviceKind::Cpu => {}
        DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => return Err(cannot_drive(entry, 0)),
    }
    let missing = CpuProfile::detect().features.missing(entry.features);
    if missing.iter().next().is_some() {
        return Err(Error::CannotRunHere { kernel: entry.name, missing: missing.iter().collect() });
    }
    Ok(())
}

/// The error for a device that this build does not drive.
pub(crate) fn cannot_drive(entry: &Entry, index: u32) -> Error {
    Error::CannotDrive { kernel: entry.name, device: Device { kind: entry.device, index } }
}

/// A kernel of the processor or of a GPU.
#[derive(Clone, Debug)]
pub(crate) enum On<C, G> {
    /// The processor.
    Cpu(Launcher<C>),
    /// A GPU.
    Cuda(Launcher<G>),
}

impl<C, G> On<C, G> {
    /// The kernel of a candidate, on the device that it is for.
    pub(crate) fn of(
        registry: &'static Registry,
        candidate: Candidate,
        index: u32,
        cpu: impl FnOnce(&'static Registry, Candidate) -> Result<Launcher<C>, Error>,
        cuda: impl FnOnce(&'static Registry, Candidate, u32) -> Result<Launcher<G>, Error>,
    ) -> Result<On<C, G>, Error> {
        match candidate.entry.device {
            DeviceKind::Cpu => cpu(registry, candidate).map(On::Cpu),
            DeviceKind::Cuda => cuda(registry, candidate, index).map(On::Cuda),
            DeviceKind::Rocm | DeviceKind::Metal => Err(cannot_drive(candidate.entry, index)),
        }
    }

    pub(crate) fn entry(&self) -> &'static Entry {
        match self {
            On::Cpu(launcher) => launcher.entry,
            On::Cuda(launcher) => launcher.entry,
        }
    }

    pub(crate) fn broken(&self, what: &'static str) -> Error {
        match self {
            On::Cpu(launcher) => launcher.broken(what),
            On::Cuda(launcher) => launcher.broken(what),
        }
    }

    pub(crate) fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        match self {
            On::Cpu(launcher) => launcher.record(recording),
            On::Cuda(launcher) => launcher.record(recording),
        }
    }
}

impl<C> Launcher<C> {
    fn new(
        registry: &'static Registry,
        candidate: Candidate,
        expected: Op,
        code: impl FnOnce(Code) -> Option<C>,
    ) -> Result<Launcher<C>, Error> {
        let Candidate { index, entry } = candidate;
        if entry.op != expected {
            return Err(Error::WrongOp { kernel: entry.name, expected, found: entry.op });
        }
        admit(entry)?;
        let broken = Error::BrokenRegistry {
            package: registry.package,
            at: entry.name,
            what: "its code is of another op",
        };
        Ok(Launcher { entry, index, registry, code: code(entry.code).ok_or(broken)?, ledger: None })
    }

    /// A kernel of a GPU; `code` is `None` where it is of another op.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(
        registry: &'static Registry,
        candidate: Candidate,
        expected: Op,
        code: impl FnOnce(&crate::registry::CudaCode) -> Result<Option<C>, Error>,
    ) -> Result<Launcher<C>, Error> {
        let Candidate { index, entry } = candidate;
        if entry.op != expected {
            return Err(Error::WrongOp { kernel: entry.name, expected, found: entry.op });
        }
        let made = match &entry.code {
            Code::Cuda(cuda) => code(cuda)?,
            Code::Dequantize(_)
            | Code::Quantize { .. }
            | Code::QuantizeActivations(_)
            | Code::Matmul { .. } => None,
        };
        let broken = Error::BrokenRegistry {
            package: registry.package,
            at: entry.name,
            what: "its code is of another op or device",
        };
        Ok(Launcher { entry, index, registry, code: made.ok_or(broken)?, ledger: None })
    }

    /// Enqueues one launch on a GPU, timed by its clock where times are taken, and counts it once the driver has
    /// taken it.
    #[cfg(feature = "cuda")]
    pub(crate) fn enqueued(
        &self,
        gpu: &crate::cuda::Gpu,
        bytes_in: usize,
        bytes_out: usize,
        enqueue: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if gpu.is_capturing() {
            enqueue()?;
            let (entry, index, ledger) = (self.entry, self.index, self.ledger.clone());
            gpu.count_later(Tally { entry, index, ledger, bytes: [bytes_in, bytes_out] });
            return Ok(());
        }
        let time = if timing() {
            Some(gpu.time(enqueue)?.1)
        } else {
            enqueue()?;
            None
        };
        self.count(bytes_in, bytes_out, time);
        Ok(())
    }

    pub(crate) fn code(&self) -> &C {
        &self.code
    }

    pub(crate) fn broken(&self, what: &'static str) -> Error {
        Error::BrokenRegistry { package: self.registry.package, at: self.entry.name, what }
    }

    /// Lets the launches of this handle count in `recording`, or in none.
    pub(crate) fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        if let Some(recording) = recording
            && !std::ptr::eq(recording.ledger.registry, self.registry)
        {
            return Err(Error::ForeignRecording {
                recording: recording.ledger.registry.package,
                kernel: self.registry.package,
            });
        }
        self.ledger = recording.map(|recording| Arc::clone(&recording.ledger));
        Ok(())
    }

    /// One launch: counted whether or not it ends in a fault, since it ran.
    #[inline]
    fn launch<R>(&self, bytes_in: usize, bytes_out: usize, run: impl FnOnce() -> R) -> R {
        let started = timing().then(Instant::now);
        let outcome = run();
        self.count(bytes_in, bytes_out, started.map(|started| started.elapsed()));
        outcome
    }

    #[inline]
    fn count(&self, bytes_in: usize, bytes_out: usize, time: Option<Duration>) {
        count(self.entry, self.index, self.ledger.as_deref(), [bytes_in, bytes_out], time);
    }
}

#[inline]
fn count(
    entry: &'static Entry,
    index: usize,
    ledger: Option<&Ledger>,
    [bytes_in, bytes_out]: [usize; 2],
    time: Option<Duration>,
) {
    let counters = entry.counters;
    if let Some(time) = time {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        counters.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        counters.timed.fetch_add(1, Ordering::Relaxed);
    }
    counters.launches.fetch_add(1, Ordering::Relaxed);
    counters.bytes_in.fetch_add(bytes_in as u64, Ordering::Relaxed);
    counters.bytes_out.fetch_add(bytes_out as u64, Ordering::Relaxed);
    if let Some(ledger) = ledger {
        ledger.note(index);
    }
}

/// A launch in a graph: it counts each time that the graph is launched.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct Tally {
    entry: &'static Entry,
    index: usize,
    ledger: Option<Arc<Ledger>>,
    bytes: [usize; 2],
}

#[cfg(feature = "cuda")]
impl Tally {
    pub(crate) fn kernel(&self) -> &'static str {
        self.entry.name
    }

    pub(crate) fn count(&self) {
        count(self.entry, self.index, self.ledger.as_deref(), self.bytes, None);
    }
}

impl Fault {
    /// The fault as an error, where index 0 is column 0 of row `row` in rows of `k`.
    pub(crate) fn in_rows(self, format: &FormatInfo, row: usize, k: usize) -> Error {
        let k = k.max(1);
        let blocks = (k / format.elements.max(1)).max(1);
        match self {
            Fault::NonFinite(i) => Error::NonFinite { row: row.saturating_add(i / k), column: i % k },
            Fault::InvalidCode(i) => {
                Error::InvalidCode { format: format.name, row: row.saturating_add(i / k), column: i % k }
            }
            Fault::ScaleOverflow(b) => {
                Error::ScaleOverflow { row: row.saturating_add(b / blocks), block: b % blocks }
            }
        }
    }

    /// The fault as an error in row `row` of activations.
    pub(crate) fn in_activations(self, row: usize) -> Error {
        match self {
            Fault::NonFinite(column) => Error::NonFinite { row, column },
            Fault::InvalidCode(column) => Error::InvalidCode { format: "activations", row, column },
            Fault::ScaleOverflow(block) => Error::ScaleOverflow { row, block },
        }
    }
}

/// How many blocks a row is, if its bytes and its values agree.
fn whole_blocks(format: &FormatInfo, bytes: usize, values: usize) -> Result<usize, Error> {
    let blocks = bytes / format.bytes.max(1);
    let expected = blocks.saturating_mul(format.elements);
    if blocks.saturating_mul(format.bytes) == bytes && expected == values {
        Ok(blocks)
    } else {
        Err(Error::ShapeMismatch { what: "a row", unit: "values", expected, found: values })
    }
}

impl Launcher<DequantizeCode> {
    pub(crate) fn dequantize(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::Dequantize, |code| match code {
            Code::Dequantize(run) => Some(DequantizeCode(run)),
            Code::Quantize { .. } | Code::QuantizeActivations(_) | Code::Matmul { .. } | Code::Cuda(_) => {
                None
            }
        })
    }

    /// Some rows of a matrix to `rows.len() * k` values.
    pub(crate) fn rows(
        &self,
        matrix: &QuantizedMatrix<'_>,
        rows: Range<usize>,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        let bytes_in = rows.len().saturating_mul(matrix.row_bytes());
        self.launch(bytes_in, size_of_val(dst), || {
            let mut rest = dst;
            for row in rows {
                let Some((values, after)) = rest.split_at_mut_checked(matrix.k()) else {
                    return Err(Error::ShapeMismatch {
                        what: "the destination",
                        unit: "values",
                        expected: matrix.n().saturating_mul(matrix.k()),
                        found: row.saturating_mul(matrix.k()),
                    });
                };
                self.row(matrix, row, values)?;
                rest = after;
            }
            Ok(())
        })
    }

    /// Reads every row, so that a code without a meaning is found.
    pub(crate) fn validate(&self, matrix: &QuantizedMatrix<'_>) -> Result<(), Error> {
        let mut scratch = crate::aligned::Aligned::<f32>::zeroed(matrix.k())?;
        self.launch(matrix.total_bytes(), 0, || {
            (0..matrix.n()).try_for_each(|row| self.row(matrix, row, &mut scratch))
        })
    }

    /// One row, given apart from its matrix.
    pub(crate) fn one(
        &self,
        format: &FormatInfo,
        blocks: &[u8],
        outer: f32,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        self.launch(blocks.len(), size_of_val(dst), || self.blocks(format, blocks, outer, 0, dst))
    }

    fn row(&self, matrix: &QuantizedMatrix<'_>, row: usize, dst: &mut [f32]) -> Result<(), Error> {
        let outer = matrix.outer_scale(row)?;
        self.blocks(matrix.format(), matrix.blocks(row), outer, row, dst)
    }

    /// The blocks of row `row`, which is named in errors.
    fn blocks(
        &self,
        format: &FormatInfo,
        blocks: &[u8],
        outer: f32,
        row: usize,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        let count = whole_blocks(format, blocks.len(), dst.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: `admit` checked the processor; `whole_blocks` found that `blocks` holds `count` blocks
        // and `dst` their values.
        unsafe { (self.code.0)(blocks.as_ptr(), dst.as_mut_ptr(), count, outer) }
            .map_err(|fault| fault.in_rows(format, row, dst.len()))
    }
}

impl Launcher<QuantizeCode> {
    pub(crate) fn quantize(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::Quantize, |code| match code {
            Code::Quantize { step, blocks } => Some(QuantizeCode { step, blocks }),
            Code::Dequantize(_) | Code::QuantizeActivations(_) | Code::Matmul { .. } | Code::Cuda(_) => None,
        })
    }

    /// Whether a scale covers more than a block.
    pub(crate) fn has_step(&self) -> bool {
        self.code.step.is_some()
    }

    /// A whole tensor, as one launch.
    pub(crate) fn counted<R>(&self, src: &[f32], dst: usize, run: impl FnOnce() -> R) -> R {
        self.launch(size_of_val(src), dst, run)
    }

    /// The step of a row or tensor; for a quantizer without one, the neutral step.
    pub(crate) fn step(&self, src: &[f32]) -> Result<Step, Fault> {
        match self.code.step {
            // SAFETY: `admit` checked the processor; the slice gives pointer and length.
            Some(step) => unsafe { step(src.as_ptr(), src.len()) },
            None => Ok(Step { apply: 1.0, stored: 1.0 }),
        }
    }

    /// The blocks of row `row`, which is named in errors.
    pub(crate) fn blocks(
        &self,
        format: &FormatInfo,
        src: &[f32],
        row: usize,
        dst: &mut [u8],
        step: Step,
    ) -> Result<(), Error> {
        let count = whole_blocks(format, dst.len(), src.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: `admit` checked the processor; `whole_blocks` found that `src` holds the values of
        // `count` blocks and that `dst` has room for these.
        unsafe { (self.code.blocks)(src.as_ptr(), dst.as_mut_ptr(), count, step) }
            .map_err(|fault| fault.in_rows(format, row, src.len()))
    }
}

impl Launcher<ActivationCode> {
    pub(crate) fn activations(registry: &'static Registry, candidate: Candidate) -> Result<Self, Error> {
        Launcher::new(registry, candidate, Op::QuantizeActivations, |code| match code {
            Code::QuantizeActivations(run) => Some(ActivationCode(run)),
            Code::Dequantize(_) | Code::Quantize { .. } | Code::Matmul { .. } | Code::Cuda(_) => None,
        })
    }

    /// `m` rows, as one launch.
    pub(crate) fn counted<R>(&self, m: usize, layout: &RowLayout, run: impl FnOnce() -> R) -> R {
        let out = layout.bytes() + 4 * (layout.blocks + layout.units);
        self.launch(m.saturating_mul(layout.k).saturating_mul(4), m.saturating_mul(out), run)
    }

    /// One row of `layout.k` values to places of exactly the layout's sizes.
    #[inline]
    pub(crate) fn row(
        &self,
        x: &[f32],
        layout: &RowLayout,
        q: &mut [i8],
        scales: &mut [f32],
        sums: &mut [i32],
    ) -> Result<(), Fault> {
        let RowLayout { k, unit, unit_padded, units, blocks, .. } = *layout;
        // One comparison a row; the caller cuts the buffers by the same layout.
        assert!(
            x.len() == k && q.len() == layout.bytes() && scales.len() == blocks && sums.len() == units,
            "rows are cut by the layout"
        );
        if k == 0 {
            return Ok(());
        }
        // SAFETY: `admit` checked the processor; the buffers have the sizes that the ABI asks for this
        // `k` and unit, as just compared.
        unsafe {
            (self.code.0)(
                x.as_ptr(),
                k,
                unit,
                unit_padded,
                q.as_mut_ptr(),
                scales.as_mut_ptr(),
                sums.as_mut_ptr(),
            )
        }
    }
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
            Code::Dequantize(_) | Code::Quantize { .. } | Code::QuantizeActivations(_) | Code::Cuda(_) => {
                None
            }
        })
    }

    /// Row `row` of `weights` (made with `packing`) to `k` values.
    pub(crate) fn unpack(
        &self,
        packing: &PackInfo,
        weights: &PackedMatrix,
        row: usize,
        dst: &mut [f32],
    ) -> Result<(), Error> {
        if row >= weights.n {
            return Err(Error::NoSuchRow { row, rows: weights.n });
        }
        if dst.len() != weights.k {
            return Err(Error::ShapeMismatch {
                what: "the destination",
                unit: "values",
                expected: weights.k,
                found: dst.len(),
            });
        }
        if dst.is_empty() {
            return Ok(());
        }
        let (panel, row_in_panel) = (row / packing.rows, row % packing.rows);
        let per_panel = packing.terms(weights.units).unwrap_or(0);
        let codes = &weights.codes[panel * weights.stride..][..weights.stride];
        let scales = if packing.scales { &weights.scales[panel * per_panel..][..per_panel] } else { &[] };
        let mins = if packing.mins { &weights.mins[panel * per_panel..][..per_panel] } else { &[] };
        unpack_panel(packing, codes, scales, mins, weights.outer[row], row_in_panel, weights.k, dst);
        Ok(())
    }

    /// The product of `m > 0` quantized rows with `n > 0` rows of `k > 0`. The caller has checked that this
    /// kernel reads `weights`, that `x` was laid out for it, and that `bias` and `y` hold `n` and `m * n`.
    pub(crate) fn product(
        &self,
        weights: &PackedMatrix,
        x: &Activations<'_>,
        bias: Option<&[f32]>,
        y: &mut [f32],
        threads: &Threads,
    ) {
        let RowLayout { k, units, stride, blocks, .. } = x.layout;
        let (m, n) = (x.m, weights.n);
        assert!(
            k == weights.k && units == weights.units && y.len() == m * n && bias.is_none_or(|b| b.len() == n),
            "the handle compares sizes with the shape"
        );
        let args = MatmulArgs {
            codes: weights.codes.as_ptr(),
            stride: weights.stride,
            scales: pointer(&weights.scales),
            mins: pointer(&weights.mins),
            min: weights.layout.packing.map_or(0, |packing| packing.min),
            table: weights
                .layout
                .packing
                .and_then(|packing| packing.table)
                .map_or(std::ptr::null(), std::ptr::from_ref),
            outer: weights.outer.as_ptr(),
            k,
            units,
            x: x.q.as_ptr(),
            x_stride: stride,
            x_scales: x.scales.as_ptr(),
            x_blocks: blocks,
            x_sums: x.sums.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            y: y.as_mut_ptr(),
            m,
            n,
            row_begin: 0,
            row_end: n,
        };
        let args = Shared(args);
        let panel = weights.layout.panel_rows();
        let work = (m as u64).saturating_mul(n as u64).saturating_mul(k as u64);
        let wide = panel * ROWS_PER_GRANULE.div_ceil(panel);
        // Narrow matrices are cut as finely as the packing allows, or some threads would have nothing.
        let granule = if n / wide >= threads.most_parts() { wide } else { panel };
        let granules = n.div_ceil(granule);
        let split = |job: Range<usize>, left, all| {
            let mid = job.start + share(job.len(), left, all);
            (job.start..mid, mid..job.end)
        };
        let run = |job: Range<usize>| -> Result<(), std::convert::Infallible> {
            let rows = Range { start: (job.start * granule).min(n), end: (job.end * granule).min(n) };
            if !rows.is_empty() {
                let args = MatmulArgs { row_begin: rows.start, row_end: rows.end, ..*args.get() };
                // SAFETY: `admit` checked the processor; pointers and sizes come from buffers that outlive
                // this call, in the layout this kernel reads (the caller checked). Parts write columns of
                // `y` that no other part touches, and `row_begin` is a multiple of the packing's rows.
                unsafe { (self.code.run)(&args) };
            }
            Ok(())
        };
        let bytes_in = weights.bytes() + m * (x.layout.bytes() + 4 * (blocks + units));
        self.launch(bytes_in, m * n * 4, || {
            match threads.divide(threads.parts(work, granules), 0..granules, &split, &run) {
                Ok(()) => {}
                Err(never) => match never {},
            }
        });
    }
}

/// Arguments that several threads read.
struct Shared(MatmulArgs);

impl Shared {
    /// Through a method, so that closures capture the wrapper and not the pointers in it.
    fn get(&self) -> &MatmulArgs {
        &self.0
    }
}

// SAFETY: threads only read the arguments. What they point to is read-only but for `y`, of which each
// thread writes columns of its own (`Launcher::product` hands out disjoint row ranges).
unsafe impl Sync for Shared {}

/// Null for an empty slice, as the ABI wants it.
fn pointer<T>(slice: &[T]) -> *const T {
    if slice.is_empty() { std::ptr::null() } else { slice.as_ptr() }
}

fn pointer_mut<T>(slice: &mut [T]) -> *mut T {
    if slice.is_empty() { std::ptr::null_mut() } else { slice.as_mut_ptr() }
}
