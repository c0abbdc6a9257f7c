//! A layer: weights packed once, a kernel chosen by shape at each run, and a stated policy for the
//! case that there is none.

mod adaptive;
#[cfg(feature = "cuda")]
mod divided;
#[cfg(feature = "cuda")]
mod on_device;
mod options;
mod plan;
mod prologue;
mod quantized;
#[cfg(feature = "nccl")]
mod row_parallel;
mod warm_up;

pub use adaptive::{Adapted, Adaptive};
#[cfg(feature = "cuda")]
pub use divided::{DivideOptions, DividedLinear, DividedPart, LostGpu, ReplicatedLinear, Shares};
pub use options::{LinearOptions, Policy};
pub use plan::LayerMemory;
#[cfg(feature = "nccl")]
pub use row_parallel::RowParallelLinear;

use crate::activations::{Input, Source};
use crate::decide::Prepared;
use crate::error::Error;
use crate::hadamard::Hadamard;
use crate::kernel::{Dequantizer, Matmul};
use crate::memory::aligned::Aligned;
use crate::memory::placement::Placement;
use crate::observe::{fell_back, recovered};
use crate::operands::output::Output;
use crate::receipt::{FallbackNote, Recording};
use crate::registry::{Entry, Registry};
use crate::request::Shape;
use crate::run::choice::{Choice, refused};
use crate::run::plain::PlainWeights;
use crate::run::product::{Destination, Store};
use crate::threads::Threads;
use crate::tuning::ShapeClass;
use crate::weights::{PackedMatrix, QuantizedMatrix, Stack};
use crate::workspace::{LentRows, Workspace, WorkspaceSize};
use adaptive::{LayerTrial, Turn};
use gristmill_spec::vocab::{DType, Op, Precision};
use plan::LayerPlan;
use std::sync::Arc;

impl Workspace {
    /// One workspace for all layers of a model, up to `m` tokens: of each part as much as the layer takes that takes most.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`].
    pub fn for_all<'l>(
        layers: impl IntoIterator<Item = &'l Linear>,
        m: usize,
        threads: &Threads,
    ) -> Result<Workspace, Error> {
        let mut size = WorkspaceSize::default();
        for layer in layers {
            size = size.max(layer.workspace_size(m, threads)?);
        }
        Workspace::of_size(size)
    }
}

/// `y = x w^T (+ bias)` with quantized `w`.
#[derive(Debug)]
pub struct Linear {
    prepared: Prepared,
    /// Decisions for activations that are int8 already, where kernels for floats don't take them.
    int8: Option<Prepared>,
    n: usize,
    k: usize,
    choices: Vec<Choice>,
    packed: Vec<PackedMatrix>,
    /// Where the policy allows it and some `m` has no kernel.
    plain: Option<(PlainWeights, Arc<FallbackNote>)>,
    /// The same on a GPU: products of f32 that dequantize what they read.
    floats: Option<(Prepared, Arc<FallbackNote>)>,
    /// Set if the layer runs on the processor though another device was asked for.
    moved: Option<Arc<FallbackNote>>,
    /// What is done to activations before they are quantized.
    transform: Option<Arc<Hadamard>>,
    /// Where kernels take turns, by class of tokens.
    trials: Vec<Option<LayerTrial>>,
}

