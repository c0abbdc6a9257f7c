//! C++ backends at run time: what there is, in which order it is preferred, validation, loading, swapping.
//!
//! The order of events is fixed by the types: [`validate`] reads files and runs nothing; only what it returns can be
//! loaded, and only if the file is still the same.

mod choose;
mod load;
mod validate;

pub use choose::{Backends, External, Project, State, externals};
pub use load::{Backend, Function, Slot};
pub use validate::{Requirements, Validated, validate};
