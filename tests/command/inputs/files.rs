//! Files that commands write: never over an input, never half, and nothing of a model is lost on the way.

use crate::common::{command, data, finished, gristmill, text, words};
use gristmill::gguf::{Gguf, unquantized_only};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A matrix of 4 rows of 128, and what a model has besides.
const TENSORS: [(&str, &str, &str, usize); 6] = [
    ("w", "F32", "[4,128]", 2048),
    ("steps", "I64", "[3]", 24),
    ("mean", "F64", "[2]", 16),
    ("ids", "I32", "[1]", 4),
    ("norm", "BF16", "[5]", 10),
    ("mask", "I8", "[7]", 7),
];

/// The bytes of a safetensors file with these tensors; every byte of data is another than its neighbour.
fn safetensors(tensors: &[(&str, &str, &str, usize)]) -> (Vec<u8>, Vec<u8>) {
    let mut start = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            let end = start + bytes;
            let entry = format!(
                "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}"
            );
            start = end;
            entry
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    // Small floats, whatever type they are read as.
    let data: Vec<u8> = (0..start).map(|i| if i % 4 == 3 { 0x3e } else { (i % 251) as u8 }).collect();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(&data);
    (file, data)
}

/// Names of files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Every command that writes a file, with its input and its output.
fn writers(input: &Path, raw: &Path, model: &Path, output: &Path) -> Vec<(PathBuf, Vec<String>)> {
    let [i, r, m, o] = [input, raw, model, output].map(|path| text(path).to_owned());
    let line = |words: &str, paths: &[&String]| -> Vec<String> {
        words.split_whitespace().map(str::to_owned).chain(paths.iter().map(|path| (*path).clone())).collect()
    };
    vec![
        (input.to_owned(), line("quantize --threads 1 --format i2_s", &[&i, &"-o".to_owned(), &o])),
        (raw.to_owned(), line("quantize --raw --format i2_s --row 128", &[&r, &o])),
        (raw.to_owned(), line("dequantize --raw --format tq2_0 --row 256", &[&r, &o])),
        (model.to_owned(), line("run --threads 1 --m 1", &[&m, &"--receipt".to_owned(), &o])),
    ]
}

/// A folder with a model to quantize, raw bytes (whole rows of f32 and of tq2_0) and a quantized model.
fn inputs(folder: &Path) -> Result<[PathBuf; 3], Box<dyn std::error::Error>> {
    let paths = ["in.safetensors", "in.raw", "in.gguf"].map(|name| folder.join(name));
    std::fs::write(&paths[0], safetensors(&TENSORS).0)?;
    // 33 rows of 128 f32 are 256 blocks of 66 bytes.
    let raw: Vec<u8> = (0..33 * 128).flat_map(|i| ((i % 7) as f32 - 3.0).to_le_bytes()).collect();
    std::fs::write(&paths[1], raw)?;
    std::fs::copy(data("i2_s.gguf"), &paths[2])?;
    Ok(paths)
}

#[test]
fn an_input_is_never_the_output() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, raw, model] = inputs(folder.path())?;
    let mut tried = 0;
    for at in 0..writers(&input, &raw, &model, &input).len() {
        let named = |output: &Path| writers(&input, &raw, &model, output).swap_remove(at);
        let (from, _) = named(&input);
        let before = std::fs::read(&from)?;
        let mut same = vec![from.clone(), folder.path().join(".").join(from.file_name().ok_or("a name")?)];
        #[cfg(unix)]
        {
            let [soft, hard] = ["soft", "hard"].map(|kind| folder.path().join(format!("{kind}{at}")));
            std::os::unix::fs::symlink(&from, &soft)?;
            std::fs::hard_link(&from, &hard)?;
            same.extend([soft, hard]);
        }
        let listed = names(folder.path());
        for output in same {
            gristmill(named(&output).1).code(1).complains("are one file").complains("nothing was written");
            assert_eq!(std::fs::read(&from)?, before, "{}", output.display());
            assert_eq!(names(folder.path()), listed, "{}", output.display());
            tried += 1;
        }
        // Another file is written, and the input is what it was.
        let output = folder.path().join(format!("out{at}"));
        gristmill(named(&output).1).code(0);
        assert!(output.exists() && std::fs::read(&from)? == before);
    }
    assert!(tried >= 8, "{tried}");
    Ok(())
}

