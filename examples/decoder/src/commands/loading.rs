//! What subcommands share: loading a model, and text in and out.

use super::output::Out;
use crate::cache::CacheFormat;
use crate::config::Config;
use crate::decoder::{Decoder, Options};
use crate::error::Error;
use crate::restrict::isa_named;
use crate::tokens::Tokens;
use clap::Args;
use gristmill::gguf::Model;
use gristmill::vocab::Isa;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How a model is loaded: the same for all that load one.
#[derive(Clone, Debug, Args)]
pub struct Loading {
    /// The model
    pub model: PathBuf,
    /// Positions of the cache: up to what the model was made for; without it that, but at most 4096
    #[arg(long)]
    pub context: Option<usize>,
    /// What keys and values are held as; q8_0 takes 34/64 of the memory of f16 and needs heads of a multiple of 32 elements
    #[arg(long, value_enum, default_value_t)]
    pub cache: CacheFormat,
    /// Tokens of a prompt that go through the layers together [default: 128, or 512 of models with experts]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// Format that a head of f32, f16 or bf16 is quantized to while it is loaded (f32, f16 or bf16: not at all) [default: q6_k, or q8_0
    /// where rows are not of whole blocks of 256]
    #[arg(long)]
    pub head: Option<String>,
    /// No kernels above this instruction set; goes before GRISTMILL_ISA
    #[arg(long, value_parser = isa_named)]
    pub isa: Option<Isa>,
}

/// A number of threads, as the `gristmill` command takes it.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    /// As many as there can be.
    const MOST: usize = gristmill::MAX_THREADS;
    match text.parse() {
        Ok(count @ 1..=MOST) => Ok(count),
        Ok(_) | Err(_) => Err(format!("threads are a number from 1 to {MOST}")),
    }
}

impl Loading {
    pub(super) fn options(&self, threads: usize) -> Options {
        let Loading { context, cache, batch, head, isa, .. } = self.clone();
        Options { threads, context, cache, batch: batch.map(|batch| batch as usize), head, isa }
    }

    /// Refuses more tokens than there are positions, by the header of the file: before the model is loaded and a list of tokens made.
    pub(super) fn fits(&self, model: &Model, option: &str, tokens: usize) -> Result<(), Error> {
        let config = Config::of(model.file())?;
        let context = self.options(1).context(&config)?;
        self.cache.check(&config)?;
        if tokens <= context {
            return Ok(());
        }
        let more = match config.context {
            longest if longest > context => format!(", or --context N, up to {longest} for this model"),
            _ => String::new(),
        };
        Err(Error::Asked(format!(
            "{option} {tokens}: the context has {context} positions\n  help: {option} N, up to {context}{more}"
        )))
    }

    /// Opens the file, of a model that there is a forward pass for: for what can be seen before the weights are loaded.
    pub(super) fn open(&self) -> Result<Model, Error> {
        let model = Decoder::open(&self.model)?;
        Config::of(model.file())?;
        Ok(model)
    }

    /// Loads it and says on standard error what that took.
    pub(super) fn load(&self, model: Model, threads: usize) -> Result<Decoder, Error> {
        let start = Instant::now();
        let decoder = Decoder::new(model, &self.options(threads))?;
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
            "{} MiB in the file; in memory {} MiB of weights, {} MiB of cache ({}), {} MiB between products",
            mebibytes(length(&self.model)?),
            mebibytes(decoder.weights.bytes() as u64),
            mebibytes(cache as u64),
            decoder.cache_format().name(),
            mebibytes(buffers as u64)
        );
        if let Some(head) = &decoder.weights.head.requantized {
            eprintln!("head: {} quantized to {}, NMSE {:.2e} (one row in 64)", head.from, head.to, head.nmse);
        }
        Ok(decoder)
    }
}

