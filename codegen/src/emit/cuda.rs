//! CUDA kernels in the registry: a static for the images of each unit, and an entry for each kernel that has one.

use super::listed::Listed;
use crate::Error;
use crate::cuda::compile::Usage;
use crate::cuda::{
    CONVERT, CudaListed, CudaPlan, EXPERTS, Launch, RowsQuantizer, Step, convert_launch, experts_launch,
};
use crate::hash::hash;
use crate::options::{CudaImages, Options};
use crate::text::{joined, option};
use gristmill_spec::model::SpecSet;
use gristmill_spec::vocab::{CudaAlgorithm, CudaArch, DeviceKind};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What there is to write into the generated file.
#[derive(Debug, Default)]
pub struct Images {
    /// Statics.
    pub text: String,
    /// Elements of the registry's `without_image`.
    pub without: String,
    /// The registry's `convert`, where it has an image.
    pub convert: Option<String>,
    /// The registry's `experts`, likewise.
    pub experts: Option<String>,
}

/// Lists the CUDA kernels that have an image, and tells what the others lack.
pub fn images(set: &SpecSet, options: &Options, listed: &mut Vec<Listed>) -> Result<Images, Vec<Error>> {
    let mut out = Images::default();
    let emitted = crate::cuda::emit(set)?;
    let (files, failures, compiler) = match &options.cuda {
        CudaImages::Built { images, failures, compiler, .. } => {
            (images.as_slice(), failures.as_slice(), compiler.as_str())
        }
        CudaImages::Off | CudaImages::NoToolchain { .. } => (&[][..], &[][..], ""),
    };
    let held: BTreeSet<&str> = files.iter().map(|file| file.unit.as_str()).collect();
    for unit in emitted.units.iter().filter(|unit| held.contains(unit.name.as_str())) {
        let each = files
            .iter()
            .filter(|file| file.unit == unit.name)
            .map(|file| {
                format!(
                    "CudaImage {{ arch: {}, ptx: {}, driver: CudaVersion {{ major: {}, minor: {} }}, usage: &[{}], size: {}, packed: include_bytes!({:?}) }}",
                    arch(file.arch),
                    file.ptx,
                    file.driver.0,
                    file.driver.1,
                    usage(&file.usage),
                    file.size,
                    file.path.display().to_string()
                )
            });
        let _ =
            writeln!(out.text, "static {}: &[CudaImage] = &[{}];", statics(&unit.name), joined(each, ", "));
    }
    let apart = |unit: &str, of: &Launch| {
        let needs = ((5, 0), CudaAlgorithm::Blocks, false);
        held.contains(unit).then(|| code(unit, needs, of))
    };
    out.convert = apart(CONVERT, &convert_launch());
    out.experts = apart(EXPERTS, &experts_launch());
    for kernel in &emitted.listed {
        if !held.contains(kernel.unit.as_str()) {
            out.without.push_str(&without(kernel, failures));
            continue;
        }
        let text = emitted.units.iter().find(|unit| unit.name == kernel.unit).map_or("", |unit| &unit.text);
        listed.push(entry(kernel, text, compiler, options));
    }
    Ok(out)
}

/// Rust for the code of a kernel in a unit: the compute capability it needs, its algorithm, and whether it overlaps the launch in front.
fn code(unit: &str, (min_cc, algorithm, overlaps): ((u8, u8), CudaAlgorithm, bool), of: &Launch) -> String {
    format!(
        "CudaCode {{ images: {}, min_cc: {min_cc:?}, algorithm: CudaAlgorithm::{algorithm:?}, overlaps: {overlaps}, launch: {} }}",
        statics(unit),
        launch(of)
    )
}

fn entry(kernel: &CudaListed, text: &str, compiler: &str, options: &Options) -> Listed {
    Listed {
        id: hash([kernel.name.as_str(), text, compiler, &options.compiler, env!("CARGO_PKG_VERSION")]),
        // Its text is in that of its translation unit.
        body: None,
        name: kernel.name.clone(),
        op: kernel.op,
        format: kernel.format,
        quantizer: kernel.quantizer,
        input: kernel.input.clone(),
        device: DeviceKind::Cuda,
        isa: None,
        features: Vec::new(),
        shape: kernel.shape,
        source: kernel.source.clone(),
        plan: kernel.plan.words.clone(),
        code: {
            let CudaPlan { overlaps, launch, .. } = &kernel.plan;
            format!(
                "Code::Cuda({})",
                code(&kernel.unit, (kernel.min_cc, kernel.algorithm, *overlaps), launch)
            )
        },
        // What a spec writes by hand goes before what is generated, of whichever family.
        rank: (true, None, usize::from(kernel.hand_written), std::cmp::Reverse(kernel.order)),
    }
}