/// Files that options and variables name count as inputs, and the place of an output before the file is there.
#[test]
fn every_file_that_is_named_counts() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, _, model] = inputs(folder.path())?;
    let at = |name: &str| folder.path().join(name);
    let (config, tuning, base, new) = (at("k.ini"), at("tt.tun"), at("base"), at("new.json"));
    std::fs::write(&config, "[a]\nm = 64\nk = 128\nbm = 64\nbk = 64\nbmm = 64\n")?;
    std::fs::write(&tuning, "gristmill tuning 2\n")?;
    std::fs::write(&base, "{}")?;
    let [input, model, config, base, new] = [&input, &model, &config, &base, &new].map(|path| text(path));
    let run = format!("run {model} --m 1 --threads 1 --kernel-config {config}");
    let mut refused = vec![
        format!("{run} --receipt {config}"),
        format!("{run} --receipt {}", text(&tuning)),
        format!("quantize {input} --format i2_s -o {config} --kernel-config {config}"),
        format!("quantize {input} --format i2_s -o {}", text(&tuning)),
        format!("validate --format i2_s --rounds 1 --baseline {base} --save-baseline {base}"),
    ];
    if cfg!(feature = "ops") {
        let other = folder.path().join(".").join("new.json");
        refused.extend([
            format!("{run} --monitor {config}"),
            format!("{run} --monitor {new} --receipt {new}"),
            format!("{run} --monitor {new} --receipt {}", text(&other)),
            format!("history --store {base} --add {base}"),
        ]);
    }
    let listed = names(folder.path());
    let before: Vec<Vec<u8>> =
        listed.iter().map(|name| std::fs::read(at(name))).collect::<std::io::Result<_>>()?;
    for line in &refused {
        let ran = finished(command().args(words(line)).env("GRISTMILL_TUNING", &tuning).output());
        ran.code(1).complains("one file").complains("nothing was written");
        assert_eq!(names(folder.path()), listed, "{line}");
        for (name, before) in listed.iter().zip(&before) {
            assert_eq!(&std::fs::read(at(name))?, before, "{line}: {name}");
        }
    }
    // A tuning is added to, so it may be the one that decisions follow.
    let line = "tune --quick --hot --format i2_s --op matmul --threads 1 --m 1 --shape 512x1024 --out";
    let ran = command().args(words(line)).arg(&tuning).env("GRISTMILL_TUNING", &tuning).output();
    finished(ran).code(0);
    Ok(())
}

/// What can't be written is said before the work, which is for nothing then.
#[test]
fn a_place_where_nothing_can_be_written_is_told_first() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, _, model] = inputs(folder.path())?;
    let (input, model) = (text(&input), text(&model));
    let mut lines = vec![
        format!("run {model} --receipt /nonexistent/x"),
        format!("quantize {input} --format i2_s -o /nonexistent/x"),
        "validate --save-baseline /nonexistent/x".to_owned(),
        "tune -o /nonexistent/x".to_owned(),
    ];
    if cfg!(feature = "ops") {
        lines.extend([
            format!("run {model} --monitor /nonexistent/x"),
            format!("history --add {model} --store /nonexistent/x"),
            format!("report {model} --html /nonexistent/x"),
        ]);
    }
    // The name of a folder, where there is none.
    let slash = |line: &String| line.replace("/nonexistent/x", "nonexistent/");
    let slashes: Vec<String> = lines.iter().map(slash).collect();
    for line in lines
        .into_iter()
        .map(|line| (line, "/nonexistent/x"))
        .chain(slashes.into_iter().map(|line| (line, "nonexistent/")))
    {
        let (line, path) = line;
        let begun = std::time::Instant::now();
        let ran = gristmill(words(&line)).code(1).complains(path);
        assert!(ran.stdout.is_empty() && begun.elapsed().as_secs() < 5, "{line}: {:?}", begun.elapsed());
    }
    Ok(())
}

