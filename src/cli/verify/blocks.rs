//! Blocks and values: dequantize and quantize.

use super::super::error::CliError;
use super::guard::{Edge, Guarded};
use super::inputs::{self, Weights};
use super::scales::{self, Spread};
use super::session::{
    Kernel, Problem, Session, Subject, agree, prepared, same, same_f32, untouched, wrong_code,
};
use gristmill::abi::{Fault, Step};
use gristmill::oracle::{OracleError, Random, Refused};
use gristmill::registry::Code;
use gristmill::vocab::{DType, Isa, Op};
use gristmill::{Dequantizer, Error, QuantizedMatrix, Quantizer, Shape};
use gristmill_spec::model::QuantizeRule;

type Outcome = Result<Result<(), Problem>, CliError>;

/// A tensor of a format's bytes, and how it is laid in memory.
#[derive(Clone, Copy)]
struct Tensor<'t> {
    case: &'t str,
    bytes: &'t [u8],
    n: usize,
    k: usize,
    edge: Edge,
}

/// Every dequantize kernel of a format.
pub fn dequantize(session: &mut Session<'_>, subject: Subject<'_>) -> Result<(), CliError> {
    let kernels = session.kernels(Op::Dequantize, subject.index);
    if kernels.is_empty() {
        return Ok(());
    }
    let oracle = subject.oracle;
    let mut random = Random::new(1, subject.info.name);
    let kinds = [
        (1, 1, Weights::Random),
        (3, 2, Weights::Random),
        (2, 5, Weights::Wild),
        (1, 3, Weights::EveryCode),
        (2, 1, Weights::Highest),
        (1, 7, Weights::Lowest),
        (5, 4, Weights::Wild),
    ];
    for (number, (n, blocks, kind)) in kinds.into_iter().enumerate() {
        let k = blocks * subject.info.elements;
        let case = format!("n={n} k={k} {}", kind.name());
        let bytes = inputs::tensor(oracle, &mut random, n, k, kind);
        let edge = if number % 2 == 0 { Edge::End } else { Edge::Start };
        dequantize_case(session, subject, &kernels, Tensor { case: &case, bytes: &bytes, n, k, edge })?;
    }
    for sweep in scales::sweeps(oracle, !session.quick) {
        for (number, swept) in sweep.tensors(oracle, &mut random, Spread::Dense).iter().enumerate() {
            let (n, k) = (swept.n, swept.blocks * subject.info.elements);
            let case = format!("n={n} k={k} {}", sweep.name);
            let edge = if number % 2 == 0 { Edge::End } else { Edge::Start };
            let tensor = Tensor { case: &case, bytes: &swept.bytes, n, k, edge };
            dequantize_case(session, subject, &kernels, tensor)?;
        }
    }
    let Some(invalid) = inputs::invalid_code(oracle) else { return Ok(()) };
    for element in [0, subject.info.elements / 2 + 1, 2 * subject.info.elements - 1] {
        let (n, k) = (2, 2 * subject.info.elements);
        let case = format!("n={n} k={k} code {invalid} at row 1, element {element}");
        let mut bytes = inputs::tensor(oracle, &mut random, n, k, Weights::Random);
        let row = subject.info.row_bytes(k)?;
        let start = 2 * row - 2 * subject.info.bytes + subject.info.bytes * (element / subject.info.elements);
        let (code, _) = oracle.code_of(element % subject.info.elements);
        oracle.set_raw(&mut bytes[start..][..subject.info.bytes], oracle.format().value.code, code, invalid);
        let refusal = oracle.row(&bytes, n, k, 1).map(|_| ());
        let tensor = Tensor { case: &case, bytes: &bytes, n, k, edge: Edge::End };
        for kernel in &kernels {
            session.case(*kernel, || match &refusal {
                Err(OracleError::InvalidCode { column, .. }) => {
                    invalid_code(subject, *kernel, tensor, *column)
                }
                // A defect of the oracle, reported like any other.
                other => Ok(agree(&case, "oracle", &"invalid code".to_owned(), &format!("{other:?}"))),
            })?;
        }
    }
    Ok(())
}

