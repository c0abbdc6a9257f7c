//! Ours and the peer's in turn, round after round, and whether they agree.

mod ceilings;
mod cell;

use crate::busy::{self, Watch, refuse_busy};
use crate::error::Error;
use crate::peer::{self, PACKAGE, PAIRS, Pair};
use crate::record::{self, date, load, machine, versions};
use ceilings::Ceilings;
use cell::{Case, Weights};
use clap::Args;
use gristmill::vocab::Isa;
use gristmill::{Restrict, Threads};
use gristmill_records::peers::{ProductCell, ProductRun, Products};
use std::path::PathBuf;

/// Arguments of `measure`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Numbers of threads, separated by commas
    #[arg(long, default_value = "1,2", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Rounds, in each of which every side has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Formats of ours, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    formats: Vec<String>,
    /// Record to write; what it says of other peers of this machine is kept. Refused on a machine that other programs keep
    /// busy
    #[arg(long, conflicts_with = "formats")]
    record: Option<PathBuf>,
}

/// Rows and elements of a row: attention and feed-forward of BitNet b1.58 2B-4T.
const ATTENTION: (usize, usize) = (2560, 2560);
const FEED_FORWARD: (usize, usize) = (6912, 2560);
const TOKENS: &[usize] = &[1, 8, 32, 128, 512];

/// Measures everything, and adds it to the record if there is one.
pub fn run(arguments: &Arguments) -> Result<(), Error> {
    if arguments.record.is_some() {
        refuse_busy("before the measurement", busy::now())?;
    }
    peer::prepare()?;
    let held = Restrict::from_env()?.isa;
    refuse_unequal(held)?;
    let measured = measure(arguments)?;
    if let Some(others) = measured.others {
        println!("others kept {others:.2} processors busy meanwhile");
    }
    let Some(path) = &arguments.record else { return Ok(()) };
    refuse_busy("during the measurement", measured.others)?;
    let fresh = Products { date: date(), machine: machine(), runs: Vec::new() };
    record::add(path, fresh, recorded(arguments, held, measured))
}

/// A restricted ISA of ours holds both: who is compiled for more is no peer of it.
fn refuse_unequal(held: Option<Isa>) -> Result<(), Error> {
    let compiled_for = peer::compiled_for();
    let beyond = |isa: &Isa| {
        let more: &[&str] = match isa {
            Isa::Avx512 => &[],
            Isa::AvxVnni => &["avx512f"],
            Isa::Avx2 => &["avx512f", "avxvnni"],
            _ => &["avx512f", "avxvnni", "avx2"],
        };
        more.iter().any(|feature| compiled_for.contains(feature))
    };
    match held.filter(beyond) {
        Some(isa) => {
            Err(Error::CompiledFor { peer: PACKAGE, isa: isa.name(), compiled_for: compiled_for.join(", ") })
        }
        None => Ok(()),
    }
}

/// What was measured, and beside what.
struct Measured {
    cells: Vec<ProductCell>,
    ceilings: Vec<(String, f64, String)>,
    load: [Option<f64>; 2],
    others: Option<f64>,
}

fn measure(Arguments { threads, rounds, formats, .. }: &Arguments) -> Result<Measured, Error> {
    let (before, watch) = (load(), Watch::start());
    let mut counts = Vec::new();
    for count in threads {
        counts.push((Threads::new(*count)?, Ceilings::new(*count)));
    }
    if let Some(format) = formats.iter().find(|name| PAIRS.iter().all(|pair| pair.ours != **name)) {
        return Err(Error::NoPair { peer: PACKAGE, format: format.clone() });
    }
    let mut cells = Vec::new();
    for pair in PAIRS.iter().filter(|pair| formats.is_empty() || formats.iter().any(|name| name == pair.ours))
    {
        let shapes: &[_] = if pair.ternary { &[ATTENTION, FEED_FORWARD] } else { &[ATTENTION] };
        for shape in shapes {
            measure_pair(pair, *shape, *rounds as usize, &mut counts, &mut cells)?;
        }
    }
    let ceilings = counts.iter_mut().flat_map(|(_, ceilings)| ceilings.shown()).collect();
    Ok(Measured { cells, ceilings, load: [before, load()], others: watch.others() })
}

