//! Images from CUDA sources: one for each unit and architecture, in parallel, each kept in a cache by what it is made
//! from.

mod budget;
mod flags;
mod front;
mod image;
mod make;
mod messages;
mod sass;
mod usage;

pub use budget::{Budget, Excess, excesses};
pub use image::{Folder, Image};
pub use sass::{Instructions, Loop, cuobjdump, disassemble, parse_sass};
pub use usage::{Usage, parse_ptxas};

use super::parallel::in_parallel;
use super::toolchain::{Nvcc, Toolchain};
pub use flags::FLAGS;
use flags::NVRTC_FLAGS;
pub(super) use front::distinct;
use front::{Group, groups};
use gristmill_spec::vocab::CudaArch;
pub(super) use image::content;
use image::{Key, target};
use make::Outcome;
pub(super) use make::write_atomically;
pub use messages::{CompileError, Failure};
use std::path::Path;

/// One source, self-contained: what it includes is pasted in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Short name for messages and files: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// CUDA C++.
    pub text: String,
    /// Architectures of machine code.
    pub archs: Vec<CudaArch>,
    /// Architectures of PTX, ascending.
    pub ptx: Vec<CudaArch>,
}

impl Unit {
    /// A unit for those of `archs` that have at least compute capability `min_cc`, with PTX for the lowest of them
    /// that is not bound to one device, if there is one.
    pub fn new(
        name: impl Into<String>,
        text: impl Into<String>,
        min_cc: (u8, u8),
        archs: &[CudaArch],
    ) -> Unit {
        let mut archs: Vec<CudaArch> = archs.iter().copied().filter(|arch| arch.cc() >= min_cc).collect();
        archs.sort_unstable();
        archs.dedup();
        let ptx = archs.iter().copied().find(|arch| !arch.specific).into_iter().collect();
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
    let mut list: Vec<(Group, Vec<Key<'_>>)> = Vec::new();
    for unit in units {
        let machine = unit.archs.iter().map(|&arch| (arch, false));
        let wanted: Vec<_> = machine.chain(unit.ptx.iter().map(|&arch| (arch, true))).collect();
        // Only nvcc comes with an assembler of its own.
        let (known, others): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .partition(|(arch, _)| matches!(toolchain, Toolchain::Nvcc(_)) && toolchain.supports(*arch));
        let alone = others.into_iter().map(|image| Group { front: None, images: vec![image] });
        for group in groups(&unit.text, &known).into_iter().chain(alone) {
            let from = group.front.map_or_else(String::new, |front| format!(" from {}", target(front, true)));
            let key = |&(arch, ptx): &(CudaArch, bool)| Key {
                unit: &unit.name,
                text: &unit.text,
                arch,
                ptx,
                flags: format!("{flags}{from}"),
                compiler: &compiler,
            };
            let keys = group.images.iter().map(key).collect();
            list.push((group, keys));
        }
    }
    let done = in_parallel(jobs, &list, |(group, keys)| make::group(group, keys, toolchain, cache));
    let mut compiled = Compiled::default();
    for outcomes in done {
        for outcome in outcomes? {
            match outcome {
                Outcome::Cached(image) => compiled.images.push(image),
                Outcome::Compiled(image) => {
                    compiled.compiled += 1;
                    compiled.images.push(image);
                }
                Outcome::Failed(failure) => compiled.failures.push(failure),
            }
        }
    }
    // In the order of the units, of one unit by architecture, PTX last.
    let place = |unit: &str| units.iter().position(|u| u.name == unit);
    compiled.images.sort_by_key(|image| (place(&image.unit), image.ptx, image.arch));
    compiled.failures.sort_by_key(|failure| (place(&failure.unit), failure.ptx, failure.arch));
    Ok(compiled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_takes_the_architectures_that_have_its_instructions() {
        let arch = |name: &str| CudaArch::from_name(name).unwrap();
        let unit = Unit::new("u", "", (8, 0), &[arch("90a"), arch("75"), arch("86"), arch("80")]);
        assert_eq!(unit.archs, [arch("80"), arch("86"), arch("90a")]);
        assert_eq!(unit.ptx, [arch("80")]);
        assert_eq!(Unit::new("u", "", (9, 0), &[arch("90a")]).ptx, []);
    }
}
