//! What a build has: formats and kernels, as `gristmill list --json` and `gristmill::json` have them.

use serde::{Deserialize, Serialize};

/// A weight format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Format {
    /// Its name.
    pub name: String,
    /// One line for people.
    pub doc: String,
    /// Where it is described.
    pub source: String,
    /// Its type number in GGUF files, where it has one.
    pub gguf: Option<u32>,
    /// Weights of a block.
    pub elements: u64,
    /// Bytes of a block.
    pub bytes: u64,
    /// Bits a weight, row headers and tensor tails not counted.
    pub bits_per_weight: f64,
    /// The type of the number in front of each row, where there is one: `f16`, `bf16` or `f32`.
    pub row_header: Option<String>,
    /// What stands behind all rows, where something does.
    pub tensor_tail: Option<TensorTail>,
    /// What quantizes to it; the first is the default.
    pub quantizers: Vec<String>,
    /// The format that activations are quantized to for its products.
    pub activations: Option<String>,
}

/// What stands behind the rows of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorTail {
    /// The type of its number.
    #[serde(rename = "type")]
    pub number: String,
    /// All of its bytes.
    pub bytes: u64,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// What it computes.
    pub op: String,
    /// The weight format, or the activation format where the op is for those.
    pub format: String,
    /// `cpu` or `cuda`.
    pub device: String,
    /// Its instruction set; null on GPUs.
    pub isa: Option<String>,
    /// The processor's features that it uses.
    pub features: Vec<String>,
    /// Whether this processor has them; null for kernels of other devices, since none is looked for.
    pub runs_here: Option<bool>,
    /// How specialized it is.
    pub tier: String,
    /// The packing of weights that it reads; null where it reads the rows of the format.
    pub packing: Option<String>,
    /// Bits a weight in that packing; null where it reads no packed weights.
    pub bits_per_weight: Option<f64>,
    /// What is multiplied; null for what is no product.
    pub precision: Option<String>,
    /// The lowest compute capability; null for code of the processor.
    pub min_cc: Option<String>,
    /// Whether it multiplies with tensor cores; null for code of the processor.
    pub tensor_cores: Option<bool>,
    /// The shapes that it takes.
    pub shape: ShapeRules,
    /// Code for GPUs; null for code of the processor.
    pub images: Option<Vec<Image>>,
    /// `file:line` of its variant.
    pub source: String,
    /// What the compiler decided, in words.
    pub plan: String,
}

/// Bounds on a shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShapeRules {
    /// Tokens.
    pub m: DimRule,
    /// Rows of the weights.
    pub n: DimRule,
    /// Elements of a row.
    pub k: DimRule,
}

/// Bounds on one dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DimRule {
    /// Smallest allowed.
    pub min: u64,
    /// Largest allowed; null where any is.
    pub max: Option<u64>,
    /// Must be a multiple of this.
    pub multiple_of: u64,
}

/// Code of a kernel for a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The architecture it was compiled for, as `90a`.
    pub arch: String,
    /// `cubin` or `ptx`.
    pub kind: String,
    /// The drivers that load it: `R525` and newer.
    pub min_driver: String,
    /// The CUDA of those drivers.
    pub min_cuda: String,
    /// Its size.
    pub bytes: u64,
    /// What its functions use; null for PTX, for which the driver decides.
    pub functions: Option<Vec<Function>>,
}

/// What a function of an image uses of a multiprocessor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name in the image.
    pub function: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory of a CUDA block at launch.
    pub shared_bytes: u32,
    /// Local memory of a thread.
    pub stack_bytes: u32,
}

/// A kernel that is not to be used any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Its identity.
    pub id: String,
    /// Its name; null where whoever put it there did not say it.
    pub kernel: Option<String>,
    /// Why.
    pub why: String,
}
