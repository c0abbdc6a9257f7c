//! A stack of matrices of which each token goes through some: the experts of a mixture.

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod from_memory;
mod groups;
#[cfg(feature = "cuda")]
mod held;
#[cfg(feature = "cuda")]
mod routed;
mod routes;
mod scatter;
#[cfg(feature = "cuda")]
mod sent;

#[cfg(feature = "cuda")]
pub use device::DeviceExpertInput;
#[cfg(feature = "cuda")]
pub use routed::DeviceRoutes;
pub use routes::Routes;

use crate::activations::{
    self, ActivationLayout, Activations, Input, InputRows, QuantizedActivations, RowBuffers,
};
use crate::decide::{Prepared, broken_rule};
use crate::error::Error;
use crate::kernel::Matmul;
use crate::linear::LinearOptions;
use crate::memory::placement::Placement;
use crate::observe::{fell_back, recovered};
use crate::operands::sizes::{check_len, product_of};
use crate::receipt::{FallbackNote, Recording};
use crate::registry::{Entry, FormatInfo, Registry};
use crate::request::Shape;
use crate::run::choice::{Choice, refused};
use crate::run::launch::{Group, GroupedWork};
use crate::threads::Threads;
use crate::weights::{PackedMatrix, QuantizedMatrix, Stack};
use crate::workspace::{Workspace, WorkspaceSize};
use groups::Groups;
use std::sync::Arc;

