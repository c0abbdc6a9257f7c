//! Quantizers that are named algorithms: their parameters, and what there is to fill in.

use super::rounding::rounded;
use super::{FormatPlan, Rounded};
use crate::Error;
use gristmill_spec::model::{Factor, Field, FieldType, Scalar, Search, Shift, Signs, ValueMap};

/// An algorithm, with its parameters and what it fills in beside the codes. `KSigned` is `k-scan`, or else `k-refine`; `grid-search` is
/// `Shifted` where the codebook is shifted, and `Grid` where it holds magnitudes. Of stored scales `last` is the largest that is a number,
/// and `reach` how many are within two powers of two or one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SearchPlan<'a> {
    MinMax { scale: Rounded<'a>, min: Rounded<'a> },
    Mean { scale: Rounded<'a> },
    KMin(KMinPlan<'a>),
    KSigned { scans: bool, steps: u32, scale: Rounded<'a>, runs: Runs<'a> },
    LevelScan { levels: &'a [i32], steps: u32, scale: Rounded<'a>, runs: Option<Runs<'a>> },
    NearestLevel { levels: &'a [i32], scale: Rounded<'a>, last: u8, reach: u8 },
    Shifted { shift: &'a Shift, steps: u32, scale: Rounded<'a>, runs: Runs<'a> },
    Grid { signs: &'a Signs, steps: u32, scale: Rounded<'a>, runs: Runs<'a> },
    Alternating { steps: u32, scale: Rounded<'a> },
}

/// `k-min`: what it fills in are scales and minima of super-blocks, of one type, and the integers of their runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KMinPlan<'a> {
    pub(crate) rms: bool,
    pub(crate) square: bool,
    pub(crate) start: f32,
    pub(crate) steps: u32,
    pub(crate) scale: Rounded<'a>,
    pub(crate) runs: Runs<'a>,
    pub(crate) min: Rounded<'a>,
    pub(crate) min_runs: Runs<'a>,
}

/// The field of the integers of runs, and what the lowest and the highest count as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs<'a> {
    pub(crate) field: &'a Field,
    pub(crate) low: i64,
    pub(crate) high: i64,
}

impl<'a> SearchPlan<'a> {
    /// Plans an algorithm for a format.
    ///
    /// # Errors
    /// A format of another structure, which the checks refuse.
    pub(crate) fn new(plan: &FormatPlan<'a>, search: Search) -> Result<SearchPlan<'a>, Error> {
        let (format, value) = (plan.format, &plan.format.value);
        let mismatch =
            || Error::passed(format, format!("`{}` is for formats of another structure", search.name()));
        let field = |factors: &[Factor], index: usize| match factors.get(index) {
            Some(Factor::Field(field)) => Ok(&format.fields[*field]),
            Some(Factor::Row | Factor::Tensor) | None => Err(mismatch()),
        };
        let float = |factors: &[Factor]| rounded(plan, field(factors, 0)?);
        let integers = |factors: &[Factor]| {
            let field = field(factors, 1)?;
            let (low, high) = field.range().ok_or_else(mismatch)?;
            Ok(Runs { field, low, high })
        };
        let scale = || float(&value.scale);
        let runs = || integers(&value.scale);
        let levels = || match &value.map {
            ValueMap::Levels(levels) => Ok(levels.as_slice()),
            ValueMap::Affine { .. } | ValueMap::Codebook { .. } => Err(mismatch()),
        };
        Ok(match search {
            Search::MinMax => SearchPlan::MinMax { scale: scale()?, min: float(&value.add)? },
            Search::Mean => SearchPlan::Mean { scale: scale()? },
            Search::KMin { rms, square, start, steps } => {
                let (scale, min) = (scale()?, float(&value.subtract)?);
                if scale.1 != min.1 {
                    return Err(Error::passed(format, "`k-min` needs scale and minimum of one type"));
                }
                let (runs, min_runs) = (runs()?, integers(&value.subtract)?);
                SearchPlan::KMin(KMinPlan { rms, square, start, steps, scale, runs, min, min_runs })
            }
            Search::KRefine { steps } | Search::KScan { steps } => {
                let scans = matches!(search, Search::KScan { .. });
                SearchPlan::KSigned { scans, steps, scale: scale()?, runs: runs()? }
            }
            Search::LevelScan { steps } => {
                let runs = if value.scale.len() > 1 { Some(runs()?) } else { None };
                SearchPlan::LevelScan { levels: levels()?, steps, scale: scale()?, runs }
            }
            Search::NearestLevel => {
                let (levels, field) = (levels()?, field(&value.scale, 0)?);
                let (scalar, last, reach) = match field.ty {
                    FieldType::Scalar(scalar @ Scalar::E8m0Half) => (scalar, 254, 2),
                    FieldType::Scalar(scalar @ Scalar::Ue4m3Half) => (scalar, 0x7e, 8),
                    _ => return Err(mismatch()),
                };
                SearchPlan::NearestLevel { levels, scale: (field, scalar), last, reach }
            }
            Search::GridSearch { steps } => match (&value.shift, &value.signs) {
                (Some(shift), _) => SearchPlan::Shifted { shift, steps, scale: scale()?, runs: runs()? },
                (None, Some(signs)) => SearchPlan::Grid { signs, steps, scale: scale()?, runs: runs()? },
                (None, None) => return Err(mismatch()),
            },
            Search::Alternating { steps } => SearchPlan::Alternating { steps, scale: scale()? },
        })
    }
}
