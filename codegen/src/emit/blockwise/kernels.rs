//! What the kernels of a format are put into: the text of its module, and what will stand in the registry.

use crate::Error;
use crate::c;
use crate::emit::listed::{Listed, Listing, kernel_name, variant_ident};
use crate::emit::serving::serving;
use crate::emit::text::attributes;
use crate::options::Options;
use crate::plan::{FormatPlan, lcm};
use gristmill_spec::model::{CpuBody, CpuVariant, Kernel, Origin, ShapeRules, SpecSet};
use gristmill_spec::vocab::{Abi, Op};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The kernels of a format, as far as they have been listed.
pub(in crate::emit) struct Kernels<'a> {
    set: &'a SpecSet,
    pub(super) plan: &'a FormatPlan<'a>,
    /// Index of the format.
    index: usize,
    options: &'a Options,
    /// What decodes the format: in front of all kernels, and part of the identity of those that decode.
    pub(super) decode: &'a str,
    /// The plan of decoding in words.
    pub(super) strategies: &'a str,
    /// The module's text.
    pub(in crate::emit) body: String,
    pub(in crate::emit) listed: Vec<Listed>,
    pub(in crate::emit) errors: Vec<Error>,
    /// Decoders that the text has.
    pub(super) decoders: BTreeSet<String>,
}

/// A variant that serves the format: its kernel family, its place there, and itself.
pub(super) type Serving<'a> = (&'a Kernel, usize, &'a CpuVariant);

/// A kernel that was made.
pub(super) struct Made<'k> {
    pub(super) op: Op,
    pub(super) serving: Serving<'k>,
    /// Index and name of the quantizer.
    pub(super) quantizer: Option<(usize, &'k str)>,
    /// The plan in words.
    pub(super) plan: String,
    /// Rust expression of its `Code`.
    pub(super) code: String,
    /// What its identity is made of.
    pub(super) text: &'k str,
}

/// Shape rules of a kernel that takes whole blocks, up to a k.
pub(in crate::emit) fn k_rule(plan: &FormatPlan<'_>, mut shape: ShapeRules, k_max: u64) -> ShapeRules {
    shape.k.max = shape.k.max.min(k_max);
    shape.k.multiple_of = lcm(shape.k.multiple_of.max(1), u64::from(plan.format.elements));
    shape
}

impl<'a> Kernels<'a> {
    /// None yet: the module begins with what decodes the format, of which `decode` is the text and the plan.
    pub(in crate::emit) fn new(
        set: &'a SpecSet,
        plan: &'a FormatPlan<'a>,
        index: usize,
        options: &'a Options,
        (decode, strategies): (&'a str, &'a str),
    ) -> Kernels<'a> {
        let (body, listed, errors, decoders) = (decode.to_string(), Vec::new(), Vec::new(), BTreeSet::new());
        Kernels { set, plan, index, options, decode, strategies, body, listed, errors, decoders }
    }

    /// The variants of an op that serve the format.
    pub(super) fn serving(&self, op: Op) -> Vec<Serving<'a>> {
        serving(self.set, op, self.index).collect()
    }

    /// Name of the format.
    pub(super) fn name(&self) -> &'a str {
        &self.plan.format.name
    }

    /// The path of a variant's function `stem`: what the spec names, or `generated`, added to the module.
    pub(super) fn function(
        &mut self,
        (op, quantizer): (Op, Option<&str>),
        (family, _, variant): Serving<'_>,
        stem: &str,
        generated: impl FnOnce(&mut Self, &str),
    ) -> String {
        let format = self.name();
        let name = kernel_name(&family.name, format, quantizer, variant);
        if let Some(path) = by_hand(&mut self.body, format, op, &name, variant, self.options) {
            return path;
        }
        let ident = format!("{stem}_{}", variant_ident(variant));
        generated(self, &ident);
        format!("{format}::{ident}")
    }

    /// Lists a kernel.
    pub(super) fn push(&mut self, kernel: Made<'_>) {
        let Made { op, serving: (family, order, variant), quantizer, plan, code, text } = kernel;
        let listing = Listing { op, format: self.index, format_name: self.name(), options: self.options };
        let shape = k_rule(self.plan, variant.shape, u64::MAX);
        let listed = listing.entry(family, order, variant, quantizer, shape, plan, code, text);
        binding(&mut self.body, variant, &listed.name);
        self.listed.push(listed);
    }
}

/// A function compiled for a variant, of the signature `abi`, that passes its arguments on to what all ISAs share: to `callee`,
/// behind the arguments `first`.
pub(in crate::emit) fn passing_on(
    variant: &CpuVariant,
    what: &str,
    generated: Option<&Origin>,
    abi: &Abi,
    ident: &str,
    (callee, first): (&str, &[&str]),
) -> String {
    let (cfg, enable) = attributes(variant);
    let generated = generated.map_or(String::new(), |origin| {
        format!("/// `@generated` by gristmill from {}:{}.\n///\n", origin.file, origin.line)
    });
    let parameters: Vec<String> = abi.parameters.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
    let arguments: Vec<&str> =
        first.iter().copied().chain(abi.parameters.iter().map(|(name, _)| *name)).collect();
    format!(
        "/// {what}, compiled for {isa}.
         ///
         {generated}/// # Safety
         ///
         /// As [`{alias}`](gristmill_runtime::abi::{alias}) says; the CPU has the features named.
         {cfg}{enable}pub unsafe fn {ident}({}){} {{
             // SAFETY: passed on.
             unsafe {{ {callee}({}) }}
         }}\n",
        parameters.join(", "),
        abi.output.map_or(String::new(), |output| format!(" -> {output}")),
        arguments.join(", "),
        isa = variant.isa,
        alias = abi.alias,
    )
}

/// The path of a variant's body by hand, if it has one: in Rust the function that the spec names, in C or C++ one of `module`
/// that is added to its text and calls it.
pub(in crate::emit) fn by_hand(
    text: &mut String,
    module: &str,
    op: Op,
    kernel: &str,
    variant: &CpuVariant,
    options: &Options,
) -> Option<String> {
    Some(match variant.body.as_ref()? {
        CpuBody::Rust(path) => path.clone(),
        CpuBody::C(body) => {
            let symbol = c::symbol(&options.package, kernel, body);
            let (cfg, _) = attributes(variant);
            text.push_str(&c::foreign(&op.info().abi, body, &symbol, &cfg));
            format!("{module}::{symbol}")
        }
    })
}

/// A hand-written body in Rust is bound to the variant that names it: `#[variant]` leaves the name behind.
pub(in crate::emit) fn binding(body: &mut String, variant: &CpuVariant, name: &str) {
    if let Some(CpuBody::Rust(path)) = &variant.body {
        let (cfg, _) = attributes(variant);
        let _ = writeln!(
            body,
            "{cfg}const _: () = assert!(
                 gristmill_runtime::registry::same_name({path}::VARIANT, {name:?}),
                 {:?}
             );",
            format!("the function {path} is not marked as the variant {name}")
        );
    }
}
