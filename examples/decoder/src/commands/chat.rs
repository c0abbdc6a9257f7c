//! `decoder chat`.

use super::generate::Drawing;
use super::loading::{Loading, print, threads};
use crate::error::Error;
use crate::template::{Message, Template};
use crate::tokens::Tokens;
use clap::Args;
use std::io::{BufRead, Write};

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
    pub(super) fn run(self, input: &mut dyn BufRead, out: &mut dyn Write) -> Result<(), Error> {
        self.drawing.check()?;
        let mut decoder = self.loading.load(self.threads)?;
        let Some(tokens) = Tokens::of(decoder.model.file())? else {
            return Err(Error::Asked("the file has no vocabulary, so there is no conversation".to_owned()));
        };
        let template = Template::of(decoder.model.file())?;
        let mut sampler = self.drawing.sampler(&decoder)?;
        let mut messages: Vec<Message> = Vec::new();
        messages.extend(self.system.map(|content| Message { role: "system", content }));
        // What is in the cache.
        let mut read: Vec<u32> = Vec::new();
        let mut line = String::new();
        loop {
            print(out, format_args!("> "))?;
            line.clear();
            let failed = |source| Error::Io { action: "read", path: "standard input".into(), source };
            if input.read_line(&mut line).map_err(failed)? == 0 {
                return print(out, format_args!("\n"));
            }
            if line.trim().is_empty() {
                continue;
            }
            messages.push(Message { role: "user", content: line.trim().to_owned() });
            // Templates write the token that begins a text themselves.
            let all = tokens.encode_middle(&template.render(&messages, tokens.special())?)?;
            // What is the same as before stays in the cache, but for the last token: its logits are needed.
            let same =
                read.iter().zip(&all).take_while(|(a, b)| a == b).count().min(all.len().saturating_sub(1));
            decoder.rewind(same);
            let mut answer = String::new();
            let mut stream = tokens.stream();
            let mut made = Vec::new();
            self.drawing.answer(
                &mut decoder,
                &mut sampler,
                &all[same..],
                |token| tokens.ends(token),
                |token| {
                    made.push(token);
                    match stream(token)? {
                        Some(text) => {
                            answer.push_str(&text);
                            print(out, format_args!("{text}"))
                        }
                        None => Ok(()),
                    }
                },
            )?;
            print(out, format_args!("\n"))?;
            read = all;
            read.extend(made);
            read.truncate(decoder.position());
            messages.push(Message { role: "assistant", content: answer });
        }
    }
}
