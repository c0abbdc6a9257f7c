//! CUDA in a build script: units, a toolchain, images, and files that generated code includes.

use super::compile::{
    Budget, CompileError, Excess, Failure, Image, compile, content, distinct, excesses, write_atomically,
};
use super::packed::{needed_driver, pack};
use super::parallel::in_parallel;
use super::settings::BadSettings;
use super::toolchain::{NoNative, NoToolchain};
use super::variables::VARIABLES;
use super::{Emitted, Env, Settings, Unit, Use, compile, discover, emit};
use crate::Error;
use crate::options::{CudaImageFile, CudaImages};
use crate::text::joined;
use gristmill_spec::model::SpecSet;
use gristmill_spec::vocab::CudaArch;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What stops a build that asks for CUDA.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A variable of the environment.
    #[error(transparent)]
    Settings(#[from] BadSettings),
    /// `GRISTMILL_CUDA=require` without a compiler.
    #[error(transparent)]
    NoToolchain(#[from] NoToolchain),
    /// `GRISTMILL_CUDA_ARCHS=native` without a device.
    #[error(transparent)]
    NoNative(#[from] NoNative),
    /// The cache, or a tool.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// `GRISTMILL_CUDA=require`, and an image could not be made.
    #[error("GRISTMILL_CUDA=require, but {} can't be built:\n{}", counted(.0.len()), joined(.0, "\n"))]
    Failed(Vec<Failure>),
    /// `GRISTMILL_CUDA=require`, and an image uses more than its spec allows.
    #[error("{}", joined(.0, "\n"))]
    Excess(Vec<Excess>),
    /// A file for the generated code.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No exact plan.
    #[error("{}", joined(.0, "\n"))]
    Plans(Vec<Error>),
}

fn counted(images: usize) -> String {
    if images == 1 { "an image".to_string() } else { format!("{images} images") }
}

/// What a build made.
#[derive(Debug)]
pub struct Built {
    /// For the registry.
    pub images: CudaImages,
    /// For `cargo::warning`.
    pub warnings: Vec<String>,
    /// Existing files whose change makes another build worthwhile.
    pub watched: Vec<PathBuf>,
}

/// Variables that a build script watches.
pub fn variables() -> &'static [&'static str] {
    VARIABLES
}

/// Finds a toolchain, compiles the units of `set` and writes the images under `out`. Where there is no toolchain, or
/// an image can't be made, that is in what is returned, and one warning says so; only `GRISTMILL_CUDA=require` makes
/// an error of it.
///
/// # Errors
/// See [`CudaError`].
pub fn build(set: &SpecSet, out: &Path, env: &Env, jobs: usize) -> Result<Built, CudaError> {
    let settings = Settings::read(env)?;
    let nothing = |images, warnings| Built { images, warnings, watched: Vec::new() };
    if settings.use_ == Use::Off {
        return Ok(nothing(CudaImages::Off, Vec::new()));
    }
    let emitted = emit(set).map_err(CudaError::Plans)?;
    let cache = settings.cache.clone().unwrap_or_else(|| default_cache(out));
    let discovery = discover(env, Some(&cache));
    let toolchain = match (&discovery.found, settings.use_) {
        (Some(toolchain), _) => toolchain,
        (None, Use::Require) => discovery.require()?,
        (None, Use::Auto | Use::Off) => {
            let looked = discovery.looked.iter().map(ToString::to_string).collect();
            return Ok(nothing(CudaImages::NoToolchain { looked }, vec![discovery.warning()]));
        }
    };
    let architectures = toolchain.archs_for(&settings.archs, &set.cuda.architectures)?;
    // A compiler that is too old for an architecture leaves out what only that one has.
    let specific: Vec<CudaArch> =
        set.cuda.specific.iter().copied().filter(|arch| toolchain.supports(*arch)).collect();
    let units = units(&emitted.units, set, &architectures, &specific);
    let compiled = compile(&units, toolchain, &cache, jobs)?;
    let budgets = budgets(&emitted);
    let over = excesses(&compiled.images, |unit| {
        budgets.iter().find(|(name, _)| name == unit).map_or(&[][..], |(_, budgets)| budgets)
    });
    if settings.use_ == Use::Require {
        if !compiled.failures.is_empty() {
            return Err(CudaError::Failed(compiled.failures));
        }
        if !over.is_empty() {
            return Err(CudaError::Excess(over));
        }
    }
    let mut warnings = Vec::new();
    let mut failures: Vec<(String, CudaArch, String)> = Vec::new();
    for failure in &compiled.failures {
        warnings.push(format!("left out: {}", first_line(&failure.to_string())));
        failures.push((failure.unit.clone(), failure.arch, failure.stderr.clone()));
    }
    let mut kept = Vec::new();
    for image in &compiled.images {
        let target = image.target();
        let broken = over.iter().find(|excess| {
            excess.target == target && !image.ptx && has_kernel(&emitted.units, &image.unit, &excess.kernel)
        });
        if let Some(excess) = broken {
            warnings.push(format!("left out: {excess}"));
            failures.push((image.unit.clone(), image.arch, excess.to_string()));
            continue;
        }
        kept.push(image);
    }
    let images = write(&out.join("cuda"), &without_repeats(kept), jobs)?;
    let images = CudaImages::Built { compiler: toolchain.identity(), architectures, images, failures };
    Ok(Built { images, warnings, watched: discovery.watched() })
}

/// Where images are kept if nobody says: in the folder of all that cargo builds, so that other profiles and features find them; else beside
/// the other files of this build. cargo keeps what it knows of rustc in that folder, and marks it as a cache where it made it.
fn default_cache(out: &Path) -> PathBuf {
    let marks = ["CACHEDIR.TAG", ".rustc_info.json"];
    let target = out.ancestors().find(|folder| marks.iter().any(|mark| folder.join(mark).is_file()));
    target.map_or_else(|| out.join("cuda-cache"), |target| target.join("gristmill-cuda-cache"))
}

/// What is compiled of a set's units for `architectures`. Where those are the spec's own, the PTX is the spec's too, and a unit that
/// only some architectures have is compiled for those that are in `specific` as well; it brings PTX of them, for drivers that are
/// older than the compiler.
pub fn units(
    units: &[Unit],
    set: &SpecSet,
    architectures: &[CudaArch],
    specific: &[CudaArch],
) -> Vec<compile::Unit> {
    let default = architectures == set.cuda.architectures;
    let each = units.iter().map(|unit| {
        let only = specific.iter().copied().filter(|arch| default && unit.only_on.contains(arch));
        let mut wanted = unit.compiled_for(&architectures.iter().copied().chain(only).collect::<Vec<_>>());
        if default {
            wanted.ptx = match unit.only_on {
                [_, ..] if !set.cuda.ptx.is_empty() => wanted.archs.clone(),
                [_, ..] => Vec::new(),
                [] => {
                    let fits = set.cuda.ptx.iter().copied().filter(|ptx| ptx.cc() >= unit.min_cc);
                    distinct(&unit.text, &fits.collect::<Vec<_>>())
                }
            };
        }
        wanted
    });
    each.collect()
}

/// Images but PTX that says what the PTX of an older architecture says, which newer devices compile as well. Those of a unit follow
/// each other by architecture.
fn without_repeats(images: Vec<&Image>) -> Vec<&Image> {
    let mut kept: Vec<&Image> = Vec::with_capacity(images.len());
    for image in images {
        let repeats = kept.last().is_some_and(|older| {
            older.unit == image.unit
                && older.ptx
                && image.ptx
                && !older.arch.specific
                && code_of(&older.bytes).eq(code_of(&image.bytes))
        });
        if !repeats {
            kept.push(image);
        }
    }
    kept
}

/// Lines of PTX without those that name a version or an architecture, and without comments.
fn code_of(ptx: &[u8]) -> impl Iterator<Item = &[u8]> {
    let named: [&[u8]; 3] = [b".version", b".target", b"//"];
    ptx.split(|byte| *byte == b'\n').filter(move |line| !named.iter().any(|word| line.starts_with(word)))
}

fn has_kernel(units: &[Unit], unit: &str, kernel: &str) -> bool {
    units.iter().any(|u| u.name == unit && u.kernels.iter().any(|(name, _)| name == kernel))
}

/// What each unit's kernels may use.
pub fn budgets(emitted: &Emitted) -> Vec<(String, Vec<Budget>)> {
    emitted
        .units
        .iter()
        .map(|unit| {
            let source = emitted
                .listed
                .iter()
                .find(|kernel| kernel.unit == unit.name)
                .map_or_else(String::new, |kernel| kernel.source.clone());
            let budgets = unit
                .kernels
                .iter()
                .map(|(kernel, budget)| Budget {
                    kernel: kernel.clone(),
                    registers: Some(budget.registers),
                    shared: Some(budget.shared),
                    source: source.clone(),
                })
                .collect();
            (unit.name.clone(), budgets)
        })
        .collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

/// Packs images into files of `folder`, named by their contents: what is there already is not packed again, and an
/// unchanged file keeps its time, so that nothing that includes it is compiled again. Other files are removed.
fn write(folder: &Path, images: &[&Image], jobs: usize) -> Result<Vec<CudaImageFile>, CudaError> {
    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| CudaError::Write { path, source }
    };
    std::fs::create_dir_all(folder).map_err(error(folder))?;
    let files: Vec<CudaImageFile> = images
        .iter()
        .map(|image| CudaImageFile {
            unit: image.unit.clone(),
            arch: image.arch,
            ptx: image.ptx,
            driver: needed_driver(&image.bytes, image.ptx),
            usage: image.usage.clone(),
            size: image.bytes.len(),
            path: folder.join(format!("{}.{}.{:016x}", image.unit, image.target(), content(&image.bytes))),
        })
        .collect();
    let missing: Vec<_> = images.iter().zip(&files).filter(|(_, file)| !file.path.is_file()).collect();
    let packed = in_parallel(jobs, &missing, |(image, file)| {
        write_atomically(&file.path, &pack(&image.bytes)).map_err(error(&file.path))
    });
    packed.into_iter().collect::<Result<(), CudaError>>()?;
    let wanted: BTreeSet<&Path> = files.iter().map(|file| file.path.as_path()).collect();
    for entry in std::fs::read_dir(folder).map_err(error(folder))?.flatten() {
        if !wanted.contains(entry.path().as_path()) {
            // A file that stays takes room and is not used.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_that_repeats_an_older_one_is_left_out() {
        let image = |unit: &str, (major, minor, specific), ptx, code: &str| Image {
            unit: unit.into(),
            arch: CudaArch { major, minor, specific },
            ptx,
            bytes: format!("// by a compiler\n.version {major}.0\n.target sm_{major}{minor}\n{code}\n")
                .into_bytes(),
            usage: Vec::new(),
            warnings: Vec::new(),
            compiler: String::new(),
        };
        let images = [
            image("a", (8, 0, false), false, "same"),
            image("a", (7, 5, false), true, "same"),
            image("a", (8, 0, false), true, "same"),
            image("a", (9, 0, false), true, "other"),
            // Only on its own device.
            image("b", (9, 0, true), true, "same"),
            image("b", (9, 0, false), true, "same"),
            image("c", (9, 0, false), true, "same"),
        ];
        let kept: Vec<_> = without_repeats(images.iter().collect())
            .iter()
            .map(|image| format!("{} {}", image.unit, image.target()))
            .collect();
        let expected =
            ["a sm_80", "a compute_75", "a compute_90", "b compute_90a", "b compute_90", "c compute_90"];
        assert_eq!(kept, expected);
    }

    #[test]
    fn images_are_kept_where_all_builds_find_them() {
        let folder = tempfile::tempdir().unwrap();
        let out = |profile: &str| folder.path().join(format!("target/{profile}/build/kernels-1/out"));
        assert_eq!(default_cache(&out("debug")), out("debug").join("cuda-cache"));
        std::fs::create_dir_all(folder.path().join("target")).unwrap();
        let shared = folder.path().join("target/gristmill-cuda-cache");
        for mark in ["CACHEDIR.TAG", ".rustc_info.json"] {
            let mark = folder.path().join("target").join(mark);
            std::fs::write(&mark, "").unwrap();
            for profile in ["debug", "release", "x86_64-unknown-linux-gnu/release"] {
                assert_eq!(default_cache(&out(profile)), shared);
            }
            std::fs::remove_file(mark).unwrap();
        }
    }

    #[test]
    fn files_are_written_once_and_old_ones_removed() {
        let folder = tempfile::tempdir().unwrap();
        let image = |unit: &str, bytes: &[u8]| Image {
            unit: unit.into(),
            arch: CudaArch { major: 8, minor: 0, specific: false },
            ptx: false,
            bytes: bytes.to_vec(),
            usage: Vec::new(),
            warnings: Vec::new(),
            compiler: String::new(),
        };
        let (a, b, changed) =
            (image("a", b"one one one one one one one"), image("b", b"two"), image("b", b"new"));
        let time = |file: &CudaImageFile| std::fs::metadata(&file.path).unwrap().modified().unwrap();
        let first = write(folder.path(), &[&a, &b], 2).unwrap();
        assert_eq!(first.iter().map(|file| file.size).collect::<Vec<_>>(), [27, 3]);
        let times: Vec<_> = first.iter().map(time).collect();
        let second = write(folder.path(), &[&a, &changed], 2).unwrap();
        assert_eq!((second[0].path == first[0].path, time(&second[0])), (true, times[0]));
        assert_ne!(second[1].path, first[1].path);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(std::fs::read(&second[0].path).unwrap().len() < 27);
    }
}
