//! What `gristmill quantize --json` prints of a model.

use serde::{Deserialize, Serialize};

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantized {
    /// The file.
    pub output: String,
    /// The format that weights were quantized to.
    pub format: String,
    /// The kernel that quantized them.
    pub kernel: String,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Each tensor of the source.
    pub tensors: Vec<Tensor>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name.
    pub tensor: String,
    /// Its sizes, outermost first, with `x` between.
    pub shape: String,
    /// What it was written as, or that it was copied or left out.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its bytes in the file that was written.
    pub bytes: u64,
    /// Normalized mean square error of the weights; null where they were not quantized.
    pub nmse: Option<f64>,
    /// The same with each column counted by its importance; null where there is none.
    pub weighted_nmse: Option<f64>,
    /// Largest error of a weight.
    pub max_error: Option<f64>,
    /// Matrices that were quantized.
    pub matrices: u64,
    /// How many of them had no importance; null where none was asked for.
    pub without_importance: Option<u64>,
    /// Why weights were copied instead of quantized.
    pub why_copied: Option<String>,
}
