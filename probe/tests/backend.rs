//! Validation before loading, loading, swapping under load, and the order of preference.
#![cfg(target_os = "linux")]

mod made;

use gristmill_probe::backend::{Backends, External, Requirements, Slot, State, externals, validate};
use gristmill_probe::discover::{DIR, LIBDIR};
use gristmill_probe::{Error, Family, Search, Target};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

type Number = unsafe extern "C" fn() -> i32;

fn plain() -> Requirements {
    Requirements::new()
}

#[test]
fn what_is_needed_is_checked_and_nothing_runs_before() {
    let folder = made::folder();
    let trace = folder.path().join("it-ran");
    let code = format!(
        "#include <stdio.h>\n\
         __attribute__((constructor)) static void begin(void) {{ FILE *f = fopen(\"{}\", \"w\"); if (f) fclose(f); }}\n\
         const unsigned bitnet_abi_version = 4;\n\
         {}",
        trace.display(),
        made::CPU_LIBRARY
    );
    let library = made::shared(folder.path(), "libllama.so", &code, &["-Wl,-soname,libllama.so.2"]);
    let refused = |requirements: Requirements| {
        let error = validate(&library, &requirements).expect_err("it lacks something");
        assert!(!trace.exists(), "something ran");
        error
    };
    let error = refused(plain().symbol("ggml_version").symbol("llama_absent").symbol("ggml_gone"));
    assert!(error.to_string().contains("does not define llama_absent, ggml_gone"), "{error}");
    assert!(matches!(refused(plain().family(Family::Iq2S)), Error::NoFamily { family: Family::Iq2S, .. }));
    let error = refused(plain().cuda());
    assert!(matches!(error, Error::NoCuda { undefined: 2, .. }), "{error}");
    assert!(
        matches!(refused(plain().abi(2)), Error::WrongAbi { found: 4, wanted: 2, .. }),
        "the constant counts"
    );
    assert!(matches!(validate(folder.path().join("absent.so"), &plain()), Err(Error::File { .. })));

    let validated =
        validate(&library, &plain().symbol("ggml_version").family(Family::I2S).abi(4)).expect("it has all");
    assert!(!trace.exists(), "something ran");
    // SAFETY: the library was made above; its initializer opens a file.
    let backend = unsafe { validated.load() }.expect("it loads");
    assert!(trace.exists(), "the control: loading runs initializers");
    // SAFETY: the type is that of the C function.
    let error = unsafe { backend.function::<Number>("llama_absent") }.expect_err("not there").to_string();
    assert!(error.contains("llama_absent"), "{error}");
}

#[test]
fn abi_versions_by_name_too() {
    let folder = made::folder();
    let library =
        made::shared(folder.path(), "libggml.so", made::CPU_LIBRARY, &["-Wl,-soname,libggml.so.7.1"]);
    assert!(validate(&library, &plain().abi(7)).is_ok());
    assert!(matches!(validate(&library, &plain().abi(8)), Err(Error::WrongAbi { found: 7, wanted: 8, .. })));
    let library = made::shared(folder.path(), "libllama.so", made::CPU_LIBRARY, &[]);
    let error = validate(&library, &plain().abi(1)).expect_err("it states none").to_string();
    assert!(error.contains("_abi_version") && error.contains("SONAME"), "{error}");
}

#[test]
fn only_shared_libraries_for_this_machine_are_loadable() {
    let folder = made::folder();
    let object = made::object(folder.path(), "one", made::CPU_LIBRARY);
    let archive = made::archive(folder.path(), "libllama.a", &[&object]);
    for file in [&object, &archive] {
        assert!(matches!(validate(file, &plain()), Err(Error::NotLoadable { .. })), "{}", file.display());
    }
    let library = made::shared(folder.path(), "libllama.so", made::CPU_LIBRARY, &[]);
    let mut bytes = std::fs::read(&library).expect("readable");
    bytes[0x12] = 0x2B;
    let foreign = folder.path().join("libforeign.so");
    std::fs::write(&foreign, bytes).expect("writable");
    assert!(matches!(validate(&foreign, &plain()), Err(Error::WrongArchitecture { .. })));
}

