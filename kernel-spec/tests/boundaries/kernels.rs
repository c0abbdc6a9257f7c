//! Kernels: what a family and its variants may say, and which variants stand in each other's way.

use super::{Case, answers, golden, of_kernel, shipped_of, source};
use gristmill_spec::SourceFile;

/// Codes of four bits in blocks with a scale, and a quantizer.
const A: &str = r#"doc = "x"
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
"#;

/// Codes of two bits that are -1, 0 or 1, with one scale for all.
const B: &str = r#"doc = "x"
block = { elements = 32, bytes = 8 }
[[field]]
name = "q"
type = "u2"
layout = { shape = [32], stride = [2] }
[value]
code = "q"
levels = [-1, 0, 1]
scale = "tensor.f32"
"#;

/// Codes of one bit with shifts: integers from -9 to 8.
const C: &str = r#"doc = "x"
block = { elements = 32, bytes = 8 }
[[field]]
name = "q"
type = "u1"
layout = { shape = [32], stride = [1] }
[[field]]
name = "d"
type = "f16"
layout = { offset = 32 }
[[field]]
name = "h"
type = "u1"
layout = { shape = [16], stride = [1], offset = 48 }
[value]
code = "q"
levels = [-1, 0]
shift = { field = "h", values = [-8, 8] }
scale = ["d"]
"#;

pub(super) fn formats() -> Vec<SourceFile> {
    let mut sources = shipped_of(&["/activations/", "/packings/"]);
    for (name, text) in [("a", A), ("b", B), ("c", C)] {
        sources.push(source(&format!("formats/{name}.toml"), text));
    }
    sources
}

fn check_all(name: &str, base: &str, cases: &[Case]) {
    let text = answers("kernels/k.toml", base, cases, &formats(), |set| of_kernel(&set.kernels[0]));
    golden(name, &text);
}

const MATMUL: &str = r#"doc = "x"
op = "matmul"
input = ["f32", "i8"]
[[cpu]]
isa = "scalar"
[[cpu]]
isa = "avx2"
packing = "r16k4"
tile = { rows = 16, tokens = 4 }
"#;

#[test]
fn families_and_variants() {
    check_all(
        "kernels",
        MATMUL,
        &[
            ("as it stands", &[]),
            ("no input", &[("input = [\"f32\", \"i8\"]\n", "")]),
            ("no type of input", &[("[\"f32\", \"i8\"]", "[]")]),
            ("a type of input twice", &[("[\"f32\", \"i8\"]", "[\"f32\", \"f32\"]")]),
            ("f32 output", &[("[[cpu]]", "output = \"f32\"\n[[cpu]]")]),
            ("f16 output", &[("[[cpu]]", "output = \"f16\"\n[[cpu]]")]),
            ("a format", &[("[[cpu]]", "formats = [\"b\"]\n[[cpu]]")]),
            ("a format twice", &[("[[cpu]]", "formats = [\"b\", \"a\", \"b\"]\n[[cpu]]")]),
            ("no scalar variant", &[("isa = \"scalar\"", "isa = \"sse4.1\"")]),
            (
                "a reference with a shape",
                &[("isa = \"scalar\"", "isa = \"scalar\"\nshape = { m = { max = 4 } }")],
            ),
            ("a reference for few bits", &[("isa = \"scalar\"", "isa = \"scalar\"\ncode_bits = 2")]),
            ("a reference for some levels", &[("isa = \"scalar\"", "isa = \"scalar\"\nlevels = [-1, 0, 1]")]),
            ("a tile without a packing", &[("packing = \"r16k4\"\n", "")]),
            ("a packing without a tile", &[("tile = { rows = 16, tokens = 4 }\n", "")]),
            ("a packing of no name", &[("\"r16k4\"", "\"r16k5\"")]),
            ("half the packing's rows", &[("rows = 16", "rows = 8")]),
            ("twice the packing's rows", &[("rows = 16", "rows = 32")]),
            ("as many rows for a buffer", &[("packing", "strategy = \"staged\"\npacking")]),
            (
                "twice the packing's rows for a buffer",
                &[("packing", "strategy = \"staged\"\npacking"), ("rows = 16", "rows = 32")],
            ),
            ("rows between", &[("rows = 16", "rows = 24")]),
            ("a row less", &[("rows = 16", "rows = 15")]),
            ("codes of up to five bits", &[("packing", "code_bits = 5\npacking")]),
            ("codes of up to four bits", &[("packing", "code_bits = 4\npacking")]),
            ("codes of up to three bits", &[("packing", "code_bits = 3\npacking")]),
            ("codes of up to two bits", &[("packing", "code_bits = 2\npacking")]),
            ("codes of one bit", &[("packing", "code_bits = 1\npacking")]),
            ("ternary weights only", &[("packing", "levels = [-1, 0, 1]\npacking")]),
            (
                "ternary weights of up to one bit",
                &[("packing", "levels = [-1, 0, 1]\ncode_bits = 1\npacking")],
            ),
            ("a packing of trits for all", &[("\"r16k4\"", "\"r32t5\""), ("rows = 16", "rows = 32")]),
            (
                "a packing of trits for ternary weights",
                &[
                    ("packing = \"r16k4\"", "levels = [-1, 0, 1]\npacking = \"r32t5\""),
                    ("rows = 16", "rows = 32"),
                ],
            ),
            ("not by default", &[("packing", "default = false\npacking")]),
            (
                "a lookup of one token",
                &[("packing", "strategy = \"lookup\"\npacking"), ("tokens = 4", "tokens = 1")],
            ),
            (
                "a lookup of two tokens",
                &[("packing", "strategy = \"lookup\"\npacking"), ("tokens = 4", "tokens = 2")],
            ),
            (
                "a strategy without a packing",
                &[
                    ("packing = \"r16k4\"", "strategy = \"lookup\""),
                    ("tile = { rows = 16, tokens = 4 }\n", ""),
                ],
            ),
            ("a feature twice", &[("packing", "requires = [\"avxvnni\", \"avxvnni\"]\npacking")]),
            ("a feature of the ISA", &[("packing", "requires = [\"avx2\"]\npacking")]),
            ("a feature of another architecture", &[("packing", "requires = [\"dotprod\"]\npacking")]),
            (
                "a feature of what runs everywhere",
                &[("isa = \"scalar\"", "isa = \"scalar\"\nrequires = [\"avx2\"]")],
            ),
        ],
    );
}

