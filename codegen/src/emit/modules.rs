//! The modules of generated code: one for each format, one for each activation format.

use super::blockwise::{Kernels, binding, by_hand, k_rule, passing_on};
use super::listed::{Listed, Listing, kernel_name, variant_ident};
use super::loops::{Loops, Shared, free_name};
use super::serving::serving;
use super::text::doc;
use super::{activations, blockwise, fields, format, lookup, matmul, pack, prologue, scalar, staged, tiles};
use crate::Error;
use crate::options::{CudaImages, Options};
use crate::plan::packed::{PackedPlan, packed_plan};
use crate::plan::{FormatPlan, PackPlan, lcm, scalar_k_max};
use gristmill_spec::model::{CpuVariant, Format, Packing, SpecSet};
use gristmill_spec::vocab::Op;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One module for a format, with every kernel that serves it.
pub(super) fn format_module(
    set: &SpecSet,
    plan: &FormatPlan<'_>,
    index: usize,
    options: &Options,
    loops: &mut Loops,
) -> Result<(String, Vec<Listed>), Vec<Error>> {
    let format: &Format = plan.format;
    let name = &format.name;
    let decode = format::decode(plan);
    let strategies = strategy_words(plan);
    let mut kernels = Kernels::new(set, plan, index, options, (&decode, &strategies));
    blockwise::list(&mut kernels);
    let k_rule = |shape, k_max| k_rule(plan, shape, k_max);
    let Kernels { mut body, mut listed, mut errors, .. } = kernels;

    let matmuls: Vec<_> = serving(set, Op::Matmul, index).collect();
    let listing = Listing { op: Op::Matmul, format: index, format_name: name, options };
    let mut packs: BTreeMap<String, PackPlan<'_>> = BTreeMap::new();
    let mut scalar = false;
    for (kernel, order, variant) in matmuls {
        let source = format!("{}:{}", variant.origin.file, variant.origin.line);
        let ident = format!("matmul_{}", variant_ident(variant));
        let named = kernel_name(&kernel.name, name, None, variant);
        let mut by_hand = || by_hand(&mut body, name, Op::Matmul, &named, variant, options);
        let (function, packing, multiple, shape, words, text) = match variant.packing {
            None => {
                let text = scalar::matmul_scalar(plan);
                let function = match by_hand() {
                    Some(path) => path,
                    None => {
                        if !scalar {
                            scalar = true;
                            let _ = write!(body, "{text}");
                        }
                        format!("{name}::matmul_scalar")
                    }
                };
                let words = format!("the format's own rows; decode: {strategies}; i32 sums");
                (function, "None".to_string(), 1, k_rule(variant.shape, scalar_k_max(plan)), words, text)
            }
            Some(packing) => {
                let packing = &set.packings[packing];
                let Packed { shape_name, text, words, pack, k_max } = match packed(plan, packing, variant) {
                    Ok(packed) => packed,
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                };
                let multiple = pack.multiple;
                let packed_name = format!("{name}::PACK_{}", pack.ident().to_uppercase());
                packs.entry(pack.ident()).or_insert(pack);
                let function = match by_hand() {
                    Some(path) => path,
                    None => {
                        let module = free_name(loops, &format!("{ident}_{shape_name}"), &text);
                        let shared = loops.entry(module.clone()).or_insert_with(|| Shared {
                            text: text.clone(),
                            formats: Vec::new(),
                            isa: variant.isa,
                            words: words.clone(),
                            source,
                        });
                        shared.formats.push(format!("`{name}`"));
                        format!("{module}::matmul")
                    }
                };
                (
                    function,
                    format!("Some(&{packed_name})"),
                    multiple,
                    k_rule(variant.shape, k_max),
                    words,
                    text,
                )
            }
        };
        listed.push(listing.entry(
            kernel,
            order,
            variant,
            None,
            shape,
            words,
            format!(
                "Code::Matmul {{ run: {function}, packing: {packing}, unit: Unit {{ elements: {}, multiple: {multiple} }} }}",
                plan.unit
            ),
            &format!("{decode}{text}"),
        ));
        binding(&mut body, variant, &listed[listed.len() - 1].name);
    }
    if matches!(options.cuda, CudaImages::Built { .. }) {
        match crate::cuda::packings(set, plan, index) {
            Ok(more) => {
                for pack in more {
                    packs.entry(pack.ident()).or_insert(pack);
                }
            }
            Err(error) => errors.push(error),
        }
    }
    for (ident, pack) in &packs {
        body.push_str(&pack::pack(plan, pack));
        let _ = write!(
            body,
            "/// `{name}` in packing `{packing}`{held}.
             // SAFETY: these facts, the functions and the kernels that read the packing are of one plan.
             pub static PACK_{upper}: PackInfo = unsafe {{ PackInfo::new(PackFacts {{
                 name: {packing:?}, rows: {rows}, tile_k: {tile_k}, tile_bytes: {tile_bytes}, scale_bytes: {scales}, min_bytes: {mins}, runs: {runs}, span: {span},
                 scale_integer_bits: {scale_integer_bits}, min_integer_bits: {min_integer_bits}, flag_bits: {flag_bits}, meaning: {meaning:?}, min: {min}, table: {table},
                 pack: pack_{ident}, unpack: unpack_{ident},
             }}) }};\n",
            packing = pack.packing.name,
            held = match pack.terms.suffix().as_str() {
                "" => String::new(),
                suffix => format!(", scales as {}", suffix.trim_start_matches('_')),
            },
            upper = ident.to_uppercase(),
            rows = pack.packing.rows,
            tile_k = pack.tile.k,
            tile_bytes = pack.tile.bytes,
            scales = if plan.has_scales() { pack.terms.scale.bits() / 8 } else { 0 },
            runs = plan.runs(),
            span = pack.terms.span,
            scale_integer_bits = pack.terms.scale_integers.bits(),
            min_integer_bits = pack.terms.min_integers.bits(),
            flag_bits = pack.terms.flag_bits(),
            meaning = pack.meaning(),
            mins = if plan.offset { pack.terms.min.bits() / 8 } else { 0 },
            min = plan.min(),
            table = pack.table.as_ref().map_or("None".to_string(), |t| format!("Some(&{t:?})")),
        );
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let text = format!(
        "{}///
         /// `@generated` by gristmill from {}:{}.
         pub mod {name} {{
             use gristmill_runtime::abi::{{Fault, MatmulArgs{step}}};
             use gristmill_runtime::number;
             use gristmill_runtime::registry::{{PackFacts, PackInfo}};
             {search}
             use gristmill_runtime::vocab::DType;
             {body}
         }}\n",
        format::module_doc(plan),
        format.origin.file,
        format.origin.line,
        step = if format.quantizers.is_empty() { "" } else { ", Step" },
        search = if format.quantizers.iter().any(|quantizer| quantizer.weighs(format)) {
            "use gristmill_runtime::search;"
        } else {
            ""
        },
    );
    Ok((text, listed))
}

/// A packed variant, planned and written.
struct Packed<'a> {
    shape_name: String,
    text: String,
    words: String,
    pack: PackPlan<'a>,
    k_max: u64,
}

