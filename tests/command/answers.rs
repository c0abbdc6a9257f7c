//! `list` and `explain`, exit codes, and how errors look.
#![cfg(all(feature = "cli", feature = "bitnet", feature = "ggml"))]

use crate::common::{command, finished, gristmill, record, text, words};
use gristmill::json::{Decision, Format, Kernel};
use std::process::Stdio;

#[test]
fn list_shows_formats_and_kernels() {
    let list = gristmill(["list"]).code(0);
    for format in gristmill::REGISTRY.formats {
        assert!(list.stdout.lines().any(|line| line.starts_with(format.name)), "{} is missing", format.name);
    }
    let json = gristmill(words("list --format i2_s --json")).code(0).json();
    let [format] = &record::<Vec<Format>>(&json["formats"])[..] else { panic!("{json}") };
    assert_eq!((format.name.as_str(), format.gguf), ("i2_s", Some(36)));
    assert_eq!(format.quantizers.first().map(String::as_str), Some("absmean"));
    let kernels: Vec<Kernel> = record(&json["kernels"]);
    assert!(kernels.iter().any(|kernel| kernel.name == "matmul.i2_s.scalar"), "{kernels:?}");
    let all = gristmill(words("list --json")).code(0).json();
    assert_eq!(record::<Vec<Format>>(&all["formats"]).len(), gristmill::REGISTRY.formats.len());
    assert_eq!(record::<Vec<Kernel>>(&all["kernels"]).len(), gristmill::REGISTRY.entries.len());
    gristmill(["list", "--kernels"]).code(0).says("matmul.q4_k.scalar");
    // Each device with its own kernels.
    for device in gristmill::vocab::DeviceKind::ALL {
        let count = gristmill::REGISTRY.entries.iter().filter(|entry| entry.device == *device).count();
        let said = list.stdout.contains(&format!("{count} kernels on {device}"));
        assert_eq!(said, count > 0, "{count} on {device}:\n{}", list.stdout);
    }
}

/// The decision in what `explain --json` prints; what else it says stands beside it.
fn explained(question: &str, code: i32) -> Decision {
    let mut json = gristmill(words(question)).code(code).json();
    let fields = json.as_object_mut().expect("an object");
    for beside in ["external_backends", "grouped", "imported_from"] {
        assert!(fields.remove(beside).is_some(), "no `{beside}`");
    }
    record(&json)
}

#[test]
fn explain_says_yes_with_the_kernel() {
    gristmill(words("explain matmul --format i2_s --shape 1x2560x2560"))
        .code(0)
        .says("chosen: matmul.i2_s.")
        .says("not chosen:")
        .says("plan of `matmul.i2_s.");
    let decision = explained("explain matmul --format i2_s --shape 1x2560x2560 --json", 0);
    assert!(decision.chosen.as_ref().is_some_and(|name| name.starts_with("matmul.i2_s.")), "{decision:?}");
    assert!(!decision.rejected.is_empty());
    assert!(decision.rejected.iter().all(|no| no.kernel.is_some() && !no.reason.is_empty()), "{decision:?}");
    assert!(decision.memory.is_some_and(|memory| memory.weight_bytes > 2560 * 2560 / 4));
}

/// Rows whose sums need not fit 32 bits: a no with what would help, which is said of no kernel where another one takes the shape.
#[test]
fn rows_that_are_too_long_for_exact_sums_say_what_would_help() {
    let help = "help: divide the matrix along k into parts that fit";
    gristmill(words("explain matmul --format i2_s --shape 1x1x134217728"))
        .code(2)
        .says("k = 134217728, but must be at most")
        .says(help);
    let decision = explained("explain matmul --format i2_s --shape 1x1x134217728 --json", 2);
    let of_k = decision.rejected.iter().filter(|no| no.reason.contains("but must be at most"));
    assert!(of_k.clone().count() > 0, "{decision:?}");
    assert!(
        of_k.into_iter().all(|no| no.help.as_deref().is_some_and(|help| help.contains("several scales")))
    );
    let taken = gristmill(words("explain matmul --format tq2_0 --shape 1x1x134217728")).code(0);
    assert!(!taken.stdout.contains(help), "{}", taken.stdout);
}

