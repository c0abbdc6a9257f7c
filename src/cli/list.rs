//! `gristmill list`: what this build holds.

use super::error::{CliError, Outcome};
use super::json::print_json;
use super::table::{Side, Table, counted};
use super::{external, gpu_kernels, request};
use gristmill::registry::{CudaBuild, DimRule, Entry, FormatInfo, ImportInfo};
use gristmill::vocab::{DeviceKind, Isa, Serves};
use gristmill::{Device, REGISTRY, json};
use gristmill_records::registry::{Format, Kernel};
use serde::Serialize;
use std::io::Write;

/// List formats and kernels of this build
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print every kernel instead of a line for each format
    #[arg(long)]
    kernels: bool,
    /// Only this format, of weights or activations, or what this layout becomes (prints its kernels)
    #[arg(long, value_name = "NAME")]
    pub(super) format: Option<String>,
    /// Only kernels for this device: cpu, cuda:0. Those for GPUs come with their images; no GPU is looked for
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let asked = arguments.format.as_deref().map(asked).transpose()?;
    let only = asked.and_then(|name| REGISTRY.format(name).ok()).map(|(_, format)| format);
    let device = arguments.device.map(|device| device.kind);
    let shown = |entry: &&Entry| {
        asked.is_none_or(|asked| name_of(entry) == asked) && device.is_none_or(|kind| entry.device == kind)
    };
    let entries: Vec<&Entry> = REGISTRY.entries.iter().filter(shown).collect();
    let formats: Vec<&FormatInfo> =
        REGISTRY.formats.iter().filter(|format| asked.is_none_or(|asked| asked == format.name)).collect();
    let imports: Vec<&ImportInfo> = REGISTRY
        .imports
        .iter()
        .filter(|import| asked.is_none_or(|asked| asked == imported(import)))
        .collect();
    // Of a device for which nothing was compiled, the list is empty: that is an answer, with its reason.
    let outcome = match device {
        Some(_) if entries.is_empty() => Outcome::NoKernel,
        _ => Outcome::Yes,
    };
    if arguments.json {
        print_json(out, &List::of(&formats, &imports, &entries, only))?;
        return Ok(outcome);
    }
    if let (Some(kind), true) = (device, entries.is_empty()) {
        writeln!(out, "no kernels for {kind}: {}", nothing_for(kind))?;
    } else if arguments.kernels || asked.is_some() || device.is_some() {
        print_kernels(&entries, out)?;
    } else {
        print_formats(&formats, &entries, out)?;
        print_imports(&imports, out)?;
    }
    writeln!(out)?;
    external::print(&external::found(), only, out)?;
    Ok(outcome)
}

/// The format of a name: of weights, of activations, or what a layout of other programs becomes.
fn asked(name: &str) -> Result<&'static str, CliError> {
    if let Some(activations) = REGISTRY.activations.iter().find(|activations| activations.name == name) {
        return Ok(activations.name);
    }
    match REGISTRY.imports.iter().find(|import| import.name == name) {
        Some(import) => Ok(imported(import)),
        None => Ok(request::format(name)?.name),
    }
}

/// What `list --json` prints.
#[derive(Serialize)]
struct List {
    package: &'static str,
    formats: Vec<Format>,
    activations: Vec<Activations>,
    imports: Vec<Import>,
    kernels: Vec<Kernel>,
    left_out: Vec<LeftOut>,
    cuda: Cuda,
    external_backends: Vec<external::Backend>,
}

#[derive(Serialize)]
struct Activations {
    name: &'static str,
    doc: &'static str,
    source: &'static str,
    block: Option<usize>,
}

#[derive(Serialize)]
struct Import {
    name: &'static str,
    doc: &'static str,
    source: &'static str,
    format: &'static str,
    rows: usize,
}

/// A format that this build was told to leave out, and the cargo feature that brings it.
#[derive(Serialize)]
struct LeftOut {
    format: &'static str,
    feature: &'static str,
}

