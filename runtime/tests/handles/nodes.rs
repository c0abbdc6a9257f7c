//! Weights and threads on machines with several NUMA nodes, as folders of files describe them. Threads that can't stay on processors that
//! are not there run anywhere; everything else is as it would be.

use crate::toy::{FORMATS, REGISTRY, TAIL2, noise, tail2};
use gristmill_runtime::{
    Batch, Error, ExpertInput, Experts, Input, Linear, LinearOptions, Matmul, Output, PackedMatrix,
    Placement, QuantizedMatrix, Request, Routes, Shape, ThreadOptions, Threads, Topology, Workspace,
};
use std::path::Path;

fn machine(name: &str) -> Topology {
    Topology::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies").join(name))
}

fn threads(machine_name: &str, count: usize) -> Result<Threads, Error> {
    let options = ThreadOptions { count, topology: machine(machine_name), ..ThreadOptions::default() };
    Ok(Threads::with_options(&options)?.with_grain(1 << 10))
}

/// Rows: weights of many pages for each node.
const N: usize = 4400;
const K: usize = 256;

fn kernel(m: usize) -> Result<Matmul, Error> {
    let shape = Shape { m, n: N, k: K };
    Matmul::new(&REGISTRY.prepare(&Request::matmul("tail2", shape))?.decide(shape))
}

#[test]
fn weights_are_divided_to_the_nodes_that_read_them() -> Result<(), Error> {
    let bytes = tail2(N, K);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], N, K, &bytes)?;
    let kernel = kernel(1)?;
    for (name, count, nodes) in [("two", 4, 2), ("eight", 16, 8), ("eight", 8, 8), ("offline", 5, 2)] {
        let threads = threads(name, count)?;
        let of_threads = threads.nodes().expect("several nodes");
        assert_eq!(of_threads.len(), count);
        assert!(of_threads.is_sorted(), "threads of a node are neighbours: {of_threads:?}");
        let packed = kernel.pack_on(&matrix, &threads)?;
        let placement = packed.placement().expect("several nodes");
        assert_eq!(placement.nodes.len(), nodes, "{placement:?}");
        // Divided is all but small buffers, which stay together.
        let expected: usize = placement.nodes.iter().map(|node| node.expected).sum();
        assert!(expected <= packed.bytes() && expected * 10 > packed.bytes() * 9, "{placement:?}");
        for place in &placement.nodes {
            let threads = of_threads.iter().filter(|node| **node == place.node).count();
            let share = expected * threads / count;
            // A page, and a granule of 64 rows.
            assert!(place.expected.abs_diff(share) <= 4096 + 64 * K, "{place:?} instead of {share}");
        }
        let small = packed.bytes() - expected;
        assert!(placement.remote_bytes <= small + nodes * 4096, "{placement:?}");
        let copy = packed.try_clone()?.placement().expect("several nodes");
        let told = |placement: &Placement| -> Vec<(usize, usize)> {
            placement.nodes.iter().map(|place| (place.node, place.expected)).collect()
        };
        assert_eq!(told(&copy), told(&placement));
        // What the system says of this machine's own nodes; nothing where it says nothing.
        let found: Option<usize> = placement.nodes.iter().map(|node| node.found).sum();
        assert!(found.is_none_or(|found| found == expected), "{placement:?}");
    }
    Ok(())
}

#[test]
fn products_have_the_same_bits_on_any_machine() -> Result<(), Error> {
    let bytes = tail2(N, K);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], N, K, &bytes)?;
    for m in [1, 3] {
        let kernel = kernel(m)?;
        let x = noise(m * K, 5);
        let run = |packed: &PackedMatrix, threads: &Threads| -> Result<Vec<u32>, Error> {
            let mut workspace = Workspace::for_(&kernel, m, K, threads)?;
            let mut y = vec![f32::NAN; m * N];
            kernel.run(packed, Input::F32(&x), m, None, &mut y, &mut workspace, threads)?;
            Ok(y.iter().map(|value| value.to_bits()).collect())
        };
        let single = Threads::single();
        let together = kernel.pack(&matrix)?;
        let right = run(&together, &single)?;
        for (name, count) in [("two", 3), ("eight", 11), ("no-memory", 4), ("malformed", 4)] {
            let threads = threads(name, count)?;
            let placed = kernel.pack_on(&matrix, &threads)?;
            assert!(run(&placed, &threads)? == right, "{name}, {count} threads, {m} tokens");
            assert!(
                run(&placed, &single)? == right && run(&together, &threads)? == right,
                "{name}, {count}, {m}"
            );
        }
    }
    Ok(())
}

#[test]
fn on_one_node_nothing_is_placed() -> Result<(), Error> {
    let bytes = tail2(N, K);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], N, K, &bytes)?;
    for (name, count) in [("one", 4), ("malformed", 4), ("two", 1), ("nowhere", 4)] {
        let threads = threads(name, count)?;
        assert_eq!(threads.nodes(), None, "{name}");
        assert_eq!(kernel(1)?.pack_on(&matrix, &threads)?.placement(), None, "{name}");
        threads.keep_caller_near()?;
        let layer = Linear::new(&REGISTRY, &matrix, &LinearOptions::default(), &threads)?;
        assert_eq!(layer.placement(), None);
    }
    let threads = threads("two", 4)?;
    let layer = Linear::new(&REGISTRY, &matrix, &LinearOptions::default(), &threads)?;
    let placement = layer.placement().expect("two nodes");
    assert_eq!(placement.nodes.iter().map(|node| node.node).collect::<Vec<_>>(), [0, 1]);
    Ok(())
}

