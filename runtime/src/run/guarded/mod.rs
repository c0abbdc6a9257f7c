//! Layers and experts that go on where a kernel or their GPU fails, in stated steps.
//!
//! One [`Guard`](guard::Guard) does the steps, whatever it stands around: weights that are kept, and how a layer of them is made, run and
//! compared (`kept.rs`), for products in `linear.rs`, for experts in `experts.rs`.

mod batch;
mod check;
mod device;
mod experts;
mod failure;
#[cfg(feature = "cuda")]
mod fetched;
mod guard;
mod kept;
mod linear;
mod lost;
mod options;
mod recover;
mod seen;
mod state;
mod work;

pub use batch::GuardedBatch;
pub use experts::GuardedExperts;
pub use linear::GuardedLinear;
pub use options::GuardOptions;
