//! `decoder make-model`.

use super::loading::{length, mebibytes, print, threads};
use crate::error::Error;
use crate::make_model::Recipe;
use clap::Args;
use gristmill::Threads;
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `make-model`.
#[derive(Debug, Args)]
pub struct MakeModel {
    /// Architecture
    #[arg(long, default_value = "llama")]
    arch: String,
    /// Layers
    #[arg(long, default_value_t = 2)]
    layers: usize,
    /// Elements of a token's vector
    #[arg(long, default_value_t = 256)]
    embd: usize,
    /// Outputs of the gate (of one expert)
    #[arg(long, default_value_t = 512)]
    ffn: usize,
    /// Heads of queries
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Heads of keys and values
    #[arg(long, default_value_t = 2)]
    kv_heads: usize,
    /// Elements of a head [default: those of a token's vector, divided among the heads]
    #[arg(long)]
    head_dim: Option<usize>,
    /// Tokens
    #[arg(long, default_value_t = 512)]
    vocab: usize,
    /// Positions
    #[arg(long, default_value_t = 4096)]
    context: usize,
    /// Experts of a layer, where the architecture has experts
    #[arg(long, default_value_t = 8)]
    experts: usize,
    /// Experts that a token goes through
    #[arg(long, default_value_t = 2)]
    experts_used: usize,
    /// Format of the matrices of layers; of several they take turns
    #[arg(long, default_value = "q4_k", value_delimiter = ',')]
    format: Vec<String>,
    /// Format of the embedding
    #[arg(long, default_value = "f16")]
    embedding: String,
    /// Format of the head; without it the embedding is the head
    #[arg(long)]
    head: Option<String>,
    /// Adds factors of rotation, as Llama 3.1 has them
    #[arg(long)]
    rope_freqs: bool,
    /// Writes no vocabulary: the model is run by numbers of tokens
    #[arg(long)]
    no_vocab: bool,
    /// Of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads that make the numbers
    #[arg(long, default_value_t = 2, value_parser = threads)]
    threads: usize,
    /// The file to write
    #[arg(short, long)]
    output: PathBuf,
}

impl MakeModel {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Error> {
        let threads = Threads::new(self.threads)?;
        let path = self.output;
        let recipe = Recipe {
            architecture: self.arch,
            layers: self.layers,
            embd: self.embd,
            ffn: self.ffn,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head: self.head_dim,
            vocab: self.vocab,
            context: self.context,
            experts: (self.experts, self.experts_used),
            formats: self.format,
            embedding: self.embedding,
            head_format: self.head,
            rope_freqs: self.rope_freqs,
            vocabulary: !self.no_vocab,
            seed: self.seed,
        };
        recipe.write(&path, &threads)?;
        print(out, format_args!("{}: {} MiB\n", path.display(), mebibytes(length(&path)?)))
    }
}
