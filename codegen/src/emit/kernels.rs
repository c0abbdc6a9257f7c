//! What the kernels of a format, or of an activation format, are put into: the text of its module, and what will stand in the registry.

use crate::Error;
use crate::c;
use crate::emit::listed::{Listed, Listing, Made, Serving, kernel_name};
use crate::emit::text::attributes;
use crate::emit::variants::variants;
use crate::options::Options;
use crate::plan::FormatPlan;
use crate::text::joined;
use gristmill_spec::model::{CpuBody, CpuVariant, Origin, SpecSet};
use gristmill_spec::vocab::{Abi, Op};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The kernels of a format or of an activation format, as far as they have been listed.
pub(super) struct Kernels<'a> {
    pub(super) set: &'a SpecSet,
    /// The module's name.
    module: &'a str,
    listing: Listing<'a>,
    /// The module's text.
    pub(super) body: String,
    pub(super) listed: Vec<Listed>,
    pub(super) errors: Vec<Error>,
    /// Decoders that the text has.
    pub(super) decoders: BTreeSet<String>,
}

/// What decodes a format: in front of all kernels, and part of the identity of those that decode.
pub(super) struct Decoding<'a> {
    pub(super) plan: &'a FormatPlan<'a>,
    pub(super) text: String,
    /// The plan of decoding in words.
    pub(super) words: String,
}

impl<'a> Kernels<'a> {
    /// None yet, in a module that begins with `body`.
    pub(super) fn new(set: &'a SpecSet, module: &'a str, listing: Listing<'a>, body: &str) -> Kernels<'a> {
        let (listed, errors, decoders) = (Vec::new(), Vec::new(), BTreeSet::new());
        Kernels { set, module, listing, body: body.to_string(), listed, errors, decoders }
    }

    /// The variants of an op that serve the format.
    pub(super) fn variants(&self, op: Op) -> Vec<Serving<'a>> {
        variants(self.set, op, self.listing.format).collect()
    }

    /// Name of the format.
    pub(super) fn name(&self) -> &'a str {
        self.listing.format_name
    }

    /// The path of a variant's body by hand, if it has one.
    pub(super) fn by_hand(
        &mut self,
        quantizer: Option<&str>,
        (family, _, variant): Serving<'_>,
    ) -> Option<String> {
        let name = kernel_name(&family.name, self.name(), quantizer, variant);
        by_hand(&mut self.body, self.module, family.op, &name, variant, self.listing.options)
    }

    /// The path of a variant's function `stem`: what the spec names, or `generated`, added to the module.
    pub(super) fn function(
        &mut self,
        quantizer: Option<&str>,
        serving: Serving<'_>,
        stem: &str,
        generated: impl FnOnce(&mut Self, &str),
    ) -> String {
        self.by_hand(quantizer, serving).unwrap_or_else(|| {
            let ident = format!("{stem}_{}", serving.2.ident());
            generated(self, &ident);
            format!("{}::{ident}", self.module)
        })
    }

    /// Adds `ident`, what an op does compiled for a variant, which passes its arguments on to `callee`, behind the arguments `first`.
    pub(super) fn pass_on(
        &mut self,
        op: Op,
        variant: &CpuVariant,
        what: &str,
        ident: &str,
        callee: (&str, &[&str]),
    ) {
        let text = passing_on(variant, what, Some(&variant.origin), &op.info().abi, ident, callee);
        self.body.push_str(&text);
    }

    /// Lists a kernel.
    pub(super) fn push(&mut self, kernel: Made<'_>) {
        let (_, _, variant) = kernel.serving;
        let listed = self.listing.entry(kernel);
        binding(&mut self.body, variant, &listed.name);
        self.listed.push(listed);
    }
}

/// A function compiled for a variant, of the signature `abi`, that passes its arguments on to what all ISAs share: to `callee`,
/// behind the arguments `first`.
pub(super) fn passing_on(
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
    let parameters = joined(abi.parameters.iter().map(|(name, ty)| format!("{name}: {ty}")), ", ");
    let arguments: Vec<&str> =
        first.iter().copied().chain(abi.parameters.iter().map(|(name, _)| *name)).collect();
    format!(
        "/// {what}, compiled for {isa}.
         ///
         {generated}/// # Safety
         ///
         /// As `abi::{alias}` of the runtime says; the CPU has the features named.
         {cfg}{enable}pub unsafe fn {ident}({}){} {{
             // SAFETY: passed on.
             unsafe {{ {callee}({}) }}
         }}\n",
        parameters,
        abi.output.map_or(String::new(), |output| format!(" -> {output}")),
        arguments.join(", "),
        isa = variant.isa,
        alias = abi.alias,
    )
}

/// The path of a variant's body by hand, if it has one: in Rust the function that the spec names, in C or C++ one of `module`
/// that is added to its text and calls it.
fn by_hand(
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
fn binding(body: &mut String, variant: &CpuVariant, name: &str) {
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
