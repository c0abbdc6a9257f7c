//! `validate`: its parts, baselines that do and do not compare, and what fails.
#![cfg(all(feature = "cli", feature = "bitnet"))]

use crate::common::{gristmill, words};
use serde_json::Value;

fn of(json: &Value, part: &str) -> String {
    json[part]["outcome"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_part_says_how_it_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("baseline.json");
    let file = path.to_str().expect("UTF-8");
    let quick = ["validate", "--format", "i2_s,tq2_0", "--rounds", "100"];
    let first = gristmill(quick.into_iter().chain(["--save-baseline", file, "--json"])).code(0).json();
    assert_eq!(first["success"], true, "{first}");
    for (part, outcome) in
        [("accuracy", "passed"), ("cross_check", "passed"), ("speed", "not_run"), ("memory", "passed")]
    {
        assert_eq!(of(&first, part), outcome, "{part}: {first}");
    }
    assert_eq!((&first["accuracy"]["right"], &first["memory"]["rounds"]), (&4.into(), &100.into()));
    assert!(first["memory"]["peak"].as_u64() >= first["memory"]["before"].as_u64(), "{first}");

    // This machine's own times, with room for whoever else works on it.
    let again = gristmill(quick.into_iter().chain(["--baseline", file, "--tolerance", "100000", "--json"]));
    let again = again.code(0).json();
    assert_eq!(
        (of(&again, "speed"), &again["speed"]["compared"]),
        ("passed".to_owned(), &4.into()),
        "{again}"
    );

    let text = std::fs::read_to_string(&path).expect("it was written");
    let mut kept: Value = serde_json::from_str(&text).expect("JSON");
    // Times that no machine reaches.
    for time in kept["times"].as_array_mut().expect("a list") {
        time["seconds"] = 1e-12.into();
    }
    std::fs::write(&path, kept.to_string()).expect("a file");
    // What is slow is no norm for later runs.
    let next = folder.path().join("next.json");
    let next = next.to_str().expect("UTF-8");
    gristmill(quick.into_iter().chain(["--baseline", file, "--save-baseline", next]))
        .code(1)
        .complains("is not written: a baseline is of a valid machine");
    assert!(!std::path::Path::new(next).exists());
    // Nor is a baseline replaced by what was held against it: a little slower each time is slow at last.
    gristmill(quick.into_iter().chain(["--baseline", file, "--save-baseline", file]))
        .code(1)
        .complains("are one file");
    gristmill(quick.into_iter().chain(["--baseline", file]))
        .code(1)
        .says("speed        FAILED: 4 times compared with the baseline, 4 slower than allowed")
        .says("NOT VALID");
    kept["machine"] = "another".into();
    std::fs::write(&path, kept.to_string()).expect("a file");
    gristmill(quick.into_iter().chain(["--baseline", file]))
        .code(0)
        .says("not run: 4 times; the baseline is of another machine (another)");
    kept["schema"] = "gristmill baseline 0".into();
    std::fs::write(&path, kept.to_string()).expect("a file");
    let refused = gristmill(quick.into_iter().chain(["--baseline", file])).code(1);
    refused.complains("its schema is `gristmill baseline 0`").complains("--save-baseline");
    std::fs::write(&path, "{").expect("a file");
    gristmill(quick.into_iter().chain(["--baseline", file])).code(1).complains("is no baseline");
}

#[test]
fn what_is_not_there_is_not_valid() {
    gristmill(words("validate --format i2s")).code(1).complains("i2_s");
    // No GPU, or no kernels for one in this build.
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        gristmill(words("validate --format i2_s --device cuda:0")).code(1).complains("cuda:0");
    }
}

/// A file whose times are none condemns no machine.
#[test]
fn a_damaged_baseline_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = folder.path().join("base.json");
    let line = format!("validate --format i2_s --rounds 1 --threads 1 --baseline {}", base.display());
    for seconds in ["-1", "0", "1e-320"] {
        let time = format!(
            "{{\"kernel\":\"matmul.i2_s.scalar\",\"id\":\"00\",\"m\":1,\"n\":1024,\"k\":2048,\"threads\":1,\"seconds\":{seconds}}}"
        );
        let text = format!("{{\"schema\":\"gristmill baseline 1\",\"machine\":\"here\",\"times\":[{time}]}}");
        std::fs::write(&base, text).expect("a file");
        let ran = gristmill(words(&line)).code(1).complains("base.json is no baseline");
        ran.complains("`matmul.i2_s.scalar` with m=1")
            .complains("expected a time above 0")
            .complains("help: ");
    }
}

/// The processes that `parent` has started.
#[cfg(target_os = "linux")]
fn children_of(parent: u32) -> Vec<String> {
    let all = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    all.split_whitespace().map(str::to_owned).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_validation_ends_with_the_program_that_started_it() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let folder = tempfile::tempdir().expect("a folder");
    let line = format!("validate --rounds 1000000 --threads 1 --quarantine {}", folder.path().display());
    let mut command = crate::common::command();
    let mut parent =
        command.args(words(&line)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let until = |what: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it takes a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(&|| !children_of(parent.id()).is_empty());
    let child = children_of(parent.id()).remove(0);
    // SIGKILL: the parent can do nothing about its child any more.
    parent.kill().expect("our own process");
    parent.wait().expect("its end");
    // Gone, or waited for by nobody.
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    };
    until(&|| !lives());
}

