//! Files that declare a transform of activations: what `inspect`, `plan` and `run` say of them.
#![cfg(all(feature = "cli", feature = "ggml"))]

use crate::common::{gristmill, record, text};
use gristmill::gguf::{ArrayBuf, GgufWriter, Value};
use gristmill_records::inspect::{Declaration, File, Metadata, MetadataArray, Transform};
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Declares, in this version, that the matrix `folded` is folded.
fn declare(writer: &mut GgufWriter, version: u32) -> Outcome {
    let names = ArrayBuf::strings(["folded"]);
    for (key, value) in [
        ("version", Value::U32(version)),
        ("transform", Value::String("normalized-sylvester-walsh-hadamard")),
        ("axis", Value::String("input-last-dimension")),
        ("block_size", Value::U32(64)),
        ("sign_mode", Value::String("identity")),
        ("weight_names", names.value()),
    ] {
        writer.metadata(&format!("prism.hadamard.{key}"), value)?;
    }
    Ok(())
}

/// A file of a folded matrix and one that is not, with a declaration of this version.
fn model(path: &Path, version: u32) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama"))?;
    declare(&mut writer, version)?;
    for name in ["folded", "plain"] {
        writer.tensor(name, &[128, 4], 8, 4 * 136)?;
    }
    let mut stream = writer.write_to(Vec::new())?;
    stream.data("folded", &[0x11; 544])?;
    stream.data("plain", &[0x11; 544])?;
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

#[test]
fn a_declared_transform_is_told_and_applied() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("m.gguf");
    model(&file, 1)?;
    let line = "Hadamard transform in unsigned blocks of 64: of what products with 1 tensor take, and of the stored rows of 0 tensors";
    for command in ["inspect", "plan"] {
        gristmill([command, text(&file)]).code(0).says(line);
        let json = gristmill([command, text(&file), "--json"]).code(0).json();
        let said: Transform = record(&json["transform"]);
        let what = Declaration::Understood { block: 64, signed: false, products: 1, stored_rows: 0 };
        assert_eq!((said.understood, said.what), (true, what), "{command}");
    }
    // Metadata in JSON are what they are, no text about them.
    let said: File = gristmill(["inspect", text(&file), "--json"]).code(0).record();
    let metadata = said.metadata.expect("of a GGUF file");
    let text_of = |text: &str| Metadata::Text(text.to_owned());
    assert_eq!(metadata["general.architecture"], text_of("llama"));
    assert_eq!(metadata["prism.hadamard.block_size"], Metadata::Unsigned(64));
    let names = MetadataArray { of: "string".to_owned(), length: 1, first: vec![text_of("folded")] };
    assert_eq!(metadata["prism.hadamard.weight_names"], Metadata::Array(names));
    let run = ["run", text(&file), "--m", "1,3", "--threads", "1"];
    gristmill(run).code(0).says("activations of 1 tensor went through the Hadamard transform");
    let json = gristmill([&run[..], &["--json"]].concat()).code(0).json();
    assert_eq!(json["transformed"], 1);
    Ok(())
}

/// Without the tensor, the metadata would name what is not there, and the file would be refused by whoever reads it.
#[test]
fn a_folded_tensor_is_not_left_out() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, output] = ["m.gguf", "out.gguf"].map(|name| folder.path().join(name));
    let mut writer = GgufWriter::new();
    declare(&mut writer, 1)?;
    for name in ["folded", "plain", "more"] {
        writer.tensor(name, &[128, 2], 0, 1024)?;
    }
    let mut stream = writer.write_to(Vec::new())?;
    for name in ["folded", "plain", "more"] {
        stream.data(name, &[0x3e; 1024])?;
    }
    std::fs::write(&file, stream.finish()?)?;
    let quantize = ["quantize", "--format", "q8_0", text(&file), "-o", text(&output), "--leave-out"];
    gristmill(quantize.iter().chain(&["folded"]))
        .code(1)
        .complains("`folded` can't be left out: metadata `prism.hadamard.weight_names`")
        .complains("help: ");
    assert!(!output.exists());
    gristmill(quantize.iter().chain(&["plain"])).code(0);
    gristmill(["plan", text(&output)]).code(0).says("Hadamard transform");
    Ok(())
}

#[test]
fn what_is_not_understood_is_refused_with_its_key() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("m.gguf");
    model(&file, 2)?;
    let why = "metadata `prism.hadamard.version`: 2, expected 1";
    gristmill(["inspect", text(&file)]).code(0).says(why);
    gristmill(["plan", text(&file)]).code(2).says(why).says("help: ");
    gristmill(["run", text(&file), "--m", "1", "--threads", "1"]).code(1).complains(why).complains("help: ");
    for (command, code) in [("inspect", 0), ("plan", 2)] {
        let json = gristmill([command, text(&file), "--json"]).code(code).json();
        let said: Transform = record(&json["transform"]);
        let is_named =
            matches!(&said.what, Declaration::Refused { key, .. } if key == "prism.hadamard.version");
        assert!(!said.understood && is_named, "{command}: {said:?}");
    }
    Ok(())
}
