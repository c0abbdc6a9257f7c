//! The command links nothing of CUDA: no function of it is in its symbol tables, and no library of it is needed.
#![cfg(all(feature = "cli", unix))]

use gristmill_probe::Group;
use gristmill_probe::analyze;
use gristmill_probe::symbols::is_c_name;
use std::path::Path;
use std::process::Command;

/// Everything of CUDA that a program has or needs.
fn cuda_in(program: &Path) -> Vec<String> {
    let analysis = analyze(program).expect("a program");
    let is_cuda = |name: &&str| is_c_name(name) && (Group::Cuda.has(name) || Group::CudaRuntime.has(name));
    let mut found = Vec::new();
    for image in &analysis.images {
        found.extend(image.defined_names().filter(is_cuda).map(str::to_owned));
        found.extend(image.undefined_names().filter(is_cuda).map(str::to_owned));
        let libraries = image.needed.iter().map(|needed| needed.name.clone());
        found.extend(libraries.filter(|name| name.contains("cuda") || name.contains("cublas")));
    }
    found
}

#[test]
fn the_command_has_nothing_of_cuda() {
    let program = Path::new(env!("CARGO_BIN_EXE_gristmill"));
    assert!(analyze(program).expect("a program").images[0].defines("main"), "its symbols can be read");
    assert_eq!(cuda_in(program), [""; 0]);
}

/// The control: a program with one function of CUDA's, hidden from other programs as in static linking, is found
/// out.
#[test]
fn a_program_with_cuda_is_found_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("main.c");
    let code = "__attribute__((noinline, visibility(\"hidden\"))) int cudaMalloc(int x) { return x * 3; }
                static __attribute__((noinline, used)) int ggml_cuda_x(int x) { return x * 5; }
                int main(int count, char **words) { return cudaMalloc(count) + ggml_cuda_x(count); }";
    std::fs::write(&source, code).expect("writable");
    let program = folder.path().join("program");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler).arg("-o").arg(&program).arg(&source).status();
    assert!(status.expect("there is a C compiler").success());
    assert_eq!(cuda_in(&program), ["cudaMalloc", "ggml_cuda_x"]);
}