fn packed<'a>(
    plan: &'a FormatPlan<'_>,
    packing: &'a Packing,
    variant: &CpuVariant,
) -> Result<Packed<'a>, Error> {
    Ok(match packed_plan(plan, packing, variant)? {
        PackedPlan::Multiply(resolved) => Packed {
            shape_name: matmul::shape_name(&resolved),
            text: match (&resolved.staged, &resolved.tiles) {
                (Some(staged), _) => staged::emit(&resolved, staged),
                (None, Some(tiles)) => tiles::emit(&resolved, tiles),
                (None, None) => matmul::emit(&resolved),
            },
            words: resolved.describe(),
            k_max: resolved.k_max,
            pack: resolved.pack,
        },
        PackedPlan::Lookup(resolved) => Packed {
            shape_name: lookup::shape_name(&resolved),
            text: lookup::emit(&resolved),
            words: resolved.describe(),
            k_max: resolved.k_max,
            pack: resolved.pack,
        },
    })
}

/// The decode strategies of a format's code field, in words.
fn strategy_words(plan: &FormatPlan<'_>) -> String {
    use gristmill_spec::model::FieldLayout;
    match &plan.format.fields[plan.format.value.code].layout {
        FieldLayout::Bits(slices) => {
            let words: Vec<String> = slices
                .iter()
                .map(|slice| format!("{} of {} bits", fields::Strategy::of(slice).name(), slice.bits))
                .collect();
            words.join(" + ")
        }
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
        let listing = Listing { op, format: index, format_name: name, options };
        for (kernel, order, variant) in serving(set, op, index) {
            let ident = format!("{}_{}", self.callee, variant_ident(variant));
            let named = kernel_name(&kernel.name, name, None, variant);
            let function = by_hand(body, &module, op, &named, variant, options).unwrap_or_else(|| {
                let (origin, abi) = (Some(&variant.origin), &op.info().abi);
                body.push_str(&passing_on(variant, &self.what, origin, abi, &ident, (self.callee, &[])));
                format!("{module}::{ident}")
            });
            let mut shape = variant.shape;
            shape.k.multiple_of = lcm(shape.k.multiple_of.max(1), u64::from(format.block.unwrap_or(1)));
            let code = format!("Code::{}({function})", self.code);
            let entry = listing.entry(kernel, order, variant, None, shape, self.words.clone(), code, text);
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
    if serving(set, Op::Prologue, index).next().is_some() {
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
