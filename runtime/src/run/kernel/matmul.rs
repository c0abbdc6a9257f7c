//! Handles of products: packing weights, and multiplying with them.

#[cfg(feature = "cuda")]
mod on_device;
mod pack;
mod prologue;
mod shared;

#[cfg(feature = "cuda")]
pub(crate) use on_device::QuantizedProduct;

use super::{Dequantizer, check_shape};
use crate::activations::{self, Input, NonFinite, RowLayout, Source, Tokens};
use crate::cuda;
use crate::decide::{Candidate, Decision, Prepared};
use crate::decisions::thread_limits::ThreadLimits;
use crate::decisions::why_packed::FromMemory;
use crate::decisions::why_packed::HeldOnce;
use crate::error::Error;
use crate::operands::output::Output;
#[cfg(feature = "cuda")]
use crate::operands::sizes::{check_len, product_of};
#[cfg(feature = "cuda")]
use crate::reason::{BrokenRule, Dim, Rule};
use crate::receipt::Recording;
use crate::recovery::Recovery;
use crate::registry::{ActivationInfo, Entry, FormatInfo};
use crate::request::Shape;
#[cfg(feature = "cuda")]
use crate::run::launch;
use crate::run::launch::{ActivationCode, Launcher, MatmulCode, On, PrologueCode};
use crate::run::left_out::left_out;
use crate::run::product::{Destination, Store};
use crate::threads::Threads;
use crate::weights::{PackedMatrix, WeightLayout};
use crate::workspace::{Workspace, WorkspaceSize};
use gristmill_spec::vocab::{DType, Op, Precision};
use std::sync::Arc;

/// `y[m, n] = sum_k x[m, k] * w[n, k] (+ bias[n])` with weights of one format.
#[derive(Clone, Debug)]
pub struct Matmul {
    on: On<MatmulCode, cuda::ProductCode>,
    layout: WeightLayout,
    activation_format: &'static ActivationInfo,
    /// How float rows get to int8: the decision, and a handle for each entry it may choose.
    activations: Option<Arc<Prepared>>,
    quantizers: Vec<On<ActivationCode, cuda::ActivationCode>>,
    /// How they do so behind a prologue: likewise.
    prologue: Option<Arc<Prepared>>,
    prologues: Vec<On<PrologueCode, cuda::PrologueCode>>,
    /// Reads rows that are not packed; there only for a kernel without a packing.
    dequantizer: Option<Dequantizer>,
    dtypes: Vec<DType>,
    /// The kernel's index in its registry, and why its packing is the one with the fewest bytes, if that is why it was chosen.
    from_memory: Option<(usize, FromMemory)>,
    /// The same for one copy on a GPU.
    held_once: Option<(usize, HeldOnce)>,
    /// Fewer threads, where that was measured to be faster.
    limits: ThreadLimits,
    /// Kernels in quarantine that it was decided on without.
    left_out: Vec<Recovery>,
}

impl Matmul {
    /// The handle for what `decision` chose.
    ///
    /// # Errors
    /// As for [`Quantizer::new`](super::Quantizer::new). A kernel without a packing also needs a kernel that dequantizes its
    /// format, to refuse weights with codes that mean nothing.
    pub fn new(decision: &Decision<'_>) -> Result<Matmul, Error> {
        let Shape { n, k, .. } = decision.shape();
        Matmul::of(decision.prepared(), decision.candidate()?, n, k)
    }

