//! What a report runs, and how it ended.

use super::super::error::CliError;
use super::arguments::Arguments;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often a process that runs is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A part of the report: processes that run at the same time.
pub struct Stage {
    pub name: &'static str,
    pub what: &'static str,
    /// A program in front of this one, which may not be there.
    wrapper: Option<[&'static str; 3]>,
    /// Arguments of this program, for each process.
    processes: Vec<Vec<String>>,
    /// Whether it prints JSON.
    json: bool,
    limit: Duration,
}

/// How a stage ended.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    pub stage: &'static str,
    /// `ok`, `failed`, `timed out` or `skipped`.
    pub outcome: &'static str,
    pub why: Option<String>,
    pub seconds: f64,
    /// Files of the folder.
    pub records: Vec<String>,
}

impl Ended {
    /// Whether it ran and did not succeed.
    pub fn failed(&self) -> bool {
        matches!(self.outcome, "failed" | "timed out")
    }
}

/// All stages, in order.
pub fn stages(arguments: &Arguments) -> Vec<Stage> {
    let device = arguments.device.to_string();
    let minutes =
        |short: u64, long: u64| Duration::from_secs(60 * if arguments.quick { short } else { long });
    // `--format` of commands that take several, and once each for those that take one.
    let formats = arguments.format.join(",");
    let split = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let command = |line: &str| {
        let mut words = split(line);
        words.extend(["--device".to_owned(), device.clone()]);
        words
    };
    let several = |mut words: Vec<String>| {
        if !formats.is_empty() {
            words.extend(["--format".to_owned(), formats.clone()]);
        }
        words
    };
    let first = |mut words: Vec<String>| {
        if let Some(format) = arguments.format.first() {
            words.extend(["--format".to_owned(), format.clone()]);
        }
        words
    };
    let shaped = |mut words: Vec<String>| {
        if let Some(shape) = &arguments.shape {
            words.extend(["--shape".to_owned(), shape.clone()]);
        }
        words
    };
    let quick = if arguments.quick { " --quick" } else { "" };
    let stage =
        |name, what, processes, json, limit| Stage { name, what, wrapper: None, processes, json, limit };
    let mut stages = vec![
        stage(
            "doctor",
            "the driver, and what the build found",
            vec![split("doctor --json")],
            true,
            minutes(1, 2),
        ),
        stage("list", "kernels and their images", vec![first(command("list --json"))], true, minutes(1, 2)),
        stage(
            "validate",
            "what decisions choose: right, and without keeping memory",
            vec![several(command(&format!(
                "validate --json --rounds {}",
                if arguments.quick { 50 } else { 1000 }
            )))],
            true,
            minutes(5, 30),
        ),
        stage(
            "verify-quick",
            "every kernel against the oracle, few shapes",
            vec![first(command("verify --quick --json"))],
            true,
            minutes(10, 30),
        ),
    ];
    for (name, tool) in [
        ("memcheck", ["compute-sanitizer", "--tool", "memcheck"]),
        ("racecheck", ["compute-sanitizer", "--tool", "racecheck"]),
        ("initcheck", ["compute-sanitizer", "--tool", "initcheck"]),
        ("synccheck", ["compute-sanitizer", "--tool", "synccheck"]),
    ] {
        let mut one = stage(
            name,
            "verify under compute-sanitizer",
            vec![first(command("verify --quick --json"))],
            false,
            minutes(10, 60),
        );
        one.wrapper = Some(tool);
        stages.push(one);
    }
    let mut soak = several(command("device-report --soak"));
    soak.extend(["--replays".to_owned(), arguments.replays().to_string()]);
    stages.extend([
        stage(
            "bench",
            "kernels beside a copy, cuBLASLt and this processor",
            vec![shaped(several(command(&format!("bench --json{quick}"))))],
            true,
            minutes(15, 90),
        ),
        stage(
            "bench-cpu",
            "this processor alone",
            vec![shaped(several(split(&format!("bench --device cpu --json{quick}"))))],
            true,
            minutes(10, 60),
        ),
        stage(
            "verify",
            "every kernel against the oracle, all shapes",
            vec![first(command(if arguments.quick { "verify --quick --json" } else { "verify --json" }))],
            true,
            minutes(15, 120),
        ),
        stage(
            "soak",
            "two layers in a graph, the same bits from the first launch to the last",
            vec![soak],
            false,
            minutes(10, 60),
        ),
        stage(
            "tune",
            "which kernel is fastest",
            vec![shaped(several(command(&format!("tune{quick} --out {{folder}}/tuning.txt"))))],
            false,
            minutes(15, 90),
        ),
        stage(
            "two-processes",
            "two processes on the device at the same time",
            vec![first(command("verify --quick --json")), first(command("verify --quick --json"))],
            false,
            minutes(15, 60),
        ),
    ]);
    stages
}