/// A tensor through every kernel.
fn dequantize_case(
    session: &mut Session<'_>,
    subject: Subject<'_>,
    kernels: &[Kernel],
    tensor: Tensor<'_>,
) -> Result<(), CliError> {
    let Tensor { bytes, n, k, .. } = tensor;
    let mut expected = Vec::new();
    for row in 0..n {
        expected.extend(subject.oracle.row(bytes, n, k, row)?.f32s);
    }
    session.digest_f32(&expected);
    for kernel in kernels {
        session.case(*kernel, || {
            let raw =
                if kernel.on_cpu() { dequantize_raw(subject, *kernel, tensor, &expected)? } else { Ok(()) };
            if raw.is_err() { Ok(raw) } else { dequantize_handle(subject, *kernel, tensor, &expected) }
        })?;
    }
    Ok(())
}

/// A tensor whose last row holds a code without meaning.
fn invalid_code(subject: Subject<'_>, kernel: Kernel, tensor: Tensor<'_>, column: usize) -> Outcome {
    let Tensor { case, bytes, n, k, .. } = tensor;
    let raw = if kernel.on_cpu() { invalid_code_raw(subject, kernel, tensor, column)? } else { Ok(()) };
    let matrix = QuantizedMatrix::new(subject.info, n, k, bytes)?;
    let prepared = prepared(kernel, None, DType::F32)?;
    let handle = Dequantizer::new(&prepared.decide(Shape::matrix(n, k)))?;
    let found = handle.run(&matrix, &mut vec![0.0; n * k]);
    let expected = Err(Error::InvalidCode { format: subject.info.name, row: n - 1, column });
    Ok(raw.and(agree(case, "refusal of the tensor", &expected, &found)))
}

fn invalid_code_raw(subject: Subject<'_>, kernel: Kernel, tensor: Tensor<'_>, column: usize) -> Outcome {
    let Tensor { case, bytes, n, k, edge } = tensor;
    let Code::Dequantize(run) = kernel.entry.code else { return Ok(wrong_code(case)) };
    let (blocks, outer) = subject.oracle.blocks(bytes, n, k, n - 1)?;
    let src = Guarded::of(blocks, edge)?;
    let mut dst = Guarded::<f32>::new(k, edge)?;
    // SAFETY: the session runs only kernels whose features this processor has; the buffers hold the row's blocks
    // and their values.
    let fault = unsafe { run(src.pointer(), dst.pointer_mut(), k / subject.info.elements, outer) };
    Ok(agree(case, "fault of the row", &Err(Fault::InvalidCode(column)), &fault))
}

fn dequantize_raw(subject: Subject<'_>, kernel: Kernel, tensor: Tensor<'_>, expected: &[f32]) -> Outcome {
    let Tensor { case, bytes, n, k, edge } = tensor;
    let Code::Dequantize(run) = kernel.entry.code else { return Ok(wrong_code(case)) };
    for row in 0..n {
        let (blocks, outer) = subject.oracle.blocks(bytes, n, k, row)?;
        let src = Guarded::of(blocks, edge)?;
        let mut dst = Guarded::<f32>::new(k, edge)?;
        // SAFETY: the session runs only kernels whose features this processor has; `src` holds the row's blocks
        // and `dst` its values.
        let fault = unsafe { run(src.pointer(), dst.pointer_mut(), k / subject.info.elements, outer) };
        let outcome = agree(case, &format!("fault of row {row}"), &Ok(()), &fault)
            .and_then(|()| untouched(case, "the values", dst.intact()))
            .and_then(|()| untouched(case, "the blocks", src.intact()))
            .and_then(|()| {
                same_f32(case, &expected[row * k..][..k], dst.values(), |i| format!("row {row}, element {i}"))
            });
        if outcome.is_err() {
            return Ok(outcome);
        }
    }
    Ok(Ok(()))
}

