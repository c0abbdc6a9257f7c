//! The plan of a quantizer, by its rule.

use super::{FormatPlan, KMinPlan, RoundingPlan, SearchPlan};
use crate::Error;
use gristmill_spec::model::{QuantizeRule, Quantizer};

/// The plan of a quantizer for processors.
pub(crate) enum QuantizerPlan<'a> {
    Round(RoundingPlan<'a>),
    /// An algorithm, by its name in specs.
    Search(&'static str, SearchPlan<'a>),
}

impl<'a> QuantizerPlan<'a> {
    /// Plans a quantizer of a format.
    ///
    /// # Errors
    /// A format that the quantizer can't fill in, which the checks refuse.
    pub(crate) fn new(plan: &FormatPlan<'a>, quantizer: &'a Quantizer) -> Result<Self, Error> {
        Ok(match &quantizer.rule {
            QuantizeRule::Round(rule) => Self::Round(RoundingPlan::new(plan, rule)?),
            QuantizeRule::Search(search) => Self::Search(search.name(), SearchPlan::new(plan, *search)?),
        })
    }
}

/// The plan of a quantizer for GPUs, where one algorithm is written.
pub(crate) enum CudaQuantizerPlan<'a> {
    Round(RoundingPlan<'a>),
    KMin(KMinPlan<'a>),
}

impl<'a> CudaQuantizerPlan<'a> {
    /// Plans a quantizer of a format.
    ///
    /// # Errors
    /// The same, and what has no CUDA version, which the checks refuse too.
    pub(crate) fn new(plan: &FormatPlan<'a>, quantizer: &'a Quantizer) -> Result<Self, Error> {
        if let Some(reason) = quantizer.not_on_cuda(plan.format) {
            return Err(Error::passed(plan.format, reason));
        }
        match QuantizerPlan::new(plan, quantizer)? {
            QuantizerPlan::Round(rounding) => Ok(Self::Round(rounding)),
            QuantizerPlan::Search(_, SearchPlan::KMin(k_min)) => Ok(Self::KMin(k_min)),
            QuantizerPlan::Search(algorithm, _) => {
                Err(Error::passed(plan.format, format!("`{algorithm}` has no CUDA version")))
            }
        }
    }
}
