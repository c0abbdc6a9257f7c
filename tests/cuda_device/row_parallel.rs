//! Layers whose inputs are divided over ranks that add up their outputs, on a fake driver and a stand-in for NCCL: calls and shapes, not the
//! library. Ranks are threads here, each with a device.

use crate::graphs::quantized;
use crate::images::{bits, devices, parent, tried, values};
use crate::support::{is_child, said};
use gristmill::cuda::{Communicator, CommunicatorId, DeviceBuffer, DeviceInput, Gpu};
use gristmill::registry::FormatInfo;
use gristmill::{
    Dequantizer, Error, Input, Linear, LinearOptions, QuantizedBuf, QuantizedMatrix, REGISTRY, Recording,
    Request, RowParallelLinear, Threads, Workspace,
};
use std::ops::Range;
use std::sync::Arc;

const ROWS: usize = 24;
const RANKS: usize = 3;
const BLOCKS: usize = 5;

fn on_three(name: &str, body: fn()) -> Option<String> {
    let [oldest, newest] = devices();
    let output = parent(name, &format!("{oldest},devices=3,1:{newest}"));
    if is_child() {
        body();
    }
    output.map(|output| said(&output))
}

/// Five units of a format, of whole blocks, for three ranks.
fn k(format: &FormatInfo) -> usize {
    BLOCKS * format.elements.max(128)
}

fn weights(format: &'static FormatInfo) -> QuantizedBuf<'static> {
    let k = k(format);
    QuantizedBuf::new(format, ROWS, k, quantized(format, &values(ROWS * k, 7), ROWS, k))
        .expect("the right size")
}

/// What each rank does, in a thread of its own.
fn by_all<R: Send>(act: impl Fn(usize, &Arc<Gpu>, &Arc<Communicator>) -> R + Sync) -> Vec<R> {
    let id = CommunicatorId::new().expect("the library is there");
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (id, act) = (CommunicatorId::from_bytes(id.bytes()), &act);
            scope.spawn(move || {
                let gpu = Gpu::open(rank as u32).expect("opens");
                let communicator = Communicator::join(&gpu, &id, rank, RANKS).expect("joins");
                assert_eq!((communicator.rank(), communicator.ranks()), (rank, RANKS));
                act(rank, &gpu, &communicator)
            })
        };
        let threads: Vec<_> = (0..RANKS).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn columns(x: &[f32], k: usize, columns: &Range<usize>) -> Vec<f32> {
    x.chunks(k).flat_map(|row| row[columns.clone()].to_vec()).collect()
}

/// Some inputs' part of the outputs, on the processor.
fn part(weights: &QuantizedMatrix<'_>, x: &[f32], m: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let threads = Threads::single();
    let layer = Linear::new(&REGISTRY, weights, &LinearOptions::default(), &threads).expect("a layer");
    let mut workspace = layer.workspace(m, &threads).expect("memory");
    let mut y = vec![f32::NAN; m * ROWS];
    layer.forward(Input::F32(x), m, bias, &mut y, &mut workspace, &threads).expect("runs");
    y
}

fn dequantized(matrix: &QuantizedMatrix<'_>) -> Vec<f32> {
    let request = Request::dequantize(matrix.format().name, matrix.n(), matrix.k());
    let prepared = REGISTRY.prepare(&request).expect("prepares");
    let mut values = vec![f32::NAN; matrix.n() * matrix.k()];
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked()).expect("a handle");
    dequantizer.run(matrix, &mut values).expect("runs");
    values
}

