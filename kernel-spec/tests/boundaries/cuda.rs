//! CUDA variants: tiles, devices, what only some algorithms take, and which variant is in another's way.

use super::kernels::formats;
use super::{Case, answers, golden, of_kernel, said, source};

/// With a variant for the cases: `ALGORITHM` and `MORE` stand for what is tried.
const MATMUL: &str = r#"doc = "x"
op = "matmul"
input = ["f32", "i8"]
[[cpu]]
isa = "scalar"
[[cuda]]
algorithm = "dp4a"
packing = "r16k4"
"#;

/// Every algorithm with tokens and threads at its bounds.
#[test]
fn tiles() {
    let tiles: &[(&str, &[(u32, u32)])] = &[
        ("dp4a", &[(1, 32), (2, 32), (3, 32), (4, 64), (5, 64), (8, 128), (8, 96), (9, 256), (9, 1024)]),
        ("mma", &[(8, 128), (7, 128), (9, 128), (64, 128), (256, 128)]),
        (
            "wgmma",
            &[
                (32, 256),
                (32, 384),
                (32, 128),
                (32, 512),
                (31, 256),
                (33, 256),
                (64, 256),
                (128, 256),
                (160, 256),
                (96, 320),
            ],
        ),
        ("fma", &[(1, 512), (8, 512), (9, 512), (8, 544), (1, 1024), (7, 480)]),
        (
            "mma_f16",
            &[
                (8, 128),
                (12, 128),
                (64, 128),
                (72, 128),
                (128, 128),
                (128, 32),
                (128, 64),
                (192, 96),
                (192, 64),
                (256, 128),
            ],
        ),
        ("mma_bf16", &[(8, 128), (60, 128), (64, 64), (128, 96), (128, 192)]),
        ("wgmma_f16", &[(64, 384), (63, 384), (65, 384), (128, 384), (256, 384), (64, 256), (64, 416)]),
        ("wgmma_bf16", &[(64, 384), (96, 384), (192, 384), (128, 128)]),
        ("blocks", &[(1, 128), (2, 128)]),
    ];
    let mut text = String::new();
    for (algorithm, tiles) in tiles {
        for (tokens, threads) in *tiles {
            let packing = match *algorithm {
                "dp4a" => "packing = \"r16k4\"\n",
                "mma" | "wgmma" => "packing = \"mma32x64\"\n",
                _ => "",
            };
            let kernel = super::edited(
                MATMUL,
                &[
                    (
                        "\"dp4a\"",
                        &format!("\"{algorithm}\"\ntile = {{ tokens = {tokens}, threads = {threads} }}"),
                    ),
                    ("packing = \"r16k4\"\n", packing),
                ],
            );
            let said = said(source("kernels/k.toml", kernel), &formats(), |set| of_kernel(&set.kernels[0]));
            text += &format!("{algorithm}, {tokens} tokens, {threads} threads\n{said}\n");
        }
    }
    golden("cuda_tiles", &text);
}

