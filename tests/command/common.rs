//! Running the command in tests.
#![allow(dead_code, reason = "each test file uses a part of this")]

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a run of the command left.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `gristmill` with these arguments, without restrictions from the environment.
pub fn gristmill<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    finished(command().args(arguments).output())
}

/// The command, to be given arguments and variables.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    for variable in [
        "GRISTMILL_ISA",
        "GRISTMILL_KERNEL",
        "GRISTMILL_DISABLE",
        "GRISTMILL_QUARANTINE",
        "GRISTMILL_NO_SKIP",
    ] {
        command.env_remove(variable);
    }
    command
}

/// The end of a run.
pub fn finished(output: std::io::Result<Output>) -> Ran {
    let output = output.expect("the command starts");
    Ran {
        code: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Words of a command line.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

impl Ran {
    /// Checks the exit code, and shows what was printed if it is another.
    #[track_caller]
    pub fn code(self, expected: i32) -> Ran {
        assert_eq!(self.code, expected, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Checks that standard output says something.
    #[track_caller]
    pub fn says(self, text: &str) -> Ran {
        assert!(self.stdout.contains(text), "no `{text}` in stdout:\n{}", self.stdout);
        self
    }

    /// Checks that standard error says something.
    #[track_caller]
    pub fn complains(self, text: &str) -> Ran {
        assert!(self.stderr.contains(text), "no `{text}` in stderr:\n{}", self.stderr);
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in:\n{}", self.stdout))
    }

    /// Standard output as a record.
    #[track_caller]
    pub fn record<T: DeserializeOwned + Serialize>(&self) -> T {
        record(&self.json())
    }
}

/// JSON as the record that it is: it has every field of the type and no other.
#[track_caller]
pub fn record<T: DeserializeOwned + Serialize>(json: &Value) -> T {
    let record = gristmill_records::read(json.clone()).unwrap_or_else(|why| panic!("{why} in {json}"));
    assert_eq!(serde_json::to_value(&record).expect("JSON"), *json);
    record
}

/// A file of the test data.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf").join(name)
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}