/// An element of `without_image`.
fn without(kernel: &CudaListed, failures: &[(String, CudaArch, String)]) -> String {
    let words = failures.iter().filter(|(unit, _, _)| *unit == kernel.unit).map(|(_, failed, message)| {
        format!("({}, {:?})", arch(*failed), joined(message.lines().take(8), "\n"))
    });
    format!(
        "WithoutImage {{ name: {:?}, op: Op::{:?}, format: {}, source: {:?}, failures: &[{}] }},",
        kernel.name,
        kernel.op,
        kernel.format,
        kernel.source,
        joined(words, ", ")
    )
}

/// Rust for a launch.
fn launch(launch: &Launch) -> String {
    let numbers = fields(&launch.fields());
    match launch {
        Launch::Elements { op, function, .. } => {
            format!("CudaLaunch::Elements {{ op: Op::{op:?}, function: {function:?}, {numbers} }}")
        }
        Launch::Quantize { function, step, .. } => {
            let step = step.as_ref().map(|Step { chunks, finish, threads, chunk }| {
                let numbers = fields(&[("threads", *threads), ("chunk", *chunk)]);
                format!("chunks: {chunks:?}, finish: {finish:?}, {numbers}")
            });
            let step = optional("CudaStep", step);
            format!("CudaLaunch::Quantize {{ function: {function:?}, {numbers}, step: {step} }}")
        }
        Launch::Matmul { function, packed, elements, multiple, split, fused, grouped, .. } => {
            let packing = format!("&{}::PACK_{}", packed.0, packed.1.to_uppercase());
            let split = optional("CudaSplit", split.map(|split| fields(&split.fields())));
            format!(
                "CudaLaunch::Matmul {{ function: {function:?}, {numbers}, packing: {packing}, unit: Unit {{ elements: {elements}, multiple: {multiple} }}, split: {split}, fused: {fused}, grouped: {grouped:?} }}"
            )
        }
        Launch::Rows { function, check, precision, quantizer, .. } => {
            let quantizer = quantizer.as_ref().map(|RowsQuantizer { function, threads, elements, bytes }| {
                let numbers = fields(&[("threads", *threads), ("elements", *elements), ("bytes", *bytes)]);
                format!("function: {function:?}, {numbers}")
            });
            let quantizer = optional("CudaRowsQuantizer", quantizer);
            format!(
                "CudaLaunch::Rows {{ function: {function:?}, check: {check:?}, precision: Precision::{precision:?}, {numbers}, quantizer: {quantizer} }}"
            )
        }
        Launch::Activations { op, function, .. } => {
            format!("CudaLaunch::Activations {{ op: Op::{op:?}, function: {function:?}, {numbers} }}")
        }
        Launch::Experts { route, gather, combine, .. } => format!(
            "CudaLaunch::Experts {{ route: {route:?}, gather: {gather:?}, combine: {combine:?}, {numbers} }}"
        ),
        Launch::Convert { function, .. } => {
            format!("CudaLaunch::Convert {{ function: {function:?}, {numbers} }}")
        }
    }
}

/// Rust for fields that are numbers.
fn fields(numbers: &[(&str, u32)]) -> String {
    joined(numbers.iter().map(|(name, number)| format!("{name}: {number}")), ", ")
}

/// Rust for a struct with such fields, or none.
fn optional(name: &str, fields: Option<String>) -> String {
    option(fields.map(|fields| format!("{name} {{ {fields} }}")))
}

/// Rust for what functions use.
fn usage(each: &[Usage]) -> String {
    let words = each.iter().map(|usage| {
        let Usage { kernel, registers, shared, stack, .. } = usage;
        format!(
            "CudaUsage {{ function: {kernel:?}, registers: {registers}, shared: {shared}, stack: {stack} }}"
        )
    });
    joined(words, ", ")
}

/// Rust for an architecture.
pub fn arch(arch: CudaArch) -> String {
    let CudaArch { major, minor, specific } = arch;
    format!("CudaArch {{ major: {major}, minor: {minor}, specific: {specific} }}")
}

/// Name of the static that holds a unit's images.
fn statics(unit: &str) -> String {
    format!("IMAGES_{}", unit.to_uppercase())
}
