//! Quantizers that round: what there is to fill in.

use super::{Decode, FormatPlan};
use crate::Error;
use gristmill_spec::model::{Factor, Field, FieldType, RoundRule, Scalar};

/// A field of floats, and the type to which a quantizer rounds them.
pub(crate) type Rounded<'a> = (&'a Field, Scalar);

/// What a quantizer that rounds fills in: codes, and one scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundingPlan<'a> {
    pub(crate) rule: &'a RoundRule,
    /// A code is its integer and this.
    pub(crate) zero: i32,
    /// The field of the block that holds the scale; none where that stands outside.
    pub(crate) scale: Option<Rounded<'a>>,
}

impl<'a> RoundingPlan<'a> {
    /// Plans `rule` for a format.
    ///
    /// # Errors
    /// A format that rounding can't fill in, which the checks refuse.
    pub(crate) fn new(plan: &FormatPlan<'a>, rule: &'a RoundRule) -> Result<RoundingPlan<'a>, Error> {
        let (format, value) = (plan.format, &plan.format.value);
        let refused =
            || Error::passed(format, "its quantizer rounds to `scale * (code - zero)` with one scale");
        let Decode::Affine { times: 1, zero, .. } = plan.decode() else { return Err(refused()) };
        let scale = match value.scale[..] {
            [Factor::Field(index)] if format.fields[index].count == 1 => {
                Some(rounded(plan, &format.fields[index])?)
            }
            [Factor::Row | Factor::Tensor] => None,
            _ => return Err(refused()),
        };
        if value.unit != 1.0 || !value.add.is_empty() || !value.subtract.is_empty() {
            return Err(refused());
        }
        Ok(RoundingPlan { rule, zero, scale })
    }
}

/// A field to which a quantizer rounds scales.
///
/// # Errors
/// A type that has no nearest number for some, which the checks refuse.
pub(super) fn rounded<'a>(plan: &FormatPlan<'_>, field: &'a Field) -> Result<Rounded<'a>, Error> {
    match field.ty {
        FieldType::Scalar(scalar) if scalar.is_signed() => Ok((field, scalar)),
        _ => Err(Error::passed(plan.format, "its quantizer can store f16, bf16 and f32 scales only")),
    }
}
