//! Quantizers that search: the structure that each algorithm needs, one part of it wrong at a time.

use super::{Case, answers, golden, of_format, shipped_of};

fn compare(name: &str, base: &str, cases: &[Case]) {
    let beside = shipped_of(&["/activations/", "/codebooks/"]);
    let text = answers("formats/x.toml", base, cases, &beside, |set| of_format(&set.formats[0], set));
    golden(name, &text);
}

/// Codes from 0 with a scale and a minimum.
const AFFINE: &str = r#"doc = "x"
block = { elements = 32, bytes = 20 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "m"
type = "f16"
layout = { offset = 16 }
[[field]]
name = "q"
type = "u4"
layout = { shape = [32], stride = [4], offset = 32 }
[value]
code = "q"
scale = ["d"]
add = ["m"]
[[quantize]]
name = "s"
algorithm = "min-max"
"#;

#[test]
fn min_max() {
    compare(
        "search_min_max",
        AFFINE,
        &[
            ("as it stands", &[]),
            ("codes that do not count from 0", &[("scale = ", "zero = 1\nscale = ")]),
            ("codes that count by two", &[("scale = ", "times = 2\nscale = ")]),
            ("signed codes", &[("\"u4\"", "\"i4\"")]),
            ("nothing added", &[("add = [\"m\"]\n", "")]),
            ("something subtracted", &[("add = [\"m\"]", "subtract = [\"m\"]")]),
            ("both", &[("add = [\"m\"]", "add = [\"m\"]\nsubtract = [\"m\"]")]),
            ("two numbers added", &[("add = [\"m\"]", "add = [\"d\", \"m\"]")]),
            ("two numbers as scale", &[("scale = [\"d\"]", "scale = [\"d\", \"m\"]")]),
            ("a row's number as scale", &[("scale = [\"d\"]", "scale = [\"row.f32\"]")]),
            ("an integer as scale", &[("name = \"d\"\ntype = \"f16\"", "name = \"d\"\ntype = \"u16\"")]),
            ("bf16 and f16", &[("name = \"d\"\ntype = \"f16\"", "name = \"d\"\ntype = \"bf16\"")]),
            (
                "two minima",
                &[
                    (
                        "name = \"m\"\ntype = \"f16\"\nlayout = { offset = 16 }",
                        "name = \"m\"\ntype = \"f16\"\nlayout = { shape = [2], stride = [16], offset = 16 }",
                    ),
                    ("offset = 32", "offset = 48"),
                    ("bytes = 20", "bytes = 22"),
                ],
            ),
            ("a unit", &[("scale = ", "unit = 0.5\nscale = ")]),
            (
                "signs",
                &[
                    ("scale = ", "signs = \"g\"\nscale = "),
                    (
                        "[value]",
                        "[[field]]\nname = \"g\"\ntype = \"u8\"\nlayout = { shape = [4], stride = [8], offset = 160 }\n[value]",
                    ),
                    ("bytes = 20", "bytes = 24"),
                ],
            ),
            (
                "a shift",
                &[
                    ("scale = ", "shift = { field = \"g\", values = [0, 1] }\nscale = "),
                    (
                        "[value]",
                        "[[field]]\nname = \"g\"\ntype = \"u1\"\nlayout = { shape = [32], stride = [1], offset = 160 }\n[value]",
                    ),
                    ("bytes = 20", "bytes = 24"),
                ],
            ),
        ],
    );
}

const MEAN: &str = r#"doc = "x"
block = { elements = 32, bytes = 6 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "q"
type = "u1"
layout = { shape = [32], stride = [1], offset = 16 }
[value]
code = "q"
times = 2
zero = 1
scale = ["d"]
[[quantize]]
name = "s"
algorithm = "mean"
"#;

#[test]
fn mean() {
    compare(
        "search_mean",
        MEAN,
        &[
            ("as it stands", &[]),
            (
                "codes of two bits",
                &[
                    (
                        "\"u1\"\nlayout = { shape = [32], stride = [1]",
                        "\"u2\"\nlayout = { shape = [32], stride = [2]",
                    ),
                    ("bytes = 6", "bytes = 10"),
                ],
            ),
            ("another zero", &[("zero = 1", "zero = 0")]),
            ("another step", &[("times = 2", "times = 1")]),
            ("by the step back", &[("times = 2", "times = -2"), ("zero = 1", "zero = -1")]),
            ("something added", &[("scale = [\"d\"]", "scale = [\"d\"]\nadd = [\"d\"]")]),
            ("something subtracted", &[("scale = [\"d\"]", "scale = [\"d\"]\nsubtract = [\"d\"]")]),
            ("two scales", &[("scale = [\"d\"]", "scale = [\"d\", \"d\"]")]),
        ],
    );
}

/// Two runs of sixteen with a scale of their own.
const RUNS: &str = r#"doc = "x"
block = { elements = 32, bytes = 22 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "m"
type = "f16"
layout = { offset = 16 }
[[field]]
name = "s"
type = "u4"
layout = { shape = [2], stride = [4], offset = 32 }
[[field]]
name = "n"
type = "u4"
layout = { shape = [2], stride = [4], offset = 40 }
[[field]]
name = "q"
type = "u4"
layout = { shape = [32], stride = [4], offset = 48 }
[value]
code = "q"
scale = ["d", "s"]
subtract = ["m", "n"]
[[quantize]]
name = "s"
algorithm = "k-min"
weights = "abs"
metric = "square"
start = -0.5
steps = 15
"#;

#[test]
fn runs_with_minima() {
    compare(
        "search_k_min",
        RUNS,
        &[
            ("as it stands", &[]),
            (
                "minima for other runs",
                &[
                    (
                        "layout = { shape = [2], stride = [4], offset = 40 }",
                        "layout = { shape = [1], stride = [4], offset = 40 }",
                    ),
                    ("bytes = 22 }", "bytes = 22 }\nunused = [{ offset = 44, bits = 4 }]"),
                ],
            ),
            ("minima that are added", &[("subtract = ", "add = ")]),
            ("no minima", &[("subtract = [\"m\", \"n\"]\n", "")]),
            ("something added besides", &[("subtract = ", "add = [\"m\"]\nsubtract = ")]),
            ("codes from 1", &[("scale = ", "zero = -1\nscale = ")]),
            ("codes by two", &[("scale = ", "times = 2\nscale = ")]),
            ("signed scales of runs", &[("name = \"s\"\ntype = \"u4\"", "name = \"s\"\ntype = \"i4\"")]),
            ("signed minima of runs", &[("name = \"n\"\ntype = \"u4\"", "name = \"n\"\ntype = \"i4\"")]),
            ("scales that reach below 0", &[("name = \"s\"", "name = \"s\"\nplus = -1")]),
            ("scales from 1", &[("name = \"s\"", "name = \"s\"\nplus = 1")]),
            ("scales by two", &[("name = \"s\"", "name = \"s\"\ntimes = 2")]),
            ("scales by two from 1", &[("name = \"s\"", "name = \"s\"\ntimes = 2\nplus = 1")]),
            ("scales that descend", &[("name = \"s\"", "name = \"s\"\ntimes = -1\nplus = 15")]),
            ("scales that are never positive", &[("name = \"s\"", "name = \"s\"\ntimes = -1")]),
            ("the runs' part first", &[("[\"d\", \"s\"]", "[\"s\", \"d\"]")]),
            ("a float for each run", &[("[\"d\", \"s\"]", "[\"d\", \"m\"]")]),
            ("a row's number for each run", &[("[\"d\", \"s\"]", "[\"d\", \"row.f32\"]")]),
            ("three numbers", &[("[\"d\", \"s\"]", "[\"d\", \"m\", \"s\"]")]),
        ],
    );
}

/// The same without minima, scales with their signs.
const SIGNED: &str = r#"doc = "x"
block = { elements = 32, bytes = 20 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "s"
type = "i8"
layout = { shape = [2], stride = [8], offset = 16 }
[[field]]
name = "q"
type = "u4"
layout = { shape = [32], stride = [4], offset = 32 }
[value]
code = "q"
zero = 8
scale = ["d", "s"]
[[quantize]]
name = "s"
algorithm = "k-refine"
steps = 5
"#;

#[test]
fn runs_with_signed_scales() {
    compare(
        "search_k_refine",
        SIGNED,
        &[
            ("as it stands", &[]),
            ("by a scan", &[("k-refine", "k-scan")]),
            ("codes from -7", &[("zero = 8", "zero = 7")]),
            ("codes from -9", &[("zero = 8", "zero = 9")]),
            ("codes by two", &[("zero = 8", "zero = 8\ntimes = 2")]),
            ("scales without signs", &[("\"i8\"", "\"u8\"")]),
            ("scales from -1", &[("\"i8\"", "\"u8\""), ("name = \"s\"", "name = \"s\"\nplus = -1")]),
            ("scales up to -1", &[("name = \"s\"", "name = \"s\"\nplus = -128")]),
            ("scales up to 0", &[("name = \"s\"", "name = \"s\"\nplus = -127")]),
            ("scales from 0", &[("name = \"s\"", "name = \"s\"\nplus = 128")]),
            ("scales by two", &[("name = \"s\"", "name = \"s\"\ntimes = 2")]),
            ("one scale", &[("[\"d\", \"s\"]", "[\"d\"]")]),
            ("something added", &[("scale = [\"d\", \"s\"]", "scale = [\"d\", \"s\"]\nadd = [\"d\"]")]),
        ],
    );
}

#[test]
fn levels() {
    const LEVELS: &str = "levels = [-9, -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6]";
    compare(
        "search_levels",
        SIGNED,
        &[
            ("no levels", &[("k-refine", "level-scan")]),
            ("as many as codes", &[("k-refine", "level-scan"), ("zero = 8", LEVELS)]),
            ("two", &[("k-refine", "level-scan"), ("zero = 8", "levels = [-1, 1]")]),
            ("one", &[("k-refine", "level-scan"), ("zero = 8", "levels = [-1]")]),
            ("one beyond the first", &[("k-refine", "level-scan"), ("zero = 8", "levels = [-2, 1, 3]")]),
            ("from 0", &[("k-refine", "level-scan"), ("zero = 8", "levels = [0, 1]")]),
            ("from a positive one", &[("k-refine", "level-scan"), ("zero = 8", "levels = [1, 2]")]),
            ("one twice", &[("k-refine", "level-scan"), ("zero = 8", "levels = [-1, 0, 0]")]),
            ("that descend", &[("k-refine", "level-scan"), ("zero = 8", "levels = [-1, 1, 0]")]),
            (
                "with one scale",
                &[("k-refine", "level-scan"), ("zero = 8", LEVELS), ("[\"d\", \"s\"]", "[\"d\"]")],
            ),
            (
                "with one integer as scale",
                &[("k-refine", "level-scan"), ("zero = 8", LEVELS), ("[\"d\", \"s\"]", "[\"s\"]")],
            ),
            (
                "with three scales",
                &[
                    ("k-refine", "level-scan"),
                    ("zero = 8", LEVELS),
                    ("[\"d\", \"s\"]", "[\"d\", \"d\", \"s\"]"),
                ],
            ),
        ],
    );
}

/// Scales that are exponents.
const NEAREST: &str = r#"doc = "x"
block = { elements = 32, bytes = 18 }
[[field]]
name = "d"
type = "e8m0-half"
layout = { shape = [2], stride = [8] }
[[field]]
name = "q"
type = "u4"
layout = { shape = [32], stride = [4], offset = 16 }
[value]
code = "q"
levels = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
unit = 2
scale = ["d"]
[[quantize]]
name = "s"
algorithm = "nearest-level"
"#;

#[test]
fn nearest_level() {
    compare(
        "search_nearest",
        NEAREST,
        &[
            ("with a unit", &[]),
            ("as it stands", &[("unit = 2\n", "")]),
            ("half of e4m3", &[("unit = 2\n", ""), ("e8m0-half", "ue4m3-half")]),
            (
                "a float",
                &[("unit = 2\n", ""), ("\"e8m0-half\"\nlayout = { shape = [2], stride = [8] }", "\"f16\"")],
            ),
            ("an integer", &[("unit = 2\n", ""), ("e8m0-half", "u8")]),
            ("a first level that is not 0", &[("unit = 2\n", ""), ("[0, 1, 2", "[1, 0, 2")]),
            ("no positive level", &[("unit = 2\n", ""), ("[0, 1, 2, 3, 4, 6, 8, 12, 0,", "[0,")]),
            ("one positive level", &[("unit = 2\n", ""), ("[0, 1, 2, 3, 4, 6, 8, 12, 0,", "[0, 1,")]),
            (
                "only 0",
                &[("unit = 2\n", ""), ("[0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]", "[0]")],
            ),
            (
                "no levels",
                &[
                    ("unit = 2\n", ""),
                    ("levels = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]", "zero = 8"),
                ],
            ),
            ("two scales", &[("unit = 2\n", ""), ("[\"d\"]", "[\"d\", \"d\"]")]),
            ("a row's scale", &[("unit = 2\n", ""), ("[\"d\"]", "[\"row.f32\"]")]),
        ],
    );
}

/// Codes of four magnitudes each, signs apart.
const GRID: &str = r#"doc = "x"
block = { elements = 32, bytes = 15 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "s"
type = "u4"
plus = 1
layout = { shape = [2], stride = [4], offset = 16 }
[[field]]
name = "g"
type = "u8"
layout = { shape = [4], stride = [8], offset = 24 }
[[field]]
name = "q"
type = "u8"
layout = { shape = [8], stride = [8], offset = 56 }
[value]
code = "q"
codebook = "iq3xxs_grid"
signs = "g"
unit = 0.5
scale = ["d", "s"]
[[quantize]]
name = "s"
algorithm = "grid-search"
steps = 9
"#;

/// The integers of its runs behind all else, in so many bits.
const OF_BITS_8: [(&str, &str); 2] = [
    (
        "\"u4\"\nplus = 1\nlayout = { shape = [2], stride = [4], offset = 16 }",
        "\"u8\"\nplus = 1\nlayout = { shape = [2], stride = [8], offset = 120 }",
    ),
    ("bytes = 15 }", "bytes = 17 }\nunused = [{ offset = 16, bits = 8 }]"),
];
const OF_BITS_9: [(&str, &str); 2] = [
    (
        "\"u4\"\nplus = 1\nlayout = { shape = [2], stride = [4], offset = 16 }",
        "\"u9\"\nplus = 1\nlayout = { shape = [2], stride = [12], offset = 120 }",
    ),
    (
        "bytes = 15 }",
        "bytes = 18 }\nunused = [{ offset = 16, bits = 8 }, { offset = 129, bits = 3 }, { offset = 141, bits = 3 }]",
    ),
];

#[test]
fn grids() {
    compare(
        "search_grid",
        GRID,
        &[
            ("as it stands", &[]),
            ("by two", &[("signs = ", "times = 2\nsigns = ")]),
            ("by minus one", &[("signs = ", "times = -1\nsigns = ")]),
            ("no codebook", &[("codebook = \"iq3xxs_grid\"", "zero = 0")]),
            ("no signs", &[("signs = \"g\"\n", "")]),
            ("integers from 0", &[("plus = 1\n", "")]),
            ("integers from 1 down", &[("plus = 1\n", "plus = 1\ntimes = -1\n")]),
            ("integers from 16 down to 1", &[("plus = 1\n", "plus = 16\ntimes = -1\n")]),
            ("signed integers from 1", &[("type = \"u4\"\nplus = 1", "type = \"i4\"\nplus = 9")]),
            ("signed integers from 0", &[("type = \"u4\"\nplus = 1", "type = \"i4\"\nplus = 8")]),
            ("256 integers", &OF_BITS_8),
            ("512 integers", &OF_BITS_9),
            (
                "signs of sixteen elements",
                &[(
                    "type = \"u8\"\nlayout = { shape = [4], stride = [8], offset = 24 }",
                    "type = \"u16\"\nlayout = { shape = [2], stride = [16], offset = 24 }",
                )],
            ),
            (
                "a shift",
                &[
                    ("unit = 0.5", "unit = 0.5\nshift = { field = \"h\", values = [0, 1] }"),
                    (
                        "[value]",
                        "[[field]]\nname = \"h\"\ntype = \"u1\"\nlayout = { shape = [8], stride = [1], offset = 120 }\n[value]",
                    ),
                    ("bytes = 15", "bytes = 16"),
                ],
            ),
            ("elements apart", &[("signs = ", "stride = 2\nsigns = ")]),
            ("something added", &[("scale = [\"d\", \"s\"]", "scale = [\"d\", \"s\"]\nadd = [\"d\"]")]),
            (
                "something subtracted",
                &[("scale = [\"d\", \"s\"]", "scale = [\"d\", \"s\"]\nsubtract = [\"d\"]")],
            ),
            ("one scale", &[("plus = 1\n", ""), ("[\"d\", \"s\"]", "[\"d\"]")]),
            (
                "runs of half a group",
                &[
                    (
                        "name = \"s\"\ntype = \"u4\"\nplus = 1\nlayout = { shape = [2], stride = [4], offset = 16 }",
                        "name = \"s\"\ntype = \"u4\"\nplus = 1\nlayout = { shape = [16], stride = [4], offset = 120 }",
                    ),
                    ("bytes = 15 }", "bytes = 23 }\nunused = [{ offset = 16, bits = 8 }]"),
                ],
            ),
            (
                "runs of one group",
                &[
                    (
                        "name = \"s\"\ntype = \"u4\"\nplus = 1\nlayout = { shape = [2], stride = [4], offset = 16 }",
                        "name = \"s\"\ntype = \"u4\"\nplus = 1\nlayout = { shape = [8], stride = [4], offset = 120 }",
                    ),
                    ("bytes = 15 }", "bytes = 19 }\nunused = [{ offset = 16, bits = 8 }]"),
                ],
            ),
            (
                "a codebook with negative values",
                &[
                    ("iq3xxs_grid", "iq1s_grid"),
                    (
                        "type = \"u8\"\nlayout = { shape = [8], stride = [8], offset = 56 }",
                        "type = \"u11\"\nlayout = { shape = [4], stride = [11], offset = 56 }",
                    ),
                    ("bytes = 15 }", "bytes = 13 }\nunused = [{ offset = 100, bits = 4 }]"),
                ],
            ),
        ],
    );
}

/// Eight codes of eight elements, two runs, four shifts.
const SHIFTED: &str = r#"doc = "x"
block = { elements = 64, bytes = 15 }
unused = [{ offset = 118, bits = 2 }]
[[field]]
name = "d"
type = "f16"
[[field]]
name = "q"
type = "u11"
layout = { shape = [8], stride = [11], offset = 16 }
[[field]]
name = "s"
type = "u3"
layout = { shape = [2], stride = [3], offset = 104 }
times = 2
plus = 1
[[field]]
name = "h"
type = "u1"
layout = { shape = [8], stride = [1], offset = 110 }
[value]
code = "q"
codebook = "iq1s_grid"
shift = { field = "h", values = [1, -1] }
unit = 0.5
scale = ["d", "s"]
[[quantize]]
name = "s"
algorithm = "grid-search"
steps = 9
"#;

#[test]
fn shifted_grids() {
    compare(
        "search_shifted",
        SHIFTED,
        &[
            ("as it stands", &[]),
            ("neither shift nor signs", &[("shift = { field = \"h\", values = [1, -1] }\n", "")]),
            (
                "shift and signs",
                &[
                    ("unit = 0.5", "signs = \"g\""),
                    ("bytes = 15 }", "bytes = 23 }"),
                    (
                        "[value]",
                        "[[field]]\nname = \"g\"\ntype = \"u8\"\nlayout = { shape = [8], stride = [8], offset = 120 }\n[value]",
                    ),
                ],
            ),
            ("elements apart", &[("unit = 0.5", "stride = 2")]),
            (
                "a shift for each run",
                &[
                    (
                        "layout = { shape = [8], stride = [1], offset = 110 }",
                        "layout = { shape = [2], stride = [1], offset = 110 }",
                    ),
                    ("{ offset = 118, bits = 2 }", "{ offset = 112, bits = 8 }"),
                ],
            ),
            (
                "a shift for two runs",
                &[
                    ("layout = { shape = [8], stride = [1], offset = 110 }", "layout = { offset = 110 }"),
                    ("{ offset = 118, bits = 2 }", "{ offset = 111, bits = 9 }"),
                ],
            ),
            ("one scale", &[("[\"d\", \"s\"]", "[\"d\"]")]),
            ("something added", &[("scale = [\"d\", \"s\"]", "scale = [\"d\", \"s\"]\nadd = [\"d\"]")]),
        ],
    );
}

const BOOK: &str = r#"doc = "x"
block = { elements = 32, bytes = 8 }
[[field]]
name = "d"
type = "f16"
[[field]]
name = "q"
type = "u5"
layout = { shape = [8], stride = [5], offset = 16 }
[[field]]
name = "g"
type = "u1"
layout = { shape = [8], stride = [1], offset = 56 }
[value]
code = "q"
codebook = "stq1_0"
stride = 4
scale = ["d"]
[[quantize]]
name = "s"
algorithm = "alternating"
steps = 3
"#;

#[test]
fn alternating() {
    compare(
        "search_alternating",
        BOOK,
        &[
            ("as it stands, with a field that nobody reads", &[]),
            ("neighbours", &[("stride = 4\n", "")]),
            ("by minus two", &[("stride = 4", "times = -2")]),
            ("no step", &[("steps = 3", "steps = 0")]),
            ("steps not stated", &[("steps = 3\n", "")]),
            ("a parameter of another", &[("steps = 3", "steps = 3\nmetric = \"abs\"")]),
            ("no codebook", &[("codebook = \"stq1_0\"\nstride = 4", "zero = 0")]),
            ("a factor for each code", &[("[\"d\"]", "[\"d\", \"g\"]")]),
            ("a scale of the tensor", &[("[\"d\"]", "\"tensor.f32\"")]),
            ("a shift", &[("stride = 4", "shift = { field = \"g\", values = [0, 1] }")]),
            ("a unit", &[("stride = 4", "unit = 0.5")]),
            ("something added", &[("scale = [\"d\"]", "scale = [\"d\"]\nadd = [\"d\"]")]),
        ],
    );
}
