//! Packings that tensors of a model are held in because it is read from memory, or once on a GPU, as `plan` and `run` tell it.

use super::error::CliError;
use super::table::counted;
use gristmill::{Decision, FromMemory, HeldOnce};
use gristmill_records::run as records;
use std::io::Write;

/// What decisions said of the packing of each tensor.
#[derive(Default)]
pub struct Held {
    working_set: u64,
    /// Format, why, and tensors of which it was said.
    because: Vec<(String, FromMemory, usize)>,
    /// The same of tensors that a GPU holds once.
    once: Vec<(String, HeldOnce, usize)>,
}

impl Held {
    /// Nothing yet; `working_set` is the bytes of weights that take turns.
    pub fn new(working_set: u64) -> Held {
        Held { working_set, ..Held::default() }
    }

    /// What requests are to say.
    pub fn working_set(&self) -> Option<u64> {
        Some(self.working_set)
    }

    /// Counts the decision for a tensor.
    pub fn add(&mut self, decision: &Decision<'_>) {
        let format = decision.prepared().format_name();
        if let Some(why) = decision.packing_reason() {
            count(&mut self.because, format, *why);
        }
        if let Some(why) = decision.once_reason() {
            count(&mut self.once, format, *why);
        }
    }

    /// Formats that are held in another packing because they are read from memory.
    pub fn json(&self) -> Vec<records::FromMemory> {
        let row = |(format, why, tensors): &(String, FromMemory, usize)| records::FromMemory {
            format: format.clone(),
            tensors: *tensors as u64,
            packing: why.packing.to_owned(),
            instead_of: why.instead_of.to_owned(),
            working_set: why.working_set,
            cache: why.cache,
        };
        self.because.iter().map(row).collect()
    }

    /// Formats that a GPU holds once.
    pub fn once_json(&self) -> Vec<records::HeldOnce> {
        let row = |(format, why, tensors): &(String, HeldOnce, usize)| records::HeldOnce {
            format: format.clone(),
            tensors: *tensors as u64,
            packing: why.packing.to_owned(),
            instead_of: why.instead_of.to_owned(),
        };
        self.once.iter().map(row).collect()
    }

    /// Prints a line for each format.
    ///
    /// # Errors
    /// When `out` refuses.
    pub fn print(&self, out: &mut dyn Write) -> Result<(), CliError> {
        for (format, why, count) in &self.because {
            writeln!(out, "{} of {format} are held in {why}", counted(*count, "tensor"))?;
        }
        for (format, why, count) in &self.once {
            writeln!(out, "{} of {format} are held in {why}", counted(*count, "tensor"))?;
        }
        Ok(())
    }
}

/// One tensor more of a format and a reason.
fn count<W: PartialEq>(rows: &mut Vec<(String, W, usize)>, format: &str, why: W) {
    match rows.iter_mut().find(|(name, known, _)| name == format && *known == why) {
        Some((_, _, count)) => *count += 1,
        None => rows.push((format.to_owned(), why, 1)),
    }
}
