//! The shipped specs: they check without a word, and mean what the format reference says.

use gristmill_spec::model::{Factor, SpecSet};
use gristmill_spec::vocab::{Isa, Op};
use gristmill_spec::{check, render, shipped};

fn set() -> SpecSet {
    let sources = shipped().expect("the shipped specs can be read");
    let report = check(&sources);
    assert!(report.diagnostics.is_empty(), "{}", render(&sources, &report.diagnostics, false));
    report.set.expect("without errors there is a set")
}

#[test]
fn shipped_specs_check_without_a_word() {
    let set = set();
    let names: Vec<&str> = set.formats.iter().map(|f| f.name.as_str()).collect();
    assert!(names.is_sorted(), "{names:?}");
    for name in ["i2_s", "i2s_absmax", "i2s_clamp", "tq1_0", "tq2_0", "q4_0", "q8_0", "q4_k", "iq4_nl"] {
        assert!(names.contains(&name), "{name} is missing from {names:?}");
    }
    assert!(set.files.iter().all(|f| f.is_file()), "{:?}", set.files);
}

#[test]
fn i2_s_is_as_designed() {
    let set = set();
    let i2_s = set.formats.iter().find(|f| f.name == "i2_s").expect("shipped");
    assert_eq!((i2_s.elements, i2_s.bytes, i2_s.gguf), (128, 32, Some(36)));
    assert_eq!(i2_s.tensor_tail.map(|(_, bytes)| bytes), Some(32));
    assert_eq!(i2_s.value.scale, [Factor::Tensor]);
    let quantizers: Vec<&str> = i2_s.quantizers.iter().map(|q| q.name.as_str()).collect();
    assert_eq!(quantizers, ["absmean", "sign"]);
    assert_eq!(set.activations[i2_s.activations].name, "int8_row");
}

#[test]
fn every_op_has_its_kernels() {
    let set = set();
    for op in Op::ALL {
        let kernel = set.kernels.iter().find(|k| k.op == *op).unwrap_or_else(|| panic!("no kernel for {op}"));
        assert_eq!(kernel.cpu[0].isa, Isa::Scalar);
        for isa in [Isa::Sse41, Isa::Avx2, Isa::Avx512, Isa::Neon] {
            assert!(kernel.cpu.iter().any(|v| v.isa == isa), "{op} lacks {isa}");
        }
    }
}

#[test]
fn origins_point_at_the_variant() {
    let set = set();
    let matmul = set.kernels.iter().find(|k| k.op == Op::Matmul).expect("shipped");
    let sources = shipped().expect("readable");
    for variant in &matmul.cpu {
        let source = sources.iter().find(|s| s.path == variant.origin.file).expect("a shipped file");
        let text = std::str::from_utf8(&source.bytes).expect("text");
        let line = text.lines().nth(variant.origin.line as usize - 1).expect("a line of the file");
        assert_eq!(line, "[[cpu]]", "{:?}", variant.origin);
    }
}
