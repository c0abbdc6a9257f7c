//! Needed libraries: followed once each, within limits that the report states.
#![cfg(target_os = "linux")]

mod made;

use gristmill_probe::Error;
use gristmill_probe::backend::{Limits, NotFollowed, Requirements, Validated, validate};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Number = unsafe extern "C" fn() -> i32;

fn plain() -> Requirements {
    Requirements::new()
}

/// Loads a library of these tests and calls its function.
fn number(validated: &Validated, function: &str) -> i32 {
    // SAFETY: the libraries of these tests are made here and have no initializers.
    let backend = unsafe { validated.load() }.expect("it loads");
    // SAFETY: the functions of these tests take nothing and return an int.
    let function = unsafe { backend.function::<Number>(function) }.expect("there");
    // SAFETY: as above; the handle keeps the library.
    unsafe { function() }
}

/// Two libraries that need each other, which look for each other in a folder.
fn a_pair(at: &Path, name: &str, looked_in: &str) -> [PathBuf; 2] {
    let [one, two] = ["one", "two"].map(|which| format!("{name}_{which}"));
    let (here, runpath) = (format!("-L{}", at.display()), format!("-Wl,-rpath,{looked_in}"));
    let need = |other: &str| format!("-l{other}");
    let file = |name: &str| format!("lib{name}.so");
    let code = |name: &str, other: &str, value: i32| {
        format!(
            "extern int {other}(void); int {name}_value = {value};
             int {name}(void) {{ return {name}_value; }} int {name}_other(void) {{ return {other}(); }}"
        )
    };
    let soname = |name: &str| format!("-Wl,-soname,{}", file(name));
    made::shared(at, &file(&two), &format!("int {two}(void) {{ return 0; }}"), &[&soname(&two)]);
    let arguments = |of: &str, other: &str| [here.clone(), runpath.clone(), soname(of), need(other)];
    let make = |of: &str, other: &str, value| {
        let arguments = arguments(of, other);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        made::shared(at, &file(of), &code(of, other, value), &arguments)
    };
    let first = make(&one, &two, 1);
    let second = make(&two, &one, 2);
    [first, second]
}

/// The needed libraries that are no system's, as (who, what) by file name.
fn edges(validated: &Validated) -> Vec<(String, String)> {
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let own = validated.report().followed.iter().filter(|followed| !followed.of_system);
    own.map(|followed| (name(&followed.by), name(&followed.path))).collect()
}

#[test]
fn libraries_that_need_each_other_are_read_once_each() {
    let folder = made::folder();
    let at = folder.path().join("lib");
    let [one, two] = a_pair(&at, "pair", "$ORIGIN/../lib");
    let validated = validate(&one, &plain()).expect("both are usable");
    let pair = |a: &str, b: &str| (format!("libpair_{a}.so"), format!("libpair_{b}.so"));
    assert_eq!(edges(&validated), [pair("one", "two"), pair("two", "one")]);
    assert_eq!(validated.dependencies().collect::<Vec<_>>(), [two.canonicalize().expect("there").as_path()]);
    assert!(validated.report().unfollowed.iter().all(|left| !left.why.is_limit()), "{}", validated.report());
    assert_eq!(number(&validated, "pair_one_other"), 2);
}

#[test]
fn cycles_of_links_come_to_an_end() {
    let folder = made::folder();
    let at = folder.path().join("lib");
    // A folder that is in itself, and two that lead to each other.
    std::fs::create_dir_all(&at).expect("writable");
    std::os::unix::fs::symlink(".", at.join("again")).expect("writable");
    std::os::unix::fs::symlink("../lib", at.join("over")).expect("writable");
    for (name, looked_in) in [("again", "$ORIGIN/again"), ("over", "$ORIGIN/over/../lib/again/over")] {
        let [one, two] = a_pair(&at, name, looked_in);
        let validated = validate(&one, &plain()).expect("both are usable");
        assert_eq!(edges(&validated).len(), 2, "{}", validated.report());
        let only: Vec<&Path> = validated.dependencies().collect();
        assert_eq!(only, [two.canonicalize().expect("there").as_path()], "one name for one file");
        assert_eq!(number(&validated, &format!("{name}_one_other")), 2);
    }
    // A link to itself is no file, whoever needs it.
    let [one, two] = a_pair(&at, "self", "$ORIGIN");
    std::fs::remove_file(&two).expect("there");
    std::os::unix::fs::symlink("libself_two.so", &two).expect("writable");
    let validated = validate(&one, &plain()).expect("the rest is usable");
    let left = &validated.report().unfollowed;
    assert!(
        left.iter().any(|left| left.needed == "libself_two.so" && left.why == NotFollowed::NotFound),
        "{}",
        validated.report()
    );
    // SAFETY: it is not loaded.
    assert!(matches!(unsafe { validated.load() }, Err(Error::Load { .. })));
}

