//! Pieces of Rust: doc comments, literals, attributes.

use crate::plan::{enabled, features};
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

/// An f32 literal that reads back as the same bits.
pub(super) fn float(value: f32) -> String {
    if value == f32::INFINITY { "f32::INFINITY".to_string() } else { format!("{value:?}f32") }
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
    let enable = if features.is_empty() {
        String::new()
    } else {
        format!("#[target_feature(enable = \"{features}\")]\n")
    };
    (cfg(variant.isa.arch()), enable)
}
