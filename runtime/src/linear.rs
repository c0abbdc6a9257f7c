//! A layer: weights packed once, a kernel chosen by shape at each run, and a stated policy for the
//! case that there is none.

use crate::activations::{Input, QuantizedActivations, Source};
use crate::aligned::Aligned;
use crate::decide::Prepared;
use crate::device::{CpuProfile, Device};
use crate::error::Error;
use crate::hadamard::Hadamard;
use crate::kernel::{Dequantizer, Matmul};
use crate::observe::fell_back;
use crate::output::Output;
use crate::plain::PlainWeights;
use crate::product::{Destination, Store};
use crate::receipt::{FallbackNote, Recording};
use crate::registry::Registry;
use crate::request::{PrecisionMode, Request, Restrict, Shape};
use crate::threads::Threads;
use crate::tuning::Tuning;
use crate::weights::{PackedMatrix, QuantizedMatrix, Stack};
use crate::workspace::{Workspace, WorkspaceSize};
use gristmill_spec::vocab::{DType, DeviceKind, Op};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What a layer may do when no kernel serves it. Whatever it does is in the receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Nothing: an error.
    #[default]
    Strict,
    /// Dequantize the weights to f32 and multiply in f32. On the processor only, and only where that is the device that was
    /// asked for: a layer for a GPU without a kernel is an error, as with [`Policy::Strict`].
    Dequantize,
    /// Run on the processor what was asked for another device.
    Cpu,
}

impl Policy {
    /// Every policy.
    pub const ALL: &'static [Policy] = &[Policy::Strict, Policy::Dequantize, Policy::Cpu];

    /// The spelling used on the command line and in receipts.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Strict => "strict",
            Policy::Dequantize => "dequantize",
            Policy::Cpu => "cpu",
        }
    }

    /// The policy spelled `name`.
    pub fn from_name(name: &str) -> Option<Policy> {
        Policy::ALL.iter().copied().find(|policy| policy.name() == name)
    }
}

/// What a layer is asked to be.
#[derive(Clone, Debug)]
pub struct LinearOptions {
    /// Type of its activations.
    pub input: DType,
    /// Where it runs.
    pub device: Device,
    /// What its product may multiply.
    pub precision: PrecisionMode,
    /// What it may do without a kernel.
    pub policy: Policy,
    /// Bytes of weights that take turns with the layer's, these included ([`Request::working_set`]): a model's total. `None`:
    /// not known.
    pub working_set: Option<u64>,
    /// Restrictions on kernels; `None`: those of the environment, as [`LinearOptions::from_env`] says.
    pub restrict: Option<Restrict>,
    /// Measured orders of kernels; `None`: those of the environment where `restrict` is its, else none.
    pub tuning: Option<Arc<Tuning>>,
}

impl Default for LinearOptions {
    /// f32 on the processor by int8, strict, without restrictions and without a tuning, whatever the environment says.
    fn default() -> LinearOptions {
        LinearOptions {
            input: DType::F32,
            device: Device::CPU,
            precision: PrecisionMode::Int8,
            policy: Policy::Strict,
            working_set: None,
            restrict: Some(Restrict::default()),
            tuning: None,
        }
    }
}

impl LinearOptions {
    /// The default under the restrictions and with the tuning of the environment (`GRISTMILL_ISA` and so on), which is read where a
    /// layer is made.
    pub fn from_env() -> LinearOptions {
        LinearOptions { restrict: None, ..LinearOptions::default() }
    }

    /// What restricts and orders kernels: what is said here, else what the environment says.
    fn resolved(&self, registry: &'static Registry) -> Result<(Restrict, Cow<'_, Tuning>), Error> {
        let restrict = match &self.restrict {
            Some(restrict) => restrict.clone(),
            None => Restrict::from_env()?,
        };
        let tuning = match (&self.tuning, &self.restrict) {
            (Some(tuning), _) => Cow::Borrowed(&**tuning),
            (None, Some(_)) => Cow::Owned(Tuning::none()),
            (None, None) => Cow::Borrowed(Tuning::from_env(registry)?),
        };
        Ok((restrict, tuning))
    }

