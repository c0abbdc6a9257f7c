//! `check` and `emit`: specs on the command line.
#![cfg(all(feature = "cli", feature = "bitnet", feature = "ggml"))]

use crate::common::{gristmill, text, words};
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The folder of the shipped specs.
fn specs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernel-spec")
}

#[test]
fn shipped_specs_are_right() {
    gristmill(["check", text(&specs())]).code(0).says("no errors");
}

#[test]
fn mistakes_are_shown_where_they_are() -> Outcome {
    let folder = tempfile::tempdir()?;
    let formats = folder.path().join("formats");
    std::fs::create_dir(&formats)?;
    let good = std::fs::read_to_string(specs().join("formats/tq2_0.toml"))?.replace("gguf   = 35\n", "");
    let path = formats.join("mine.toml");
    std::fs::write(&path, &good)?;
    gristmill(["check", text(folder.path())]).code(0).says("checked 1 file: no errors");
    std::fs::write(&path, good.replace("stride", "strode"))?;
    gristmill(["check", text(folder.path())])
        .code(1)
        .says("mine.toml:")
        .says("did you mean `stride`?")
        .says("found ");
    gristmill(["check", text(&folder.path().join("nowhere"))]).code(1).complains("does not exist");
    Ok(())
}

/// A file of the name of a built-in spec is another spec, as in a build; the very file that one was compiled from stands in for it.
#[test]
fn a_check_takes_what_a_build_takes() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let own = folder.path().join("formats");
    std::fs::create_dir(&own)?;
    std::fs::copy("kernel-spec/formats/i2_s.toml", own.join("i2_s.toml"))?;
    gristmill(["check", text(folder.path())]).code(1).says("the format `i2_s` is described twice");
    gristmill(["check", "kernel-spec/formats/i2_s.toml"]).code(0).says("no errors");
    Ok(())
}

/// The checks pass, and no loop can be written for the variant.
#[test]
fn what_can_t_be_compiled_is_shown_where_it_is() -> Outcome {
    let folder = tempfile::tempdir()?;
    let kernels = folder.path().join("kernels");
    std::fs::create_dir(&kernels)?;
    let kernel = "doc = \"eight rows in vectors of sixteen\"\nop = \"matmul\"\nformats = [\"i2_s\"]\ninput = [\"f32\"]\n\n\
        [[cpu]]\nisa = \"avx512\"\ndefault = false\npacking = \"r16k4\"\ntile = { rows = 8, tokens = 1 }\n";
    std::fs::write(kernels.join("narrow.toml"), kernel)?;
    gristmill(["check", text(folder.path())])
        .code(1)
        .says("error[tile-rows]: 8 rows at once")
        .says("narrow.toml:6:1")
        .says("^^^^^^^ this variant")
        .says("found 1 error");
    Ok(())
}

#[test]
fn generated_code_can_be_read() {
    let code = gristmill(words("emit i2_s --isa avx2")).code(0).says("pub mod i2_s {").says("@generated");
    assert!(
        code.stdout.contains("enable = \"avx2,f16c\"") && !code.stdout.contains("avx512"),
        "other ISAs are left out"
    );
    assert!(code.stdout.contains("kernel-spec/kernels/matmul.toml:"), "it says where it comes from");
    gristmill(words("emit i2_s --isa scalar")).code(0).says("pub unsafe fn matmul_scalar");
    gristmill(words("emit i2_s --plan")).code(0).says("matmul.i2_s.scalar").says("exact up to k = ");
    gristmill(words("emit matmul --format q4_k")).code(0).says("pub mod q4_k {");
    gristmill(words("emit int8_row")).code(0).says("pub mod activations_int8_row {");
    let file = specs().join("formats/q4_0.toml");
    gristmill(["emit", text(&file), "--plan"]).code(0).says("quantize.q4_0.");
    gristmill(words("emit --abi-header")).code(0).says("typedef gm_fault gm_dequantize(const uint8_t *src, ");
    gristmill(words("emit")).code(1).complains("<SPEC>");
    gristmill(words("emit i2s")).code(1).complains("did you mean `i2_s`?");
}
