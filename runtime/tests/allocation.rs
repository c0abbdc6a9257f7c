//! Deciding and running allocate nothing: counted by an allocator that counts.

#[path = "toy/mod.rs"]
mod toy;

use gristmill_runtime::half::f16;
use gristmill_runtime::workspace::WorkspaceSize;
use gristmill_runtime::{
    Adaptive, Batch, Dequantizer, Error, ExpertInput, Experts, Input, Linear, LinearOptions, NonFinite,
    Output, Policy, QuantizedMatrix, Quantizer, Recording, Request, Restrict, Routes, Shape, Threads,
    Workspace,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that are held, and the most that were.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

fn hold(bytes: i64) {
    HELD.with(|held| {
        held.set(held.get() + bytes);
        MOST.with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        hold(layout.size() as i64);
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-(layout.size() as i64));
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `run` runs.
fn allocations<R>(run: impl FnOnce() -> R) -> (u64, R) {
    let before = ALLOCATIONS.with(Cell::get);
    let outcome = run();
    (ALLOCATIONS.with(Cell::get) - before, outcome)
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| Box::new(1)).0, 1);
}

/// Its old memory is given back before there is new one.
#[test]
fn a_workspace_that_grows_holds_no_memory_twice() -> Result<(), Error> {
    const VALUES: usize = 1 << 20;
    let of = |values| WorkspaceSize { rows: values, outputs: values, ..WorkspaceSize::default() };
    let mut workspace = Workspace::of_size(of(VALUES))?;
    let before = HELD.with(Cell::get) - workspace.bytes() as i64;
    MOST.with(|most| most.set(0));
    workspace.grow(of(VALUES + 1))?;
    let most = MOST.with(Cell::get) - before;
    assert!(most < (2 * VALUES * size_of::<f32>() + (1 << 20)) as i64, "{most}");
    Ok(())
}

#[test]
fn rows_by_number_allocate_nothing() -> Result<(), Error> {
    let threads = Threads::new(3)?;
    let mut rows = vec![0.0f32; 1000 * 8];
    let fill = |row: usize, values: &mut [f32]| -> Result<(), Error> {
        values.fill(row as f32);
        Ok(())
    };
    let (count, outcome) = allocations(|| threads.awake(|| threads.chunks(&mut rows, 8, fill)));
    assert_eq!((count, outcome), (0, Ok(())));
    assert!(rows.chunks(8).enumerate().all(|(row, values)| values.iter().all(|value| *value == row as f32)));
    Ok(())
}

#[test]
fn deciding_allocates_nothing() -> Result<(), Error> {
    let prepared = toy::REGISTRY.prepare(&Request::matmul("tail2", Shape::new(1, 8, 16)))?;
    let (count, chosen) = allocations(|| {
        (0..100).filter(|m| prepared.decide(Shape::new(*m, 8, 16)).chosen().is_some()).count()
    });
    assert_eq!((count, chosen), (0, 100));
    let (count, chosen) = allocations(|| prepared.decide(Shape::new(1, 8, 13)).chosen().is_some());
    assert_eq!((count, chosen), (0, false));
    Ok(())
}

#[test]
fn running_allocates_nothing() -> Result<(), Error> {
    let (n, k) = (70, 40);
    let bytes = toy::tail2(n, k);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TAIL2], n, k, &bytes)?;
    let threads = Threads::single();
    let options = LinearOptions {
        policy: Policy::Strict,
        restrict: Some(Restrict::default()),
        ..LinearOptions::default()
    };
    let mut layer = Linear::new(&toy::REGISTRY, &matrix, &options, &threads)?;
    let recording = Recording::new(&toy::REGISTRY);
    layer.record(Some(&recording))?;
    let x = toy::noise(9 * k, 1);
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let q = vec![1i8; 9 * k];
    let mut y = vec![0.0; 9 * n];
    let mut workspace = layer.workspace(9, &threads)?;
    for m in [1, 3, 9] {
        let scales = vec![1.0; m];
        let inputs = [
            Input::F32(&x[..m * k]),
            Input::F16(&halves[..m * k]),
            Input::I8 { q: &q[..m * k], scales: &scales },
        ];
        for input in inputs {
            let (count, outcome) =
                allocations(|| layer.forward(input, m, None, &mut y[..m * n], &mut workspace, &threads));
            outcome?;
            assert_eq!(count, 0, "{:?}, m = {m}", input.dtype());
        }
    }
    assert_eq!(recording.receipt().kernels().iter().map(|k| k.launches()).sum::<u64>(), 9 + 6);
    let (count, outcome) = allocations(|| -> Result<(), Error> {
        let shared = layer.quantize(Input::F32(&x), 9, &mut workspace, &threads)?;
        layer.forward_quantized(&shared, None, &mut y, &threads)?;
        layer.forward_quantized(&shared, None, &mut y, &threads)
    });
    outcome?;
    assert_eq!(count, 0, "activations that are quantized once");
    let mut stored = vec![f16::ZERO; 9 * 80];
    let mut bad = x.clone();
    bad[5] = f32::NAN;
    let (count, outcome) = allocations(|| {
        let product = layer.product(Input::F32(&bad), 9).rows(3..n).y_stride(80).accumulate();
        product.non_finite(NonFinite::Nan).run(Output::F16(&mut stored), &mut workspace, &threads)
    });
    outcome?;
    assert_eq!(count, 0, "a product that is stored in another way");
    Ok(())
}

