//! What the compiler writes, held in a file: a change of the emitter shows in review as a change of code.

use gristmill_codegen::{Options, compile};
use gristmill_spec::vocab::{Arch, Isa};
use gristmill_spec::{SourceFile, check, render, shipped};
use std::path::Path;

mod plans;
mod shared_units;
mod skeletons;

const FORMAT: &str = r#"
doc   = "two bits in planes, an f16 scale"
block = { elements = 64, bytes = 18 }
activations = "int8_row"

[[field]]
name   = "q"
type   = "u2"
layout = { shape = [4, 16], stride = [2, 8] }

[[field]]
name   = "d"
type   = "f16"
layout = { offset = 128 }

[value]
code   = "q"
levels = [-1, 0, 1]
scale  = "d"

[[quantize]]
name  = "absmax"
scale = "absmax"
round = "half-away"
clamp = [-1, 1]
"#;

const MATMUL: &str = r#"
doc    = "a product"
op     = "matmul"
input  = ["f32"]
output = "f32"

[[cpu]]
isa = "scalar"

[[cpu]]
isa     = "avx2"
packing = "r16k4"
tile    = { rows = 16, tokens = 2 }
"#;

const QUANTIZE: &str =
    "doc = \"blocks\"\nop = \"quantize\"\n\n[[cpu]]\nisa = \"scalar\"\n\n[[cpu]]\nisa = \"avx2\"\n";
const DEQUANTIZE: &str =
    "doc = \"values\"\nop = \"dequantize\"\noutput = \"f32\"\n\n[[cpu]]\nisa = \"scalar\"\n";

fn source(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_string(), bytes: text.as_bytes().to_vec() }
}

/// The test's own format and kernels, with the shipped packing and activation formats.
fn sources(format: &str) -> Vec<SourceFile> {
    let mut sources: Vec<SourceFile> = shipped()
        .expect("the shipped specs are readable")
        .into_iter()
        .filter(|s| s.path.contains("/packings/") || s.path.contains("/activations/int8_row"))
        .collect();
    sources.push(source("specs/formats/planes.toml", format));
    sources.push(source("specs/kernels/matmul.toml", MATMUL));
    sources.push(source("specs/kernels/quantize.toml", QUANTIZE));
    sources.push(source("specs/kernels/dequantize.toml", DEQUANTIZE));
    sources
}

fn compiled(format: &str) -> Result<String, String> {
    let sources = sources(format);
    let report = check(&sources);
    let Some(set) = report.set else { return Err(render(&sources, &report.diagnostics, false)) };
    // The specs' own text is in the registry too; the golden file is about the code.
    compile(&set, &[], &Options { package: "test".into(), compiler: "test".into(), ..Options::default() })
        .map(|compiled| compiled.code)
        .map_err(|errors| errors.iter().map(|e| format!("{e}\n")).collect())
}

/// Compares text with a file of tests/golden, or writes it there where `BLESS` is set.
fn golden(file: &str, text: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, text).expect("writable");
        return;
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    if text != expected {
        let line = text.lines().zip(expected.lines()).position(|(a, b)| a != b).unwrap_or(0);
        panic!(
            "the emitted code differs from {} at line {}:\n  now: {}\n  was: {}\nlook at the difference; \
             `BLESS=1 cargo test -p gristmill-codegen` takes the new text",
            golden.display(),
            line + 1,
            text.lines().nth(line).unwrap_or("(end)"),
            expected.lines().nth(line).unwrap_or("(end)"),
        );
    }
}

#[test]
fn the_text_is_as_reviewed() {
    golden("planes.rs", &compiled(FORMAT).expect("compiles"));
}

/// Names of the kernels of a product from f32 on x86, in the order in which they are looked at.
fn candidates(sources: &[SourceFile]) -> Vec<String> {
    let set = check(sources).set.expect("no mistakes");
    let options = Options { package: "test".into(), compiler: "test".into(), ..Options::default() };
    let compiled = compile(&set, &[], &options).expect("compiles");
    let on_x86 = |isa: Option<Isa>| isa.is_none_or(|isa| matches!(isa.arch(), Arch::Any | Arch::X86));
    let kernels: Vec<_> = compiled.kernels.iter().filter(|kernel| on_x86(kernel.isa)).collect();
    let (_, arms) = compiled.code.split_once("Op::Matmul => {").expect("an arm");
    let (_, arm) = arms.split_once("(DType::F32, DeviceKind::Cpu)").expect("a list");
    let (_, list) = arm.split_once("&[").expect("a list");
    let (list, _) = list.split_once(']').expect("its end");
    let places = list.split(',').map(|place| place.trim().parse::<usize>().expect("a number"));
    places.map(|place| kernels[place].name.clone()).collect()
}

