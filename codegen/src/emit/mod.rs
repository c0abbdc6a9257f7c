//! Emitting: plans to Rust text. Nothing here can fail on what a user wrote; that was refused before.

mod activations;
mod cuda;
pub mod fields;
mod format;
pub(crate) use format::uses_outer;
pub(crate) use matmul::{constant_word, format_words};
pub(crate) use pack::words;
mod lookup;
mod matmul;
mod matrix;
mod pack;
mod quantize;
mod registry;
mod runs;
mod scalar;
mod search;
mod trits;

use crate::plan::{FormatPlan, LookupPlan, MatmulPlan, PackPlan, features, scalar_k_max};
use crate::{CudaImages, Error, Options};
use gristmill_spec::SourceFile;
use gristmill_spec::model::{CpuVariant, Format, Kernel, Packing, ShapeRules, SpecSet};
use gristmill_spec::vocab::{Arch, DType, DeviceKind, Feature, Isa, Op, Strategy};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A kernel as it will stand in the registry.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Facts in order: `matmul.i2_s.avx2.decode`.
    pub name: String,
    /// Identity: a hash of the code and of what compiled it.
    pub id: u64,
    /// The op.
    pub op: Op,
    /// Index of the format (or of the activation format).
    pub format: usize,
    /// Index of the quantizer.
    pub quantizer: usize,
    /// Accepted input types.
    pub input: Vec<DType>,
    /// Kind of device.
    pub device: DeviceKind,
    /// ISA of the processor; `None` for other devices.
    pub isa: Option<Isa>,
    /// All features.
    pub features: Vec<Feature>,
    /// Shape rules, those of the spec and the derived ones.
    pub shape: ShapeRules,
    /// `file:line` of the variant.
    pub source: String,
    /// The plan in words.
    pub plan: String,
    /// Rust expression of its `Code`.
    code: String,
    /// Order of preference: higher is better.
    rank: (bool, Option<Isa>, usize, std::cmp::Reverse<usize>),
}

