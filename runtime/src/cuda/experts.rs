//! Experts on a device: products of tokens that are brought together by expert, in one launch where the kernel has a grouped form.

use super::block_threads::threads_of_blocks;
use super::blocks::{looping, size};
use super::buffer::{DeviceBuffer, room};
use super::device::{Function, Geometry, Gpu};
use super::fault::{FaultKind, Faults, Rows};
use super::parameters::{self, Argument, Groups, Parameters, Quantized};
use super::product::ProductCode;
use super::scratch::{DeviceScratch, Places, zeroed_room};
use crate::activations::RowLayout;
use crate::error::Error;
use crate::registry::{CudaLaunch, Registry};
use crate::request::Shape;
use crate::run::launch::Launcher;
use crate::weights::PackedMatrix;
use std::sync::Arc;

/// What errors call the kernels around products.
const NAME: &str = "experts";

/// Numbers of a tile.
pub(crate) const TILE: usize = 4;

/// The kernels around products of experts, loaded.
#[derive(Clone, Debug)]
pub(crate) struct AroundExperts {
    gpu: Arc<Gpu>,
    route: Function,
    gather: Function,
    combine: Function,
    threads: u32,
}

/// Where the lists of a run lie on the device, in numbers of four bytes from the beginning of one buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lists {
    pub(crate) address: u64,
    /// The row of activations of each place.
    pub(crate) rows: usize,
    /// The place of each pair.
    pub(crate) places: usize,
    /// The end of each token's pairs.
    pub(crate) ends: usize,
}

impl Lists {
    pub(crate) fn at(&self, number: usize) -> u64 {
        self.address + 4 * number as u64
    }
}

/// What is sorted on the device, and for what.
pub(crate) struct Sorting {
    pub(crate) tokens: usize,
    /// Experts of each token.
    pub(crate) each: usize,
    pub(crate) experts: usize,
    /// Each pair has a row of its own.
    pub(crate) by_pair: bool,
    /// Tokens of a tile of the kernel that multiplies.
    pub(crate) of_a_tile: usize,
}

/// Lists that the device sorts, with tiles in front, of which those behind the last are empty.
pub(crate) struct Routed {
    pub(crate) lists: Lists,
    pub(crate) most_tiles: usize,
}

/// Results on their way back: `count` rows of `n` values of `products`, in the order of the caller's or added up.
pub(crate) struct Results {
    pub(crate) products: u64,
    pub(crate) count: usize,
    pub(crate) n: usize,
    /// The address of the weights of a sum; 0: there is none.
    pub(crate) weights: u64,
}

