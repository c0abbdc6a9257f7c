//! A product in two steps: activations quantized once, and products that read them.

use super::Matmul;
use crate::activations::{
    self, ActivationLayout, Activations, Input, QuantizedActivations, RowLayout, Source,
};
use crate::error::Error;
use crate::kernel::check_shape;
use crate::operands::output::Output;
use crate::request::Shape;
use crate::run::launch::{Launcher, MatmulCode, On, ProductJob};
use crate::run::product::{Destination, Store};
use crate::threads::Threads;
use crate::weights::PackedMatrix;
use crate::workspace::Workspace;
use gristmill_spec::vocab::Precision;

impl Matmul {
    /// How it reads tokens of `k` elements.
    pub(crate) fn activation_layout(&self, k: usize) -> Result<ActivationLayout, Error> {
        let row = RowLayout::new(self.layout.unit, k, self.activation_format.block)?;
        Ok(ActivationLayout { format: self.activation_format, row })
    }

    /// The kernel, if it is one of the processor.
    pub(crate) fn on_processor(&self) -> Result<&Launcher<MatmulCode>, Error> {
        match &self.on {
            On::Cpu(launcher) => Ok(launcher),
            On::Cuda(launcher) => {
                Err(Error::ProcessorOnly { what: "activations in its memory", device: launcher.entry.device })
            }
        }
    }

    /// Whether activations that one of them [quantized](Matmul::quantize), of tokens of `k` elements, are what the other reads.
    pub fn shares_activations_with(&self, other: &Matmul, k: usize) -> bool {
        let both = match (&self.on, &other.on) {
            (On::Cpu(_), On::Cpu(_)) => true,
            (On::Cuda(one), On::Cuda(two)) => {
                let reads = |matmul: &Matmul| matmul.reads_quantized();
                one.shares_device_with(two) && reads(self) && reads(other)
            }
            (On::Cpu(_), On::Cuda(_)) | (On::Cuda(_), On::Cpu(_)) => false,
        };
        match (self.activation_layout(k), other.activation_layout(k)) {
            (Ok(one), Ok(two)) => both && one.same_as(&two),
            (_, _) => false,
        }
    }

    /// Whether it reads activations that are int8 already.
    pub(crate) fn reads_quantized(&self) -> bool {
        let entry = self.entry();
        entry.precision() == Some(Precision::Int8) && !entry.quantizes_activations()
    }

    /// Quantizes `m` tokens of `k` elements into `workspace`, for this and other products. Allocates nothing, as
    /// [`Matmul::run`].
    ///
    /// # Errors
    /// [`Error::ProcessorOnly`]; [`Error::WrongInput`], [`Error::ShapeMismatch`], [`Error::WorkspaceTooSmall`],
    /// [`Error::NonFinite`] with the position.
    pub fn quantize<'w>(
        &self,
        input: Input<'_>,
        m: usize,
        k: usize,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        self.on_processor()?;
        self.check_dtype(input.dtype())?;
        let ActivationLayout { format, row } = self.activation_layout(k)?;
        let x = Source::dense(input, m).rows(k, row.blocks)?;
        if m == 0 || k == 0 {
            let rows = Activations { layout: row, m, q: &[], scales: &[], sums: &[] };
            return Ok(QuantizedActivations { format, rows });
        }
        // How rows are quantized does not depend on how many products read them.
        let quantizer = self.processor_quantizer(input, Shape { m, n: 1, k })?;
        let rows = activations::quantize(quantizer, x, row, workspace, threads)?;
        Ok(QuantizedActivations { format, rows })
    }

    /// Computes `y` (`m * n`, row after row) from activations that this product or another one quantized. Allocates
    /// nothing, as [`Matmul::run`], and gives the same bits.
    ///
    /// # Errors
    /// [`Error::ProcessorOnly`]; [`Error::ActivationLayout`] where the activations were quantized for a kernel that
    /// reads them differently; [`Error::WrongFormat`], [`Error::WrongPacking`], [`Error::ShapeMismatch`],
    /// [`Error::ShapeRule`].
    pub fn run_quantized(
        &self,
        weights: &PackedMatrix,
        x: &QuantizedActivations<'_>,
        bias: Option<&[f32]>,
        y: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        self.run_quantized_stored(weights, x, &Store { bias, ..Store::default() }, Output::F32(y), threads)
    }

    /// The same with results as they are stored.
    pub(crate) fn run_quantized_stored(
        &self,
        weights: &PackedMatrix,
        x: &QuantizedActivations<'_>,
        store: &Store<'_>,
        y: Output<'_>,
        threads: &Threads,
    ) -> Result<(), Error> {
        let Some((launcher, into)) = self.begun(weights, x, store, y)? else { return Ok(()) };
        let limit = self.limits.of(Shape { m: x.m(), n: weights.n, k: weights.k });
        launcher.product(weights, &x.rows, into, threads.at_most(limit))
    }

    /// The same as a job that is not run yet; `None` where there was nothing to compute, or nothing but the bias.
    pub(crate) fn job<'p>(
        &'p self,
        weights: &'p PackedMatrix,
        x: &QuantizedActivations<'p>,
        store: &Store<'p>,
        y: Output<'p>,
    ) -> Result<Option<ProductJob<'p>>, Error> {
        match self.begun(weights, x, store, y)? {
            Some((launcher, into)) => ProductJob::new(launcher, weights, x.rows, into).map(Some),
            None => Ok(None),
        }
    }

    /// The kernel and where its results go, everything compared with everything else.
    fn begun<'p>(
        &self,
        weights: &PackedMatrix,
        x: &QuantizedActivations<'_>,
        store: &Store<'p>,
        y: Output<'p>,
    ) -> Result<Option<(&Launcher<MatmulCode>, Destination<'p>)>, Error> {
        let launcher = self.on_processor()?;
        self.accepts(weights)?;
        let (m, n, k) = (x.m(), weights.n, weights.k);
        x.check(launcher.entry.name, &self.activation_layout(k)?)?;
        let into = Destination::new(store, y, [m, n])?;
        if into.is_empty() {
            return Ok(None);
        }
        check_shape(launcher.entry, Shape { m, n, k })?;
        if k == 0 {
            into.fill();
            return Ok(None);
        }
        Ok(Some((launcher, into)))
    }
}
