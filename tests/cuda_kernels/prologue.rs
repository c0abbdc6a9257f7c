//! `prologue`: the oracle's int8 of rows that it took through the same steps, and what stops a row.

use super::generated::{NO_FAULT, generated, kernels, same_bytes, same_f32};
use super::support::{Buffer, Launch, can_run};
use gristmill::oracle::{Int8Row, PrologueRow, PrologueSteps, Random, Refused};
use gristmill_spec::vocab::{GateFunction, Op, PrologueStep};

/// Values between rows that are parts of wider ones.
const GAP: usize = 3;

/// An operand, or null where there is none.
fn given<'l>(launch: Launch<'l>, operand: Option<&Buffer<f32>>) -> Launch<'l> {
    match operand {
        Some(operand) => launch.arg(operand),
        None => launch.null(),
    }
}

/// What a case has, and steps that follow each other.
const CHOICES: [(GateFunction, &[PrologueStep]); 9] = {
    use PrologueStep::{Add, Gate, Hadamard, RmsNorm};
    [
        (GateFunction::Silu, &[]),
        (GateFunction::Silu, &[Gate]),
        (GateFunction::GeluTanh, &[Gate]),
        (GateFunction::SquaredRelu, &[Gate, RmsNorm]),
        (GateFunction::Silu, &[Add]),
        (GateFunction::Silu, &[RmsNorm]),
        (GateFunction::Silu, &[Hadamard]),
        (GateFunction::Silu, &[Add, RmsNorm]),
        (GateFunction::GeluTanh, PrologueStep::ALL),
    ]
};

/// Rows with a gap behind each but the last.
fn spread(rows: &[f32], k: usize) -> Vec<f32> {
    let mut spread: Vec<f32> = rows.chunks(k).flat_map(|row| [row, &[f32::NAN; GAP]].concat()).collect();
    spread.truncate(spread.len() - GAP);
    spread
}

/// Operands of a case, row after row.
struct Case {
    name: String,
    x: Vec<f32>,
    up: Vec<f32>,
    residual: Vec<f32>,
    weight: Vec<f32>,
    signs: Vec<f32>,
}

fn cases(random: &mut Random, m: usize, k: usize) -> Vec<Case> {
    let mut case = |name: String, size: f32| Case {
        name,
        x: random.gauss_vec(m * k, size),
        up: random.gauss_vec(m * k, 1.0),
        residual: random.gauss_vec(m * k, size),
        weight: random.gauss_vec(k, 1.0),
        signs: (0..k).map(|_| if random.below(2) == 0 { 1.0 } else { -1.0 }).collect(),
    };
    // Beyond 1e19, squares are beyond f32; beyond 88, so is e^x; squares of 1e25 are beyond f32 behind `squared-relu`, too.
    let mut all: Vec<Case> = [1.0, 1e-6, 60.0, 1e25].map(|size| case(format!("{size:e}"), size)).into();
    all.push(Case { x: vec![0.0; m * k], residual: vec![-0.0; m * k], ..case("zeros".to_owned(), 1.0) });
    for (value, at) in [(f32::NAN, m * k - 1), (f32::NEG_INFINITY, m * k / 2)] {
        for of in ["x", "up", "residual"] {
            let mut case = case(format!("{value} in {of}"), 1.0);
            match of {
                "x" => case.x[at] = value,
                "up" => case.up[at] = value,
                _ => case.residual[at] = value,
            }
            all.push(case);
        }
    }
    all
}

