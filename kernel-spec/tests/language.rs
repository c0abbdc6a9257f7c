//! What can be written: the examples of the documentation, spellings, defaults.

use gristmill_spec::model::{
    CpuBody, DimRule, Factor, Format, QuantizeRule, RoundRule, Rounding, Scalar, Search, SpecSet, Statistic,
    ValueMap, Via,
};
use gristmill_spec::{Severity, SourceFile, check, render, shipped};

/// How the format's first quantizer rounds.
#[track_caller]
fn rounding(format: &Format) -> RoundRule {
    match format.quantizers[0].rule {
        QuantizeRule::Round(rule) => rule,
        QuantizeRule::Search(search) => panic!("it searches: {search:?}"),
    }
}

/// Checks texts together with what every format needs: the shipped activations, packings and codebooks.
#[track_caller]
fn set(files: &[(&str, &str)]) -> SpecSet {
    let needed = ["/activations/", "/packings/", "/codebooks/"];
    let shipped = shipped().expect("readable").into_iter();
    let mut sources: Vec<SourceFile> =
        shipped.filter(|s| needed.iter().any(|n| s.path.contains(n))).collect();
    for (path, text) in files {
        sources.push(SourceFile { path: (*path).to_owned(), bytes: text.as_bytes().to_vec() });
    }
    let report = check(&sources);
    let errors = report.diagnostics.iter().any(|d| d.severity == Severity::Error);
    assert!(!errors, "{}", render(&sources, &report.diagnostics, false));
    report.set.expect("no errors")
}

#[track_caller]
fn format(text: &str) -> Format {
    set(&[("formats/x.toml", text)]).formats.remove(0)
}

const I2_S: &str = r#"
doc   = "BitNet b1.58 weights as bitnet.cpp stores them in GGUF (x86 order)"
block = { elements = 128, bytes = 32 }
gguf  = 36

[[field]]                       # weight i: byte i % 32, bits 6 - 2 * (i / 32)
name   = "code"
type   = "u2"
layout = { shape = [4, 32], stride = [-2, 8], offset = 6 }

[value]                         # w = scale * (code - 1); code 3 is not a weight
code   = "code"
levels = [-1, 0, 1]
scale  = "tensor.f32"

[[quantize]]                    # how f32 becomes this format
name  = "absmean"
scale = "absmean"
round = "half-even"
clamp = [-1, 1]
"#;

const Q4_0: &str = r#"
block = { elements = 32, bytes = 18 }
[[field]]
name = "d"
type = "f16"
[[field]]
name   = "qs"
type   = "u4"
layout = { shape = [2, 16], stride = [4, 8], offset = 16 }
[value]
code = "qs"
zero = 8
scale = ["d"]
"#;

#[test]
fn the_first_example_reads_as_it_stands() {
    let i2_s = format(I2_S);
    assert_eq!(i2_s.tensor_tail, Some((Scalar::F32, 4)), "a tail is as long as its number unless stated");
    assert_eq!(i2_s.value.scale, [Factor::Tensor]);
    let quantizer = rounding(&i2_s);
    assert_eq!((quantizer.scale.of, quantizer.scale.via), (Statistic::AbsMean, Via::Step));
    assert_eq!((quantizer.scale.levels, quantizer.scale.floor), (1.0, 0.0));
    assert_eq!((quantizer.round, quantizer.clamp), (Rounding::HalfEven, (-1, 1)));
}

#[test]
fn the_second_example_reads_as_it_stands() {
    let q4_0 = format(Q4_0);
    assert_eq!((q4_0.doc.as_str(), q4_0.family.as_str()), ("x", ""));
    assert_eq!(q4_0.value.scale, [Factor::Field(0)]);
    assert!(matches!(q4_0.value.map, ValueMap::Affine { times: 1, zero: 8 }));
}

#[test]
fn activations_follow_from_the_block() {
    let set = |text: &str| {
        let set = set(&[("formats/x.toml", text)]);
        set.activations[set.formats[0].activations].name.clone()
    };
    assert_eq!(set(I2_S), "int8_row", "no scale in the block");
    assert_eq!(set(Q4_0), "q8_0");
    let k = Q4_0
        .replace("elements = 32, bytes = 18", "elements = 256, bytes = 130")
        .replace("[2, 16]", "[2, 128]");
    assert_eq!(set(&k), "q8_k");
    let odd =
        Q4_0.replace("elements = 32, bytes = 18", "elements = 48, bytes = 26").replace("[2, 16]", "[2, 24]");
    assert_eq!(set(&odd), "int8_row", "48 is no multiple of 32");
    let stated = k.replace("bytes = 130 }", "bytes = 130 }\nactivations = \"q8_0\"");
    assert_eq!(set(&stated), "q8_0");
}

