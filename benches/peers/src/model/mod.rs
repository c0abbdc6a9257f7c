//! Whole models: our decoder (examples/decoder) and the peer on one GGUF file, whether they compute the same, and how fast.

mod agreement;
mod sizes;
mod theirs;
mod turns;

use crate::busy::{self, Watch, refuse_busy};
use crate::error::Error;
use crate::measure::{locked_version, numbers};
use crate::peer::PACKAGE;
use crate::record::{self, date, load, machine, versions};
use clap::Args;
use decoder::{DEFAULT_BATCH, Decoder, Options};
use gristmill_records::peers::{Agreement, ModelRun, Models, Sizes, Speed};
use std::path::PathBuf;
use theirs::{Model, SETTINGS};
use turns::{Side, Test};

/// Arguments of `model`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The GGUF file
    model: PathBuf,
    /// Numbers of threads, separated by commas
    #[arg(long, default_value = "1,2", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Rounds, in each of which every side has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Tokens of the prompt that is measured; 0: none is
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(..=65536))]
    prompt: u32,
    /// Tokens that are generated where that is measured; 0: it is not
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(..=65536))]
    generate: u32,
    /// Tokens of the prompt whose logits are compared
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    compare: u32,
    /// Tokens that both sides continue it by
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=4096))]
    greedy: u32,
    /// Most that the logits may differ: the mean square difference, relative to their variance
    #[arg(long, default_value_t = NMSE_BOUND)]
    nmse: f64,
    /// Format that our decoder quantizes a head of f32, f16 or bf16 to (f32, f16 or bf16: not at all) [default: q6_k, or q8_0 where
    /// rows are not of whole blocks of 256]
    #[arg(long)]
    head: Option<String>,
    /// Compares logits and measures nothing
    #[arg(long, conflicts_with = "record")]
    no_speed: bool,
    /// Record to write; what it says of other peers and models of this day and machine is kept. Refused on a machine that other
    /// programs keep busy
    #[arg(long)]
    record: Option<PathBuf>,
}

impl Arguments {
    /// Of the longest context that is filled.
    fn positions(&self) -> usize {
        self.prompt.max(self.generate).max(self.compare + self.greedy) as usize
    }

    /// Of our decoder.
    fn options(&self, threads: usize) -> Options {
        let context = Some(self.positions());
        Options { threads, context, head: self.head.clone(), ..Options::default() }
    }

    /// The command that measures the same again.
    fn command(&self) -> String {
        let Arguments { model, threads, rounds, prompt, generate, compare, greedy, nmse, head, .. } = self;
        let model = model.file_name().unwrap_or_default().to_string_lossy();
        let threads = numbers(threads);
        let mut command = format!(
            "peers model {model} --threads {threads} --rounds {rounds} --prompt {prompt} --generate {generate} --compare {compare} \
             --greedy {greedy}"
        );
        if *nmse != NMSE_BOUND {
            command += &format!(" --nmse {nmse}");
        }
        if let Some(head) = head {
            command += &format!(" --head {head}");
        }
        command
    }
}

/// Both sides quantize activations to int8, each in its way, and keep f16 in their caches; every layer adds to the difference.
const NMSE_BOUND: f64 = 2e-2;

/// Compares and measures.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    if arguments.record.is_some() {
        refuse_busy("before the measurement", busy::now())?;
    }
    let before = load();
    let compared = compare(arguments)?;
    if arguments.no_speed {
        return Ok(());
    }
    let (speeds, others) = measure(arguments, &compared.tokens)?;
    if let Some(others) = others {
        println!("others kept {others:.2} processors busy meanwhile");
    }
    let Some(path) = &arguments.record else { return Ok(()) };
    refuse_busy("during the measurement", others)?;
    let run = ModelRun {
        peer: format!("{PACKAGE} {}", locked_version()),
        model: arguments.model.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        date: None,
        command: arguments.command(),
        versions: versions(),
        load: [before, load()],
        others,
        notes: vec![
            "medians of rounds in which ours and the peer in each of its settings take turns; wall time".to_owned(),
            "tokens are given and none is sampled; every token is followed by its logits but those of a prompt, of \
             which the last is"
                .to_owned(),
        ],
        sizes: compared.sizes,
        agreements: compared.agreements,
        speeds,
    };
    let fresh = Models { date: date(), machine: machine(), models: Vec::new() };
    record::add(path, fresh, run)
}

/// Both sides, which agree.
struct Compared {
    /// One for each position; those of `decoder bench`.
    tokens: Vec<u32>,
    sizes: Sizes,
    agreements: Vec<Agreement>,
}

/// Compares our logits with those of each setting of the peer.
fn compare(arguments: &Arguments) -> Result<Compared, Error> {
    let Arguments { model, compare, greedy, nmse, .. } = arguments;
    let (compare, greedy) = (*compare as usize, *greedy as usize);
    // All logits that are compared come of one batch; what is measured takes the batch of those who set nothing.
    let batch = (compare > DEFAULT_BATCH).then_some(compare);
    let mut ours = Decoder::load(model, &Options { batch, ..arguments.options(1) })?;
    let (vocab, positions) = (ours.config.vocab, arguments.positions());
    let tokens: Vec<u32> = (0..positions).map(|index| (index * 7919 % vocab) as u32).collect();
    let mut agreements = Vec::new();
    let mut their_bytes = 0;
    for setting in SETTINGS {
        let mut theirs = Model::load(model, *setting, positions)?;
        if theirs.vocab != vocab {
            return Err(Error::Vocabulary { peer: PACKAGE, ours: vocab, theirs: theirs.vocab });
        }
        their_bytes = theirs.bytes();
        let agreement = agreement::compare(&mut ours, &mut theirs, setting.name, &tokens[..compare], greedy)?;
        agreement::print(&agreement);
        // Not a number is no agreement.
        if agreement.nmse.is_nan() || agreement.nmse > *nmse {
            return Err(Error::Logits { peer: PACKAGE, nmse: agreement.nmse, bound: *nmse });
        }
        agreements.push(agreement);
    }
    Ok(Compared { tokens, sizes: sizes::of(model, &ours, their_bytes)?, agreements })
}

/// How fast each side is with each number of threads, and how many processors others kept busy meanwhile.
fn measure(arguments: &Arguments, tokens: &[u32]) -> Result<(Vec<Speed>, Option<f64>), Error> {
    let Arguments { model, threads, rounds, prompt, generate, .. } = arguments;
    let tests = [(true, *prompt), (false, *generate)]
        .map(|(prompt, tokens)| Test { prompt, tokens: tokens as usize });
    let tests: Vec<Test> = tests.into_iter().filter(|test| test.tokens > 0).collect();
    let mut sides = turns::theirs(model, arguments.positions())?;
    let watch = Watch::start();
    let mut speeds = Vec::new();
    for count in threads {
        let ours = Decoder::load(model, &arguments.options(*count))?;
        for side in &mut sides {
            if let Side::Theirs(_, theirs) = side {
                theirs.threads(*count)?;
            }
        }
        sides.insert(0, Side::Ours(Box::new(ours)));
        speeds.extend(turns::measure(&mut sides, *count, &tests, tokens, *rounds as usize)?);
        sides.remove(0);
    }
    Ok((speeds, watch.others()))
}
