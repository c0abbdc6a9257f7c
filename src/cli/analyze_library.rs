//! `gristmill analyze-library`: what a C++ library offers, read from its tables without loading it.

use super::error::{CliError, Outcome};
use super::json::print_json;
use super::table::{Side, Table, bytes, counted, first_of};
use gristmill::text::Printable;
use gristmill_probe::analyze::{CpuVariant, Facts, Image, Needed, Symbol};
use gristmill_probe::backend::{Followed, Report, Requirements, Unfollowed, validate};
use gristmill_probe::{Analysis, Evidence, Family, Group, Kind, printable, printable_path};
use gristmill_records::library as record;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Say what a C++ library offers, without loading it
///
/// Reads ELF, Mach-O, PE and archives. A kernel family counts only by names of its own that the library defines;
/// names that it only refers to show nothing. Names are escaped where a terminal would obey them.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The library: .so, .dylib, .dll, .a, .lib
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Follow the libraries that it needs as this machine's loader would, within limits; nothing is loaded
    #[arg(long)]
    needs: bool,
    /// Print JSON, with every symbol
    #[arg(long)]
    pub(super) json: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let analysis = gristmill_probe::analyze(&arguments.path)?.library()?;
    let report = if arguments.needs {
        Some(validate(&arguments.path, &Requirements::new())?.report().clone())
    } else {
        None
    };
    if arguments.json {
        print_json(out, &library(&analysis, report.as_ref()))?;
        return Ok(Outcome::Yes);
    }
    writeln!(out, "{}: {}, {}", printable_path(&analysis.path), analysis.kind, bytes(analysis.bytes))?;
    for image in &analysis.images {
        print_image(&analysis, image, out)?;
    }
    if let Some(report) = report {
        print_needs(&report, out)?;
    }
    Ok(Outcome::Yes)
}

fn needed(needed: &Needed) -> String {
    // All are in the JSON; the highest says which system is new enough.
    match needed.versions.iter().max_by_key(|version| number_key(version)) {
        None => printable(&needed.name).into_owned(),
        Some(version) => format!("{} ({})", printable(&needed.name), printable(version)),
    }
}

/// Names of a file, separated by commas.
fn list(names: &[String]) -> String {
    names.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", ")
}

/// Each needed library with the file that was validated, or why it was not followed.
fn print_needs(report: &Report, out: &mut dyn Write) -> Result<(), CliError> {
    writeln!(out)?;
    let mut table =
        Table::new(&[("needed library", Side::Left), ("needed by", Side::Left), ("file", Side::Left)]);
    for followed in &report.followed {
        let system = if followed.of_system { " (the system's)" } else { "" };
        table.row([
            printable(&followed.needed).into_owned(),
            printable_path(&followed.by),
            format!("{}{system}", printable_path(&followed.path)),
        ]);
    }
    for left in &report.unfollowed {
        table.row([
            printable(&left.needed).into_owned(),
            printable_path(&left.by),
            format!("not followed: {}", left.why),
        ]);
    }
    table.print(out)?;
    Ok(())
}

