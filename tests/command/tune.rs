//! `tune`: what it writes is what decisions follow, and what can't be used is set aside.
#![cfg(all(feature = "cli", feature = "bitnet"))]

use crate::common::{command, finished, gristmill, text, words};
use std::path::Path;

/// What `explain` says about decoding with `format` under a tuning file.
fn explain(file: &Path, shape: &str) -> crate::common::Ran {
    let line = ["explain", "matmul", "--format", "i2_s", "--shape", shape];
    finished(command().args(line).env("GRISTMILL_TUNING", file).output())
}

/// Products of one format on one thread.
fn tune(file: &Path) -> crate::common::Ran {
    let line = "tune --quick --hot --format i2_s --op matmul --threads 1 --out";
    gristmill(words(line).into_iter().chain([text(file)]))
}

/// The id of a kernel.
fn id(kernel: &str) -> String {
    let json = gristmill(words("list --format i2_s --json")).code(0).json();
    let kernels = json["kernels"].as_array().expect("a list");
    let found = kernels.iter().find(|found| found["name"] == kernel).unwrap_or_else(|| panic!("no {kernel}"));
    found["id"].as_str().expect("an id").to_owned()
}

#[test]
fn decisions_follow_what_was_measured() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tuning");
    tune(&file).code(0).says("20 measured orders");
    gristmill(["tune", "--check", "--out", text(&file)]).code(0).says("20 lines of it can be used here");
    // What would be measured means nothing where nothing is.
    gristmill(["tune", "--check", "--out", text(&file), "--format", "i2_s"]).code(1).complains("--format");
    let measured = std::fs::read_to_string(&file)?;
    // The order of the first class (one token, few weights) as it was measured: the fastest of one packing...
    let first = measured.lines().find(|line| line.starts_with("matmul i2_s 0 1 ")).ok_or("no such line")?;
    let json = gristmill(words("list --format i2_s --json")).code(0).json();
    let kernels = json["kernels"].as_array().ok_or("no list")?;
    let (mut order, mut packings) = (Vec::new(), Vec::new());
    for word in first.split(' ').skip(4) {
        let id = word.split(':').next().ok_or("no kernel")?;
        let kernel = kernels.iter().find(|kernel| kernel["id"] == id).ok_or("not listed")?;
        order.push(kernel["name"].as_str().ok_or("no name")?);
        // "32 rows x 1 tokens; r32k4 of 2 bits; ..."
        let plan = kernel["plan"].as_str().ok_or("no plan")?;
        packings.push(plan.split("; ").nth(1).and_then(|part| part.split(' ').next()).ok_or("no packing")?);
    }
    let ran = explain(&file, "1x512x1024").code(0);
    let chosen = order.iter().position(|name| ran.stdout.contains(&format!("chosen: {name} ")));
    let chosen = chosen.ok_or("what is chosen was not measured")?;
    assert!(!packings[..chosen].contains(&packings[chosen]), "{first}\n{}", ran.stdout);
    // ... and another one, made up: the portable reference first, for this class only.
    let scalar = id("matmul.i2_s.scalar");
    let made_up = measured.replace(first, &format!("{first} {scalar}:0.001"));
    std::fs::write(&file, made_up)?;
    explain(&file, "1x512x1024").code(0).says("chosen: matmul.i2_s.scalar").says("comes first by the tuning");
    let elsewhere = explain(&file, "1x2560x2560").code(0);
    assert!(!elsewhere.stdout.contains("chosen: matmul.i2_s.scalar"), "{}", elsewhere.stdout);
    Ok(())
}