    /// The decisions for products of `format` as they are asked for here.
    pub(crate) fn prepare(
        &self,
        registry: &'static Registry,
        format: &str,
        shape: Shape,
    ) -> Result<Prepared, Error> {
        let (restrict, tuning) = self.resolved(registry)?;
        registry.prepare_tuned(&self.request(format, shape), CpuProfile::detect(), &restrict, &tuning)
    }

    fn request<'f>(&self, format: &'f str, shape: Shape) -> Request<'f> {
        let request = Request::matmul(format, shape).with_input(self.input).on(self.device);
        request.with_precision(self.precision).with_working_set(self.working_set)
    }
}

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

/// A kernel of a layer and the weights packed for it.
#[derive(Debug)]
struct Choice {
    matmul: Matmul,
    /// Index into `packed`.
    packed: usize,
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
    /// Set if the layer runs on the processor though another device was asked for.
    moved: Option<Arc<FallbackNote>>,
    /// What is done to activations before they are quantized.
    transform: Option<Arc<Hadamard>>,
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
        let stack = Stack::new(weights)?;
        let (restrict, tuning) = options.resolved(registry)?;
        let (n, k) = (stack.n(), stack.k());
        let format = stack.format().name;
        let decode = Shape { m: 1, n, k };
        let request = options.request(format, decode);
        let prepare =
            |request: &Request<'_>| registry.prepare_tuned(request, CpuProfile::detect(), &restrict, &tuning);
        let note = |refused: &Prepared, instead| FallbackNote {
            policy: options.policy.name(),
            op: Op::Matmul,
            format: format.to_owned(),
            device: options.device,
            reason: refused.decide(decode).refusal().to_string(),
            instead,
            runs: AtomicU64::new(0),
        };
        let mut layer = Linear {
            prepared: prepare(&request)?,
            int8: None,
            n,
            k,
            choices: Vec::new(),
            packed: Vec::new(),
            plain: None,
            moved: None,
            transform: None,
        };
        let mut covering = layer.prepared.covering(n, k);
        if covering.needed.is_empty() {
            match options.policy {
                Policy::Strict => return Err(layer.refused(decode)),
                Policy::Dequantize => {}
                Policy::Cpu if options.device.kind == DeviceKind::Cpu => return Err(layer.refused(decode)),
                Policy::Cpu => {
                    layer.moved = Some(Arc::new(note(&layer.prepared, "a kernel on the processor")));
                    layer.prepared = prepare(&request.on(Device::CPU))?;
                    covering = layer.prepared.covering(n, k);
                    if covering.needed.is_empty() {
                        return Err(layer.refused(decode));
                    }
                }
            }
        }
        let mut needed: Vec<Matmul> = Vec::new();
        let floats_alone = covering.needed.iter().any(|candidate| candidate.entry.quantizes_activations());
        for candidate in covering.needed {
            needed.push(Matmul::of(&layer.prepared, candidate, n, k)?);
        }
        if floats_alone {
            let int8 = prepare(&request.with_input(DType::I8))?;
            for candidate in int8.covering(n, k).needed {
                if !needed.iter().any(|matmul| std::ptr::eq(matmul.entry(), candidate.entry)) {
                    needed.push(Matmul::of(&int8, candidate, n, k)?);
                }
            }
            layer.int8 = Some(int8);
        }
        for matmul in needed {
            let same = layer.choices.iter().find(|choice| choice.matmul.shares_packing_with(&matmul));
            let packed = match same {
                Some(same) => same.packed,
                None => {
                    layer.packed.push(matmul.pack_stacked(weights, threads)?);
                    layer.packed.len() - 1
                }
            };
            layer.choices.push(Choice { matmul, packed });
        }
        if options.policy == Policy::Dequantize && !covering.every_m {
            // The product then runs on the processor, so it may stand in only for the processor.
            if options.device != Device::CPU {
                return Err(layer.refused(decode));
            }
            let plain = layer.dequantize(registry, weights)?;
            let note = note(&layer.prepared, "weights dequantized to f32 and a plain f32 product");
            layer.plain = Some((plain, Arc::new(note)));
        }
        Ok(layer)
    }

    fn dequantize(
        &self,
        registry: &'static Registry,
        weights: &[QuantizedMatrix<'_>],
    ) -> Result<PlainWeights, Error> {
        let (n, k) = (self.n, self.k);
        let reads = self.prepared.sibling(Op::Dequantize, DType::F32, Shape::matrix(n, k))?;
        let dequantizer = Dequantizer::new(&reads.decide_as_asked())?;
        let activations =
            registry.activations.get(dequantizer.format().activations).ok_or(Error::BrokenRegistry {
                package: registry.package,
                at: dequantizer.format().name,
                what: "its activation format is not in the registry",
            })?;
        let mut values =
            Aligned::zeroed(n.checked_mul(k).ok_or(Error::TooLarge { what: "dequantized weights" })?)?;
        let mut done = 0;
        for matrix in weights {
            let size = matrix.n() * k;
            dequantizer.run(matrix, &mut values[done..][..size])?;
            done += size;
        }
        Ok(PlainWeights { values, k, activations })
    }

    /// The error that says why nothing serves `shape`.
    fn refused(&self, shape: Shape) -> Error {
        match self.prepared.decide(shape).kernel() {
            Err(error) => error,
            // A kernel serves this shape and yet none was taken: say at least what was refused.
            Ok(_) => Error::NoKernel(Box::new(self.prepared.decide(shape).refusal())),
        }
    }

    /// The layer with a Hadamard transform of its inputs, for weights that were folded with it: [`Linear::forward`] then takes
    /// activations as they are before the transform, in f32, and its workspace holds the transformed ones. Activations that
    /// are int8 already can't be transformed, so [`Linear::quantize`] and [`Linear::forward_quantized`] give an error.
    ///
    /// # Errors
    /// [`Error::Hadamard`] where the transform is of another width, or the layer takes other inputs than f32 or runs on a GPU.
    pub fn transformed(mut self, transform: Arc<Hadamard>) -> Result<Linear, Error> {
        let on_gpu = self.prepared.device() != Device::CPU;
        let why = match transform.refuses(self.k, self.prepared.input()) {
            Some(why) => why,
            None if on_gpu => "it is applied on the processor only".to_owned(),
            None => {
                self.transform = Some(transform);
                return Ok(self);
            }
        };
        Err(Error::Hadamard { width: transform.width(), block: transform.block(), why })
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

    /// Lets runs count in `recording` (`None`: in no recording any more), fallbacks included.
    ///
    /// # Errors
    /// [`Error::ForeignRecording`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        for choice in &mut self.choices {
            choice.matmul.record(recording)?;
        }
        if let Some(recording) = recording {
            let plain = self.plain.as_ref().map(|(_, note)| note);
            for note in plain.into_iter().chain(&self.moved) {
                recording.ledger.attach(note);
            }
        }
        Ok(())
    }

    /// What a workspace must hold for up to `m` tokens.
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
        // f32 rows of a workspace are for inputs that are not f32, so the product has no use for them here.
        let mut rows = std::mem::replace(&mut workspace.rows, Aligned::empty());
        let done = transform.transform(&x, &mut rows, threads).and_then(|()| {
            let input = Input::F32(&rows[..source.m * self.k]);
            let source = Source { input, stride: None, ..*source };
            self.multiply(&source, store, y, workspace, threads)
        });
        workspace.rows = rows;
        done
    }

    /// What a layer with a transform says to activations that can't be transformed any more.
    fn no_int8(&self, transform: &Hadamard) -> Error {
        let why = "it is applied to f32, before activations are quantized: use `Linear::forward` with f32";
        Error::Hadamard { width: transform.width(), block: transform.block(), why: why.to_owned() }
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
        if let Some(Choice { matmul, packed }) = self.choice(Shape { m, n, k }, input.dtype()) {
            if let Some(moved) = &self.moved {
                fell_back(moved);
            }
            return matmul.run_stored(&self.packed[*packed], source, store, y, workspace, threads);
        }
        match &self.plain {
            Some((plain, note)) => {
                let x = source.rows(k, plain.blocks())?;
                let mut into = Destination::new(store, y, [m, n])?;
                if into.is_empty() {
                    return Ok(());
                }
                if k == 0 {
                    into.fill();
                    return Ok(());
                }
                fell_back(note);
                plain.run(x, into, workspace, threads)
            }
            // Nothing to compute needs no kernel.
            None if m == 0 && y.len() == 0 && input.len() == 0 => Ok(()),
            None => Err(self.refused(Shape { m, n, k })),
        }
    }

    /// Quantizes `m` tokens into `workspace` for this layer and others that read the same ([`Linear::shares_activations_with`]).
    /// Allocates nothing, as [`Linear::forward`].
    ///
    /// # Errors
    /// [`Error::NoKernel`] if this `m` has none that multiplies quantized activations, whatever the policy; else as for
    /// [`Matmul::quantize`].
    pub fn quantize<'w>(
        &self,
        input: Input<'_>,
        m: usize,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        self.quantize_rows(&Source::dense(input, m), workspace, threads)
    }

    /// The same with activations as they lie.
    pub(crate) fn quantize_rows<'w>(
        &self,
        source: &Source<'_>,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        if let Some(transform) = &self.transform {
            return Err(self.no_int8(transform));
        }
        // No tokens are quantized by what one would be.
        let shape = Shape { m: source.m.max(1), n: self.n, k: self.k };
        match self.choice(shape, source.input.dtype()) {
            Some(Choice { matmul, .. }) => matmul.quantize_rows(source, self.k, workspace, threads),
            None => Err(self.refused(shape)),
        }
    }

    /// Computes `y` (`m * n`) from activations that this layer or another one quantized, with the kernel that decide gives
    /// for this `m` and the bits of [`Linear::forward`].
    ///
    /// # Errors
    /// [`Error::NoKernel`] as for [`Linear::quantize`]; else as for [`Matmul::run_quantized`].
    pub fn forward_quantized(
        &self,
        x: &QuantizedActivations<'_>,
        bias: Option<&[f32]>,
        y: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        self.forward_quantized_stored(x, &Store { bias, ..Store::default() }, Output::F32(y), threads)
    }

    /// The same with results as they are stored.
    pub(crate) fn forward_quantized_stored(
        &self,
        x: &QuantizedActivations<'_>,
        store: &Store<'_>,
        y: Output<'_>,
        threads: &Threads,
    ) -> Result<(), Error> {
        if let Some(transform) = &self.transform {
            return Err(self.no_int8(transform));
        }
        let shape = Shape { m: x.m().max(1), n: self.n, k: self.k };
        let Some(Choice { matmul, packed }) = self.choice(shape, DType::I8) else {
            return Err(self.refused(shape));
        };
        matmul.run_quantized_stored(&self.packed[*packed], x, store, y, threads)?;
        if let Some(moved) = &self.moved {
            fell_back(moved);
        }
        Ok(())
    }

    /// Whether `m` tokens that one of two layers [quantized](Linear::quantize) are what the other one reads: whether both
    /// have kernels of the processor for this `m`, of one activation format and with one layout of rows, and no transform.
    pub fn shares_activations_with(&self, other: &Linear, m: usize) -> bool {
        if self.transform.is_some() || other.transform.is_some() {
            return false;
        }
        let shape = |layer: &Linear| Shape { m: m.max(1), n: layer.n, k: layer.k };
        match (self.choice(shape(self), DType::I8), other.choice(shape(other), DType::I8)) {
            (Some(one), Some(two)) => {
                self.k == other.k && one.matmul.shares_activations_with(&two.matmul, self.k)
            }
            (_, _) => false,
        }
    }

    /// Enqueues the same for activations on the layer's GPU, into memory there, and does not wait for it;
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
                matmul.run_on_device(&self.packed[*packed], input, m, bias, y, workspace)
            }
            None => Err(self.refused(shape)),
        }
    }

    /// What decide gives for a shape, if it was taken.
    fn choice(&self, shape: Shape, input: DType) -> Option<&Choice> {
        let prepared = self.int8.as_ref().filter(|_| input == DType::I8).unwrap_or(&self.prepared);
        let chosen = prepared.decide(shape).chosen()?;
        self.choices.iter().find(|choice| std::ptr::eq(choice.matmul.entry(), chosen))
    }
}
