//! The command: its arguments, and what each of its subcommands does.

mod bench;
mod chat;
mod check;
mod conversation;
mod generate;
mod lines;
mod loading;
mod make;
mod output;
mod plan;

pub use output::Out;

use crate::error::Error;
use clap::Subcommand;

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

/// Does what was asked for.
///
/// # Errors
/// Whatever went wrong, to be printed.
pub fn run(command: Command, out: &mut dyn Out) -> Result<(), Error> {
    match command {
        Command::Run(arguments) => arguments.run(out),
        Command::Chat(arguments) => arguments.run(&mut std::io::stdin().lock(), out),
        Command::Bench(arguments) => arguments.run(out),
        Command::Check(arguments) => arguments.run(out),
        Command::MakeModel(arguments) => arguments.run(out),
    }
}
