//! Images from CUDA sources: one for each unit and architecture, in parallel, each kept in a cache by what it is made
//! from.

mod budget;
mod image;
mod sass;
mod usage;

pub use budget::{Budget, Excess, excesses};
pub use image::{Folder, Image};
pub use sass::{Instructions, cuobjdump, disassemble, parse_sass};
pub use usage::{Usage, parse_cuobjdump, parse_ptxas};

use super::arch::{compute, sm};
use super::toolchain::{Kind, Nvcc, Nvrtc, Scratch, Toolchain, both};
use gristmill_spec::vocab::CudaArch;
use image::{Key, cached, target, to_bytes};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What every image is compiled with: f32 arithmetic as on the CPU, each operation rounded once.
pub const FLAGS: &[&str] =
    &["-O3", "-std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false"];

/// The same for NVRTC, which always optimizes.
const NVRTC_FLAGS: &[&str] =
    &["--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"];

/// PTX versions that are tried for the forward-compatible image, oldest first: those of CUDA 11.0, 11.4, 11.8, 12.0,
/// 12.3, 12.6, 12.8. The older the version, the older the driver that takes it.
const PTX_VERSIONS: &[(u16, u16)] = &[(7, 0), (7, 4), (7, 8), (8, 0), (8, 3), (8, 5), (8, 7)];

/// One source, self-contained: what it includes is pasted in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Short name for messages and files: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// CUDA C++.
    pub text: String,
    /// Architectures of machine code.
    pub archs: Vec<CudaArch>,
    /// Architecture of the PTX, if there is to be one.
    pub ptx: Option<CudaArch>,
}

impl Unit {
    /// A unit for those of `archs` that have at least compute capability `min_cc`, with PTX for the lowest of them
    /// that is not bound to one device.
    pub fn new(
        name: impl Into<String>,
        text: impl Into<String>,
        min_cc: (u8, u8),
        archs: &[CudaArch],
    ) -> Unit {
        let mut archs: Vec<CudaArch> = archs.iter().copied().filter(|arch| arch.cc() >= min_cc).collect();
        archs.sort_unstable();
        archs.dedup();
        let ptx = archs.iter().copied().find(|arch| !arch.specific);
        Unit { name: name.into(), text: text.into(), archs, ptx }
    }
}

/// What a compilation made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// Images in the order of the units; of one unit by architecture, PTX last.
    pub images: Vec<Image>,
    /// Images that could not be made.
    pub failures: Vec<Failure>,
    /// How many were compiled now and not found in the cache.
    pub compiled: usize,
}

/// An image that could not be made. The others are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The unit.
    pub unit: String,
    /// The architecture.
    pub arch: CudaArch,
    /// Whether it was PTX.
    pub ptx: bool,
    /// What the compiler said, or why it was not asked.
    pub stderr: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unit `{}` for {}: {}", self.unit, target(self.arch, self.ptx), self.stderr.trim())
    }
}

