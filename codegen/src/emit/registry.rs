//! The static registry: tables of formats and kernels, and the candidate match without a wildcard.

use super::cuda::Images;
use super::listed::Listed;
use super::text::cfg;
use crate::options::{CudaImages, Options};
use crate::plan::FormatPlan;
use crate::text::{joined, option};
use gristmill_spec::SourceFile;
use gristmill_spec::model::{DimRule, Scalar, SpecSet, enumerator};
use gristmill_spec::vocab::{Arch, DType, DeviceKind, Isa, Op, Serves};
use std::fmt::Write;

/// Everything after the format modules.
pub fn emit(
    set: &SpecSet,
    plans: &[FormatPlan<'_>],
    listed: &[Listed],
    sources: &[SourceFile],
    options: &Options,
    images: &Images,
) -> String {
    const ALLOW: &str =
        "#[allow(unused_imports, reason = \"which of these it names depends on the formats of the build\")]";
    let mut out = format!(
        "{ALLOW}
         use gristmill_runtime::registry::{{
             ActivationInfo, Code, Counters, CudaBuild, DimRule, Entry, EntryFacts, FormatFacts, FormatInfo, ImportInfo,
             KernelId, LeftOut, Move, OuterType, Registry, RegistryFacts, ShapeRules, Source, Unit, WithoutImage,
         }};
         use gristmill_runtime::vocab::{{DType, DeviceKind, Feature, FeatureSet, Isa, Op, PrologueStep}};\n",
    );
    if let CudaImages::Built { .. } = options.cuda {
        let _ = write!(
            out,
            "{ALLOW}
             use gristmill_runtime::registry::{{
                 CudaCode, CudaImage, CudaLaunch, CudaRowsQuantizer, CudaSplit, CudaStep, CudaUsage,
             }};
             {ALLOW}
             use gristmill_runtime::{{gpu::CudaVersion, vocab::{{CudaAlgorithm, CudaArch, Precision}}}};\n"
        );
    }
    out.push_str(&names(
        "Format",
        "The weight formats of this build.",
        plans.iter().map(|p| p.format.name.as_str()),
    ));
    out.push_str(&names(
        "ActivationFormat",
        "The activation formats of this build.",
        set.activations.iter().map(|a| a.name.as_str()),
    ));
    out.push_str(&formats(set, plans));
    out.push_str(&imports(set));
    out.push_str(&entries(listed));
    for arch in [Arch::X86, Arch::Aarch64, Arch::Any] {
        out.push_str(&candidates(set, listed, arch));
    }
    let left_out = joined(
        options.left_out.iter().map(|l| {
            format!("LeftOut {{ format: {:?}, feature: {:?}, gguf: {:?} }}", l.format, l.feature, l.gguf)
        }),
        ", ",
    );
    let sources = joined(
        sources
            .iter()
            .map(|s| format!("Source {{ path: {:?}, bytes: b\"{}\" }}", s.path, s.bytes.escape_ascii())),
        ", ",
    );
    let _ = write!(
        out,
        "static LEFT_OUT: &[LeftOut] = &[{}];
         const CUDA: CudaBuild = {};
         static WITHOUT_IMAGE: &[WithoutImage] = &[{}];
         static SOURCES: &[Source] = &[{}];
         /// What this build holds. All tables are of one set of specs, with what was compiled from it.
         pub static REGISTRY: Registry = unsafe {{ Registry::new(RegistryFacts {{
             package: {:?}, formats: FORMATS, activations: ACTIVATIONS, imports: IMPORTS,
             entries: ENTRIES, candidates, left_out: LEFT_OUT, cuda: CUDA, without_image: WITHOUT_IMAGE,
             convert: {}, experts: {}, sources: SOURCES,
         }}) }};\n",
        left_out,
        cuda_build(options),
        images.without,
        sources,
        options.package,
        option(images.convert.as_ref()),
        option(images.experts.as_ref()),
    );
    out.push_str(WHY_NOT);
    out
}

/// The import layouts, each with a line for each of its moves.
fn imports(set: &SpecSet) -> String {
    if set.imports.is_empty() {
        return "static IMPORTS: &[ImportInfo] = &[];\n".to_string();
    }
    let mut out = String::from(
        "/// Bits of a tile of an import layout.
         const fn bits(from: u32, row: u32, to: u32, bits: u32) -> Move { Move { from, row, to, bits } }
         static IMPORTS: &[ImportInfo] = &[\n",
    );
    for import in &set.imports {
        let moves = joined(
            import.moves.iter().map(|m| format!("bits({}, {}, {}, {})", m.from, m.row, m.to, m.bits)),
            ", ",
        );
        let _ = writeln!(
            out,
            "ImportInfo {{ name: {:?}, doc: {:?}, source: {:?}, format: {}, rows: {}, moves: &[{}] }},",
            import.name, import.doc, import.origin.file, import.format, import.rows, moves
        );
    }
    out.push_str("];\n");
    out
}

/// What the build did about CUDA.
fn cuda_build(options: &Options) -> String {
    match &options.cuda {
        CudaImages::Off => "CudaBuild::FeatureOff".to_string(),
        CudaImages::NoToolchain { looked } => format!("CudaBuild::NoToolchain {{ looked: &{looked:?} }}"),
        CudaImages::Built { compiler, architectures, .. } => {
            let architectures = joined(architectures.iter().map(|arch| super::cuda::arch(*arch)), ", ");
            format!("CudaBuild::Built {{ compiler: {compiler:?}, architectures: &[{}] }}", architectures)
        }
    }
}

/// What `require!` asks while compiling: the same `candidates` that decisions go by.
const WHY_NOT: &str = "/// Why this build holds no kernel for this, in words; empty if it holds one. For `require!`.
     pub const fn why_not(op: Op, format: &str, input: DType, device: DeviceKind) -> gristmill_runtime::require::Text {
         use gristmill_runtime::require::{Names, NOTHING_HELD, Required};
         let required = Required { op, format, input, device };
         let names = Names {
             formats: FORMATS, activations: ACTIVATIONS, left_out: LEFT_OUT, cuda: CUDA, without_image: WITHOUT_IMAGE,
         };
         let Some(index) = required.position(&names) else { return required.without_format(&names) };
         let mut held = NOTHING_HELD;
         let (mut op, mut dtype, mut device) = (0, 0, 0);
         while op < Op::ALL.len() {
             // Weight formats and activation formats are numbered apart.
             held[op][dtype][device] = required.op.serves_like(Op::ALL[op])
                 && !candidates(Op::ALL[op], index, DType::ALL[dtype], DeviceKind::ALL[device]).is_empty();
             device += 1;
             if device == DeviceKind::ALL.len() { (dtype, device) = (dtype + 1, 0); }
             if dtype == DType::ALL.len() { (op, dtype) = (op + 1, 0); }
         }
         let no_image = required.without_image(&names, index, &held);
         if !no_image.is_empty() { return no_image }
         let why = required.explain(&held);
         match required.activations(&names, index) {
             Some((op, index)) if why.is_empty()
                 && candidates(op, index, DType::F32, required.device).is_empty() =>
             {
                 required.without_activations(ACTIVATIONS[index].name)
             }
             Some(_) | None => why,
         }
     }\n";

fn names<'n>(ty: &str, doc: &str, names: impl Iterator<Item = &'n str>) -> String {
    let mut variants = String::new();
    let mut all = Vec::new();
    for name in names {
        let variant = enumerator(name);
        let _ = writeln!(variants, "/// `{name}`.\n{variant},");
        all.push(format!("{ty}::{variant}"));
    }
    format!(
        "/// {doc}
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
         pub enum {ty} {{ {variants} }}
         impl {ty} {{
             /// All of them, in the order of the registry's table.
             pub const ALL: &'static [{ty}] = &[{}];
         }}\n",
        all.join(", ")
    )
}

/// The runtime's name of a type that stands outside a block.
fn outer(scalar: Scalar) -> String {
    format!("OuterType::{scalar:?}")
}

fn formats(set: &SpecSet, plans: &[FormatPlan<'_>]) -> String {
    let mut out = String::from(
        "/// The weight formats.
         // SAFETY: they are as large as the blocks for which the kernels below were compiled.
         static FORMATS: &[FormatInfo] = ",
    );
    // An empty block would need no `unsafe`.
    let (begin, end) = if plans.is_empty() { ("&[", "]") } else { ("unsafe { &[", "] }") };
    out.push_str(begin);
    for plan in plans {
        let f = plan.format;
        let quantizers: Vec<&str> = f.quantizers.iter().map(|q| q.name.as_str()).collect();
        let header = option(f.row_header.map(outer));
        let tail = option(f.tensor_tail.map(|(s, bytes)| format!("({}, {bytes})", outer(s))));
        let _ = write!(
            out,
            "FormatInfo::new(FormatFacts {{
                 name: {:?}, doc: {:?}, source: \"{}:{}\", gguf: {:?}, elements: {}, bytes: {},
                 row_header: {header}, tensor_tail: {tail}, quantizers: &{quantizers:?}, activations: {},
             }}),",
            f.name, f.doc, f.origin.file, f.origin.line, f.gguf, f.elements, f.bytes, f.activations,
        );
    }
    let _ = write!(out, "{end};\nstatic ACTIVATIONS: &[ActivationInfo] = &[");
    for a in &set.activations {
        let block = option(a.block);
        let steps = joined(a.prologue.iter().map(|step| format!("PrologueStep::{step:?}")), ", ");
        let _ = write!(
            out,
            "ActivationInfo {{ name: {:?}, doc: {:?}, source: \"{}:{}\", block: {block}, keeps_multiplier: {},
                 prologue: &[{}] }},",
            a.name, a.doc, a.origin.file, a.origin.line, a.keeps_multiplier, steps
        );
    }
    out.push_str("];\n");
    out
}

