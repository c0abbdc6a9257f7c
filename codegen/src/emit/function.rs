//! Functions of generated modules, and the constants in front of them.

use super::text::doc;
use std::fmt::Display;

/// A function that is unsafe to call, compiled for a variant's features.
pub(super) struct Function<'a> {
    /// What it does.
    pub(super) doc: &'a str,
    /// What its callers answer for.
    pub(super) safety: &'a str,
    pub(super) features: &'a str,
    /// From `unsafe fn` to what it gives.
    pub(super) declaration: &'a str,
}

impl Function<'_> {
    /// With its body.
    pub(super) fn with(&self, body: &str) -> String {
        let Function { features, declaration, .. } = self;
        format!(
            "{}///\n/// # Safety\n///\n{}#[target_feature(enable = \"{features}\")]\n{declaration} {{\n{body}\n}}\n",
            doc(self.doc),
            doc(self.safety),
        )
    }

    /// With a body behind `items` that is unsafe from beginning to end, for the reason `why`.
    pub(super) fn with_unsafe(&self, items: &str, why: &str, body: &str) -> String {
        self.with(&format!("{items}\n// SAFETY: of the whole function: {why}.\nunsafe {{ {body} }}"))
    }
}

/// Constants of a module: name, value and what it is.
pub(super) fn constants(all: &[(&str, &dyn Display, &str)]) -> String {
    all.iter().map(|(name, value, what)| format!("/// {what}\nconst {name}: usize = {value};\n")).collect()
}

/// What every module of a product over panels brings into scope: `module` has the primitives of its ISA, `units` those beside them.
pub(super) fn imports(units: &[&str], module: &str) -> String {
    let units: String = units.iter().map(|unit| format!("use gristmill_runtime::simd::{unit};\n")).collect();
    format!(
        "use gristmill_runtime::abi::MatmulArgs;
         {units}use gristmill_runtime::simd::{module}::{{self as simd, LANES}};\n"
    )
}