/// Two variants of one ISA, the second as in the cases.
const RIVALS: &str = r#"doc = "x"
op = "matmul"
input = ["f32"]
[[cpu]]
isa = "scalar"
[[cpu]]
isa = "avx2"
name = "one"
packing = "r16k4"
tile = { rows = 16, tokens = 4 }
shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }
[[cpu]]
isa = "avx2"
name = "two"
packing = "r16k4"
tile = { rows = 16, tokens = 1 }
"#;

#[test]
fn variants_in_each_others_way() {
    check_all(
        "rivals",
        RIVALS,
        &[
            ("the special one first", &[]),
            (
                "the general one first",
                &[
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                    ("tokens = 1 }", "tokens = 1 }\nshape = { m = { max = 3 } }"),
                ],
            ),
            (
                "the same shapes",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }",
                )],
            ),
            (
                "the same shapes, for what a staged one leaves",
                &[
                    ("name = \"one\"", "name = \"one\"\nstrategy = \"staged\""),
                    (
                        "tokens = 1 }",
                        "tokens = 1 }\nshape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }",
                    ),
                ],
            ),
            (
                "the same shapes, a staged one behind",
                &[(
                    "tokens = 1 }",
                    "tokens = 4 }\nstrategy = \"staged\"\nshape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }",
                )],
            ),
            (
                "the same shapes, both staged",
                &[
                    ("name = \"one\"", "name = \"one\"\nstrategy = \"staged\""),
                    (
                        "tokens = 1 }",
                        "tokens = 4 }\nstrategy = \"staged\"\nshape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }",
                    ),
                ],
            ),
            (
                "the same shapes, for other processors",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nrequires = [\"avxvnni\"]\nshape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }",
                )],
            ),
            (
                "within in all",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 5, max = 63 }, n = { min = 17, max = 4095 }, k = { multiple_of = 64, max = 4095 } }",
                )],
            ),
            (
                "as wide in one",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 64, max = 4096 } }",
                )],
            ),
            (
                "fewer tokens",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 3, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 64, max = 4096 } }",
                )],
            ),
            (
                "more tokens",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 4, max = 65 }, n = { min = 16, max = 4096 }, k = { multiple_of = 64, max = 4096 } }",
                )],
            ),
            (
                "fewer rows",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 5, max = 64 }, n = { min = 15, max = 4096 }, k = { multiple_of = 64, max = 4096 } }",
                )],
            ),
            (
                "more rows",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 5, max = 64 }, n = { min = 16, max = 4097 }, k = { multiple_of = 64, max = 4096 } }",
                )],
            ),
            (
                "another multiple",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 5, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 48, max = 4096 } }",
                )],
            ),
            (
                "longer rows",
                &[(
                    "tokens = 1 }",
                    "tokens = 1 }\nshape = { m = { min = 5, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 64, max = 4160 } }",
                )],
            ),
            ("one name", &[("\"two\"", "\"one\"")]),
            (
                "one name, for other formats",
                &[
                    ("name = \"one\"", "name = \"one\"\ncode_bits = 1"),
                    ("\"two\"", "\"one\"\nlevels = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]"),
                ],
            ),
            (
                "narrow codes first",
                &[
                    ("name = \"one\"", "name = \"one\"\ncode_bits = 2"),
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                ],
            ),
            (
                "narrow codes last",
                &[
                    ("name = \"two\"", "name = \"two\"\ncode_bits = 2"),
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                ],
            ),
            (
                "one width of codes",
                &[
                    ("name = \"one\"", "name = \"one\"\ncode_bits = 4"),
                    ("name = \"two\"", "name = \"two\"\ncode_bits = 4"),
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                ],
            ),
            (
                "levels first",
                &[
                    ("name = \"one\"", "name = \"one\"\nlevels = [-1, 0, 1]"),
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                ],
            ),
            (
                "levels last",
                &[
                    ("name = \"two\"", "name = \"two\"\nlevels = [-1, 0, 1]"),
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                ],
            ),
            (
                "the second not by default",
                &[
                    ("name = \"two\"", "name = \"two\"\ndefault = false"),
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                ],
            ),
            (
                "both not by default",
                &[
                    ("name = \"two\"", "name = \"two\"\ndefault = false"),
                    ("name = \"one\"", "name = \"one\"\ndefault = false"),
                    (
                        "shape = { m = { min = 4, max = 64 }, n = { min = 16, max = 4096 }, k = { multiple_of = 32, max = 4096 } }\n",
                        "",
                    ),
                ],
            ),
        ],
    );
}

