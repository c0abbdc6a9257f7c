//! Products of floats: sums in f32, in an order that the device chooses, so that what is checked is a bound.

use super::super::error::CliError;
use super::inputs::{self, Weights};
use super::packed::normalized_error;
use super::product::MANY_ROWS;
use super::session::{Kernel, Problem, Session, Subject, agree, prepared};
use gristmill::half::{bf16, f16};
use gristmill::oracle::{FormatOracle, Random};
use gristmill::vocab::{DType, Op, Precision};
use gristmill::{Input, Matmul, QuantizedMatrix, Shape, Threads, Workspace};

/// So many outputs are not all compared.
const MANY: usize = 1 << 20;

/// A type's nearest number.
fn rounded(precision: Precision, x: f32) -> f32 {
    match precision {
        Precision::F16 => f16::from_f32(x).to_f32(),
        Precision::Bf16 => bf16::from_f32(x).to_f32(),
        // FP4 is the weights as they are.
        Precision::F32 | Precision::Int8 | Precision::Fp4 => x,
    }
}

/// A row of activations as a kernel multiplies it.
pub fn multiplied(precision: Precision, oracle: &FormatOracle<'_>, x: &[f32]) -> Vec<f64> {
    let quantized = (precision == Precision::Fp4).then(|| oracle.fp4(x)).flatten();
    quantized.unwrap_or_else(|| x.iter().map(|x| f64::from(rounded(precision, *x))).collect())
}

/// What a product of floats is held to. Let w be the format's f32 and x the activation, both as the kernel multiplies
/// them ([`multiplied`]); then |y - (sum w x + bias)| <= (9/8 k + 32) * 2^-23 * (sum |w x| + |bias|), as docs/cuda.md derives.
pub struct Bounded {
    /// The sum in f64.
    pub expected: f64,
    /// How far from it the result may be.
    pub bound: f64,
}

impl Bounded {
    /// For a row and a token.
    pub fn new(precision: Precision, weights: &[f32], x: &[f64], bias: f32) -> Bounded {
        let terms = weights.iter().zip(x).map(|(w, x)| f64::from(rounded(precision, *w)) * x);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let bias = f64::from(bias);
        let losses = (1.125 * weights.len() as f64 + 32.0) * 2f64.powi(-23);
        Bounded { expected: sum + bias, bound: losses * (size + bias.abs()) }
    }

    /// Whether a result is near enough. NaN is far from everything.
    pub fn allows(&self, found: f32) -> bool {
        (f64::from(found) - self.expected).abs() <= self.bound
    }
}

impl std::fmt::Display for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:e}, at most {:e} away", self.expected, self.bound)
    }
}

/// A product and what goes into it.
struct Case<'c> {
    name: String,
    shape: Shape,
    tensor: &'c [u8],
    pub(super) weights: &'c [Vec<f32>],
    /// As they come: of the input's type.
    x: Vec<f32>,
    input: DType,
    pub(super) bias: Option<Vec<f32>>,
}

