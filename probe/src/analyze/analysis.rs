//! What is known of a file that was read.

use super::image::Image;
use super::kind::{Arch, Container, Kind};
use crate::error::Error;
use std::path::PathBuf;

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The file, as it was named.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
    /// One for each architecture; never empty, and more than one only in universal Mach-O files.
    pub images: Vec<Image>,
}

impl Analysis {
    /// The architectures that it has code for.
    pub fn architectures(&self) -> Vec<Arch> {
        self.images.iter().map(|image| image.arch.clone()).collect()
    }

    /// The part for one architecture.
    ///
    /// # Errors
    /// [`Error::WrongArchitecture`] if there is none.
    pub fn image(&self, arch: &Arch) -> Result<&Image, Error> {
        self.images.iter().find(|image| image.arch == *arch).ok_or_else(|| Error::WrongArchitecture {
            path: self.path.clone(),
            found: self.architectures(),
            wanted: arch.clone(),
        })
    }

    /// The same, refusing programs.
    ///
    /// # Errors
    /// [`Error::NotALibrary`] for a program.
    pub fn library(self) -> Result<Analysis, Error> {
        match self.kind {
            Kind::Executable => Err(Error::NotALibrary { path: self.path, what: String::from("a program") }),
            Kind::Shared | Kind::Static | Kind::Import | Kind::Object => Ok(self),
        }
    }

    /// Whether the system of this name (as in `target_os`) uses files of this container.
    ///
    /// # Errors
    /// [`Error::WrongSystem`] if it does not.
    pub fn fits_system(&self, os: &str) -> Result<(), Error> {
        let apple = matches!(os, "macos" | "ios" | "tvos" | "watchos" | "visionos");
        let fits = |container: Container| match container {
            Container::MachO => apple,
            Container::Pe | Container::Coff => matches!(os, "windows" | "cygwin" | "uefi"),
            Container::Elf => !apple && os != "windows",
        };
        match self.images.iter().find(|image| !fits(image.container)) {
            None => Ok(()),
            Some(image) => {
                Err(Error::WrongSystem { path: self.path.clone(), found: image.container, os: os.to_owned() })
            }
        }
    }
}