/// What the checks call earlier stands earlier in the registry: variants of own files before shipped ones, whatever their names and their
/// places in the files.
#[test]
fn own_variants_come_before_shipped_ones() {
    let mut sources = sources(FORMAT);
    sources.retain(|source| !source.path.ends_with("kernels/matmul.toml"));
    sources.push(source("kernel-spec/kernels/matmul.toml", MATMUL));
    let own = MATMUL
        .replace("[[cpu]]\nisa = \"scalar\"\n", "")
        .replace("packing", "name = \"own\"\nshape = { m = { max = 2 } }\npacking");
    let neon = "\n[[cpu]]\nisa = \"neon\"\npacking = \"r16k4\"\ntile = { rows = 16, tokens = 2 }\n\n[[cpu]]\nisa = \"avx2\"";
    sources.push(source("specs/kernels/own.toml", &own.replace("\n[[cpu]]\nisa     = \"avx2\"", neon)));
    assert_eq!(candidates(&sources), ["own.planes.avx2.own", "matmul.planes.avx2", "matmul.planes.scalar"]);
}

/// The same specs give the same text: nothing in it depends on hash order, time or place.
#[test]
fn compiling_is_deterministic() {
    assert_eq!(compiled(FORMAT), compiled(FORMAT));
}

#[test]
fn identities_follow_the_code() {
    let id = |format: &str| {
        let code = compiled(format).expect("compiles");
        let at = code.find("KernelId(").expect("an identity");
        code[at..at + 28].to_string()
    };
    assert_ne!(
        id(FORMAT),
        id(&FORMAT
            .replace("offset = 128", "offset = 0")
            .replace("stride = [2, 8] }", "stride = [2, 8], offset = 16 }"))
    );
    assert_eq!(id(FORMAT), id(&FORMAT.replace("two bits in planes", "other words")));
}

#[test]
fn values_beyond_eight_bits_have_no_integer_product() {
    let error = compiled(
        &FORMAT
            .replace("[-1, 0, 1]", "[-300, 0, 300]")
            .replace(&FORMAT[FORMAT.find("[[quantize]]").expect("there")..], ""),
    )
    .expect_err("refused");
    assert!(error.contains("specs/formats/planes.toml:"), "{error}");
    assert!(error.contains("from -300 to 300"), "{error}");
}

/// A part that is missing is found by nvcc alone, since the emulator has all; one too many has the unit compiled once more.
#[test]
fn units_have_the_parts_of_the_vocabulary_that_they_use() {
    use gristmill_codegen::cuda::{DEVICE_HEADER, Part, emit};
    const HOPPER: &str = include_str!("../../cuda/hopper.h");
    let names: [(Part, &[&str]); 4] = [
        (Part::Copies, &["gm_copy(", "gm_copy_commit(", "gm_copy_wait<"]),
        (Part::Overlap, &["gm_wait_for_previous(", "gm_launch_next(", "gm_prefetch_early("]),
        (Part::Tensor, &["gm_mma_16832_", "gm_mma_8816_", "gm_mma_16816_us", "gm_mma_16816_ss"]),
        (Part::Halves, &["gm_mma_16816_f16", "gm_mma_16816_bf16", "gm_two_"]),
    ];
    let set = check(&shipped().expect("readable")).set.expect("the shipped specs have no mistakes");
    let emitted = emit(&set).expect("plans");
    for unit in &emitted.units {
        let (front, text) = unit.text.split_once(DEVICE_HEADER).expect("the header stands in front");
        let text = text.replace(HOPPER, "");
        for (part, names) in names {
            let used = names.iter().any(|name| text.contains(name));
            assert_eq!(unit.parts.contains(&part), used, "{} and {part:?}", unit.name);
            assert_eq!(front.contains(&format!("#define {}\n", part.name())), used, "{}", unit.name);
        }
    }
    let without = emitted.units.iter().filter(|unit| unit.parts.is_empty()).count();
    assert!(2 * without > emitted.units.len() / 2, "{without} units are the same for all architectures");
}

/// What `device.h` defines from compute capability 8.0 on alone. The emulator has it always, so only nvcc would refuse it.
#[test]
fn units_call_what_their_oldest_device_has() {
    use gristmill_codegen::cuda::{DEVICE_HEADER, emit};
    const FROM_8_0: [&str; 2] = ["gm_two_bf16(", "gm_mma_16816_bf16("];
    let set = check(&shipped().expect("readable")).set.expect("the shipped specs have no mistakes");
    let emitted = emit(&set).expect("plans");
    let mut callers = 0;
    for unit in &emitted.units {
        let text = unit.text.replace(DEVICE_HEADER, "");
        for name in FROM_8_0.into_iter().filter(|name| text.contains(name)) {
            assert!(unit.min_cc >= (8, 0), "{}, for {:?}, calls {name})", unit.name, unit.min_cc);
            callers += 1;
        }
    }
    assert!(callers > 0, "products in bf16 call them");
}