/// Every product of floats of a format.
pub fn matmul(session: &mut Session<'_>, subject: Subject<'_>) -> Result<(), CliError> {
    let mut random = Random::new(6, subject.info.name);
    for kernel in session.kernels(Op::Matmul, subject.index) {
        let Some(precision) = kernel.entry.precision().filter(|precision| *precision != Precision::Int8)
        else {
            continue;
        };
        let rule = kernel.entry.shape.m;
        let tokens = |m: u64| usize::try_from(m.clamp(rule.min.max(1), rule.max)).unwrap_or(1);
        let rows = kernel.entry.shape.n;
        if session.quick && rows.min > MANY_ROWS {
            continue;
        }
        let many = usize::try_from(rows.min).unwrap_or(usize::MAX);
        let mut cases = if rows.min > 1 {
            // Where rows are many, short ones do.
            vec![(tokens(1), many + 1, 1, DType::F32), (tokens(rule.min), many, 1, DType::F16)]
        } else {
            vec![(tokens(1), 33, 3, DType::F32), (tokens(rule.min + 8), 7, 1, DType::F16)]
        };
        if !session.quick && rows.min <= 1 {
            cases.extend([(tokens(rule.min + 3), 70, 2, DType::Bf16), (tokens(70), 1, 5, DType::F32)]);
        }
        cases.retain(|(.., input)| kernel.reads(*input));
        for (number, (m, n, blocks, input)) in cases.into_iter().enumerate() {
            let k = blocks * subject.info.elements;
            let tensor = inputs::tensor(subject.oracle, &mut random, n, k, Weights::Random);
            let mut weights = Vec::with_capacity(n);
            for row in 0..n {
                weights.push(subject.oracle.row(&tensor, n, k, row)?.f32s);
            }
            let of_type = |x: f32| match input {
                DType::F16 => f16::from_f32(x).to_f32(),
                DType::Bf16 => bf16::from_f32(x).to_f32(),
                DType::F32 | DType::I8 => x,
            };
            let shape = Shape::new(m, n, k);
            let case = Case {
                name: format!("{shape} random weights, {input}"),
                shape,
                tensor: &tensor,
                weights: &weights,
                x: random.gauss_vec(m * k, 1.0).into_iter().map(of_type).collect(),
                input,
                bias: (number % 2 == 1).then(|| random.gauss_vec(n, 3.0)),
            };
            let mut nmse = None;
            session.case(kernel, || case.run(subject, kernel, precision, &mut nmse))?;
            if let Some(nmse) = nmse {
                let report = &mut session.reports[kernel.index];
                report.nmse = Some(report.nmse.map_or(nmse, |worst: f64| worst.max(nmse)));
            }
        }
    }
    Ok(())
}

impl Case<'_> {
    fn run(
        &self,
        subject: Subject<'_>,
        kernel: Kernel,
        precision: Precision,
        nmse: &mut Option<f64>,
    ) -> Result<Result<(), Problem>, CliError> {
        let Shape { m, n, k } = self.shape;
        let prepared = prepared(kernel, None, self.input)?;
        let matmul = Matmul::new(&prepared.decide(self.shape))?;
        let matrix = QuantizedMatrix::new(subject.info, n, k, self.tensor)?;
        let packed = matmul.pack(&matrix)?;
        let threads = Threads::single();
        let mut workspace = Workspace::for_(&matmul, m, k, &threads)?;
        let mut y = vec![f32::NAN; m * n];
        let f16s: Vec<f16> = self.x.iter().map(|x| f16::from_f32(*x)).collect();
        let bf16s: Vec<bf16> = self.x.iter().map(|x| bf16::from_f32(*x)).collect();
        let input = match self.input {
            DType::F16 => Input::F16(&f16s),
            DType::Bf16 => Input::Bf16(&bf16s),
            DType::F32 | DType::I8 => Input::F32(&self.x),
        };
        matmul.run(&packed, input, m, self.bias.as_deref(), &mut y, &mut workspace, &threads)?;
        let mut row = vec![0.0; k];
        matmul.unpack_row(&packed, n - 1, &mut row)?;
        if let Err(problem) = agree(&self.name, "the last row unpacked", &self.weights[n - 1], &row) {
            return Ok(Err(problem));
        }
        let x: Vec<Vec<f64>> = self.x.chunks(k).map(|x| multiplied(precision, subject.oracle, x)).collect();
        let mut expected = Vec::with_capacity(y.len());
        // Of very many outputs some of each tile are enough.
        let looked_at = |(at, _): &(usize, &f32)| y.len() < MANY || at % n % 16 == at / n % 16;
        let mut results = Vec::with_capacity(y.len());
        for (at, found) in y.iter().enumerate().filter(looked_at) {
            let (token, row) = (at / n, at % n);
            results.push(*found);
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[row]);
            let must = Bounded::new(precision, &self.weights[row], &x[token], bias);
            if !must.allows(*found) {
                return Ok(Err(Problem {
                    case: self.name.clone(),
                    at: format!("token {token}, row {row}"),
                    expected: must.to_string(),
                    found: format!("{found:e}"),
                }));
            }
            expected.push(must.expected);
        }
        *nmse = Some(normalized_error(&expected, &results));
        Ok(Ok(()))
    }
}
