//! Memory itself: how it is taken, on which NUMA nodes it lies, and whether a file that is mapped is still the one of its path.

pub(crate) mod aligned;
pub(crate) mod homes;
pub(crate) mod placement;
pub(crate) mod prefetch;
// These two are for the packages that read files and libraries; not an interface.
#[doc(hidden)]
pub mod room;
#[doc(hidden)]
pub mod same_file;
