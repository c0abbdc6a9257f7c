//! `gristmill emit`: the Rust that a spec becomes.

use super::error::{CliError, Outcome};
use super::table::{Side, Table};
use super::{request, specs};
use gristmill::vocab::{Isa, Serves};
use gristmill::{Error, REGISTRY};
use gristmill_codegen::builder::BuildError;
use gristmill_codegen::emit::Listed;
use gristmill_codegen::{Compiled, Options};
use gristmill_spec::model::SpecSet;
use gristmill_spec::{SourceFile, check, render};
use std::io::Write;
use std::path::Path;

/// Print the Rust that a format or kernel spec is compiled to
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Name of a format (i2_s), activation format (int8_row) or kernel file (matmul) of this build, or a TOML file
    #[arg(required_unless_present = "abi_header")]
    spec: Option<String>,
    /// Only code for this ISA and what it shares with others
    #[arg(long, value_name = "NAME", value_parser = request::isa)]
    pub(super) isa: Option<Isa>,
    /// Only this format (for a kernel file)
    #[arg(long, value_name = "NAME")]
    pub(super) format: Option<String>,
    /// The CUDA C++ instead of the Rust: each unit as the CUDA compiler gets it, without the header in front of all
    #[arg(long, conflicts_with = "isa")]
    cuda: bool,
    /// Print what was planned for each variant instead of the code
    #[arg(long)]
    plan: bool,
    /// The header that bodies in C and C++ are given, instead of what a spec becomes
    #[arg(long, exclusive = true)]
    abi_header: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let Some(spec) = &arguments.spec else {
        write!(out, "{}", gristmill_codegen::c::header())?;
        return Ok(Outcome::Yes);
    };
    let (name, sources) = sources(spec)?;
    let report = check(&sources);
    let Some(mut set) = report.set else {
        return Err(BuildError::Specs(render(&sources, &report.diagnostics, false)).into());
    };
    let wanted = narrow(&mut set, &name, arguments.format.as_deref())?;
    if arguments.cuda {
        return cuda(&set, &sources, arguments.plan, out);
    }
    let options = Options { package: "emit".to_owned(), ..Options::default() };
    let compiled = gristmill_codegen::compile(&set, &sources, &options)
        .map_err(|errors| BuildError::refused(&sources, errors))?;
    if arguments.plan {
        plan(&compiled, &set, &wanted, arguments.isa).print(out)?;
        return Ok(Outcome::Yes);
    }
    let features: Vec<String> = compiled
        .kernels
        .iter()
        .filter(|k| arguments.isa.is_some() && arguments.isa == k.isa)
        .map(enabled)
        .collect();
    let features = arguments.isa.map(|_| features.as_slice());
    let (head, body) = compiled.code.split_once("\n\n").unwrap_or(("", &compiled.code));
    writeln!(out, "{head}")?;
    for item in items(body, "") {
        let Some(module) = module_name(&item) else { continue };
        // A product is one ISA's as a whole; other modules hold functions for several.
        if wanted.modules(module) && (!module.starts_with("matmul_") || keeps(&item, features)) {
            writeln!(out, "\n{}", narrowed(&item, features))?;
        }
    }
    Ok(Outcome::Yes)
}

/// The CUDA units of a set, or what was planned for their kernels.
fn cuda(set: &SpecSet, sources: &[SourceFile], plan: bool, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let emitted =
        gristmill_codegen::cuda::emit(set).map_err(|errors| BuildError::refused(sources, errors))?;
    if emitted.listed.is_empty() {
        return Ok(Outcome::NoKernel);
    }
    if plan {
        let mut table =
            Table::new(&[("kernel", Side::Left), ("described in", Side::Left), ("plan", Side::Left)]);
        for kernel in &emitted.listed {
            table.row([kernel.name.clone(), kernel.source.clone(), kernel.plan.to_string()]);
        }
        table.print(out)?;
        return Ok(Outcome::Yes);
    }
    for unit in &emitted.units {
        let text = unit.text.split_once(gristmill_codegen::cuda::DEVICE_HEADER).map_or("", |(_, text)| text);
        writeln!(out, "// {}.cu\n{}", unit.name, text.trim_end())?;
    }
    Ok(Outcome::Yes)
}

