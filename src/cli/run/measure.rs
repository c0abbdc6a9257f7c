//! One tensor: decide, pack, multiply, check against the oracle, take the time.

use super::super::environment::Environment;
use super::super::error::CliError;
use super::super::held::Held;
use super::super::memory::Need;
use super::super::verify::{Bounded, NMSE_BOUND, multiplied, normalized_error};
use gristmill::oracle::{FormatOracle, Int8Row, Oracle, Random};
use gristmill::text::Printable;
use gristmill::vocab::Precision;
use gristmill::{
    Device, Error, Hadamard, Input, Matmul, PackedMatrix, PrecisionMode, QuantizedMatrix, Recording, Request,
    Shape, Threads, Workspace,
};
use std::time::{Duration, Instant};

/// Multiply-accumulates that the oracle does for one product at most; larger ones are checked on some rows.
const CHECKED_WORK: usize = 1 << 24;
/// Rows that are checked at least.
const LEAST_ROWS: usize = 16;
/// Elements of weights that the oracle decodes for one product at most.
const CHECKED_WEIGHTS: usize = 1 << 19;
/// Time spent on one product, if that allows for more runs than the least.
const TIME: Duration = Duration::from_millis(20);
/// Runs of which the median is taken, at least.
const LEAST_RUNS: usize = 5;

/// What all tensors share.
pub struct Bench<'b> {
    /// Meaning of every format.
    pub oracle: &'b Oracle,
    /// Restrictions and measured orders.
    pub environment: Environment,
    /// For packing and multiplying.
    pub threads: Threads,
    /// Takes the launches.
    pub recording: &'b Recording,
    /// Where products run.
    pub device: Device,
    /// What they may multiply.
    pub precision: PrecisionMode,
    /// Numbers of tokens.
    pub tokens: &'b [usize],
    /// Seed of inputs.
    pub seed: u64,
    /// Bytes of weights that take turns, and in which packings they are held for that.
    pub held: Held,
    /// Grown for the largest product.
    pub workspace: Workspace,
}

/// How a product compares with the oracle.
#[derive(Clone, Debug, PartialEq)]
pub enum Accuracy {
    /// One integer sum for an output, and the oracle's bits.
    Exact,
    /// Normalized mean square error against f64, below the bound; the oracle's bits too, if integers are multiplied.
    Nmse(f64),
    /// Wrong: where, and how.
    Wrong(String),
}

impl Accuracy {
    /// Whether it is wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Accuracy::Wrong(_))
    }
}

impl std::fmt::Display for Accuracy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Accuracy::Exact => f.write_str("exact"),
            Accuracy::Nmse(nmse) => write!(f, "NMSE {nmse:.0e}"),
            Accuracy::Wrong(_) => f.write_str("WRONG"),
        }
    }
}

/// One product of a tensor.
#[derive(Clone, Debug)]
pub struct Run {
    /// Tokens.
    pub m: usize,
    /// Where the tensor is a stack of which each token goes through some; `None`: a product with all of its rows.
    pub experts: Option<Stack>,
    /// Kernel chosen, or kernels.
    pub kernel: String,
    /// Against the oracle.
    pub accuracy: Accuracy,
    /// Rows of the weights that the oracle checked.
    pub rows_checked: usize,
    /// Median time.
    pub seconds: f64,
    /// Bytes that the weights take in a file.
    pub(super) file_bytes: usize,
}

/// A stack of experts.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// Experts.
    pub count: usize,
    /// Rows of one.
    pub n: usize,
    /// Experts that each token goes through.
    pub per_token: usize,
}

impl Run {
    /// Rows of the weights that a token is multiplied by, of a tensor of `n` rows.
    pub fn rows(&self, n: usize) -> usize {
        self.experts.map_or(n, |of| of.n)
    }

    /// Rate at which weights were taken, in bytes that they have in a file, each counted once: 1e9 bytes a second.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.file_bytes as f64 / self.seconds / 1e9
    }

    /// Multiply-accumulates, in 1e9 a second.
    pub fn gigamacs_per_second(&self, n: usize, k: usize) -> f64 {
        let each = self.experts.map_or(1, |of| of.per_token);
        (self.m * each) as f64 * self.rows(n) as f64 * k as f64 / self.seconds / 1e9
    }
}

