//! What a report runs, and how it ended.

use super::super::error::CliError;
use super::arguments::Arguments;
use super::running::Running;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// The stages in order: name, what it is for, a program in front, arguments of each process, whether JSON is printed, and minutes, of a
/// quick report and of a whole one. Words in braces are those of [`words`].
type Row = (&'static str, &'static str, Option<[&'static str; 3]>, &'static [&'static str], bool, (u64, u64));

/// What stands in front of a file of the folder.
const IN_FOLDER: &str = "{folder}/";

const QUICKLY: &str = "verify --quick --json {device} {format}";

/// Every kernel under a tool of compute-sanitizer.
const fn sanitized(tool: &'static str) -> Row {
    let wrapper = Some(["compute-sanitizer", "--tool", tool]);
    (tool, "verify under compute-sanitizer", wrapper, &[QUICKLY], false, (10, 60))
}

const STAGES: [Row; 14] = [
    ("doctor", "the driver, and what the build found", None, &["doctor --json"], true, (1, 2)),
    ("list", "kernels and their images", None, &["list --json {device} {format}"], true, (1, 2)),
    (
        "validate",
        "what decisions choose: right, and without keeping memory",
        None,
        &["validate --json --rounds {rounds} {device} {formats}"],
        true,
        (5, 30),
    ),
    ("verify-quick", "every kernel against the oracle, few shapes", None, &[QUICKLY], true, (10, 30)),
    sanitized("memcheck"),
    sanitized("racecheck"),
    sanitized("initcheck"),
    sanitized("synccheck"),
    (
        "bench",
        "kernels beside a copy, cuBLASLt and this processor",
        None,
        &["bench --json {quick} {device} {formats} {shape}"],
        true,
        (15, 90),
    ),
    (
        "bench-cpu",
        "this processor alone",
        None,
        &["bench --device cpu --json {quick} {formats} {shape}"],
        true,
        (10, 60),
    ),
    (
        "verify",
        "every kernel against the oracle, all shapes",
        None,
        &["verify {quick} --json {device} {format}"],
        true,
        (15, 120),
    ),
    (
        "soak",
        "two layers in a graph, the same bits from the first launch to the last",
        None,
        &["device-report --soak {device} {formats} --replays {replays}"],
        false,
        (10, 60),
    ),
    (
        "tune",
        "which kernel is fastest",
        None,
        &["tune {quick} --out {folder}/tuning.txt {device} {formats} {shape}"],
        false,
        (15, 90),
    ),
    (
        "two-processes",
        "two processes on the device at the same time",
        None,
        &[QUICKLY, QUICKLY],
        false,
        (15, 60),
    ),
];

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
    let stage = |&(name, what, wrapper, lines, json, (short, long)): &Row| {
        let processes = lines.iter().map(|line| words(line, arguments)).collect();
        let limit = Duration::from_secs(60 * if arguments.quick { short } else { long });
        Stage { name, what, wrapper, processes, json, limit }
    };
    STAGES.iter().map(stage).collect()
}

/// The words of a line, with what was asked for: `{format}` is of commands that take one, the first, and `{formats}` of those that take
/// several.
fn words(line: &str, arguments: &Arguments) -> Vec<String> {
    let option =
        |name: &str, value: Option<String>| value.map_or_else(Vec::new, |value| vec![name.to_owned(), value]);
    let formats = &arguments.format;
    let expanded = |word: &str| match word {
        "{device}" => option("--device", Some(arguments.device.to_string())),
        "{format}" => option("--format", formats.first().cloned()),
        "{formats}" => option("--format", (!formats.is_empty()).then(|| formats.join(","))),
        "{shape}" => option("--shape", arguments.shape.clone()),
        "{quick}" if arguments.quick => vec!["--quick".to_owned()],
        "{quick}" => Vec::new(),
        "{rounds}" => vec![if arguments.quick { "50" } else { "1000" }.to_owned()],
        "{replays}" => vec![arguments.replays().to_string()],
        word => vec![word.to_owned()],
    };
    line.split_whitespace().flat_map(expanded).collect()
}

impl Stage {
    /// Names of the files that it writes into the folder.
    pub fn files(&self) -> impl Iterator<Item = String> {
        let named = self.processes.iter().flatten().filter_map(|word| word.strip_prefix(IN_FOLDER));
        let printed = (0..self.processes.len()).flat_map(|at| self.printed(at));
        printed.chain(named.map(str::to_owned))
    }

    /// Names of the files with what a process prints, and with its errors.
    fn printed(&self, process: usize) -> [String; 2] {
        let number = if self.processes.len() > 1 { format!("-{}", process + 1) } else { String::new() };
        let out = if self.json { "json" } else { "txt" };
        [format!("{}{number}.{out}", self.name), format!("{}{number}.stderr.txt", self.name)]
    }

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
            let [name, errors] = self.printed(at);
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
            command.args(words.iter().map(|word| match word.strip_prefix(IN_FOLDER) {
                Some(name) => folder.join(name).into_os_string(),
                None => OsString::from(word),
            }));
            command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
            match Running::start(&mut command, self.wrapper.is_some()) {
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
        for (child, errors) in running {
            let (outcome, why) = self.wait(child, began)?;
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
    fn wait(&self, mut running: Running, began: Instant) -> Result<(&'static str, String), CliError> {
        let failed = CliError::file("wait for", Path::new("gristmill"));
        loop {
            match running.0.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(("ok", String::new())),
                Ok(Some(status)) => return Ok(("failed", status.to_string())),
                Ok(None) if began.elapsed() > self.limit => {
                    return Ok(("timed out", format!("after {} s", self.limit.as_secs())));
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// What a wrapper starts ends with it where it takes too long.
    #[test]
    fn a_time_out_ends_what_a_wrapper_started() -> Result<(), CliError> {
        let folder = tempfile::tempdir().map_err(CliError::file("create", Path::new("a folder")))?;
        let stage = Stage {
            name: "slow",
            what: "a wrapper that waits for what it started",
            wrapper: Some(["sh", "-c", "sleep 600 & echo $!; wait"]),
            processes: vec![vec![]],
            json: false,
            limit: Duration::from_secs(1),
        };
        let ended = stage.run(folder.path())?;
        assert_eq!((ended.outcome, ended.why.as_deref()), ("timed out", Some("after 1 s: nothing was said")));
        let started = std::fs::read_to_string(folder.path().join("slow.txt")).unwrap_or_default();
        super::super::running::assert_ends(started.trim());
        Ok(())
    }
}
