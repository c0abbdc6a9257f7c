//! The libraries that one needs, and those that they need, found as the loader would find them.
//!
//! Which file the loader takes is its own affair; where a library names the folder itself (RUNPATH, RPATH), where
//! `LD_LIBRARY_PATH` does, where the process has a library of that name already, and in the system's folders, it can
//! be foreseen. Files are visited once each, by their canonical paths, breadth first as the loader does; how deep, how
//! many and how large is bounded, and what was left out is in the report.

use super::limits::{Limits, NotFollowed};
use super::mapped;
use crate::analyze::{Analysis, Container, Identity, Image, Kind, MOST_BYTES, Needed, analyze_at_most};
use crate::discover::Target;
use crate::error::Error;
use crate::printable::{printable, printable_path};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// A needed library that was validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The file that needs it.
    pub by: PathBuf,
    /// The name by which it asks for it.
    pub needed: String,
    /// The file that was validated, as a canonical path.
    pub path: PathBuf,
    /// Whether it is the system's: no folder was named for it.
    pub of_system: bool,
    /// Its place among the files.
    pub(super) file: usize,
    /// The versions of its symbols that are used.
    pub(super) versions: Vec<String>,
}

/// A needed library that was not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfollowed {
    /// The file that needs it.
    pub by: PathBuf,
    /// The name by which it asks for it.
    pub needed: String,
    /// Why it was not followed.
    pub why: NotFollowed,
}

/// What was done about the libraries that one needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Those that were validated, each as often as it is needed, in the order of the loader.
    pub followed: Vec<Followed>,
    /// Those that were not.
    pub unfollowed: Vec<Unfollowed>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Followed { by, needed, path, of_system, .. } in &self.followed {
            let system = if *of_system { ", of the system" } else { "" };
            let (by, path) = (printable_path(by), printable_path(path));
            writeln!(f, "{by} needs {}: {path}{system}", printable(needed))?;
        }
        for Unfollowed { by, needed, why } in &self.unfollowed {
            writeln!(f, "{} needs {}: not followed: {why}", printable_path(by), printable(needed))?;
        }
        Ok(())
    }
}

/// A file that was read.
#[derive(Clone, Debug)]
pub(super) struct ReadFile {
    /// Its canonical path; of the library itself, the absolute path by which it was named.
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) of_system: bool,
    versions: Vec<String>,
    /// Where the loader looks for what it needs, before and after `LD_LIBRARY_PATH`.
    before: Vec<PathBuf>,
    after: Vec<PathBuf>,
    /// Folders of RPATH, its own and those of the libraries on whose behalf it is loaded.
    inherited: Vec<PathBuf>,
}

/// A library whose needs are to be looked at.
struct Next {
    file: usize,
    depth: usize,
    /// The path by which it was found, for messages; its folder is `$ORIGIN`.
    named: PathBuf,
    needed: Vec<Needed>,
}

/// A shared library for the target.
pub(super) fn loadable(path: &Path, target: &Target, most: u64) -> Result<(Analysis, Identity), Error> {
    let (analysis, identity) = analyze_at_most(path, most)?;
    let analysis = analysis.library()?;
    match analysis.kind {
        Kind::Shared => {}
        kind @ (Kind::Static | Kind::Import | Kind::Object | Kind::Executable) => {
            return Err(Error::NotLoadable { path: path.to_owned(), kind });
        }
    }
    analysis.image(&target.arch)?;
    analysis.fits_system(&target.os)?;
    Ok((analysis, identity))
}

/// Follows what a library needs.
///
/// # Errors
/// If a needed library that was found is unusable or too old, or the loader would take another than the one that the
/// library names.
pub(super) fn follow(
    path: &Path,
    image: &Image,
    identity: Identity,
    target: &Target,
    limits: Limits,
) -> Result<(Vec<ReadFile>, Report), Error> {
    let mut walk = Walk {
        target,
        limits,
        files: Vec::new(),
        by_path: BTreeMap::new(),
        by_name: BTreeMap::new(),
        bytes: 0,
        report: Report::default(),
        system: loader_folders(target),
        environment: environment_folders(target),
        next: VecDeque::new(),
    };
    walk.enter(path, path.to_owned(), image, identity, false, 0, &[])?;
    while let Some(next) = walk.next.pop_front() {
        for needed in &next.needed {
            walk.one(&next, needed)?;
        }
    }
    let Walk { files, mut report, by_name, .. } = walk;
    // What the system's libraries need is mostly known by now.
    report.unfollowed.retain(|left| left.why != NotFollowed::OfSystem || !by_name.contains_key(&left.needed));
    Ok((files, report))
}