#[test]
fn needed_libraries_are_validated_too() {
    let folder = made::folder();
    let at = folder.path();
    let script = |versions: &str| {
        let file = at.join("versions");
        std::fs::write(&file, versions).expect("writable");
        format!("-Wl,--version-script={}", file.display())
    };
    let base = "int ggml_base(void) { return 5; }";
    let dependency = |versions: &str| {
        made::shared(at, "libggml-base.so", base, &["-Wl,-soname,libggml-base.so", &script(versions)])
    };
    let needed = dependency("GGML_1 {}; GGML_2 { global: ggml_base; };");
    let code = "extern int ggml_base(void); int llama_number(void) { return ggml_base(); }";
    let path = format!("-L{}", at.display());
    let arguments = [path.as_str(), "-Wl,-rpath,$ORIGIN", "-lggml-base"];
    let library = made::shared(at, "libllama.so", code, &arguments);
    let validated = validate(&library, &plain()).expect("all there");
    assert_eq!(validated.dependencies().collect::<Vec<_>>(), [needed.as_path()]);

    // An older one without the version that is asked for.
    dependency("GGML_1 { global: ggml_base; };");
    let error = validate(&library, &plain()).expect_err("too old");
    assert!(matches!(&error, Error::TooOld { version, .. } if version == "GGML_2"), "{error}");
    // A changed dependency is noticed as the library itself would be.
    // SAFETY: it is not loaded.
    assert!(matches!(unsafe { validated.load() }, Err(Error::Changed { path }) if path == needed));

    std::fs::write(&needed, "not a library").expect("writable");
    let error = validate(&library, &plain()).expect_err("unusable").to_string();
    assert!(error.contains("needs `libggml-base.so`") && error.contains("it is text"), "{error}");
}

#[test]
fn a_changed_file_is_not_loaded() {
    let folder = made::folder();
    let library = made::shared(folder.path(), "libllama.so", "int llama_number(void) { return 1; }", &[]);
    let validated = validate(&library, &plain()).expect("usable");
    let other = made::shared(folder.path(), "other.so", "int llama_number(void) { return 2; }", &[]);
    std::fs::rename(&other, &library).expect("replaced");
    // SAFETY: it is not loaded.
    assert!(matches!(unsafe { validated.load() }, Err(Error::Changed { .. })));

    let validated = validate(&library, &plain()).expect("usable");
    // SAFETY: the library was made above and has no initializers.
    let backend = unsafe { validated.load() }.expect("it loads");
    // SAFETY: the type is that of the C function.
    let number = unsafe { backend.function::<Number>("llama_number") }.expect("there");
    drop(backend);
    let third = made::shared(folder.path(), "third.so", "int llama_number(void) { return 3; }", &[]);
    std::fs::rename(&third, &library).expect("replaced");
    let validated = validate(&library, &plain()).expect("usable");
    // The system would hand out the old one again.
    // SAFETY: it is not loaded.
    assert!(matches!(unsafe { validated.load() }, Err(Error::StillLoaded { .. })));
    // SAFETY: as the C function is declared; the handle keeps the library.
    assert_eq!(unsafe { number() }, 2);
    drop(number);
    // SAFETY: the library was made above and has no initializers.
    let backend = unsafe { validated.load() }.expect("the old one is gone");
    // SAFETY: the type is that of the C function.
    let number = unsafe { backend.function::<Number>("llama_number") }.expect("there");
    // SAFETY: as the C function is declared; the handle keeps the library.
    assert_eq!(unsafe { number() }, 3);
}

/// A library whose function reads its own memory for a while, and whose memory is spoilt before it is unloaded.
fn slow(folder: &Path, name: &str, marker: i32) -> std::path::PathBuf {
    let code = format!(
        "static volatile int cells[64];\n\
         __attribute__((constructor)) static void begin(void) {{ for (int i = 0; i < 64; i++) cells[i] = {marker}; }}\n\
         __attribute__((destructor)) static void end(void) {{ for (int i = 0; i < 64; i++) cells[i] = -1; }}\n\
         int llama_number(void) {{\n\
             for (int round = 0; round < 50; round++)\n\
                 for (int i = 0; i < 64; i++) if (cells[i] != {marker}) return -2;\n\
             return {marker};\n\
         }}"
    );
    made::shared(folder, name, &code, &[])
}

fn mapped(file: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    maps.contains(&file.display().to_string())
}

