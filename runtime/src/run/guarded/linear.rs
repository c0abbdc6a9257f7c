//! A layer that goes on where a kernel or its GPU fails.

use super::check::{Dense, Portable, differs, one_output, place, product_of, tokens_of};
use super::device::tells_of_parts;
use super::failure::Failure;
#[cfg(feature = "cuda")]
use super::fetched::Fetched;
use super::guard::Guard;
use super::kept::{Kept, Ran};
#[cfg(feature = "cuda")]
use super::lost::release;
use super::options::GuardOptions;
use super::seen::Seen;
use super::work::{PrologueRows, Work};
use crate::activations::{Input, QuantizedActivations};
#[cfg(feature = "cuda")]
use crate::cuda::{DeviceBuffer, DeviceInput};
use crate::device::Device;
use crate::error::Error;
use crate::hadamard::Hadamard;
use crate::linear::{Linear, LinearOptions};
use crate::operands::quantized_buf::QuantizedBuf;
use crate::prologue::{Prologue, PrologueInput};
use crate::receipt::Recording;
use crate::registry::{Entry, FormatInfo, Registry};
use crate::request::Shape;
use crate::room::{filled, zeros};
use crate::threads::Threads;
use crate::workspace::{Workspace, WorkspaceSize};
use gristmill_spec::vocab::{DType, Precision};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A [`Linear`] that keeps its quantized weights, and where a kernel panics, computes something else than the portable
/// kernel, or is put into [quarantine](crate::Quarantine) by the program, goes on with what is left:
///
/// * after a panic the run is repeated on the calling thread alone; if it panics there too, the kernel goes into quarantine;
/// * after a wrong number weights are packed again from those that are kept (memory may have changed), and the run is repeated; if
///   the number is wrong again, the kernel goes into quarantine;
/// * without a kernel in quarantine kernels are decided on again, weights packed for them, and the run repeated.
///
/// On a GPU it goes on after errors of the device too:
///
/// * without memory for all tokens, parts of them follow one another, down to single ones;
/// * where that is not enough, or a call fails that the device's context survives, what the workspace and the device's pool keep is
///   given back, and the run repeated;
/// * where the device is lost, all guarded layers on it let go of it, and it is opened again, which it can be if nothing else in the process
///   holds it (buffers, graphs, other layers, workspaces that these did not run with); weights are packed for it again, and the run is
///   repeated. The other layers pack theirs again in their next runs;
/// * where that does not help, the layer moves to the processor under [`Policy::Cpu`](crate::Policy), with its runs counted as fallbacks, and comes
///   back as [`GuardOptions::return_every`] says. Under another policy the error is the caller's, and the next run begins by opening the
///   device again.
///
/// Each step is in the receipt, is told to the observer, and ends with a run, whose success it states. Kernels give the same bits (but for products of
/// floats), so nobody sees it but in time. A run without a failure costs a lock that is taken for reading, and a counter. A signal such as `SIGILL` ends
/// the program, as a panic does where the program is built with `panic = "abort"`; a [`Quarantine`](crate::Quarantine) that a folder keeps lets
/// its next start do without the kernel.
///
/// Quantizing apart from the product ([`quantize`](GuardedLinear::quantize), [`quantize_with`](GuardedLinear::quantize_with),
/// [`forward_quantized`](GuardedLinear::forward_quantized)) is guarded likewise; several products as one job are a
/// [`GuardedBatch`](crate::GuardedBatch), experts [`GuardedExperts`](crate::GuardedExperts).
#[derive(Debug)]
pub struct GuardedLinear<'w>(pub(super) Guard<KeptMatrix<'w>, Linear>);

/// The weights of a layer.
#[derive(Debug)]
pub(super) struct KeptMatrix<'w> {
    weights: QuantizedBuf<'w>,
    /// What is done to its inputs.
    transform: Option<Arc<Hadamard>>,
}

