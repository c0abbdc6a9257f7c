//! What is collected about one architecture of a file.

use super::image::{Image, Needed, Symbol};
use super::kind::{Arch, Container};
use std::collections::BTreeSet;

/// What is collected about one architecture before it is put in order.
pub(super) struct Builder {
    pub(super) container: Container,
    pub(super) arch: Arch,
    pub(super) defined: BTreeSet<Symbol>,
    pub(super) undefined: BTreeSet<Symbol>,
    pub(super) soname: Option<String>,
    pub(super) version: Option<String>,
    needed: Vec<Needed>,
    needed_names: BTreeSet<String>,
    pub(super) search_paths: Vec<String>,
    pub(super) rpath_first: bool,
    pub(super) defined_versions: BTreeSet<String>,
    pub(super) gpu_code: bool,
    pub(super) members: usize,
    pub(super) unreadable_members: usize,
    pub(super) abi_constants: Vec<(String, u32)>,
    /// A part of an import library: it names a DLL's function, or holds the tables for that.
    pub(super) names_a_dll: bool,
}

impl Builder {
    pub(super) fn new(container: Container, arch: Arch) -> Builder {
        Builder {
            container,
            arch,
            defined: BTreeSet::new(),
            undefined: BTreeSet::new(),
            soname: None,
            version: None,
            needed: Vec::new(),
            needed_names: BTreeSet::new(),
            search_paths: Vec::new(),
            rpath_first: false,
            defined_versions: BTreeSet::new(),
            gpu_code: false,
            members: 1,
            unreadable_members: 0,
            abi_constants: Vec::new(),
            names_a_dll: false,
        }
    }

    /// Adds a library that is needed, unless one of this name is already.
    pub(super) fn needs(&mut self, needed: Needed) {
        if self.needed_names.insert(needed.name.clone()) {
            self.needed.push(needed);
        }
    }

    /// Adds what a member of an archive has.
    pub(super) fn merge(&mut self, part: Builder) {
        self.defined.extend(part.defined);
        self.undefined.extend(part.undefined);
        self.gpu_code |= part.gpu_code;
        for needed in part.needed {
            self.needs(needed);
        }
    }

    /// An archive that only names what a DLL offers: the DLL's name stands for it, and nothing is needed.
    pub(super) fn stands_for_a_dll(&mut self) {
        self.soname = self.needed.drain(..).next().map(|needed| needed.name);
        self.undefined.clear();
    }

    pub(super) fn finish(self) -> Image {
        let names: BTreeSet<&str> = self.defined.iter().map(|symbol| symbol.name.as_str()).collect();
        let undefined = self.undefined.iter().filter(|symbol| !names.contains(symbol.name.as_str()));
        let undefined = undefined.cloned().collect();
        Image {
            container: self.container,
            arch: self.arch,
            undefined,
            defined: self.defined.into_iter().collect(),
            soname: self.soname,
            version: self.version,
            needed: self.needed,
            search_paths: self.search_paths,
            rpath_first: self.rpath_first,
            defined_versions: self.defined_versions.into_iter().collect(),
            gpu_code: self.gpu_code,
            members: self.members,
            unreadable_members: self.unreadable_members,
            abi_constants: self.abi_constants,
        }
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