fn dequantize_handle(subject: Subject<'_>, kernel: Kernel, tensor: Tensor<'_>, expected: &[f32]) -> Outcome {
    let Tensor { case, bytes, n, k, .. } = tensor;
    let matrix = QuantizedMatrix::new(subject.info, n, k, bytes)?;
    let prepared = prepared(kernel, None, DType::F32)?;
    let handle = Dequantizer::new(&prepared.decide(Shape::matrix(n, k)))?;
    let mut found = vec![0.0; n * k];
    let outcome = handle.run(&matrix, &mut found);
    Ok(agree(case, "whole tensor", &Ok(()), &outcome).and_then(|()| {
        same_f32(case, expected, &found, |i| format!("whole tensor, row {}, element {}", i / k, i % k))
    }))
}

/// Every quantize kernel of a format.
pub fn quantize(session: &mut Session<'_>, subject: Subject<'_>) -> Result<(), CliError> {
    let kernels = session.kernels(Op::Quantize, subject.index);
    if kernels.is_empty() {
        return Ok(());
    }
    let oracle = subject.oracle;
    let mut random = Random::new(2, subject.info.name);
    for (number, quantizer) in oracle.format().quantizers.iter().enumerate() {
        // A search takes milliseconds a block, and a hundred times as long in an emulator.
        let side = if session.quick && matches!(quantizer.rule, QuantizeRule::Search(_)) { 2 } else { 3 };
        let (n, k) = (side, side * subject.info.elements);
        let kernels: Vec<Kernel> =
            kernels.iter().filter(|kernel| kernel.entry.quantizer == number).copied().collect();
        let mut sources = inputs::sources(&mut random, n * k);
        for (name, value) in [("a NaN", f32::NAN), ("an infinity", f32::NEG_INFINITY)] {
            let mut x = random.gauss_vec(n * k, 1.0);
            x[n * k - 2] = value;
            sources.push((name, x));
        }
        for (number, (name, x)) in sources.iter().enumerate() {
            let case = format!("n={n} k={k} {name}, quantizer {}", quantizer.name);
            let expected = |x: &[f32], n| match &quantizer.rule {
                QuantizeRule::Round(rule) => Ok(oracle.quantize(rule, x, n, k)),
                QuantizeRule::Search(_) => searched(subject, &kernels, x, n, k),
            };
            let whole = expected(x, n)?;
            // The last row alone goes through the raw functions: it is the one with the NaN.
            let last = &x[(n - 1) * k..];
            let row = expected(last, 1)?;
            if let Ok(bytes) = &whole {
                session.digest(bytes);
            }
            let edge = if number % 2 == 0 { Edge::End } else { Edge::Start };
            for kernel in &kernels {
                session.case(*kernel, || {
                    let raw = if kernel.on_cpu() {
                        quantize_raw(subject, *kernel, &case, last, edge, row.as_deref())?
                    } else {
                        Ok(())
                    };
                    if raw.is_err() {
                        return Ok(raw);
                    }
                    quantize_handle(subject, *kernel, &case, (x, n, k), whole.as_deref())
                })?;
            }
        }
    }
    Ok(())
}

/// What a searching quantizer makes of a tensor, by its reference (scalar) kernel: the other kernels must make
/// the same. That the reference itself is right is for the golden vectors to say; there is no second search.
fn searched(
    subject: Subject<'_>,
    kernels: &[Kernel],
    x: &[f32],
    n: usize,
    k: usize,
) -> Result<Result<Vec<u8>, Refused>, CliError> {
    let Some(kernel) =
        kernels.iter().find(|kernel| kernel.entry.isa == Some(Isa::Scalar)).or(kernels.first())
    else {
        return Ok(Ok(Vec::new()));
    };
    let name = subject.info.quantizers.get(kernel.entry.quantizer).copied();
    let handle = Quantizer::new(&prepared(*kernel, name, DType::F32)?.decide(Shape::matrix(n, k)))?;
    let mut bytes = vec![0; subject.info.tensor_bytes(n, k)?];
    match handle.run(x, n, k, &mut bytes) {
        Ok(()) => Ok(Ok(bytes)),
        Err(Error::NonFinite { row, column }) => Ok(Err(Refused::NonFinite(row * k + column))),
        Err(Error::ScaleOverflow { row, block }) => Ok(Err(Refused::ScaleOverflow { row, block })),
        Err(error) => Err(error.into()),
    }
}

