//! Quantizers and dequantizers of a format on the processor.

use super::super::error::CliError;
use super::super::verify::random_tensor;
use super::arguments::Arguments;
use super::candidates::{candidates, worth_writing};
use super::turns::{Turn, medians, orders};
use gristmill::oracle::{Oracle, Random};
use gristmill::registry::{Entry, FormatInfo};
use gristmill::tuning::{Measured, ShapeClass, cpu};
use gristmill::vocab::Op;
use gristmill::{
    CpuProfile, Dequantizer, QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict, Shape, Threads,
};
use std::cell::RefCell;

/// A run on some threads.
type Run<'p> = Box<dyn FnMut(&Threads) -> Result<(), gristmill::Error> + 'p>;

/// One kernel on a number of threads.
struct Conversion<'p> {
    entry: &'static Entry,
    threads: &'p Threads,
    run: Run<'p>,
}

impl Turn for Conversion<'_> {
    fn threads(&self) -> usize {
        self.threads.count()
    }

    fn run(&mut self) -> Result<(), CliError> {
        Ok((self.run)(self.threads)?)
    }
}

/// Measures one op of a format, of several quantizers each, on matrices like that of `class` and on each of `threads`.
pub(super) fn tune(
    arguments: &Arguments,
    op: Op,
    format: &'static FormatInfo,
    class: ShapeClass,
    threads: &[Threads],
) -> Result<Vec<Measured>, CliError> {
    let Shape { n, k, .. } = class.example();
    let oracle = Oracle::new(&REGISTRY)?;
    let meaning = oracle.format(format.name)?;
    let mut random = Random::new(1, format.name);
    let tensor = random_tensor(&meaning, &mut random, n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
    let source = random.gauss_vec(n * k, 1.0);
    let (values, bytes) = (RefCell::new(vec![0.0; n * k]), RefCell::new(vec![0; tensor.len()]));
    let quantizers: Vec<Option<&'static str>> = match op.info().by_quantizer {
        true => format.quantizers.iter().copied().map(Some).collect(),
        false => vec![None],
    };
    let mut found = Vec::new();
    for (index, quantizer) in quantizers.into_iter().enumerate() {
        let mut turns = Vec::new();
        for entry in candidates(op, format, index) {
            let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
            let request = match op {
                Op::Quantize => Request::quantize(format.name, quantizer, n, k),
                _ => Request::dequantize(format.name, n, k),
            };
            let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only)?;
            let decision = prepared.decide_as_asked();
            for threads in threads {
                let run: Run<'_> = match op {
                    Op::Quantize => {
                        let kernel = Quantizer::new(&decision)?;
                        let (source, bytes) = (&source, &bytes);
                        Box::new(move |threads| kernel.run_on(source, n, k, &mut bytes.borrow_mut(), threads))
                    }
                    _ => {
                        let kernel = Dequantizer::new(&decision)?;
                        let (matrix, values) = (&matrix, &values);
                        Box::new(move |threads| kernel.run_on(matrix, &mut values.borrow_mut(), threads))
                    }
                };
                turns.push(Conversion { entry, threads, run });
            }
        }
        let times = medians(&mut turns, arguments.quick)?;
        let all = turns.iter().zip(times).map(|(turn, us)| (turn.threads(), turn.entry.id, us)).collect();
        found.extend(orders(all).into_iter().filter(|(_, order)| worth_writing(order, threads)).map(
            |(threads, order)| Measured {
                on: cpu().to_owned(),
                op,
                format: format.name.to_owned(),
                quantizer: quantizer.map(str::to_owned),
                class,
                threads,
                order,
            },
        ));
    }
    Ok(found)
}