impl AroundExperts {
    /// # Errors
    /// [`Error::CannotRunOnGpu`] where no image of them is for the device; [`Error::Gpu`].
    pub(crate) fn load(gpu: &Arc<Gpu>, registry: &'static Registry) -> Result<AroundExperts, Error> {
        let missing = || Error::CannotRunOnGpu {
            kernel: NAME,
            index: gpu.profile().index,
            why: String::from(
                "this build holds no image of it; `gristmill doctor` says why images are not built",
            ),
        };
        let code = registry.experts.as_ref().ok_or_else(missing)?;
        let CudaLaunch::Experts { route, gather, combine, threads } = code.launch else {
            let what = "its code is of another op or device";
            return Err(Error::BrokenRegistry { package: registry.package, at: NAME, what });
        };
        let function = |name| gpu.function(NAME, code, name, threads);
        let (route, gather, combine) = (function(route)?, function(gather)?, function(combine)?);
        Ok(AroundExperts { route, gather, combine, threads, gpu: Arc::clone(gpu) })
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Enqueues the sorting of `list`, which has `sorting.each` experts for each token, one token after the other. What is wrong with
    /// it is left at `fault`; such pairs are at places that there are.
    pub(crate) fn routed(
        &self,
        list: &DeviceBuffer<u32>,
        sorting: &Sorting,
        scratch: &mut DeviceScratch,
    ) -> Result<Routed, Error> {
        let Sorting { tokens, each, experts, by_pair, of_a_tile } = *sorting;
        let pairs = list.len();
        // A fault holds the pair in thirty bits.
        if pairs >= 1 << 30 {
            return Err(Error::TooLarge { what: "the list of experts" });
        }
        // As many whole tiles as there are, and one that is not whole for each expert that has any.
        let most_tiles = (pairs / of_a_tile.max(1)).saturating_add(experts).min(pairs);
        let fault = scratch.list_fault(&self.gpu, each, experts)?;
        let too_large = Error::TooLarge { what: "the list of experts" };
        let (places, ends) = (TILE * most_tiles + pairs, TILE * most_tiles + 2 * pairs);
        let starts = ends.checked_add(tokens).ok_or(too_large.clone())?;
        let counts = experts.checked_mul(2).and_then(|len| len.checked_add(starts + 2));
        let counts = counts.ok_or(too_large.clone())?;
        // Each warp counts for itself.
        let len = experts.checked_mul(self.threads as usize / 32).and_then(|len| len.checked_add(counts));
        let len = len.ok_or(too_large)?;
        let address = scratch.lists_there(&self.gpu, len)?;
        let lists = Lists { address, rows: TILE * most_tiles, places, ends };
        let arguments = parameters::Route {
            list: list.input(),
            tokens: size("tokens", tokens)?,
            each: size("experts of a token", each)?,
            experts: size("experts", experts)?,
            by_pair: u32::from(by_pair),
            of_a_tile: size("tokens", of_a_tile)?,
            most_tiles: size("tiles", most_tiles)?,
            counts: lists.at(counts),
            starts: lists.at(starts),
            tiles: lists.at(0),
            rows: lists.at(lists.rows),
            places: lists.at(places),
            ends: lists.at(ends),
            fault,
        };
        let geometry = Geometry { blocks: (1, 1), threads: self.threads, layers: 1 };
        // SAFETY: the parameters are those of docs/cuda.md, in one buffer that has room for all of them.
        unsafe { self.gpu.launch(NAME, &self.route, &geometry, &arguments.arguments()) }?;
        Ok(Routed { lists, most_tiles })
    }

    /// Enqueues `count > 0` rows of `from`, those that the list names, one behind the other.
    ///
    /// # Safety
    /// The list on this device has `count` numbers of rows that are at `from`, in this layout.
    pub(crate) unsafe fn gathered(
        &self,
        from: &Places,
        lists: &Lists,
        count: usize,
        layout: &RowLayout,
        scratch: &mut DeviceScratch,
    ) -> Result<Places, Error> {
        let to = scratch.gathered(&self.gpu, count, layout)?;
        let arguments = parameters::Gather {
            rows: lists.at(lists.rows),
            count: size("tokens", count)?,
            words: size("a row", layout.bytes() / 4)?,
            blocks: size("blocks", layout.blocks)?,
            units: size("units", layout.units)?,
            q: from.q,
            scales: from.scales,
            sums: from.sums,
            q_to: to.q,
            scales_to: to.scales,
            sums_to: to.sums,
        };
        let geometry = looping(&self.gpu, &self.gather, self.threads, count as u64);
        // SAFETY: the parameters are those of docs/cuda.md; there is room for `count` rows, and the rest is the caller's.
        unsafe { self.gpu.launch(NAME, &self.gather, &geometry, &arguments.arguments()) }?;
        Ok(to)
    }

    /// Enqueues results on their way to `y`.
    ///
    /// # Safety
    /// The lists on this device name places that are rows of `products`; `y` is the address of room for `count * n` values.
    pub(crate) unsafe fn combined(&self, results: &Results, lists: &Lists, y: u64) -> Result<(), Error> {
        let Results { products, count, n, weights } = *results;
        let arguments = parameters::Combine {
            products,
            places: lists.at(lists.places),
            ends: lists.at(lists.ends),
            weights,
            count: size("rows", count)?,
            n: size("rows", n)?,
            y,
        };
        let work = (count as u64).saturating_mul(n as u64).div_ceil(u64::from(self.threads));
        let geometry = looping(&self.gpu, &self.combine, self.threads, work);
        // SAFETY: the parameters are those of docs/cuda.md; memory is the caller's.
        unsafe { self.gpu.launch(NAME, &self.combine, &geometry, &arguments.arguments()) }
    }
}

/// Tiles of one kernel, which lie on the device.
pub(crate) struct Tiles {
    pub(crate) address: u64,
    pub(crate) count: usize,
    /// Tokens in all of them, and bytes of the weights that they read.
    pub(crate) tokens: usize,
    pub(crate) bytes: usize,
}

impl Launcher<ProductCode> {
    /// Tokens of a tile of its grouped form, if it has one.
    pub(crate) fn grouped_tokens(&self) -> Option<usize> {
        let code = self.code();
        code.grouped.as_ref().map(|_| code.tokens as usize)
    }