/// What the experts multiply.
#[derive(Clone, Copy, Debug)]
pub enum ExpertInput<'a> {
    /// A row for each token, which all its experts get: gate and up.
    Tokens(Input<'a>),
    /// A row for each pair of a token and one of its experts, in the order of the lists: down.
    Pairs(Input<'a>),
    /// A row for each token that is quantized already, for this or another product. They lie in another workspace than the one
    /// that [`Experts::forward`] is given.
    Quantized(&'a QuantizedActivations<'a>),
}

/// Bytes of an expert from which on its rows are divided to the NUMA nodes that read them. Each share has a mapping of its own, of which
/// systems have some ten thousand for a program, and a model has thousands of small experts.
const LEAST_PLACED: usize = 4 << 20;

/// Matrices of one format and shape, of which each token goes through those that [`Routes`] name: the op `matmul_grouped`, on the
/// processor or on a GPU.
///
/// Each row of activations is quantized once. The tokens of an expert are brought together, so that its weights are read
/// once for all of them, and the work is divided among threads by expert and by rows. Each product has the bits that
/// [`Linear::forward`](crate::Linear::forward) of that expert alone gives for that token.
///
/// ```
/// use gristmill_runtime::{Error, ExpertInput, Experts, Input, Routes, Threads, Workspace};
///
/// /// Two tokens, of which the first goes through experts 3 and 0, the other through 3 and 5: the weighted sum for each.
/// fn mix(
///     experts: &Experts,
///     x: &[f32],
///     y: &mut [f32],
///     workspace: &mut Workspace,
///     threads: &Threads,
/// ) -> Result<(), Error> {
///     let routes = Routes::each(2, 2, &[3, 0, 3, 5])?;
///     let weights = [0.75, 0.25, 0.5, 0.5];
///     let input = ExpertInput::Tokens(Input::F32(x));
///     experts.forward(input, &routes, Some(&weights), y, workspace, threads)
/// }
/// # let _ = mix;
/// ```
#[derive(Debug)]
pub struct Experts {
    prepared: Prepared,
    format: &'static FormatInfo,
    n: usize,
    k: usize,
    count: usize,
    /// How all its kernels read activations.
    activations: ActivationLayout,
    choices: Vec<Choice>,
    /// Set if they run on the processor though another device was asked for.
    moved: Option<Arc<FallbackNote>>,
    /// For each packing all experts.
    packed: Vec<Vec<PackedMatrix>>,
    /// What they have on a GPU besides.
    #[cfg(feature = "cuda")]
    device: Option<held::OnDevice>,
}

impl Experts {
    /// Chooses kernels for every number of tokens and packs each expert for them; afterwards the matrices are not needed.
    ///
    /// Of `options` the policy is not followed: without a kernel there is an error.
    ///
    /// # Errors
    /// [`Error::NothingStacked`] for no experts; [`Error::MixedFormats`] and [`Error::ShapeMismatch`] where they differ;
    /// else as for [`Linear::new`](crate::Linear::new).
    pub fn new(
        registry: &'static Registry,
        experts: &[QuantizedMatrix<'_>],
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Experts, Error> {
        let experts: Vec<&[QuantizedMatrix<'_>]> = experts.iter().map(std::slice::from_ref).collect();
        Experts::stacked(registry, &experts, options, threads)
    }

    /// The same of experts that are several matrices of one format and `k` each (gate and up): an expert's outputs are those of
    /// its first matrix, then those of its second, and so on.
    ///
    /// # Errors
    /// As for [`Experts::new`] and [`Linear::stacked`](crate::Linear::stacked).
    pub fn stacked<'m, E: AsRef<[QuantizedMatrix<'m>]>>(
        registry: &'static Registry,
        experts: &[E],
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Experts, Error> {
        let experts = Experts::made(registry, experts, options, threads)?;
        experts.tell_left_out();
        Ok(experts)
    }

    /// The same without telling an observer what they were made without.
    pub(crate) fn made<'m, E: AsRef<[QuantizedMatrix<'m>]>>(
        registry: &'static Registry,
        experts: &[E],
        options: &LinearOptions,
        threads: &Threads,
    ) -> Result<Experts, Error> {
        let first = all_alike(experts)?;
        let (format, n, k) = (first.format(), first.n(), first.k());
        let shape = Shape { m: 1, n, k };
        let prepared = options.prepare(registry, format.name, shape, threads)?;
        let pack = |matmul: &Matmul, expert: &E| match first.total_bytes() >= LEAST_PLACED {
            true => matmul.pack_stacked(expert.as_ref(), threads),
            false => matmul.pack_together(expert.as_ref(), threads),
        };
        let pack_all = |matmul: &Matmul| experts.iter().map(|expert| pack(matmul, expert)).collect();
        let Some(Choices { activations, choices, packed }) = Choices::of(&prepared, [n, k], pack_all)? else {
            return Err(refused(&prepared, shape));
        };
        #[cfg(feature = "cuda")]
        let device = {
            let kernels: Vec<_> = choices.iter().map(|choice| (&choice.matmul, choice.packed)).collect();
            held::OnDevice::new(registry, &kernels, &packed)?
        };
        Ok(Experts {
            prepared,
            format,
            n,
            k,
            count: experts.len(),
            activations,
            choices,
            moved: None,
            packed,
            #[cfg(feature = "cuda")]
            device,
        })
    }

    /// Experts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Rows of an expert: outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row: inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The format of the weights.
    pub fn format(&self) -> &'static FormatInfo {
        self.format
    }

    /// The decisions that it runs by.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Bytes held for weights.
    pub fn weight_bytes(&self) -> usize {
        self.packed.iter().flatten().map(PackedMatrix::bytes).sum()
    }

    /// On which NUMA nodes the experts lie, all together; `None` as for [`PackedMatrix::placement`], and for experts below 4 MiB, which
    /// are not divided.
    pub fn placement(&self) -> Option<Placement> {
        self.packed.iter().flatten().filter_map(PackedMatrix::placement).reduce(Placement::and)
    }

    /// Lets runs count in `recording` (`None`: in no recording any more). Each kernel counts as one launch in a run, however
    /// many experts it computed.
    ///
    /// # Errors
    /// [`Error::ForeignRecording`].
    pub fn record(&mut self, recording: Option<&Recording>) -> Result<(), Error> {
        if let (Some(recording), Some(note)) = (recording, &self.moved) {
            recording.ledger.attach(note);
        }
        self.choices.iter_mut().try_for_each(|choice| choice.matmul.record(recording))
    }

    pub(crate) fn tell_left_out(&self) {
        self.any().matmul.left_out().iter().for_each(recovered);
    }

    /// Says nothing in receipts of kernels that they were made without, where steps of recovery do.
    pub(crate) fn forget_left_out(&mut self) {
        self.choices.iter_mut().for_each(|choice| choice.matmul.forget_left_out());
    }

    /// Counts their runs as fallbacks, in place of what was asked for.
    pub(crate) fn runs_instead(&mut self, note: Arc<FallbackNote>) {
        self.moved = Some(note);
    }

    /// Every kernel that runs may launch, some more than once.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &'static Entry> {
        self.choices.iter().flat_map(|choice| choice.matmul.kernels())
    }

    /// The kernel for an expert with so many tokens.
    pub(crate) fn kernel_for(&self, m: usize) -> Option<&'static Entry> {
        Some(self.choices.get(self.choice(m)?)?.matmul.entry())
    }

    /// What quantizes `rows` rows on the processor; `None` for what is quantized already.
    pub(crate) fn quantizer_of(&self, input: Input<'_>, rows: usize) -> Option<&'static Entry> {
        let shape = Shape { m: rows, n: self.n, k: self.k };
        Some(self.any().matmul.processor_quantizer(input, shape).ok()??.entry)
    }

    /// What quantizes `rows` rows on a GPU; `None` for what is quantized already.
    pub(crate) fn gpu_quantizer(&self, input: Input<'_>, rows: usize) -> Option<&'static Entry> {
        self.any().matmul.gpu_quantizer(input, Shape { m: rows, n: self.n, k: self.k })
    }

    /// The GPU that they work on, if it is one.
    #[cfg(feature = "cuda")]
    pub(crate) fn gpu(&self) -> Option<&Arc<crate::cuda::Gpu>> {
        self.any().matmul.gpu()
    }

    /// What a workspace must hold for up to `tokens` tokens with `pairs` pairs of one and an expert, whatever the input.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn workspace_size(
        &self,
        tokens: usize,
        pairs: usize,
        threads: &Threads,
    ) -> Result<WorkspaceSize, Error> {
        let what = "the workspace";
        #[cfg(feature = "cuda")]
        if self.device.is_some() {
            let indices = sent::indices(tokens, pairs, self.count).ok_or(Error::TooLarge { what })?;
            return Ok(WorkspaceSize { indices, ..WorkspaceSize::default() });
        }
        let rows = tokens.max(pairs);
        let all = rows.checked_add(pairs).ok_or(Error::TooLarge { what })?;
        let quantized = self.activations.row.workspace(all, 0)?;
        let WorkspaceSize { rows, .. } = self.activations.row.workspace(rows, threads.most_parts())?;
        let indices = groups::indices(pairs, self.count).ok_or(Error::TooLarge { what })?;
        Ok(WorkspaceSize { rows, outputs: product_of(what, pairs, self.n)?, indices, ..quantized })
    }

    /// A workspace for up to `tokens` tokens with `pairs` pairs.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooLarge`].
    pub fn workspace(&self, tokens: usize, pairs: usize, threads: &Threads) -> Result<Workspace, Error> {
        Workspace::of_size(self.workspace_size(tokens, pairs, threads)?)
    }

    /// Quantizes `m` tokens into `workspace`, for these and other experts or layers.
    ///
    /// # Errors
    /// As for [`Matmul::quantize`].
    pub fn quantize<'w>(
        &self,
        input: Input<'_>,
        m: usize,
        workspace: &'w mut Workspace,
        threads: &Threads,
    ) -> Result<QuantizedActivations<'w>, Error> {
        self.any().matmul.quantize(input, m, self.k, workspace, threads)
    }

    /// Whether these read what `other` quantized.
    pub fn shares_activations_with(&self, other: &Experts) -> bool {
        self.activations.same_as(&other.activations)
    }

    /// Computes the products of all pairs. Without `weights` into `y` (`pairs * n`): a row for each pair, in the order of the
    /// lists. With `weights`, one for each pair, into `y` (`tokens * n`) the sum over a token's pairs: it begins with 0, and
    /// `weight * product` is added pair by pair in the order of the token's list, each step rounded to f32. A token without
    /// experts gets zeros.
    ///
    /// Allocates nothing (with more than 16 threads, the lists of its parts). On a GPU everything is copied there and back, and
    /// memory that an earlier run took there is used again; `threads` do nothing.
    ///
    /// # Errors
    /// [`Error::NoSuchExpert`], [`Error::DuplicateExpert`], [`Error::NonFiniteWeight`], each with the token and the position
    /// in its list; [`Error::ShapeMismatch`], [`Error::WrongInput`], [`Error::ActivationLayout`],
    /// [`Error::WorkspaceTooSmall`]; [`Error::NonFinite`] with the row of the input; [`Error::NoKernel`] for a number of
    /// tokens that no kernel takes; [`Error::ProcessorOnly`] on a GPU for activations that are quantized in the processor's memory.
    pub fn forward(
        &self,
        input: ExpertInput<'_>,
        routes: &Routes<'_>,
        weights: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
    ) -> Result<(), Error> {
        self.forward_noting(input, routes, weights, y, workspace, threads, &mut None)
    }

    /// The same, and which kernel of the processor it came to last.
    #[expect(clippy::too_many_arguments, reason = "those of a run, and where it was if it panics")]
    pub(crate) fn forward_noting(
        &self,
        input: ExpertInput<'_>,
        routes: &Routes<'_>,
        weights: Option<&[f32]>,
        y: &mut [f32],
        workspace: &mut Workspace,
        threads: &Threads,
        at: &mut Option<&'static Entry>,
    ) -> Result<(), Error> {
        #[cfg(feature = "cuda")]
        if self.device.is_some() {
            return self.forward_from_memory(input, routes, weights, y, workspace);
        }
        let (n, k, pairs) = (self.n, self.k, routes.pairs());
        self.check_results(routes, weights, y.len())?;
        let rows = rows_of(&input, routes);
        let parts = threads.parts_of_rows(rows, k);
        let Sizes { own, gathered, all } = self.checked(input, routes, parts)?;
        workspace.check(all)?;
        let Workspace { q, scales, sums, rows: scratch, outputs, indices, gpu: _ } = workspace;
        let by_pair = matches!(input, ExpertInput::Pairs(_));
        let groups = Groups::sort(routes, self.count, by_pair, indices)?;
        let (own_q, q) = q.split_at_mut(own.q);
        let (own_scales, scales) = scales.split_at_mut(own.scales);
        let (own_sums, sums) = sums.split_at_mut(own.sums);
        if y.is_empty() {
            return Ok(());
        }
        if pairs == 0 || k == 0 {
            y.fill(0.0);
            return Ok(());
        }
        self.check_kernels(&groups)?;
        let x = match input {
            ExpertInput::Tokens(input) | ExpertInput::Pairs(input) => {
                let buffers = RowBuffers { q: own_q, scales: own_scales, sums: own_sums, scratch };
                let quantizer = self.any().matmul.processor_quantizer(input, Shape { m: rows, n, k })?;
                *at = quantizer.map(|quantizer| quantizer.entry);
                let x = InputRows::dense(input, rows, k);
                activations::quantize_into(quantizer, x, self.activations.row, buffers, (parts, threads))?
            }
            ExpertInput::Quantized(x) => x.rows,
        };
        let together = groups.rows_together();
        let x = if together {
            x
        } else {
            let (q, scales, sums) =
                (&mut q[..gathered.q], &mut scales[..gathered.scales], &mut sums[..gathered.sums]);
            let buffers = RowBuffers { q, scales, sums, scratch: &mut [] };
            activations::gather(&x, groups.rows(), buffers, threads)
        };
        let in_order = weights.is_none() && groups.in_order();
        let products = if in_order { &mut *y } else { &mut outputs[..pairs * n] };
        self.products(&x, &groups, together, products, threads, at)?;
        if !in_order {
            scatter::scatter(&outputs[..pairs * n], n, &groups, routes, weights, y, threads);
        }
        if let Some(note) = &self.moved {
            fell_back(note);
        }
        Ok(())
    }

    /// Compares rows of activations with the lists, and says what the run needs where their quantization is divided into so many parts.
    fn checked(&self, input: ExpertInput<'_>, routes: &Routes<'_>, parts: usize) -> Result<Sizes, Error> {
        let (rows, layout, pairs) = (rows_of(&input, routes), self.activations.row, routes.pairs());
        let (own, scratch_rows) = match input {
            ExpertInput::Tokens(input) | ExpertInput::Pairs(input) => {
                self.any().matmul.check_dtype(input.dtype())?;
                activations::check_input(input, rows, self.k, layout.blocks)?;
                (rows, activations::scratch_rows(input, parts))
            }
            ExpertInput::Quantized(x) => {
                x.check(self.any().matmul.entry().name, &self.activations)?;
                check_len("the quantized activations", "tokens", rows, x.m())?;
                (0, 0)
            }
        };
        let too_large = || Error::TooLarge { what: "the list of experts" };
        let (own, gathered) = (layout.workspace(own, 0)?, layout.workspace(pairs, 0)?);
        let both = |own: usize, gathered: usize| own.checked_add(gathered).ok_or_else(too_large);
        let all = WorkspaceSize {
            q: both(own.q, gathered.q)?,
            scales: both(own.scales, gathered.scales)?,
            sums: both(own.sums, gathered.sums)?,
            rows: layout.workspace(rows, scratch_rows)?.rows,
            outputs: product_of("the output", pairs, self.n)?,
            indices: groups::indices(pairs, self.count).ok_or_else(too_large)?,
        };
        Ok(Sizes { own, gathered, all })
    }

    /// Whether there is a weight for each pair, and room for the results.
    fn check_results(&self, routes: &Routes<'_>, weights: Option<&[f32]>, y: usize) -> Result<(), Error> {
        if let Some(weights) = weights {
            check_len("the weights of the sum", "values", routes.pairs(), weights.len())?;
            check_finite(weights, routes)?;
        }
        let results = if weights.is_some() { routes.tokens() } else { routes.pairs() };
        check_len("the output", "values", product_of("the output", results, self.n)?, y)
    }

    /// Kernel after kernel, with the experts whose number of tokens it is chosen for.
    fn products(
        &self,
        x: &Activations<'_>,
        groups: &Groups<'_>,
        together: bool,
        y: &mut [f32],
        threads: &Threads,
        at: &mut Option<&'static Entry>,
    ) -> Result<(), Error> {
        for (index, choice) in self.choices.iter().enumerate() {
            let packed = &self.packed[choice.packed];
            let own = || {
                packed.iter().enumerate().filter_map(|(expert, weights)| {
                    let (first, count) = groups.of(expert);
                    if count == 0 || self.choice(count) != Some(index) {
                        return None;
                    }
                    let row = if together { groups.rows()[first] as usize } else { first };
                    Some(Group { weights, x: x.rows(row, count), first })
                })
            };
            let add = |sum: GroupedWork, group: Group<'_>| GroupedWork {
                groups: sum.groups + 1,
                tokens: sum.tokens + group.x.m,
            };
            let work = own().fold(GroupedWork::default(), add);
            if work.groups > 0 {
                *at = Some(choice.matmul.entry());
                choice.matmul.on_processor()?.grouped(own, work, [self.n, self.k], y, threads);
            }
        }
        Ok(())
    }

    fn check_kernels(&self, groups: &Groups<'_>) -> Result<(), Error> {
        for expert in 0..groups.experts() {
            let (_, m) = groups.of(expert);
            if m > 0 && self.choice(m).is_none() {
                return Err(refused(&self.prepared, Shape { m, n: self.n, k: self.k }));
            }
        }
        Ok(())
    }

    /// The kernel for `m` tokens of one expert: the one that decide gives, or where it reads activations differently the first
    /// that takes them.
    fn choice(&self, m: usize) -> Option<usize> {
        let shape = Shape { m, n: self.n, k: self.k };
        let chosen = self.prepared.decide(shape).chosen()?;
        let is_chosen = |choice: &Choice| std::ptr::eq(choice.matmul.entry(), chosen);
        let takes = |choice: &Choice| broken_rule(&choice.matmul.entry().shape, shape).is_none();
        self.choices.iter().position(is_chosen).or_else(|| self.choices.iter().position(takes))
    }

    /// One of its kernels, which read activations alike.
    fn any(&self) -> &Choice {
        // `Experts::stacked` is the only maker, and fails where nothing was chosen.
        &self.choices[0]
    }
}