#[test]
fn clamp_is_what_the_codes_can_hold_unless_stated() {
    let quantize = "[[quantize]]\nname = \"q\"\nscale = \"absmax\"\nround = \"half-away\"\n";
    assert_eq!(rounding(&format(&format!("{Q4_0}{quantize}"))).clamp, (-8, 7));
    let levels = Q4_0.replace("zero = 8", "levels = [-2, -1, 0, 1, 2]");
    assert_eq!(rounding(&format(&format!("{levels}{quantize}"))).clamp, (-2, 2));
    let signed = Q4_0.replace("\"u4\"", "\"i4\"").replace("zero = 8", "");
    assert_eq!(rounding(&format(&format!("{signed}{quantize}"))).clamp, (-8, 7));
}

#[test]
fn gaps_rows_and_several_scales_can_be_stated() {
    let text = Q4_0.replace("bytes = 18 }", "bytes = 20 }\nunused = [{ offset = 144, bits = 16 }]");
    assert_eq!(format(&text).bytes, 20);
    let row = format(&Q4_0.replace("[\"d\"]", "[\"row.bf16\", \"d\"]"));
    assert_eq!(row.row_header, Some(Scalar::Bf16));
    assert_eq!(row.value.scale, [Factor::Row, Factor::Field(0)], "factors keep their order");
}

#[test]
fn a_kernel_without_formats_serves_all_it_can() {
    let kernel = |op: &str| format!("doc = \"k\"\nop = \"{op}\"\n[[cpu]]\nisa = \"scalar\"\n");
    let (quantize, activations) = (kernel("quantize"), kernel("quantize_activations"));
    let set = set(&[
        ("formats/a.toml", Q4_0),
        ("formats/b.toml", I2_S),
        ("kernels/quantize.toml", &quantize),
        ("kernels/qa.toml", &activations),
    ]);
    assert_eq!(set.kernels[0].formats, [0, 1, 2], "every activation format");
    assert_eq!(set.kernels[1].formats, [1], "only the format that states a quantizer");
}

#[test]
fn shapes_have_bounds_only_where_they_are_stated() {
    let kernel = "doc = \"k\"\nop = \"matmul\"\ninput = [\"f32\"]\n[[cpu]]\nisa = \"scalar\"\n\
        [[cpu]]\nisa = \"avx2\"\npacking = \"r16k4\"\ntile = { rows = 8, tokens = 4 }\n\
        shape = { m = { min = 4 }, k = { multiple_of = 32, max = 4096 } }\n";
    let set = set(&[("formats/a.toml", Q4_0), ("kernels/matmul.toml", kernel)]);
    let shape = set.kernels[0].cpu[1].shape;
    assert_eq!(shape.m, DimRule { min: 4, ..DimRule::default() });
    assert_eq!(shape.n, DimRule::default());
    assert_eq!(shape.k, DimRule { min: 0, max: 4096, multiple_of: 32 });
}

/// Which formats a variant serves can depend on what their weights are, whatever their codes look like.
#[test]
fn a_variant_may_be_for_certain_integers_only() {
    let kernel = "doc = \"k\"\nop = \"matmul\"\ninput = [\"f32\"]\n[[cpu]]\nisa = \"scalar\"\n\
        [[cpu]]\nisa = \"avx512\"\nrequires = [\"avx512vnni\", \"avx512vbmi\"]\nlevels = [-1, 0, 1]\n\
        default = false\npacking = \"r32t5\"\ntile = { rows = 32, tokens = 1 }\n";
    let four_values = Q4_0.replace("elements = 32, bytes = 18", "elements = 64, bytes = 18");
    let four_values =
        four_values.replace("u4", "u2").replace("[2, 16], stride = [4, 8]", "[4, 16], stride = [2, 8]");
    let four_values = four_values.replace("zero = 8", "zero = 1");
    let set = set(&[
        ("formats/a.toml", Q4_0),
        ("formats/b.toml", I2_S),
        ("formats/c.toml", &four_values),
        ("kernels/matmul.toml", kernel),
    ]);
    let [reference, dense] = &set.kernels[0].cpu[..] else { panic!("two variants") };
    assert_eq!(reference.formats, [0, 1, 2]);
    assert_eq!(dense.formats, [1], "weights of two bits with a value for each are not ternary");
    assert!(reference.by_default && !dense.by_default);
}

#[test]
fn a_variant_in_a_file_of_its_own_joins_the_family() {
    let reference = "doc = \"k\"\nop = \"dequantize\"\n[[cpu]]\nisa = \"scalar\"\n";
    let extra = "doc = \"k\"\nop = \"dequantize\"\n[[cpu]]\nisa = \"avx2\"\nbody = \"rust\"\nfunction = \"crate::fast\"\n";
    let set =
        set(&[("formats/a.toml", Q4_0), ("kernels/base.toml", reference), ("kernels/extra.toml", extra)]);
    assert_eq!(set.kernels[1].cpu[0].body, Some(CpuBody::Rust("crate::fast".to_owned())));
}

