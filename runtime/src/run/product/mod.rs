//! A product as it is asked for: strides, ranges of rows, types of outputs, accumulation.

mod batch;
mod destination;
#[cfg(feature = "cuda")]
mod device_batch;

pub use batch::Batch;
pub(crate) use destination::{Columns, Destination, Store};
#[cfg(feature = "cuda")]
pub use device_batch::DeviceBatch;

use crate::activations::{Input, NonFinite, QuantizedActivations, Source};
use crate::error::Error;
use crate::linear::Linear;
use crate::operands::output::Output;
use crate::threads::Threads;
use crate::workspace::Workspace;
use std::ops::Range;

/// A product of a layer as it is asked for, made by [`Linear::product`] or [`Linear::product_of`]: `y = x w^T`, with what is
/// said besides. Nothing is computed before [`run`](Product::run).
///
/// ```
/// use gristmill_runtime::half::f16;
/// use gristmill_runtime::{Error, Input, Linear, NonFinite, Output, Threads, Workspace};
///
/// /// Adds keys of `m` tokens, the rows of a stacked matrix from `n` to `2 n`, to a cache of f16 in which tokens are `wide` apart.
/// fn add_keys(
///     stacked: &Linear,
///     (x, m): (&[f32], usize),
///     (cache, wide): (&mut [f16], usize),
///     workspace: &mut Workspace,
///     threads: &Threads,
/// ) -> Result<(), Error> {
///     let n = stacked.n() / 3;
///     let product = stacked.product(Input::F32(x), m).rows(n..2 * n).y_stride(wide).accumulate();
///     product.non_finite(NonFinite::Nan).run(Output::F16(cache), workspace, threads)
/// }
/// # let _ = add_keys;
/// ```
///
/// All of it is for the processor. On a GPU, where [`Linear::forward`] runs too, a product is told apart only by its bias, and all
/// else is [`Error::ProductOption`].
#[derive(Clone, Debug)]
#[must_use = "nothing is computed before `run`"]
pub struct Product<'a> {
    layer: &'a Linear,
    x: From<'a>,
    store: Store<'a>,
}

/// What a product starts from.
#[derive(Clone, Debug)]
enum From<'a> {
    Rows(Source<'a>),
    Quantized(QuantizedActivations<'a>),
}

impl Linear {
    /// The product of `m` tokens (`m * k` values, row after row), to be described further and [run](Product::run).
    pub fn product<'a>(&'a self, input: Input<'a>, m: usize) -> Product<'a> {
        Product { layer: self, x: From::Rows(Source::dense(input, m)), store: Store::default() }
    }

    /// The product of tokens that this layer or another one quantized.
    pub fn product_of<'a>(&'a self, x: &QuantizedActivations<'a>) -> Product<'a> {
        Product { layer: self, x: From::Quantized(*x), store: Store::default() }
    }
}

impl<'a> Product<'a> {
    /// Values from one token to the next (the leading dimension of `x`), at least `k`. The last token needs no padding, and there
    /// may be more behind it; without this the input has `m * k` values. Scales of [`Input::I8`] always lie without gaps. No effect
    /// on activations that are quantized already.
    pub fn x_stride(mut self, stride: usize) -> Product<'a> {
        if let From::Rows(source) = &mut self.x {
            source.stride = Some(stride);
        }
        self
    }

    /// Values of `y` from one token to the next (its leading dimension), at least as many as rows are computed. The last token
    /// needs no padding, there may be more behind it, and what lies between tokens is left as it is; without this `y` has just the
    /// results.
    pub fn y_stride(mut self, stride: usize) -> Product<'a> {
        self.store.stride = Some(stride);
        self
    }

    /// Only these rows of the weights: outputs are those columns of all, bit for bit. A range that begins at a multiple of the
    /// packing's rows (16 or 32) costs nothing besides; else up to that many rows more are computed.
    pub fn rows(mut self, rows: Range<usize>) -> Product<'a> {
        self.store.rows = Some(rows);
        self
    }

    /// A value that is added to each result: one for each row that is computed.
    pub fn bias(mut self, bias: &'a [f32]) -> Product<'a> {
        self.store.bias = Some(bias);
        self
    }

    /// `y = x w^T + y` instead of `y = x w^T`: results with their bias are computed in f32, what is there is added in f32, and the sum
    /// is rounded to the type of `y`, once.
    pub fn accumulate(mut self) -> Product<'a> {
        self.store.accumulate = true;
        self
    }

    /// What becomes of tokens that are not finite; an error without this. No effect on activations that are quantized already.
    pub fn non_finite(mut self, policy: NonFinite) -> Product<'a> {
        if let From::Rows(source) = &mut self.x {
            source.non_finite = policy;
        }
        self
    }

    /// Computes `y`: f32 results as [`Linear::forward`] gives them, or these rounded to f16 or bf16 (ties to even; what is too
    /// large for f16 becomes an infinity). A product of quantized activations needs nothing of `workspace`, which may be empty.
    ///
    /// Allocates nothing, as `forward`. Results that are not written as kernels compute them (another type, accumulated, or a range of
    /// rows that begins within a panel) take 32 KiB of each thread's stack.
    ///
    /// # Errors
    /// Those of [`Linear::forward`]; [`Error::StrideTooSmall`], [`Error::RowRange`]; [`Error::ProductOption`] on a GPU. Nothing is
    /// written then.
    pub fn run(self, y: Output<'_>, workspace: &mut Workspace, threads: &Threads) -> Result<(), Error> {
        let Product { layer, x, store } = self;
        match x {
            From::Rows(source) => layer.forward_stored(&source, &store, y, workspace, threads),
            From::Quantized(x) => layer.forward_quantized_stored(&x, &store, y, threads),
        }
    }
}