impl<'w> GuardedLinear<'w> {
    /// The layer. Unlike [`Linear`] it needs `weights` for as long as it lives: own, or lent from a file that is mapped.
    ///
    /// # Errors
    /// As for [`Linear::new`], errors of a GPU included: no step is done while the layer is made. Where runs are to be compared, why there
    /// is no portable kernel.
    pub fn new(
        registry: &'static Registry,
        weights: QuantizedBuf<'w>,
        options: &LinearOptions,
        guard: GuardOptions,
        threads: &Threads,
    ) -> Result<GuardedLinear<'w>, Error> {
        let kept = KeptMatrix { weights, transform: None };
        let guard = Guard::new(registry, kept, options, guard, threads)?;
        let matrix = &guard.kept.weights;
        if guard.compares() && matrix.n() > 0 {
            let portable = guard.portable();
            portable.one_row(&matrix.matrix(), 0, &portable.options())?;
        }
        Ok(GuardedLinear(guard))
    }

    /// As [`Linear::transformed`].
    ///
    /// # Errors
    /// As for [`Linear::transformed`].
    pub fn transformed(mut self, transform: Arc<Hadamard>) -> Result<GuardedLinear<'w>, Error> {
        let mut state = self.0.write();
        if let Some(layer) = state.layer.take() {
            state.layer = Some(layer.transformed(Arc::clone(&transform))?);
        }
        drop(state);
        self.0.kept.transform = Some(transform);
        Ok(self)
    }

    /// Rows of the weights: outputs.
    pub fn n(&self) -> usize {
        self.0.kept.weights.n()
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.0.kept.weights.k()
    }

    /// Bytes of the weights that are kept besides [`weight_bytes`](GuardedLinear::weight_bytes): what being able to pack again costs, in the
    /// processor's memory. While weights are packed again on the processor both packings are held; on a GPU the first goes before.
    pub fn kept_bytes(&self) -> usize {
        self.0.kept.weights.data().len()
    }

    /// As [`Linear::weight_bytes`], at the moment; 0 without a device.
    pub fn weight_bytes(&self) -> usize {
        self.0.weight_bytes()
    }

    /// The device that it runs on at the moment; `None` where its GPU was lost and the policy lets nothing take over.
    pub fn device(&self) -> Option<Device> {
        self.0.device()
    }

    /// The opened GPU that it works on from the next time on that it is made: for a layer that was given one ([`LinearOptions::on_gpu`]),
    /// which it can't open again by itself. When that is lost it lets go of it, and waits for this, on the processor or nowhere as its
    /// policy says. Its next run (under [`Policy::Cpu`](crate::Policy), one of [`GuardOptions::return_every`]) packs its weights there.
    ///
    /// # Errors
    /// [`Error::OtherGpu`] where it is not of the layer's device.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(&self, gpu: &Arc<crate::cuda::Gpu>) -> Result<(), Error> {
        self.0.on_gpu(gpu)
    }

    /// As [`Linear::record`]; steps of recovery are in the receipt too.
    ///
    /// # Errors
    /// As for [`Linear::record`].
    pub fn record(&self, recording: Option<&Recording>) -> Result<(), Error> {
        self.0.record(recording)
    }

    /// What a workspace must hold for up to `m` tokens. A run after a step makes the one that it is given larger if need be.
    ///
    /// # Errors
    /// As for [`Linear::workspace_size`].
    pub fn workspace_size(&self, m: usize, threads: &Threads) -> Result<WorkspaceSize, Error> {
        let state = self.0.read();
        state.layer.as_ref().map_or(Ok(WorkspaceSize::default()), |layer| layer.workspace_size(m, threads))
    }

    /// As [`Linear::forward`], with the steps that are stated above. Operands are the processor's: on a GPU they would be lost with it.
    ///
    /// # Errors
    /// As for [`Linear::forward`]; [`Error::KernelFailed`] where a kernel failed and no other one is left; the error of a GPU where no step
    /// helped. Then `y` holds nothing of use.
    pub fn forward(
        &self,
        input: Input<'_>,
        m: usize,
        bias: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        self.0.run(&mut Work::Product { input, m, bias, y }, workspace, threads)
    }

    /// As [`Linear::forward_on_device`], with the steps that keep the operands where they are: without memory, or after a call that the device's
    /// context survives, what the workspace and the device's pool keep is given back, and the product enqueued again; kernels in quarantine are left.
    /// A run that is compared is waited for, copies a token there and back, and is not while a stream is captured. What replays a graph is no
    /// run of a layer.
    ///
    /// # Errors
    /// As for [`Linear::forward_on_device`] and [`forward`](GuardedLinear::forward). Where the device is lost, so are the operands, and the error is
    /// the caller's under each policy: it drops what it holds there, and the next run begins by opening the device again. What goes wrong behind a
    /// run is told by [`Workspace::finish`], without a step: [`let_go_of_lost`](GuardedLinear::let_go_of_lost).
    #[cfg(feature = "cuda")]
    pub fn forward_on_device(
        &self,
        input: DeviceInput<'_>,
        m: usize,
        bias: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        self.0.run(&mut Work::OnDevice { input, m, bias, y }, workspace, &Threads::single())
    }

    /// Lets go of the layer's GPU where it is lost by `error`, and so do all guarded layers and experts on it: a program whose operands lay there
    /// learns of the loss where it waits, and can open the device again when nobody holds it. Their next runs open it again too.
    #[cfg(feature = "cuda")]
    pub fn let_go_of_lost(&self, error: &Error) {
        release(self.0.options.device, error);
    }

    /// As [`Linear::quantize`], with steps for the kernel that quantizes. Which guarded layers read the same is asked when they do:
    /// [`forward_quantized`](GuardedLinear::forward_quantized).
    ///
    /// # Errors
    /// As for [`Linear::quantize`] and [`forward`](GuardedLinear::forward).
    pub fn quantize<'a>(
        &self,
        input: Input<'_>,
        m: usize,
        workspace: &'a mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'a>, Error> {
        let mut work = Work::Quantize { input, m, layout: None };
        self.0.run(&mut work, workspace, threads)?;
        self.quantized(&work, workspace)
    }

    /// As [`Linear::quantize_with`], with steps for the kernel of the prologue.
    ///
    /// # Errors
    /// As for [`Linear::quantize_with`] and [`forward`](GuardedLinear::forward). Then sums of the prologue hold nothing of use.
    pub fn quantize_with<'a>(
        &self,
        prologue: &Prologue,
        input: PrologueInput<'_>,
        m: usize,
        workspace: &'a mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'a>, Error> {
        let rows = PrologueRows::of(input);
        let mut work = Work::Prologue { prologue, rows, m, layout: None };
        self.0.run(&mut work, workspace, threads)?;
        self.quantized(&work, workspace)
    }

    /// What a run left in a workspace.
    fn quantized<'a>(
        &self,
        work: &Work<'_>,
        workspace: &'a Workspace,
    ) -> Result<QuantizedActivations<'a>, Error> {
        match work {
            Work::Quantize { layout: Some(layout), m, .. }
            | Work::Prologue { layout: Some(layout), m, .. } => {
                QuantizedActivations::in_workspace(*layout, *m, workspace)
            }
            // A run that is good has said how they lie.
            _ => Err(Error::BrokenRegistry {
                package: self.0.registry.package,
                at: self.0.kept.weights.format().name,
                what: "its activations are not quantized",
            }),
        }
    }

    /// As [`Linear::forward_quantized`], with the steps that are stated above. Where a step has left the layer with kernels that read another
    /// layout, the activations are laid out anew for them, in memory that is allocated for it: quantize by this layer where that is to be avoided.
    ///
    /// # Errors
    /// As for [`Linear::forward_quantized`] and [`forward`](GuardedLinear::forward).
    pub fn forward_quantized(
        &self,
        x: &QuantizedActivations<'_>,
        bias: Option<&[f32]>,
        y: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        self.0.run(&mut Work::OfQuantized { x, bias, y }, &mut Workspace::new(), threads)
    }
}

