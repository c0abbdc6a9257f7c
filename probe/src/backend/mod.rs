//! C++ backends at run time: what there is, in which order it is preferred, validation, loading, swapping.
//!
//! The order of events is fixed by the types: [`validate`] reads files and runs nothing; only what it returns can be
//! loaded, and only if the files are still the same and are those that the loader takes.

mod choose;
mod dependencies;
mod limits;
mod load;
mod mapped;
mod validate;

pub use choose::{Backends, External, Project, State, externals};
pub use dependencies::{Followed, Report, Unfollowed};
pub use limits::{Limits, NotFollowed};
pub use load::{Backend, Function, Slot};
pub use validate::{Requirements, Validated, validate};