/// The spec's name, and all specs that are needed to compile it.
fn sources(spec: &str) -> Result<(String, Vec<SourceFile>), CliError> {
    let path = Path::new(spec);
    let is_file = spec.contains(['/', '\\', '.']);
    if !is_file {
        return Ok((spec.to_owned(), specs::built_in()));
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or(spec);
    Ok((stem.to_owned(), specs::with_built_in(&[path])?.0))
}

/// Which modules of the generated code belong to what was asked for.
struct Wanted {
    formats: Vec<String>,
    activations: Vec<String>,
    products: bool,
}

impl Wanted {
    fn modules(&self, module: &str) -> bool {
        match module.strip_prefix("activations_") {
            Some(activations) => self.activations.iter().any(|name| name == activations),
            None if module.starts_with("matmul_") => self.products,
            None => self.formats.iter().any(|name| name == module),
        }
    }
}

/// Leaves in `set` what was asked for.
///
/// # Errors
/// For names that are none, and for two formats at once.
fn narrow(set: &mut SpecSet, name: &str, format: Option<&str>) -> Result<Wanted, CliError> {
    let names: Vec<String> = set.formats.iter().map(|format| format.name.clone()).collect();
    let known: Vec<String> = of_set(set).map(str::to_owned).collect();
    let keep_format = |set: &mut SpecSet, name: &str| {
        let keep: Vec<bool> = set.formats.iter().map(|format| format.name == name).collect();
        set.retain_formats(&keep);
    };
    if let Some(format) = format {
        if !names.iter().any(|name| name == format) {
            return Err(unknown("format", format, &names));
        }
        if format != name
            && !set.kernels.iter().any(|kernel| kernel.name == name)
            && known.iter().any(|known| known == name)
        {
            return Err(CliError::usage(
                format!("`{name}` is no kernel file, and --format {format} chooses among the formats of one"),
                format!("emit `{name}` without --format, or a kernel file such as `matmul` with it"),
            ));
        }
        keep_format(set, format);
    }
    if let Some(kernel) = set.kernels.iter().find(|kernel| kernel.name == name) {
        let op = kernel.op;
        set.kernels.retain(|kernel| kernel.name == name);
        let all = |yes: bool, names: Vec<String>| if yes { names } else { Vec::new() };
        return Ok(Wanted {
            formats: all(
                op.info().serves == Serves::Formats,
                set.formats.iter().map(|f| f.name.clone()).collect(),
            ),
            activations: all(
                op.info().serves == Serves::Activations,
                set.activations.iter().map(|a| a.name.clone()).collect(),
            ),
            products: op.info().product,
        });
    }
    if let Some(found) = set.formats.iter().find(|format| format.name == name) {
        let activations = set.activations.get(found.activations).map(|a| a.name.clone());
        keep_format(set, name);
        return Ok(Wanted {
            formats: vec![name.to_owned()],
            activations: activations.into_iter().collect(),
            products: true,
        });
    }
    if set.activations.iter().any(|activations| activations.name == name) {
        set.retain_formats(&vec![false; set.formats.len()]);
        return Ok(Wanted { formats: Vec::new(), activations: vec![name.to_owned()], products: false });
    }
    if set.packings.iter().any(|packing| packing.name == name) {
        return Err(CliError::usage(
            format!("packing `{name}` has no code of its own"),
            "emit a format that a kernel packs with it, or `matmul`",
        ));
    }
    Err(unknown("spec", name, &known))
}

/// The names of what can be emitted.
fn of_set(set: &SpecSet) -> impl Iterator<Item = &str> {
    let kernels = set.kernels.iter().map(|kernel| kernel.name.as_str());
    let activations = set.activations.iter().map(|activations| activations.name.as_str());
    set.formats.iter().map(|format| format.name.as_str()).chain(kernels).chain(activations)
}

fn unknown(what: &str, name: &str, known: &[String]) -> CliError {
    // A format that other builds have is no misspelt one.
    if let Err(error @ Error::NotCompiled { .. }) = REGISTRY.format(name) {
        return error.into();
    }
    let nearest = request::nearest(name, known.iter().map(String::as_str));
    let meant = nearest.map_or(String::new(), |nearest| format!(" (did you mean `{nearest}`?)"));
    CliError::usage(
        format!("no {what} is called `{name}`{meant}"),
        format!("there are: {}", known.join(", ")),
    )
}

fn plan(compiled: &Compiled, set: &SpecSet, wanted: &Wanted, isa: Option<Isa>) -> Table {
    let mut table = Table::new(&[("kernel", Side::Left), ("described in", Side::Left), ("plan", Side::Left)]);
    for kernel in compiled.kernels.iter().filter(|kernel| isa.is_none_or(|isa| kernel.isa == Some(isa))) {
        // Every activation format is compiled along, since formats refer to them by index.
        let shown = match kernel.op.info().serves {
            Serves::Activations => {
                set.activations.get(kernel.format).is_some_and(|a| wanted.activations.contains(&a.name))
            }
            Serves::Formats => true,
        };
        if shown {
            table.row([kernel.name.clone(), kernel.source.clone(), kernel.plan.clone()]);
        }
    }
    table
}

/// Features as generated functions name them.
fn enabled(kernel: &Listed) -> String {
    kernel.features.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(",")
}

/// Whether an item belongs to what is kept: it names no features, or those of a kept kernel.
fn keeps(item: &str, features: Option<&[String]>) -> bool {
    let Some(features) = features else { return true };
    const ENABLE: &str = "enable = \"";
    let mut named =
        item.match_indices(ENABLE).filter_map(|(at, _)| item[at + ENABLE.len()..].split('"').next());
    let names_none = !item.contains(ENABLE);
    names_none || named.any(|name| features.iter().any(|kept| kept == name))
}

/// The name of a module.
fn module_name(item: &str) -> Option<&str> {
    let line = item.lines().find(|line| line.starts_with("pub mod ") || line.starts_with("mod "))?;
    line.split("mod ").nth(1)?.split(' ').next()
}

/// A module without its items for other ISAs.
fn narrowed(module: &str, features: Option<&[String]>) -> String {
    let opening = module.find("mod ").and_then(|at| module[at..].find('\n').map(|end| at + end + 1));
    let (Some(_), Some(start)) = (features, opening) else { return module.to_owned() };
    let (head, rest) = module.split_at(start);
    let Some(body) = rest.strip_suffix('}') else { return module.to_owned() };
    let kept: Vec<String> = items(body, "    ").into_iter().filter(|item| keeps(item, features)).collect();
    format!("{head}{}\n}}", kept.join("\n"))
}

/// Splits formatted Rust into the items that are indented by `indent`, each with its comments and attributes.
fn items(text: &str, indent: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut item: Vec<&str> = Vec::new();
    for line in text.lines() {
        let own = line.strip_prefix(indent).filter(|rest| !rest.starts_with(' '));
        item.push(line);
        // The last line of an item is its own and closes it; comments and attributes open one.
        let closes = own.is_some_and(|own| {
            !own.starts_with("//") && !own.starts_with("#[") && (own.ends_with('}') || own.ends_with(';'))
        });
        if closes {
            items.push(item.join("\n"));
            item.clear();
        }
    }
    if item.iter().any(|line| !line.trim().is_empty()) {
        items.push(item.join("\n"));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
/// A format.
pub mod f {
    /// Width.
    const W: usize = 4;
    /// For avx2.
    #[target_feature(enable = \"avx2\")]
    unsafe fn a(
        x: i32,
    ) -> i32 {
        x;
    }
    /// For avx512.
    #[target_feature(enable = \"avx512f,avx512bw\")]
    unsafe fn b() {
        c();
    }
}
pub static S: usize = 1;
";

    #[test]
    fn items_keep_their_comments() {
        let found = items(CODE, "");
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("/// A format.") && found[0].ends_with('}'));
        assert_eq!(module_name(&found[0]), Some("f"));
        assert_eq!(module_name(&found[1]), None);
    }

    #[test]
    fn other_isas_are_left_out() {
        let found = items(CODE, "");
        let kept = narrowed(&found[0], Some(&["avx2".to_owned()]));
        assert!(kept.contains("const W") && kept.contains("fn a") && !kept.contains("fn b"), "{kept}");
        assert_eq!(narrowed(&found[0], None), found[0]);
    }
}
