//! The command on a GPU that a fake driver stands for, and where there is none.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::images::{entries, has_images, place_units, settings};
use crate::support::{can_run, fake_driver, is_child};
use gristmill::REGISTRY;
use gristmill::registry::Code;
use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolIndex};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The command with these arguments: on a fake GPU, or where no driver is to be found.
fn command(arguments: &[&str], gpu: Option<&Path>) -> (i32, String) {
    command_on(&settings(), arguments, gpu)
}

/// The same on a fake GPU with these settings.
fn command_on(settings: &str, arguments: &[&str], gpu: Option<&Path>) -> (i32, String) {
    command_with(("GRISTMILL_PACKINGS", ""), settings, arguments, gpu)
}

/// The same with a variable of the environment.
fn command_with(
    (name, value): (&str, &str),
    settings: &str,
    arguments: &[&str],
    gpu: Option<&Path>,
) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.env(name, value).args(arguments).env_remove("GRISTMILL_NO_SKIP").env_remove("LD_LIBRARY_PATH");
    if let Some(units) = gpu {
        command
            .env("LD_LIBRARY_PATH", fake_driver())
            .env("GRISTMILL_GPU_FAKE", settings)
            .env("GRISTMILL_GPU_FAKE_UNITS", units);
    }
    let output = command.output().expect("it starts");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let code = output.status.code();
    (code.unwrap_or_else(|| panic!("{arguments:?}: {}: {text}", output.status)), text)
}

/// NVRTC alone can't give PTX an older version: what then serves an old driver is named, with the architecture of its device.
#[test]
fn doctor_knows_what_an_old_driver_needs() {
    let name = "doctor_knows_what_an_old_driver_needs";
    let nvrtc = std::env::var_os("GRISTMILL_NVCC").map(std::path::PathBuf::from);
    let nvrtc = nvrtc.and_then(|nvcc| Some(nvcc.parent()?.parent()?.join("lib/libnvrtc.so.13")));
    let Some(nvrtc) = nvrtc.filter(|library| library.exists() && can_run(name)) else {
        println!("SKIPPED: {name}: GRISTMILL_NVCC names no toolkit with NVRTC 13");
        return;
    };
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    let doctor = |settings: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
        command.arg("doctor").env_remove("GRISTMILL_NVCC").env_remove("GRISTMILL_NO_SKIP");
        command.env("GRISTMILL_NVRTC", &nvrtc).env("LD_LIBRARY_PATH", fake_driver());
        command.env("GRISTMILL_GPU_FAKE", settings).env("GRISTMILL_GPU_FAKE_UNITS", &units);
        let output = command.output().expect("it starts");
        String::from_utf8(output.stdout).expect("text")
    };
    let text = doctor("sm_75,driver=12040");
    assert!(text.contains("nvidia-cuda-nvrtc-cu12==12.9.86, GRISTMILL_NVRTC=.../libnvrtc.so.12"), "{text}");
    assert!(text.contains("and GRISTMILL_CUDA_ARCHS=75)"), "{text}");
    // This binary's images serve it, by PTX.
    assert!(!has_images() || !text.contains("this binary has kernels without an image"), "{text}");
    let text = doctor("sm_75,driver=13000");
    assert!(!text.contains("what to do"), "{text}");
}

