//! For build scripts: cfg flags, link lines, and functions that exist whether a library is there or not.
//!
//! ```no_run
//! // build.rs, in its main function
//! gristmill_probe::build::Backend::new().cuda_with_feature("cuda").emit();
//! ```
//!
//! ```text
//! // lib.rs
//! mod bitnet_cpp {
//!     include!(concat!(env!("OUT_DIR"), "/bitnet_cpp.rs"));
//! }
//! ```
//!
//! The flags are `bitnet_cpp_available` (a library is linked), `bitnet_cpp_has_cuda` (one of the libraries has a
//! CUDA backend), `bitnet_cpp_has_bitnet_lib` (bitnet.cpp's functions are among them), and one for each kernel family
//! that the libraries compute products of, such as `bitnet_cpp_has_i2_s`. Each is announced to the compiler in any
//! case, so that a misspelt one is found.
//!
//! Link lines reach every crate that links this one. RPATH is set for the programs and tests of the package whose
//! build script this is, which is as far as cargo lets a build script go.

#[cfg(feature = "bindgen")]
mod bindings;
mod generate;
mod lines;
mod link;

use crate::discover::{Discovery, Found, Linkage, Search, Target, VARIABLES, Verdict};
use crate::error::Error;
use crate::families::Family;
use crate::printable::{printable_lines, printable_path};
use lines::Lines;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file with the functions, in `OUT_DIR`.
pub const FILE: &str = "bitnet_cpp.rs";

/// The cfg flags that do not belong to a family.
const FLAGS: [&str; 3] = ["bitnet_cpp_available", "bitnet_cpp_has_cuda", "bitnet_cpp_has_bitnet_lib"];

/// What a build script asks for.
#[derive(Clone, Debug, Default)]
pub struct Backend {
    required: bool,
    cuda: Option<String>,
    without_cuda: Option<String>,
    families: Vec<Family>,
    linkage: Option<Linkage>,
    no_rpath: bool,
    bindings: bool,
    search: Option<Search>,
}

/// What a build script told cargo.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// What was looked at and found.
    pub discovery: Discovery,
    /// The cfg flags that were set.
    pub flags: Vec<&'static str>,
}

impl Backend {
    /// Takes a library if there is one.
    pub fn new() -> Backend {
        Backend::default()
    }

    /// Fails the build if there is none.
    pub fn required(mut self) -> Backend {
        self.required = true;
        self
    }

    /// Fails the build if the libraries have no CUDA backend. `asked_by` says who wants it, in the error.
    pub fn cuda(mut self, asked_by: impl Into<String>) -> Backend {
        self.cuda = Some(asked_by.into());
        self
    }

    /// The same if cargo builds with this feature of the dependent.
    pub fn cuda_with_feature(self, feature: &str) -> Backend {
        let variable = format!("CARGO_FEATURE_{}", feature.to_uppercase().replace('-', "_"));
        match std::env::var_os(variable) {
            Some(_) => self.cuda(format!("by the feature `{feature}`")),
            None => self,
        }
    }

    /// Takes no library with a CUDA backend: nothing of CUDA is linked. `asked_by` says who wants it so.
    pub fn without_cuda(mut self, asked_by: impl Into<String>) -> Backend {
        self.without_cuda = Some(asked_by.into());
        self
    }

    /// Fails the build if the libraries compute no products of a family.
    pub fn family(mut self, family: Family) -> Backend {
        self.families.push(family);
        self
    }

    /// Takes only shared or only static libraries.
    pub fn only(mut self, linkage: Linkage) -> Backend {
        self.linkage = Some(linkage);
        self
    }

    /// Leaves finding shared libraries at run time to whoever installs the program.
    pub fn without_rpath(mut self) -> Backend {
        self.no_rpath = true;
        self
    }

    /// Makes bindings to everything in the headers beside the library, in `bitnet_cpp::bindings`.
    #[cfg(feature = "bindgen")]
    pub fn bindings(mut self) -> Backend {
        self.bindings = true;
        self
    }

    /// Looks where this says, instead of in all the usual places.
    pub fn search(mut self, search: Search) -> Backend {
        self.search = Some(search);
        self
    }

    /// Looks, checks, and tells cargo. On an error it prints it and ends the build script with exit code 1.
    pub fn emit(self) {
        let mut out = std::io::stdout().lock();
        if let Err(error) = self.try_emit(&mut out) {
            let text = error.to_string();
            // Cargo shows the first line in its own style and the script's stderr below. If standard output is
            // gone, nobody reads either.
            let _ = writeln!(out, "cargo::error={}", text.lines().next().unwrap_or("no usable C++ backend"));
            eprintln!("{text}");
            std::process::exit(1);
        }
    }

    /// As [`emit`](Backend::emit), with the lines for cargo written to `out`, and the error returned.
    ///
    /// # Errors
    /// If what was asked for is not there, a variable points nowhere, or files can't be written.
    pub fn try_emit(&self, out: &mut dyn Write) -> Result<Emitted, Error> {
        let folder = std::env::var_os("OUT_DIR").ok_or(Error::NoBuildScript("OUT_DIR"))?;
        self.emit_into(Path::new(&folder), out)
    }

