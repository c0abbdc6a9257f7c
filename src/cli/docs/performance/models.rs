//! Our decoder and peers on whole models.

use super::super::super::error::CliError;
use super::super::super::table::{self, measured};
use super::record::{busy, header, on};
use gristmill_records::peers::{ModelRun, Models, OURS};
use std::io::Write;

/// Our decoder and a peer on whole models.
pub fn print(record: &Models, out: &mut dyn Write) -> Result<(), CliError> {
    header("Models", &record.date, &record.machine, out)?;
    writeln!(
        out,
        "Models of random numbers in the shapes of published ones, made by `benches/peers/models`: our decoder (examples/decoder) and\n\
         a peer on the same file. pp: a prompt of so many tokens; tg: so many tokens, one after the other; tokens a second, the median\n\
         of the rounds with the least and the greatest. NMSE: mean square difference of the logits, relative to their variance.\n"
    )?;
    for run in &record.models {
        model_run(run, &on(run.date.as_ref().unwrap_or(&record.date), &record.machine), out)?;
    }
    Ok(())
}

fn model_run(run: &ModelRun, on: &str, out: &mut dyn Write) -> Result<(), CliError> {
    writeln!(out, "#### {}, {} {on}\n", run.model, run.peer)?;
    writeln!(out, "{}{}.\n", run.versions.join("; "), busy(run.others))?;
    let sizes = &run.sizes;
    let mib = |bytes: u64| measured(bytes as f64 / 1048576.0);
    writeln!(
        out,
        "- `{}`, {} layers of {} and {}, {} heads ({} of keys and values), {} tokens\n\
         - MiB: {} in the file; weights in memory {} ours (rows of the embedding are read from the file), {} theirs",
        sizes.architecture,
        sizes.layers,
        sizes.embd,
        sizes.ffn,
        sizes.heads,
        sizes.kv_heads,
        sizes.vocab,
        mib(sizes.file_bytes),
        mib(sizes.our_bytes),
        mib(sizes.their_bytes)
    )?;
    for of in &run.agreements {
        writeln!(
            out,
            "- logits, {}: NMSE {:.1e} over {} tokens; {} of {} generated tokens equal",
            of.setting, of.nmse, of.prompt_tokens, of.greedy_equal, of.greedy_tokens
        )?;
    }
    for note in &run.notes {
        writeln!(out, "- {note}")?;
    }
    let sides = table::each_once(run.speeds.iter().map(|speed| &*speed.side));
    let tests = table::each_once(run.speeds.iter().map(|speed| (&*speed.test, speed.threads)));
    let theirs = || sides.iter().filter(|side| **side != OURS);
    let titles: String = theirs().map(|side| format!(" theirs, {side} |")).collect();
    writeln!(
        out,
        "\n| test | threads | ours |{titles} times their first | times their best |\n|---|---|---|{}---|---|",
        "---|".repeat(theirs().count())
    )?;
    for (test, threads) in tests {
        let of = |side: &str| {
            run.speeds
                .iter()
                .find(|speed| (&*speed.side, &*speed.test, speed.threads) == (side, test, threads))
        };
        let cell = |side: &str| match of(side) {
            Some(of) => {
                let [median, min, max] = [of.median, of.min, of.max].map(measured);
                format!(" {median} ({min} to {max}) |")
            }
            None => " - |".to_owned(),
        };
        let first = theirs().next().and_then(|side| of(side)).map_or(f64::NAN, |speed| speed.median);
        let [ours, best] = run.rates(test, threads).unwrap_or([f64::NAN; 2]);
        writeln!(
            out,
            "| {test} | {threads} |{}{} {:.2} | {:.2} |",
            cell(OURS),
            theirs().map(|side| cell(side)).collect::<String>(),
            ours / first,
            ours / best
        )?;
    }
    writeln!(out)?;
    Ok(())
}
