//! `decoder run`.

use super::loading::{Loading, print, print_generated, read_text, threads, tokens};
use super::output::{Out, TextFile};
use crate::decoder::{Decoder, Wanted};
use crate::error::{Error, longer};
use crate::sample::{Sampler, Sampling};
use crate::tokens::Tokens;
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

impl Answer {
    /// Says on standard error what it took behind a prompt of `prompt` tokens, and whether it had to end.
    fn report(self, prompt: usize, decoder: &Decoder) {
        let Answer { made, ended, read, generated } = self;
        let [read, generated] = [read, generated].map(|time| time.as_secs_f64());
        // The first one comes with what was read.
        let rate = match made {
            0 | 1 => String::new(),
            _ => format!(" ({:.1} tokens/s)", (made - 1) as f64 / generated),
        };
        eprintln!("{prompt} tokens read in {read:.2} s, {made} generated in {generated:.2} s{rate}");
        if ended == Ended::Context {
            let (context, longest) = (decoder.context(), decoder.config.context);
            let longer = longer(context, longest);
            eprintln!("the text ends here, as the context of {context} positions is full{longer}");
        }
    }
}

impl Run {
    pub(super) fn run(self, out: &mut dyn Out) -> Result<(), Error> {
        if self.plan {
            return self.loading.plan(self.threads, out);
        }
        // Before the model is loaded, which takes longer than to see this.
        self.drawing.check()?;
        let text = self.text()?;
        let receipt = self.receipt()?;
        let model = self.loading.open()?;
        let tokens = tokens(&model)?;
        let prompt = self.prompt_tokens(text.as_deref(), tokens.as_ref())?;
        let mut decoder = self.loading.load(model, self.threads)?;
        let recording = Recording::new(&REGISTRY);
        if receipt.is_some() {
            decoder.record(&recording)?;
        }
        let spelled = tokens.as_ref().filter(|_| text.is_some());
        let answer = self.print_answer(&mut decoder, &prompt, spelled, out)?;
        answer.report(prompt.len(), &decoder);
        match receipt {
            Some(file) => file.finish(&recording.receipt().to_json()),
            None => Ok(()),
        }
    }

    /// The text to be continued, if it is no list of tokens.
    fn text(&self) -> Result<Option<String>, Error> {
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
        Ok(text)
    }

    /// Begins the receipt, in place of no file that is read.
    fn receipt(&self) -> Result<Option<TextFile>, Error> {
        let inputs: Vec<&Path> = [Some(&self.loading.model), self.file.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        self.receipt.as_deref().map(|path| TextFile::begin("--receipt", path, &inputs)).transpose()
    }

    /// The tokens to be continued: those of `text`, or the ones that were given by their numbers.
    fn prompt_tokens(&self, text: Option<&str>, tokens: Option<&Tokens>) -> Result<Vec<u32>, Error> {
        match (text, tokens) {
            (Some(text), Some(tokens)) => tokens.encode(text),
            (Some(_), None) => {
                let help = "--tokens 1,2,3 takes numbers of tokens";
                Err(Error::Asked(format!(
                    "the file has no vocabulary, so no text can be read\n  help: {help}"
                )))
            }
            (None, _) => Ok(self.tokens.clone()),
        }
    }

    /// Prints what follows `prompt`: as text where there is a vocabulary for it, else as numbers, none of which ends the answer.
    fn print_answer(
        &self,
        decoder: &mut Decoder,
        prompt: &[u32],
        spelled: Option<&Tokens>,
        out: &mut dyn Out,
    ) -> Result<Answer, Error> {
        let mut sampler = self.drawing.sampler(decoder)?;
        let answer = match spelled {
            Some(tokens) => {
                let mut stream = tokens.continuation();
                let answer = self.drawing.answer(
                    decoder,
                    &mut sampler,
                    prompt,
                    |token| tokens.ends(token),
                    |token| print_generated(out, &stream.push(token)),
                )?;
                print_generated(out, &stream.finish())?;
                answer
            }
            None => self.drawing.answer(
                decoder,
                &mut sampler,
                prompt,
                |_| false,
                |token| print(out, format_args!("{token} ")),
            )?,
        };
        print(out, format_args!("\n"))?;
        Ok(answer)
    }
}
