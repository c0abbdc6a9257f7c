//! The environment as a value, so that a search can be tried with another one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Environment variables.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: BTreeMap<OsString, OsString>,
}

impl Env {
    /// Those of this process.
    pub fn of_process() -> Env {
        Env { variables: std::env::vars_os().collect() }
    }

    /// These and no others.
    pub fn of<K: Into<OsString>, V: Into<OsString>>(pairs: impl IntoIterator<Item = (K, V)>) -> Env {
        Env { variables: pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect() }
    }

    /// A variable; an empty one counts as unset.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// The first file of this name in the folders of `PATH`.
    pub fn on_path(&self, program: &str) -> Option<PathBuf> {
        std::env::split_paths(self.get("PATH")?)
            .filter(|folder| !folder.as_os_str().is_empty())
            .map(|folder| folder.join(exe(program)))
            .find(|path| is_program(path))
    }

    /// A command that sees this environment and no other.
    pub fn command(&self, program: &Path) -> std::process::Command {
        let mut command = std::process::Command::new(program);
        command.env_clear().envs(&self.variables).stdin(std::process::Stdio::null());
        command
    }
}

/// The file name of a program.
pub fn exe(program: &str) -> String {
    format!("{program}{}", std::env::consts::EXE_SUFFIX)
}

/// Whether a path is a file that can be started.
pub fn is_program(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
    }
    #[cfg(not(unix))]
    {
        metadata.is_file()
    }
}
