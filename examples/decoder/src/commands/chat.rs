//! `decoder chat`.

use super::generate::{Answer, Drawing, Ended};
use super::lines::{self, Line};
use super::loading::{Loading, print, print_generated, threads, tokens};
use super::output::Out;
use crate::error::Error;
use crate::template::{Message, Template};
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
        let mut decoder = self.loading.load(model, self.threads)?;
        let mut sampler = self.drawing.sampler(&decoder)?;
        let mut messages: Vec<Message> = Vec::new();
        messages.extend(self.system.map(|content| Message { role: "system", content }));
        // What stays when turns are dropped.
        let kept = messages.len();
        // Places that an answer is to find.
        let context = decoder.context();
        let most = context - self.drawing.count().min(context / 4).max(1);
        // What is in the cache.
        let mut read: Vec<u32> = Vec::new();
        loop {
            print(out, format_args!("> "))?;
            let line = match lines::read(input)? {
                Line::End => return print(out, format_args!("\n")),
                Line::Text(line) => line,
                Line::NotText(at) => {
                    eprintln!("(this line is not UTF-8: byte {at} begins no character; it was left out)");
                    continue;
                }
            };
            if line.trim().is_empty() {
                continue;
            }
            let message = Message { role: "user", content: line.trim().to_owned() };
            // All of the conversation, so that it begins with the token for that, whether the template writes it or not.
            let encode = |messages: &[Message]| tokens.encode(&template.render(messages, tokens.special())?);
            messages.push(message.clone());
            let mut all = encode(&messages)?;
            if all.len() > most {
                // Turns are dropped for a message that then fits, and for no other.
                let alone = encode(&[&messages[..kept], &[message]].concat())?;
                if alone.len() > most {
                    eprintln!(
                        "(this message takes {} tokens of a context of {context} positions, which leaves no room for an answer; it was left out)",
                        alone.len()
                    );
                    messages.pop();
                    continue;
                }
            }
            let mut dropped = 0;
            while all.len() > most && messages.len() > kept + 2 {
                // What was said and what was answered.
                messages.drain(kept..kept + 2);
                dropped += 1;
                all = encode(&messages)?;
            }
            if dropped > 0 {
                eprintln!(
                    "(the context of {context} positions is full: the oldest turns were dropped, {dropped} of them)"
                );
            }
            // What is the same as before stays in the cache, but for the last token: its logits are needed.
            let same =
                read.iter().zip(&all).take_while(|(a, b)| a == b).count().min(all.len().saturating_sub(1));
            decoder.rewind(same);
            let mut answer = String::new();
            let mut stream = tokens.beginning();
            let mut made = Vec::new();
            let Answer { ended, .. } = self.drawing.answer(
                &mut decoder,
                &mut sampler,
                &all[same..],
                |token| tokens.ends(token),
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
                eprintln!("(the answer ends here, as the context of {context} positions is full)");
            }
            read = all;
            read.extend(made);
            read.truncate(decoder.position());
            messages.push(Message { role: "assistant", content: answer });
        }
    }
}
