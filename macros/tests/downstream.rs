//! The example crate, built and run as its users would: specs in a folder, a build script, a hand-written
//! kernel. And the same crate with the kernel marked as another variant, which must not build.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "../../tests/choice/mod.rs"]
mod choice;

type Tested = Result<(), Box<dyn std::error::Error>>;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/downstream")
}

/// Runs cargo in a target folder that both builds share, so that only the crate itself is built twice.
fn cargo(command: &str, manifest: &Path) -> std::io::Result<Output> {
    Command::new(env!("CARGO"))
        .args([command, "--manifest-path"])
        .arg(manifest)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("downstream"))
        // What cargo tells this test is not meant for the crate that is built here.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
}

#[test]
fn runs_and_refuses_another_variant() -> Tested {
    if choice::left_out("examples/downstream") {
        return Ok(());
    }
    let output = cargo("run", &example().join("Cargo.toml"))?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(!errors.contains("warning"), "{errors}");
    let receipt = said.lines().last().unwrap_or_default();
    for ran in ["\"package\":\"downstream\"", "dequantize.q3_seq.scalar", "matmul.q3_seq.", "matmul.i2_s."] {
        assert!(receipt.contains(ran), "{ran} is not in {receipt}");
    }
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx2") {
            assert!(receipt.contains("fast_dequantize.q3_seq.avx2.ssse3"), "{receipt}");
            another_variant()?;
            another_body(receipt)?;
            no_kernels_of_an_older_script()?;
        } else {
            eprintln!("skipped: the hand-written kernel is for AVX2, which this processor lacks");
        }
    }
    Ok(())
}

/// A copy of the example with an edit of its body by hand.
#[cfg(target_arch = "x86_64")]
fn copied(name: &str, edit: impl Fn(&str) -> String) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let files =
        ["build.rs", "src/main.rs", "kernels/formats/q3_seq.toml", "kernels/kernels/fast_dequantize.toml"];
    for file in files.into_iter().chain(["Cargo.toml", "Cargo.lock", "src/by_hand.rs"]) {
        let to = copy.join(file);
        std::fs::create_dir_all(to.parent().unwrap_or(&copy))?;
        let text = std::fs::read_to_string(example().join(file))?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
        let text = text.replace("\"../..", &format!("\"{}", root.display()));
        // Of two packages of one name in one target folder, cargo takes one for the other where its files are older.
        let text = text.replace("name = \"downstream\"", &format!("name = \"{name}\""));
        std::fs::write(to, if file == "src/by_hand.rs" { edit(&text) } else { text })?;
    }
    Ok(copy.join("Cargo.toml"))
}

/// What a build script wrote stays in `OUT_DIR`, and is not what a later script wrote.
#[cfg(target_arch = "x86_64")]
fn no_kernels_of_an_older_script() -> Tested {
    let manifest = copied("downstream-older-script", str::to_owned)?;
    let script = manifest.with_file_name("build.rs");
    let output = cargo("check", &manifest)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(script, "fn main() {}\n")?;
    let output = cargo("check", &manifest)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("build script wrote no kernels"), "{errors}");
    Ok(())
}

/// The id that a receipt has for a kernel.
#[cfg(target_arch = "x86_64")]
fn id(receipt: &str, kernel: &str) -> Result<String, Box<dyn std::error::Error>> {
    let before = receipt.split_once(&format!("\"name\":\"{kernel}\"")).ok_or(kernel)?.0;
    let (_, id) = before.rsplit_once("\"id\":\"").ok_or("an id")?;
    Ok(id.split('"').next().unwrap_or_default().to_owned())
}

/// The text of a body by hand is part of its kernel's id, and of no other one's; its comments are not.
#[cfg(target_arch = "x86_64")]
fn another_body(receipt: &str) -> Tested {
    let edits = [
        ("// Brings the next three bytes", "// Brings three bytes", true),
        ("_mm256_set1_epi32(7)", "_mm256_set1_epi32(3 + 4)", false),
    ];
    for (from, to, same) in edits {
        let manifest = copied("another_body", |text| {
            assert!(text.contains(from));
            text.replace(from, to)
        })?;
        let output = cargo("run", &manifest)?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        let other = said.lines().last().unwrap_or_default();
        let by_hand = "fast_dequantize.q3_seq.avx2.ssse3";
        assert_eq!(id(receipt, by_hand)? == id(other, by_hand)?, same, "{to}");
        let generated = "dequantize.q3_seq.scalar";
        assert_eq!(id(receipt, generated)?, id(other, generated)?, "{to}");
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
fn another_variant() -> Tested {
    let manifest =
        copied("another_variant", |text| text.replace("isa = avx2, requires = [ssse3]", "isa = avx2"))?;
    let output = cargo("build", &manifest)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    let expected = "the function crate::by_hand::dequantize_q3_seq is not marked as the variant \
                    fast_dequantize.q3_seq.avx2.ssse3";
    assert!(errors.contains(expected), "{errors}");
    Ok(())
}
