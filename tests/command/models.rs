//! Model files through the command: run, plan, inspect, quantize, receipts, raw files.
#![cfg(all(feature = "cli", feature = "bitnet", feature = "ggml"))]

use crate::common::{data, gristmill, text};
use gristmill::gguf::GgufWriter;
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn real_tensors_agree_with_the_oracle() {
    for (file, error) in [("i2_s.gguf", "exact"), ("tq2_0.gguf", "NMSE"), ("q4_k.gguf", "NMSE")] {
        let path = data(file);
        gristmill(["run", text(&path), "--m", "1,5"]).code(0).says(error).says("2 tensors");
        let json = gristmill(["run", text(&path), "--m", "1,5", "--threads", "1", "--json"]).code(0).json();
        let rows = json["tensors"].as_array().expect("a list");
        assert_eq!(rows.len(), 4, "{json}");
        for row in rows {
            assert_eq!(row["correct"], true, "{row}");
            assert_eq!(row["rows_checked"], row["n"], "{row}");
            assert!(row["us"].as_f64() > Some(0.0) && row["gmac_s"].as_f64() > Some(0.0), "{row}");
        }
    }
}

#[test]
fn a_processor_multiplies_int8() {
    let path = data("i2_s.gguf");
    gristmill(["run", text(&path), "--m", "1", "--precision", "auto"]).code(0).says("exact");
    gristmill(["run", text(&path), "--m", "1", "--precision", "f16"])
        .code(2)
        .says("multiplies int8, and f16 was asked for");
}

#[test]
fn types_without_a_kernel_are_named() {
    // Described, but in a family that this build may have left out.
    if gristmill::REGISTRY.formats.iter().any(|format| format.name == "iq2_s") {
        return;
    }
    let path = data("iq2_s.gguf");
    gristmill(["run", text(&path)]).code(2).says("iq2_s (2: blk.0.ffn_up.weight");
    gristmill(["plan", text(&path)]).code(2).says("2 without").says("cargo feature");
    gristmill(["inspect", text(&path), "blk.0.ffn_up.weight"]).code(1).complains("iq2_s");
}

#[test]
fn plans_decide_before_loading() {
    let path = data("i2_s.gguf");
    let json = gristmill(["plan", text(&path), "--json"]).code(0).json();
    assert!(
        json["tensors"][0]["kernel"].as_str().is_some_and(|name| name.starts_with("matmul.i2_s.")),
        "{json}"
    );
    assert_eq!(json["tensors"][1]["quantized"], false);
    assert!(json["tensors"][1]["file_bytes"].is_null(), "{json}");
    gristmill(["plan", text(&path), "--device", "cuda:0"]).code(2).says("i2_s (2: ");
}

/// Of a small model every tensor is held in what is fastest from caches; where bytes decide, the command says so.
#[test]
fn a_working_set_is_told() {
    let path = data("i2_s.gguf");
    for line in [["plan", text(&path), "--m", "1"], ["run", text(&path), "--m", "1"]] {
        let json = gristmill(line.into_iter().chain(["--json"])).code(0).json();
        assert_eq!(json["from_memory"].as_array().map(Vec::len), Some(0), "{json}");
        assert!(json["working_set"].as_u64() >= json["file_bytes"].as_u64(), "{json}");
    }
    let plan = gristmill(["plan", text(&path), "--json"]).code(0).json();
    let bits = plan["tensors"][0]["bits_per_weight"].as_f64().expect("a number");
    let bytes = plan["tensors"][0]["packed_bytes"].as_f64().expect("a number");
    assert_eq!(bits, 8.0 * bytes / (8.0 * 256.0), "{plan}");
    let line = ["explain", "matmul", "--format", "i2_s", "--working-set", "1000000000000000", "--json"];
    let large = gristmill(line).code(0).json();
    let small = gristmill(&line[..4]).code(0);
    if large["from_memory"].is_null() {
        // This processor reads no packing of fewer bytes, or does not tell of its caches.
        assert_ne!(large["memory"]["packing"], "r32t5", "{large}");
    } else {
        assert_eq!(large["from_memory"]["working_set"], 1_000_000_000_000_000u64);
        assert_eq!(large["from_memory"]["packing"], large["memory"]["packing"], "{large}");
        assert_eq!(large["memory"]["packing"], "r32t5", "{large}");
        gristmill(&line[..6]).code(0).says("weights are held in `r32t5` instead of `r32k4`");
        small.says("as r32k4;");
    }
}

