//! Looking, and choosing among what was found.

use super::discovery::{Candidate, Discovery, Found, Place, Verdict};
use super::name::{FileName, Linkage};
use super::places::{self, Origin, VARIABLES};
use super::search::Search;
use crate::analyze::{Analysis, analyze};
use crate::error::Error;
use crate::printable::printable_path;
use crate::symbols::Group;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// More files with a library's name than a folder of any build has. Each is read as a whole.
const MOST_CANDIDATES: usize = 200;

impl Search {
    /// Looks.
    pub fn run(&self) -> Discovery {
        run(self)
    }

    /// Looks, and demands a library.
    ///
    /// # Errors
    /// [`Error::VariableWithoutLibrary`] or [`Error::NoLibrary`], with the report.
    pub fn require(&self) -> Result<Discovery, Error> {
        let discovery = self.run();
        if discovery.is_empty() { Err(discovery.nothing()) } else { Ok(discovery) }
    }
}

fn run(search: &Search) -> Discovery {
    let mut found = Discovery {
        target: search.target.clone(),
        variables: search.variables.clone(),
        places: Vec::new(),
        candidates: Vec::new(),
        stopped: None,
    };
    for (name, value) in &search.variables {
        for folder in places::of_variable(name, value) {
            look(search, &mut found, folder, Origin::Variable(name));
        }
    }
    if let Some((name, _)) = search.variables.first() {
        found.stopped = Some(match VARIABLES.contains(name) {
            true => format!("{name} is set, and a variable that is set is obeyed"),
            false => format!("{name} is given"),
        });
        return found;
    }
    if let Some(home) = &search.home {
        for folder in places::of_root(&home.join(".cache/bitnet_cpp")) {
            look(search, &mut found, folder, Origin::Home);
        }
        if !found.is_empty() {
            found.stopped = Some(String::from("bitnet.cpp's cache has libraries"));
            return found;
        }
    }
    if search.pkg_config {
        for package in places::PACKAGES {
            pkg_config(search, &mut found, package);
        }
        if !found.is_empty() {
            found.stopped = Some(String::from("pkg-config knows a library"));
            return found;
        }
    }
    for folder in &search.system {
        look(search, &mut found, folder.clone(), Origin::System);
    }
    found
}

/// Asks pkg-config where a package's libraries are.
fn pkg_config(search: &Search, found: &mut Discovery, package: &'static str) {
    let origin = Origin::PkgConfig(package);
    let asked = pkg_config::Config::new().cargo_metadata(false).env_metadata(false).probe(package);
    match asked {
        Ok(library) if library.link_paths.is_empty() => {
            // pkg-config leaves out the system's own folders.
            for folder in &search.system {
                look(search, found, folder.clone(), origin.clone());
            }
        }
        Ok(library) => {
            for folder in library.link_paths {
                look(search, found, folder, origin.clone());
            }
        }
        Err(error) => {
            let why = match error {
                pkg_config::Error::ProbeFailure { .. } | pkg_config::Error::Failure { .. } => {
                    String::from("pkg-config does not know it")
                }
                pkg_config::Error::Command { cause, .. } => format!("pkg-config can't be run: {cause}"),
                other => format!("pkg-config was not asked: {}", first_line(&other.to_string())),
            };
            found.places.push(Place { path: PathBuf::from(package), origin, found: Found::Unreadable(why) });
        }
    }
}

fn first_line(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

/// Looks into one folder.
fn look(search: &Search, found: &mut Discovery, folder: PathBuf, origin: Origin) {
    if found.places.iter().any(|place| place.path == folder) {
        return;
    }
    let mut files: Vec<(FileName, PathBuf)> = Vec::new();
    let state = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Found::Missing,
        Err(error) => Found::Unreadable(format!("can't be read: {error}")),
        Ok(entries) => {
            for entry in entries.flatten() {
                // A name that is not UTF-8 is none of ours.
                let name = entry.file_name().to_str().and_then(FileName::parse);
                if let Some(name) = name {
                    files.push((name, entry.path()));
                }
            }
            Found::Files(files.len())
        }
    };
    found.places.push(Place { path: folder, origin, found: state });
    let place = found.places.len() - 1;
    // Shared before static, the name that a linker finds before others, the newest version, and never by the
    // order in which the system happens to list them.
    files.sort_by(|(a, a_path), (b, b_path)| {
        let key = |name: &FileName| (name.role, name.stem.clone(), name.linkage, Reverse(name.plain));
        key(a).cmp(&key(b)).then_with(|| b.version.cmp(&a.version)).then_with(|| a_path.cmp(b_path))
    });
    for (index, (name, path)) in files.into_iter().enumerate() {
        let verdict = if index < MOST_CANDIDATES {
            judge(search, found, &name, &path)
        } else {
            Verdict::Refused(format!("not read: it comes after {MOST_CANDIDATES} others in its folder"))
        };
        found.candidates.push(Candidate { path, name, place, verdict });
    }
}

/// Whether a file is taken, given those that were taken before.
fn judge(search: &Search, found: &Discovery, name: &FileName, path: &Path) -> Verdict {
    let refused = |why: String| Verdict::Refused(why);
    let taken = found
        .candidates
        .iter()
        .find(|other| other.name.stem == name.stem && matches!(other.verdict, Verdict::Taken(_)));
    if let Some(other) = taken {
        let same = path.canonicalize().ok().zip(other.path.canonicalize().ok()).is_some_and(|(a, b)| a == b);
        let file = printable_path(&other.path);
        return refused(if same {
            format!("the same file as `{file}`")
        } else {
            format!("`{file}` comes first")
        });
    }
    let analysis = match analyze(path).and_then(Analysis::library) {
        Ok(analysis) => analysis,
        Err(error) => return refused(first_line(&error.to_string()).to_owned()),
    };
    let fits = analysis
        .image(&search.target.arch)
        .map(|_| ())
        .and_then(|()| analysis.fits_system(&search.target.os));
    if let Err(error) = fits {
        return refused(first_line(&error.to_string()).to_owned());
    }
    let linkage = Linkage::of(analysis.kind);
    if let Some(only) = search.linkage.filter(|only| *only != linkage) {
        let wanted = match only {
            Linkage::Shared => "shared",
            Linkage::Static => "static",
        };
        return refused(format!("it is {}, and only {wanted} libraries were asked for", analysis.kind));
    }
    let ours = [Group::Bitnet, Group::Llama, Group::Ggml, Group::Cuda, Group::Quantization];
    let offers = analysis
        .images
        .iter()
        .flat_map(|image| image.defined_names())
        .any(|symbol| ours.iter().any(|group| group.has(symbol)));
    if !offers {
        return refused(String::from("it defines no function of bitnet.cpp, llama.cpp or ggml"));
    }
    Verdict::Taken(Box::new(analysis))
}
