//! Several products as one submission on a GPU, and copies that go beside them on a stream of their own.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::graphs::{layer, on_a_device};
use crate::images::{GPU, bits, parent, settings, tried, values};
use crate::support::{is_child, said};
use gristmill::cuda::{DeviceBatch, DeviceBuffer, DeviceInput, Gpu, PinnedBuffer};
use gristmill::{Device, Error, Input, Linear, Threads, Workspace};
use std::sync::Arc;

/// What layers give on the processor.
fn expected(layer: &Linear, x: &[f32], m: usize, bias: Option<&[f32]>) -> Result<Vec<u32>, Error> {
    let threads = Threads::single();
    let mut workspace = layer.workspace(m, &threads)?;
    let mut y = vec![f32::NAN; m * layer.n()];
    layer.forward(Input::F32(x), m, bias, &mut y, &mut workspace, &threads)?;
    Ok(bits(&y))
}

#[test]
fn a_batch_of_formats_and_shapes_is_one_submission() {
    on_a_device("a_batch_of_formats_and_shapes_is_one_submission", || batch().expect("no error"));
}

fn batch() -> Result<(), Error> {
    let gpu = Gpu::open(0)?;
    // Formats in turn, so that kernels of one do not lie together; rows, elements and tokens that differ.
    let shapes = [(40, 256, 3), (5, 512, 1), (64, 256, 17), (21, 768, 2), (33, 512, 5), (7, 256, 1)];
    let formats: Vec<_> = tried().collect();
    let cases: Vec<_> =
        shapes.iter().enumerate().map(|(i, shape)| (formats[i % formats.len()], *shape)).collect();
    let there: Vec<Linear> = cases.iter().map(|(format, (n, k, _))| layer(format, *n, *k, GPU)).collect();
    let x = |i: usize, seed: u32| values(shapes[i].1 * shapes[i].2, seed + i as u32);
    let bias = values(40, 9);
    let wanted = |seed: u32| -> Result<Vec<Vec<u32>>, Error> {
        let each = cases.iter().enumerate().map(|(i, (format, (n, k, m)))| {
            expected(&layer(format, *n, *k, Device::CPU), &x(i, seed), *m, (i == 0).then_some(&bias[..]))
        });
        each.collect()
    };
    let on_gpu_bias = DeviceBuffer::of(&gpu, &bias)?;
    let mut inputs: Vec<DeviceBuffer<f32>> =
        (0..shapes.len()).map(|i| DeviceBuffer::of(&gpu, &x(i, 1))).collect::<Result<_, _>>()?;
    let outputs = || -> Result<Vec<DeviceBuffer<f32>>, Error> {
        shapes.iter().map(|(n, _, m)| DeviceBuffer::of(&gpu, &vec![f32::NAN; m * n])).collect()
    };
    let read = |outputs: &[DeviceBuffer<f32>]| -> Result<Vec<Vec<u32>>, Error> {
        outputs.iter().map(|y| Ok(bits(&y.to_vec()?))).collect()
    };
    let mut held: Vec<Workspace> = shapes.iter().map(|_| Workspace::new()).collect();
    let mut workspace = Workspace::new();
    let (mut first, mut second) = (outputs()?, outputs()?);
    let graph;
    let products;
    {
        let mut activations = Vec::new();
        for (((layer, input), workspace), (_, _, m)) in there.iter().zip(&inputs).zip(&mut held).zip(shapes) {
            activations.push(layer.quantize_on_device(DeviceInput::F32(input), m, workspace)?);
        }
        let mut batch = DeviceBatch::new();
        for (i, y) in first.iter_mut().enumerate() {
            batch.push(&there[i], &activations[i], (i == 0).then_some(&on_gpu_bias), y)?;
        }
        assert_eq!((batch.len(), batch.is_empty()), (shapes.len(), false));
        batch.run(&mut workspace)?;
        let mut batch = DeviceBatch::new();
        for (i, y) in second.iter_mut().enumerate() {
            batch.push(&there[i], &activations[i], (i == 0).then_some(&on_gpu_bias), y)?;
        }
        graph = batch.graph(&mut workspace)?.expect("there are products");
        products = graph.kernels().collect::<Vec<_>>();
    }
    assert!(read(&first)? == wanted(1)?);
    assert!(read(&second)? == wanted(1)?);
    // Products of one kernel follow one another.
    assert_eq!(products.len(), shapes.len());
    let changes = products.windows(2).filter(|two| two[0] != two[1]).count();
    let mut kinds = products.clone();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(changes + 1, kinds.len(), "{products:?}");
    // The graph computes what is in the activations' memory.
    for (i, input) in inputs.iter_mut().enumerate() {
        input.write(&x(i, 50))?;
        there[i].quantize_on_device(DeviceInput::F32(input), shapes[i].2, &mut held[i])?;
    }
    graph.launch()?;
    assert!(read(&second)? == wanted(50)?);
    held.iter_mut().try_for_each(Workspace::finish)?;
    // Nothing at all.
    DeviceBatch::new().run(&mut workspace)?;
    assert!(DeviceBatch::new().graph(&mut workspace)?.is_none());
    Ok(())
}

