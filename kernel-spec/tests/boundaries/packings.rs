//! Packings: sizes, digits, places; and codebooks, whose tables are files.

use super::{Case, answers, golden, of_format, said, source};

const BITS: &str = r#"doc = "x"
rows = 4
[[tile]]
bits = 4
k = 4
bytes = 8
layout = { axes = ["row", "k"], shape = [4, 4], stride = [16, 4] }
"#;

const TRITS: &str = r#"doc = "x"
rows = 2
[[tile]]
type = "trit"
k = 10
bytes = 4
layout = { axes = ["row", "k", "k"], shape = [2, 2, 5], stride = [16, 8, 0], digit = [0, 0, 1] }
"#;

const PLANES: &str = r#"doc = "x"
rows = 4
[[tile]]
bits = 5
k = 4
bytes = 10
layout = { axes = ["row", "k"], shape = [4, 4], stride = [16, 4] }
upper = { bits = 1, offset = 64, axes = ["row", "k"], shape = [4, 4], stride = [4, 1] }
"#;

#[test]
fn tiles() {
    let of_tiles = |set: &gristmill_spec::model::SpecSet| format!("{:?}", set.packings[0].tiles);
    let bits: &[Case] = &[
        ("as it stands", &[]),
        ("a byte more", &[("bytes = 8", "bytes = 9")]),
        ("a byte less", &[("bytes = 8", "bytes = 7")]),
        ("no whole bytes", &[("bits = 4", "bits = 3")]),
        ("rows too few", &[("shape = [4, 4]", "shape = [3, 4]")]),
        ("k too many", &[("shape = [4, 4]", "shape = [4, 5]")]),
        ("the other way round", &[("stride = [16, 4]", "stride = [4, 16]")]),
        ("a bit apart", &[("stride = [16, 4]", "stride = [16, 3]")]),
        ("two rows at one place", &[("stride = [16, 4]", "stride = [0, 4]")]),
        ("the last code a bit beyond", &[("stride = [16, 4]", "stride = [17, 4]")]),
        (
            "narrow before wide, listed the other way",
            &[(
                "[[tile]]",
                "[[tile]]\nbits = 8\nk = 2\nbytes = 8\nlayout = { axes = [\"k\", \"row\"], shape = [2, 4], stride = [32, 8] }\n[[tile]]",
            )],
        ),
        (
            "two of one width",
            &[(
                "[[tile]]",
                "[[tile]]\nbits = 4\nk = 2\nbytes = 4\nlayout = { axes = [\"k\", \"row\"], shape = [2, 4], stride = [16, 4] }\n[[tile]]",
            )],
        ),
        (
            "k in two digits that overlap",
            &[(
                "\"k\"], shape = [4, 4], stride = [16, 4]",
                "\"k\", \"k\"], shape = [4, 2, 2], stride = [16, 4, 4]",
            )],
        ),
    ];
    let trits: &[Case] = &[
        ("trits as they stand", &[]),
        ("a byte of trits more", &[("bytes = 4", "bytes = 5")]),
        ("trits that fill no whole bytes", &[("k = 10", "k = 9")]),
        (
            "a sixth trit",
            &[("shape = [2, 2, 5]", "shape = [2, 5, 2]"), ("digit = [0, 0, 1]", "digit = [0, 1, 2]")],
        ),
        ("trits beyond", &[("stride = [16, 8, 0]", "stride = [24, 8, 0]")]),
        ("a trit twice", &[("digit = [0, 0, 1]", "digit = [0, 0, 0]")]),
        ("bytes on each other", &[("stride = [16, 8, 0]", "stride = [8, 8, 0]")]),
        (
            "digits and bytes crossed",
            &[(
                "shape = [2, 2, 5], stride = [16, 8, 0], digit = [0, 0, 1]",
                "shape = [2, 5, 2], stride = [16, 0, 8], digit = [0, 1, 0]",
            )],
        ),
    ];
    let mut text = answers("packings/p.toml", BITS, bits, &[], of_tiles);
    text += &answers("packings/p.toml", TRITS, trits, &[], of_tiles);
    let planes: &[Case] = &[
        ("planes as they stand", &[]),
        ("all bits in the upper plane", &[("bits = 1", "bits = 5")]),
        ("no bits in it", &[("bits = 1", "bits = 0")]),
        ("two bits in it", &[("bits = 1", "bits = 2")]),
        ("a plane a bit further", &[("offset = 64", "offset = 65")]),
        ("a plane a bit before", &[("offset = 64", "offset = 63")]),
        ("upper bits on each other", &[("stride = [4, 1]", "stride = [4, 0]")]),
        (
            "upper bits of too few rows",
            &[("shape = [4, 4], stride = [4, 1]", "shape = [3, 4], stride = [4, 1]")],
        ),
        ("a plane where lower bits lie", &[("offset = 64, ", "")]),
        ("a plane in front", &[("offset = 64, ", ""), ("layout = { axes", "layout = { offset = 16, axes")]),
        (
            "lower bits from within the plane in front",
            &[("offset = 64, ", ""), ("layout = { axes", "layout = { offset = 15, axes")],
        ),
        (
            "lower bits beyond the tile",
            &[("offset = 64, ", ""), ("layout = { axes", "layout = { offset = 17, axes")],
        ),
        ("a word that a plane does not have", &[("offset = 64", "offset = 64, k = 4")]),
        ("a plane of one-bit codes", &[("bits = 5", "bits = 1")]),
        (
            "a plane of trits",
            &[("bits = 5", "type = \"trit\""), ("stride = [16, 4]", "stride = [16, 8], digit = [0, 1]")],
        ),
    ];
    text += &answers("packings/p.toml", PLANES, planes, &[], of_tiles);
    golden("packings", &text);
}

