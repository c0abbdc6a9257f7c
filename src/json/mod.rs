//! What a registry holds and how it decides, as values that have a JSON form: the same objects from the command and from other
//! languages. What a field means stands beside it.
//!
//! ```
//! use gristmill::{REGISTRY, Request, Shape, json};
//!
//! let shape = Shape::new(1, 64, 250);
//! let prepared = REGISTRY.prepare(&Request::matmul("i2_s", shape))?;
//! let answer = json::decision(&prepared.decide(shape));
//! assert_eq!(answer.chosen, None);
//! let why = "k = 250, but rows are whole blocks of 128";
//! assert!(answer.rejected.iter().any(|no| no.reason == why));
//! let text = serde_json::to_string(&answer)?;
//! assert!(text.contains(r#""chosen":null"#) && text.contains(why));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decision;
mod plan;
mod registry;

pub use decision::{decision, from_memory, held_once, split_k, tuned_by};
pub use gristmill_records::decision::{
    Decision, FromMemory, HeldOnce, Memory, Occupancy, Rejected, Shape, TensorPlan, TunedBy,
};
pub use gristmill_records::registry::{
    DimRule, Format, Function, Image, Kernel, Quarantined, ShapeRules, TensorTail,
};
#[cfg(feature = "cli")]
pub(crate) use plan::matrix;
pub use plan::plan;
pub use registry::{
    bits_per_weight, cuda_usage, format, format_name, formats, image, images, kernel, kernels, min_cc,
    min_driver, quarantined, runs_here,
};
