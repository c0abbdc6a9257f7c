//! Activations: f32 rows to int8.

use super::super::error::CliError;
use super::guard::{Edge, Guarded};
use super::inputs;
#[cfg(feature = "cuda")]
use super::session::prepared;
use super::session::{Kernel, Problem, Session, agree, same, same_f32, untouched, wrong_code};
use gristmill::REGISTRY;
use gristmill::abi::Fault;
use gristmill::oracle::{Int8Row, Random, Refused};
use gristmill::registry::{Code, CudaCode, CudaLaunch, Unit};
#[cfg(feature = "cuda")]
use gristmill::vocab::DType;
use gristmill::vocab::Op;
#[cfg(feature = "cuda")]
use gristmill::{Error, Shape};
use gristmill_spec::model::Activations;

/// Every kernel of activation format `index`.
pub fn quantize(session: &mut Session<'_>, index: usize, activations: &Activations) -> Result<(), CliError> {
    let kernels = session.kernels(Op::QuantizeActivations, index);
    if kernels.is_empty() {
        return Ok(());
    }
    let mut random = Random::new(3, &activations.name);
    let units = units(index);
    let lengths: Vec<usize> = match activations.block {
        Some(block) => [1, 2, 5].map(|blocks| blocks * block as usize).to_vec(),
        None => vec![1, 5, 16, 17, 100, 128, 640, 1000],
    };
    for k in lengths {
        let mut sources = inputs::sources(&mut random, k);
        for (name, value) in [("a NaN", f32::NAN), ("an infinity", f32::INFINITY)] {
            let mut x = random.gauss_vec(k, 1.0);
            x[k / 2] = value;
            sources.push((name, x));
        }
        for (number, (name, x)) in sources.iter().enumerate() {
            let expected = Int8Row::quantize(activations, x);
            if let Ok(row) = &expected {
                session.digest(&row.q.iter().map(|q| q.cast_unsigned()).collect::<Vec<_>>());
                session.digest_f32(&row.scales);
            }
            let edge = if number % 2 == 0 { Edge::End } else { Edge::Start };
            for kernel in &kernels {
                for unit in units.iter().filter(|unit| takes(*kernel, **unit, k, activations.block)) {
                    let case =
                        format!("k={k} {name}, units of {} padded to {}", unit.elements, unit.multiple);
                    session.case(*kernel, || {
                        if kernel.on_cpu() {
                            one(*kernel, &case, x, *unit, edge, expected.as_ref())
                        } else {
                            on_gpu(*kernel, &case, x, *unit, expected.as_ref())
                        }
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// How products divide rows of this activation format: whole rows, and every unit that some kernel asks for.
pub(super) fn units(index: usize) -> Vec<Unit> {
    let mut units = vec![Unit { elements: 0, multiple: 1 }];
    for entry in REGISTRY.entries {
        let same = REGISTRY.formats.get(entry.format).is_some_and(|format| format.activations == index);
        let unit = match entry.code {
            Code::Matmul { unit, .. } => unit,
            Code::Cuda(CudaCode { launch: CudaLaunch::Matmul { unit, .. }, .. }) => unit,
            _ => continue,
        };
        if same && !units.contains(&unit) {
            units.push(unit);
        }
    }
    units
}

/// Whether a kernel lays rows of `k` out in such units: a GPU's only in parts of what has a scale.
pub(super) fn takes(kernel: Kernel, unit: Unit, k: usize, block: Option<u32>) -> bool {
    let elements = if unit.elements == 0 { k } else { unit.elements };
    unit.elements <= k
        && (kernel.on_cpu() || block.is_none_or(|block| (block as usize).is_multiple_of(elements)))
}

fn one(
    kernel: Kernel,
    case: &str,
    x: &[f32],
    unit: Unit,
    edge: Edge,
    expected: Result<&Int8Row, &Refused>,
) -> Result<Result<(), Problem>, CliError> {
    let Code::QuantizeActivations(run) = kernel.entry.code else { return Ok(wrong_code(case)) };
    let k = x.len();
    let (elements, padded, units) = unit.of_row(k);
    let block = REGISTRY.activations.get(kernel.entry.format).and_then(|activations| activations.block);
    let src = Guarded::of(x, edge)?;
    let mut q = Guarded::<i8>::new(units * padded, edge)?;
    let mut scales = Guarded::<f32>::new(block.map_or(1, |block| k.div_ceil(block)), edge)?;
    let mut sums = Guarded::<i32>::new(units, edge)?;
    // SAFETY: the session runs only kernels whose features this processor has; the buffers have the sizes that the
    // ABI asks for this `k` and unit.
    let found = unsafe {
        run(src.pointer(), k, elements, padded, q.pointer_mut(), scales.pointer_mut(), sums.pointer_mut())
    };
    let intact = q.intact() && scales.intact() && sums.intact();
    let outcome = untouched(case, "the results", intact).and_then(|()| match expected {
        Err(Refused::NonFinite(at)) => agree(case, "fault", &Err(Fault::NonFinite(*at)), &found),
        Err(Refused::ScaleOverflow { block, .. }) => {
            agree(case, "fault", &Err(Fault::ScaleOverflow(*block)), &found)
        }
        Ok(row) => agree(case, "fault", &Ok(()), &found).and_then(|()| {
            let found = Found { q: q.values(), scales: scales.values(), sums: sums.values() };
            found.compare(case, row, unit, k)
        }),
    });
    Ok(outcome)
}

/// What a kernel made of a row.
pub(super) struct Found<'f> {
    pub(super) q: &'f [i8],
    pub(super) scales: &'f [f32],
    pub(super) sums: &'f [i32],
}

impl Found<'_> {
    /// Each of three rows that a GPU made.
    #[cfg(feature = "cuda")]
    pub(super) fn of_three(
        found: &gristmill::cuda::QuantizedActivations,
        compare: impl Fn(Found<'_>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let gristmill::cuda::QuantizedActivations { q, scales, sums } = found;
        let mut rows =
            q.chunks(q.len() / 3).zip(scales.chunks(scales.len() / 3)).zip(sums.chunks(sums.len() / 3));
        rows.try_for_each(|((q, scales), sums)| compare(Found { q, scales, sums }))
    }

    pub(super) fn compare(&self, case: &str, row: &Int8Row, unit: Unit, k: usize) -> Result<(), Problem> {
        let (elements, padded, units) = unit.of_row(k);
        let mut laid_out = vec![0i8; units * padded];
        for (to, from) in laid_out.chunks_mut(padded).zip(row.q.chunks(elements)) {
            to[..from.len()].copy_from_slice(from);
        }
        same_f32(case, &row.scales, self.scales, |i| format!("scale {i}"))
            .and_then(|()| same(case, &laid_out, self.q, |i| format!("q, byte {i}")))
            .and_then(|()| same(case, &row.sums(elements), self.sums, |i| format!("sum {i}")))
    }
}

/// A row through a kernel of a GPU: three times, so that it is also found behind another.
#[cfg(feature = "cuda")]
fn on_gpu(
    kernel: Kernel,
    case: &str,
    x: &[f32],
    unit: Unit,
    expected: Result<&Int8Row, &Refused>,
) -> Result<Result<(), Problem>, CliError> {
    let k = x.len();
    let rows = [x, x, x].concat();
    let prepared = prepared(kernel, None, DType::F32)?;
    let found =
        gristmill::cuda::quantize_activations(&prepared.decide(Shape::new(3, 1, k)), unit, &rows, 3, k);
    Ok(match expected {
        Err(Refused::NonFinite(column)) => {
            agree(case, "refusal", &Err(Error::NonFinite { row: 0, column: *column }), &found.map(|_| ()))
        }
        Err(Refused::ScaleOverflow { block, .. }) => {
            agree(case, "refusal", &Err(Error::ScaleOverflow { row: 0, block: *block }), &found.map(|_| ()))
        }
        Ok(row) => match found {
            Err(error) => agree(case, "refusal", &"none".to_owned(), &error.to_string()),
            Ok(found) => Found::of_three(&found, |found| found.compare(case, row, unit, k)),
        },
    })
}

/// Without the driver's side no kernel of a GPU is in the registry.
#[cfg(not(feature = "cuda"))]
fn on_gpu(
    _: Kernel,
    case: &str,
    _: &[f32],
    _: Unit,
    _: Result<&Int8Row, &Refused>,
) -> Result<Result<(), Problem>, CliError> {
    Ok(wrong_code(case))
}
