//! What a registry holds and how it decides, as JSON: the same objects from the command and from other languages.
//!
//! ```
//! use gristmill::{REGISTRY, Request, Shape, json};
//!
//! let shape = Shape::new(1, 64, 250);
//! let prepared = REGISTRY.prepare(&Request::matmul("i2_s", shape))?;
//! let answer = json::decision(&prepared.decide(shape));
//! assert!(answer["chosen"].is_null());
//! let reasons: Vec<_> = answer["rejected"].as_array().into_iter().flatten().map(|no| &no["reason"]).collect();
//! assert!(reasons.iter().any(|reason| *reason == "k = 250, but rows are whole blocks of 128"));
//! # Ok::<(), gristmill::Error>(())
//! ```

use crate::gguf::{Model, TensorType};
use gristmill_runtime::registry::{
    Code, CudaCode, CudaImage, CudaUsage, DimRule, Entry, FormatInfo, OuterType,
};
use gristmill_runtime::vocab::DeviceKind;
use gristmill_runtime::{
    CpuProfile, CudaVersion, Decision, Device, Error, FromMemory, HeldOnce, Registry, Request, Restrict,
    Shape, Threads, TunedBy, Tuning,
};
use serde_json::{Value, json};

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

fn outer_name(outer: OuterType) -> &'static str {
    match outer {
        OuterType::F16 => "f16",
        OuterType::Bf16 => "bf16",
        OuterType::F32 => "f32",
    }
}

