//! Models of random numbers, so that everything can be tried without a download: the same file for the same sizes and seed.

use crate::config::{Architecture, Config, architecture};
use crate::error::{Error, zeros};
use crate::floats::Float;
use crate::tokens::byte_char;
use gristmill::gguf::{ArrayBuf, Gguf, GgufWriter, TensorStream, Value, unquantized_only};
use gristmill::registry::FormatInfo;
use gristmill::{CpuProfile, Fnv, Quantizer, REGISTRY, Request, Restrict, Threads};
use std::io::Write;
use std::path::Path;

/// What is to be made.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// `general.architecture`.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Elements of a token's vector.
    pub embd: usize,
    /// Outputs of the gate.
    pub ffn: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head; `None`: `embd / heads`.
    pub head: Option<usize>,
    /// Tokens.
    pub vocab: usize,
    /// Positions.
    pub context: usize,
    /// Experts and how many a token goes through, where the architecture has experts.
    pub experts: (usize, usize),
    /// Formats of the matrices of layers, by turns.
    pub formats: Vec<String>,
    /// Format of the embedding.
    pub embedding: String,
    /// Format of the head; `None`: the embedding is the head.
    pub head_format: Option<String>,
    /// Factors of rotation, as Llama 3.1 has them.
    pub rope_freqs: bool,
    /// Whether the file has a vocabulary.
    pub vocabulary: bool,
    /// Of the random numbers.
    pub seed: u64,
}

/// How the values of a tensor are stored.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Float(Float, u32),
    Format(&'static FormatInfo, u32),
}

impl Stored {
    fn named(name: &str) -> Result<Stored, Error> {
        if let Some((float, _, number)) = Float::ALL.iter().find(|(_, known, _)| *known == name) {
            return Ok(Stored::Float(*float, *number));
        }
        let (_, format) = REGISTRY.format(name)?;
        match format.gguf {
            Some(number) => Ok(Stored::Format(format, number)),
            None => Err(Error::Asked(format!("format `{name}` has no type number in GGUF files"))),
        }
    }

    fn number(self) -> u32 {
        match self {
            Stored::Float(_, number) | Stored::Format(_, number) => number,
        }
    }

    fn bytes(self, n: usize, k: usize) -> Result<usize, Error> {
        Ok(match self {
            Stored::Float(float, _) => {
                n.checked_mul(k).and_then(|values| values.checked_mul(float.width())).ok_or_else(too_large)?
            }
            Stored::Format(format, _) => format.tensor_bytes(n, k)?,
        })
    }
}

/// A tensor of the file.
struct Declared {
    name: String,
    /// Rows over all matrices of a stack.
    n: usize,
    k: usize,
    /// How many matrices are stacked.
    stack: Option<usize>,
    stored: Stored,
    values: Values,
}

/// Which random numbers a tensor gets.
#[derive(Clone, Copy)]
enum Values {
    /// Of a standard deviation by which a product keeps the size of its input.
    Matrix,
    /// Near 1.
    Norm,
    /// Small.
    Bias,
    /// From 1 upwards.
    Rising,
}

/// Bytes of the largest file that is made: beyond what anybody tries things with.
const MOST_BYTES: u64 = 1 << 38;
/// Layers, and tokens of a vocabulary: beyond any model, and few enough that lists of them are small.
const MOST_LAYERS: usize = 4096;
const MOST_TOKENS: usize = 1 << 20;

fn too_large() -> Error {
    Error::Asked(format!("a model of these sizes is larger than {} GiB", MOST_BYTES >> 30))
}

/// Rows that are made at a time, where the format has no scale for the whole tensor.
const PIECE: usize = 64;

