//! What kind of file a library is: its container, how it is linked, its architecture.

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
