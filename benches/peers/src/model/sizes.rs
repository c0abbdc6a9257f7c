//! What a record says of a model.

use crate::error::Error;
use decoder::Decoder;
use gristmill_records::peers::Sizes;
use std::path::Path;

/// Of a model that is loaded.
pub fn of(path: &Path, ours: &Decoder, their_bytes: u64) -> Result<Sizes, Error> {
    let config = &ours.config;
    Ok(Sizes {
        architecture: config.architecture.name.to_owned(),
        layers: config.layers,
        embd: config.embd,
        ffn: config.ffn,
        heads: config.heads,
        kv_heads: config.kv_heads,
        vocab: config.vocab,
        file_bytes: std::fs::metadata(path).map_err(Error::file("ask for the length of", path))?.len(),
        our_bytes: ours.weights.bytes() as u64,
        their_bytes,
    })
}
