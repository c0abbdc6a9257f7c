//! The errors of this package: what, where, why, and what would help.

use crate::analyze::{Arch, Container, Kind};
use crate::backend::NotFollowed;
use crate::families::Family;
use crate::printable::{printable, printable_lines, printable_list, printable_path};
use std::path::PathBuf;

/// Why a library can't be found, read, linked or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file can't be read or written.
    #[error("can't {action} `{}`: {source}", printable_path(path))]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no library of any kind.
    #[error("`{}` is not a library: it is {what}\n  help: name a .so, .dylib, .dll, .a or .lib file", printable_path(path), what = printable(what))]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What it seems to be.
        what: String,
    },
    /// The file is larger than what is read into memory.
    #[error(
        "`{}` has {found} bytes, and no more than {most} are read\n  help: name a library; none is this large",
        printable_path(path)
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
        /// The limit in bytes.
        most: u64,
    },
    /// The file names more bytes than it has.
    #[error(
        "`{}` is truncated: its headers speak of {declared} bytes, the file has {found}\n  \
         help: copy or build it again",
        printable_path(path)
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the last part should end, in bytes.
        declared: u64,
        /// The size of the file in bytes.
        found: u64,
    },
    /// Headers or tables contradict each other.
    #[error("`{}` is damaged: {what}\n  help: copy or build it again", printable_path(path), what = printable(what))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What does not hold.
        what: String,
    },
    /// A library from which nothing can be called.
    #[error(
        "`{}` has no symbols: it was stripped, or built with every symbol hidden\n  \
         help: build it without `strip --strip-all` on archives and objects, and with its API exported",
        printable_path(path)
    )]
    Stripped {
        /// The file.
        path: PathBuf,
    },
    /// It is for another processor.
    #[error(
        "`{}` is for {}, not for {wanted}\n  help: build the library for {wanted}, or name one that is",
        printable_path(path),
        Arch::list(found)
    )]
    WrongArchitecture {
        /// The file.
        path: PathBuf,
        /// What it has code for.
        found: Vec<Arch>,
        /// What was wanted.
        wanted: Arch,
    },
    /// It is for another system.
    #[error(
        "`{}` is {found}, which {os} does not use\n  help: name a library built for {os}",
        printable_path(path)
    )]
    WrongSystem {
        /// The file.
        path: PathBuf,
        /// Its container.
        found: Container,
        /// The system, as Rust names it.
        os: String,
    },
    /// It can be linked, but not loaded into a running program.
    #[error(
        "`{}` is {kind} and can't be loaded into a running program\n  help: name the shared library",
        printable_path(path)
    )]
    NotLoadable {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: Kind,
    },
    /// Functions that were asked for are not defined.
    #[error("`{}` does not define {}", printable_path(path), printable_list(symbols))]
    MissingSymbols {
        /// The file.
        path: PathBuf,
        /// Those that are missing.
        symbols: Vec<String>,
    },
    /// CUDA was asked of a library without it.
    #[error(
        "CUDA was asked for ({asked}), but `{library}` is a CPU-only library: it defines no CUDA backend{}\n  \
         help: build the library with -DGGML_CUDA=ON, or don't ask for CUDA",
        undefined_note(*undefined), library = printable(library)
    )]
    NoCuda {
        /// Who asked.
        asked: String,
        /// The libraries that were looked at.
        library: String,
        /// How many CUDA names it only refers to.
        undefined: usize,
    },
    /// No CUDA was asked for, and a library has it.
    #[error(
        "no CUDA was asked for ({asked}), but `{}` has a CUDA backend: it defines {symbol}\n  \
         help: name a library built with -DGGML_CUDA=OFF, or allow CUDA",
        printable_path(path), symbol = printable(symbol)
    )]
    UnwantedCuda {
        /// Who asked.
        asked: String,
        /// The library.
        path: PathBuf,
        /// A function of the backend.
        symbol: String,
    },
    /// A kernel family was asked of a library without it.
    #[error(
        "{family} kernels were asked for, but `{library}` has none ({})\n  help: {}",
        family.looked_for(),
        family.how_to_get(),
        library = printable(library)
    )]
    NoFamily {
        /// The family.
        family: Family,
        /// The libraries that were looked at.
        library: String,
    },
    /// The library states another ABI version than the one asked for.
    #[error(
        "`{}` states ABI version {found}, but {wanted} is needed\n  help: build against that library, or install one with ABI version {wanted}",
        printable_path(path)
    )]
    WrongAbi {
        /// The file.
        path: PathBuf,
        /// What it states.
        found: u64,
        /// What is needed.
        wanted: u64,
    },
    /// An ABI version was asked for, and the library states none.
    #[error("`{}` states no ABI version, but {wanted} is needed ({looked_for})", printable_path(path))]
    NoAbi {
        /// The file.
        path: PathBuf,
        /// Where a version was looked for.
        looked_for: String,
        /// What is needed.
        wanted: u64,
    },
    /// A library that this one needs is there and can't be used.
    #[error("`{}` needs `{needed}`, which can't be used: {source}", printable_path(path), needed = printable(needed))]
    Dependency {
        /// The file.
        path: PathBuf,
        /// The library it needs.
        needed: String,
        /// Why not.
        source: Box<Error>,
    },
    /// A library that this one needs is there, but older than the one it was built with.
    #[error(
        "`{}` needs {version}, which `{}` does not have: it was built on a newer system\n  \
         help: build the library on this system, or run this on a newer one",
        printable_path(path), printable_path(found), version = printable(version)
    )]
    TooOld {
        /// The file.
        path: PathBuf,
        /// The symbol version that it needs.
        version: String,
        /// The library that should have it.
        found: PathBuf,
    },
    /// The loader takes another file for a needed library than the one that was validated.
    #[error(
        "`{}` needs `{needed}` and was validated with `{}`, but the loader takes `{}` for that name: calls would go \
         there\n  help: drop every handle of the library that holds the other one, give the two different SONAMEs, or \
         use a process of its own",
        printable_path(path), printable_path(validated), printable(mapped), needed = printable(needed)
    )]
    OtherDependency {
        /// The file that needs it.
        path: PathBuf,
        /// The name by which it asks for it.
        needed: String,
        /// The file that was validated.
        validated: PathBuf,
        /// What is, or would be, mapped in its place: a file, or a file that was deleted since it was mapped.
        mapped: String,
    },
    /// A library that is needed was not validated, because a limit was reached.
    #[error(
        "`{}` needs `{needed}`, which was not validated: {why}; the library was not loaded\n  \
         help: set higher limits with `Requirements::limits`",
        printable_path(path), needed = printable(needed)
    )]
    NotValidated {
        /// The file that needs it.
        path: PathBuf,
        /// The name by which it asks for it.
        needed: String,
        /// Which limit it was.
        why: NotFollowed,
    },
    /// What a loader maps can't be seen on this system, so it can't be compared with what was validated.
    #[error(
        "`{}` needs `{needed}`, and on {os} it can't be seen which file the loader takes for it: the library was not \
         loaded\n  help: link it statically into the library",
        printable_path(path), needed = printable(needed)
    )]
    Unseen {
        /// The file that needs it.
        path: PathBuf,
        /// The name by which it asks for it.
        needed: String,
        /// The system, as Rust names it.
        os: &'static str,
    },
    /// The file is not the one that was validated.
    #[error(
        "`{}` was changed between validation and loading; it was not loaded\n  help: validate it again",
        printable_path(path)
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Another library of this path is in use.
    #[error(
        "`{}` is still in use, and the system would hand out the old library again\n  \
         help: install the new one under another name, or drop every handle of the old one first",
        printable_path(path)
    )]
    StillLoaded {
        /// The file.
        path: PathBuf,
    },
    /// The system's loader refused.
    #[error("can't load `{}`: {}", printable_path(path), printable_lines(&source.to_string()))]
    Load {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: libloading::Error,
    },
    /// A function is not in a loaded library.
    #[error("`{}` has no `{}`: {}", printable_path(path), printable(symbol), printable_lines(&source.to_string()))]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The name.
        symbol: String,
        /// What the loader said.
        source: libloading::Error,
    },
    /// A variable names a place that has no library.
    #[error(
        "{variable} is set to `{}`, but no usable library is there\n{report}\n  \
         help: let it name the folder of a bitnet.cpp or llama.cpp build, or unset it",
        printable_path(value)
    )]
    VariableWithoutLibrary {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: PathBuf,
        /// What was looked at.
        report: String,
    },
    /// An argument names a place that has no library.
    #[error(
        "{argument} names `{}`, but no usable library is there\n{report}\n  \
         help: let it name the folder of a bitnet.cpp or llama.cpp build, or leave it away",
        printable_path(value)
    )]
    ArgumentWithoutLibrary {
        /// The argument.
        argument: &'static str,
        /// Its value.
        value: PathBuf,
        /// What was looked at.
        report: String,
    },
    /// A library is required and none is there.
    #[error(
        "no C++ backend was found\n{report}\n  help: set BITNET_CPP_DIR to a bitnet.cpp or llama.cpp build"
    )]
    NoLibrary {
        /// What was looked at.
        report: String,
    },
    /// A value that can't be told to cargo, whose lines end where it goes on.
    #[error(
        "`{}` has an end of line in it, so it can't be told to cargo\n  help: rename the file or folder",
        printable(value)
    )]
    LineEnd {
        /// The value.
        value: String,
    },
    /// Not run by cargo as a build script.
    #[error("{0} is not set: this is only for build scripts, which cargo runs")]
    NoBuildScript(&'static str),
    /// Bindings were asked for, and there are no headers.
    #[error("bindings need llama.h or ggml.h beside `{}`; looked in {looked}\n  help: set BITNET_CPP_DIR to a folder that has the headers too", printable_path(library), looked = printable_lines(looked))]
    NoHeaders {
        /// The library.
        library: PathBuf,
        /// The folders that were looked at.
        looked: String,
    },
    /// bindgen failed.
    #[error("bindgen failed on `{}`: {message}", printable_path(header), message = printable_lines(message))]
    Bindings {
        /// The header.
        header: PathBuf,
        /// What it said.
        message: String,
    },
    /// A word that is none of those known.
    #[error("`{word}` is no {what}; there are: {known}", word = printable(word))]
    UnknownWord {
        /// The word.
        word: String,
        /// What it should have been.
        what: &'static str,
        /// The words there are.
        known: String,
    },
    /// No backend suits.
    #[error("no C++ backend suits: {reasons}", reasons = printable_lines(reasons))]
    NoBackend {
        /// Why each was refused.
        reasons: String,
    },
}

fn undefined_note(undefined: usize) -> String {
    match undefined {
        0 => String::new(),
        1 => String::from(" (it refers to 1 CUDA name, which says nothing about what is in it)"),
        count => format!(" (it refers to {count} CUDA names, which says nothing about what is in it)"),
    }
}

impl Error {
    /// An error about a file, for `map_err`.
    pub(crate) fn file(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::File { action, path: path.to_owned(), source }
    }
}
