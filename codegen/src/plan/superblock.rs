//! Super-blocks: runs whose scales are integers times a number that they share.
//!
//! Where a format's scale is a product of fields that many runs share and an integer field of its runs (and its minima
//! likewise), the integers are multiplied into the integer sums of their runs, so that f32 arithmetic happens once for a
//! super-block, and a packing holds a byte for each run, or half of one, beside one number for all of them.

use gristmill_spec::model::{Activations, Factor, FieldType, Format, Scalar};

/// A term of the weights: fields whose product a super-block shares, times an integer of each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTerm {
    /// Fields whose product (with the constant factor) is the super-block's.
    pub shared: Vec<usize>,
    /// The field of the runs' integers.
    pub integer: usize,
    /// Their largest magnitude.
    pub most: u32,
    /// The smallest and the largest of them.
    pub range: (i32, i32),
    /// All of them are odd.
    pub is_odd: bool,
}

/// Runs whose integer sums are added up before anything is rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperBlock {
    /// Runs of a super-block; even.
    pub runs: u32,
    /// The scale.
    pub scale: RunTerm,
    /// What is subtracted, where something is (or added, with the other sign).
    pub min: Option<RunTerm>,
}

/// Whether an i16 holds the sum of so many activations: that of 256, each -128, is -32768.
pub(super) fn sum_fits_i16(activations: u32) -> bool {
    128 * u64::from(activations) <= 1 << 15
}

impl SuperBlock {
    /// The super-blocks of a format with `groups` runs to a block, whose values lie in `values` and whose activations share
    /// a scale as `activations` says; none where nothing would be gained or the sums could leave 32 bits.
    pub(super) fn of(
        format: &Format,
        activations: &Activations,
        groups: u32,
        values: (i32, i32),
    ) -> Option<SuperBlock> {
        let value = &format.value;
        let run = format.elements / groups;
        let scale = RunTerm::of(format, &value.scale, groups)?;
        let min = match (value.add.is_empty(), value.subtract.is_empty()) {
            (true, true) => None,
            (false, true) => Some(RunTerm::of(format, &value.add, groups)?),
            (true, false) => Some(RunTerm::of(format, &value.subtract, groups)?),
            (false, false) => return None,
        };
        // The constant is multiplied into the floating-point factor instead of the product: the same number, as long as
        // neither is so small that it is rounded.
        let normal = |&field: &usize| {
            matches!(format.fields[field].ty, FieldType::Scalar(Scalar::F16 | Scalar::Ue4m3Half))
        };
        if value.unit != 1.0 && !(scale.shared.len() == 1 && scale.shared.iter().all(normal)) {
            return None;
        }
        let extents = || {
            let shared = scale.shared.iter().chain(min.iter().flat_map(|min| &min.shared));
            shared.map(|&field| format.elements / format.fields[field].count)
        };
        let shared = extents().min().unwrap_or(format.elements);
        let elements = activations.block.map_or(shared, |block| block.min(shared));
        let whole = extents().all(|extent| extent.is_multiple_of(elements));
        if !elements.is_multiple_of(2 * run)
            || !format.elements.is_multiple_of(elements)
            || activations.block.is_some_and(|block| !block.is_multiple_of(elements))
            || !whole
        {
            return None;
        }
        let weight = u64::from(values.0.unsigned_abs().max(values.1.unsigned_abs()));
        let worst = |weight: u64, most: u32| 128 * u64::from(elements) * weight * u64::from(most);
        let limit = i32::MAX as u64;
        // Sums of activations go through the minima as i16.
        let exact = worst(weight, scale.most) <= limit
            && min.as_ref().is_none_or(|min| sum_fits_i16(run) && worst(1, min.most) <= limit);
        exact.then_some(SuperBlock { runs: elements / run, scale, min })
    }

    /// The least and the greatest of the products of values in `values` with the integers of runs, and 0.
    pub(super) fn products(&self, values: (i32, i32)) -> (i64, i64) {
        let (least, most) = self.scale.range;
        let of = |value: i32| [i64::from(value) * i64::from(least), i64::from(value) * i64::from(most)];
        let products = [of(values.0), of(values.1)];
        let all = || products.as_flattened().iter().copied().chain([0]);
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }

    /// Whether all products of `values` with the integers of runs are odd.
    pub(super) fn products_are_odd(&self, values: &[i32]) -> bool {
        let odd = |value: i32| value % 2 != 0;
        self.scale.is_odd && values.iter().all(|value| odd(*value))
    }
}

impl RunTerm {
    /// The term of some factors, if the last field holds the integers of `groups` runs: in this order the product is rounded
    /// as it is run by run.
    fn of(format: &Format, factors: &[Factor], groups: u32) -> Option<RunTerm> {
        let mut shared = Vec::new();
        for factor in factors {
            match factor {
                Factor::Field(field) => shared.push(*field),
                // 1 in a packing, and multiplied by at the end.
                Factor::Row | Factor::Tensor => {}
            }
        }
        let integer = shared.pop()?;
        let field = &format.fields[integer];
        let (one, other) = field.range()?;
        let (low, high) = (one.min(other), one.max(other));
        let fits = low >= i64::from(i8::MIN) && high <= i64::from(i8::MAX);
        let most = low.unsigned_abs().max(high.unsigned_abs()) as u32;
        (groups.is_multiple_of(field.count) && !shared.is_empty() && fits).then_some(RunTerm {
            shared,
            integer,
            most,
            range: (low as i32, high as i32),
            is_odd: field.times % 2 == 0 && low % 2 != 0,
        })
    }
}