impl Linear {
    /// Chooses kernels for every `m` and packs the weights for them; afterwards `weights` is not needed.
    ///
    /// # Errors
    /// [`Error::Environment`], where it counts. No kernel and no policy that helps: [`Error::NoKernel`] and its special cases (see
    /// [`Decision::kernel`](crate::decide::Decision::kernel)). Weights: [`Error::InvalidCode`],
    /// [`Error::WrongFormat`]. Memory: [`Error::OutOfMemory`], [`Error::TooLarge`].
    pub fn new(
        registry: &'static Registry,
        weights: &QuantizedMatrix<'_>,
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Linear, Error> {
        Linear::stacked(registry, std::slice::from_ref(weights), options, threads)
    }

    /// Several matrices of one format and `k` as one layer, for layers that share their input: see
    /// [`Matmul::pack_stacked`], which also says how outputs lie.
    ///
    /// # Errors
    /// As for [`Linear::new`] and [`Matmul::pack_stacked`].
    pub fn stacked(
        registry: &'static Registry,
        weights: &[QuantizedMatrix<'_>],
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Linear, Error> {
        let linear = Linear::made(registry, weights, options, threads)?;
        linear.tell_left_out();
        Ok(linear)
    }

    /// The same without telling an observer what it was made without.
    pub(crate) fn made(
        registry: &'static Registry,
        weights: &[QuantizedMatrix<'_>],
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Linear, Error> {
        let stack = Stack::new(weights)?;
        let (n, k) = (stack.n(), stack.k());
        let plan = LayerPlan::new(registry, stack.format().name, [n, k], options, threads)?;
        let mut packed = Vec::new();
        let mut choices = Vec::new();
        for (matmul, at) in plan.products {
            // Products come in the order of the packings they read.
            if at == packed.len() {
                packed.push(matmul.pack_stacked(weights, threads)?);
            }
            choices.push(Choice { matmul, packed: at });
        }
        let plain = match plan.plain {
            Some(note) => Some((dequantize(&plan.prepared, [n, k], weights, threads)?, note)),
            None => None,
        };
        let LayerPlan { prepared, int8, moved, floats, .. } = plan;
        let trials = match &options.adaptive {
            Some(adaptive) => adaptive.trials(&prepared, [n, k], threads.count(), &choices),
            None => Vec::new(),
        };
        Ok(Linear { prepared, int8, n, k, choices, packed, plain, floats, moved, transform: None, trials })
    }

    pub(crate) fn tell_left_out(&self) {
        let steps = self.choices.first().map(|choice| choice.matmul.left_out());
        steps.into_iter().flatten().for_each(recovered);
    }

    /// Says nothing of them in receipts, where steps of recovery do.
    pub(crate) fn forget_left_out(&mut self) {
        self.choices.iter_mut().for_each(|choice| choice.matmul.forget_left_out());
    }

    /// Counts its runs as fallbacks, in place of what was asked for.
    pub(crate) fn runs_instead(&mut self, note: Arc<FallbackNote>) {
        self.moved = Some(note);
    }

    /// What such a layer will take of memory, without its weights: `n` rows of `k` of `format`, and a workspace for up to `m`
    /// tokens with these threads. Nothing is loaded or allocated.
    ///
    /// # Errors
    /// As for [`Linear::new`], but for those of weights.
    ///
    /// ```
    /// use gristmill_runtime::{Error, Linear, LinearOptions, Registry, Threads};
    ///
    /// /// Bytes of a model's layers, for tokens up to 512 at a time: all weights, and the workspace that takes most.
    /// fn budget(registry: &'static Registry, layers: &[(&str, usize, usize)], threads: &Threads) -> Result<usize, Error> {
    ///     let (mut weights, mut workspace) = (0, 0);
    ///     for (format, n, k) in layers {
    ///         let memory = Linear::memory(registry, format, [*n, *k], &LinearOptions::default(), 512, threads)?;
    ///         weights += memory.weight_bytes;
    ///         workspace = memory.workspace.bytes().max(workspace);
    ///     }
    ///     Ok(weights + workspace)
    /// }
    /// # let _ = budget;
    /// ```
    pub fn memory(
        registry: &'static Registry,
        format: &str,
        [n, k]: [usize; 2],
        options: &LinearOptions,
        m: usize,
        threads: &Threads,
    ) -> Result<LayerMemory, Error> {
        LayerPlan::new(registry, format, [n, k], options, threads)?.memory([m, n, k], threads)
    }

    /// The layer with a Hadamard transform of its inputs, for weights that were folded with it: [`Linear::forward`] then takes
    /// activations as they are before the transform, in f32, and its workspace holds the transformed ones. Activations that
    /// are int8 already can't be transformed, so [`Linear::quantize`] and [`Linear::forward_quantized`] give an error.
    ///
    /// # Errors
    /// [`Error::Hadamard`] where the transform is of another width, or the layer takes other inputs than f32 or runs on a GPU.
    pub fn transformed(mut self, transform: Arc<Hadamard>) -> Result<Linear, Error> {
        transform.check_inputs(self.k, self.prepared.input())?;
        transform.check_device(self.prepared.device())?;
        self.transform = Some(transform);
        Ok(self)
    }

    /// The transform of its inputs, if it has one.
    pub fn transform(&self) -> Option<&Arc<Hadamard>> {
        self.transform.as_ref()
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The decisions that this layer runs by.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Bytes held for weights: each packing, and f32 values where the policy made them.
    pub fn weight_bytes(&self) -> usize {
        let packed: usize = self.packed.iter().map(PackedMatrix::bytes).sum();
        packed + self.plain.as_ref().map_or(0, |(plain, _)| plain.values.bytes())
    }

    /// On which NUMA nodes its packed weights lie, all packings together; `None` as for [`PackedMatrix::placement`].
    pub fn placement(&self) -> Option<Placement> {
        self.packed.iter().filter_map(PackedMatrix::placement).reduce(Placement::and)
    }

    /// Lets runs count in `recording` (`None`: in no recording any more), fallbacks included, and says in it which kernels in quarantine the
    /// layer was made without.
    ///
    /// # Errors
    /// [`Error::ForeignRecording`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        for choice in &mut self.choices {
            choice.matmul.record(recording)?;
        }
        if let Some(recording) = recording {
            let plain = self.plain.as_ref().map(|(_, note)| note);
            let floats = self.floats.as_ref().map(|(_, note)| note);
            for note in plain.into_iter().chain(floats).chain(&self.moved) {
                recording.ledger.attach(note);
            }
        }
        Ok(())
    }

    /// What a workspace must hold for up to `m` tokens: nothing where all of it runs on a GPU.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        let mut size = match &self.plain {
            Some((plain, _)) => plain.workspace_size(m)?,
            None => WorkspaceSize::default(),
        };
        for choice in &self.choices {
            size = size.max(choice.matmul.workspace_size(m, self.k, threads)?);
        }
        if self.transform.is_some() {
            let transformed = m.checked_mul(self.k).ok_or(Error::TooLarge { what: "the workspace" })?;
            size.rows = size.rows.max(transformed);
        }
        Ok(size)
    }

    /// A workspace for up to `m` tokens.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`].
    pub fn workspace(&self, m: usize, threads: &Threads) -> Result<Workspace, Error> {
        Workspace::of_size(self.workspace_size(m, threads)?)
    }

    /// Computes `y` (`m * n`) for `m` tokens, with the kernel that decide gives for this `m`. [`Linear::product`] has strides,
    /// other types of outputs, ranges of rows, and outputs that are added to what is there.
    ///
    /// # Errors
    /// [`Error::NoKernel`] if this `m` has none and the policy has no answer; else as for [`Matmul::run`]. Of a
    /// layer with a transform [`Error::Hadamard`] for inputs that are not f32.
    pub fn forward(
        &self,
        input: Input<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let store = Store { bias, ..Store::default() };
        self.forward_stored(&Source::dense(input, m), &store, Output::F32(y), workspace, threads)
    }

    /// The same with activations as they lie and results as they are stored.
    pub(crate) fn forward_stored(
        &self,
        source: &Source<'_>,
        store: &Store<'_>,
        y: Output<'_>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let Some(transform) = &self.transform else {
            return self.multiply(source, store, y, workspace, threads);
        };
        let Input::F32(_) = source.input else { return Err(self.no_int8(transform)) };
        let x = source.rows(self.k, 0)?;
        // The product has no use for them: rows of a workspace are for inputs that are not f32.
        let mut lent = LentRows::of(workspace);
        transform.transform(&x, &mut lent.rows, threads)?;
        let input = Input::F32(&lent.rows[..source.m * self.k]);
        let source = Source { input, stride: None, ..*source };
        self.multiply(&source, store, y, lent.workspace, threads)
    }

    /// What a layer with a transform says to activations that can't be transformed any more.
    fn no_int8(&self, transform: &Hadamard) -> Error {
        let why = "it is applied to f32, before activations are quantized: use `Linear::forward` with f32";
        transform.refused(why.to_owned())
    }

    /// The product of activations as they are.
    fn multiply(
        &self,
        source: &Source<'_>,
        store: &Store<'_>,
        y: Output<'_>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let (n, k) = (self.n, self.k);
        let Source { input, m, .. } = *source;
        let shape = Shape { m, n, k };
        if source.is_plain()
            && let Some((Choice { matmul, packed }, turn)) = self.turn(shape, store, &y)
        {
            let x = matmul.quantize(input, m, k, workspace, threads)?;
            turn.time(|| matmul.run_quantized_stored(&self.packed[*packed], &x, store, y, threads))?;
            self.count_fallback(matmul, m);
            return Ok(());
        }
        if let Some(Choice { matmul, packed }) = self.choice(shape, input.dtype()) {
            matmul.run_stored(&self.packed[*packed], source, store, y, workspace, threads)?;
            self.count_fallback(matmul, m);
            return Ok(());
        }
        match &self.plain {
            Some((plain, note)) => {
                let x = source.rows(k, plain.blocks())?;
                let into = Destination::new(store, y, [m, n])?;
                if into.is_empty() {
                    return Ok(());
                }
                if k == 0 {
                    into.fill();
                    return Ok(());
                }
                plain.run(x, into, workspace, threads)?;
                fell_back(note);
                Ok(())
            }
            // Nothing to compute needs no kernel.
            None if m == 0 && y.len() == 0 && input.len() == 0 => Ok(()),
            None => Err(refused(&self.prepared, Shape { m, n, k })),
        }
    }

    /// Enqueues [`forward`](Linear::forward) for activations on the layer's GPU, into memory there, and does not wait for it;
    /// [`Workspace::finish`] does. This is what a [`Graph`](crate::cuda::Graph) of a whole model is captured from.
    ///
    /// # Errors
    /// [`Error::NoKernel`] if this `m` has none on a GPU; else as for [`Matmul::run_on_device`].
    #[cfg(feature = "cuda")]
    pub fn forward_on_device(
        &self,
        input: crate::cuda::DeviceInput<'_>,
        m: usize,
        bias: Option<&crate::cuda::DeviceBuffer<f32>>,
        y: &mut crate::cuda::DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let shape = Shape { m, n: self.n, k: self.k };
        match self.choice(shape, input.dtype()) {
            Some(Choice { matmul, packed }) => {
                matmul.run_on_device(&self.packed[*packed], input, m, bias, y, workspace)?;
                self.count_fallback(matmul, m);
                Ok(())
            }
            None => Err(refused(&self.prepared, shape)),
        }
    }

    /// The GPU that it works on, if it is one.
    #[cfg(feature = "cuda")]
    pub(crate) fn gpu(&self) -> Option<&Arc<crate::cuda::Gpu>> {
        self.choices.first()?.matmul.gpu()
    }

    /// Every kernel that runs of this layer may launch, some more than once.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &'static Entry> {
        self.choices.iter().flat_map(|choice| choice.matmul.kernels())
    }