fn rule(rule: DimRule) -> String {
    let max = if rule.max == u64::MAX { "u64::MAX".to_string() } else { rule.max.to_string() };
    format!("DimRule {{ min: {}, max: {max}, multiple_of: {} }}", rule.min, rule.multiple_of)
}

fn entries(listed: &[Listed]) -> String {
    let mut out = String::from(
        "/// The kernels: each was compiled for its format, packing and features, or is marked as the variant that is.
         static ENTRIES: &[Entry] = unsafe { &[",
    );
    for kernel in listed {
        let features: String = kernel
            .features
            .iter()
            .fold("FeatureSet::EMPTY".to_string(), |set, f| format!("{set}.with(Feature::{f:?})"));
        let _ = write!(
            out,
            "{cfg}Entry::new(EntryFacts {{
                 id: {id}, name: {name:?}, op: Op::{op:?}, format: {format}, quantizer: {quantizer},
                 device: DeviceKind::{device:?}, isa: {isa}, features: {features},
                 shape: ShapeRules {{ m: {m}, n: {n}, k: {k} }},
                 source: {source:?}, plan: {plan:?}, code: {code},
                 counters: {{ static COUNTERS: Counters = Counters::new(); &COUNTERS }},
             }}),",
            cfg = cfg(kernel.isa.map_or(Arch::Any, Isa::arch)),
            device = kernel.device,
            id = match &kernel.body {
                Some(path) => format!("KernelId({:#018x}).with_body({path}::BODY)", kernel.id),
                None => format!("KernelId({:#018x})", kernel.id),
            },
            name = kernel.name,
            op = kernel.op,
            format = kernel.format,
            quantizer = kernel.quantizer,
            isa = option(kernel.isa.map(|isa| format!("Isa::{isa:?}"))),
            m = rule(kernel.shape.m),
            n = rule(kernel.shape.n),
            k = rule(kernel.shape.k),
            source = kernel.source,
            plan = kernel.plan,
            code = kernel.code,
        );
    }
    out.push_str("] };\n");
    out
}