#[test]
fn swapping_under_load_keeps_what_is_in_use() {
    let folder = made::folder();
    let files = [slow(folder.path(), "libone.so", 1), slow(folder.path(), "libtwo.so", 2)];
    let validated =
        files.clone().map(|file| validate(file, &plain().symbol("llama_number")).expect("usable"));
    // SAFETY: the libraries were made above; their initializers touch their own memory only.
    let slot = Slot::new(unsafe { validated[0].load() }.expect("it loads"));
    let (stop, calls, wrong) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let swaps = 150;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let backend = slot.current();
                    let expected = if backend.path() == files[0] { 1 } else { 2 };
                    // SAFETY: the type is that of the C function.
                    let number = unsafe { backend.function::<Number>("llama_number") }.expect("there");
                    drop(backend);
                    // SAFETY: as the C function is declared; the handle keeps the library.
                    if unsafe { number() } != expected {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for swap in 1..=swaps {
            // SAFETY: as above.
            let old = unsafe { slot.reload(&validated[swap % 2]) }.expect("it loads");
            assert_eq!(old.path(), files[(swap + 1) % 2]);
            drop(old);
            // Calls must get in between, or nothing is tested.
            let before = calls.load(Ordering::Relaxed);
            while calls.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert!(calls.load(Ordering::Relaxed) >= swaps);
    assert_eq!(slot.generation(), swaps as u64);
    assert!(mapped(&files[0]) && !mapped(&files[1]), "what is not in use is unloaded");

    // A failed swap leaves everything as it is.
    std::fs::write(&files[1], "not a library any more").expect("writable");
    // SAFETY: it is not loaded.
    assert!(matches!(unsafe { slot.reload(&validated[1]) }, Err(Error::Changed { .. })));
    assert_eq!(slot.current().path(), files[0]);

    // One call holds the library beyond the slot.
    // SAFETY: the type is that of the C function.
    let number = unsafe { slot.current().function::<Number>("llama_number") }.expect("there");
    drop(slot);
    assert!(mapped(&files[0]));
    // SAFETY: as the C function is declared; the handle keeps the library.
    assert_eq!(unsafe { number() }, 1);
    let backend = Arc::downgrade(number.backend());
    drop(number);
    assert!(backend.upgrade().is_none() && !mapped(&files[0]));
}

#[test]
fn backends_have_their_own_device_and_reason() {
    let nothing = externals(&Search::nowhere(Target::host()).run());
    assert_eq!(nothing.len(), External::ALL.len());
    assert!(nothing.iter().all(|external| !external.is_found()));
    let folder = made::folder();
    let of = |name: &str, code: &str| {
        let at = folder.path().join(name);
        made::shared(&at, "libllama.so", code, &[]);
        Backends::new(&Search::nowhere(Target::host()).with_variable(LIBDIR, at).run())
    };
    let cpu = of("cpu", made::CPU_LIBRARY);
    let found: Vec<String> = cpu.all().iter().filter(|e| e.is_found()).map(External::name).collect();
    assert_eq!(found, ["bitnet.cpp/cpu", "llama.cpp/cpu"]);
    let absent = cpu.all().iter().find(|external| external.name() == "llama.cpp/cuda").expect("it is listed");
    assert!(
        matches!(&absent.state, State::Absent { reason, help } if reason.contains("no CUDA backend in libllama.so") && help.contains(DIR)),
        "{absent:?}"
    );
    assert_eq!(cpu.choose("i2_s", Some(36)).expect("it has I2_S").name(), "bitnet.cpp/cpu");
    assert_eq!(
        cpu.choose("tq2_0", Some(35)).expect("it has TQ2_0").product("tq2_0", Some(35)),
        Some("ggml_vec_dot_tq2_0_q8_K")
    );
    let error = cpu.choose("tq1_0", Some(34)).expect_err("TQ2_0 is not TQ1_0").to_string();
    assert!(
        error.contains("llama.cpp/cpu names no products of `tq1_0`") && error.contains("llama.cpp/cuda:"),
        "{error}"
    );

    let both = of(
        "both",
        &format!(
            "{}\n{}",
            made::CPU_LIBRARY
                .replace("__attribute__((weak)) extern int ggml_backend_cuda_get_device_count(void);", "")
                .replace(
                    "__attribute__((weak)) extern int ggml_backend_cuda_reg(void);",
                    "int ggml_backend_cuda_get_device_count(void); int ggml_backend_cuda_reg(void);"
                ),
            made::CUDA_LIBRARY
        ),
    );
    assert_eq!(both.choose("i2_s", Some(36)).expect("both have it").name(), "bitnet.cpp/cuda");
    both.set_preference(["bitnet.cpp/cpu", "bitnet.cpp/cuda"]).expect("known names");
    assert_eq!(both.choose("i2_s", Some(36)).expect("both have it").name(), "bitnet.cpp/cpu");
    let error = both.choose("q4_k", Some(12)).expect_err("nothing has it").to_string();
    assert!(error.contains("llama.cpp/cpu: not in the order of preference"), "{error}");
    let error = both.set_preference(["llama.cpp/gpu"]).expect_err("no such").to_string();
    assert!(error.contains("llama.cpp/cuda"), "{error}");
    assert_eq!(both.choose("i2_s", Some(36)).expect("the order stays").name(), "bitnet.cpp/cpu");
}
