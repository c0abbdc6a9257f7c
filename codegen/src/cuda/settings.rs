//! What the environment says about CUDA.

pub use super::variables::{ARCHS, CACHE, IMAGES, NVCC, NVRTC, USE, VARIABLES};

use super::arch::{BadWanted, Wanted};
use super::toolchain::Env;
use std::path::PathBuf;

/// Whether CUDA kernels are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// If a compiler is found; else one warning.
    Auto,
    /// Without a compiler, or with an image missing, the build fails.
    Require,
    /// Nothing is searched or compiled.
    Off,
}

/// What the environment says about CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether CUDA kernels are built.
    pub use_: Use,
    /// For which architectures.
    pub archs: Wanted,
    /// Where compiled images are kept, if not in the build's own folder.
    pub cache: Option<PathBuf>,
}

/// A variable that says something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSettings {
    /// Not one of the three words.
    #[error("{USE}={value}: expected `auto`, `require` or `off`")]
    Use {
        /// What was found.
        value: String,
    },
    /// The list of architectures.
    #[error(transparent)]
    Archs(#[from] BadWanted),
}

impl Settings {
    /// Reads `GRISTMILL_CUDA`, `GRISTMILL_CUDA_ARCHS` and `GRISTMILL_CUDA_CACHE`.
    ///
    /// # Errors
    ///
    /// A value that means nothing.
    pub fn read(env: &Env) -> Result<Settings, BadSettings> {
        let text = |name| env.get(name).map(|value| value.to_string_lossy().into_owned());
        let use_ = match text(USE).as_deref() {
            None | Some("auto") => Use::Auto,
            Some("require") => Use::Require,
            Some("off") => Use::Off,
            Some(value) => return Err(BadSettings::Use { value: value.to_string() }),
        };
        let archs = match text(ARCHS) {
            None => Wanted::Default,
            Some(value) => value.parse()?,
        };
        Ok(Settings { use_, archs, cache: env.get(CACHE).map(PathBuf::from) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_mistakes() {
        let read = |pairs: &[(&str, &str)]| Settings::read(&Env::of(pairs.iter().copied()));
        assert_eq!(read(&[]).unwrap(), Settings { use_: Use::Auto, archs: Wanted::Default, cache: None });
        // An empty variable is how a shell unsets one for a command.
        assert_eq!(read(&[(USE, "")]).unwrap().use_, Use::Auto);
        let settings = read(&[(USE, "require"), (ARCHS, "all"), (CACHE, "c")]).unwrap();
        assert_eq!(
            settings,
            Settings { use_: Use::Require, archs: Wanted::All, cache: Some(PathBuf::from("c")) }
        );
        assert_eq!(
            read(&[(USE, "yes")]).unwrap_err().to_string(),
            "GRISTMILL_CUDA=yes: expected `auto`, `require` or `off`"
        );
        assert!(matches!(read(&[(ARCHS, "x")]), Err(BadSettings::Archs(BadWanted::Word { .. }))));
    }
}
