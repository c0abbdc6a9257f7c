//! What every section says of its record: where, when, how busy the machine was, and what is counted.

use super::super::super::error::CliError;
use super::super::super::table::bytes;
use gristmill_records::committed::Machine;
use std::io::Write;

/// Columns of tables of products: tokens and memory.
pub const COLUMNS: &[(u64, &str)] =
    &[(1, "hot"), (1, "cold"), (8, "hot"), (32, "hot"), (128, "hot"), (512, "hot")];

/// Where and when, as headings say it: by this headings of several records differ.
pub fn on(date: &str, machine: &Machine) -> String {
    format!("on {}, {date}", machine.cpu.replace("(R)", ""))
}

/// The heading of a record, and its machine.
pub fn header(title: &str, date: &str, machine: &Machine, out: &mut dyn Write) -> Result<(), CliError> {
    let size = |size: Option<u64>| size.map_or("?".to_owned(), bytes);
    writeln!(
        out,
        "### {title} {}\n\n{} cores, L2 {}, L3 {}.\n",
        on(date, machine),
        machine.cores,
        size(machine.l2_bytes),
        size(machine.l3_bytes)
    )?;
    Ok(())
}

/// How busy the machine was.
pub fn load(load: [Option<f64>; 2]) -> String {
    let [before, after] = load.map(|load| load.map_or("?".to_owned(), |load| format!("{load:.1}")));
    format!("load average {before} before and {after} after (1 is the measurement alone)")
}

/// What other programs took of the machine, behind what else is said of it; nothing where it was not measured.
pub fn busy(others: Option<f64>) -> String {
    others.map_or(String::new(), |others| format!("; other programs kept {others:.2} processors busy"))
}

/// How bytes are counted where reading is the ceiling.
pub fn counted(all_say_bits: bool) -> &'static str {
    match all_say_bits {
        true => "the bytes that weights take in a file are counted, whatever they take in memory",
        false => "the bytes that weights take packed are counted, which can be more than in the file",
    }
}
