//! The command: its arguments, and what each of its subcommands does.

mod bench;
mod chat;
mod check;
mod generate;
mod make;
mod plan;

use crate::decoder::{Decoder, Options};
use crate::error::Error;
use clap::{Args, Subcommand};
use gristmill::vocab::Isa;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the command can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continues a prompt
    Run(generate::Run),
    /// Keeps up a conversation, by the chat template of the file; a message a line
    Chat(chat::Chat),
    /// Measures how fast prompts are read and tokens generated
    Bench(bench::Bench),
    /// Compares the logits of 1 and 2 threads, token by token and in batches, bit for bit
    Check(check::Check),
    /// Writes a model of random numbers
    MakeModel(make::MakeModel),
}

/// How a model is loaded: the same for all that load one.
#[derive(Clone, Debug, Args)]
pub struct Loading {
    /// The model
    pub model: PathBuf,
    /// Positions of the cache: up to what the model was made for; without it that, but at most 4096
    #[arg(long)]
    pub context: Option<usize>,
    /// Tokens of a prompt that go through the layers together
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// Format that a head of f32, f16 or bf16 is quantized to while it is loaded (f32, f16 or bf16: not at all) [default: q6_k, or q8_0
    /// where rows are not of whole blocks of 256]
    #[arg(long)]
    pub head: Option<String>,
    /// No kernels above this instruction set
    #[arg(long, value_parser = isa)]
    pub isa: Option<Isa>,
}

fn isa(name: &str) -> Result<Isa, String> {
    let known = || Isa::ALL.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
    Isa::ALL
        .iter()
        .copied()
        .find(|isa| isa.name() == name)
        .ok_or_else(|| format!("expected one of {}", known()))
}

impl Loading {
    fn options(&self, threads: usize) -> Options {
        let Loading { context, batch, head, isa, .. } = self.clone();
        Options { threads, context, batch: batch as usize, head, isa }
    }

    /// Loads it and says on standard error what that took.
    fn load(&self, threads: usize) -> Result<Decoder, Error> {
        let start = Instant::now();
        let decoder = Decoder::load(&self.model, &self.options(threads))?;
        let (cache, buffers) = decoder.working_bytes();
        let config = &decoder.config;
        eprintln!(
            "{}: {}, {} layers, loaded in {:.2} s",
            self.model.display(),
            config.architecture.name,
            config.layers,
            start.elapsed().as_secs_f64()
        );
        eprintln!(
            "{} MiB in the file; in memory {} MiB of weights, {} MiB of cache, {} MiB between products",
            mebibytes(length(&self.model)?),
            mebibytes(decoder.weights.bytes() as u64),
            mebibytes(cache as u64),
            mebibytes(buffers as u64)
        );
        if let Some(head) = &decoder.weights.head.requantized {
            eprintln!("head: {} quantized to {}, NMSE {:.2e} (one row in 64)", head.from, head.to, head.nmse);
        }
        Ok(decoder)
    }
}

/// Bytes of a file.
fn length(path: &Path) -> Result<u64, Error> {
    let failed = |source| Error::Io { action: "ask for the length of", path: path.to_owned(), source };
    Ok(std::fs::metadata(path).map_err(failed)?.len())
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Writes to standard output; a reader that went away ends the command like any other error.
fn print(out: &mut dyn Write, text: std::fmt::Arguments<'_>) -> Result<(), Error> {
    let failed = |source| Error::Io { action: "write to", path: "standard output".into(), source };
    out.write_fmt(text).and_then(|()| out.flush()).map_err(failed)
}

/// A text file.
fn read_text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Io { action: "read", path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Asked(format!("{} is not UTF-8: byte {at} begins no character", path.display()))
    })
}

/// Does what was asked for.
///
/// # Errors
/// Whatever went wrong, to be printed.
pub fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Run(arguments) => arguments.run(out),
        Command::Chat(arguments) => arguments.run(&mut std::io::stdin().lock(), out),
        Command::Bench(arguments) => arguments.run(out),
        Command::Check(arguments) => arguments.run(out),
        Command::MakeModel(arguments) => arguments.run(out),
    }
}