impl Recipe {
    /// Writes the file.
    ///
    /// # Errors
    /// Sizes that don't go together, formats that can't be made, a file that can't be written.
    pub fn write(&self, path: &Path, threads: &Threads) -> Result<(), Error> {
        let facts = architecture(&self.architecture)?;
        self.check(facts)?;
        let tensors = self.tensors(facts)?;
        let mut writer = GgufWriter::new();
        self.metadata(facts, &mut writer)?;
        if self.vocabulary {
            vocabulary(self.vocab, &mut writer)?;
        } else {
            writer.metadata("tokenizer.ggml.model", Value::String("no_vocab"))?;
        }
        let mut all = 0u64;
        for tensor in &tensors {
            let bytes = tensor.bytes()?;
            all = all.saturating_add(bytes as u64);
            if all > MOST_BYTES {
                return Err(too_large());
            }
            let (n, k) = (tensor.n as u64, tensor.k as u64);
            let vector = tensor.n == 1 && !matches!(tensor.values, Values::Matrix);
            let dims = match tensor.stack {
                None if vector => vec![k],
                None => vec![k, n],
                Some(count) => vec![k, n / count as u64, count as u64],
            };
            writer.tensor(&tensor.name, &dims, tensor.stored.number(), bytes as u64)?;
        }
        writer.create(path, |stream| tensors.iter().try_for_each(|tensor| self.data(tensor, stream, threads)))
    }

    /// Refuses what could not be run, by the code that reads a model, and what would never be finished.
    fn check(&self, facts: &Architecture) -> Result<(), Error> {
        if self.layers > MOST_LAYERS {
            return Err(Error::Asked(format!(
                "--layers {}: a model of random numbers has up to {MOST_LAYERS}",
                self.layers
            )));
        }
        if self.vocabulary && self.vocab > MOST_TOKENS {
            return Err(Error::Asked(format!(
                "--vocab {}: a vocabulary of random numbers has up to {MOST_TOKENS} tokens\n  help: --no-vocab writes none",
                self.vocab
            )));
        }
        let mut writer = GgufWriter::new();
        self.metadata(facts, &mut writer)?;
        let header = writer.write_to(Vec::new())?.finish()?;
        Config::declared(&Gguf::parse(header, &unquantized_only)?)?;
        Ok(())
    }

    fn head(&self) -> Result<usize, Error> {
        match self.head {
            Some(head) => Ok(head),
            None if self.heads > 0 && self.embd.is_multiple_of(self.heads) => Ok(self.embd / self.heads),
            None => Err(Error::Asked(format!("--heads {} does not divide --embd {}", self.heads, self.embd))),
        }
    }

    fn tensors(&self, facts: &Architecture) -> Result<Vec<Declared>, Error> {
        let Recipe { embd, ffn, heads, kv_heads, vocab, .. } = *self;
        let head = self.head()?;
        if [self.layers, embd, ffn, heads, kv_heads, head, vocab].contains(&0) {
            return Err(Error::Asked("every size of a model is at least 1".to_owned()));
        }
        let formats: Result<Vec<Stored>, Error> =
            self.formats.iter().map(|name| Stored::named(name)).collect();
        let formats = formats?;
        if formats.is_empty() {
            return Err(Error::Asked("--format names no format".to_owned()));
        }
        let mut turn = formats.iter().copied().cycle();
        let f32 = Stored::Float(Float::F32, 0);
        let mut tensors = vec![Declared {
            name: crate::embedding::NAME.to_owned(),
            n: vocab,
            k: embd,
            stack: None,
            stored: Stored::named(&self.embedding)?,
            values: Values::Matrix,
        }];
        let vector = |name: String, k, values| Declared { name, n: 1, k, stack: None, stored: f32, values };
        if self.rope_freqs {
            tensors.push(vector(crate::weights::ROPE_FREQS.to_owned(), head / 2, Values::Rising));
        }
        for layer in 0..self.layers {
            let name = |name: &str| format!("blk.{layer}.{name}");
            let mut matrix = |tensors: &mut Vec<Declared>, of: &str, n: usize, k, stack: Option<usize>| {
                let stored = turn.next().unwrap_or(f32);
                let n = n.saturating_mul(stack.unwrap_or(1));
                tensors.push(Declared { name: name(of), n, k, stack, stored, values: Values::Matrix });
            };
            tensors.push(vector(name("attn_norm.weight"), embd, Values::Norm));
            for (of, n) in
                [("attn_q", heads * head), ("attn_k", kv_heads * head), ("attn_v", kv_heads * head)]
            {
                matrix(&mut tensors, &format!("{of}.weight"), n, embd, None);
                if facts.biases {
                    tensors.push(vector(name(&format!("{of}.bias")), n, Values::Bias));
                }
            }
            matrix(&mut tensors, "attn_output.weight", embd, heads * head, None);
            if facts.head_norms {
                tensors.push(vector(name("attn_q_norm.weight"), head, Values::Norm));
                tensors.push(vector(name("attn_k_norm.weight"), head, Values::Norm));
            }
            tensors.push(vector(name("ffn_norm.weight"), embd, Values::Norm));
            if facts.sub_norms {
                tensors.push(vector(name("attn_sub_norm.weight"), heads * head, Values::Norm));
                tensors.push(vector(name("ffn_sub_norm.weight"), ffn, Values::Norm));
            }
            let (suffix, stack) = if facts.experts { ("_exps", Some(self.experts.0)) } else { ("", None) };
            for (of, n, k) in [("ffn_gate", ffn, embd), ("ffn_up", ffn, embd), ("ffn_down", embd, ffn)] {
                matrix(&mut tensors, &format!("{of}{suffix}.weight"), n, k, stack);
            }
            if facts.experts {
                let router = name("ffn_gate_inp.weight");
                let (n, values) = (self.experts.0, Values::Matrix);
                tensors.push(Declared { name: router, n, k: embd, stack: None, stored: f32, values });
            }
        }
        tensors.push(vector(crate::weights::OUTPUT_NORM.to_owned(), embd, Values::Norm));
        if let Some(format) = &self.head_format {
            let (name, stored) = (crate::head::NAME.to_owned(), Stored::named(format)?);
            tensors.push(Declared { name, n: vocab, k: embd, stack: None, stored, values: Values::Matrix });
        }
        Ok(tensors)
    }

