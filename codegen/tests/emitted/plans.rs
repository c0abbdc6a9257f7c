//! Plans of CUDA kernels: as reviewed, one for each skeleton, and what they say of shared memory held against the text.

use super::golden;
use super::skeletons::only;
use gristmill_codegen::cuda;
use gristmill_spec::vocab::CudaAlgorithm;
use gristmill_spec::{SourceFile, check, shipped};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Formats and the ends of names, behind the op and the format.
const KERNELS: [(&str, &str); 15] = [
    ("i2_s", "cuda.dp4a.fused"),
    ("i2_s", "cuda.dp4a"),
    ("i2_s", "cuda.mma"),
    ("i2_s", "cuda.mma.prefill"),
    ("i2_s", "cuda.wgmma.prefill"),
    ("i2_s", "cuda.fma"),
    ("i2_s", "cuda.mma_f16"),
    ("i2_s", "cuda.wgmma_f16.prefill"),
    ("mxfp4", "cuda.mma_fp4"),
    ("i2_s", "absmean.cuda"),
    ("q4_0", "cuda.wgmma.runs"),
    ("q4_k", "cuda.wgmma.superblocks"),
    ("q4_k", "cuda.dp4a"),
    ("q4_k", "cuda.mma"),
    ("q4_k", "cuda.mma.prefill"),
];

#[test]
fn plans_of_cuda_kernels_are_as_reviewed() {
    let mut out = String::new();
    for (format, end) in KERNELS {
        let emitted = cuda::emit(&only(format)).expect("plans");
        let names = [format!("matmul.{format}.{end}"), format!("quantize.{format}.{end}")];
        let kernel = emitted.listed.iter().find(|listed| names.contains(&listed.name));
        let kernel = kernel.unwrap_or_else(|| panic!("{format} has no kernel {end}"));
        let words = kernel.plan.to_string().replace("; ", "\n    ");
        let _ = writeln!(out, "{}\n    {words}", kernel.name);
    }
    golden("cuda_plans.txt", &out);
}

