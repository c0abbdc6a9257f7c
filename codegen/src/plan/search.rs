//! Quantizers that are named algorithms: the fields that there are to fill in.

use super::{FormatPlan, rounded_to};
use crate::Error;
use gristmill_spec::model::{Factor, Field, Scalar, Search};

/// What an algorithm fills in. The checks have proven that the format has the structure for it, so what is looked for is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchPlan<'a> {
    pub(crate) plan: &'a FormatPlan<'a>,
    pub(crate) search: Search,
}

/// `k-min`: its parameters, and what it fills in, which are scales and minima of super-blocks, of one type, and the integers of their
/// runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KMinPlan<'a> {
    pub(crate) rms: bool,
    pub(crate) square: bool,
    pub(crate) start: f32,
    pub(crate) steps: u32,
    pub(crate) codes: &'a Field,
    /// The largest code, and the largest integers of runs.
    pub(crate) top: f32,
    pub(crate) run_top: f32,
    pub(crate) min_top: f32,
    pub(crate) scalar: Scalar,
    pub(crate) scale: &'a Field,
    pub(crate) run_scales: &'a Field,
    pub(crate) min: &'a Field,
    pub(crate) run_mins: &'a Field,
}

impl<'a> SearchPlan<'a> {
    /// A format of another structure, which the checks refuse.
    pub(crate) fn mismatch(&self) -> Error {
        let name = self.search.name();
        Error::passed(self.plan.format, format!("`{name}` is for formats of another structure"))
    }

    /// The field of codes.
    pub(crate) fn codes(&self) -> &'a Field {
        &self.plan.format.fields[self.plan.format.value.code]
    }

    /// The largest code.
    pub(crate) fn top(&self) -> i32 {
        (1 << self.plan.code_bits) - 1
    }

    fn field(&self, factors: &[Factor], index: usize) -> Result<&'a Field, Error> {
        match factors.get(index) {
            Some(Factor::Field(field)) => Ok(&self.plan.format.fields[*field]),
            Some(Factor::Row | Factor::Tensor) | None => Err(self.mismatch()),
        }
    }

    /// What the lowest and the highest integer of a field of integers count as.
    pub(crate) fn range(&self, field: &Field) -> Result<(i64, i64), Error> {
        field.range().ok_or_else(|| self.mismatch())
    }

    /// The scale of the block, or of its super-blocks, or of its runs.
    pub(crate) fn scale(&self) -> Result<&'a Field, Error> {
        self.field(&self.plan.format.value.scale, 0)
    }

    /// The integers of runs.
    pub(crate) fn run_scales(&self) -> Result<&'a Field, Error> {
        self.field(&self.plan.format.value.scale, 1)
    }

    /// What is added after scaling.
    pub(crate) fn added(&self) -> Result<&'a Field, Error> {
        self.field(&self.plan.format.value.add, 0)
    }

    /// The plan of `k-min`.
    pub(crate) fn k_min(&self) -> Result<KMinPlan<'a>, Error> {
        let Search::KMin { rms, square, start, steps } = self.search else { return Err(self.mismatch()) };
        let subtract = &self.plan.format.value.subtract;
        let (scale, run_scales) = (self.scale()?, self.run_scales()?);
        let (min, run_mins) = (self.field(subtract, 0)?, self.field(subtract, 1)?);
        let scalar = rounded_to(self.plan, scale)?;
        if rounded_to(self.plan, min)? != scalar {
            return Err(Error::passed(self.plan.format, "`k-min` needs scale and minimum of one type"));
        }
        let largest = |field| self.range(field).map(|(_, high)| high as f32);
        Ok(KMinPlan {
            rms,
            square,
            start,
            steps,
            codes: self.codes(),
            top: self.top() as f32,
            run_top: largest(run_scales)?,
            min_top: largest(run_mins)?,
            scalar,
            scale,
            run_scales,
            min,
            run_mins,
        })
    }
}