/// A file beside another, each with a variant of one ISA: in which order they are chosen, and which is never.
#[test]
fn variants_of_two_files() {
    let family = |head: &str, name: &str, shape: &str| {
        let tile = "packing = \"r16k4\"\ntile = { rows = 16, tokens = 4 }";
        let head = format!("doc = \"x\"\nop = \"matmul\"\ninput = [\"f32\"]\n{head}");
        format!("{head}[[cpu]]\nisa = \"avx2\"\nname = \"{name}\"\n{tile}\n{shape}")
    };
    let (reference, of_a) = ("[[cpu]]\nisa = \"scalar\"\n", "formats = [\"a\"]\n");
    let few = "shape = { m = { max = 3 } }\n";
    let mut text = String::new();
    for (name, (path, shape), (other, head, label, own_shape)) in [
        ("own for few tokens", ("kernel-spec/kernels/k.toml", ""), ("kernels/z.toml", of_a, "own", few)),
        ("own for all shapes", ("kernel-spec/kernels/k.toml", ""), ("kernels/z.toml", "", "own", "")),
        ("own of the same name", ("kernel-spec/kernels/k.toml", ""), ("kernels/z.toml", of_a, "one", few)),
        ("shipped for few tokens", ("kernel-spec/kernels/k.toml", few), ("kernels/a.toml", of_a, "own", "")),
        (
            "two shipped ones",
            ("kernel-spec/kernels/k.toml", ""),
            ("kernel-spec/kernels/z.toml", of_a, "own", few),
        ),
        ("the special name first", ("kernels/k.toml", ""), ("kernels/a.toml", of_a, "own", few)),
        ("the general name first", ("kernels/k.toml", ""), ("kernels/z.toml", of_a, "own", few)),
        ("both for all shapes", ("kernels/k.toml", ""), ("kernels/z.toml", of_a, "own", "")),
    ] {
        let mut beside = formats();
        beside.push(source(path, family(reference, "one", shape)));
        let own = source(other, family(head, label, own_shape));
        let said = super::said(own, &beside, |set| {
            let files: Vec<&str> = set.kernels.iter().map(|kernel| kernel.origin.file.as_str()).collect();
            files.join(" before ")
        });
        text += &format!("{name}\n{said}\n");
    }
    golden("two_kernel_files", &text);
}

const BLOCKS: &str = "doc = \"x\"\nop = \"dequantize\"\n[[cpu]]\nisa = \"scalar\"\n[[cpu]]\nisa = \"avx2\"\n";