/// The value of a sum of products of numbers, and of names that `text` has as enumerators.
fn value(expression: &str, text: &str) -> u32 {
    let factor = |word: &str| -> u32 {
        let of_name = || {
            let (_, rest) = text.split_once(&format!("{word} = "))?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let number = word.parse().ok().or_else(of_name);
        number.unwrap_or_else(|| panic!("`{word}` of `{expression}` has no value"))
    };
    expression.split(" + ").map(|product| product.split(" * ").map(factor).product::<u32>()).sum()
}

/// Bytes that a kernel declares of shared memory, and those up to which it places arrays in what its launch gives it.
fn declared(kernel: &str, text: &str) -> (u32, u32) {
    let (mut own, mut given) = (0, 0);
    for (_, rest) in kernel.split("GM_SHARED").skip(1).filter_map(|rest| rest.split_once('(')) {
        let Some((arguments, _)) = rest.split_once(");") else { continue };
        let words: Vec<&str> = arguments.split(", ").collect();
        let size = |ty: &str| match ty {
            "u8" | "i8" => 1,
            "u16" => 2,
            "u32" | "i32" | "f32" => 4,
            "u64" => 8,
            other => panic!("type {other}"),
        };
        match words[..] {
            [ty, _, count] => own += size(ty) * value(count, text),
            [ty, _, count, from] => given = given.max(value(from, text) + size(ty) * value(count, text)),
            _ => panic!("{arguments}"),
        }
    }
    (own, given)
}

#[test]
fn plans_say_what_kernels_take_of_shared_memory() {
    let set = check(&shipped().expect("readable")).set.expect("the shipped specs have no mistakes");
    let emitted = cuda::emit(&set).expect("plans");
    let mut seen = BTreeSet::new();
    for listed in &emitted.listed {
        let Some(shared) = listed.plan.shared else { continue };
        let function = listed.plan.launch.function();
        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
        let (_, text) = unit.text.split_once(cuda::DEVICE_HEADER).expect("the header stands in front");
        let (head, _) = text.split_once(&format!("GM_EXPORT({function})")).expect("the kernel is exported");
        let start = head.rfind("\nGM_KERNEL").expect("a kernel");
        let (own, given) = declared(&head[start..], text);
        let case = format!("{}: {own} bytes declared, {given} given, {shared} planned", listed.name);
        if given == 0 {
            assert_eq!(own, shared, "{case}");
        } else {
            // Barriers of each kind have room for four stages.
            assert!(own == 0 && given <= shared && shared - given <= 8, "{case}");
        }
        seen.insert((listed.algorithm.name(), listed.fused));
    }
    assert_eq!(seen.len(), 11, "every skeleton of products: {seen:?}");
}

/// A format whose blocks have so many bytes, most of them unused: with an f32 scale and offset for each element, or with a
/// scale of the block and a quantizer.
fn of_size(name: &str, elements: u32, bytes: u32, terms: bool) -> SourceFile {
    let factors = if terms { elements } else { 1 };
    let fields = if terms { 2 } else { 1 };
    let mut text = format!("doc = \"of any size\"\nblock = {{ elements = {elements}, bytes = {bytes} }}\n");
    let _ = writeln!(text, "activations = \"int8_row\"");
    let used = 8 * elements + fields * 32 * factors;
    if used < 8 * bytes {
        let _ = writeln!(text, "unused = [{{ offset = {used}, bits = {} }}]", 8 * bytes - used);
    }
    let field = |name: &str, ty: &str, count: u32, bits: u32, offset: u32| {
        let layout = format!("layout = {{ shape = [{count}], stride = [{bits}], offset = {offset} }}");
        format!("[[field]]\nname = \"{name}\"\ntype = \"{ty}\"\n{layout}\n")
    };
    text += &field("code", "u8", elements, 8, 0);
    text += &field("scale", "f32", factors, 32, 8 * elements);
    if terms {
        text += &field("min", "f32", factors, 32, 8 * elements + 32 * factors);
        text += "[value]\ncode = \"code\"\nscale = \"scale\"\nadd = \"min\"\n";
    } else {
        text += "[value]\ncode = \"code\"\nzero = 128\nscale = \"scale\"\n";
        text += "[[quantize]]\nname = \"absmax\"\nscale = \"absmax\"\nlevels = 127\nround = \"half-away\"\n";
    }
    SourceFile { path: format!("kernel-spec/formats/{name}.toml"), bytes: text.into_bytes() }
}

/// A random format of four elements with a scale and an offset each had 57 KiB of arrays where a kernel may declare 48.
#[test]
fn kernels_over_blocks_of_any_size_fit_into_shared_memory() {
    let mut sources = shipped().expect("readable");
    let keep = |path: &str| {
        !["/formats/", "/imports/", "/matmul.toml", "coverage.toml"].iter().any(|part| path.contains(part))
    };
    sources.retain(|source| keep(&source.path));
    // Elements, bytes, and whether each element has its terms.
    let sizes = [
        (4, 36, true),
        (4, 300, true),
        (64, 580, true),
        (896, 8064, true),
        (1, 8192, false),
        (16, 20, false),
        (16, 8192, false),
        (1000, 8192, false),
        (1024, 8192, false),
        (2048, 2052, false),
        (2048, 8192, false),
        (2049, 2053, false),
        (32, 8193, false),
        (60_000, 60_004, false),
    ];
    for (elements, bytes, terms) in sizes {
        sources.push(of_size(&format!("of_{elements}_{bytes}"), elements, bytes, terms));
    }
    let report = check(&sources);
    let set = report.set.unwrap_or_else(|| panic!("{:#?}", report.diagnostics));
    let emitted = cuda::emit(&set).expect("plans");
    let mut most = 0;
    for listed in emitted.listed.iter().filter(|listed| listed.algorithm == CudaAlgorithm::Blocks) {
        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
        let (_, text) = unit.text.split_once(cuda::DEVICE_HEADER).expect("the header stands in front");
        for kernel in text.split("\nGM_KERNEL").skip(1) {
            let (own, given) = declared(kernel, text);
            assert!(own <= 48 * 1024 && given == 0, "{}: {own} bytes", listed.name);
            most = most.max(own);
        }
    }
    assert!(most > 40 * 1024, "some use what there is: {most}");
    // What is too large has no such kernel, and says why where it is asked for one.
    let has = |name: &str| emitted.listed.iter().filter(|kernel| kernel.name.contains(name)).count();
    assert_eq!(
        has("dequantize.of_2049_2053") + has("dequantize.of_32_8193") + has("quantize.of_60000_60004"),
        0
    );
    assert!(has("dequantize.of_2048_8192") > 0 && has("quantize.of_2048_2052") > 0);
}
