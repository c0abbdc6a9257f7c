//! `gristmill tune`: which kernel is fastest here, for each format and class of shapes, measured once and kept in a file.

mod arguments;
mod blocks;
mod candidates;
#[cfg(feature = "cuda")]
mod gpu;
mod packed;
mod print;
mod product;
mod turns;

pub use arguments::Arguments;

use super::error::{CliError, Outcome};
use super::say::say;
use super::table::counted;
use super::{output, progress, request};
use arguments::Tuned;
use gristmill::registry::FormatInfo;
use gristmill::tuning::{Measured, Tuning};
use gristmill::vocab::DeviceKind;
use gristmill::{REGISTRY, ThreadOptions, Threads};
use print::print;
use std::io::Write;
use std::path::Path;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if arguments.check {
        return check(arguments, out);
    }
    request::check_sizes(&arguments.m, &arguments.shape, "measure")?;
    let named: Vec<&FormatInfo> =
        arguments.format.iter().map(|name| request::format(name)).collect::<Result<_, _>>()?;
    let chosen = |format: &&'static FormatInfo| {
        named.is_empty() || named.iter().any(|named| named.name == format.name)
    };
    let formats: Vec<&'static FormatInfo> = REGISTRY.formats.iter().filter(chosen).collect();
    // Parts of other processors and GPUs stay. Looked at first, so that what can't be kept is refused before anything is measured.
    existing(&arguments.out)?;
    let tuning = Tuning::of(match arguments.device.kind {
        DeviceKind::Cpu => on_cpu(arguments, &formats)?,
        DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal => on_gpu(arguments, &formats)?,
    });
    let printed = print(&tuning, arguments.device, out);
    // Read again: another `tune` may have written meanwhile.
    output::update(&arguments.out, |old| Ok(tuning.text(&text(&arguments.out, old)?)))?;
    printed?;
    writeln!(out, "written to {}; GRISTMILL_TUNING names it to programs", arguments.out.display())?;
    Ok(if tuning.measured().is_empty() { Outcome::NoKernel } else { Outcome::Yes })
}

/// Looks at the tuning file that is to be written, if it is there.
///
/// # Errors
/// If it can't be read, or is another kind of file, which would be lost.
fn existing(path: &Path) -> Result<(), CliError> {
    // A pipe or a device has nothing that could be lost, and reading it would wait.
    if !std::fs::metadata(path).is_ok_and(|old| old.is_file()) {
        return Ok(());
    }
    let old = text(path, std::fs::read(path).map_err(CliError::file("read", path))?)?;
    if !old.is_empty() && !old.ends_with('\n') {
        say(format_args!("`{}` was cut off: its last line, which does not end, is not kept", path.display()));
    }
    Ok(())
}

/// What a file holds, if it is a tuning file.
fn text(path: &Path, bytes: Vec<u8>) -> Result<String, CliError> {
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() || text.starts_with("gristmill tuning") => Ok(text),
        Ok(_) | Err(_) => Err(CliError::usage(
            format!("`{}` is no tuning file, and would be overwritten", path.display()),
            "name a new file with --out, or one that `gristmill tune` wrote",
        )),
    }
}

fn on_cpu(arguments: &Arguments, formats: &[&'static FormatInfo]) -> Result<Vec<Measured>, CliError> {
    let classes = arguments.classes();
    let blocks = arguments.classes_of_blocks();
    let threads: Vec<Threads> = arguments
        .numbers_of_threads()
        .into_iter()
        .map(|count| Threads::with_options(&ThreadOptions { count, ..ThreadOptions::default() }))
        .collect::<Result<_, _>>()?;
    let steps = |op: &Tuned| match op {
        Tuned::Matmul => classes.iter().map(Vec::len).sum::<usize>(),
        Tuned::Quantize | Tuned::Dequantize => blocks.len(),
    };
    let ops = arguments.ops();
    let bar = progress::bar((formats.len() * ops.iter().map(steps).sum::<usize>()) as u64);
    let mut all = Vec::new();
    for format in formats {
        bar.set_message(format.name);
        for op in &ops {
            match op {
                Tuned::Matmul => {
                    for weights in &classes {
                        all.extend(product::tune(arguments, format, weights, &threads, &bar)?);
                    }
                }
                Tuned::Quantize | Tuned::Dequantize => {
                    for class in &blocks {
                        bar.inc(1);
                        all.extend(blocks::tune(arguments, op.op(), format, *class, &threads)?);
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

fn on_gpu(arguments: &Arguments, formats: &[&'static FormatInfo]) -> Result<Vec<Measured>, CliError> {
    let device = arguments.device;
    if device.kind != DeviceKind::Cuda {
        return Err(CliError::usage(
            format!("--device {device}: no kernel is described for it"),
            "measured are cpu and cuda:0",
        ));
    }
    arguments.on_gpu()?;
    #[cfg(feature = "cuda")]
    {
        gpu::tune(arguments, device, formats)
    }
    #[cfg(not(feature = "cuda"))]
    {
        // Nothing is measured.
        let _ = formats;
        Err(gristmill::Error::NoGpu { index: device.index, why: gristmill::NoGpu::FeatureOff }.into())
    }
}

fn check(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    if let Err(error) = std::fs::metadata(&arguments.out) {
        return Err(CliError::usage(
            format!("can't read `{}`: {error}", arguments.out.display()),
            "--out names a file that `gristmill tune` wrote; without --check it writes one",
        ));
    }
    let tuning = Tuning::read(&arguments.out, &REGISTRY);
    print(&tuning, arguments.device, out)?;
    for aside in tuning.set_aside() {
        writeln!(out, "set aside: {aside}")?;
    }
    writeln!(
        out,
        "{}: {} of it can be used here",
        arguments.out.display(),
        counted(tuning.measured().len(), "line")
    )?;
    Ok(if tuning.set_aside().is_empty() { Outcome::Yes } else { Outcome::Failed })
}