    /// Addresses of each expert's weights, as a grouped kernel looks them up.
    pub(crate) fn addresses(&self, experts: &[PackedMatrix]) -> Result<DeviceBuffer<u64>, Error> {
        let mut addresses = Vec::with_capacity(4 * experts.len());
        for expert in experts {
            let weights = self.weights(expert)?;
            let or_null = |buffer: &DeviceBuffer<f32>| if buffer.is_empty() { 0 } else { buffer.address() };
            let scales = [or_null(&weights.scales), or_null(&weights.mins)];
            addresses.extend([weights.codes.address(), scales[0], scales[1], weights.outer.address()]);
        }
        DeviceBuffer::of(self.gpu(), &addresses)
    }

    /// Enqueues the products of all tiles as one launch, or as few as the grid's second side allows.
    ///
    /// # Safety
    /// `experts` are packed for this kernel on its device, and `addresses` are theirs. Each tile on the device names one of them, and rows of
    /// activations and results that are at `places`, in this layout, and from `y` on.
    pub(crate) unsafe fn grouped(
        &self,
        (experts, addresses): (&[PackedMatrix], &DeviceBuffer<u64>),
        places: &Places,
        layout: &RowLayout,
        tiles: &Tiles,
        y: u64,
    ) -> Result<(), Error> {
        let code = self.code();
        let (Some(function), Some(first)) = (&code.grouped, experts.first()) else {
            return Err(self.broken("it has no grouped form"));
        };
        let ProductCode { gpu, rows, fewest, threads, .. } = code;
        if gpu.is_capturing() {
            for expert in experts {
                self.weights(expert)?.keep();
            }
        }
        let x =
            Quantized { x: places.q, stride: places.stride as u64, scales: places.scales, sums: places.sums };
        let all = Parameters { m: 0, ..self.parameters(first, layout, x, 0, y)? };
        let profile = gpu.profile();
        let most = (profile.grid.1 as usize).max(1);
        let row = layout.bytes() + 4 * (layout.blocks + layout.units);
        let bytes_in = tiles.bytes.saturating_add(tiles.tokens.saturating_mul(row));
        let shape = Shape { m: tiles.tokens, n: first.n(), k: first.k() };
        let bytes = [bytes_in, tiles.tokens.saturating_mul(first.n()).saturating_mul(4)];
        self.enqueued(gpu, shape, bytes, || {
            let mut done = 0;
            while done < tiles.count {
                let part = (tiles.count - done).min(most);
                let blocks = (all.n.div_ceil(*rows), size("tiles", part)?);
                let threads = threads_of_blocks(gpu, function, (*fewest, *threads), blocks);
                let tiles = tiles.address + (4 * TILE * done) as u64;
                let groups = Groups { experts: addresses.input(), tiles };
                let arguments = [Argument::Product(all), Argument::Groups(groups)];
                // SAFETY: the parameters are those of docs/cuda.md; the rest is the caller's.
                unsafe {
                    let geometry = Geometry { blocks, layers: 1, threads };
                    gpu.launch(self.entry.name, function, &geometry, &arguments)?;
                }
                done += part;
            }
            Ok(())
        })
    }

