//! Products beside those of other libraries.

use super::super::super::error::CliError;
use super::super::super::table::{self, measured};
use super::record::{COLUMNS, busy, counted, header, load, on};
use gristmill_records::peers::{ProductCell, ProductRun, Products};
use std::io::Write;

/// Products, ours and a peer's.
pub fn print(record: &Products, out: &mut dyn Write) -> Result<(), CliError> {
    header("Products", &record.date, &record.machine, out)?;
    for run in &record.runs {
        product_run(run, &on(run.date.as_ref().unwrap_or(&record.date), &record.machine), out)?;
    }
    Ok(())
}

fn product_run(run: &ProductRun, on: &str, out: &mut dyn Write) -> Result<(), CliError> {
    writeln!(out, "#### {} {on}\n", run.peer)?;
    writeln!(out, "{}; {}{}.\n", run.versions.join("; "), load(run.load), busy(run.others))?;
    for note in &run.notes {
        writeln!(out, "- {note}")?;
    }
    let with_bits = |cell: &ProductCell| cell.file_bits_per_weight.zip(cell.memory_bits_per_weight).is_some();
    writeln!(out, "- of our ceiling: where that is reading, {}\n", counted(run.cells.iter().all(with_bits)))?;
    let mut sorted: Vec<&ProductCell> = run.cells.iter().collect();
    sorted.sort_by(|a, b| a.speedup.total_cmp(&b.speedup));
    if let [first, .., last] = &*sorted {
        let median = sorted[sorted.len() / 2].speedup;
        let lost: Vec<String> =
            sorted.iter().filter(|cell| cell.speedup < 1.0).map(|cell| slower(cell)).collect();
        let slower = match lost.is_empty() {
            true => "ours is the faster in each".to_owned(),
            false => format!("the peer is the faster in {}: {}", lost.len(), lost.join("; ")),
        };
        writeln!(
            out,
            "Of {} cells, times as fast as the peer: {:.2} to {:.1}, in the middle {median:.2}; {slower}.\n",
            sorted.len(),
            first.speedup,
            last.speedup
        )?;
    }
    writeln!(out, "In each cell: ours in GMAC/s (of our ceiling), and times as fast as the peer.\n")?;
    for (n, k, threads) in table::each_once(run.cells.iter().map(|cell| (cell.n, cell.k, cell.threads))) {
        let here: Vec<&ProductCell> =
            run.cells.iter().filter(|cell| (cell.n, cell.k, cell.threads) == (n, k, threads)).collect();
        writeln!(out, "Weights {n}x{k}, {}:\n", table::counted(threads as usize, "thread"))?;
        let titles: Vec<String> = COLUMNS.iter().map(|(m, memory)| format!("m = {m}, {memory}")).collect();
        writeln!(
            out,
            "| ours | theirs | {} |\n|---|---|{}",
            titles.join(" | "),
            "---|".repeat(titles.len())
        )?;
        for (format, theirs) in table::each_once(here.iter().map(|cell| (&*cell.format, &*cell.theirs))) {
            let shown = |(m, memory): &(u64, &str)| {
                let of = |cell: &&&ProductCell| {
                    (&*cell.format, &*cell.theirs, cell.m, &*cell.memory) == (format, theirs, *m, *memory)
                };
                here.iter().find(of).map_or("-".to_owned(), |cell| {
                    let rate = measured(cell.our_gmac_s);
                    format!("{rate} ({:.0} %), {}", cell.our_percent, times(cell))
                })
            };
            let cells: Vec<String> = COLUMNS.iter().map(shown).collect();
            writeln!(out, "| `{format}` | {theirs} | {} |", cells.join(" | "))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// How many times as fast as the peer, with both ends of the rounds where a record has them.
fn times(cell: &ProductCell) -> String {
    match cell.least_speedup.zip(cell.most_speedup) {
        Some((least, most)) => format!("{:.2} [{least:.2} to {most:.2}]", cell.speedup),
        None => format!("{:.2}", cell.speedup),
    }
}

/// A cell in which the peer is the faster.
fn slower(cell: &ProductCell) -> String {
    let on = table::counted(cell.threads as usize, "thread");
    let ProductCell { format, theirs, m, n, k, memory, .. } = cell;
    format!("`{format}` beside {theirs}, {n}x{k}, m = {m}, {memory}, {on} ({})", times(cell))
}