fn recorded(
    Arguments { threads, rounds, .. }: &Arguments,
    held: Option<Isa>,
    measured: Measured,
) -> ProductRun {
    let suffix = held.map_or(String::new(), |isa| format!(", both held to {}", isa.name()));
    ProductRun {
        peer: format!("{PACKAGE} {}{suffix}", locked_version()),
        held_to: held.map(|isa| isa.name().to_owned()),
        date: None,
        command: format!("peers measure --threads {} --rounds {rounds}", numbers(threads)),
        versions: versions(),
        load: measured.load,
        others: measured.others,
        notes: vec![
            format!(
                "medians of {rounds} rounds in which the ceilings, ours and theirs take turns; wall time; in brackets the least and \
                 the most of a round"
            ),
            "the peer runs products by its graph executor, many in one graph, so that what a graph costs is spread as in a model"
                .to_owned(),
            #[cfg(feature = "ggml")]
            "types with `CPU_REPACK` or `AMX` behind them are weights as its loader keeps them where nothing else is asked for"
                .to_owned(),
            format!("the peer says that it is compiled for {}", peer::compiled_for().join(", ")),
        ],
        ceilings: measured.ceilings,
        cells: measured.cells,
    }
}

/// Numbers as an argument has them.
pub fn numbers(all: &[usize]) -> String {
    let all: Vec<String> = all.iter().map(usize::to_string).collect();
    all.join(",")
}

/// The version that the lock file holds.
pub fn locked_version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let package =
        lock.split("[[package]]").find(|package| package.contains(&format!("name = \"{PACKAGE}\"")));
    package.and_then(|package| package.split("version = \"").nth(1)?.split('"').next()).unwrap_or("unknown")
}

/// Measures all cases of a pair and a shape.
fn measure_pair(
    pair: &Pair,
    (n, k): (usize, usize),
    rounds: usize,
    counts: &mut [(Threads, Ceilings)],
    cells: &mut Vec<ProductCell>,
) -> Result<(), Error> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let values: Vec<f32> = match pair.ternary {
        true => (0..n * k).map(|_| 0.02 * random.ternary()).collect(),
        false => (0..n * k).map(|_| 0.02 * random.normal()).collect(),
    };
    let x: Vec<f32> = (0..512 * k).map(|_| random.normal()).collect();
    let mut weights = Weights::quantize(pair, &values, n, k)?;
    let cases = TOKENS.iter().flat_map(|m| [(*m, true), (*m, false)]).filter(|(m, hot)| *hot || *m == 1);
    for form in peer::Form::all(pair, n, k)? {
        weights.theirs.take_form(form);
        for (threads, ceilings) in &mut *counts {
            for (m, hot) in cases.clone() {
                let case = Case { pair, theirs: form.name(pair), m, hot, x: &x[..m * k] };
                let cell = cell::measure(case, rounds, threads, ceilings, &mut weights)?;
                print(&cell);
                cells.push(cell);
            }
        }
    }
    Ok(())
}

/// One line for a reader.
fn print(cell: &ProductCell) {
    println!(
        "{:15} {:8} {} threads, m {:4} {}x{} {:4}: ours {:8.1} us, theirs {:8.1} us, {:5.2} times ({:.2} to {:.2}), \
         {:3.0} %, NMSE {:.0e}",
        cell.theirs,
        cell.format,
        cell.threads,
        cell.m,
        cell.n,
        cell.k,
        cell.memory,
        cell.our_us,
        cell.their_us,
        cell.speedup,
        cell.least_speedup.unwrap_or(f64::NAN),
        cell.most_speedup.unwrap_or(f64::NAN),
        cell.our_percent,
        cell.nmse
    );
}

/// Seeded values (xorshift).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// -1, 0 or 1.
    fn ternary(&mut self) -> f32 {
        ((self.bits() >> 33) % 3) as f32 - 1.0
    }

    /// Mean 0, variance 1: the sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.bits() >> 40) as f32 / (1u32 << 24) as f32).sum::<f32>() - 6.0
    }
}
