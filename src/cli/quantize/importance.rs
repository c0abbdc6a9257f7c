//! The importance of columns that `--imatrix` names, held against what is to be quantized.

use super::super::error::CliError;
use super::super::table::first_of;
use gristmill::gguf::{GgufWriter, Importance, Value, WriteError};
use gristmill::registry::Code;
use gristmill::text::Printable;
use gristmill::{Quantizer, REGISTRY};
use std::path::Path;

/// Tensors that are named where some have no importance.
const NAMED: usize = 8;

/// What llama.cpp's quantizer writes of it into a model's metadata.
pub const KEYS: &str = "quantize.imatrix.";

/// A file of importance.
pub struct Weighing {
    name: String,
    importance: Importance,
}

impl Weighing {
    /// Reads the file. Each of `tensors` (name, matrices, elements of a row) that it knows has to have as many there, and it has
    /// to know one at least.
    ///
    /// # Errors
    /// [`CliError::Importance`], [`CliError::Usage`].
    pub fn open<'m>(
        path: &Path,
        tensors: impl IntoIterator<Item = (&'m str, usize, usize)>,
    ) -> Result<Weighing, CliError> {
        let importance =
            Importance::open(path).map_err(|error| CliError::Importance { path: path.to_owned(), error })?;
        let mut known = 0;
        for (tensor, matrices, k) in tensors {
            let Some(columns) = importance.tensor(tensor) else { continue };
            if columns.k() != k || columns.matrices() != matrices {
                return Err(CliError::usage(
                    format!(
                        "tensor `{}` is {} of {k} columns; in `{}` it has {} by {} of them",
                        Printable(tensor),
                        if matrices == 1 { "a matrix".to_owned() } else { format!("{matrices} matrices") },
                        path.display(),
                        columns.matrices(),
                        columns.k()
                    ),
                    "was it measured with another model? nothing was written",
                ));
            }
            known += 1;
        }
        if known == 0 {
            let example = importance.names().next().unwrap_or_default();
            return Err(CliError::usage(
                format!("`{}` has the importance of no matrix that is to be quantized", path.display()),
                format!(
                    "its tensors are named as in GGUF files, such as `{}`; was it measured with another model?",
                    Printable(example)
                ),
            ));
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Weighing { name, importance })
    }

    /// The importance of the columns of one of a tensor's matrices; `None`: none was measured.
    pub fn of(&self, tensor: &str, matrix: usize) -> Option<&[f32]> {
        self.importance.tensor(tensor)?.matrix(matrix)
    }

    /// Says in the metadata what was used.
    ///
    /// # Errors
    /// As [`GgufWriter::metadata`].
    pub fn declare(&self, writer: &mut GgufWriter) -> Result<(), WriteError> {
        let count = |count: u64| Value::U32(u32::try_from(count).unwrap_or(u32::MAX));
        writer.metadata(&format!("{KEYS}file"), Value::String(&self.name))?;
        if let Some(dataset) = self.importance.datasets().first() {
            writer.metadata(&format!("{KEYS}dataset"), Value::String(dataset))?;
        }
        writer.metadata(&format!("{KEYS}entries_count"), count(self.importance.names().len() as u64))?;
        match self.importance.chunks() {
            Some(chunks) => writer.metadata(&format!("{KEYS}chunks_count"), count(chunks)),
            None => Ok(()),
        }
    }
}

/// Refuses a quantizer that weighs no errors.
///
/// # Errors
/// [`CliError::Usage`] with the formats whose quantizers do.
pub fn taken_by(kernel: &Quantizer) -> Result<(), CliError> {
    if kernel.takes_importance() {
        return Ok(());
    }
    let mut known: Vec<&str> = REGISTRY
        .entries
        .iter()
        .filter(|entry| matches!(entry.code, Code::Quantize { weighs: true, .. }))
        .map(|entry| REGISTRY.formats[entry.format].name)
        .collect();
    known.sort_unstable();
    known.dedup();
    Err(CliError::usage(
        format!("{} takes no importance of columns: it searches for no scale", kernel.entry().name),
        format!("formats of this build whose quantizers do: {}; or leave --imatrix away", known.join(", ")),
    ))
}

/// The tensors that were quantized without importance, with how many of how many matrices were, in one line.
pub fn without(tensors: &[(&str, usize, usize)]) -> String {
    let name = |(tensor, without, matrices): &(&str, usize, usize)| match matrices {
        1 => Printable(tensor).to_string(),
        matrices => format!("{} ({without} of {matrices} matrices)", Printable(tensor)),
    };
    let named: Vec<String> = tensors.iter().map(name).collect();
    format!("without importance, of which the file has none: {}", first_of(&named, NAMED))
}
