//! What a file may hold against whoever reads the output: names that a terminal would obey, scales that are no numbers.

use crate::common::{Ran, data, gristmill, text, words};
use gristmill::gguf::{Gguf, GgufWriter, Value};
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Clears the screen, makes up a line, ends C strings, turns the direction of writing, and more of that kind.
const EVIL: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\ninjected line\r\0\u{202e}\u{9b}31m\u{2028}\u{feff}\u{7f}";

/// The same as an argument can be.
const EVIL_ARGUMENT: &str = "\u{1b}[2J\ninjected line\r\u{202e}\u{9b}31m";

/// Checks that nothing of a run is more than text, and that names made no lines.
#[track_caller]
fn harmless(ran: Ran) -> Ran {
    for (stream, text) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        for line in text.lines() {
            let bad = line.chars().find(|c| c.is_control() || "\u{202e}\u{2028}\u{feff}".contains(*c));
            assert!(bad.is_none(), "{stream} holds {bad:?} in {line:?}");
            assert!(!line.starts_with("injected"), "{stream} holds a made-up line:\n{text}");
        }
    }
    ran
}

/// A GGUF file with such names wherever there are names. Tensors: weights that run, weights with a scale that is NaN, a type
/// without a kernel, plain numbers.
fn model(path: &Path) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String(EVIL))?;
    writer.metadata("general.file_type", Value::U32(40))?;
    writer.metadata(&format!("key{EVIL}"), Value::String(&format!("value{EVIL}")))?;
    let blocks = 2 * 128 / 128 * 32;
    let [good, bad, other, plain] = ["good", "bad", "other", "plain"].map(|name| format!("{name}{EVIL}"));
    writer.tensor(&good, &[128, 2], 36, blocks + 32)?;
    writer.tensor(&bad, &[128, 2], 36, blocks + 32)?;
    writer.tensor(&other, &[32, 1], 9, 36)?;
    writer.tensor(&plain, &[2], 0, 8)?;
    writer.tensor(EVIL_ARGUMENT, &[2], 0, 8)?;
    let mut stream = writer.write_to(Vec::new())?;
    let weights =
        |scale: f32| [vec![0x55; blocks as usize], scale.to_le_bytes().to_vec(), vec![0; 28]].concat();
    stream.data(&good, &weights(0.5))?;
    stream.data(&bad, &weights(f32::NAN))?;
    stream.data(&other, &[0; 36])?;
    stream.data(&plain, &[0; 8])?;
    stream.data(EVIL_ARGUMENT, &[0; 8])?;
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

#[test]
fn names_never_reach_the_terminal_raw() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, receipt, output] = ["m.gguf", "receipt", "out.gguf"].map(|name| folder.path().join(name));
    model(&file)?;
    let file_name = text(&file);
    harmless(gristmill(["inspect", file_name, "--metadata"]))
        .code(0)
        .says("good\\u{1b}[2J")
        .says("key\\u{1b}[2J");
    harmless(gristmill(["inspect", file_name, EVIL_ARGUMENT])).code(0).says("injected line");
    harmless(gristmill(["inspect", file_name, &format!("{EVIL_ARGUMENT}2")]))
        .code(1)
        .complains("did you mean");
    harmless(gristmill(["plan", file_name])).code(2).says("good\\u{1b}[2J").says("without a kernel");
    harmless(gristmill(["run", file_name, "--m", "1", "--receipt", text(&receipt)]))
        .code(1)
        .says("defective data: bad\\u{1b}[2J")
        .says("without a kernel")
        .says("good\\u{1b}[2J");
    harmless(gristmill(["run", file_name, "--m", "1000000000000"])).code(1).complains("good\\u{1b}[2J");
    harmless(gristmill(["quantize", file_name, "-o", text(&output), "--format", "tq2_0"]))
        .code(1)
        .complains("other\\u{1b}");
    // JSON holds the true names, escaped by its own rules.
    for line in ["inspect --json", "plan --json", "run --m 1 --json"] {
        let mut arguments = words(line);
        arguments.insert(1, file_name);
        let json = harmless(gristmill(arguments)).json();
        let listed = json["tensors"].as_array().ok_or("a list")?;
        let name = listed.first().and_then(|tensor| tensor["tensor"].as_str()).ok_or("a name")?;
        assert_eq!(name, format!("good{EVIL}"), "{line}");
    }
    // A defect is told with the tensor's name.
    let mut bytes = std::fs::read(&file)?;
    bytes.truncate(bytes.len() - 80);
    std::fs::write(&file, bytes)?;
    harmless(gristmill(["inspect", file_name])).code(1).complains("plain\\u{1b}");
    Ok(())
}