#[test]
fn what_is_stale_or_broken_changes_nothing_but_is_told() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tuning");
    let untuned = gristmill(words("explain matmul --format i2_s --shape 1x512x1024")).code(0).stdout;
    let chosen = untuned.lines().nth(1).ok_or("nothing chosen")?.to_owned();
    let scalar = id("matmul.i2_s.scalar");
    // The head of a file for this processor.
    tune(&file).code(0);
    let head: String =
        std::fs::read_to_string(&file)?.lines().take(2).map(|line| format!("{line}\n")).collect();
    // What is no tuning file at all was not meant, and nobody goes on without it.
    for content in ["", "\u{0}\u{1}nonsense", "{}\n"] {
        std::fs::write(&file, content)?;
        for line in
            ["explain matmul --format i2_s", "plan tests/data/gguf/i2_s.gguf", "bench --quick --format i2_s"]
        {
            let ran = finished(command().args(words(line)).env("GRISTMILL_TUNING", &file).output()).code(1);
            ran.complains("GRISTMILL_TUNING").complains("is no tuning file").complains("help: ");
        }
        gristmill(["tune", "--check", "--out", text(&file)]).code(1).says("does not begin with");
    }
    gristmill(["tune", "--check", "--out", text(&folder.path().join("nowhere"))])
        .code(1)
        .complains("nowhere")
        .complains("help: ");
    let cases = [
        ("gristmill tuning 1\n".to_owned(), "classes of shapes are others"),
        // Cut off, as on a full disk: 1.000 is the beginning of 1.5 too.
        (format!("{head}matmul i2_s 0 1 {scalar}:1"), "the file was cut off here"),
        (format!("{head}matmul i2_s 0 1 {scalar}:1e-300\n"), "is no kernel id and time"),
        ("gristmill tuning 3\n".to_owned(), "no line `cpu NAME`"),
        (format!("gristmill tuning 3\ncpu another\nmatmul i2_s 0 1 {scalar}:1\n"), "measured on `another`"),
        (format!("{head}matmul i2_s 0 1 0123456789abcdef:1\n"), "is not in this build; tune again"),
        (format!("{head}matmul i2_s 99 1 {scalar}:1\n"), "names no class of shapes"),
        (format!("{head}matmul i2_s 0 1 {scalar}:-1\n"), "is no kernel id and time"),
        (format!("{head}matmul i2_s 0 1 {scalar}:1 {scalar}:2\n"), "stands in it twice"),
        (format!("{head}matmul i3_s 0 1 {scalar}:1\n"), "format `i3_s` is not in this build"),
        (format!("{head}multiply i2_s 0 1 {scalar}:1\n"), "begins with no op"),
        (format!("{head}matmul\n"), "names no format"),
    ];
    for (content, why) in cases {
        std::fs::write(&file, &content)?;
        let explained = explain(&file, "1x512x1024").code(0).says(&chosen).says(why);
        assert_eq!(explained.stderr, "", "{why}");
        // The others say it in one line beside what they print.
        let plan =
            command().args(words("plan tests/data/gguf/i2_s.gguf")).env("GRISTMILL_TUNING", &file).output();
        let plan = finished(plan).code(0).complains(why).complains("gristmill tune --check --out");
        assert_eq!(plan.stderr.lines().count(), 1, "{}", plan.stderr);
        gristmill(["tune", "--check", "--out", text(&file)]).code(1).says(why);
    }
    // What was cut off does not become whole by what is added to the file.
    std::fs::write(&file, format!("{head}matmul i2_s 0 1 {scalar}:1"))?;
    let line = "tune --quick --hot --format q4_0 --op dequantize --threads 1 --out";
    gristmill(words(line).into_iter().chain([text(&file)])).code(0).complains("was cut off");
    gristmill(["tune", "--check", "--out", text(&file)]).code(0).says("1 line of it can be used here");
    // Who asked for a tuning is told that there is none.
    explain(&folder.path().join("nowhere"), "1x512x1024")
        .code(1)
        .complains("GRISTMILL_TUNING")
        .complains("can't be read");
    // A kernel does not become available by being fast.
    let json = gristmill(words("list --format i2_s --json")).code(0).json();
    let other = json["kernels"].as_array().ok_or("no list")?.iter().find(|kernel| {
        kernel["op"] == "matmul" && kernel["name"] != "matmul.i2_s.scalar" && kernel["runs_here"] == true
    });
    if let Some(id) = other.and_then(|kernel| kernel["id"].as_str()) {
        std::fs::write(&file, format!("{head}matmul i2_s 0 1 {id}:1 {scalar}:2\n"))?;
        let line = words("explain matmul --format i2_s --shape 1x512x1024");
        let ran = command().args(line).env("GRISTMILL_TUNING", &file).env("GRISTMILL_ISA", "scalar").output();
        finished(ran).code(0).says("chosen: matmul.i2_s.scalar");
    }
    Ok(())
}

