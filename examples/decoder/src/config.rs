//! What the metadata of a file says of its model.

use crate::error::Error;
use gristmill::GateFunction;
use gristmill::gguf::{Gguf, GgufFile, Store, Value};

/// Most elements of a head that [`attention`](crate::attention) keeps on its stack.
pub const MAX_HEAD: usize = 256;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// 2i and 2i + 1 (`GGML_ROPE_TYPE_NORMAL`).
    Neighbours,
    /// i and i + half of them (`GGML_ROPE_TYPE_NEOX`).
    Halves,
}

/// What is done to the gate of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x / (1 + exp(-x)).
    Silu,
    /// max(x, 0)^2.
    SquaredRelu,
}

impl Gate {
    /// The same for a prologue.
    pub fn function(self) -> GateFunction {
        match self {
            Gate::Silu => GateFunction::Silu,
            Gate::SquaredRelu => GateFunction::SquaredRelu,
        }
    }
}

/// What tells one architecture from another. The names are those of llama.cpp, and so are the forward passes
/// (`src/llama-model.cpp` and `src/models` there; for `bitnet-b1.58` and `bitnet-25` `build_bitnet_158` of bitnet.cpp).
#[derive(Debug)]
pub struct Architecture {
    /// `general.architecture`, and the prefix of the other keys.
    pub name: &'static str,
    /// Rotation.
    pub pairs: RopePairs,
    /// Feed-forward network.
    pub gate: Gate,
    /// Whether what attention and the gate give is normalized once more.
    pub sub_norms: bool,
    /// Whether each head of queries and keys is normalized.
    pub head_norms: bool,
    /// Whether the feed-forward network has experts.
    pub experts: bool,
    /// Whether query, key and value have biases in models of random numbers. Any file may have them.
    pub biases: bool,
    /// Base of the frequencies of rotation in models of random numbers. A file says its own.
    pub base: f32,
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    pairs: RopePairs::Neighbours,
    gate: Gate::Silu,
    sub_norms: false,
    head_norms: false,
    experts: false,
    biases: false,
    base: 10_000.0,
};
/// Those that rotate halves.
const HALVES: Architecture = Architecture { pairs: RopePairs::Halves, base: 500_000.0, ..LLAMA };
const BITNET: Architecture = Architecture { name: "bitnet", sub_norms: true, ..HALVES };

/// Every architecture that there is a forward pass for.
pub static ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    Architecture { name: "qwen2", biases: true, ..HALVES },
    Architecture { name: "qwen3", head_norms: true, ..HALVES },
    Architecture { name: "qwen3moe", head_norms: true, experts: true, ..HALVES },
    BITNET,
    Architecture { name: "bitnet-b1.58", gate: Gate::SquaredRelu, ..BITNET },
    Architecture { name: "bitnet-25", gate: Gate::SquaredRelu, ..BITNET },
];

/// The architecture called `name`.
///
/// # Errors
/// [`Error::Architecture`].
pub fn architecture(name: &str) -> Result<&'static Architecture, Error> {
    ARCHITECTURES.iter().find(|known| known.name == name).ok_or_else(|| {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
        Error::Architecture { found: name.to_owned(), known: known.join(", ") }
    })
}

/// How many experts a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertCounts {
    /// How many there are.
    pub count: usize,
    /// How many of them a token goes through.
    pub used: usize,
}

/// Rotation of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Elements of a head that are rotated, from the first on.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// What positions are multiplied by.
    pub scale: f64,
}

/// Sizes of a model.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its forward pass.
    pub architecture: &'static Architecture,
    /// Layers.
    pub layers: usize,
    /// Elements of a token's vector.
    pub embd: usize,
    /// Outputs of the gate (of one expert, where there are experts).
    pub ffn: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Positions that the model was made for.
    pub context: usize,
    /// Added to the mean square in norms.
    pub eps: f32,
    /// Rotation.
    pub rope: Rope,
    /// Experts, where there are any.
    pub experts: Option<ExpertCounts>,
}

