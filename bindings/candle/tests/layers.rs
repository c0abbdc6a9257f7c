//! Layers beside candle's own and beside the library.

use candle_core::quantized::gguf_file;
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use gristmill::{Input, LinearOptions, QuantizedMatrix, REGISTRY, Restrict};
use gristmill_candle::{
    Fallback, Guard, Linear, Model, QMatMul as Swapped, TYPES, Threads, format_of, linear, linear_no_bias,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What candle's products may differ by from ours, and each from f64: both round activations to int8, candle by blocks of 32 or
/// 256 in types of its own.
const NMSE: f64 = 1e-4;

fn threads() -> Arc<Threads> {
    Arc::new(Threads::new(2).expect("threads"))
}

/// Values between -1 and 1 that look random and are the same everywhere.
fn values(seed: u32, shape: &[usize]) -> Result<Tensor> {
    let mut state = seed;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

fn list(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn nmse(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let error: f64 = found.iter().zip(exact).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    error / exact.iter().map(|e| e * e).sum::<f64>()
}

/// The library's own product of the same bytes.
fn library(format: &str, n: usize, k: usize, blocks: &[u8], x: &[f32]) -> Vec<f32> {
    let format = REGISTRY.format(format).expect("a format of this build").1;
    let matrix = QuantizedMatrix::new(format, n, k, blocks).expect("its bytes");
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    let (one, m) = (Threads::single(), x.len() / k);
    let layer = gristmill::Linear::new(&REGISTRY, &matrix, &options, &one).expect("a layer");
    let mut y = vec![0.0; m * n];
    let mut workspace = layer.workspace(m, &one).expect("a workspace");
    layer.forward(Input::F32(x), m, None, &mut y, &mut workspace, &one).expect("a product");
    y
}

/// As candle's own layer, which a model run in f16 calls.
#[test]
fn activations_may_be_f16() -> Result<()> {
    let (n, k) = (48, 512);
    let weights = Arc::new(QTensor::quantize(&values(1, &[n, k])?, GgmlDType::Q4K)?);
    let ours = Swapped::from_arc(Arc::clone(&weights), Fallback::Refuse, &threads())?;
    let x = values(2, &[2, 3, k])?.to_dtype(DType::F16)?;
    let found = ours.forward(&x)?;
    assert_eq!((found.dtype(), found.dims()), (DType::F16, &[2, 3, n][..]));
    let wide = ours.forward(&x.to_dtype(DType::F32)?)?.to_dtype(DType::F16)?;
    assert_eq!(bits(&list(&found.to_dtype(DType::F32)?)?), bits(&list(&wide.to_dtype(DType::F32)?)?));
    let candles = QMatMul::from_arc(weights)?.forward(&x)?;
    assert_eq!(candles.dtype(), DType::F16);
    let exact: Vec<f64> = list(&candles.to_dtype(DType::F32)?)?.into_iter().map(f64::from).collect();
    let error = nmse(&list(&found.to_dtype(DType::F32)?)?, &exact);
    assert!(error < 4.0 * NMSE, "{error}");
    Ok(())
}

#[test]
fn products_are_the_librarys_and_close_to_candles() -> Result<()> {
    let (n, k) = (48, 512);
    let mut worst = 0f64;
    for dtype in TYPES.iter().copied() {
        let weights = QTensor::quantize(&values(1, &[n, k])?, dtype)?;
        let ours = Linear::from_qtensor(&weights, &threads())?;
        let plain = list(&weights.dequantize(&Device::Cpu)?)?;
        let blocks = weights.data()?.into_owned();
        let theirs = QMatMul::from_qtensor(weights)?;
        for shape in [[1, 1, k], [1, 5, k], [3, 11, k]] {
            let x = values(2, &shape)?;
            let (y, z) = (ours.forward(&x)?, theirs.forward(&x)?);
            assert_eq!(y.dims(), z.dims());
            let (x, y, z) = (list(&x)?, list(&y)?, list(&z)?);
            let format = format_of(dtype).expect("a format");
            assert_eq!(bits(&y), bits(&library(format, n, k, &blocks, &x)), "{dtype:?}");

            let row =
                |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let exact: Vec<f64> = x.chunks(k).flat_map(|x| plain.chunks(k).map(move |w| row(x, w))).collect();
            let candle: Vec<f64> = z.iter().copied().map(f64::from).collect();
            for error in [nmse(&y, &exact), nmse(&z, &exact), nmse(&y, &candle)] {
                assert!(error < NMSE, "{dtype:?}, {shape:?}: {error:e}");
                worst = worst.max(error);
            }
        }
        assert!(ours.receipt().kernels().iter().any(|kernel| kernel.name().starts_with("matmul.")));
        assert!(ours.receipt().fallbacks().is_empty());
    }
    println!("worst NMSE: {worst:e}");
    Ok(())
}

#[test]
fn layouts_and_shapes_of_inputs() -> Result<()> {
    let (n, k) = (32, 256);
    let weights = QTensor::quantize(&values(3, &[n, k])?, GgmlDType::Q8_0)?;
    let layer = Linear::from_qtensor(&weights, &threads())?;
    assert_eq!((layer.n(), layer.k()), (n, k));
    let x = values(4, &[6, k])?;
    let y = list(&layer.forward(&x)?)?;
    // A part of a larger tensor is contiguous with an offset, a transposed one is not contiguous.
    let rows = layer.forward(&x.narrow(0, 2, 3)?)?;
    assert_eq!(bits(&list(&rows)?), bits(&y[2 * n..5 * n]));
    let transposed = x.t()?.contiguous()?.t()?;
    assert!(!transposed.is_contiguous());
    assert_eq!(bits(&list(&layer.forward(&transposed)?)?), bits(&y));
    assert_eq!(layer.forward(&x.reshape((2, 3, k))?)?.dims(), [2, 3, n]);
    assert_eq!(layer.forward(&x.get(0)?)?.dims(), [n]);
    assert_eq!(layer.forward(&x.narrow(0, 0, 0)?)?.dims(), [0, n]);
    Ok(())
}

fn error<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn bad_input_is_an_error_of_candle() -> Result<()> {
    let threads = threads();
    let weights = values(5, &[32, 256])?;
    let layer = Linear::quantize(&weights, "q8_0", &threads)?;
    let said = error(layer.forward(&values(6, &[2, 255])?));
    assert!(said.contains("[2, 255], expected rows of 256"), "{said}");
    let said = error(layer.forward(&Tensor::new(1f32, &Device::Cpu)?));
    assert!(said.contains("[], expected rows of 256"), "{said}");
    for dtype in [DType::F64, DType::BF16] {
        let said = error(layer.forward(&values(6, &[2, 256])?.to_dtype(dtype)?));
        assert!(said.contains(&format!("is {dtype:?}, expected F32 or F16")), "{said}");
    }
    let said = error(layer.forward(&Tensor::full(f32::NAN, (2, 256), &Device::Cpu)?));
    assert!(said.contains("not finite"), "{said}");

    let said = error(Linear::quantize(&weights, "q8_00", &threads));
    assert!(said.contains("did you mean `q8_0`"), "{said}");
    let said = error(Linear::quantize(&values(5, &[32, 250])?, "q8_0", &threads));
    assert!(said.contains("multiple of 32"), "{said}");
    let said = error(Linear::from_blocks("q8_0", 32, 256, &[0; 7], &Device::Cpu, &threads));
    assert!(said.contains("holds 7 bytes"), "{said}");
    let said = error(layer.with_bias(&values(7, &[31])?));
    assert!(said.contains("[31], expected [32]"), "{said}");
    // Types that are no format of weights.
    for dtype in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16] {
        let said = error(Linear::from_qtensor(&QTensor::quantize(&weights, dtype)?, &threads));
        assert!(said.contains("no format") && said.contains("candle's own layer"), "{said}");
    }
    Ok(())
}

#[test]
fn candles_layer_runs_where_a_policy_says_so_alone() -> Result<()> {
    let weights = values(15, &[32, 256])?;
    let x = values(16, &[3, 256])?;
    // A type with kernels is gristmill's under each policy.
    let quantized = Arc::new(QTensor::quantize(&weights, GgmlDType::Q8_0)?);
    let expected = list(&Linear::from_qtensor(&quantized, &threads())?.forward(&x)?)?;
    for fallback in [Fallback::Refuse, Fallback::Candle] {
        let layer = Swapped::from_arc(Arc::clone(&quantized), fallback, &threads())?;
        assert!(matches!(layer, Swapped::Gristmill(_)) && layer.fallback().is_none());
        assert_eq!(bits(&list(&layer.forward(&x)?)?), bits(&expected));
    }
    // Floats are refused unless the policy leaves them to candle, which then says so.
    for dtype in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16] {
        let floats = Arc::new(QTensor::quantize(&weights, dtype)?);
        let said = error(Swapped::from_arc(Arc::clone(&floats), Fallback::default(), &threads()));
        assert!(said.contains("no format"), "{said}");
        let theirs = list(&QMatMul::from_arc(Arc::clone(&floats))?.forward(&x)?)?;
        let layer = Swapped::from_arc(floats, Fallback::Candle, &threads())?;
        assert!(layer.fallback().is_some_and(|reason| reason.contains("no format")), "{layer:?}");
        assert_eq!(bits(&list(&layer.forward(&x)?)?), bits(&theirs));
    }
    // What is wrong with the weights themselves is an error under each policy.
    for fallback in [Fallback::Refuse, Fallback::Candle] {
        let stack = Arc::new(QTensor::quantize(&values(17, &[2, 8, 256])?, GgmlDType::Q8_0)?);
        let said = error(Swapped::from_arc(stack, fallback, &threads()));
        assert!(said.contains("[2, 8, 256]"), "{said}");
    }
    Ok(())
}

#[test]
fn weights_of_a_var_builder_are_quantized_when_loaded() -> Result<()> {
    let (n, k) = (24, 256);
    let tensors = HashMap::from([
        ("up.weight".to_owned(), values(8, &[n, k])?),
        ("up.bias".to_owned(), values(9, &[n])?),
    ]);
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let x = values(10, &[4, k])?;
    let exact = candle_nn::linear(k, n, vb.pp("up"))?.forward(&x)?;
    let exact: Vec<f64> = list(&exact)?.into_iter().map(f64::from).collect();
    let layer = linear(k, n, "q8_0", vb.pp("up"), &threads())?;
    assert!(nmse(&list(&layer.forward(&x)?)?, &exact) < NMSE);
    let bare = linear_no_bias(k, n, "q8_0", vb.pp("up"), &threads())?;
    assert!(nmse(&list(&bare.forward(&x)?)?, &exact) > NMSE);
    let said = error(linear(k, n, "q8_0", vb.pp("down"), &threads()));
    assert!(said.contains("down.bias"), "{said}");
    Ok(())
}

#[test]
fn tensors_of_a_file_that_candle_has_read() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/gguf/q4_k.gguf");
    let mut file = std::fs::File::open(path)?;
    let content = gguf_file::Content::read(&mut file)?;
    // The map has another order in each process.
    let of = |dtype| {
        content.tensor_infos.iter().filter(move |(_, info)| info.ggml_dtype == dtype).map(|(name, _)| name)
    };
    let name = of(GgmlDType::Q4K).min().expect("a matrix").clone();
    let layer = Linear::from_gguf(&content, &mut file, &name, &Device::Cpu, &threads())?;
    let candle = QMatMul::from_qtensor(content.tensor(&mut file, &name, &Device::Cpu)?)?;
    let x = values(11, &[3, layer.k()])?;
    let theirs: Vec<f64> = list(&candle.forward(&x)?)?.into_iter().map(f64::from).collect();
    assert!(nmse(&list(&layer.forward(&x)?)?, &theirs) < NMSE);
    let swapped = Swapped::from_gguf(&content, &mut file, &name, Fallback::Refuse, &Device::Cpu, &threads())?;
    assert_eq!(bits(&list(&swapped.forward(&x)?)?), bits(&list(&layer.forward(&x)?)?));
    // What is no matrix of weights is candle's where the policy says so.
    let norm = of(GgmlDType::F32).min().expect("one");
    for (fallback, made) in [(Fallback::Refuse, false), (Fallback::Candle, true)] {
        let layer = Swapped::from_gguf(&content, &mut file, norm, fallback, &Device::Cpu, &threads());
        assert_eq!(layer.is_ok(), made, "{layer:?}");
    }
    assert!(error(Linear::from_gguf(&content, &mut file, "none", &Device::Cpu, &threads())).contains("none"));
    Ok(())
}

