//! TL1 and TL2 by name: `explain`, `inspect`, `plan`, `run` and `quantize`.
#![cfg(all(feature = "cli", feature = "bitnet"))]

use crate::common::{gristmill, text};
use gristmill::gguf::{GgufWriter, Value};
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A file of a TL1 tensor of 64 rows of 128, all weights 0.5 but for two at the start.
fn model(path: &Path) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("bitnet-b1.58"))?;
    writer.metadata("general.file_type", Value::U32(38))?;
    writer.tensor("w", &[128, 64], 38, 64 * 128 / 4 + 32)?;
    let mut data = vec![0x88; 64 * 128 / 4];
    // Both weights of the first pair are -0.5.
    data[0] = 0x08;
    data.extend(0.5f32.to_le_bytes());
    data.extend([0; 28]);
    let mut stream = writer.write_to(Vec::new())?;
    stream.data("w", &data)?;
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

#[test]
fn a_file_of_tl1_is_read_given_its_tile_sizes() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [file, config, output] =
        ["m.gguf", "kernel_config.ini", "out.gguf"].map(|name| folder.path().join(name));
    model(&file)?;
    std::fs::write(&config, "[Kernels_0]\nm = 64\nk = 128\nbm = 64\nbk = 64\nbmm = 64\n")?;
    let line = "1 tensor in the layout tl1, read as i2_s";
    let unknown = "the tile sizes of 64 x 128 weights are not known";
    gristmill(["inspect", text(&file)]).code(0).says("tl1").says(line);
    gristmill(["plan", text(&file)]).code(2).says(unknown).says("--kernel-config FILE");
    gristmill(["run", text(&file), "--m", "1", "--threads", "1"]).code(2).says(unknown);
    gristmill(["inspect", text(&file), "w"]).code(1).complains(unknown).complains("--tiles 64x128=BM,BK,BMM");
    // Which of two sections is meant nobody can know.
    let twice = folder.path().join("twice.ini");
    let section = |bk: u32| format!("[K]\nm = 64\nk = 128\nbm = 64\nbk = {bk}\nbmm = 64\n");
    std::fs::write(&twice, section(64) + &section(32))?;
    gristmill(["plan", text(&file), "--kernel-config", text(&twice)])
        .code(1)
        .complains("line 7: a second section for 64 x 128");
    for given in [["--tiles", "64,64,64"], ["--tiles", "64x128=64,64,64"], ["--kernel-config", text(&config)]]
    {
        let with = |words: &[&str]| gristmill([words, &given[..]].concat());
        with(&["plan", text(&file)]).code(0).says("matmul.i2_s.").says(line);
        with(&["run", text(&file), "--m", "1,3", "--threads", "1"])
            .code(0)
            .says("matmul.i2_s.")
            .says("exact");
        with(&["inspect", text(&file), "w"]).code(0).says("first values    -0.5 -0.5 0.5 0.5");
        with(&["quantize", text(&file), "-o", text(&output), "--format", "tq2_0", "--threads", "1"]).code(1);
        with(&[
            "quantize",
            text(&file),
            "-o",
            text(&output),
            "--format",
            "i2_s",
            "--quantizer",
            "sign",
            "--threads",
            "1",
        ])
        .code(0)
        .says("0.00e0");
        gristmill(["inspect", text(&output), "w"])
            .code(0)
            .says("i2_s")
            .says("first values    -0.5 -0.5 0.5 0.5");
    }
    // Without tile sizes nothing is left to quantize.
    let without = gristmill(["quantize", text(&file), "-o", text(&output), "--format", "i2_s"]);
    without.code(1).complains(unknown);
    // Tile sizes that do not fit: what is planned is what runs.
    for (tiles, why) in [
        ("48,64,64", "bm = 48 does not fit"),
        ("64,64,48", "bmm = 48 does not fit"),
        ("64,48,64", "bk = 48 does not fit"),
        ("64x128=32,64,64", "bmm = 64 does not fit"),
        ("18446744073709551615,64,64", "bm = 18446744073709551615 does not fit"),
    ] {
        let with = |words: &[&str]| gristmill([words, &["--tiles", tiles]].concat());
        with(&["plan", text(&file)]).code(2).says(why);
        with(&["run", text(&file), "--m", "1", "--threads", "1"]).code(2).says(why);
        with(&["inspect", text(&file), "w"]).code(1).complains(why);
        let quantize = ["quantize", text(&file), "-o", text(&output), "--format", "iq2_bn"];
        with(&quantize).code(1).complains(why);
        let json = with(&["plan", text(&file), "--json"]).code(2).json();
        let reason = json["without_kernel"][0]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(why), "{reason}");
    }
    for tiles in ["64,64", "0,0,0", "64,64,0"] {
        gristmill(["plan", text(&file), "--tiles", tiles]).code(1).complains("BM,BK,BMM");
    }
    gristmill(["plan", text(&file), "--kernel-config", text(&file)]).code(1).complains("m.gguf");
    Ok(())
}

#[test]
fn the_names_are_known() {
    for (name, what) in [("tl1", "for Arm"), ("tl2", "for x86")] {
        let explain = ["explain", "matmul", "--format", name, "--shape", "1x2560x2560"];
        gristmill(explain).code(0).says(what).says("read as i2_s").says("matmul.i2_s.");
        let json = gristmill([&explain[..], &["--json"]].concat()).code(0).json();
        assert_eq!(json["imported_from"], name);
        gristmill(["explain", "matmul", "--format", name, "--shape", "1x8x64"])
            .code(0)
            .says("read as iq2_bn");
        gristmill(["explain", "matmul", "--format", name, "--shape", "1x8x96"])
            .code(1)
            .complains("rows of 96");
        let quantize = ["quantize", "in.gguf", "-o", "out.gguf", "--format", name];
        gristmill(quantize).code(1).complains("it is read, not written").complains("--format i2_s");
    }
}

#[test]
fn where_a_format_is_asked_for_a_layout_says_what_it_becomes() {
    for name in ["tl1", "tl2"] {
        for command in ["list", "verify", "bench", "tune"] {
            gristmill([command, "--format", name])
                .code(1)
                .complains(&format!("`{name}` is a layout and no format"))
                .complains("read as `i2_s`, or as `iq2_bn`")
                .complains("give `--format i2_s`")
                .complains(&format!("gristmill explain matmul --format {name}"));
        }
        let raw = ["dequantize", "--raw", "--row", "128", "--format", name, "in", "out"];
        gristmill(raw).code(1).complains(&format!("`{name}` is a layout and no format"));
    }
}

#[cfg(feature = "import")]
#[test]
fn a_layout_with_interleaved_rows_does_too() {
    gristmill(["verify", "--format", "i2_s_rows4"])
        .code(1)
        .complains("`i2_s_rows4` is a layout and no format")
        .complains("give `--format i2_s`");
}