/// Two bits for each of 8 x 256 weights, and the 32 bytes behind them; packed, rows are filled up to whole panels.
#[test]
fn bytes_of_the_file_stand_beside_packed_bytes() {
    let path = data("i2_s.gguf");
    for line in [["plan", text(&path), "--m", "1"], ["run", text(&path), "--m", "1"]] {
        gristmill(line).code(0).says(" in the file, ").says(" packed");
        let json = gristmill(line.into_iter().chain(["--json"])).code(0).json();
        let rows = json["tensors"].as_array().expect("tensors");
        let sum = |key: &str| rows.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
        assert_eq!(rows[0]["file_bytes"], 8 * 256 / 4 + 32, "{json}");
        assert!(rows[0]["packed_bytes"].as_u64() > Some(8 * 256 / 4), "{json}");
        assert_eq!(json["file_bytes"], sum("file_bytes"), "{json}");
        assert_eq!(json["packed_bytes"], sum("packed_bytes"), "{json}");
    }
}

#[test]
fn inspect_shows_values_and_mistakes() -> Outcome {
    let path = data("i2_s.gguf");
    gristmill(["inspect", text(&path)])
        .code(0)
        .says("bitnet-b1.58")
        .says("blk.0.attn_q.weight")
        .says("8x256");
    gristmill(["inspect", text(&path), "blk.0.attn_q.weight"]).code(0).says("-0.37 to 0.37");
    gristmill(["inspect", text(&path), "blk.0.attn_p.weight"]).code(1).complains("did you mean");
    // A code without meaning in the first byte of the first tensor.
    let folder = tempfile::tempdir()?;
    let broken = folder.path().join("broken.gguf");
    let mut bytes = std::fs::read(&path)?;
    let codes = json_offset(&bytes)?;
    bytes[codes] |= 0b1100_0000;
    std::fs::write(&broken, &bytes)?;
    gristmill(["inspect", text(&broken), "blk.0.attn_q.weight"])
        .code(1)
        .says("invalid codes   1, the first at row 0, column 0");
    gristmill(["run", text(&broken)])
        .code(1)
        .says("defective data: blk.0.attn_q.weight: row 0, column 0")
        .says("1 tensor on");
    bytes.truncate(codes + 3);
    std::fs::write(&broken, &bytes)?;
    gristmill(["inspect", text(&broken)]).code(1).complains("incomplete");
    Ok(())
}

/// Where the data of the first tensor starts.
fn json_offset(bytes: &[u8]) -> Result<usize, Box<dyn std::error::Error>> {
    let sizes = |_: &gristmill::gguf::SizeQuery<'_>| gristmill::gguf::SizeAnswer::Unknown;
    let file = gristmill::gguf::Gguf::parse(bytes, &sizes)?;
    let first = file.tensors().next().ok_or("the file has tensors")?;
    Ok(usize::try_from(first.offset())?)
}

/// Receipts whose parts contradict each other.
#[test]
fn a_receipt_agrees_with_itself() -> Outcome {
    let folder = tempfile::tempdir()?;
    let receipt = folder.path().join("receipt.json");
    let path = data("i2_s.gguf");
    gristmill(["run", text(&path), "--m", "1", "--receipt", text(&receipt)]).code(0);
    let whole: serde_json::Value = serde_json::from_slice(&std::fs::read(&receipt)?)?;
    type Change = fn(&mut serde_json::Value);
    let mut cases: Vec<(Change, &str)> = vec![
        (|of| of["devices"] = serde_json::json!([]), "a kernel ran on cpu, which is not among its devices"),
        (
            |of| of["kernels"].as_array_mut().into_iter().for_each(|all| all.push(all[0].clone())),
            "is listed twice",
        ),
        (|of| drop(of.as_object_mut().and_then(|of| of.remove("cpu"))), "it does not say on which (`cpu`)"),
    ];
    // The portable kernels ran on a processor without features too.
    let kernels = whole["kernels"].as_array().ok_or("a list")?;
    if kernels.iter().any(|kernel| kernel["name"].as_str().is_some_and(|name| !name.contains(".scalar"))) {
        cases.push((|of| of["cpu"]["arch"] = "another".into(), "and the processor is of another"));
        cases.push((|of| of["cpu"]["features"] = serde_json::json!([]), "and the processor lacks "));
    }
    for (change, why) in cases {
        let mut changed = whole.clone();
        change(&mut changed);
        std::fs::write(&receipt, changed.to_string())?;
        gristmill(["verify-receipt", text(&receipt)]).code(1).says(why).says("not valid");
    }
    Ok(())
}