    fn metadata(&self, facts: &Architecture, writer: &mut GgufWriter) -> Result<(), Error> {
        let name = facts.name;
        writer.metadata("general.architecture", Value::String(name))?;
        writer.metadata("general.name", Value::String("random numbers"))?;
        let head = self.head()?;
        let ffn = if facts.experts { "expert_feed_forward_length" } else { "feed_forward_length" };
        let mut counts = vec![
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.embd),
            (ffn, self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", head),
            ("attention.value_length", head),
            ("rope.dimension_count", head),
            ("vocab_size", self.vocab),
        ];
        if facts.experts {
            counts.extend([("expert_count", self.experts.0), ("expert_used_count", self.experts.1)]);
        }
        for (key, count) in counts {
            let count =
                u32::try_from(count).map_err(|_| Error::Asked(format!("{key} of {count} is too large")))?;
            writer.metadata(&format!("{name}.{key}"), Value::U32(count))?;
        }
        writer.metadata(&format!("{name}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5))?;
        writer.metadata(&format!("{name}.rope.freq_base"), Value::F32(facts.base))?;
        Ok(())
    }

    fn data<W: Write>(
        &self,
        tensor: &Declared,
        stream: &mut TensorStream<W>,
        threads: &Threads,
    ) -> Result<(), Error> {
        let Declared { name, n, k, stored, .. } = tensor;
        let whole = matches!(stored, Stored::Format(format, _) if format.tensor_tail.is_some());
        let size = if whole { *n } else { PIECE };
        let quantizer = match stored {
            Stored::Float(..) => None,
            Stored::Format(format, _) => {
                let request = Request::quantize(format.name, None, *n, *k);
                let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
                Some(Quantizer::new(&prepared.decide_as_asked())?)
            }
        };
        // A few pieces for each thread at a time, so that a matrix need not be in memory as f32.
        let together = size.saturating_mul(4 * threads.count()).min(*n);
        for first in (0..*n).step_by(together.max(1)) {
            let rows = together.min(n - first);
            let mut pieces: Vec<(usize, Vec<u8>)> =
                (first..first + rows).step_by(size).map(|row| (row, Vec::new())).collect();
            threads.each(&mut pieces, |(row, bytes)| {
                let rows = size.min(n - *row);
                let mut values: Vec<f32> = zeros("random numbers", rows * k)?;
                tensor.fill(self.seed, *row, &mut values);
                match (&quantizer, stored) {
                    (Some(quantizer), _) => {
                        *bytes = zeros("a piece of a tensor", stored.bytes(rows, *k)?)?;
                        Ok(quantizer.run(&values, rows, *k, bytes)?)
                    }
                    (None, Stored::Float(float, _)) => {
                        float.encode(&values, bytes);
                        Ok(())
                    }
                    (None, Stored::Format(..)) => Ok::<(), Error>(()),
                }
            })?;
            for (_, bytes) in &pieces {
                stream.data(name, bytes)?;
            }
        }
        Ok(())
    }
}

impl Declared {
    /// Bytes of all rows.
    fn bytes(&self) -> Result<usize, Error> {
        self.stored.bytes(self.n, self.k)
    }

    /// Random numbers for rows from `first` on.
    fn fill(&self, seed: u64, first: usize, values: &mut [f32]) {
        // A hash of the name, so that each tensor has numbers of its own.
        let hash = Fnv::EMPTY.with(self.name.as_bytes()).get();
        for (row, values) in (first..).zip(values.chunks_mut(self.k)) {
            let mut random = fastrand::Rng::with_seed(seed ^ hash.wrapping_add(row as u64));
            // The sum of four uniform numbers has a variance of a third.
            let mut bell = || (0..4).map(|_| random.f32()).sum::<f32>() - 2.0;
            for (index, value) in values.iter_mut().enumerate() {
                *value = match self.values {
                    Values::Matrix => bell() * (3.0 / self.k as f32).sqrt(),
                    Values::Norm => 1.0 + 0.2 * bell(),
                    Values::Bias => 0.1 * bell(),
                    Values::Rising => 1.0 + index as f32 / 4.0,
                };
            }
        }
    }
}

/// A vocabulary of bytes, as GPT-2 writes them, of pairs of letters with their merges, and of two control tokens.
fn vocabulary(size: usize, writer: &mut GgufWriter) -> Result<(), Error> {
    const CONTROL: [&str; 3] = ["<|begin|>", "<|end|>", "<|turn|>"];
    if size < 256 + CONTROL.len() {
        return Err(Error::Asked(format!(
            "--vocab {size}: a vocabulary of bytes has at least {} tokens\n  help: --no-vocab writes a file that is run by numbers of \
             tokens",
            256 + CONTROL.len()
        )));
    }
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(CONTROL.map(str::to_owned));
    let letters = || (b'a'..=b'z').map(char::from);
    let mut merges = Vec::new();
    for (a, b) in letters().flat_map(|a| letters().map(move |b| (a, b))).take(size - tokens.len()) {
        tokens.push(format!("{a}{b}"));
        merges.push(format!("{a} {b}"));
    }
    tokens.extend((tokens.len()..size).map(|index| format!("<|unused {index}|>")).collect::<Vec<_>>());
    // 1: normal, 3: control, 5: unused.
    let kind = |token: &String| match token.as_str() {
        token if CONTROL.contains(&token) => 3,
        token if token.starts_with("<|unused") => 5,
        _ => 1,
    };
    writer.metadata("tokenizer.ggml.model", Value::String("gpt2"))?;
    writer.metadata("tokenizer.ggml.pre", Value::String("gpt-2"))?;
    writer.metadata("tokenizer.ggml.token_type", ArrayBuf::i32s(tokens.iter().map(kind)).value())?;
    writer.metadata("tokenizer.ggml.tokens", ArrayBuf::strings(tokens.iter().map(String::as_str)).value())?;
    writer.metadata("tokenizer.ggml.merges", ArrayBuf::strings(merges.iter().map(String::as_str)).value())?;
    writer.metadata("tokenizer.ggml.bos_token_id", Value::U32(256))?;
    writer.metadata("tokenizer.ggml.eos_token_id", Value::U32(257))?;
    writer.metadata("tokenizer.ggml.add_bos_token", Value::Bool(true))?;
    let template = "{{ bos_token }}{% for message in messages %}<|turn|>{{ message['role'] }}: {{ message['content'] }}\
                    <|end|>{% endfor %}{% if add_generation_prompt %}<|turn|>assistant: {% endif %}";
    writer.metadata("tokenizer.chat_template", Value::String(template))?;
    Ok(())
}
