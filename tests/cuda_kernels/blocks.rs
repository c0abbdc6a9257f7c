//! `dequantize` and `quantize`.

use super::generated::{Kernel, NO_FAULT, generated, kernels, least, same_bytes, same_f32};
use super::support::{Buffer, Unit, can_run};
use super::verify::inputs::{self, Weights};
use super::verify::scales::{self, Spread};
use gristmill::half::{bf16, f16};
use gristmill::oracle::{FormatOracle, OracleError, Random, Refused};
use gristmill::{CpuProfile, Error, Quantizer, REGISTRY, Request, Restrict};
use gristmill_codegen::cuda::Launch;
use gristmill_spec::model::QuantizeRule;
use gristmill_spec::vocab::Op;

/// A step of a quantizer: what is applied and what is stored.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Step {
    _apply: f32,
    _stored: f32,
}

/// Bytes from a row to the next, and of the tensor.
fn sizes(format: &str, n: usize, k: usize) -> (usize, usize) {
    let (_, info) = REGISTRY.format(format).expect("in this build");
    (info.row_bytes(k).expect("whole blocks"), info.tensor_bytes(n, k).expect("small"))
}

/// Runs `dequantize` with at most `most` blocks; the values, or the fault.
pub fn dequantize(
    kernel: &Kernel,
    unit: &Unit,
    tensor: &[u8],
    (n, k): (usize, usize),
    most: u32,
    seed: u64,
) -> Result<Result<Vec<f32>, u64>, String> {
    let (threads, per_thread) = (kernel.number("threads"), kernel.number("per_thread"));
    let blocks = ((n * k).div_ceil(per_thread).div_ceil(threads) as u32).min(most);
    let src = Buffer::input("src", tensor);
    let dst = Buffer::<f32>::unset("dst", n * k);
    let fault = Buffer::output("fault", &[NO_FAULT]);
    let launch = unit.launch(kernel.function()).grid(blocks, 1).threads(threads as u32).seed(seed);
    let launch =
        launch.arg(&src).arg(&dst).arg(n as u32).arg(k as u32).arg(sizes(kernel.format(), n, k).0 as u64);
    launch.arg(&fault).run()?;
    Ok(match fault.read()[0] {
        NO_FAULT => Ok(dst.try_read()?),
        fault => Err(fault),
    })
}

#[test]
fn dequantize_gives_the_oracle_s_bits() {
    if !can_run("dequantize") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Dequantize) {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let elements = oracle.format().elements as usize;
        let mut random = Random::new(11, kernel.format());
        let kinds = [
            (1, 1, Weights::Random),
            (3, 2, Weights::Wild),
            (1, 3, Weights::EveryCode),
            (2, 1, Weights::Highest),
            (1, 7, Weights::Lowest),
            (5, 9, Weights::Random),
        ];
        for (n, blocks, kind) in kinds {
            let k = blocks * elements;
            let tensor = inputs::tensor(&oracle, &mut random, n, k, kind);
            let rows = (0..n).flat_map(|row| oracle.row(&tensor, n, k, row).expect("valid").f32s);
            let expected: Vec<f32> = rows.collect();
            for (seed, most) in [(1, u32::MAX), (2, 1), (3, 2)] {
                let case = format!("{} n={n} k={k} {}", kernel.listed.name, kind.name());
                let found = dequantize(&kernel, &kernel.unit, &tensor, (n, k), most, seed);
                let found = found.unwrap_or_else(|report| panic!("{case}: {report}"));
                same_f32(&case, &found.unwrap_or_else(|fault| panic!("{case}: fault {fault}")), &expected);
                cases += 1;
            }
        }
        for sweep in scales::sweeps(&oracle, false) {
            for swept in sweep.tensors(&oracle, &mut random, Spread::Dense) {
                let (n, k) = (swept.n, swept.blocks * elements);
                let rows = (0..n).flat_map(|row| oracle.row(&swept.bytes, n, k, row).expect("valid").f32s);
                let expected: Vec<f32> = rows.collect();
                let case = format!("{} n={n} k={k} {}", kernel.listed.name, sweep.name);
                let found = dequantize(&kernel, &kernel.unit, &swept.bytes, (n, k), u32::MAX, 1);
                let found = found.unwrap_or_else(|report| panic!("{case}: {report}"));
                same_f32(&case, &found.unwrap_or_else(|fault| panic!("{case}: fault {fault}")), &expected);
                cases += 1;
            }
        }
        refuses_invalid_codes(&kernel, &oracle, &mut random);
    }
    println!("{cases} tensors");
    assert!(cases >= least(18 * 7), "only {cases} tensors were dequantized");
}

