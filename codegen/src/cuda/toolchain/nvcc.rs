//! An nvcc, with the parts that it calls.

use super::env::{Env, exe, is_program};
use super::nvrtc::Nvrtc;
use super::places;
use super::problem::{Problem, TRIAL, acceptable, words};
use super::version::Version;
use crate::cuda::arch::{compute, sm};
use crate::hash::hash;
use gristmill_spec::vocab::CudaArch;
use std::path::{Path, PathBuf};
use std::process::Output;

/// An nvcc that compiled an empty kernel.
#[derive(Clone, Debug)]
pub struct Nvcc {
    /// The compiler driver.
    pub path: PathBuf,
    /// Its assembler.
    pub ptxas: PathBuf,
    /// Its version.
    pub version: Version,
    /// Version of the compiler proper.
    pub cicc: Version,
    /// Version of the assembler.
    pub assembler: Version,
    /// What it can build, ascending.
    pub archs: Vec<CudaArch>,
    /// Flags that the environment adds to every call (`NVCC_PREPEND_FLAGS`, `NVCC_APPEND_FLAGS`).
    pub environment_flags: String,
    /// The same compiler as a library, where the toolkit has it: one process for all images, where nvcc starts three
    /// for each, and no headers that every unit reads again.
    pub library: Option<Nvrtc>,
    pub(crate) env: Env,
}

