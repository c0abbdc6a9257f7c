//! What a library file holds, read from its tables. Nothing of it is loaded or run.

mod archive;
mod budget;
mod facts;
mod file;
mod image;
mod linked;
mod read;
mod trie;

pub use facts::{CpuVariant, Facts};
pub(crate) use file::Identity;
pub use file::MOST_BYTES;
pub use image::{Image, Needed, Symbol};

use crate::error::Error;
use std::path::{Path, PathBuf};

/// The format of a file's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Container {
    /// Linux and most others.
    Elf,
    /// macOS and iOS.
    MachO,
    /// Windows: objects and import libraries.
    Coff,
    /// Windows: libraries and programs.
    Pe,
}

impl std::fmt::Display for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Container::Elf => "ELF",
            Container::MachO => "Mach-O",
            Container::Coff => "COFF",
            Container::Pe => "PE",
        })
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Loaded at run time: .so, .dylib, .dll.
    Shared,
    /// An archive of objects: .a, .lib.
    Static,
    /// An archive of what a DLL offers; the code is in the DLL.
    Import,
    /// One object file.
    Object,
    /// A program.
    Executable,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Shared => "a shared library",
            Kind::Static => "a static library",
            Kind::Import => "an import library",
            Kind::Object => "an object file",
            Kind::Executable => "a program",
        })
    }
}

/// A processor architecture, as Rust names it in `target_arch`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch(pub(crate) String);

impl Arch {
    /// An architecture by Rust's name: `x86_64`, `aarch64`.
    pub fn new(name: impl Into<String>) -> Arch {
        Arch(name.into())
    }

    /// The one that this program runs on.
    pub fn host() -> Arch {
        Arch::new(std::env::consts::ARCH)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Names, separated by commas.
    pub(crate) fn list(all: &[Arch]) -> String {
        all.iter().map(Arch::name).collect::<Vec<_>>().join(", ")
    }
}

impl std::fmt::Display for Arch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

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

/// Reads what a file holds.
///
/// The whole file is read into memory first, so that what is analysed can't change meanwhile. Time and memory are
/// bounded by a multiple of its size, whatever it holds.
///
/// # Errors
/// A file that can't be read, is larger than [`MOST_BYTES`], is damaged, truncated, stripped of all symbols, or no
/// library.
pub fn analyze(path: impl AsRef<Path>) -> Result<Analysis, Error> {
    analyze_at_most(path.as_ref(), MOST_BYTES).map(|(analysis, _)| analysis)
}

/// The same with another limit of its size in bytes, and the state that the file was in.
pub(crate) fn analyze_at_most(path: &Path, most: u64) -> Result<(Analysis, Identity), Error> {
    let (data, identity) = file::read(path, most)?;
    Ok((analyze_bytes(path, &data)?, identity))
}

/// Reads what the bytes of a file hold; `path` is what errors and the result call it.
///
/// # Errors
/// Like [`analyze`], but for reading.
pub fn analyze_bytes(path: &Path, data: &[u8]) -> Result<Analysis, Error> {
    read::file(path, data)
}
