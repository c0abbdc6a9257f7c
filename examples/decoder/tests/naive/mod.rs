//! The forward pass in f64, one token after the other, over all that came before: no cache, no batch, no code of the decoder. Of
//! gristmill it uses only what reads the container; weights are dequantized here.

use gristmill::gguf::{Model, TensorType};
use gristmill::half::f16;
use std::collections::HashMap;
use std::path::Path;

/// A model in f64.
pub struct Naive {
    tensors: HashMap<String, Vec<f64>>,
    numbers: HashMap<String, f64>,
    architecture: String,
}

/// What a value becomes on its way through a cache in `q8_0`: of 32 values the greatest magnitude is 127 steps, halves are rounded
/// away from zero, and the step is kept in f16.
pub fn through_q8_0(values: &mut [f64]) {
    for group in values.chunks_mut(32) {
        let step = group.iter().fold(0.0, |most: f64, value| most.max(value.abs())) / 127.0;
        let kept = f16::from_f64(step).to_f64();
        for value in group.iter_mut().filter(|value| **value != 0.0) {
            *value = (*value / step).round() * kept;
        }
    }
}

/// `f32`, `f16`, `q8_0` (blocks of 32: f16 scale, then i8) or `i2_s` (groups of 128 in 32 bytes, f32 scale behind all).
fn dequantize(format: &str, elements: usize, data: &[u8]) -> Vec<f64> {
    match format {
        "f32" => data.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        "f16" => data.chunks(2).map(|b| f16::from_le_bytes(b.try_into().unwrap()).to_f64()).collect(),
        "q8_0" => {
            let block = |b: &[u8]| {
                let d = f16::from_le_bytes([b[0], b[1]]).to_f64();
                b[2..].iter().map(move |q| d * f64::from(*q as i8)).collect::<Vec<_>>()
            };
            data.chunks(34).flat_map(block).collect()
        }
        "i2_s" => {
            let scale = f64::from(f32::from_le_bytes(data[elements / 4..][..4].try_into().unwrap()));
            let code = |e: usize| data[e / 128 * 32 + e % 32] >> (6 - 2 * (e % 128 / 32)) & 3;
            (0..elements).map(|e| scale * (f64::from(code(e)) - 1.0)).collect()
        }
        other => panic!("the reference does not know {other}"),
    }
}

fn norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
}

/// Rows of `w` times `x`.
fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|x| x / sum).collect()
}

impl Naive {
    pub fn open(path: &Path) -> Naive {
        let model = Model::open(path).unwrap();
        let file = model.file();
        let mut tensors = HashMap::new();
        for tensor in file.tensors() {
            let name = match model.tensor_type(tensor.name()).unwrap() {
                TensorType::Plain(plain) => plain.name,
                TensorType::Format(resolved) => resolved.format.name,
                TensorType::Tiled(tiled) => tiled.layout.name(),
            };
            let values = dequantize(name, tensor.elements() as usize, &tensor.data().unwrap());
            assert_eq!(values.len() as u64, tensor.elements());
            tensors.insert(tensor.name().to_owned(), values);
        }
        let architecture = file.architecture().unwrap().to_owned();
        let number =
            |value: gristmill::gguf::Value<'_>| value.as_f64().or(value.as_u64().map(|number| number as f64));
        let numbers = file
            .metadata()
            .filter_map(|(key, value)| {
                Some((key.strip_prefix(&format!("{architecture}."))?.to_owned(), number(value)?))
            })
            .collect();
        Naive { tensors, numbers, architecture }
    }

    fn size(&self, key: &str) -> usize {
        self.numbers[key] as usize
    }

    fn matrix(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut y = product(&self.tensors[&format!("{name}.weight")], x);
        if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        y
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let (dims, base) = (self.size("rope.dimension_count"), self.numbers["rope.freq_base"]);
        // The second is the older name.
        let scaling = ["rope.scaling.factor", "rope.scale_linear"].map(|key| self.numbers.get(key));
        let position = position as f64 / scaling.into_iter().flatten().next().unwrap_or(&1.0);
        for i in 0..dims / 2 {
            let factor = self.tensors.get("rope_freqs.weight").map_or(1.0, |factors| factors[i]);
            let angle = position / base.powf(2.0 * i as f64 / dims as f64) / factor;
            // llama.cpp's `llama_model_rope_type`: of these architectures only `llama` turns neighbours.
            let (a, b) = if self.architecture == "llama" { (2 * i, 2 * i + 1) } else { (i, i + dims / 2) };
            let (x, y) = (head[a], head[b]);
            head[a] = x * angle.cos() - y * angle.sin();
            head[b] = x * angle.sin() + y * angle.cos();
        }
    }

