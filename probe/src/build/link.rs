//! What the linker is told.

use super::lines::Lines;
use crate::discover::{Discovery, Library, Linkage, Origin, Role, Target};
use crate::error::Error;
use crate::symbols::Group;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders, libraries, run-time search paths, and what archives need besides.
pub fn lines(discovery: &Discovery, rpath: bool, lines: &mut Lines<'_>) -> Result<(), Error> {
    let libraries = discovery.libraries();
    // ggml loads its variants for certain processors itself, after looking at the processor.
    let linked: Vec<&Library<'_>> =
        libraries.iter().filter(|library| library.name.role != Role::GgmlCpuVariant).collect();
    let mut folders: Vec<&Path> = Vec::new();
    for folder in linked.iter().filter_map(|library| library.path.parent()) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    for folder in &folders {
        lines.say("rustc-link-search", format_args!("native={}", folder.display()))?;
    }
    for library in &linked {
        if let Some(line) = link_line(library, &discovery.target) {
            lines.say("rustc-link-lib", line)?;
        }
    }
    let is_shared = |library: &Library<'_>| library.linkage() == Linkage::Shared;
    if rpath && discovery.target.os != "windows" {
        let of_system = |library: &Library<'_>| matches!(library.origin, Origin::System);
        let mut paths: Vec<PathBuf> = Vec::new();
        for library in linked.iter().filter(|library| is_shared(library) && !of_system(library)) {
            // The program may run from anywhere.
            let folder = library
                .path
                .parent()
                .map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
            paths.extend(folder.filter(|folder| !paths.contains(folder)));
        }
        for path in paths {
            linker_option("-rpath", &path, lines)?;
            if !discovery.target.is_apple() {
                // Where the linker finds what these libraries need themselves.
                linker_option("-rpath-link", &path, lines)?;
            }
        }
    }
    let archives: Vec<&Library<'_>> = linked.iter().copied().filter(|library| !is_shared(library)).collect();
    for need in needs(&archives, &libraries, &discovery.target) {
        match need {
            Need::Folder(folder) => {
                lines.say("rustc-link-search", format_args!("native={}", folder.display()))?
            }
            Need::Library(name) => lines.say("rustc-link-lib", name)?,
            Need::Framework(name) => lines.say("rustc-link-lib", format_args!("framework={name}"))?,
        }
    }
    Ok(())
}

/// An option of the linker with a folder, passed on by the compiler that links.
fn linker_option(option: &str, folder: &Path, lines: &mut Lines<'_>) -> Result<(), Error> {
    let folder = folder.display().to_string();
    if !folder.contains(',') {
        return lines.say("rustc-link-arg", format_args!("-Wl,{option},{folder}"));
    }
    // `-Wl` takes a comma for the end of an argument.
    for word in ["-Xlinker", option, "-Xlinker", folder.as_str()] {
        lines.say("rustc-link-arg", word)?;
    }
    Ok(())
}

/// `dylib=llama`, or the whole file name where a linker would not find it by its stem.
fn link_line(library: &Library<'_>, target: &Target) -> Option<String> {
    let kind = match library.linkage() {
        Linkage::Shared => "dylib",
        Linkage::Static => "static",
    };
    if library.name.plain {
        return Some(format!("{kind}={}", library.name.stem));
    }
    let file = library.path.file_name()?.to_str()?;
    // A DLL is not linked itself; its import library has the stem as its name, beside it or in lib/.
    if target.os == "windows" {
        return Some(format!("{kind}={}", library.name.stem));
    }
    if target.is_apple() {
        // Apple's linker has no way to name a file within a folder: libggml.0.dylib is -lggml.0.
        let stem = file.strip_prefix("lib")?.strip_suffix(".dylib")?;
        return Some(format!("{kind}={stem}"));
    }
    Some(format!("{kind}:+verbatim={file}"))
}

