//! One job by several threads: the pool, who does which part, and on which processors.

pub(crate) mod affinity;
pub(crate) mod division;
pub mod executor;
pub(crate) mod fork;
pub(crate) mod pool;
pub(crate) mod sync;
pub(crate) mod thread_use;
pub mod threads;