/// One row through the raw functions, in guarded memory.
fn quantize_raw(
    subject: Subject<'_>,
    kernel: Kernel,
    case: &str,
    x: &[f32],
    edge: Edge,
    expected: Result<&[u8], &Refused>,
) -> Outcome {
    let Code::Quantize { step, blocks, .. } = kernel.entry.code else { return Ok(wrong_code(case)) };
    let count = x.len() / subject.info.elements;
    let src = Guarded::of(x, edge)?;
    let mut dst = Guarded::<u8>::new(count * subject.info.bytes, edge)?;
    let neutral = Step { apply: 1.0, stored: 1.0 };
    // SAFETY: the session runs only kernels whose features this processor has; `src` holds the values.
    let step = step.map_or(Ok(neutral), |step| unsafe { step(src.pointer(), x.len()) });
    // SAFETY: as above; `src` holds the values of `count` blocks and `dst` has room for the blocks.
    let found = step
        .and_then(|step| unsafe { blocks(src.pointer(), dst.pointer_mut(), count, step, std::ptr::null()) });
    let outcome = untouched(case, "the blocks", dst.intact()).and_then(|()| match expected {
        Err(Refused::NonFinite(at)) => {
            agree(case, "fault of the last row", &Err(Fault::NonFinite(*at)), &found)
        }
        Err(Refused::ScaleOverflow { block, .. }) => {
            let is_outer = subject.info.row_header.is_some() || subject.info.tensor_tail.is_some();
            // Whether a scale outside the blocks fits its type is checked where it is written, not in the kernel.
            let expected = if is_outer && found.is_ok() { Ok(()) } else { Err(Fault::ScaleOverflow(*block)) };
            agree(case, "fault of the last row", &expected, &found)
        }
        Ok(bytes) => agree(case, "fault of the last row", &Ok(()), &found).and_then(|()| {
            let header = subject.info.row_header.map_or(0, |outer| outer.bytes());
            let size = subject.info.bytes;
            let name = |i: usize| format!("last row, block {}, byte {}", i / size, i % size);
            same(case, &bytes[header..][..dst.values().len()], dst.values(), name)
        }),
    });
    Ok(outcome)
}

fn quantize_handle(
    subject: Subject<'_>,
    kernel: Kernel,
    case: &str,
    (x, n, k): (&[f32], usize, usize),
    expected: Result<&[u8], &Refused>,
) -> Outcome {
    let name = subject.info.quantizers.get(kernel.entry.quantizer).copied();
    let prepared = prepared(kernel, name, DType::F32)?;
    let handle = Quantizer::new(&prepared.decide(Shape::matrix(n, k)))?;
    let mut found = vec![0; subject.info.tensor_bytes(n, k)?];
    let outcome = handle.run(x, n, k, &mut found);
    let refusal = match expected {
        Ok(_) => Ok(()),
        Err(Refused::NonFinite(at)) => Err(Error::NonFinite { row: at / k, column: at % k }),
        Err(Refused::ScaleOverflow { row, block }) => Err(Error::ScaleOverflow { row: *row, block: *block }),
    };
    let compare = |()| match expected {
        Ok(bytes) => same(case, bytes, &found, |i| format!("byte {i} of the tensor")),
        Err(_) => Ok(()),
    };
    Ok(agree(case, "refusal of the tensor", &refusal, &outcome).and_then(compare))
}