#[test]
fn receipts_say_what_ran() -> Outcome {
    let folder = tempfile::tempdir()?;
    let receipt = folder.path().join("receipt.json");
    let path = data("i2_s.gguf");
    gristmill(["run", text(&path), "--m", "1", "--receipt", text(&receipt)]).code(0);
    let check = |require: &[&str]| {
        let mut arguments = vec!["verify-receipt", text(&receipt)];
        for name in require {
            arguments.extend(["--require", name]);
        }
        gristmill(arguments)
    };
    check(&["cpu"]).code(0).says("ran: matmul.i2_s.").says("valid");
    check(&["cuda"]).code(1).says("`cuda` is required");
    check(&["cpu", "matmul.q8_0.scalar"]).code(1);
    let told = std::fs::read_to_string(&receipt)?;
    let json: serde_json::Value = serde_json::from_str(&told)?;
    // One of several packages: kernels of this build are checked, those of another one are told.
    let mut joined = json.clone();
    let ours = json["package"].as_str().ok_or("a package")?;
    joined["package"] = format!("mine + {ours}").into();
    let kernels = joined["kernels"].as_array_mut().ok_or("a list")?;
    kernels.iter_mut().for_each(|kernel| kernel["package"] = ours.into());
    std::fs::write(&receipt, joined.to_string())?;
    check(&["cpu"]).code(0).says("ran: matmul.i2_s.").says("valid");
    let mut more = joined.clone();
    let own = serde_json::json!({"id": "00", "name": "matmul.mine", "source": "a:1", "package": "mine", "launches": 1});
    more["kernels"].as_array_mut().ok_or("a list")?.push(own);
    std::fs::write(&receipt, more.to_string())?;
    check(&[]).code(1).says("kernel `matmul.mine` is of package `mine`").says("--unchecked mine");
    gristmill(["verify-receipt", text(&receipt), "--unchecked", "mine"])
        .code(0)
        .says("not checked: matmul.mine of mine")
        .says("but for what was not checked");
    let named = ["verify-receipt", text(&receipt), "--unchecked", "mine", "--require", "matmul.mine"];
    gristmill(named).code(1).says("`matmul.mine` is required");
    std::fs::write(&receipt, more.to_string().replace("mine + ", ""))?;
    check(&[]).code(1).says("which the receipt is not of");
    std::fs::write(&receipt, joined.to_string().replace(&format!("mine + {ours}"), "mine"))?;
    check(&[]).code(1).says("it is of package `mine`");
    // A receipt that claims a kernel which this build does not have.
    let id = json["kernels"][0]["id"].as_str().ok_or("an id")?;
    std::fs::write(&receipt, told.replace(id, "0123456789abcdef"))?;
    check(&[]).code(1).says("wrong: kernel");
    std::fs::write(&receipt, told.replace("\"devices\":[\"cpu\"]", "\"devices\":[\"cpu\",\"cuda\"]"))?;
    check(&[]).code(1).says("claims device");
    let step = r#""fallbacks":[],"recoveries":[{"step":"quarantined","kernel":"one","reason":"two"}]"#;
    std::fs::write(&receipt, told.replace(r#""fallbacks":[]"#, step))?;
    check(&["cpu"]).code(0).says("recovery: kernel one failed (two), step quarantined");
    let lost =
        r#""fallbacks":[],"recoveries":[{"step":"taken-over","kernel":"one","reason":"cuda:1 was lost"}]"#;
    std::fs::write(&receipt, told.replace(r#""fallbacks":[]"#, lost))?;
    check(&["cpu"]).code(0).says("recovery: cuda:1 was lost, step taken-over");
    let moved =
        r#""fallbacks":[],"recoveries":[{"step":"moved-to-processor","kernel":"one","reason":"cuda:0: no"}]"#;
    std::fs::write(&receipt, told.replace(r#""fallbacks":[]"#, moved))?;
    check(&["cpu"]).code(0).says("recovery: cuda:0: no, step moved-to-processor");
    // Parts of divided layers, which are where kernels ran.
    for (device, rows, code, says) in [
        ("cpu", "[0,16]", 0, "part: rows 0 to 16 of i2_s 32x256 on cpu, 2 runs"),
        ("cpu", "[16,40]", 1, "a part has rows 16 to 40 of 32"),
        ("cuda:1", "[0,16]", 1, "it has a part on cuda:1, but no kernel of it ran there"),
        ("cpu", "[0]", 1, "it is not as receipts are: `parts[0].rows"),
        ("gpu:1", "[0,16]", 1, "is on `gpu:1`, which is no device"),
    ] {
        let part =
            format!(r#"{{"device":"{device}","format":"i2_s","n":32,"k":256,"rows":{rows},"runs":2}}"#);
        let parts = format!(r#""fallbacks":[],"parts":[{part}]"#);
        std::fs::write(&receipt, told.replace(r#""fallbacks":[]"#, &parts))?;
        check(&["cpu"]).code(code).says(says);
    }
    // What is missing is named.
    std::fs::write(&receipt, told.replace("\"launches\":", "\"lunches\":"))?;
    check(&[]).code(1).says("`kernels[0]").says("missing field `launches`");
    std::fs::write(&receipt, "{}")?;
    check(&[]).code(1).says("not a receipt");
    std::fs::write(&receipt, "no JSON")?;
    check(&[]).code(1);
    Ok(())
}

fn write_f32(path: &Path, values: &[f32]) -> std::io::Result<()> {
    std::fs::write(path, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

/// Values that are not random and not regular.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * i * 31 + i * 7) % 1009) as f32 / 504.5 - 1.0).collect()
}

#[test]
fn raw_files_go_there_and_back() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, packed, output] = ["in.f32", "packed.bin", "out.f32"].map(|name| folder.path().join(name));
    let x = values(3 * 512);
    write_f32(&input, &x)?;
    for (format, bytes, worst) in
        [("q8_0", 3 * 544, 0.01), ("q4_0", 3 * 288, 0.15), ("i2_s", 3 * 128 + 32, 0.8)]
    {
        let common = ["--raw", "--format", format, "--row", "512"];
        gristmill(["quantize"].iter().chain(&common).chain(&[text(&input), text(&packed)]))
            .code(0)
            .says(&format!("{bytes} bytes of {format}, 3 rows of 512"));
        assert_eq!(std::fs::metadata(&packed)?.len(), bytes);
        gristmill(["dequantize"].iter().chain(&common).chain(&[text(&packed), text(&output)])).code(0);
        let back = std::fs::read(&output)?;
        let back: Vec<f32> = back.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(back.len(), x.len());
        let error = x.iter().zip(&back).map(|(x, back)| (x - back).abs()).fold(0.0, f32::max);
        assert!(error < worst && error > 0.0, "{format}: {error}");
    }
    gristmill(["quantize", "--raw", "--format", "q8_0", "--row", "500", text(&input), text(&packed)]).code(1);
    gristmill(["quantize", "--raw", "--format", "q8_0", "--row", "48", text(&input), text(&packed)])
        .code(2)
        .complains("pad rows to 64");
    gristmill(["dequantize", "--raw", "--format", "q8_0", "--row", "512", text(&input), text(&output)])
        .code(1)
        .complains("544 bytes");
    write_f32(&input, &[&x[..700], &[f32::NAN], &x[701..]].concat())?;
    gristmill(["quantize", "--raw", "--format", "q8_0", "--row", "512", text(&input), text(&packed)])
        .code(1)
        .complains("row 1, column 188");
    Ok(())
}

/// Four rows of I2_S in one byte each column: codes 0, 1, 2, 1.
#[test]
#[cfg(feature = "import")]
fn interleaved_rows_are_read_by_the_name_of_their_layout() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [packed, output] = ["packed.bin", "out.f32"].map(|name| folder.path().join(name));
    let mut bytes = vec![0b00_01_10_01; 128];
    bytes.extend(2.5f32.to_le_bytes());
    bytes.extend([0; 28]);
    std::fs::write(&packed, &bytes)?;
    let arguments =
        ["dequantize", "--raw", "--format", "i2_s_rows4", "--row", "128", text(&packed), text(&output)];
    gristmill(arguments).code(0).says("4 rows of 128 f32 values");
    let rows: Vec<f32> = std::fs::read(&output)?
        .chunks(512)
        .map(|row| row[..4].try_into())
        .map(|b| b.map(f32::from_le_bytes))
        .collect::<Result<_, _>>()?;
    assert_eq!(rows, [-2.5, 0.0, 2.5, 0.0]);
    bytes[77] |= 0b11;
    std::fs::write(&packed, &bytes)?;
    gristmill(arguments).code(1).complains("row 3, column 77: the code there means nothing in format `i2_s`");
    std::fs::write(&packed, &bytes[32..])?;
    gristmill(arguments).code(1).complains("3 rows can't be in the layout `i2_s_rows4`, which interleaves 4");
    gristmill(["list"]).code(0).says("i2_s_rows4");
    Ok(())
}

/// A safetensors file: two matrices, a vector, and a tensor that is no weight.
fn safetensors(path: &Path) -> std::io::Result<()> {
    let header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4,256],\"data_offsets\":[0,4096]},\
        \"b\":{\"dtype\":\"F32\",\"shape\":[4,100],\"data_offsets\":[4096,5696]},\
        \"c\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[5696,5728]},\
        \"d\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[5728,5736]}}";
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(values(5728 / 4).iter().flat_map(|value| value.to_le_bytes()));
    bytes.extend(7u64.to_le_bytes());
    std::fs::write(path, bytes)
}

#[test]
fn any_number_of_threads_writes_the_same_files() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, model, raw, back] =
        ["in.f32", "in.safetensors", "raw", "back"].map(|name| folder.path().join(name));
    safetensors(&model)?;
    // 37 rows, so that threads get different shares, with as many values as are worth dividing.
    let values = (0..37u32 * 8192).map(|i| (i.wrapping_mul(2_654_435_761) % 2001) as f32 / 1000.0 - 1.0);
    std::fs::write(&input, values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())?;
    let mut expected = None;
    for threads in ["1", "2", "5"] {
        let raw_format = ["--raw", "--format", "q4_k", "--row", "8192", "--threads", threads];
        gristmill(["quantize", text(&input), text(&raw)].into_iter().chain(raw_format)).code(0);
        gristmill(["dequantize", text(&raw), text(&back)].into_iter().chain(raw_format)).code(0);
        let output = folder.path().join(format!("{threads}.gguf"));
        let line = ["quantize", text(&model), "-o", text(&output), "--format", "q8_0", "--threads", threads];
        gristmill(line).code(0);
        let files = [&raw, &back, &output].map(std::fs::read).into_iter().collect::<Result<Vec<_>, _>>()?;
        assert_eq!(files[1].len(), 4 * 37 * 8192);
        assert!(*expected.get_or_insert_with(|| files.clone()) == files, "{threads} threads");
    }
    Ok(())
}

#[test]
fn models_are_quantized_to_gguf() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, output, again] =
        ["in.safetensors", "out.gguf", "again.gguf"].map(|name| folder.path().join(name));
    safetensors(&input)?;
    gristmill(["quantize", text(&input), "-o", text(&output), "--format", "q8_0"])
        .code(0)
        .says("1 of 4 tensors quantized")
        .says("i64 (copied)");
    let json = gristmill(["inspect", text(&output), "--json"]).code(0).json();
    let types: Vec<&str> =
        json["tensors"].as_array().ok_or("a list")?.iter().filter_map(|t| t["type"].as_str()).collect();
    assert_eq!(types, ["q8_0", "f32", "f32", "i64"]);
    gristmill(["run", text(&output), "--m", "1,4"]).code(0).says("NMSE");
    // From GGUF to GGUF: what is quantized already is copied, and so are the metadata.
    let json =
        gristmill(["quantize", text(&output), "-o", text(&again), "--format", "q8_0", "--json"]).code(1);
    assert!(json.stderr.contains("holds nothing to quantize"), "{}", json.stderr);
    assert!(!again.exists(), "nothing is written when there is nothing to do");
    gristmill(["quantize", text(&input), "-o", text(&output), "--format", "i2s_absmax"])
        .code(1)
        .complains("--raw");
    Ok(())
}

/// Weights that stay what they were are named, each with the reason.
#[test]
fn what_is_copied_instead_of_quantized_is_told() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, out] = ["m.gguf", "out.gguf"].map(|name| folder.path().join(name));
    let mut writer = GgufWriter::new();
    let tensors: [(&str, &[u64], u32, u64); 6] = [
        ("fits", &[128, 2], 0, 1024),
        ("odd", &[100, 2], 0, 800),
        ("experts", &[128, 2, 3], 0, 3072),
        ("deep", &[128, 1, 2, 2], 0, 2048),
        ("small", &[32, 2], 8, 68),
        ("norm", &[128], 0, 512),
    ];
    for (name, dims, number, bytes) in tensors {
        writer.tensor(name, dims, number, bytes)?;
    }
    let mut stream = writer.write_to(Vec::new())?;
    for (name, _, _, bytes) in tensors {
        stream.data(name, &vec![0; bytes as usize])?;
    }
    std::fs::write(&file, stream.finish()?)?;
    let reasons = [
        ("odd", "rows of 100, which are no whole blocks of 128"),
        ("experts", "`i2_s` has one scale for a tensor, which would be that of all its matrices"),
        ("deep", "4 dimensions"),
        ("small", "quantized already, to `q8_0`"),
    ];
    let line = ["quantize", text(&file), "-o", text(&out), "--format", "i2_s"];
    let ran = gristmill(line).code(0);
    let json = gristmill(line.into_iter().chain(["--json"])).code(0).json();
    let of = |name: &str| {
        let all = json["tensors"].as_array().into_iter().flatten();
        all.into_iter().find(|tensor| tensor["tensor"] == name).map(|tensor| tensor["why_copied"].clone())
    };
    for (name, why) in reasons {
        assert!(ran.stdout.contains(&format!("copied as they are: {name}: {why}")), "{}", ran.stdout);
        assert_eq!(of(name), Some(why.into()));
    }
    assert_eq!(of("norm"), Some(serde_json::Value::Null), "nobody expects vectors to be quantized");
    assert_eq!(of("fits"), Some(serde_json::Value::Null));
    // Where nothing is left, the same reasons are the error's.
    let without = ["--leave-out", "fits"];
    let error = gristmill(line.into_iter().chain(without)).code(1);
    assert!(reasons.iter().all(|(_, why)| error.stderr.contains(why)), "{}", error.stderr);
    Ok(())
}

/// Tensors of three dimensions run as matrices, and as experts of which each token goes through some.
#[test]
fn stacks_of_experts_run_as_such() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, out, receipt] = ["m.gguf", "out.gguf", "receipt.json"].map(|name| folder.path().join(name));
    const K: usize = 256;
    // Experts and rows of each: more than a token goes through, and fewer.
    for (count, n) in [(11, 24), (3, 40), (1, 16)] {
        let mut writer = GgufWriter::new();
        writer.tensor("experts", &[K as u64, n as u64, count as u64], 0, (count * n * K * 4) as u64)?;
        let mut stream = writer.write_to(Vec::new())?;
        let bytes: Vec<u8> = values(count * n * K).iter().flat_map(|value| value.to_le_bytes()).collect();
        stream.data("experts", &bytes)?;
        std::fs::write(&file, stream.finish()?)?;
        for format in ["q4_k", "iq2_bn", "q8_0"] {
            gristmill(["quantize", text(&file), "-o", text(&out), "--format", format]).code(0);
            let line = ["run", text(&out), "--m", "1,4,40", "--threads", "2", "--receipt", text(&receipt)];
            let shown = gristmill(line).code(0);
            let each = count.min(8);
            for text in [format!("{count}x{n}x{K}"), format!("{each} of {count} experts: matmul.{format}.")] {
                assert!(shown.stdout.contains(&text), "no `{text}` in\n{}", shown.stdout);
            }
            let json = gristmill(line.into_iter().chain(["--json"])).code(0).json();
            let rows = json["tensors"].as_array().ok_or("a list")?;
            assert_eq!(rows.len(), 6);
            let kernels = std::fs::read_to_string(&receipt)?;
            for (row, (m, grouped)) in
                rows.iter().zip([(1, false), (4, false), (40, false), (1, true), (4, true), (40, true)])
            {
                assert_eq!((&row["m"], &row["correct"]), (&m.into(), &true.into()), "{row}");
                assert_eq!(row["n"], if grouped { n } else { count * n }, "{row}");
                assert_eq!(row["experts"], if grouped { each.into() } else { serde_json::Value::Null });
                for kernel in row["kernel"].as_str().ok_or("a name")?.split(", ") {
                    assert!(kernels.contains(&format!("\"{kernel}\"")), "{kernel} is in no receipt");
                }
            }
            // A token reaches eight of eleven experts, and rows of the others are not looked at.
            let reached = if count == 11 { 8 * n } else { count * n };
            assert_eq!(rows[3]["rows_checked"], reached, "{format}, {count} experts");
            assert_eq!(rows[5]["rows_checked"], count * n, "{format}, {count} experts");
        }
    }
    Ok(())
}
