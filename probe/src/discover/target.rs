//! What libraries are wanted for: processor, system, C library.

use crate::analyze::Arch;
use crate::error::Error;

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
