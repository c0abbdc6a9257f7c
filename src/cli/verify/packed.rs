//! One product case through one kernel: pack, unpack and multiply in guarded memory, then through the handle.

use super::super::error::CliError;
use super::case::{Activations, Case, Expected};
use super::guard::{Edge, Guarded};
use super::session::{Kernel, Problem, Subject, agree, prepared, same_f32, untouched, wrong_code};
use gristmill::abi::MatmulArgs;
use gristmill::registry::{Code, PackInfo, Unit};
use gristmill::{Matmul, QuantizedMatrix, Shape, Threads, Workspace};

/// Largest normalized mean square error against f64 where sums are not integers.
pub const NMSE_BOUND: f64 = 1e-6;

type Outcome<T> = Result<Result<T, Problem>, CliError>;

/// Weights in guarded memory as one kernel reads them.
pub struct Packed {
    packing: Option<&'static PackInfo>,
    unit: Unit,
    units: usize,
    codes: Guarded<u8>,
    stride: usize,
    scales: Option<Guarded<f32>>,
    mins: Option<Guarded<f32>>,
    outer: Guarded<f32>,
}

/// One case, with everything that its kernels share.
pub struct Run<'r> {
    pub subject: Subject<'r>,
    pub case: Case,
    /// In words.
    pub name: &'r str,
    pub tensor: &'r [u8],
    pub x: &'r Activations,
    pub bias: Option<&'r [f32]>,
    pub edge: Edge,
}

