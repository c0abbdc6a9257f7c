//! The layer for candle beside candle's own.

use super::super::super::error::CliError;
use super::super::super::table::{self, measured};
use super::record::{header, load, on};
use gristmill_records::committed::{Candle, CandleCell, CandleRun};
use std::io::Write;

/// How many times as fast as candle's layer ours is to be, in each cell of a type that candle has.
const CANDLE_GOAL: f64 = 1.4;

/// The layer for candle beside candle's own.
pub fn print(record: &Candle, out: &mut dyn Write) -> Result<(), CliError> {
    header("Layers", &record.date, &record.machine, out)?;
    writeln!(
        out,
        "The layer of bindings/candle and candle's own `QMatMul`, in one process and alternately, called as modules of candle; weights\n\
         stay in the caches as far as these hold them. Of one thread it is time of the processor that counts, so that other programs do not.\n\
         For some types candle looks for features of the processor when it runs, for others it has code for those alone that its compiler\n\
         could rely on; ours always looks when it runs. Cells: GMAC/s of candle, of ours, and how many times as fast ours is. The goal is\n\
         {CANDLE_GOAL} in each cell of a type that candle has. Where it has none of a format, its layer has the same weights as f32.\n"
    )?;
    for run in &record.candle {
        candle_run(run, &on(&record.date, &record.machine), out)?;
    }
    Ok(())
}

fn candle_run(run: &CandleRun, on: &str, out: &mut dyn Write) -> Result<(), CliError> {
    let built = match run.target_features.is_empty() {
        true => "built without further features".to_owned(),
        false => format!("built for {}", run.target_features.join(", ")),
    };
    let threads = table::counted(run.threads as usize, "thread");
    writeln!(out, "#### {}, {built}, {threads}, {on}\n", run.peer)?;
    writeln!(out, "{}; {}.\n", run.versions.join("; "), load(run.load))?;
    let of_types = || run.cells.iter().filter(|cell| cell.theirs.is_some());
    // What is not a number is not reached either.
    let missed: Vec<String> = of_types()
        .filter(|cell| cell.ratio.is_nan() || cell.ratio < CANDLE_GOAL)
        .map(|cell| format!("`{}` at m = {} ({:.2})", cell.format, cell.m, cell.ratio))
        .collect();
    let all = of_types().count();
    let but = if missed.is_empty() { String::new() } else { format!("; not by {}", missed.join(", ")) };
    writeln!(out, "The goal is reached by {} of {all} cells{but}.\n", all - missed.len())?;

    let columns = table::each_once(run.cells.iter().map(|cell| (cell.m, cell.n, cell.k)));
    let mut rows = table::each_once(run.cells.iter().map(|cell| (&*cell.format, cell.theirs.as_deref())));
    // Types that candle has come first.
    rows.sort_by_key(|(_, theirs)| theirs.is_none());
    let titles: Vec<String> = columns.iter().map(|(m, n, k)| format!("m = {m}, {n}x{k}")).collect();
    writeln!(out, "| ours | candle's | {} |\n|---|---|{}", titles.join(" | "), "---|".repeat(columns.len()))?;
    for (format, theirs) in rows {
        let shown = |(m, n, k): &(u64, u64, u64)| {
            let of = |cell: &&CandleCell| cell.format == format && (cell.m, cell.n, cell.k) == (*m, *n, *k);
            run.cells.iter().find(of).map_or("-".to_owned(), |cell| {
                let [theirs, ours] = [cell.their_gmac_s, cell.our_gmac_s].map(measured);
                format!("{theirs}, {ours}, {:.2}", cell.ratio)
            })
        };
        let cells: Vec<String> = columns.iter().map(shown).collect();
        writeln!(out, "| `{format}` | {} | {} |", theirs.unwrap_or("f32"), cells.join(" | "))?;
    }
    writeln!(out)?;
    Ok(())
}
