//! An engine and gristmill on one CUDA stream: context, stream and memory are the engine's, and a kernel of its own runs between two
//! layers.
//!
//!     cargo run --release --features cuda --example engine_stream

use cudarc::driver::{CudaContext, DevicePtr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::{
    Error, Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Request, Threads, Workspace,
};

/// The engine's kernel: what is below zero becomes zero, in place.
pub const PTX: &str = "\
.version 6.3
.target sm_75
.address_size 64
.visible .entry positive(.param .u64 values, .param .u32 count)
{
    .reg .pred %outside;
    .reg .f32 %value;
    .reg .b32 %index, %block, %threads, %count;
    .reg .b64 %address;
    mov.u32 %index, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %index, %block, %threads, %index;
    ld.param.u32 %count, [count];
    setp.ge.u32 %outside, %index, %count;
    @%outside ret;
    ld.param.u64 %address, [values];
    cvta.to.global.u64 %address, %address;
    mad.wide.u32 %address, %index, 4, %address;
    ld.global.f32 %value, [%address];
    max.f32 %value, %value, 0f00000000;
    st.global.f32 [%address], %value;
    ret;
}
";

/// Input, what lies between, and output of the two layers.
const SIZES: [usize; 3] = [256, 384, 64];

/// Ends with an error if what it computes is wrong.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [k, between, n] = SIZES;
    let bytes = [quantized(between, k)?, quantized(n, between)?];
    let weights = [matrix(between, k, &bytes[0])?, matrix(n, between, &bytes[1])?];
    let x: Vec<f32> = (0..k).map(|i| (i % 13) as f32 / 6.0 - 1.0).collect();

    // The engine: it was there first, and all of this is its own.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let positive = context.load_module(Ptx::from_src(PTX))?.load_function("positive")?;
    let there = stream.clone_htod(&x)?;
    let hidden = stream.alloc_zeros::<f32>(between)?;
    let y = stream.alloc_zeros::<f32>(n)?;
    let [x_address, hidden_address, y_address] =
        [&there, &hidden, &y].map(|slice| slice.device_ptr(&stream).0);

    // gristmill on the engine's stream, with layers that are made once.
    // SAFETY: the stream is dropped after all that is made with this.
    let gpu = unsafe { Gpu::of_engine(0, context.cu_ctx().cast(), stream.cu_stream().cast()) }?;
    let options = LinearOptions::default().on_gpu(&gpu);
    let [up, down] = layers(&weights, &options)?;
    let mut workspace = Workspace::new();

    // A step: nothing waits, and the stream keeps the order.
    // SAFETY: the engine's memory is dropped after what borrows it, and has as many values.
    let (x_lent, mut hidden_lent, mut y_lent) = unsafe {
        (
            DeviceBuffer::lent(&gpu, x_address, k)?,
            DeviceBuffer::lent(&gpu, hidden_address, between)?,
            DeviceBuffer::lent(&gpu, y_address, n)?,
        )
    };
    up.forward_on_device(DeviceInput::F32(&x_lent), 1, None, &mut hidden_lent, &mut workspace)?;
    let (grid, count) = (between.div_ceil(64) as u32, between as u32);
    let config = LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are those of the kernel, and there are so many values.
    unsafe { stream.launch_builder(&positive).arg(&hidden_lent.address()).arg(&count).launch(config) }?;
    down.forward_on_device(DeviceInput::F32(&hidden_lent), 1, None, &mut y_lent, &mut workspace)?;

    // The engine reads its own memory, on its own stream; gristmill says whether one of its kernels was stopped.
    let found = stream.clone_dtoh(&y)?;
    stream.synchronize()?;
    workspace.finish()?;

    let expected = on_the_processor(&weights, &x)?;
    println!("{}: {n} outputs: {:?}", context.name()?, &found[..4]);
    if found.iter().zip(&expected).any(|(a, b)| a.to_bits() != b.to_bits()) || found.len() != expected.len() {
        return Err("the processor gives other bits".into());
    }
    Ok(())
}

/// The same on the processor.
fn on_the_processor(weights: &[QuantizedMatrix<'_>; 2], x: &[f32]) -> Result<Vec<f32>, Error> {
    let threads = Threads::single();
    let [up, down] = layers(weights, &LinearOptions::default())?;
    let mut workspace = Workspace::for_all([&up, &down], 1, &threads)?;
    let (mut hidden, mut y) = (vec![0.0; up.n()], vec![0.0; down.n()]);
    up.forward(Input::F32(x), 1, None, &mut hidden, &mut workspace, &threads)?;
    hidden.iter_mut().for_each(|value| *value = value.max(0.0));
    down.forward(Input::F32(&hidden), 1, None, &mut y, &mut workspace, &threads)?;
    Ok(y)
}

fn layers(weights: &[QuantizedMatrix<'_>; 2], options: &LinearOptions) -> Result<[Linear; 2], Error> {
    let threads = Threads::single();
    let layer = |weights| Linear::new(&REGISTRY, weights, options, &threads);
    Ok([layer(&weights[0])?, layer(&weights[1])?])
}

fn matrix(n: usize, k: usize, bytes: &[u8]) -> Result<QuantizedMatrix<'_>, Error> {
    QuantizedMatrix::new(REGISTRY.format("i2_s")?.1, n, k, bytes)
}

/// Ternary weights in the bytes of a format.
fn quantized(n: usize, k: usize) -> Result<Vec<u8>, Error> {
    let weights: Vec<f32> = (0..n * k).map(|i| [-0.5, 0.0, 0.5][(i * 7 + i / k) % 3]).collect();
    let mut bytes = vec![0; REGISTRY.format("i2_s")?.1.tensor_bytes(n, k)?];
    let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, n, k))?;
    Quantizer::new(&prepared.decide_as_asked())?.run(&weights, n, k, &mut bytes)?;
    Ok(bytes)
}
