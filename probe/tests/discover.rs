//! Where is looked, what is taken, why the rest is not, and what a build script says about it.
#![cfg(target_os = "linux")]

mod made;

use gristmill_probe::build::Backend;
use gristmill_probe::discover::{Candidate, DIR, Discovery, Found, LIBDIR, Linkage, Origin, PATH, Verdict};
use gristmill_probe::{Arch, Error, Family, Search, Target};
use std::path::{Path, PathBuf};

fn nowhere() -> Search {
    Search::nowhere(Target::host())
}

fn candidate<'a>(discovery: &'a Discovery, file: &Path) -> &'a Candidate {
    let found = discovery.candidates.iter().find(|candidate| candidate.path == file);
    found.unwrap_or_else(|| panic!("no {} in:\n{discovery}", file.display()))
}

#[track_caller]
fn refused(discovery: &Discovery, file: &Path, because: &str) {
    match &candidate(discovery, file).verdict {
        Verdict::Refused(why) => assert!(why.contains(because), "no `{because}` in: {why}"),
        Verdict::Taken(_) => panic!("{} was taken", file.display()),
    }
}

#[test]
fn every_place_and_every_candidate_is_reported() {
    let folder = made::folder();
    let root = folder.path().join("llama.cpp");
    let bin = root.join("build/bin");
    let taken = made::shared(&bin, "libllama.so", made::CPU_LIBRARY, &[]);
    let link = bin.join("libllama.so.0");
    std::os::unix::fs::symlink("libllama.so", &link).expect("a link");
    let broken = bin.join("libggml.so");
    std::fs::write(&broken, "not a library").expect("writable");
    let other = made::shared(&bin, "libggml-base.so", "void nothing_of_theirs(void) {}", &[]);
    let later = made::shared(&root.join("build/src"), "libllama.so", made::CPU_LIBRARY, &[]);
    let dangling = bin.join("libggml-cpu.so");
    std::os::unix::fs::symlink("nowhere", &dangling).expect("a link");

    let discovery = nowhere().with_variable(DIR, &root).run();
    assert_eq!(discovery.file_names(), ["libllama.so"]);
    assert!(matches!(candidate(&discovery, &taken).verdict, Verdict::Taken(_)));
    refused(&discovery, &link, "the same file");
    refused(&discovery, &broken, "it is text");
    refused(&discovery, &other, "defines no function");
    refused(&discovery, &later, "comes first");
    refused(&discovery, &dangling, "can't read");
    let place = |path: &Path| {
        discovery.places.iter().find(|place| place.path == path).map(|place| place.found.clone())
    };
    assert_eq!(place(&bin), Some(Found::Files(5)));
    assert_eq!(place(&root.join("lib")), Some(Found::Missing));
    assert_eq!(place(&root), Some(Found::Files(0)));
    let report = discovery.to_string();
    for text in
        ["build/bin (BITNET_CPP_DIR): 5 candidates", "libllama.so: taken", "a variable that is set is obeyed"]
    {
        assert!(report.contains(text), "no `{text}` in:\n{report}");
    }
}

#[test]
fn variables_come_in_order_and_are_obeyed() {
    let folder = made::folder();
    let at = |name: &str| folder.path().join(name);
    made::shared(&at("one/lib"), "libllama.so", made::CPU_LIBRARY, &[]);
    made::shared(&at("two/lib"), "libllama.so", made::CPU_LIBRARY, &[]);
    made::shared(&at("two/lib"), "libggml.so", made::CPU_LIBRARY, &[]);
    made::shared(&at("three"), "libbitnet.so", made::CUDA_LIBRARY, &[]);
    made::shared(&at("system"), "libllama.so", made::CPU_LIBRARY, &[]);
    let system = nowhere().with_system_folders([at("system")]);
    let folders = |search: &Search| -> Vec<PathBuf> {
        search
            .run()
            .libraries()
            .iter()
            .filter_map(|library| library.path.parent().map(Path::to_owned))
            .collect()
    };
    assert_eq!(folders(&system), [at("system")]);
    let search = system
        .clone()
        .with_variable(LIBDIR, at("three"))
        .with_variable(PATH, at("two"))
        .with_variable(DIR, at("one"));
    // libbitnet, libllama, libggml: each from the first variable that has it.
    assert_eq!(folders(&search), [at("three"), at("one/lib"), at("two/lib")]);
    assert!(search.run().has_bitnet() && search.run().has_cuda());
    // Empty is unset; set and wrong is an error, not a reason to look elsewhere.
    assert_eq!(folders(&system.clone().with_variable(DIR, "")), [at("system")]);
    let error = system.clone().with_variable(DIR, at("nothing")).require().expect_err("nothing there");
    assert!(matches!(error, Error::VariableWithoutLibrary { variable: DIR, .. }), "{error}");
    let error = nowhere().require().expect_err("nowhere to look").to_string();
    assert!(error.contains("set BITNET_CPP_DIR"), "{error}");
}

