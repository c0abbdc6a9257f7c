//! The blockwise signed Walsh-Hadamard transform of activations, in the reference form: f32, one stated order of operations.
//!
//! Models whose weights were folded with it (`W H diag(s)` is stored in place of `W`) need it before each product: their files
//! declare it as `prism.hadamard.*` (PrismML's fork of llama.cpp), and a model that runs without it computes something else. A layer
//! applies it where it was given to [`Linear::transformed`](crate::Linear::transformed).

use crate::activations::{InputRows, NonFinite};
use crate::device::Device;
use crate::error::Error;
use crate::prologue::steps::{butterflies, inverse_root, signed_transform};
use crate::room::room;
use crate::threads::Threads;
use gristmill_spec::vocab::DType;

/// Least and greatest block: a block of 1 would be the signs alone, and activations have no more than 2^24 elements a row.
const BLOCKS: std::ops::RangeInclusive<usize> = 2..=1 << 24;

/// `x' = H (s * x)`, block by block along a row.
///
/// `H` is the normalized Sylvester-Walsh-Hadamard matrix of the block: `H[i][j] = (-1)^popcount(i & j) / sqrt(block)`. It is
/// symmetric and its own inverse, so [`inverse`](Hadamard::inverse) is `x = s * (H z)`.
///
/// Arithmetic, in f32 and in this order, each operation rounded once: the element times its sign; times `1 / sqrt(block)`, which
/// is rounded to f32 once; then the butterflies `(a + b, a - b)` of elements that are 1, 2, 4, ... apart.
///
/// ```
/// use gristmill_runtime::Hadamard;
///
/// let transform = Hadamard::new(4, 4, Some(&[1, -1, 1, 1]))?;
/// let mut row = [1.0, 2.0, 3.0, 4.0];
/// transform.forward(&mut row)?;
/// assert_eq!(row, [3.0, 1.0, -4.0, 2.0]);
/// transform.inverse(&mut row)?;
/// assert_eq!(row, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), gristmill_runtime::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Hadamard {
    width: usize,
    block: usize,
    /// `1 / sqrt(block)`.
    factor: f32,
    /// 1.0 or -1.0 for each element of a row.
    signs: Option<Box<[f32]>>,
}

