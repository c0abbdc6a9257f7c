//! Experts that go on where a kernel or their GPU fails.

use super::check::{Dense, Portable, differs, place, tokens_of};
#[cfg(feature = "cuda")]
use super::device::tells_of_parts;
use super::failure::Failure;
use super::guard::Guard;
use super::kept::{Kept, Ran};
use super::options::GuardOptions;
use crate::activations::Input;
use crate::device::Device;
use crate::error::Error;
use crate::experts::{ExpertInput, Experts, Routes};
#[cfg(feature = "cuda")]
use crate::linear::Linear;
use crate::linear::LinearOptions;
use crate::operands::quantized_buf::QuantizedBuf;
use crate::receipt::Recording;
use crate::registry::{Entry, FormatInfo, Registry};
use crate::room::filled;
use crate::threads::Threads;
use crate::weights::QuantizedMatrix;
use crate::workspace::{Workspace, WorkspaceSize};
use std::ops::Range;
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// [`Experts`] that keep their quantized weights and go on as a [`GuardedLinear`](crate::GuardedLinear) does, with the same steps; what is made again is
/// the whole stack. One output of a run that is compared is that of a token through all its experts, or where no weights are given of one of them.
///
/// Of a GPU, tokens do not follow one another in parts, and under [`Policy::Cpu`](crate::Policy) the stack moves to the processor only after it was on its GPU:
/// without a kernel there it is not made.
#[derive(Debug)]
pub struct GuardedExperts<'w>(Guard<KeptExperts<'w>, Experts>);

/// The weights of experts, each of one or several matrices.
#[derive(Debug)]
struct KeptExperts<'w> {
    experts: Vec<Vec<QuantizedBuf<'w>>>,
    format: &'static FormatInfo,
}

/// A run of experts, with the results that it writes.
struct Work<'r> {
    input: ExpertInput<'r>,
    routes: &'r Routes<'r>,
    weights: Option<&'r [f32]>,
    y: &'r mut [f32],
    /// The kernel that it came to last.
    at: Option<&'static Entry>,
}

impl<'w> GuardedExperts<'w> {
    /// The experts, each of some matrices as in [`Experts::stacked`]. Unlike [`Experts`] it needs them for as long as it lives: own, or lent from
    /// a file that is mapped.
    ///
    /// # Errors
    /// As for [`Experts::stacked`], errors of a GPU included: no step is done while it is made. Where runs are to be compared, why there
    /// is no portable kernel.
    pub fn new(
        registry: &'static Registry,
        experts: Vec<Vec<QuantizedBuf<'w>>>,
        options: &LinearOptions,
        guard: GuardOptions,
        threads: &Threads,
    ) -> Result<GuardedExperts<'w>, Error> {
        let first = experts.first().and_then(|expert| expert.first()).ok_or(Error::NothingStacked)?;
        let kept = KeptExperts { format: first.format(), experts };
        let guard = Guard::new(registry, kept, options, guard, threads)?;
        if guard.compares() && guard.kept.n() > 0 {
            let portable = guard.portable();
            guard.kept.row_of(&[0], 0, &portable, &portable.options())?;
        }
        Ok(GuardedExperts(guard))
    }

    /// Experts.
    pub fn count(&self) -> usize {
        self.0.kept.experts.len()
    }

    /// Rows of an expert: outputs.
    pub fn n(&self) -> usize {
        self.0.kept.n()
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.0.kept.k()
    }

    /// Bytes of the weights that are kept besides [`weight_bytes`](GuardedExperts::weight_bytes).
    pub fn kept_bytes(&self) -> usize {
        self.0.kept.experts.iter().flatten().map(|matrix| matrix.data().len()).sum()
    }

    /// As [`Experts::weight_bytes`], at the moment; 0 without a device.
    pub fn weight_bytes(&self) -> usize {
        self.0.weight_bytes()
    }

    /// The device that they run on at the moment; `None` where their GPU was lost and the policy lets nothing take over.
    pub fn device(&self) -> Option<Device> {
        self.0.device()
    }

    /// As [`GuardedLinear::on_gpu`](crate::GuardedLinear::on_gpu).
    ///
    /// # Errors
    /// [`Error::OtherGpu`] where it is not of their device.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(&self, gpu: &Arc<crate::cuda::Gpu>) -> Result<(), Error> {
        self.0.on_gpu(gpu)
    }

    /// As [`Experts::record`]; steps of recovery are in the receipt too.
    ///
    /// # Errors
    /// As for [`Experts::record`].
    pub fn record(&self, recording: Option<&Recording>) -> Result<(), Error> {
        self.0.record(recording)
    }

    /// As [`Experts::workspace_size`]. A run after a step makes the workspace that it is given larger if need be.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn workspace_size(
        &self,
        tokens: usize,
        pairs: usize,
        threads: &Threads,
    ) -> Result<WorkspaceSize, Error> {
        let state = self.0.read();
        let size = |layer: &Experts| layer.workspace_size(tokens, pairs, threads);
        state.layer.as_ref().map_or(Ok(WorkspaceSize::default()), size)
    }

    /// As [`Experts::forward`], with steps where it fails. Operands are the processor's. Activations that other experts or layers quantized are laid out anew where a step has left
    /// kernels that read another layout, in memory that is allocated for it.
    ///
    /// # Errors
    /// As for [`Experts::forward`]; [`Error::KernelFailed`] where a kernel failed and no other one is left; the error of a GPU where no step
    /// helped. Then `y` holds nothing of use.
    pub fn forward(
        &self,
        input: ExpertInput<'_>,
        routes: &Routes<'_>,
        weights: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let mut work = Work { input, routes, weights, y, at: None };
        self.0.run(&mut work, workspace, threads)
    }
}

