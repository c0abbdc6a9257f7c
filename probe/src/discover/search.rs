//! Where to look, and for what.

use super::name::Linkage;
use super::places;
use super::places::VARIABLES;
use super::target::Target;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where to look, and for what.
#[derive(Clone, Debug)]
pub struct Search {
    pub(super) target: Target,
    pub(super) variables: Vec<(&'static str, PathBuf)>,
    pub(super) home: Option<PathBuf>,
    pub(super) pkg_config: bool,
    pub(super) system: Vec<PathBuf>,
    pub(super) linkage: Option<Linkage>,
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

    /// As if there were a variable by the name of an argument, which is told by that name: below the root `folder` and nowhere else.
    pub fn with_argument(self, name: &'static str, folder: impl Into<OsString>) -> Search {
        self.with_variable(name, folder)
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
}