/// What the build had for CUDA: images, or why none and where it looked for a compiler.
#[derive(Serialize)]
struct Cuda {
    built: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    looked: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compiler: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    architectures: Option<Vec<String>>,
}

impl List {
    fn of(
        formats: &[&FormatInfo],
        imports: &[&ImportInfo],
        entries: &[&Entry],
        only: Option<&FormatInfo>,
    ) -> List {
        List {
            package: REGISTRY.package,
            formats: formats.iter().map(|format| json::format(&REGISTRY, format)).collect(),
            activations: REGISTRY
                .activations
                .iter()
                .map(|of| Activations { name: of.name, doc: of.doc, source: of.source, block: of.block })
                .collect(),
            imports: imports
                .iter()
                .map(|import| Import {
                    name: import.name,
                    doc: import.doc,
                    source: import.source,
                    format: imported(import),
                    rows: import.rows,
                })
                .collect(),
            kernels: entries.iter().map(|entry| json::kernel(&REGISTRY, entry)).collect(),
            left_out: REGISTRY
                .left_out
                .iter()
                .map(|left_out| LeftOut { format: left_out.format, feature: left_out.feature })
                .collect(),
            cuda: Cuda::of_this_build(),
            external_backends: external::backends(&external::found(), only),
        }
    }
}

impl Cuda {
    fn of_this_build() -> Cuda {
        let none = Cuda { built: false, why: None, looked: None, compiler: None, architectures: None };
        let why = Some(nothing_for(DeviceKind::Cuda));
        match REGISTRY.cuda {
            CudaBuild::FeatureOff => Cuda { why, ..none },
            CudaBuild::NoToolchain { looked } => Cuda { why, looked: Some(looked.to_vec()), ..none },
            CudaBuild::Built { compiler, architectures } => Cuda {
                built: true,
                compiler: Some(compiler),
                architectures: Some(architectures.iter().map(ToString::to_string).collect()),
                ..none
            },
        }
    }
}

/// Why this build has nothing for a device.
pub fn nothing_for(kind: DeviceKind) -> &'static str {
    match (kind, REGISTRY.cuda) {
        (DeviceKind::Cuda, CudaBuild::FeatureOff) => {
            "the cargo feature `cuda` is off; `cargo build --features cuda` compiles them"
        }
        (DeviceKind::Cuda, CudaBuild::NoToolchain { .. }) => {
            "the build found no CUDA compiler; `gristmill doctor` says where it looked and what to install"
        }
        (DeviceKind::Cuda, CudaBuild::Built { .. }) => "the build made no image; its warnings say why",
        _ => "nothing of this build is for it",
    }
}

/// The format (or activation format) of a kernel.
pub fn name_of(entry: &Entry) -> &'static str {
    json::format_name(&REGISTRY, entry)
}

