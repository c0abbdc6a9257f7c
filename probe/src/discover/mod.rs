//! Finding libraries of llama.cpp, ggml and bitnet.cpp, with a report of where was looked and what was there.
//!
//! The order: the places that variables name; bitnet.cpp's cache folder in the home folder; pkg-config; the
//! system's library folders. The first of these four steps that has a usable library decides, and later ones are
//! not looked at: libraries of two installations would not fit together. A variable that is set is obeyed: if
//! nothing is where it points, nothing is taken from elsewhere.

mod choose;
mod name;
mod places;

pub use name::{FileName, Linkage, Role};
pub use places::Origin;
#[cfg(feature = "bindgen")]
pub(crate) use places::headers as header_folders;

use crate::analyze::{Analysis, Arch, Facts, Image};
use crate::error::Error;
use crate::families::Family;
use crate::printable::{printable_lines, printable_path};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The root of a checkout, a build or an installation.
pub const DIR: &str = "BITNET_CPP_DIR";
/// The same, by its older name.
pub const PATH: &str = "BITNET_CPP_PATH";
/// A folder that holds the libraries themselves.
pub const LIBDIR: &str = "BITNET_CROSSVAL_LIBDIR";

/// The variables that name places, in order of precedence.
pub const VARIABLES: [&str; 3] = [DIR, PATH, LIBDIR];

/// What libraries are wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The processor.
    pub arch: Arch,
    /// The system, as in `target_os`.
    pub os: String,
    /// Its C library or compiler, as in `target_env`: `gnu`, `musl`, `msvc`.
    pub env: String,
    /// Whether it is the machine that this runs on, so that its library folders count.
    pub native: bool,
}

impl Target {
    /// The machine that this runs on.
    pub fn host() -> Target {
        let env = if cfg!(target_env = "msvc") {
            "msvc"
        } else if cfg!(target_env = "musl") {
            "musl"
        } else if cfg!(target_env = "gnu") {
            "gnu"
        } else {
            ""
        };
        Target { arch: Arch::host(), os: std::env::consts::OS.to_owned(), env: env.to_owned(), native: true }
    }

    /// What cargo builds for; only in build scripts.
    ///
    /// # Errors
    /// Outside of build scripts.
    pub fn from_cargo() -> Result<Target, Error> {
        let variable = |name: &'static str| std::env::var(name).map_err(|_| Error::NoBuildScript(name));
        Ok(Target {
            arch: Arch::new(variable("CARGO_CFG_TARGET_ARCH")?),
            os: variable("CARGO_CFG_TARGET_OS")?,
            env: std::env::var("CARGO_CFG_TARGET_ENV").unwrap_or_default(),
            native: variable("HOST")? == variable("TARGET")?,
        })
    }

    /// Whether it is one of Apple's systems.
    pub fn is_apple(&self) -> bool {
        matches!(self.os.as_str(), "macos" | "ios" | "tvos" | "watchos" | "visionos")
    }
}

/// Where to look, and for what.
#[derive(Clone, Debug)]
pub struct Search {
    target: Target,
    variables: Vec<(&'static str, PathBuf)>,
    home: Option<PathBuf>,
    pkg_config: bool,
    system: Vec<PathBuf>,
    linkage: Option<Linkage>,
}

impl Search {
    /// Looks nowhere.
    pub fn nowhere(target: Target) -> Search {
        Search {
            target,
            variables: Vec::new(),
            home: None,
            pkg_config: false,
            system: Vec::new(),
            linkage: None,
        }
    }

    /// Looks in all places that this environment and this system have.
    pub fn from_env(target: Target) -> Search {
        let mut search = Search::nowhere(target);
        for name in VARIABLES {
            search = search.with_variable(name, std::env::var_os(name).unwrap_or_default());
        }
        search.home = std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE")).map(PathBuf::from);
        search.pkg_config = true;
        search.system = places::system_folders(&search.target);
        search
    }

    /// As if the environment had this variable. An empty value is none.
    pub fn with_variable(mut self, name: &'static str, value: impl Into<OsString>) -> Search {
        self.variables.retain(|(known, _)| *known != name);
        let value = value.into();
        if !value.is_empty() {
            self.variables.push((name, PathBuf::from(value)));
            self.variables.sort_by_key(|(name, _)| VARIABLES.iter().position(|known| known == name));
        }
        self
    }

    /// Looks in this home folder for bitnet.cpp's cache.
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Search {
        self.home = Some(home.into());
        self
    }

    /// Looks in these folders last.
    pub fn with_system_folders(mut self, folders: impl IntoIterator<Item = PathBuf>) -> Search {
        self.system = folders.into_iter().collect();
        self
    }

    /// Takes only libraries of this kind. Without it, shared ones come first.
    pub fn only(mut self, linkage: Linkage) -> Search {
        self.linkage = Some(linkage);
        self
    }

    /// What libraries are wanted for.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Looks.
    pub fn run(&self) -> Discovery {
        choose::run(self)
    }

    /// Looks, and demands a library.
    ///
    /// # Errors
    /// [`Error::VariableWithoutLibrary`] or [`Error::NoLibrary`], with the report.
    pub fn require(&self) -> Result<Discovery, Error> {
        let discovery = self.run();
        if discovery.is_empty() { Err(discovery.nothing()) } else { Ok(discovery) }
    }
}

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
        choose::linkage(self.analysis.kind)
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
    /// The variables that were set.
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