impl Run<'_> {
    /// Runs one kernel. `packed` keeps weights for kernels that share a packing.
    pub fn kernel(
        &self,
        kernel: Kernel,
        packed: &mut Vec<Packed>,
        expected: &Expected,
        nmse: &mut Option<f64>,
    ) -> Outcome<()> {
        if !kernel.on_cpu() {
            return Ok(match self.product(kernel)? {
                Ok(y) => self.compare(&y, expected, nmse),
                Err(problem) => Err(problem),
            });
        }
        let Code::Matmul { packing, unit, .. } = kernel.entry.code else { return Ok(wrong_code(self.name)) };
        let same = |p: &Packed| {
            p.unit == unit
                && match (p.packing, packing) {
                    (None, None) => true,
                    (Some(a), Some(b)) => std::ptr::eq(a, b),
                    (Some(_), None) | (None, Some(_)) => false,
                }
        };
        if !packed.iter().any(same) {
            match self.pack(packing, unit, expected)? {
                Ok(weights) => packed.push(weights),
                Err(problem) => return Ok(Err(problem)),
            }
        }
        let Some(weights) = packed.iter().find(|p| same(p)) else { return Ok(wrong_code(self.name)) };
        let raw = match self.raw(kernel, weights)? {
            Ok(y) => y,
            Err(problem) => return Ok(Err(problem)),
        };
        let outcome = self.compare(&raw, expected, nmse);
        if outcome.is_err() {
            return Ok(outcome);
        }
        let n = self.case.n;
        let at = |i: usize| format!("y[{}, {}] of the handle", i / n, i % n);
        Ok(self.product(kernel)?.and_then(|y| same_f32(self.name, &raw, &y, at)))
    }

    /// Compares a product with what it must be.
    fn compare(&self, y: &[f32], expected: &Expected, nmse: &mut Option<f64>) -> Result<(), Problem> {
        let n = self.case.n;
        let at = |i: usize| format!("y[{}, {}]", i / n, i % n);
        if !expected.f64s.is_empty() {
            let error = normalized_error(&expected.f64s, y);
            *nmse = Some(error);
            if error > NMSE_BOUND || error.is_nan() {
                let worst = worst(&expected.f64s, y);
                return Err(Problem {
                    case: self.name.to_owned(),
                    at: format!("NMSE {error:.1e} (bound {NMSE_BOUND:.0e}), worst at {}", at(worst)),
                    expected: format!("{:e}", expected.f64s[worst]),
                    found: format!("{:e}", y[worst]),
                });
            }
        }
        same_f32(self.name, &expected.bits, y, at)
    }

    /// Packs every row in guarded memory, and unpacks some.
    fn pack(&self, packing: Option<&'static PackInfo>, unit: Unit, expected: &Expected) -> Outcome<Packed> {
        let Case { n, k, .. } = self.case;
        let info = self.subject.info;
        let (_, padded, units) = unit.of_row(k);
        let panel_rows = packing.map_or(1, |packing| packing.rows);
        let panels = n.div_ceil(panel_rows);
        let mut outer = Guarded::<f32>::new(panels * panel_rows, self.edge)?;
        outer.values_mut().fill(0.0);
        for row in 0..n {
            outer.values_mut()[row] = self.subject.oracle.blocks(self.tensor, n, k, row)?.1;
        }
        let Some(packing) = packing else {
            // The format's own rows, without their headers.
            let mut codes = Vec::new();
            for row in 0..n {
                codes.extend(self.subject.oracle.blocks(self.tensor, n, k, row)?.0);
            }
            let (stride, codes) = (codes.len() / n.max(1), Guarded::of(&codes, self.edge)?);
            return Ok(Ok(Packed {
                packing: None,
                unit,
                units,
                codes,
                stride,
                scales: None,
                mins: None,
                outer,
            }));
        };
        let tiles = (units * padded).div_ceil(packing.tile_k);
        let stride = (tiles * packing.tile_bytes).next_multiple_of(64);
        let zeroed = |bytes: usize, words: usize| -> Result<Option<Guarded<f32>>, CliError> {
            if bytes == 0 {
                return Ok(None);
            }
            let mut buffer = Guarded::new(panels * words, self.edge)?;
            buffer.values_mut().fill(0.0);
            Ok(Some(buffer))
        };
        let mut codes = Guarded::<u8>::new(panels * stride, self.edge)?;
        codes.values_mut().fill(0);
        let [of_scales, of_mins] = both_words(packing, units);
        let mut scales = zeroed(packing.scale_bytes, of_scales)?;
        let mut mins = zeroed(packing.min_bytes, of_mins)?;
        let row_bytes = info.row_bytes(k)?;
        let src = Guarded::of(&self.tensor[..n * row_bytes], self.edge)?;
        let header = info.row_header.map_or(0, |outer| outer.bytes());
        for panel in 0..panels {
            let first = panel * packing.rows;
            let part = |buffer: &mut Option<Guarded<f32>>, words: usize| {
                let terms = panel * words;
                buffer.as_mut().map_or(std::ptr::null_mut(), |b| b.values_mut()[terms..].as_mut_ptr())
            };
            // SAFETY: packing needs no CPU features; the pointers are to the panel's rows, codes and terms, in
            // buffers of the sizes that the ABI asks for.
            let fault = unsafe {
                (packing.pack)(
                    src.values()[first * row_bytes + header..].as_ptr(),
                    row_bytes,
                    packing.rows.min(n - first),
                    k,
                    codes.values_mut()[panel * stride..].as_mut_ptr(),
                    part(&mut scales, of_scales),
                    part(&mut mins, of_mins),
                )
            };
            if let Err(problem) = agree(self.name, "fault while packing", &Ok(()), &fault) {
                return Ok(Err(problem));
            }
        }
        let beside = |buffer: &Option<Guarded<f32>>| buffer.as_ref().is_none_or(Guarded::intact);
        let intact = codes.intact() && beside(&scales) && beside(&mins);
        if let Err(problem) = untouched(self.name, "packed weights", intact) {
            return Ok(Err(problem));
        }
        let weights = Packed { packing: Some(packing), unit, units, codes, stride, scales, mins, outer };
        for (row, values) in expected.rows.iter().enumerate().filter(|(_, values)| !values.is_empty()) {
            if let Err(problem) = self.unpack(packing, &weights, row, values)? {
                return Ok(Err(problem));
            }
        }
        Ok(Ok(weights))
    }

    fn unpack(&self, packing: &PackInfo, weights: &Packed, row: usize, expected: &[f32]) -> Outcome<()> {
        let k = self.case.k;
        let mut dst = Guarded::<f32>::new(k, self.edge)?;
        let panel = row / packing.rows;
        let [of_scales, of_mins] = both_words(packing, weights.units);
        let part = |buffer: &Option<Guarded<f32>>, words: usize| {
            let terms = panel * words;
            buffer.as_ref().map_or(std::ptr::null(), |buffer| buffer.values()[terms..].as_ptr())
        };
        // SAFETY: unpacking needs no CPU features; the pointers are to the row's panel, and `dst` holds k values.
        unsafe {
            (packing.unpack)(
                weights.codes.values()[panel * weights.stride..].as_ptr(),
                part(&weights.scales, of_scales),
                part(&weights.mins, of_mins),
                weights.outer.values()[row],
                row % packing.rows,
                k,
                dst.pointer_mut(),
            );
        }
        let outcome = untouched(self.name, "unpacked values", dst.intact());
        let info = self.subject.info;
        // Scales inside and outside the block are multiplied in another order once they are apart.
        if packing.scale_bytes > 0 && (info.row_header.is_some() || info.tensor_tail.is_some()) {
            let f64s: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
            let close = normalized_error(&f64s, dst.values()) <= 1e-12;
            return Ok(outcome.and(agree(self.name, "unpacked row within 1e-12", &true, &close)));
        }
        let at = |i: usize| format!("unpacked row {row}, element {i}");
        Ok(outcome.and_then(|()| same_f32(self.name, expected, dst.values(), at)))
    }

    /// The product through the raw function, rows in two parts, every buffer guarded.
    fn raw(&self, kernel: Kernel, weights: &Packed) -> Outcome<Vec<f32>> {
        let Code::Matmul { run, .. } = kernel.entry.code else {
            return Ok(wrong_code(self.name).map(|()| Vec::new()));
        };
        let Case { m, n, k, .. } = self.case;
        let (elements, padded, units) = weights.unit.of_row(k);
        let x_stride = units * padded;
        let mut x = Guarded::<i8>::new(m * x_stride, self.edge)?;
        x.values_mut().fill(0);
        let mut sums = Vec::new();
        for (from, to) in self.x.q.chunks(k).zip(x.values_mut().chunks_mut(x_stride)) {
            for (from, to) in from.chunks(elements).zip(to.chunks_mut(padded)) {
                to[..from.len()].copy_from_slice(from);
                sums.push(from.iter().map(|q| i32::from(*q)).sum::<i32>());
            }
        }
        let sums = Guarded::of(&sums, self.edge)?;
        let x_scales = Guarded::of(&self.x.scales, self.edge)?;
        let bias = self.bias.map(|bias| Guarded::of(bias, self.edge)).transpose()?;
        let mut y = Guarded::<f32>::new(m * n, self.edge)?;
        let fill = y.values().first().map_or(0, |value| value.to_bits());
        let pointer =
            |buffer: &Option<Guarded<f32>>| buffer.as_ref().map_or(std::ptr::null(), Guarded::pointer);
        let args = MatmulArgs {
            codes: weights.codes.pointer(),
            stride: weights.stride,
            scales: pointer(&weights.scales),
            mins: pointer(&weights.mins),
            min: weights.packing.map_or(0, |packing| packing.min),
            table: weights
                .packing
                .and_then(|packing| packing.table)
                .map_or(std::ptr::null(), std::ptr::from_ref),
            outer: weights.outer.pointer(),
            k,
            units,
            x: x.pointer(),
            x_stride,
            // Not what handles say: rows go through three tokens at a time, and then more.
            x_share: 3 * x_stride,
            prefetch: 0,
            x_scales: x_scales.pointer(),
            x_blocks: self.x.scales.len() / m.max(1),
            x_sums: sums.pointer(),
            bias: pointer(&bias),
            y: y.pointer_mut(),
            m,
            n,
            row_begin: 0,
            row_end: n,
        };
        let rows = weights.packing.map_or(1, |packing| packing.rows);
        let middle = n / 2 / rows * rows;
        for (row_begin, row_end, prefetch) in [(0, middle, 0), (middle, n, 2048)] {
            if row_begin < row_end {
                // SAFETY: the session runs only kernels whose features this processor has; the buffers hold what
                // the ABI asks for these sizes, in the packing that the entry names.
                unsafe { run(&MatmulArgs { row_begin, row_end, prefetch, ..args }) };
            }
            // Rows that were not asked for keep their fill.
            let stray = |(i, value): (usize, &f32)| i % n >= row_end && value.to_bits() != fill;
            if let Some(i) = y.values().iter().enumerate().position(stray) {
                let at = format!("y[{}, {}] while rows {row_begin}..{row_end} were asked for", i / n, i % n);
                return Ok(agree(self.name, &at, &"untouched", &"written to").map(|()| Vec::new()));
            }
        }
        let outcome = untouched(self.name, "the output", y.intact());
        Ok(outcome.map(|()| y.values().to_vec()))
    }

    /// The product as users run it.
    fn product(&self, kernel: Kernel) -> Outcome<Vec<f32>> {
        let Case { m, n, k, tokens, threads, .. } = self.case;
        let input = self.x.input(tokens);
        let prepared = prepared(kernel, None, input.dtype())?;
        let decision = prepared.decide(Shape::new(m, n, k));
        let threads = Threads::new(threads)?.with_grain(1);
        let product = || {
            let matmul = Matmul::new(&decision)?;
            let matrix = QuantizedMatrix::new(self.subject.info, n, k, self.tensor)?;
            let weights = matmul.pack_on(&matrix, &threads)?;
            let mut workspace = Workspace::for_(&matmul, m, k, &threads)?;
            let mut y = vec![f32::NAN; m * n];
            matmul.run(&weights, input, m, self.bias, &mut y, &mut workspace, &threads)?;
            Ok::<_, gristmill::Error>(y)
        };
        Ok(match product() {
            Err(error) => {
                agree(self.name, "handle", &"a product".to_owned(), &error.to_string()).map(|()| Vec::new())
            }
            Ok(y) => Ok(y),
        })
    }
}