#[test]
fn what_a_batch_refuses_leaves_it_as_it_was() {
    if let Some(output) = parent("what_a_batch_refuses_leaves_it_as_it_was", &settings()) {
        assert_eq!(said(&output), "", "all memory is given back");
    }
    if is_child() {
        refused().expect("no error");
    }
}

fn refused() -> Result<(), Error> {
    let (format, m, k, n) = (tried().next().expect("one is tried"), 2, 256, 16);
    let gpu = Gpu::open(0)?;
    let [one, other] = [layer(format, n, k, GPU), layer(format, n, 2 * k, GPU)];
    let here = layer(format, n, k, Device::CPU);
    let x = DeviceBuffer::of(&gpu, &values(m * k, 1))?;
    let (mut held, mut workspace) = (Workspace::new(), Workspace::new());
    let x_there = one.quantize_on_device(DeviceInput::F32(&x), m, &mut held)?;
    let all = DeviceBuffer::of(&gpu, &vec![5.0; 2 * m * n])?;
    let (mut y, mut same, mut apart) =
        (all.view(0..m * n)?, all.view(0..m * n)?, all.view(m * n..2 * m * n)?);
    let read = all.view(0..n)?;
    let mut short = DeviceBuffer::<f32>::zeroed(&gpu, m * n - 1)?;
    let [mut elsewhere, mut third] =
        [(); 2].map(|()| DeviceBuffer::<f32>::zeroed(&gpu, m * n).expect("memory"));
    let stream = gpu.another_stream()?;
    let mut of_stream = DeviceBuffer::<f32>::zeroed(&stream, m * n)?;
    let mut batch = DeviceBatch::new();
    batch.push(&one, &x_there, None, &mut y)?;
    let error = batch.push(&one, &x_there, None, &mut same).unwrap_err();
    assert!(matches!(error, Error::Overlap { what: "another product of the batch", .. }), "{error}");
    let error = batch.push(&one, &x_there, Some(&read), &mut apart).unwrap_err();
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    let error = batch.push(&other, &x_there, None, &mut elsewhere).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    let error = batch.push(&one, &x_there, None, &mut short).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    let error = batch.push(&here, &x_there, None, &mut third).unwrap_err();
    assert!(matches!(error, Error::CannotDrive { .. }), "{error}");
    let error = batch.push(&one, &x_there, None, &mut of_stream).unwrap_err();
    assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
    assert_eq!(batch.len(), 1);
    batch.run(&mut workspace)?;
    held.finish()?;
    let all = all.to_vec()?;
    assert!(bits(&all[..m * n]) == expected(&here, &values(m * k, 1), m, None)?);
    assert!(all[m * n..].iter().all(|y| *y == 5.0));
    Ok(())
}

/// What the driver says of kernels and copies: the stream, the name, from when to when.
fn timeline(stderr: &[u8]) -> Vec<(u32, String, [i64; 2])> {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().filter_map(|line| line.strip_prefix("fake timeline: stream "));
    let parsed = lines.map(|line| {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("four words");
        let (stream, name) = (next().parse().expect("a number"), next().to_owned());
        (stream, name, [next(), next()].map(|number| number.parse().expect("a number")))
    });
    parsed.collect()
}