/// The files of a report are outputs like others, which are looked at before a device is.
#[test]
fn a_report_of_a_device_writes_over_no_input() -> Outcome {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("new").join("report");
    let line = ["device-report", "--out", text(&report)];
    let with = |line: &[&str], tuning: &Path| {
        finished(command().args(line).env("GRISTMILL_TUNING", tuning).output()).code(1)
    };
    std::fs::create_dir_all(&report)?;
    for name in ["tuning.txt", "summary.json", "two-processes-2.stderr.txt"] {
        let tuning = report.join(name);
        std::fs::write(&tuning, "gristmill tuning 3\n")?;
        with(&line, &tuning).complains("which GRISTMILL_TUNING names, are one file").complains(name);
        assert_eq!(std::fs::read_to_string(&tuning)?, "gristmill tuning 3\n");
        // Stages that do not run write nothing.
        let ran = with(&[&line[..], &["--stage", "doctor"]].concat(), &tuning);
        assert_eq!(ran.stderr.contains("one file"), name == "summary.json", "{name}: {}", ran.stderr);
        std::fs::remove_file(&tuning)?;
    }
    // A folder that is not there is made only when a report begins, and a file is none.
    std::fs::remove_dir(&report)?;
    let none = with(&line, &report.join("tuning.txt"));
    assert!(!none.stderr.contains("one file") && names(folder.path()) == ["new"], "{}", none.stderr);
    std::fs::write(&report, "a file")?;
    gristmill(line).code(1).complains("report").complains("Not a directory");
    assert_eq!(std::fs::read_to_string(&report)?, "a file");
    Ok(())
}

/// An output that goes to standard output has it for itself.
#[cfg(target_os = "linux")]
#[test]
fn what_is_written_to_standard_output_is_alone_there() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, _, model] = inputs(folder.path())?;
    let quantize = ["quantize", text(&input), "-o", "/dev/stdout", "--format", "i2_s", "--threads", "1"];
    let ran = command().args(quantize).output()?;
    assert!(String::from_utf8(ran.stderr)?.contains("1 of 6 tensors quantized"));
    let written = folder.path().join("out.gguf");
    gristmill(["quantize", text(&input), "-o", text(&written), "--format", "i2_s", "--threads", "1"]).code(0);
    assert!(ran.stdout == std::fs::read(&written)?, "the file and nothing else");
    let run = ["run", text(&model), "--m", "1", "--threads", "1", "--receipt", "/dev/stdout"];
    let ran = gristmill(run).code(0).complains("blk.0.attn_q.weight");
    assert!(ran.json()["kernels"].is_array());
    // A device that is full is named.
    let full = ["quantize", text(&input), "-o", "/dev/full", "--format", "i2_s", "--threads", "1"];
    gristmill(full).code(1).complains("/dev/full: cannot write");
    Ok(())
}

/// A pipe holds tensors, but none that could be read where they are asked for.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_is_no_model() {
    let line = format!("cat {} | \"$0\" inspect /dev/stdin", text(&data("i2_s.gguf")));
    let ran = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_gristmill")]).output();
    finished(ran).code(1).complains("it is a pipe or a device");
}

