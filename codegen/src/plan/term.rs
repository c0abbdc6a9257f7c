//! The terms of weights, and what code calls them.

/// What integers of a run are multiplied with, or what is subtracted then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// The scale.
    Scale,
    /// The minimum.
    Min,
}

impl Term {
    /// The array that holds those of all runs, an argument of kernels.
    pub(crate) fn array(self) -> &'static str {
        match self {
            Term::Scale => "scales",
            Term::Min => "mins",
        }
    }

    /// That of one run.
    pub(crate) fn one(self) -> &'static str {
        match self {
            Term::Scale => "scale",
            Term::Min => "min",
        }
    }
}