#[test]
fn the_home_folder_comes_before_the_system() {
    let folder = made::folder();
    let cache = folder.path().join(".cache/bitnet_cpp/build/bin");
    made::shared(&cache, "libllama.so", made::CPU_LIBRARY, &[]);
    let system = folder.path().join("system");
    made::shared(&system, "libllama.so", made::CPU_LIBRARY, &[]);
    let discovery = nowhere().with_home(folder.path()).with_system_folders([system.clone()]).run();
    assert_eq!(discovery.libraries()[0].origin, &Origin::Home);
    assert!(!discovery.places.iter().any(|place| place.path == system), "it was not needed");
}

#[test]
fn linkage_versions_and_targets() {
    let folder = made::folder();
    let at = folder.path();
    let object = made::object(at, "whole", made::CPU_LIBRARY);
    let fixed = made::archive(at, "libllama.a", &[&object]);
    let shared = made::shared(at, "libllama.so.1", made::CPU_LIBRARY, &[]);
    let newer = made::shared(at, "libllama.so.1.10", made::CPU_LIBRARY, &[]);
    let search = nowhere().with_variable(LIBDIR, at);
    let taken =
        |search: &Search| search.run().libraries().iter().map(|l| l.path.to_owned()).collect::<Vec<_>>();
    assert_eq!(taken(&search), [newer], "1.10 is newer than 1");
    refused(&search.run(), &shared, "comes first");
    assert_eq!(taken(&search.clone().only(Linkage::Static)), [fixed]);
    let arm = Target { arch: Arch::new("sparc64"), ..Target::host() };
    let discovery = Search::nowhere(arm).with_variable(LIBDIR, at).run();
    refused(&discovery, &shared, "not for sparc64");
    let mac = Target { os: "macos".to_owned(), ..Target::host() };
    let discovery = Search::nowhere(mac).with_variable(LIBDIR, at).run();
    refused(&discovery, &shared, "macos");
}

/// What a build script says, its flags, and the generated file.
fn emitted(backend: Backend) -> Result<(String, Vec<&'static str>, String), Error> {
    let out = made::folder();
    let mut lines = Vec::new();
    let emitted = backend.emit_into(out.path(), &mut lines)?;
    let file = std::fs::read_to_string(out.path().join("bitnet_cpp.rs")).expect("it was written");
    Ok((String::from_utf8(lines).expect("text"), emitted.flags, file))
}

#[test]
fn without_a_library_flags_are_announced_and_functions_are_stubs() {
    let (lines, flags, file) = emitted(Backend::new().search(nowhere())).expect("nothing was asked for");
    assert_eq!(flags, [""; 0]);
    for flag in
        ["bitnet_cpp_available", "bitnet_cpp_has_cuda", "bitnet_cpp_has_bitnet_lib", "bitnet_cpp_has_tl2"]
    {
        assert!(lines.contains(&format!("cargo::rustc-check-cfg=cfg({flag})\n")), "{lines}");
    }
    assert!(!lines.contains("rustc-cfg=") && !lines.contains("rustc-link"), "{lines}");
    for variable in [DIR, PATH, LIBDIR] {
        assert!(lines.contains(&format!("cargo::rerun-if-env-changed={variable}\n")), "{lines}");
    }
    assert!(!lines.contains("cargo::warning"), "nothing was there to warn of: {lines}");
    let folder = made::folder();
    std::fs::write(folder.path().join("libllama.so"), "not a library").expect("writable");
    let search = nowhere().with_system_folders([folder.path().to_owned()]);
    let (lines, ..) = emitted(Backend::new().search(search)).expect("nothing was asked for");
    assert!(lines.contains("cargo::warning=no C++ backend: ") && lines.contains("it is text"), "{lines}");
    assert!(file.contains("AVAILABLE: bool = false") && !file.contains("extern \"C\""), "{file}");
}

