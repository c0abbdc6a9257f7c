//! Experts on a GPU whose lists lie there, as a router's kernel leaves them.

use super::Experts;
use super::device::DeviceExpertInput;
use crate::cuda::{DeviceBuffer, Results, Sorting, Tiles};
use crate::error::Error;
use crate::operands::sizes::{check_len, product_of};
use crate::request::Shape;
use crate::run::launch::{On, cannot_drive};
use crate::weights::PackedMatrix;
use crate::workspace::Workspace;

/// Which experts each of some tokens goes to, on a GPU: as many for each token, one token behind the other.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRoutes<'a> {
    experts: &'a DeviceBuffer<u32>,
    tokens: usize,
    per_token: usize,
}

impl<'a> DeviceRoutes<'a> {
    /// Every one of `tokens` tokens goes to `per_token` experts: `experts` holds `tokens * per_token` numbers.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::TooLarge`].
    pub fn each(
        tokens: usize,
        per_token: usize,
        experts: &'a DeviceBuffer<u32>,
    ) -> Result<DeviceRoutes<'a>, Error> {
        let what = "the list of experts";
        check_len(what, "values", product_of(what, tokens, per_token)?, experts.len())?;
        Ok(DeviceRoutes { experts, tokens, per_token })
    }
}

impl Experts {
    /// As [`forward_on_device`](Experts::forward_on_device), with lists of experts, and weights of the sum, that are on the GPU too.
    /// Nothing is copied and nothing waited for, so that a [`Graph`](crate::cuda::Graph) can be captured of it, which goes by what
    /// the lists hold when it is launched. Which experts have tokens is not known to the processor: one kernel computes all, the one
    /// that is chosen for as many tokens as an expert has on average.
    ///
    /// [`Workspace::finish`] reports, beside a row that is not finite, [`Error::NoSuchExpert`] and [`Error::DuplicateExpert`] with the
    /// place in the lists; what was computed then means nothing. Weights that are not finite make sums that are not.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::WrongInput`], [`Error::ActivationLayout`]; [`Error::NoKernel`] where no kernel has a grouped
    /// form; [`Error::CannotDrive`] on the processor; [`Error::WrongDevice`], [`Error::Overlap`], [`Error::OutOfDeviceMemory`],
    /// [`Error::Gpu`].
    pub fn forward_routed_on_device(
        &self,
        input: DeviceExpertInput<'_>,
        routes: &DeviceRoutes<'_>,
        weights: Option<&DeviceBuffer<f32>>,
        y: &mut DeviceBuffer<f32>,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let Some(device) = &self.device else { return Err(cannot_drive(self.any().matmul.entry(), 0)) };
        let DeviceRoutes { experts: list, tokens, per_token } = *routes;
        let (n, k, pairs) = (self.n, self.k, list.len());
        if let Some(weights) = weights {
            check_len("the weights of the sum", "values", pairs, weights.len())?;
        }
        let results = if weights.is_some() { tokens } else { pairs };
        check_len("the output", "values", product_of("the output", results, n)?, y.len())?;
        let (rows, by_pair) = self.check_rows(&input, [tokens, pairs], y)?;
        self.check_here([list.gpu()].into_iter().chain(weights.map(DeviceBuffer::gpu)))?;
        if list.overlaps(y) || weights.is_some_and(|weights| weights.overlaps(y)) {
            let kernel = self.any().matmul.entry().name;
            return Err(Error::Overlap { kernel, what: "lists of experts" });
        }
        if y.is_empty() {
            return Ok(());
        }
        if pairs == 0 || k == 0 {
            return y.fill_bytes(0);
        }
        let around = &device.around;
        let scratch = workspace.gpu.get_or_insert_default().on(around.gpu());
        let (choice, of_a_tile) = self.grouped_choice(pairs)?;
        let (packed, addresses) = (&self.packed[choice.packed], &device.addresses[choice.packed]);
        let On::Cuda(launcher) = choice.matmul.on() else {
            return Err(cannot_drive(choice.matmul.entry(), 0));
        };
        let sorting = Sorting { tokens, each: per_token, experts: self.count, by_pair, of_a_tile };
        let routed = around.routed(list, &sorting, scratch)?;
        let layout = &self.activations.row;
        let places = self.quantized(input, rows, scratch)?;
        // SAFETY: the device makes lists of rows that there are, whatever it was given.
        let places = unsafe { around.gathered(&places, &routed.lists, pairs, layout, scratch) }?;
        let products = scratch.products(around.gpu(), product_of("the output", pairs, n)?)?;
        // How many experts are read is not known: no more than there are, nor than there are pairs.
        let read = packed.iter().take(pairs).map(PackedMatrix::bytes).sum();
        let address = routed.lists.at(0);
        let tiles = Tiles { address, count: routed.most_tiles, tokens: pairs, bytes: read };
        // SAFETY: the addresses are those of this packing; the device makes tiles of places that there are.
        unsafe { launcher.grouped((packed, addresses), &places, layout, &tiles, products) }?;
        let weights = weights.map_or(0, |weights| weights.input());
        let results = Results { products, count: results, n, weights };
        // SAFETY: as above, and `y` was compared with the lists. What is dropped before the kernel has run is freed behind it, in the
        // order of the stream.
        unsafe { around.combined(&results, &routed.lists, y.output()) }
    }

    /// The kernel with a grouped form that is chosen for as many tokens as an expert has on average, or the first there is, and the
    /// tokens of its tile.
    fn grouped_choice(&self, pairs: usize) -> Result<(&super::Choice, usize), Error> {
        let m = pairs.div_ceil(self.count.max(1)).max(1);
        let chosen = self.choice(m).map(|chosen| &self.choices[chosen]);
        let mut all = chosen.into_iter().chain(&self.choices);
        let found = all.find_map(|choice| Some((choice, choice.matmul.grouped_tokens()?)));
        found.ok_or_else(|| super::refused(&self.prepared, Shape { m, n: self.n, k: self.k }))
    }
}
