//! Experts on a GPU: tokens are sorted by expert here, and everything else is enqueued there.

use super::Experts;
use super::groups::{self, Groups};
use super::held::OnDevice;
use super::routes::Routes;
use super::sent::{Sent, indices};
use crate::cuda::{
    DeviceActivations, DeviceBuffer, DeviceInput, DeviceScratch, Gpu, Lists, Places, Results, TILE, Tiles,
};
use crate::error::Error;
use crate::operands::sizes::{check_len, product_of};
use crate::request::Shape;
use crate::run::launch::{On, cannot_drive};
use crate::workspace::{Workspace, WorkspaceSize};
use std::sync::Arc;

/// What experts on a GPU multiply: as [`ExpertInput`](super::ExpertInput), there.
#[derive(Clone, Copy, Debug)]
pub enum DeviceExpertInput<'a> {
    /// A row for each token, which all its experts get.
    Tokens(DeviceInput<'a>),
    /// A row for each pair of a token and one of its experts, in the order of the lists.
    Pairs(DeviceInput<'a>),
    /// A row for each token that is quantized already, in another workspace than the one that
    /// [`Experts::forward_on_device`] is given.
    Quantized(&'a DeviceActivations<'a>),
}

impl Experts {
    /// Enqueues the quantization of `m` tokens on the experts' GPU, for these and other experts or layers, and does not wait for it.
    ///
    /// # Errors
    /// As for [`Matmul::quantize_on_device`](crate::Matmul::quantize_on_device).
    pub fn quantize_on_device<'w>(
        &self,
        input: DeviceInput<'_>,
        m: usize,
        workspace: &'w mut Workspace,
    ) -> Result<DeviceActivations<'w>, Error> {
        self.any().matmul.quantize_on_device(input, m, self.k, workspace)
    }

    /// As [`forward`](Experts::forward), of rows that are on the experts' GPU, into memory there: enqueued, and not waited for but for
    /// the copies of `routes` and `weights`, which the processor has ([`forward_routed_on_device`](Experts::forward_routed_on_device)
    /// takes lists that lie there). [`Workspace::finish`] waits, and reports a row that was not finite.
    /// Each token is quantized by one launch for all; the products of a kernel that has a grouped form are one launch, whatever
    /// the number of experts, and others are a launch for each expert.
    ///
    /// On the device a run takes no memory that an earlier one of the same sizes did not take.
    ///
    /// # Errors
    /// As for [`forward`](Experts::forward); [`Error::CannotDrive`] on the processor; [`Error::WrongDevice`],
    /// [`Error::Overlap`], [`Error::OutOfDeviceMemory`], [`Error::Gpu`]; [`Error::Capturing`], since a graph can't hold the copies.
    pub fn forward_on_device(
        &self,
        input: DeviceExpertInput<'_>,
        routes: &Routes<'_>,
        weights: Option<&[f32]>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Some(device) = &self.device else {
            return Err(cannot_drive(self.any().matmul.entry(), 0));
        };
        self.check_results(routes, weights, y.len())?;
        let (rows, by_pair) = self.check_rows(&input, [routes.tokens(), routes.pairs()], y)?;
        let too_large = || Error::TooLarge { what: "the list of experts" };
        let needed = indices(routes.tokens(), routes.pairs(), self.count).ok_or_else(too_large)?;
        workspace.check(WorkspaceSize { indices: needed, ..WorkspaceSize::default() })?;
        let sorting = groups::indices(routes.pairs(), self.count).ok_or_else(too_large)?;
        let Workspace { indices, gpu: scratch, .. } = workspace;
        let (sorting, sent) = indices.split_at_mut(sorting);
        let groups = Groups::sort(routes, self.count, by_pair, sorting)?;
        if y.is_empty() {
            return Ok(());
        }
        if routes.pairs() == 0 || self.k == 0 {
            return y.fill_bytes(0);
        }
        self.check_kernels(&groups)?;
        let run = Run { experts: self, device, groups: &groups, routes, weights };
        let here = device.around.gpu();
        run.enqueue(input, rows, sent, y, scratch.get_or_insert_default().on(here))
    }

    /// Looks at rows of activations and at where results go: how many rows there are, and whether each pair has one.
    pub(super) fn check_rows(
        &self,
        input: &DeviceExpertInput<'_>,
        [tokens, pairs]: [usize; 2],
        y: &DeviceBuffer<f32>,
    ) -> Result<(usize, bool), Error> {
        let matmul = &self.any().matmul;
        let kernel = matmul.entry().name;
        let (rows, by_pair) = match input {
            DeviceExpertInput::Pairs(_) => (pairs, true),
            DeviceExpertInput::Tokens(_) | DeviceExpertInput::Quantized(_) => (tokens, false),
        };
        let gpu = match input {
            DeviceExpertInput::Tokens(x) | DeviceExpertInput::Pairs(x) => {
                matmul.check_dtype(x.dtype())?;
                check_len("activations", "values", product_of("activations", rows, self.k)?, x.len())?;
                if x.overlaps(y) {
                    return Err(Error::Overlap { kernel, what: "the activations" });
                }
                x.gpu()
            }
            DeviceExpertInput::Quantized(x) => {
                x.check(kernel, &self.activations)?;
                check_len("the quantized activations", "tokens", rows, x.m())?;
                x.gpu()
            }
        };
        self.check_here([gpu, y.gpu()])?;
        Ok((rows, by_pair))
    }

    /// Whether all of these are the experts' GPU.
    pub(super) fn check_here<'g>(&self, others: impl IntoIterator<Item = &'g Arc<Gpu>>) -> Result<(), Error> {
        let kernel = self.any().matmul.entry().name;
        let Some(here) = self.any().matmul.gpu() else {
            return Err(cannot_drive(self.any().matmul.entry(), 0));
        };
        if others.into_iter().any(|other| !Arc::ptr_eq(other, here)) {
            return Err(Error::WrongDevice { kernel, index: here.profile().index });
        }
        Ok(())
    }

    /// Where the rows are that products read: those that are given, or those that are quantized now.
    pub(super) fn quantized(
        &self,
        input: DeviceExpertInput<'_>,
        m: usize,
        scratch: &mut DeviceScratch,
    ) -> Result<Places, Error> {
        let layout = &self.activations;
        match input {
            DeviceExpertInput::Quantized(x) => Ok(x.places()),
            DeviceExpertInput::Tokens(x) | DeviceExpertInput::Pairs(x) => {
                let quantizer = self.any().matmul.device_quantizer(Shape { m, n: self.n, k: self.k })?;
                let block = layout.format.block;
                let places = scratch.places(quantizer.gpu(), m, &layout.row, block, layout.row.bytes())?;
                // SAFETY: the input has `m * k` values on this device. What is dropped before the kernel has run is freed
                // behind it, in the order of the stream.
                unsafe { quantizer.rows(x.address(), x.word(), m, &layout.row, &places) }?;
                Ok(places)
            }
        }
    }
}

