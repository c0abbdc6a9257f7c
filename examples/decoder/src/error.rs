//! What can go wrong, and what would help.

use gristmill::Threads;
use gristmill::gguf::{GgufError, ModelError, NoData, WriteError};
use std::path::PathBuf;

/// Every error of the decoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, one of its tensors, or a layer made of them.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The bytes of a tensor.
    #[error(transparent)]
    NoData(#[from] NoData),
    /// A kernel.
    #[error(transparent)]
    Kernel(#[from] gristmill::Error),
    /// A file that is written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file that was to be replaced.
    #[error(transparent)]
    Replace(#[from] gristmill::replace::ReplaceError),
    /// A file that is read or written as text.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The architecture of a file has no forward pass here.
    #[error("architecture `{found}` is not one that this decoder knows\n  help: it knows {known}")]
    Architecture {
        /// What the file says.
        found: String,
        /// The names of those that are known.
        known: String,
    },
    /// A metadata entry is missing or has a value that can't be right.
    #[error("metadata `{key}`: {why}")]
    Metadata {
        /// The entry.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A tensor has other dimensions than the metadata says.
    #[error(
        "tensor `{tensor}` has dimensions {found:?}, expected {expected:?} by the metadata of the file (elements of a row first)"
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: Vec<u64>,
        /// Those that it should have.
        expected: Vec<u64>,
    },
    /// A tensor that the forward pass of its architecture does not read.
    #[error(
        "tensor `{tensor}` is not part of what is known of architecture `{architecture}`: without it the model would compute \
         something else"
    )]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// The cache can't hold heads of this size in a format.
    #[error(
        "a cache in {format} needs heads that are a multiple of {group} elements, which share a scale; those of this model have \
         {head}\n  help: --cache f16"
    )]
    CacheFormat {
        /// The format.
        format: &'static str,
        /// Elements that share a scale.
        group: usize,
        /// Elements of a head.
        head: usize,
    },
    /// What somebody asked for can't be done, for the reason given.
    #[error("{0}")]
    Asked(String),
    /// No memory.
    #[error("no memory for {what}: {bytes} bytes")]
    Memory {
        /// For what.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// More tokens than the cache has room for.
    #[error("{tokens} tokens do not fit in the context: it has room for {room} more of {context}{}", longer(*context, *longest))]
    Context {
        /// Tokens that were to be taken in.
        tokens: usize,
        /// Places that are left.
        room: usize,
        /// All places.
        context: usize,
        /// Most that the model was made for.
        longest: usize,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} is not in the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens that there are.
        vocab: usize,
    },
    /// A token can't be chosen by logits like this one.
    #[error(
        "the logit of token {token} is {value}, so no token can be chosen\n  help: `gristmill inspect FILE output.weight` (or \
         `token_embd.weight`) tells scales that are not finite; the file may be damaged"
    )]
    Logit {
        /// The token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// Experts can't be chosen by scores like this one.
    #[error(
        "layer {layer}: the router scores expert {expert} with {value} for the token at position {token}, so no experts can be \
         chosen\n  help: `gristmill inspect FILE blk.{layer}.ffn_gate_inp.weight` tells values that are not finite; the file may be \
         damaged"
    )]
    Router {
        /// The layer.
        layer: usize,
        /// Position of the token, from 0 on.
        token: usize,
        /// The expert.
        expert: usize,
        /// Its score.
        value: f32,
    },
    /// The vocabulary of the file.
    #[error("the tokenizer of the file: {0}")]
    Tokenizer(String),
    /// The chat template of the file.
    #[error("the chat template of the file: {0}")]
    Template(String),
}

/// What helps where a context of `context` positions is full, of a model that was made for `longest`.
pub(crate) fn longer(context: usize, longest: usize) -> String {
    if context < longest {
        return format!("\n  help: --context N, up to {longest} for this model");
    }
    ", and the model was made for no more\n  help: a shorter text".to_owned()
}

/// A vector of `len` zeros, or an error.
pub(crate) fn zeros<T: Clone + Default>(what: &'static str, len: usize) -> Result<Vec<T>, Error> {
    let mut values = room(what, len)?;
    values.resize(len, T::default());
    Ok(values)
}

/// A vector that has room for `len` values, on huge pages as far as they fit in: rows of a batch lie far apart, and each on a page of its own
/// costs an address translation (a prompt of 512 tokens takes 0.96 of the time).
pub(crate) fn room<T>(what: &'static str, len: usize) -> Result<Vec<T>, Error> {
    let bytes = len.saturating_mul(size_of::<T>());
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| Error::Memory { what, bytes })?;
    gristmill::prefer_huge_pages(values.spare_capacity_mut());
    Ok(values)
}

/// [`zeros`] for much memory: the system gives out pages when they are first written to, and takes its time, so `threads` do that together.
pub(crate) fn zeros_by<T: Clone + Default + Send>(
    what: &'static str,
    len: usize,
    threads: &Threads,
) -> Result<Vec<T>, Error> {
    /// Bytes of a huge page, and of the smallest.
    const PAGES: [usize; 2] = [2 << 20, 4096];
    let mut values = room(what, len)?;
    let room = values.spare_capacity_mut();
    let [huge, small] = PAGES.map(|bytes| bytes.div_ceil(size_of::<T>().max(1)));
    threads.chunks(room, huge, |_, room| {
        for page in room.chunks_mut(small) {
            page[0].write(T::default());
        }
        Ok::<(), Error>(())
    })?;
    values.resize(len, T::default());
    Ok(values)
}
