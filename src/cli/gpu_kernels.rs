//! What kernels of a GPU need and use, as `list`, `explain` and `plan` tell it: compute capability, precision, images with their
//! drivers, registers and shared memory.

use super::error::CliError;
use super::table::{Side, Table};
use gristmill::registry::{Code, CudaImage, CudaUsage, Entry};
use gristmill::runtime::occupancy::Occupancy;
use gristmill::{Decision, json};
use gristmill_records::registry::Image;
use serde::Serialize;
use std::io::Write;

/// Columns of a table with a kernel to a row; [`cells`] fills them.
pub const COLUMNS: [(&str, Side); 5] = [
    ("from cc", Side::Right),
    ("multiplies", Side::Left),
    ("registers", Side::Right),
    ("shared bytes", Side::Right),
    ("images (oldest driver)", Side::Left),
];

/// A kernel's cells in [`COLUMNS`], over some of its images; empty ones for code of the processor.
pub fn cells(entry: &Entry, images: &[CudaImage]) -> [String; 5] {
    let Some(min_cc) = json::min_cc(entry) else { return Default::default() };
    let used = images.iter().filter_map(|image| json::cuda_usage(entry, image));
    // The function that does the work is the last that is launched.
    let used: Vec<CudaUsage> = used.filter_map(|each| each.last().copied()).collect();
    [
        min_cc,
        entry.precision().map_or("-", |precision| precision.name()).to_owned(),
        range(used.iter().map(|usage| usage.registers)),
        range(used.iter().map(|usage| usage.shared)),
        images_in_words(images),
    ]
}

/// The least and the most in all machine code of a kernel: `40..64`, or `40`.
fn range(values: impl Iterator<Item = u32> + Clone) -> String {
    match (values.clone().min(), values.max()) {
        (Some(least), Some(most)) if least < most => format!("{least}..{most}"),
        (Some(only), _) => only.to_string(),
        (None, _) => "-".to_owned(),
    }
}

/// Images by the drivers that load them: `sm_75, sm_80 (R580); compute_75 (R525)`.
fn images_in_words(images: &[CudaImage]) -> String {
    let mut words = String::new();
    for (at, image) in images.iter().enumerate() {
        words.push_str(&image.target());
        let next = images.get(at + 1).map(json::min_driver);
        if next.as_ref() == Some(&json::min_driver(image)) {
            words.push_str(", ");
            continue;
        }
        words.push_str(&format!(" ({})", json::min_driver(image)));
        if next.is_some() {
            words.push_str("; ");
        }
    }
    words
}

/// Lines on the image that a decision's device loads, and on what the functions of its kernel use; none where no GPU's kernel was
/// chosen.
pub fn explain(decision: &Decision<'_>, out: &mut dyn Write) -> Result<(), CliError> {
    let (Some(entry), Some(image)) = (decision.chosen(), decision.image()) else { return Ok(()) };
    let Code::Cuda(code) = entry.code else { return Ok(()) };
    let multiplied =
        entry.precision().map_or(String::new(), |precision| format!("{} products, ", precision.name()));
    write!(
        out,
        "image: {} ({multiplied}compute capability {}.{} and newer), for drivers from {} on",
        image.target(),
        code.min_cc.0,
        code.min_cc.1,
        json::min_driver(image)
    )?;
    let Some(usage) = json::cuda_usage(entry, image) else {
        writeln!(out, "; PTX, of which the driver's compiler decides registers")?;
        return Ok(());
    };
    writeln!(out)?;
    for CudaUsage { function, registers, shared, stack } in usage {
        let stack = if stack == 0 { String::new() } else { format!(", {stack} bytes of local memory") };
        writeln!(
            out,
            "  {function}: {registers} registers a thread{stack}, {shared} bytes of shared memory a CUDA block"
        )?;
    }
    if let Some(Occupancy { blocks, limit }) = decision.occupancy() {
        writeln!(
            out,
            "  CUDA blocks that a multiprocessor holds at once: {blocks}, by its {}",
            limit.name()
        )?;
    }
    Ok(())
}

/// The kernels that tensors of a model get on a GPU.
#[derive(Default)]
pub struct Chosen {
    /// Kernel, the image that the device loads, and tensors.
    kernels: Vec<(&'static Entry, &'static CudaImage, usize)>,
}

/// A kernel in JSON with the image that its device loads.
#[derive(Serialize)]
pub struct ChosenKernel {
    kernel: &'static str,
    tensors: usize,
    precision: Option<&'static str>,
    min_cc: Option<String>,
    /// As in `list`.
    image: Image,
}

impl Chosen {
    /// Counts the decision for a tensor.
    pub fn add(&mut self, decision: &Decision<'_>) {
        let (Some(entry), Some(image)) = (decision.chosen(), decision.image()) else { return };
        match self.kernels.iter_mut().find(|(known, _, _)| known.name == entry.name) {
            Some((_, _, tensors)) => *tensors += 1,
            None => self.kernels.push((entry, image, 1)),
        }
    }

    /// In the order in which tensors came upon them.
    pub fn json(&self) -> Vec<ChosenKernel> {
        let each = self.kernels.iter().map(|&(entry, image, tensors)| ChosenKernel {
            kernel: entry.name,
            tensors,
            precision: entry.precision().map(|precision| precision.name()),
            min_cc: json::min_cc(entry),
            image: json::image(entry, image),
        });
        each.collect()
    }

    /// A table of them; nothing on the processor.
    ///
    /// # Errors
    /// When `out` refuses.
    pub fn print(&self, out: &mut dyn Write) -> Result<(), CliError> {
        if self.kernels.is_empty() {
            return Ok(());
        }
        let mut columns = vec![("kernel", Side::Left), ("tensors", Side::Right)];
        columns.extend(COLUMNS);
        let mut table = Table::new(&columns);
        for (entry, image, tensors) in &self.kernels {
            let first = [entry.name.to_owned(), tensors.to_string()];
            table.row(first.into_iter().chain(cells(entry, std::slice::from_ref(*image))));
        }
        writeln!(out)?;
        Ok(table.print(out)?)
    }
}
