//! `gristmill history`: what was measured of kernels before, and whether they became slower.

use super::error::{CliError, Outcome};
use super::json::print_json;
use super::output::Files;
use super::request;
use super::say::say;
use super::table::{Side, Table, counted, measured};
use gristmill::text::Printable;
use gristmill::{REGISTRY, kernels};
use gristmill_ops::date::date;
use gristmill_ops::read::read;
use gristmill_ops::regression::{Test, Verdict, compare, series};
use gristmill_ops::{History, Record};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Keep measurements of kernels, show their past, and say which became slower
///
/// --add keeps what `gristmill bench --json`, `gristmill tune` and `gristmill run --monitor` wrote; what is kept already is not kept
/// twice. The newest measurement of each kernel, work and machine is held against those before: it is slower where the one-sided
/// Mann-Whitney U test of the rounds' medians says so (p below 1 % after Holm's correction) and its median is longer by more than 5 %. Then
/// the command exits with 1. Rounds of one run share what else the machine did: measure again what is called slower.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only kernels whose name has this in it, with each measurement
    #[arg(value_name = "KERNEL")]
    kernel: Option<String>,
    /// The history
    #[arg(long, value_name = "FILE", default_value = "gristmill.history")]
    store: PathBuf,
    /// Files whose records are added before
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// How many of the newest measurements are held against those before
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = request::count)]
    newest: usize,
    /// Print JSON: records and comparisons
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// What is read and what is written.
    pub fn files(&self) -> Files<'_> {
        let files = Files::default().reads(&self.add);
        if self.add.is_empty() { files } else { files.updates([&self.store]) }
    }
}

/// What `history --json` prints.
#[derive(Serialize)]
struct Past<'a> {
    records: &'a [Record],
    comparisons: &'a [Verdict],
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    // Nothing is added where one of the files can't be read.
    let files = arguments.add.iter().map(|path| read(path, &REGISTRY, Some(kernels::COMPILER)));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let mut history = match files.as_slice() {
        [] => History::open_existing(&arguments.store)?,
        _ => History::open(&arguments.store)?,
    };
    let mut said = Vec::new();
    for (path, records) in arguments.add.iter().zip(&files) {
        let added = history.add(records)?;
        said.push(format!(
            "{}: {} added, {} known already",
            path.display(),
            counted(added.new, "record"),
            added.known
        ));
        let aside = &records.set_aside;
        said.extend(aside.iter().take(5).map(|why| format!("{}: set aside: {why}", path.display())));
        if aside.len() > 5 {
            said.push(format!("{}: set aside: {} more", path.display(), aside.len() - 5));
        }
    }
    let mut records = history.records()?.records;
    // Other processes may go on.
    drop(history);
    if let Some(part) = &arguments.kernel {
        records.retain(|record| record.kernel.contains(part.as_str()));
        if records.is_empty() {
            return Err(CliError::usage(
                format!(
                    "the history `{}` has no kernel with `{part}` in its name",
                    arguments.store.display()
                ),
                "without a name, `gristmill history` lists those that it has",
            ));
        }
    }
    let test = Test { newest: arguments.newest, ..Test::default() };
    let verdicts = compare(&series(&records), test);
    if arguments.json {
        print_json(out, &Past { records: &records, comparisons: &verdicts })?;
        said.iter().for_each(|line| say(Printable(line)));
    } else {
        for line in &said {
            writeln!(out, "{}", Printable(line))?;
        }
        print(arguments.kernel.is_some(), &records, &verdicts, out)?;
    }
    Ok(if verdicts.iter().any(|verdict| verdict.slower) { Outcome::Failed } else { Outcome::Yes })
}

fn print(each: bool, records: &[Record], verdicts: &[Verdict], out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("when (UTC)", Side::Left),
        ("kernel", Side::Left),
        ("id", Side::Left),
        ("work", Side::Left),
        ("from", Side::Left),
        ("us", Side::Right),
    ]);
    // Without a name, the newest of each.
    let all = series(records);
    let newest = all.iter().filter_map(|series| series.records.last().copied());
    let shown: Vec<&Record> = if each { records.iter().collect() } else { newest.collect() };
    for record in shown {
        table.row([
            date(record.at),
            record.kernel.clone(),
            record.id.clone(),
            record.work.to_string(),
            record.source.name().to_owned(),
            record.us.map_or("not measured".to_owned(), measured),
        ]);
    }
    if !table.is_empty() {
        table.print(out)?;
    }
    for verdict in verdicts.iter().filter(|verdict| verdict.slower || verdict.faster) {
        let Verdict { kernel, work, before_us, now_us, p, rebuilt, .. } = verdict;
        writeln!(
            out,
            "{}: {} at {work}: {} us before, {} now ({:.2} times; p = {p:.2}; {} and {}{})",
            if verdict.slower { "slower" } else { "faster" },
            Printable(kernel),
            measured(*before_us),
            measured(*now_us),
            verdict.ratio,
            counted(verdict.before_rounds, "round"),
            counted(verdict.now_rounds, "round"),
            if *rebuilt { "; another build" } else { "" },
        )?;
    }
    let slower = verdicts.iter().filter(|verdict| verdict.slower).count();
    writeln!(
        out,
        "{} of {}; {} compared with those before, {slower} slower",
        counted(records.len(), "record"),
        format_args!("{} series", all.len()),
        verdicts.len()
    )?;
    Ok(())
}
