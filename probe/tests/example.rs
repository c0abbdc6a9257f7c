//! The example crate with no library, with one for the processor, and with a fake CUDA library: three truths.
//!
//! Builds `examples/cpp-backend` for each, which takes the time of compiling this package once more.
#![cfg(target_os = "linux")]

#[path = "../../tests/choice/mod.rs"]
mod choice;
mod made;

use gristmill_probe::{Search, Target};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The example, built and run away from libraries that this machine may have.
struct Example {
    /// The home folder of the runs; empty.
    home: PathBuf,
}

impl Example {
    /// Cargo on the example, with at most one variable that names a library.
    fn cargo(&self, words: &[&str], variable: Option<(&str, PathBuf)>) -> Output {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cpp-backend/Cargo.toml");
        let mut command = Command::new(env!("CARGO"));
        command.args(words).args(["--quiet", "--manifest-path"]).arg(manifest);
        command.arg("--target-dir").arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpp-backend"));
        for name in gristmill_probe::discover::VARIABLES {
            command.env_remove(name);
        }
        command.env_remove("LD_LIBRARY_PATH").env("PKG_CONFIG_LIBDIR", &self.home);
        // With another home folder cargo and rustup must be told where they have their own files.
        for (name, below) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            if let (None, Some(home)) = (std::env::var_os(name), std::env::var_os("HOME")) {
                command.env(name, Path::new(&home).join(below));
            }
        }
        command.env("HOME", &self.home).envs(variable);
        command.output().expect("cargo starts")
    }
}

#[track_caller]
fn says(output: &Output, texts: &[&str]) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    for text in texts {
        assert!(stdout.contains(text), "no `{text}` in:\n{stdout}");
    }
}

#[track_caller]
fn complains(output: &Output, texts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it should have failed");
    for text in texts {
        assert!(stderr.contains(text), "no `{text}` in:\n{stderr}");
    }
}

/// One test, because the builds share a target folder and would wait for each other.
#[test]
fn three_truths() {
    if choice::left_out("examples/cpp-backend") {
        return;
    }
    let folder = made::folder();
    let root = folder.path();
    let example = Example { home: root.to_owned() };

    let system = ["/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64"].map(PathBuf::from);
    let system = Search::nowhere(Target::host()).with_system_folders(system).run();
    if system.is_empty() {
        says(
            &example.cargo(&["run"], None),
            &["there was none when this was built", "I2_S: no", "CUDA: no: can't call", "set BITNET_CPP_DIR"],
        );
        complains(
            &example.cargo(&["build", "--features", "cuda"], None),
            &["no C++ backend was found", "set BITNET_CPP_DIR"],
        );
    } else {
        println!("skipped 1 of 3: this system has a C++ backend of its own\n{system}");
    }

    let cpu = root.join("cpu");
    let bin = cpu.join("build/bin");
    made::shared(&bin, "libllama.so", made::CPU_LIBRARY, &["-Wl,-soname,libllama.so.0"]);
    std::os::unix::fs::symlink("libllama.so", bin.join("libllama.so.0")).expect("a link");
    says(
        &example.cargo(&["run"], Some(("BITNET_CPP_DIR", cpu.clone()))),
        &[
            "C++ backend: libllama.so\n",
            "kernel families: I2_S, TQ",
            "I2_S: yes",
            "system: CPU : made for a test",
            "CUDA: no: can't call `ggml_backend_cuda_get_device_count`: it is not in libllama.so",
        ],
    );
    complains(
        &example.cargo(&["build", "--features", "cuda"], Some(("BITNET_CPP_DIR", cpu))),
        &[
            "CUDA was asked for (by the feature `cuda`)",
            "`libllama.so` is a CPU-only library",
            "it refers to 2 CUDA names",
        ],
    );

    let cuda = root.join("cuda");
    made::shared(&cuda, "libggml-cuda.so", made::CUDA_LIBRARY, &[]);
    made::shared(&cuda, "libllama.so", made::CPU_LIBRARY, &[]);
    says(
        &example.cargo(&["run", "--features", "cuda"], Some(("BITNET_CROSSVAL_LIBDIR", cuda))),
        &["C++ backend: libllama.so, libggml-cuda.so", "CUDA: 2 devices", "bitnet.cpp's own functions: yes"],
    );

    // The same truth from an archive.
    let fixed = root.join("static");
    let object = made::object(&fixed, "whole", made::CPU_LIBRARY);
    made::archive(&fixed.join("lib"), "libllama.a", &[&object]);
    says(
        &example.cargo(&["run"], Some(("BITNET_CPP_PATH", fixed))),
        &["C++ backend: libllama.a", "system: CPU : made for a test"],
    );

    complains(
        &example.cargo(&["build"], Some(("BITNET_CPP_DIR", root.join("nothing")))),
        &["BITNET_CPP_DIR is set to", "build/bin", "not there", "unset it"],
    );
}