    /// The product of a shape, of activations of a type.
    pub(crate) fn product_for(&self, shape: Shape, input: DType) -> Option<&Matmul> {
        Some(&self.choice(shape, input)?.matmul)
    }

    /// What a run of `matmul` counts as, where it is something else than was asked for.
    fn fallback(&self, matmul: &Matmul) -> Option<&FallbackNote> {
        let multiplies_floats = || matmul.entry().precision() != Some(Precision::Int8);
        let floats = self.floats.as_ref().filter(|_| multiplies_floats()).map(|(_, note)| note);
        self.moved.as_ref().or(floats).map(|note| &**note)
    }

    /// Counts a run of `m` tokens that has ended well, where `matmul` is something else than was asked for.
    fn count_fallback(&self, matmul: &Matmul, m: usize) {
        if let Some(note) = self.fallback(matmul).filter(|_| m > 0) {
            fell_back(note);
        }
    }

    /// What was found out about the kernels for `m` tokens, where some take turns ([`LinearOptions::adaptive`]).
    pub fn adapted(&self, m: usize) -> Option<Adapted> {
        Some(self.trial(Shape { m, n: self.n, k: self.k })?.adapted())
    }

    #[inline]
    fn trial(&self, shape: Shape) -> Option<&LayerTrial> {
        if self.trials.is_empty() {
            return None;
        }
        self.trials.get(ShapeClass::of(shape).of_tokens())?.as_ref()
    }