/// What stops a compilation as a whole.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The cache can't be used.
    #[error("{}: {source}", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A name that is no file name.
    #[error("`{name}` can't name a unit: only letters, digits, `_`, `-` and `.` are allowed, a letter first")]
    Name {
        /// The name.
        name: String,
    },
    /// A tool that looks into images failed.
    #[error("{}: {reason}", path.display())]
    Tool {
        /// The tool.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// Compiles every unit for each of its architectures, `jobs` at a time. Images that `cache` holds already are taken
/// from there; new ones are put there. Several builds may share a cache.
///
/// # Errors
///
/// A cache that can't be written, or a unit with a bad name. What the compiler refuses is in [`Compiled::failures`].
pub fn compile(
    units: &[Unit],
    toolchain: &Toolchain,
    cache: &Path,
    jobs: usize,
) -> Result<Compiled, CompileError> {
    for unit in units {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !unit.name.starts_with(|c: char| c.is_ascii_alphabetic()) || !unit.name.chars().all(allowed) {
            return Err(CompileError::Name { name: unit.name.clone() });
        }
    }
    std::fs::create_dir_all(cache)
        .map_err(|source| CompileError::Cache { path: cache.to_path_buf(), source })?;
    let compiler = toolchain.identity();
    let flags = match toolchain {
        Toolchain::Nvcc(Nvcc { library: None, .. }) | Toolchain::Images(_) => FLAGS,
        Toolchain::Nvcc(Nvcc { library: Some(_), .. }) | Toolchain::Nvrtc(_) => NVRTC_FLAGS,
    }
    .join(" ");
    let mut keys = Vec::new();
    for unit in units {
        let machine = unit.archs.iter().map(|&arch| (arch, false));
        for (arch, ptx) in machine.chain(unit.ptx.map(|arch| (arch, true))) {
            keys.push(Key {
                unit: &unit.name,
                text: &unit.text,
                arch,
                ptx,
                flags: &flags,
                compiler: &compiler,
            });
        }
    }
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Result<Outcome, CompileError>>>> =
        Mutex::new(std::iter::repeat_with(|| None).take(keys.len()).collect());
    let work = || {
        while let Some((at, key)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            keys.get(at).map(|key| (at, key))
        } {
            let outcome = one(key, toolchain, cache);
            // A panic elsewhere leaves the list usable.
            done.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs.clamp(1, keys.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut compiled = Compiled::default();
    for outcome in done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten() {
        match outcome? {
            Outcome::Cached(image) => compiled.images.push(image),
            Outcome::Compiled(image) => {
                compiled.compiled += 1;
                compiled.images.push(image);
            }
            Outcome::Failed(failure) => compiled.failures.push(failure),
        }
    }
    Ok(compiled)
}

/// How many compilations run at once in a build script: what cargo was given, else the number of processors.
pub fn jobs() -> usize {
    std::env::var("NUM_JOBS")
        .ok()
        .and_then(|value| value.parse().ok())
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1)
}

enum Outcome {
    Cached(Image),
    Compiled(Image),
    Failed(Failure),
}

/// Makes one image.
fn one(key: &Key<'_>, toolchain: &Toolchain, cache: &Path) -> Result<Outcome, CompileError> {
    let failed = |stderr: String| {
        Ok(Outcome::Failed(Failure { unit: key.unit.to_string(), arch: key.arch, ptx: key.ptx, stderr }))
    };
    if let Toolchain::Images(folder) = toolchain {
        return match folder.image(key) {
            Ok(image) => Ok(Outcome::Cached(image)),
            Err(reason) => failed(format!("{}: {reason}", folder.path().display())),
        };
    }
    if let Some(image) = cached(cache, key) {
        return Ok(Outcome::Cached(image));
    }
    if !toolchain.supports(key.arch) {
        let listed: Vec<String> = toolchain.archs().iter().map(ToString::to_string).collect();
        return failed(format!("{toolchain} builds for {}, not for this", listed.join(", ")));
    }
    let made = match toolchain {
        Toolchain::Nvcc(nvcc) => with_nvcc(nvcc, key, cache)?,
        Toolchain::Nvrtc(nvrtc) => with_nvrtc(nvrtc, key),
        Toolchain::Images(_) => return failed("no compiler".to_string()),
    };
    let (mut bytes, log) = match made {
        Ok(made) => made,
        Err(stderr) => return failed(stderr),
    };
    if key.ptx {
        // The driver reads PTX as a C string.
        bytes.push(0);
    }
    let image = Image {
        unit: key.unit.to_string(),
        arch: key.arch,
        ptx: key.ptx,
        bytes,
        usage: if key.ptx { Vec::new() } else { parse_ptxas(&log) },
        warnings: warnings(&log),
        compiler: key.compiler.to_string(),
    };
    let path = cache.join(key.file_name());
    write_atomically(&path, &to_bytes(key, &image)).map_err(|source| CompileError::Cache { path, source })?;
    Ok(Outcome::Compiled(image))
}

/// An image with what the compiler said, or why there is none.
type Made = Result<(Vec<u8>, String), String>;

fn with_nvcc(nvcc: &Nvcc, key: &Key<'_>, cache: &Path) -> Result<Made, CompileError> {
    if let Some(library) = &nvcc.library {
        return match with_nvrtc(library, key) {
            Ok((ptx, log)) if key.ptx => Ok(lowered_by(nvcc, key, cache, &ptx)?.map(|bytes| (bytes, log))),
            made => Ok(made),
        };
    }
    // A name without folders: it stands in the compiler's messages, and an image must not depend on where it was made.
    let (scratch, source) = (scratch(cache)?, format!("{}.cu", key.unit));
    std::fs::write(scratch.path.join(&source), key.text)
        .map_err(|source| CompileError::Cache { path: scratch.path.clone(), source })?;
    let mut command = nvcc.command(&nvcc.path);
    command.current_dir(&scratch.path).args(FLAGS);
    if key.ptx {
        command.arg(format!("-gencode=arch={0},code={0}", compute(key.arch))).arg("-ptx");
    } else {
        command.arg(format!("-gencode=arch={},code={}", compute(key.arch), sm(key.arch)));
        command.args(["-cubin", "-Xptxas", "-v"]);
    }
    let output = match command.args(["-o", "image", &source]).output() {
        Ok(output) => output,
        Err(error) => return Ok(Err(format!("{} can't be run: {error}", nvcc.path.display()))),
    };
    let log = both(&output);
    if !output.status.success() {
        return Ok(Err(log));
    }
    let bytes = match std::fs::read(scratch.path.join("image")) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(format!("nvcc reported success but left no image: {error}\n{log}"))),
    };
    if key.ptx {
        return Ok(lowered_by(nvcc, key, cache, &bytes)?.map(|bytes| (bytes, log)));
    }
    Ok(Ok((bytes, log)))
}

fn scratch(cache: &Path) -> Result<Scratch, CompileError> {
    Scratch::new(Some(cache)).map_err(|source| CompileError::Cache { path: cache.to_path_buf(), source })
}

/// PTX with the oldest `.version` that the toolkit's assembler takes.
fn lowered_by(
    nvcc: &Nvcc,
    key: &Key<'_>,
    cache: &Path,
    ptx: &[u8],
) -> Result<Result<Vec<u8>, String>, CompileError> {
    let scratch = scratch(cache)?;
    Ok(lowered(ptx, |text| {
        std::fs::write(scratch.path.join("trial.ptx"), text).is_ok()
            && nvcc
                .command(&nvcc.ptxas)
                .current_dir(&scratch.path)
                // Whether it assembles does not depend on how well.
                .args(["-O0", &format!("-arch={}", sm(key.arch)), "trial.ptx", "-o", "trial.cubin"])
                .output()
                .is_ok_and(|output| output.status.success())
    }))
}

fn with_nvrtc(nvrtc: &Nvrtc, key: &Key<'_>) -> Made {
    let kind = if key.ptx { Kind::Ptx } else { Kind::Cubin };
    let name = format!("{}.cu", key.unit);
    let made = nvrtc.compile(&name, key.text, key.arch, kind, NVRTC_FLAGS);
    // Without nvcc, PTX keeps its version: there is no assembler to try an older one with.
    made.image.map(|bytes| (bytes, made.log.clone())).ok_or(made.log)
}

/// PTX with the oldest `.version` that `assembles` takes, or as it is.
fn lowered(ptx: &[u8], assembles: impl Fn(&str) -> bool) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(ptx).map_err(|_| "the PTX is no text".to_string())?;
    let Some((start, end, version)) = ptx_version(text) else {
        return Err("the PTX has no .version".to_string());
    };
    for &(major, minor) in PTX_VERSIONS.iter().take_while(|older| **older < version) {
        let older = format!("{}{major}.{minor}{}", &text[..start], &text[end..]);
        if assembles(&older) {
            return Ok(older.into_bytes());
        }
    }
    Ok(ptx.to_vec())
}

