//! Kernels that take turns: what of a call is timed, and which calls take a turn.

use crate::toy::kernels::activations_row;
use crate::toy::{FORMATS, REGISTRY, TABLES, TAIL2, noise, tail2};
use gristmill_runtime::abi::Fault;
use gristmill_runtime::half::f16;
use gristmill_runtime::registry::{Code, Entry, EntryFacts, Registry, RegistryFacts};
use gristmill_runtime::{
    Adaptive, Error, Input, Linear, LinearOptions, NonFinite, Output, QuantizedMatrix, Threads,
};
use std::time::Duration;

const N: usize = 8;
const K: usize = 16;
/// A number of tokens whose class has two kernels.
const M: usize = 3;
/// What quantizing a row takes here.
const SLOW: Duration = Duration::from_millis(3);

unsafe fn slow_row(
    x: *const f32,
    k: usize,
    unit: usize,
    padded: usize,
    q: *mut i8,
    scales: *mut f32,
    sums: *mut i32,
) -> Result<(), Fault> {
    std::thread::sleep(SLOW);
    // SAFETY: by the ABI.
    unsafe { activations_row(x, k, unit, padded, q, scales, sums) }
}

fn layer(registry: &'static Registry) -> Result<Linear, Error> {
    let bytes = tail2(N, K);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], N, K, &bytes)?;
    let options = LinearOptions { adaptive: Some(Adaptive::default()), ..LinearOptions::default() };
    Linear::new(registry, &matrix, &options, &Threads::single())
}

/// Calls that quantize their activations and calls that are given quantized ones are measured alike.
#[test]
fn the_quantization_of_activations_is_not_timed() -> Result<(), Error> {
    let slow = |entry: &Entry| {
        let facts = *entry.facts();
        let code = match facts.code {
            Code::QuantizeActivations(_) => Code::QuantizeActivations(slow_row),
            code => code,
        };
        // SAFETY: the code does what that of the toy registry does, and sleeps.
        unsafe { Entry::new(EntryFacts { code, ..facts }) }
    };
    let entries = Vec::leak(REGISTRY.entries.iter().map(slow).collect());
    // SAFETY: as above.
    let registry = Box::leak(Box::new(unsafe { Registry::new(RegistryFacts { entries, ..TABLES }) }));
    let (layer, threads) = (layer(registry)?, Threads::single());
    let (x, mut y, mut workspace) = (noise(M * K, 1), vec![0.0; M * N], layer.workspace(M, &threads)?);
    let turns = layer.adapted(M).expect("two kernels").of;
    for _ in 0..turns {
        layer.forward(Input::F32(&x), M, None, &mut y, &mut workspace, &threads)?;
    }
    let adapted = layer.adapted(M).expect("two kernels");
    assert!(adapted.chosen.is_some(), "{adapted}");
    let mut times = adapted.kernels.iter().filter_map(|(_, us)| *us);
    assert!(times.all(|us| us < SLOW.as_secs_f64() * 1e6), "of one of {M} tokens: {adapted}");
    assert!(adapted.kernels.iter().any(|(_, us)| us.is_some()), "{adapted}");
    Ok(())
}

/// Their times would not be those of others.
#[test]
fn calls_that_store_otherwise_take_no_turn() -> Result<(), Error> {
    let (layer, threads) = (layer(&REGISTRY)?, Threads::single());
    let (x, mut y, mut workspace) = (noise(M * K, 1), vec![0.0; M * 2 * N], layer.workspace(M, &threads)?);
    let mut halves = vec![f16::ZERO; M * N];
    let product = || layer.product(Input::F32(&x), M);
    let turns = || layer.adapted(M).map(|adapted| adapted.turns);
    product().accumulate().run(Output::F32(&mut y[..M * N]), &mut workspace, &threads)?;
    product().rows(0..4).run(Output::F32(&mut y[..M * 4]), &mut workspace, &threads)?;
    product().y_stride(2 * N).run(Output::F32(&mut y), &mut workspace, &threads)?;
    product().run(Output::F16(&mut halves), &mut workspace, &threads)?;
    product().non_finite(NonFinite::Nan).run(Output::F32(&mut y[..M * N]), &mut workspace, &threads)?;
    assert_eq!(turns(), Some(0));
    product().run(Output::F32(&mut y[..M * N]), &mut workspace, &threads)?;
    assert_eq!(turns(), Some(1));
    let shared = layer.quantize(Input::F32(&x), M, &mut workspace, &threads)?;
    layer.product_of(&shared).accumulate().run(
        Output::F32(&mut y[..M * N]),
        &mut gristmill_runtime::Workspace::new(),
        &threads,
    )?;
    assert_eq!(turns(), Some(1));
    layer.forward_quantized(&shared, None, &mut y[..M * N], &threads)?;
    assert_eq!(turns(), Some(2));
    Ok(())
}
