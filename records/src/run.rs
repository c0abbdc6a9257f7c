//! What `gristmill run --json` prints.

use serde::{Deserialize, Serialize};

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Bytes of all tensors that were run, in the file.
    pub file_bytes: u64,
    /// The same, packed.
    pub packed_bytes: u64,
    /// Bytes of weights that take turns.
    pub working_set: Option<u64>,
    /// Formats that are held in the packing with the fewest bytes.
    pub from_memory: Vec<FromMemory>,
    /// Formats that a GPU holds once.
    pub held_once: Vec<HeldOnce>,
    /// One for each tensor and number of tokens.
    pub tensors: Vec<Product>,
    /// Quantized tensors that no kernel was found for.
    pub without_kernel: Vec<WithoutKernel>,
    /// Tensors whose data is no weights.
    pub defective: Vec<Defective>,
    /// Tensors that are not quantized.
    pub not_quantized: Vec<NotQuantized>,
    /// Tensors whose activations went through a transform.
    pub transformed: u64,
    /// Threads.
    pub threads: u64,
    /// What random numbers come from.
    pub seed: u64,
}

/// A product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// Name of the tensor.
    pub tensor: String,
    /// Its format.
    #[serde(rename = "type")]
    pub format: String,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// Tokens.
    pub m: u64,
    /// Of a stack of experts, how many each token goes through: the op `matmul_grouped`, and `n` is the rows of one of them. `None`: an
    /// ordinary product.
    pub experts: Option<u64>,
    /// Bytes of the weights in the file.
    pub file_bytes: u64,
    /// Bytes of the weights packed.
    pub packed_bytes: u64,
    /// The kernel; of experts, those for all numbers of tokens that one of them gets, with commas between.
    pub kernel: String,
    /// Whether the result is right.
    pub correct: bool,
    /// Whether it has the oracle's bits.
    pub exact: bool,
    /// Its normalized mean square error, where that is what was found.
    pub nmse: Option<f64>,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// Rows that were checked.
    pub rows_checked: u64,
    /// Median microseconds.
    pub us: f64,
    /// 1e9 bytes of weights a second.
    pub gb_s: f64,
    /// 1e9 multiply-accumulates a second.
    pub gmac_s: f64,
}

/// Tensors of a format that are held in the packing with the fewest bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FromMemory {
    /// The format.
    pub format: String,
    /// How many.
    pub tensors: u64,
    /// The packing.
    pub packing: String,
    /// The one that is fastest from caches.
    pub instead_of: String,
    /// Bytes of weights that take turns.
    pub working_set: u64,
    /// Bytes of the last-level cache.
    pub cache: u64,
}

/// Tensors of a format that a GPU holds once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOnce {
    /// The format.
    pub format: String,
    /// How many.
    pub tensors: u64,
    /// The packing.
    pub packing: String,
    /// The one that is preferred for one token.
    pub instead_of: String,
}

/// Tensors of a type that no kernel was found for, for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WithoutKernel {
    /// The type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Why.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// Their names.
    pub tensors: Vec<String>,
}

/// A tensor whose data is no weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Defective {
    /// Its name.
    pub tensor: String,
    /// What is wrong.
    pub problem: String,
}

/// Tensors that are not quantized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotQuantized {
    /// Their type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// How many.
    pub count: u64,
}