    fn ffn(&self, gate: &[f64], up: &[f64]) -> Vec<f64> {
        let squared = ["bitnet-b1.58", "bitnet-25"].contains(&self.architecture.as_str());
        let act = |x: f64| if squared { x.max(0.0).powi(2) } else { x / (1.0 + (-x).exp()) };
        gate.iter().zip(up).map(|(gate, up)| act(*gate) * up).collect()
    }

    /// Logits behind each of `tokens`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        self.logits_through(tokens, |_| ())
    }

    /// The same, where all keys and all values of a token go through `cache`.
    pub fn logits_through(&self, tokens: &[u32], cache: impl Fn(&mut [f64])) -> Vec<Vec<f64>> {
        let (embd, eps) = (self.size("embedding_length"), self.numbers["attention.layer_norm_rms_epsilon"]);
        let (heads, kv_heads) = (self.size("attention.head_count"), self.size("attention.head_count_kv"));
        let size = self.size("attention.key_length");
        let embedding = &self.tensors["token_embd.weight"];
        let mut all: Vec<Vec<f64>> =
            tokens.iter().map(|token| embedding[*token as usize * embd..][..embd].to_vec()).collect();
        for layer in 0..self.size("block_count") {
            let name = |name: &str| format!("blk.{layer}.{name}");
            let weight = |of: &str| self.tensors.get(&name(&format!("{of}.weight")));
            let mut keys: Vec<Vec<f64>> = Vec::new();
            let mut values: Vec<Vec<f64>> = Vec::new();
            for (position, x) in all.iter_mut().enumerate() {
                let h = norm(x, weight("attn_norm").unwrap(), eps);
                let [mut q, mut k] = ["attn_q", "attn_k"].map(|of| self.matrix(&name(of), &h));
                for (rows, of) in [(&mut q, "attn_q_norm"), (&mut k, "attn_k_norm")] {
                    for head in rows.chunks_mut(size) {
                        if let Some(weight) = weight(of) {
                            head.copy_from_slice(&norm(head, weight, eps));
                        }
                        self.rotate(head, position);
                    }
                }
                let mut v = self.matrix(&name("attn_v"), &h);
                cache(&mut k);
                cache(&mut v);
                keys.push(k);
                values.push(v);
                let mut attended = vec![0.0; heads * size];
                for head in 0..heads {
                    let shared = head / (heads / kv_heads) * size;
                    let query = &q[head * size..][..size];
                    let score = |key: &Vec<f64>| {
                        let dot: f64 = query.iter().zip(&key[shared..]).map(|(q, k)| q * k).sum();
                        dot / (size as f64).sqrt()
                    };
                    let weights = softmax(&keys.iter().map(score).collect::<Vec<_>>());
                    for (weight, value) in weights.iter().zip(&values) {
                        for element in 0..size {
                            attended[head * size + element] += weight * value[shared + element];
                        }
                    }
                }
                if let Some(weight) = weight("attn_sub_norm") {
                    attended = norm(&attended, weight, eps);
                }
                let out = self.matrix(&name("attn_output"), &attended);
                x.iter_mut().zip(&out).for_each(|(x, out)| *x += out);
                let h = norm(x, weight("ffn_norm").unwrap(), eps);
                for (x, out) in x.iter_mut().zip(self.feed_forward(layer, &h, eps)) {
                    *x += out;
                }
            }
        }
        let head = self.tensors.get("output.weight").unwrap_or(embedding);
        all.iter().map(|x| product(head, &norm(x, &self.tensors["output_norm.weight"], eps))).collect()
    }

    fn feed_forward(&self, layer: usize, h: &[f64], eps: f64) -> Vec<f64> {
        let name = |name: &str| format!("blk.{layer}.{name}");
        let Some(router) = self.tensors.get(&name("ffn_gate_inp.weight")) else {
            let [gate, up] = ["ffn_gate", "ffn_up"].map(|of| self.matrix(&name(of), h));
            let mut inner = self.ffn(&gate, &up);
            if let Some(weight) = self.tensors.get(&name("ffn_sub_norm.weight")) {
                inner = norm(&inner, weight, eps);
            }
            return self.matrix(&name("ffn_down"), &inner);
        };
        let mut ranked: Vec<(usize, f64)> = softmax(&product(router, h)).into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        ranked.truncate(self.size("expert_used_count"));
        let sum: f64 = ranked.iter().map(|(_, weight)| weight).sum();
        let mut out = vec![0.0; h.len()];
        for (expert, weight) in ranked {
            let matrix = |of: &str| {
                let all = &self.tensors[&name(&format!("{of}.weight"))];
                &all[expert * (all.len() / self.size("expert_count"))..]
                    [..all.len() / self.size("expert_count")]
            };
            let inner = self.ffn(&product(matrix("ffn_gate_exps"), h), &product(matrix("ffn_up_exps"), h));
            for (out, y) in out.iter_mut().zip(product(matrix("ffn_down_exps"), &inner)) {
                *out += weight / sum * y;
            }
        }
        out
    }
}
