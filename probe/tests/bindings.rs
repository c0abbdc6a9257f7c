//! Bindings by bindgen, and the functions that need none. Runs with the feature `bindgen`, where libclang is.
#![cfg(all(feature = "bindgen", target_os = "linux"))]

mod made;

use gristmill_probe::build::Backend;
use gristmill_probe::discover::DIR;
use gristmill_probe::{Error, Search, Target};

#[test]
fn headers_beside_the_library_become_bindings() {
    let folder = made::folder();
    let at = folder.path();
    made::shared(&at.join("build/bin"), "libllama.so", made::CPU_LIBRARY, &[]);
    let search = Search::nowhere(Target::host()).with_variable(DIR, at);
    let backend = Backend::new().search(search).bindings();
    let error = backend.emit_into(at, &mut Vec::new()).expect_err("there are no headers");
    assert!(matches!(error, Error::NoHeaders { .. }), "{error}");
    assert!(error.to_string().contains("include"), "{error}");

    std::fs::create_dir_all(at.join("include")).expect("writable");
    std::fs::create_dir_all(at.join("ggml/include")).expect("writable");
    let llama = "#include \"ggml.h\"\nstruct llama_thing { int n; };\nint llama_use(struct llama_thing *thing, enum ggml_type type);\n";
    std::fs::write(at.join("include/llama.h"), llama).expect("writable");
    std::fs::write(
        at.join("ggml/include/ggml.h"),
        "#pragma once\nenum ggml_type { GGML_TYPE_F32 = 0, GGML_TYPE_I2_S = 36 };\nvoid other_function(void);\n",
    )
    .expect("writable");
    backend.emit_into(at, &mut Vec::new()).expect("headers are there");
    let file = std::fs::read_to_string(at.join("bitnet_cpp.rs")).expect("it was written");
    for text in [
        "pub mod bindings",
        "fn llama_use",
        "pub struct llama_thing",
        "GGML_TYPE_I2_S",
        "pub unsafe fn ggml_version",
    ] {
        assert!(file.contains(text), "no `{text}` in:\n{file}");
    }
    assert!(!file.contains("other_function"), "only the projects' own names");

    // It compiles.
    let source = at.join("main.rs");
    std::fs::write(
        &source,
        "mod b { include!(\"bitnet_cpp.rs\"); }\nfn main() { let _ = b::bindings::llama_thing { n: 1 }; }\n",
    )
    .expect("writable");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    made::ran(
        std::process::Command::new(rustc)
            .args(["--edition", "2024", "--emit", "metadata", "-D", "warnings", "-o"])
            .arg(at.join("main.rmeta"))
            .arg(&source),
    );

    std::fs::write(at.join("include/llama.h"), "this is no C;").expect("writable");
    let error = backend.emit_into(at, &mut Vec::new()).expect_err("no C");
    assert!(matches!(error, Error::Bindings { .. }), "{error}");
}
