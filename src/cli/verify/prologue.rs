//! Activations through the steps of a prologue, and to int8.

use super::super::error::CliError;
use super::activations::{Found, takes, units};
use super::guard::{Edge, Guarded};
#[cfg(feature = "cuda")]
use super::session::prepared;
use super::session::{Kernel, Problem, Session, agree, same_f32, untouched, wrong_code};
use gristmill::REGISTRY;
use gristmill::abi::{Fault, PrologueArgs};
use gristmill::oracle::{Int8Row, PrologueRow, PrologueSteps, Random, Refused};
use gristmill::registry::{Code, Unit};
#[cfg(feature = "cuda")]
use gristmill::vocab::DType;
use gristmill::vocab::{GateFunction, Op, PrologueStep};
#[cfg(feature = "cuda")]
use gristmill::{Error, Hadamard, Prologue, PrologueInput, Shape};
use gristmill_spec::model::Activations;
use std::ptr::{null, null_mut};
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// Rows of a case, as long as each other.
struct Rows {
    x: Vec<f32>,
    up: Vec<f32>,
    residual: Vec<f32>,
    weight: Vec<f32>,
    signs: Vec<f32>,
}

/// Every kernel of the prologue of activation format `index`.
pub fn prologue(session: &mut Session<'_>, index: usize, activations: &Activations) -> Result<(), CliError> {
    let kernels = session.kernels(Op::Prologue, index);
    if kernels.is_empty() {
        return Ok(());
    }
    let mut random = Random::new(5, &activations.name);
    let units = units(index);
    let lengths: Vec<usize> = match activations.block {
        Some(block) => [1, 5].map(|blocks| blocks * block as usize).to_vec(),
        None if session.quick => vec![1, 100, 640],
        None => vec![1, 4, 17, 40, 100, 640, 1000],
    };
    for k in lengths {
        let block = 1 << k.trailing_zeros().min(7);
        let mut cases: Vec<(String, Rows)> = Vec::new();
        let row = |random: &mut Random, size: f32| Rows {
            x: random.gauss_vec(k, size),
            up: random.gauss_vec(k, 1.0),
            residual: random.gauss_vec(k, size),
            weight: random.gauss_vec(k, 1.0),
            signs: (0..k).map(|_| if random.below(2) == 0 { 1.0 } else { -1.0 }).collect(),
        };
        // Beyond 1e19, squares are beyond f32; beyond 88, so is e^x.
        for size in [1.0, 1e-6, 60.0, 1e25] {
            cases.push((format!("values of {size:e}"), row(&mut random, size)));
        }
        cases.push((
            "zeros".to_owned(),
            Rows { x: vec![0.0; k], residual: vec![-0.0; k], ..row(&mut random, 1.0) },
        ));
        for (name, value) in [("a NaN", f32::NAN), ("an infinity", f32::NEG_INFINITY)] {
            for of in ["x", "up", "residual"] {
                let mut rows = row(&mut random, 1.0);
                match of {
                    "x" => rows.x[k / 2] = value,
                    "up" => rows.up[k / 2] = value,
                    _ => rows.residual[k / 2] = value,
                }
                cases.push((format!("{name} in {of}"), rows));
            }
        }
        for (number, (name, rows)) in cases.iter().enumerate() {
            for (chosen, steps) in choices(rows, block) {
                let expected = PrologueRow::of(activations, &rows.x, &steps).and_then(|behind| {
                    let row = Int8Row::quantize(activations, &behind.row)?;
                    Ok((behind.sum, row))
                });
                if let Ok((sum, row)) = &expected {
                    session.digest(&row.q.iter().map(|q| q.cast_unsigned()).collect::<Vec<_>>());
                    session.digest_f32(&row.scales);
                    session.digest_f32(sum.as_deref().unwrap_or_default());
                }
                let edge = if number % 2 == 0 { Edge::End } else { Edge::Start };
                let case = format!("k={k}, {chosen}, {name}");
                for kernel in &kernels {
                    for unit in units.iter().filter(|unit| takes(*kernel, **unit, k, activations.block)) {
                        session.case(*kernel, || match kernel.on_cpu() {
                            true => one(*kernel, &case, &rows.x, &steps, *unit, edge, expected.as_ref()),
                            false => on_gpu(*kernel, &case, &rows.x, &steps, *unit, expected.as_ref()),
                        })?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Each step alone, each function of the gate, steps that follow each other, all of them.
fn choices(rows: &Rows, block: usize) -> Vec<(String, PrologueSteps<'_>)> {
    use PrologueStep::{Add, Gate, Hadamard, RmsNorm};
    let some: [(GateFunction, &[PrologueStep]); 9] = [
        (GateFunction::Silu, &[]),
        (GateFunction::Silu, &[Gate]),
        (GateFunction::GeluTanh, &[Gate]),
        (GateFunction::SquaredRelu, &[Gate, RmsNorm]),
        (GateFunction::Silu, &[Add]),
        (GateFunction::Silu, &[RmsNorm]),
        (GateFunction::Silu, &[Hadamard]),
        (GateFunction::Silu, &[Add, RmsNorm]),
        (GateFunction::GeluTanh, PrologueStep::ALL),
    ];
    let name = |(function, steps): &(GateFunction, &[PrologueStep])| {
        let names: Vec<String> = steps
            .iter()
            .map(|step| match step {
                Gate => format!("gate {function}"),
                Add | RmsNorm | Hadamard => step.name().to_owned(),
            })
            .collect();
        if names.is_empty() { "no step".to_owned() } else { names.join(" + ") }
    };
    let of = |(function, steps): &(GateFunction, &[PrologueStep])| PrologueSteps {
        gate: steps.contains(&Gate).then_some((*function, &rows.up[..])),
        residual: steps.contains(&Add).then_some(&rows.residual[..]),
        norm: steps.contains(&RmsNorm).then_some((&rows.weight[..], 1e-5)),
        // An odd row has no blocks. Signs every other time.
        transform: (steps.contains(&Hadamard) && block > 1)
            .then_some((block, (steps.len() > 1).then_some(&rows.signs[..]))),
    };
    some.iter().map(|choice| (name(choice), of(choice))).collect()
}

fn one(
    kernel: Kernel,
    case: &str,
    x: &[f32],
    steps: &PrologueSteps<'_>,
    unit: Unit,
    edge: Edge,
    expected: Result<&(Option<Vec<f32>>, Int8Row), &Refused>,
) -> Result<Result<(), Problem>, CliError> {
    let Code::Prologue(run) = kernel.entry.code else { return Ok(wrong_code(case)) };
    let k = x.len();
    let (elements, padded, units) = unit.of_row(k);
    let block = REGISTRY.activations.get(kernel.entry.format).and_then(|activations| activations.block);
    let guarded = |row: Option<&[f32]>| row.map(|row| Guarded::of(row, edge)).transpose();
    let src = Guarded::of(x, edge)?;
    let (up, residual) = (guarded(steps.gate.map(|(_, up)| up))?, guarded(steps.residual)?);
    let weight = guarded(steps.norm.map(|(weight, _)| weight))?;
    let signs = guarded(steps.transform.and_then(|(_, signs)| signs))?;
    let pointer = |row: &Option<Guarded<f32>>| row.as_ref().map_or(null(), Guarded::pointer);
    let mut sum = match steps.residual {
        Some(_) => Some(Guarded::<f32>::new(k, edge)?),
        None => None,
    };
    let mut row = Guarded::<f32>::new(k, edge)?;
    let mut q = Guarded::<i8>::new(units * padded, edge)?;
    let mut scales = Guarded::<f32>::new(block.map_or(1, |block| k.div_ceil(block)), edge)?;
    let mut sums = Guarded::<i32>::new(units, edge)?;
    let args = PrologueArgs {
        x: src.pointer(),
        k,
        up: pointer(&up),
        function: steps.gate.map_or(0, |(function, _)| function as u32),
        residual: pointer(&residual),
        sum: sum.as_mut().map_or(null_mut(), Guarded::pointer_mut),
        weight: pointer(&weight),
        epsilon: steps.norm.map_or(0.0, |(_, epsilon)| epsilon),
        block: steps.transform.map_or(0, |(block, _)| block),
        signs: pointer(&signs),
        row: row.pointer_mut(),
        unit: elements,
        unit_padded: padded,
        q: q.pointer_mut(),
        scales: scales.pointer_mut(),
        sums: sums.pointer_mut(),
    };
    // SAFETY: the session runs only kernels whose features this processor has; the buffers have the sizes that the
    // ABI asks for this `k` and unit, and those of the steps have `k` values.
    let found = unsafe { run(&args) };
    let intact = q.intact() && scales.intact() && sums.intact() && row.intact();
    let intact = intact && sum.as_ref().is_none_or(Guarded::intact);
    let outcome = untouched(case, "the results", intact).and_then(|()| match expected {
        Err(Refused::NonFinite(at)) => agree(case, "fault", &Err(Fault::NonFinite(*at)), &found),
        Err(Refused::ScaleOverflow { block, .. }) => {
            agree(case, "fault", &Err(Fault::ScaleOverflow(*block)), &found)
        }
        Ok((expected_sum, row)) => agree(case, "fault", &Ok(()), &found).and_then(|()| {
            let found = Found { q: q.values(), scales: scales.values(), sums: sums.values() };
            let added =
                (expected_sum.as_deref().unwrap_or_default(), sum.as_ref().map_or(&[][..], Guarded::values));
            same_f32(case, added.0, added.1, |i| format!("element {i} of the sum"))?;
            found.compare(case, row, unit, k)
        }),
    });
    Ok(outcome)
}

/// A row through a kernel of a GPU: three times, so that it is also found behind another.
#[cfg(feature = "cuda")]
fn on_gpu(
    kernel: Kernel,
    case: &str,
    x: &[f32],
    steps: &PrologueSteps<'_>,
    unit: Unit,
    expected: Result<&(Option<Vec<f32>>, Int8Row), &Refused>,
) -> Result<Result<(), Problem>, CliError> {
    let k = x.len();
    let mut prologue = Prologue::new(k);
    if let Some((function, _)) = steps.gate {
        prologue = prologue.gated(function);
    }
    if let Some((weight, epsilon)) = steps.norm {
        prologue = prologue.rms_norm(weight, epsilon)?;
    }
    if let Some((block, signs)) = steps.transform {
        let signs = signs.map(|signs| signs.iter().map(|sign| *sign as i8).collect::<Vec<_>>());
        prologue = prologue.transformed(Arc::new(Hadamard::new(k, block, signs.as_deref())?))?;
    }
    let three = |row: &[f32]| row.repeat(3);
    let (rows, up) = (three(x), steps.gate.map(|(_, up)| three(up)));
    let residual = steps.residual.map(three);
    let mut sum = vec![f32::NAN; residual.as_ref().map_or(0, Vec::len)];
    let mut input = PrologueInput::new(gristmill::Rows::dense(&rows));
    if let Some(up) = &up {
        input = input.gate(gristmill::Rows::dense(up));
    }
    if let Some(residual) = &residual {
        input = input.add(gristmill::Rows::dense(residual), &mut sum);
    }
    let prepared = prepared(kernel, None, DType::F32)?;
    let decision = prepared.decide(Shape::new(3, 1, k));
    let found = gristmill::cuda::quantize_with(&decision, unit, &prologue, input, 3);
    let refused =
        |error| agree(case, "refusal", &Err(error), &found.as_ref().map(|_| ()).map_err(Error::clone));
    Ok(match expected {
        Err(Refused::NonFinite(column)) => refused(Error::NonFinite { row: 0, column: *column }),
        Err(Refused::ScaleOverflow { block, .. }) => refused(Error::ScaleOverflow { row: 0, block: *block }),
        Ok((expected_sum, row)) => match &found {
            Err(error) => agree(case, "refusal", &"none".to_owned(), &error.to_string()),
            Ok(found) => {
                let expected_sum = three(expected_sum.as_deref().unwrap_or_default());
                same_f32(case, &expected_sum, &sum, |i| format!("element {i} of the sum"))
                    .and_then(|()| Found::of_three(found, |found| found.compare(case, row, unit, k)))
            }
        },
    })
}

/// Without the driver's side no kernel of a GPU is in the registry.
#[cfg(not(feature = "cuda"))]
fn on_gpu(
    _: Kernel,
    case: &str,
    _: &[f32],
    _: &PrologueSteps<'_>,
    _: Unit,
    _: Result<&(Option<Vec<f32>>, Int8Row), &Refused>,
) -> Result<Result<(), Problem>, CliError> {
    Ok(wrong_code(case))
}
