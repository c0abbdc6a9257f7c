//! A build-time kernel compiler for low-bit matrix kernels.
//!
//! This package is the front door: it re-exports the shipped kernels ([`REGISTRY`]) and the runtime that decides and
//! runs, reads files of weights, and holds the `gristmill` command.
//!
//! From a model file to the outputs of a layer:
#![cfg_attr(
    feature = "bitnet",
    doc = r#"
```
use gristmill::gguf::{LayerOptions, Model};
use gristmill::{Input, Threads};

# let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf/i2_s.gguf");
let threads = Threads::new(2)?;
let model = Model::open(path)?;
let layer = model.linear("blk.0.attn_q.weight", &LayerOptions::new(&threads))?;

let mut workspace = layer.workspace(1, &threads)?;
let x = vec![1.0; layer.k()];
let mut y = vec![0.0; layer.n()];
layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
assert_eq!((layer.n(), layer.k()), (8, 256));
# Ok::<(), Box<dyn std::error::Error>>(())
```

And the answer to "is there a kernel, which one, and why not that one?", before anything is loaded:

```
use gristmill::{REGISTRY, Request, Shape, Threads};

let shape = Shape::new(1, 2560, 6912);
let prepared = REGISTRY.prepare(&Request::matmul("i2_s", shape))?;
let decision = prepared.decide(shape);
println!("{decision}");
let memory = decision.memory(&Threads::single())?;
assert!(memory.bits_per_weight < 2.1);
# Ok::<(), gristmill::Error>(())
```
"#
)]
//!
//! The folder `examples` of the repository has small programs: `minimal`, `gguf_layer`, `shared_activations`, `own_threads`, `receipts`,
//! `custom_format`, `engine_stream` (a CUDA stream that an engine lends), and `downstream`, a crate with a format and a kernel of its own.
//!
//! # Cargo features
//!
//! | feature | what a build then has |
//! |---|---|
//! | `bitnet`, `ggml` (both by default), `iq`, `import`, `all` | kernels of these families of formats, `all` of the four |
//! | `cli` | the command and the oracle: the modules `validate`, `compare`, `oracle`, `weights_file`; brings `json` |
//! | `json` | the module `json`: formats, kernels, decisions and plans as types with a JSON form |
//! | `ops` | `history`, `report`, `top` and `run --monitor` of the command; brings `cli` |
//! | `tracing` | launches that a monitor times are spans of `tracing`; brings `ops` |
//! | `rayon` | kernels on the threads of a `rayon::ThreadPool` |
//! | `cuda`, also called `gpu` | kernels for NVIDIA GPUs, where a CUDA compiler is found: the module `cuda` |
//! | `nvml` | temperature and throttling of a GPU in `cuda::health`; brings `cuda` |
//! | `nccl` | `RowParallelLinear` over several processes or machines; brings `cuda` |
//! | `cudarc` | `cuda::Gpu::of_cudarc`: an engine's stream as cudarc's type; brings `cuda` |
//! | `cublaslt` | `bench --device cuda:0` of the command times cuBLASLt beside our products; brings `cuda` and `cli` |

/// The code in pages compiles and runs.
#[cfg(all(doctest, feature = "bitnet"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/cuda.md")]
#[doc = include_str!("../docs/deciding.md")]
#[doc = include_str!("../docs/engines.md")]
#[doc = include_str!("../docs/measuring.md")]
#[cfg_attr(feature = "ops", doc = include_str!("../docs/operations.md"))]
#[doc = include_str!("../docs/recovery.md")]
mod pages {}

// Generated code and macros name this crate by its own name, here too.
extern crate self as gristmill;

// The command: in the library, so that it is compiled beside the code of kernels and not after it. Public for the program and
// for fuzz targets, which run parts of it without a process; not an interface.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "cli")]
pub mod compare;
pub mod gguf;
#[cfg(feature = "json")]
pub mod json;
pub mod languages;
#[cfg(feature = "cli")]
mod opened;
#[cfg(feature = "cli")]
mod own_process;
pub mod replace;
pub mod text;
#[cfg(feature = "cli")]
pub mod validate;
#[cfg(feature = "cli")]
pub mod weights_file;

pub use gristmill_kernels as kernels;
pub use gristmill_kernels::REGISTRY;
pub use gristmill_macros::{include_kernels, kernel, require, variant};
#[cfg(feature = "cli")]
pub use gristmill_oracle as oracle;
pub use gristmill_runtime as runtime;
pub use gristmill_runtime::*;