#[test]
fn experts_are_explained_by_the_kernels_of_their_products() {
    let says = gristmill(words("explain matmul_grouped --format q4_k --shape 2x1024x4096")).code(0);
    says.says("for 2 of them:").says("chosen: matmul.q4_k.");
    let [grouped, alone] = ["matmul_grouped", "matmul"].map(|op| {
        let question = format!("explain {op} --format q4_k --shape 2x1024x4096 --json");
        gristmill(words(&question)).code(0).json()
    });
    assert_eq!(grouped["chosen"], alone["chosen"]);
    assert_eq!((&grouped["grouped"], &alone["grouped"]), (&true.into(), &false.into()));
    gristmill(words("explain matmul_groups --format q4_k")).code(1).complains("matmul_grouped");
}

#[test]
fn explain_says_no_with_code_2() {
    let gpu = gristmill(words("explain matmul --format i2_s --device cuda:0")).code(2);
    gpu.says("help:").says("cuda");
    for device in ["rocm", "metal:0"] {
        let no =
            gristmill(words("explain matmul --format i2_s --device").into_iter().chain([device])).code(2);
        let no = no.says("no kernel is described for");
        assert!(!no.stdout.contains("not compiled"), "{}", no.stdout);
    }
    gristmill(words("explain matmul --format i2_s --shape 1x16x100")).code(2).says("pad rows to 128");
    gristmill(words("explain quantize --format q4_k --input bf16")).code(2);
    let decision = explained("explain quantize --format q4_k --input bf16 --json", 2);
    assert!(decision.chosen.is_none() && !decision.rejected.is_empty(), "{decision:?}");
}

#[test]
fn restrictions_of_the_environment_count() {
    let ran = finished(
        command().args(words("explain matmul --format i2_s")).env("GRISTMILL_ISA", "scalar").output(),
    );
    ran.code(0).says("chosen: matmul.i2_s.scalar").says("nothing above scalar is allowed");
    let ran =
        finished(command().args(words("explain matmul --format i2_s")).env("GRISTMILL_ISA", "avx3").output());
    ran.code(1).complains("GRISTMILL_ISA").complains("did you mean `avx2`?");
}

#[test]
fn unknown_names_are_errors_with_the_names_there_are() {
    for line in [
        "explain matmul --format i2s",
        "list --format i2s",
        "verify --format i2s",
        "bench --format i2s",
        "quantize in.safetensors -o out.gguf --format i2s",
        "dequantize --raw --format i2s --row 128 in out",
    ] {
        gristmill(words(line))
            .code(1)
            .complains("error")
            .complains("did you mean `i2_s`?")
            .complains("tq2_0");
    }
    gristmill(words("verify matmul.i2_s.scaler")).code(1).complains("did you mean `matmul.i2_s.scalar`?");
    gristmill(words("explain quantize --format i2_s --quantizer absmaen")).code(1).complains("absmean");
    gristmill(words("explain multiply --format i2_s")).code(1).complains("matmul");
    gristmill(words("explain matmul --format i2_s --shape 7")).code(1).complains("MxNxK");
    gristmill(words("explain matmul --format i2_s --device gpu")).code(1).complains("cuda:0");
    gristmill(words("explain matmul --format i2_s --device cuda:0 --nonsense")).code(1);
    gristmill([""; 0]).code(1);
}

/// A name that nothing knows is a mistake in the question, whichever command is asked.
#[test]
fn an_unknown_quantizer_is_a_mistake_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("in.f32");
    std::fs::write(&input, [0; 512]).expect("a file");
    let raw = ["quantize", "--raw", "--format", "i2_s", "--row", "128", "--quantizer", "nope"];
    let files = [text(&input), "/dev/null"];
    gristmill(raw.iter().chain(&files)).code(1).complains("no quantizer `nope`");
    gristmill(words("explain quantize --format i2_s --quantizer nope"))
        .code(1)
        .complains("no quantizer `nope`");
}

