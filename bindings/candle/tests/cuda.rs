//! Layers on a CUDA device of candle's. Without a device: that there is none is an error of candle's, and not a panic.
#![cfg(feature = "cuda")]

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use gristmill_candle::{Linear, Threads};
use std::sync::Arc;

/// A device with a stream of its own, or why there is none, as `GRISTMILL_NO_SKIP=1` does not accept.
fn device() -> Option<Device> {
    match Device::new_cuda_with_stream(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty());
            println!("skipped: no CUDA device: {said}");
            assert!(std::env::var("GRISTMILL_NO_SKIP").as_deref() != Ok("1"), "no CUDA device: {said}");
            None
        }
    }
}

fn threads() -> Arc<Threads> {
    Arc::new(Threads::new(2).expect("threads"))
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

#[test]
fn products_there_have_the_bits_of_the_processor() -> Result<()> {
    let Some(gpu) = device() else { return Ok(()) };
    let weights = QTensor::quantize(&Tensor::randn(0f32, 1., (64, 256), &Device::Cpu)?, GgmlDType::Q8_0)?;
    let blocks = weights.data()?;
    let bias = Tensor::randn(0f32, 1., 64, &Device::Cpu)?;
    let here = Linear::from_blocks("q8_0", 64, 256, &blocks, &Device::Cpu, &threads())?.with_bias(&bias)?;
    let there = Linear::from_blocks("q8_0", 64, 256, &blocks, &gpu, &threads())?.with_bias(&bias)?;
    for m in [1, 3, 40] {
        let x = Tensor::randn(0f32, 1., (m, 256), &Device::Cpu)?;
        let y = there.forward(&x.to_device(&gpu)?)?;
        assert!(y.device().is_cuda());
        there.finish()?;
        assert_eq!(bits(&y.to_device(&Device::Cpu)?)?, bits(&here.forward(&x)?)?, "{m} tokens");
    }
    Ok(())
}

#[test]
fn what_is_elsewhere_or_of_another_type_is_refused() -> Result<()> {
    let Some(gpu) = device() else { return Ok(()) };
    let weights = Tensor::randn(0f32, 1., (64, 256), &Device::Cpu)?;
    let [here, there] = [&Device::Cpu, &gpu].map(|device| {
        Linear::quantize(&weights.to_device(device).expect("a copy"), "q8_0", &threads()).expect("a layer")
    });
    let x = Tensor::ones((2, 256), DType::F32, &Device::Cpu)?;
    for refused in [
        there.forward(&x),
        here.forward(&x.to_device(&gpu)?),
        there.forward(&x.to_dtype(DType::F16)?.to_device(&gpu)?),
    ] {
        let said = refused.expect_err("refused").to_string();
        assert!(said.contains("gristmill-linear") || said.contains("F16"), "{said}");
    }
    // The stream of each thread is no order.
    let said = Linear::quantize(&weights.to_device(&Device::new_cuda(0)?)?, "q8_0", &threads());
    assert!(said.expect_err("refused").to_string().contains("new_cuda_with_stream"));
    Ok(())
}
