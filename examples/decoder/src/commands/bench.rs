//! `decoder bench`: the tests of llama-bench.

use super::loading::{Loading, length, print, print_json, threads};
use crate::decoder::{Decoder, Wanted};
use crate::error::Error;
use crate::sample::greatest;
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::time::Instant;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(flatten)]
    loading: Loading,
    /// Numbers of threads, separated by commas
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = threads)]
    threads: Vec<usize>,
    /// Tokens of the prompt; 0: no such test
    #[arg(long, default_value_t = 512)]
    prompt: usize,
    /// Tokens that are generated, one after the other; 0: no such test
    #[arg(long, default_value_t = 128)]
    generate: usize,
    /// How often each test is run after one run that does not count; the mean is printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Prints an array of records
    #[arg(long)]
    json: bool,
}

/// What `bench --json` prints of a test.
#[derive(Serialize)]
struct Record {
    test: String,
    threads: usize,
    /// Name of the cache's format.
    cache: &'static str,
    tokens_per_second: f64,
    /// Bytes of the file.
    model_bytes: u64,
    weights_bytes_in_memory: usize,
    cache_bytes_in_memory: usize,
}

/// A test: its name, its tokens, what it does.
type Test = (String, usize, fn(&mut Decoder, usize) -> Result<(), Error>);

impl Bench {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Error> {
        let tests: [Test; 2] = [
            (format!("pp{}", self.prompt), self.prompt, prompt),
            (format!("tg{}", self.generate), self.generate, generate),
        ];
        let model = self.loading.open()?;
        for (option, tokens) in [("--prompt", self.prompt), ("--generate", self.generate)] {
            self.loading.fits(&model, option, tokens)?;
        }
        drop(model);
        let model_bytes = length(&self.loading.model)?;
        let mut records = Vec::new();
        for threads in &self.threads {
            let mut decoder = self.loading.load(self.loading.open()?, *threads)?;
            for (name, tokens, test) in tests.iter().filter(|(_, tokens, _)| *tokens > 0) {
                test(&mut decoder, *tokens)?;
                let mut seconds = 0.0;
                for _ in 0..self.repeat {
                    decoder.rewind(0);
                    let start = Instant::now();
                    test(&mut decoder, *tokens)?;
                    seconds += start.elapsed().as_secs_f64();
                }
                decoder.rewind(0);
                let speed = *tokens as f64 * f64::from(self.repeat) / seconds;
                if !self.json {
                    print(out, format_args!("{name:>8}  {threads:>3} threads  {speed:>9.2} tokens/s\n"))?;
                }
                records.push(Record {
                    test: name.clone(),
                    threads: *threads,
                    cache: decoder.cache_format().name(),
                    tokens_per_second: speed,
                    model_bytes,
                    weights_bytes_in_memory: decoder.weights.bytes(),
                    cache_bytes_in_memory: decoder.working_bytes().0,
                });
            }
        }
        if self.json { print_json(out, &records) } else { Ok(()) }
    }
}

fn prompt(decoder: &mut Decoder, count: usize) -> Result<(), Error> {
    let vocab = decoder.config.vocab;
    let tokens: Vec<u32> = (0..count).map(|index| (index * 7919 % vocab) as u32).collect();
    decoder.feed(&tokens, Wanted::Last).map(|_| ())
}

fn generate(decoder: &mut Decoder, count: usize) -> Result<(), Error> {
    let mut token = 0;
    for _ in 0..count {
        token = greatest(decoder.feed(&[token], Wanted::Last)?)?;
    }
    Ok(())
}
