//! Whether a library is what is needed, found out without running any of it.

use super::dependencies::{Followed, ReadFile, Report, follow, lacks, loadable};
use super::limits::Limits;
use super::mapped;
use crate::analyze::{Analysis, Facts, Identity, Image, MOST_BYTES};
use crate::discover::Target;
use crate::error::Error;
use crate::families::Family;
use crate::printable::printable_path;
use crate::symbols::Group;
use std::path::{Path, PathBuf};

/// What a library must have.
#[derive(Clone, Debug)]
pub struct Requirements {
    target: Target,
    symbols: Vec<String>,
    families: Vec<Family>,
    cuda: bool,
    abi: Option<u64>,
    limits: Limits,
}

impl Default for Requirements {
    fn default() -> Requirements {
        Requirements::new()
    }
}

impl Requirements {
    /// A library for this processor and system, and nothing else.
    pub fn new() -> Requirements {
        Requirements {
            target: Target::host(),
            symbols: Vec::new(),
            families: Vec::new(),
            cuda: false,
            abi: None,
            limits: Limits::default(),
        }
    }

    /// It must offer this function.
    pub fn symbol(mut self, name: impl Into<String>) -> Requirements {
        self.symbols.push(name.into());
        self
    }

    /// It must compute products of this family.
    pub fn family(mut self, family: Family) -> Requirements {
        self.families.push(family);
        self
    }

    /// It must have a CUDA backend.
    pub fn cuda(mut self) -> Requirements {
        self.cuda = true;
        self
    }

    /// It must state this ABI version: in every `u32` constant of bitnet.cpp's, llama.cpp's or ggml's own whose name
    /// ends with `_abi_version`, or where it has none in its SONAME.
    pub fn abi(mut self, version: u64) -> Requirements {
        self.abi = Some(version);
        self
    }

    /// The libraries that it needs are followed this far, instead of as [`Limits::default`] says.
    pub fn limits(mut self, limits: Limits) -> Requirements {
        self.limits = limits;
        self
    }
}

/// A library that was found to be what is needed. Nothing of it has run.
#[derive(Clone, Debug)]
pub struct Validated {
    path: PathBuf,
    analysis: Analysis,
    target: Target,
    /// The file, and those it needs as far as they were followed.
    files: Vec<ReadFile>,
    report: Report,
}

impl Validated {
    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it.
    pub fn analysis(&self) -> &Analysis {
        &self.analysis
    }

    /// The libraries it needs that lie in folders that are named for them, each once, as canonical paths.
    pub fn dependencies(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().skip(1).filter(|file| !file.of_system).map(|file| file.path.as_path())
    }

    /// What was done about each library that it needs, and that those need: the file that was validated, or why it
    /// was not followed.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether all files are still as they were.
    pub(super) fn unchanged(&self) -> Result<(), Error> {
        for ReadFile { path, identity, .. } in &self.files {
            if Identity::of(path)? != *identity {
                return Err(Error::Changed { path: path.clone() });
            }
        }
        Ok(())
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.files.first().map(|file| &file.identity)
    }

    /// Refuses what no validation or no comparison covers: needs beyond a limit, and systems on which it can't be seen
    /// what is mapped.
    pub(super) fn is_covered(&self) -> Result<(), Error> {
        if let Some(left) = self.report.unfollowed.iter().find(|left| left.why.is_limit()) {
            let (path, needed) = (left.by.clone(), left.needed.clone());
            return Err(Error::NotValidated { path, needed, why: left.why });
        }
        match self.report.followed.iter().find(|followed| !followed.of_system) {
            Some(Followed { by, needed, .. }) if !mapped::IS_SEEN => {
                Err(Error::Unseen { path: by.clone(), needed: needed.clone(), os: std::env::consts::OS })
            }
            _ => Ok(()),
        }
    }

