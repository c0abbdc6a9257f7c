//! Type numbers that several formats have: what `inspect`, `plan`, `run` and `quantize` say of them, and `--type`.
#![cfg(all(feature = "cli", feature = "bitnet", feature = "ggml"))]

use crate::common::{gristmill, text};
use gristmill::gguf::{GgufWriter, Value};
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A file of a tensor `w` (4 rows of 256) with the number 42 that has so many bytes, and one of f32.
fn model(path: &Path, bytes: u64) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama"))?;
    writer.tensor("w", &[256, 4], 42, bytes)?;
    writer.tensor("norm", &[8], 0, 32)?;
    let mut stream = writer.write_to(Vec::new())?;
    stream.data("w", &vec![0; bytes as usize])?;
    stream.data("norm", &[0; 32])?;
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

#[test]
fn a_number_decided_by_size_is_told() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("m.gguf");
    model(&file, 4 * 72)?;
    let line = "type number 42 is q2_0 by the size of its tensors (1 tensor); else it is: tl2, stq1_0";
    gristmill(["inspect", text(&file)]).code(0).says(line);
    gristmill(["plan", text(&file)]).code(0).says(line);
    gristmill(["run", text(&file), "--m", "1", "--threads", "1"]).code(0).says(line);
    for command in ["inspect", "plan"] {
        let json = gristmill([command, text(&file), "--json"]).code(0).json();
        let tensors = json["tensors"].as_array().ok_or("a list")?;
        assert_eq!(tensors[0]["type"], "q2_0", "{command}");
        assert_eq!(tensors[0]["type_number"], 42, "{command}");
        assert_eq!(tensors[0]["type_decided_by"], "size", "{command}");
        assert!(tensors[1]["type_decided_by"].is_null(), "{command}");
    }
    Ok(())
}

#[test]
fn where_sizes_do_not_decide_the_option_does() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, output] = ["m.gguf", "out.gguf"].map(|name| folder.path().join(name));
    model(&file, 1000)?;
    let why = "q2_0 (288 bytes) or stq1_0 (168 bytes); the tensor has room for 1024 bytes";
    gristmill(["inspect", text(&file)]).code(0).says("q2_0 or stq1_0").says(why).says("--type 42=FORMAT");
    let json = gristmill(["inspect", text(&file), "--json"]).code(0).json();
    assert!(json["tensors"][0]["unknown"].as_str().is_some_and(|said| said.contains(why)), "{json}");
    assert!(json["tensors"][1]["unknown"].is_null(), "{json}");
    gristmill(["plan", text(&file)]).code(2).says(why).says("--type 42=FORMAT");
    gristmill(["run", text(&file), "--m", "1"]).code(2).says(why);
    gristmill(["inspect", text(&file), "w"]).code(1).complains(why);
    let quantize = ["quantize", text(&file), "-o", text(&output), "--format", "q8_0"];
    gristmill(quantize).code(1).complains(why);
    assert!(!output.exists());
    // Named, it is read; what was named is told.
    let line = "type number 42 is q2_0 by what was asked for (1 tensor)";
    gristmill(["inspect", text(&file), "--type", "42=q2_0"]).code(0).says(line);
    gristmill(["inspect", text(&file), "w", "--type", "42=q2_0"]).code(0).says("1024");
    gristmill(["plan", text(&file), "--type", "42=q2_0"]).code(0).says(line).says("matmul.q2_0.");
    let json = gristmill(["plan", text(&file), "--type", "42=q4_0", "--json"]).code(0).json();
    assert_eq!(json["tensors"][0]["type"], "q4_0");
    assert_eq!(json["tensors"][0]["type_decided_by"], "name");
    // Twice the same is harmless, twice something else is not.
    gristmill(["plan", text(&file), "--type", "42=q2_0", "--type", "42=q2_0"]).code(0).says(line);
    let twice = gristmill(["plan", text(&file), "--type", "42=q2_0", "--type", "42=q4_0"]).code(1);
    twice.complains("`--type 42=…` is said to be `q2_0` and `q4_0`").complains("say it once");
    let tiles = ["--tiles", "64x128=64,64,64", "--tiles", "64x128=64,64,32"];
    let twice = gristmill([&["plan", text(&file)][..], &tiles].concat()).code(1);
    twice.complains("`--tiles 64x128=…` is said to be `64,64,64` and `64,64,32`");
    // In a format that takes more than there is.
    let larger = gristmill(["plan", text(&file), "--type", "42=q8_0"]).code(1);
    larger.complains("`w`").complains("another type than was named?");
    Ok(())
}

#[test]
fn the_option_is_checked() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("m.gguf");
    model(&file, 4 * 72)?;
    for (wrong, why) in [
        ("42", "NUMBER=FORMAT"),
        ("=q2_0", "NUMBER=FORMAT"),
        ("x=q2_0", "NUMBER=FORMAT"),
        ("0=q4_0", "type without blocks"),
        ("42=q2_9", "did you mean"),
    ] {
        gristmill(["plan", text(&file), "--type", wrong]).code(1).complains(why);
    }
    Ok(())
}