#[test]
fn copies_go_beside_products_on_a_stream_of_their_own() {
    let name = "copies_go_beside_products_on_a_stream_of_their_own";
    if let Some(output) = parent(name, &format!("{},timeline", settings())) {
        assert_eq!(said(&output), "", "all memory is given back");
        let all = timeline(&output.stderr);
        let copies: Vec<_> = all.iter().filter(|(_, name, _)| name == "copy").collect();
        let products: Vec<_> = all.iter().filter(|(_, name, _)| name.starts_with("matmul")).collect();
        // Behind those of batches are copies that are tried for what they refuse.
        let copies = &copies[..BATCHES];
        assert_eq!(products.len(), BATCHES, "{all:?}");
        assert!(
            copies.iter().all(|copy| copy.0 != products[0].0),
            "they have a stream of their own: {all:?}"
        );
        for (copy, product) in copies.iter().zip(&products) {
            assert!(copy.2[1] <= product.2[0], "a batch is computed when it is there: {all:?}");
        }
        // Each copy but the first is done before the kernels of the batch in front of it are.
        for (copy, before) in copies[1..].iter().zip(&products) {
            assert!(
                copy.2[0] < before.2[1] && copy.2[1] <= before.2[1],
                "a copy waits for products: {all:?}"
            );
        }
        // So all took hardly longer than the kernels alone.
        let [begin, end] = [copies[0].2[1], products[BATCHES - 1].2[1]];
        let busy: i64 =
            all.iter().filter(|(_, name, _)| name != "copy").map(|(_, _, [from, to])| to - from).sum();
        assert_eq!(end - begin, busy, "{all:?}");
    }
    if is_child() {
        stream_batches().expect("no error");
    }
}

const BATCHES: usize = 4;

fn stream_batches() -> Result<(), Error> {
    let (format, m, k, n) = (tried().next().expect("one is tried"), 2, 256, 16);
    let gpu = Gpu::open(0)?;
    let (there, here) = (layer(format, n, k, GPU), layer(format, n, k, Device::CPU));
    let copies = gpu.another_stream()?;
    let mut workspace = Workspace::new();
    let mut results: Vec<DeviceBuffer<f32>> =
        (0..BATCHES).map(|_| DeviceBuffer::zeroed(&gpu, m * n)).collect::<Result<_, _>>()?;
    // Memory that a forward needs is there, so that nothing waits below.
    let mut compute = |x: &DeviceBuffer<f32>, y: &mut DeviceBuffer<f32>| {
        there.forward_on_device(DeviceInput::F32(x), m, None, y, &mut workspace)
    };
    let mut places = [0, 1].map(|_| DeviceBuffer::<f32>::zeroed(&gpu, m * k).ok());
    let batch = |i: usize| values(m * k, 20 + i as u32);
    let staged: Vec<PinnedBuffer<f32>> =
        (0..BATCHES).map(|i| PinnedBuffer::of(&gpu, &batch(i))).collect::<Result<_, _>>()?;
    assert!((0..BATCHES).all(|i| staged[i][..] == batch(i)[..]));
    let mut staged = staged.into_iter();
    let mut upload = |place: Option<DeviceBuffer<f32>>| {
        let (from, to) = (staged.next().expect("one for each"), place.expect("it was given back"));
        copies.upload(from, to)
    };
    let mut coming = Some(upload(places[0].take())?);
    let mut done = Vec::new();
    for (i, y) in results.iter_mut().enumerate() {
        let arrived = coming.take().expect("one is on its way");
        // The next one goes to the other place, beside the products of this one.
        let next = i + 1;
        if next < BATCHES {
            coming = Some(upload(places[next % 2].take())?);
        }
        let (x, pinned) = arrived.join()?;
        compute(&x, y)?;
        places[i % 2] = Some(x);
        done.push(pinned);
    }
    for (i, pinned) in done.into_iter().enumerate() {
        let mut pinned = pinned.wait()?;
        assert!(pinned[..] == batch(i)[..]);
        pinned[0] = 0.0;
    }
    for (i, y) in results.iter().enumerate() {
        assert!(bits(&y.to_vec()?) == expected(&here, &batch(i), m, None)?, "batch {i}");
    }
    workspace.finish()?;
    refused_copies(&gpu, &copies)
}

/// What can't be copied is told, and what is dropped on its way is waited for.
fn refused_copies(gpu: &Arc<Gpu>, copies: &Arc<Gpu>) -> Result<(), Error> {
    let pinned = || PinnedBuffer::of(gpu, &[1.0f32; 64]);
    let error = copies.upload(pinned()?, DeviceBuffer::<f32>::zeroed(gpu, 63)?).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { expected: 64, found: 63, .. }), "{error}");
    let to = DeviceBuffer::<f32>::zeroed(gpu, 64)?;
    let kept = to.view(0..64)?;
    drop(copies.upload(pinned()?, to)?);
    assert_eq!(kept.to_vec()?, [1.0; 64]);
    let (empty, brought) = copies.upload(PinnedBuffer::<f32>::zeroed(gpu, 0)?, kept)?.join()?;
    assert_eq!(empty.len(), 64);
    assert!(brought.wait()?.is_empty());
    Ok(())
}
