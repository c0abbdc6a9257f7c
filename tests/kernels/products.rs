//! Every matmul kernel that this machine can run against the scalar one, bit by bit: all token counts that a
//! tile covers in another way, rows that don't fill a vector, activations at the ends of their range.

use crate::vectors::{Vector, tensors};
use gristmill::runtime::vocab::Op;
use gristmill::{
    CpuProfile, Error, Fnv, Input, Matmul, QuantizedMatrix, REGISTRY, Request, Restrict, Shape, Threads,
    Workspace,
};

/// Token counts: each whole tile, its half and the rest, with decode kernels on one side, prefill on the other, and behind it those that
/// decode codes once for many tokens.
const TOKENS: [usize; 10] = [1, 2, 3, 4, 6, 7, 8, 13, 37, 53];

/// Weights of the golden vectors: (case, rows, k, bytes).
fn weights(format: &str) -> Vec<(String, usize, usize, Vec<u8>)> {
    let weights =
        |(entry, n, k): (Vector, usize, usize)| Some((entry["case"].to_string(), n, k, entry.bytes("q")?));
    tensors(format).into_iter().filter_map(weights).collect()
}

/// A sequence of numbers without order.
fn numbers(seed: u32) -> impl Iterator<Item = u32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    })
}

/// int8 activations: the lower end, the upper end, both in turn, and all of them mixed.
fn activations(len: usize) -> [Vec<i8>; 4] {
    [
        vec![-128; len],
        vec![127; len],
        (0..len).map(|i| if i % 3 == 0 { -128 } else { 127 }).collect(),
        numbers(7).take(len).map(|n| (n % 256) as u8 as i8).collect(),
    ]
}

/// The output of one kernel, with NaN made alike: which NaN comes out differs between architectures.
fn run(
    kernel: &str,
    matrix: &QuantizedMatrix<'_>,
    shape: Shape,
    input: Input<'_>,
    bias: &[f32],
) -> Option<Vec<u32>> {
    let request = Request { input: input.dtype(), ..Request::matmul(matrix.format().name, shape) };
    let only = Restrict { kernel: Some(kernel.to_string()), ..Restrict::default() };
    let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only).expect("the kernel is there");
    let matmul = Matmul::new(&prepared.decide(shape)).ok()?;
    let threads = Threads::single();
    let packed = match matmul.pack(matrix) {
        Err(Error::InvalidCode { .. }) => return None,
        packed => packed.expect("sizes agree"),
    };
    let mut workspace = Workspace::for_(&matmul, shape.m, shape.k, &threads).expect("small");
    let mut y = vec![f32::NAN; shape.m * shape.n];
    matmul.run(&packed, input, shape.m, Some(bias), &mut y, &mut workspace, &threads).expect("runs");
    Some(y.into_iter().map(|y| if y.is_nan() { f32::NAN.to_bits() } else { y.to_bits() }).collect())
}

#[test]
fn every_kernel_gives_the_reference_s_bits() {
    let features = CpuProfile::detect().features;
    let mut compared = std::collections::BTreeMap::<&str, usize>::new();
    // The same on every architecture: over the bits of every output.
    let mut digest = Fnv::EMPTY;
    let mut wrong = std::collections::BTreeMap::<&str, String>::new();
    for (index, format) in REGISTRY.formats.iter().enumerate() {
        let kernels: Vec<_> = REGISTRY
            .entries
            .iter()
            .filter(|e| e.op == Op::Matmul && e.format == index && features.contains(e.features))
            .collect();
        for (case, n, k, bytes) in weights(format.name) {
            // Some vectors end before the tensor's tail.
            let mut bytes = bytes;
            bytes.resize(format.tensor_bytes(n, k).expect("fits"), 0);
            let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("sizes agree");
            let bias: Vec<f32> = (0..n).map(|i| i as f32 - 1.5).collect();
            for m in TOKENS {
                // The reference takes long over so many: only for kernels that begin there.
                let fewer = TOKENS.iter().copied().filter(|fewer| *fewer < m).max().unwrap_or(0);
                let begins = |least: u64| fewer < least as usize && least as usize <= m;
                if m > 13 && !kernels.iter().any(|entry| begins(entry.shape.m.min)) {
                    continue;
                }
                let shape = Shape::new(m, n, k);
                let floats: Vec<f32> = numbers(m as u32).take(m * k).map(|n| n as f32 / 4e6 - 2.0).collect();
                let blocks = REGISTRY.activations[format.activations].block.map_or(1, |b| k.div_ceil(b));
                let scales: Vec<f32> = (0..m * blocks).map(|i| 0.5 + i as f32 / 64.0).collect();
                let bytes = activations(m * k);
                let int8 = bytes.iter().map(|q| Input::I8 { q, scales: &scales });
                for input in std::iter::once(Input::F32(&floats)).chain(int8) {
                    let scalar = kernels.iter().find(|e| e.name.ends_with(".scalar")).expect("the reference");
                    let Some(expected) = run(scalar.name, &matrix, shape, input, &bias) else { continue };
                    for bits in &expected {
                        digest = digest.with(&bits.to_le_bytes());
                    }
                    for kernel in kernels.iter().filter(|e| !e.name.ends_with(".scalar")) {
                        let Some(y) = run(kernel.name, &matrix, shape, input, &bias) else { continue };
                        if let Some(at) = y.iter().zip(&expected).position(|(a, b)| a != b) {
                            wrong.entry(kernel.name).or_insert_with(|| {
                                let (found, expected) = (f32::from_bits(y[at]), f32::from_bits(expected[at]));
                                let kind = input.dtype();
                                format!("case {case}, m = {m}, {kind}: output {at} is {found}, expected {expected}")
                            });
                        }
                        *compared.entry(kernel.name).or_default() += 1;
                    }
                }
            }
        }
        for kernel in kernels.iter().filter(|e| !e.name.ends_with(".scalar")) {
            assert!(
                compared.contains_key(kernel.name) || weights(format.name).is_empty(),
                "{} never ran",
                kernel.name
            );
        }
    }
    let count = compared.values().sum::<usize>();
    println!("{} kernels, {count} products; digest of the reference {:016x}", compared.len(), digest.get());
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared.len() >= REGISTRY.formats.len(), "only {} kernels were compared", compared.len());
}
