//! The modules of generated code: one for each format, one for each activation format.

use super::kernels::{Decoding, Kernels};
use super::listed::{Limits, Listed, Listing, Made};
use super::loops::Loops;
use super::text::doc;
use super::{activations, blockwise, fields, format, pack, products, prologue};
use crate::Error;
use crate::options::{CudaImages, Options};
use crate::plan::FormatPlan;
use crate::text::joined;
use gristmill_spec::model::{SpecSet, activations_module};
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
    let listing = Listing { format: index, format_name: &format.name, elements: format.elements, options };
    let decoding = Decoding { plan, text: format::decode(plan), words: strategy_words(plan) };
    let mut kernels = Kernels::new(set, &format.name, listing, &decoding.text);
    blockwise::list(&mut kernels, &decoding);
    let mut packs = products::list(&mut kernels, &decoding, loops);
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

/// Lists the kernels of an op of an activation format, which pass their arguments on to `callee`: what is computed, the plan in words, and
/// the text that their identity is made of.
fn list(kernels: &mut Kernels<'_>, op: Op, callee: &str, [what, words, text]: [&str; 3]) {
    for serving in kernels.variants(op) {
        let function = kernels.function(None, serving, callee, |kernels, ident| {
            kernels.pass_on(op, serving.2, what, ident, (callee, &[]));
        });
        let (plan, code) = (words.to_string(), format!("Code::{op:?}({function})"));
        kernels.push(Made { serving, quantizer: None, plan, code, text, limits: Limits::NONE });
    }
}

/// One module for an activation format.
pub(super) fn activation_module(set: &SpecSet, index: usize, options: &Options) -> (String, Vec<Listed>) {
    let format = &set.activations[index];
    let name = &format.name;
    let (module, elements) = (activations_module(name), format.block.unwrap_or(1));
    let listing = Listing { format: index, format_name: name, elements, options };
    let text = activations::emit(format);
    let mut kernels = Kernels::new(set, &module, listing, &text);
    let words = match format.block {
        Some(block) => format!("blocks of {block}"),
        None => "one scale a row".to_string(),
    };
    let what = format!("A row of f32 to `{name}` activations");
    list(&mut kernels, Op::QuantizeActivations, "quantize", [&what, &words, &text]);
    let mut uses = "";
    if !kernels.variants(Op::Prologue).is_empty() {
        let prologue = prologue::emit(format);
        kernels.body.push_str(&prologue);
        let steps: Vec<&str> = format.prologue.iter().map(|step| step.name()).collect();
        let what = format!("A row of f32 through the prologue of `{name}` activations");
        let words = format!("{}; {words}", steps.join(", "));
        list(&mut kernels, Op::Prologue, "prologue", [&what, &words, &(prologue + &text)]);
        uses = "use gristmill_runtime::abi::PrologueArgs;\nuse gristmill_runtime::prologue::steps;\n";
    }
    let Kernels { body, listed, .. } = kernels;
    let text = format!(
        "{}///
         /// `@generated` by gristmill from {}:{}.
         pub mod {module} {{
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
