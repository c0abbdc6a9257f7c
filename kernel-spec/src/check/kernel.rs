//! Kernels: what each family serves, what its variants may say, and that no two of them are in each
//! other's way.

use super::body;
use super::scope::{Named, Scope, at, repeated, resolve, served_index};
use super::value::map_range;
use crate::model::{Activations, CpuVariant, Format, Kernel, ShapeRules, TileCode, ValueMap};
use crate::parse::kernel::{RawKernel, RawVariant};
use crate::toml_walk::{At, Span};
use crate::vocab::{Arch, DType, Feature, FeatureSet, Isa, Op, Serves, Strategy, Unpacked};
use std::collections::BTreeMap;

/// More variants than anyone lists by hand; keeps pairwise checks cheap.
const MAX_VARIANTS: usize = 256;

/// Every family in the order given; `None` for those with errors.
pub(super) fn check(
    raws: &[RawKernel<'_>],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) -> Vec<Option<Kernel>> {
    let families: Vec<Option<Kernel>> = raws.iter().map(|raw| family(raw, formats, scope)).collect();
    rivals(raws, &families);
    references(raws, &families, formats, scope);
    families
}

fn family(raw: &RawKernel<'_>, formats: &Named<Format>, scope: &Scope<'_>) -> Option<Kernel> {
    let op = raw.op?;
    let errors = raw.file.sink.errors();
    let served = served(raw, op.value, formats, scope);
    let input = input(raw, op.value);
    let output = output(raw, op.value);
    if raw.variants.len() > MAX_VARIANTS {
        let message =
            format!("{} CPU variants; a family may list at most {MAX_VARIANTS}", raw.variants.len());
        raw.file.report(raw.file.error("out-of-range", raw.variants[MAX_VARIANTS].span, message));
        return None;
    }
    let served = served?;
    let variant = |v: &RawVariant| variant(raw, v, op.value, &served, formats, scope);
    let cpu: Vec<Option<CpuVariant>> = raw.variants.iter().map(variant).collect();
    let cuda = super::cuda::check(raw, op.value, &served, formats, scope);
    if raw.file.sink.errors() > errors || !raw.complete {
        return None;
    }
    Some(Kernel {
        name: raw.name.to_owned(),
        doc: raw.doc.clone(),
        op: op.value,
        origin: raw.file.origin(op.span),
        formats: served,
        input,
        output,
        cpu: cpu.into_iter().collect::<Option<_>>()?,
        cuda: cuda?,
    })
}

/// Indices of the formats (or activation formats) the family serves.
fn served(raw: &RawKernel<'_>, op: Op, formats: &Named<Format>, scope: &Scope<'_>) -> Option<Vec<usize>> {
    let quantizes = |format: &Option<Format>| format.as_ref().is_some_and(|f| !f.quantizers.is_empty());
    let Some(names) = &raw.formats else {
        let info = op.info();
        return Some(match info.serves {
            Serves::Activations => {
                let served = scope.activations.values().enumerate();
                let with = |a: &Option<Activations>| a.as_ref().is_some_and(|a| !a.prologue.is_empty());
                served.filter(|(_, a)| !info.by_prologue || with(a)).map(|(index, _)| index).collect()
            }
            Serves::Formats => {
                let served = formats.values().enumerate().filter(|(_, f)| !info.by_quantizer || quantizes(f));
                served.map(|(index, _)| index).collect()
            }
        });
    };
    let mut indices = Vec::with_capacity(names.len());
    for (position, name) in names.iter().enumerate() {
        if repeated(raw.file, names, position) {
            continue;
        }
        let Some(index) = served_index(raw.file, op, name, formats, scope) else { continue };
        if op.info().by_quantizer && at(formats, index).is_some_and(|f| f.quantizers.is_empty()) {
            let message = format!("format `{}` states no quantizer, so it can't be quantized to", name.value);
            raw.file.report(
                raw.file
                    .error("no-quantizer", name.span, message)
                    .help("add `[[quantize]]` to the format, or leave it out here"),
            );
        }
        if op.info().by_prologue && at(&scope.activations, index).is_some_and(|a| a.prologue.is_empty()) {
            let message = format!("`{}` states no prologue, so a row has nothing to go through", name.value);
            let error = raw.file.error("no-prologue", name.span, message);
            raw.file.report(error.help("add `prologue = [\"rms-norm\"]` to it, or leave it out here"));
        }
        indices.push(index);
    }
    Some(indices)
}

fn input(raw: &RawKernel<'_>, op: Op) -> Vec<DType> {
    let info = op.info();
    let Some(input) = &raw.input else {
        if info.types_stated {
            let error = raw.file.error("missing-key", raw.span, format!("a {op} needs `input`"));
            raw.file.report(error.help("for example `input = [\"f32\"]`: the types of activations it takes"));
        }
        return info.types.to_vec();
    };
    let known: &[DType] = match info.unpacked {
        Unpacked::Input => info.types,
        Unpacked::Output => &[],
    };
    for (position, dtype) in input.iter().enumerate() {
        if !known.contains(&dtype.value) {
            let message = format!("`{op}` takes no `{}` input", dtype.value);
            let help = match info.unpacked {
                Unpacked::Output => "leave `input` out: it reads the format's blocks",
                Unpacked::Input => "leave `input` out, or write `input = [\"f32\"]`",
            };
            raw.file.report(raw.file.error("not-for-this-op", dtype.span, message).help(help));
        }
        if input[..position].iter().any(|d| d.value == dtype.value) {
            let message = format!("`{}` is listed twice", dtype.value);
            raw.file.report(raw.file.error("duplicate-name", dtype.span, message));
        }
    }
    if input.is_empty() {
        let error =
            raw.file.error("out-of-range", raw.input_span, "`input` lists no type that could be read");
        let help = match info.types_stated {
            true => "for example `input = [\"f32\"]`",
            false => "leave `input` out: the op says what it reads",
        };
        raw.file.report(error.help(help));
    }
    input.iter().map(|d| d.value).collect()
}

fn output(raw: &RawKernel<'_>, op: Op) -> DType {
    if let Some(output) = raw.output {
        let stated = op.info().output;
        if stated != Some(output.value) {
            let message = format!("`{op}` has no `{}` output", output.value);
            let help = match stated {
                Some(stated) => format!("write `output = \"{stated}\"`"),
                None => "leave `output` out: the op or the format says what comes out".to_owned(),
            };
            raw.file.report(raw.file.error("not-for-this-op", output.span, message).help(help));
        }
    }
    DType::F32
}

fn variant(
    raw: &RawKernel<'_>,
    variant: &RawVariant,
    op: Op,
    served: &[usize],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) -> Option<CpuVariant> {
    let file = raw.file;
    features(raw, variant);
    if !op.info().product {
        let keys = [
            ("packing", variant.packing.as_ref().map(|p| p.span)),
            ("code_bits", variant.code_bits.map(|b| b.span)),
            ("levels", variant.levels.as_ref().map(|l| l.span)),
            ("default", variant.by_default.map(|d| d.span)),
            ("strategy", variant.strategy.map(|s| s.span)),
            ("tile", variant.tile.map(|t| t.span)),
            ("shape", variant.shape.map(|s| s.span)),
        ];
        for (key, span) in keys {
            if let Some(span) = span {
                let message = format!("`{key}` is for matmul; `{op}` goes over blocks one after the other");
                file.report(file.error("not-for-this-op", span, message).help("leave it out"));
            }
        }
    }
    if let (Isa::Scalar, Some(shape)) = (variant.isa.value, variant.shape) {
        let message = "the scalar variant is the reference: it must take every shape";
        file.report(file.error("reference-shape", shape.span, message).help("leave `shape` out"));
    }
    if let (Isa::Scalar, Some(packing)) = (variant.isa.value, &variant.packing) {
        let message = "the scalar variant is the reference: it reads the format's own rows, not a packing";
        file.report(file.error("reference-shape", packing.span, message).help("leave `packing` out"));
    }
    let narrowing = [
        ("code_bits", variant.code_bits.map(|bits| bits.span)),
        ("levels", variant.levels.as_ref().map(|levels| levels.span)),
    ];
    for (key, span) in narrowing {
        if let (Isa::Scalar, Some(span)) = (variant.isa.value, span) {
            let message = "the scalar variant is the reference: it must take every format";
            let error = file.error("reference-shape", span, message);
            file.report(error.help(format!("leave `{key}` out")));
        }
    }
    let most = variant.code_bits.map(|bits| bits.value);
    let levels = variant.levels.as_ref().map(|levels| &levels.value);
    let takes = |index: &usize| {
        let format = || at(formats, *index);
        most.is_none_or(|most| format().is_some_and(|f| packed_bits(f) <= most))
            && levels.is_none_or(|levels| format().is_some_and(|f| f.integers().iter().eq(levels)))
    };
    let taken: Vec<usize> = served.iter().copied().filter(takes).collect();
    let packing = match &variant.packing {
        None => {
            if let (true, Some(tile)) = (op.info().product, variant.tile) {
                let error = file.error(
                    "packing-missing",
                    tile.span,
                    "a tile of rows needs a packing that puts them side by side",
                );
                file.report(error.help("name one, for example `packing = \"r16k4\"`"));
            }
            None
        }
        Some(name) => Some(resolve(file, name, "packing", &scope.packings, scope)?),
    };
    if let (Some(name), Some(index)) = (&variant.packing, packing) {
        tiles(raw, variant, name, index, &taken, formats, scope);
    }
    strategy(raw, variant);
    let body = match &variant.body {
        Some(body) => Some(body::cpu(raw, body, scope)?),
        None => None,
    };
    let (rows, tokens) = variant.tile.map_or((0, 0), |t| t.value);
    Some(CpuVariant {
        isa: variant.isa.value,
        requires: variant.requires.iter().map(|f| f.value).collect(),
        label: variant.label.as_ref().map_or(String::new(), |l| l.value.clone()),
        code_bits: most,
        levels: levels.cloned(),
        by_default: variant.by_default.is_none_or(|at| at.value),
        formats: taken,
        packing,
        strategy: variant.strategy.map_or(Strategy::Multiply, |s| s.value),
        rows,
        tokens,
        shape: variant.shape.map_or(ShapeRules::default(), |s| s.value),
        body,
        origin: file.origin(variant.span),
    })
}

/// A strategy says how packed codes are multiplied; a lookup takes tokens one by one.
fn strategy(raw: &RawKernel<'_>, variant: &RawVariant) {
    let Some(strategy) = variant.strategy else { return };
    let file = raw.file;
    if variant.packing.is_none() {
        let error =
            file.error("packing-missing", strategy.span, "a strategy is for codes that a packing holds");
        file.report(error.help("name one with `packing`, or leave `strategy` out"));
    }
    if let (Strategy::Lookup, Some(tile)) = (strategy.value, variant.tile)
        && tile.value.1 != 1
    {
        let message = format!("a lookup computes one token at a time, not {}", tile.value.1);
        let error = file.error("out-of-range", tile.span, message);
        file.report(error.also(file.path, strategy.span, "the strategy").help("write `tokens = 1`"));
    }
    let requires = |feature| variant.requires.iter().any(|named| named.value == feature);
    let unit = requires(Feature::Avx512vnni) && requires(Feature::AmxInt8);
    if strategy.value == Strategy::Tiles && !(variant.isa.value == Isa::Avx512 && unit) {
        let message = format!("this `{}` variant has no unit that multiplies tiles", variant.isa.value);
        let error = file.error("conflicting-keys", strategy.span, message);
        let help = "write `isa = \"avx512\"` and `requires = [\"avx512vnni\", \"amx-int8\"]`";
        file.report(error.also(file.path, variant.isa.span, "the ISA").help(help));
    }
    if let (Strategy::Tiles, Some(tile)) = (strategy.value, variant.tile)
        && !(matches!(tile.value.0, 16 | 32) && tile.value.1 == 32)
    {
        let message =
            format!("the unit takes 16 or 32 rows and up to 32 tokens at once, not {:?}", tile.value);
        let error = file.error("out-of-range", tile.span, message);
        let help = "write `tile = { rows = 32, tokens = 32 }`";
        file.report(error.also(file.path, strategy.span, "the strategy").help(help));
    }
    if let (Strategy::Staged, Some(tile)) = (strategy.value, variant.tile)
        && tile.value.1 == 1
    {
        let message = "operands are staged for several tokens, not for one";
        let error = file.error("out-of-range", tile.span, message);
        let help = "write more `tokens`, or `strategy = \"multiply\"`";
        file.report(error.also(file.path, strategy.span, "the strategy").help(help));
    }
}

fn features(raw: &RawKernel<'_>, variant: &RawVariant) {
    let file = raw.file;
    let isa = variant.isa.value;
    for (position, feature) in variant.requires.iter().enumerate() {
        if variant.requires[..position].iter().any(|f| f.value == feature.value) {
            let message = format!("`{}` is listed twice", feature.value);
            file.report(file.error("duplicate-name", feature.span, message));
        } else if isa.arch() == Arch::Any {
            let message = format!("`{isa}` runs everywhere; it can't require `{}`", feature.value);
            let error = file.error("feature-arch", feature.span, message);
            file.report(
                error.also(file.path, variant.isa.span, "portable").help("name the ISA that has the feature"),
            );
        } else if feature.value.arch() != isa.arch() {
            let message = format!(
                "`{}` is a feature of {}, but `{isa}` is of {}",
                feature.value,
                feature.value.arch(),
                isa.arch()
            );
            let error = file.error("feature-arch", feature.span, message);
            file.report(error.also(file.path, variant.isa.span, "the ISA"));
        } else if isa.features().contains(&feature.value) {
            let message = format!("`{isa}` has `{}` anyway", feature.value);
            file.report(
                file.error("redundant-feature", feature.span, message).help("leave it out").warning(),
            );
        }
    }
}

/// The tile goes with the packing's rows, and the packing has room for every format's codes.
fn tiles(
    raw: &RawKernel<'_>,
    variant: &RawVariant,
    name: &At<String>,
    index: usize,
    served: &[usize],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) {
    let file = raw.file;
    let Some(packing) = at(&scope.packings, index) else { return };
    match variant.tile {
        None => {
            let error = file.error("missing-key", name.span, "a variant with a packing needs `tile`");
            let help = format!("for example `tile = {{ rows = {}, tokens = 1 }}`", packing.rows);
            file.report(error.help(help));
        }
        Some(tile) => {
            let rows = tile.value.0;
            if !rows.is_multiple_of(packing.rows) && !packing.rows.is_multiple_of(rows) {
                let message = format!(
                    "{rows} rows do not go with packing `{}`, which has {}",
                    packing.name, packing.rows
                );
                let error = file.error("tile-rows", tile.span, message);
                file.report(
                    error
                        .also(file.path, name.span, "the packing")
                        .help("one of the two numbers must divide the other"),
                );
            } else if let Some(strategy) = variant.strategy.filter(|strategy| {
                rows > packing.rows && matches!(strategy.value, Strategy::Staged | Strategy::Tiles)
            }) {
                let message = format!(
                    "operands of a panel wait together, and one of packing `{}` has {} rows, not {rows}",
                    packing.name, packing.rows
                );
                let error = file.error("tile-rows", tile.span, message);
                let help = format!("write `rows = {}`, or name a packing with more rows", packing.rows);
                file.report(error.also(file.path, strategy.span, "the strategy").help(help));
            }
        }
    }
    let Some(widest) = packing.tiles.iter().map(|t| t.code).max_by_key(|code| code.levels()) else { return };
    for format in served.iter().filter_map(|index| at(formats, *index)) {
        let bits = packed_bits(format);
        let room = match widest {
            TileCode::Bits(widest) => bits <= widest,
            TileCode::Trit => {
                let integers = format.integers();
                let ends = integers.first().zip(integers.last());
                ends.is_some_and(|(low, high)| high.abs_diff(*low) < widest.levels())
            }
        };
        if !room {
            let message = format!(
                "packing `{}` has no tile for the codes of format `{}`: they take {bits} bits, its widest tile has {}",
                packing.name,
                format.name,
                match widest {
                    TileCode::Bits(bits) => bits.to_string(),
                    TileCode::Trit => "trits".to_owned(),
                }
            );
            let error = file.error("no-tile", name.span, message);
            file.report(
                error.help("add a wider `[[tile]]` to the packing, or list `formats` without this one"),
            );
        }
    }
}

/// Bits of a code in a packing: the code itself or the weight's integer, whichever takes fewer, or the integer where that is made of more.
fn packed_bits(format: &Format) -> u32 {
    let Some(field) = format.fields.get(format.value.code) else { return 0 };
    let value = &format.value;
    let Some((mut low, mut high)) = map_range(&value.map, field.ty) else { return 0 };
    let bits_of = |low: i64, high: i64| 64 - (high - low).max(0).leading_zeros();
    if !matches!(value.map, ValueMap::Codebook { .. }) && value.signs.is_none() && value.shift.is_none() {
        return field.ty.bits().min(bits_of(low, high));
    }
    if value.signs.is_some() {
        let size = low.abs().max(high.abs());
        (low, high) = (-size, size);
    }
    if let Some(shift) = &value.shift {
        low += shift.values.iter().map(|v| i64::from(*v)).min().unwrap_or(0);
        high += shift.values.iter().map(|v| i64::from(*v)).max().unwrap_or(0);
    }
    bits_of(low, high)
}

/// A variant among those it competes with.
struct Rival<'a> {
    raw: &'a RawKernel<'a>,
    kernel: &'a Kernel,
    variant: &'a CpuVariant,
    span: Span,
}

