//! Records of ours beside other libraries that stand in `benches/record`: products, and whole models.

use crate::committed::Machine;
use serde::{Deserialize, Serialize};

/// Products beside those of other libraries, of one day and machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Products {
    /// The day.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// One for each peer and each set of instructions that both were held to.
    pub runs: Vec<ProductRun>,
}

/// Products beside those of one library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductRun {
    /// Its package and version, and what both were held to.
    pub peer: String,
    /// The ISA that both were held to; `None`: each took what the processor has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_to: Option<String>,
    /// The day, where it is another than the record's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The command.
    pub command: String,
    /// Of compilers and of gristmill.
    pub versions: Vec<String>,
    /// Load averages of the last minute, before and after: 1 is this run alone.
    pub load: [Option<f64>; 2],
    /// Processors that other programs kept busy meanwhile, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// What is to be known when reading it.
    pub notes: Vec<String>,
    /// Ceilings: the name, with the threads where they are several, the rate, its unit.
    pub ceilings: Vec<(String, f64, String)>,
    /// What was measured.
    pub cells: Vec<ProductCell>,
}

/// Ours and theirs for one format, shape and number of threads. Quantizing f32 activations is part of both times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductCell {
    /// Our kernel.
    pub kernel: String,
    /// Our format.
    pub format: String,
    /// The peer's name of its format.
    pub theirs: String,
    /// Tokens.
    pub m: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Elements of a row.
    pub k: u64,
    /// Threads of each side.
    pub threads: u64,
    /// `hot` or `cold`.
    pub memory: String,
    /// Time of our product, the median of the rounds.
    pub our_us: f64,
    /// Time of theirs.
    pub their_us: f64,
    /// 1e9 multiply-accumulates a second.
    pub our_gmac_s: f64,
    /// The same of theirs.
    pub their_gmac_s: f64,
    /// Median over the rounds of their time over ours.
    pub speedup: f64,
    /// The least of a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_speedup: Option<f64>,
    /// The most of a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_speedup: Option<f64>,
    /// Of the lower ceiling as measured beside ours; reading counts the bytes of the file, in records that say below how many
    /// those are, and else those of our packing.
    pub our_percent: f64,
    /// What a weight of ours takes in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bits_per_weight: Option<f64>,
    /// What it takes packed, scales included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bits_per_weight: Option<f64>,
    /// Normalized mean square difference of the results.
    pub nmse: f64,
}

/// Whole models, ours and a peer on the same file, of one day and machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Models {
    /// The day.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// One for each peer and model.
    pub models: Vec<ModelRun>,
}

/// One peer and one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRun {
    /// Package and version.
    pub peer: String,
    /// The file's name, without its ending.
    pub model: String,
    /// The day, where it is another than the record's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The command.
    pub command: String,
    /// Of compilers and of gristmill.
    pub versions: Vec<String>,
    /// Load averages of the last minute, before and after.
    pub load: [Option<f64>; 2],
    /// Processors that other programs kept busy during the measurement.
    pub others: Option<f64>,
    /// What is to be known when reading it.
    pub notes: Vec<String>,
    /// What the model is.
    pub sizes: Sizes,
    /// Whether both compute the same, for each of the peer's settings.
    pub agreements: Vec<Agreement>,
    /// How fast each side was.
    pub speeds: Vec<Speed>,
}

/// Our decoder's name among the sides of a [`ModelRun`].
pub const OURS: &str = "gristmill";

impl ModelRun {
    /// Tokens a second of our decoder and of the peer in its best setting, in a test on so many threads; `None` where one of them was not
    /// measured.
    pub fn rates(&self, test: &str, threads: usize) -> Option<[f64; 2]> {
        let most = |ours: bool| {
            let of_side = self.speeds.iter().filter(|speed| (speed.side == OURS) == ours);
            let here = of_side.filter(|speed| speed.test == test && speed.threads == threads);
            here.map(|speed| speed.median).max_by(f64::total_cmp)
        };
        Some([most(true)?, most(false)?])
    }
}

/// What a model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// As GGUF names it.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Width of a token's row.
    pub embd: usize,
    /// Width between the matrices of the feed-forward part.
    pub ffn: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// The file.
    pub file_bytes: u64,
    /// Our weights in memory. The embedding is not among them where it is no head too: its rows are read from the file.
    pub our_bytes: u64,
    /// Tensors as the peer counts them, the embedding included.
    pub their_bytes: u64,
}

/// Whether both sides compute the same model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The peer's setting.
    pub setting: String,
    /// Tokens of the prompt; logits behind each are compared.
    pub prompt_tokens: usize,
    /// Mean square difference of all logits, relative to the variance of theirs.
    pub nmse: f64,
    /// The same of the token at which it is greatest.
    pub worst_nmse: f64,
    /// Tokens behind which both find the same token most likely.
    pub same_greatest: usize,
    /// Tokens that both were to generate from the prompt, each its own most likely ones.
    pub greedy_tokens: usize,
    /// How many of these were the same before the first that was not.
    pub greedy_equal: usize,
    /// At the first other token, or else at the closest decision of all: how close it was.
    pub closest: Option<Decision>,
}

/// The choice of a token, in logits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// By how much our most likely token leads.
    pub our_margin: f64,
    /// The same of theirs.
    pub their_margin: f64,
    /// Root of the mean square difference of the two sides' logits.
    pub difference: f64,
    /// Standard deviation of their logits.
    pub deviation: f64,
}

/// How fast one side was in one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// `pp512`: a prompt of so many tokens; `tg128`: so many, one after the other.
    pub test: String,
    /// Threads of the side.
    pub threads: usize,
    /// `gristmill`, or the peer's setting.
    pub side: String,
    /// Tokens a second: the median of the rounds.
    pub median: f64,
    /// The least of a round.
    pub min: f64,
    /// The most of a round.
    pub max: f64,
    /// Of each round, in order.
    pub rounds: Vec<f64>,
}
