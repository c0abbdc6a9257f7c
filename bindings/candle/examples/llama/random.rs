//! A GGUF file of a small llama with random weights, the same each time.

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result, Tensor};
use std::io::Cursor;

const WIDTH: usize = 256;
const HEADS: usize = 4;
/// Heads of keys and values.
const SHARED: usize = 2;
const INNER: usize = 512;
const TOKENS: usize = 320;
const BLOCKS: usize = 2;

/// Numbers of a distribution near the normal one, from a seed: sums of four uniform ones.
struct Numbers(u64);

impl Numbers {
    fn uniform(&mut self) -> f32 {
        // Constants of Knuth's MMIX.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 24) as f32 - 0.5
    }

    fn tensor(&mut self, shape: &[usize], deviation: f32) -> Result<Tensor> {
        let scale = deviation * 3f32.sqrt();
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| scale * (0..4).map(|_| self.uniform()).sum::<f32>())
            .collect();
        Tensor::from_vec(values, shape, &Device::Cpu)
    }
}

/// The file's bytes. Its matrices are of several types, as those of real files are.
pub fn file() -> Result<Vec<u8>> {
    use GgmlDType::{F32, Q4K, Q5_0, Q6K, Q8_0};
    let mut numbers = Numbers(20);
    let mut tensors = Vec::new();
    let mut matrix = |name: String, n: usize, k: usize, dtype: GgmlDType| {
        let weights = numbers.tensor(&[n, k], 1.0 / (k as f32).sqrt())?;
        tensors.push((format!("{name}.weight"), QTensor::quantize(&weights, dtype)?));
        Ok::<(), candle_core::Error>(())
    };
    let heads = WIDTH / HEADS * SHARED;
    matrix("token_embd".to_owned(), TOKENS, WIDTH, Q8_0)?;
    matrix("output".to_owned(), TOKENS, WIDTH, Q6K)?;
    for block in 0..BLOCKS {
        let name = |name: &str| format!("blk.{block}.{name}");
        matrix(name("attn_q"), WIDTH, WIDTH, Q4K)?;
        matrix(name("attn_k"), heads, WIDTH, Q4K)?;
        matrix(name("attn_v"), heads, WIDTH, Q6K)?;
        matrix(name("attn_output"), WIDTH, WIDTH, Q5_0)?;
        matrix(name("ffn_gate"), INNER, WIDTH, Q4K)?;
        matrix(name("ffn_up"), INNER, WIDTH, Q4K)?;
        // Not q8_0: with AVX-512 VNNI candle 0.11's product of it gives other logits (by up to 2.5), while gristmill's is the oracle's.
        matrix(name("ffn_down"), WIDTH, INNER, Q6K)?;
    }
    let norms = (0..BLOCKS)
        .flat_map(|block| ["attn_norm", "ffn_norm"].map(|norm| format!("blk.{block}.{norm}.weight")));
    for name in norms.chain(["output_norm.weight".to_owned()]) {
        let weights = (numbers.tensor(&[WIDTH], 0.1)? + 1.0)?;
        tensors.push((name, QTensor::quantize(&weights, F32)?));
    }
    let count = |value: usize| Value::U32(value as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".to_owned())),
        ("llama.embedding_length", count(WIDTH)),
        ("llama.block_count", count(BLOCKS)),
        ("llama.attention.head_count", count(HEADS)),
        ("llama.attention.head_count_kv", count(SHARED)),
        ("llama.rope.dimension_count", count(WIDTH / HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &tensors)?;
    Ok(file.into_inner())
}
