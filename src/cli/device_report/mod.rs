//! `gristmill device-report`: everything that is to be known of a GPU, in one folder, by one command.
//!
//! Each stage is a process of its own (this program again, or a sanitizer around it), in the order of what finds most in least
//! time, and the report goes on after failures: a device that is lost takes one stage with it. What a stage prints is a file of the
//! folder, and `summary.json` and `summary.md` say how each ended, and what was measured of the goals of docs/cuda.md.

mod arguments;
mod goals;
mod running;
mod soak;
mod stage;

use super::error::{CliError, Outcome};
use super::json::print_json;
use super::output::{self, Files};
use super::table::{Side, Table};
pub use arguments::Arguments;
use goals::{Goal, goals};
use gristmill::vocab::DeviceKind;
use serde::Serialize;
use stage::{Ended, Stage, stages};
use std::io::Write;

/// What `summary.json` holds.
#[derive(Debug, Serialize)]
struct Summary<'s> {
    device: String,
    version: &'static str,
    success: bool,
    stages: &'s [Ended],
    goals: &'s [Goal],
}

/// Names of the files that say how the stages ended.
const SUMMARIES: [&str; 2] = ["summary.json", "summary.md"];

impl Arguments {
    /// What is written: the summaries and what the stages write.
    pub fn files(&self) -> Files<'_> {
        let Some(folder) = &self.out else { return Files::default() };
        let stages = stages(self);
        let of_stages = stages.iter().filter(|stage| self.wants(stage.name)).flat_map(Stage::files);
        Files::default().fills(folder, SUMMARIES.map(str::to_owned).into_iter().chain(of_stages))
    }

    fn wants(&self, stage: &str) -> bool {
        self.stage.is_empty() || self.stage.iter().any(|name| name == stage)
    }
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if arguments.device.kind != DeviceKind::Cuda {
        return Err(CliError::usage(
            format!("--device {}: a report is of a GPU that kernels are described for", arguments.device),
            "give --device cuda:0, or leave it away",
        ));
    }
    if arguments.soak {
        return soak::run(arguments.device, arguments.replays(), &arguments.format, out);
    }
    let Some(folder) = &arguments.out else {
        return Err(CliError::usage("no folder for the records", "name one with --out DIR"));
    };
    // Without the device every stage would fail in the same way.
    soak::open(arguments.device)?;
    let all = stages(arguments);
    for name in &arguments.stage {
        if !all.iter().any(|stage| stage.name == name) {
            let names: Vec<&str> = all.iter().map(|stage| stage.name).collect();
            return Err(CliError::usage(
                format!("no stage `{name}`"),
                format!("there are: {}", names.join(", ")),
            ));
        }
    }
    std::fs::create_dir_all(folder).map_err(CliError::file("create", folder))?;
    let mut ended = Vec::new();
    for stage in all.iter().filter(|stage| arguments.wants(stage.name)) {
        writeln!(out, "{}: {}", stage.name, stage.what)?;
        out.flush()?;
        let one = stage.run(folder)?;
        writeln!(
            out,
            "  {}, {:.1} s{}",
            one.outcome,
            one.seconds,
            one.why.as_ref().map_or(String::new(), |why| format!(": {why}"))
        )?;
        ended.push(one);
        // After each stage, so that what there is of it is kept whatever comes.
        write_summary(arguments, folder, &ended)?;
    }
    let goals = goals(folder);
    let mut table = Table::new(&[
        ("goal", Side::Left),
        ("measured", Side::Right),
        ("reached", Side::Left),
        ("of", Side::Left),
    ]);
    for goal in &goals {
        table.row(goal.cells());
    }
    writeln!(out)?;
    table.print(out)?;
    let success = ended.iter().all(|one| !one.failed());
    writeln!(
        out,
        "\n{} in {}",
        if success { "every stage succeeded; records" } else { "a stage FAILED; records" },
        folder.display()
    )?;
    Ok(if success { Outcome::Yes } else { Outcome::Failed })
}

/// Writes `summary.json` and `summary.md` of what there is.
fn write_summary(arguments: &Arguments, folder: &std::path::Path, ended: &[Ended]) -> Result<(), CliError> {
    let goals = goals(folder);
    let summary = Summary {
        device: arguments.device.to_string(),
        version: env!("CARGO_PKG_VERSION"),
        success: ended.iter().all(|one| !one.failed()),
        stages: ended,
        goals: &goals,
    };
    let mut json = Vec::new();
    print_json(&mut json, &summary)?;
    output::write(&folder.join(SUMMARIES[0]), &json)?;
    let mut text = format!(
        "# {}, gristmill {}\n\n| stage | outcome | seconds | records |\n|---|---|---:|---|\n",
        summary.device, summary.version
    );
    for one in ended {
        let why = one.why.as_ref().map_or(String::new(), |why| format!(": {}", why.replace('|', "/")));
        text.push_str(&format!(
            "| {} | {}{why} | {:.1} | {} |\n",
            one.stage,
            one.outcome,
            one.seconds,
            one.records.join(", ")
        ));
    }
    text.push_str("\n| goal | measured | reached | of |\n|---|---:|---|---|\n");
    for goal in &goals {
        text.push_str(&format!("| {} |\n", goal.cells().join(" | ")));
    }
    output::write(&folder.join(SUMMARIES[1]), text.as_bytes())
}