#[test]
fn the_command_runs_there() {
    let explain = ["explain", "matmul", "--format", "i2_s", "--device", "cuda:0", "--shape", "1x256x256"];
    if !can_run("the_command_runs_there") {
        return;
    }
    if !has_images() {
        // Whether for want of a driver or of images: no, and the true reason.
        let (code, text) = command(&explain, None);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("not compiled: the build found no CUDA compiler"), "{text}");
        return;
    }
    if !Path::new("/dev/nvidiactl").exists() {
        let (code, text) = command(&explain, None);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("no driver: the library libcuda is not there"), "{text}");
        assert!(text.contains("help: install the NVIDIA driver"), "{text}");
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    place_units(&units);
    let (code, text) = command(&explain, Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("chosen: matmul.i2_s.cuda."), "{text}");
    kernels_are_described(&explain, &units);
    let few_tiles = ["--shape", "5x40x12288"];
    let (code, text) = command(&[&explain[..6], &few_tiles[..]].concat(), Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("split-K by stages of 2048"), "{text}");
    assert!(text.contains("k is divided into 6 parts"), "{text}");
    let halves = ["--precision", "f16", "--shape", "40x256x256"];
    let (code, text) = command(&[&explain[..6], &halves[..]].concat(), Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("chosen: matmul.i2_s.cuda.mma_f16 "), "{text}");
    assert!(text.contains("multiplies int8, and f16 was asked for"), "{text}");
    let (code, text) = command(&["doctor"], Some(&units));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("cuda:0: Fake sm_"), "{text}");
    if text.contains("nvcc 13.") {
        let (code, text) = command_on(&format!("{},driver=12080", settings()), &["doctor"], Some(&units));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("supports CUDA up to 12.8"), "{text}");
        assert!(!text.contains("what to do"), "its PTX serves: {text}");
    }
    for format in ["i2_s", "int8_row"] {
        let (code, text) =
            command(&["verify", "--quick", "--device", "cuda:0", "--format", format], Some(&units));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(".cuda"), "{text}");
        assert!(!text.contains("skipped:") && !text.contains("wrong:"), "{text}");
    }
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf/i2_s.gguf");
    for (precision, kernel, accuracy) in [("int8", "mma", "exact"), ("f32", "fma.decode", "NMSE")] {
        let run = ["run", model, "--device", "cuda:0", "--m", "1", "--precision", precision];
        let (code, text) = command(&run, Some(&units));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(&format!("matmul.i2_s.cuda.{kernel}")) && text.contains(accuracy), "{text}");
    }
    weights_are_held_once(model, &units);
    let bench = [
        "bench", "--device", "cuda:0", "--quick", "--format", "i2_s", "--shape", "64x256", "--m", "1",
        "--json",
    ];
    for precision in ["f16", "bf16", "f32", "auto"] {
        let more = [&bench[..], &["--precision", precision]].concat();
        let (code, text) = command(&more, Some(&units));
        assert_eq!(code, 0, "{text}");
        let records: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let word = if precision == "auto" { "mma" } else { "fma" };
        assert_eq!(
            records[0]["kernel"].as_str().and_then(|name| name.split('.').nth(3)),
            Some(word),
            "{text}"
        );
    }
    let (code, text) = command(&bench, Some(&units));
    assert_eq!(code, 0, "{text}");
    // A fake driver has no cuBLASLt, and a line says so instead.
    let records: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let all = records.as_array().expect("a list");
    let last = all.last().expect("a record");
    assert_eq!(last["kernel"], "cublaslt", "{text}");
    for op in ["quantize", "dequantize"] {
        let of_op = all.iter().filter(|record| record["op"] == op);
        let measured = of_op.inspect(|record| {
            let positive = ["seconds", "seconds_with_copies", "cpu_seconds", "times_cpu_with_copies"];
            assert!(positive.iter().all(|key| record[key].as_f64() > Some(0.0)), "{record}");
            let kernels =
                [&record["kernel"], &record["cpu_kernel"]].map(|name| name.as_str().unwrap_or_default());
            assert!(kernels[0].contains(".cuda") && !kernels[1].contains(".cuda"), "{record}");
        });
        // Hot and cold.
        assert_eq!(measured.count(), 2, "{text}");
    }
    a_slower_kernel_is_found(&bench, all, &units);
    #[cfg(feature = "ops")]
    a_history_keeps_them(model, &text, &units);
    let (code, said) = command(&[&bench[..10], &["--op", "pack"]].concat(), Some(&units));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("packed by the processor"), "{said}");
    let why = last["why_not"].as_str().unwrap_or_default();
    let absent = if cfg!(feature = "cublaslt") { "libcublasLt is not there" } else { "built without it" };
    assert!(why.contains(absent), "{text}");
    let tuning = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handles.tuning");
    // What there is of another GPU stays, and is told.
    let other = "gristmill tuning 2\ngpu Another 9.9 driver 99.0\nmatmul i2_s 0 0000000000000001:1.000\n";
    std::fs::write(&tuning, other).expect("a file");
    let path = tuning.to_str().expect("UTF-8");
    let tune = [
        "tune", "--device", "cuda:0", "--quick", "--hot", "--format", "i2_s", "--m", "4", "--shape",
        "512x1024", "--out", path,
    ];
    let (tuned, said) = command(&tune, Some(&units));
    assert_eq!(tuned, 0, "{said}");
    assert!(said.contains("1 measured order"), "{said}");
    let written = std::fs::read_to_string(&tuning).expect("it was written");
    let kept = other.replace("tuning 2", "tuning 3").replace("i2_s 0 ", "i2_s 0 1 ");
    assert!(written.starts_with(&kept) && written.contains("\ngpu Fake sm_"), "{written}");
    let line = written.lines().last().expect("a line");
    assert!(line.starts_with("matmul i2_s 1 1 ") && line.split(' ').count() > 5, "two kernels: {written}");
    let record = &records[0];
    assert!(record["kernel"].as_str().is_some_and(|name| name.starts_with("matmul.i2_s.cuda.")), "{text}");
    assert!(record["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{text}");
    assert!(record["copy_gb_s"].as_f64().is_some_and(|rate| rate > 0.0), "{text}");
}

