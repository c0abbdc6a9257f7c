//! Reading files, and files that are not text.

use gristmill_spec::{MAX_FILE_BYTES, ReadError, SourceFile, check, read_path, render, shipped, shipped_dir};
use std::path::PathBuf;

/// A fresh folder below the build's own scratch folder.
fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the scratch folder can be made");
    dir
}

#[test]
fn shipped_paths_are_shown_from_the_package() {
    let sources = shipped().expect("readable");
    assert!(sources.iter().any(|s| s.path == "kernel-spec/formats/i2_s.toml"));
    assert!(sources.iter().any(|s| s.path == "kernel-spec/coverage.toml"));
    assert!(sources.iter().any(|s| s.path == "kernel-spec/codebooks/iq2s_grid.u16.bin"));
    assert!(sources.iter().all(|s| s.path.starts_with("kernel-spec/") && !s.path.contains("Cargo.toml")));
}

#[test]
fn one_file_of_a_folder_can_be_read() {
    let sources = read_path(&shipped_dir().join("packings/r16k4.toml")).expect("readable");
    assert_eq!(sources.len(), 1);
    let set = check(&sources).set.expect("sound on its own");
    assert_eq!(set.packings[0].rows, 16);
}

#[test]
fn user_folders_are_read_flat_and_by_kind() {
    let dir = scratch("user_folder");
    std::fs::create_dir_all(dir.join("formats")).expect("a folder");
    for path in ["formats/b.toml", "a.toml", ".hidden.toml", "notes.txt", "Cargo.toml"] {
        std::fs::write(dir.join(path), "x = 1").expect("a file");
    }
    let paths: Vec<String> = read_path(&dir).expect("readable").into_iter().map(|s| s.path).collect();
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths[0].ends_with("a.toml") && paths[1].ends_with("b.toml"), "{paths:?}");
}

#[test]
fn what_cannot_be_read_is_a_typed_error() {
    let dir = scratch("unreadable");
    let missing = read_path(&dir.join("nowhere")).expect_err("missing");
    assert!(matches!(missing, ReadError::Missing(_)), "{missing}");
    let empty = read_path(&dir).expect_err("empty");
    assert!(matches!(empty, ReadError::Empty(_)), "{empty}");
    std::fs::write(dir.join("huge.toml"), vec![b'#'; MAX_FILE_BYTES as usize + 1]).expect("a file");
    let huge = read_path(&dir).expect_err("too large");
    assert!(matches!(huge, ReadError::TooLarge { bytes, .. } if bytes == MAX_FILE_BYTES + 1), "{huge}");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = scratch("not_utf8");
    let path = dir.join(std::ffi::OsStr::from_bytes(b"f\xff.toml"));
    if std::fs::write(&path, "x = 1").is_err() {
        // Some file systems refuse such names, and then there is nothing to read.
        eprintln!("skipped: this file system takes no name that is not UTF-8");
        return;
    }
    let error = read_path(&dir).expect_err("not UTF-8");
    assert!(matches!(error, ReadError::PathNotUtf8(_)), "{error}");
}

fn only(bytes: Vec<u8>) -> Vec<SourceFile> {
    vec![SourceFile { path: "formats/x.toml".to_owned(), bytes }]
}

#[track_caller]
fn reports(sources: &[SourceFile], code: &str, words: &str) {
    let report = check(sources);
    assert!(report.set.is_none());
    assert_eq!(report.diagnostics[0].code, code);
    let text = render(sources, &report.diagnostics, false);
    assert!(text.contains(words) && text.ends_with("found 1 error\n"), "{text}");
}

#[test]
fn files_that_are_no_text_are_diagnosed() {
    reports(&only(b"doc = 1\nx = \"\xff\"".to_vec()), "not-utf8", "byte 13 (line 2)");
    reports(&only(vec![b' '; MAX_FILE_BYTES as usize + 1]), "file-too-large", "1048577 bytes");
    reports(&only(b" \n\n".to_vec()), "empty-file", "empty");
}

#[test]
fn lines_and_columns_are_counted_in_characters() {
    let sources = only("doc = \"ä\" # ä\nä = 1".as_bytes().to_vec());
    let report = check(&sources);
    assert_eq!(report.diagnostics[0].code, "syntax");
    assert_eq!(report.diagnostics[0].line_column(&sources), (2, 1));
    assert_eq!(gristmill_spec::line_column("ab\ncä\nd", 6), (2, 3));
    assert_eq!(gristmill_spec::line_column("ab", 99), (1, 3));
}

#[test]
fn color_is_only_added_on_request() {
    let sources = only(b"x = 1".to_vec());
    let report = check(&sources);
    assert!(!render(&sources, &report.diagnostics, false).contains('\x1b'));
    assert!(render(&sources, &report.diagnostics, true).contains('\x1b'));
    assert_eq!(render(&sources, &[], true), "");
}

/// A file within the limit has room for very many mistakes: as many as somebody reads are shown, and all are counted.
#[test]
fn of_very_many_mistakes_some_are_shown() {
    let text: String = (0..5_000).map(|key| format!("k{key}=1\n")).collect();
    let sources = [SourceFile { path: "formats/many.toml".to_owned(), bytes: text.into_bytes() }];
    let report = check(&sources);
    assert!(report.diagnostics.len() > 5_000);
    let shown = render(&sources, &report.diagnostics, false);
    assert_eq!(
        shown.lines().filter(|line| line.starts_with("error[") || line.starts_with("warning[")).count(),
        100
    );
    let more = format!("{} more are not shown", report.diagnostics.len() - 100);
    assert!(shown.lines().any(|line| line == more), "{}", &shown[shown.len() - 200..]);
}