struct Walk<'a> {
    target: &'a Target,
    limits: Limits,
    files: Vec<ReadFile>,
    /// By canonical path.
    by_path: BTreeMap<PathBuf, usize>,
    /// By the names that the loader would know them by: SONAME, and what they were asked for by.
    by_name: BTreeMap<String, usize>,
    bytes: u64,
    report: Report,
    system: Vec<PathBuf>,
    environment: Vec<PathBuf>,
    next: VecDeque<Next>,
}

/// Where a needed library was found.
struct Place {
    path: PathBuf,
    of_system: bool,
}

impl Walk<'_> {
    /// Enters a file that was read.
    #[expect(clippy::too_many_arguments, reason = "the facts of one file")]
    fn enter(
        &mut self,
        named: &Path,
        path: PathBuf,
        image: &Image,
        identity: Identity,
        of_system: bool,
        depth: usize,
        inherited: &[PathBuf],
    ) -> Result<usize, Error> {
        let file = self.files.len();
        let origin = named.parent().unwrap_or(Path::new(""));
        let own: Vec<PathBuf> = image.search_paths.iter().map(|folder| expand(folder, origin)).collect();
        let mut rpaths = if image.rpath_first { own.clone() } else { Vec::new() };
        rpaths.extend(inherited.iter().filter(|folder| !own.contains(folder)).cloned());
        let (before, after) = match image.container {
            // A DLL's own folder comes first.
            Container::Pe => (vec![origin.to_owned()], Vec::new()),
            Container::MachO | Container::Coff => (own, Vec::new()),
            // RPATH counts only where there is no RUNPATH.
            Container::Elf if !image.rpath_first && !own.is_empty() => (Vec::new(), own),
            Container::Elf => (rpaths.clone(), Vec::new()),
        };
        self.bytes = self.bytes.saturating_add(identity.bytes());
        let canonical = path.canonicalize().map_err(Error::file("read", &path))?;
        self.by_path.insert(canonical, file);
        if let Some(soname) = &image.soname {
            self.by_name.entry(soname.clone()).or_insert(file);
        }
        let versions = image.defined_versions.clone();
        self.files.push(ReadFile { path, identity, of_system, versions, before, after, inherited: rpaths });
        if of_system {
            self.report.unfollowed.extend(image.needed.iter().map(|needed| Unfollowed {
                by: named.to_owned(),
                needed: needed.name.clone(),
                why: NotFollowed::OfSystem,
            }));
        } else {
            self.next.push_back(Next { file, depth, named: named.to_owned(), needed: image.needed.clone() });
        }
        Ok(file)
    }

    /// Looks at one library that another needs.
    fn one(&mut self, by: &Next, needed: &Needed) -> Result<(), Error> {
        let taken = self.by_name.get(&needed.name).copied();
        let place = self.find(by, needed, taken.is_some())?;
        let unusable = |source: Error| Error::Dependency {
            path: by.named.clone(),
            needed: needed.name.clone(),
            source: Box::new(source),
        };
        let file = match (taken, place) {
            // The loader has one of this name by then; whoever names a folder wants the one there.
            (Some(taken), place) => {
                if let Some(Place { path, of_system: false }) = place {
                    let wanted = Identity::of(&path).map_err(unusable)?;
                    let Some(first) = self.files.get(taken) else { return Ok(()) };
                    if !first.identity.is_same_file(&wanted) {
                        return Err(Error::OtherDependency {
                            path: by.named.clone(),
                            needed: needed.name.clone(),
                            validated: path.canonicalize().unwrap_or(path),
                            mapped: first.path.display().to_string(),
                        });
                    }
                }
                taken
            }
            (None, None) => {
                self.leave(by, needed, NotFollowed::NotFound);
                return Ok(());
            }
            (None, Some(Place { path, of_system })) => {
                let canonical = path.canonicalize().map_err(Error::file("read", &path)).map_err(unusable)?;
                match self.by_path.get(&canonical).copied() {
                    Some(known) => known,
                    None => {
                        let most = match self.room(by, &canonical).map_err(unusable)? {
                            Ok(most) => most,
                            Err(limit) => {
                                self.leave(by, needed, limit);
                                return Ok(());
                            }
                        };
                        let (analysis, identity) = loadable(&path, self.target, most).map_err(unusable)?;
                        let image = analysis.image(&self.target.arch).map_err(unusable)?;
                        let inherited =
                            self.files.get(by.file).map(|file| file.inherited.clone()).unwrap_or_default();
                        self.enter(&path, canonical, image, identity, of_system, by.depth + 1, &inherited)?
                    }
                }
            }
        };
        self.by_name.entry(needed.name.clone()).or_insert(file);
        let Some(there) = self.files.get(file) else { return Ok(()) };
        if let Some(version) = lacks(&there.versions, &needed.versions) {
            return Err(Error::TooOld {
                path: by.named.clone(),
                version: version.clone(),
                found: there.path.clone(),
            });
        }
        self.report.followed.push(Followed {
            by: by.named.clone(),
            needed: needed.name.clone(),
            path: there.path.clone(),
            of_system: there.of_system,
            file,
            versions: needed.versions.clone(),
        });
        Ok(())
    }

    fn leave(&mut self, by: &Next, needed: &Needed, why: NotFollowed) {
        self.report.unfollowed.push(Unfollowed { by: by.named.clone(), needed: needed.name.clone(), why });
    }

    /// How large one more file may be, or the limit that was reached.
    fn room(&self, by: &Next, path: &Path) -> Result<Result<u64, NotFollowed>, Error> {
        let Limits { depth, files, bytes } = self.limits;
        if by.depth >= depth {
            return Ok(Err(NotFollowed::Depth { most: depth }));
        }
        if self.files.len() >= files {
            return Ok(Err(NotFollowed::Files { most: files }));
        }
        let wanted = self.bytes.saturating_add(Identity::of(path)?.bytes());
        if wanted > bytes {
            return Ok(Err(NotFollowed::Bytes { most: bytes, wanted }));
        }
        Ok(Ok(bytes.saturating_sub(self.bytes).min(MOST_BYTES)))
    }

    /// The file that the loader would take, given that it has none of this name from this library's own needs.
    fn find(&self, by: &Next, needed: &Needed, taken: bool) -> Result<Option<Place>, Error> {
        let own = |path: PathBuf| Place { path, of_system: false };
        let is_there = |path: &PathBuf| path.is_file();
        let bare = needed.name.strip_prefix("@rpath/");
        let name = bare.unwrap_or(&needed.name);
        if name.is_empty() {
            return Ok(None);
        }
        if bare.is_none() && name.contains('/') {
            let origin = by.named.parent().unwrap_or(Path::new(""));
            return Ok(Some(expand(name, origin)).filter(is_there).map(own));
        }
        let within = |folders: &[PathBuf]| folders.iter().map(|folder| folder.join(name)).find(is_there);
        let Some(file) = self.files.get(by.file) else { return Ok(None) };
        let named =
            within(&file.before).or_else(|| within(&self.environment)).or_else(|| within(&file.after));
        if named.is_some() || taken {
            return Ok(named.map(own));
        }
        // What the process has of this name is what the loader takes.
        let maps = Path::new("/proc/self/maps");
        let loaded = mapped::loaded(Path::new(name)).map_err(Error::file("read", maps))?;
        let path = loaded.and_then(|loaded| loaded.path).filter(is_there).or_else(|| within(&self.system));
        Ok(path.map(|path| Place { path, of_system: true }))
    }
}

