//! The C interface as C and C++ programs use it: installed under a prefix, compiled against the header, linked with the shared
//! and with the static library. What they compute is compared with the library's own results, bit for bit.

use gristmill::gguf::{LayerOptions, Model};
use gristmill::{
    Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict, Threads,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

/// Whether a program is there; says so where it is not, and `GRISTMILL_NO_SKIP=1` makes that a failure.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: no {program}");
        assert!(std::env::var("GRISTMILL_NO_SKIP").as_deref() != Ok("1"), "no {program}");
    }
    found
}

/// Arguments with which cargo builds as this test was built.
fn as_this_build(cargo: &mut Command) -> &mut Command {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let features: Vec<&str> = [
        ("bitnet", cfg!(feature = "bitnet")),
        ("ggml", cfg!(feature = "ggml")),
        ("iq", cfg!(feature = "iq")),
        ("import", cfg!(feature = "import")),
        ("cuda", cfg!(feature = "cuda")),
    ]
    .iter()
    .filter_map(|(name, on)| on.then_some(*name))
    .collect();
    cargo.arg("--target-dir").arg(target).args(["--no-default-features", "--features", &features.join(",")]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    cargo
}

/// The library of this build, as `install` installs it.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
        run(as_this_build(Command::new(Path::new(PACKAGE).join("install")).arg(&prefix)));
        prefix
    })
}

/// What pkg-config says of the installed library.
fn pkg_config(what: &[&str]) -> Vec<String> {
    let folder = prefix().join("lib/pkgconfig");
    let said = run(Command::new("pkg-config").args(what).arg("gristmill").env("PKG_CONFIG_PATH", folder));
    String::from_utf8_lossy(&said.stdout).split_whitespace().map(str::to_owned).collect()
}

/// Compiles `source` and gives the program, linked with the shared or with the static library.
fn compile(compiler: &str, source: &str, shared: bool, flags: &[&str]) -> PathBuf {
    let source = Path::new(PACKAGE).join(source);
    let stem = source.file_stem().expect("a name").to_string_lossy();
    let name = format!("{stem}-{}-{}", if shared { "shared" } else { "static" }, flags.len());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).args(flags).arg(&source);
    command.args(pkg_config(&["--cflags"]));
    if shared {
        command.args(pkg_config(&["--libs"]));
    } else {
        command.arg(prefix().join("lib/libgristmill.a"));
        let private = pkg_config(&["--libs", "--static"]);
        command.args(private.iter().filter(|flag| *flag != "-lgristmill"));
    }
    run(&mut command);
    program
}

fn output(program: &Path, arguments: &[&str]) -> Output {
    run(Command::new(program).args(arguments).env("LD_LIBRARY_PATH", prefix().join("lib")))
}

/// The bits of the values that a program printed, one in each line.
fn printed(output: &Output) -> Vec<u32> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.parse::<f32>().expect("a number").to_bits()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn the_header_is_what_cbindgen_makes() {
    let config = cbindgen::Config::from_file(Path::new(PACKAGE).join("cbindgen.toml")).expect("its settings");
    let bindings =
        cbindgen::Builder::new().with_crate(PACKAGE).with_config(config).generate().expect("a header");
    let mut fresh = Vec::new();
    bindings.write(&mut fresh);
    let fresh = String::from_utf8(fresh).expect("text");
    let path = Path::new(PACKAGE).join("include/gristmill.h");
    if std::env::var("BLESS").as_deref() == Ok("1") {
        std::fs::write(&path, &fresh).expect("the header is written");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(header == fresh, "include/gristmill.h is not of these sources: BLESS=1 cargo test");
}

#[test]
fn a_c_program_gets_the_bits_of_the_library() -> Result<(), gristmill::Error> {
    if !(has("gcc") && has("pkg-config")) {
        return Ok(());
    }
    // The same as in examples/linear.c.
    let (n, k) = (16, 256);
    let w: Vec<f32> = (0..n * k).map(|i| (i * 7 % 3) as f32 / 2.0 - 0.5).collect();
    let x: Vec<f32> = (0..k).map(|i| (i % 11) as f32 - 5.0).collect();
    let format = REGISTRY.format("i2_s")?.1;
    let mut blocks = vec![0; format.tensor_bytes(n, k)?];
    let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, n, k))?;
    Quantizer::new(&prepared.decide_as_asked())?.run(&w, n, k, &mut blocks)?;
    let threads = Threads::single();
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    let matrix = QuantizedMatrix::new(format, n, k, &blocks)?;
    let layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
    let mut y = vec![0.0; n];
    layer.forward(Input::F32(&x), 1, None, &mut y, &mut layer.workspace(1, &threads)?, &threads)?;
    assert!(y.iter().any(|y| *y != 0.0));

    for shared in [true, false] {
        let program = compile("gcc", "examples/linear.c", shared, &["-std=c99"]);
        assert_eq!(printed(&output(&program, &[])), bits(&y), "shared: {shared}");
    }
    Ok(())
}

