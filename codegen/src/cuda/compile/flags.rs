//! What images are compiled with.

/// What every image is compiled with: f32 arithmetic as on the CPU, each operation rounded once.
pub const FLAGS: &[&str] =
    &["-O3", "-std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false"];

/// The same for NVRTC, which always optimizes.
pub(super) const NVRTC_FLAGS: &[&str] =
    &["--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"];