/// Runs `embed` with at most `most` blocks; the bytes of the values, or the fault.
fn embed(
    kernel: &Kernel,
    tensor: &[u8],
    (n, k): (usize, usize),
    rows: &[u32],
    to: u32,
    most: u32,
    seed: u64,
) -> Result<Result<Vec<u8>, u64>, String> {
    let (threads, per_thread) = (kernel.number("threads"), kernel.number("per_thread"));
    let values = rows.len() * k;
    let blocks = (values.div_ceil(per_thread).div_ceil(threads) as u32).min(most);
    let (src, indices) = (Buffer::input("src", tensor), Buffer::input("indices", rows));
    let dst = Buffer::<u8>::unset("dst", values * if to == 0 { 4 } else { 2 });
    let fault = Buffer::output("fault", &[NO_FAULT]);
    let launch = kernel.unit.launch(kernel.function()).grid(blocks, 1).threads(threads as u32).seed(seed);
    let launch = launch.arg(&src).arg(&indices).arg(&dst).arg(to).arg(rows.len() as u32).arg(n as u32);
    launch.arg(k as u32).arg(sizes(kernel.format(), n, k).0 as u64).arg(&fault).run()?;
    Ok(match fault.read()[0] {
        NO_FAULT => Ok(dst.try_read()?),
        fault => Err(fault),
    })
}

#[test]
fn embed_gives_the_oracle_s_rows() {
    if !can_run("embed") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Embed) {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let elements = oracle.format().elements as usize;
        let mut random = Random::new(12, kernel.format());
        for (n, blocks, kind) in [(1, 1, Weights::Wild), (5, 3, Weights::EveryCode), (3, 2, Weights::Random)]
        {
            let k = blocks * elements;
            let tensor = inputs::tensor(&oracle, &mut random, n, k, kind);
            let rows = [n as u32 - 1, 0, n as u32 / 2, 0];
            let of_row = |row: &u32| oracle.row(&tensor, n, k, *row as usize).expect("valid").f32s;
            let expected: Vec<f32> = rows.iter().flat_map(of_row).collect();
            for (seed, most) in [(1, u32::MAX), (2, 1)] {
                for to in 0..3 {
                    let case = format!("{} n={n} k={k} {} type {to}", kernel.listed.name, kind.name());
                    let found = embed(&kernel, &tensor, (n, k), &rows, to, most, seed);
                    let found = found.unwrap_or_else(|report| panic!("{case}: {report}"));
                    let found = found.unwrap_or_else(|fault| panic!("{case}: fault {fault}"));
                    let two = |i: usize| u16::from_le_bytes([found[2 * i], found[2 * i + 1]]);
                    for (i, x) in expected.iter().enumerate() {
                        let (bits, same) = match to {
                            0 => {
                                let bits = u32::from_le_bytes(found[4 * i..][..4].try_into().expect("four"));
                                (bits, bits == x.to_bits() || (x.is_nan() && f32::from_bits(bits).is_nan()))
                            }
                            1 => (u32::from(two(i)), x.is_nan() || two(i) == f16::from_f32(*x).to_bits()),
                            _ => (u32::from(two(i)), x.is_nan() || two(i) == bf16::from_f32(*x).to_bits()),
                        };
                        assert!(same, "{case}: element {i}: bits {bits:#x} for {x:e}");
                    }
                    cases += 1;
                }
            }
        }
        let Some(invalid) = inputs::invalid_code(&oracle) else { continue };
        let (format, k) = (oracle.format(), 2 * elements);
        let mut tensor = inputs::tensor(&oracle, &mut random, 2, k, Weights::Random);
        let start = 2 * sizes(&format.name, 2, k).0 - format.bytes as usize;
        oracle.set_raw(&mut tensor[start..][..format.bytes as usize], format.value.code, 0, invalid);
        let Err(OracleError::InvalidCode { column, .. }) = oracle.row(&tensor, 2, k, 1) else {
            panic!("{}: the oracle takes code {invalid}", format.name)
        };
        // By position, not by row.
        let found = embed(&kernel, &tensor, (2, k), &[0, 0, 1], 0, u32::MAX, 1).expect("runs");
        assert_eq!(found, Err(((2 * k + column) * 4 + 1) as u64), "{}: the fault", kernel.listed.name);
    }
    println!("{cases} tensors");
    assert!(cases >= least(18 * 18), "only {cases} tensors");
}

