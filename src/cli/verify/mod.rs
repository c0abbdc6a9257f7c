//! `gristmill verify`: every kernel that this processor, or a GPU, can run, against the oracle.
//!
//! Raw functions run in memory between forbidden pages, then the same case through the safe handles. Formats
//! whose products are one integer sum a row must give the oracle's bits; others the bits of the scalar kernel,
//! and an error against f64 below the bound; products of floats are held to the bound that docs/cuda.md derives. Kernels of
//! a GPU run through the safe handles only.

mod activations;
mod arguments;
mod blocks;
mod case;
mod embed;
mod floats;
mod guard;
mod inputs;
mod packed;
mod product;
mod prologue;
mod report;
mod scales;
mod session;

pub use arguments::Arguments;
pub use floats::{Bounded, multiplied};
pub use packed::{NMSE_BOUND, normalized_error};

use super::error::{CliError, Outcome};
use super::list::{name_of, nothing_for};
use super::{progress, request};
use crate::opened::Opened;
use gristmill::oracle::{FormatOracle, Oracle, Random};
use gristmill::registry::Entry;
use gristmill::vocab::{DType, DeviceKind, Isa};
use gristmill::{CpuProfile, Device, Fnv, REGISTRY, Reason};
use session::{Report, Session, Subject};
use std::io::Write;

/// A whole tensor of random weights; every code in it means something.
pub fn random_tensor(oracle: &FormatOracle<'_>, random: &mut Random, n: usize, k: usize) -> Vec<u8> {
    inputs::tensor(oracle, random, n, k, inputs::Weights::Random)
}

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let selected = select(arguments)?;
    if !selected.contains(&true) {
        // A check of nothing must not look like one that passed.
        return Err(CliError::usage(
            "no kernel of this build is of this selection",
            "`gristmill list --kernels` prints them",
        ));
    }
    let reports: Vec<Report> = REGISTRY
        .entries
        .iter()
        .zip(&selected)
        .map(|(entry, selected)| Report {
            selected: *selected,
            skipped: if *selected { why_not(entry, arguments.device) } else { None },
            ..Report::default()
        })
        .collect();
    some_of(arguments.device, &reports, |report| report.skipped.is_none())?;
    let oracle = Oracle::new(&REGISTRY)?;
    let bar = progress::bar(selected.iter().filter(|selected| **selected).count() as u64);
    let progress = |kernel: &str| {
        bar.set_message(kernel.to_owned());
        bar.inc(1);
    };
    let mut session = Session {
        reports,
        digest: Fnv::EMPTY,
        quick: arguments.quick,
        device: arguments.device,
        opened: Opened::of(arguments.device),
        progress: &progress,
    };
    guard::watch();
    for (index, info) in REGISTRY.formats.iter().enumerate() {
        let format = oracle.format(info.name)?;
        let subject = Subject { index, info, oracle: &format };
        blocks::dequantize(&mut session, subject)?;
        blocks::quantize(&mut session, subject)?;
        embed::embed(&mut session, subject)?;
        product::matmul(&mut session, subject)?;
        floats::matmul(&mut session, subject)?;
    }
    for (index, info) in REGISTRY.activations.iter().enumerate() {
        let format = oracle.activations(info.name)?;
        activations::quantize(&mut session, index, format)?;
        prologue::prologue(&mut session, index, format)?;
    }
    bar.finish_and_clear();
    some_of(arguments.device, &session.reports, |report| report.cases > 0)?;
    report::report(arguments, &session, out)
}

/// Refuses a GPU of whose kernels none is or was run: the portable kernels beside them, whose bits theirs are held to, say nothing of it.
fn some_of(device: Device, reports: &[Report], runs: impl Fn(&Report) -> bool) -> Result<(), CliError> {
    if device.kind == DeviceKind::Cpu {
        return Ok(());
    }
    let of_device = REGISTRY.entries.iter().zip(reports);
    let mut of_device =
        of_device.filter(|(entry, report)| report.selected && entry.device == device.kind).peekable();
    let first = of_device.peek().map(|(_, report)| report.skipped.clone());
    if of_device.any(|(_, report)| runs(report)) {
        return Ok(());
    }
    let why = match first {
        Some(skipped) => skipped.unwrap_or_else(|| "no shape of this run fits any".to_owned()),
        None if REGISTRY.entries.iter().all(|entry| entry.device != device.kind) => {
            nothing_for(device.kind).to_owned()
        }
        None => format!("this build has none of this selection for {}", device.kind),
    };
    Err(CliError::usage(
        format!("no kernel of {device} was checked: {why}"),
        "`gristmill doctor` says what is there of GPUs, and `gristmill list --kernels` which kernels this build has",
    ))
}