impl KeptExperts<'_> {
    fn n(&self) -> usize {
        self.experts.first().map_or(0, |expert| expert.iter().map(QuantizedBuf::n).sum())
    }

    fn k(&self) -> usize {
        self.experts.first().and_then(|expert| expert.first()).map_or(0, QuantizedBuf::k)
    }

    /// One row of some experts, as experts.
    fn row_of(
        &self,
        list: &[u32],
        row: usize,
        portable: &Portable<'_>,
        options: &LinearOptions,
    ) -> Result<Experts, Error> {
        let missing = |expert: u32| Error::NoSuchRow { row: expert as usize, rows: self.experts.len() };
        let mut rows = Vec::new();
        for &expert in list {
            let mut left = row;
            let matrices = self.experts.get(expert as usize).ok_or_else(|| missing(expert))?;
            let matrix = matrices.iter().find(|matrix| match left.checked_sub(matrix.n()) {
                Some(behind) => {
                    left = behind;
                    false
                }
                None => true,
            });
            let matrix = matrix.ok_or(Error::NoSuchRow { row, rows: self.n() })?;
            rows.push(QuantizedBuf::rows_of(&matrix.matrix(), left..left + 1)?);
        }
        let matrices: Vec<QuantizedMatrix<'_>> = rows.iter().map(QuantizedBuf::matrix).collect();
        Experts::new(portable.registry, &matrices, options, &Threads::single())
    }
}