impl Nvcc {
    /// Examines the nvcc at `path`: versions of all parts, architectures, and one compilation of an empty
    /// kernel, whose success is remembered in `memo` for as long as the parts stay what they are.
    pub fn examine(path: &Path, env: &Env, memo: Option<&Path>) -> Result<Nvcc, Problem> {
        if !is_program(path) {
            return Err(Problem::NoProgram(path.to_path_buf()));
        }
        let version = version_of(path, env)?;
        acceptable("nvcc", version)?;
        // Distributions put links on the path; the parts lie beside what they point to.
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let folder = real.parent().unwrap_or(Path::new(""));
        let ptxas = Some(folder.join(exe("ptxas")))
            .filter(|path| is_program(path))
            .or_else(|| env.on_path("ptxas"))
            .ok_or_else(|| Problem::Incomplete { tool: "ptxas", nvcc: path.to_path_buf() })?;
        let assembler = version_of(&ptxas, env)?;
        acceptable("ptxas", assembler)?;
        if !version.same_toolkit(assembler) {
            return Err(Problem::Mixed { nvcc: version, tool: "ptxas", version: assembler });
        }
        let archs = architectures(&run(path, env, &["--list-gpu-code"])?);
        let mut flags = Vec::new();
        for name in ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
            flags.extend(env.get(name).map(|value| format!("{name}={}", value.to_string_lossy())));
        }
        let mut nvcc = Nvcc {
            path: path.to_path_buf(),
            ptxas,
            version,
            cicc: version,
            assembler,
            archs,
            environment_flags: flags.join(" "),
            library: None,
            env: env.clone(),
        };
        let first = nvcc.archs.first().copied().ok_or_else(|| Problem::NoVersion {
            path: path.to_path_buf(),
            output: "it lists no architecture".to_string(),
        })?;
        nvcc.cicc = nvcc.trial(first, folder, memo)?;
        nvcc.library = nvcc.its_library(folder);
        Ok(nvcc)
    }

    /// The library of the same toolkit, if it is of exactly this version. Flags of the environment are for nvcc; where
    /// there are any, nvcc it is.
    fn its_library(&self, folder: &Path) -> Option<Nvrtc> {
        if !self.environment_flags.is_empty() || self.cicc != self.assembler {
            return None;
        }
        let beside = places::nvrtc_beside(folder);
        beside.iter().filter_map(|path| Nvrtc::examine(path).ok()).find(|nvrtc| nvrtc.version == self.cicc)
    }

    /// Compiles an empty kernel to PTX and assembles it; returns the version of the compiler proper, which tells
    /// it in no other way.
    fn trial(&self, arch: CudaArch, folder: &Path, memo: Option<&Path>) -> Result<Version, Problem> {
        let remembered = memo.map(|memo| memo.join(format!("works-{:016x}", self.fingerprint(folder))));
        if let Some(text) = remembered.as_ref().and_then(|path| std::fs::read_to_string(path).ok())
            && let Some(cicc) = Version::find(&text)
        {
            return Ok(cicc);
        }
        let failed = |reason: String| Problem::Trial {
            tool: "nvcc",
            version: self.version.to_string(),
            words: reason,
        };
        let scratch = Scratch::new(memo).map_err(|error| failed(error.to_string()))?;
        std::fs::write(scratch.path.join("trial.cu"), TRIAL).map_err(|error| failed(error.to_string()))?;
        let gencode = format!("-gencode=arch={0},code={0}", compute(arch));
        let output = self
            .command(&self.path)
            .current_dir(&scratch.path)
            .args(["-ptx", &gencode, "-o", "trial.ptx", "trial.cu"])
            .output()
            .map_err(|error| Problem::NotRun { path: self.path.clone(), reason: error.to_string() })?;
        if !output.status.success() {
            return Err(self.classify(&both(&output)));
        }
        let ptx = std::fs::read_to_string(scratch.path.join("trial.ptx"))
            .map_err(|error| failed(format!("it wrote no PTX: {error}")))?;
        let cicc = Version::find(&ptx).ok_or_else(|| failed("its PTX names no version".to_string()))?;
        acceptable("cicc", cicc)?;
        if !self.version.same_toolkit(cicc) {
            return Err(Problem::Mixed { nvcc: self.version, tool: "cicc", version: cicc });
        }
        let output = self
            .command(&self.ptxas)
            .current_dir(&scratch.path)
            .args([&format!("-arch={}", sm(arch)), "trial.ptx", "-o", "trial.cubin"])
            .output()
            .map_err(|error| Problem::NotRun { path: self.ptxas.clone(), reason: error.to_string() })?;
        if !output.status.success() {
            return Err(failed(words(&both(&output))));
        }
        if let Some(path) = remembered {
            // Worth 0.3 s a build, not an error if it can't be kept.
            let _ = std::fs::write(path, format!("V{cicc}\n"));
        }
        Ok(cicc)
    }

    /// What a failed compilation of an empty kernel means.
    fn classify(&self, output: &str) -> Problem {
        let line = |needle: &str| {
            output
                .lines()
                .find(|line| line.contains(needle))
                .map(|line| words(line.split(';').next().unwrap_or(line)))
        };
        if let Some(words) = line("unsupported GNU version").or_else(|| line("unsupported clang version")) {
            return Problem::HostCompilerTooNew { version: self.version, words };
        }
        if output.contains("preprocess host compiler properties") || output.contains("Cannot find compiler") {
            return Problem::NoHostCompiler { version: self.version, words: words(output) };
        }
        if output.contains("cicc") && output.contains("not found") {
            return Problem::Incomplete { tool: "cicc", nvcc: self.path.clone() };
        }
        Problem::Trial { tool: "nvcc", version: self.version.to_string(), words: words(output) }
    }

    /// Identifies the files that a trial tried, and where a host compiler is looked for.
    fn fingerprint(&self, folder: &Path) -> u64 {
        let mut text = format!("{}|{}", self.version, self.environment_flags);
        if let Some(path) = self.env.get("PATH") {
            text.push_str(&path.to_string_lossy());
        }
        let cicc = folder.join("../nvvm/bin").join(exe("cicc"));
        for path in [&self.path, &self.ptxas, &cicc] {
            text.push_str(&format!("|{}", path.display()));
            if let Ok(metadata) = path.metadata() {
                let time =
                    metadata.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
                text.push_str(&format!("|{}|{:?}", metadata.len(), time));
            }
        }
        hash([text.as_str()])
    }

    pub(crate) fn command(&self, program: &Path) -> std::process::Command {
        self.env.command(program)
    }
}

/// A folder that is removed when it goes out of scope.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    /// In `parent`, or where the system keeps temporary files.
    pub(crate) fn new(parent: Option<&Path>) -> std::io::Result<Scratch> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        std::fs::create_dir_all(&parent)?;
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("gristmill-{}-{count}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Scratch { path }),
                // Left behind by a process of the same number.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that can't be removed harms nobody.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What a program printed, errors first.
pub(crate) fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout))
}

fn run(path: &Path, env: &Env, arguments: &[&str]) -> Result<String, Problem> {
    env.command(path)
        .args(arguments)
        .output()
        .map(|output| both(&output))
        .map_err(|error| Problem::NotRun { path: path.to_path_buf(), reason: error.to_string() })
}

fn version_of(path: &Path, env: &Env) -> Result<Version, Problem> {
    let text = run(path, env, &["--version"])?;
    Version::find(&text).ok_or_else(|| Problem::NoVersion { path: path.to_path_buf(), output: words(&text) })
}

/// The architectures in a list of `sm_75`.
fn architectures(text: &str) -> Vec<CudaArch> {
    let mut archs: Vec<CudaArch> = text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("sm_"))
        .filter_map(CudaArch::from_name)
        .collect();
    archs.sort_unstable();
    archs.dedup();
    archs
}
