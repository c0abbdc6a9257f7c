//! Libraries made on the spot with the system's C compiler.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for made files; removed when dropped.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Runs a program and demands that it succeeds.
#[track_caller]
pub fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The C compiler: `CC`, or `cc`.
pub fn cc() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Writes C into a folder and returns the file.
pub fn source(folder: &Path, name: &str, code: &str) -> PathBuf {
    let file = folder.join(name).with_extension("c");
    std::fs::write(&file, code).expect("the folder is writable");
    file
}

/// A shared library from C, with further arguments for the compiler.
#[track_caller]
pub fn shared(folder: &Path, name: &str, code: &str, arguments: &[&str]) -> PathBuf {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let file = folder.join(name);
    ran(cc()
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&file)
        .arg(source(folder, name, code))
        .args(arguments));
    file
}

/// An object file from C.
#[track_caller]
pub fn object(folder: &Path, name: &str, code: &str) -> PathBuf {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let file = folder.join(name).with_extension("o");
    ran(cc().args(["-c", "-fPIC", "-O1", "-o"]).arg(&file).arg(source(folder, name, code)));
    file
}

/// An archive of objects.
#[track_caller]
pub fn archive(folder: &Path, name: &str, objects: &[&Path]) -> PathBuf {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let file = folder.join(name);
    ran(Command::new("ar").arg("rcs").arg(&file).args(objects));
    file
}

/// Names that `nm` prints with these arguments, without versions, in order, each once.
#[track_caller]
pub fn nm(arguments: &[&str], file: &Path) -> Vec<String> {
    let text = ran(Command::new("nm").args(["-P", "-g"]).args(arguments).arg(file));
    let mut names: Vec<String> = text
        .lines()
        // Archives have a line with the name of each member.
        .filter(|line| !line.ends_with(':') && !line.is_empty())
        .filter_map(|line| line.split([' ', '@']).next())
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What a CPU-only bitnet.cpp offers, as far as it matters here; it refers to CUDA without having it.
pub const CPU_LIBRARY: &str = r#"
    #include <stddef.h>
    #include <stdint.h>
    void ggml_cpu_init(void) {}
    const char * ggml_version(void) { return "made for a test"; }
    const char * llama_print_system_info(void) { return "CPU : made for a test"; }
    size_t quantize_i2_s(const float *s, void *d, int64_t r, int64_t n, const float *w) { return 0; }
    void ggml_vec_dot_i2_i8_s(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int c) { *s = (float) n; }
    void ggml_vec_dot_tq2_0_q8_K(int n, float *s, size_t bs, const void *x, size_t bx, const void *y, size_t by, int c) { *s = 0; }
    __attribute__((weak)) extern int ggml_backend_cuda_get_device_count(void);
    __attribute__((weak)) extern int ggml_backend_cuda_reg(void);
    int ggml_backend_load_all(void) {
        return ggml_backend_cuda_get_device_count && ggml_backend_cuda_reg ? ggml_backend_cuda_reg() : 0;
    }
"#;

/// The names of a CUDA backend, without CUDA.
pub const CUDA_LIBRARY: &str = r#"
    int ggml_backend_cuda_reg(void) { return 1; }
    int ggml_backend_cuda_get_device_count(void) { return 2; }
    void * ggml_backend_cuda_init(int device) { return (void *) 0; }
    int bitlinear_int8xint2(void) { return 0; }
"#;
