//! Where a product goes: some columns of rows that may be apart, of any type, over what is there or added to it.

use crate::error::Error;
use crate::operands::output::Output;
use crate::operands::sizes::{check_len, check_rows, check_span};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;

/// How results become outputs. The default: f32 rows one behind the other, overwritten, of all rows of the weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store<'a> {
    /// Values from one row of `y` to the next.
    pub(crate) stride: Option<usize>,
    /// Rows of the weights.
    pub(crate) rows: Option<Range<usize>>,
    /// A value for each of these.
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether outputs are added to what is there.
    pub(crate) accumulate: bool,
}

impl Store<'_> {
    /// Whether it is the default, but for a bias.
    pub(crate) fn is_plain(&self) -> bool {
        self.stride.is_none() && self.rows.is_none() && !self.accumulate
    }
}

/// The same with the memory, sizes checked.
#[derive(Debug)]
pub(crate) struct Destination<'y> {
    y: Output<'y>,
    m: usize,
    stride: usize,
    /// Rows of the weights: the columns of `y`.
    pub(crate) rows: Range<usize>,
    pub(crate) bias: Option<&'y [f32]>,
    accumulate: bool,
}

impl<'y> Destination<'y> {
    /// For `m` tokens and weights of `n` rows.
    pub(crate) fn new(
        store: &Store<'y>,
        y: Output<'y>,
        [m, n]: [usize; 2],
    ) -> Result<Destination<'y>, Error> {
        let rows = store.rows.clone().unwrap_or(0..n);
        check_rows(&rows, n)?;
        let width = rows.len();
        if let Some(bias) = store.bias {
            check_len("the bias", "values", width, bias.len())?;
        }
        check_span("the output", [m, width], store.stride, y.len())?;
        let (stride, bias) = (store.stride.unwrap_or(width), store.bias);
        Ok(Destination { y, m, stride, rows, bias, accumulate: store.accumulate })
    }

    /// Tokens.
    pub(crate) fn m(&self) -> usize {
        self.m
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.m == 0 || self.rows.is_empty()
    }

    /// f32 rows of all `n` rows of the weights, one behind the other and overwritten, which is all that kernels of GPUs write;
    /// else what of it is asked for in another way.
    pub(crate) fn dense(self, n: usize) -> Result<(Option<&'y [f32]>, &'y mut [f32]), &'static str> {
        let Destination { y, m, stride, rows, bias, accumulate } = self;
        if rows != (0..n) {
            return Err("ranges of rows");
        }
        if accumulate {
            return Err("accumulation");
        }
        match y {
            Output::F32(y) if stride == n || m <= 1 => Ok((bias, &mut y[..m * n])),
            Output::F32(_) => Err("strides"),
            Output::F16(_) | Output::Bf16(_) => Err("outputs of f16 or bf16"),
        }
    }

    /// Bytes that are written.
    pub(crate) fn bytes(&self) -> usize {
        let size = match self.y {
            Output::F32(_) => 4,
            Output::F16(_) | Output::Bf16(_) => 2,
        };
        self.m * self.rows.len() * size
    }

    /// The results of a product over nothing: the bias, or 0.
    pub(crate) fn fill(self) {
        let (m, width) = (self.m, self.rows.len());
        let columns = self.into_columns();
        for token in 0..m {
            for column in 0..width {
                // SAFETY: within the rows, and nobody else writes.
                unsafe { columns.put(token, column, &mut [0.0]) };
            }
        }
    }

    /// The memory for several threads, each with columns of its own.
    pub(crate) fn into_columns(self) -> Columns<'y> {
        let y = match self.y {
            Output::F32(y) => Pointer::F32(y.as_mut_ptr()),
            Output::F16(y) => Pointer::F16(y.as_mut_ptr()),
            Output::Bf16(y) => Pointer::Bf16(y.as_mut_ptr()),
        };
        Columns { y, stride: self.stride, bias: self.bias, accumulate: self.accumulate }
    }
}

#[derive(Clone, Copy)]
enum Pointer {
    F32(*mut f32),
    F16(*mut f16),
    Bf16(*mut bf16),
}

/// Outputs that several threads write: memory that is lent for `'y`.
pub(crate) struct Columns<'y> {
    y: Pointer,
    stride: usize,
    bias: Option<&'y [f32]>,
    accumulate: bool,
}

// SAFETY: who calls `put` answers for it that no two threads write one place; all else is only read.
unsafe impl Sync for Columns<'_> {}

impl Columns<'_> {
    /// Where the results of row 0 stand, and the values from token to token, if they are written as kernels compute them.
    pub(crate) fn plain(&self) -> Option<(*mut f32, usize)> {
        match self.y {
            Pointer::F32(y) if !self.accumulate => Some((y, self.stride)),
            Pointer::F32(_) | Pointer::F16(_) | Pointer::Bf16(_) => None,
        }
    }

    /// Says of a token that none of its `width` columns has a result.
    ///
    /// # Safety
    /// The token and the columns are within the [`Destination`], and no other thread touches it.
    pub(crate) unsafe fn set_nan(&self, token: usize, width: usize) {
        let at = token * self.stride;
        match self.y {
            // SAFETY: the places are within the output, as the caller answers for.
            Pointer::F32(y) => unsafe { std::slice::from_raw_parts_mut(y.add(at), width) }.fill(f32::NAN),
            // SAFETY: as above.
            Pointer::F16(y) => unsafe { std::slice::from_raw_parts_mut(y.add(at), width) }.fill(f16::NAN),
            // SAFETY: as above.
            Pointer::Bf16(y) => unsafe { std::slice::from_raw_parts_mut(y.add(at), width) }.fill(bf16::NAN),
        }
    }

    /// Writes results of a token from column `column` on: plus their bias, plus what is there where outputs are accumulated,
    /// rounded once (ties to even) to the type of the output. What `values` holds afterwards means nothing.
    ///
    /// # Safety
    /// The token and the columns are within the [`Destination`], and no other thread touches these places.
    pub(crate) unsafe fn put(&self, token: usize, column: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias {
            add(values, bias[column..].iter().copied());
        }
        let (at, len) = (token * self.stride + column, values.len());
        match self.y {
            Pointer::F32(y) => {
                // SAFETY: the places are within the output and this thread's alone, as the caller answers for.
                let y = unsafe { std::slice::from_raw_parts_mut(y.add(at), len) };
                if self.accumulate {
                    add(values, y.iter().copied());
                }
                y.copy_from_slice(values);
            }
            Pointer::F16(y) => {
                // SAFETY: as above.
                let y = unsafe { std::slice::from_raw_parts_mut(y.add(at), len) };
                if self.accumulate {
                    add(values, y.iter().map(|y| y.to_f32()));
                }
                y.convert_from_f32_slice(values);
            }
            Pointer::Bf16(y) => {
                // SAFETY: as above.
                let y = unsafe { std::slice::from_raw_parts_mut(y.add(at), len) };
                if self.accumulate {
                    add(values, y.iter().map(|y| y.to_f32()));
                }
                y.convert_from_f32_slice(values);
            }
        }
    }
}

fn add(values: &mut [f32], to: impl Iterator<Item = f32>) {
    values.iter_mut().zip(to).for_each(|(value, to)| *value += to);
}
