//! The driver side of CUDA kernels: devices, memory, launches.
//!
//! A [`Gpu`] is opened once and shared by every handle for it. Handles ([`Quantizer`](crate::Quantizer) and the
//! others) take and give memory of the processor as always, and weights packed by a handle for a GPU lie on it;
//! [`Matmul::run_on_device`](crate::Matmul::run_on_device) leaves activations and results there too.
//!
//! Nothing here panics for want of a driver: the library is looked for first, by [`detect`], and everything else needs
//! what that found.

mod activations;
mod between;
mod block_threads;
mod blocks;
mod bring;
mod buffer;
mod capture;
#[cfg(feature = "nccl")]
mod communicator;
mod context;
mod convert;
mod device;
mod engine;
mod event;
mod experts;
mod failure;
mod fault;
mod float_operands;
mod floats;
mod graph;
mod halves;
mod health;
mod input;
mod jit;
mod kept;
mod later;
mod lent;
mod memory;
mod open;
mod operands;
pub(crate) mod parameters;
mod parts;
mod pinned;
mod place;
mod pool;
mod probe;
mod product;
mod prologue;
mod quantizer;
mod scratch;
mod seen;
mod sensors;
mod shared;
mod stream;
mod transfer;
pub(crate) mod types;
mod waiting;
mod weights;

pub(crate) use activations::ActivationCode;
pub use activations::quantize_activations;
pub(crate) use between::{Columns, UnderWay};
pub(crate) use blocks::{DequantizeCode, Elements, QuantizeCode, size};
pub use buffer::{DeviceBuffer, Number};
#[cfg(feature = "nccl")]
pub use communicator::{Communicator, CommunicatorId};
pub use convert::Converter;
pub use device::Gpu;
pub use event::Event;
pub(crate) use experts::{AroundExperts, Lists, Results, Sorting, TILE, Tiles};
pub use failure::GpuFailure;
pub(crate) use fault::{Faults, Rows, fault_at};
pub use graph::Graph;
pub(crate) use halves::{Halves, InFront, behind, in_halves};
pub use health::{GpuHealth, health};
pub use input::DeviceInput;
pub use kept::give_back;
pub use lent::LentFault;
pub use memory::{DeviceMemory, Pool};
pub(crate) use operands::{Activation, HeldInput};
pub use pinned::{PinnedBuffer, Upload, Uploaded};
pub(crate) use place::Place;
pub(crate) use pool::held_memory;
pub use probe::{count, cycles, detect};
pub(crate) use product::ProductCode;
pub(crate) use prologue::PrologueCode;
pub use prologue::{DevicePrologue, DevicePrologueInput, DeviceRows, quantize_with};
pub use quantizer::{GpuQuantizer, MemoryEstimate, QuantizationError};
pub use scratch::QuantizedActivations;
pub(crate) use scratch::{DeviceScratch, Places, Scratch};
pub use shared::DeviceActivations;
pub(crate) use weights::Weights;

pub use crate::run::product::DeviceBatch;