/// The command with a kernel whose first instruction no processor has, and the kernel's name; `None` where decisions choose the portable one.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn with_an_illegal_kernel(folder: &std::path::Path) -> Option<(std::path::PathBuf, String)> {
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
    let illegal: &[u8] = if cfg!(target_arch = "x86_64") { &[0x0f, 0x0b] } else { &[0, 0, 0, 0] };
    let explained = gristmill(words("explain matmul --format i2_s --shape 1x70x512 --json")).code(0).json();
    let kernel = explained["chosen"].as_str().expect("its name").to_owned();
    let variant = kernel.strip_prefix("matmul.i2_s.").expect("a product").replace(['.', '-'], "_");
    let mut bytes = std::fs::read(env!("CARGO_BIN_EXE_gristmill")).expect("the command");
    let parsed = object::File::parse(&bytes[..]).expect("ELF");
    let of_kernel = |name: &str| {
        name.contains(&format!("matmul_{variant}_r"))
            && name.contains("2bit_rows")
            && name.contains("6matmul17h")
    };
    let symbol = parsed.symbols().find(|symbol| symbol.name().is_ok_and(of_kernel));
    let Some(symbol) = symbol else {
        assert_eq!(variant, "scalar", "its function is in the command");
        return None;
    };
    let section = symbol.section_index().expect("its code");
    let section = parsed.section_by_index(section).expect("its code");
    let (start, _) = section.file_range().expect("it is in the file");
    let at = usize::try_from(start + symbol.address() - section.address()).expect("a place in memory");
    bytes[at..at + illegal.len()].copy_from_slice(illegal);
    let command = folder.join("gristmill");
    std::fs::write(&command, bytes).expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&command, mode).expect("its own file");
    Some((command, kernel))
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn a_kernel_that_ends_the_program_is_put_into_quarantine() {
    use crate::common::{command, finished};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    let folder = tempfile::tempdir().expect("a folder");
    let Some((program, kernel)) = with_an_illegal_kernel(folder.path()) else {
        println!("ran 0 of 1; skipped 1: decisions choose the portable kernel");
        return;
    };
    // Another program with the environment of `command`.
    let of_it = |line: &str| {
        let mut patched = Command::new(&program);
        for (variable, value) in command().get_envs() {
            match value {
                Some(value) => patched.env(variable, value),
                None => patched.env_remove(variable),
            };
        }
        patched.args(words(line));
        patched
    };
    let quick = "validate --format i2_s --rounds 1 --threads 2";
    let ended = of_it(quick).output().expect("it starts");
    assert_eq!(ended.status.signal(), Some(4), "SIGILL: {ended:?}");

    let kept = folder.path().join("kept");
    let with = format!("{quick} --quarantine {}", kept.display());
    let why = "it ended a program by SIGILL, in its first run with m=1, n=70, k=512";
    let first = finished(of_it(&with).output()).code(0);
    let first = first.complains(&format!("{kernel} is in quarantine: {why}"));
    first.says(&format!("{kernel} was left out, in quarantine: {why}")).says("valid, in");
    let again = finished(of_it(&format!("{with} --json")).output()).code(0);
    assert_eq!(again.stderr, "");
    let again = again.json();
    let [left_out] = &again["quarantined"].as_array().expect("a list")[..] else { panic!("{again}") };
    assert_eq!((&left_out["kernel"], &left_out["why"]), (&kernel.clone().into(), &why.into()));

    // What was found out holds for programs, and for commands.
    let explain = "explain matmul --format i2_s --shape 1x70x512";
    let explained = finished(of_it(explain).env("GRISTMILL_QUARANTINE", &kept).output()).code(0);
    explained.says(&format!("{kernel}: in quarantine: {why}"));
    let receipt = folder.path().join("receipt.json");
    let run = format!("run tests/data/gguf/i2_s.gguf --receipt {}", receipt.display());
    finished(of_it(&run).env("GRISTMILL_QUARANTINE", &kept).output()).code(0);
    let checked = format!("verify-receipt {}", receipt.display());
    gristmill(words(&checked)).code(0).says(&format!("kernel {kernel} failed ({why}), step left-out"));
    // A program that nobody watches leaves a mark, which its next start takes in.
    let own = folder.path().join("own");
    let died = of_it(&run).env("GRISTMILL_QUARANTINE", &own).output().expect("it starts");
    assert_eq!(died.status.signal(), Some(4), "SIGILL: {died:?}");
    finished(of_it(&run).env("GRISTMILL_QUARANTINE", &own).output()).code(0);

    // A folder that is none.
    gristmill(words(&format!("{quick} --quarantine {}", program.display())))
        .code(1)
        .complains("can't make the folder")
        .complains("GRISTMILL_QUARANTINE");
}
