//! A test's own process with the fake driver: a process loads its driver once, so the test starts itself again.

use super::fake_driver;
use std::path::Path;
use std::process::{Command, Output};

/// Set in the process that has the fake driver.
const CHILD: &str = "GRISTMILL_TEST_CHILD";

/// Whether this is that process.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The test `name` as the harness knows it: behind the module that it stands in.
fn full_name(name: &str) -> String {
    let list = Command::new(std::env::current_exe().expect("this file")).args(["--list", name]).output();
    let list = String::from_utf8(list.expect("it starts").stdout).expect("text");
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let mut found = tests.filter(|test| *test == name || test.ends_with(&format!("::{name}")));
    match (found.next(), found.next()) {
        (Some(test), None) => test.to_owned(),
        _ => panic!("{name} is the name of one test in:\n{list}"),
    }
}

/// Runs the test `name` of this binary in a process whose fake driver is set to `settings` and finds the kernels of images
/// in `units`.
pub fn child(name: &str, settings: &str, units: &Path) -> Output {
    let output = Command::new(std::env::current_exe().expect("this file"))
        .args(["--exact", &full_name(name), "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", fake_driver())
        .env("GRISTMILL_GPU_FAKE", settings)
        .env("GRISTMILL_GPU_FAKE_UNITS", units)
        .output()
        .expect("it starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} with `{settings}`: {stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{name} is the name of a test: {stdout}");
    output
}

/// What the fake driver said.
pub fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    stderr.lines().filter(|line| line.starts_with("fake CUDA:")).collect::<Vec<_>>().join("\n")
}
