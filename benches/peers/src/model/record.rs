//! Records of whole models.

use super::agreement::Agreement;
use super::turns::Speed;
use crate::error::Error;
use crate::record::{Machine, date, write};
use decoder::Decoder;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Runs of one day on one machine, one for each peer and model.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub date: String,
    pub machine: Machine,
    pub models: Vec<ModelRun>,
}

/// One peer and one model.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModelRun {
    /// Package and version.
    pub peer: String,
    /// The file's name, without its ending.
    pub model: String,
    pub command: String,
    /// Compilers and our commit.
    pub versions: Vec<String>,
    /// Load averages of the last minute, before and after.
    pub load: [Option<f64>; 2],
    /// Processors that other programs kept busy during the measurement.
    pub others: Option<f64>,
    /// What is to be known when reading it.
    pub notes: Vec<String>,
    pub sizes: Sizes,
    pub agreements: Vec<Agreement>,
    pub speeds: Vec<Speed>,
}

/// What the model is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sizes {
    pub architecture: String,
    pub layers: usize,
    pub embd: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub vocab: usize,
    pub file_bytes: u64,
    /// Our weights in memory. The embedding is not among them where it is no head too: its rows are read from the file.
    pub our_bytes: u64,
    /// Tensors as the peer counts them, the embedding included.
    pub their_bytes: u64,
}

impl Sizes {
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
}

impl Record {
    /// Adds a run to the record at `path`, in place of one of the same peer and model; other runs are kept if they are of this
    /// machine and day.
    pub fn add(path: &Path, run: ModelRun) -> Result<(), Error> {
        let fresh = || Record { date: date(), machine: Machine::here(), models: Vec::new() };
        let mut record = match path.exists() {
            true => {
                let bytes = std::fs::read(path).map_err(Error::file("read", path))?;
                serde_json::from_slice(&bytes)
                    .map_err(|source| Error::Record { path: path.to_owned(), source })?
            }
            false => fresh(),
        };
        if record.date != date() || record.machine != Machine::here() {
            record = fresh();
        }
        record.models.retain(|other| (&other.peer, &other.model) != (&run.peer, &run.model));
        record.models.push(run);
        write(path, &record)?;
        println!("{}: {} runs", path.display(), record.models.len());
        Ok(())
    }
}

impl Agreement {
    /// One line for a reader.
    pub fn print(&self) {
        println!(
            "logits of {} tokens, {}: NMSE {:.1e}, at most {:.1e} of a token; {} of {} with the same greatest",
            self.prompt_tokens,
            self.setting,
            self.nmse,
            self.worst_nmse,
            self.same_greatest,
            self.prompt_tokens
        );
        println!("  greedy: {} of {} tokens equal", self.greedy_equal, self.greedy_tokens);
        if let Some(closest) = self.closest {
            let what =
                if self.greedy_equal < self.greedy_tokens { "the next one" } else { "the closest decision" };
            println!(
                "  {what}: leads by {:.4} (ours) and {:.4} (theirs) where logits of a deviation of {:.3} differ by {:.4}",
                closest.our_margin, closest.their_margin, closest.deviation, closest.difference
            );
        }
    }
}
