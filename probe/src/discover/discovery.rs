//! The report: what was looked at, and what was found.

use super::name::{FileName, Linkage, Role};
use super::places::{Origin, VARIABLES};
use super::target::Target;
use crate::analyze::{Analysis, Facts, Image};
use crate::error::Error;
use crate::families::Family;
use crate::printable::{printable_lines, printable_path};
use std::path::{Path, PathBuf};

/// What a place turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is not there.
    Missing,
    /// It can't be read, or what leads to it fails; in the words of the system.
    Unreadable(String),
    /// It was read; this many files in it have the name of a library that is looked for.
    Files(usize),
}

/// A folder that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The folder; for pkg-config, the package's name.
    pub path: PathBuf,
    /// Why it was looked at.
    pub origin: Origin,
    /// What was there.
    pub found: Found,
}

/// Whether a file was taken.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It was.
    Taken(Box<Analysis>),
    /// It was not, for this reason.
    Refused(String),
}

/// A file that has the name of a library.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The file.
    pub path: PathBuf,
    /// What its name says.
    pub name: FileName,
    /// Index of its place in the report.
    pub place: usize,
    /// Whether it was taken.
    pub verdict: Verdict,
}

/// A library that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Library<'a> {
    /// The file.
    pub path: &'a Path,
    /// What its name says.
    pub name: &'a FileName,
    /// What is in it.
    pub analysis: &'a Analysis,
    /// The part for the target.
    pub image: &'a Image,
    /// Why its folder was looked at.
    pub origin: &'a Origin,
}

impl Library<'_> {
    /// How it is linked: by its contents, which a name such as `llama.lib` does not tell.
    pub fn linkage(&self) -> Linkage {
        Linkage::of(self.analysis.kind)
    }

    /// What follows from its names.
    pub fn facts(&self) -> Facts {
        Facts::of(self.image, self.path)
    }
}

/// What was looked at, and what was found.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// For what.
    pub target: Target,
    /// The variables that were set, or the argument that stands for one.
    pub variables: Vec<(&'static str, PathBuf)>,
    /// Every place that was looked at, in order.
    pub places: Vec<Place>,
    /// Every file with a library's name in them, in order.
    pub candidates: Vec<Candidate>,
    /// Why the rest of the places was not looked at.
    pub stopped: Option<String>,
}

impl Discovery {
    /// The libraries that were taken, in the order in which a linker wants them.
    pub fn libraries(&self) -> Vec<Library<'_>> {
        let mut libraries: Vec<Library<'_>> = self
            .candidates
            .iter()
            .filter_map(|candidate| {
                let Verdict::Taken(analysis) = &candidate.verdict else { return None };
                let image = analysis.image(&self.target.arch).ok()?;
                let origin = &self.places.get(candidate.place)?.origin;
                Some(Library { path: &candidate.path, name: &candidate.name, analysis, image, origin })
            })
            .collect();
        libraries.sort_by_key(|library| library.name.role);
        libraries
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        !self.candidates.iter().any(|candidate| matches!(candidate.verdict, Verdict::Taken(_)))
    }

    /// Whether one of the libraries has a CUDA backend.
    pub fn has_cuda(&self) -> bool {
        self.libraries().iter().any(|library| library.facts().has_cuda())
    }

    /// Whether one of the libraries computes products of a family.
    pub fn has(&self, family: Family) -> bool {
        self.libraries().iter().any(|library| library.facts().has(family))
    }

    /// Whether bitnet.cpp is among the libraries: as a file of that name, or by its functions in another.
    pub fn has_bitnet(&self) -> bool {
        self.libraries().iter().any(|library| {
            library.name.role == Role::Bitnet || library.image.count(crate::Group::Bitnet).0 > 0
        })
    }

    /// The names of the files that were taken.
    pub fn file_names(&self) -> Vec<String> {
        let name =
            |library: &Library<'_>| library.path.file_name().map(|name| name.to_string_lossy().into_owned());
        self.libraries().iter().filter_map(name).collect()
    }

    /// The error for somebody who needs a library where none was found.
    pub fn nothing(&self) -> Error {
        let report = self.to_string();
        match self.variables.first() {
            Some((argument, value)) if !VARIABLES.contains(argument) => {
                Error::ArgumentWithoutLibrary { argument, value: value.clone(), report }
            }
            Some((variable, value)) => {
                Error::VariableWithoutLibrary { variable, value: value.clone(), report }
            }
            None => Error::NoLibrary { report },
        }
    }
}

impl std::fmt::Display for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, place) in self.places.iter().enumerate() {
            let found = match &place.found {
                Found::Missing => String::from("not there"),
                Found::Unreadable(why) => printable_lines(why),
                Found::Files(0) => String::from("no library"),
                Found::Files(1) => String::from("1 candidate"),
                Found::Files(count) => format!("{count} candidates"),
            };
            writeln!(f, "  {} ({}): {found}", printable_path(&place.path), place.origin)?;
            for candidate in self.candidates.iter().filter(|candidate| candidate.place == index) {
                let file = printable_path(Path::new(candidate.path.file_name().unwrap_or_default()));
                match &candidate.verdict {
                    Verdict::Taken(_) => writeln!(f, "    {file}: taken")?,
                    Verdict::Refused(why) => writeln!(f, "    {file}: {}", printable_lines(why))?,
                }
            }
        }
        match &self.stopped {
            Some(why) => write!(f, "  nowhere else: {why}"),
            None => write!(f, "  there was nowhere else to look"),
        }
    }
}