/// A tensor with its products.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Name.
    pub name: String,
    /// Format.
    pub format: &'static str,
    /// Rows.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Bytes that its weights take in a file.
    pub file_bytes: usize,
    /// Largest form in which its weights were held.
    pub packed_bytes: usize,
    /// One for each number of tokens.
    pub runs: Vec<Run>,
}

impl Bench<'_> {
    /// Runs one tensor for every number of tokens, on activations behind the transform that its file declares.
    ///
    /// # Errors
    /// If there is no kernel for it, its bytes are not valid ([`CliError::Defect`]), or memory has no room for the largest
    /// number of tokens.
    pub fn tensor(
        &mut self,
        name: &str,
        matrix: &QuantizedMatrix<'_>,
        transform: Option<&Hadamard>,
    ) -> Result<Measured, CliError> {
        self.measured(name, matrix, transform).map_err(|error| match error {
            CliError::Runtime(error @ Error::InvalidCode { .. }) => {
                CliError::Defect { tensor: name.to_owned(), what: error.to_string() }
            }
            other => other,
        })
    }

    /// Whether memory has room for the products of `n` rows of `k` elements, whose packing takes `packed` bytes.
    fn room(&self, name: &str, n: usize, k: usize, packed: usize) -> Result<(), CliError> {
        let m = self.tokens.iter().copied().max().unwrap_or(0);
        // Of a token: f32, int8 in the workspace and for the oracle, f64 for the oracle, scales; and the packing.
        let need = Need::new().and(&[m, k], 16).and(&[m, n], 4).and(&[packed], 1);
        // Of one token: where even that has no room, fewer tokens would not help.
        let one = Need::new().and(&[k], 16).and(&[n], 4).and(&[packed], 1);
        let help = "its own size is too much here; a machine with more memory, or a damaged file?";
        one.check(|| format!("`{}` ({n}x{k})", Printable(name)), help)?;
        need.check(|| format!("--m {m} with `{}` ({n}x{k})", Printable(name)), "give fewer tokens with --m")
    }

    fn measured(
        &mut self,
        name: &str,
        matrix: &QuantizedMatrix<'_>,
        transform: Option<&Hadamard>,
    ) -> Result<Measured, CliError> {
        let (n, k) = (matrix.n(), matrix.k());
        let format = matrix.format();
        let oracle = self.oracle.format(format.name)?;
        let mut measured = Measured {
            name: name.to_owned(),
            format: format.name,
            n,
            k,
            file_bytes: matrix.data().len(),
            packed_bytes: 0,
            runs: Vec::new(),
        };
        let request = Request::matmul(format.name, Shape::new(1, n, k)).with_threads(self.threads.count());
        let request = request.on(self.device).with_precision(self.precision);
        let request = request.with_working_set(self.held.working_set());
        let prepared = self.environment.prepare(&request)?;
        let mut packed: Option<(Matmul, PackedMatrix)> = None;
        let one = prepared.decide(Shape::new(1, n, k));
        let packed_bytes = match one.chosen() {
            // What no machine can address is told as `plan` tells it, which asks for the same.
            Some(_) => one.memory(&self.threads)?.weight_bytes,
            // Kernels of more tokens may take it.
            None => n.saturating_mul(k),
        };
        // A missing kernel is the better reason.
        if let Some(m) = self.tokens.first() {
            let decision = prepared.decide(Shape::new(*m, n, k));
            decision.kernel()?;
            self.held.add(&decision);
            self.room(name, n, k, packed_bytes)?;
        }
        for &m in self.tokens {
            let mut matmul = Matmul::new(&prepared.decide(Shape::new(m, n, k)))?;
            matmul.record(Some(self.recording))?;
            // Kernels that share a packing share the weights.
            // Others are freed before theirs are packed.
            let shared = packed.take().filter(|(other, _)| matmul.shares_packing_with(other));
            let weights = match shared {
                Some((_, weights)) => weights,
                None => matmul.pack_on(matrix, &self.threads)?,
            };
            measured.packed_bytes = measured.packed_bytes.max(weights.bytes());
            let mut x = Random::new(self.seed, &format!("{name} m={m}")).gauss_vec(m * k, 1.0);
            if let Some(transform) = transform {
                transform.forward(&mut x)?;
            }
            measured.runs.push(self.product(name, matrix, &oracle, &matmul, &weights, (m, &x))?);
            packed = Some((matmul, weights));
        }
        Ok(measured)
    }

    fn product(
        &mut self,
        name: &str,
        matrix: &QuantizedMatrix<'_>,
        oracle: &FormatOracle<'_>,
        matmul: &Matmul,
        weights: &PackedMatrix,
        (m, x): (usize, &[f32]),
    ) -> Result<Run, CliError> {
        let (n, k) = (weights.n(), weights.k());
        let mut y = vec![f32::NAN; m * n];
        let size = matmul.workspace_size(m, k, &self.threads)?;
        self.workspace.grow(size)?;
        let mut run =
            || matmul.run(weights, Input::F32(x), m, None, &mut y, &mut self.workspace, &self.threads);
        let seconds = median_time(&mut run)?;
        let mut rows = rows_to_check(m, n, k);
        for row in not_finite(&y, n) {
            if let Some(bad) = oracle.bad_scale(matrix.data(), n, k, row)? {
                return Err(CliError::Defect { tensor: name.to_owned(), what: bad.to_string() });
            }
            // Finite weights: whether the sum is too large or the kernel wrong, the oracle says.
            rows.push(row);
        }
        rows.sort_unstable();
        rows.dedup();
        let accuracy = match matmul.entry().precision() {
            Some(precision) if precision != Precision::Int8 => {
                check_floats(name, matrix, oracle, precision, x, &y, &rows)?
            }
            Some(_) | None if n == 0 || k == 0 => {
                // Sums of nothing.
                let zeros = y.iter().all(|y| *y == 0.0);
                if zeros { Accuracy::Exact } else { Accuracy::Wrong("not 0".to_owned()) }
            }
            Some(_) | None => {
                check(name, matrix, oracle, x, &rows, |row| (0..m).map(|t| (t, y[t * n + row])).collect())?
            }
        };
        if accuracy.is_wrong() {
            // A kernel may also lose what makes a weight NaN.
            for row in &rows {
                if let Some(bad) = oracle.bad_scale(matrix.data(), n, k, *row)? {
                    return Err(CliError::Defect { tensor: name.to_owned(), what: bad.to_string() });
                }
            }
        }
        let (kernel, file_bytes) = (matmul.entry().name.to_owned(), matrix.data().len());
        Ok(Run { m, experts: None, kernel, accuracy, rows_checked: rows.len(), seconds, file_bytes })
    }
}

