//! The modules of generated code: one for each format, one for each activation format.

use super::kernels::{Kernels, binding, by_hand, passing_on};
use super::listed::{Limits, Listed, Listing, Made, kernel_name, variant_ident};
use super::loops::Loops;
use super::text::doc;
use super::variants::variants;
use super::{activations, blockwise, fields, format, pack, products, prologue};
use crate::Error;
use crate::options::{CudaImages, Options};
use crate::plan::FormatPlan;
use crate::text::joined;
use gristmill_spec::model::SpecSet;
use gristmill_spec::vocab::Op;

/// One module for a format, with every kernel that serves it.
pub(super) fn format_module(
    set: &SpecSet,
    plan: &FormatPlan<'_>,
    index: usize,
    options: &Options,
    loops: &mut Loops,
) -> Result<(String, Vec<Listed>), Vec<Error>> {
    let format = plan.format;
    let (decode, strategies) = (format::decode(plan), strategy_words(plan));
    let mut kernels = Kernels::new(set, plan, index, options, (&decode, &strategies));
    blockwise::list(&mut kernels);
    let mut packs = products::list(&mut kernels, loops);
    if matches!(options.cuda, CudaImages::Built { .. }) {
        match crate::cuda::packings(set, plan, index) {
            Ok(more) => more.into_iter().for_each(|pack| {
                packs.entry(pack.ident()).or_insert(pack);
            }),
            Err(error) => kernels.errors.push(error),
        }
    }
    let Kernels { mut body, listed, errors, .. } = kernels;
    if !errors.is_empty() {
        return Err(errors);
    }
    for pack in packs.values() {
        body.push_str(&pack::pack(plan, pack));
    }
    let text = format!(
        "{}///
         /// `@generated` by gristmill from {}:{}.
         pub mod {} {{
             use gristmill_runtime::abi::{{Fault, MatmulArgs{step}}};
             use gristmill_runtime::number;
             use gristmill_runtime::registry::{{PackFacts, PackInfo}};
             {search}
             use gristmill_runtime::vocab::DType;
             {body}
         }}\n",
        doc(&format!("`{}`: {}", format.name, format.doc)),
        format.origin.file,
        format.origin.line,
        format.name,
        step = if format.quantizers.is_empty() { "" } else { ", Step" },
        search = match format.quantizers.iter().any(|quantizer| quantizer.weighs(format)) {
            true => "use gristmill_runtime::search;",
            false => "",
        },
    );
    Ok((text, listed))
}

/// The decode strategies of a format's code field, in words.
fn strategy_words(plan: &FormatPlan<'_>) -> String {
    use gristmill_spec::model::FieldLayout;
    match &plan.format.fields[plan.format.value.code].layout {
        FieldLayout::Bits(slices) => joined(
            slices
                .iter()
                .map(|slice| format!("{} of {} bits", fields::Strategy::of(slice).name(), slice.bits)),
            " + ",
        ),
        FieldLayout::Digits { radix, .. } => format!("base-{} digits by multiplication", radix.base()),
    }
}

/// The kernels of an op that an activation format has of its own.
struct Own {
    op: Op,
    /// What every variant passes its arguments on to.
    callee: &'static str,
    /// Word of the registry's `Code`.
    code: &'static str,
    /// What is computed.
    what: String,
    /// The plan.
    words: String,
}

impl Own {
    /// Adds the kernels to the module's text and to the list; `text` is what their identity is made of.
    fn list(
        &self,
        set: &SpecSet,
        index: usize,
        text: &str,
        body: &mut String,
        listed: &mut Vec<Listed>,
        options: &Options,
    ) {
        let format = &set.activations[index];
        let (name, op) = (&format.name, self.op);
        let module = format!("activations_{name}");
        let elements = format.block.unwrap_or(1);
        let listing = Listing { format: index, format_name: name, elements, options };
        for serving @ (kernel, _, variant) in variants(set, op, index) {
            let ident = format!("{}_{}", self.callee, variant_ident(variant));
            let named = kernel_name(&kernel.name, name, None, variant);
            let function = by_hand(body, &module, op, &named, variant, options).unwrap_or_else(|| {
                let (origin, abi) = (Some(&variant.origin), &op.info().abi);
                body.push_str(&passing_on(variant, &self.what, origin, abi, &ident, (self.callee, &[])));
                format!("{module}::{ident}")
            });
            let code = format!("Code::{}({function})", self.code);
            let plan = self.words.clone();
            let entry =
                listing.entry(Made { serving, quantizer: None, plan, code, text, limits: Limits::NONE });
            binding(body, variant, &entry.name);
            listed.push(entry);
        }
    }
}

/// One module for an activation format.
pub(super) fn activation_module(set: &SpecSet, index: usize, options: &Options) -> (String, Vec<Listed>) {
    let format = &set.activations[index];
    let name = &format.name;
    let mut body = activations::emit(format);
    let text = body.clone();
    let mut listed = Vec::new();
    let words = match format.block {
        Some(block) => format!("blocks of {block}"),
        None => "one scale a row".to_string(),
    };
    let what = format!("A row of f32 to `{name}` activations");
    let own =
        Own { op: Op::QuantizeActivations, callee: "quantize", code: "QuantizeActivations", what, words };
    own.list(set, index, &text, &mut body, &mut listed, options);
    let mut uses = "";
    if variants(set, Op::Prologue, index).next().is_some() {
        let prologue = prologue::emit(format);
        body.push_str(&prologue);
        let steps: Vec<&str> = format.prologue.iter().map(|step| step.name()).collect();
        let what = format!("A row of f32 through the prologue of `{name}` activations");
        let words = format!("{}; {}", steps.join(", "), own.words);
        let own = Own { op: Op::Prologue, callee: "prologue", code: "Prologue", what, words };
        own.list(set, index, &(prologue + &text), &mut body, &mut listed, options);
        uses = "use gristmill_runtime::abi::PrologueArgs;\nuse gristmill_runtime::prologue::steps;\n";
    }
    let text = format!(
        "{}///
         /// `@generated` by gristmill from {}:{}.
         pub mod activations_{name} {{
             use gristmill_runtime::abi::Fault;
             use gristmill_runtime::number;
             {uses}{body}
         }}\n",
        doc(&format!("Activations `{name}`: {}", format.doc)),
        format.origin.file,
        format.origin.line,
    );
    (text, listed)
}
