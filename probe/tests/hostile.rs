//! Files that were made to take time, memory or the terminal: the analysis is bounded by a multiple of their size, and
//! no name of theirs reaches a person raw.

#[path = "foreign/mod.rs"]
mod files;

use gristmill_probe::analyze::{Facts, analyze_bytes};
use gristmill_probe::{Analysis, Error, analyze, printable};
use object::{Architecture, BinaryFormat};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Analyses in a thread of its own; fails where it does not come to an end. Honest files of these sizes take
/// milliseconds, and what these would take unbounded is hours.
#[track_caller]
fn bounded(what: &str, bytes: Vec<u8>) -> Result<Analysis, Error> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let analysis = analyze_bytes(Path::new("any"), &bytes);
        if let Ok(analysis) = &analysis {
            for image in &analysis.images {
                Facts::of(image, &analysis.path);
            }
        }
        // The test is over if nobody receives.
        let _ = send.send(analysis);
    });
    receive.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what} does not end"))
}

#[track_caller]
fn refused(what: &str, bytes: Vec<u8>, why: &str) {
    let error = bounded(what, bytes).expect_err(what).to_string();
    assert!(error.contains(why), "{what}: no `{why}` in: {error}");
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A dynamic library of macOS with nothing but this table of exports.
fn dylib_with_exports(trie: &[u8]) -> Vec<u8> {
    let header = 32 + 72 + 16u32;
    let mut out = Vec::new();
    let mut put = |value: u32| out.extend(value.to_le_bytes());
    // The header: magic, x86-64, MH_DYLIB, two commands.
    for value in [0xFEED_FACF, 0x0100_0007, 3, 6, 2, 72 + 16, 0, 0] {
        put(value);
    }
    // LC_SEGMENT_64 of the whole file.
    put(0x19);
    put(72);
    out.extend(b"__LINKEDIT\0\0\0\0\0\0");
    out.extend(words(&[0, 0x1000, 0, u64::from(header) + trie.len() as u64]));
    let mut put = |value: u32| out.extend(value.to_le_bytes());
    for value in [1, 1, 0, 0] {
        put(value);
    }
    // LC_DYLD_EXPORTS_TRIE.
    for value in [0x8000_0033, 16, header, trie.len() as u32] {
        put(value);
    }
    out.extend(trie);
    out
}

#[test]
fn a_table_of_exports_that_is_no_tree() {
    // The control: one name, at one place.
    let one = [&[0, 1][..], b"_llama_x\0", &[13, 0, 2, 0, 16, 0]].concat();
    let analysis = bounded("one name", dylib_with_exports(&one)).expect("a library");
    assert!(analysis.images[0].defines("llama_x"), "{analysis:?}");
    // Forty nodes, from each of which two edges lead to the next: a million million names.
    let mut shared = Vec::new();
    for level in 0..40usize {
        let next = (level + 1) * 10;
        let next = [(next & 0x7F) as u8 | 0x80, (next >> 7) as u8];
        shared.extend([0, 2, b'a', 0, next[0], next[1], b'b', 0, next[0], next[1]]);
    }
    shared.extend([2, 0, 16, 0]);
    assert!(shared.len() < 500);
    refused("shared nodes", dylib_with_exports(&shared), "several ways");
}

/// A 64-bit ELF library with this many symbols, each of which has the name at the start of the strings.
fn elf_with_one_name(symbols: usize, strings: &[u8]) -> Vec<u8> {
    elf(symbols, strings, 3)
}

fn elf(symbols: usize, strings: &[u8], sections: usize) -> Vec<u8> {
    let symbols_size = (symbols + 1) * 24;
    let strings_at = 64 + symbols_size;
    let headers_at = strings_at + strings.len();
    let mut out = b"\x7FELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    let short = |value: u16| value.to_le_bytes();
    // ET_DYN, x86-64.
    out.extend([short(3), short(0x3E), short(1), short(0)].concat());
    out.extend(words(&[0, 0, headers_at as u64]));
    out.extend(0u32.to_le_bytes());
    // Sizes of headers; the names of sections are in the strings too.
    let count = sections.min(0xFEFF) as u16;
    out.extend([short(64), short(56), short(0), short(64), short(count), short(2)].concat());
    out.resize(64 + 24, 0);
    for _ in 0..symbols {
        // Global, a function, in section 1.
        out.extend(1u32.to_le_bytes());
        out.extend([0x12, 0, 1, 0]);
        out.extend(words(&[0x1000, 0]));
    }
    out.extend(strings);
    let mut section = |name: u32, kind: u32, at: usize, size: usize, link: u32, entry: u64| {
        out.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        out.extend(words(&[0, 0, at as u64, size as u64]));
        out.extend([link.to_le_bytes(), 1u32.to_le_bytes()].concat());
        out.extend(words(&[8, entry]));
    };
    section(0, 0, 0, 0, 0, 0);
    section(1, 11, 64, symbols_size, 2, 24);
    section(1, 3, strings_at, strings.len(), 0, 0);
    for _ in 3..sections {
        section(1, 1, 64, 0, 0, 0);
    }
    out
}

#[test]
fn many_symbols_with_one_long_name() {
    let long = |length: usize| [&[0][..], &b"x".repeat(length), &[0]].concat();
    let honest = bounded("a short name", elf_with_one_name(1000, b"\0ggml_init\0")).expect("a library");
    assert_eq!(honest.images[0].defined.len(), 1);
    // Unbounded: 200,000 times three million bytes.
    refused("a long name", elf_with_one_name(200_000, &long(3_000_000)), "over and over");
    refused("sections with a long name", elf(1, &long(3_000_000), 60_000), "over and over");
}

#[test]
fn archives_with_much_or_nested_content() {
    let object =
        |name: &str| files::object_file(BinaryFormat::Elf, Architecture::X86_64, &[name], &["malloc"]);
    let inner = files::archive(&[("one.o", object("ggml_init"))]);
    refused(
        "an archive in an archive",
        files::archive(&[("inner.a", inner.clone())]),
        "archive within an archive",
    );
    let mut nested = inner;
    for _ in 0..200 {
        nested = files::archive(&[("inner.a", nested)]);
    }
    refused("two hundred archives in each other", nested, "archive within an archive");

    // Many members, each with its own name and library: time grows with their number, not with its square.
    let members: Vec<(&str, Vec<u8>)> = (0..40_000)
        .map(|index| ("m", files::import_member(&format!("llama_{index}"), &format!("{index}.dll"))))
        .collect();
    let analysis = bounded("many members", files::archive(&members)).expect("a library");
    assert_eq!(analysis.images[0].defined.len(), 40_000);

    // The names of members are in one table, and all may lead to its longest entry.
    let member = object("ggml_init");
    let mut bytes = b"!<arch>\n".to_vec();
    let mut put = |name: &str, data: &[u8]| {
        bytes
            .extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 644, data.len()).as_bytes());
        bytes.extend(data);
        if data.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    };
    put("//", &[&b"x".repeat(4_000_000)[..], b"/\n"].concat());
    for _ in 0..20_000 {
        put("/0", &member);
    }
    refused("members with one long name", bytes, "over and over");
}