/// Where the number of `.version` stands, and what it is.
fn ptx_version(text: &str) -> Option<(usize, usize, (u16, u16))> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if let Some(number) = line.strip_prefix(".version ") {
            let number = number.trim();
            let (major, minor) = number.split_once('.')?;
            let start = at + ".version ".len();
            return Some((start, start + number.len(), (major.parse().ok()?, minor.parse().ok()?)));
        }
        at += line.len();
    }
    None
}

/// The lines of a log that warn, or say that instructions which should overlap don't.
fn warnings(log: &str) -> Vec<String> {
    let warns = |line: &str| line.to_ascii_lowercase().contains("warning") && !line.starts_with("Remark:");
    log.lines()
        .map(str::trim)
        .filter(|line| warns(line) || line.contains("Potential Performance Loss"))
        .map(str::to_string)
        .collect()
}

/// Writes beside the file and renames, so that nobody ever reads a half of it.
fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{count}.tmp", std::process::id()));
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(&temporary, path).inspect_err(|_| {
        // The error that is returned matters more.
        let _ = std::fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_version_that_assembles() {
        let ptx = "//\n// .version 1.0 in a comment\n.version 9.0\n.target sm_80\n.version_like x\n";
        let tried = std::cell::RefCell::new(Vec::new());
        let low = lowered(ptx.as_bytes(), |text| {
            let version = text.lines().find(|line| line.starts_with(".version ")).unwrap().to_string();
            tried.borrow_mut().push(version.clone());
            version == ".version 7.8"
        });
        assert_eq!(low.unwrap(), ptx.replace(".version 9.0", ".version 7.8").into_bytes());
        assert_eq!(*tried.borrow(), [".version 7.0", ".version 7.4", ".version 7.8"]);
        assert_eq!(lowered(ptx.as_bytes(), |_| false).unwrap(), ptx.as_bytes());
        // Never raised.
        let old = ".version 7.4\n";
        assert_eq!(lowered(old.as_bytes(), |text| text.contains("8.")).unwrap(), old.as_bytes());
        assert!(lowered(b"nothing", |_| true).is_err());
    }

    #[test]
    fn a_unit_takes_the_architectures_that_have_its_instructions() {
        let arch = |name: &str| CudaArch::from_name(name).unwrap();
        let unit = Unit::new("u", "", (8, 0), &[arch("90a"), arch("75"), arch("86"), arch("80")]);
        assert_eq!(unit.archs, [arch("80"), arch("86"), arch("90a")]);
        assert_eq!(unit.ptx, Some(arch("80")));
        assert_eq!(Unit::new("u", "", (9, 0), &[arch("90a")]).ptx, None);
    }
}