#[test]
fn names_of_safetensors_are_no_different() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, output] = ["m.safetensors", "out.gguf"].map(|name| folder.path().join(name));
    let name = |text: &str| serde_json::Value::String(format!("{text}{EVIL}")).to_string();
    let header = format!(
        "{{{}:{{\"dtype\":\"F32\",\"shape\":[1,128],\"data_offsets\":[0,512]}},\
         {}:{{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[512,513]}}}}",
        name("w"),
        name("flag")
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend([1.0f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat().repeat(64));
    bytes.push(1);
    std::fs::write(&file, bytes)?;
    let quantize = ["quantize", text(&file), "-o", text(&output), "--format", "i2_s"];
    harmless(gristmill(["inspect", text(&file)])).code(0).says("w\\u{1b}[2J");
    harmless(gristmill(quantize)).code(1).complains("flag\\u{1b}[2J");
    // NUL can't be in an argument, so the tensor can't be left out by name.
    let json = harmless(gristmill(["inspect", text(&file), "--json"])).json();
    let names: Vec<&str> = json["tensors"]
        .as_array()
        .ok_or("a list")?
        .iter()
        .filter_map(|tensor| tensor["tensor"].as_str())
        .collect();
    assert!(names.contains(&format!("w{EVIL}").as_str()), "{names:?}");
    Ok(())
}

#[test]
fn files_of_our_own_kinds_are_not_trusted_either() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    let evil = serde_json::Value::String(EVIL.to_owned());
    let receipt = serde_json::json!({
        "schema_version": 1, "package": evil, "devices": [evil],
        "kernels": [{"id": evil, "name": evil, "launches": 1}],
        "fallbacks": [{"policy": evil, "op": evil, "format": evil, "device": evil, "reason": evil, "instead": evil, "runs": 1}],
    });
    std::fs::write(&file, receipt.to_string())?;
    harmless(gristmill(["verify-receipt", text(&file)])).code(1).says("\\u{1b}[2J");
    let record = serde_json::json!([{"kernel": evil, "m": 1, "n": evil}]);
    std::fs::write(&file, record.to_string())?;
    harmless(gristmill(["bench", "--quick", "--compare", text(&file)])).code(1);
    std::fs::write(&file, format!("gristmill tuning 3\ncpu {EVIL}\nmatmul {EVIL} 0 1 {EVIL}\n"))?;
    harmless(gristmill(["tune", "--check", "--out", text(&file)])).code(1);
    std::fs::write(&file, EVIL)?;
    for line in ["inspect", "plan", "run", "analyze-library", "check", "verify-receipt"] {
        harmless(gristmill([line, text(&file)])).code(1);
    }
    Ok(())
}

/// A copy of a file of the test data with other bytes somewhere in its first tensor.
fn changed(
    name: &str,
    to: &Path,
    change: impl FnOnce(&mut [u8]),
) -> Result<String, Box<dyn std::error::Error>> {
    let mut bytes = std::fs::read(data(name))?;
    let sizes = |_: &gristmill::gguf::SizeQuery<'_>| gristmill::gguf::SizeAnswer::Unknown;
    let parsed = Gguf::parse(bytes.as_slice(), &sizes)?;
    let mut tensors = parsed.tensors();
    let (first, second) = (tensors.next().ok_or("a tensor")?, tensors.next().ok_or("another")?);
    let (tensor, start, end) =
        (first.name().to_owned(), usize::try_from(first.offset())?, usize::try_from(second.offset())?);
    drop(tensors);
    change(bytes.get_mut(start..end).ok_or("bytes")?);
    std::fs::write(to, bytes)?;
    Ok(tensor)
}

#[test]
fn a_scale_that_is_no_number_is_the_files_fault() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("m.gguf");
    let put =
        |at: usize, bits: u16| move |bytes: &mut [u8]| bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    // A row of i2_s takes 64 bytes here, and the scale stands behind all; rows of the others have two blocks: of tq2_0 66 bytes
    // with the scale at the end, of q4_k 144 that begin with the scale and the scale of minima.
    let mut cases = vec![
        ("i2_s.gguf", 8 * 64 + 2, 0x7fc0, "row 0, byte 512 of the tensor: the scale of the tensor is NaN"),
        ("i2_s.gguf", 8 * 64 + 2, 0xff80, "the scale of the tensor is"),
        ("tq2_0.gguf", 66 + 64, 0x7e01, "row 0, block 1, byte 130 of the tensor: `d` is NaN"),
        ("tq2_0.gguf", 3 * 66 + 64, 0xfc00, "row 1, block 1, byte 262 of the tensor: `d` is -inf"),
    ];
    if cfg!(feature = "ggml") {
        cases.push(("q4_k.gguf", 144, 0x7c00, "row 0, block 1, byte 144 of the tensor: `d` is inf"));
        cases.push(("q4_k.gguf", 146, 0xfe00, "row 0, block 1, byte 146 of the tensor: `dmin` is NaN"));
    }
    for (name, at, bits, what) in cases {
        let tensor = changed(name, &file, put(at, bits))?;
        let ran = gristmill(["run", text(&file), "--m", "1,9"]).code(1);
        assert!(ran.stdout.contains(&format!("defective data: {tensor}: ")), "{name}: {}", ran.stdout);
        assert!(ran.stdout.contains(what), "{name}: {}", ran.stdout);
        assert!(!ran.stdout.to_lowercase().contains("wrong"), "{name}: {}", ran.stdout);
        assert!(ran.stdout.contains("1 tensor on"), "the other tensor runs\n{}", ran.stdout);
        let json = gristmill(["run", text(&file), "--m", "1", "--json"]).code(1).json();
        assert_eq!(json["defective"][0]["tensor"], *tensor, "{json}");
        assert!(json["defective"][0]["problem"].as_str().is_some_and(|text| text.contains(what)), "{json}");
        gristmill(["inspect", text(&file), &tensor]).code(1).says("bad scales").says(what);
    }
    Ok(())
}