#[test]
fn rows_go_through_the_oracle_s_steps() {
    if !can_run("prologue") {
        return;
    }
    let mut tried = 0;
    for kernel in kernels(Op::Prologue) {
        let name = &generated().set.activations[kernel.listed.format].name;
        let format = generated().oracle.activations(name).expect("described");
        let block = format.block.map(|block| block as usize);
        // (m, k, unit, what a unit is padded to); a unit of 0 is the row.
        let shapes: &[(usize, usize, usize, usize)] = match block {
            None => &[(1, 1, 0, 64), (3, 100, 0, 64), (2, 640, 32, 64), (2, 2060, 0, 4)],
            Some(32) => &[(1, 32, 32, 32), (3, 96, 32, 64), (2, 2080, 16, 32)],
            Some(_) => &[(1, 256, 256, 256), (2, 2560, 16, 64), (3, 512, 64, 72)],
        };
        for &(m, k, unit, multiple) in shapes {
            let unit = if unit == 0 { k } else { unit };
            let (padded, units) = (unit.next_multiple_of(multiple), k.div_ceil(unit));
            let blocks = block.map_or(1, |block| k / block);
            let transformed = 1usize << k.trailing_zeros().min(7);
            let cases = cases(&mut Random::new(17, name), m, k);
            for ((number, case), (at, (function, steps))) in cases
                .iter()
                .enumerate()
                .flat_map(|case| CHOICES.iter().enumerate().map(move |choice| (case, choice)))
            {
                let has = |step| steps.contains(&step);
                let transformed =
                    if has(PrologueStep::Hadamard) && transformed > 1 { transformed } else { 0 };
                let signed = transformed > 0 && at % 2 == 0;
                let text = format!("{name} m={m} k={k} unit={unit}: {}, {function} {steps:?}", case.name);
                let of_row = |row: usize| {
                    let here = row * k..(row + 1) * k;
                    let steps = PrologueSteps {
                        gate: has(PrologueStep::Gate).then(|| (*function, &case.up[here.clone()])),
                        residual: has(PrologueStep::Add).then(|| &case.residual[here.clone()]),
                        norm: has(PrologueStep::RmsNorm).then_some((&case.weight[..], 1e-5)),
                        transform: (transformed > 0)
                            .then(|| (transformed, signed.then_some(&case.signs[..]))),
                    };
                    PrologueRow::of(format, &case.x[here], &steps)
                };
                let behind: Vec<Result<PrologueRow, Refused>> = (0..m).map(of_row).collect();
                // The first row that is refused, by a step or by the quantizer, is the one that is told.
                let fault = |row: usize, refused: &Refused| match refused {
                    Refused::NonFinite(at) => (row * k + at) as u64 * 4,
                    Refused::ScaleOverflow { block: at, .. } => {
                        (row * k + at * block.unwrap_or(k)) as u64 * 4 + 2
                    }
                };
                let rows: Vec<Result<Int8Row, u64>> = behind
                    .iter()
                    .enumerate()
                    .map(|(row, behind)| {
                        let behind = behind.as_ref().map_err(|refused| fault(row, refused))?;
                        Int8Row::quantize(format, &behind.row).map_err(|refused| fault(row, &refused))
                    })
                    .collect();
                let steps_only = number % 3 == 2 && at % 2 == 0;
                let operand =
                    |name, values: &[f32], there: bool| there.then(|| Buffer::input(name, values).fresh());
                let src = Buffer::input("src", &spread(&case.x, k)).fresh();
                let up = operand("up", &spread(&case.up, k), has(PrologueStep::Gate));
                let residual = operand("residual", &spread(&case.residual, k), has(PrologueStep::Add));
                // Rows that are refused are not written: what is there before is nothing that a right kernel gives.
                let sum = Buffer::output("sum", &vec![f32::NAN; m * k]);
                let weight = operand("weight", &case.weight, has(PrologueStep::RmsNorm));
                let signs = operand("signs", &case.signs, signed);
                let rows_at = Buffer::<f32>::unset("rows", m * k);
                let q = Buffer::output("q", &vec![0x55u8; m * units * padded]);
                let scales = Buffer::output("scales", &vec![f32::NAN; m * blocks]);
                let sums = Buffer::output("sums", &vec![i32::MIN; m * units]);
                let found = Buffer::output("fault", &[NO_FAULT]);
                let stride = (k + GAP) as u64;
                let launch = kernel.unit.launch(kernel.function()).grid(m as u32, 1).seed(number as u64);
                let launch = launch.overlapping(kernel.listed.plan.overlaps);
                let launch = launch.threads(kernel.number("threads") as u32);
                let launch = given(launch.arg(&src).arg(stride), up.as_ref()).arg(stride);
                let launch = given(launch, residual.as_ref()).arg(stride);
                let launch = given(launch, has(PrologueStep::Add).then_some(&sum));
                let launch = given(given(launch, weight.as_ref()), signs.as_ref());
                let launch = launch.arg(&rows_at).arg(*function as u32).arg(1e-5f32);
                let launch = launch.arg(transformed as u32);
                let factor = (1.0 / (transformed.max(1) as f64).sqrt()) as f32;
                let launch = launch.arg(factor).arg(m as u32).arg(k as u32);
                let launch = launch.arg(unit as u32).arg(padded as u32).arg(units as u32);
                let launch = if steps_only { launch.null() } else { launch.arg(&q) };
                let report = launch.arg(&scales).arg(&sums).arg(&found).run();
                report.unwrap_or_else(|report| panic!("{text}: {report}"));
                tried += 1;
                let steps_fault = behind
                    .iter()
                    .enumerate()
                    .find_map(|(row, behind)| behind.as_ref().err().map(|at| fault(row, at)));
                let first = match steps_only {
                    true => steps_fault,
                    false => rows.iter().find_map(|row| row.as_ref().err().copied()),
                };
                assert_eq!(found.read()[0], first.unwrap_or(NO_FAULT), "{text}: the fault");
                // Rows in front of it are right all the same, and so are sums; a row that a step refuses is zeros.
                for (row, behind) in behind.iter().enumerate() {
                    let here = row * k..(row + 1) * k;
                    match behind {
                        Err(_) => same_f32(&text, &rows_at.read()[here], &vec![0.0; k]),
                        Ok(behind) => {
                            same_f32(&text, &rows_at.read()[here.clone()], &behind.row);
                            if let Some(expected) = &behind.sum {
                                same_f32(&text, &sum.read()[here], expected);
                            }
                        }
                    }
                }
                if steps_only {
                    continue;
                }
                for (row, expected) in rows.iter().enumerate() {
                    let Ok(expected) = expected else { continue };
                    let mut bytes = Vec::new();
                    for values in expected.q.chunks(unit) {
                        bytes.extend(values.iter().map(|q| q.cast_unsigned()));
                        bytes.resize(bytes.len().next_multiple_of(padded), 0);
                    }
                    same_bytes(&text, &q.read()[row * units * padded..][..units * padded], &bytes);
                    same_f32(&text, &scales.read()[row * blocks..][..blocks], &expected.scales);
                    assert_eq!(sums.read()[row * units..][..units], expected.sums(unit), "{text}: the sums");
                }
            }
        }
    }
    println!("{tried} inputs");
    assert!(tried >= 500, "only {tried} inputs went through steps");
}
