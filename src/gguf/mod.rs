//! GGUF files: reading the header and then each tensor where it is asked for, writing as a stream.
//!
//! The reader knows the container: header, typed metadata, tensor table, alignment. It does not know
//! block formats: what a tensor of a type id occupies is asked of the caller ([`SizeQuery`]), because
//! the size is not in the file and the formats are described in specs, not here. [`TypeNumbers`] has the answer for the
//! formats of a registry.
//!
//! Own code, because none of the published crates takes a file of ours: gguf-rs and gguf-rs-lib refuse
//! type ids outside their list (36 among them), candle's reader too, and ggus reads the id into a Rust
//! enum unchecked, which is undefined behaviour for an id it does not list.
//!
//! ```no_run
//! use gristmill::gguf::{GgufFile, TypeNumbers};
//!
//! let types = TypeNumbers::new(&gristmill::REGISTRY);
//! let file = GgufFile::open("model.gguf".as_ref(), &|tensor| types.size(tensor))?;
//! for tensor in file.tensors() {
//!     println!("{} {:?} type {}", tensor.name(), tensor.dims(), tensor.type_id());
//! }
//! # Ok::<(), gristmill::gguf::GgufError>(())
//! ```

mod cursor;
mod devices;
mod divide;
mod error;
mod file;
mod importance;
mod model;
mod model_error;
mod read;
mod size;
mod tiled;
mod transforms;
mod types;
mod value;
mod value_type;
mod working_set;
mod write;

pub use devices::{DevicePart, DevicePlan, DeviceRoom};
pub use error::{GgufError, Malformed, NoData, NoDataReason, Problem, WriteError};
#[cfg(feature = "cli")] // For `weights_file`, which is part of the command.
pub(crate) use file::Contents;
pub use file::{FileBytes, Store};
pub use importance::{Columns, Importance, ImportanceError};
pub use model::{LayerOptions, Model};
pub use model_error::{Instead, ModelError};
pub use read::{Gguf, GgufFile, Tensor};
pub use size::{Origin, SizeAnswer, SizeQuery, Unquantized, blocked_size, unquantized, unquantized_only};
pub use transforms::{TransformError, Transforms};
pub use types::{Candidate, DecidedBy, Resolved, TensorType, TiledType, TypeError, TypeNumbers, known_name};
pub use value::{Array, ArrayBuf, Elements, Value};
pub use value_type::ValueType;
pub use write::{GgufWriter, TensorStream};

/// First four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Metadata key of the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// Alignment of tensor data where the file states none, in bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// Largest number of dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;