/// What archives need besides themselves.
#[derive(Debug, PartialEq, Eq)]
enum Need {
    Folder(PathBuf),
    Library(String),
    Framework(&'static str),
}

/// Concluded from the names that the archives leave to others.
fn needs(archives: &[&Library<'_>], all: &[Library<'_>], target: &Target) -> Vec<Need> {
    let defined: BTreeSet<&str> = all.iter().flat_map(|library| library.image.defined_names()).collect();
    let open: BTreeSet<&str> = archives
        .iter()
        .flat_map(|library| library.image.undefined_names())
        .filter(|name| !defined.contains(name))
        .collect();
    let begins =
        |prefixes: &[&str]| open.iter().any(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    let mut needs = Vec::new();
    let mut library = |name: &str| needs.push(Need::Library(name.to_owned()));

    let nvidia: Vec<&str> = open.iter().copied().filter(|name| Group::CudaRuntime.has(name)).collect();
    let of =
        |prefixes: &[&str]| nvidia.iter().any(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    if of(&["cuda", "__cuda"]) {
        library("dylib=cudart");
    }
    if of(&["cublas"]) {
        library("dylib=cublas");
    }
    if nvidia.iter().any(|name| !["cuda", "__cuda", "cublas"].iter().any(|prefix| name.starts_with(prefix))) {
        library("dylib=cuda");
    }
    // `omp_*` is of both; clang's has names of its own besides.
    if begins(&["__kmpc_"]) {
        library("dylib=omp");
    } else if begins(&["GOMP_", "omp_get_", "omp_set_", "omp_init_", "omp_in_parallel"]) {
        library("dylib=gomp");
    }
    // clang's library puts its names into a namespace of its own, so the names say which one was used.
    let clang = begins(&["_ZNSt3__1", "_ZNKSt3__1", "_ZTVNSt3__1", "_ZSt3__1"]);
    let any = clang
        || begins(&["_ZSt", "_ZNSt", "_ZNKSt", "_Znwm", "_Znam", "_ZdlPv", "__cxa_", "__gxx_personality"]);
    if any && target.env != "msvc" {
        let uses_clang = clang || target.is_apple() || matches!(target.os.as_str(), "freebsd" | "openbsd");
        library(match (target.os.as_str(), uses_clang) {
            ("android", _) => "dylib=c++_shared",
            (_, true) => "dylib=c++",
            (_, false) => "dylib=stdc++",
        });
    }
    if target.os == "linux" && !archives.is_empty() {
        for name in ["m", "dl", "pthread"] {
            library(&format!("dylib={name}"));
        }
    }
    if target.os == "windows" && begins(&REGISTRY) {
        library("dylib=advapi32");
    }
    if target.is_apple() {
        if begins(&["cblas_", "vDSP_", "dgemm_", "sgemm_"]) {
            needs.push(Need::Framework("Accelerate"));
        }
        if begins(&["OBJC_CLASS_$_NS", "OBJC_CLASS_$_MTL", "MTL", "objc_"]) {
            needs.push(Need::Framework("Foundation"));
        }
        if begins(&["OBJC_CLASS_$_MTL", "MTL"]) {
            needs.push(Need::Framework("Metal"));
            needs.push(Need::Framework("MetalKit"));
        }
    }
    if needs.iter().any(|need| matches!(need, Need::Library(name) if name.starts_with("dylib=cu"))) {
        needs.splice(0..0, cuda_folders().into_iter().map(Need::Folder));
    }
    needs
}

/// Functions of Windows' registry, which ggml asks about the processor.
const REGISTRY: [&str; 8] = [
    "RegOpenKey",
    "RegCloseKey",
    "RegQueryValue",
    "RegGetValue",
    "__imp_RegOpenKey",
    "__imp_RegCloseKey",
    "__imp_RegQueryValue",
    "__imp_RegGetValue",
];

/// Where the CUDA toolkit has its libraries, by its own variables or its usual place.
fn cuda_folders() -> Vec<PathBuf> {
    let roots = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    roots
        .chain([PathBuf::from("/usr/local/cuda")])
        .flat_map(|root| ["lib64", "lib64/stubs", "lib/x64"].map(|below| root.join(below)))
        .filter(|folder| folder.is_dir())
        .collect()
}
