//! Whether a library is what is needed, found out without running any of it.

use crate::analyze::{Analysis, Facts, Image, Kind, analyze};
use crate::discover::Target;
use crate::error::Error;
use crate::families::Family;
use crate::symbols::Group;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a library must have.
#[derive(Clone, Debug)]
pub struct Requirements {
    target: Target,
    symbols: Vec<String>,
    families: Vec<Family>,
    cuda: bool,
    abi: Option<u64>,
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

    /// It must state this ABI version: in a `u32` constant whose name ends with `_abi_version`, or else in its
    /// SONAME.
    pub fn abi(mut self, version: u64) -> Requirements {
        self.abi = Some(version);
        self
    }
}

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Device and file number, where the system has them.
    number: Option<(u64, u64)>,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Identity {
    pub(super) fn of(path: &Path) -> Result<Identity, Error> {
        let metadata = std::fs::metadata(path).map_err(Error::file("read", path))?;
        Ok(Identity {
            number: file_number(&metadata),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }
}

#[cfg(unix)]
fn file_number(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn file_number(_: &Metadata) -> Option<(u64, u64)> {
    None
}

/// A library that was found to be what is needed. Nothing of it has run.
#[derive(Clone, Debug)]
pub struct Validated {
    path: PathBuf,
    analysis: Analysis,
    /// The file, and those it needs that lie in folders it names itself.
    files: Vec<(PathBuf, Identity)>,
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

    /// The libraries it needs that were validated with it.
    pub fn dependencies(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().skip(1).map(|(path, _)| path.as_path())
    }

    /// Whether all files are still as they were.
    pub(super) fn unchanged(&self) -> Result<(), Error> {
        for (path, identity) in &self.files {
            if Identity::of(path)? != *identity {
                return Err(Error::Changed { path: path.clone() });
            }
        }
        Ok(())
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.files.first().map(|(_, identity)| identity)
    }
}

/// Finds out whether a library is what is needed: that it exists, is a library that can be loaded, for this
/// processor and system, defines what is asked for, states the ABI version where one is asked for; and that the
/// libraries it needs, as far as they can be found, are usable and new enough. Nothing is loaded or run.
///
/// # Errors
/// The first of these that does not hold.
pub fn validate(path: impl AsRef<Path>, requirements: &Requirements) -> Result<Validated, Error> {
    let path = std::path::absolute(path.as_ref()).map_err(Error::file("read", path.as_ref()))?;
    // Before reading, so that a change meanwhile is noticed when loading.
    let identity = Identity::of(&path)?;
    let analysis = loadable(&path, &requirements.target)?;
    let image = analysis.image(&requirements.target.arch)?;
    holds(&path, image, requirements)?;
    let mut files = vec![(path.clone(), identity)];
    dependencies(&path, image, &requirements.target, &mut files)?;
    Ok(Validated { path, analysis, files })
}

/// A shared library for the target.
fn loadable(path: &Path, target: &Target) -> Result<Analysis, Error> {
    let analysis = analyze(path)?.library()?;
    match analysis.kind {
        Kind::Shared => {}
        kind @ (Kind::Static | Kind::Import | Kind::Object | Kind::Executable) => {
            return Err(Error::NotLoadable { path: path.to_owned(), kind });
        }
    }
    analysis.image(&target.arch)?;
    analysis.fits_system(&target.os)?;
    Ok(analysis)
}

fn holds(path: &Path, image: &Image, requirements: &Requirements) -> Result<(), Error> {
    let missing: Vec<String> =
        requirements.symbols.iter().filter(|symbol| !image.defines(symbol)).cloned().collect();
    if !missing.is_empty() {
        return Err(Error::MissingSymbols { path: path.to_owned(), symbols: missing });
    }
    let facts = Facts::of(image, path);
    let library = || path.display().to_string();
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
        let stated = image
            .abi_constants
            .first()
            .map(|(_, value)| u64::from(*value))
            .or_else(|| image.soname_version());
        match stated {
            Some(found) if found == wanted => {}
            Some(found) => return Err(Error::WrongAbi { path: path.to_owned(), found, wanted }),
            None => {
                return Err(Error::NoAbi {
                    path: path.to_owned(),
                    looked_for: String::from("a constant `*_abi_version`, or a number in its SONAME"),
                    wanted,
                });
            }
        }
    }
    Ok(())
}

/// The libraries that one needs, and those that they need. Which file the loader takes is its own affair; where a
/// library names the folder itself (RUNPATH), and in the system's folders, it can be foreseen.
fn dependencies(
    path: &Path,
    image: &Image,
    target: &Target,
    files: &mut Vec<(PathBuf, Identity)>,
) -> Result<(), Error> {
    let origin = path.parent().unwrap_or(Path::new(""));
    let own: Vec<PathBuf> = image.search_paths.iter().map(|folder| expand(folder, origin)).collect();
    for needed in &image.needed {
        let file = match needed.name.strip_prefix("@rpath/") {
            Some(name) => Path::new(name),
            None => Path::new(&needed.name),
        };
        let within =
            |folders: &[PathBuf]| folders.iter().map(|folder| folder.join(file)).find(|path| path.is_file());
        let (found, is_own) = match within(&own) {
            Some(found) => (found, true),
            None => match within(&loader_folders(target)) {
                Some(found) => (found, false),
                // The loader may know more folders; if not, loading fails with its own words.
                None => continue,
            },
        };
        let unusable = |source: Error| Error::Dependency {
            path: path.to_owned(),
            needed: needed.name.clone(),
            source: Box::new(source),
        };
        let seen = files.iter().any(|(known, _)| *known == found);
        let identity = Identity::of(&found).map_err(unusable)?;
        let analysis = loadable(&found, target).map_err(unusable)?;
        let there = analysis.image(&target.arch).map_err(unusable)?;
        let lacks = |version: &&String| {
            !there.defined_versions.is_empty() && !there.defined_versions.contains(version)
        };
        if let Some(version) = needed.versions.iter().find(lacks) {
            return Err(Error::TooOld { path: path.to_owned(), version: version.clone(), found });
        }
        if is_own && !seen {
            files.push((found.clone(), identity));
            dependencies(&found, there, target, files)?;
        }
    }
    Ok(())
}

/// `$ORIGIN` and its like stand for the library's own folder.
fn expand(folder: &str, origin: &Path) -> PathBuf {
    for word in ["$ORIGIN", "${ORIGIN}", "@loader_path"] {
        if let Some(rest) = folder.strip_prefix(word) {
            return origin.join(rest.trim_start_matches('/'));
        }
    }
    PathBuf::from(folder)
}

/// Where the system's loader finds the system's own libraries.
fn loader_folders(target: &Target) -> Vec<PathBuf> {
    if target.os != "linux" {
        return Vec::new();
    }
    let multiarch = format!("{}-linux-{}", target.arch, target.env);
    ["/lib", "/usr/lib"]
        .iter()
        .map(|root| Path::new(root).join(&multiarch))
        .chain(["/lib64", "/usr/lib64"].map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_expanded() {
        let at = Path::new("/opt/llama/lib");
        assert_eq!(expand("$ORIGIN", at), Path::new("/opt/llama/lib"));
        assert_eq!(expand("${ORIGIN}/../deps", at), Path::new("/opt/llama/lib/../deps"));
        assert_eq!(expand("@loader_path/x", at), Path::new("/opt/llama/lib/x"));
        assert_eq!(expand("/usr/lib", at), Path::new("/usr/lib"));
    }
}
