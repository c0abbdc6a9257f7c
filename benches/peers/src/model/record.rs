//! Records of whole models.

use crate::error::Error;
use crate::record::{date, machine, write};
use decoder::Decoder;
use gristmill_records::peers::{ModelRun, Models, Sizes};
use std::path::Path;

/// Of a model that is loaded.
pub fn sizes(path: &Path, ours: &Decoder, their_bytes: u64) -> Result<Sizes, Error> {
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

/// Adds a run to the record at `path`, in place of one of the same peer and model; other runs are kept if they are of this
/// machine and day.
pub fn add(path: &Path, run: ModelRun) -> Result<(), Error> {
    let fresh = || Models { date: date(), machine: machine(), models: Vec::new() };
    let mut record = match path.exists() {
        true => {
            let bytes = std::fs::read(path).map_err(Error::file("read", path))?;
            serde_json::from_slice(&bytes)
                .map_err(|source| Error::Record { path: path.to_owned(), source })?
        }
        false => fresh(),
    };
    if record.date != date() || record.machine != machine() {
        record = fresh();
    }
    record.models.retain(|other| (&other.peer, &other.model) != (&run.peer, &run.model));
    record.models.push(run);
    write(path, &record)?;
    println!("{}: {} runs", path.display(), record.models.len());
    Ok(())
}