impl Stage {
    /// Runs it, with what it prints in files of `folder`.
    ///
    /// # Errors
    /// Files that can't be written. What goes wrong in the stage is in what is given back.
    pub fn run(&self, folder: &Path) -> Result<Ended, CliError> {
        let began = Instant::now();
        let mut ended =
            Ended { stage: self.name, outcome: "ok", why: None, seconds: 0.0, records: Vec::new() };
        let mut running = Vec::new();
        for (at, words) in self.processes.iter().enumerate() {
            let number = if self.processes.len() > 1 { format!("-{}", at + 1) } else { String::new() };
            let name = format!("{}{number}.{}", self.name, if self.json { "json" } else { "txt" });
            let errors = format!("{}{number}.stderr.txt", self.name);
            let create = |name: &str| {
                let path: PathBuf = folder.join(name);
                File::create(&path).map_err(CliError::file("create", &path))
            };
            let (stdout, stderr) = (create(&name)?, create(&errors)?);
            ended.records.extend([name, errors.clone()]);
            let own = std::env::current_exe().map_err(CliError::file("find", Path::new("gristmill")))?;
            let mut command = match self.wrapper {
                None => Command::new(own),
                Some([program, rest @ ..]) => {
                    let mut command = Command::new(program);
                    // Errors that it finds are its exit code.
                    command.args(rest).args(["--error-exitcode", "86"]).arg(own);
                    command
                }
            };
            let folder = folder.display().to_string();
            command.args(words.iter().map(|word| word.replace("{folder}", &folder)));
            match command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn() {
                Ok(child) => running.push((child, errors)),
                Err(error) => {
                    let absent = self.wrapper.is_some() && error.kind() == std::io::ErrorKind::NotFound;
                    ended.outcome = if absent { "skipped" } else { "failed" };
                    ended.why = Some(match self.wrapper {
                        Some([program, ..]) if absent => format!("{program} is not on PATH"),
                        _ => error.to_string(),
                    });
                }
            }
        }
        for (mut child, errors) in running {
            let (outcome, why) = self.wait(&mut child, began)?;
            if outcome != "ok" {
                ended.outcome = outcome;
                let said = std::fs::read_to_string(folder.join(&errors)).unwrap_or_default();
                // This program's own error rather than what a library says in front of it.
                let mut lines = said.lines().filter(|line| !line.trim().is_empty());
                let own = lines.clone().find(|line| line.starts_with("error"));
                let first = own.or_else(|| lines.next()).unwrap_or("nothing was said");
                ended.why = Some(format!("{why}: {first}"));
            }
        }
        ended.seconds = began.elapsed().as_secs_f64();
        Ok(ended)
    }

    /// Waits for a process, and ends it where it takes too long.
    fn wait(&self, child: &mut Child, began: Instant) -> Result<(&'static str, String), CliError> {
        let failed = CliError::file("wait for", Path::new("gristmill"));
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(("ok", String::new())),
                Ok(Some(status)) => return Ok(("failed", status.to_string())),
                Ok(None) if began.elapsed() > self.limit => {
                    // It may have ended in the meantime.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Ok(("timed out", format!("after {} s", self.limit.as_secs())));
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}