fn print_formats(formats: &[&FormatInfo], entries: &[&Entry], out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("format", Side::Left),
        ("gguf", Side::Right),
        ("block", Side::Right),
        ("bits", Side::Right),
        ("quantizers", Side::Left),
        ("activations", Side::Left),
        ("kernels", Side::Right),
        ("description", Side::Left),
    ]);
    for format in formats {
        let kernels = entries
            .iter()
            .filter(|e| e.op.info().serves == Serves::Formats && name_of(e) == format.name)
            .count();
        table.row([
            format.name.to_owned(),
            format.gguf.map_or(String::new(), |id| id.to_string()),
            format!("{}/{} B", format.elements, format.bytes),
            format!("{:.3}", json::bits_per_weight(format)),
            format.quantizers.join(", "),
            REGISTRY.activations.get(format.activations).map_or("", |a| a.name).to_owned(),
            kernels.to_string(),
            format.doc.to_owned(),
        ]);
    }
    table.print(out)?;
    let isas: Vec<&str> = Isa::ALL
        .iter()
        .filter(|isa| entries.iter().any(|e| e.isa == Some(**isa)))
        .map(|isa| isa.name())
        .collect();
    let here = entries.iter().filter(|entry| json::runs_here(entry)).count();
    let on = |device: DeviceKind| entries.iter().filter(|entry| entry.device == device).count();
    writeln!(
        out,
        "\n{}: {} on {} ({}); {here} of them run on this processor",
        counted(formats.len(), "format"),
        counted(on(DeviceKind::Cpu), "kernel"),
        DeviceKind::Cpu,
        isas.join(", "),
    )?;
    for device in DeviceKind::ALL.iter().copied().filter(|device| *device != DeviceKind::Cpu) {
        if on(device) > 0 {
            let kernels = counted(on(device), "kernel");
            writeln!(out, "{kernels} on {device}; `gristmill doctor` says which devices there are")?;
        }
    }
    let mut features: Vec<&str> = REGISTRY.left_out.iter().map(|left_out| left_out.feature).collect();
    features.sort_unstable();
    features.dedup();
    for feature in features {
        let names = REGISTRY.left_out.iter().filter(|left_out| left_out.feature == feature);
        let names: Vec<&str> = names.map(|left_out| left_out.format).collect();
        writeln!(out, "not compiled: {} (cargo feature `{feature}`)", names.join(", "))?;
    }
    writeln!(
        out,
        "`gristmill list --kernels` prints each kernel, `gristmill list --format NAME` those of a format"
    )?;
    Ok(())
}

/// The format that an import layout becomes.
pub fn imported(import: &ImportInfo) -> &'static str {
    REGISTRY.formats.get(import.format).map_or("", |format| format.name)
}

fn print_imports(imports: &[&ImportInfo], out: &mut dyn Write) -> Result<(), CliError> {
    if imports.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&[
        ("import layout", Side::Left),
        ("becomes", Side::Left),
        ("rows", Side::Right),
        ("description", Side::Left),
    ]);
    for import in imports {
        table.row([
            import.name.to_owned(),
            imported(import).to_owned(),
            import.rows.to_string(),
            import.doc.to_owned(),
        ]);
    }
    Ok(table.print(out)?)
}

fn print_kernels(entries: &[&Entry], out: &mut dyn Write) -> Result<(), CliError> {
    let mut columns = vec![
        ("kernel", Side::Left),
        ("here", Side::Left),
        ("shapes", Side::Left),
        ("described in", Side::Left),
    ];
    let on_gpu = entries.iter().any(|entry| !json::images(entry).is_empty());
    if on_gpu {
        columns.extend(gpu_kernels::COLUMNS);
    }
    let mut table = Table::new(&columns);
    for entry in entries {
        let mut row = vec![
            entry.name.to_owned(),
            match json::runs_here(entry) {
                _ if entry.device != DeviceKind::Cpu => entry.device.name(),
                true => "yes",
                false => "no",
            }
            .to_owned(),
            shapes(entry),
            entry.source.to_owned(),
        ];
        if on_gpu {
            row.extend(gpu_kernels::cells(entry, json::images(entry)));
        }
        table.row(row);
    }
    table.print(out)?;
    Ok(())
}

/// The rules on shapes in words: `m <= 3, k multiple of 256`.
fn shapes(entry: &Entry) -> String {
    let mut words = Vec::new();
    for (name, rule) in [("m", entry.shape.m), ("n", entry.shape.n), ("k", entry.shape.k)] {
        let DimRule { min, max, multiple_of } = rule;
        if min > 0 {
            words.push(format!("{name} >= {min}"));
        }
        if max < u64::MAX {
            words.push(format!("{name} <= {max}"));
        }
        if multiple_of > 1 {
            words.push(format!("{name} multiple of {multiple_of}"));
        }
    }
    if words.is_empty() { "any".to_owned() } else { words.join(", ") }
}