/// Which entries were asked for, by index.
fn select(arguments: &Arguments) -> Result<Vec<bool>, CliError> {
    if let Some(name) = &arguments.kernel
        && !REGISTRY.entries.iter().any(|entry| entry.name == name)
    {
        let nearest = request::nearest(name, REGISTRY.entries.iter().map(|entry| entry.name));
        return Err(gristmill::Error::UnknownKernel { name: name.clone(), nearest }.into());
    }
    if let Some(name) = &arguments.format
        && !REGISTRY.activations.iter().any(|activations| activations.name == name)
    {
        request::format(name)?;
    }
    let wanted = |entry: &Entry| {
        arguments.kernel.as_ref().is_none_or(|name| entry.name == name)
            && arguments.isa.is_none_or(|isa| entry.isa == Some(isa))
            && arguments.format.as_ref().is_none_or(|name| name_of(entry) == name)
            && (entry.device == arguments.device.kind
                || (arguments.device.kind != DeviceKind::Cpu && entry.isa == Some(Isa::Scalar)))
    };
    Ok(REGISTRY.entries.iter().map(wanted).collect())
}

/// Why an entry can't run here.
fn why_not(entry: &'static Entry, device: Device) -> Option<String> {
    if entry.device != DeviceKind::Cpu {
        return gpu_lacks(entry, device);
    }
    let missing = CpuProfile::detect().features.missing(entry.features);
    let missing: Vec<&str> = missing.iter().map(|feature| feature.name()).collect();
    (!missing.is_empty()).then(|| format!("the processor lacks {}", missing.join(", ")))
}

/// Why an entry can't run on a GPU, in decide's words; a shape or a restriction is no reason here.
fn gpu_lacks(entry: &'static Entry, device: Device) -> Option<String> {
    let kernel = session::Kernel { index: 0, entry, device: session::on(entry, device) };
    let quantizer =
        REGISTRY.formats.get(entry.format).and_then(|format| format.quantizers.get(entry.quantizer));
    let quantizer = quantizer.copied().filter(|_| entry.op.info().by_quantizer);
    let prepared = match session::prepared(kernel, quantizer, DType::F32) {
        Ok(prepared) => prepared,
        Err(error) => return Some(error.to_string()),
    };
    let mut rejected = prepared.decide_as_asked().rejected();
    let reason = rejected.find(|rejection| rejection.kernel == Some(entry.name))?.reason;
    match reason {
        Reason::PartialBlock { .. }
        | Reason::ShapeRule(_)
        | Reason::Disabled(_)
        | Reason::Quarantined { .. }
        | Reason::NoActivations(_) => None,
        reason => Some(reason.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::session::{Kernel, same_f32};
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_wrong_result_fails_and_is_shown() -> Result<(), Box<dyn std::error::Error>> {
        let selected = |index| Report { selected: index == 0, ..Report::default() };
        let mut session = Session {
            reports: (0..REGISTRY.entries.len()).map(selected).collect(),
            digest: Fnv::EMPTY,
            quick: true,
            device: Device::CPU,
            opened: Opened::of(Device::CPU),
            progress: &|_| {},
        };
        let entry = REGISTRY.entries.first().ok_or("this build has kernels")?;
        let kernel = Kernel { index: 0, entry, device: Device::CPU };
        session.case(kernel, || Ok(same_f32("k=2", &[1.0, 2.0], &[1.0, 2.0], |i| format!("element {i}"))))?;
        let arguments = Command::try_parse_from(["verify", "--quick"])?.arguments;
        let mut out = Vec::new();
        assert_eq!(report::report(&arguments, &session, &mut out)?, Outcome::Yes);
        session
            .case(kernel, || Ok(same_f32("k=2", &[1.0, 0.0], &[1.0, -0.0], |i| format!("element {i}"))))?;
        assert_eq!(report::report(&arguments, &session, &mut out)?, Outcome::Failed);
        let text = String::from_utf8(out)?;
        let shown = format!(
            "wrong: {}\n  k=2: element 1: expected 0e0 (0x00000000), found -0e0 (0x80000000)",
            entry.name
        );
        assert!(text.contains(&shown), "{text}");
        Ok(())
    }

    #[test]
    fn errors_are_relative_to_what_is_expected() {
        assert_eq!(normalized_error(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(normalized_error(&[3.0, 4.0], &[3.0, 5.0]), 1.0 / 25.0);
        assert_eq!(normalized_error(&[0.0], &[0.0]), 0.0);
        assert_eq!(normalized_error(&[0.0], &[1.0]), f64::INFINITY);
        assert!(normalized_error(&[1.0], &[f32::NAN]).is_nan());
    }
}