/// The first version that is used and not there. A library without versions is not held against any.
pub(super) fn lacks<'a>(there: &[String], used: &'a [String]) -> Option<&'a String> {
    if there.is_empty() {
        return None;
    }
    used.iter().find(|version| !there.contains(version))
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

/// The folders of `LD_LIBRARY_PATH`.
fn environment_folders(target: &Target) -> Vec<PathBuf> {
    if target.os != "linux" || !target.native {
        return Vec::new();
    }
    let value = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// Where the system's loader finds the system's own libraries.
fn loader_folders(target: &Target) -> Vec<PathBuf> {
    if target.os != "linux" {
        return Vec::new();
    }
    let multiarch = format!("{}-linux-{}", target.arch, target.env);
    let folders = ["/lib", "/usr/lib"].iter().map(|root| Path::new(root).join(&multiarch));
    let mut seen = BTreeSet::new();
    folders
        .chain(["/lib64", "/usr/lib64"].map(PathBuf::from))
        .filter(|folder| folder.canonicalize().is_ok_and(|folder| seen.insert(folder)))
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

    #[test]
    fn versions_count_where_there_are_any() {
        let versions = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(lacks(&versions(&[]), &versions(&["V_1"])), None);
        assert_eq!(lacks(&versions(&["V_1"]), &versions(&["V_1"])), None);
        assert_eq!(lacks(&versions(&["V_1"]), &versions(&["V_1", "V_2"])), Some(&"V_2".to_owned()));
    }
}