#[test]
fn a_large_honest_library_is_read() {
    let names: Vec<String> =
        (0..60_000).map(|index| format!("_ZN5llama{index:05}some_function_of_a_libraryEv")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let object = files::object_file(BinaryFormat::Elf, Architecture::X86_64, &names, &["malloc"]);
    let analysis = bounded("60,000 symbols", object).expect("an object");
    assert_eq!(analysis.images[0].defined.len(), 60_000);
}

#[test]
fn what_has_no_end_is_not_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let large = folder.path().join("large.so");
    let file = std::fs::File::create(&large).expect("writable");
    file.set_len(gristmill_probe::analyze::MOST_BYTES + 1).expect("a file with a hole");
    let error = analyze(&large).expect_err("too large");
    assert!(matches!(error, Error::TooLarge { found, most, .. } if found == most + 1), "{error}");
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe.so");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("there is mkfifo").success());
        for endless in [pipe, PathBuf::from("/dev/zero")] {
            let (send, receive) = mpsc::channel();
            std::thread::spawn(move || send.send(analyze(endless)));
            let error = receive
                .recv_timeout(Duration::from_secs(30))
                .expect("it does not wait")
                .expect_err("no file");
            assert!(error.to_string().contains("a device, a pipe or a socket"), "{error}");
        }
    }
}

#[test]
fn names_of_files_and_in_files_are_escaped_in_messages() {
    const BAD: &str = "\u{1b}[31mred\nline\u{202e}\u{9b}2J\u{7}";
    let safe = |text: &str, what: &str| {
        let bad = |c: &char| c.is_control() && *c != '\n' || *c == '\u{202e}';
        assert!(!text.chars().any(|c| bad(&c)), "{what}: {text:?}");
        assert!(!text.contains("\nline"), "{what} ends a line: {text:?}");
    };
    // A member's name, and the file's own.
    let one = files::object_file(BinaryFormat::Elf, Architecture::X86_64, &["x"], &[]);
    let two = files::object_file(BinaryFormat::Elf, Architecture::Aarch64, &["x"], &[]);
    let name: String = BAD.chars().filter(|c| c.is_ascii() && *c != '\n').take(14).collect();
    let archive = files::archive(&[("one.o", one), (name.as_str(), two)]);
    let error = analyze_bytes(Path::new(BAD), &archive).expect_err("two processors");
    safe(&error.to_string(), "a member");
    assert!(error.to_string().contains("\\u{1b}[31mred"), "{error}");
    // Every error with a text of others in it.
    let (text, path, texts) = (|| BAD.to_owned(), || PathBuf::from(BAD), || vec![BAD.to_owned()]);
    let io = || std::io::Error::other("no");
    for error in [
        Error::File { action: "read", path: path(), source: io() },
        Error::NotALibrary { path: path(), what: text() },
        Error::Malformed { path: path(), what: text() },
        Error::Stripped { path: path() },
        Error::MissingSymbols { path: path(), symbols: texts() },
        Error::NoCuda { asked: "here".into(), library: text(), undefined: 1 },
        Error::UnwantedCuda { asked: "here".into(), path: path(), symbol: text() },
        Error::NoFamily { family: gristmill_probe::Family::I2S, library: text() },
        Error::Dependency {
            path: path(),
            needed: text(),
            source: Box::new(Error::Stripped { path: path() }),
        },
        Error::TooOld { path: path(), version: text(), found: path() },
        Error::OtherDependency { path: path(), needed: text(), validated: path(), mapped: text() },
        Error::Changed { path: path() },
        Error::StillLoaded { path: path() },
        Error::UnknownWord { word: text(), what: "word", known: "none".into() },
        Error::LineEnd { value: text() },
    ] {
        safe(&error.to_string(), &format!("{:?}", std::mem::discriminant(&error)));
    }
    safe(&printable(BAD), "printable");
}
