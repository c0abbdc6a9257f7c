//! Models with folded weights: the decoder applies the Hadamard transforms that a file declares, so that logits are those of the model
//! that was folded.

#[allow(dead_code, reason = "the reference, of which a part is used here")]
mod naive;

use decoder::make_model::Recipe;
use decoder::{Decoder, Options, Wanted};
use gristmill::gguf::{ArrayBuf, GgufFile, GgufWriter, Value, WriteError, unquantized_only};
use gristmill::{Quantizer, REGISTRY, Request, Threads};
use naive::Naive;
use std::path::Path;

const BLOCK: usize = 32;
const EMBEDDING: &str = "token_embd.weight";
const EMBD: usize = 256;
const FFN: usize = 384;
const TOKENS: [u32; 7] = [3, 250, 17, 17, 99, 0, 41];

fn signs(width: usize) -> Vec<i8> {
    (0..width).map(|i| if (i * i + i / 7 + width).is_multiple_of(3) { -1 } else { 1 }).collect()
}

/// Rows behind `H (s * x)`, by the definition in f64.
fn folded(rows: &[f32], width: usize) -> Vec<f32> {
    let (signs, scale) = (signs(width), 1.0 / (BLOCK as f64).sqrt());
    let one = |at: usize| {
        let (start, row) = (at - at % BLOCK, at % BLOCK);
        let term = |column: usize| {
            let value = f64::from(rows[start + column]) * f64::from(signs[(start + column) % width]);
            if (row & column).count_ones().is_multiple_of(2) { value } else { -value }
        };
        ((0..BLOCK).map(term).sum::<f64>() * scale) as f32
    };
    (0..rows.len()).map(one).collect()
}

/// Every matrix but the router is folded.
fn is_folded(name: &str, dims: &[u64]) -> bool {
    dims.len() > 1 && !name.contains("ffn_gate_inp")
}

/// A model of f32 with every matrix folded.
struct Folded {
    file: GgufFile,
    /// Tensors in the order of the file: values of matrices, and bytes of the others.
    values: Vec<Result<Vec<f32>, Vec<u8>>>,
}

impl Folded {
    fn of(path: &Path) -> Folded {
        let file = GgufFile::open(path, &unquantized_only).unwrap();
        let one = |tensor: gristmill::gguf::Tensor<'_>| {
            let bytes = tensor.data().unwrap().into_owned();
            if !is_folded(tensor.name(), tensor.dims()) {
                return Err(bytes);
            }
            let values = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four));
            Ok(folded(&values.collect::<Vec<_>>(), tensor.dims()[0] as usize))
        };
        let values = file.tensors().map(one).collect();
        Folded { file, values }
    }

    /// Writes it with its matrices in `format`, and without its declaration where that is not asked for.
    fn write(&self, to: &Path, format: &str, declared: bool) {
        let mut writer = GgufWriter::new();
        writer.copy_metadata(&self.file, |_| true).unwrap();
        let names: Vec<&str> = self
            .file
            .tensors()
            .filter(|tensor| is_folded(tensor.name(), tensor.dims()) && tensor.name() != EMBEDDING)
            .map(|tensor| tensor.name())
            .collect();
        let weights = ArrayBuf::strings(names);
        let rows = ArrayBuf::strings([EMBEDDING]);
        let widths = ArrayBuf::u32s([EMBD as u32, FFN as u32]);
        let values = ArrayBuf::i8s([signs(EMBD), signs(FFN)].concat());
        if declared {
            for (key, value) in [
                ("version", Value::U32(1)),
                ("transform", Value::String("normalized-sylvester-walsh-hadamard")),
                ("axis", Value::String("input-last-dimension")),
                ("block_size", Value::U32(BLOCK as u32)),
                ("sign_mode", Value::String("explicit")),
                ("sign_widths", widths.value()),
                ("sign_values", values.value()),
                ("weight_names", weights.value()),
                ("inverse_weight_names", rows.value()),
            ] {
                writer.metadata(&format!("prism.hadamard.{key}"), value).unwrap();
            }
        }
        let mut data = Vec::new();
        for (tensor, values) in self.file.tensors().zip(&self.values) {
            let (number, bytes) = match values {
                Err(bytes) => (0, bytes.clone()),
                Ok(values) if format == "f32" || tensor.name() == EMBEDDING => {
                    (0, values.iter().flat_map(|value| value.to_le_bytes()).collect())
                }
                Ok(values) => quantized(format, values, tensor.dims()[0] as usize),
            };
            writer.tensor(tensor.name(), tensor.dims(), number, bytes.len() as u64).unwrap();
            data.push((tensor.name(), bytes));
        }
        writer
            .create(to, |stream| data.iter().try_for_each(|(name, bytes)| stream.data(name, bytes)))
            .map_err(|error: WriteError| error)
            .unwrap();
    }
}