    /// The handle for one of the usable candidates of `prepared`, for weights of `n` rows of `k`.
    pub(crate) fn of(prepared: &Prepared, candidate: Candidate, n: usize, k: usize) -> Result<Matmul, Error> {
        let registry = prepared.registry();
        let place = prepared.place();
        let on = On::of(registry, candidate, place, Launcher::matmul, Launcher::<cuda::ProductCode>::cuda)?;
        let entry = on.entry();
        let format = &registry.formats[entry.format];
        let (packing, unit) = match &on {
            On::Cpu(launcher) => (launcher.code().packing, launcher.code().unit),
            On::Cuda(launcher) => launcher.layout(),
        };
        let from_int8 = entry.precision() == Some(Precision::Int8);
        let mut quantizers = Vec::new();
        // What takes floats needs nothing in front of it.
        let fused = entry.quantizes_activations();
        let activations = prepared.activations().filter(|_| from_int8 && !fused);
        for candidate in activations.map_or(&[][..], |activations| activations.usable()) {
            let gpu = Launcher::<cuda::ActivationCode>::cuda;
            quantizers.push(On::of(registry, *candidate, place, Launcher::activations, gpu)?);
        }
        // A product of a GPU that quantizes for itself takes the rows as a prologue leaves them.
        let prologue = prepared.prologue_shared().filter(|_| from_int8);
        let mut prologues = Vec::new();
        for candidate in prologue.as_ref().map_or(&[][..], |prologue| prologue.usable()) {
            let gpu = Launcher::<cuda::PrologueCode>::cuda;
            prologues.push(On::of(registry, *candidate, place, Launcher::prologue, gpu)?);
        }
        let dequantizer = match packing {
            Some(_) => None,
            None => {
                let reads = prepared.sibling(Op::Dequantize, DType::F32, Shape::matrix(n, k))?;
                Some(Dequantizer::new(&reads.decide_as_asked())?)
            }
        };
        let described = |dtype: &DType| {
            let candidates = registry.listed(Op::Matmul, entry.format, *dtype, entry.device);
            candidates.iter().any(|index| usize::from(*index) == candidate.index)
        };
        let from_float = activations.is_some() || !from_int8 || fused;
        let dtypes = DType::ALL
            .iter()
            .copied()
            .filter(|dtype| described(dtype) && (from_float || *dtype == DType::I8));
        let chosen_for = prepared.packing_reason(n, k);
        let chosen_for = chosen_for.filter(|why| packing.is_some_and(|packing| packing.name == why.packing));
        let once = prepared.once_reason();
        let once = once.filter(|why| packing.is_some_and(|packing| packing.name == why.packing));
        Ok(Matmul {
            layout: WeightLayout { format, packing, unit },
            activation_format: &registry.activations[format.activations],
            activations: prepared.activations_shared().filter(|_| from_int8 && !fused),
            quantizers,
            prologue,
            prologues,
            dequantizer,
            dtypes: dtypes.collect(),
            from_memory: chosen_for.map(|why| (candidate.index, *why)),
            held_once: once.map(|why| (candidate.index, *why)),
            limits: prepared.limits().clone(),
            left_out: left_out(prepared, format.name, Shape { m: 1, n, k }),
            on,
        })
    }