/// What a run needs of a workspace.
struct Sizes {
    /// For rows that it quantizes itself.
    own: WorkspaceSize,
    /// For rows in the order of the experts.
    gathered: WorkspaceSize,
    all: WorkspaceSize,
}

/// Rows of activations.
fn rows_of(input: &ExpertInput<'_>, routes: &Routes<'_>) -> usize {
    match input {
        ExpertInput::Pairs(_) => routes.pairs(),
        ExpertInput::Tokens(_) | ExpertInput::Quantized(_) => routes.tokens(),
    }
}

/// The first of the experts, which all are like.
fn all_alike<'e, 'm, E: AsRef<[QuantizedMatrix<'m>]>>(experts: &'e [E]) -> Result<Stack<'e, 'm>, Error> {
    let first = Stack::new(experts.first().ok_or(Error::NothingStacked)?.as_ref())?;
    for expert in experts {
        let other = Stack::new(expert.as_ref())?;
        if !other.format().same_as(first.format()) {
            return Err(Error::MixedFormats { first: first.format().name, other: other.format().name });
        }
        check_len("an expert", "rows", first.n(), other.n())?;
        check_len("an expert", "elements a row", first.k(), other.k())?;
    }
    Ok(first)
}

/// Kernels that read activations alike, and what they read of weights.
struct Choices {
    activations: ActivationLayout,
    choices: Vec<Choice>,
    /// For each packing all experts.
    packed: Vec<Vec<PackedMatrix>>,
}

