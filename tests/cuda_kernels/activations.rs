//! `quantize_activations`.

use super::generated::{NO_FAULT, generated, kernels, same_f32};
use super::support::{Buffer, can_run};
use super::verify::inputs;
use gristmill::half::{bf16, f16};
use gristmill::oracle::{Int8Row, Random, Refused};
use gristmill_spec::vocab::Op;

/// Rows of a type that kernels take, and the same as f32.
pub struct Rows {
    pub kind: u32,
    pub bytes: Vec<u8>,
    pub values: Vec<f32>,
}

pub fn rows(kind: u32, x: &[f32]) -> Rows {
    let (bytes, values) = match kind {
        0 => (x.iter().flat_map(|x| x.to_le_bytes()).collect(), x.to_vec()),
        1 => {
            let x: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
            (x.iter().flat_map(|x| x.to_le_bytes()).collect(), x.iter().map(|x| x.to_f32()).collect())
        }
        _ => {
            let x: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
            (x.iter().flat_map(|x| x.to_le_bytes()).collect(), x.iter().map(|x| x.to_f32()).collect())
        }
    };
    Rows { kind, bytes, values }
}

#[test]
fn activations_become_the_oracle_s_int8() {
    if !can_run("quantize_activations") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::QuantizeActivations) {
        let name = &generated().set.activations[kernel.listed.format].name;
        let format = generated().oracle.activations(name).expect("described");
        let block = format.block.map(|block| block as usize);
        // (m, k, unit, what a unit is padded to); a unit of 0 is the row.
        let shapes: &[(usize, usize, usize, usize)] = match block {
            None => &[
                (1, 1, 0, 64),
                (3, 100, 0, 64),
                (2, 700, 0, 16),
                (2, 257, 32, 32),
                (1, 640, 32, 64),
                (1, 9999, 0, 1),
                (2, 5000, 0, 4),
            ],
            Some(32) => &[(1, 32, 32, 32), (3, 96, 32, 64), (2, 640, 16, 32)],
            Some(_) => {
                &[(1, 256, 256, 256), (3, 768, 32, 32), (2, 2560, 16, 64), (1, 512, 64, 72), (1, 512, 8, 8)]
            }
        };
        for &(m, k, unit, multiple) in shapes {
            let unit = if unit == 0 { k } else { unit };
            let (padded, units) = (unit.next_multiple_of(multiple), k.div_ceil(unit));
            let blocks = block.map_or(1, |block| k / block);
            let mut random = Random::new(13, name);
            let mut sources = inputs::sources(&mut random, m * k);
            for value in [f32::NAN, f32::INFINITY] {
                let mut x = random.gauss_vec(m * k, 1.0);
                x[m * k - 1] = value;
                x[m * k / 2] = value;
                sources.push(("not finite", x));
            }
            for (number, (source, x)) in sources.iter().enumerate() {
                let input = rows(number as u32 % 3, x);
                let case = format!("{name} m={m} k={k} unit={unit}: {source}, type {}", input.kind);
                let expected: Result<Vec<Int8Row>, u64> = input
                    .values
                    .chunks(k)
                    .enumerate()
                    .map(|(row, x)| {
                        Int8Row::quantize(format, x).map_err(|refused| match refused {
                            Refused::NonFinite(at) => (row * k + at) as u64 * 4,
                            Refused::ScaleOverflow { block: at, .. } => {
                                (row * k + at * block.unwrap_or(k)) as u64 * 4 + 2
                            }
                        })
                    })
                    .collect();
                let x = Buffer::input("x", &input.bytes).fresh();
                let q = Buffer::<u8>::unset("q", m * units * padded);
                let scales = Buffer::<f32>::unset("scales", m * blocks);
                let sums = Buffer::<i32>::unset("sums", m * units);
                let fault = Buffer::output("fault", &[NO_FAULT]);
                let launch = kernel
                    .unit
                    .launch(kernel.function())
                    .grid(m as u32, 1 + number as u32 % 4)
                    .seed(number as u64);
                let launch = launch.overlapping(kernel.listed.plan.overlaps);
                let launch =
                    launch.threads(kernel.number("threads") as u32).arg(&x).arg(input.kind).arg(m as u32);
                let launch = launch.arg(k as u32).arg(unit as u32).arg(padded as u32).arg(units as u32);
                let report = launch.arg(&q).arg(&scales).arg(&sums).arg(&fault).run();
                report.unwrap_or_else(|report| panic!("{case}: {report}"));
                cases += 1;
                let expected = match (fault.read()[0], expected) {
                    (NO_FAULT, Ok(expected)) => expected,
                    (fault, Err(expected)) => {
                        assert_eq!(fault, expected, "{case}: the fault");
                        continue;
                    }
                    (fault, Ok(_)) => panic!("{case}: fault {fault}"),
                };
                let mut padded_q = Vec::new();
                for row in &expected {
                    for values in row.q.chunks(unit) {
                        padded_q.extend(values.iter().map(|q| q.cast_unsigned()));
                        padded_q.resize(padded_q.len().next_multiple_of(padded), 0);
                    }
                }
                super::generated::same_bytes(&case, &q.read(), &padded_q);
                let all: Vec<f32> = expected.iter().flat_map(|row| row.scales.clone()).collect();
                same_f32(&case, &scales.read(), &all);
                let all: Vec<i32> = expected.iter().flat_map(|row| row.sums(unit)).collect();
                assert_eq!(sums.read(), all, "{case}: the sums");
            }
        }
    }
    println!("{cases} inputs");
    assert!(cases >= 100, "only {cases} inputs were quantized");
}
