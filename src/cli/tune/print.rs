//! What a tuning says, beside what decisions take with it.

use super::super::error::CliError;
use super::super::table::{Side, Table, counted, measured};
use super::arguments::{TOKENS_ON_CPU, Tuned};
use gristmill::registry::Entry;
use gristmill::tuning::{Measured, Tuning};
use gristmill::vocab::Op;
use gristmill::{CpuProfile, Device, REGISTRY, Request, Restrict, Shape};
use std::io::Write;

/// Shows where the measured order begins with another kernel than the listed one, and what decisions take with it.
pub(super) fn print(tuning: &Tuning, device: Device, out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("op", Side::Left),
        ("format", Side::Left),
        ("tokens", Side::Left),
        ("like NxK", Side::Right),
        ("threads", Side::Left),
        ("fastest", Side::Left),
        ("us", Side::Right),
        ("untuned", Side::Left),
        ("us", Side::Right),
        ("chosen now", Side::Left),
        ("us", Side::Right),
    ]);
    let here = |measured: &&Measured| measured.on.starts_with("cpu ") == (device == Device::CPU);
    for measured in tuning.measured().iter().filter(here) {
        table_row(&mut table, tuning, device, measured)?;
    }
    let classes = counted(tuning.measured().iter().filter(here).count(), "measured order");
    if table.is_empty() {
        writeln!(out, "in each of {classes} the fastest kernel is the one that comes first untuned")?;
    } else {
        table.print(out)?;
        writeln!(
            out,
            "\nof {classes}, those in which another kernel is the fastest, or chosen now, than comes first untuned, or fewer\n\
             threads work than there are (weights are held in one packing for all numbers of tokens, so the fastest is not always\n\
             chosen: `gristmill explain` says what is)"
        )?;
    }
    Ok(())
}

/// The row of one order, where it says something.
fn table_row(table: &mut Table, tuning: &Tuning, device: Device, order: &Measured) -> Result<(), CliError> {
    let Measured { op, format, quantizer, class, threads, .. } = order;
    let shape = class.example();
    let Shape { n, k, .. } = shape;
    let request = match op {
        Op::Quantize => Request::quantize(format, quantizer.as_deref(), n, k),
        Op::Dequantize => Request::dequantize(format, n, k),
        // Of other ops nothing is measured here; a file may have more.
        op if *op == Tuned::Matmul.op() => Request::matmul(format, shape),
        _ => return Ok(()),
    };
    let request = request.on(device).with_threads(*threads);
    let untuned = REGISTRY.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
    let tuned = REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &Restrict::default(), tuning)?;
    let decision = tuned.decide_as_asked();
    let (Some((fastest, us)), Some(default), Some(chosen), Some(why)) =
        (order.order.first(), untuned.decide_as_asked().chosen(), decision.chosen(), decision.tuned_by())
    else {
        return Ok(());
    };
    if *fastest == default.id && chosen.id == default.id && why.fewer_threads.is_none() {
        return Ok(());
    }
    let took = |entry: &Entry| {
        let us = order.order.iter().find(|(id, _)| *id == entry.id).map(|(_, us)| *us);
        us.map_or("-".to_owned(), measured)
    };
    let name = REGISTRY.entries.iter().find(|entry| entry.id == *fastest).map_or("", |entry| entry.name);
    let (from, to) = class.tokens();
    // What was measured of so many goes for more.
    let most = if device == Device::CPU { TOKENS_ON_CPU } else { usize::MAX };
    table.row([
        op.name().to_owned(),
        format.clone(),
        match (op.info().product, to >= most) {
            (false, _) => "-".to_owned(),
            (true, true) => format!("{from} and more"),
            (true, false) => format!("{} to {to}", from.max(1)),
        },
        format!("{n}x{k}"),
        match why.fewer_threads {
            Some(fewer) => format!("{fewer} of {threads}"),
            None => threads.to_string(),
        },
        name.to_owned(),
        measured(*us),
        default.name.to_owned(),
        took(default),
        chosen.name.to_owned(),
        why.us.map_or("-".to_owned(), measured),
    ]);
    Ok(())
}
