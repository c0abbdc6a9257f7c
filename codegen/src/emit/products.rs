//! The products of a format: the scalar one over its own rows, and those that read packings, whose loops formats share.

use super::kernels::{Decoding, Kernels};
use super::listed::{Limits, Made, Serving};
use super::loops::{Loops, Shared, free_name};
use super::{lookup, matmul, scalar, staged, tiles};
use crate::plan::packed::{PackedPlan, packed_plan};
use crate::plan::{FormatPlan, PackPlan, scalar_k_max};
use gristmill_spec::vocab::Op;
use std::collections::BTreeMap;

/// Adds the kernels of a format, and their loops to those that formats share; the packings that they read, by identifier.
pub(super) fn list<'a>(
    kernels: &mut Kernels<'a>,
    decoding: &Decoding<'a>,
    loops: &mut Loops,
) -> BTreeMap<String, PackPlan<'a>> {
    let mut packs = BTreeMap::new();
    let mut scalar = None;
    for serving in kernels.variants(Op::Matmul) {
        let (_, _, variant) = serving;
        match variant.packing {
            None => over_own_rows(kernels, decoding, serving, &mut scalar),
            Some(packing) => match packed_plan(decoding.plan, &kernels.set.packings[packing], variant) {
                Ok(planned) => {
                    let packed = packed(planned);
                    over_panels(kernels, decoding, serving, &packed, loops);
                    packs.entry(packed.pack.ident()).or_insert(packed.pack);
                }
                Err(error) => kernels.errors.push(error),
            },
        }
    }
    packs
}

/// Lists the scalar product; `generated` is its path, once the module has it.
fn over_own_rows(
    kernels: &mut Kernels<'_>,
    decoding: &Decoding<'_>,
    serving: Serving<'_>,
    generated: &mut Option<String>,
) {
    let plan = decoding.plan;
    let text = scalar::matmul_scalar(plan);
    let by_hand = kernels.by_hand(None, serving);
    let function = by_hand.unwrap_or_else(|| {
        let add = || {
            kernels.body.push_str(&text);
            format!("{}::matmul_scalar", plan.format.name)
        };
        generated.get_or_insert_with(add).clone()
    });
    let words = format!("the format's own rows; decode: {}; i32 sums", decoding.words);
    let limits = Limits { k_max: scalar_k_max(plan), ..Limits::NONE };
    push(kernels, decoding, serving, &text, words, code(plan, &function, "None", 1), limits);
}

/// Lists a product over panels of a packing.
fn over_panels(
    kernels: &mut Kernels<'_>,
    decoding: &Decoding<'_>,
    serving: Serving<'_>,
    packed: &Packed<'_>,
    loops: &mut Loops,
) {
    let ((_, _, variant), name) = (serving, kernels.name());
    let Packed { shape_name, text, words, pack, limits } = packed;
    let function = kernels.by_hand(None, serving).unwrap_or_else(|| {
        let module =
            free_name(loops, &kernels.set.formats, &format!("matmul_{}_{shape_name}", variant.ident()), text);
        let shared = loops.entry(module.clone()).or_insert_with(|| Shared {
            text: text.clone(),
            formats: Vec::new(),
            isa: variant.isa,
            words: words.clone(),
            source: format!("{}:{}", variant.origin.file, variant.origin.line),
        });
        shared.formats.push(format!("`{name}`"));
        format!("{module}::matmul")
    });
    let packing = format!("Some(&{name}::PACK_{})", pack.ident().to_uppercase());
    let code = code(decoding.plan, &function, &packing, pack.multiple);
    push(kernels, decoding, serving, text, words.clone(), code, *limits);
}

/// Rust expression of a product's `Code`.
fn code(plan: &FormatPlan<'_>, function: &str, packing: &str, multiple: u32) -> String {
    format!(
        "Code::Matmul {{ run: {function}, packing: {packing}, unit: Unit {{ elements: {}, multiple: {multiple} }} }}",
        plan.k_group
    )
}

fn push(
    kernels: &mut Kernels<'_>,
    decoding: &Decoding<'_>,
    serving: Serving<'_>,
    text: &str,
    plan: String,
    code: String,
    limits: Limits,
) {
    let text = format!("{}{text}", decoding.text);
    kernels.push(Made { serving, quantizer: None, plan, code, text: &text, limits });
}

/// A packed variant, planned and written.
struct Packed<'a> {
    shape_name: String,
    text: String,
    words: String,
    pack: PackPlan<'a>,
    limits: Limits,
}

fn packed(planned: PackedPlan<'_>) -> Packed<'_> {
    match planned {
        PackedPlan::Multiply(resolved) => Packed {
            shape_name: matmul::shape_name(&resolved),
            text: match (&resolved.staged, &resolved.tiles) {
                (Some(staged), _) => staged::emit(&resolved, staged),
                (None, Some(tiles)) => tiles::emit(&resolved, tiles),
                (None, None) => matmul::emit(&resolved),
            },
            words: resolved.describe(),
            limits: Limits { m_min: resolved.least_tokens(), k_max: resolved.k_max },
            pack: resolved.pack,
        },
        PackedPlan::Lookup(resolved) => Packed {
            shape_name: lookup::shape_name(&resolved),
            text: lookup::emit(&resolved),
            words: resolved.describe(),
            limits: Limits { k_max: resolved.k_max, ..Limits::NONE },
            pack: resolved.pack,
        },
    }
}