    /// The kernel whose turn it is, while the kernels for a shape take turns. Products that are stored otherwise, or of some rows, are not
    /// compared with others.
    #[inline]
    fn turn(&self, shape: Shape, store: &Store<'_>, y: &Output<'_>) -> Option<(&Choice, Turn<'_>)> {
        let trial = self.trial(shape)?;
        if trial.fixed().is_some() || !store.is_plain() || y.dtype() != DType::F32 {
            return None;
        }
        let takes = |place: usize| self.choices.get(place).is_some_and(|choice| choice.takes(shape));
        let (place, turn) = trial.turn(shape.m, takes)?;
        Some((self.choices.get(place)?, turn))
    }

    /// What was found to be the fastest for a shape, or else what decide gives, if it was taken.
    fn choice(&self, shape: Shape, input: DType) -> Option<&Choice> {
        let found = self.trial(shape).and_then(|trial| self.choices.get(trial.fixed()?));
        if let Some(found) = found.filter(|choice| choice.takes(shape)) {
            return Some(found);
        }
        let prepared = self.int8.as_ref().filter(|_| input == DType::I8).unwrap_or(&self.prepared);
        let floats = || self.floats.as_ref()?.0.decide(shape).chosen();
        let chosen = prepared.decide(shape).chosen().or_else(floats)?;
        self.choices.iter().find(|choice| std::ptr::eq(choice.matmul.entry(), chosen))
    }
}

/// Weights as f32, in the order of the matrices.
fn dequantize(
    prepared: &Prepared,
    [n, k]: [usize; 2],
    weights: &[QuantizedMatrix<'_>],
    threads: &Threads,
) -> Result<PlainWeights, Error> {
    let reads = prepared.sibling(Op::Dequantize, DType::F32, Shape::matrix(n, k))?;
    let dequantizer = Dequantizer::new(&reads.decide_as_asked())?;
    let activations = &prepared.registry().activations[dequantizer.format().activations];
    let mut values =
        Aligned::zeroed(n.checked_mul(k).ok_or(Error::TooLarge { what: "dequantized weights" })?)?;
    let mut done = 0;
    for matrix in weights {
        let size = matrix.n() * k;
        dequantizer.run_on(matrix, &mut values[done..][..size], threads)?;
        done += size;
    }
    Ok(PlainWeights { values, k, activations })
}
