//! The modules of generated code: one for each format, one for each activation format.

use super::listed::{Listed, Listing, variant_ident};
use super::loops::{Loops, Shared, free_name};
use super::serving::serving;
use super::text::{attributes, doc};
use super::{activations, embed, fields, format, lookup, matmul, pack, quantize, scalar};
use crate::Error;
use crate::options::{CudaImages, Options};
use crate::plan::packed::{PackedPlan, packed_plan};
use crate::plan::{FormatPlan, PackPlan, lcm, scalar_k_max};
use gristmill_spec::model::{CpuVariant, Format, Origin, Packing, QuantizeRule, ShapeRules, SpecSet};
use gristmill_spec::vocab::Op;
use std::collections::{BTreeMap, BTreeSet};
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
    let mut errors = Vec::new();
    let mut listed = Vec::new();
    let decode = format::decode(plan);
    let mut body = decode.clone();
    let k_rule = |mut shape: ShapeRules, k_max: u64| {
        shape.k.max = shape.k.max.min(k_max);
        shape.k.multiple_of = lcm(shape.k.multiple_of.max(1), u64::from(format.elements));
        shape
    };
    let strategies = strategy_words(plan);

    let dequantizers: Vec<_> = serving(set, Op::Dequantize, index).collect();
    let embedders: Vec<_> = serving(set, Op::Embed, index).collect();
    let to_values = format::dequantize(plan);
    let dequantize = format!("{decode}{to_values}");
    let mut decoders = BTreeSet::new();
    if !dequantizers.is_empty() {
        let listing = Listing { op: Op::Dequantize, format: index, format_name: name, options };
        for (kernel, order, variant) in dequantizers {
            let ident = format!("dequantize_{}", variant_ident(variant));
            let function = match &variant.body {
                Some(path) => path.clone(),
                None => {
                    body.push_str(&dequantizer(name, variant, &ident));
                    decoders.insert(ident.clone());
                    format!("{name}::{ident}")
                }
            };
            listed.push(listing.entry(
                kernel,
                order,
                variant,
                None,
                k_rule(variant.shape, u64::MAX),
                format!("decode: {strategies}"),
                format!("Code::Dequantize({function})"),
                &dequantize,
            ));
            binding(&mut body, variant, &listed[listed.len() - 1].name);
        }
    }
    if !embedders.is_empty() {
        let text = embed::embed();
        let listing = Listing { op: Op::Embed, format: index, format_name: name, options };
        for (kernel, order, variant) in embedders {
            let ident = format!("embed_{}", variant_ident(variant));
            let function = match &variant.body {
                Some(path) => path.clone(),
                None => {
                    let decoder = format!("dequantize_{}", variant_ident(variant));
                    if decoders.insert(decoder.clone()) {
                        body.push_str(&dequantizer(name, variant, &decoder));
                    }
                    body.push_str(&passing_on(
                        variant,
                        &format!("Rows of `{name}` to f32, f16 or bf16"),
                        Some(&variant.origin),
                        "EmbedFn",
                        &format!("{ident}(src: *const u8, dst: *mut u8, blocks: usize, outer: f32, to: DType) -> Result<(), Fault>"),
                        &format!("embed({decoder}, src, dst, blocks, outer, to)"),
                    ));
                    format!("{name}::{ident}")
                }
            };
            listed.push(listing.entry(
                kernel,
                order,
                variant,
                None,
                k_rule(variant.shape, u64::MAX),
                format!("decode: {strategies}"),
                format!("Code::Embed({function})"),
                &format!("{dequantize}{text}"),
            ));
            binding(&mut body, variant, &listed[listed.len() - 1].name);
        }
        body.push_str(&text);
    }
    if !decoders.is_empty() {
        body.push_str(&to_values);
    }

    let quantize: Vec<_> = serving(set, Op::Quantize, index).collect();
    if !quantize.is_empty() {
        let listing = Listing { op: Op::Quantize, format: index, format_name: name, options };
        for (number, quantizer) in format.quantizers.iter().enumerate() {
            let text = match quantize::quantize(plan, quantizer) {
                Ok(text) => text,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            let quantizer_name = &quantizer.name;
            let outer = text.contains(&format!("fn step_{quantizer_name}("));
            body.push_str(&text);
            for &(kernel, order, variant) in &quantize {
                let ident = format!("quantize_{quantizer_name}_{}", variant_ident(variant));
                let function = match &variant.body {
                    Some(path) => path.clone(),
                    None => {
                        body.push_str(&passing_on(
                            variant,
                            &format!("f32 to blocks of `{name}` by `{quantizer_name}`"),
                            Some(&variant.origin),
                            "QuantizeFn",
                            &format!("{ident}(src: *const f32, dst: *mut u8, blocks: usize, step: Step) -> Result<(), Fault>"),
                            &format!("quantize_{quantizer_name}(src, dst, blocks, step)"),
                        ));
                        format!("{name}::{ident}")
                    }
                };
                let step = if outer {
                    let ident = format!("step_{quantizer_name}_{}", variant_ident(variant));
                    body.push_str(&passing_on(
                        variant,
                        &format!("The step of `{quantizer_name}` for a row or tensor"),
                        None,
                        "StepFn",
                        &format!("{ident}(src: *const f32, len: usize) -> Result<Step, Fault>"),
                        &format!("step_{quantizer_name}(src, len)"),
                    ));
                    format!("Some({name}::{ident})")
                } else {
                    "None".to_string()
                };
                listed.push(listing.entry(
                    kernel,
                    order,
                    variant,
                    Some((number, quantizer_name)),
                    k_rule(variant.shape, u64::MAX),
                    format!("{} over the {}", quantizer_name, if outer { "row or tensor" } else { "block" }),
                    format!("Code::Quantize {{ step: {step}, blocks: {function} }}"),
                    &text,
                ));
                binding(&mut body, variant, &listed[listed.len() - 1].name);
            }
        }
    }

    let matmuls: Vec<_> = serving(set, Op::Matmul, index).collect();
    let listing = Listing { op: Op::Matmul, format: index, format_name: name, options };
    let mut packs: BTreeMap<String, PackPlan<'_>> = BTreeMap::new();
    let mut scalar = false;
    for (kernel, order, variant) in matmuls {
        let source = format!("{}:{}", variant.origin.file, variant.origin.line);
        let ident = format!("matmul_{}", variant_ident(variant));
        let (function, packing, multiple, shape, words, text) = match variant.packing {
            None => {
                let text = scalar::matmul_scalar(plan);
                let function = match &variant.body {
                    Some(path) => path.clone(),
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
                let function = match &variant.body {
                    Some(path) => path.clone(),
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
                 name: {packing:?}, rows: {rows}, tile_k: {tile_k}, tile_bytes: {tile_bytes}, scale_bytes: {scales}, min_bytes: {mins}, runs: {runs}, min: {min}, table: {table},
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
        search =
            if format.quantizers.iter().any(|quantizer| matches!(quantizer.rule, QuantizeRule::Search(_))) {
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
            text: matmul::emit(&resolved),
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

/// `dequantize` compiled for a variant.
fn dequantizer(format: &str, variant: &CpuVariant, ident: &str) -> String {
    passing_on(
        variant,
        &format!("Blocks of `{format}` to f32"),
        Some(&variant.origin),
        "DequantizeFn",
        &format!("{ident}(src: *const u8, dst: *mut f32, blocks: usize, outer: f32) -> Result<(), Fault>"),
        "dequantize(src, dst, blocks, outer)",
    )
}

/// A function compiled for a variant, of the ABI's type `abi`, that passes its arguments on to what all ISAs share.
fn passing_on(
    variant: &CpuVariant,
    what: &str,
    generated: Option<&Origin>,
    abi: &str,
    signature: &str,
    call: &str,
) -> String {
    let (cfg, enable) = attributes(variant);
    let generated = generated.map_or(String::new(), |origin| {
        format!("/// `@generated` by gristmill from {}:{}.\n///\n", origin.file, origin.line)
    });
    format!(
        "/// {what}, compiled for {isa}.
         ///
         {generated}/// # Safety
         ///
         /// As [`{abi}`](gristmill_runtime::abi::{abi}) says; the CPU has the features named.
         {cfg}{enable}pub unsafe fn {signature} {{
             // SAFETY: passed on.
             unsafe {{ {call} }}
         }}\n",
        isa = variant.isa,
    )
}

/// A hand-written body is bound to the variant that names it: `#[variant]` leaves the name behind.
fn binding(body: &mut String, variant: &CpuVariant, name: &str) {
    if let Some(path) = &variant.body {
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
        FieldLayout::Digits { .. } => "base-3 digits by multiplication".to_string(),
    }
}

/// One module for an activation format.
pub(super) fn activation_module(set: &SpecSet, index: usize, options: &Options) -> (String, Vec<Listed>) {
    let format = &set.activations[index];
    let name = &format.name;
    let mut body = activations::emit(format);
    let text = body.clone();
    let mut listed = Vec::new();
    let listing = Listing { op: Op::QuantizeActivations, format: index, format_name: name, options };
    for (kernel, order, variant) in serving(set, Op::QuantizeActivations, index) {
        let ident = format!("quantize_{}", variant_ident(variant));
        let function = match &variant.body {
            Some(path) => path.clone(),
            None => {
                body.push_str(&passing_on(
                    variant,
                    &format!("A row of f32 to `{name}` activations"),
                    Some(&variant.origin),
                    "QuantizeActivationsFn",
                    &format!(
                        "{ident}(
                             x: *const f32, k: usize, unit: usize, unit_padded: usize,
                             q: *mut i8, scales: *mut f32, sums: *mut i32,
                         ) -> Result<(), Fault>"
                    ),
                    "quantize(x, k, unit, unit_padded, q, scales, sums)",
                ));
                format!("activations_{name}::{ident}")
            }
        };
        let mut shape = variant.shape;
        shape.k.multiple_of = lcm(shape.k.multiple_of.max(1), u64::from(format.block.unwrap_or(1)));
        let words = match format.block {
            Some(block) => format!("blocks of {block}"),
            None => "one scale a row".to_string(),
        };
        listed.push(listing.entry(
            kernel,
            order,
            variant,
            None,
            shape,
            words,
            format!("Code::QuantizeActivations({function})"),
            &text,
        ));
        binding(&mut body, variant, &listed[listed.len() - 1].name);
    }
    let text = format!(
        "{}///
         /// `@generated` by gristmill from {}:{}.
         pub mod activations_{name} {{
             use gristmill_runtime::abi::Fault;
             use gristmill_runtime::number;
             {body}
         }}\n",
        doc(&format!("Activations `{name}`: {}", format.doc)),
        format.origin.file,
        format.origin.line,
    );
    (text, listed)
}
