//! Plans of CUDA kernels: as reviewed, one for each skeleton, and what they say of shared memory held against the text.

use super::golden;
use super::skeletons::only;
use gristmill_codegen::cuda;
use gristmill_spec::{check, shipped};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Formats and the ends of names, behind the op and the format.
const KERNELS: [(&str, &str); 12] = [
    ("i2_s", "cuda.dp4a.fused"),
    ("i2_s", "cuda.dp4a"),
    ("i2_s", "cuda.mma"),
    ("i2_s", "cuda.mma.prefill"),
    ("i2_s", "cuda.wgmma.prefill"),
    ("i2_s", "cuda.fma"),
    ("i2_s", "cuda.mma_f16"),
    ("i2_s", "cuda.wgmma_f16.prefill"),
    ("i2_s", "absmean.cuda"),
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
    assert_eq!(seen.len(), 9, "every skeleton of products: {seen:?}");
}