/// Scales that are numbers, and so large that products are none: the kernel that says so is right.
#[cfg(feature = "ggml")]
#[test]
fn products_beyond_f32_are_the_files_fault() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, raw, values] = ["m.gguf", "m.bin", "m.f32"].map(|name| folder.path().join(name));
    // Blocks of a byte with the exponent of their scale, 2^(e-128), and 32 codes; 7 stands for 12.
    let blocks = |exponent: u8| -> Vec<u8> {
        (0..8).flat_map(|_| [vec![exponent], vec![0x77; 16]].concat()).collect()
    };
    for (exponent, finite) in [(120, true), (252, true), (254, false)] {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String("llama"))?;
        writer.tensor("w", &[256, 1], 39, 136)?;
        let mut stream = writer.write_to(Vec::new())?;
        stream.data("w", &blocks(exponent))?;
        std::fs::write(&file, stream.finish()?)?;
        let run = gristmill(["run", text(&file), "--m", "1,9", "--threads", "1"]);
        let is_small = exponent == 120;
        let run = run.code(if is_small { 0 } else { 1 });
        let told = run.stdout.contains("defective data: w: row 0: its product with token 0 is ");
        assert!(
            told != is_small && !run.stdout.to_lowercase().contains("wrong"),
            "{exponent}: {}",
            run.stdout
        );
        gristmill(["inspect", text(&file), "w"]).code(if finite { 0 } else { 1 });
        std::fs::write(&raw, blocks(exponent))?;
        let line = ["dequantize", "--raw", "--format", "mxfp4", "--row", "256", text(&raw), text(&values)];
        let ran = gristmill(line).code(if finite { 0 } else { 1 });
        if !finite {
            ran.complains("row 0, column 0: the value is inf, beyond f32").complains("help: ");
        }
    }
    Ok(())
}

/// Neither is a raw file whose scale is none turned into values.
#[test]
fn a_scale_that_is_no_number_makes_no_values() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [raw, values] = ["m.bin", "m.f32"].map(|name| folder.path().join(name));
    let mut bytes = [[0x55; 64].as_slice(), &[0, 0x3c]].concat().repeat(4);
    bytes[3 * 66 + 64..].copy_from_slice(&0x7e00u16.to_le_bytes());
    std::fs::write(&raw, bytes)?;
    gristmill(["dequantize", "--raw", "--format", "tq2_0", "--row", "512", text(&raw), text(&values)])
        .code(1)
        .complains("m.bin")
        .complains("row 1, block 1, byte 262 of the tensor: `d` is NaN")
        .complains("help: ");
    assert!(!values.exists());
    Ok(())
}

#[test]
fn one_rule_for_exit_codes() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("m.gguf");
    // One tensor runs, one has no kernel.
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama"))?;
    let q8_1 = |rows: u64| rows * 36;
    writer.tensor("runs", &[256, 2], 35, 2 * 66)?;
    writer.tensor("has.none", &[32, 3], 9, q8_1(3))?;
    let mut stream = writer.write_to(Vec::new())?;
    stream.data("runs", &[0x11; 2 * 66])?;
    stream.data("has.none", &[0; 3 * 36])?;
    std::fs::write(&file, stream.finish()?)?;
    gristmill(["plan", text(&file)]).code(2).says("q8_1 (1: has.none)");
    gristmill(["run", text(&file), "--m", "1"]).code(2).says("q8_1 (1: has.none)").says("1 tensor on");
    gristmill(["--help"]).code(0).says("Exit codes").says("2 if anything asked for has none");
    // A refusal has decide's reason, also where nothing is left to run.
    let path = data("i2_s.gguf");
    for precision in ["f32", "f16", "bf16"] {
        let ran = gristmill(["run", text(&path), "--m", "1", "--precision", precision]).code(2);
        assert!(
            ran.stdout.contains(&format!("multiplies int8, and {precision} was asked for")),
            "{}",
            ran.stdout
        );
        assert!(!ran.stdout.contains("no tensor in a format"), "{}", ran.stdout);
    }
    Ok(())
}