/// A file with a type that candle does not know, which its reader refuses.
#[test]
fn tensors_of_a_file_that_gristmill_has_opened() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/gguf/tq2_0.gguf");
    assert!(gguf_file::Content::read(&mut std::fs::File::open(path)?).is_err());
    let model = Model::open(path)?;
    let layer = Linear::from_model(&model, "blk.0.ffn_up.weight", &Device::Cpu, &threads())?;
    let matrix = model.matrix("blk.0.ffn_up.weight")?;
    let x = values(12, &[3, layer.k()])?;
    let expected = library("tq2_0", layer.n(), layer.k(), matrix.data(), &list(&x)?);
    assert_eq!(bits(&list(&layer.forward(&x)?)?), bits(&expected));
    assert!(layer.receipt().kernels().iter().any(|kernel| kernel.name().starts_with("matmul.")));
    for (name, why) in [("none", "no tensor `none`"), ("blk.0.ffn_norm.weight", "blk.0.ffn_norm.weight")] {
        let said = error(Linear::from_model(&model, name, &Device::Cpu, &threads()));
        assert!(said.contains(why), "{said}");
    }
    Ok(())
}

/// candle configures a thread's matrix unit (AMX) once and takes it to stay so: layers of both in turn, on one thread.
#[test]
fn layers_of_both_take_turns_on_one_thread() -> Result<()> {
    let weights = QTensor::quantize(&values(18, &[64, 512])?, GgmlDType::Q4K)?;
    let ours = Linear::from_qtensor(&weights, &Arc::new(Threads::single()))?;
    let theirs = QMatMul::from_qtensor(weights)?;
    let x = values(19, &[64, 512])?;
    let (first, second) = (list(&theirs.forward(&x)?)?, list(&ours.forward(&x)?)?);
    for _ in 0..3 {
        assert_eq!(bits(&list(&theirs.forward(&x)?)?), bits(&first));
        assert_eq!(bits(&list(&ours.forward(&x)?)?), bits(&second));
    }
    Ok(())
}

