//! Hashes by which kernels, images and files are known.

use gristmill_spec::Fnv;

/// Of texts, which are kept apart.
pub(crate) fn hash<'t>(parts: impl IntoIterator<Item = &'t str>) -> u64 {
    parts.into_iter().fold(Fnv::EMPTY, |hash, part| hash.with(part.as_bytes()).with(&[0xff])).get()
}
