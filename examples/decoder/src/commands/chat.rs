//! `decoder chat`.

use super::conversation::{Conversation, Said};
use super::generate::{Answer, Drawing, Ended};
use super::lines::{self, Line};
use super::loading::{Loading, print, print_generated, threads, tokens};
use super::output::Out;
use crate::decoder::Decoder;
use crate::error::Error;
use crate::sample::Sampler;
use crate::template::{Message, Template};
use crate::tokens::Tokens;
use clap::Args;
use std::io::BufRead;

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct Chat {
    #[command(flatten)]
    loading: Loading,
    /// What the model is told before the conversation
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    drawing: Drawing,
    /// Threads
    #[arg(short, long, default_value_t = 2, value_parser = threads)]
    threads: usize,
}

impl Chat {
    pub(super) fn run(self, input: &mut dyn BufRead, out: &mut dyn Out) -> Result<(), Error> {
        self.drawing.check()?;
        let model = self.loading.open()?;
        let Some(tokens) = tokens(&model)? else {
            return Err(Error::Asked("the file has no vocabulary, so there is no conversation".to_owned()));
        };
        let template = Template::of(model.file())?;
        let decoder = self.loading.load(model, self.threads)?;
        let sampler = self.drawing.sampler(&decoder)?;
        // Places that an answer is to find.
        let context = decoder.context();
        let most = context - self.drawing.count().min(context / 4).max(1);
        let mut conversation = Conversation::new(self.system, most);
        let mut speaker =
            Speaker { decoder, sampler, drawing: self.drawing, tokens: &tokens, cached: Vec::new() };
        // All of the conversation, so that it begins with the token for that, whether the template writes it or not.
        let encode = |messages: &[Message]| tokens.encode(&template.render(messages, tokens.special())?);
        while let Some(question) = question(input, out)? {
            match conversation.user(question, encode)? {
                Said::Taken { tokens, dropped } => {
                    if dropped > 0 {
                        eprintln!(
                            "(the context of {context} positions is full: the oldest turns were dropped, {dropped} of them)"
                        );
                    }
                    conversation.assistant(speaker.answer(tokens, out)?);
                }
                Said::TooLong { tokens } => eprintln!(
                    "(this message takes {tokens} tokens of a context of {context} positions, which leaves no room for an answer; it was left out)"
                ),
            }
        }
        Ok(())
    }
}

/// What somebody asks; none where there are no more lines.
fn question(input: &mut dyn BufRead, out: &mut dyn Out) -> Result<Option<String>, Error> {
    loop {
        print(out, format_args!("> "))?;
        match lines::read(input)? {
            Line::End => {
                print(out, format_args!("\n"))?;
                return Ok(None);
            }
            Line::Text(line) if line.trim().is_empty() => {}
            Line::Text(line) => return Ok(Some(line.trim().to_owned())),
            Line::NotText(at) => {
                eprintln!("(this line is not UTF-8: byte {at} begins no character; it was left out)");
            }
        }
    }
}

/// A model that answers.
struct Speaker<'t> {
    decoder: Decoder,
    sampler: Sampler,
    drawing: Drawing,
    tokens: &'t Tokens,
    /// What is in the cache.
    cached: Vec<u32>,
}

impl Speaker<'_> {
    /// Prints what follows a conversation of these tokens, and gives it.
    fn answer(&mut self, all: Vec<u32>, out: &mut dyn Out) -> Result<String, Error> {
        // What is the same as before stays in the cache, but for the last token: its logits are needed.
        let same = self.cached.iter().zip(&all).take_while(|(a, b)| a == b).count();
        let same = same.min(all.len().saturating_sub(1));
        self.decoder.rewind(same);
        let mut answer = String::new();
        let mut stream = self.tokens.beginning();
        let mut made = Vec::new();
        let Answer { ended, .. } = self.drawing.answer(
            &mut self.decoder,
            &mut self.sampler,
            &all[same..],
            |token| self.tokens.ends(token),
            |token| {
                made.push(token);
                let text = stream.push(token);
                answer.push_str(&text);
                print_generated(out, &text)
            },
        )?;
        let rest = stream.finish();
        answer.push_str(&rest);
        print_generated(out, &rest)?;
        print(out, format_args!("\n"))?;
        if ended == Ended::Context {
            let context = self.decoder.context();
            eprintln!("(the answer ends here, as the context of {context} positions is full)");
        }
        self.cached = all;
        self.cached.extend(made);
        self.cached.truncate(self.decoder.position());
        Ok(answer)
    }
}
