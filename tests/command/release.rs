//! `.ci/release` writes its folder where it was told to, and leaves the checkout as it was committed while crates are packed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// A release into a folder of the checkout, as the workflow makes it, got stuck: `cargo package` refuses changes that are not
/// committed, and what the script had written there was one.
#[test]
fn the_checkout_stays_clean_until_crates_are_packed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !root.join(".git").exists() {
        println!("not a checkout: nothing is released from here");
        return;
    }
    let scratch = tempfile::tempdir().expect("room");
    let clone = scratch.path().join("clone");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        run(command
            .current_dir(&clone)
            .args(["-c", "user.name=t", "-c", "user.email=t@localhost"])
            .args(arguments))
    };
    run(Command::new("git").args(["clone", "--quiet", "--no-tags"]).arg(root).arg(&clone));
    // As it stands here, with a section for the version.
    std::fs::copy(root.join(".ci/release"), clone.join(".ci/release")).expect("copied");
    let changes = std::fs::read_to_string(clone.join("CHANGELOG.md")).expect("it is there");
    let version = concat!("## [", env!("CARGO_PKG_VERSION"), "]");
    std::fs::write(clone.join("CHANGELOG.md"), changes.replace("## [Unreleased]", version)).expect("written");
    git(&["commit", "--quiet", "--all", "--message", "A release"]);
    // In place of cargo: says what it finds, and ends the script there.
    let bin = scratch.path().join("bin");
    std::fs::create_dir(&bin).expect("made");
    let cargo = bin.join("cargo");
    std::fs::write(&cargo, "#!/bin/sh\necho \"called: $1\"\ngit status --porcelain\nexit 9\n")
        .expect("written");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("allowed");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("set"));
    let output = Command::new(".ci/release")
        .arg("out")
        .current_dir(&clone)
        .env("PATH", path)
        .output()
        .expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(9), "{out}{err}");
    assert_eq!(out, "==> crates\ncalled: package\n", "{err}");
}
