//! Every format against its ceiling.

use super::super::super::error::CliError;
use super::super::super::table::{self, measured};
use super::record::{COLUMNS, counted, header, load};
use gristmill_records::bench::Measurement;
use gristmill_records::committed::Formats;
use std::io::Write;

/// Percent of the ceiling for every format of a record of `bench --json`.
pub fn print(record: &Formats, out: &mut dyn Write) -> Result<(), CliError> {
    let bits = |of: &Measurement| of.file_bits_per_weight.zip(of.memory_bits_per_weight);
    header("Formats", &record.date, &record.machine, out)?;
    writeln!(
        out,
        "`{}`; {}. In each cell: GMAC/s, the percentage of the ceiling that was measured beside the kernel, and what sets\n\
         it: x the multiply units, r reading weights (from the caches as far as they hold them, cold: from memory;\n\
         {}).\n",
        record.command,
        load(record.load),
        counted(record.records.iter().all(|of| bits(of).is_some()))
    )?;
    for (n, k, threads) in table::each_once(record.records.iter().map(|of| (of.n, of.k, of.threads))) {
        let of_shape = |of: &&Measurement| (of.n, of.k, of.threads) == (n, k, threads);
        let here: Vec<&Measurement> = record.records.iter().filter(of_shape).collect();
        let cell = |format: &str, (m, memory): (u64, &str)| {
            here.iter().find(|of| of.format == format && of.m == m && of.memory == memory)
        };
        let measured_here =
            |column: &&(u64, &str)| here.iter().any(|of| cell(&of.format, **column).is_some());
        let columns: Vec<(u64, &str)> = COLUMNS.iter().filter(measured_here).copied().collect();
        writeln!(out, "Weights {n}x{k}, {}:\n", table::counted(threads as usize, "thread"))?;
        let titles: Vec<String> = columns.iter().map(|(m, memory)| format!("m = {m}, {memory}")).collect();
        let with_bits = here.iter().any(|of| bits(of).is_some());
        let (title, line) = if with_bits { (" | bits in file, memory", "---|") } else { ("", "") };
        writeln!(
            out,
            "| format{title} | {} |\n|---|{line}{}",
            titles.join(" | "),
            "---|".repeat(columns.len())
        )?;
        for name in table::each_once(here.iter().map(|of| &*of.format)) {
            let shown = |column: &(u64, &str)| {
                cell(name, *column).map_or("-".to_owned(), |of| {
                    let (rate, percent) = (of.gmac_s.unwrap_or(f64::NAN), of.percent.unwrap_or(f64::NAN));
                    let by = if of.ceiling.as_deref() == Some("multiply") { "x" } else { "r" };
                    format!("{} ({percent:.0} % {by})", measured(rate))
                })
            };
            let cells: Vec<String> = columns.iter().map(shown).collect();
            // Of the first column's kernel; the others may have packings of their own.
            let of_format = here.iter().find(|of| of.format == name);
            let shown = match of_format.and_then(|of| bits(of)) {
                Some((file, memory)) => format!(" | {file:.2}, {memory:.2}"),
                None if with_bits => " | -".to_owned(),
                None => String::new(),
            };
            writeln!(out, "| `{name}`{shown} | {} |", cells.join(" | "))?;
        }
        writeln!(out)?;
    }
    Ok(())
}