impl Config {
    /// Reads and checks the metadata of `file`.
    ///
    /// # Errors
    /// [`Error::Architecture`], [`Error::Metadata`].
    pub fn of(file: &GgufFile) -> Result<Config, Error> {
        let config = Config::declared(file)?;
        Ok(Config { vocab: vocab(file, config.embd)?, ..config })
    }

    /// What the metadata alone says; the vocabulary, which is up to the embedding, counts as empty. Also for a file in the making.
    ///
    /// # Errors
    /// As for [`Config::of`].
    pub fn declared<B: Store>(file: &Gguf<B>) -> Result<Config, Error> {
        let name = file.architecture().ok_or_else(|| Error::Metadata {
            key: "general.architecture".to_owned(),
            why: "missing, so it is not known how the model computes".to_owned(),
        })?;
        let architecture = architecture(name)?;
        let keys = Keys { file, architecture };
        let embd = keys.size("embedding_length")?;
        let (heads, kv_heads) = keys.heads()?;
        let head = keys.head(embd, heads)?;
        crate::declared::check(file, architecture.name, head)?;
        let experts = keys.experts()?;
        let ffn = keys.size(match experts {
            Some(_) => "expert_feed_forward_length",
            None => "feed_forward_length",
        })?;
        Ok(Config {
            architecture,
            layers: keys.size("block_count")?,
            embd,
            ffn,
            heads,
            kv_heads,
            head,
            vocab: 0,
            context: keys.context()?,
            eps: keys.epsilon()?,
            rope: keys.rope(head)?,
            experts,
        })
    }

    /// Queries that share the keys and values of a head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Rows of the embedding.
fn vocab(file: &GgufFile, embd: usize) -> Result<usize, Error> {
    const NAME: &str = "token_embd.weight";
    let tensor = file.tensor(NAME);
    let dims = tensor.as_ref().map(|tensor| tensor.dims());
    match dims {
        Some(&[k, n]) if k == embd as u64 && (1..=u64::from(u32::MAX)).contains(&n) => Ok(n as usize),
        Some(dims) => Err(Error::Metadata {
            key: NAME.to_owned(),
            why: format!("dimensions {dims:?}, expected {embd} and the number of tokens"),
        }),
        None => Err(Error::Metadata { key: NAME.to_owned(), why: "there is no such tensor".to_owned() }),
    }
}

/// Metadata of one architecture.
struct Keys<'a, B> {
    file: &'a Gguf<B>,
    architecture: &'static Architecture,
}