/// A pipe can be read once: so is the tuning, for all tensors of a model.
#[cfg(unix)]
#[test]
fn a_tuning_is_read_once_for_all_tensors_of_a_model() -> Result<(), Box<dyn std::error::Error>> {
    use std::io::Write;
    use std::process::Stdio;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tuning");
    tune(&file).code(0);
    // The portable reference first in every class.
    let scalar = id("matmul.i2_s.scalar");
    let faster = |line: &str| match line.starts_with("matmul ") {
        true => format!("{line} {scalar}:0.001\n"),
        false => format!("{line}\n"),
    };
    let tuning: String = std::fs::read_to_string(&file)?.lines().map(faster).collect();
    let mut asked = command();
    asked.args(words("plan tests/data/gguf/i2_s.gguf")).env("GRISTMILL_TUNING", "/dev/stdin");
    let mut child = asked.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no standard input")?.write_all(tuning.as_bytes())?;
    let ran = finished(child.wait_with_output()).code(0);
    assert_eq!(ran.stdout.matches("matmul.i2_s.scalar").count(), 2, "{}", ran.stdout);
    Ok(())
}

/// What `tune` prints as chosen, with its time and threads, is what `explain` says under the file that it wrote.
#[test]
fn numbers_of_threads_and_conversions_are_measured_and_followed() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tuning");
    let line = "tune --quick --hot --format i2_s,q4_0 --m 1,16 --shape 512x1024 --threads 2,1,2 --out";
    gristmill(words(line).into_iter().chain([text(&file)])).code(0);
    let written = std::fs::read_to_string(&file)?;
    for op in [
        "matmul i2_s 0",
        "matmul i2_s 2",
        "dequantize i2_s 0",
        "quantize q4_0/signed_absmax 0",
        "dequantize q4_0 0",
    ] {
        for threads in ["1", "2"] {
            let start = format!("{op} {threads} ");
            assert_eq!(
                written.lines().filter(|line| line.starts_with(&start)).count(),
                1,
                "{start}: {written}"
            );
        }
    }
    // By hand: the portable dequantizer first on two threads, and on three fewer are faster.
    let json = gristmill(words("list --format q4_0 --json")).code(0).json();
    let kernels = json["kernels"].as_array().ok_or("no list")?;
    let id = |name: &str| {
        let found = kernels.iter().find(|kernel| kernel["name"] == name);
        found.and_then(|kernel| kernel["id"].as_str()).map(str::to_owned).ok_or(format!("no {name}"))
    };
    let scalar = id("dequantize.q4_0.scalar")?;
    let untuned = gristmill(words("explain dequantize --format q4_0 --json")).code(0).json();
    let best = id(untuned["chosen"].as_str().ok_or("no dequantizer")?)?;
    let head: String = written.lines().take(2).map(|line| format!("{line}\n")).collect();
    let lines = [(1, 9.0, 8.0), (2, 3.0, 4.0), (3, 8.0, 9.0)];
    let lines = lines.map(|(threads, of_scalar, of_best)| match best == scalar {
        true => format!("dequantize q4_0 0 {threads} {scalar}:{of_scalar}\n"),
        false => format!("dequantize q4_0 0 {threads} {scalar}:{of_scalar} {best}:{of_best}\n"),
    });
    std::fs::write(&file, format!("{head}{}", lines.concat()))?;
    let explain = |threads: &str, shape: &str| {
        let line =
            ["explain", "dequantize", "--format", "q4_0", "--shape", shape, "--threads", threads, "--json"];
        let ran = command().args(line).env("GRISTMILL_TUNING", &file).output();
        finished(ran).code(0).json()
    };
    let two = explain("2", "512x1024");
    assert_eq!(
        (&two["chosen"], &two["tuned_by"]["us"]),
        (&"dequantize.q4_0.scalar".into(), &3.0.into()),
        "{two}"
    );
    assert_eq!(two["tuned_by"]["fewer_threads"], serde_json::Value::Null);
    let three = explain("3", "512x1024");
    assert_eq!(
        (&three["tuned_by"]["threads"], &three["tuned_by"]["fewer_threads"]),
        (&2.into(), &2.into()),
        "{three}"
    );
    // Of more rows the order goes, the number of threads does not.
    let large = explain("3", "4096x4096");
    assert_eq!(large["chosen"], "dequantize.q4_0.scalar", "{large}");
    assert_eq!(large["tuned_by"]["fewer_threads"], serde_json::Value::Null);
    // The table says the same.
    let table = gristmill(["tune", "--check", "--out", text(&file)]).code(0);
    assert!(best == scalar || table.stdout.contains("2 of 3"), "{}", table.stdout);
    Ok(())
}