/// A run whose operands were looked at.
struct Run<'r> {
    experts: &'r Experts,
    device: &'r OnDevice,
    groups: &'r Groups<'r>,
    routes: &'r Routes<'r>,
    weights: Option<&'r [f32]>,
}

impl Run<'_> {
    fn enqueue(
        &self,
        input: DeviceExpertInput<'_>,
        rows: usize,
        numbers: &mut [u32],
        y: &mut DeviceBuffer<f32>,
        scratch: &mut DeviceScratch,
    ) -> Result<(), Error> {
        let Run { experts, device, groups, routes, weights } = *self;
        let (gpu, n, pairs) = (device.around.gpu(), experts.n, routes.pairs());
        let together = groups.rows_together();
        let sent = Sent::of(routes);
        let len = sent.len().ok_or(Error::TooLarge { what: "the list of experts" })?;
        let numbers = &mut numbers[..len];
        sent.fill(numbers, groups, routes);
        self.tiles(together, numbers);
        // In front of everything, since it is waited for.
        let lists = sent.at(scratch.lists(gpu, numbers)?);
        let weights = match weights {
            Some(weights) => scratch.weights_of_sums(gpu, weights)?,
            None => 0,
        };
        let layout = &experts.activations.row;
        let places = experts.quantized(input, rows, scratch)?;
        let places = if together {
            places
        } else {
            // SAFETY: each number of the list is one of the rows that were quantized just now.
            unsafe { device.around.gathered(&places, &lists, pairs, layout, scratch) }?
        };
        let in_order = weights == 0 && groups.in_order();
        let out = y.output();
        let products =
            if in_order { out } else { scratch.products(gpu, product_of("the output", pairs, n)?)? };
        self.products(&places, together, &lists, products, scratch)?;
        if in_order {
            return Ok(());
        }
        let count = if weights == 0 { pairs } else { routes.tokens() };
        let results = Results { products, count, n, weights };
        // SAFETY: the lists are those of the products, and `y` was compared with their sizes. What is dropped before the kernel has
        // run is freed behind it, in the order of the stream.
        unsafe { device.around.combined(&results, &lists, out) }
    }

    /// The experts that a kernel is chosen for, each with its first place and how many it has.
    fn experts_of(&self, choice: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..self.groups.experts()).filter_map(move |expert| {
            let (first, count) = self.groups.of(expert);
            (count > 0 && self.experts.choice(count) == Some(choice)).then_some((expert, first, count))
        })
    }

    /// The row of activations at a place.
    fn row(&self, together: bool, place: usize) -> usize {
        if together { self.groups.rows()[place] as usize } else { place }
    }

    /// Writes the tiles of all kernels that have a grouped form, kernel after kernel.
    fn tiles(&self, together: bool, numbers: &mut [u32]) {
        let mut next = numbers.chunks_exact_mut(TILE);
        for (index, choice) in self.experts.choices.iter().enumerate() {
            let Some(tokens) = choice.matmul.grouped_tokens() else { continue };
            for (expert, first, count) in self.experts_of(index) {
                for (from, to) in parts(count, tokens) {
                    let row = self.row(together, first) + from;
                    let tile = [expert, row, first + from, to - from].map(|number| number as u32);
                    if let Some(next) = next.next() {
                        next.copy_from_slice(&tile);
                    }
                }
            }
        }
    }

    /// Enqueues kernel after kernel, with the experts whose number of tokens it is chosen for.
    fn products(
        &self,
        places: &Places,
        together: bool,
        lists: &Lists,
        y: u64,
        scratch: &mut DeviceScratch,
    ) -> Result<(), Error> {
        let layout = &self.experts.activations.row;
        let mut done = 0;
        for (index, choice) in self.experts.choices.iter().enumerate() {
            let packed = &self.experts.packed[choice.packed];
            let On::Cuda(launcher) = choice.matmul.on() else { continue };
            let Some(tokens) = choice.matmul.grouped_tokens() else {
                for (expert, first, count) in self.experts_of(index) {
                    let rows = [self.row(together, first), first, count];
                    // SAFETY: so many rows are at the places, and so many of results from `y` on.
                    unsafe { launcher.of_expert(&packed[expert], places, layout, rows, y, scratch) }?;
                }
                continue;
            };
            let none = Tiles { address: lists.at(TILE * done), count: 0, tokens: 0, bytes: 0 };
            let tiles = self.experts_of(index).fold(none, |tiles, (expert, _, count)| Tiles {
                count: tiles.count + count.div_ceil(tokens),
                tokens: tiles.tokens + count,
                bytes: tiles.bytes + packed[expert].bytes(),
                ..tiles
            });
            if tiles.count == 0 {
                continue;
            }
            done += tiles.count;
            let addresses = &self.device.addresses[choice.packed];
            // SAFETY: the addresses are those of this packing; tiles were written for this kernel, of places that there are.
            unsafe { launcher.grouped((packed, addresses), places, layout, &tiles, y) }?;
        }
        Ok(())
    }
}

/// `count` tokens in parts of at most `tokens`.
fn parts(count: usize, tokens: usize) -> impl Iterator<Item = (usize, usize)> {
    let tokens = tokens.max(1);
    (0..count.div_ceil(tokens)).map(move |tile| (tile * tokens, ((tile + 1) * tokens).min(count)))
}