#[test]
fn what_a_node_without_memory_reads_is_remote() -> Result<(), Error> {
    let bytes = tail2(N, K);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], N, K, &bytes)?;
    let threads = threads("no-memory", 4)?;
    assert_eq!(threads.nodes(), Some(vec![0, 0, 1, 1]));
    let packed = kernel(1)?.pack_on(&matrix, &threads)?;
    let placement = packed.placement().expect("two nodes with processors");
    // Node 1 has no memory, node 0 is the nearest that has some.
    let on: Vec<usize> =
        placement.nodes.iter().filter(|node| node.expected > 0).map(|node| node.node).collect();
    assert_eq!(on, [0]);
    assert!(placement.remote_bytes * 10 > packed.bytes() * 4, "{placement:?}");
    Ok(())
}

#[test]
fn the_calling_thread_can_stay_near_its_rows() -> Result<(), Error> {
    let allowed = || -> Vec<usize> {
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
    };
    let here = allowed();
    let Some((first, others)) =
        here.split_first().filter(|(_, others)| cfg!(target_os = "linux") && !others.is_empty())
    else {
        eprintln!("skipped: fewer than two processors");
        return Ok(());
    };
    let mut topology = machine("two");
    topology.nodes[0].cpus = vec![*first];
    topology.nodes[1].cpus = others.to_vec();
    let options = ThreadOptions { count: 2, topology, ..ThreadOptions::default() };
    let threads = Threads::with_options(&options)?;
    assert_eq!(threads.nodes(), Some(vec![0, 1]));
    // Tests share a process and not a thread.
    let stays = std::thread::spawn(move || threads.keep_caller_near().map(|()| allowed()))
        .join()
        .expect("no panic")?;
    assert_eq!(stays, [*first]);
    Ok(())
}

/// Batches and experts on several nodes have the bits of single products on one thread.
#[test]
fn batches_and_experts_have_the_same_bits_on_any_machine() -> Result<(), Error> {
    let single = Threads::single();
    // Small ones, which are not divided, beside large ones.
    let sizes = [N, 33, 2 * N, 1000];
    let bytes: Vec<Vec<u8>> = sizes.iter().map(|n| tail2(*n, K)).collect();
    let x = noise(3 * K, 5);
    for (name, count) in [("one", 3), ("two", 3), ("two", 8), ("eight", 11), ("no-memory", 4)] {
        let threads = threads(name, count)?;
        let layer = |(n, bytes): (&usize, &Vec<u8>)| {
            let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], *n, K, bytes)?;
            Linear::new(&REGISTRY, &matrix, &LinearOptions::default(), &threads)
        };
        let layers: Vec<Linear> = sizes.iter().zip(&bytes).map(layer).collect::<Result<_, _>>()?;
        for m in [1, 3] {
            let mut workspace = layers[0].workspace(m, &single)?;
            let shared = layers[0].quantize(Input::F32(&x[..m * K]), m, &mut workspace, &single)?;
            let mut right: Vec<Vec<f32>> = sizes.iter().map(|n| vec![f32::NAN; m * n]).collect();
            for (layer, y) in layers.iter().zip(&mut right) {
                layer.forward_quantized(&shared, None, y, &single)?;
            }
            let mut found: Vec<Vec<f32>> = sizes.iter().map(|n| vec![f32::NAN; m * n]).collect();
            let mut batch = Batch::new();
            for (layer, y) in layers.iter().zip(&mut found) {
                batch.push(layer.product_of(&shared), Output::F32(y))?;
            }
            batch.run(&threads);
            assert!(found == right, "{name}, {count} threads, m = {m}");
        }
    }
    Ok(())
}

#[test]
fn large_experts_are_divided_to_nodes_and_small_ones_are_not() -> Result<(), Error> {
    let single = Threads::single();
    // Four codes to a byte: a little above 4 MiB, and a few KiB.
    for (n, k, divided) in [(4100, 4096, true), (100, 256, false)] {
        let bytes = tail2(n, k);
        let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
        let x = noise(2 * k, 3);
        let routes = Routes::each(2, 1, &[1, 0])?;
        let run = |threads: &Threads| -> Result<(Vec<f32>, Option<Placement>), Error> {
            let experts = Experts::new(&REGISTRY, &[matrix; 2], &LinearOptions::default(), threads)?;
            let mut workspace = experts.workspace(2, 2, threads)?;
            let mut y = vec![f32::NAN; 2 * n];
            let input = ExpertInput::Tokens(Input::F32(&x));
            experts.forward(input, &routes, None, &mut y, &mut workspace, threads)?;
            Ok((y, experts.placement()))
        };
        let (right, nowhere) = run(&single)?;
        assert_eq!(nowhere, None);
        for (name, count, nodes) in [("two", 4, 2), ("eight", 8, 8)] {
            let (found, placement) = run(&threads(name, count)?)?;
            assert!(found == right, "{name}, {n} rows");
            assert_eq!(placement.map(|placement| placement.nodes.len()), divided.then_some(nodes), "{name}");
        }
    }
    Ok(())
}