/// Words that the scales of a panel take, or its minimum terms: a number of so many bytes a row and `span` units, or one a row and
/// super-block, and so many bits for each unit and row and for the flags of a row.
fn words(packing: &PackInfo, units: usize, bytes: usize, integer_bits: usize, flag_bits: usize) -> usize {
    match packing.runs {
        1 => units / packing.span * packing.rows * bytes / 4,
        runs => units / runs * packing.rows * (8 * bytes + runs * integer_bits + flag_bits) / 32,
    }
}

/// The same of scales, and of minimum terms.
fn both_words(packing: &PackInfo, units: usize) -> [usize; 2] {
    [
        words(packing, units, packing.scale_bytes, packing.scale_integer_bits, packing.flag_bits),
        words(packing, units, packing.min_bytes, packing.min_integer_bits, 0),
    ]
}

/// `sum((y - e)^2) / sum(e^2)`; where all of `e` is 0, 0 if all of `y` is too.
pub fn normalized_error(expected: &[f64], found: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let error: f64 = expected.iter().zip(found).map(|(e, y)| square(e - f64::from(*y))).sum();
    let energy: f64 = expected.iter().map(|e| square(*e)).sum();
    match (error == 0.0, energy == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => error / energy,
    }
}

/// Index of the largest difference.
fn worst(expected: &[f64], found: &[f32]) -> usize {
    let difference = |(e, y): (&f64, &f32)| (e - f64::from(*y)).abs();
    let differences: Vec<f64> = expected.iter().zip(found).map(difference).collect();
    differences.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i)
}
