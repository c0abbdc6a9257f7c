//! Formats: bits of the block, digits of base 3, counts, ranges, factors, quantizers.

use super::{Case, answers, golden, of_format, shipped_of, source};

const Q4: &str = r#"doc = "x"
block = { elements = 32, bytes = 18 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "q"
type = "u4"
layout = { shape = [2, 16], stride = [4, 8], offset = 16 }
[value]
code = "q"
zero = 8
scale = ["d"]
"#;

#[test]
fn bits_of_a_block() {
    let cases: &[Case] = &[
        ("as it stands", &[]),
        ("a bit beyond", &[("offset = 16", "offset = 17")]),
        ("a bit into the scale", &[("offset = 16", "offset = 15")]),
        ("a bit before the block", &[("stride = [4, 8], offset = 16", "stride = [4, -8], offset = 119")]),
        ("two values at one bit", &[("stride = [4, 8]", "stride = [3, 8]")]),
        ("a byte more than fields", &[("bytes = 18", "bytes = 19")]),
        ("two holes", &[("bytes = 18", "bytes = 20"), ("offset = 16", "offset = 24")]),
        (
            "one hole said to be unused",
            &[("bytes = 18 }", "bytes = 19 }\nunused = [{ offset = 144, bits = 8 }]")],
        ),
        (
            "a hole but for its last bit",
            &[("bytes = 18 }", "bytes = 19 }\nunused = [{ offset = 144, bits = 7 }]")],
        ),
        (
            "a hole and a bit beyond",
            &[("bytes = 18 }", "bytes = 19 }\nunused = [{ offset = 144, bits = 9 }]")],
        ),
        (
            "a hole and a bit before",
            &[("bytes = 18 }", "bytes = 19 }\nunused = [{ offset = 143, bits = 9 }]")],
        ),
        (
            "two gaps that share a bit",
            &[(
                "bytes = 18 }",
                "bytes = 19 }\nunused = [{ offset = 144, bits = 5 }, { offset = 148, bits = 4 }]",
            )],
        ),
        ("two fields of one name", &[("name = \"d\"", "name = \"q\"")]),
    ];
    let text = answers("formats/x.toml", Q4, cases, &shipped_of(&["/activations/"]), |set| {
        of_format(&set.formats[0], set)
    });
    golden("bits", &text);
}

const TRITS: &str = r#"doc = "x"
block = { elements = 10, bytes = 2 }
[[field]]
name = "t"
type = "trit"
digits = "most-significant-first"
segments = [{ first = 0, shape = [2, 5], element = [5, 1], stride = [8, 0], digit = [0, 1], offset = 0 }]
[value]
code = "t"
zero = 1
scale = "tensor.f32"
"#;

#[test]
fn digits_that_share_bytes() {
    let cases: &[Case] = &[
        ("as it stands", &[]),
        (
            "the fifth digit and no more",
            &[("shape = [2, 5]", "shape = [2, 6]"), ("elements = 10", "elements = 12")],
        ),
        ("a byte before the block", &[("stride = [8, 0]", "stride = [-8, 0]")]),
        (
            "backwards from the last byte",
            &[("stride = [8, 0]", "stride = [-8, 0]"), ("offset = 0", "offset = 8")],
        ),
        ("a byte beyond the block", &[("offset = 0", "offset = 8")]),
        ("one digit twice", &[("digit = [0, 1]", "digit = [0, 0]")]),
        ("two bytes in one", &[("stride = [8, 0]", "stride = [0, 0]")]),
        ("one element twice", &[("element = [5, 1]", "element = [4, 1]")]),
        ("an element too many", &[("first = 0", "first = 1")]),
        (
            "fewer digits than bytes have",
            &[
                ("shape = [2, 5]", "shape = [2, 4]"),
                ("element = [5, 1]", "element = [4, 1]"),
                ("elements = 10", "elements = 8"),
            ],
        ),
        ("bytes that nobody owns", &[("bytes = 2", "bytes = 3")]),
        (
            "a number in the digits' byte",
            &[
                ("[value]", "[[field]]\nname = \"d\"\ntype = \"f16\"\nlayout = { offset = 8 }\n[value]"),
                ("scale = \"tensor.f32\"", "scale = [\"d\"]"),
            ],
        ),
        (
            "trits as a scale",
            &[
                (
                    "[value]",
                    "[[field]]\nname = \"s\"\ntype = \"trit\"\ndigits = \"most-significant-first\"\nsegments = [{ first = 0, shape = [5], element = [1], stride = [0], digit = [1], offset = 16 }]\n[value]",
                ),
                ("bytes = 2", "bytes = 3"),
                ("\"tensor.f32\"", "[\"s\"]"),
            ],
        ),
        (
            "three digits of base five",
            &[
                ("\"trit\"", "\"base5\""),
                ("shape = [2, 5], element = [5, 1]", "shape = [2, 3], element = [3, 1]"),
                ("elements = 10", "elements = 6"),
            ],
        ),
        ("five digits of base five", &[("\"trit\"", "\"base5\"")]),
        (
            "three digits of base seven",
            &[
                ("\"trit\"", "\"base7\""),
                ("shape = [2, 5], element = [5, 1]", "shape = [2, 3], element = [3, 1]"),
                ("elements = 10", "elements = 6"),
            ],
        ),
        (
            "five levels and six",
            &[
                ("\"trit\"", "\"base5\""),
                ("shape = [2, 5], element = [5, 1]", "shape = [2, 3], element = [3, 1]"),
                ("elements = 10", "elements = 6"),
                ("zero = 1", "levels = [0, 1, 2, 3, 4, 5]"),
            ],
        ),
        ("base fifteen, five digits", &[("\"trit\"", "\"base15\"")]),
        ("trits by another name", &[("\"trit\"", "\"base3\"")]),
        ("three bits by another name", &[("\"trit\"", "\"base8\"")]),
        ("one digit to a byte", &[("\"trit\"", "\"base16\"")]),
        ("a zero in front", &[("\"trit\"", "\"base05\"")]),
    ];
    let text = answers("formats/x.toml", TRITS, cases, &shipped_of(&["/activations/"]), |set| {
        of_format(&set.formats[0], set)
    });
    golden("digits", &text);
}

/// Runs with scales of their own, signs and shifts.
const RUNS: &str = r#"doc = "x"
block = { elements = 64, bytes = 46 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "s"
type = "u4"
layout = { shape = [4], stride = [4], offset = 16 }
[[field]]
name = "h"
type = "u1"
layout = { shape = [16], stride = [1], offset = 32 }
[[field]]
name = "g"
type = "u8"
layout = { shape = [8], stride = [8], offset = 48 }
[[field]]
name = "q"
type = "u4"
layout = { shape = [64], stride = [4], offset = 112 }
[value]
code = "q"
zero = 8
signs = "g"
shift = { field = "h", values = [-2, 3] }
scale = ["d", "s"]
"#;

#[test]
fn what_codes_and_factors_mean() {
    let cases: &[Case] = &[
        ("as it stands", &[]),
        ("no code of this name", &[("code = \"q\"", "code = \"p\"")]),
        ("codes that are numbers", &[("code = \"q\"", "code = \"d\"")]),
        ("signs that are numbers", &[("signs = \"g\"", "signs = \"d\"")]),
        ("signs with a bit too few", &[("type = \"u8\"", "type = \"u7\"")]),
        (
            "signs by parity",
            &[
                ("type = \"u8\"", "type = \"u7\""),
                ("signs = \"g\"", "signs = \"g\"\nsign_rule = \"parity\""),
                (
                    "[value]",
                    "[[field]]\nname = \"u\"\ntype = \"u1\"\nlayout = { shape = [8], stride = [8], offset = 55 }\n[value]",
                ),
            ],
        ),
        (
            "signs by parity with a bit too many",
            &[("signs = \"g\"", "signs = \"g\"\nsign_rule = \"parity\"")],
        ),
        ("a shift by a number", &[("field = \"h\"", "field = \"d\"")]),
        ("a value of the shift too few", &[("values = [-2, 3]", "values = [-2]")]),
        ("a value of the shift too many", &[("values = [-2, 3]", "values = [-2, 3, 4]")]),
        ("the largest integers", &[("values = [-2, 3]", "values = [-32760, 32759]")]),
        ("one above the largest", &[("values = [-2, 3]", "values = [-32760, 32760]")]),
        ("one below the smallest", &[("values = [-2, 3]", "values = [-32761, 32759]")]),
        (
            "the largest without signs",
            &[("signs = \"g\"\n", ""), ("values = [-2, 3]", "values = [-32760, 32760]")],
        ),
        (
            "one above without signs",
            &[("signs = \"g\"\n", ""), ("values = [-2, 3]", "values = [-32760, 32761]")],
        ),
        (
            "one below without signs",
            &[("signs = \"g\"\n", ""), ("values = [-2, 3]", "values = [-32761, 32760]")],
        ),
        ("without a shift", &[("shift = { field = \"h\", values = [-2, 3] }\n", "")]),
        ("without signs", &[("signs = \"g\"\n", "")]),
        ("signs of levels that lean down", &[("zero = 8", "levels = [-9, 1, 4]")]),
        ("codes as a scale", &[("[\"d\", \"s\"]", "[\"d\", \"q\"]")]),
        ("a scale of no name", &[("[\"d\", \"s\"]", "[\"d\", \"zzzz\"]")]),
        (
            "a scale of a name nearly right",
            &[("name = \"s\"", "name = \"scales\""), ("[\"d\", \"s\"]", "[\"d\", \"scale\"]")],
        ),
        ("a row's and the block's scale", &[("[\"d\", \"s\"]", "[\"row.bf16\", \"d\", \"s\"]")]),
        ("a scale at no place", &[("[\"d\", \"s\"]", "[\"column.f32\", \"d\", \"s\"]")]),
        ("a scale of no type", &[("[\"d\", \"s\"]", "[\"row.i8\", \"d\", \"s\"]")]),
        (
            "a row's number of two types",
            &[("scale = [\"d\", \"s\"]", "scale = [\"row.f32\", \"d\", \"s\"]\nadd = [\"row.f16\", \"d\"]")],
        ),
        (
            "a row's number twice",
            &[("scale = [\"d\", \"s\"]", "scale = [\"row.f32\", \"d\", \"s\"]\nadd = [\"row.f32\", \"d\"]")],
        ),
        ("`plus` of a factor", &[("name = \"s\"", "name = \"s\"\nplus = 1")]),
        (
            "`plus` of what is added",
            &[
                ("name = \"s\"", "name = \"s\"\nplus = 1"),
                ("scale = [\"d\", \"s\"]", "scale = [\"d\"]\nadd = [\"d\", \"s\"]"),
            ],
        ),
        (
            "`plus` of what is subtracted",
            &[
                ("name = \"s\"", "name = \"s\"\nplus = 1"),
                ("scale = [\"d\", \"s\"]", "scale = [\"d\"]\nsubtract = [\"d\", \"s\"]"),
            ],
        ),
        ("`plus` of signs", &[("name = \"g\"", "name = \"g\"\nplus = 1")]),
        ("`times` of a float", &[("name = \"d\"", "name = \"d\"\ntimes = 2")]),
        ("a field that nobody reads", &[("[\"d\", \"s\"]", "[\"d\"]")]),
        ("signs that nobody reads", &[("signs = \"g\"\n", ""), ("[\"d\", \"s\"]", "[\"d\"]")]),
        (
            "values that do not divide the block",
            &[
                ("shape = [4], stride = [4], offset = 16", "shape = [3], stride = [4], offset = 16"),
                ("bytes = 46 }", "bytes = 46 }\nunused = [{ offset = 28, bits = 4 }]"),
            ],
        ),
        ("codes that are fewer than elements", &[("elements = 64", "elements = 128")]),
        (
            "levels as many as codes",
            &[("zero = 8", "levels = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]")],
        ),
        (
            "levels one more than codes",
            &[("zero = 8", "levels = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]")],
        ),
        (
            "levels of signed codes",
            &[
                ("type = \"u4\"\nlayout = { shape = [64]", "type = \"i4\"\nlayout = { shape = [64]"),
                ("zero = 8", "levels = [0, 1]"),
            ],
        ),
        ("an unknown codebook", &[("zero = 8", "codebook = \"nowhere\"")]),
        ("a codebook with more entries than codes", &[("zero = 8", "codebook = \"iq3s_grid\"")]),
        ("activations for each 256", &[("bytes = 46 }", "bytes = 46 }\nactivations = \"q8_k\"")]),
        ("activations of a row", &[("bytes = 46 }", "bytes = 46 }\nactivations = \"int8_row\"")]),
    ];
    let text =
        answers("formats/x.toml", RUNS, cases, &shipped_of(&["/activations/", "/codebooks/"]), |set| {
            of_format(&set.formats[0], set)
        });
    golden("values", &text);
}

const TAIL: &str = r#"doc = "x"
block = { elements = 8, bytes = 4 }
tail_bytes = 4
[[field]]
name = "q"
type = "u4"
layout = { shape = [8], stride = [4] }
[value]
code = "q"
scale = "tensor.f32"
"#;

#[test]
fn numbers_outside_blocks() {
    let cases: &[Case] = &[
        ("exactly as long as its number", &[]),
        ("a byte less", &[("tail_bytes = 4", "tail_bytes = 3")]),
        ("a byte more", &[("tail_bytes = 4", "tail_bytes = 5")]),
        ("as long as it is unless stated", &[("tail_bytes = 4\n", "")]),
        ("two bytes for a half", &[("tail_bytes = 4\n", ""), ("tensor.f32", "tensor.f16")]),
        ("stated without a number", &[("tensor.f32", "row.f32")]),
        ("a row's number", &[("tail_bytes = 4\n", ""), ("tensor.f32", "row.bf16")]),
        ("a number of eight bits", &[("tail_bytes = 4\n", ""), ("tensor.f32", "tensor.e8m0-half")]),
    ];
    let text = answers("formats/x.toml", TAIL, cases, &shipped_of(&["/activations/"]), |set| {
        of_format(&set.formats[0], set)
    });
    golden("tails", &text);
}

const ROUNDED: &str = r#"doc = "x"
block = { elements = 32, bytes = 18 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "q"
type = "u4"
layout = { shape = [32], stride = [4], offset = 16 }
[value]
code = "q"
zero = 8
scale = ["d"]
[[quantize]]
name = "a"
scale = "absmax"
levels = 7
round = "half-away"
clamp = [-8, 7]
"#;

#[test]
fn quantizers_that_round() {
    let cases: &[Case] = &[
        ("to every code", &[]),
        ("one above the codes", &[("clamp = [-8, 7]", "clamp = [-8, 8]")]),
        ("one below the codes", &[("clamp = [-8, 7]", "clamp = [-9, 7]")]),
        ("to what the codes hold", &[("clamp = [-8, 7]\n", "")]),
        ("to one integer", &[("clamp = [-8, 7]", "clamp = [3, 3]")]),
        ("by sign", &[("half-away", "sign")]),
        ("by sign, both held", &[("half-away", "sign"), ("clamp = [-8, 7]", "clamp = [0, 1]")]),
        (
            "by sign, without a code for 1",
            &[("half-away", "sign"), ("zero = 8", "zero = 15"), ("clamp = [-8, 7]\n", "")],
        ),
        (
            "by sign, without a code for -1",
            &[("half-away", "sign"), ("zero = 8", "zero = 0"), ("clamp = [-8, 7]", "clamp = [-1, 1]")],
        ),
        ("over a gap in the levels", &[("zero = 8", "levels = [-2, 0, 1, 2]"), ("clamp = [-8, 7]\n", "")]),
        ("over levels in any order", &[("zero = 8", "levels = [2, 0, 1, -1, 1]"), ("clamp = [-8, 7]\n", "")]),
        ("half up with codes that count", &[("half-away", "half-up")]),
        (
            "half up with every other integer",
            &[
                ("half-away", "half-up"),
                ("zero = 8", "zero = 8\ntimes = 2"),
                ("clamp = [-8, 7]", "clamp = [0, 0]"),
            ],
        ),
        (
            "nearest with every other integer",
            &[("zero = 8", "zero = 8\ntimes = 2"), ("clamp = [-8, 7]", "clamp = [0, 0]")],
        ),
        ("without a scale", &[("scale = [\"d\"]\n", "")]),
        ("with two scales", &[("scale = [\"d\"]", "scale = [\"d\", \"row.f32\"]")]),
        ("with what is added", &[("scale = [\"d\"]", "scale = [\"d\"]\nadd = [\"d\"]")]),
        ("with what is subtracted", &[("scale = [\"d\"]", "scale = [\"d\"]\nsubtract = [\"d\"]")]),
        ("with a unit", &[("scale = [\"d\"]", "scale = [\"d\"]\nunit = 0.5")]),
        ("with a row's scale", &[("scale = [\"d\"]", "scale = [\"row.f32\"]")]),
        ("with a bf16", &[("type = \"f16\"", "type = \"bf16\"")]),
        (
            "with an f32",
            &[
                ("type = \"f16\"", "type = \"f32\""),
                ("bytes = 18", "bytes = 20"),
                ("offset = 16", "offset = 32"),
            ],
        ),
        ("with an integer for a scale", &[("type = \"f16\"", "type = \"u16\"")]),
        (
            "with two numbers for a scale",
            &[
                ("type = \"f16\"", "type = \"f16\"\nlayout = { shape = [2], stride = [16] }"),
                ("bytes = 18", "bytes = 20"),
                ("offset = 16", "offset = 32"),
            ],
        ),
        (
            "with a shift",
            &[
                ("zero = 8", "zero = 8\nshift = { field = \"h\", values = [0, 1] }"),
                (
                    "[value]",
                    "[[field]]\nname = \"h\"\ntype = \"u1\"\nlayout = { shape = [8], stride = [1], offset = 144 }\n[value]",
                ),
                ("bytes = 18", "bytes = 19"),
            ],
        ),
        (
            "with signs",
            &[
                ("zero = 8", "signs = \"h\""),
                (
                    "[value]",
                    "[[field]]\nname = \"h\"\ntype = \"u8\"\nlayout = { shape = [4], stride = [8], offset = 144 }\n[value]",
                ),
                ("bytes = 18", "bytes = 22"),
            ],
        ),
        (
            "two of one name",
            &[(
                "clamp = [-8, 7]\n",
                "clamp = [-8, 7]\n[[quantize]]\nname = \"a\"\nscale = \"absmax\"\nround = \"half-even\"\n",
            )],
        ),
        (
            "two of two names",
            &[(
                "clamp = [-8, 7]\n",
                "clamp = [-8, 7]\n[[quantize]]\nname = \"b\"\nscale = \"absmax\"\nround = \"half-even\"\n",
            )],
        ),
        ("signed codes", &[("\"u4\"", "\"i4\""), ("zero = 8\n", "")]),
        ("codes from 0 to half up", &[("\"half-away\"", "\"half-up\"")]),
        (
            "the same by levels",
            &[("\"half-away\"", "\"half-up\""), ("zero = 8", "levels = [0, 1]"), ("[-8, 7]", "[0, 1]")],
        ),
        (
            "signed codes from -1, half up",
            &[
                ("\"half-away\"", "\"half-up\""),
                ("\"u4\"", "\"i4\""),
                ("zero = 8\n", ""),
                ("[-8, 7]", "[-1, 7]"),
            ],
        ),
        (
            "signed codes from 0, half up",
            &[
                ("\"half-away\"", "\"half-up\""),
                ("\"u4\"", "\"i4\""),
                ("zero = 8\n", ""),
                ("[-8, 7]", "[0, 7]"),
            ],
        ),
        ("a floor of a signed statistic", &[("\"absmax\"\n", "\"signed-absmax\"\nfloor = 1e-5\n")]),
        ("no floor of a signed statistic", &[("\"absmax\"\n", "\"signed-absmax\"\nfloor = 0\n")]),
        ("a floor of a magnitude", &[("\"absmax\"\n", "\"absmax\"\nfloor = 1e-5\n")]),
        (
            "signed codes, one below",
            &[("\"u4\"", "\"i4\""), ("zero = 8\n", ""), ("clamp = [-8, 7]", "clamp = [-9, 7]")],
        ),
        (
            "signed codes, one above",
            &[("\"u4\"", "\"i4\""), ("zero = 8\n", ""), ("clamp = [-8, 7]", "clamp = [-8, 8]")],
        ),
    ];
    let text = answers("formats/x.toml", ROUNDED, cases, &shipped_of(&["/activations/"]), |set| {
        of_format(&set.formats[0], set)
    });
    golden("rounding", &text);
}

/// Names and type ids that two files share.
#[test]
fn two_files() {
    let with_id = Q4.replace("doc = \"x\"", "doc = \"x\"\ngguf = 99");
    let beside = |text: &str| {
        let mut beside = shipped_of(&["/activations/"]);
        beside.push(source("formats/first.toml", text));
        beside
    };
    let mut text = String::new();
    for (name, path, other) in [
        ("another name", "formats/x.toml", Q4.to_owned()),
        ("one type id", "formats/x.toml", with_id.clone()),
        ("two type ids", "formats/x.toml", with_id.replace("99", "98")),
        ("one name", "more/formats/first.toml", Q4.to_owned()),
        ("one name and one type id", "more/formats/first.toml", with_id.clone()),
    ] {
        let said = super::said(source(path, other), &beside(&with_id), |set| {
            set.formats.iter().map(|format| format!("{} {:?}, ", format.name, format.gguf)).collect()
        });
        text += &format!("{name}\n{said}\n");
    }
    golden("two_files", &text);
}

/// A scale for each run, beside activations with one for each of theirs.
#[test]
fn runs_beside_blocks_of_activations() {
    let mut text = String::new();
    for (elements, count) in
        [(64, 1), (64, 2), (64, 4), (96, 1), (96, 2), (96, 6), (256, 1), (256, 16), (512, 1), (48, 1)]
    {
        let bits = 16 * count + 4 * elements;
        let spec = Q4
            .replace("elements = 32, bytes = 18", &format!("elements = {elements}, bytes = {}", bits / 8))
            .replace(
                "type = \"f16\"",
                &format!("type = \"f16\"\nlayout = {{ shape = [{count}], stride = [16] }}"),
            )
            .replace(
                "shape = [2, 16], stride = [4, 8], offset = 16",
                &format!("shape = [{elements}], stride = [4], offset = {}", 16 * count),
            );
        for activations in ["", "int8_row", "q8_0", "q8_k"] {
            let stated = match activations {
                "" => spec.clone(),
                name => {
                    spec.replacen(" }\n[[field]]", &format!(" }}\nactivations = \"{name}\"\n[[field]]"), 1)
                }
            };
            let said =
                super::said(source("formats/x.toml", stated), &shipped_of(&["/activations/"]), |set| {
                    set.activations[set.formats[0].activations].name.clone()
                });
            text += &format!("{elements} elements, {count} scales, activations `{activations}`\n{said}\n");
        }
    }
    golden("activations", &text);
}