/// Emits the whole set. Returns unformatted text and what is listed.
pub fn emit(
    set: &SpecSet,
    sources: &[SourceFile],
    options: &Options,
) -> Result<(String, Vec<Listed>), Vec<Error>> {
    let mut errors = Vec::new();
    let mut plans = Vec::new();
    for format in &set.formats {
        match FormatPlan::new(format, &set.activations[format.activations]) {
            Ok(plan) => plans.push(plan),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut out = String::new();
    let mut listed = Vec::new();
    let mut loops = Loops::new();
    for (index, plan) in plans.iter().enumerate() {
        match format_module(set, plan, index, options, &mut loops) {
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
        let (text, kernels) = activation_module(set, index, options);
        out.push_str(&text);
        listed.extend(kernels);
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut images = cuda::images(set, options, &mut listed)?;
    let runtime = if options.runtime.is_empty() { crate::RUNTIME } else { &options.runtime };
    // Before the registry: it quotes specs, in which nothing may change.
    let mut out = out.replace("gristmill_runtime::", &format!("{runtime}::"));
    images.text = images.text.replace("gristmill_runtime::", &format!("{runtime}::"));
    out.push_str(&images.text);
    out.push_str(&registry::emit(set, &plans, &listed, sources, options, &images, runtime));
    Ok((out, listed))
}

/// Loops of packed products by name, each with the formats it serves.
type Loops = BTreeMap<String, Shared>;

struct Shared {
    text: String,
    formats: Vec<String>,
    isa: Isa,
    words: String,
    source: String,
}

/// The module of a loop: `name`, or with a number where another family's tile already has it.
fn free_name(loops: &Loops, name: &str, text: &str) -> String {
    let mut free = name.to_string();
    let mut number = 1;
    while loops.get(&free).is_some_and(|other| other.text != text) {
        number += 1;
        free = format!("{name}_{number}");
    }
    free
}

/// A doc comment.
fn doc(text: &str) -> String {
    text.lines().fold(String::new(), |mut out, line| {
        let _ = writeln!(out, "/// {line}");
        out
    })
}

/// An f32 literal that reads back as the same bits.
fn float(value: f32) -> String {
    if value == f32::INFINITY { "f32::INFINITY".to_string() } else { format!("{value:?}f32") }
}

/// 64-bit FNV-1a of texts, which are kept apart.
pub(crate) fn hash<'t>(parts: impl IntoIterator<Item = &'t str>) -> u64 {
    fnv(parts.into_iter().flat_map(|part| part.bytes().chain([0xff])))
}

/// 64-bit FNV-1a.
pub(crate) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Name of a variant's functions and modules: `avx512_avx512vnni_decode`.
fn variant_ident(variant: &CpuVariant) -> String {
    variant_words(variant).join("_").replace(['.', '-'], "")
}

fn variant_words(variant: &CpuVariant) -> Vec<&str> {
    let mut words = vec![variant.isa.name()];
    words.extend(variant.requires.iter().map(|f| f.name()));
    if !variant.label.is_empty() {
        words.push(&variant.label);
    }
    words
}

/// Facts in order: `matmul.i2_s.avx512.avx512vnni.decode`, with the quantizer behind the format if there is one.
pub fn kernel_name(kernel: &str, format: &str, quantizer: Option<&str>, variant: &CpuVariant) -> String {
    kernel_words(kernel, format, quantizer, variant_words(variant))
}

/// Facts in order, with the words of a variant last.
pub(crate) fn kernel_words<'w>(
    kernel: &'w str,
    format: &'w str,
    quantizer: Option<&'w str>,
    variant: impl IntoIterator<Item = &'w str>,
) -> String {
    let mut words = vec![kernel, format];
    words.extend(quantizer);
    words.extend(variant);
    words.join(".")
}

/// `#[cfg]` and `#[target_feature]` of a variant.
fn attributes(variant: &CpuVariant) -> (String, String) {
    let features: Vec<&str> = features(variant).iter().map(|f| f.name()).collect();
    let enable = if features.is_empty() {
        String::new()
    } else {
        format!("#[target_feature(enable = \"{}\")]\n", features.join(","))
    };
    (cfg(variant.isa.arch()), enable)
}

/// `#[cfg]` for an architecture.
fn cfg(arch: Arch) -> String {
    match arch {
        Arch::Any => String::new(),
        Arch::X86 | Arch::Aarch64 => format!("#[cfg(target_arch = \"{}\")]\n", arch.name()),
    }
}

/// The kernels of `op` that serve a format, with their variants.
fn serving(set: &SpecSet, op: Op, format: usize) -> impl Iterator<Item = (&Kernel, usize, &CpuVariant)> {
    set.kernels
        .iter()
        .filter(move |kernel| kernel.op == op)
        .flat_map(|kernel| {
            kernel.cpu.iter().enumerate().map(move |(order, variant)| (kernel, order, variant))
        })
        .filter(move |(_, _, variant)| variant.formats.contains(&format))
}

struct Listing<'a> {
    op: Op,
    format: usize,
    format_name: &'a str,
    options: &'a Options,
}

impl Listing<'_> {
    #[allow(
        clippy::too_many_arguments,
        reason = "one call site a kind of kernel; a struct would repeat the fields"
    )]
    fn entry(
        &self,
        kernel: &Kernel,
        order: usize,
        variant: &CpuVariant,
        quantizer: Option<(usize, &str)>,
        shape: ShapeRules,
        plan: String,
        code: String,
        text: &str,
    ) -> Listed {
        let name = kernel_name(&kernel.name, self.format_name, quantizer.map(|(_, name)| name), variant);
        let features = features(variant);
        Listed {
            id: hash([name.as_str(), text, &self.options.compiler, env!("CARGO_PKG_VERSION")]),
            name,
            op: self.op,
            format: self.format,
            quantizer: quantizer.map_or(0, |(index, _)| index),
            input: if self.op == Op::Matmul { kernel.input.clone() } else { vec![DType::F32] },
            device: DeviceKind::Cpu,
            isa: Some(variant.isa),
            rank: (variant.by_default, Some(variant.isa), variant.requires.len(), std::cmp::Reverse(order)),
            features,
            shape,
            source: format!("{}:{}", variant.origin.file, variant.origin.line),
            plan,
            code,
        }
    }
}

