//! The table of what weights take in memory, beside what they take in a file.

use super::super::error::CliError;
use gristmill::vocab::Op;
use gristmill_codegen::plan::{FormatPlan, PackPlan};
use gristmill_spec::model::{CudaVariant, Format, SpecSet};
use std::io::Write;

/// Bits of a weight of each format in one packing, where a kernel reads it there.
struct Column {
    gpu: bool,
    packings: Vec<String>,
    bits: Vec<Option<f64>>,
}

/// Bits of a weight in a file, row headers and tensor tails not counted.
pub fn file_bits(format: &Format) -> f64 {
    f64::from(format.bytes) * 8.0 / f64::from(format.elements)
}

/// Prints the table.
pub fn print(set: &SpecSet, out: &mut dyn Write) -> Result<(), CliError> {
    writeln!(
        out,
        "## Weights in memory\n\n\
         Bits that a weight takes in a file and packed, scales and minima included, and in brackets how many times the file's\n\
         that is. Rows are filled up to whole panels and tiles, and have four bytes each besides. `gristmill explain` says which\n\
         packing a product reads, and its exact bytes; the scalar reference and GPU products of floats read the file's own rows.\n"
    )?;
    let columns = columns(set);
    let titles: Vec<String> = columns
        .iter()
        .map(|column| format!("{}{}", column.packings.join(", "), if column.gpu { " on GPUs" } else { "" }))
        .collect();
    writeln!(out, "| format | file | {} |\n|---|---|{}", titles.join(" | "), "---|".repeat(titles.len()))?;
    for (index, format) in set.formats.iter().enumerate() {
        let file = file_bits(format);
        let cells: Vec<String> = columns
            .iter()
            .map(|column| match column.bits[index] {
                Some(bits) => format!("{bits:.2} ({:.2})", bits / file),
                None => "-".to_owned(),
            })
            .collect();
        writeln!(out, "| `{}` | {file:.2} | {} |", format.name, cells.join(" | "))?;
    }
    writeln!(out)?;
    Ok(())
}

/// A column for each packing that kernels of processors read, then for GPUs; those that agree in everything are one.
fn columns(set: &SpecSet) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for gpu in [false, true] {
        for (packing, with) in set.packings.iter().enumerate() {
            let bits: Vec<Option<f64>> = (0..set.formats.len()).map(|f| bits(set, f, packing, gpu)).collect();
            if bits.iter().all(Option::is_none) {
                continue;
            }
            let name = format!("`{}`", with.name);
            match columns.iter_mut().find(|column| column.gpu == gpu && column.bits == bits) {
                Some(column) => column.packings.push(name),
                None => columns.push(Column { gpu, packings: vec![name], bits }),
            }
        }
    }
    columns
}

fn bits(set: &SpecSet, format: usize, packing: usize, gpu: bool) -> Option<f64> {
    let plan = FormatPlan::new(&set.formats[format], &set.activations[set.formats[format].activations]);
    let kernels = || set.kernels.iter().filter(|k| k.op == Op::Matmul && k.formats.contains(&format));
    let with = &set.packings[packing];
    let pack = if gpu {
        let reads = |v: &CudaVariant| {
            v.packing == Some(packing) && v.formats.as_ref().is_none_or(|formats| formats.contains(&format))
        };
        kernels().any(|kernel| kernel.cuda.iter().any(reads)).then(|| PackPlan::fit(&plan, with))?
    } else {
        let mut variants = kernels().flat_map(|kernel| &kernel.cpu);
        let reads = variants.find(|v| v.packing == Some(packing) && v.formats.contains(&format))?;
        // The build fails where it does not fit.
        PackPlan::new(&plan, with, reads.strategy, &reads.origin).ok()
    };
    pack.map(|pack| pack.bits_per_weight(&plan))
}
