//! Rows by index, as values of each type.

use super::super::error::CliError;
use super::guard::{Edge, Guarded};
use super::inputs::{self, Weights};
use super::scales::{self, Spread};
use super::session::{
    Kernel, Problem, Session, Subject, agree, no_difference, prepared, same_f32, untouched, wrong_code,
};
use gristmill::abi::Fault;
use gristmill::oracle::{Halves, OracleError, Random};
use gristmill::registry::Code;
use gristmill::vocab::{DType, Op};
use gristmill::{Embedder, Error, Output, QuantizedMatrix, Shape};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

type Outcome = Result<Result<(), Problem>, CliError>;

/// A tensor, the rows that are asked for, and their values by the oracle.
#[derive(Clone, Copy)]
struct Case<'t> {
    name: &'t str,
    bytes: &'t [u8],
    n: usize,
    k: usize,
    rows: &'t [u32],
    expected: &'t [f32],
    /// `expected` rounded to f16 and to bf16.
    halves: &'t [Halves; 2],
    edge: Edge,
}

/// Every embed kernel of a format.
pub fn embed(session: &mut Session<'_>, subject: Subject<'_>) -> Result<(), CliError> {
    let kernels = session.kernels(Op::Embed, subject.index);
    if kernels.is_empty() {
        return Ok(());
    }
    let (oracle, elements) = (subject.oracle, subject.info.elements);
    let mut random = Random::new(3, subject.info.name);
    // Lengths around the blocks that are decoded together, which are 512 elements where a block is smaller.
    let kinds = [
        (1, 1, Weights::Random),
        (4, 2, Weights::Wild),
        (2, 512 / elements + 1, Weights::EveryCode),
        (3, 1024 / elements + 3, Weights::Random),
    ];
    for (number, (n, blocks, kind)) in kinds.into_iter().enumerate() {
        let k = blocks * elements;
        let bytes = inputs::tensor(oracle, &mut random, n, k, kind);
        let edge = if number % 2 == 0 { Edge::End } else { Edge::Start };
        tensor(session, subject, &kernels, kind.name(), (&bytes, n, k), edge)?;
    }
    for sweep in scales::sweeps(oracle, !session.quick) {
        for swept in sweep.tensors(oracle, &mut random, Spread::Dense) {
            let shape = (&swept.bytes[..], swept.n, swept.blocks * elements);
            tensor(session, subject, &kernels, &sweep.name, shape, Edge::End)?;
        }
    }
    refusals(session, subject, &kernels, &mut random)
}

/// A tensor through every kernel: its last row, its first, and all in order.
fn tensor(
    session: &mut Session<'_>,
    subject: Subject<'_>,
    kernels: &[Kernel],
    what: &str,
    (bytes, n, k): (&[u8], usize, usize),
    edge: Edge,
) -> Result<(), CliError> {
    let name = format!("n={n} k={k} {what}");
    let last = n as u32 - 1;
    let rows: Vec<u32> = [last, 0].into_iter().chain(0..=last).collect();
    let mut expected = Vec::new();
    for row in &rows {
        expected.extend(subject.oracle.row(bytes, n, k, *row as usize)?.f32s);
    }
    let halves = &[Halves::f16(&expected), Halves::bf16(&expected)];
    let case = Case { name: &name, bytes, n, k, rows: &rows, expected: &expected, halves, edge };
    for kernel in kernels {
        session.case(*kernel, || {
            let raw = if kernel.on_cpu() { raw(subject, *kernel, case)? } else { Ok(()) };
            if raw.is_err() { Ok(raw) } else { by_handle(subject, *kernel, case) }
        })?;
    }
    Ok(())
}

/// Compares values of `ty` from the one at `first` on, by their bits; all NaN count as one value.
fn same_halves(case: Case<'_>, ty: DType, first: usize, found: &[u16]) -> Result<(), Problem> {
    let expected = &case.halves[usize::from(ty == DType::Bf16)];
    let name = |at| format!("element {} of all rows, bits of {ty}", first + at);
    let bits = |at: usize| [expected.bits()[first + at], found[at]].map(|bits| format!("0x{bits:04x}"));
    no_difference(case.name, expected.first_difference(first, found), name, bits)
}

/// The two rows in front through the raw function, in guarded memory.
fn raw(subject: Subject<'_>, kernel: Kernel, case: Case<'_>) -> Outcome {
    let Code::Embed(run) = kernel.entry.code else { return Ok(wrong_code(case.name)) };
    let count = case.k / subject.info.elements;
    let rows = case.rows.iter().zip(case.expected.chunks_exact(case.k));
    for (number, (row, expected)) in rows.enumerate().take(2) {
        let (blocks, outer) = subject.oracle.blocks(case.bytes, case.n, case.k, *row as usize)?;
        let src = Guarded::of(blocks, case.edge)?;
        let mut full = Guarded::<f32>::new(case.k, case.edge)?;
        // SAFETY: the session runs only kernels whose features this processor has; `src` holds the row's blocks and `full`
        // has room for its values.
        let fault = unsafe { run(src.pointer(), full.pointer_mut().cast(), count, outer, DType::F32) };
        let mut outcome = agree(case.name, "fault of a row", &Ok(()), &fault)
            .and_then(|()| untouched(case.name, "the values", full.intact()))
            .and_then(|()| {
                same_f32(case.name, expected, full.values(), |i| format!("row {row}, element {i}"))
            });
        for to in [DType::F16, DType::Bf16] {
            let mut halves = Guarded::<u16>::new(case.k, case.edge)?;
            // SAFETY: as above, with room for values of two bytes.
            let fault = unsafe { run(src.pointer(), halves.pointer_mut().cast(), count, outer, to) };
            outcome = outcome
                .and_then(|()| agree(case.name, "fault of a row", &Ok(()), &fault))
                .and_then(|()| untouched(case.name, "the values", halves.intact()))
                .and_then(|()| same_halves(case, to, number * case.k, halves.values()));
        }
        outcome = outcome.and_then(|()| untouched(case.name, "the blocks", src.intact()));
        if outcome.is_err() {
            return Ok(outcome);
        }
    }
    Ok(Ok(()))
}