/// Programs ask for the library by the version of its ABI.
#[cfg(target_os = "linux")]
#[test]
fn the_shared_library_is_named_after_its_abi() {
    if !has("cc") || !has("pkg-config") {
        return;
    }
    let header = std::fs::read_to_string(prefix().join("include/gristmill.h")).expect("installed");
    let (_, version) = header.split_once("#define GM_ABI_VERSION ").expect("the header states it");
    let name = format!("libgristmill.so.{}", version.lines().next().expect("a line").trim());
    let link = std::fs::read_link(prefix().join("lib/libgristmill.so")).expect("a link");
    assert_eq!(link, Path::new(&name));
    let program = std::fs::read(compile("cc", "examples/linear.c", true, &["-DNAMED"])).expect("compiled");
    let wanted = [name.as_bytes(), &[0]].concat();
    assert!(
        program.windows(wanted.len()).any(|bytes| bytes == wanted),
        "the program does not ask for {name}"
    );
}

#[test]
fn the_pkg_config_file_states_the_version_and_serves_wherever_the_prefix_is_moved_to() {
    if !has("pkg-config") {
        return;
    }
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let file = std::fs::read_to_string(prefix().join("lib/pkgconfig/gristmill.pc")).expect("installed");
    assert!(!file.contains(&*prefix().to_string_lossy()), "{file}");
}

/// The program that measures calls: that both ways give the same bits, and that it prints its figures. What these are says nothing here.
#[test]
fn calls_of_both_languages_are_measured() {
    // Cargo builds no example for a test that is named.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--message-format=json-render-diagnostics", "--example", "overhead"]);
    let said = run(as_this_build(cargo.current_dir(PACKAGE)));
    let program = String::from_utf8_lossy(&said.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo says where the program is");
    let library = prefix().join("lib").join(format!("libgristmill{}", std::env::consts::DLL_SUFFIX));
    let said = run(Command::new(program).args(["--turns", "3"]).arg(library));
    let said = String::from_utf8_lossy(&said.stdout);
    for line in
        ["one token of a layer", "Rust library ", "C interface ", "C beyond Rust ", "C call without tokens "]
    {
        assert!(said.lines().any(|said| said.starts_with(line)), "no line `{line}`: {said}");
    }
}

#[test]
fn a_cpp_program_reads_a_gguf_file() -> Result<(), Box<dyn std::error::Error>> {
    if !(has("g++") && has("pkg-config")) {
        return Ok(());
    }
    let (path, tensor) = (format!("{PACKAGE}/../../tests/data/gguf/i2_s.gguf"), "blk.0.attn_q.weight");
    let threads = Threads::single();
    let layer = Model::open(&path)?.linear(tensor, &LayerOptions::new(&threads))?;
    let mut y = vec![0.0; layer.n()];
    let x = vec![1.0; layer.k()];
    layer.forward(Input::F32(&x), 1, None, &mut y, &mut layer.workspace(1, &threads)?, &threads)?;
    assert!(y.iter().any(|y| *y != 0.0));

    for shared in [true, false] {
        let program = compile("g++", "examples/model.cpp", shared, &["-std=c++17"]);
        let output = output(&program, &[&path, tensor]);
        assert_eq!(printed(&output), bits(&y), "shared: {shared}");
        let receipt: serde_json::Value = serde_json::from_slice(&output.stderr)?;
        assert!(receipt["kernels"][0]["launches"].as_u64() > Some(0), "{receipt}");
    }
    // An exception that carries the library's message, with what may have been meant.
    let program = compile("g++", "examples/model.cpp", false, &["-std=c++17"]);
    let refused = Command::new(program).args([&path, "blk.0.attn_p.weight"]).output()?;
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("blk.0.attn_q.weight"), "{refused:?}");
    Ok(())
}

#[test]
fn bad_input_gets_a_status_and_no_sanitizer_complains() {
    if !(has("gcc") && has("pkg-config")) {
        return;
    }
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-pthread"];
    let program = compile("gcc", "tests/errors.c", false, &sanitizers);
    let said = output(&program, &[]);
    // Each call that the source makes, and not fewer: the program ran to its end.
    let calls =
        include_str!("errors.c").matches("EXPECT(").count() - "#define EXPECT(".matches("EXPECT(").count();
    assert_eq!(String::from_utf8_lossy(&said.stdout), format!("{calls} calls\n"));
}

#[test]
fn a_process_may_end_and_fork_while_threads_compute() {
    if !(has("gcc") && has("pkg-config")) {
        return;
    }
    let file = format!("{PACKAGE}/../../tests/data/gguf/i2_s.gguf");
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-pthread"];
    for (flags, turns) in [(&sanitizers[..], 3), (&sanitizers[3..], 20)] {
        let program = compile("gcc", "tests/exit.c", false, flags);
        for way in ["return", "exit", "fork"] {
            for _ in 0..turns {
                assert_eq!(output(&program, &[&file, way]).stdout, b"ends\n", "{way}");
            }
        }
    }
}