    /// Enqueues the product of `m` of the rows at `places`, from row `first` on, by a kernel that has no grouped form.
    ///
    /// # Safety
    /// As for [`product`](Launcher::product), of `first + m` rows.
    pub(crate) unsafe fn of_expert(
        &self,
        packed: &PackedMatrix,
        places: &Places,
        layout: &RowLayout,
        [row, first, m]: [usize; 3],
        y: u64,
        scratch: &mut DeviceScratch,
    ) -> Result<(), Error> {
        let behind = |values: usize, width: usize| (row as u64) * (values as u64) * (width as u64);
        let places = Places {
            q: places.q + behind(places.stride, 1),
            scales: places.scales + behind(layout.blocks, 4),
            sums: places.sums + behind(layout.units, 4),
            ..*places
        };
        let y = y + (first as u64) * (packed.n() as u64) * 4;
        // SAFETY: the rows from there on are the caller's.
        unsafe { self.product(packed, &places, m, layout, 0, y, scratch) }
    }
}

impl DeviceScratch {
    /// Copies the lists of a run.
    pub(crate) fn lists(&mut self, gpu: &Arc<Gpu>, numbers: &[u32]) -> Result<u64, Error> {
        let lists = room(&mut self.lists, gpu, numbers.len())?;
        lists.write(numbers)?;
        Ok(lists.input())
    }

    /// Room for lists that the device makes.
    fn lists_there(&mut self, gpu: &Arc<Gpu>, len: usize) -> Result<u64, Error> {
        Ok(room(&mut self.lists, gpu, len)?.output())
    }

    /// Where it reports what is wrong with such lists.
    fn list_fault(&mut self, gpu: &Arc<Gpu>, each: usize, experts: usize) -> Result<u64, Error> {
        let faults = match &mut self.list_faults {
            Some(faults) => faults,
            none => none.insert(Faults::new(gpu)?),
        };
        self.pending = true;
        faults.address(gpu, Rows { k: each, block: Some(experts) })
    }

    /// What is wrong with a list that the device sorted.
    pub(super) fn list_error(&mut self) -> Result<Option<Error>, Error> {
        let Some(faults) = &mut self.list_faults else { return Ok(None) };
        Ok(faults.take()?.map(|(kind, at, Rows { k: each, block: experts })| {
            let (pair, expert) = (at >> 32, (at as u64 & 0xffff_ffff) as u32);
            let (token, position) = (pair / each.max(1), pair % each.max(1));
            match kind {
                FaultKind::NonFinite => {
                    Error::NoSuchExpert { token, position, expert, experts: experts.unwrap_or(0) }
                }
                FaultKind::InvalidCode | FaultKind::ScaleOverflow | FaultKind::Beyond => {
                    Error::DuplicateExpert { token, position, expert }
                }
            }
        }))
    }

    /// Copies the weights of sums.
    pub(crate) fn weights_of_sums(&mut self, gpu: &Arc<Gpu>, weights: &[f32]) -> Result<u64, Error> {
        let room = room(&mut self.weights, gpu, weights.len())?;
        room.write(weights)?;
        Ok(room.input())
    }

    /// Room for the products of all pairs; zeros at first, since a pair without an expert has none.
    pub(crate) fn products(&mut self, gpu: &Arc<Gpu>, values: usize) -> Result<u64, Error> {
        Ok(zeroed_room(&mut self.products, gpu, values)?.output())
    }

    /// Room for `m` rows that are brought together.
    fn gathered(&mut self, gpu: &Arc<Gpu>, m: usize, layout: &RowLayout) -> Result<Places, Error> {
        let times = |a: usize| a.checked_mul(m).ok_or(Error::TooLarge { what: "activations" });
        Ok(Places {
            q: room(&mut self.gathered_q, gpu, times(layout.bytes())?)?.output(),
            stride: layout.bytes(),
            scales: room(&mut self.gathered_scales, gpu, times(layout.blocks)?)?.output(),
            sums: room(&mut self.gathered_sums, gpu, times(layout.units)?)?.output(),
            fault: 0,
        })
    }
}
