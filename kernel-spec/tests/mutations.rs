//! Whatever is in a spec file, checking ends with a report: no panic, no overflow, spans inside the files.

#[path = "../../tests/choice/mod.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this module")]
mod choice;

use choice::everything;
use gristmill_spec::{SourceFile, check, render, shipped};
use proptest::prelude::*;

/// What the mutations put in: pieces that are almost right, and numbers at the edges.
const PIECES: [&str; 41] = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "8",
    "16",
    "255",
    "256",
    "65535",
    "65536",
    "65537",
    "524288",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1e308",
    "-0.0",
    "nan",
    "inf",
    "true",
    "\"\"",
    "\"row\"",
    "[]",
    "[[]]",
    "{}",
    "\"tensor.f32\"",
    "\"u16\"",
    "\"trit\"",
    "\"base6\"",
    "\"i2\"",
    "[1, 1, 1, 1, 1, 1, 1, 1, 1]",
    "[65536, 65536, 65536]",
    "\u{e4}",
    "[[field]]\n",
    "= ",
    "\n",
];

fn specs() -> Vec<SourceFile> {
    shipped().expect("readable")
}

#[track_caller]
fn survives(sources: &[SourceFile]) {
    let report = check(sources);
    let errors = report.diagnostics.iter().any(|d| d.severity == gristmill_spec::Severity::Error);
    assert_eq!(report.set.is_none(), errors);
    let _ = render(sources, &report.diagnostics, false);
    for diagnostic in &report.diagnostics {
        let source = sources.iter().find(|s| s.path == diagnostic.path).expect("a file of the set");
        assert!(diagnostic.span.start <= diagnostic.span.end, "{diagnostic:?}");
        assert!(diagnostic.span.end <= source.bytes.len(), "{diagnostic:?}");
    }
}

/// Byte ranges of what stands right of `=` and inside brackets: where a mistake is likely.
fn leaves(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut leaves = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices() {
        let inside = c.is_ascii_alphanumeric() || "\"._-".contains(c);
        match (inside, start) {
            (true, None) => start = Some(at),
            (false, Some(first)) => {
                leaves.push(first..at);
                start = None;
            }
            _ => {}
        }
    }
    leaves
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if everything() { 400 } else { 100 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn leaves_can_be_anything(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..PIECES.len()), 1..6)) {
        let mut sources = specs();
        for (file, leaf, piece) in changes {
            let source = file.get_mut(&mut sources);
            let Ok(text) = std::str::from_utf8(&source.bytes) else { continue };
            let leaves = leaves(text);
            if leaves.is_empty() {
                continue;
            }
            let mut text = text.to_owned();
            text.replace_range(leaf.get(&leaves).clone(), PIECES[piece]);
            source.bytes = text.into_bytes();
        }
        survives(&sources);
    }

    #[test]
    fn bytes_can_be_anything(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut sources = specs();
        for (file, at, byte) in changes {
            let source = file.get_mut(&mut sources);
            if !source.bytes.is_empty() {
                *at.get_mut(&mut source.bytes) = byte;
            }
        }
        survives(&sources);
    }

    #[test]
    fn files_can_end_anywhere(file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>()) {
        let mut sources = specs();
        let source = file.get_mut(&mut sources);
        let end = at.index(source.bytes.len() + 1);
        source.bytes.truncate(end);
        survives(&sources);
    }

    #[test]
    fn lines_can_be_repeated_and_lost(file in any::<prop::sample::Index>(), from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>()) {
        let mut sources = specs();
        let source = file.get_mut(&mut sources);
        if let Ok(text) = std::str::from_utf8(&source.bytes) {
            let mut lines: Vec<&str> = text.lines().collect();
            if !lines.is_empty() {
                let line = lines.remove(from.index(lines.len()));
                lines.insert(to.index(lines.len() + 1), line);
                lines.insert(to.index(lines.len() + 1), line);
                source.bytes = lines.join("\n").into_bytes();
            }
        }
        survives(&sources);
    }
}

#[test]
fn hostile_sizes_are_refused_quickly() {
    let field = |layout: &str| format!("[[field]]\nname = \"q\"\ntype = \"u16\"\nlayout = {layout}\n");
    let format = |fields: &str| {
        format!("doc = \"x\"\nblock = {{ elements = 65536, bytes = 65536 }}\n{fields}[value]\ncode = \"q\"\n")
    };
    let deep = format!("x = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    let wide = format!("{{ shape = [65536], stride = [{}] }}", i64::MAX);
    let texts = [
        format(&field("{ shape = [65536], stride = [0] }")),
        format(&field(&wide)),
        format(&field("{ shape = [256, 256], stride = [-524288, 524288], offset = 524287 }").repeat(64)),
        format(&field("{}").repeat(5000)),
        deep,
        "[[cpu]]\nisa = \"avx2\"\n".repeat(20_000),
    ];
    for text in texts {
        survives(&[SourceFile { path: "x.toml".to_owned(), bytes: text.into_bytes() }]);
    }
}

#[test]
fn order_of_files_does_not_matter() {
    let sources = specs();
    let forward = check(&sources).set.expect("sound");
    let reversed: Vec<SourceFile> = sources.into_iter().rev().collect();
    let backward = check(&reversed).set.expect("sound");
    assert_eq!(format!("{:?}", forward.formats), format!("{:?}", backward.formats));
    assert_eq!(format!("{:?}", forward.kernels), format!("{:?}", backward.kernels));
}
