//! Variables of the environment that say what is built for CUDA, and with what.

/// Whether CUDA is built: `auto`, `require`, `off`.
pub const USE: &str = "GRISTMILL_CUDA";

/// Architectures that images are built for.
pub const ARCHS: &str = "GRISTMILL_CUDA_ARCHS";

/// A folder with images that were built before.
pub const IMAGES: &str = "GRISTMILL_CUDA_IMAGES";

/// The compiler driver to use, and no other.
pub const NVCC: &str = "GRISTMILL_NVCC";

/// The run-time compilation library to use.
pub const NVRTC: &str = "GRISTMILL_NVRTC";

/// A folder for compiled images that several builds share.
pub const CACHE: &str = "GRISTMILL_CUDA_CACHE";

/// Variables that decide what a build holds: a build script runs again when one of them changes. `PATH` is not
/// among them: it differs between editors and terminals, and each change would rebuild everything.
pub const VARIABLES: &[&str] = &[
    USE,
    ARCHS,
    IMAGES,
    NVCC,
    NVRTC,
    CACHE,
    "NVCC",
    "CUDA_HOME",
    "CUDA_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];
