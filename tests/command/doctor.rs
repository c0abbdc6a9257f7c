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
