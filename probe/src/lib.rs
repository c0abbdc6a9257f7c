//! Looks at C++ backends (llama.cpp, bitnet.cpp) from outside.
//!
//! [`discover`] finds libraries and keeps a report of every place it looked at. [`mod@analyze`] reads what a library
//! file defines, without loading it. [`build`] turns both into `cfg` flags and link lines for a build script.
//! [`backend`] validates, loads and swaps libraries at run time.
//!
//! ```
//! use gristmill_probe::{Search, Target, analyze};
//!
//! // Where to look is said; `Search::from_env` also takes the environment and the system's folders.
//! let found = Search::nowhere(Target::host()).run();
//! assert!(found.is_empty());
//!
//! // What no library is, is told with the reason.
//! let refused = analyze(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
//! println!("{}", refused.expect_err("a text file"));
//! ```
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
