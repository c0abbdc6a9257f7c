//! `gristmill plan`: a decision for every tensor of a model, before anything is loaded.

use super::error::{CliError, Outcome};
use super::files::{self, Decided, Kind, Without};
use super::json::print_json;
use super::table::{Side, Table, counted};
use gristmill::{Device, REGISTRY, Request, Shape};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

/// Decide a kernel for every tensor of a GGUF file
///
/// Exits with 2 if a quantized tensor has no kernel, as `run` does.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// GGUF file
    pub(super) file: PathBuf,
    /// Device: cpu, cuda:0, rocm:0, metal:0
    #[arg(long, default_value = "cpu")]
    pub(super) device: Device,
    /// Number of tokens
    #[arg(long, default_value_t = 1)]
    pub(super) m: usize,
    #[command(flatten)]
    pub(super) types: files::TypeArguments,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let types = arguments.types.numbers()?;
    let file = files::open(&arguments.file, &types)?;
    let mut table = Table::new(&[
        ("tensor", Side::Left),
        ("type", Side::Left),
        ("shape", Side::Right),
        ("kernel", Side::Left),
    ]);
    let mut rows = Vec::new();
    let mut without = Without::default();
    let mut decided = Decided::default();
    let mut served = 0;
    for tensor in file.tensors() {
        let type_name = types.name_of(&tensor);
        decided.add(&types, &tensor);
        let kind = files::kind(&types, &tensor);
        let mut chosen = None;
        let shown = match (kind, files::matrix(tensor.dims())) {
            (Kind::Plain(_), _) => "not quantized".to_owned(),
            (Kind::Format(format), Some((n, k))) => {
                let shape = Shape::new(arguments.m, n, k);
                let prepared = REGISTRY.prepare(&Request::matmul(format.name, shape).on(arguments.device))?;
                let decision = prepared.decide_as_asked();
                chosen = decision.chosen().map(|entry| entry.name);
                match chosen {
                    Some(name) => name.to_owned(),
                    None => {
                        let why = decision.kernel().err().map(|error| files::why_no_kernel(&error));
                        without.add(type_name.clone(), why.unwrap_or_default(), tensor.name());
                        "none".to_owned()
                    }
                }
            }
            (Kind::Other, _) | (Kind::Format(_), None) => {
                without.add(type_name.clone(), files::why_other(&types, &tensor), tensor.name());
                "none".to_owned()
            }
        };
        served += usize::from(chosen.is_some());
        rows.push(json!({
            "tensor": tensor.name(),
            "type": type_name,
            "shape": files::shape(tensor.dims()),
            "kernel": chosen,
            "quantized": !matches!(kind, Kind::Plain(_)),
            "type_number": tensor.type_id(),
            "type_decided_by": files::decided_by(&types, &tensor),
        }));
        table.row([tensor.name().to_owned(), type_name, files::shape(tensor.dims()), shown]);
    }
    if arguments.json {
        let value = json!({
            "device": arguments.device.to_string(),
            "m": arguments.m,
            "tensors": rows,
            "without_kernel": without.json(),
        });
        print_json(out, &value)?;
    } else {
        table.print(out)?;
        let (all, none) = (counted(rows.len(), "tensor"), without.count());
        let plain = rows.len() - served - none;
        writeln!(
            out,
            "\n{all} on {}: {served} with a kernel, {none} without, {plain} not quantized",
            arguments.device
        )?;
        decided.print(&types, out)?;
        without.print(out)?;
    }
    Ok(if without.count() == 0 { Outcome::Yes } else { Outcome::NoKernel })
}
