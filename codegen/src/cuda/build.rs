//! CUDA in a build script: units, a toolchain, images, and files that generated code includes.

use super::compile::{Budget, CompileError, Excess, Failure, compile, excesses};
use super::settings::{BadSettings, VARIABLES};
use super::toolchain::{NoNative, NoToolchain, Toolchain};
use super::{Emitted, Env, Settings, Unit, Use, compile, discover, emit};
use crate::{CudaImageFile, CudaImages, Error};
use gristmill_spec::model::SpecSet;
use gristmill_spec::vocab::CudaArch;
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
    #[error("GRISTMILL_CUDA=require, but {} can't be built:\n{}", counted(.0.len()), .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Failed(Vec<Failure>),
    /// `GRISTMILL_CUDA=require`, and an image uses more than its spec allows.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
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
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
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
    let cache = settings.cache.clone().unwrap_or_else(|| out.join("cuda-cache"));
    let discovery = discover(env, Some(&cache));
    let toolchain = match (&discovery.found, settings.use_) {
        (Some(toolchain), _) => toolchain,
        (None, Use::Require) => discovery.require()?,
        (None, Use::Auto | Use::Off) => {
            let looked = discovery
                .looked
                .iter()
                .map(|looked| format!("{}: {}", looked.place, looked.why_not))
                .collect();
            return Ok(nothing(CudaImages::NoToolchain { looked }, vec![discovery.warning()]));
        }
    };
    let architectures = toolchain.archs_for(&settings.archs, &set.cuda.architectures)?;
    let units: Vec<compile::Unit> = emitted
        .units
        .iter()
        .map(|unit| {
            let mut wanted = unit.compiled_for(&architectures);
            // Where the spec's architectures are built, its PTX is too.
            if let Some(ptx) = set.cuda.ptx
                && ptx.cc() >= unit.min_cc
                && unit.only_on.is_none()
                && architectures == set.cuda.architectures
            {
                wanted.ptx = Some(ptx);
            }
            wanted
        })
        .collect();
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
    let folder = out.join("cuda");
    let mut images = Vec::new();
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
        let path = folder.join(format!("{}.{target}", image.unit));
        write_if_changed(&path, &image.bytes)?;
        images.push(CudaImageFile { unit: image.unit.clone(), arch: image.arch, ptx: image.ptx, path });
    }
    let images = CudaImages::Built { compiler: toolchain.identity(), architectures, images, failures };
    Ok(Built { images, warnings, watched: watched(toolchain, &discovery.watched()) })
}

/// The toolchain's files.
fn watched(toolchain: &Toolchain, found: &[PathBuf]) -> Vec<PathBuf> {
    let mut watched = found.to_vec();
    watched.push(toolchain.path().to_path_buf());
    watched.retain(|path| path.exists());
    watched.dedup();
    watched
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

/// An unchanged file keeps its time, so that nothing that includes it is compiled again.
fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<(), CudaError> {
    let error = |source| CudaError::Write { path: path.to_path_buf(), source };
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    std::fs::write(path, bytes).map_err(error)
}
