//! Numbers that are too large: refused with what is needed and what there is, never a panic, an abort or a full memory.

use gristmill::gguf::GgufWriter;

use crate::common::{data, gristmill, text, words};

const MOST: &str = "18446744073709551615";

#[test]
fn what_memory_has_no_room_for_is_refused_with_both_numbers() {
    for line in [
        "run --m 100000000",
        "run --m 1000000000000",
        "run --m 18446744073709551615",
        "run --m 1,8,1000000000000 --json",
        "bench --quick --format i2_s --m 1000000000000",
        "bench --quick --format i2_s --m 18446744073709551615",
        "bench --quick --format i2_s --shape 1000000000x12800000",
        "bench --quick --format i2_s --shape 18446744073709551615x18446744073709551488",
        "bench --quick --format i2_s --op quantize,dequantize,pack --shape 1000000000x12800000",
        "compare-backend --format i2_s --m 1000000000000",
        "compare-backend --format i2_s --m 18446744073709551615",
        "compare-backend --format i2_s --shape 1000000000x12800000",
    ] {
        let ran = gristmill(words(line)).code(1).complains("of memory").complains("are available");
        assert!(ran.stdout.is_empty() && ran.stderr.contains("help: give fewer"), "{line}: {}", ran.stderr);
    }
    let path = data("i2_s.gguf");
    gristmill(["run", text(&path), "--m", MOST])
        .code(1)
        .complains("blk.0.attn_q.weight")
        .complains("are available");
}

#[test]
fn threads_have_a_stated_maximum() {
    let file = data("i2_s.gguf");
    let lines = [
        "run",
        "bench --quick --format i2_s",
        "quantize in -o out --format i2_s",
        "dequantize --raw --row 8 in out --format i2_s",
    ];
    for line in lines {
        for count in [MOST, "4611686018427387904", "32769", "0", "two"] {
            gristmill(words(line).into_iter().chain(["--threads", count])).code(1).complains("threads");
        }
        let help = gristmill([words(line)[0], "--help"]).code(0);
        assert!(help.stdout.contains("at most 32768"), "{}", help.stdout);
    }
    gristmill(["run", text(&file), "--m", "1", "--threads", "3"]).code(0).says("3 threads");
}

/// What only asks about sizes answers, and what counts them refuses.
#[test]
fn the_largest_numbers_are_numbers() {
    let path = data("i2_s.gguf");
    gristmill(["plan", text(&path), "--m", MOST]).code(2).says("2 without").says("overflows");
    gristmill(["plan", text(&path), "--m", "0"]).code(1).complains("from 1 on");
    gristmill(["plan", text(&path), "--tiles", "0,0,0"]).code(1).complains("tile sizes are written");
    for shape in [format!("{MOST}x{MOST}x{MOST}"), format!("1x{MOST}x128"), format!("1x1x{MOST}")] {
        let ran = gristmill(["explain", "matmul", "--format", "i2_s", "--shape", &shape]);
        // No kernel is the answer where no memory has room for it.
        assert!([1, 2].contains(&ran.code), "{shape}: {}\n{}", ran.stdout, ran.stderr);
        assert!(ran.code == 2 || ran.stderr.contains(&shape), "{shape}: {}", ran.stderr);
    }
    for line in [
        "run --layers 0",
        "run --layers 18446744073709551615",
        "bench --quick --cpus 18446744073709551615 --threads 2",
    ] {
        gristmill(words(line)).code(1).complains("error");
    }
    let huge = format!("bench --quick --format i2_s --shape {MOST}x{MOST}");
    let ran = gristmill(words(&huge));
    assert!([1, 2].contains(&ran.code), "{}\n{}", ran.stdout, ran.stderr);
    for command in ["quantize", "dequantize"] {
        let line = format!("{command} --raw --format i2_s --row 4294967295");
        let arguments = words(&line).into_iter().chain([text(&path), "no/such/folder/out"]);
        let ran = gristmill(arguments);
        assert!([1, 2].contains(&ran.code), "{}\n{}", ran.stdout, ran.stderr);
    }
}

/// A tensor of more rows than there are addresses has no kernel for `plan` and `run`, and keeps no other from its own.
#[test]
fn what_no_machine_can_address_is_without_a_kernel() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    let mut writer = GgufWriter::new();
    writer.tensor("right", &[32, 2], 2, 36)?;
    writer.tensor("huge", &[0, 1 << 63], 2, 0)?;
    let mut stream = writer.write_to(Vec::new())?;
    stream.data("right", &[0; 36])?;
    std::fs::write(&path, stream.finish()?)?;
    gristmill(["plan", text(&path)]).code(2).says("1 with a kernel, 1 without").says("huge): the size of");
    gristmill(["run", text(&path), "--m", "1", "--threads", "1"])
        .code(2)
        .says("right")
        .says("huge): the size of");
    Ok(())
}

/// What converts whole tensors takes no more than can be addressed either.
#[test]
fn conversions_have_a_size_too() {
    for op in ["quantize", "dequantize", "embed"] {
        gristmill(words(&format!("explain {op} --format i2_s --shape 1x4294967296x4294967296")))
            .code(1)
            .complains("--shape 1x4294967296x4294967296")
            .complains("help: ");
        gristmill(words(&format!("explain {op} --format i2_s --shape 1x4096x4096"))).code(0);
    }
    gristmill(words("quantize --format i2_s --row 256 nowhere.gguf -o out.gguf"))
        .code(1)
        .complains("--row 256 is for --raw");
}