#[test]
fn words() {
    let cases: &[Case] = &[
        ("as it stands", &[]),
        ("without a packing", &[("packing = \"r16k4\"\n", "")]),
        ("tensor cores without a packing", &[("dp4a", "mma"), ("packing = \"r16k4\"\n", "")]),
        ("floats with a packing", &[("dp4a", "fma")]),
        ("floats", &[("dp4a", "fma"), ("packing = \"r16k4\"\n", "")]),
        ("halves", &[("dp4a", "wgmma_f16"), ("packing = \"r16k4\"\n", "")]),
        ("wgmma takes rows that are one sum", &[("dp4a", "wgmma"), ("r16k4", "mma32x64")]),
        (
            "wgmma of a format with scales in blocks",
            &[("\"dp4a\"", "\"wgmma\"\nformats = [\"b\", \"a\"]"), ("r16k4", "mma32x64")],
        ),
        ("wgmma of a format without", &[("\"dp4a\"", "\"wgmma\"\nformats = [\"b\"]"), ("r16k4", "mma32x64")]),
        ("dp4a of a format with scales in blocks", &[("\"dp4a\"", "\"dp4a\"\nformats = [\"b\", \"a\"]")]),
        ("what does not multiply", &[("dp4a", "blocks"), ("packing = \"r16k4\"\n", "")]),
        ("exactly what it needs", &[("packing", "min_cc = \"6.1\"\npacking")]),
        ("less than it needs", &[("packing", "min_cc = \"6.0\"\npacking")]),
        ("more than it needs", &[("packing", "min_cc = \"8.0\"\npacking")]),
        (
            "wgmma on the one architecture",
            &[("dp4a", "wgmma"), ("packing = \"r16k4\"", "packing = \"mma32x64\"\nmin_cc = \"9.0\"")],
        ),
        (
            "wgmma after it",
            &[("dp4a", "wgmma"), ("packing = \"r16k4\"", "packing = \"mma32x64\"\nmin_cc = \"9.1\"")],
        ),
        (
            "wgmma before it",
            &[("dp4a", "wgmma"), ("packing = \"r16k4\"", "packing = \"mma32x64\"\nmin_cc = \"8.9\"")],
        ),
        (
            "a format that the family does not serve",
            &[("input", "formats = [\"b\"]\ninput"), ("packing", "formats = [\"a\"]\npacking")],
        ),
        ("fused activations", &[("packing", "activations = \"fused\"\npacking")]),
        ("separate activations", &[("packing", "activations = \"separate\"\npacking")]),
        (
            "fused activations of tensor cores",
            &[("\"dp4a\"", "\"mma\"\nactivations = \"fused\""), ("r16k4", "mma32x64")],
        ),
        (
            "fused activations of tensor cores, for one token",
            &[
                ("\"dp4a\"", "\"mma\"\nactivations = \"fused\"\ntile = { tokens = 1, threads = 128 }"),
                ("r16k4", "mma32x64"),
            ],
        ),
        (
            "fused activations of tensor cores, for seven tokens",
            &[
                ("\"dp4a\"", "\"mma\"\nactivations = \"fused\"\ntile = { tokens = 7, threads = 128 }"),
                ("r16k4", "mma32x64"),
            ],
        ),
        (
            "fused activations of int8",
            &[("packing", "activations = \"fused\"\npacking"), ("[\"f32\", \"i8\"]", "[\"i8\"]")],
        ),
        (
            "fused activations of floats",
            &[("packing", "activations = \"fused\"\npacking"), ("[\"f32\", \"i8\"]", "[\"f32\"]")],
        ),
    ];
    let text = answers("kernels/k.toml", MATMUL, cases, &formats(), |set| of_kernel(&set.kernels[0]));
    golden("cuda_words", &text);
}

/// Two variants of one algorithm, the second as in the cases.
const RIVALS: &str = r#"doc = "x"
op = "matmul"
input = ["f32"]
[[cpu]]
isa = "scalar"
[[cuda]]
algorithm = "dp4a"
name = "one"
packing = "r16k4"
min_cc = "7.0"
shape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }
[[cuda]]
algorithm = "dp4a"
name = "two"
packing = "r16k4"
min_cc = "7.0"
"#;

