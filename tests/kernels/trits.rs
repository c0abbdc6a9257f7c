//! Bytes of base-3 digits that no quantizer writes: every byte means what the readers of ggml and of its kin make of it, the
//! carries of b times a power of three, in `dequantize` and in products alike.
#![cfg(feature = "bitnet")]

use gristmill::registry::Entry;
use gristmill::vocab::{DType, Op};
use gristmill::{
    CpuProfile, Dequantizer, Input, Matmul, QuantizedMatrix, REGISTRY, Request, Restrict, Shape, Threads,
    Workspace,
};

/// A format: its name, the bytes of digits in a block and where they start, and the digit of each element, counted from the
/// most significant one.
type Digits = (&'static str, std::ops::Range<usize>, fn(usize) -> u32);

const FORMATS: [Digits; 3] = [
    ("iq1_bn", 0..13, |e| 4 - if e % 16 == 15 { e / 16 } else { e % 16 % 5 } as u32),
    ("ptq1_0", 0..26, |e| match e {
        0..80 => e / 16,
        80..120 => (e - 80) / 8,
        _ => (e - 120) / 2,
    } as u32),
    ("tq1_0", 0..52, |e| match e {
        0..160 => e / 32,
        160..240 => (e - 160) / 16,
        _ => (e - 240) / 4,
    } as u32),
];

/// One block a row, with scale 1; all bytes of digits of row b are b. And the weights.
fn every_byte(name: &str, bytes: &std::ops::Range<usize>, digit: fn(usize) -> u32) -> (Vec<u8>, Vec<f32>) {
    let (_, info) = REGISTRY.format(name).expect("in this build");
    let (mut tensor, mut weights) = (Vec::new(), Vec::new());
    let one = 0x3c00u16.to_le_bytes();
    for b in 0..=255u8 {
        let in_front = info.row_bytes(info.elements).expect("one block") - info.bytes;
        let mut block = vec![b; info.bytes];
        if in_front == 0 {
            block[bytes.end..].copy_from_slice(&one);
        } else {
            tensor.extend(one);
        }
        tensor.extend(block);
        weights.extend((0..info.elements).map(|e| {
            let carried = u32::from(b) * 3u32.pow(digit(e)) % 256;
            (carried * 3 / 256) as f32 - 1.0
        }));
    }
    (tensor, weights)
}

fn kernels(op: Op, format: &str) -> impl Iterator<Item = &'static Entry> {
    let features = CpuProfile::detect().features;
    let of_format = move |entry: &&Entry| {
        entry.op == op && op != Op::QuantizeActivations && REGISTRY.formats[entry.format].name == format
    };
    REGISTRY.entries.iter().filter(of_format).filter(move |entry| features.contains(entry.features))
}

fn only(kernel: &Entry) -> Restrict {
    Restrict { kernel: Some(kernel.name.to_owned()), ..Restrict::default() }
}

#[test]
fn every_byte_of_base_3_digits_is_decoded() {
    for (name, bytes, digit) in FORMATS {
        let (tensor, weights) = every_byte(name, &bytes, digit);
        let (_, info) = REGISTRY.format(name).expect("in this build");
        let (n, k) = (256, info.elements);
        let matrix = QuantizedMatrix::new(info, n, k, &tensor).expect("sizes agree");
        let mut ran = 0;
        for kernel in kernels(Op::Dequantize, name) {
            let request = Request::dequantize(name, n, k);
            let prepared =
                REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel)).expect("there");
            let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("chosen");
            let mut out = vec![f32::NAN; n * k];
            handle.run(&matrix, &mut out).expect("every byte means something");
            assert_eq!(out, weights, "{}", kernel.name);
            ran += 1;
        }
        assert!(ran > 0, "{name}");
    }
}

#[test]
fn products_read_every_byte_of_base_3_digits() {
    for (name, bytes, digit) in FORMATS {
        let (tensor, weights) = every_byte(name, &bytes, digit);
        let (_, info) = REGISTRY.format(name).expect("in this build");
        let (n, k) = (256, info.elements);
        let matrix = QuantizedMatrix::new(info, n, k, &tensor).expect("sizes agree");
        let mut ran = 0;
        for kernel in kernels(Op::Matmul, name) {
            for m in [1, 5] {
                let rules = &kernel.shape.m;
                if !(rules.min..=rules.max).contains(&(m as u64)) {
                    continue;
                }
                let q: Vec<i8> = (0..m * k).map(|i| ((i * 37 % 251) as u8).cast_signed()).collect();
                let block = REGISTRY.activations[info.activations].block.unwrap_or(k);
                let scales = vec![1.0; m * k / block];
                let shape = Shape::new(m, n, k);
                let request = Request::matmul(name, shape).with_input(DType::I8);
                let prepared =
                    REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel)).expect("there");
                let matmul = Matmul::new(&prepared.decide(shape)).expect("chosen");
                let packed = matmul.pack(&matrix).expect("every byte means something");
                let threads = Threads::single();
                let mut workspace = Workspace::for_(&matmul, m, k, &threads).expect("room");
                let mut y = vec![f32::NAN; m * n];
                let input = Input::I8 { q: &q, scales: &scales };
                matmul.run(&packed, input, m, None, &mut y, &mut workspace, &threads).expect("runs");
                for (i, y) in y.iter().enumerate() {
                    let (token, row) = (i / n, i % n);
                    // Integers far below 2^24.
                    let expected: f32 =
                        (0..k).map(|e| weights[row * k + e] * f32::from(q[token * k + e])).sum();
                    assert_eq!(*y, expected, "{} m={m}: bytes {row:#04x}, token {token}", kernel.name);
                }
                ran += 1;
            }
        }
        assert!(ran > 0, "{name}");
    }
}