/// Kernels that only a request for FP4 may choose are explained, verified and measured as all others.
#[test]
fn the_command_knows_fp4() {
    if !can_run("the_command_knows_fp4") || !has_images() {
        return;
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    place_units(&units);
    let gpu = |arguments: &[&str]| command_on("sm_120", arguments, Some(&units));
    let explain = ["explain", "matmul", "--format", "nvfp4", "--device", "cuda:0", "--shape", "40x256x256"];
    let (code, text) = gpu(&[&explain[..], &["--precision", "fp4"]].concat());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("chosen: matmul.nvfp4.cuda.mma_fp4 "), "{text}");
    let (code, text) = gpu(&[&explain[..], &["--precision", "auto"]].concat());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("multiplies fp4, and auto was asked for"), "{text}");
    let (code, text) = gpu(&["verify", "--quick", "--device", "cuda:0", "--format", "nvfp4", "--json"]);
    assert_eq!(code, 0, "{text}");
    let verified: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let of_fp4 = verified["kernels"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|kernel| kernel["kernel"].as_str().is_some_and(|name| name.contains(".mma_fp4")));
    let cases: Vec<_> = of_fp4.map(|kernel| kernel["cases"].as_u64()).collect();
    assert!(cases.len() == 2 && cases.iter().all(|cases| *cases > Some(0)), "{text}");
    let shape = ["--device", "cuda:0", "--quick", "--format", "nvfp4", "--m", "32"];
    let bench = [&["bench", "--precision", "fp4", "--json", "--shape", "64x256"], &shape[..]].concat();
    let (code, text) = gpu(&bench);
    assert_eq!(code, 0, "{text}");
    let records: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(records[0]["kernel"], "matmul.nvfp4.cuda.mma_fp4", "{text}");
}

/// A history has what `bench` and a monitor say of a GPU under the GPU's name, whatever processor it is beside.
#[cfg(feature = "ops")]
fn a_history_keeps_them(model: &str, measured: &str, units: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    let [store, bench, monitor] =
        ["h", "bench.json", "monitor.json"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&bench, measured).expect("a file");
    let run = ["run", model, "--device", "cuda:0", "--m", "1", "--monitor", &monitor];
    let (code, text) = command(&run, Some(units));
    assert_eq!(code, 0, "{text}");
    let (code, text) =
        command(&["history", "--store", &store, "--add", &bench, "--add", &monitor, "--json"], None);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("set aside: record") && text.contains("of cublaslt;"), "{text}");
    let (code, text) = command(&["history", "--store", &store, "--json"], None);
    assert_eq!(code, 0, "{text}");
    let kept: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let lines: serde_json::Value = serde_json::from_str(measured).expect("JSON");
    let ours = lines.as_array().expect("a list").iter().filter(|line| line.get("rounds").is_some()).count();
    let mut sources = [0, 0];
    for record in kept["records"].as_array().expect("a list") {
        let on_gpu = record["kernel"].as_str().is_some_and(|kernel| kernel.contains(".cuda"));
        let of_gpu = record["machine"].as_str().is_some_and(|machine| machine.starts_with("gpu Fake sm_"));
        assert_eq!(on_gpu, of_gpu, "{record}");
        sources[usize::from(record["source"] == "monitor")] += usize::from(on_gpu);
    }
    assert_eq!(sources[0], ours, "{text}");
    assert!(sources[1] > 0, "{text}");
}

