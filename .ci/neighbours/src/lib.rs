//! Types that gristmill shares with its neighbours: each function compiles only if both sides mean the same crate.

/// Half-precision values as candle takes them.
pub fn to_candle(values: &[half::f16]) -> candle_core::Result<candle_core::Tensor> {
    candle_core::Tensor::from_slice(values, values.len(), &candle_core::Device::Cpu)
}

/// bfloat16 values as burn takes them.
pub fn to_burn(values: Vec<half::bf16>) -> burn_tensor::TensorData {
    let count = values.len();
    burn_tensor::TensorData::new(values, [count])
}

/// The same values as gristmill takes them.
pub fn to_gristmill<'a>(halves: &'a [half::f16], brains: &'a [half::bf16]) -> [gristmill::Input<'a>; 2] {
    [gristmill::Input::F16(halves), gristmill::Input::Bf16(brains)]
}

/// The device of a context that somebody else made.
pub fn device(context: &cudarc::driver::CudaContext) -> gristmill::Device {
    gristmill::Device::cuda(context.ordinal() as u32)
}

/// gristmill on a stream that somebody else made.
pub fn on_stream(
    stream: &std::sync::Arc<cudarc::driver::CudaStream>,
) -> Result<std::sync::Arc<gristmill::cuda::Gpu>, gristmill::Error> {
    gristmill::cuda::Gpu::of_cudarc(stream)
}
