//! Products of a format on the processor.

use super::super::error::CliError;
use super::super::verify::random_tensor;
use super::arguments::{Arguments, TOKENS_ON_CPU};
use super::candidates::{candidates, worth_writing};
use super::packed::{Packed, place_of_packing};
use super::turns::{Turn, medians, orders};
use gristmill::oracle::{Oracle, Random};
use gristmill::registry::{Entry, FormatInfo};
use gristmill::tuning::{Measured, ShapeClass, cpu};
use gristmill::vocab::Op;
use gristmill::{
    CpuProfile, Input, Matmul, PackedMatrix, QuantizedMatrix, REGISTRY, Request, Restrict, Shape, Threads,
    Workspace,
};
use std::cell::RefCell;

/// Tokens up to which weights come from memory: with more, the products take longer than the reading.
const COLD_TOKENS: usize = 4;
/// All copies of weights together, for cold memory.
const COLD_BYTES: usize = 320 << 20;

/// One kernel of a class on a number of threads.
struct Product<'p> {
    entry: &'static Entry,
    matmul: Matmul,
    copies: &'p [PackedMatrix],
    x: &'p [f32],
    m: usize,
    y: &'p RefCell<Vec<f32>>,
    workspace: Workspace,
    threads: &'p Threads,
    runs: usize,
}

impl Turn for Product<'_> {
    fn threads(&self) -> usize {
        self.threads.count()
    }

    fn run(&mut self) -> Result<(), CliError> {
        let Product { matmul, copies, x, m, y, workspace, threads, runs, .. } = self;
        let weights = &copies[*runs % copies.len()];
        *runs += 1;
        let mut y = y.borrow_mut();
        let y = &mut y[..*m * weights.n()];
        Ok(matmul.run(weights, Input::F32(x), *m, None, y, workspace, threads)?)
    }
}

/// Measures classes whose weights are of one size, on each of `threads`.
pub(super) fn tune(
    arguments: &Arguments,
    format: &'static FormatInfo,
    classes: &[ShapeClass],
    threads: &[Threads],
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Measured>, CliError> {
    let Some(Shape { n, k, .. }) = classes.first().map(|class| class.example()) else {
        return Ok(Vec::new());
    };
    let oracle = Oracle::new(&REGISTRY)?;
    let meaning = oracle.format(format.name)?;
    let mut random = Random::new(1, format.name);
    let tensor = random_tensor(&meaning, &mut random, n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
    let example = |class: &ShapeClass| {
        let shape = class.example();
        Shape { m: shape.m.min(TOKENS_ON_CPU), ..shape }
    };
    let most = classes.iter().map(|class| example(class).m).max().unwrap_or(1);
    let x = random.gauss_vec(most * k, 1.0);
    let y = RefCell::new(vec![0.0; most * n]);
    let mut packed = Vec::new();
    let mut found = Vec::new();
    for class in classes {
        bar.inc(1);
        let shape = example(class);
        let cold = !arguments.hot && shape.m <= COLD_TOKENS;
        let kernels = kernels(format, shape, &matrix, cold, &mut packed)?;
        let mut turns = Vec::new();
        for (entry, matmul, at) in &kernels {
            let copies = &packed[*at].1;
            for threads in threads {
                turns.push(Product {
                    entry,
                    matmul: matmul.clone(),
                    copies: if cold { copies } else { &copies[..1] },
                    x: &x[..shape.m * k],
                    m: shape.m,
                    y: &y,
                    workspace: Workspace::for_(matmul, shape.m, k, threads)?,
                    threads,
                    runs: 0,
                });
            }
        }
        let times = medians(&mut turns, arguments.quick)?;
        let all = turns.iter().zip(times).map(|(turn, us)| (turn.threads(), turn.entry.id, us)).collect();
        found.extend(orders(all).into_iter().filter(|(_, order)| worth_writing(order, threads)).map(
            |(threads, order)| Measured {
                on: cpu().to_owned(),
                op: Op::Matmul,
                format: format.name.to_owned(),
                quantizer: None,
                class: *class,
                threads,
                order,
            },
        ));
    }
    Ok(found)
}

/// Kernels that take a shape, each with the place of its packing among `packed`, where there are copies enough for cold memory.
fn kernels(
    format: &'static FormatInfo,
    shape: Shape,
    matrix: &QuantizedMatrix<'_>,
    cold: bool,
    packed: &mut Packed,
) -> Result<Vec<(&'static Entry, Matmul, usize)>, CliError> {
    let mut kernels = Vec::new();
    for entry in candidates(Op::Matmul, format, 0) {
        let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
        let request = Request::matmul(format.name, shape);
        let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only)?;
        // Not for these numbers of tokens.
        let Ok(matmul) = Matmul::new(&prepared.decide(shape)) else { continue };
        let at = place_of_packing(packed, &matmul, matrix, &Threads::single())?;
        let copies = &mut packed[at].1;
        let wanted = if cold { COLD_BYTES.div_ceil(copies[0].bytes().max(1)) } else { 1 };
        while copies.len() < wanted {
            let copy = copies[0].try_clone()?;
            copies.push(copy);
        }
        kernels.push((entry, matmul, at));
    }
    Ok(kernels)
}