const BOOK: &str =
    "doc = \"x\"\nentries = 4\nwidth = 2\nbits = 2\nvalues = [-1, 0, 1]\norigin = \"made up\"\n";

/// A format whose codes stand for entries of the codebook.
const FORMAT: &str = r#"doc = "x"
block = { elements = 16, bytes = 4 }
[[field]]
name = "q"
type = "u2"
layout = { shape = [8], stride = [2] }
[[field]]
name = "d"
type = "f16"
layout = { offset = 16 }
[value]
code = "q"
codebook = "b"
scale = ["d"]
"#;

#[test]
fn codebooks() {
    /// What it is, edits of the codebook's file, and the entries of its table.
    type Table<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u16]);
    let tables: &[Table<'_>] = &[
        ("as it stands", &[], &[0, 1, 6, 10]),
        ("an entry less", &[], &[0, 1, 6]),
        ("an entry more", &[], &[0, 1, 6, 9, 10]),
        ("an entry twice", &[], &[0, 1, 1, 10]),
        ("entries that descend", &[], &[0, 4, 1, 10]),
        ("a digit without a value", &[], &[0, 1, 6, 11]),
        ("a first digit without a value", &[], &[0, 1, 6, 14]),
        ("a bit behind the digits", &[], &[0, 1, 6, 16]),
        ("as many values as digits", &[("[-1, 0, 1]", "[-1, 0, 1, 5]")], &[0, 1, 6, 15]),
        ("a value more than digits", &[("[-1, 0, 1]", "[-1, 0, 1, 5, 6]")], &[0, 1, 6, 15]),
        ("no values", &[("[-1, 0, 1]", "[]")], &[0, 1, 6, 10]),
        (
            "all sixteen bits",
            &[("width = 2", "width = 8"), ("[-1, 0, 1]", "[-1, 0, 1, 5]")],
            &[0, 1, 6, 0xffff],
        ),
        ("more than thirty-two bits", &[("width = 2", "width = 17")], &[0, 1, 6, 10]),
        ("more than sixteen bits beside a table of sixteen", &[("width = 2", "width = 9")], &[0, 1, 6, 10]),
        ("a table here and one beside", &[("bits = 2", "bits = 2\ntable = [10, 1, 6, 1]")], &[0, 1, 6, 10]),
    ];
    let mut text = String::new();
    for (name, edits, table) in tables {
        let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let mut beside = super::shipped_of(&["/activations/"]);
        beside.push(source("codebooks/b.toml", super::edited(BOOK, edits)));
        beside.push(source("codebooks/b.u16.bin", bytes));
        // Eight codes of two elements, or two codes of eight in as many bits.
        let format = match edits.first() {
            Some((_, "width = 8")) => {
                FORMAT.replace("shape = [8], stride = [2]", "shape = [2], stride = [2]")
            }
            _ => FORMAT.to_owned(),
        };
        let format = match edits.first() {
            Some((_, "width = 8")) => {
                format.replace("bytes = 4 }", "bytes = 4 }\nunused = [{ offset = 4, bits = 12 }]")
            }
            _ => format,
        };
        let said = said(source("formats/x.toml", format), &beside, |set| {
            format!("{:?} {}", set.formats[0].value.map, of_format(&set.formats[0], set))
        });
        text += &format!("{name}\n{said}\n");
    }
    // Tables that stand in the file, and one of words.
    let here =
        |table: &str| source("codebooks/b.toml", BOOK.replace("bits = 2", &format!("bits = 2\n{table}")));
    let words: Vec<u8> =
        [0x2_6aaau32, 0, 0x1_5555, 0x2_8000].iter().flat_map(|entry| entry.to_le_bytes()).collect();
    let long = source("codebooks/b.toml", BOOK.replace("width = 2", "width = 9"));
    for (name, beside) in [
        ("a table here, in any order, an entry twice", vec![here("table = [10, 1, 0x6, 1]")]),
        ("a table here, an entry short", vec![here("table = [10, 1, 6]")]),
        ("a table here, an entry more", vec![here("table = [10, 1, 6, 0, 5]")]),
        ("a table here, with a digit without a value", vec![here("table = [10, 1, 6, 11]")]),
        ("a table here, with a number beyond words", vec![here("table = [10, 1, 6, 0x100000000]")]),
        ("a table here that is none", vec![here("table = 10")]),
        ("entries of eighteen bits", vec![long.clone(), source("codebooks/b.u32.bin", words.clone())]),
        ("entries of eighteen bits, two bytes short", vec![long, source("codebooks/b.u32.bin", &words[2..])]),
        ("entries of four bits in words", vec![here(""), source("codebooks/b.u32.bin", words)]),
    ] {
        let format = match name {
            "entries of eighteen bits" => FORMAT.replace("elements = 16", "elements = 72"),
            _ => FORMAT.to_owned(),
        };
        let mut all = super::shipped_of(&["/activations/"]);
        all.extend(beside);
        let said = said(source("formats/x.toml", format), &all, |set| {
            format!("{:?} {}", set.formats[0].value.map, of_format(&set.formats[0], set))
        });
        text += &format!("{name}\n{said}\n");
    }
    // Elements of an entry that are not neighbours: eight codes of two elements.
    for stride in ["1", "2", "4", "8", "16", "3", "0", "65537", "\"2\""] {
        let format = FORMAT.replace("scale =", &format!("stride = {stride}\nscale ="));
        let mut all = super::shipped_of(&["/activations/"]);
        all.push(here("table = [10, 1, 6, 0]"));
        let said = said(source("formats/x.toml", format), &all, |set| of_format(&set.formats[0], set));
        text += &format!("a stride of {stride}\n{said}\n");
    }
    // One without its table, and a table without its codebook.
    let book = source("codebooks/b.toml", BOOK);
    let table = |name: &str| source(&format!("codebooks/{name}.u16.bin"), [0u8, 0, 1, 0, 6, 0, 10, 0]);
    for (name, beside) in [("without its table", vec![]), ("a table of nobody", vec![table("b"), table("c")])]
    {
        let said = said(book.clone(), &beside, |_| String::new());
        text += &format!("{name}\n{said}\n");
    }
    golden("codebooks", &text);
}