#[test]
fn link_lines_for_shared_libraries() {
    let folder = made::folder();
    let at = folder.path().join("lib");
    made::shared(&at, "libllama.so", made::CPU_LIBRARY, &[]);
    made::shared(&at, "libggml.so.0", made::CPU_LIBRARY, &[]);
    made::shared(&at, "libggml-cpu-haswell.so", made::CPU_LIBRARY, &[]);
    let search = nowhere().with_variable(DIR, folder.path());
    let (lines, flags, file) = emitted(Backend::new().search(search.clone())).expect("a library");
    assert_eq!(flags, ["bitnet_cpp_available", "bitnet_cpp_has_i2_s", "bitnet_cpp_has_tq"]);
    let at = at.canonicalize().expect("there");
    for line in [
        "rustc-cfg=bitnet_cpp_has_i2_s".to_owned(),
        format!("rustc-link-search=native={}", folder.path().join("lib").display()),
        "rustc-link-lib=dylib=llama".to_owned(),
        "rustc-link-lib=dylib:+verbatim=libggml.so.0".to_owned(),
        format!("rustc-link-arg=-Wl,-rpath,{}", at.display()),
        format!("rerun-if-changed={}", folder.path().display()),
    ] {
        assert!(lines.contains(&format!("cargo::{line}\n")), "no `{line}` in:\n{lines}");
    }
    assert!(!lines.contains("haswell\n"), "ggml loads its variants itself: {lines}");
    assert!(!lines.contains("stdc++"), "shared libraries bring their own: {lines}");
    assert!(
        file.contains("fn llama_print_system_info();") || file.contains("fn llama_print_system_info() ->"),
        "{file}"
    );
    let (lines, ..) = emitted(Backend::new().search(search).without_rpath()).expect("a library");
    assert!(!lines.contains("-rpath,"), "{lines}");
}

#[test]
fn archives_name_what_they_need_by_their_undefined_names() {
    let folder = made::folder();
    let with = |name: &str, code: &str| {
        let at = folder.path().join(name);
        let object = made::object(&at, "whole", &format!("{}\n{code}", made::CPU_LIBRARY));
        made::archive(&at, "libllama.a", &[&object]);
        emitted(Backend::new().search(nowhere().with_variable(LIBDIR, at))).expect("a library").0
    };
    let plain = with("plain", "");
    assert!(plain.contains("cargo::rustc-link-lib=static=llama\n"), "{plain}");
    assert!(
        !plain.contains("c++")
            && !plain.contains("omp")
            && !plain.contains("dylib=cu")
            && !plain.contains("rpath"),
        "{plain}"
    );
    let gnu =
        with("gnu", "extern int _ZNSt6vectorIiE3foo(void); int a(void) { return _ZNSt6vectorIiE3foo(); }");
    assert!(gnu.contains("cargo::rustc-link-lib=dylib=stdc++\n"), "{gnu}");
    let llvm = with(
        "llvm",
        "extern int _ZNSt3__16vectorIiE3foo(void); int a(void) { return _ZNSt3__16vectorIiE3foo(); }",
    );
    assert!(llvm.contains("cargo::rustc-link-lib=dylib=c++\n") && !llvm.contains("stdc++"), "{llvm}");
    let omp = with("omp", "extern void GOMP_parallel(void); void a(void) { GOMP_parallel(); }");
    assert!(omp.contains("cargo::rustc-link-lib=dylib=gomp\n"), "{omp}");
    // clang's library has `omp_*` too, and is enough.
    let kmpc = with(
        "kmpc",
        "extern void __kmpc_fork_call(void); extern int omp_get_num_threads(void);
         int a(void) { __kmpc_fork_call(); return omp_get_num_threads(); }",
    );
    assert!(kmpc.contains("dylib=omp\n") && !kmpc.contains("gomp"), "{kmpc}");
    let foreign = with(
        "foreign",
        "extern int cuFoo(void); extern int cuMemory(void); extern int omp_x(void);
         int a(void) { return cuFoo() + cuMemory() + omp_x(); }",
    );
    assert!(!foreign.contains("omp\n") && !foreign.contains("dylib=cu"), "{foreign}");
    let cuda = with(
        "cuda",
        "extern int cudaMalloc(void); extern int cublasCreate_v2(void); int ggml_cuda_x(void) { return cudaMalloc() + cublasCreate_v2(); }",
    );
    assert!(
        cuda.contains("dylib=cudart\n") && cuda.contains("dylib=cublas\n") && !cuda.contains("dylib=cuda\n"),
        "{cuda}"
    );
    assert!(cuda.contains("rustc-cfg=bitnet_cpp_has_cuda\n"), "{cuda}");
}