/// One module for a format, with every kernel that serves it.
fn format_module(
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
    if !dequantizers.is_empty() {
        let text = format::dequantize(plan);
        let listing = Listing { op: Op::Dequantize, format: index, format_name: name, options };
        for (kernel, order, variant) in dequantizers {
            let (cfg, enable) = attributes(variant);
            let ident = format!("dequantize_{}", variant_ident(variant));
            let source = format!("{}:{}", variant.origin.file, variant.origin.line);
            let function = match &variant.body {
                Some(path) => path.clone(),
                None => {
                    let _ = write!(
                        body,
                        "/// Blocks of `{name}` to f32, compiled for {isa}.
                         ///
                         /// `@generated` by gristmill from {source}.
                         ///
                         /// # Safety
                         ///
                         /// As [`DequantizeFn`](gristmill_runtime::abi::DequantizeFn) says; the CPU has the features named.
                         {cfg}{enable}pub unsafe fn {ident}(src: *const u8, dst: *mut f32, blocks: usize, outer: f32) -> Result<(), Fault> {{
                             // SAFETY: passed on.
                             unsafe {{ dequantize(src, dst, blocks, outer) }}
                         }}\n",
                        isa = variant.isa,
                    );
                    format!("{name}::{ident}")
                }
            };
            let text = format!("{decode}{text}");
            listed.push(listing.entry(
                kernel,
                order,
                variant,
                None,
                k_rule(variant.shape, u64::MAX),
                format!("decode: {strategies}"),
                format!("Code::Dequantize({function})"),
                &text,
            ));
            binding(&mut body, variant, &listed[listed.len() - 1].name);
        }
        body.push_str(&text);
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
                let (cfg, enable) = attributes(variant);
                let ident = format!("quantize_{quantizer_name}_{}", variant_ident(variant));
                let source = format!("{}:{}", variant.origin.file, variant.origin.line);
                let function = match &variant.body {
                    Some(path) => path.clone(),
                    None => {
                        let _ = write!(
                            body,
                            "/// f32 to blocks of `{name}` by `{quantizer_name}`, compiled for {isa}.
                             ///
                             /// `@generated` by gristmill from {source}.
                             ///
                             /// # Safety
                             ///
                             /// As [`QuantizeFn`](gristmill_runtime::abi::QuantizeFn) says; the CPU has the features named.
                             {cfg}{enable}pub unsafe fn {ident}(src: *const f32, dst: *mut u8, blocks: usize, step: Step) -> Result<(), Fault> {{
                                 // SAFETY: passed on.
                                 unsafe {{ quantize_{quantizer_name}(src, dst, blocks, step) }}
                             }}\n",
                            isa = variant.isa,
                        );
                        format!("{name}::{ident}")
                    }
                };
                let step = if outer {
                    let ident = format!("step_{quantizer_name}_{}", variant_ident(variant));
                    let _ = write!(
                        body,
                        "/// The step of `{quantizer_name}` for a row or tensor, compiled for {isa}.
                         ///
                         /// # Safety
                         ///
                         /// As [`StepFn`](gristmill_runtime::abi::StepFn) says; the CPU has the features named.
                         {cfg}{enable}pub unsafe fn {ident}(src: *const f32, len: usize) -> Result<Step, Fault> {{
                             // SAFETY: passed on.
                             unsafe {{ step_{quantizer_name}(src, len) }}
                         }}\n",
                        isa = variant.isa,
                    );
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
    if let Some(reason) = plan.no_matmul() {
        if !matmuls.is_empty() {
            errors.push(Error::plan(format, &format!("no integer matmul: {reason}")));
        }
    } else {
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
                    let Packed { shape_name, text, words, pack, k_max } = match packed(plan, packing, variant)
                    {
                        Ok(packed) => packed,
                        Err(error) => {
                            errors.push(error.of_variant(&variant.origin));
                            continue;
                        }
                    };
                    let multiple = pack.multiple;
                    packs.entry(packing.name.clone()).or_insert(pack);
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
                        format!("Some(&{name}::PACK_{})", packing.name.to_uppercase()),
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
                        packs.entry(pack.packing.name.clone()).or_insert(pack);
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        for (packing, pack) in &packs {
            body.push_str(&pack::pack(plan, pack));
            let _ = write!(
                body,
                "/// `{name}` in packing `{packing}`.
                 pub static PACK_{upper}: PackInfo = PackInfo {{
                     name: {packing:?}, rows: {rows}, tile_k: {tile_k}, tile_bytes: {tile_bytes}, scales: {scales}, mins: {mins}, runs: {runs}, min: {min}, table: {table},
                     pack: pack_{packing}, unpack: unpack_{packing},
                 }};\n",
                upper = packing.to_uppercase(),
                rows = pack.packing.rows,
                tile_k = pack.tile.k,
                tile_bytes = pack.tile.bytes,
                scales = plan.has_scales(),
                runs = plan.runs(),
                mins = plan.offset,
                min = plan.min(),
                table = pack.table.as_ref().map_or("None".to_string(), |t| format!("Some(&{t:?})")),
            );
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let text = format!(
        "{}///
         /// `@generated` by gristmill from {}:{}.
         pub mod {name} {{
             use gristmill_runtime::abi::{{Fault, MatmulArgs, Step}};
             use gristmill_runtime::number;
             use gristmill_runtime::registry::PackInfo;
             use gristmill_runtime::search;
             {body}
         }}\n",
        format::module_doc(plan),
        format.origin.file,
        format.origin.line,
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
    Ok(match variant.strategy {
        Strategy::Multiply => {
            let resolved = MatmulPlan::new(plan, packing, variant)?;
            Packed {
                shape_name: matmul::shape_name(&resolved),
                text: matmul::emit(&resolved),
                words: resolved.describe(),
                pack: resolved.pack.clone(),
                k_max: resolved.k_max,
            }
        }
        Strategy::Lookup => {
            let resolved = LookupPlan::new(plan, packing, variant)?;
            Packed {
                shape_name: lookup::shape_name(&resolved),
                text: lookup::emit(&resolved),
                words: resolved.describe(),
                pack: resolved.pack.clone(),
                k_max: resolved.k_max,
            }
        }
    })
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

pub(crate) fn lcm(a: u64, b: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (a / gcd(a, b)).saturating_mul(b)
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
fn activation_module(set: &SpecSet, index: usize, options: &Options) -> (String, Vec<Listed>) {
    let format = &set.activations[index];
    let name = &format.name;
    let mut body = activations::emit(format);
    let text = body.clone();
    let mut listed = Vec::new();
    let listing = Listing { op: Op::QuantizeActivations, format: index, format_name: name, options };
    for (kernel, order, variant) in serving(set, Op::QuantizeActivations, index) {
        let (cfg, enable) = attributes(variant);
        let ident = format!("quantize_{}", variant_ident(variant));
        let source = format!("{}:{}", variant.origin.file, variant.origin.line);
        let function = match &variant.body {
            Some(path) => path.clone(),
            None => {
                let _ = write!(
                    body,
                    "/// A row of f32 to `{name}` activations, compiled for {isa}.
                     ///
                     /// `@generated` by gristmill from {source}.
                     ///
                     /// # Safety
                     ///
                     /// As [`QuantizeActivationsFn`](gristmill_runtime::abi::QuantizeActivationsFn) says; the CPU has the features named.
                     {cfg}{enable}pub unsafe fn {ident}(
                         x: *const f32, k: usize, unit: usize, unit_padded: usize,
                         q: *mut i8, scales: *mut f32, sums: *mut i32,
                     ) -> Result<(), Fault> {{
                         // SAFETY: passed on.
                         unsafe {{ quantize(x, k, unit, unit_padded, q, scales, sums) }}
                     }}\n",
                    isa = variant.isa,
                );
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