/// The candidate match for one architecture (`Any`: all those that have no variants of their own).
fn candidates(set: &SpecSet, listed: &[Listed], arch: Arch) -> String {
    let on_arch: Vec<&Listed> = listed
        .iter()
        .filter(|l| l.isa.is_none_or(|isa| isa.arch() == Arch::Any || isa.arch() == arch))
        .collect();
    let list = |op: Op, format: usize, input: DType, device: DeviceKind| -> Vec<usize> {
        let mut found: Vec<usize> = (0..on_arch.len())
            .filter(|&i| {
                let kernel = on_arch[i];
                kernel.op == op
                    && kernel.device == device
                    && kernel.format == format
                    && kernel.input.contains(&input)
            })
            .collect();
        // Better ISA, then more specific requirements, then the order of the files and in them.
        found.sort_by(|&a, &b| on_arch[b].rank.cmp(&on_arch[a].rank));
        found
    };
    let arms = |op: Op, format: usize, pattern: &str| -> String {
        let mut out = String::new();
        let mut groups: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
        for &input in DType::ALL {
            for &device in DeviceKind::ALL {
                let found = list(op, format, input, device);
                let key = format!("(DType::{input:?}, DeviceKind::{device:?})");
                match groups.iter_mut().find(|(list, _)| *list == found) {
                    Some((_, keys)) => keys.push(key),
                    None => groups.push((found, vec![key])),
                }
            }
        }
        for (found, keys) in groups {
            let _ = writeln!(out, "{} => &{found:?},", keys.join(" | "));
        }
        format!("{pattern} => match (input, device) {{ {out} }}\n")
    };
    let mut body = String::new();
    for &op in Op::ALL {
        let (ty, names): (&str, Vec<&str>) = match op.info().serves {
            Serves::Activations => {
                ("ActivationFormat", set.activations.iter().map(|a| a.name.as_str()).collect())
            }
            Serves::Formats => ("Format", set.formats.iter().map(|f| f.name.as_str()).collect()),
        };
        let mut inner = String::new();
        for (index, name) in names.iter().enumerate() {
            inner.push_str(&arms(op, index, &format!("{ty}::{}", enumerator(name))));
        }
        let _ = write!(
            body,
            "Op::{op:?} => {{
                 if format >= {ty}::ALL.len() {{ return &[] }}
                 match {ty}::ALL[format] {{ {inner} }}
             }}"
        );
    }
    let cfg = match arch {
        Arch::Any => "#[cfg(not(any(target_arch = \"x86_64\", target_arch = \"aarch64\")))]\n".to_string(),
        Arch::X86 | Arch::Aarch64 => cfg(arch),
    };
    format!(
        "/// Kernels of this build by what they serve, in order of preference: every combination is spelled out.
         {cfg}const fn candidates(op: Op, format: usize, input: DType, device: DeviceKind) -> &'static [u16] {{
             match op {{ {body} }}
         }}\n"
    )
}
