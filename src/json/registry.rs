//! Formats, kernels and their images.

use gristmill_records::registry as record;
use gristmill_runtime::registry::{
    Code, CudaCode, CudaImage, CudaUsage, DimRule, Entry, FormatInfo, OuterType,
};
use gristmill_runtime::vocab::DeviceKind;
use gristmill_runtime::{CpuProfile, CudaVersion, Error, Quarantine, Quarantined, Registry};

/// Bits a weight, row headers and tensor tails not counted.
pub fn bits_per_weight(format: &FormatInfo) -> f64 {
    format.bytes as f64 * 8.0 / format.elements as f64
}

/// The format (or activation format) of a kernel; empty for an entry of another registry.
pub fn format_name(registry: &Registry, entry: &Entry) -> &'static str {
    registry.served(entry.op).nth(entry.format).unwrap_or_default()
}

/// Whether this processor has what a kernel uses.
pub fn runs_here(entry: &Entry) -> bool {
    entry.device == DeviceKind::Cpu && CpuProfile::detect().features.contains(entry.features)
}

fn outer_name(outer: OuterType) -> String {
    match outer {
        OuterType::F16 => "f16",
        OuterType::Bf16 => "bf16",
        OuterType::F32 => "f32",
    }
    .to_owned()
}

/// Kernels in quarantine.
pub fn quarantined(quarantine: &Quarantine) -> Vec<record::Quarantined> {
    let of = |Quarantined { id, kernel, why }| record::Quarantined { id: id.to_string(), kernel, why };
    quarantine.kernels().into_iter().map(of).collect()
}

/// A format.
pub fn format(registry: &Registry, format: &FormatInfo) -> record::Format {
    let tail = |(outer, bytes)| record::TensorTail { number: outer_name(outer), bytes: bytes as u64 };
    record::Format {
        name: format.name.to_owned(),
        doc: format.doc.to_owned(),
        source: format.source.to_owned(),
        gguf: format.gguf,
        elements: format.elements as u64,
        bytes: format.bytes as u64,
        bits_per_weight: bits_per_weight(format),
        row_header: format.row_header.map(outer_name),
        tensor_tail: format.tensor_tail.map(tail),
        quantizers: format.quantizers.iter().map(ToString::to_string).collect(),
        activations: registry.activations.get(format.activations).map(|of| of.name.to_owned()),
    }
}

/// Every format of a registry.
pub fn formats(registry: &Registry) -> Vec<record::Format> {
    registry.formats.iter().map(|of| format(registry, of)).collect()
}

/// Every kernel of a registry, or those of a format.
///
/// # Errors
/// [`Error::UnknownFormat`], [`Error::NotCompiled`].
pub fn kernels(registry: &'static Registry, only: Option<&str>) -> Result<Vec<record::Kernel>, Error> {
    if let Some(only) = only {
        registry.format(only)?;
    }
    let of = |entry: &&Entry| only.is_none_or(|only| format_name(registry, entry) == only);
    Ok(registry.entries.iter().filter(of).map(|entry| kernel(registry, entry)).collect())
}

/// The images of a kernel; none where it is code of the processor.
pub fn images(entry: &Entry) -> &'static [CudaImage] {
    match entry.code {
        Code::Cuda(code) => code.images,
        _ => &[],
    }
}

/// The drivers that load an image: `R525` and newer.
pub fn min_driver(image: &CudaImage) -> String {
    match image.driver.driver_branch() {
        Some(branch) => format!("R{branch}"),
        None => format!("CUDA {}", image.driver),
    }
}

/// The lowest compute capability of a kernel; `None` for code of the processor.
pub fn min_cc(entry: &Entry) -> Option<String> {
    match entry.code {
        Code::Cuda(code) => Some(format!("{}.{}", code.min_cc.0, code.min_cc.1)),
        _ => None,
    }
}

/// What each function that a kernel launches uses by one of its images, with the shared memory that the launch adds. `None`
/// for PTX.
pub fn cuda_usage(entry: &Entry, image: &CudaImage) -> Option<Vec<CudaUsage>> {
    let Code::Cuda(CudaCode { launch, .. }) = entry.code else { return None };
    let of = |(function, more)| {
        let usage = image.usage_of(function)?;
        Some(CudaUsage { shared: usage.shared + more, ..*usage })
    };
    launch.functions().into_iter().map(of).collect()
}

/// An image of a kernel.
pub fn image(entry: &Entry, image: &CudaImage) -> record::Image {
    let function = |usage: CudaUsage| record::Function {
        function: usage.function.to_owned(),
        registers: usage.registers,
        shared_bytes: usage.shared,
        stack_bytes: usage.stack,
    };
    record::Image {
        arch: image.arch.to_string(),
        kind: if image.ptx { "ptx" } else { "cubin" }.to_owned(),
        min_driver: min_driver(image),
        min_cuda: image.driver.max(CudaVersion::OLDEST).to_string(),
        bytes: image.size as u64,
        functions: cuda_usage(entry, image).map(|each| each.into_iter().map(function).collect()),
    }
}

fn dim_rule(rule: DimRule) -> record::DimRule {
    record::DimRule {
        min: rule.min,
        max: (rule.max < u64::MAX).then_some(rule.max),
        multiple_of: rule.multiple_of,
    }
}

/// A kernel.
pub fn kernel(registry: &'static Registry, entry: &Entry) -> record::Kernel {
    let of_gpu = || images(entry).iter().map(|of| image(entry, of)).collect();
    record::Kernel {
        name: entry.name.to_owned(),
        id: entry.id.to_string(),
        op: entry.op.name().to_owned(),
        format: format_name(registry, entry).to_owned(),
        device: entry.device.name().to_owned(),
        isa: entry.isa.map(|isa| isa.name().to_owned()),
        features: entry.features.iter().map(|feature| feature.name().to_owned()).collect(),
        runs_here: (entry.device == DeviceKind::Cpu).then(|| runs_here(entry)),
        tier: entry.tier().name().to_owned(),
        packing: entry.code.packing().map(|packing| packing.name.to_owned()),
        bits_per_weight: registry.bits_per_weight(entry),
        precision: entry.precision().map(|precision| precision.name().to_owned()),
        min_cc: min_cc(entry),
        tensor_cores: match entry.code {
            Code::Cuda(code) => Some(code.algorithm.tensor_cores()),
            _ => None,
        },
        shape: record::ShapeRules {
            m: dim_rule(entry.shape.m),
            n: dim_rule(entry.shape.n),
            k: dim_rule(entry.shape.k),
        },
        images: (entry.device == DeviceKind::Cuda).then(of_gpu),
        source: entry.source.to_owned(),
        plan: entry.plan.to_owned(),
    }
}