/// The first of the codes without a meaning is reported, whichever thread meets it.
fn refuses_invalid_codes(kernel: &Kernel, oracle: &FormatOracle<'_>, random: &mut Random) {
    let Some(invalid) = inputs::invalid_code(oracle) else { return };
    let format = oracle.format();
    let (bytes, elements) = (format.bytes as usize, format.elements as usize);
    let (n, k) = (3, 2 * elements);
    let mut tensor = inputs::tensor(oracle, random, n, k, Weights::Random);
    let row_bytes = sizes(&format.name, n, k).0;
    // In rows 1 and 2, in the last block of each.
    for (row, element) in [(1, elements - 1), (2, 0), (2, elements / 2)] {
        let start = (row + 1) * row_bytes - bytes;
        oracle.set_raw(&mut tensor[start..][..bytes], format.value.code, oracle.code_of(element).0, invalid);
    }
    let Err(OracleError::InvalidCode { row, column }) = oracle.row(&tensor, n, k, 1) else {
        panic!("{}: the oracle takes code {invalid}", format.name)
    };
    for seed in 0..4 {
        let found = dequantize(kernel, &kernel.unit, &tensor, (n, k), u32::MAX, seed).expect("runs");
        assert_eq!(found, Err(((row * k + column) * 4 + 1) as u64), "{}: the fault", kernel.listed.name);
    }
}

/// Runs `quantize`, with its steps before it where it has some; the tensor, or the fault.
pub fn quantize(
    kernel: &Kernel,
    unit: &Unit,
    x: &[f32],
    (n, k): (usize, usize),
    most: u32,
    seed: u64,
) -> Result<Result<Vec<u8>, u64>, String> {
    let (_, info) = REGISTRY.format(kernel.format()).expect("in this build");
    let (row_bytes, tensor_bytes) = sizes(kernel.format(), n, k);
    let src = Buffer::input("src", x);
    let dst = Buffer::<u8>::unset("dst", tensor_bytes);
    let fault = Buffer::output("fault", &[NO_FAULT]);
    let (rows, len) = if info.row_header.is_some() { (n, k) } else { (1, n * k) };
    let steps = Buffer::<Step>::unset("steps", rows);
    let Launch::Quantize { step: in_front, .. } = &kernel.listed.plan.launch else { panic!("a quantizer") };
    let has_steps = in_front.is_some();
    if let Some(in_front) = in_front {
        let (chunks, finish) = (&in_front.chunks, &in_front.finish);
        let count = rows * len.div_ceil(in_front.chunk as usize);
        let partial = Buffer::<u64>::unset("partial", count);
        let launch = unit.launch(chunks).grid((count as u32).min(most).max(1), 1).seed(seed);
        launch.arg(&src).arg(rows as u32).arg(len as u64).arg(&partial).arg(&fault).run()?;
        let launch = unit.launch(finish).grid(rows as u32, 1).seed(seed);
        launch.arg(&src).arg(rows as u32).arg(len as u64).arg(&partial).arg(&steps).arg(&fault).run()?;
    }
    let (threads, per_block) = (kernel.number("threads") as u32, kernel.number("blocks"));
    let blocks = (n * k / info.elements).div_ceil(per_block) as u32;
    let launch = unit.launch(kernel.function()).grid(blocks.min(most), 1).threads(threads).seed(seed);
    let launch = launch.arg(&src).arg(&dst).arg(n as u32).arg(k as u32).arg(row_bytes as u64);
    let launch = if has_steps { launch.arg(&steps) } else { launch.null() };
    launch.arg(&fault).run()?;
    Ok(match fault.read()[0] {
        NO_FAULT => Ok(dst.try_read()?),
        fault => Err(fault),
    })
}