/// Bytes of a file.
pub(super) fn length(path: &Path) -> Result<u64, Error> {
    let failed = |source| Error::Io { action: "ask for the length of", path: path.to_owned(), source };
    Ok(std::fs::metadata(path).map_err(failed)?.len())
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Writes to standard output; a reader that went away ends the command like any other error.
pub(super) fn print(out: &mut dyn Write, text: std::fmt::Arguments<'_>) -> Result<(), Error> {
    let failed = |source| Error::Io { action: "write to", path: "standard output".into(), source };
    out.write_fmt(text).and_then(|()| out.flush()).map_err(failed)
}

/// Writes what has a JSON form to standard output.
pub(super) fn print_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), Error> {
    let failed = |error: serde_json::Error| Error::Io {
        action: "write to",
        path: "standard output".into(),
        source: error.into(),
    };
    let json = serde_json::to_string_pretty(value).map_err(failed)?;
    print(out, format_args!("{json}\n"))
}

/// The vocabulary of a file, if it has one. Says on standard error what of it is a guess.
pub(super) fn tokens(model: &Model) -> Result<Option<Tokens>, Error> {
    let tokens = Tokens::of(model.file())?;
    if tokens.as_ref().is_some_and(Tokens::guesses) {
        eprintln!(
            "`tokenizer.ggml.pre` is missing: text is cut into words by llama.cpp's default rules, which is a guess; where the \
             model's own are others, it reads other tokens than it was trained on, and answers worse\n  help: a new conversion of \
             the model writes the key"
        );
    }
    if let Some(retyped) = tokens.as_ref().map(Tokens::retyped).filter(|retyped| !retyped.is_empty()) {
        eprintln!(
            "{}: control tokens by their text, and not by `tokenizer.ggml.token_type`; they are taken as such, as llama.cpp does\n  \
             help: a new conversion of the model writes their types",
            retyped.join(", ")
        );
    }
    Ok(tokens)
}

/// Prints what a model made. Where a terminal reads it, control characters but line ends and tabs are shown as escapes, as a model may
/// write any; elsewhere the text goes out as it is.
pub(super) fn print_generated(out: &mut dyn Out, text: &str) -> Result<(), Error> {
    if out.is_terminal() {
        return print(out, format_args!("{}", without_controls(text)));
    }
    print(out, format_args!("{text}"))
}

fn without_controls(text: &str) -> String {
    let one = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}

/// Bytes of a text: more than any context takes, and devices have no end.
const LONGEST_TEXT: u64 = 64 << 20;

/// A text file.
pub(super) fn read_text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Io { action: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(LONGEST_TEXT + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST_TEXT {
        let why = format!("{} has more than {LONGEST_TEXT} bytes, too many for a text", path.display());
        return Err(Error::Asked(why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Asked(format!("{} is not UTF-8: byte {at} begins no character", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Kept(Vec<u8>, bool);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Out for Kept {
        fn is_terminal(&self) -> bool {
            self.1
        }
    }

    /// What counts is where the text goes, and not where the standard output of the process does.
    #[test]
    fn text_for_a_terminal_has_no_controls() -> Result<(), Error> {
        for (terminal, expected) in [(true, "a\\u{1b}[2J\n"), (false, "a\u{1b}[2J\n")] {
            let mut out = Kept(Vec::new(), terminal);
            print_generated(&mut out, "a\u{1b}[2J\n")?;
            assert_eq!(out.0, expected.as_bytes());
        }
        Ok(())
    }

    /// What a terminal obeys; marks that join emoji stay.
    #[test]
    fn controls_are_escaped_for_a_terminal() {
        assert_eq!(without_controls("a\n\tb\u{1b}[2J\r\u{9b}"), "a\n\tb\\u{1b}[2J\\r\\u{9b}");
        assert_eq!(
            without_controls("gr\u{f6}\u{df}e \u{1f468}\u{200d}\u{1f469}"),
            "gr\u{f6}\u{df}e \u{1f468}\u{200d}\u{1f469}"
        );
    }
}