#[test]
fn rivals() {
    let cases: &[Case] = &[
        ("the special one first", &[]),
        (
            "the same",
            &[(
                "name = \"two\"",
                "name = \"two\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "more tokens",
            &[(
                "name = \"two\"",
                "name = \"two\"\nshape = { m = { min = 2, max = 9 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "more rows",
            &[(
                "name = \"two\"",
                "name = \"two\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4097 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "other lengths of rows",
            &[(
                "name = \"two\"",
                "name = \"two\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 16 } }",
            )],
        ),
        (
            "within",
            &[(
                "name = \"two\"",
                "name = \"two\"\nshape = { m = { min = 3, max = 7 }, n = { max = 4000 }, k = { multiple_of = 64 } }",
            )],
        ),
        (
            "the same on older devices",
            &[(
                "name = \"two\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"",
                "name = \"two\"\npacking = \"r16k4\"\nmin_cc = \"6.1\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "the same on newer devices",
            &[(
                "name = \"two\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"",
                "name = \"two\"\npacking = \"r16k4\"\nmin_cc = \"8.0\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "the same for a format less",
            &[(
                "name = \"two\"",
                "name = \"two\"\nformats = [\"a\"]\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "the same for a format more",
            &[
                ("name = \"one\"", "name = \"one\"\nformats = [\"a\"]"),
                (
                    "name = \"two\"",
                    "name = \"two\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
                ),
            ],
        ),
        (
            "the same for another format",
            &[
                ("name = \"one\"", "name = \"one\"\nformats = [\"a\"]"),
                (
                    "name = \"two\"",
                    "name = \"two\"\nformats = [\"b\"]\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
                ),
            ],
        ),
        ("one name", &[("\"two\"", "\"one\"")]),
        (
            "one name for another format",
            &[
                ("name = \"one\"", "name = \"one\"\nformats = [\"a\"]"),
                ("name = \"two\"", "name = \"one\"\nformats = [\"b\"]"),
            ],
        ),
        (
            "one name for formats of which one is shared",
            &[
                ("name = \"one\"", "name = \"one\"\nformats = [\"a\", \"c\"]"),
                ("name = \"two\"", "name = \"one\"\nformats = [\"b\", \"c\"]"),
            ],
        ),
        (
            "one name of another algorithm",
            &[(
                "\"dp4a\"\nname = \"two\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"",
                "\"mma\"\nname = \"one\"\npacking = \"mma32x64\"",
            )],
        ),
        (
            "another algorithm for the same",
            &[(
                "\"dp4a\"\nname = \"two\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"",
                "\"mma\"\nname = \"two\"\npacking = \"mma32x64\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "another precision for the same",
            &[(
                "\"dp4a\"\nname = \"two\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"",
                "\"mma_f16\"\nname = \"two\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "one that quantizes first",
            &[
                ("name = \"one\"", "name = \"one\"\nactivations = \"fused\""),
                (
                    "name = \"two\"",
                    "name = \"two\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
                ),
            ],
        ),
        (
            "one that quantizes last",
            &[(
                "name = \"two\"",
                "name = \"two\"\nactivations = \"fused\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
            )],
        ),
        (
            "both quantize",
            &[
                ("name = \"one\"", "name = \"one\"\nactivations = \"fused\""),
                (
                    "name = \"two\"",
                    "name = \"two\"\nactivations = \"fused\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }",
                ),
            ],
        ),
        (
            "one architecture first",
            &[
                (
                    "\"dp4a\"\nname = \"one\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"\nshape",
                    "\"wgmma\"\nname = \"one\"\npacking = \"mma32x64\"\nshape",
                ),
                (
                    "\"dp4a\"\nname = \"two\"",
                    "\"dp4a\"\nformats = [\"b\"]\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }\nname = \"two\"",
                ),
                ("min_cc = \"7.0\"", "min_cc = \"9.0\""),
            ],
        ),
        (
            "one architecture twice",
            &[
                (
                    "\"dp4a\"\nname = \"one\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"\nshape",
                    "\"wgmma\"\nname = \"one\"\npacking = \"mma32x64\"\nshape",
                ),
                (
                    "\"dp4a\"\nname = \"two\"\npacking = \"r16k4\"\nmin_cc = \"7.0\"",
                    "\"wgmma\"\npacking = \"mma32x64\"\nshape = { m = { min = 2, max = 8 }, n = { max = 4096 }, k = { multiple_of = 32 } }\nname = \"two\"",
                ),
            ],
        ),
    ];
    let text = answers("kernels/k.toml", RIVALS, cases, &formats(), |set| of_kernel(&set.kernels[0]));
    golden("cuda_rivals", &text);
}

const BLOCKS: &str =
    "doc = \"x\"\nop = \"dequantize\"\n[[cpu]]\nisa = \"scalar\"\n[[cuda]]\nalgorithm = \"blocks\"\n";

#[test]
fn blocks() {
    let cases: &[Case] = &[
        ("as it stands", &[]),
        ("with a packing", &[("\"blocks\"", "\"blocks\"\npacking = \"r16k4\"")]),
        ("with activations", &[("\"blocks\"", "\"blocks\"\nactivations = \"fused\"")]),
        ("with a tile", &[("\"blocks\"", "\"blocks\"\ntile = { tokens = 1, threads = 64 }")]),
        ("with a shape", &[("\"blocks\"", "\"blocks\"\nshape = { n = { min = 2 } }")]),
        ("by products", &[("\"blocks\"", "\"dp4a\"\npacking = \"r16k4\"")]),
        ("quantizing", &[("\"dequantize\"", "\"quantize\"")]),
        ("activations", &[("\"dequantize\"", "\"quantize_activations\"")]),
    ];
    let text = answers("kernels/k.toml", BLOCKS, cases, &formats(), |set| of_kernel(&set.kernels[0]));
    golden("cuda_blocks", &text);
}

/// Kernels that are written by hand, beside the file that names them.
#[test]
fn bodies() {
    let quantize = "doc = \"x\"\nop = \"quantize\"\nformats = [\"a\"]\n[[cpu]]\nisa = \"scalar\"\n[[cuda]]\nalgorithm = \"blocks\"\nbody = \"b.cu\"\nfunction = \"mine\"\n";
    let product = "doc = \"x\"\nop = \"matmul\"\ninput = [\"f32\"]\n[[cpu]]\nisa = \"scalar\"\n[[cuda]]\nalgorithm = \"dp4a\"\nactivations = \"fused\"\npacking = \"r16k4\"\nbody = \"b.cu\"\nfunction = \"mine\"\n";
    let exports = "GM_KERNEL(64) mine() {}\nGM_EXPORT(mine)\n";
    let mut text = String::new();
    for (name, kernel, path, body) in [
        ("as it stands", quantize.to_owned(), "kernels/b.cu", exports),
        ("of another folder", quantize.to_owned(), "b.cu", exports),
        ("without its function", quantize.to_owned(), "kernels/b.cu", "GM_EXPORT(mines)\n"),
        (
            "of a format with a scale outside",
            quantize.replace("[\"a\"]", "[\"a\", \"t\"]"),
            "kernels/b.cu",
            exports,
        ),
        ("of a format with a header", quantize.replace("[\"a\"]", "[\"a\", \"r\"]"), "kernels/b.cu", exports),
        (
            "of a format with two quantizers",
            quantize.replace("[\"a\"]", "[\"a\", \"w\"]"),
            "kernels/b.cu",
            exports,
        ),
        (
            "of the one that it serves",
            quantize.replace("[\"a\"]", "[\"a\", \"w\"]").replace("body", "formats = [\"a\"]\nbody"),
            "kernels/b.cu",
            exports,
        ),
        ("that quantizes activations", product.to_owned(), "kernels/b.cu", exports),
    ] {
        let mut beside = formats();
        let a = beside.iter().find(|source| source.path == "formats/a.toml").expect("there");
        let a = String::from_utf8(a.bytes.clone()).expect("text");
        beside.push(source("formats/t.toml", a.replace("scale = [\"d\"]", "scale = \"tensor.f32\"")));
        beside.push(source("formats/r.toml", a.replace("scale = [\"d\"]", "scale = \"row.f32\"")));
        beside.push(source(
            "formats/w.toml",
            format!("{a}[[quantize]]\nname = \"b\"\nscale = \"absmax\"\nround = \"half-even\"\n"),
        ));
        beside.push(source(path, body));
        let said = said(source("kernels/k.toml", kernel), &beside, |set| of_kernel(&set.kernels[0]));
        text += &format!("{name}\n{said}\n");
    }
    golden("cuda_bodies", &text);
}