impl Kept for KeptExperts<'_> {
    type Layer = Experts;
    type Work<'r> = Work<'r>;

    fn format(&self) -> &'static FormatInfo {
        self.format
    }

    fn make(
        &self,
        registry: &'static Registry,
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Experts, Error> {
        let experts: Vec<Vec<QuantizedMatrix<'_>>> =
            self.experts.iter().map(|expert| expert.iter().map(QuantizedBuf::matrix).collect()).collect();
        Experts::made(registry, &experts, options, threads)
    }

    fn size(layer: &Experts, work: &Work<'_>, threads: &Threads) -> Result<WorkspaceSize, Error> {
        layer.workspace_size(work.routes.tokens(), work.routes.pairs(), threads)
    }

    fn run(
        layer: &Experts,
        work: &mut Work<'_>,
        remade: bool,
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        let Work { input, routes, weights, y, at } = work;
        *at = None;
        match (layer.forward_noting(*input, routes, *weights, y, workspace, threads, at), *input) {
            // Who quantized them read what was here before.
            (
                Err(Error::ActivationLayout { .. } | Error::ProcessorOnly { .. }),
                ExpertInput::Quantized(x),
            ) if remade => {
                let dense = Dense::of(x, 0..x.m());
                let input = ExpertInput::Tokens(dense.input());
                layer.forward_noting(input, routes, *weights, y, workspace, threads, at)
            }
            (done, _) => done,
        }
    }

    fn lies_on_device(_: &Work<'_>) -> bool {
        false
    }

    fn kernels_of(layer: &Experts, work: &Work<'_>) -> Option<Ran> {
        let expert = *work.routes.experts().first()?;
        let kernel = layer.kernel_for(work.routes.count_of(expert))?;
        let quantizer = match work.input {
            ExpertInput::Tokens(input) => layer.quantizer_of(input, work.routes.tokens()),
            ExpertInput::Pairs(input) => layer.quantizer_of(input, work.routes.pairs()),
            ExpertInput::Quantized(_) => None,
        };
        Some(Ran { kernel, quantizer })
    }

    fn panicked(layer: &Experts, work: &mut Work<'_>, _: &mut Workspace) -> Option<&'static Entry> {
        work.at.or_else(|| Some(Self::kernels_of(layer, work)?.kernel))
    }

    fn compare(
        &self,
        portable: &Portable<'_>,
        layer: &Experts,
        work: &Work<'_>,
        _: &Workspace,
        sample: u64,
    ) -> Result<Option<Failure>, Error> {
        let Work { input, routes, weights, y, .. } = work;
        let (n, k, pairs) = (self.n(), self.k(), routes.pairs());
        if n == 0 || k == 0 || pairs == 0 {
            return Ok(None);
        }
        let (row, pair) = place(sample, n, pairs);
        let Some(token) = (0..routes.tokens()).find(|token| routes.pairs_of(*token).contains(&pair)) else {
            return Ok(None);
        };
        let own = routes.pairs_of(token);
        let check = Check { kept: self, portable, layer, input: *input, routes, own, token, row };
        let plain = self.row_of(&check.list(), row, portable, &portable.options())?;
        let (found, expected, what) = match weights {
            Some(weights) => {
                let weights = &weights[check.own.clone()];
                let expected = check.through(&plain, Some(weights))?;
                (y[token * n + row], expected[0], format!("output {row} of token {token}"))
            }
            None => {
                let at = pair - check.own.start;
                let expected = check.through(&plain, None)?;
                let what = format!("output {row} of token {token} through expert {}", check.list()[at]);
                (y[pair * n + row], expected[at], what)
            }
        };
        if found.to_bits() == expected.to_bits() {
            return Ok(None);
        }
        let weights = weights.map(|weights| &weights[check.own.clone()]);
        let of_pair = layer.kernel_for(routes.count_of(routes.experts()[pair]));
        let to_blame = check.to_blame(&plain, weights, (found, pair));
        let why = differs(&what, found, expected);
        Ok(of_pair.map(|of_pair| Failure::wrong(to_blame, of_pair, why)))
    }
}

/// A token of a run that was computed, in one row of its experts.
struct Check<'a> {
    kept: &'a KeptExperts<'a>,
    portable: &'a Portable<'a>,
    layer: &'a Experts,
    input: ExpertInput<'a>,
    routes: &'a Routes<'a>,
    /// The pairs of the token.
    own: Range<usize>,
    token: usize,
    row: usize,
}

