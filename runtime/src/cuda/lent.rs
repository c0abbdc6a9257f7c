//! What can be wrong with handles and memory that an engine lends.

/// Why a handle or memory of an engine is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LentFault {
    /// A context is never null.
    #[error(
        "it is null\n  help: make a context first; cudaFree(0) makes the device's primary one, which cuCtxGetCurrent then gives"
    )]
    NullContext,
    /// Only primary contexts are taken as raw handles.
    #[error(
        "it is not the primary context of the device\n  help: give the index of the device that it is of, or make it by cuDevicePrimaryCtxRetain; cudart and most libraries do"
    )]
    OtherContext,
    /// The stream's context is not the one that was given.
    #[error("it belongs to another context\n  help: give the context that the stream was made in")]
    ForeignStream,
    /// `CU_STREAM_PER_THREAD` is another stream in every thread.
    #[error(
        "it is CU_STREAM_PER_THREAD, which is another stream in each thread, so that nothing would be in order\n  help: make a stream by cuStreamCreate"
    )]
    PerThreadStream,
    /// Memory is never at address 0.
    #[error("its address is null")]
    NullAddress,
    /// Kernels read and write 16 bytes at a time.
    #[error("its address {address:#x} is no multiple of {needed}, as kernels need it")]
    Misaligned {
        /// The address.
        address: u64,
        /// What it must be a multiple of, in bytes.
        needed: u64,
    },
    /// The driver knows of no memory there.
    #[error("the driver knows of no memory at {address:#x}: {error}")]
    UnknownAddress {
        /// The address.
        address: u64,
        /// The driver's error.
        error: String,
    },
    /// It is memory of another device.
    #[error("it is memory of cuda:{found}")]
    OtherDevice {
        /// The device's index.
        found: u32,
    },
    /// It would end beyond the largest address.
    #[error("it would end beyond the last address")]
    TooLong,
}
