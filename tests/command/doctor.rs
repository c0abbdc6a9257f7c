//! `doctor` on a machine where nothing is, and with bad settings.
#![cfg(feature = "cli")]

use std::process::{Command, Output};

/// Runs `gristmill doctor` with these variables and no others.
fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_gristmill"))
        .arg("doctor")
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn says_where_it_looked() {
    let named = [("GRISTMILL_NVCC", "/nowhere/nvcc")];
    let text = doctor(&[], &named);
    for line in [
        "this binary\n",
        "compiler for the next build\n  none\n",
        "GRISTMILL_CUDA_IMAGES: not set\n",
        "GRISTMILL_NVCC (/nowhere/nvcc): /nowhere/nvcc is no program\n",
        "environment\n  GRISTMILL_NVCC=/nowhere/nvcc\n",
        "pip install --no-deps nvidia-cuda-nvcc==13.0.88 ",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&doctor(&["--json"], &named)).expect("JSON");
    assert!(json["compiler"].is_null(), "{json}");
    assert_eq!(json["looked"][1]["place"], "GRISTMILL_NVCC (/nowhere/nvcc)");
    assert_eq!(json["environment"]["GRISTMILL_NVCC"], "/nowhere/nvcc");
    assert!(json["built"]["state"].is_string(), "{json}");
    assert!(json["driver"].is_object(), "{json}");
}

#[test]
fn bad_settings_are_advice() {
    let text = doctor(&[], &[("GRISTMILL_NVCC", "/nowhere/nvcc"), ("GRISTMILL_CUDA_ARCHS", "7.5")]);
    assert!(text.contains("GRISTMILL_CUDA_ARCHS=7.5: `7.5` is no GPU architecture: write `75`"), "{text}");
}

#[test]
fn describes_the_nodes_of_any_machine() {
    let folder = |machine: &str| format!("{}/runtime/tests/topologies/{machine}", env!("CARGO_MANIFEST_DIR"));
    let text = doctor(&["--topology", &folder("two")], &[]);
    for line in [
        "processor\n  node 0: processors 0-1,4-5; 64.0 GiB; distances 10 to 0, 21 to 1\n",
        "  node 1: processors 2-3,6-7; 64.0 GiB; distances 21 to 0, 10 to 1\n",
        "  physical cores: 4\n  level 3 caches: 2 of 32768 KiB, 4 processors each\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let json = doctor(&["--json", "--topology", &folder("no-memory")], &[]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let nodes = &json["processor"]["nodes"];
    assert_eq!(nodes[1]["memory_bytes"], 0);
    assert_eq!(nodes[1]["distances"][2], serde_json::json!({"to": 2, "distance": 28}));
    assert_eq!(nodes[2]["processors"], serde_json::json!([]));
    assert!(nodes[0]["read_mb_s"].is_null(), "nobody measured it");
    let text = doctor(&["--topology", &folder("malformed")], &[]);
    assert!(text.contains("  not understood: node/node1/cpulist: `2-9999999999999`\n"), "{text}");
    let refused = Command::new(env!("CARGO_BIN_EXE_gristmill"))
        .args(["doctor", "--topology", "/nowhere"])
        .output()
        .expect("it starts");
    assert!(!refused.status.success());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("/nowhere has neither a folder `node`"), "{error}");
}

#[test]
fn measures_what_nodes_read() {
    let json: serde_json::Value =
        serde_json::from_str(&doctor(&["--json", "--bandwidth"], &[])).expect("JSON");
    for node in json["processor"]["nodes"].as_array().expect("nodes") {
        let works = node["processors"].as_array().is_some_and(|cpus| !cpus.is_empty());
        if works && node["memory_bytes"] != 0 {
            assert!(node["read_mb_s"].as_u64().is_some_and(|rate| rate > 0), "{node}");
        }
    }
}