/// Median of the seconds that a run takes, behind one that warms up.
///
/// # Errors
/// The first error of a run.
pub(super) fn median_time(mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    run()?;
    let mut times = Vec::new();
    let started = Instant::now();
    while times.len() < LEAST_RUNS || started.elapsed() < TIME {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(f64::NAN))
}

/// Rows with a result that is not finite, the first few.
fn not_finite(y: &[f32], n: usize) -> Vec<usize> {
    let mut rows: Vec<usize> =
        y.iter().enumerate().filter(|(_, y)| !y.is_finite()).map(|(at, _)| at % n.max(1)).collect();
    rows.sort_unstable();
    rows.dedup();
    rows.truncate(LEAST_ROWS);
    rows
}

/// Every row, or as many as the oracle has time for, evenly spread with the first and the last.
pub(super) fn rows_to_check(m: usize, n: usize, k: usize) -> Vec<usize> {
    let by_work = CHECKED_WORK / (m * k).max(1);
    let by_weights = CHECKED_WEIGHTS / k.max(1);
    let count = by_work.min(by_weights).max(LEAST_ROWS).min(n);
    if count <= 1 { (0..count).collect() } else { (0..count).map(|i| i * (n - 1) / (count - 1)).collect() }
}

/// Compares some rows of a product of floats with sums in f64.
fn check_floats(
    name: &str,
    matrix: &QuantizedMatrix<'_>,
    oracle: &FormatOracle<'_>,
    precision: Precision,
    x: &[f32],
    y: &[f32],
    rows: &[usize],
) -> Result<Accuracy, CliError> {
    let (n, k) = (matrix.n(), matrix.k());
    let (mut expected, mut found, mut overflow) = (Vec::new(), Vec::new(), None);
    let x: Vec<Vec<f64>> = x.chunks(k.max(1)).map(|x| multiplied(precision, oracle, x)).collect();
    for &row in rows {
        let weights = oracle.row(matrix.data(), n, k, row)?.f32s;
        for (t, x) in x.iter().enumerate() {
            let (must, y) = (Bounded::new(precision, &weights, x, 0.0), y[t * n + row]);
            // Of weights that are not finite it is NaN.
            let has_room = must.expected.abs() <= f64::from(f32::MAX);
            if !y.is_finite() && !has_room {
                overflow.get_or_insert((t, row, y));
                continue;
            }
            if !must.allows(y) {
                return Ok(Accuracy::Wrong(format!("y[{t}, {row}]: expected {must}, found {y:e}")));
            }
            expected.push(must.expected);
            found.push(y);
        }
    }
    within_f32(name, overflow)?;
    Ok(Accuracy::Nmse(normalized_error(&expected, &found)))
}

