//! Pieces of Rust: doc comments, literals, attributes.

use crate::plan::{enabled, features};
pub(super) use crate::print::rust::float;
use crate::text::when;
use gristmill_spec::model::CpuVariant;
use gristmill_spec::vocab::Arch;
use std::fmt::Write;

/// A doc comment.
pub(super) fn doc(text: &str) -> String {
    text.lines().fold(String::new(), |mut out, line| {
        let _ = writeln!(out, "/// {line}");
        out
    })
}

/// `#[cfg]` for an architecture.
pub(super) fn cfg(arch: Arch) -> String {
    match arch {
        Arch::Any => String::new(),
        Arch::X86 | Arch::Aarch64 => format!("#[cfg(target_arch = \"{}\")]\n", arch.name()),
    }
}

/// `#[cfg]` and `#[target_feature]` of a variant.
pub(super) fn attributes(variant: &CpuVariant) -> (String, String) {
    let features = enabled(&features(variant));
    let enable = when(!features.is_empty(), || format!("#[target_feature(enable = \"{features}\")]\n"));
    (cfg(variant.isa.arch()), enable)
}