#[test]
fn outputs_are_the_sums_of_all_ranks_parts() {
    let said = on_three("outputs_are_the_sums_of_all_ranks_parts", || {
        for format in tried() {
            let (weights, k, m) = (weights(format), k(format), 3);
            let matrix = weights.matrix();
            let (x, bias) = (values(m * k, 3), values(ROWS, 5));
            let results = by_all(|rank, gpu, communicator| {
                let threads = Threads::single();
                let options = LinearOptions::default();
                let mut layer = RowParallelLinear::new(&REGISTRY, &matrix, &options, communicator, &threads)
                    .expect("a layer");
                let recording = Recording::new(&REGISTRY);
                layer.record(Some(&recording)).expect("the same registry");
                let inputs = layer.inputs();
                assert_eq!((layer.n(), layer.k(), layer.own().k()), (ROWS, k, inputs.len()));
                let own = DeviceBuffer::of(gpu, &columns(&x, k, &inputs)).expect("memory");
                let bias = DeviceBuffer::of(gpu, &bias).expect("memory");
                let mut y = DeviceBuffer::of(gpu, &vec![f32::NAN; m * ROWS]).expect("memory");
                let mut workspace = Workspace::new();
                for _ in 0..2 {
                    // A bias of other ranks than the first is left out.
                    layer
                        .forward_on_device(DeviceInput::F32(&own), m, Some(&bias), &mut y, &mut workspace)
                        .expect("enqueues");
                }
                workspace.finish().expect("no fault");
                assert!(recording.receipt().kernels().iter().all(|kernel| kernel.name().contains(".cuda")));
                (rank, inputs, y.to_vec().expect("copies"))
            });
            // Blocks one behind the other, as many for each as can be.
            let unit = format.elements;
            let of_each: Vec<usize> = results.iter().map(|(_, inputs, _)| inputs.len() / unit).collect();
            assert_eq!(of_each.iter().sum::<usize>(), k / unit);
            assert!(of_each.iter().max().unwrap_or(&0) - of_each.iter().min().unwrap_or(&0) <= 1);
            let mut sum = vec![0.0f32; m * ROWS];
            let mut end = 0;
            for (rank, inputs, _) in &results {
                assert_eq!(inputs.start, end);
                end = inputs.end;
                let own = QuantizedBuf::columns_of(&matrix, inputs.clone()).expect("whole blocks");
                let bias = Some(&bias[..]).filter(|_| *rank == 0);
                let part = part(&own.matrix(), &columns(&x, k, inputs), m, bias);
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
            assert_eq!(end, k);
            for (rank, _, found) in &results {
                assert!(bits(found) == bits(&sum), "{}: rank {rank}", format.name);
            }
            // Near the products of the dequantized weights, as int8 activations are near: a wrong column would not be.
            let w = dequantized(&matrix);
            for (at, found) in sum.iter().enumerate() {
                let (token, row) = (at / ROWS, at % ROWS);
                let terms = w[row * k..][..k].iter().zip(&x[token * k..][..k]);
                let terms = terms.map(|(w, x)| f64::from(*w) * f64::from(*x));
                let (exact, size) =
                    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let away = (f64::from(*found) - exact - f64::from(bias[row])).abs();
                assert!(away <= 0.01 * size + 1e-6, "{}: {found}, exactly {exact}", format.name);
            }
        }
    });
    assert_eq!(said.unwrap_or_default(), "", "all memory is given back");
}

#[test]
fn columns_are_those_of_the_matrix() {
    for format in tried() {
        let (weights, k) = (weights(format), k(format));
        let matrix = weights.matrix();
        let all = dequantized(&matrix);
        let unit = format.elements;
        for range in [0..unit, unit..3 * unit, k - unit..k, 0..k, unit..unit] {
            let own = QuantizedBuf::columns_of(&matrix, range.clone()).expect("whole blocks");
            assert_eq!((own.n(), own.k()), (ROWS, range.len()));
            assert!(bits(&dequantized(&own.matrix())) == bits(&columns(&all, k, &range)), "{}", format.name);
        }
        assert!(matches!(QuantizedBuf::columns_of(&matrix, 0..unit - 1), Err(Error::KNotMultiple { .. })));
        assert!(matches!(QuantizedBuf::columns_of(&matrix, 1..unit + 1), Err(Error::KNotMultiple { .. })));
        let beyond = QuantizedBuf::columns_of(&matrix, 0..k + unit);
        assert!(matches!(beyond, Err(Error::ShapeMismatch { .. })), "{beyond:?}");
    }
}

#[test]
fn what_ranks_can_not_do_is_told() {
    if !is_child() {
        // Where nothing stands in for the library, and it is not installed.
        if let Err(error) = CommunicatorId::new() {
            let told = error.to_string();
            assert!(
                told.contains("libnccl.so can't be loaded") && told.contains("help: install NCCL"),
                "{told}"
            );
        }
    }
    let said = on_three("what_ranks_can_not_do_is_told", || {
        let format = tried().next().expect("one is tried");
        let weights = weights(format);
        let gpu = Gpu::open(0).expect("opens");
        let id = CommunicatorId::new().expect("the library is there");
        let none = Communicator::join(&gpu, &id, 3, 3).expect_err("ranks are 0 to 2");
        assert!(none.to_string().contains("there is no rank 3 of 3"), "{none}");
        drop(gpu);
        by_all(|rank, gpu, communicator| {
            let threads = Threads::single();
            let options = LinearOptions::default();
            // Fewer blocks than ranks.
            let few = QuantizedBuf::columns_of(&weights.matrix(), 0..format.elements).expect("whole blocks");
            let refused = RowParallelLinear::new(&REGISTRY, &few.matrix(), &options, communicator, &threads);
            if few.k() / format.elements < RANKS {
                assert!(matches!(refused, Err(Error::Division { .. })), "{refused:?}");
            }
            let mut y = DeviceBuffer::<f32>::zeroed(gpu, 8).expect("memory");
            // Nothing is summed of no numbers, and in no graph.
            communicator
                .sum(&mut DeviceBuffer::<f32>::zeroed(gpu, 0).expect("memory"))
                .expect("nothing to do");
            let captured = gpu.capture(|| communicator.sum(&mut y));
            assert!(matches!(captured, Err(Error::Capturing { .. })), "{captured:?}");
            // One of them has another number of them.
            let mut other = DeviceBuffer::<f32>::zeroed(gpu, 8 + usize::from(rank == 1)).expect("memory");
            let differs = communicator.sum(&mut other).expect_err("they differ");
            assert!(differs.to_string().contains("ncclInvalidArgument (4)"), "{differs}");
            communicator.sum(&mut y).expect("they are alike");
            gpu.synchronize().expect("no error");
        });
    });
    if let Some(said) = said {
        assert!(
            said.lines().all(|line| line.contains("sums 8 numbers") || line.contains("sums 9 numbers")),
            "{said}"
        );
    }
}
