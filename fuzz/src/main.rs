//! Builds the fuzz targets with coverage for libFuzzer, gives each its seeds, and runs it for a stated time, all with
//! the stable toolchain. `cargo run --release -- --help`.

mod options;
mod report;

use options::{Options, USAGE};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What an input may take: longer, or more, is a find.
const SECONDS_PER_INPUT: u64 = 60;
const MEGABYTES: u64 = 2048;
/// Of addresses, so that memory that is asked for and never written to counts too.
const ADDRESSES: u64 = 8192;
/// Longest input, in bytes: a few times the largest seed that matters.
const LONGEST: usize = 1 << 16;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("error: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match fuzz(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing was found.
fn fuzz(options: &Options) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs = build(root, options)?;
    let scratch = Scratch::new()?;
    if let Some(file) = &options.replay {
        let target = &options.targets[0];
        let status = limited(&programs.join(target), options, &scratch)
            .arg(file)
            .status()
            .map_err(|e| e.to_string())?;
        return Ok(status.success());
    }
    let seed = options.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_secs() as u32 | 1)
    });
    let mut clean = true;
    for target in &options.targets {
        let corpus = root.join("target/corpus").join(target);
        let findings = root.join("target/findings").join(target);
        let seeds = root.join("target/seeds").join(target);
        for folder in [&corpus, &findings, &seeds] {
            std::fs::create_dir_all(folder).map_err(|e| format!("can't make {}: {e}", folder.display()))?;
        }
        let words = root.join("target/seeds").join(format!("{target}.dict"));
        let program = programs.join(target);
        let wrote = Command::new(&program)
            .env("GRISTMILL_FUZZ_SEEDS", &seeds)
            .env("GRISTMILL_FUZZ_WORDS", &words)
            .output()
            .map_err(|e| e.to_string())?;
        if !wrote.status.success() {
            return Err(format!("{target}: no seeds: {}", String::from_utf8_lossy(&wrote.stderr)));
        }
        let mut command = limited(&program, options, &scratch);
        command
            .arg(&corpus)
            .arg(&seeds)
            .arg(format!("-max_total_time={}", options.seconds))
            .arg(format!("-seed={seed}"))
            .arg(format!("-timeout={SECONDS_PER_INPUT}"))
            .arg(format!("-report_slow_units={SECONDS_PER_INPUT}"))
            .arg(format!("-rss_limit_mb={MEGABYTES}"))
            .arg(format!("-max_len={LONGEST}"))
            .arg(format!("-dict={}", words.display()))
            .arg(format!("-artifact_prefix={}/", findings.display()))
            .arg("-print_final_stats=1")
            .arg("-verbosity=1");
        let output = command.stdout(Stdio::piped()).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr);
        println!("{target}: {}, seed {seed}", report::summary(&text));
        if !output.status.success() {
            clean = false;
            println!("{target}: FOUND SOMETHING ({})", output.status);
            println!("{}", report::last_words(&text));
            match report::artifact(&text) {
                Some(file) => println!(
                    "{target}: again with\n    cargo run --release --manifest-path fuzz/Cargo.toml -- {target} --replay {file}"
                ),
                None => println!("{target}: it left no input; the same run again: --seed {seed}"),
            }
        }
    }
    Ok(clean)
}

/// Compiles the targets and says where they are.
fn build(root: &Path, options: &Options) -> Result<PathBuf, String> {
    let host = host()?;
    // What cargo-fuzz passes: the compiler's own instrumentation needs no nightly toolchain.
    let mut flags = vec!["--cfg", "fuzzing", "-Cpasses=sancov-module"];
    flags.extend([
        "-Cllvm-args=-sanitizer-coverage-level=4",
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Cllvm-args=-sanitizer-coverage-trace-compares",
    ]);
    let mut folder = root.join("target/instrumented");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if options.sanitize {
        flags.push("-Zsanitizer=address");
        folder = root.join("target/sanitized");
        // The sanitizer's runtime comes with the stable toolchain; only the flag does not.
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command
        .args(["build", "--release", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        // With a target, build scripts and macros are built without these flags.
        .args(["--target", &host])
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env_remove("RUSTFLAGS");
    if !options.need_command() {
        command.arg("--no-default-features");
    }
    for target in &options.targets {
        command.args(["--bin", target]);
    }
    let status = command.status().map_err(|e| format!("can't run cargo: {e}"))?;
    if !status.success() {
        return Err("the targets can't be built (libFuzzer needs a C++ compiler)".to_owned());
    }
    Ok(folder.join(host).join("release"))
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("can't run rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc names no host".to_owned())
}

/// A program that the system refuses memory beyond a limit. (The address sanitizer reserves terabytes of addresses.)
fn limited(program: &Path, options: &Options, scratch: &Scratch) -> Command {
    let mut command = if options.sanitize || !cfg!(unix) {
        Command::new(program)
    } else {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -v {}; exec \"$0\" \"$@\"", ADDRESSES * 1024)).arg(program);
        shell
    };
    command.env("GRISTMILL_FUZZ_SCRATCH", &scratch.0);
    command
}

/// A folder for the files of targets, in memory where there is such a place. However a target ends, it goes with the driver.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, String> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let folder = folder.join(format!("gristmill-fuzz-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|e| format!("can't make {}: {e}", folder.display()))?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("can't remove {}: {error}", self.0.display());
        }
    }
}