/// Headers that say something twice, and files that are not as long as theirs says.
#[test]
fn a_safetensors_file_is_as_its_header_says() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.safetensors");
    let (file, _) = safetensors(&TENSORS);
    for (bytes, says) in [
        ([&file[..], &[0; 5]].concat(), "behind the last tensor"),
        (file[..file.len() - 5].to_vec(), "incomplete download?"),
        (safetensors(&[("w", "F32", "[1]", 4), ("w", "F32", "[1]", 4)]).0, "`w` stands in it twice"),
    ] {
        std::fs::write(&path, bytes)?;
        gristmill(["inspect", text(&path)]).code(1).complains(says);
    }
    // Types that are no weights take bytes all the same.
    let all =
        [("a", "I64", "[3]", 24), ("b", "F64", "[2]", 16), ("c", "U8", "[4]", 4), ("d", "BOOL", "[3]", 3)];
    let all = all.into_iter().chain([("e", "F8_E4M3", "[2]", 2)]);
    std::fs::write(&path, safetensors(&all.collect::<Vec<_>>()).0)?;
    let ran = gristmill(["inspect", text(&path)]).code(0).says("5 tensors, 49 B");
    assert!(!ran.stdout.contains("unknown"), "{}", ran.stdout);
    Ok(())
}

/// Tensors without elements begin where others do: what is made of a file is the same each time.
#[test]
fn tensors_at_one_place_are_in_one_order() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, output] = ["in.safetensors", "out.gguf"].map(|name| folder.path().join(name));
    let empty = ["e", "b", "d", "a", "c", "g", "f", "h"].map(|name| (name, "F32", "[0]", 0));
    let all: Vec<_> = [TENSORS[0]].into_iter().chain(empty).collect();
    std::fs::write(&input, safetensors(&all).0)?;
    gristmill(["quantize", text(&input), "-o", text(&output), "--format", "i2_s"]).code(0);
    let written = Gguf::parse(std::fs::read(&output)?, &unquantized_only)?;
    let names: Vec<&str> = written.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["w", "a", "b", "c", "d", "e", "f", "g", "h"]);
    Ok(())
}

/// Names that no program with ggml reads are not written.
#[test]
fn names_that_ggml_does_not_read_are_refused() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, output] = ["in.safetensors", "out.gguf"].map(|name| folder.path().join(name));
    let quantize = ["quantize", text(&input), "-o", text(&output), "--format", "i2_s"];
    let [longest, longer] = [63, 64].map(|bytes| "n".repeat(bytes));
    std::fs::write(&input, safetensors(&[("w", "F32", "[4,128]", 2048), (&longest, "F32", "[1]", 4)]).0)?;
    gristmill(quantize).code(0);
    std::fs::remove_file(&output)?;
    for (name, says) in [(longer.as_str(), "its name has 64 bytes"), ("", "without a name")] {
        std::fs::write(&input, safetensors(&[("w", "F32", "[4,128]", 2048), (name, "F32", "[1]", 4)]).0)?;
        gristmill(quantize).code(1).complains(says).complains("--leave-out");
        assert!(!output.exists());
    }
    Ok(())
}

/// The command, where no file may become larger than `blocks` of 512 bytes.
#[cfg(unix)]
fn on_a_full_disk(blocks: usize, arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_gristmill")]);
    command.args(arguments);
    command
}

/// First runs that can't be marked are an error at the start: a kernel that ended the program would not be found.
#[cfg(unix)]
#[test]
fn a_full_disk_keeps_no_quarantine() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [_, _, model] = inputs(folder.path())?;
    let kept = folder.path().join("kept");
    let mut command = on_a_full_disk(1, &["run", "--threads", "1", "--m", "1", text(&model)]);
    finished(command.env("GRISTMILL_QUARANTINE", &kept).output())
        .code(1)
        .complains("can't mark first runs")
        .complains("help: ");
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_file() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, raw, model] = inputs(folder.path())?;
    let output = folder.path().join("out");
    let tune = ["tune", "--quick", "--hot", "--format", "i2_s", "--m", "1", "--shape", "512x1024", "--out"];
    let tune: Vec<String> =
        tune.iter().map(|word| (*word).to_owned()).chain([text(&output).to_owned()]).collect();
    let old = "gristmill tuning 2\n";
    for arguments in writers(&input, &raw, &model, &output).into_iter().map(|(_, line)| line).chain([tune]) {
        for there in [true, false] {
            let _ = std::fs::remove_file(&output);
            if there {
                std::fs::write(&output, old)?;
            }
            let listed = names(folder.path());
            finished(on_a_full_disk(0, &arguments).output()).code(1).complains("error");
            assert_eq!(
                std::fs::read_to_string(&output).ok().as_deref(),
                there.then_some(old),
                "{arguments:?}"
            );
            assert_eq!(names(folder.path()), listed, "{arguments:?}");
        }
    }
    Ok(())
}

