//! Emitting: the formats of a set to Rust text, with the registry. A variant for which there is no exact plan is refused, at its place in
//! the spec; all of them are, in one run.

mod activations;
mod blockwise;
mod cuda;
pub mod fields;
mod format;
mod function;
pub(crate) use listed::kernel_words;
pub use listed::{Listed, kernel_name};
pub(crate) use matmul::{constant_word, format_words};
pub(crate) use variants::variants;
mod kernels;
mod listed;
mod lookup;
mod lookup_sums;
mod loops;
mod matmul;
mod matrix;
mod modules;
mod operands;
mod pack;
mod packer;
mod planes;
mod products;
mod prologue;
mod quantize;
mod registry;
mod runs;
mod scalar;
mod search;
mod staged;
mod sums;
mod superblock_terms;
mod superblocks;
mod terms;
mod text;
mod tile_products;
mod tile_runs;
mod tile_steps;
mod tiles;
mod trits;
mod variants;

use crate::Error;
use crate::options::Options;
use crate::plan::FormatPlan;
use gristmill_spec::SourceFile;
use gristmill_spec::model::SpecSet;
use loops::Loops;
use std::fmt::Write;
use text::cfg;

/// What a kernel's id takes of the text of a body by hand.
pub fn body_hash(text: &str) -> u64 {
    crate::hash::hash([text])
}

/// Emits the whole set. Returns unformatted text and what is listed.
pub fn emit(
    set: &SpecSet,
    sources: &[SourceFile],
    options: &Options,
) -> Result<(String, Vec<Listed>), Vec<Error>> {
    let mut errors = Vec::new();
    let plans: Vec<FormatPlan<'_>> = set
        .formats
        .iter()
        .map(|format| FormatPlan::new(format, &set.activations[format.activations]))
        .collect();
    let mut out = String::new();
    let mut listed = Vec::new();
    let mut loops = Loops::new();
    for (index, plan) in plans.iter().enumerate() {
        match modules::format_module(set, plan, index, options, &mut loops) {
            Ok((text, kernels)) => {
                out.push_str(&text);
                listed.extend(kernels);
            }
            Err(more) => errors.extend(more),
        }
    }
    for (name, shared) in &loops {
        let _ = write!(
            out,
            "/// `y = x * w^T` for {isa}: {formats}.
             ///
             /// Plan: {words}.
             ///
             /// `@generated` by gristmill from {source}.
             {cfg}pub mod {name} {{ {text} }}\n",
            isa = shared.isa,
            formats = shared.formats.join(", "),
            words = shared.words,
            source = shared.source,
            cfg = cfg(shared.isa.arch()),
            text = shared.text,
        );
    }
    for index in 0..set.activations.len() {
        let (text, kernels) = modules::activation_module(set, index, options);
        out.push_str(&text);
        listed.extend(kernels);
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let images = cuda::images(set, options, &mut listed)?;
    out.push_str(&images.text);
    out.push_str(&registry::emit(set, &plans, &listed, sources, options, &images));
    Ok((out, listed))
}