fn by_handle(subject: Subject<'_>, kernel: Kernel, case: Case<'_>) -> Outcome {
    let matrix = QuantizedMatrix::new(subject.info, case.n, case.k, case.bytes)?;
    let shape = Shape::matrix(case.n, case.k);
    let handle = |to| Ok::<_, CliError>(Embedder::new(&prepared(kernel, None, to)?.decide(shape))?);
    let done = |outcome| agree(case.name, "rows by index", &Ok(()), &outcome);
    let len = case.expected.len();
    let mut full = vec![0.0; len];
    let outcome = done(handle(DType::F32)?.run(&matrix, case.rows, Output::F32(&mut full)));
    let outcome = outcome
        .and_then(|()| same_f32(case.name, case.expected, &full, |i| format!("element {i} of all rows")));
    let mut halves = vec![f16::ZERO; len];
    let run = handle(DType::F16)?.run(&matrix, case.rows, Output::F16(&mut halves));
    let outcome = outcome
        .and_then(|()| done(run))
        .and_then(|()| same_halves(case, DType::F16, 0, halves.reinterpret_cast()));
    let mut halves = vec![bf16::ZERO; len];
    let run = handle(DType::Bf16)?.run(&matrix, case.rows, Output::Bf16(&mut halves));
    Ok(outcome
        .and_then(|()| done(run))
        .and_then(|()| same_halves(case, DType::Bf16, 0, halves.reinterpret_cast())))
}

/// Indices of no row, and a row with a code that means nothing.
fn refusals(
    session: &mut Session<'_>,
    subject: Subject<'_>,
    kernels: &[Kernel],
    random: &mut Random,
) -> Result<(), CliError> {
    let (oracle, info) = (subject.oracle, subject.info);
    let (n, k) = (2, 2 * info.elements);
    let mut bytes = inputs::tensor(oracle, random, n, k, Weights::Random);
    for kernel in kernels {
        session.case(*kernel, || {
            let matrix = QuantizedMatrix::new(info, n, k, &bytes)?;
            let handle = Embedder::new(&prepared(*kernel, None, DType::F32)?.decide(Shape::matrix(n, k)))?;
            let mut found = vec![0.5; 3 * k];
            let outcome = handle.run(&matrix, &[0, 2, 1], Output::F32(&mut found));
            let expected = Err(Error::RowIndexOutOfRange { position: 1, index: 2, rows: n });
            Ok(agree("index 2 of 2 rows", "refusal", &expected, &outcome)
                .and_then(|()| untouched("index 2 of 2 rows", "the values", found.iter().all(|x| *x == 0.5))))
        })?;
    }
    let Some(invalid) = inputs::invalid_code(oracle) else { return Ok(()) };
    let element = info.elements - 1;
    let start = 2 * info.row_bytes(k)? - info.bytes;
    let (code, _) = oracle.code_of(element);
    oracle.set_raw(&mut bytes[start..][..info.bytes], oracle.format().value.code, code, invalid);
    let column = match oracle.row(&bytes, n, k, 1) {
        Err(OracleError::InvalidCode { column, .. }) => column,
        // A defect of the oracle, which every kernel then contradicts.
        _ => usize::MAX,
    };
    let case = format!("code {invalid} at row 1, element {}", info.elements + element);
    for kernel in kernels {
        for to in [DType::F32, DType::F16] {
            session.case(*kernel, || {
                if let (true, Code::Embed(run)) = (kernel.on_cpu(), kernel.entry.code) {
                    let (blocks, outer) = oracle.blocks(&bytes, n, k, 1)?;
                    let src = Guarded::of(blocks, Edge::End)?;
                    let mut dst = Guarded::<f32>::new(k, Edge::End)?;
                    // SAFETY: the session runs only kernels whose features this processor has; the buffers hold the row's
                    // blocks and their values.
                    let fault = unsafe { run(src.pointer(), dst.pointer_mut().cast(), 2, outer, to) };
                    let outcome = agree(&case, "fault of the row", &Err(Fault::InvalidCode(column)), &fault);
                    if outcome.is_err() {
                        return Ok(outcome);
                    }
                }
                let matrix = QuantizedMatrix::new(info, n, k, &bytes)?;
                let handle = Embedder::new(&prepared(*kernel, None, to)?.decide(Shape::matrix(n, k)))?;
                let (mut full, mut halves) = (vec![0.0; 2 * k], vec![f16::ZERO; 2 * k]);
                let dst = if to == DType::F32 { Output::F32(&mut full) } else { Output::F16(&mut halves) };
                let outcome = handle.run(&matrix, &[0, 1], dst);
                let expected = Err(Error::InvalidCode { format: info.name, row: 1, column });
                Ok(agree(&case, "refusal of the rows", &expected, &outcome))
            })?;
        }
    }
    Ok(())
}