/// Two at once, of several formats, to one file: whoever writes last keeps what the other wrote.
#[test]
fn two_at_once_lose_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tuning");
    let formats = ["i2_s", "tq2_0", "tq1_0"];
    let begun: Vec<_> = formats
        .iter()
        .map(|format| {
            let line = format!(
                "tune --quick --hot --format {format} --op matmul --threads 1 --m 1 --shape 512x1024 --out {}",
                text(&file)
            );
            command().args(words(&line)).stdout(std::process::Stdio::piped()).spawn()
        })
        .collect::<Result<_, _>>()?;
    for child in begun {
        finished(child.wait_with_output()).code(0);
    }
    let kept = std::fs::read_to_string(&file)?;
    for format in formats {
        assert!(kept.lines().any(|line| line.starts_with(&format!("matmul {format} "))), "{format}:\n{kept}");
    }
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1, "the tuning alone");
    Ok(())
}

/// `plan` decides for the number of threads that `run` would take, or for the one that it is given, and says which.
#[test]
fn a_plan_is_for_a_number_of_threads() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let tuning = folder.path().join("tuning");
    let model = crate::common::data("i2_s.gguf");
    let plan = |more: &[&str]| {
        let line = ["plan", text(&model)].into_iter().chain(more.iter().copied());
        finished(command().args(line).env("GRISTMILL_TUNING", &tuning).output())
    };
    let kernel = |json: &serde_json::Value| json["tensors"][0]["kernel"].as_str().map(str::to_owned);
    let untuned = gristmill(["plan", text(&model), "--json"]).code(0).json();
    let (best, slow) = (kernel(&untuned).ok_or("a kernel")?, "matmul.i2_s.scalar".to_owned());
    let (fast, scalar) = (id(&best), id(&slow));
    assert_ne!(best, slow, "this processor has vectors");
    let lines = format!("matmul i2_s 0 1 {fast}:1 {scalar}:2\nmatmul i2_s 0 2 {scalar}:1 {fast}:2\n");
    std::fs::write(&tuning, format!("gristmill tuning 3\n{}\n{lines}", gristmill::tuning::cpu()))?;
    for (threads, expected) in [("1", &best), ("2", &slow)] {
        let json = plan(&["--threads", threads, "--json"]).code(0).json();
        assert_eq!(
            (json["threads"].to_string(), kernel(&json).as_ref()),
            (threads.to_owned(), Some(expected))
        );
    }
    plan(&["--threads", "1"]).code(0).says("4 tensors on cpu, 1 thread: ");
    plan(&["--threads", "0"]).code(1).complains("threads are a number from 1");
    let cores = gristmill::CpuProfile::detect().physical_cores.min(gristmill::MAX_THREADS);
    for more in [&["--json"][..], &["--json", "--devices", "cpu", "--speeds", "1"]] {
        assert_eq!(plan(more).code(0).json()["threads"], cores, "{more:?}");
    }
    let divided = ["--json", "--devices", "cpu", "--speeds", "1", "--threads", "3"];
    assert_eq!(plan(&divided).code(0).json()["threads"], 3);
    Ok(())
}