/// Variants of one op, ISA and feature set that serve a common format and input: which one runs must be
/// decided by their shapes.
fn rivals(raws: &[RawKernel<'_>], families: &[Option<Kernel>]) {
    let mut groups: BTreeMap<(Op, Isa, u64), Vec<Rival<'_>>> = BTreeMap::new();
    let both = raws.iter().zip(families).filter_map(|(raw, kernel)| Some((raw, kernel.as_ref()?)));
    let mut in_order: Vec<(&RawKernel<'_>, &Kernel)> = both.collect();
    in_order.sort_by(|(_, a), (_, b)| a.precedence().cmp(&b.precedence()));
    for (raw, kernel) in in_order {
        for (written, variant) in raw.variants.iter().zip(&kernel.cpu) {
            let features: FeatureSet =
                variant.isa.features().iter().chain(&variant.requires).copied().collect();
            let key = (kernel.op, variant.isa, features.0);
            groups.entry(key).or_default().push(Rival { raw, kernel, variant, span: written.span });
        }
    }
    for group in groups.values() {
        for (position, later) in group.iter().enumerate() {
            if let Some(earlier) = group[..position].iter().find(|earlier| clash(earlier, later).is_some())
                && let Some((code, message, help)) = clash(earlier, later)
            {
                let file = later.raw.file;
                let error = file.error(code, later.span, message).label("this variant").help(help);
                file.report(error.also(earlier.raw.file.path, earlier.span, "the earlier variant"));
            }
        }
    }
}

fn clash(earlier: &Rival<'_>, later: &Rival<'_>) -> Option<(&'static str, String, &'static str)> {
    let common = later.variant.formats.iter().any(|f| earlier.variant.formats.contains(f));
    let inputs = &earlier.kernel.input;
    let input = later.kernel.input.iter().any(|d| inputs.contains(d)) || later.kernel.input.is_empty();
    if !common || !input {
        return None;
    }
    let isa = later.variant.isa;
    let (a, b) = (&earlier.variant.shape, &later.variant.shape);
    // A variant for narrow codes stands before the one for wider codes as well.
    let most = |rival: &Rival<'_>| rival.variant.code_bits.unwrap_or(u32::MAX);
    let fewer = earlier.variant.levels.is_some() && later.variant.levels.is_none();
    // One that comes after all others is in nobody's way, but has others of its kind.
    let apart = earlier.variant.by_default != later.variant.by_default;
    // A shipped one serves the formats of its file that no file of the user's serves better.
    let replaced = later.kernel.is_shipped() && !earlier.kernel.is_shipped();
    // Whatever it leaves, the later one takes.
    let leaves = earlier.variant.leaves_formats() && earlier.variant.strategy != later.variant.strategy;
    let narrower = apart || replaced || most(earlier) < most(later) || fewer || leaves;
    if a == b && !narrower {
        let message = format!(
            "two `{isa}` variants with the same features take the same shapes; nothing decides between them"
        );
        return Some((
            "tied-variants",
            message,
            "give them different `shape` rules or `requires`, or remove one",
        ));
    }
    if b.m.within(&a.m) && b.n.within(&a.n) && b.k.within(&a.k) && !narrower {
        let message = format!("this `{isa}` variant is never chosen: an earlier one takes all its shapes");
        return Some(("unreachable-variant", message, "put the more special variant first"));
    }
    if earlier.variant.label == later.variant.label {
        let message = format!("two `{isa}` variants with the same features have the same name");
        return Some((
            "duplicate-name",
            message,
            "tell them apart with `name`, for example `name = \"decode\"`",
        ));
    }
    None
}

/// Every op has a scalar reference for every format it serves, in this file or another one.
fn references(
    raws: &[RawKernel<'_>],
    families: &[Option<Kernel>],
    formats: &Named<Format>,
    scope: &Scope<'_>,
) {
    // A family that could not be read may hold the reference.
    if families.iter().any(Option::is_none) || !scope.broken.is_empty() {
        return;
    }
    let kernels = || raws.iter().zip(families).filter_map(|(raw, kernel)| Some((raw, kernel.as_ref()?)));
    let has_reference = |op: Op, format: usize| {
        let serves = |k: &Kernel| k.op == op && k.formats.contains(&format);
        kernels().any(|(_, k)| serves(k) && k.cpu.iter().any(|v| v.isa == Isa::Scalar))
    };
    for (raw, kernel) in kernels() {
        let names: Vec<&str> = match kernel.op.info().serves {
            Serves::Activations => scope.activations.keys().map(String::as_str).collect(),
            Serves::Formats => formats.keys().map(String::as_str).collect(),
        };
        let lacking = kernel.formats.iter().filter(|f| !has_reference(kernel.op, **f));
        let lacking: Vec<&str> = lacking.filter_map(|f| names.get(*f).copied()).collect();
        if lacking.is_empty() {
            continue;
        }
        let message =
            format!("`{}` has no scalar variant for {}", kernel.op, crate::diagnostic::quoted(lacking));
        let help = "the scalar variant is the reference that all others are checked against; add\n[[cpu]]\nisa = \"scalar\"";
        raw.file.report(raw.file.error("no-scalar-variant", raw.span, message).help(help));
    }
}