/// Refuses weights whose products are beyond f32, once all others are as they must be: the first one by token, row and value.
fn within_f32(name: &str, overflow: Option<(usize, usize, f32)>) -> Result<(), CliError> {
    let Some((t, row, y)) = overflow else { return Ok(()) };
    let what = format!(
        "row {row}: its product with token {t} is {y}, by the kernel and by the oracle: its weights are too large for f32"
    );
    Err(CliError::Defect { tensor: name.to_owned(), what })
}

/// Compares outputs of some rows of the weights with the oracle, whose bits they must have: `outputs` gives those of a row, each with
/// its token.
///
/// # Errors
/// [`CliError::Defect`] for weights whose products are beyond f32.
pub(super) fn check(
    name: &str,
    matrix: &QuantizedMatrix<'_>,
    oracle: &FormatOracle<'_>,
    x: &[f32],
    rows: &[usize],
    outputs: impl Fn(usize) -> Vec<(usize, f32)>,
) -> Result<Accuracy, CliError> {
    let (n, k) = (matrix.n(), matrix.k());
    let mut tokens = Vec::new();
    for x in x.chunks(k.max(1)) {
        match Int8Row::quantize(oracle.activations(), x) {
            Ok(row) => tokens.push(row),
            Err(refused) => {
                return Ok(Accuracy::Wrong(format!("the oracle refuses the activations: {refused:?}")));
            }
        }
    }
    let exact = oracle.is_exact();
    let f64s: Vec<Vec<f64>> = match exact {
        true => Vec::new(),
        false => tokens.iter().map(|row| oracle.activations_f64(&row.q, &row.scales)).collect(),
    };
    let (mut expected, mut found, mut overflow) = (Vec::new(), Vec::new(), None);
    for &row in rows {
        let decoded = oracle.row(matrix.data(), n, k, row)?;
        for (t, y) in outputs(row) {
            let must = oracle.product_f32(&decoded, &tokens[t].q, &tokens[t].scales, None);
            // Which NaN comes of an overflow is the processor's own.
            if must.to_bits() != y.to_bits() && !(must.is_nan() && y.is_nan()) {
                return Ok(Accuracy::Wrong(format!("y[{t}, {row}]: expected {must:e}, found {y:e}")));
            }
            if !y.is_finite() {
                overflow.get_or_insert((t, row, y));
            } else if !exact {
                expected.push(oracle.product_f64(&decoded, &f64s[t], None));
                found.push(y);
            }
        }
    }
    let nmse = normalized_error(&expected, &found);
    if exact || nmse <= NMSE_BOUND {
        within_f32(name, overflow)?;
        return Ok(if exact { Accuracy::Exact } else { Accuracy::Nmse(nmse) });
    }
    Ok(Accuracy::Wrong(format!("NMSE {nmse:.1e} against f64, bound {NMSE_BOUND:.0e}")))
}
