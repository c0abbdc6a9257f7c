//! What is read from libraries, compared with `nm` and with what was put into them.
#![cfg(unix)]

mod made;

use gristmill_probe::analyze::{Facts, Image};
use gristmill_probe::families::Job;
use gristmill_probe::{Analysis, Arch, Container, Device, Error, Family, Group, Kind, analyze};
use std::path::Path;
use std::process::Command;

fn only(analysis: &Analysis) -> &Image {
    assert_eq!(analysis.images.len(), 1);
    &analysis.images[0]
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

#[test]
fn shared_library_as_nm_sees_it() {
    let folder = made::folder();
    let library = made::shared(
        folder.path(),
        "libllama.so",
        made::CPU_LIBRARY,
        &["-Wl,-soname,libllama.so.3", "-Wl,-rpath,$ORIGIN/deps", "-lm", "-Wl,--no-as-needed"],
    );
    let analysis = analyze(&library).expect("it is a library");
    assert_eq!(analysis.kind, Kind::Shared);
    let image = only(&analysis);
    assert_eq!(image.container, Container::Elf);
    assert_eq!(image.arch, Arch::host());
    assert_eq!(image.soname.as_deref(), Some("libllama.so.3"));
    assert_eq!(image.soname_version(), Some(3));
    assert_eq!(image.search_paths, ["$ORIGIN/deps"]);
    assert!(image.needed.iter().any(|needed| needed.name.starts_with("libc.so")), "{:?}", image.needed);
    assert_eq!(names(image.defined_names()), made::nm(&["-D", "--defined-only"], &library));
    assert_eq!(names(image.undefined_names()), made::nm(&["-D", "--undefined-only"], &library));
    assert!(image.defines("quantize_i2_s") && !image.defines("quantize_iq2_s"));
}

#[test]
fn families_by_their_own_names_and_cuda_by_definitions() {
    let folder = made::folder();
    let cpu = analyze(made::shared(folder.path(), "libggml.so", made::CPU_LIBRARY, &[])).expect("a library");
    let facts = Facts::of(only(&cpu), &cpu.path);
    assert!(facts.computes(Family::I2S, Device::Cpu) && facts.computes(Family::Tq, Device::Cpu));
    assert!(!facts.has(Family::Iq2S), "I2_S does not imply IQ2_S");
    assert!(!facts.has(Family::Tl1) && !facts.has(Family::Tl2));
    assert!(!facts.computes(Family::I2S, Device::Cuda));
    assert!(!facts.has_cuda(), "undefined names are not CUDA support");
    let cuda = facts.groups.iter().find(|(group, ..)| *group == Group::Cuda);
    assert_eq!(cuda, Some(&(Group::Cuda, 0, 2)));
    let i2_s: Vec<&[String]> = facts
        .families
        .iter()
        .filter(|e| e.family == Family::I2S && e.job == Job::Product)
        .map(|e| &e.symbols[..])
        .collect();
    assert_eq!(i2_s, [["ggml_vec_dot_i2_i8_s".to_owned()]]);

    let cuda =
        analyze(made::shared(folder.path(), "libggml-cuda.so", made::CUDA_LIBRARY, &[])).expect("a library");
    let facts = Facts::of(only(&cuda), &cuda.path);
    assert!(facts.has_cuda());
    assert!(facts.computes(Family::I2S, Device::Cuda) && !facts.computes(Family::I2S, Device::Cpu));
    assert!(!only(&cuda).gpu_code);
}

#[test]
fn archives_are_resolved_within_themselves() {
    let folder = made::folder();
    let cpu = made::object(folder.path(), "cpu", made::CPU_LIBRARY);
    let rest = made::object(
        folder.path(),
        "rest",
        "extern void ggml_cpu_init(void); void llama_backend_init(void) { ggml_cpu_init(); }",
    );
    let archive = made::archive(folder.path(), "libllama.a", &[&cpu, &rest]);
    let analysis = analyze(&archive).expect("an archive");
    assert_eq!(analysis.kind, Kind::Static);
    let image = only(&analysis);
    assert_eq!(image.members, 2);
    assert_eq!(names(image.defined_names()), made::nm(&["--defined-only"], &archive));
    // `nm` goes member by member; what another member defines is not undefined here.
    let mut undefined = made::nm(&["--undefined-only"], &archive);
    undefined.retain(|name| !image.defines(name));
    assert_eq!(names(image.undefined_names()), undefined);
    assert!(!image.undefined_names().any(|name| name == "ggml_cpu_init"));
    let facts = Facts::of(image, &analysis.path);
    assert!(!facts.has_cuda());

    // With a CUDA object the same names are defined.
    let cuda = made::object(folder.path(), "cuda", made::CUDA_LIBRARY);
    let both = analyze(made::archive(folder.path(), "libboth.a", &[&cpu, &rest, &cuda])).expect("an archive");
    let facts = Facts::of(only(&both), &both.path);
    assert!(facts.has_cuda());
    assert!(facts.groups.iter().any(|(group, _, undefined)| *group == Group::Cuda && *undefined == 0));

    let thin = folder.path().join("libthin.a");
    made::ran(Command::new("ar").args(["rcsT"]).arg(&thin).arg(&cpu));
    let error = analyze(&thin).expect_err("members are elsewhere").to_string();
    assert!(error.contains("thin archive"), "{error}");
    let empty = made::archive(folder.path(), "libempty.a", &[]);
    let error = analyze(&empty).expect_err("nothing inside").to_string();
    assert!(error.contains("archive without"), "{error}");
}

#[test]
fn versions_are_kept_apart() {
    let folder = made::folder();
    let script = folder.path().join("versions");
    std::fs::write(
        &script,
        "LLAMA_1 { global: llama_one; local: *; }; LLAMA_2 { global: llama_two; } LLAMA_1;",
    )
    .expect("the folder is writable");
    let script = format!("-Wl,--version-script={}", script.display());
    let code = "void llama_one(void) {} void llama_two(void) {} void llama_hidden(void) {}
                const unsigned bitnet_abi_version = 7; unsigned ggml_func_abi_version(void) { return 9; }";
    let library = made::shared(folder.path(), "libllama.so", code, &[&script]);
    let analysis = analyze(&library).expect("a library");
    let image = only(&analysis);
    assert_eq!(image.defined_versions, ["LLAMA_1", "LLAMA_2"]);
    let of = |name: &str| image.defined.iter().find(|s| s.name == name).and_then(|s| s.version.clone());
    assert_eq!(of("llama_one").as_deref(), Some("LLAMA_1"));
    assert_eq!(of("llama_two").as_deref(), Some("LLAMA_2"));
    assert_eq!(names(image.defined_names()), ["llama_one", "llama_two"]);
    assert_eq!(image.abi_constants, []);

    let library = made::shared(folder.path(), "libbitnet.so", code, &[]);
    let analysis = analyze(&library).expect("a library");
    assert_eq!(
        only(&analysis).abi_constants,
        [("bitnet_abi_version".to_owned(), 7)],
        "a function is no constant"
    );
}

#[test]
fn cpu_variants_from_names() {
    let folder = made::folder();
    let code = "void ggml_gemm_q4_0_avx512(void) {} int ggml_cpu_has_neon(void) { return 0; } void ggml_cpu_init(void) {}";
    let analysis =
        analyze(made::shared(folder.path(), "libggml-cpu-haswell.so", code, &[])).expect("a library");
    let facts = Facts::of(only(&analysis), &analysis.path);
    let variants: Vec<&str> = facts.cpu_variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(variants, ["avx512", "haswell"]);
}

#[test]
fn processors_are_not_concluded_from_other_projects_names() {
    let folder = made::folder();
    // What a library of ggml has besides its own: libm's, a C library's, and two crates' of Rust.
    let foreign = "
        double fma(double a, double b, double c) { return a * b + c; }
        float fmaf(float a, float b, float c) { return a * b + c; }
        void blake3_hash_many_avx2(void) {}
        void _ZN6memchr4arch6x86_644avx26memchr17h0123456789abcdefE(void) {}
        void _RNvNtCs1_6memchr6vector_avx2(void) {}
        void quantize_colors(void) {} void tbl_impl_init(void) {} void qgemm_lut_free(void) {}
        const unsigned zlib_abi_version = 1;
        void ggml_vec_dot_q4_0_q8_0(void) {}
        int ggml_cpu_has_avx2(void) { return 1; }";
    let of = |name: &str, code: &str| {
        let analysis = analyze(made::shared(folder.path(), name, code, &[])).expect("a library");
        let facts = Facts::of(only(&analysis), &analysis.path);
        let variants: Vec<String> = facts.cpu_variants.iter().map(|variant| variant.name.clone()).collect();
        (variants, facts, only(&analysis).abi_constants.clone())
    };
    let (variants, facts, constants) = of("libggml-cpu.so", foreign);
    assert_eq!((variants, constants), (Vec::new(), Vec::new()));
    assert_eq!(facts.families, []);
    let quantization = facts.groups.iter().find(|(group, ..)| *group == Group::Quantization);
    assert_eq!(quantization, Some(&(Group::Quantization, 1, 0)), "ggml_vec_dot_q4_0_q8_0 alone");
    // ggml's own beside them.
    let own = format!(
        "{foreign} void ggml_gemm_q4_0_4x4_q8_0_dotprod(void) {{}} void ggml_backend_amx_buffer_type(void) {{}}
         void llamafile_sgemm_sss_fma(void) {{}} const unsigned ggml_abi_version = 3;"
    );
    let (variants, facts, constants) = of("libggml-cpu-own.so", &own);
    assert_eq!(variants, ["amx", "dotprod", "fma", "own"]);
    assert_eq!(constants, [("ggml_abi_version".to_owned(), 3)]);
    let shown: Vec<&str> = facts.cpu_variants.iter().map(|variant| variant.shown_by.as_str()).collect();
    assert!(shown.contains(&"llamafile_sgemm_sss_fma"), "{shown:?}");
    // Another project's file is no variant of ggml's, whatever its name has in it.
    for file in ["libother-ggml-cpu-haswell.so", "libggml-cpu-\u{1b}[2J.so"] {
        let (variants, ..) = of(file, "void other(void) {}");
        assert_eq!(variants, [""; 0], "{file}");
    }
}

#[test]
fn what_is_no_usable_library_is_told_apart() {
    let folder = made::folder();
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(at(name), bytes).expect("the folder is writable");
        at(name)
    };
    let says = |path: &Path, text: &str| {
        let error = analyze(path).expect_err("not a library").to_string();
        assert!(error.contains(text), "no `{text}` in: {error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
    };
    says(&write("empty.so", b""), "an empty file");
    says(&write("text.so", b"hello"), "text");
    says(&write("script.so", b"/* GNU ld script */ GROUP ( /lib/libc.so.6 )"), "linker script");
    says(&write("model.so", b"GGUF\x03\0\0\0"), "GGUF model");
    says(&write("noise.so", &[0xF3, 0x99, 0x00, 0xC1, 0xFF]), "no known format");
    says(&write("bit.so", b"BC\xC0\xDE1234"), "LLVM bitcode");
    says(folder.path(), "a folder");
    says(&at("absent.so"), "can't read");

    let library = made::shared(folder.path(), "libfull.so", made::CPU_LIBRARY, &[]);
    let bytes = std::fs::read(&library).expect("readable");
    for keep in [64, 100, bytes.len() / 2, bytes.len() - 1] {
        let error = analyze(write("cut.so", &bytes[..keep])).expect_err("a part of it");
        assert!(matches!(error, Error::Truncated { .. } | Error::Malformed { .. }), "{keep}: {error}");
    }
    let error = analyze(write("cut.so", &bytes[..bytes.len() / 2])).expect_err("half of it");
    assert!(matches!(error, Error::Truncated { found, declared, .. } if found < declared), "{error}");
    let object = made::object(folder.path(), "part", made::CPU_LIBRARY);
    let archive = made::archive(folder.path(), "libcut.a", &[&object]);
    let bytes = std::fs::read(&archive).expect("readable");
    let error = analyze(write("cut.a", &bytes[..bytes.len() - 100])).expect_err("a part of it");
    assert!(matches!(error, Error::Truncated { .. }), "{error}");

    let hidden =
        made::shared(folder.path(), "libhidden.so", "static int x(void) { return 1; }", &["-nostdlib"]);
    let error = analyze(&hidden).expect_err("nothing to call");
    assert!(matches!(error, Error::Stripped { .. }), "{error}");
    let stripped = made::object(
        folder.path(),
        "stripped",
        "static int x(void) { return 1; } int (*volatile llama_p)(void) = x;",
    );
    made::ran(Command::new("strip").arg("--strip-all").arg(&stripped));
    let error = analyze(&stripped).expect_err("no names left");
    assert!(matches!(error, Error::Stripped { .. }), "{error}");

    let program = at("program");
    made::ran(made::cc().arg("-o").arg(&program).arg(made::source(
        folder.path(),
        "main",
        "int main(void) { return 0; }",
    )));
    let analysis = analyze(&program).expect("programs can be looked at");
    assert_eq!(analysis.kind, Kind::Executable);
    let error = analysis.library().expect_err("no library").to_string();
    assert!(error.contains("a program"), "{error}");
}

#[test]
fn another_architecture_and_another_system_are_refused() {
    let folder = made::folder();
    let library = made::shared(folder.path(), "libllama.so", made::CPU_LIBRARY, &[]);
    let mut bytes = std::fs::read(&library).expect("readable");
    // e_machine: another one of the same class and byte order.
    let other = if Arch::host().name() == "x86_64" { (0xB7, "aarch64") } else { (0x3E, "x86_64") };
    bytes[0x12] = other.0;
    let foreign = folder.path().join("libforeign.so");
    std::fs::write(&foreign, bytes).expect("writable");
    let analysis = analyze(&foreign).expect("still a library");
    let error = analysis.image(&Arch::host()).expect_err("for another processor").to_string();
    assert!(error.contains(other.1) && error.contains(Arch::host().name()), "{error}");
    assert!(analysis.fits_system("linux").is_ok());
    let error = analysis.fits_system("macos").expect_err("ELF").to_string();
    assert!(error.contains("ELF") && error.contains("macos"), "{error}");
    assert!(analysis.fits_system("windows").is_err());
}
