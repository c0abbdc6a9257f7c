//! The folders that are looked at, and why.

use super::target::Target;
use std::path::{Path, PathBuf};

/// Why a folder is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A variable names it, or what it is in.
    Variable(&'static str),
    /// bitnet.cpp's cache in the home folder.
    Home,
    /// pkg-config names it for this package.
    PkgConfig(&'static str),
    /// The system looks for libraries there.
    System,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Variable(name) => f.write_str(name),
            Origin::Home => f.write_str("home folder"),
            Origin::PkgConfig(package) => write!(f, "pkg-config {package}"),
            Origin::System => f.write_str("system"),
        }
    }
}

/// Packages that pkg-config may know.
pub const PACKAGES: [&str; 3] = ["bitnet", "llama", "ggml"];

/// Where CMake puts libraries below the root of a checkout, a build folder or an installation of bitnet.cpp or
/// llama.cpp; bitnet.cpp has llama.cpp in `3rdparty`. Several places are of older versions.
const BELOW: [&str; 22] = [
    "",
    "lib",
    "lib64",
    "bin",
    "build/bin",
    "build/lib",
    "build/lib64",
    "build/src",
    "build/ggml/src",
    "build/ggml/src/ggml-cpu",
    "build/ggml/src/ggml-cuda",
    "build/3rdparty/llama.cpp/src",
    "build/3rdparty/llama.cpp/ggml/src",
    "build/bin/Release",
    "build/src/Release",
    "build/ggml/src/Release",
    "src",
    "ggml/src",
    "3rdparty/llama.cpp/src",
    "3rdparty/llama.cpp/build/bin",
    "gpu/bitnet_kernels",
    "build",
];

/// The folders that a variable stands for.
pub fn of_variable(name: &str, value: &Path) -> Vec<PathBuf> {
    if name == LIBDIR { vec![value.to_owned()] } else { of_root(value) }
}

/// The folders below a root.
pub fn of_root(root: &Path) -> Vec<PathBuf> {
    BELOW.iter().map(|below| if below.is_empty() { root.to_owned() } else { root.join(below) }).collect()
}

#[cfg(feature = "bindgen")]
/// The folders for headers that belong to libraries below a root, or in a folder.
pub fn headers(library_folder: &Path, roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for root in roots {
        for below in [
            "include",
            "ggml/include",
            "3rdparty/llama.cpp/include",
            "3rdparty/llama.cpp/ggml/include",
            "src",
            "",
        ] {
            folders.push(if below.is_empty() { root.clone() } else { root.join(below) });
        }
    }
    // Beside the library, and as installations have it: lib/ and include/ side by side.
    for parent in library_folder.ancestors().take(5) {
        folders.push(parent.join("include"));
        folders.push(parent.join("ggml/include"));
    }
    folders.push(library_folder.to_owned());
    let mut known = Vec::new();
    folders.retain(|folder| {
        let new = !known.contains(folder);
        if new {
            known.push(folder.clone());
        }
        new
    });
    folders
}

/// The folders in which the system looks for libraries. None when building for another machine.
pub fn system_folders(target: &Target) -> Vec<PathBuf> {
    if !target.native {
        return Vec::new();
    }
    let from = |variable: &str| -> Vec<PathBuf> {
        let value = std::env::var_os(variable).unwrap_or_default();
        std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
    };
    let fixed = |folders: &[&str]| folders.iter().map(PathBuf::from).collect::<Vec<_>>();
    match target.os.as_str() {
        "macos" => {
            let mut folders = from("DYLD_LIBRARY_PATH");
            folders.extend(fixed(&["/opt/homebrew/lib", "/usr/local/lib", "/usr/lib"]));
            folders
        }
        "windows" => ["ProgramFiles", "ProgramFiles(x86)"]
            .iter()
            .filter_map(std::env::var_os)
            .flat_map(|programs| {
                ["llama.cpp", "ggml", "bitnet.cpp"].map(|project| PathBuf::from(&programs).join(project))
            })
            .flat_map(|project| [project.join("lib"), project.join("bin")])
            .collect(),
        // Linux, the BSDs and their like.
        _ => {
            let mut folders = from("LD_LIBRARY_PATH");
            let multiarch = format!("{}-{}-{}", target.arch, target.os, target.env);
            folders.extend([
                PathBuf::from("/usr/local/lib"),
                PathBuf::from("/usr/local/lib64"),
                Path::new("/usr/lib").join(&multiarch),
                PathBuf::from("/usr/lib64"),
                PathBuf::from("/usr/lib"),
            ]);
            folders
        }
    }
}

/// The root of a checkout, a build or an installation.
pub const DIR: &str = "BITNET_CPP_DIR";

/// The same, by its older name.
pub const PATH: &str = "BITNET_CPP_PATH";

/// A folder that holds the libraries themselves.
pub const LIBDIR: &str = "BITNET_CROSSVAL_LIBDIR";

/// The variables that name places, in order of precedence.
pub const VARIABLES: [&str; 3] = [DIR, PATH, LIBDIR];
