//! How a registry decides, as `gristmill explain --json` and `gristmill::json` tell it.

use crate::registry::Image;
use serde::{Deserialize, Serialize};

pub use crate::receipt::{FromMemory, HeldOnce};

/// A decision: is there a kernel, which one, and why not the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What is to be computed.
    pub op: String,
    /// The weight format, or the activation format where the op is for those.
    pub format: String,
    /// Type of the operand that is not packed.
    pub input: String,
    /// Where: `cpu`, `cuda:0`.
    pub device: String,
    /// The shape that it was decided for.
    pub shape: Shape,
    /// The kernel; null where there is none.
    pub chosen: Option<String>,
    /// Its plan.
    pub plan: Option<String>,
    /// The image of it that a GPU loads; null on the processor.
    pub image: Option<Image>,
    /// How many CUDA blocks of its last function a multiprocessor holds, where that is known.
    pub occupancy: Option<Occupancy>,
    /// Into how many parts k is divided; 1 on the processor.
    pub split_k: u32,
    /// Memory for one thread; null but for products.
    pub memory: Option<Memory>,
    /// Why weights are held in the packing with the fewest bytes, where that is why.
    pub from_memory: Option<FromMemory>,
    /// Why weights are held once on a GPU, where they are held in a packing that is not the preferred one for one token.
    pub held_once: Option<HeldOnce>,
    /// What a tuning says of it; null without one of the format and class of shapes.
    pub tuned_by: Option<TunedBy>,
    /// The kernels that were not chosen.
    pub rejected: Vec<Rejected>,
}

/// A shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Tokens.
    pub m: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
}

/// How many CUDA blocks a multiprocessor holds at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// The blocks.
    pub blocks_per_multiprocessor: u32,
    /// What there would have to be more of.
    pub limited_by: String,
}

/// Memory of a product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The packing of the weights; null where they are held as the rows of the format.
    pub packing: Option<String>,
    /// Bytes of the weights in it.
    pub weight_bytes: u64,
    /// Bits a weight.
    pub bits_per_weight: f64,
    /// Bytes of the workspace for one thread.
    pub workspace_bytes: u64,
}

/// What a tuning says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedBy {
    /// On how many threads the kernels were measured.
    pub threads: u64,
    /// How many threads work on it, where fewer than there are were measured to be faster.
    pub fewer_threads: Option<u64>,
    /// Microseconds of the chosen kernel; null where it was not measured.
    pub us: Option<f64>,
    /// The fastest kernel that was measured.
    pub fastest: Option<String>,
    /// Its microseconds.
    pub fastest_us: Option<f64>,
    /// Weights are held in this packing for all numbers of tokens, since its kernels lose least to the fastest of each number.
    pub packing: Option<String>,
}

/// A kernel that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// The kernel; null where the reason holds for every kernel there could be.
    pub kernel: Option<String>,
    /// Why.
    pub reason: String,
    /// What would turn this no into a yes, where something would.
    pub help: Option<String>,
}

/// What is decided for a tensor of a model, before anything is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorPlan {
    /// Its name.
    pub tensor: String,
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its dimensions as in the file, the contiguous one first.
    pub dims: Vec<u64>,
    /// Whether it is quantized.
    pub quantized: bool,
    /// The kernel of its products.
    pub kernel: Option<String>,
    /// Why a quantized tensor has none.
    pub reason: Option<String>,
}
