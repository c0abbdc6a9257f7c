//! C++ backends in the command: `analyze-library`, `list`, `explain`. Libraries are made with the C compiler.
#![cfg(all(feature = "cli", feature = "bitnet", target_os = "linux"))]

use crate::common::{command, finished, gristmill, text, words};
use crate::made;
use gristmill_probe::discover::{DIR, LIBDIR, VARIABLES};
use gristmill_records::library::{Library, Symbol};
use std::path::Path;

#[test]
fn a_library_is_described() {
    let folder = made::folder();
    let library = made::shared(
        folder.path(),
        "libllama.so",
        made::CPU_LIBRARY,
        &["-Wl,-soname,libllama.so.3", "-Wl,-rpath,$ORIGIN"],
    );
    gristmill(["analyze-library", text(&library)])
        .code(0)
        .says("a shared library")
        .says("libllama.so.3 (ABI version 3)")
        .says("looks in  $ORIGIN")
        .says("ggml_vec_dot_i2_i8_s")
        .says("CUDA backend: no; it refers to 2 names");
    let said: Library = gristmill(["analyze-library", text(&library), "--json"]).code(0).record();
    assert_eq!(said.needs, None, "not asked for");
    let image = &said.images[0];
    assert_eq!((image.soname_version, image.cuda.backend), (Some(3), false));
    let families: Vec<&str> = image.families.iter().map(|family| family.family.as_str()).collect();
    assert_eq!(families, ["I2_S", "I2_S", "TQ"], "products and conversion of one, products of the other");
    let names =
        |symbols: &[Symbol]| -> Vec<String> { symbols.iter().map(|symbol| symbol.name.clone()).collect() };
    assert_eq!(names(&image.defined), made::nm(&["-D", "--defined-only"], &library));
    assert_eq!(names(&image.undefined), made::nm(&["-D", "--undefined-only"], &library));

    let cuda = made::shared(folder.path(), "libggml-cuda.so", made::CUDA_LIBRARY, &[]);
    gristmill(["analyze-library", text(&cuda)])
        .code(0)
        .says("CUDA backend: yes, it defines")
        .says("no section with code for GPUs was found");
}

#[test]
fn names_are_escaped() {
    let folder = made::folder();
    let hostile = folder.path().join("lib\u{1b}[2Jred.so");
    let arguments = ["-Wl,-soname,lib\u{1b}]0;title\u{7}\u{9b}x.so", "-Wl,-rpath,/tmp/\u{1b}[31m"];
    let made = made::shared(folder.path(), "libmade.so", "void llama_b(void) {}", &arguments);
    std::fs::rename(made, &hostile).expect("writable");
    let ran = gristmill(["analyze-library", text(&hostile), "--needs"]).code(0);
    assert!(!ran.stdout.chars().any(|c| c.is_control() && c != '\n'), "{:?}", ran.stdout);
    ran.says("lib\\u{1b}[2Jred.so: a shared library")
        .says("lib\\u{1b}]0;title\\u{7}\\u{9b}x.so")
        .says("/tmp/\\u{1b}[31m");
    let ran = gristmill(["analyze-library", "no/such/\u{1b}[2Jfile.so"]).code(1);
    assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
}

#[test]
fn needed_libraries_are_followed_and_nothing_is_loaded() {
    let folder = made::folder();
    let at = folder.path();
    let trace = at.join("it-ran");
    let code = format!(
        "#include <stdio.h>
         __attribute__((constructor)) static void begin(void) {{ fclose(fopen(\"{}\", \"w\")); }}
         int ggml_base(void) {{ return 1; }}",
        trace.display()
    );
    let needed = made::shared(at, "libggml-base.so", &code, &["-Wl,-soname,libggml-base.so"]);
    let here = format!("-L{}", at.display());
    let code = "extern int ggml_base(void); int llama_x(void) { return ggml_base(); }";
    let library = made::shared(at, "libllama.so", code, &[&here, "-Wl,-rpath,$ORIGIN", "-lggml-base"]);
    gristmill(["analyze-library", text(&library), "--needs"])
        .code(0)
        .says("needed library")
        .says(text(&needed))
        .says("libc.so.6")
        .says("(the system's)");
    let said: Library = gristmill(["analyze-library", text(&library), "--needs", "--json"]).code(0).record();
    let followed = said.needs.expect("asked for").followed;
    assert!(followed.iter().any(|of| of.needed == "libggml-base.so" && !of.of_system), "{followed:?}");
    assert!(!trace.exists(), "something ran");
    std::fs::remove_file(&needed).expect("there");
    gristmill(["analyze-library", text(&library), "--needs"])
        .code(0)
        .says("not followed: it is in no folder that is known before loading");
}

#[test]
fn what_is_no_library_is_an_error() {
    gristmill(["analyze-library", "Cargo.toml"]).code(1).complains("not a library").complains("help:");
    gristmill(["analyze-library", "no/such/file.so"]).code(1).complains("can't read");
    gristmill(["analyze-library", env!("CARGO_BIN_EXE_gristmill")]).code(1).complains("a program");
    gristmill(["analyze-library"]).code(1);
}

#[test]
fn backends_are_listed_with_their_own_device_and_never_chosen() {
    let folder = made::folder();
    made::shared(folder.path(), "libllama.so", made::CPU_LIBRARY, &[]);
    let with = |line: &str, variable: &str, path: &Path| {
        let mut command = command();
        for name in VARIABLES {
            command.env_remove(name);
        }
        finished(command.args(words(line)).env(variable, path).output())
    };
    let here = |line: &str| with(line, LIBDIR, folder.path());
    here("list").code(0).says("not gristmill's kernels").says("libllama.so (ggml_vec_dot_i2_i8_s)");
    let json = here("list --json").code(0).json();
    let backends = json["external_backends"].as_array().expect("a list");
    let usable: Vec<(&str, &str, bool)> = backends
        .iter()
        .filter_map(|b| Some((b["backend"].as_str()?, b["device"].as_str()?, b["usable"].as_bool()?)))
        .collect();
    assert_eq!(
        usable,
        [
            ("bitnet.cpp", "cuda", false),
            ("llama.cpp", "cuda", false),
            ("bitnet.cpp", "cpu", true),
            ("llama.cpp", "cpu", true)
        ]
    );
    let kernels = json["kernels"].as_array().expect("a list");
    assert!(kernels.iter().all(|kernel| !kernel["name"].as_str().unwrap_or("").contains("cpp")));

    let ran = here("explain matmul --format i2_s --shape 1x2560x2560").code(0);
    ran.says("chosen: matmul.i2_s.").says("bitnet.cpp on cpu: there: libllama.so (ggml_vec_dot_i2_i8_s)");
    // A C++ backend does not turn a no into a yes.
    let json = here("explain matmul --format i2_s --device cuda:0 --json").code(2).json();
    assert!(json["chosen"].is_null());
    let cuda: Vec<bool> = json["external_backends"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|backend| backend["device"] == "cuda")
        .filter_map(|backend| backend["usable"].as_bool())
        .collect();
    assert_eq!(cuda, [false, false]);
    made::shared(folder.path(), "libggml-cuda.so", made::CUDA_LIBRARY, &[]);
    here("explain matmul --format i2_s --device cuda:0")
        .code(2)
        .says("bitnet.cpp on cuda: there: libggml-cuda.so (bitlinear_int8xint2)");
    // A variable that points nowhere is said, not passed over.
    with("list", DIR, &folder.path().join("nothing"))
        .code(0)
        .says("no library is where BITNET_CPP_DIR points");
}