impl<B: Store> Keys<'_, B> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    fn wrong(&self, key: &str, why: String) -> Error {
        Error::Metadata { key: self.name(key), why }
    }

    fn value(&self, key: &str) -> Option<Value<'_>> {
        self.file.value(&self.name(key))
    }

    /// A number of things. 0 counts as missing, as converters write it for "none".
    fn optional(&self, key: &str) -> Result<Option<usize>, Error> {
        /// Beyond any model, and small enough that a product of two of them fits in 64 bits. Memory for more is asked for by products that
        /// saturate.
        const MOST: u64 = 1 << 24;
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(0) => Ok(None),
            Some(count) if count <= MOST => Ok(Some(count as usize)),
            Some(count) => Err(self.wrong(key, format!("{count} is more than any model has"))),
            None => Err(self.wrong(
                key,
                format!("{value:?}, expected one number (a value for each layer is not supported)"),
            )),
        }
    }

    fn size(&self, key: &str) -> Result<usize, Error> {
        self.optional(key)?.ok_or_else(|| self.wrong(key, "missing or 0".to_owned()))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, format!("{value:?}, expected a floating-point number"))),
        }
    }

    /// How many heads queries have, and how many keys and values.
    fn heads(&self) -> Result<(usize, usize), Error> {
        const KV: &str = "attention.head_count_kv";
        let heads = self.size("attention.head_count")?;
        match self.optional(KV)? {
            None => Ok((heads, heads)),
            Some(kv_heads) if heads % kv_heads == 0 => Ok((heads, kv_heads)),
            Some(kv_heads) => Err(self.wrong(KV, format!("{kv_heads} does not divide {heads} heads"))),
        }
    }

    /// Elements of each of `heads` heads.
    fn head(&self, embd: usize, heads: usize) -> Result<usize, Error> {
        const KEY: &str = "attention.key_length";
        const VALUE: &str = "attention.value_length";
        let head = match self.optional(KEY)? {
            Some(head) => head,
            None if embd.is_multiple_of(heads) => embd / heads,
            None => return Err(self.wrong(KEY, format!("missing, and {heads} heads do not divide {embd}"))),
        };
        if let Some(value) = self.optional(VALUE)?.filter(|value| *value != head) {
            return Err(self.wrong(VALUE, format!("{value} where keys have {head}: not supported")));
        }
        if head > MAX_HEAD || head % 2 != 0 {
            let why = format!("heads of {head}: even and up to {MAX_HEAD} are supported");
            return Err(self.wrong(KEY, why));
        }
        Ok(head)
    }

    /// Experts, which there are where the architecture has them, and nowhere else.
    fn experts(&self) -> Result<Option<ExpertCounts>, Error> {
        const COUNT: &str = "expert_count";
        const USED: &str = "expert_used_count";
        if !self.architecture.experts {
            return match self.optional(COUNT)? {
                None => Ok(None),
                Some(count) => {
                    Err(self.wrong(COUNT, format!("{count}: experts of this architecture are not supported")))
                }
            };
        }
        let (count, used) = (self.size(COUNT)?, self.size(USED)?);
        if used > count {
            return Err(self.wrong(USED, format!("{used} of {count} experts")));
        }
        Ok(Some(ExpertCounts { count, used }))
    }

    /// Positions that the model was made for, all of which attention goes over.
    fn context(&self) -> Result<usize, Error> {
        const WINDOW: &str = "attention.sliding_window";
        let context = self.size("context_length")?;
        match self.optional(WINDOW)? {
            Some(window) if window < context => {
                Err(self.wrong(WINDOW, format!("a window of {window} positions is not supported")))
            }
            Some(_) | None => Ok(context),
        }
    }

    /// What is added to the mean square in norms.
    fn epsilon(&self) -> Result<f32, Error> {
        const KEY: &str = "attention.layer_norm_rms_epsilon";
        match self.float(KEY)? {
            Some(eps) if eps.is_finite() && eps as f32 > 0.0 => Ok(eps as f32),
            Some(eps) => Err(self.wrong(KEY, format!("{eps}, expected a small positive number"))),
            None => Err(self.wrong(KEY, "missing".to_owned())),
        }
    }

    fn rope(&self, head: usize) -> Result<Rope, Error> {
        let dims = self.optional("rope.dimension_count")?.unwrap_or(head);
        if dims > head || dims % 2 != 0 {
            return Err(self.wrong("rope.dimension_count", format!("{dims} of heads of {head}")));
        }
        let base = self.float("rope.freq_base")?.unwrap_or(10_000.0);
        if !(base.is_finite() && base > 1.0) {
            return Err(self.wrong("rope.freq_base", format!("{base}, expected a number above 1")));
        }
        let kind = self.value("rope.scaling.type");
        let linear = match kind.as_ref().map(|kind| kind.as_str()) {
            None => true,
            Some(Some("linear")) => true,
            Some(Some("none")) => false,
            Some(other) => {
                let why = format!("{}: supported are `linear` and `none`", other.unwrap_or("not a word"));
                return Err(self.wrong("rope.scaling.type", why));
            }
        };
        // The older key says the same.
        let factor = match self.float("rope.scaling.factor")? {
            None => self.float("rope.scale_linear")?,
            factor => factor,
        };
        let factor = factor.filter(|factor| linear && *factor != 0.0).unwrap_or(1.0);
        if !(factor.is_finite() && factor > 0.0) {
            return Err(self.wrong("rope.scaling.factor", format!("{factor}, expected a positive number")));
        }
        Ok(Rope { dims, base, scale: 1.0 / factor })
    }
}
