//! `decoder run`.

use super::loading::{Loading, print, print_generated, read_text, threads, tokens};
use super::output::{Out, TextFile};
use crate::decoder::{Decoder, Wanted};
use crate::error::{Error, longer};
use crate::sample::{Sampler, Sampling};
use clap::Args;
use gristmill::{REGISTRY, Recording};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    loading: Loading,
    /// The text to be continued
    #[arg(short, long, conflicts_with_all = ["file", "tokens"])]
    prompt: Option<String>,
    /// A file with the text to be continued
    #[arg(short, long, conflicts_with = "tokens")]
    file: Option<PathBuf>,
    /// Numbers of tokens to be continued, for files without a vocabulary; numbers come out, too
    #[arg(long, value_delimiter = ',')]
    tokens: Vec<u32>,
    #[command(flatten)]
    drawing: Drawing,
    /// Threads
    #[arg(short, long, default_value_t = 2, value_parser = threads)]
    threads: usize,
    /// Writes which kernels ran, and how often
    #[arg(long)]
    receipt: Option<PathBuf>,
    /// Prints what would run and how much memory it takes, and loads nothing
    #[arg(long, conflicts_with = "receipt")]
    plan: bool,
}

/// How tokens are drawn.
#[derive(Clone, Debug, Args)]
pub struct Drawing {
    /// Most tokens of an answer
    #[arg(short = 'n', long, default_value_t = 128)]
    count: usize,
    /// Logits are divided by it; 0: always the most probable token
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Only so many of the most probable tokens; 0: all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Only the most probable tokens that together reach this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Only tokens with at least this part of the greatest probability
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Of the random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Drawing {
    pub(super) fn sampler(&self, decoder: &Decoder) -> Result<Sampler, Error> {
        Sampler::new(self.sampling(), decoder.config.vocab)
    }

    /// Most tokens of an answer.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Refuses numbers that mean nothing, before a model is loaded.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.sampling().check()
    }

    fn sampling(&self) -> Sampling {
        let Drawing { temperature, top_k, top_p, min_p, seed, .. } = *self;
        Sampling { top_k, top_p, min_p, temperature, seed }
    }

    /// Takes in `prompt`, then draws tokens until one ends the text, the answer is long enough, or the cache full; each goes to `print`.
    /// The tokens of the answer are in the cache but for the last.
    pub(super) fn answer(
        &self,
        decoder: &mut Decoder,
        sampler: &mut Sampler,
        prompt: &[u32],
        ends: impl Fn(u32) -> bool,
        mut print: impl FnMut(u32) -> Result<(), Error>,
    ) -> Result<Answer, Error> {
        let start = Instant::now();
        let mut token = sampler.draw(decoder.feed(prompt, Wanted::Last)?)?;
        let read = start.elapsed();
        let mut made = 0;
        let ended = loop {
            if made == self.count {
                break Ended::Count;
            }
            if ends(token) {
                break Ended::Token;
            }
            print(token)?;
            made += 1;
            if made == self.count {
                break Ended::Count;
            }
            if decoder.room() == 0 {
                break Ended::Context;
            }
            token = sampler.draw(decoder.feed(&[token], Wanted::Last)?)?;
        };
        Ok(Answer { made, ended, read, generated: start.elapsed() - read })
    }
}

/// Why there are no more tokens in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// One was drawn that ends the text.
    Token,
    /// There are as many as were asked for.
    Count,
    /// The cache is full.
    Context,
}

/// How long an answer is, why it is no longer, and what it took.
pub(super) struct Answer {
    made: usize,
    pub(super) ended: Ended,
    /// Until the first token was drawn.
    read: Duration,
    /// From then on.
    generated: Duration,
}

impl Run {
    pub(super) fn run(self, out: &mut dyn Out) -> Result<(), Error> {
        if self.plan {
            return self.loading.plan(self.threads, out);
        }
        // Before the model is loaded, which takes longer than to see this.
        self.drawing.check()?;
        let text = match (&self.prompt, &self.file) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(file)) => Some(read_text(file)?),
            (None, None) => None,
        };
        if self.tokens.is_empty() && text.as_ref().is_none_or(String::is_empty) {
            let help = "-p TEXT, --file FILE or --tokens 1,2,3";
            return Err(Error::Asked(format!(
                "there is nothing to continue: the prompt is empty\n  help: {help}"
            )));
        }
        let inputs: Vec<&Path> = [Some(&self.loading.model), self.file.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        let receipt =
            self.receipt.as_deref().map(|path| TextFile::begin("--receipt", path, &inputs)).transpose()?;
        let model = self.loading.open()?;
        let tokens = tokens(&model)?;
        let prompt = match (&text, &tokens) {
            (Some(text), Some(tokens)) => tokens.encode(text)?,
            (Some(_), None) => {
                let help = "--tokens 1,2,3 takes numbers of tokens";
                return Err(Error::Asked(format!(
                    "the file has no vocabulary, so no text can be read\n  help: {help}"
                )));
            }
            (None, _) => self.tokens.clone(),
        };
        let mut decoder = self.loading.load(model, self.threads)?;
        let recording = Recording::new(&REGISTRY);
        if receipt.is_some() {
            decoder.record(&recording)?;
        }
        let mut sampler = self.drawing.sampler(&decoder)?;
        let answer = match tokens.as_ref().filter(|_| text.is_some()) {
            Some(tokens) => {
                let mut stream = tokens.continuation();
                let answer = self.drawing.answer(
                    &mut decoder,
                    &mut sampler,
                    &prompt,
                    |token| tokens.ends(token),
                    |token| print_generated(out, &stream.push(token)),
                )?;
                print_generated(out, &stream.finish())?;
                answer
            }
            None => self.drawing.answer(
                &mut decoder,
                &mut sampler,
                &prompt,
                |_| false,
                |token| print(out, format_args!("{token} ")),
            )?,
        };
        print(out, format_args!("\n"))?;
        let Answer { made, ended, read, generated } = answer;
        let [read, generated] = [read, generated].map(|time| time.as_secs_f64());
        // The first one comes with what was read.
        let rate = match made {
            0 | 1 => String::new(),
            _ => format!(" ({:.1} tokens/s)", (made - 1) as f64 / generated),
        };
        eprintln!("{} tokens read in {read:.2} s, {made} generated in {generated:.2} s{rate}", prompt.len());
        if ended == Ended::Context {
            let (context, longest) = (decoder.context(), decoder.config.context);
            let longer = longer(context, longest);
            eprintln!("the text ends here, as the context of {context} positions is full{longer}");
        }
        match receipt {
            Some(file) => file.finish(&recording.receipt().to_json()),
            None => Ok(()),
        }
    }
}