/// What the CPU's scalar kernel makes of values: the reference where a quantizer searches.
fn on_the_cpu(kernel: &Kernel, quantizer: &str, x: &[f32], n: usize, k: usize) -> Result<Vec<u8>, Refused> {
    let request = Request::quantize(kernel.format(), Some(quantizer), n, k);
    let scalar = Restrict { isa: Some(gristmill::vocab::Isa::Scalar), ..Restrict::default() };
    let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &scalar).expect("it is there");
    let handle = Quantizer::new(&prepared.decide(request.shape)).expect("it runs everywhere");
    let mut bytes = vec![0; sizes(kernel.format(), n, k).1];
    match handle.run(x, n, k, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(Error::NonFinite { row, column }) => Err(Refused::NonFinite(row * k + column)),
        Err(Error::ScaleOverflow { row, block }) => Err(Refused::ScaleOverflow { row, block }),
        Err(error) => panic!("{}: {error}", kernel.listed.name),
    }
}

#[test]
fn quantize_gives_the_oracle_s_bytes() {
    if !can_run("quantize") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Quantize) {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let format = oracle.format();
        let quantizer = &format.quantizers[kernel.listed.quantizer];
        let elements = format.elements as usize;
        let mut random = Random::new(12, kernel.format());
        for (n, blocks) in [(3, 3), (1, 1), (2, 40)] {
            // The long rows, which the steps of a row or tensor divide, with a few kinds only.
            let k = blocks * elements;
            let mut sources = inputs::sources(&mut random, n * k);
            for (name, value) in [("a NaN", f32::NAN), ("an infinity", f32::NEG_INFINITY)] {
                let mut x = random.gauss_vec(n * k, 1.0);
                x[n * k - 2] = value;
                x[n * k - 1] = value;
                sources.push((name, x));
            }
            if blocks == 40 {
                sources.retain(|(name, _)| ["gauss", "ternary ties", "a NaN"].contains(name));
            }
            for (number, (name, x)) in sources.iter().enumerate() {
                let case = format!("{} n={n} k={k} {name}", kernel.listed.name);
                let expected = match &quantizer.rule {
                    QuantizeRule::Round(rule) => oracle.quantize(rule, x, n, k),
                    QuantizeRule::Search(_) => on_the_cpu(&kernel, &quantizer.name, x, n, k),
                };
                let most = if number % 2 == 0 { u32::MAX } else { 2 };
                let found = quantize(&kernel, &kernel.unit, x, (n, k), most, number as u64);
                let found = found.unwrap_or_else(|report| panic!("{case}: {report}"));
                match (found, expected) {
                    (Ok(found), Ok(expected)) => same_bytes(&case, &found, &expected),
                    (Err(fault), Err(Refused::NonFinite(at))) => assert_eq!(fault, at as u64 * 4, "{case}"),
                    (Err(fault), Err(Refused::ScaleOverflow { row, block })) => {
                        assert_eq!(fault, ((row * k + block * elements) * 4 + 2) as u64, "{case}");
                    }
                    (found, expected) => {
                        panic!(
                            "{case}: {:?}, expected {:?}",
                            found.map(|_| "a tensor"),
                            expected.map(|_| "a tensor")
                        )
                    }
                }
                cases += 1;
            }
        }
    }
    println!("{cases} tensors");
    assert!(cases >= least(30 * 7), "only {cases} tensors were quantized");
}
