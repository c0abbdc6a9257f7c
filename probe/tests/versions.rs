//! Two versions of a library in one process: what is mapped is what was validated, or nothing is loaded.
#![cfg(target_os = "linux")]

mod made;

use gristmill_probe::Error;
use gristmill_probe::backend::{Backend, Requirements, Slot, Validated, validate};
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Number = unsafe extern "C" fn() -> i32;

fn valid(library: &Path) -> Validated {
    validate(library, &Requirements::new()).expect("usable")
}

fn load(validated: &Validated) -> Result<Arc<Backend>, Error> {
    // SAFETY: the libraries of these tests are made here; their initializers write a file at most.
    unsafe { validated.load() }
}

fn number(backend: &Arc<Backend>) -> i32 {
    // SAFETY: the functions of these tests take nothing and return an int.
    let function = unsafe { backend.function::<Number>("llama_number") }.expect("there");
    // SAFETY: as above; the handle keeps the library.
    unsafe { function() }
}

/// A version in a folder of its own: `libllama.so` with a dependency of this name beside it. Loading it writes a file
/// `it-ran` into the folder.
fn version(folder: &Path, which: i32, dependency: &str, with_soname: bool) -> [PathBuf; 2] {
    let at = folder.join(format!("v{which}"));
    let soname = format!("-Wl,-soname,lib{dependency}.so");
    let soname: &[&str] = if with_soname { &[&soname] } else { &[] };
    let code = format!("int {dependency}_number(void) {{ return {which}; }}");
    let needed = made::shared(&at, &format!("lib{dependency}.so"), &code, soname);
    let trace = at.join("it-ran");
    let code = format!(
        "#include <stdio.h>
         extern int {dependency}_number(void);
         __attribute__((constructor)) static void begin(void) {{ FILE *f = fopen(\"{}\", \"w\"); if (f) fclose(f); }}
         int llama_number(void) {{ return {dependency}_number(); }}",
        trace.display()
    );
    let here = format!("-L{}", at.display());
    let need = format!("-l{dependency}");
    let library = made::shared(&at, "libllama.so", &code, &[&here, "-Wl,-rpath,$ORIGIN", &need]);
    [library, needed]
}

/// Demands that the error says that another file is taken, and names all three.
#[track_caller]
fn other(error: &Error, name: &str, wanted: &Path, there: &Path) {
    let Error::OtherDependency { needed, validated, mapped, .. } = error else { panic!("{error}") };
    let real = |path: &Path| path.canonicalize().expect("there");
    assert_eq!((needed.as_str(), validated.as_path()), (name, real(wanted).as_path()), "{error}");
    assert_eq!(Path::new(mapped), real(there), "{error}");
    let names = [real(wanted), real(there)].map(|path| path.display().to_string());
    for part in [name, names[0].as_str(), names[1].as_str(), "help:"] {
        assert!(error.to_string().contains(part), "no {part} in {error}");
    }
}

#[test]
fn a_second_version_does_not_call_the_first_ones_dependency() {
    for with_soname in [true, false] {
        let folder = made::folder();
        let name = if with_soname { "dep_named" } else { "dep_plain" };
        let [[one, one_needs], [two, two_needs]] =
            [1, 2].map(|which| version(folder.path(), which, name, with_soname));
        let slot = Slot::new(load(&valid(&one)).expect("it loads"));
        assert_eq!(number(&slot.current()), 1);
        let second = valid(&two);
        // SAFETY: as in `load`.
        let error = unsafe { slot.reload(&second) }.expect_err("the loader has the first one's dependency");
        other(&error, &format!("lib{name}.so"), &two_needs, &one_needs);
        assert!(!two.with_file_name("it-ran").exists(), "something of it ran");
        assert_eq!((slot.generation(), number(&slot.current())), (0, 1), "the first stays in use");
        // Where the first is gone, the second calls its own.
        drop(slot);
        let backend = load(&second).expect("nothing is in its way");
        assert_eq!(number(&backend), 2);
    }
}

#[test]
fn what_the_process_had_loaded_before_counts() {
    let folder = made::folder();
    let [[_, one_needs], [two, two_needs]] =
        [1, 2].map(|which| version(folder.path(), which, "dep_before", true));
    // SAFETY: made above; it has no initializer.
    let before = unsafe { libloading::Library::new(&one_needs) }.expect("it loads");
    let validated = valid(&two);
    other(&load(&validated).expect_err("another is loaded"), "libdep_before.so", &two_needs, &one_needs);
    // Also where the right one is mapped too: the name leads to the first.
    // SAFETY: made above; it has no initializer.
    let both = unsafe { libloading::Library::new(&two_needs) }.expect("it loads");
    other(&load(&validated).expect_err("another is first"), "libdep_before.so", &two_needs, &one_needs);
    drop(before);
    assert_eq!(number(&load(&validated).expect("the right one is left")), 2);
    drop(both);
}

#[test]
fn versions_with_names_of_their_own_live_side_by_side() {
    let folder = made::folder();
    let [[one, _], [two, _]] =
        [(1, "dep_first"), (2, "dep_second")].map(|(which, name)| version(folder.path(), which, name, true));
    let slot = Slot::new(load(&valid(&one)).expect("it loads"));
    // SAFETY: as in `load`.
    let old = unsafe { slot.reload(&valid(&two)) }.expect("nothing is shared");
    assert_eq!((number(&old), number(&slot.current())), (1, 2));
}

#[test]
fn two_folders_for_one_name_are_refused_before_loading() {
    let folder = made::folder();
    let at = folder.path();
    let mut link = vec![String::from("-Wl,--no-as-needed"), String::from("-Wl,-rpath,$ORIGIN/a:$ORIGIN/b")];
    for (which, name) in [("a", "user_a"), ("b", "user_b")] {
        let below = at.join(which);
        made::shared(
            &below,
            "libshared_name.so",
            "int shared(void) { return 0; }",
            &["-Wl,-soname,libshared_name.so"],
        );
        let here = format!("-L{}", below.display());
        let code = format!("extern int shared(void); int {name}(void) {{ return shared(); }}");
        made::shared(
            &below,
            &format!("lib{name}.so"),
            &code,
            &[&here, "-Wl,-rpath,$ORIGIN", "-lshared_name"],
        );
        link.extend([here, format!("-l{name}")]);
    }
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    let library = made::shared(at, "libboth.so", "int both(void) { return 0; }", &link);
    let error = validate(&library, &Requirements::new()).expect_err("the loader gives one file to both");
    other(&error, "libshared_name.so", &at.join("b/libshared_name.so"), &at.join("a/libshared_name.so"));
}

/// The loader may know better which file it takes, such as one for this processor in `glibc-hwcaps`. That shows only
/// afterwards.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn what_the_loader_took_is_compared_too() {
    let folder = made::folder();
    let [library, needed] = version(folder.path(), 1, "dep_hwcaps", true);
    let better = needed.parent().expect("a folder").join("glibc-hwcaps/x86-64-v2");
    let code = "int dep_hwcaps_number(void) { return 5; }";
    let better = made::shared(&better, "libdep_hwcaps.so", code, &["-Wl,-soname,libdep_hwcaps.so"]);
    let validated = valid(&library);
    match load(&validated) {
        Err(error) => other(&error, "libdep_hwcaps.so", &needed, &better),
        // A glibc before 2.33, or a processor of before 2009, takes the plain one.
        Ok(backend) => assert_eq!(number(&backend), 1),
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    assert!(!maps.contains(&better.display().to_string()), "what was refused is unloaded");
}

#[test]
fn a_replaced_file_that_others_hold_is_not_handed_out() {
    let folder = made::folder();
    let [library, needed] = version(folder.path(), 1, "dep_held", true);
    // SAFETY: made above; its initializer writes a file.
    let held = unsafe { libloading::Library::new(&library) }.expect("it loads");
    let [next, _] = version(&folder.path().join("next"), 2, "dep_held", true);
    std::fs::rename(&next, &library).expect("replaced");
    let validated = valid(&library);
    let error = load(&validated).expect_err("the loader has the old file of this path");
    assert!(matches!(error, Error::StillLoaded { .. }), "{error}");
    drop(held);
    assert_eq!(number(&load(&validated).expect("it is gone")), 1, "the new one beside the old dependency");

    // A file that was deleted while it is mapped is none that was validated.
    // SAFETY: made above; it has no initializer.
    let held = unsafe { libloading::Library::new(&needed) }.expect("it loads");
    let third = folder.path().join("third.so");
    std::fs::copy(&needed, &third).expect("writable");
    std::fs::rename(&third, &needed).expect("replaced");
    let error = load(&valid(&library)).expect_err("the old file is mapped").to_string();
    assert!(error.contains("(deleted)") && error.contains("libdep_held.so"), "{error}");
    drop(held);
}

#[test]
fn a_change_that_hides_its_time_is_seen() {
    let folder = made::folder();
    let [library, needed] = version(folder.path(), 1, "dep_written", true);
    let validated = valid(&library);
    // The same size, and the time of before.
    let time = std::fs::metadata(&needed).and_then(|m| m.modified()).expect("there is a time");
    let mut bytes = std::fs::read(&needed).expect("readable");
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    std::fs::write(&needed, bytes).expect("writable");
    std::fs::File::options().write(true).open(&needed).and_then(|f| f.set_modified(time)).expect("writable");
    assert!(matches!(load(&validated), Err(Error::Changed { .. })));
}
