//! Finding libraries of llama.cpp, ggml and bitnet.cpp, with a report of where was looked and what was there.
//!
//! The order: the places that variables name; bitnet.cpp's cache folder in the home folder; pkg-config; the
//! system's library folders. The first of these four steps that has a usable library decides, and later ones are
//! not looked at: libraries of two installations would not fit together. A variable that is set is obeyed: if
//! nothing is where it points, nothing is taken from elsewhere.

mod choose;
mod discovery;
mod name;
mod places;
mod search;
mod target;

pub use discovery::{Candidate, Discovery, Found, Library, Place, Verdict};
pub use name::{FileName, Linkage, Role};
#[cfg(feature = "bindgen")]
pub(crate) use places::headers as header_folders;
pub use places::{DIR, LIBDIR, Origin, PATH, VARIABLES};
pub use search::Search;
pub use target::Target;