/// What answers say is of the question.
#[test]
fn answers_name_what_was_asked() {
    let ran = gristmill(words("emit i2_s --format q4_0")).code(1).complains("no kernel file");
    assert!(!ran.stderr.contains("did you mean"), "{}", ran.stderr);
    gristmill(words("emit i2s --format q4_0")).code(1).complains("did you mean `i2_s`?");
    let ran = gristmill(words("emit /dev/null")).code(1).complains("error[empty-file]");
    assert!(!ran.stderr.contains("error: error"), "{}", ran.stderr);
    gristmill(words("device-report --device cpu --out ./nonexistent/x")).code(1).complains("--device cpu");
    let ran = gristmill(words("docs --performance /nonexistent/x")).code(1).complains("/nonexistent/x");
    assert_eq!(ran.stdout, "");
    let file = crate::common::data("i2_s.gguf");
    let plan = |speed: &str| gristmill(["plan", text(&file), "--devices", "cpu", "--speeds", speed]);
    plan("1e-320").code(1).complains("1e-100");
    plan("1e-30").code(0).says("100 %");
    gristmill(words("list --format int8_row")).code(0).says("quantize_activations.int8_row.scalar");
    if cfg!(feature = "import") {
        gristmill(words("list --format i2_s_rows4")).code(0).says("matmul.i2_s.scalar");
        gristmill(words("explain matmul --format i2_s_rows4 --shape 1x256x256"))
            .code(0)
            .says("i2_s_rows4 is a layout of i2_s");
        let ran = gristmill(words("quantize in -o out --format i2_s_neon64")).code(1).complains("only read");
        assert!(!ran.stderr.contains("--raw"), "{}", ran.stderr);
    }
}

/// A version of GGUF that is older is converted again; for one that is newer a newer program is needed.
#[test]
fn versions_of_gguf_have_their_own_help() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    let mut bytes = std::fs::read(crate::common::data("i2_s.gguf")).expect("test data");
    for (version, help) in [(1u32, "convert the model again"), (4, "a newer gristmill")] {
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        std::fs::write(&path, &bytes).expect("a file");
        gristmill(["inspect", text(&path)]).code(1).complains(help);
    }
}

#[test]
fn help_and_version_are_no_errors() {
    gristmill(["--help"]).code(0).says("Usage: gristmill");
    gristmill(["--version"]).code(0).says("gristmill ");
    for command in [
        "run",
        "list",
        "explain",
        "inspect",
        "plan",
        "verify",
        "verify-receipt",
        "bench",
        "tune",
        "check",
        "emit",
        "quantize",
        "dequantize",
        "analyze-library",
    ] {
        gristmill([command, "--help"]).code(0).says("Usage: gristmill");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = command()
        .args(["list", "--kernels", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let ran = finished(child.wait_with_output()).code(0);
    assert_eq!(ran.stderr, "");
}

/// Nor does it change the answer, whether the words were few or many.
#[test]
fn what_is_wrong_stays_so_when_nobody_reads_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = folder.path().join("wrong.toml");
    for keys in [1, 2000] {
        let text: String = (0..keys).map(|key| format!("key{key} = 1\n")).collect();
        std::fs::write(&spec, text).expect("a file");
        let mut child = command()
            .arg("check")
            .arg(&spec)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        drop(child.stdout.take());
        let ran = finished(child.wait_with_output()).code(1);
        assert_eq!(ran.stderr, "", "{keys} keys");
    }
}

/// A log on a full disk is no panic.
#[cfg(target_os = "linux")]
#[test]
fn errors_that_cannot_be_written_are_errors() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let ended =
        command().args(["inspect", "no/such/file"]).stderr(full).status().expect("the command starts");
    assert_eq!(ended.code(), Some(1));
}