impl Choices {
    /// For matrices of `n` rows of `k`, which `pack_all` packs; `None` where nothing multiplies quantized activations.
    fn of(
        prepared: &Prepared,
        [n, k]: [usize; 2],
        pack_all: impl Fn(&Matmul) -> Result<Vec<PackedMatrix>, Error>,
    ) -> Result<Option<Choices>, Error> {
        let (mut choices, mut packed): (Vec<Choice>, Vec<_>) = (Vec::new(), Vec::new());
        let mut layout: Option<ActivationLayout> = None;
        for candidate in prepared.covering(n, k).needed {
            let matmul = Matmul::of(prepared, candidate, n, k)?;
            // Tokens are quantized in front of all products.
            if !matmul.reads_quantized() {
                continue;
            }
            let own = matmul.activation_layout(k)?;
            // Rows are quantized once, so a kernel that reads them differently is passed over. Those of one instruction set
            // agree; where a tuning mixes several, the first decides.
            if !layout.get_or_insert(own).same_as(&own) {
                continue;
            }
            let same = choices.iter().find(|choice| choice.matmul.shares_packing_with(&matmul));
            let index = match same {
                Some(same) => same.packed,
                None => {
                    packed.push(pack_all(&matmul)?);
                    packed.len() - 1
                }
            };
            choices.push(Choice { matmul, packed: index });
        }
        Ok(layout.map(|activations| Choices { activations, choices, packed }))
    }
}

fn check_finite(weights: &[f32], routes: &Routes<'_>) -> Result<(), Error> {
    if weights.iter().all(|weight| weight.is_finite()) {
        return Ok(());
    }
    for token in 0..routes.tokens() {
        let own = &weights[routes.pairs_of(token)];
        if let Some(position) = own.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::NonFiniteWeight { token, position });
        }
    }
    Ok(())
}