#[test]
fn kinds_are_known_by_their_keys_outside_the_folders() {
    let packing = "doc = \"p\"\nrows = 1\n[[tile]]\nbits = 8\nk = 1\nbytes = 1\n\
        layout = { axes = [\"row\", \"k\"], shape = [1, 1], stride = [0, 0] }\n";
    let activations =
        "doc = \"a\"\nblock = 16\n[quantize]\nscale = \"absmax\"\nlevels = 127\nround = \"half-even\"\n";
    let kernel = "doc = \"k\"\nop = \"dequantize\"\n[[cpu]]\nisa = \"scalar\"\n";
    let coverage = "[[require]]\nop = \"dequantize\"\nformats = [\"f\"]\nisa = [\"scalar\"]\n";
    let set = set(&[
        ("mine/f.toml", Q4_0),
        ("mine/p.toml", packing),
        ("mine/a.toml", activations),
        ("mine/k.toml", kernel),
        ("mine/c.toml", coverage),
    ]);
    assert_eq!(
        (set.formats.len(), set.packings.len(), set.activations.len(), set.kernels.len()),
        (1, 6, 4, 1)
    );
}

/// The TOML of the reference is what it says it is.
#[test]
fn the_reference_shows_sound_specs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/spec-reference.md");
    let text = std::fs::read_to_string(path).expect("docs/spec-reference.md");
    let mut ran = 0;
    let shipped = shipped().expect("readable");
    for block in text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let shown = block.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
        let file = shown.split([':', ',']).next().unwrap_or_default();
        if let Some(source) = shipped.iter().find(|s| s.path == file) {
            // Shown in whole, or in whole lines of it where it says that it is shortened.
            let source = std::str::from_utf8(&source.bytes).expect("text");
            let plain = |line: &str| line.split('#').next().unwrap_or_default().trim_end().to_owned();
            for line in block.lines().skip(1).map(plain) {
                assert!(source.lines().any(|l| plain(l) == line), "`{line}` is not in {file}");
            }
            ran += 1;
        } else if block.contains("\"w3\"") || block.contains("[[quantize]]") {
            let set = set(&[("my-specs/w3.toml", block)]);
            assert_eq!(set.activations[set.formats[0].activations].name, "q8_0");
            let bytes = block.replace("bytes = 26", "bytes = 27").into_bytes();
            let mut wrong = shipped.clone();
            wrong.push(SourceFile { path: "my-specs/w3.toml".to_owned(), bytes });
            let report = render(&wrong, &check(&wrong).diagnostics, false);
            for line in report.lines() {
                assert!(text.contains(line), "`{line}` is not in the reference");
            }
            ran += 1;
        } else if block.starts_with("[[require]]") {
            let mut with = shipped.clone();
            let bytes = block.as_bytes().to_vec();
            with.push(SourceFile { path: "my-specs/coverage.toml".to_owned(), bytes });
            let report = check(&with);
            assert!(report.set.is_some(), "{}", render(&with, &report.diagnostics, false));
            ran += 1;
        } else if shown == "kernels/dequantize_mine.toml" {
            // codegen/tests/bodies.rs compiles it with the body that is shown below it.
            ran += 1;
        } else {
            let cuda = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/cuda.toml"))
                .expect("cuda.toml");
            let plain = |line: &str| line.split('#').next().unwrap_or_default().trim_end().to_owned();
            for line in block.lines().map(plain) {
                assert!(cuda.lines().any(|other| plain(other) == line), "`{line}` is in no shipped file");
            }
            ran += 1;
        }
    }
    assert_eq!(ran, text.matches("```toml\n").count());
}

/// An algorithm knows a structure and no format: other widths, counts and layouts are as good.
#[test]
fn an_algorithm_serves_every_format_of_its_structure() {
    let text = "doc = \"six runs of ten\"\nblock = { elements = 60, bytes = 43 }\n\
        [[field]]\nname = \"d\"\ntype = \"bf16\"\n\
        [[field]]\nname = \"m\"\ntype = \"bf16\"\nlayout = { offset = 16 }\n\
        [[field]]\nname = \"s\"\ntype = \"u8\"\nlayout = { shape = [6], stride = [8], offset = 32 }\n\
        [[field]]\nname = \"n\"\ntype = \"u4\"\nlayout = { shape = [6], stride = [4], offset = 80 }\n\
        [[field]]\nname = \"q\"\ntype = \"u4\"\nlayout = { shape = [60], stride = [4], offset = 104 }\n\
        [value]\ncode = \"q\"\nscale = [\"d\", \"s\"]\nsubtract = [\"m\", \"n\"]\n\
        [[quantize]]\nname = \"k\"\nalgorithm = \"k-min\"\nweights = \"rms-abs\"\nmetric = \"abs\"\n\
        start = 0.5\nsteps = 7\n";
    let format = format(text);
    let QuantizeRule::Search(search) = format.quantizers[0].rule else { panic!("it rounds") };
    assert_eq!(search, Search::KMin { rms: true, square: false, start: 0.5, steps: 7 });
}