impl KeptMatrix<'_> {
    /// A layer of these weights, or of some of them, with what is done to its inputs.
    fn with_its_inputs(&self, layer: Linear) -> Result<Linear, Error> {
        match &self.transform {
            Some(transform) => layer.transformed(Arc::clone(transform)),
            None => Ok(layer),
        }
    }
}

impl Kept for KeptMatrix<'_> {
    type Layer = Linear;
    type Work<'r> = Work<'r>;

    fn format(&self) -> &'static FormatInfo {
        self.weights.format()
    }

    fn make(
        &self,
        registry: &'static Registry,
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Linear, Error> {
        self.with_its_inputs(Linear::made(registry, &[self.weights.matrix()], options, threads)?)
    }

    fn size(layer: &Linear, work: &Work<'_>, threads: &Threads) -> Result<WorkspaceSize, Error> {
        match work {
            Work::OfQuantized { .. } => Ok(WorkspaceSize::default()),
            work => layer.workspace_size(work.m(), threads),
        }
    }

    fn run(
        layer: &Linear,
        work: &mut Work<'_>,
        remade: bool,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        match work {
            Work::Product { input, m, bias, y } => layer.forward(*input, *m, *bias, y, workspace, threads),
            #[cfg(feature = "cuda")]
            Work::OnDevice { input, m, bias, y } => layer.forward_on_device(*input, *m, *bias, y, workspace),
            Work::OfQuantized { x, bias, y } => match layer.forward_quantized(x, *bias, y, threads) {
                // Who quantized them had the layer that was here before.
                Err(Error::ActivationLayout { .. }) if remade => {
                    let m = x.m();
                    let dense = Dense::of(x, 0..m);
                    let mut own = layer.workspace(m, threads)?;
                    layer.forward(dense.input(), m, *bias, y, &mut own, threads)
                }
                done => done,
            },
            Work::Quantize { input, m, layout } => {
                *layout = Some(layer.quantize(*input, *m, workspace, threads)?.layout());
                Ok(())
            }
            Work::Prologue { prologue, rows, m, layout } => {
                let x = layer.quantize_with(prologue, rows.input(), *m, workspace, threads)?;
                *layout = Some(x.layout());
                Ok(())
            }
        }
    }

    fn lies_on_device(work: &Work<'_>) -> bool {
        work.lies_on_device()
    }

    fn kernels_of(layer: &Linear, work: &Work<'_>) -> Option<Ran> {
        let m = work.m();
        let shape = Shape { m, n: layer.n(), k: layer.k() };
        // No tokens are quantized by what one would be.
        let some = Shape { m: m.max(1), ..shape };
        let only = |kernel| Ran { kernel, quantizer: None };
        match work {
            Work::Product { input, .. } => {
                let matmul = layer.product_for(shape, input.dtype())?;
                let quantizer = matmul.processor_quantizer(*input, shape).ok().flatten();
                Some(Ran { kernel: matmul.entry(), quantizer: quantizer.map(|quantizer| quantizer.entry) })
            }
            #[cfg(feature = "cuda")]
            Work::OnDevice { input, .. } => Some(only(layer.product_for(shape, input.dtype())?.entry())),
            Work::OfQuantized { .. } => Some(only(layer.product_for(some, DType::I8)?.entry())),
            Work::Quantize { input, .. } => {
                let matmul = layer.product_for(some, input.dtype())?;
                Some(only(matmul.processor_quantizer(*input, some).ok().flatten()?.entry))
            }
            Work::Prologue { .. } => Some(only(layer.product_for(some, DType::F32)?.prologue_entry(some)?)),
        }
    }

    /// What quantizes activations, if that panics by itself, else the product.
    fn panicked(layer: &Linear, work: &mut Work<'_>, workspace: &mut Workspace) -> Option<&'static Entry> {
        let ran = Self::kernels_of(layer, work)?;
        let Work::Product { input, m, .. } = work else { return Some(ran.kernel) };
        // Which numbers it gets does not matter here, so a transform is not done.
        let quantizes = AssertUnwindSafe(|| {
            let _ = layer.quantize_transformed(*input, *m, workspace, &Threads::single());
        });
        ran.quantizer.filter(|_| catch_unwind(quantizes).is_err()).or(Some(ran.kernel))
    }

    #[cfg(feature = "cuda")]
    fn wait(layer: &Linear, work: &Work<'_>, workspace: &mut Workspace) -> Result<bool, Error> {
        let Work::OnDevice { .. } = work else { return Ok(true) };
        // Nothing is waited for while a stream is captured.
        let captures = |gpu: &crate::cuda::Gpu| gpu.is_capturing() || gpu.engine_captures().unwrap_or(true);
        if layer.gpu().is_none_or(|gpu| captures(gpu)) {
            return Ok(false);
        }
        workspace.finish().map(|()| true)
    }

    fn compare(
        &self,
        portable: &Portable<'_>,
        layer: &Linear,
        work: &Work<'_>,
        workspace: &Workspace,
        sample: u64,
    ) -> Result<Option<Failure>, Error> {
        let (n, k, m) = (self.weights.n(), self.weights.k(), work.m());
        let Some(ran) = Self::kernels_of(layer, work) else { return Ok(None) };
        if m == 0 || n == 0 || k == 0 {
            return Ok(None);
        }
        let (row, token) = place(sample, n, m);
        let check = Check { portable, weights: &self.weights, kernel: ran.kernel, row, token, m };
        match work {
            Work::Product { input, bias, y, .. } => {
                let seen = Product { portable, weights: self, layer, ran, input: *input, bias: *bias, y };
                seen.compare(row, token, m)
            }
            #[cfg(feature = "cuda")]
            Work::OnDevice { input, bias, y, .. } => {
                let here = Fetched::from_device(*input, *bias, y)?;
                let product = Product {
                    portable,
                    weights: self,
                    layer,
                    ran,
                    input: here.input(),
                    bias: here.bias.as_deref(),
                    y: &here.y,
                };
                product.compare(row, token, m)
            }
            Work::OfQuantized { x, bias, y } => check.product(x, *bias, y),
            Work::Quantize { input, layout: Some(layout), .. } => {
                check.quantized(*input, QuantizedActivations::in_workspace(*layout, m, workspace)?)
            }
            Work::Prologue { prologue, rows, layout: Some(layout), .. } => {
                check.prologue(prologue, rows, QuantizedActivations::in_workspace(*layout, m, workspace)?)
            }
            // A run that is good has said how they lie.
            Work::Quantize { layout: None, .. } | Work::Prologue { layout: None, .. } => Ok(None),
        }
    }
}

/// A token of a run of one kernel, in one row of the weights where it is a product.
struct Check<'a> {
    portable: &'a Portable<'a>,
    weights: &'a QuantizedBuf<'a>,
    kernel: &'static Entry,
    row: usize,
    token: usize,
    m: usize,
}