/// Orders `GLIBC_2.9` before `GLIBC_2.34`.
fn number_key(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

fn print_image(analysis: &Analysis, image: &Image, out: &mut dyn Write) -> Result<(), CliError> {
    let facts = Facts::of(image, &analysis.path);
    let mut about = Table::new(&[("", Side::Left), ("", Side::Left)]);
    about.row(["format".to_owned(), format!("{}, {}", image.container, image.arch)]);
    if let Some(soname) = &image.soname {
        let version = match (image.soname_version(), &image.version) {
            (Some(abi), _) => format!(" (ABI version {abi})"),
            (None, Some(version)) => format!(" (version {version})"),
            (None, None) => String::new(),
        };
        about.row(["name".to_owned(), format!("{}{version}", printable(soname))]);
    }
    for (name, value) in &image.abi_constants {
        about.row(["states".to_owned(), format!("{} = {value}", printable(name))]);
    }
    if !image.defined_versions.is_empty() {
        about.row(["symbol versions".to_owned(), list(&image.defined_versions)]);
    }
    let objects = match (analysis.kind, image.unreadable_members) {
        (Kind::Static, 0) => Some(counted(image.members, "member")),
        (Kind::Static, bitcode) => {
            Some(format!("{}, {bitcode} of them bitcode that is not read", counted(image.members, "member")))
        }
        (Kind::Shared | Kind::Import | Kind::Object | Kind::Executable, _) => None,
    };
    if let Some(objects) = objects {
        about.row(["objects".to_owned(), objects]);
    }
    let libraries: Vec<String> = image.needed.iter().map(needed).collect();
    about.row([
        "needs".to_owned(),
        if libraries.is_empty() { "nothing".to_owned() } else { libraries.join(", ") },
    ]);
    if !image.search_paths.is_empty() {
        about.row(["looks in".to_owned(), list(&image.search_paths)]);
    }
    about.print_plain(out)?;

    writeln!(out)?;
    let mut names =
        Table::new(&[("names", Side::Left), ("defined", Side::Right), ("only referred to", Side::Right)]);
    for (group, defined, undefined) in &facts.groups {
        names.row([group.to_string(), defined.to_string(), undefined.to_string()]);
    }
    names.row(["all".to_owned(), image.defined.len().to_string(), image.undefined.len().to_string()]);
    names.print(out)?;

    writeln!(out)?;
    let mut families = Table::new(&[
        ("kernel family", Side::Left),
        ("device", Side::Left),
        ("for", Side::Left),
        ("shown by", Side::Left),
    ]);
    for family in Family::ALL {
        let of: Vec<&Evidence> = facts.families.iter().filter(|e| e.family == family).collect();
        if of.is_empty() {
            families.row([family.to_string(), "-".to_owned(), "not there".to_owned(), String::new()]);
        }
        for evidence in of {
            families.row([
                family.to_string(),
                evidence.device.to_string(),
                evidence.job.to_string(),
                some(&evidence.symbols),
            ]);
        }
    }
    families.print(out)?;

    let referred = facts.groups.iter().find(|(group, ..)| *group == Group::Cuda).map_or(0, |g| g.2);
    writeln!(out)?;
    match (facts.has_cuda(), referred) {
        (true, _) => writeln!(
            out,
            "CUDA backend: yes, it defines {}; {}",
            Printable(&some(&facts.cuda)),
            if image.gpu_code {
                "with code for GPUs inside"
            } else {
                "no section with code for GPUs was found"
            }
        )?,
        (false, 0) => writeln!(out, "CUDA backend: no")?,
        (false, count) => writeln!(
            out,
            "CUDA backend: no; it refers to {}, which somebody else would have to define",
            counted(count, "name")
        )?,
    }
    let variants: Vec<&str> = facts.cpu_variants.iter().map(|variant| variant.name.as_str()).collect();
    if !variants.is_empty() {
        writeln!(out, "code for processors with: {}", Printable(&variants.join(", ")))?;
    }
    Ok(())
}

/// The first names of a list, and how many there are besides.
fn some(names: &[String]) -> String {
    first_of(&names.iter().map(|name| printable(name).into_owned()).collect::<Vec<_>>(), 3)
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn library(analysis: &Analysis, report: Option<&Report>) -> record::Library {
    record::Library {
        path: path(&analysis.path),
        bytes: analysis.bytes,
        kind: analysis.kind.to_string(),
        images: analysis.images.iter().map(|of| image(analysis, of)).collect(),
        needs: report.map(needs),
    }
}

fn needs(report: &Report) -> record::Needs {
    let followed = |followed: &Followed| record::Followed {
        needed: followed.needed.clone(),
        by: path(&followed.by),
        file: path(&followed.path),
        of_system: followed.of_system,
    };
    let not_followed = |left: &Unfollowed| record::NotFollowed {
        needed: left.needed.clone(),
        by: path(&left.by),
        why: left.why.to_string(),
        limit: left.why.is_limit(),
    };
    record::Needs {
        followed: report.followed.iter().map(followed).collect(),
        not_followed: report.unfollowed.iter().map(not_followed).collect(),
    }
}

fn image(analysis: &Analysis, image: &Image) -> record::Image {
    let facts = Facts::of(image, &analysis.path);
    let abi_constant =
        |(name, value): &(String, u32)| record::AbiConstant { name: name.clone(), value: *value };
    let group = |(group, defined, undefined): &(Group, usize, usize)| record::Group {
        name: group.name().to_owned(),
        defined: *defined as u64,
        undefined: *undefined as u64,
    };
    let symbol =
        |symbol: &Symbol| record::Symbol { name: symbol.name.clone(), version: symbol.version.clone() };
    record::Image {
        container: image.container.to_string(),
        arch: image.arch.name().to_owned(),
        soname: image.soname.clone(),
        soname_version: image.soname_version(),
        version: image.version.clone(),
        abi_constants: image.abi_constants.iter().map(abi_constant).collect(),
        symbol_versions: image.defined_versions.clone(),
        needed: image.needed.iter().map(needed_library).collect(),
        search_paths: image.search_paths.clone(),
        members: image.members as u64,
        unreadable_members: image.unreadable_members as u64,
        groups: facts.groups.iter().map(group).collect(),
        cuda: record::Cuda {
            backend: facts.has_cuda(),
            symbols: facts.cuda.clone(),
            gpu_code: image.gpu_code,
        },
        families: facts.families.into_iter().map(family).collect(),
        cpu_variants: facts.cpu_variants.into_iter().map(cpu_variant).collect(),
        defined: image.defined.iter().map(symbol).collect(),
        undefined: image.undefined.iter().map(symbol).collect(),
    }
}

fn needed_library(Needed { name, versions }: &Needed) -> record::NeededLibrary {
    record::NeededLibrary { name: name.clone(), versions: versions.clone() }
}

fn family(evidence: Evidence) -> record::Family {
    record::Family {
        family: evidence.family.name().to_owned(),
        device: evidence.device.to_string(),
        job: evidence.job.to_string(),
        symbols: evidence.symbols,
    }
}

fn cpu_variant(CpuVariant { name, shown_by }: CpuVariant) -> record::CpuVariant {
    record::CpuVariant { name, shown_by }
}