#[test]
fn clones_are_used_by_several_threads() -> Result<()> {
    let layer = Linear::quantize(&values(12, &[32, 256])?, "q8_0", &threads())?;
    let x = values(13, &[7, 256])?;
    let y = bits(&list(&layer.forward(&x)?)?);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (layer, x, y) = (layer.clone(), &x, &y);
            scope.spawn(move || {
                for _ in 0..50 {
                    let found = layer.forward(x).and_then(|y| list(&y)).expect("a product");
                    assert_eq!(bits(&found), *y);
                }
            });
        }
    });
    let bias = values(14, &[32])?;
    let clone = layer.clone();
    assert!(error(layer.with_bias(&bias)).contains("has been cloned"));
    assert!(clone.with_bias(&bias).is_ok());
    Ok(())
}

/// What an earlier run of a program ended in is left out, though nothing else of the environment counts.
#[test]
fn kernels_in_quarantine_are_left_out() -> Result<()> {
    const FOLDER: &str = "GRISTMILL_QUARANTINE";
    const NAME: &str = "kernels_in_quarantine_are_left_out";
    let (n, k) = (32, 256);
    let layer = || {
        let weights = QTensor::quantize(&values(1, &[n, k])?, GgmlDType::Q8_0)?;
        let layer = Linear::from_qtensor(&weights, &threads())?;
        let y = layer.forward(&values(2, &[1, k])?)?;
        Ok::<_, candle_core::Error>((layer, bits(&list(&y)?)))
    };
    if std::env::var_os(FOLDER).is_some() {
        let (layer, y) = layer()?;
        println!("said: {y:?} {} :end", layer.receipt().to_json());
        return Ok(());
    }
    let (layer, y) = layer()?;
    let receipt = layer.receipt();
    let product = receipt.kernels().iter().find(|kernel| kernel.name().starts_with("matmul."));
    let product = product.expect("it ran");
    if product.name().ends_with(".scalar") {
        println!("ran 0 of 1; skipped 1: there is no other kernel");
        return Ok(());
    }
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("quarantine");
    let _ = std::fs::remove_dir_all(&folder);
    let quarantine = gristmill::Quarantine::kept_in(&folder).expect("a folder");
    assert!(quarantine.add(product.id(), "seen before"));
    let mut child = std::process::Command::new(std::env::current_exe()?);
    let child = child.args(["--exact", NAME, "--nocapture"]).env(FOLDER, &folder).output()?;
    let said = String::from_utf8_lossy(&child.stdout);
    let receipt = said.split("said: ").nth(1).unwrap_or_else(|| panic!("{child:?}"));
    assert!(receipt.starts_with(&format!("{y:?}")), "the same bits: {receipt}");
    let step = format!(r#""step":"left-out","op":"matmul","format":"q8_0","kernel":"{}""#, product.name());
    assert!(receipt.contains(&step) && receipt.contains("seen before"), "{receipt}");
    Ok(())
}

/// Layers under a guard do without a kernel from the moment on that it is forbidden, and compute the same.
#[test]
fn guarded_layers_go_on_without_a_kernel() -> Result<()> {
    let (n, k) = (32, 256);
    let guard = Guard::new(1, false, 0).expect("a guard");
    let weights = QTensor::quantize(&values(1, &[n, k])?, GgmlDType::Q8_0)?;
    let x = values(2, &[3, k])?;
    let y = bits(&list(&Linear::from_qtensor(&weights, &threads())?.forward(&x)?)?);
    let layer = Linear::from_qtensor_guarded(&weights, &guard, &threads())?;
    assert_eq!(layer.kept_bytes(), weights.data()?.len());
    assert_eq!(bits(&list(&layer.forward(&x)?)?), y);
    let receipt = layer.receipt();
    assert!(receipt.recoveries().is_empty());
    let product = receipt.kernels().iter().find(|kernel| kernel.name().starts_with("matmul."));
    let product = product.expect("it ran").name();
    if product.ends_with(".scalar") {
        println!("ran 0 of 1; skipped 1: there is no other kernel");
        return Ok(());
    }
    assert!(guard.forbid(&REGISTRY, product, "a test").expect("it is known"));
    assert_eq!(bits(&list(&layer.forward(&x)?)?), y);
    let receipt = layer.receipt();
    let steps: Vec<_> =
        receipt.recoveries().iter().map(|step| (step.step.name(), step.kernel, step.success)).collect();
    assert_eq!(steps, [("decided-again", product, true)]);
    // Of a file, and of bytes.
    let model = Model::open("../../tests/data/gguf/i2_s.gguf").expect("a file");
    let of_model = |guarded: bool| {
        let name = "blk.0.attn_q.weight";
        let layer = if guarded {
            Linear::from_model_guarded(&model, name, &guard, &threads())?
        } else {
            Linear::from_model(&model, name, &Device::Cpu, &threads())?
        };
        list(&layer.forward(&x)?).map(|y| bits(&y))
    };
    assert_eq!(of_model(true)?, of_model(false)?);
    assert!(error(Linear::from_blocks_guarded("q8_0", n, k, &[0; 5], &guard, &threads())).contains("5"));
    Ok(())
}