/// `bench --compare` holds a GPU's records against earlier ones of the same GPU. Times in the emulator say nothing, so the earlier ones are made
/// a hundred times as long, or as short.
fn a_slower_kernel_is_found(bench: &[&str], records: &[serde_json::Value], units: &Path) {
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handles.base.json");
    let compared = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut records = records.to_vec();
        records.iter_mut().for_each(change);
        std::fs::write(&base, serde_json::Value::from(records).to_string()).expect("a file");
        command(&[bench, &["--compare", base.to_str().expect("UTF-8")]].concat(), Some(units))
    };
    let times = |record: &mut serde_json::Value, by: f64| {
        if let (Some(seconds), Some(_)) = (record["seconds"].as_f64(), record.get("rounds")) {
            record["seconds"] = (seconds * by).into();
            // The device copied as fast as today.
            record["percent_of_copy"] = (record["percent_of_copy"].as_f64().unwrap_or(1.0) / by).into();
        }
    };
    let count = records.iter().filter(|record| record.get("rounds").is_some()).count();
    assert!(count >= 6, "products, quantizing and dequantizing, hot and cold: {records:?}");
    let (code, text) = compared(&|record| times(record, 100.0));
    assert_eq!(code, 0, "{text}");
    let all = format!("{count} records compared with the base ({count} in it): 0 slower, ");
    assert!(text.contains(&all), "{text}");
    let (code, text) = compared(&|record| times(record, 0.01));
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains(&format!("{count} slower, 0 faster")) && text.contains("matmul.i2_s.cuda."),
        "{text}"
    );
    let (code, text) = compared(&|record| {
        if record.get("machine").is_some() {
            record["machine"] = "gpu Another 9.9 driver 99.0".into();
        }
    });
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("measured on `gpu Another 9.9 driver 99.0`, this is `gpu Fake sm_"), "{text}");
}

/// `explain` and `plan` say of a kernel what its image needs and uses: what the registry has of the image that the device loads.
fn kernels_are_described(explain: &[&str], units: &Path) {
    let json = |line: &[&str]| -> serde_json::Value {
        let (code, text) = command(&[line, &["--json"]].concat(), Some(units));
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).expect("JSON")
    };
    let explained = json(explain);
    let chosen = explained["chosen"].as_str().expect("a kernel");
    let entry = REGISTRY.entries.iter().find(|entry| entry.name == chosen).expect("it is listed");
    let listed = serde_json::to_value(gristmill::json::kernel(&REGISTRY, entry)).expect("JSON");
    let arch = settings().split(',').find_map(|word| Some(word.strip_prefix("sm_")?.to_owned()));
    let image = &explained["image"];
    assert_eq!(image["kind"], "cubin", "{explained}");
    assert!(
        arch.is_some_and(|arch| image["arch"].as_str().is_some_and(|of| of.starts_with(&arch))),
        "{image}"
    );
    assert!(listed["images"].as_array().is_some_and(|all| all.contains(image)), "{image} of {listed}");
    let used = &image["functions"].as_array().and_then(|all| all.last()).expect("a function");
    let (registers, shared) = (used["registers"].as_u64(), used["shared_bytes"].as_u64());
    let (registers, shared) = registers.zip(shared).expect("numbers");

    let occupancy = &explained["occupancy"];
    let blocks = occupancy["blocks_per_multiprocessor"].as_u64().expect("a number");
    assert!(blocks > 0, "{explained}");

    let (_, text) = command(explain, Some(units));
    let at_once =
        format!("holds at once: {blocks}, by its {}", occupancy["limited_by"].as_str().expect("text"));
    assert!(text.contains(&at_once), "{text}");
    let line = format!("{registers} registers a thread, {shared} bytes of shared memory a CUDA block");
    assert!(text.contains(&line), "{line} in {text}");
    let needs =
        format!("int8 products, compute capability {} and newer", listed["min_cc"].as_str().expect("text"));
    assert!(text.contains(&needs) && text.contains(image["min_driver"].as_str().expect("text")), "{text}");

    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf/i2_s.gguf");
    let plan = ["plan", model, "--device", "cuda:0"];
    let planned = json(&plan);
    let [kernel] = &planned["gpu_kernels"].as_array().expect("a list")[..] else { panic!("{planned}") };
    assert_eq!((&kernel["kernel"], &kernel["image"]), (&explained["chosen"], image), "{planned}");
    assert_eq!((&kernel["precision"], &kernel["min_cc"]), (&listed["precision"], &listed["min_cc"]));
    let with_it = |tensor: &&serde_json::Value| tensor["kernel"] == kernel["kernel"];
    let tensors = planned["tensors"].as_array().expect("a list").iter().filter(with_it).count();
    assert_eq!(kernel["tensors"], tensors, "{planned}");
    let (_, text) = command(&plan, Some(units));
    let mut rows =
        text.lines().skip_while(|line| !line.starts_with("kernel ")).filter(|line| line.starts_with(chosen));
    let row: Vec<&str> = rows.next().expect("a row").split_whitespace().collect();
    for word in [tensors.to_string(), "int8".to_owned(), registers.to_string(), shared.to_string()] {
        assert!(row.contains(&word.as_str()), "{word} in {row:?}");
    }
    // On the processor there is nothing of this.
    assert_eq!(json(&["plan", model])["gpu_kernels"], serde_json::json!([]));
}