impl Check<'_> {
    /// Of activations that were quantized before; what quantized them is their layer's to compare.
    fn product(
        &self,
        x: &QuantizedActivations<'_>,
        bias: Option<&[f32]>,
        y: &[f32],
    ) -> Result<Option<Failure>, Error> {
        let Check { portable, row, token, .. } = *self;
        let expected = portable.one_row(&self.weights.matrix(), row, &portable.options())?;
        let dense = Dense::of(x, token..token + 1);
        let expected = one_output(&expected, dense.input(), bias.map(|bias| &bias[row..][..1]))?;
        let found = y[token * self.weights.n() + row];
        let what = || differs(&format!("output {row} of token {token}"), found, expected);
        Ok((expected.to_bits() != found.to_bits()).then(|| self.wrong(what())))
    }

    fn wrong(&self, why: String) -> Failure {
        Failure::Kernel(Seen::wrong(self.kernel, why))
    }

    /// The portable kernels, for what quantizes activations as theirs do.
    fn portable_layer(&self) -> Result<Linear, Error> {
        self.portable.one_row(&self.weights.matrix(), 0, &self.portable.options())
    }

    fn quantized(&self, input: Input<'_>, found: QuantizedActivations<'_>) -> Result<Option<Failure>, Error> {
        let Check { token, m, .. } = *self;
        let (alone, layer) = (Threads::single(), self.portable_layer()?);
        let input = tokens_of(input, token..token + 1, m, self.weights.k());
        let mut own = layer.workspace(1, &alone)?;
        let expected = Dense::of(&layer.quantize(input, 1, &mut own, &alone)?, 0..1);
        let why = Dense::of(&found, token..token + 1).wrong(&expected, token);
        Ok(why.map(|why| self.wrong(why)))
    }

    fn prologue(
        &self,
        prologue: &Prologue,
        rows: &PrologueRows<'_>,
        found: QuantizedActivations<'_>,
    ) -> Result<Option<Failure>, Error> {
        let (token, k) = (self.token, self.weights.k());
        let (alone, layer) = (Threads::single(), self.portable_layer()?);
        let (mut own, mut sum) = (layer.workspace(1, &alone)?, zeros(k)?);
        let Some(input) = rows.token(token, k, &mut sum) else { return Ok(None) };
        let expected = Dense::of(&layer.quantize_with(prologue, input, 1, &mut own, &alone)?, 0..1);
        let mut why = Dense::of(&found, token..token + 1).wrong(&expected, token);
        let column = self.row % k;
        if let Some(found) = rows.sum_at(token * k + column)
            && found.to_bits() != sum[column].to_bits()
        {
            why = Some(differs(&format!("sum {column} of token {token}"), found, sum[column]));
        }
        Ok(why.map(|why| self.wrong(why)))
    }
}

