//! What `gristmill analyze-library --json` prints.

use serde::{Deserialize, Serialize};

/// A library, read from its tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// The file.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What it is, in words.
    pub kind: String,
    /// The parts for each architecture.
    pub images: Vec<Image>,
    /// The libraries that it needs; null where they were not followed.
    pub needs: Option<Needs>,
}

/// The part of a library for one architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The format of its tables.
    pub container: String,
    /// The processor.
    pub arch: String,
    /// The name by which programs ask for it at run time.
    pub soname: Option<String>,
    /// The version in that name.
    pub soname_version: Option<u64>,
    /// Its version, where its headers state one.
    pub version: Option<String>,
    /// Numbers that name the version of an interface.
    pub abi_constants: Vec<AbiConstant>,
    /// Versions that it defines for its own symbols.
    pub symbol_versions: Vec<String>,
    /// The libraries it needs.
    pub needed: Vec<NeededLibrary>,
    /// Folders that are searched for those.
    pub search_paths: Vec<String>,
    /// Objects in an archive; 1 elsewhere.
    pub members: u64,
    /// Those of them whose names can't be read.
    pub unreadable_members: u64,
    /// Its names by group.
    pub groups: Vec<Group>,
    /// Kernel families that it has.
    pub families: Vec<Family>,
    /// Its CUDA backend.
    pub cuda: Cuda,
    /// Code for certain processors.
    pub cpu_variants: Vec<CpuVariant>,
    /// What it offers.
    pub defined: Vec<Symbol>,
    /// What it leaves to others.
    pub undefined: Vec<Symbol>,
}

/// A number that names the version of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbiConstant {
    /// Its name.
    pub name: String,
    /// The number.
    pub value: u32,
}

/// A library that another one needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeededLibrary {
    /// Its name, as the library states it.
    pub name: String,
    /// The versions of its symbols that are used.
    pub versions: Vec<String>,
}

/// How many names of a group there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The group.
    pub name: String,
    /// Names that the library defines.
    pub defined: u64,
    /// Names that it only refers to.
    pub undefined: u64,
}

/// A kernel family that a library has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    /// The family.
    pub family: String,
    /// Where it computes.
    pub device: String,
    /// What it is for.
    #[serde(rename = "for")]
    pub job: String,
    /// The names that show it.
    pub symbols: Vec<String>,
}

/// The CUDA backend of a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cuda {
    /// Whether it has one.
    pub backend: bool,
    /// The functions of one that it defines.
    pub symbols: Vec<String>,
    /// Whether it has sections with code for NVIDIA's GPUs.
    pub gpu_code: bool,
}

/// Code for processors with certain features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuVariant {
    /// The feature, or a name of a processor.
    pub name: String,
    /// What shows it.
    pub shown_by: String,
}

/// A name in a symbol table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// The name, as C knows it.
    pub name: String,
    /// Its version, where the library versions its symbols.
    pub version: Option<String>,
}

/// The libraries that a library needs, and those that they need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Those that were found and validated.
    pub followed: Vec<Followed>,
    /// The others.
    pub not_followed: Vec<NotFollowed>,
}

/// A library that was followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The name by which it is asked for.
    pub needed: String,
    /// The file that needs it.
    pub by: String,
    /// The file that was validated.
    pub file: String,
    /// Whether it is the system's: no folder was named for it.
    pub of_system: bool,
}

/// A library that was not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFollowed {
    /// The name by which it is asked for.
    pub needed: String,
    /// The file that needs it.
    pub by: String,
    /// Why.
    pub why: String,
    /// Whether a limit of the search is why.
    pub limit: bool,
}
