//! The statistics that steps are made of, in C++.

use gristmill_spec::model::Statistic;

/// Their constants.
pub(super) const STATISTIC: &str = include_str!("../../../cuda/statistic.h");

/// The name of one.
pub(super) fn statistic(of: Statistic) -> &'static str {
    match of {
        Statistic::AbsMax => "ABS_MAX",
        Statistic::SignedAbsMax => "SIGNED_ABS_MAX",
        Statistic::AbsMean => "ABS_MEAN",
    }
}