/// Help that could not be written was not given.
#[cfg(target_os = "linux")]
#[test]
fn help_on_a_full_disk_is_an_error() -> Result<(), Box<dyn std::error::Error>> {
    for line in ["--help", "run --help", "--version"] {
        let full = std::fs::File::options().write(true).open("/dev/full")?;
        let mut command = crate::common::command();
        let ran = crate::common::finished(command.args(words(line)).stdout(full).output());
        ran.code(1).complains("can't write to standard output");
    }
    Ok(())
}

/// A device has no end: whatever reads a file as a whole stops where such a file ends at the latest.
#[cfg(target_os = "linux")]
#[test]
fn a_file_without_an_end_is_refused() {
    let path = data("i2_s.gguf");
    let file = text(&path);
    for line in [
        "verify-receipt /dev/zero".to_owned(),
        "bench --quick --format i2_s --compare /dev/zero".to_owned(),
        "validate --format i2_s --rounds 1 --baseline /dev/zero".to_owned(),
        format!("plan {file} --kernel-config /dev/zero"),
        "docs --performance /dev/zero".to_owned(),
        "quantize --raw --format i2_s --row 128 /dev/zero /dev/null".to_owned(),
        "dequantize --raw --format i2_s --row 128 /dev/zero /dev/null".to_owned(),
    ] {
        // With a limit, so that what reads on ends here and not with the machine's memory.
        let mut command = std::process::Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -v 2000000; exec \"$0\" {line}"),
            env!("CARGO_BIN_EXE_gristmill"),
        ]);
        let ran = crate::common::finished(command.output()).code(1).complains("too many for");
        assert!(ran.stdout.is_empty(), "{line}: {}", ran.stdout);
    }
}

/// How often, and of how many, is at least once.
#[test]
fn nothing_is_no_number_of_times() {
    let mut lines = vec!["validate --format i2_s --rounds 0"];
    if cfg!(feature = "ops") {
        lines.extend(["history --newest 0", "top tests/data/operations/monitor.json --count 0"]);
    }
    for line in lines {
        gristmill(words(line)).code(1).complains("invalid value");
    }
    // Processors that are not there are an error with any number of threads.
    for line in
        ["bench --quick --format i2_s --cpus 1023", "bench --quick --format i2_s --cpus 1023 --threads 1"]
    {
        gristmill(words(line)).code(1).complains("error");
    }
}

/// A limit of the process counts, too: without it the system would say yes to more.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_process_counts() {
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        "ulimit -v 1000000; exec \"$0\" run --m 20000 --threads 1",
        env!("CARGO_BIN_EXE_gristmill"),
    ]);
    crate::common::finished(command.output()).code(1).complains("are available");
    // Near what is needed it is an answer, too, and no end of the program.
    for kilobytes in (80_000..160_000).step_by(4_000) {
        let mut command = std::process::Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -v {kilobytes}; exec \"$0\" run --m 1 --threads 1"),
            env!("CARGO_BIN_EXE_gristmill"),
        ]);
        let ran = crate::common::finished(command.output());
        assert!(
            ran.code == 0 || ran.stderr.contains("besides 32.0 MiB for the program itself"),
            "{}",
            ran.stderr
        );
    }
}

/// Rows without columns, and columns without rows, take no bytes of a file, so a file of a hundred bytes may declare any number of them.
/// What goes over them would not end; 20 s of processor time are far more than anything here takes.
#[cfg(target_os = "linux")]
#[test]
fn tensors_without_elements_take_no_time() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("empty.gguf");
    let mut writer = GgufWriter::new();
    let mut names = Vec::new();
    for (type_name, type_id) in [("f32", 0), ("bf16", 30), ("q4_0", 2), ("q6_k", 14), ("pq2_0", 142)] {
        for dims in [&[1 << 40, 0][..], &[0, 1 << 40], &[256, 0, 1 << 40], &[0, 1 << 20, 1 << 20]] {
            let name = format!("{type_name}.{}", names.len());
            writer.tensor(&name, dims, type_id, 0)?;
            names.push(name);
        }
    }
    let mut stream = writer.write_to(Vec::new())?;
    names.iter().try_for_each(|name| stream.data(name, &[]))?;
    std::fs::write(&path, stream.finish()?)?;
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", "ulimit -t 20; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gristmill")])
            .args(arguments);
        crate::common::finished(command.output())
    };
    run(&["inspect", text(&path)]).code(0).says("20 tensors, 0 B");
    run(&["plan", text(&path)]).code(0);
    run(&["run", text(&path)]).code(1).complains("of memory");
    let out = folder.path().join("out.gguf");
    run(&["quantize", "--format", "q4_0", text(&path), "--output", text(&out)])
        .code(1)
        .complains("holds nothing to quantize");
    for name in &names {
        run(&["inspect", text(&path), name]).code(0).says("0 of 0");
    }
    Ok(())
}
