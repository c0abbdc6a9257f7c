//! A llama over candle's tensors, whose products run in whatever layer it is given.

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::Content;
use candle_core::{D, DType, Device, Error, Module, Result, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::ops::{silu, softmax_last_dim};
use candle_nn::{Embedding, RmsNorm};
use std::io::{Read, Seek};
use std::sync::Arc;

/// A layer of a quantized matrix.
pub type Layer = Box<dyn Module>;

/// Positions that a cache holds.
pub const POSITIONS: usize = 4096;

/// A model and what it has read so far.
pub struct Llama {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    output: Layer,
    /// Angles of the rotary embedding: `[POSITIONS, half of a head]`.
    rotary: [Tensor; 2],
    read: usize,
}

struct Block {
    attention_norm: RmsNorm,
    query: Layer,
    key: Layer,
    value: Layer,
    out: Layer,
    /// Of queries, and of keys and values.
    heads: [usize; 2],
    cache: KvCache,
    ffn_norm: RmsNorm,
    gate: Layer,
    up: Layer,
    down: Layer,
}

impl Llama {
    /// Reads a model; `layer` makes the layer of each matrix that is multiplied with.
    pub fn read<R: Read + Seek>(
        file: &mut R,
        layer: &mut dyn FnMut(Arc<QTensor>) -> Result<Layer>,
    ) -> Result<Llama> {
        let content = Content::read(file)?;
        let key = |key: &str| {
            let key = format!("llama.{key}");
            let value = content.metadata.get(&key);
            value.ok_or_else(|| Error::Msg(format!("the file has no {key}")))
        };
        let number = |name: &str| Ok::<usize, Error>(key(name)?.to_u32()? as usize);
        let width = number("embedding_length")?;
        let heads = [number("attention.head_count")?, number("attention.head_count_kv")?];
        let size = number("rope.dimension_count")?;
        if heads[0] * size != width || heads[1] == 0 || !heads[0].is_multiple_of(heads[1]) {
            candle_core::bail!(
                "{heads:?} heads of {size} in a model of width {width}: not what this example knows"
            )
        }
        let epsilon = f64::from(key("attention.layer_norm_rms_epsilon")?.to_f32()?);
        let base = key("rope.freq_base").and_then(|base| base.to_f32()).unwrap_or(1e4);

        let mut tensor = |name: &str| content.tensor(file, &format!("{name}.weight"), &Device::Cpu);
        let norm = |tensor: QTensor| Ok::<_, Error>(RmsNorm::new(tensor.dequantize(&Device::Cpu)?, epsilon));
        let embedding = Arc::new(tensor("token_embd")?);
        let output = tensor("output").map_or_else(|_| Arc::clone(&embedding), Arc::new);
        let mut blocks = Vec::new();
        for index in 0..number("block_count")? {
            let mut tensor = |name: &str| tensor(&format!("blk.{index}.{name}"));
            blocks.push(Block {
                attention_norm: norm(tensor("attn_norm")?)?,
                query: layer(tensor("attn_q")?.into())?,
                key: layer(tensor("attn_k")?.into())?,
                value: layer(tensor("attn_v")?.into())?,
                out: layer(tensor("attn_output")?.into())?,
                heads,
                cache: KvCache::new(2, POSITIONS),
                ffn_norm: norm(tensor("ffn_norm")?)?,
                gate: layer(tensor("ffn_gate")?.into())?,
                up: layer(tensor("ffn_up")?.into())?,
                down: layer(tensor("ffn_down")?.into())?,
            });
        }
        Ok(Llama {
            embedding: Embedding::new(embedding.dequantize(&Device::Cpu)?, width),
            blocks,
            norm: norm(tensor("output_norm")?)?,
            output: layer(output)?,
            rotary: angles(size, base)?,
            read: 0,
        })
    }

    /// Reads further tokens and gives the logits of the one behind them.
    pub fn next(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let (start, count) = (self.read, tokens.len());
        if count == 0 || start + count > POSITIONS {
            candle_core::bail!("{count} tokens behind {start}, of at most {POSITIONS}")
        }
        let rotary = [self.rotary[0].narrow(0, start, count)?, self.rotary[1].narrow(0, start, count)?];
        // A token sees those in front of it and itself.
        let hidden: Vec<f32> = (0..count)
            .flat_map(|token| {
                (0..start + count).map(move |seen| if seen > start + token { f32::NEG_INFINITY } else { 0.0 })
            })
            .collect();
        let hidden = Tensor::from_vec(hidden, (count, start + count), &Device::Cpu)?;
        let mut x = self.embedding.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?)?;
        for block in &mut self.blocks {
            x = (&x + block.attention(&block.attention_norm.forward(&x)?, &rotary, &hidden)?)?;
            let normed = block.ffn_norm.forward(&x)?;
            let gated = (silu(&block.gate.forward(&normed)?)? * block.up.forward(&normed)?)?;
            x = (x + block.down.forward(&gated)?)?;
        }
        self.read += count;
        let last = self.norm.forward(&x)?.narrow(1, count - 1, 1)?.contiguous()?;
        self.output.forward(&last)?.flatten_all()?.to_vec1()
    }
}

impl Block {
    fn attention(&mut self, x: &Tensor, [cos, sin]: &[Tensor; 2], hidden: &Tensor) -> Result<Tensor> {
        let (batch, count, width) = x.dims3()?;
        let [heads, shared] = self.heads;
        let size = width / heads;
        let split = |x: Tensor, heads| x.reshape((batch, count, heads, size))?.transpose(1, 2)?.contiguous();
        let turn = |x: &Tensor| candle_nn::rotary_emb::rope_i(x, cos, sin);
        let query = turn(&split(self.query.forward(x)?, heads)?)?;
        let key = turn(&split(self.key.forward(x)?, shared)?)?;
        let value = split(self.value.forward(x)?, shared)?;
        let (key, value) = self.cache.append(&key, &value)?;
        // Each head of keys and values serves several of queries.
        let spread = |x: Tensor| {
            let (batch, _, seen, size) = x.dims4()?;
            let x = x.unsqueeze(2)?.expand((batch, shared, heads / shared, seen, size))?;
            x.reshape((batch, heads, seen, size))
        };
        let (key, value) = (spread(key)?, spread(value)?);
        let scores = (query.matmul(&key.t()?)? / (size as f64).sqrt())?.broadcast_add(hidden)?;
        let mixed = softmax_last_dim(&scores)?.matmul(&value)?;
        self.out.forward(&mixed.transpose(1, 2)?.reshape((batch, count, width))?)
    }
}

/// Cosines and sines of the angles of each position.
fn angles(size: usize, base: f32) -> Result<[Tensor; 2]> {
    let speeds: Vec<f32> = (0..size / 2).map(|i| base.powf(-2.0 * i as f32 / size as f32)).collect();
    let positions = Tensor::arange(0, POSITIONS as u32, &Device::Cpu)?.to_dtype(DType::F32)?;
    let angles = positions.unsqueeze(D::Minus1)?.broadcast_mul(&Tensor::new(speeds, &Device::Cpu)?)?;
    Ok([angles.cos()?, angles.sin()?])
}