/// A format: `{"name", "doc", "source", "gguf", "elements", "bytes", "bits_per_weight", "row_header", "tensor_tail",
/// "quantizers", "activations"}`. `elements` weights are `bytes` bytes; the first quantizer is the default.
pub fn format(registry: &Registry, format: &FormatInfo) -> Value {
    json!({
        "name": format.name,
        "doc": format.doc,
        "source": format.source,
        "gguf": format.gguf,
        "elements": format.elements,
        "bytes": format.bytes,
        "bits_per_weight": bits_per_weight(format),
        "row_header": format.row_header.map(outer_name),
        "tensor_tail": format.tensor_tail.map(|(outer, bytes)| json!({"type": outer_name(outer), "bytes": bytes})),
        "quantizers": format.quantizers,
        "activations": registry.activations.get(format.activations).map(|a| a.name),
    })
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

/// What a kernel's functions use of a multiprocessor by one of its images, `[{"function", "registers", "shared_bytes",
/// "stack_bytes"}]`: registers and local memory of a thread, shared memory of a CUDA block at launch. Null for PTX, for which
/// the driver decides.
fn usage(entry: &Entry, image: &CudaImage) -> Value {
    match cuda_usage(entry, image) {
        Some(each) => json!(
            each.iter()
                .map(|usage| json!({
                    "function": usage.function,
                    "registers": usage.registers,
                    "shared_bytes": usage.shared,
                    "stack_bytes": usage.stack,
                }))
                .collect::<Vec<_>>()
        ),
        None => Value::Null,
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

/// An image of a kernel: `{"arch", "kind", "min_driver", "min_cuda", "bytes", "functions"}`.
pub fn image(entry: &Entry, image: &CudaImage) -> Value {
    json!({
        "arch": image.arch.to_string(),
        "kind": if image.ptx { "ptx" } else { "cubin" },
        "min_driver": min_driver(image),
        "min_cuda": image.driver.max(CudaVersion::OLDEST).to_string(),
        "bytes": image.size,
        "functions": usage(entry, image),
    })
}

/// The image of a decision's kernel that its device loads: null where none was chosen, and on the processor.
fn chosen_image(decision: &Decision<'_>) -> Value {
    let found = decision.chosen().and_then(|entry| Some((entry, decision.image()?)));
    found.map_or(Value::Null, |(entry, found)| image(entry, found))
}

/// A kernel: `{"name", "id", "op", "format", "device", "isa", "features", "runs_here", "tier", "packing",
/// "bits_per_weight", "precision", "min_cc", "tensor_cores", "shape", "images", "source",
/// "plan"}`. `precision` (what is multiplied) is null for what is no product, `images` (`arch`, `kind`, `min_driver`, `min_cuda`, `bytes`
/// and `functions` of each) for code of the processor, `runs_here` for kernels of other devices, since none is looked for.
pub fn kernel(registry: &'static Registry, entry: &Entry) -> Value {
    let rule = |rule: DimRule| {
        json!({
            "min": rule.min,
            "max": (rule.max < u64::MAX).then_some(rule.max),
            "multiple_of": rule.multiple_of,
        })
    };
    let cuda = match entry.code {
        Code::Cuda(code) => Some(code),
        _ => None,
    };
    json!({
        "name": entry.name,
        "id": entry.id.to_string(),
        "op": entry.op.name(),
        "format": format_name(registry, entry),
        "device": entry.device.name(),
        "isa": entry.isa.map(|isa| isa.name()),
        "features": entry.features.iter().map(|feature| feature.name()).collect::<Vec<_>>(),
        "runs_here": (entry.device == DeviceKind::Cpu).then(|| runs_here(entry)),
        "tier": entry.tier().name(),
        "packing": entry.code.packing().map(|packing| packing.name),
        "bits_per_weight": registry.bits_per_weight(entry),
        "precision": entry.precision().map(|precision| precision.name()),
        "min_cc": cuda.map(|code| format!("{}.{}", code.min_cc.0, code.min_cc.1)),
        "tensor_cores": cuda.map(|code| code.algorithm.tensor_cores()),
        "shape": {"m": rule(entry.shape.m), "n": rule(entry.shape.n), "k": rule(entry.shape.k)},
        "images": (entry.device == DeviceKind::Cuda)
            .then(|| images(entry).iter().map(|of| image(entry, of)).collect::<Vec<_>>()),
        "source": entry.source,
        "plan": entry.plan,
    })
}

/// Into how many parts k is divided (split-K) for the shape and device of a decision; 1 on the processor.
pub fn split_k(decision: &Decision<'_>) -> u32 {
    match (decision.chosen().map(|entry| &entry.code), decision.prepared().gpu()) {
        (Some(Code::Cuda(CudaCode { launch, .. })), Some(gpu)) => {
            launch.split_k(decision.shape(), gpu.multiprocessors)
        }
        _ => 1,
    }
}

/// Why weights are held in the packing with the fewest bytes: `{"packing", "instead_of", "working_set", "cache"}`, the last
/// two in bytes.
pub fn from_memory(why: &FromMemory) -> Value {
    json!({
        "packing": why.packing,
        "instead_of": why.instead_of,
        "working_set": why.working_set,
        "cache": why.cache,
    })
}

/// Why weights are held in one packing on a GPU that is not the preferred one for a token: `{"packing", "instead_of"}`.
pub fn held_once(why: &HeldOnce) -> Value {
    json!({"packing": why.packing, "instead_of": why.instead_of})
}

/// What a tuning says of a decision: `{"threads", "fewer_threads", "us", "fastest", "fastest_us", "packing"}`, null where it says nothing.
pub fn tuned_by(tuned: &TunedBy) -> Value {
    json!({
        "threads": tuned.threads,
        "fewer_threads": tuned.fewer_threads,
        "us": tuned.us,
        "fastest": tuned.fastest.map(|(name, _)| name),
        "fastest_us": tuned.fastest.map(|(_, us)| us),
        "packing": tuned.packing,
    })
}

/// A decision: `{"op", "format", "input", "device", "shape", "chosen", "plan", "image", "occupancy", "split_k", "memory", "from_memory", "held_once", "tuned_by",
/// "rejected": [{"kernel", "reason", "help"}]}`. `image` is what a GPU loads ([`kernel`] has its fields),
/// `occupancy` how many CUDA blocks of its last function a multiprocessor holds (`blocks_per_multiprocessor`, `limited_by`). `chosen` is null where there is no kernel; `memory` (for one thread) is null but for products,
/// `from_memory` ([`from_memory`]) where the packing was not chosen for having the fewest bytes, `held_once` ([`held_once`]) where it was
/// not so that a GPU holds weights once, `tuned_by` ([`tuned_by`]) without a tuning of the format and class of shapes.
pub fn decision(decision: &Decision<'_>) -> Value {
    let (prepared, shape) = (decision.prepared(), decision.shape());
    let memory = decision.memory(&Threads::single()).ok();
    json!({
        "op": prepared.op().name(),
        "format": prepared.format_name(),
        "input": prepared.input().name(),
        "device": prepared.device().to_string(),
        "shape": {"m": shape.m, "n": shape.n, "k": shape.k},
        "chosen": decision.chosen().map(|entry| entry.name),
        "plan": decision.chosen().map(|entry| entry.plan),
        "image": chosen_image(decision),
        "occupancy": decision.occupancy().map(|of| json!({
            "blocks_per_multiprocessor": of.blocks,
            "limited_by": of.limit.name(),
        })),
        "split_k": split_k(decision),
        "memory": memory.map(|memory| json!({
            "packing": memory.packing,
            "weight_bytes": memory.weight_bytes,
            "bits_per_weight": memory.bits_per_weight,
            "workspace_bytes": memory.workspace.bytes(),
        })),
        "from_memory": decision.packing_reason().map(from_memory),
        "held_once": decision.once_reason().map(held_once),
        "tuned_by": decision.tuned_by().as_ref().map(tuned_by),
        "rejected": decision.rejected().map(|rejection| json!({
            "kernel": rejection.kernel,
            "reason": rejection.reason.to_string(),
            "help": rejection.reason.help(),
        })).collect::<Vec<_>>(),
    })
}

/// A decision for each tensor of a model and `m` tokens, before anything is loaded: `[{"tensor", "type", "dims", "quantized",
/// "kernel", "reason"}]`. `dims` are as in the file, the contiguous one first; `reason` says why a quantized tensor has no
/// kernel. The environment counts for nothing.
///
/// # Errors
/// As for [`Registry::prepare_tuned`].
pub fn plan(model: &Model, device: Device, m: usize) -> Result<Value, Error> {
    let (restrict, tuning) = (Restrict::default(), Tuning::none());
    let working_set = Some(model.file().working_set());
    let mut tensors = Vec::new();
    for tensor in model.file().tensors() {
        let resolved = model.types().of(&tensor);
        let quantized = !matches!(resolved, Ok(TensorType::Plain(_)));
        let answer = match (resolved, matrix(tensor.dims())) {
            (Ok(TensorType::Plain(_)), _) => Ok(None),
            (Ok(_), None) => Err(String::from("its dimensions do not fit the address space")),
            (Ok(TensorType::Format(resolved)), Some((n, k))) => Ok(Some((resolved.format, n, k))),
            (Ok(TensorType::Tiled(tiled)), Some((n, k))) => {
                let read = model.types().import_of(tiled.layout, n, k);
                read.map(|(_, format)| Some((format, n, k))).map_err(|why| why.to_string())
            }
            (Err(error), _) => Err(error.to_string()),
        };
        let answer = match answer {
            Ok(Some((format, n, k))) => {
                let request = Request::matmul(format.name, Shape::new(m, n, k)).on(device);
                let request = request.with_working_set(working_set);
                let prepared =
                    model.registry().prepare_tuned(&request, CpuProfile::detect(), &restrict, &tuning)?;
                let kernel = prepared.decide_as_asked().kernel();
                kernel.map(|entry| Some(entry.name)).map_err(|error| error.to_string())
            }
            Ok(None) => Ok(None),
            Err(why) => Err(why),
        };
        tensors.push(json!({
            "tensor": tensor.name(),
            "type": model.types().name_of(&tensor),
            "dims": tensor.dims(),
            "quantized": quantized,
            "kernel": answer.as_ref().ok().copied().flatten(),
            "reason": answer.err(),
        }));
    }
    Ok(Value::Array(tensors))
}

/// Rows and elements of a row: the first dimension is contiguous, the others are rows. `None` where they do not fit the
/// address space.
pub(crate) fn matrix(dims: &[u64]) -> Option<(usize, usize)> {
    let k = usize::try_from(dims.first().copied().unwrap_or(1)).ok()?;
    let n = dims.iter().skip(1).try_fold(1u64, |n, dim| n.checked_mul(*dim))?;
    Some((usize::try_from(n).ok()?, k))
}