/// Rows of `k` in a format, with its type number.
fn quantized(format: &str, values: &[f32], k: usize) -> (u32, Vec<u8>) {
    let n = values.len() / k;
    let info = REGISTRY.format(format).unwrap().1;
    let prepared = REGISTRY.prepare(&Request::quantize(format, None, n, k)).unwrap();
    let mut bytes = vec![0; info.tensor_bytes(n, k).unwrap()];
    Quantizer::new(&prepared.decide_as_asked()).unwrap().run(values, n, k, &mut bytes).unwrap();
    (info.gguf.unwrap(), bytes)
}

/// The normalized mean squared error of the decoder's logits.
fn nmse(path: &Path, head: &str, expected: &[Vec<f64>]) -> f64 {
    let options = Options { threads: 2, batch: Some(4), head: Some(head.to_owned()), ..Options::default() };
    let mut decoder = Decoder::load(path, &options).unwrap();
    let (mut error, mut signal) = (0.0, 0.0);
    for (token, expected) in TOKENS.iter().zip(expected) {
        let logits = decoder.feed(&[*token], Wanted::Last).unwrap();
        for (logit, expected) in logits.iter().zip(expected) {
            error += (f64::from(*logit) - expected).powi(2);
            signal += expected * expected;
        }
    }
    error / signal
}

#[test]
fn folded_models_have_the_logits_of_those_they_were_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let [path, to] = ["model.gguf", "folded.gguf"].map(|name| folder.path().join(name));
    // Biases, experts, and the plain architecture.
    for architecture in ["llama", "qwen2", "qwen3moe"] {
        let recipe = Recipe {
            architecture: architecture.to_owned(),
            layers: 1,
            embd: EMBD,
            ffn: FFN,
            heads: 4,
            kv_heads: 2,
            head: Some(64),
            vocab: 300,
            context: 128,
            experts: (3, 2),
            formats: vec!["f32".to_owned()],
            embedding: "f32".to_owned(),
            head_format: None,
            rope_freqs: false,
            vocabulary: false,
            seed: 11,
        };
        recipe.write(&path, &Threads::single()).unwrap();
        let expected = Naive::open(&path).logits(&TOKENS);
        let folded = Folded::of(&path);
        // As in `logits.rs`: experts of int8 products may be others.
        let quantized = if architecture == "qwen3moe" { 5e-2 } else { 1e-3 };
        for (format, head, bound) in
            [("f32", "f32", 1e-6), ("q8_0", "f32", quantized), ("q8_0", "q8_0", quantized)]
        {
            folded.write(&to, format, true);
            let found = nmse(&to, head, &expected);
            println!("{architecture} {format}, head {head}: NMSE {found:.2e}");
            assert!(found < bound, "{architecture} {format}, head {head}: NMSE {found:.2e}");
        }
        // Without its declaration it loads as well, and speaks gibberish.
        folded.write(&to, "f32", false);
        let found = nmse(&to, "f32", &expected);
        assert!(found > 0.5, "{architecture}: NMSE {found:.2e}");
    }
}
