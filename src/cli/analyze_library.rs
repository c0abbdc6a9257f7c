//! `gristmill analyze-library`: what a C++ library offers, read from its tables without loading it.

use super::error::{CliError, Outcome};
use super::json::print_json;
use super::table::{Side, Table, bytes, counted, first_of};
use gristmill::text::Printable;
use gristmill_probe::analyze::{Facts, Image, Needed};
use gristmill_probe::backend::{Report, Requirements, validate};
use gristmill_probe::{Analysis, Evidence, Family, Kind, printable, printable_path};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

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
        print_json(out, &analysis_json(&analysis, report.as_ref()))?;
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

    let referred =
        facts.groups.iter().find(|(group, ..)| *group == gristmill_probe::Group::Cuda).map_or(0, |g| g.2);
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

fn analysis_json(analysis: &Analysis, report: Option<&Report>) -> Value {
    json!({
        "path": analysis.path.display().to_string(),
        "bytes": analysis.bytes,
        "kind": analysis.kind.to_string(),
        "images": analysis.images.iter().map(|image| image_json(analysis, image)).collect::<Vec<_>>(),
        "needs": report.map(needs_json),
    })
}

fn needs_json(report: &Report) -> Value {
    json!({
        "followed": report.followed.iter().map(|followed| json!({
            "needed": followed.needed,
            "by": followed.by.display().to_string(),
            "file": followed.path.display().to_string(),
            "of_system": followed.of_system,
        })).collect::<Vec<_>>(),
        "not_followed": report.unfollowed.iter().map(|left| json!({
            "needed": left.needed,
            "by": left.by.display().to_string(),
            "why": left.why.to_string(),
            "limit": left.why.is_limit(),
        })).collect::<Vec<_>>(),
    })
}

fn image_json(analysis: &Analysis, image: &Image) -> Value {
    let facts = Facts::of(image, &analysis.path);
    let symbols = |symbols: &[gristmill_probe::analyze::Symbol]| {
        symbols.iter().map(|s| json!({"name": s.name, "version": s.version})).collect::<Vec<_>>()
    };
    json!({
        "container": image.container.to_string(),
        "arch": image.arch.name(),
        "soname": image.soname,
        "soname_version": image.soname_version(),
        "version": image.version,
        "abi_constants": image.abi_constants.iter()
            .map(|(name, value)| json!({"name": name, "value": value})).collect::<Vec<_>>(),
        "symbol_versions": image.defined_versions,
        "needed": image.needed.iter()
            .map(|n| json!({"name": n.name, "versions": n.versions})).collect::<Vec<_>>(),
        "search_paths": image.search_paths,
        "members": image.members,
        "unreadable_members": image.unreadable_members,
        "groups": facts.groups.iter().map(|(group, defined, undefined)| {
            json!({"name": group.name(), "defined": defined, "undefined": undefined})
        }).collect::<Vec<_>>(),
        "families": facts.families.iter().map(|e| json!({
            "family": e.family.name(),
            "device": e.device.to_string(),
            "for": e.job.to_string(),
            "symbols": e.symbols,
        })).collect::<Vec<_>>(),
        "cuda": {"backend": facts.has_cuda(), "symbols": facts.cuda, "gpu_code": image.gpu_code},
        "cpu_variants": facts.cpu_variants.iter()
            .map(|v| json!({"name": v.name, "shown_by": v.shown_by})).collect::<Vec<_>>(),
        "defined": symbols(&image.defined),
        "undefined": symbols(&image.undefined),
    })
}
