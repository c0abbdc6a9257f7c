//! Looks at C++ backends (llama.cpp, bitnet.cpp) from outside.
//!
//! [`discover`] finds libraries and keeps a report of every place it looked at. [`mod@analyze`] reads what a library
//! file defines, without loading it. [`build`] turns both into `cfg` flags and link lines for a build script.
//! [`backend`] validates, loads and swaps libraries at run time.
//!
//! Nothing here runs code of a library before [`backend::validate`] accepted it.

pub mod analyze;
pub mod backend;
pub mod build;
pub mod discover;
pub mod error;
pub mod families;
mod printable;
pub mod symbols;

pub use analyze::{Analysis, Arch, Container, Kind, analyze};
pub use discover::{Discovery, Search, Target};
pub use error::Error;
pub use families::{Device, Evidence, Family};
pub use printable::{printable, printable_path};
pub use symbols::Group;
