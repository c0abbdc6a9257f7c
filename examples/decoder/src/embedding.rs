//! Vectors of tokens, read from the file row by row: it is in the page cache, and rows are few, so nothing is kept in memory.

use crate::error::Error;
use gristmill::gguf::{Model, TensorType};
use gristmill::registry::FormatInfo;
use gristmill::{CpuProfile, Embedder, Hadamard, Output, QuantizedMatrix, Recording, Request, Restrict};
use std::sync::Arc;

/// Name of the tensor.
pub const NAME: &str = "token_embd.weight";

/// The embedding of a file.
#[derive(Debug)]
pub struct Embedding {
    kind: Kind,
    k: usize,
    /// What the file declares to be taken back of its rows.
    transform: Option<Arc<Hadamard>>,
    /// The bytes of one row, and of the tail where the format has one.
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    Floats,
    Format {
        embedder: Embedder,
        format: &'static FormatInfo,
        row_bytes: usize,
        /// Bytes of all rows, behind which the tail stands.
        rows_bytes: usize,
    },
}

impl Embedding {
    /// Looks at the tensor; `vocab` and `k` are its dimensions.
    ///
    /// # Errors
    /// No kernel; a type that is neither a format nor f32, f16 or bf16.
    pub fn new(model: &Model, vocab: usize, k: usize, restrict: &Restrict) -> Result<Embedding, Error> {
        let (kind, length) = match model.tensor_type(NAME)? {
            TensorType::Plain(_) => {
                // Says of which types values can be had.
                model.floats_at(NAME, 0, &mut [])?;
                (Kind::Floats, 0)
            }
            TensorType::Tiled(tiled) => {
                let layout = tiled.layout.name();
                return Err(Error::Asked(format!(
                    "tensor `{NAME}` is of type {layout}, which has no rows to look up"
                )));
            }
            TensorType::Format(resolved) => {
                let format = resolved.format;
                let request = Request::embed(format.name, vocab, k);
                let prepared = model.registry().prepare_for(&request, CpuProfile::detect(), restrict)?;
                let embedder = Embedder::new(&prepared.decide_as_asked())?;
                let row_bytes = format.row_bytes(k)?;
                let rows_bytes = vocab * row_bytes;
                let length = format.tensor_bytes(1, k)?;
                (Kind::Format { embedder, format, row_bytes, rows_bytes }, length)
            }
        };
        let transform = model.transforms().and_then(|transforms| transforms.of_rows(NAME)).cloned();
        Ok(Embedding { kind, k, transform, bytes: vec![0; length] })
    }

    /// Lets its launches count.
    ///
    /// # Errors
    /// [`gristmill::Error::ForeignRecording`].
    pub fn record(&mut self, recording: &Recording) -> Result<(), Error> {
        match &mut self.kind {
            Kind::Floats => Ok(()),
            Kind::Format { embedder, .. } => Ok(embedder.record(Some(recording))?),
        }
    }

    /// Name of the kernel, where there is one.
    pub fn kernel(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::Floats => None,
            Kind::Format { embedder, .. } => Some(embedder.entry().name),
        }
    }

    /// The vectors of `tokens`, which are in the vocabulary, one after the other.
    ///
    /// # Errors
    /// The file can't be read; codes that mean nothing.
    pub fn rows(&mut self, model: &Model, tokens: &[u32], out: &mut [f32]) -> Result<(), Error> {
        for (token, out) in tokens.iter().zip(out.chunks_mut(self.k)) {
            let token = *token as usize;
            match &self.kind {
                Kind::Floats => model.floats_at(NAME, (token * self.k) as u64, out)?,
                Kind::Format { embedder, format, row_bytes, rows_bytes } => {
                    let Some(tensor) = model.file().tensor(NAME) else { continue };
                    let (row, tail) = self.bytes.split_at_mut(*row_bytes);
                    tensor.read((token * row_bytes) as u64, row)?;
                    tensor.read(*rows_bytes as u64, tail)?;
                    let matrix = QuantizedMatrix::new(format, 1, self.k, &self.bytes)?;
                    embedder.run(&matrix, &[0], Output::F32(out))?;
                }
            }
            if let Some(transform) = &self.transform {
                transform.inverse(out)?;
            }
        }
        Ok(())
    }
}
