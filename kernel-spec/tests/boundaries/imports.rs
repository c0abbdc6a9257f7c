//! Import layouts: every bit of a format's blocks in one place of the tile, and where it goes.

use super::{Case, answers, golden, source};

/// 32 codes of four bits and two halves.
const FORMAT: &str = r#"doc = "x"
block = { elements = 32, bytes = 20 }
[[field]]
name = "d"
type = "f16"
layout = { shape = [2], stride = [16] }
[[field]]
name = "q"
type = "u4"
layout = { shape = [32], stride = [4], offset = 32 }
[value]
code = "q"
zero = 8
scale = ["d"]
"#;

/// Two rows: their scales first, then codes of both in turn.
const IMPORT: &str = r#"doc = "x"
format = "f"
rows = 2
[[field]]
name = "d"
layout = { axes = ["row", "k"], shape = [2, 2], stride = [32, 16] }
[[field]]
name = "q"
layout = { axes = ["k", "row"], shape = [32, 2], stride = [8, 4], offset = 64 }
"#;

#[test]
fn layouts() {
    let cases: &[Case] = &[
        ("as it stands", &[]),
        (
            "rows one after the other",
            &[(
                "[\"k\", \"row\"], shape = [32, 2], stride = [8, 4]",
                "[\"row\", \"k\"], shape = [2, 32], stride = [128, 4]",
            )],
        ),
        ("backwards", &[("stride = [8, 4], offset = 64", "stride = [-8, 4], offset = 312")]),
        ("a bit beyond", &[("offset = 64", "offset = 65")]),
        ("a bit before", &[("stride = [32, 16] }", "stride = [32, 16], offset = -1 }")]),
        ("a bit into the scales", &[("offset = 64", "offset = 63")]),
        ("on itself", &[("stride = [8, 4]", "stride = [8, 3]")]),
        ("a row too few", &[("shape = [2, 2]", "shape = [1, 2]")]),
        ("a value too few", &[("shape = [2, 2]", "shape = [2, 1]")]),
        (
            "a field left out",
            &[(
                "[[field]]\nname = \"d\"\nlayout = { axes = [\"row\", \"k\"], shape = [2, 2], stride = [32, 16] }\n",
                "",
            )],
        ),
        ("a field twice", &[("name = \"q\"", "name = \"d\"")]),
        ("a field of no name", &[("name = \"q\"", "name = \"qq\"")]),
        ("a format of no name", &[("format = \"f\"", "format = \"g\"")]),
        ("three rows", &[("rows = 2", "rows = 3")]),
        ("as many bytes as a tile may have", &[("rows = 2", "rows = 819")]),
        ("a row more than a tile may have", &[("rows = 2", "rows = 820")]),
        (
            "codes in two parts",
            &[(
                "layout = { axes = [\"k\", \"row\"], shape = [32, 2], stride = [8, 4], offset = 64 }",
                "parts = [\n  { bits = 1, axes = [\"row\", \"k\"], shape = [2, 32], stride = [32, 1], offset = 64 },\n  { bits = 3, axes = [\"row\", \"k\"], shape = [2, 32], stride = [96, 3], offset = 128 },\n]",
            )],
        ),
        (
            "parts of three bits",
            &[(
                "layout = { axes = [\"k\", \"row\"], shape = [32, 2], stride = [8, 4], offset = 64 }",
                "parts = [\n  { bits = 1, axes = [\"row\", \"k\"], shape = [2, 32], stride = [32, 1], offset = 64 },\n  { bits = 2, axes = [\"row\", \"k\"], shape = [2, 32], stride = [96, 3], offset = 128 },\n]",
            )],
        ),
        (
            "parts of five bits",
            &[(
                "layout = { axes = [\"k\", \"row\"], shape = [32, 2], stride = [8, 4], offset = 64 }",
                "parts = [\n  { bits = 1, axes = [\"row\", \"k\"], shape = [2, 32], stride = [32, 1], offset = 64 },\n  { bits = 4, axes = [\"row\", \"k\"], shape = [2, 32], stride = [96, 3], offset = 128 },\n]",
            )],
        ),
        (
            "a hole",
            &[
                ("stride = [32, 16] }", "stride = [32, 16] }\n"),
                ("shape = [32, 2], stride = [8, 4]", "shape = [32, 2], stride = [8, 4]"),
                ("rows = 2", "rows = 2\nunused = [{ offset = 0, bits = 1 }]"),
            ],
        ),
        ("a gap beyond", &[("rows = 2", "rows = 2\nunused = [{ offset = 320, bits = 1 }]")]),
    ];
    let beside = [super::shipped_of(&["/activations/"]), vec![source("formats/f.toml", FORMAT)]].concat();
    let text = answers("imports/i.toml", IMPORT, cases, &beside, |set| {
        set.imports[0].moves.iter().map(|m| format!("{}>{}:{}x{} ", m.from, m.row, m.to, m.bits)).collect()
    });
    golden("imports", &text);
}

/// A format with a hole in its block, whose tile has one for each row.
#[test]
fn gaps_and_names() {
    let format = FORMAT.replace("bytes = 20 }", "bytes = 21 }\nunused = [{ offset = 160, bits = 8 }]");
    let whole = IMPORT.replace("rows = 2", "rows = 2\nunused = [{ offset = 320, bits = 16 }]");
    let less = whole.replace("bits = 16", "bits = 15");
    let more = whole.replace("bits = 16", "bits = 17");
    let beside =
        |path: &str| [super::shipped_of(&["/activations/"]), vec![source(path, format.clone())]].concat();
    let mut text = String::new();
    for (name, import, path) in [
        ("gaps that are said", whole.clone(), "formats/f.toml"),
        ("a gap of a bit less", less, "formats/f.toml"),
        ("a gap of a bit more", more, "formats/f.toml"),
        ("gaps that are not said", IMPORT.to_owned(), "formats/f.toml"),
        ("the name of a format", whole.replace("format = \"f\"", "format = \"i\""), "formats/i.toml"),
    ] {
        let said = super::said(source("imports/i.toml", import), &beside(path), |set| {
            format!("{:?}", set.imports[0].moves)
        });
        text += &format!("{name}\n{said}\n");
    }
    golden("import_gaps", &text);
}