impl Hadamard {
    /// The transform of rows of `width` elements in blocks of `block`, behind a multiplication with `signs` (`width` times 1 or
    /// -1), if there are any.
    ///
    /// # Errors
    /// [`Error::Hadamard`] for a block that is no power of two from 2 to 2^24 or does not divide the width, for another number of
    /// signs, and for a sign that is neither 1 nor -1; [`Error::OutOfMemory`].
    pub fn new(width: usize, block: usize, signs: Option<&[i8]>) -> Result<Hadamard, Error> {
        let refuse = |why: String| Err(Error::Hadamard { width, block, why });
        if !BLOCKS.contains(&block) || !block.is_power_of_two() {
            let (least, most) = (BLOCKS.start(), BLOCKS.end());
            return refuse(format!("a block must be a power of two from {least} to {most}"));
        }
        if !width.is_multiple_of(block) {
            return refuse("rows must be whole blocks".to_owned());
        }
        let signs = match signs {
            None => None,
            Some(signs) if signs.len() != width => {
                return refuse(format!("{} signs, expected one for each element", signs.len()));
            }
            Some(signs) => {
                if let Some(at) = signs.iter().position(|sign| sign.unsigned_abs() != 1) {
                    return refuse(format!("sign {at} is {}, expected 1 or -1", signs[at]));
                }
                // As many as a file says that rows are long.
                let mut own = room(width)?;
                own.extend(signs.iter().map(|sign| f32::from(*sign)));
                Some(own.into_boxed_slice())
            }
        };
        Ok(Hadamard { width, block, factor: inverse_root(block), signs })
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements of a block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Whether signs are applied besides.
    pub fn is_signed(&self) -> bool {
        self.signs.is_some()
    }

    /// `1 / sqrt(block)`, as it is multiplied with.
    #[cfg(feature = "cuda")]
    pub(crate) fn factor(&self) -> f32 {
        self.factor
    }

    /// 1.0 or -1.0 for each element of a row, if there are any.
    pub(crate) fn signs(&self) -> Option<&[f32]> {
        self.signs.as_deref()
    }

    /// `x' = H (s * x)` for each row of `rows`, in place: what goes into a product with folded weights.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] where `rows` are no whole rows.
    pub fn forward(&self, rows: &mut [f32]) -> Result<(), Error> {
        self.check(rows.len())?;
        for row in rows.chunks_exact_mut(self.width.max(1)) {
            self.forward_row(row);
        }
        Ok(())
    }

    /// `x = s * (H z)` for each row of `rows`, in place: what a row of a matrix whose rows are stored transformed (a token's
    /// embedding) stands for.
    ///
    /// # Errors
    /// As for [`Hadamard::forward`].
    pub fn inverse(&self, rows: &mut [f32]) -> Result<(), Error> {
        self.check(rows.len())?;
        for row in rows.chunks_exact_mut(self.width.max(1)) {
            for value in row.iter_mut() {
                *value *= self.factor;
            }
            butterflies(row, self.block);
            self.sign(row);
        }
        Ok(())
    }

    /// Writes the transformed rows of `x`, which are f32, into `out`, which has room for them.
    ///
    /// Refuses values that are not finite at their own place, as a product would: behind the transform they fill a block. Where
    /// such rows are to be set aside, all of their values become NaN.
    pub(crate) fn transform(
        &self,
        x: &InputRows<'_>,
        out: &mut [f32],
        threads: &Threads,
    ) -> Result<(), Error> {
        let width = self.width;
        let needed = x.m.checked_mul(width).ok_or(Error::TooLarge { what: "the activations" })?;
        let found = out.len();
        let Some(out) = out.get_mut(..needed) else {
            return Err(Error::WorkspaceTooSmall { what: "f32 rows", needed, found });
        };
        threads.chunks(out, width, |row, out| {
            x.read(row, out);
            match (out.iter().position(|x| !x.is_finite()), x.non_finite) {
                (None, _) => self.forward_row(out),
                (Some(column), NonFinite::Refuse) => return Err(Error::NonFinite { row, column }),
                (Some(_), NonFinite::Nan) => out.fill(f32::NAN),
            }
            Ok(())
        })
    }

    fn forward_row(&self, row: &mut [f32]) {
        signed_transform(row, self.signs.as_deref(), self.block);
    }

    fn sign(&self, row: &mut [f32]) {
        for (value, sign) in row.iter_mut().zip(self.signs.iter().flatten()) {
            *value *= sign;
        }
    }

    fn check(&self, found: usize) -> Result<(), Error> {
        if found.is_multiple_of(self.width) {
            return Ok(());
        }
        let (what, unit) = ("rows of a Hadamard transform", "values");
        let expected = found.checked_next_multiple_of(self.width).unwrap_or(self.width);
        Err(Error::ShapeMismatch { what, unit, expected, found })
    }

    /// Whether a layer of `k` inputs of this type can apply it.
    pub(crate) fn check_inputs(&self, k: usize, input: DType) -> Result<(), Error> {
        if self.width != k {
            return Err(self.refused(format!("the layer has {k} inputs")));
        }
        if input != DType::F32 {
            return Err(self.refused(format!("it is applied to f32, not to {}", input.name())));
        }
        Ok(())
    }

    /// Whether a layer on this device can apply it.
    ///
    /// # Errors
    /// [`Error::Hadamard`] on a GPU.
    pub fn check_device(&self, device: Device) -> Result<(), Error> {
        if device == Device::CPU {
            return Ok(());
        }
        Err(self.refused(format!("it is applied on the processor only, so there is no kernel on {device}")))
    }

    pub(crate) fn refused(&self, why: String) -> Error {
        Error::Hadamard { width: self.width, block: self.block, why }
    }
}
