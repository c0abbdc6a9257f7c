//! Tokens a second of both sides, taking turns.

use super::theirs::{Model, SETTINGS, Setting};
use crate::error::Error;
use decoder::{Decoder, Wanted};
use gristmill_records::peers::{OURS, Speed};
use std::time::{Duration, Instant};

/// Between turns: threads that look for work go to sleep meanwhile.
const PAUSE: Duration = Duration::from_millis(30);

/// A test: `pp` reads so many tokens together, `tg` takes them in one after the other. Tokens are given and none is sampled, so that
/// both sides do the same.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    pub prompt: bool,
    pub tokens: usize,
}

impl Test {
    /// As `llama-bench` calls it.
    pub fn name(self) -> String {
        format!("{}{}", if self.prompt { "pp" } else { "tg" }, self.tokens)
    }
}

/// A side, loaded.
pub enum Side {
    Ours(Box<Decoder>),
    Theirs(Setting, Model),
}

impl Side {
    fn name(&self) -> &'static str {
        match self {
            Side::Ours(_) => OURS,
            Side::Theirs(setting, _) => setting.name,
        }
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<(), Error> {
        match self {
            Side::Ours(decoder) => Ok(decoder.feed(tokens, Wanted::Last).map(|_| ())?),
            Side::Theirs(_, model) => model.feed(tokens, false),
        }
    }

    /// One run of a test, from an empty context; tokens a second.
    fn run(&mut self, test: Test, tokens: &[u32]) -> Result<f64, Error> {
        match self {
            Side::Ours(decoder) => decoder.rewind(0),
            Side::Theirs(_, model) => model.clear(),
        }
        let tokens = &tokens[..test.tokens];
        let started = Instant::now();
        match test.prompt {
            true => self.feed(tokens)?,
            false => tokens.iter().try_for_each(|token| self.feed(&[*token]))?,
        }
        let time = started.elapsed().as_secs_f64();
        if let Side::Theirs(_, model) = self {
            model.rest();
        }
        std::thread::sleep(PAUSE);
        Ok(tokens.len() as f64 / time)
    }
}

/// Every test with `threads` threads.
pub fn measure(
    sides: &mut [Side],
    threads: usize,
    tests: &[Test],
    tokens: &[u32],
    rounds: usize,
) -> Result<Vec<Speed>, Error> {
    let mut speeds = Vec::new();
    for test in tests {
        // What is touched for the first time is no part of a test.
        let warm = Test { tokens: if test.prompt { test.tokens } else { test.tokens.min(8) }, ..*test };
        for side in &mut *sides {
            side.run(warm, tokens)?;
        }
        let mut taken = vec![Vec::new(); sides.len()];
        for round in 0..rounds {
            // Nobody is always first.
            for turn in 0..sides.len() {
                let at = (round + turn) % sides.len();
                taken[at].push(sides[at].run(*test, tokens)?);
            }
        }
        for (side, rounds) in sides.iter().zip(taken) {
            let mut sorted = rounds.clone();
            sorted.sort_by(f64::total_cmp);
            let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
            let speed = Speed {
                test: test.name(),
                threads,
                side: side.name().to_owned(),
                median: at(sorted.len() / 2),
                min: at(0),
                max: at(sorted.len().saturating_sub(1)),
                rounds,
            };
            println!(
                "{:>6}  {threads} threads  {:30} {:>9.2} tokens/s ({:.2} to {:.2})",
                speed.test, speed.side, speed.median, speed.min, speed.max
            );
            speeds.push(speed);
        }
    }
    Ok(speeds)
}

/// Every setting of the peer.
pub fn theirs(path: &std::path::Path, positions: usize) -> Result<Vec<Side>, Error> {
    SETTINGS
        .iter()
        .map(|setting| Ok(Side::Theirs(*setting, Model::load(path, *setting, positions)?)))
        .collect()
}