/// A product that was computed.
struct Product<'a> {
    portable: &'a Portable<'a>,
    weights: &'a KeptMatrix<'a>,
    layer: &'a Linear,
    ran: Ran,
    input: Input<'a>,
    bias: Option<&'a [f32]>,
    y: &'a [f32],
}

impl Product<'_> {
    fn compare(&self, row: usize, token: usize, m: usize) -> Result<Option<Failure>, Error> {
        let Product { portable, weights, ran: Ran { kernel, quantizer }, bias, .. } = *self;
        let n = weights.weights.n();
        // A plain product of f32, where the policy has one, has bits of its own.
        if kernel.precision() != Some(Precision::Int8) {
            return Ok(None);
        }
        let found = self.y[token * n + row];
        let input = tokens_of(self.input, token..token + 1, m, weights.weights.k());
        let bias = bias.map(|bias| &bias[row..][..1]);
        let one_row = |options: &LinearOptions| {
            weights.with_its_inputs(portable.one_row(&weights.weights.matrix(), row, options)?)
        };
        let plain = one_row(&portable.options())?;
        let expected = one_output(&plain, input, bias)?;
        if expected.to_bits() == found.to_bits() {
            return Ok(None);
        }
        let why = differs(&format!("output {row} of token {token}"), found, expected);
        let to_blame = || match quantizer {
            // With what quantized the activations, the portable product gives the same if that is what is wrong.
            Some(quantizer) => {
                let mixed = portable.behind_its_quantizer(product_of(&plain));
                let mixed = one_output(&one_row(&mixed)?, input, bias)?;
                Ok::<_, Error>((mixed.to_bits() == found.to_bits()).then_some(quantizer))
            }
            None => self.quantizer_of_a_gpu(&plain, expected, (row, token, m)),
        };
        Ok(Some(Failure::wrong(to_blame(), kernel, why)))
    }

    /// What quantizes activations on a GPU, if it is to blame: it alone reads what it wrote, but the product gives what is expected of
    /// activations that the processor quantized.
    fn quantizer_of_a_gpu(
        &self,
        plain: &Linear,
        expected: f32,
        (row, token, m): (usize, usize, usize),
    ) -> Result<Option<&'static Entry>, Error> {
        let Product { weights: KeptMatrix { weights, .. }, layer, input, bias, .. } = *self;
        let (n, k) = (weights.n(), weights.k());
        let shape = Shape { m, n, k };
        let product = layer.product_for(shape, input.dtype());
        let Some(quantizer) = product.and_then(|matmul| matmul.gpu_quantizer(input, shape)) else {
            return Ok(None);
        };
        // The same kernel has to multiply them.
        let of_int8 = layer.product_for(shape, DType::I8).map(crate::kernel::Matmul::entry);
        if !of_int8.is_some_and(|entry| std::ptr::eq(entry, self.ran.kernel)) {
            return Ok(None);
        }
        let alone = Threads::single();
        let mut own = plain.workspace(m, &alone)?;
        let dense = Dense::of(&plain.quantize(input, m, &mut own, &alone)?, 0..m);
        let (mut y, mut workspace) = (filled(f32::NAN, m * n)?, Workspace::new());
        // It is no run of the program's: parts of its tokens are no step.
        tells_of_parts(&mut workspace);
        layer.forward(dense.input(), m, bias, &mut y, &mut workspace, &alone)?;
        Ok((y[token * n + row].to_bits() == expected.to_bits()).then_some(quantizer))
    }
}