/// A chain of libraries, each of which needs the next: `libn0000.so` to the last. One is compiled; the others are the
/// same file with other names of the same length in it.
fn a_chain(at: &Path, length: usize) -> PathBuf {
    let stub = at.join("stub");
    made::shared(&stub, "libn7777.so", "int chain_end(void) { return 7; }", &["-Wl,-soname,libn7777.so"]);
    let here = format!("-L{}", stub.display());
    let code = "int chain(void) { return 1; }";
    let link = [
        "-nostdlib",
        "-Wl,-soname,libn8888.so",
        "-Wl,--no-as-needed",
        here.as_str(),
        "-ln7777",
        "-Wl,-rpath,$ORIGIN",
    ];
    let made = std::fs::read(made::shared(&stub, "libn8888.so", code, &link)).expect("readable");
    let named = |index: usize| format!("libn{index:04}.so");
    let replaced = |bytes: &[u8], from: &str, to: &str| {
        let mut bytes = bytes.to_vec();
        let at: Vec<usize> =
            (0..=bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
        assert!(!at.is_empty(), "no {from}");
        for at in at {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
        bytes
    };
    for index in 0..length {
        let bytes = if index + 1 < length {
            replaced(&replaced(&made, "libn8888.so", &named(index)), "libn7777.so", &named(index + 1))
        } else {
            let end = std::fs::read(stub.join("libn7777.so")).expect("readable");
            replaced(&end, "libn7777.so", &named(index))
        };
        std::fs::write(at.join(named(index)), bytes).expect("writable");
    }
    at.join(named(0))
}

#[test]
fn a_chain_of_a_thousand_ends_at_the_limits() {
    let folder = made::folder();
    let first = a_chain(folder.path(), 1000);
    let begin = Instant::now();
    let validated = validate(&first, &plain()).expect("what was read is usable");
    let Limits { depth, .. } = Limits::default();
    assert_eq!(edges(&validated).len(), depth);
    let limit: Vec<_> = validated.report().unfollowed.iter().filter(|left| left.why.is_limit()).collect();
    let [left] = &limit[..] else { panic!("one is left: {}", validated.report()) };
    assert_eq!(
        (left.needed.as_str(), left.why),
        (format!("libn{:04}.so", depth + 1).as_str(), NotFollowed::Depth { most: depth })
    );
    let report = validated.report().to_string();
    assert!(
        report
            .contains(&format!("libn{:04}.so: not followed: it is more than {depth} steps away", depth + 1)),
        "{report}"
    );
    // What was not validated is not loaded.
    // SAFETY: it is not loaded.
    let error = unsafe { validated.load() }.expect_err("a part was not validated");
    assert!(matches!(error, Error::NotValidated { why: NotFollowed::Depth { .. }, .. }), "{error}");
    assert!(error.to_string().contains("Requirements::limits"), "{error}");

    // With higher limits all are, without a stack of a thousand calls.
    let high = Limits { depth: 2000, files: 2000, bytes: 1 << 30 };
    let validated = validate(&first, &plain().limits(high)).expect("all are usable");
    assert_eq!(edges(&validated).len(), 999);
    // The last hundred, loaded and held against what is mapped.
    let late = first.with_file_name("libn0900.so");
    let validated = validate(&late, &plain().limits(high)).expect("all are usable");
    assert_eq!((edges(&validated).len(), number(&validated, "chain")), (99, 1));
    assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", begin.elapsed());
}

#[test]
fn files_and_bytes_are_limited() {
    let folder = made::folder();
    let at = folder.path();
    let here = format!("-L{}", at.display());
    let names: Vec<String> = (0..5).map(|index| format!("wide{index}")).collect();
    let mut arguments = vec![here, String::from("-Wl,-rpath,$ORIGIN"), String::from("-Wl,--no-as-needed")];
    for name in &names {
        made::shared(
            at,
            &format!("lib{name}.so"),
            &format!("int {name}(void) {{ return 0; }}"),
            &["-nostdlib"],
        );
        arguments.push(format!("-l{name}"));
    }
    arguments.push(String::from("-nostdlib"));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let library = made::shared(at, "libwide.so", "int wide(void) { return 1; }", &arguments);
    let size = |path: &Path| std::fs::metadata(path).expect("there").len();
    let reasons = |limits: Limits| {
        let validated = validate(&library, &plain().limits(limits)).expect("what was read is usable");
        // SAFETY: it is not loaded.
        assert!(matches!(unsafe { validated.load() }, Err(Error::NotValidated { .. })));
        (
            edges(&validated).len(),
            validated.report().unfollowed.iter().map(|left| left.why).collect::<Vec<_>>(),
        )
    };
    let all = Limits::default();
    assert_eq!(reasons(Limits { files: 4, ..all }), (3, vec![NotFollowed::Files { most: 4 }; 2]));
    let most = size(&library) + size(&at.join("libwide0.so")) + 10;
    let (read, left) = reasons(Limits { bytes: most, ..all });
    assert_eq!((read, left.len()), (1, 4));
    assert!(left.iter().all(
        |why| matches!(why, NotFollowed::Bytes { most: limit, wanted } if *limit == most && *wanted > most)
    ));
    assert_eq!(reasons(Limits { depth: 0, ..all }), (0, vec![NotFollowed::Depth { most: 0 }; 5]));
    let error =
        validate(&library, &plain().limits(Limits { bytes: 100, ..all })).expect_err("larger than that");
    assert!(matches!(error, Error::TooLarge { most: 100, found, .. } if found == size(&library)), "{error}");
}
