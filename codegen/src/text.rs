//! Pieces of emitted text, put together.

use std::fmt::Display;

/// The text where it is used, else nothing.
pub(crate) fn when<T: Into<String>>(used: bool, text: impl FnOnce() -> T) -> String {
    if used { text().into() } else { String::new() }
}

/// Rust for an option of what is Rust already.
pub(crate) fn option<T: Display>(of: Option<T>) -> String {
    of.map_or("None".to_string(), |of| format!("Some({of})"))
}

/// Pieces, with something between them.
pub(crate) fn joined<T: Display>(pieces: impl IntoIterator<Item = T>, between: &str) -> String {
    pieces.into_iter().map(|piece| piece.to_string()).collect::<Vec<_>>().join(between)
}