impl Check<'_> {
    /// The experts of the token, none of them twice.
    fn list(&self) -> Vec<u32> {
        self.routes.experts()[self.own.clone()].to_vec()
    }

    /// The token through experts of one row: a sum, or without weights an output of each.
    fn through(&self, experts: &Experts, weights: Option<&[f32]>) -> Result<Vec<f32>, Error> {
        let (k, count) = (self.kept.k(), self.own.len());
        let alone = Threads::single();
        let numbers: Vec<u32> = (0..).take(count).collect();
        let routes = Routes::each(1, count, &numbers)?;
        let token = self.token..self.token + 1;
        let dense;
        let input = match self.input {
            ExpertInput::Tokens(input) => {
                ExpertInput::Tokens(tokens_of(input, token, self.routes.tokens(), k))
            }
            ExpertInput::Pairs(input) => {
                ExpertInput::Pairs(tokens_of(input, self.own.clone(), self.routes.pairs(), k))
            }
            ExpertInput::Quantized(x) => {
                dense = Dense::of(x, token);
                ExpertInput::Tokens(dense.input())
            }
        };
        let mut y = vec![f32::NAN; if weights.is_some() { 1 } else { count }];
        let mut workspace = experts.workspace(1, count, &alone)?;
        experts.forward(input, &routes, weights, &mut y, &mut workspace, &alone)?;
        Ok(y)
    }

    /// The kernel that is to blame for an output.
    fn to_blame(
        &self,
        plain: &Experts,
        weights: Option<&[f32]>,
        (found, pair): (f32, usize),
    ) -> Result<Option<&'static Entry>, Error> {
        let at = if weights.is_some() { 0 } else { pair - self.own.start };
        let (input, rows) = match self.input {
            ExpertInput::Tokens(input) => (Some(input), self.routes.tokens()),
            ExpertInput::Pairs(input) => (Some(input), self.routes.pairs()),
            ExpertInput::Quantized(_) => (None, 0),
        };
        if let Some(quantizer) = input.and_then(|input| self.layer.quantizer_of(input, rows)) {
            // With what quantized the activations, the portable products give the same if that is what is wrong.
            let product = plain.kernels().find(|kernel| kernel.op == gristmill_spec::vocab::Op::Matmul);
            let options = self.portable.behind_its_quantizer(product.map(|product| product.name));
            let mixed = self.kept.row_of(&self.list(), self.row, self.portable, &options)?;
            if self.through(&mixed, weights)?[at].to_bits() == found.to_bits() {
                return Ok(Some(quantizer));
            }
        }
        let outputs = self.through(plain, None)?;
        // Which of the token's products it is, computed once more; where none is wrong any more, the one that was looked at.
        let wrong = self.differing(&self.outputs()?, &outputs).unwrap_or(pair);
        let expert = self.routes.experts()[wrong];
        let quantizer = input.and_then(|input| self.layer.gpu_quantizer(input, rows));
        if let (Some(quantizer), Some(input)) = (quantizer, input)
            && self.is_right_of_int8(plain, input, (wrong, expert), outputs[wrong - self.own.start])?
        {
            return Ok(Some(quantizer));
        }
        Ok(self.layer.kernel_for(self.routes.count_of(expert)))
    }

    /// All products of the run.
    fn outputs(&self) -> Result<Vec<f32>, Error> {
        let (alone, routes) = (Threads::single(), self.routes);
        let mut y = filled(f32::NAN, routes.pairs() * self.kept.n())?;
        let mut workspace = self.layer.workspace(routes.tokens(), routes.pairs(), &alone)?;
        self.layer.forward(self.input, routes, None, &mut y, &mut workspace, &alone)?;
        Ok(y)
    }

    /// Whether a GPU's product of one expert is right of activations that the processor quantized, and wrong of those that the GPU does: the expert
    /// as a layer there, with as many tokens as the run has for it, so that the same kernels compute it.
    #[cfg(feature = "cuda")]
    fn is_right_of_int8(
        &self,
        plain: &Experts,
        input: Input<'_>,
        (pair, expert): (usize, u32),
        expected: f32,
    ) -> Result<bool, Error> {
        let (n, k) = (self.kept.n(), self.kept.k());
        let (Some(gpu), Some(matrices)) = (self.layer.gpu(), self.kept.experts.get(expert as usize)) else {
            return Ok(false);
        };
        // Single tokens may go to a kernel that quantizes by itself, which experts have no use for.
        let m = self.routes.count_of(expert).max(2);
        let token = match self.input {
            ExpertInput::Pairs(_) => tokens_of(input, pair..pair + 1, self.routes.pairs(), k),
            _ => tokens_of(input, self.token..self.token + 1, self.routes.tokens(), k),
        };
        let (alone, matrices) = (Threads::single(), matrices.iter().map(QuantizedBuf::matrix));
        let matrices: Vec<QuantizedMatrix<'_>> = matrices.collect();
        let options = self.portable.guarded_options().on_gpu(gpu);
        let layer = Linear::made(self.portable.registry, &matrices, &options, &alone)?;
        let mut own = plain.workspace(1, 1, &alone)?;
        let dense = Dense::of(&plain.quantize(token, 1, &mut own, &alone)?, 0..1);
        let (q, scales) = (dense.q.repeat(m), dense.scales.repeat(m));
        let of = |input: Input<'_>| {
            let (mut y, mut workspace) = (filled(f32::NAN, m * n)?, Workspace::new());
            // It is no run of the program's: parts of its tokens are no step.
            tells_of_parts(&mut workspace);
            layer.forward(input, m, None, &mut y, &mut workspace, &alone)?;
            Ok::<bool, Error>(y[self.row].to_bits() == expected.to_bits())
        };
        let of_floats = match token {
            Input::F32(x) => of(Input::F32(&x.repeat(m)))?,
            Input::F16(x) => of(Input::F16(&x.repeat(m)))?,
            Input::Bf16(x) => of(Input::Bf16(&x.repeat(m)))?,
            Input::I8 { .. } => return Ok(false),
        };
        Ok(!of_floats && of(Input::I8 { q: &q, scales: &scales })?)
    }

    #[cfg(not(feature = "cuda"))]
    fn is_right_of_int8(&self, _: &Experts, _: Input<'_>, _: (usize, u32), _: f32) -> Result<bool, Error> {
        Ok(false)
    }

    /// The first pair of the token whose output is another one.
    fn differing(&self, y: &[f32], expected: &[f32]) -> Option<usize> {
        let of_pair = |pair: usize| y[pair * self.kept.n() + self.row].to_bits();
        let differs = |(pair, expected): (usize, &f32)| (of_pair(pair) != expected.to_bits()).then_some(pair);
        self.own.clone().zip(expected).find_map(differs)
    }
}