#[test]
fn names_of_files_reach_neither_terminal_nor_cargo_raw() {
    let folder = made::folder();
    // A file whose name has the form of ggml's libraries, in a folder that would add an instruction.
    let at = folder.path().join("here\ncargo::rustc-cfg=bitnet_cpp_has_cuda");
    made::shared(&at, "libllama.so", made::CPU_LIBRARY, &[]);
    let mut lines = Vec::new();
    let error = Backend::new()
        .search(nowhere().with_variable(LIBDIR, &at))
        .emit_into(folder.path(), &mut lines)
        .expect_err("it can't be told to cargo");
    assert!(matches!(error, Error::LineEnd { .. }), "{error}");
    assert!(error.to_string().contains("here\\ncargo::"), "{error}");
    assert!(!String::from_utf8_lossy(&lines).contains("has_cuda"), "{lines:?}");

    let at = folder.path().join("there");
    made::shared(&at, "libllama.so", made::CPU_LIBRARY, &[]);
    std::fs::write(at.join("libggml-\u{1b}[2J\u{9b}.so"), "no library").expect("writable");
    let discovery = nowhere().with_variable(LIBDIR, &at).run();
    let report = discovery.to_string();
    assert!(report.contains("libggml-\\u{1b}[2J\\u{9b}.so: "), "{report}");
    assert!(!report.chars().any(|c| c.is_control() && c != '\n'), "{report:?}");
    let nothing = folder.path().join("no\u{1b}where");
    let error = nowhere().with_variable(DIR, nothing).require().expect_err("nothing there").to_string();
    assert!(!error.contains('\u{1b}') && error.contains("no\\u{1b}where"), "{error}");
}

#[test]
fn only_so_many_files_of_a_folder_are_read() {
    let folder = made::folder();
    for index in 0..250 {
        std::fs::write(folder.path().join(format!("libggml-x{index:03}.so")), "no library")
            .expect("writable");
    }
    let discovery = nowhere().with_variable(LIBDIR, folder.path()).run();
    refused(&discovery, &folder.path().join("libggml-x000.so"), "it is text");
    refused(&discovery, &folder.path().join("libggml-x249.so"), "after 200 others");
    assert_eq!(discovery.candidates.len(), 250, "each is in the report");
}

#[test]
fn what_is_asked_for_is_enforced() {
    let folder = made::folder();
    let cpu = folder.path().join("cpu");
    made::shared(&cpu, "libllama.so", made::CPU_LIBRARY, &[]);
    let cuda = folder.path().join("cuda");
    made::shared(&cuda, "libggml-cuda.so", made::CUDA_LIBRARY, &[]);
    let with = |at: &Path| Backend::new().search(nowhere().with_variable(LIBDIR, at));

    let error = emitted(with(&cpu).cuda("by the feature `cuda`")).expect_err("it has none").to_string();
    for text in ["by the feature `cuda`", "`libllama.so` is a CPU-only library", "refers to 2 CUDA names"] {
        assert!(error.contains(text), "no `{text}` in: {error}");
    }
    assert!(emitted(with(&cuda).cuda("by a test")).is_ok());
    assert!(emitted(with(&cpu).without_cuda("by a test")).is_ok());
    let error = emitted(with(&cuda).without_cuda("by a test")).expect_err("it has CUDA").to_string();
    for text in ["by a test", "libggml-cuda.so", "bitlinear_int8xint2"] {
        assert!(error.contains(text), "no `{text}` in: {error}");
    }
    assert!(emitted(with(&cpu).family(Family::I2S)).is_ok());
    let error = emitted(with(&cpu).family(Family::Iq2S)).expect_err("I2_S is not IQ2_S").to_string();
    assert!(error.contains("IQ2_S") && error.contains("ggml_vec_dot_iq2_s_"), "{error}");
    assert!(matches!(emitted(Backend::new().search(nowhere()).required()), Err(Error::NoLibrary { .. })));
    assert!(matches!(emitted(Backend::new().search(nowhere()).cuda("a test")), Err(Error::NoLibrary { .. })));
    // Cargo looks again after an error too.
    let mut lines = Vec::new();
    let result = with(&cpu).cuda("a test").emit_into(folder.path(), &mut lines);
    assert!(result.is_err() && String::from_utf8_lossy(&lines).contains("rerun-if-changed="));
}
