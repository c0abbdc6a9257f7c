//! Emitting: plans to Rust text. Nothing here can fail on what a user wrote; that was refused before.

mod activations;
mod cuda;
mod embed;
pub mod fields;
mod format;
pub(crate) use format::uses_outer;
pub(crate) use matmul::{constant_word, format_words};
pub(crate) use modules::packed_plan;
pub(crate) use pack::words;
mod lookup;
mod matmul;
mod matrix;
mod modules;
mod pack;
mod quantize;
mod registry;
mod runs;
mod scalar;
mod search;
mod trits;

use crate::plan::{FormatPlan, features};
use crate::{Error, Options};
use gristmill_spec::SourceFile;
use gristmill_spec::model::{CpuVariant, Kernel, ShapeRules, SpecSet};
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
    let plans: Vec<FormatPlan<'_>> = set
        .formats
        .iter()
        .map(|format| FormatPlan::new(format, &set.activations[format.activations]))
        .collect();
    let mut out = String::new();
    let mut listed = Vec::new();
    let mut loops = Loops::new();
    for (index, plan) in plans.iter().enumerate() {
        match modules::format_module(set, plan, index, options, &mut loops) {
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
        let (text, kernels) = modules::activation_module(set, index, options);
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
pub(crate) fn serving(
    set: &SpecSet,
    op: Op,
    format: usize,
) -> impl Iterator<Item = (&Kernel, usize, &CpuVariant)> {
    set.kernels
        .iter()
        .filter(move |kernel| kernel.op == op)
        .flat_map(|kernel| {
            kernel.cpu.iter().enumerate().map(move |(order, variant)| (kernel, order, variant))
        })
        .filter(move |(_, _, variant)| variant.formats.contains(&format) && in_range(set, format, variant))
}

/// Whether the sums of a format fit the tables of a lookup variant that takes codes of some width: like formats of wider
/// codes, those that do not are left to other variants. One without `code_bits` is to serve all of its formats, or is refused.
fn in_range(set: &SpecSet, format: usize, variant: &CpuVariant) -> bool {
    let (Strategy::Lookup, Some(_), Some(packing)) = (variant.strategy, variant.code_bits, variant.packing)
    else {
        return true;
    };
    let format = &set.formats[format];
    let plan = FormatPlan::new(format, &set.activations[format.activations]);
    let refusal = packed_plan(&plan, &set.packings[packing], variant).err();
    !matches!(refusal, Some(Error::Spec(diagnostic)) if diagnostic.code == "lookup-range")
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
            input: kernel.input.clone(),
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