/// Neither while kernels take turns nor when the fastest is known.
#[test]
fn adapting_allocates_nothing() -> Result<(), Error> {
    let (n, k) = (70, 40);
    let bytes = toy::tail2(n, k);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TAIL2], n, k, &bytes)?;
    let threads = Threads::single();
    let adaptive = Adaptive::default();
    let options = LinearOptions { adaptive: Some(adaptive.clone()), ..LinearOptions::default() };
    let layer = Linear::new(&toy::REGISTRY, &matrix, &options, &threads)?;
    let x = toy::noise(4 * k, 1);
    let mut y = vec![0.0; 4 * n];
    let mut workspace = layer.workspace(4, &threads)?;
    // The class of two to four tokens has one kernel up to three and another one from four on.
    for call in 0..40 {
        let m = 2 + call % 3;
        let (count, outcome) = allocations(|| {
            layer.forward(Input::F32(&x[..m * k]), m, None, &mut y[..m * n], &mut workspace, &threads)
        });
        outcome?;
        assert_eq!(count, 0, "call {call}");
    }
    let adapted = layer.adapted(2).expect("two kernels");
    assert_eq!((adapted.turns, adapted.of), (16, 16), "{adapted}");
    assert!(adapted.chosen.is_some(), "{adapted}");
    // Whatever was chosen, who takes other numbers of tokens is left to decisions, as the calls above were.
    assert_eq!(adapted.kernels.len(), 2);
    assert!(layer.adapted(1).is_none(), "one kernel takes one token");
    assert_eq!(adaptive.adapted(), [adapted]);
    Ok(())
}

#[test]
fn running_on_several_threads_allocates_nothing_here() -> Result<(), Error> {
    let (n, k) = (300, 40);
    let bytes = toy::tail2(n, k);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TAIL2], n, k, &bytes)?;
    let threads = Threads::new(3)?.with_grain(1);
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    let layer = Linear::new(&toy::REGISTRY, &matrix, &options, &threads)?;
    let x = toy::noise(k, 1);
    let mut y = vec![0.0; n];
    let mut workspace = layer.workspace(1, &threads)?;
    for _ in 0..100 {
        let (count, outcome) =
            allocations(|| layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads));
        outcome?;
        assert_eq!(count, 0);
    }
    let shared = layer.quantize(Input::F32(&x), 1, &mut workspace, &threads)?;
    let mut outputs = [[0.0; 300]; 8];
    let (count, outcome) = allocations(|| -> Result<(), Error> {
        let mut batch = Batch::new();
        for y in &mut outputs {
            batch.push(layer.product_of(&shared), Output::F32(y))?;
        }
        batch.run(&threads);
        Ok(())
    });
    outcome?;
    assert_eq!((count, outputs), (0, [y.as_slice().try_into().expect("300 outputs"); 8]), "a batch of eight");
    Ok(())
}

#[test]
fn converting_on_several_threads_allocates_nothing_here() -> Result<(), Error> {
    let (n, k) = (300, 40);
    let info = &toy::FORMATS[toy::TAIL2];
    let quantizer = toy::REGISTRY.prepare(&Request::quantize("tail2", None, n, k))?;
    let quantizer = Quantizer::new(&quantizer.decide_as_asked())?;
    let dequantizer = toy::REGISTRY.prepare(&Request::dequantize("tail2", n, k))?;
    let dequantizer = Dequantizer::new(&dequantizer.decide_as_asked())?;
    let x = toy::noise(n * k, 1);
    let (mut bytes, mut values) = (vec![0; info.tensor_bytes(n, k)?], vec![0.0; n * k]);
    for threads in [Threads::single(), Threads::new(3)?.with_grain(1)] {
        let (count, outcome) = allocations(|| -> Result<(), Error> {
            quantizer.run_on(&x, n, k, &mut bytes, &threads)?;
            let matrix = QuantizedMatrix::new(info, n, k, &bytes)?;
            dequantizer.run_on(&matrix, &mut values, &threads)
        });
        outcome?;
        assert_eq!(count, 0, "{} threads", threads.count());
    }
    Ok(())
}

#[test]
fn experts_allocate_nothing() -> Result<(), Error> {
    let (n, k) = (70, 40);
    let bytes = toy::tail2(n, k);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TAIL2], n, k, &bytes)?;
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    let list = [3, 0, 1, 3, 4, 0, 2, 1, 0];
    let weights = [0.5; 9];
    let x = toy::noise(9 * k, 1);
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    for threads in [Threads::single(), Threads::new(3)?.with_grain(1)] {
        let experts = Experts::new(&toy::REGISTRY, &[matrix; 5], &options, &threads)?;
        let mut workspace = experts.workspace(3, 9, &threads)?;
        let mut y = vec![0.0; 9 * n];
        for input in [Input::F32(&x[..3 * k]), Input::F16(&halves[..3 * k])] {
            let (count, outcome) = allocations(|| -> Result<(), Error> {
                let routes = Routes::each(3, 3, &list)?;
                let tokens = ExpertInput::Tokens(input);
                experts.forward(tokens, &routes, None, &mut y, &mut workspace, &threads)?;
                let sums = &mut y[..3 * n];
                experts.forward(tokens, &routes, Some(&weights), sums, &mut workspace, &threads)?;
                let pairs = ExpertInput::Pairs(Input::F32(&x));
                experts.forward(pairs, &routes, Some(&weights), sums, &mut workspace, &threads)
            });
            outcome?;
            assert_eq!(count, 0);
        }
    }
    Ok(())
}