    /// The kernel.
    pub fn entry(&self) -> &'static Entry {
        self.on.entry()
    }

    /// The kernel, and those that may quantize activations in front of it.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &'static Entry> {
        std::iter::once(self.entry()).chain(self.quantizers.iter().map(On::entry))
    }

    /// The format of the weights.
    pub fn format(&self) -> &'static FormatInfo {
        self.layout.format
    }

    /// The input types that this handle takes.
    pub fn dtypes(&self) -> &[DType] {
        &self.dtypes
    }

    /// Lets launches count in `recording` (`None`: in no recording any more), those of activation
    /// quantization too, and says in it which kernels in quarantine it was decided on without.
    ///
    /// # Errors
    /// [`Error::ForeignRecording`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        for quantizer in &mut self.quantizers {
            quantizer.record(recording)?;
        }
        for prologue in &mut self.prologues {
            prologue.record(recording)?;
        }
        if let Some(dequantizer) = &mut self.dequantizer {
            dequantizer.record(recording)?;
        }
        self.on.record(recording)?;
        if let (Some(recording), Some((index, why))) = (recording, self.from_memory) {
            recording.ledger.packed_for(index, why);
        }
        if let (Some(recording), Some((index, why))) = (recording, self.held_once) {
            recording.ledger.held_once_for(index, why);
        }
        if let Some(recording) = recording {
            self.left_out.iter().for_each(|step| recording.ledger.left_out(step));
        }
        Ok(())
    }

    /// Kernels in quarantine that it was decided on without.
    pub(crate) fn left_out(&self) -> &[Recovery] {
        &self.left_out
    }

    /// Says nothing of them, where a step of recovery does.
    pub(crate) fn forget_left_out(&mut self) {
        self.left_out.clear();
    }

    /// What a workspace must hold for `m` tokens of `k`, whatever their type: nothing for a kernel of a GPU, which takes what it needs there
    /// as it runs.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn workspace_size(&self, m: usize, k: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        if let On::Cuda(_) = &self.on {
            return Ok(WorkspaceSize::default());
        }
        RowLayout::new(self.layout.unit, k, self.activation_format.block)?.workspace(m, threads.most_parts())
    }

    /// Computes `y` (`m * n`, row after row) from `m` tokens. Allocates nothing (with more
    /// than 16 threads, the list of its parts).
    ///
    /// # Errors
    /// [`Error::WrongInput`], [`Error::WrongFormat`], [`Error::WrongPacking`], [`Error::ShapeMismatch`],
    /// [`Error::ShapeRule`], [`Error::WorkspaceTooSmall`]; [`Error::NonFinite`] with the position.
    #[expect(clippy::too_many_arguments, reason = "each is a separate operand or resource of the caller")]
    pub fn run(
        &self,
        weights: &PackedMatrix,
        input: Input<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let store = Store { bias, ..Store::default() };
        self.run_stored(weights, &Source::dense(input, m), &store, Output::F32(y), workspace, threads)
    }

    /// The same with activations as they lie and results as they are stored.
    pub(crate) fn run_stored(
        &self,
        weights: &PackedMatrix,
        source: &Source<'_>,
        store: &Store<'_>,
        y: Output<'_>,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        self.accepts(weights)?;
        let kernel = self.on.entry();
        let Source { input, m, .. } = *source;
        self.check_dtype(input.dtype())?;
        let (n, k) = (weights.n, weights.k);
        let row = RowLayout::new(self.layout.unit, k, self.activation_format.block)?;
        let x = source.rows(k, row.blocks)?;
        let into = Destination::new(store, y, [m, n])?;
        if into.is_empty() {
            return Ok(());
        }
        let shape = Shape { m, n, k };
        check_shape(kernel, shape)?;
        if k == 0 {
            into.fill();
            return Ok(());
        }
        match &self.on {
            On::Cpu(launcher) => {
                let quantizer = self.processor_quantizer(input, shape)?;
                let some = threads.at_most(self.limits.of(shape));
                // Where one works alone, the others are not woken for the activations either.
                let single = Threads::single();
                let threads = if some.count() == 1 { &single } else { threads };
                let x = activations::quantize(quantizer, x, row, workspace, threads)?;
                launcher.product(weights, &x, into, some)
            }
            On::Cuda(launcher) => {
                let option =
                    |option| Error::ProductOption { kernel: kernel.name, device: kernel.device, option };
                let (bias, y) = into.dense(n).map_err(option)?;
                let input = x.dense_input().ok_or_else(|| option("strides"))?;
                if x.non_finite == NonFinite::Nan {
                    return Err(option("rows that are set aside"));
                }
                let quantizer = match input {
                    Input::I8 { .. } => None,
                    Input::F32(_) | Input::F16(_) | Input::Bf16(_) => self.activation_quantizer(shape)?,
                };
                let quantizer = quantizer.and_then(|quantizer| match quantizer {
                    On::Cuda(quantizer) => Some(quantizer),
                    On::Cpu(_) => None,
                });
                let tokens = Tokens { input, m, layout: row, block: self.activation_format.block, bias };
                launcher.run(weights, tokens, y, quantizer, &mut workspace.gpu)
            }
        }
    }

    /// Enqueues the product of activations that are on the kernel's GPU, into memory there, and does not wait for it.
    /// [`Workspace::finish`] waits, and reports an activation that was not finite.
    ///
    /// `y` has room for `m * n` values. A handle for the processor refuses.
    ///
    /// # Errors
    /// As for [`Matmul::run`]; [`Error::WrongDevice`] for operands that are elsewhere, [`Error::Gpu`],
    /// [`Error::OutOfDeviceMemory`].
    #[cfg(feature = "cuda")]
    pub fn run_on_device(
        &self,
        weights: &PackedMatrix,
        input: cuda::DeviceInput<'_>,
        m: usize,
        bias: Option<&cuda::DeviceBuffer<f32>>,
        y: &mut cuda::DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let launcher = self.on_device(weights, m, bias, y)?;
        let k = weights.k;
        let shape = Shape { m, n: weights.n, k };
        self.check_dtype(input.dtype())?;
        check_len("activations", "values", product_of("activations", m, k)?, input.len())?;
        if launcher.multiplies_floats() {
            return launcher.floats_on_device(weights, input, m, bias, y, &mut workspace.gpu);
        }
        let quantizer = self.activation_quantizer(shape)?.and_then(|quantizer| match quantizer {
            On::Cuda(quantizer) => Some(quantizer),
            On::Cpu(_) => None,
        });
        let row = RowLayout::new(self.layout.unit, k, self.activation_format.block)?;
        let block = self.activation_format.block;
        launcher.run_on_device(weights, input, m, &row, block, bias, y, quantizer, &mut workspace.gpu)
    }

    /// The kernel of a GPU, for weights, a bias and an output of these sizes, and `m` tokens.
    #[cfg(feature = "cuda")]
    fn on_device(
        &self,
        weights: &PackedMatrix,
        m: usize,
        bias: Option<&cuda::DeviceBuffer<f32>>,
        y: &cuda::DeviceBuffer<f32>,
    ) -> Result<&Launcher<cuda::ProductCode>, Error> {
        self.accepts(weights)?;
        let kernel = self.on.entry();
        let On::Cuda(launcher) = &self.on else {
            return Err(launch::cannot_drive(kernel, 0));
        };
        let shape = Shape { m, n: weights.n, k: weights.k };
        check_len("the output", "values", product_of("the output", m, weights.n)?, y.len())?;
        if let Some(bias) = bias {
            check_len("the bias", "values", weights.n, bias.len())?;
        }
        check_shape(kernel, shape)?;
        if m == 0 || shape.n == 0 || shape.k == 0 {
            return Err(Error::ShapeRule {
                kernel: kernel.name,
                rule: BrokenRule { dim: empty_dim(shape), rule: Rule::AtLeast(1), found: 0 },
            });
        }
        Ok(launcher)
    }

    /// The GPU that it runs on; `None` for the processor.
    #[cfg(feature = "cuda")]
    pub fn gpu(&self) -> Option<&Arc<cuda::Gpu>> {
        match &self.on {
            On::Cpu(_) => None,
            On::Cuda(launcher) => Some(launcher.gpu()),
        }
    }

    pub(crate) fn check_dtype(&self, found: DType) -> Result<(), Error> {
        if self.dtypes.contains(&found) {
            return Ok(());
        }
        Err(Error::WrongInput { kernel: self.on.entry().name, expected: self.dtypes.clone(), found })
    }

    /// What quantizes `input` on the processor; `None` for what is quantized already.
    pub(crate) fn processor_quantizer(
        &self,
        input: Input<'_>,
        shape: Shape,
    ) -> Result<Option<&Launcher<ActivationCode>>, Error> {
        match input {
            Input::I8 { .. } => Ok(None),
            Input::F32(_) | Input::F16(_) | Input::Bf16(_) => {
                Ok(self.activation_quantizer(shape)?.and_then(|quantizer| match quantizer {
                    On::Cpu(quantizer) => Some(quantizer),
                    On::Cuda(_) => None,
                }))
            }
        }
    }

    /// What quantizes `input` on a GPU, in front of the product; `None` for what is quantized already, and on the processor.
    pub(crate) fn gpu_quantizer(&self, input: Input<'_>, shape: Shape) -> Option<&'static Entry> {
        let quantizer = self.activation_quantizer(shape).ok().flatten();
        match (input, quantizer) {
            (Input::F32(_) | Input::F16(_) | Input::Bf16(_), Some(On::Cuda(quantizer))) => {
                Some(quantizer.entry)
            }
            (Input::I8 { .. }, _) | (_, Some(On::Cpu(_)) | None) => None,
        }
    }

    fn activation_quantizer(
        &self,
        shape: Shape,
    ) -> Result<Option<&On<ActivationCode, cuda::ActivationCode>>, Error> {
        let Some(activations) = &self.activations else { return Ok(None) };
        let entry = activations.decide(shape).kernel()?;
        Ok(self.quantizers.iter().find(|quantizer| std::ptr::eq(quantizer.entry(), entry)))
    }
}

impl Workspace {
    /// A workspace for up to `m` tokens of `k` elements, whatever their type.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`].
    pub fn for_(kernel: &Matmul, m: usize, k: usize, threads: &Threads) -> Result<Workspace, Error> {
        Workspace::of_size(kernel.workspace_size(m, k, threads)?)
    }
}

/// A dimension that is 0.
#[cfg(feature = "cuda")]
fn empty_dim(shape: Shape) -> Dim {
    if shape.m == 0 {
        Dim::M
    } else if shape.n == 0 {
        Dim::N
    } else {
        Dim::K
    }
}
