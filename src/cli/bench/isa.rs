//! `--isa`: kernels that are measured by it, and what is said where there are none.

use super::super::error::CliError;
use super::plan::{Measured, Plan};
use gristmill::registry::{Entry, FormatInfo};
use gristmill::vocab::{FeatureSet, Isa, Op};
use gristmill::{CpuProfile, Prepared, REGISTRY, Reason, Request, Restrict, Shape};

/// What helps where an ISA has no kernel.
const HELP: &str = "without --isa the kernels that are chosen here are measured; `gristmill list --kernels` prints all of this build";

fn of<'p>(plan: &'p Plan, isa: Isa, op: Op) -> impl Iterator<Item = &'static Entry> + 'p {
    let of_plan = move |format: &FormatInfo| plan.formats.iter().any(|asked| asked.name == format.name);
    REGISTRY.entries.iter().filter(move |entry| {
        entry.isa == Some(isa)
            && entry.op == op
            && entry.quantizer == 0
            && REGISTRY.formats.get(entry.format).is_some_and(of_plan)
    })
}

fn missing(entry: &Entry) -> FeatureSet {
    CpuProfile::detect().features.missing(entry.features)
}

/// Refuses an ISA of which this build has nothing, or this processor can run nothing, before anything is measured.
pub(super) fn is_here(plan: &Plan) -> Result<(), CliError> {
    let Some(isa) = plan.isa else { return Ok(()) };
    let ops = plan.ops.iter().map(|op| match op {
        Measured::Op(op) => *op,
        Measured::Pack => Op::Matmul,
    });
    let entries: Vec<&Entry> = ops.flat_map(|op| of(plan, isa, op)).collect();
    let what = match entries.first() {
        None => format!("--isa {}: this build has no kernel of it for what was selected", isa.name()),
        Some(first) if entries.iter().all(|entry| missing(entry) != FeatureSet::EMPTY) => {
            let missing: Vec<&str> = missing(first).iter().map(|feature| feature.name()).collect();
            format!(
                "--isa {}: no kernel of it can run here: the processor lacks {}",
                isa.name(),
                missing.join(", ")
            )
        }
        Some(_) => return Ok(()),
    };
    Err(CliError::NoKernel { what, help: HELP.to_owned() })
}

/// The requests to measure: the one that the environment decides, or one for each kernel of the ISA that this processor can run.
pub(super) fn requests(
    plan: &Plan,
    format: &'static FormatInfo,
    request: &Request<'_>,
) -> Result<Vec<Prepared>, CliError> {
    let Some(isa) = plan.isa else { return Ok(vec![plan.environment.prepare(request)?]) };
    let only = |entry: &Entry| Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
    let cpu = CpuProfile::detect();
    of(plan, isa, request.op)
        .filter(|entry| missing(entry) == FeatureSet::EMPTY)
        .filter(|entry| REGISTRY.formats.get(entry.format).is_some_and(|of| of.name == format.name))
        .map(|entry| Ok(REGISTRY.prepare_for(request, cpu, &only(entry))?))
        .collect()
}

/// Whether one of the requests has a kernel for one of these shapes; `false` where there are no requests. Asked before weights are made,
/// which takes a while of large shapes.
///
/// # Errors
/// Why the first one has none. With `--isa` the reason of a kernel of it: the others are out of the question.
pub(super) fn some_kernel(plan: &Plan, requests: &[Prepared], shapes: &[Shape]) -> Result<bool, CliError> {
    let decisions = || requests.iter().flat_map(|of| shapes.iter().map(move |shape| of.decide(*shape)));
    if decisions().any(|decision| decision.chosen().is_some()) {
        return Ok(true);
    }
    let Some(first) = decisions().next() else { return Ok(false) };
    let of_isa = |name| REGISTRY.entries.iter().any(|entry| entry.name == name && entry.isa == plan.isa);
    let mut own = first.rejected().filter(|rejected| rejected.kernel.is_none_or(of_isa));
    if plan.isa.is_some()
        && let Some(own) = own.find(|rejected| !matches!(rejected.reason, Reason::Disabled(_)))
    {
        let help = own.reason.help().unwrap_or_else(|| HELP.to_owned());
        return Err(CliError::NoKernel { what: own.to_string(), help });
    }
    match first.kernel() {
        Ok(_) => Ok(true),
        Err(refused) => Err(refused.into()),
    }
}