/// A GPU holds weights once, and twice where that was asked for; `plan` counts all of it, and says which.
fn weights_are_held_once(model: &str, units: &Path) {
    let mut sums = Vec::new();
    for (word, copies) in [("one", 1), ("fastest", 2)] {
        let plan = |arguments: &[&str]| {
            let (code, text) =
                command_with(("GRISTMILL_PACKINGS", word), &settings(), arguments, Some(units));
            assert_eq!(code, 0, "{text}");
            text
        };
        let text = plan(&["plan", model, "--device", "cuda:0", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let mut sum = 0;
        for tensor in
            json["tensors"].as_array().expect("a list").iter().filter(|tensor| tensor["quantized"] == true)
        {
            let packings = tensor["packings"].as_array().expect("a list");
            assert_eq!(packings.len(), copies, "{tensor}");
            sum += packings.iter().filter_map(|packing| packing["bytes"].as_u64()).sum::<u64>();
        }
        assert_eq!(json["packed_bytes"], sum, "{json}");
        assert_eq!(json["held_once"].as_array().map(Vec::is_empty), Some(copies == 2), "{json}");
        let text = plan(&["plan", model, "--device", "cuda:0"]);
        assert_eq!(text.contains("are held in `mma32x64` alone"), copies == 1, "{text}");
        assert_eq!(text.contains("held in several packings"), copies == 2, "{text}");
        sums.push(sum);
    }
    assert!(0 < sums[0] && sums[0] < sums[1], "{sums:?}");
    let (code, text) =
        command_with(("GRISTMILL_PACKINGS", "two"), &settings(), &["plan", model], Some(units));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("`one` or `fastest`"), "{text}");
}

/// The report of a device, whole, and of one on which a kernel fails: it goes on, and says so.
#[test]
fn a_report_of_a_device_goes_on_after_failures() {
    if is_child() || !can_run("a report of a device") || !has_images() {
        return;
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    place_units(&units);
    let folder = tempfile::tempdir().expect("a folder");
    let report = |words: &str, stages: &str, name: &str| {
        let path = folder.path().join(name);
        let out = path.to_str().expect("UTF-8").to_owned();
        let line = [
            "device-report",
            "--device",
            "cuda:0",
            "--quick",
            "--format",
            "i2_s",
            "--shape",
            "64x256",
            "--replays",
            "20",
            "--stage",
            stages,
            "--out",
            &out,
        ];
        let (code, said) = command_on(words, &line, Some(&units));
        let text = std::fs::read_to_string(path.join("summary.json"))
            .unwrap_or_else(|error| panic!("{error}: {said}"));
        let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(path.join("summary.md").is_file());
        (code, said, summary)
    };
    // Without `tune`, whose shapes take the emulator hours; a test of its own runs it.
    let all = "doctor,list,validate,verify-quick,verify,memcheck,bench,soak,two-processes";
    let (code, said, summary) = report(&settings(), all, "whole");
    assert_eq!((code, &summary["success"]), (0, &true.into()), "{said}\n{summary}");
    let stages = summary["stages"].as_array().expect("a list");
    assert_eq!(stages.len(), 9, "{summary}");
    for stage in stages {
        let skipped = stage["stage"] == "memcheck" && stage["outcome"] == "skipped";
        assert!(skipped || stage["outcome"] == "ok", "{stage}");
    }
    let goals = summary["goals"].as_array().expect("a list");
    assert!(goals.iter().any(|goal| goal["measured"].is_number()), "{summary}");
    let bench = std::fs::read_to_string(folder.path().join("whole/bench.json")).expect("it was written");
    assert!(bench.contains("percent_of_copy"), "{bench}");

    let failing = entries().find_map(|entry| match entry.code {
        Code::Cuda(code) => match code.launch {
            gristmill::registry::CudaLaunch::Elements { function, .. } => Some(function),
            _ => None,
        },
        _ => None,
    });
    let words = format!("{},fail_launch={}", settings(), failing.expect("a kernel"));
    let (code, said, summary) = report(&words, "verify-quick,soak", "failing");
    assert_eq!((code, &summary["success"]), (1, &false.into()), "{said}");
    let outcome = |at: usize| summary["stages"][at]["outcome"].as_str().unwrap_or_default().to_owned();
    assert_eq!((outcome(0), outcome(1)), ("failed".to_owned(), "ok".to_owned()), "{summary}");
    assert!(summary["stages"][0]["why"].as_str().is_some_and(|why| why.contains("719")), "{summary}");
}

/// Registers and static shared memory of each function, as the machine code itself tells the driver: `.nv.info` holds the
/// registers (attribute 0x2f, CUDA Binary Utilities call it `EIATTR_REGCOUNT`), `.nv.shared.NAME` is as long as the memory.
fn told_by_the_machine_code(image: &[u8]) -> BTreeMap<String, (u32, u64)> {
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(image).expect("a cubin is ELF");
    let section = |name: &str| elf.section_by_name(name);
    let info = section(".nv.info").expect("facts of functions").data().expect("inside the file");
    let number = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().expect("four bytes"));
    // On each block of an 8.0 or newer the driver has a kilobyte for itself, which the section counts.
    let reserved = if section(".nv.shared.reserved.0").is_some() { 1024 } else { 0 };
    let (mut told, mut at) = (BTreeMap::new(), 0);
    while at < info.len() {
        // Records with a size (form 4) have it in the third and fourth byte; others hold two bytes there.
        let size =
            if info[at] == 4 { usize::from(u16::from_le_bytes([info[at + 2], info[at + 3]])) } else { 0 };
        if info[at] == 4 && info[at + 1] == 0x2f {
            let symbol = elf.symbol_by_index(SymbolIndex(number(at + 4) as usize)).expect("a function");
            let name = symbol.name().expect("text");
            let shared =
                section(&format!(".nv.shared.{name}")).map_or(0, |of| of.size().saturating_sub(reserved));
            told.insert(name.to_owned(), (number(at + 8), shared));
        }
        at += 4 + size;
    }
    told
}

#[test]
fn the_list_tells_what_kernels_use() {
    if !has_images() {
        return;
    }
    let mut functions = 0;
    for entry in REGISTRY.entries.iter().filter(|entry| matches!(entry.code, Code::Cuda(_))) {
        let listed = gristmill::json::kernel(&REGISTRY, entry);
        for (image, listed) in gristmill::json::images(entry).iter().zip(listed.images.expect("a list")) {
            if image.ptx {
                assert_eq!(listed.functions, None, "{}: the driver decides", entry.name);
                continue;
            }
            let told = told_by_the_machine_code(&image.unpacked().expect("as it was built"));
            let Code::Cuda(code) = &entry.code else { unreachable!("filtered") };
            let launched = code.launch.functions();
            let each = listed.functions.expect("a list");
            assert_eq!(each.len(), launched.len(), "{}", entry.name);
            for (function, (name, more)) in each.iter().zip(launched) {
                let (registers, shared) = told[name];
                assert_eq!(function.function, name);
                assert_eq!(function.registers, registers, "{name} of {}", image.target());
                let at_launch = shared + u64::from(more);
                assert_eq!(u64::from(function.shared_bytes), at_launch, "{name} of {}", image.target());
                functions += 1;
            }
        }
    }
    assert!(functions > 100, "{functions} functions");
    let (code, text) = command(&["list", "--device", "cuda:0", "--format", "i2_s"], None);
    assert_eq!(code, 0, "{text}");
    let row = text.lines().find(|line| line.starts_with("matmul.i2_s.cuda.dp4a ")).expect("it is listed");
    assert!(text.contains("registers") && text.contains("shared bytes"), "{text}");
    assert!(row.split_whitespace().any(|word| word.contains("..") || word.parse::<u32>().is_ok()), "{row}");
}

#[test]
#[cfg(feature = "bitnet")]
fn plans_divide_a_model_over_devices() {
    let name = "plans_divide_a_model_over_devices";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/i2_s.gguf");
    let file = file.to_str().expect("text");
    let (code, text) = command(&["plan", file, "--devices", "cuda:0,cuda:1", "--speeds", "1"], None);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("there are 1 speeds for 2 devices"), "{text}");
    if !can_run(name) || !has_images() {
        return;
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    place_units(&units);
    let two = format!("{},devices=2,1:multiprocessors=8,memory=1000000", settings());
    let plan = |more: &[&str]| {
        let line = [&["plan", file, "--devices", "cuda:0,cuda:1"], more].concat();
        command_on(&two, &line, Some(&units))
    };
    let (code, text) = plan(&[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("cuda:0") && text.contains("cuda:1") && text.contains("0.50"), "{text}");
    let (code, text) = plan(&["--json", "--speeds", "3,1"]);
    assert_eq!(code, 0, "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["devices"][0]["speed"], 3.0, "{json}");
    let bytes = |at: usize| json["devices"][at]["packed_bytes"].as_u64().expect("a number");
    assert!(bytes(0) + bytes(1) > 0 && json["devices"][1]["room_bytes"] == 1_000_000, "{json}");
    let tensors = json["tensors"].as_array().expect("a list");
    assert!(tensors.iter().all(|tensor| tensor["device"].is_string()), "{json}");
    // Nothing is left where all is reserved.
    let (code, text) = plan(&["--reserve", "1000000"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("room for 0 together"), "{text}");
    let (code, text) = command_on(&two, &["plan", file, "--devices", "cuda:0,cpu"], Some(&units));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("`--speeds`"), "{text}");
}

#[test]
fn doctor_tells_what_sensors_say() {
    if !can_run("doctor_tells_what_sensors_say") {
        return;
    }
    // It loads no image.
    let units = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (settings, temperature, clock) in [
        (
            "temperature=61,throttle=36,nvml",
            true,
            "its clock is lowered by: power limit, temperature, by the driver",
        ),
        ("temperature=61,nvml", true, "nothing lowers its clock"),
        ("nvml", false, "nothing lowers its clock"),
        ("temperature=61,throttle=36", false, ""),
    ] {
        let (code, text) = command_on(settings, &["doctor"], Some(units));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("cuda:0: Fake sm_90"), "{text}");
        let there = cfg!(feature = "nvml");
        assert_eq!(text.contains("61 degrees Celsius"), there && temperature, "{settings}: {text}");
        assert_eq!(text.contains("clock"), there && !clock.is_empty(), "{settings}: {text}");
        assert!(!there || text.contains(clock), "{settings}: {text}");
        let (_, text) = command_on(settings, &["doctor", "--json"], Some(units));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let device = &json["driver"]["devices"][0];
        assert_eq!(device["name"], "Fake sm_90", "{json}");
        let told = device.get("temperature").and_then(serde_json::Value::as_u64);
        assert_eq!(told, (there && temperature).then_some(61), "{json}");
        assert_eq!(device.get("throttled_by").is_some(), there && !clock.is_empty(), "{json}");
    }
}