#[test]
fn what_goes_over_blocks() {
    check_all(
        "blocks",
        BLOCKS,
        &[
            ("as it stands", &[]),
            ("with input", &[("[[cpu]]", "input = [\"f32\"]\n[[cpu]]")]),
            ("with output", &[("[[cpu]]", "output = \"f32\"\n[[cpu]]")]),
            ("to f16", &[("[[cpu]]", "output = \"f16\"\n[[cpu]]")]),
            ("with a packing", &[("isa = \"avx2\"", "isa = \"avx2\"\npacking = \"r16k4\"")]),
            ("with a tile", &[("isa = \"avx2\"", "isa = \"avx2\"\ntile = { rows = 16, tokens = 1 }")]),
            ("with a width", &[("isa = \"avx2\"", "isa = \"avx2\"\ncode_bits = 4")]),
            ("with levels", &[("isa = \"avx2\"", "isa = \"avx2\"\nlevels = [0, 1]")]),
            ("with a shape", &[("isa = \"avx2\"", "isa = \"avx2\"\nshape = { n = { min = 2 } }")]),
            ("with a strategy", &[("isa = \"avx2\"", "isa = \"avx2\"\nstrategy = \"lookup\"")]),
            ("by default", &[("isa = \"avx2\"", "isa = \"avx2\"\ndefault = true")]),
            ("quantizing what can be", &[("\"dequantize\"", "\"quantize\"")]),
            ("quantizing what says how", &[("\"dequantize\"", "\"quantize\"\nformats = [\"a\"]")]),
            (
                "quantizing what does not say how",
                &[("\"dequantize\"", "\"quantize\"\nformats = [\"a\", \"b\"]")],
            ),
            ("quantizing from f32", &[("\"dequantize\"", "\"quantize\"\ninput = [\"f32\"]")]),
            ("quantizing from f16", &[("\"dequantize\"", "\"quantize\"\ninput = [\"f16\"]")]),
            ("quantizing from no type", &[("\"dequantize\"", "\"quantize\"\ninput = []")]),
            ("values of no type", &[("\"dequantize\"", "\"dequantize\"\ninput = []")]),
            ("quantizing with output", &[("\"dequantize\"", "\"quantize\"\noutput = \"f32\"")]),
            ("activations", &[("\"dequantize\"", "\"quantize_activations\"")]),
            ("activations by name", &[("\"dequantize\"", "\"quantize_activations\"\nformats = [\"q8_0\"]")]),
            ("activations of no name", &[("\"dequantize\"", "\"quantize_activations\"\nformats = [\"a\"]")]),
            (
                "activations without a reference",
                &[
                    ("\"dequantize\"", "\"quantize_activations\"\nformats = [\"q8_0\"]"),
                    ("isa = \"scalar\"", "isa = \"sse4.1\""),
                ],
            ),
        ],
    );
}

/// As many variants as a family may list, and one more.
#[test]
fn many_variants() {
    let mut text = String::new();
    for count in [255, 256] {
        let mut kernel =
            String::from("doc = \"x\"\nop = \"matmul\"\ninput = [\"f32\"]\n[[cpu]]\nisa = \"scalar\"\n");
        for m in 0..count {
            kernel += &format!(
                "[[cpu]]\nisa = \"avx2\"\nname = \"v{m}\"\nshape = {{ m = {{ min = {0}, max = {0} }} }}\n",
                m + 1
            );
        }
        let said = super::said(source("kernels/k.toml", kernel), &formats(), |set| {
            format!("{} variants", set.kernels[0].cpu.len())
        });
        text += &format!("{count} and the reference\n{said}\n");
    }
    golden("many_variants", &text);
}

/// What must be there, and what a second file adds.
#[test]
fn coverage() {
    let kernel = "doc = \"x\"\nop = \"matmul\"\ninput = [\"f32\"]\n[[cpu]]\nisa = \"scalar\"\n[[cpu]]\nisa = \"avx2\"\ncode_bits = 2\npacking = \"r16k4\"\ntile = { rows = 16, tokens = 1 }\n";
    let mut text = String::new();
    for (name, op, formats_of, isa, input, kernel) in [
        ("covered", "matmul", "\"a\", \"b\"", "\"scalar\"", "", kernel.to_owned()),
        ("covered for one type", "matmul", "\"a\"", "\"scalar\"", "input = [\"f32\"]", kernel.to_owned()),
        ("another type", "matmul", "\"a\"", "\"scalar\"", "input = [\"f32\", \"i8\"]", kernel.to_owned()),
        ("another op", "dequantize", "\"a\"", "\"scalar\"", "", kernel.to_owned()),
        (
            "an ISA for one of two formats",
            "matmul",
            "\"a\", \"b\"",
            "\"scalar\", \"avx2\"",
            "",
            kernel.to_owned(),
        ),
        ("an unknown format", "matmul", "\"z\"", "\"scalar\"", "", kernel.to_owned()),
        (
            "a kernel with errors",
            "matmul",
            "\"a\"",
            "\"avx512\"",
            "",
            kernel.replace("rows = 16", "rows = 15"),
        ),
    ] {
        let require =
            format!("[[require]]\nop = \"{op}\"\nformats = [{formats_of}]\nisa = [{isa}]\n{input}\n");
        let mut beside = formats();
        beside.push(source("coverage.toml", require));
        let said = super::said(source("kernels/k.toml", kernel), &beside, |set| of_kernel(&set.kernels[0]));
        text += &format!("{name}\n{said}\n");
    }
    golden("coverage", &text);
}
