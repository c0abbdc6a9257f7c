//! `validate`: its parts, baselines that do and do not compare, and what fails.
#![cfg(all(feature = "cli", feature = "bitnet"))]

use crate::common::{gristmill, words};
use serde_json::Value;

fn of(json: &Value, part: &str) -> String {
    json[part]["outcome"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_part_says_how_it_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("baseline.json");
    let file = path.to_str().expect("UTF-8");
    let quick = ["validate", "--format", "i2_s,tq2_0", "--rounds", "100"];
    let first = gristmill(quick.into_iter().chain(["--save-baseline", file, "--json"])).code(0).json();
    assert_eq!(first["success"], true, "{first}");
    for (part, outcome) in
        [("accuracy", "passed"), ("cross_check", "passed"), ("speed", "not_run"), ("memory", "passed")]
    {
        assert_eq!(of(&first, part), outcome, "{part}: {first}");
    }
    assert_eq!((&first["accuracy"]["right"], &first["memory"]["rounds"]), (&4.into(), &100.into()));
    assert!(first["memory"]["peak"].as_u64() >= first["memory"]["before"].as_u64(), "{first}");

    // This machine's own times, with room for whoever else works on it.
    let again = gristmill(quick.into_iter().chain(["--baseline", file, "--tolerance", "100000", "--json"]));
    let again = again.code(0).json();
    assert_eq!(
        (of(&again, "speed"), &again["speed"]["compared"]),
        ("passed".to_owned(), &4.into()),
        "{again}"
    );

    let text = std::fs::read_to_string(&path).expect("it was written");
    let mut kept: Value = serde_json::from_str(&text).expect("JSON");
    // Times that no machine reaches.
    for time in kept["times"].as_array_mut().expect("a list") {
        time["seconds"] = 1e-12.into();
    }
    std::fs::write(&path, kept.to_string()).expect("a file");
    // What is slow is no norm for later runs.
    let next = folder.path().join("next.json");
    let next = next.to_str().expect("UTF-8");
    gristmill(quick.into_iter().chain(["--baseline", file, "--save-baseline", next]))
        .code(1)
        .complains("is not written: a baseline is of a valid machine");
    assert!(!std::path::Path::new(next).exists());
    // Nor is a baseline replaced by what was held against it: a little slower each time is slow at last.
    gristmill(quick.into_iter().chain(["--baseline", file, "--save-baseline", file]))
        .code(1)
        .complains("are one file");
    gristmill(quick.into_iter().chain(["--baseline", file]))
        .code(1)
        .says("speed        FAILED: 4 times compared with the baseline, 4 slower than allowed")
        .says("NOT VALID");
    kept["machine"] = "another".into();
    std::fs::write(&path, kept.to_string()).expect("a file");
    gristmill(quick.into_iter().chain(["--baseline", file]))
        .code(0)
        .says("not run: 4 times; the baseline is of another machine (another)");
    kept["schema"] = "gristmill baseline 0".into();
    std::fs::write(&path, kept.to_string()).expect("a file");
    let refused = gristmill(quick.into_iter().chain(["--baseline", file])).code(1);
    refused.complains("its schema is `gristmill baseline 0`").complains("--save-baseline");
    std::fs::write(&path, "{").expect("a file");
    gristmill(quick.into_iter().chain(["--baseline", file])).code(1).complains("is no baseline");
}

#[test]
fn what_is_not_there_is_not_valid() {
    gristmill(words("validate --format i2s")).code(1).complains("i2_s");
    // No GPU, or no kernels for one in this build.
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        gristmill(words("validate --format i2_s --device cuda:0")).code(1).complains("cuda:0");
    }
}