    /// Holds what the process has mapped against what was validated. Before loading, what is not mapped yet is
    /// right; afterwards everything must be.
    pub(super) fn is_what_is_mapped(&self, after: bool) -> Result<(), Error> {
        if !mapped::IS_SEEN {
            return Ok(());
        }
        let seen =
            |name: &Path| mapped::loaded(name).map_err(Error::file("read", Path::new("/proc/self/maps")));
        let same = |path: &Path, file: &ReadFile| {
            Identity::of(path).is_ok_and(|identity| identity.is_same_file(&file.identity))
        };
        let is = |mapped: &mapped::Mapped, file| mapped.path.as_deref().is_some_and(|path| same(path, file));
        if let Some(file) = self.files.first() {
            match seen(&self.path)? {
                Some(mapped) if is(&mapped, file) => {}
                None if !after => {}
                // The old file of this path, or one that came into its place at the last moment.
                _ if !after => return Err(Error::StillLoaded { path: self.path.clone() }),
                _ => return Err(Error::Changed { path: self.path.clone() }),
            }
        }
        for followed in &self.report.followed {
            let Some(file) = self.files.get(followed.file) else { continue };
            let mapped = seen(Path::new(&followed.needed))?;
            let mapped = match mapped {
                Some(mapped) if is(&mapped, file) => continue,
                None if !after => continue,
                mapped => mapped,
            };
            // Which folder of the system's it takes is the loader's choice; what it took is validated there.
            let there = mapped.as_ref().and_then(|mapped| mapped.path.as_deref());
            if let (true, Some(there)) = (followed.of_system, there)
                && self.would_do(followed, there)
            {
                continue;
            }
            return Err(Error::OtherDependency {
                path: followed.by.clone(),
                needed: followed.needed.clone(),
                validated: followed.path.clone(),
                mapped: mapped.map_or_else(|| String::from("none"), |mapped| mapped.shown),
            });
        }
        Ok(())
    }

    /// Whether another file would have been accepted for a library of the system.
    fn would_do(&self, followed: &Followed, path: &Path) -> bool {
        loadable(path, &self.target, MOST_BYTES).is_ok_and(|(analysis, _)| {
            let image = analysis.image(&self.target.arch);
            image.is_ok_and(|image| lacks(&image.defined_versions, &followed.versions).is_none())
        })
    }
}

/// Finds out whether a library is what is needed: that it exists, is a library that can be loaded, for this
/// processor and system, defines what is asked for, states the ABI version where one is asked for; and that the
/// libraries it needs, as far as they can be found, are usable and new enough. Nothing is loaded or run.
///
/// How far needed libraries are followed is bounded by [`Limits`]; [`Validated::report`] says what was and what was not,
/// and why. A library with needs beyond a limit can be looked at, but is not loaded.
///
/// # Errors
/// The first of these that does not hold.
pub fn validate(path: impl AsRef<Path>, requirements: &Requirements) -> Result<Validated, Error> {
    let path = std::path::absolute(path.as_ref()).map_err(Error::file("read", path.as_ref()))?;
    let target = &requirements.target;
    let (analysis, identity) = loadable(&path, target, MOST_BYTES.min(requirements.limits.bytes))?;
    let image = analysis.image(&target.arch)?;
    holds(&path, image, requirements)?;
    let (files, report) = follow(&path, image, identity, target, requirements.limits)?;
    Ok(Validated { target: target.clone(), path, analysis, files, report })
}

fn holds(path: &Path, image: &Image, requirements: &Requirements) -> Result<(), Error> {
    let missing: Vec<String> =
        requirements.symbols.iter().filter(|symbol| !image.defines(symbol)).cloned().collect();
    if !missing.is_empty() {
        return Err(Error::MissingSymbols { path: path.to_owned(), symbols: missing });
    }
    let facts = Facts::of(image, path);
    let library = || printable_path(path);
    if requirements.cuda && !facts.has_cuda() {
        return Err(Error::NoCuda {
            asked: String::from("at run time"),
            library: library(),
            undefined: image.count(Group::Cuda).1,
        });
    }
    if let Some(family) = requirements.families.iter().find(|family| !facts.has(**family)) {
        return Err(Error::NoFamily { family: *family, library: library() });
    }
    if let Some(wanted) = requirements.abi {
        let constants = image.abi_constants.iter().map(|(_, value)| u64::from(*value));
        let mut stated: Vec<u64> = constants.collect();
        if stated.is_empty() {
            stated.extend(image.soname_version());
        }
        if let Some(found) = stated.iter().copied().find(|found| *found != wanted) {
            return Err(Error::WrongAbi { path: path.to_owned(), found, wanted });
        }
        if stated.is_empty() {
            return Err(Error::NoAbi {
                path: path.to_owned(),
                looked_for: String::from(
                    "a constant `*_abi_version` of bitnet.cpp, llama.cpp or ggml, or a number in its SONAME",
                ),
                wanted,
            });
        }
    }
    Ok(())
}