/// A pipe and a device are written to as they are.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_replaced() -> Outcome {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir()?;
    let [input, raw, model] = inputs(folder.path())?;
    let lines = writers(&input, &raw, &model, Path::new("/dev/stdout"));
    for ((_, line), begins) in lines.into_iter().zip([&b"GGUF"[..], b"", b"", b"{"]) {
        let ran = command().args(&line).output()?;
        assert!(ran.status.success(), "{line:?}: {}", String::from_utf8_lossy(&ran.stderr));
        assert!(ran.stdout.starts_with(begins) && ran.stdout.len() > 300, "{line:?}");
    }
    for (_, line) in writers(&input, &raw, &model, Path::new("/dev/null")) {
        gristmill(line).code(0);
        assert!(std::fs::metadata("/dev/null")?.file_type().is_char_device());
    }
    Ok(())
}

#[test]
fn a_file_that_is_no_tuning_is_not_overwritten_by_one() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("model.gguf");
    std::fs::copy(data("i2_s.gguf"), &file)?;
    let before = std::fs::read(&file)?;
    gristmill(["tune", "--quick", "--format", "i2_s", "--out", text(&file)])
        .code(1)
        .complains("no tuning file");
    assert_eq!(std::fs::read(&file)?, before);
    Ok(())
}

#[test]
fn tensors_are_copied_or_refused_by_name() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [input, output] = ["in.safetensors", "out.gguf"].map(|name| folder.path().join(name));
    let quantize = ["quantize", text(&input), "-o", text(&output), "--format", "i2_s"];
    let (file, data) = safetensors(&TENSORS);
    std::fs::write(&input, file)?;
    gristmill(quantize).code(0).says("1 of 6 tensors quantized").says("i64 (copied)");
    let written = Gguf::parse(std::fs::read(&output)?, &unquantized_only)?;
    let mut start = TENSORS[0].3;
    for (name, dtype, _, bytes) in &TENSORS[1..] {
        let tensor = written.tensor(name).ok_or(*name)?;
        let type_name = gristmill::gguf::unquantized(tensor.type_id()).map(|known| known.name.to_uppercase());
        assert_eq!(type_name.as_deref(), Some(*dtype), "{name}");
        assert_eq!(tensor.data()?, &data[start..start + bytes], "{name}");
        start += bytes;
    }
    // What GGUF has no place for, with any reason.
    let all: Vec<_> = TENSORS
        .into_iter()
        .chain([
            ("flag", "BOOL", "[3]", 3),
            ("eight", "F8_E4M3", "[2]", 2),
            ("deep", "F32", "[1,1,1,1,1]", 4),
        ])
        .collect();
    std::fs::write(&input, safetensors(&all).0)?;
    std::fs::remove_file(&output)?;
    gristmill(quantize)
        .code(1)
        .complains("3 tensors can't be copied to GGUF")
        .complains("`flag` (of type BOOL")
        .complains("`eight` (of type F8_E4M3")
        .complains("`deep` (of 5 dimensions")
        .complains("--leave-out");
    assert!(!output.exists());
    let left = ["--leave-out", "flag", "--leave-out", "eight", "--leave-out", "deep"];
    gristmill(quantize.iter().chain(&left)).code(0).says("left out (bool)");
    let written = Gguf::parse(std::fs::read(&output)?, &unquantized_only)?;
    assert_eq!(written.tensors().len(), TENSORS.len());
    gristmill(quantize.iter().chain(&["--leave-out", "flags"])).code(1).complains("no tensor `flags`");
    Ok(())
}