    /// The same with the folder for the generated file given.
    ///
    /// # Errors
    /// Like [`try_emit`](Backend::try_emit).
    pub fn emit_into(&self, folder: &Path, out: &mut dyn Write) -> Result<Emitted, Error> {
        let search = match &self.search {
            Some(search) => search.clone(),
            None => Search::from_env(Target::from_cargo()?),
        };
        let search = match self.linkage {
            Some(linkage) => search.only(linkage),
            None => search,
        };
        let discovery = search.run();
        let mut lines = Lines { out };
        // First, so that cargo looks again after an error too.
        watch(&discovery, &mut lines)?;
        self.check(&discovery)?;
        if discovery.is_empty() {
            // Somebody who has a library wants to know why it is not used.
            for refusal in refusals(&discovery) {
                lines.say("warning", format_args!("no C++ backend: {refusal}"))?;
            }
        }
        let flags = flags(&discovery);
        for flag in FLAGS.into_iter().chain(Family::ALL.map(Family::cfg)) {
            lines.say("rustc-check-cfg", format_args!("cfg({flag})"))?;
        }
        for flag in &flags {
            lines.say("rustc-cfg", flag)?;
        }
        link::lines(&discovery, !self.no_rpath, &mut lines)?;
        let bindings = self.make_bindings(&discovery)?;
        generate::write(&discovery, bindings.as_deref(), &folder.join(FILE))?;
        Ok(Emitted { discovery, flags })
    }

    /// Holds what was found against what was asked for.
    fn check(&self, discovery: &Discovery) -> Result<(), Error> {
        let wanted = self.required || self.cuda.is_some() || !self.families.is_empty();
        if discovery.is_empty() && (wanted || !discovery.variables.is_empty()) {
            return Err(discovery.nothing());
        }
        let libraries = || discovery.file_names().join(", ");
        if let Some(asked) = &self.cuda
            && !discovery.has_cuda()
        {
            let undefined = discovery.libraries().iter().map(|l| l.image.count(crate::Group::Cuda).1).sum();
            return Err(Error::NoCuda { asked: asked.clone(), library: libraries(), undefined });
        }
        if let Some(asked) = &self.without_cuda {
            for library in discovery.libraries() {
                let facts = library.facts();
                if let Some(symbol) = facts.cuda.first() {
                    return Err(Error::UnwantedCuda {
                        asked: asked.clone(),
                        path: library.path.to_owned(),
                        symbol: symbol.clone(),
                    });
                }
            }
        }
        for family in &self.families {
            if !discovery.has(*family) {
                return Err(Error::NoFamily { family: *family, library: libraries() });
            }
        }
        Ok(())
    }

    #[cfg(feature = "bindgen")]
    fn make_bindings(&self, discovery: &Discovery) -> Result<Option<String>, Error> {
        if self.bindings && !discovery.is_empty() { bindings::make(discovery).map(Some) } else { Ok(None) }
    }

    #[cfg(not(feature = "bindgen"))]
    fn make_bindings(&self, _: &Discovery) -> Result<Option<String>, Error> {
        debug_assert!(!self.bindings, "only the feature `bindgen` can ask for them");
        Ok(None)
    }
}

/// The flags that hold.
fn flags(discovery: &Discovery) -> Vec<&'static str> {
    let mut flags = Vec::new();
    let [available, cuda, bitnet] = FLAGS;
    if !discovery.is_empty() {
        flags.push(available);
    }
    if discovery.has_cuda() {
        flags.push(cuda);
    }
    if discovery.has_bitnet() {
        flags.push(bitnet);
    }
    flags.extend(Family::ALL.into_iter().filter(|family| discovery.has(*family)).map(Family::cfg));
    flags
}

/// Tells cargo when to look again.
fn watch(discovery: &Discovery, lines: &mut Lines<'_>) -> Result<(), Error> {
    for variable in VARIABLES.into_iter().chain(["PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"]) {
        lines.say("rerun-if-env-changed", variable)?;
    }
    // Cargo reads a watched folder with everything below it, so the system's folders are not watched as a whole,
    // only the files in them that were looked at. A path that does not exist makes cargo look every time, which is
    // right where a variable points to it, and a waste elsewhere.
    let mut watched: Vec<PathBuf> = Vec::new();
    for (_, value) in &discovery.variables {
        if !value.exists() {
            watched.push(value.clone());
        }
    }
    for place in &discovery.places {
        let holds_libraries = match place.found {
            Found::Files(count) => count > 0,
            Found::Missing | Found::Unreadable(_) => false,
        };
        let named = discovery.variables.iter().any(|(_, value)| *value == place.path);
        if matches!(place.origin, crate::discover::Origin::Variable(_))
            && (holds_libraries || named)
            && place.path.exists()
        {
            watched.push(place.path.clone());
        }
    }
    watched.extend(discovery.candidates.iter().map(|candidate| candidate.path.clone()));
    // A root covers what is below it.
    let roots = watched.clone();
    watched.retain(|path| !roots.iter().any(|root| root != path && path.starts_with(root)));
    watched.sort();
    watched.dedup();
    for path in watched {
        lines.say("rerun-if-changed", path.display())?;
    }
    Ok(())
}

/// The reasons for which candidates were refused.
fn refusals(discovery: &Discovery) -> Vec<String> {
    discovery
        .candidates
        .iter()
        .filter_map(|candidate| match &candidate.verdict {
            Verdict::Refused(why) => {
                Some(format!("{}: {}", printable_path(&candidate.path), printable_lines(why)))
            }
            Verdict::Taken(_) => None,
        })
        .collect()
}
