//! Several products as one job.

use super::{From, Product};
use crate::error::Error;
use crate::operands::output::Output;
use crate::run::launch::{ProductJob, run_together};
use crate::threads::Threads;

/// Products for which a batch needs no memory but its own.
const PRODUCTS_IN_PLACE: usize = 8;

/// Products of several layers that go to the threads as one job: query, key and value where their formats differ, say, or many
/// matrices that are too small to be divided. Nobody waits for the end of one before the next begins, and results have the bits
/// of separate runs.
///
/// Each product reads activations that [are quantized](crate::Linear::quantize), shared ones or its own, and is described as any
/// other ([`Product`]). Up to eight take no memory besides; more are a list that is allocated. On the processor; `cuda::DeviceBatch` is
/// the same on a GPU.
///
/// ```
/// use gristmill_runtime::{Batch, Error, Linear, Output, QuantizedActivations, Threads};
///
/// /// Query, key and value of tokens that are quantized, where value has another format.
/// fn project(
///     layers: [&Linear; 3],
///     x: &QuantizedActivations<'_>,
///     outputs: [&mut [f32]; 3],
///     threads: &Threads,
/// ) -> Result<(), Error> {
///     let mut batch = Batch::new();
///     for (layer, y) in layers.into_iter().zip(outputs) {
///         batch.push(layer.product_of(x), Output::F32(y))?;
///     }
///     batch.run(threads);
///     Ok(())
/// }
/// # let _ = project;
/// ```
#[derive(Default)]
#[must_use = "nothing is computed before `run`"]
pub struct Batch<'a> {
    few: [Option<ProductJob<'a>>; PRODUCTS_IN_PLACE],
    more: Vec<ProductJob<'a>>,
    len: usize,
}

impl<'a> Batch<'a> {
    /// A batch of no products, which is run at once.
    pub fn new() -> Batch<'a> {
        Batch::default()
    }

    /// Adds a product, whose results will be in `y`. Everything about it is looked at here, so that [`run`](Batch::run) can't fail; a
    /// product that is refused leaves the batch as it was.
    ///
    /// # Errors
    /// [`Error::NotQuantized`] for a product of activations that are not quantized; else as for [`Product::run`].
    pub fn push(&mut self, product: Product<'a>, y: Output<'a>) -> Result<(), Error> {
        let Product { layer, x, store } = product;
        let From::Quantized(x) = x else { return Err(Error::NotQuantized { index: self.len }) };
        let job = layer.job(&x, &store, y)?;
        self.len += 1;
        // What is empty or a product over nothing is done.
        let Some(job) = job else { return Ok(()) };
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(job),
            None => self.more.push(job),
        }
        Ok(())
    }

    /// How many products were added.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Computes all of them. Each counts as a launch; its time is nobody's, as several run at a time.
    pub fn run(self, threads: &Threads) {
        run_together(|| self.few.iter().flatten().chain(&self.more), threads);
    }
}

impl std::fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("len", &self.len).finish_non_exhaustive()
    }
}
