//! The part of a library for one architecture.

use super::kind::{Arch, Container};
use crate::symbols::Group;

/// A name in a symbol table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol {
    /// The name, as C knows it: without the underscore that Mach-O puts before it.
    pub name: String,
    /// Its version, where the library versions its symbols.
    pub version: Option<String>,
}

/// A library that another one needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Its name, as the library states it.
    pub name: String,
    /// The versions of its symbols that are used (`GLIBC_2.34`), in order of name.
    pub versions: Vec<String>,
}

/// The part of a library for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The format of its tables.
    pub container: Container,
    /// The processor.
    pub arch: Arch,
    /// What it offers: exports of shared libraries, global definitions of archives and objects; of programs,
    /// whatever they define. In order of name, each once.
    pub defined: Vec<Symbol>,
    /// What it leaves to others. In order of name, each once, and nothing that it defines itself.
    pub undefined: Vec<Symbol>,
    /// The name by which programs ask for it at run time: SONAME, install name, name of the DLL.
    pub soname: Option<String>,
    /// Its version, where its headers state one (Mach-O: current version).
    pub version: Option<String>,
    /// The libraries it needs, in the order in which they are searched.
    pub needed: Vec<Needed>,
    /// Folders that are searched for those (RUNPATH, or RPATH where there is none), as they are written.
    pub search_paths: Vec<String>,
    /// Whether they are RPATH, which is searched before the folders of `LD_LIBRARY_PATH`; RUNPATH after them.
    pub rpath_first: bool,
    /// Versions that it defines for its own symbols.
    pub defined_versions: Vec<String>,
    /// Whether it has sections with code for NVIDIA's GPUs.
    pub gpu_code: bool,
    /// Number of objects in an archive; 1 elsewhere.
    pub members: usize,
    /// Members that hold no machine code (LLVM bitcode of link-time optimization): their names can't be read.
    pub unreadable_members: usize,
    /// `u32` constants whose name is of bitnet.cpp, llama.cpp or ggml and ends with `_abi_version`, read from the file.
    pub abi_constants: Vec<(String, u32)>,
}

impl Image {
    /// Whether it offers a symbol.
    pub fn defines(&self, name: &str) -> bool {
        self.defined.binary_search_by(|symbol| symbol.name.as_str().cmp(name)).is_ok()
    }

    /// The names it offers.
    pub fn defined_names(&self) -> impl Iterator<Item = &str> {
        self.defined.iter().map(|symbol| symbol.name.as_str())
    }

    /// The names it leaves to others.
    pub fn undefined_names(&self) -> impl Iterator<Item = &str> {
        self.undefined.iter().map(|symbol| symbol.name.as_str())
    }

    /// How many names of a group it defines, and how many it only refers to.
    pub fn count(&self, group: Group) -> (usize, usize) {
        (
            self.defined_names().filter(|name| group.has(name)).count(),
            self.undefined_names().filter(|name| group.has(name)).count(),
        )
    }

    /// The number behind `.so.` or before `.dylib` in its SONAME: programs linked against another can't use it.
    pub fn soname_version(&self) -> Option<u64> {
        let soname = self.soname.as_deref()?;
        let tail = match soname.split_once(".so.") {
            Some((_, tail)) => tail,
            None => soname.strip_suffix(".dylib")?.split_once('.')?.1,
        };
        tail.split('.').next()?.parse().ok()
    }
}
