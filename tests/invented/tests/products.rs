//! Formats invented for this test, described in TOML alone, against decoders written by hand: every kernel
//! that the compiler makes of them, on every ISA of this machine. None of them has the shape of a shipped
//! format: odd block sizes, codes across byte borders, split planes, row headers, digits of base 3, 5 and 7, scales of scales,
//! tables with gaps, a codebook with signs and shifts, one whose elements are not neighbours. Some are multiplied by table lookup too, by variants that a
//! kernel file of this test lists.

use gristmill::half::{bf16, f16};
use gristmill::runtime::registry::{Entry, FormatInfo, OuterType};
use gristmill::runtime::vocab::Op;
use gristmill::{
    CpuProfile, Dequantizer, Error, Input, Matmul, QuantizedMatrix, Quantizer, Request, Restrict, Shape,
    Threads, Workspace,
};
use gristmill_invented::REGISTRY;

/// A decoder by hand: a block and the scale outside it to weights, `None` where a code means nothing.
type Decode = fn(&[u8], f32) -> Option<Vec<f32>>;

/// Bits `at..at + n` of `b`, little-endian.
fn bits(b: &[u8], at: usize, n: usize) -> u32 {
    (0..n).map(|i| u32::from(b[(at + i) / 8] >> ((at + i) % 8) & 1) << i).sum()
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn nibble(b: &[u8], at: usize) -> i32 {
    i32::from(b[at / 2] >> (4 * (at % 2)) & 15)
}

fn decode_odd20(b: &[u8], _: f32) -> Option<Vec<f32>> {
    Some((0..20).map(|i| half_at(b, 0) * (nibble(&b[2..], i) - 8) as f32).collect())
}

fn decode_split3(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let d = bf16::from_le_bytes([b[0], b[1]]).to_f32();
    let low = |i: usize| b[2 + i % 16] >> (2 * (i / 16)) & 3;
    let high = |i: usize| b[18 + i % 8] >> (i / 8) & 1;
    Some((0..64).map(|i| d * f32::from((low(i) | high(i) << 2) as i8 - 4)).collect())
}

fn decode_seq3(b: &[u8], outer: f32) -> Option<Vec<f32>> {
    Some(
        (0..40)
            .map(|i| bits(b, 3 * i, 3) as i32)
            .map(|q| outer * (if q > 3 { q - 8 } else { q }) as f32)
            .collect(),
    )
}

fn decode_sub_sub(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let d = half_at(b, 0);
    let element = |i: usize| {
        let (half, run) = (nibble(&b[2..], i / 64) + 1, 2 * nibble(&b[3..], i / 16) + 1);
        let low = nibble(&b[7..], i / 32);
        let low = if low > 7 { low - 16 } else { low };
        let q = b[9 + i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32)) & 15;
        d * half as f32 * run as f32 * f32::from(q) - d * low as f32
    };
    Some((0..128).map(element).collect())
}

fn decode_six_runs(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let [d, m] = [0, 2].map(|at| bf16::from_le_bytes([b[at], b[at + 1]]).to_f32());
    let element = |i: usize| {
        let (scale, low) = (f32::from(b[4 + i / 10]), nibble(&b[10..], i / 10) as f32);
        d * scale * nibble(&b[13..], i) as f32 - m * low
    };
    Some((0..60).map(element).collect())
}

fn decode_odds(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let scale = |i: usize| half_at(b, 0) * (2 * nibble(&b[2..], i / 16) + 1) as f32;
    Some((0..256).map(|i| scale(i) * (2 * bits(&b[10..], 3 * i, 3) + 1) as f32).collect())
}

fn decode_cross48(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let scale = |i: usize| f32::from(b[6 + i / 24] as i8);
    let low = |i: usize| half_at(b, 2 * (i / 16));
    Some((0..48).map(|i| scale(i) * (nibble(&b[8..], i) - 8) as f32 - low(i)).collect())
}

fn decode_cross_product(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let scale = |i: usize| half_at(b, 4 - 2 * (i / 16)) * f32::from(b[6 + i / 24] as i8);
    Some((0..48).map(|i| scale(i) * (nibble(&b[8..], i) - 8) as f32).collect())
}

fn decode_trits_down(b: &[u8], _: f32) -> Option<Vec<f32>> {
    // Elements 0 to 3 are the first digits of bytes 3 to 0, 4 to 7 the second ones; then bytes of five elements each.
    let place = |i: usize| match i {
        0..20 => (3 - i % 4, i / 4),
        _ => ([8, 6, 9, 7][(i - 20) / 5], i % 5),
    };
    let digit = |(byte, number): (usize, usize)| {
        let v = u32::from(b[byte]) * 243 / 256;
        (v / 3u32.pow(4 - number as u32) % 3) as f32
    };
    Some((0..40).map(|i| half_at(b, 4) * (digit(place(i)) - 1.0)).collect())
}

fn decode_trits(b: &[u8], outer: f32) -> Option<Vec<f32>> {
    let digit = |i: usize| {
        // The number whose ceil(256 v / 243) this byte is; digit 0 is the least significant.
        let v = u32::from(b[i / 5]) * 243 / 256;
        (v / 3u32.pow(i as u32 % 5)) % 3
    };
    Some((0..80).map(|i| outer * (digit(i) as f32 - 1.0)).collect())
}

fn decode_table5(b: &[u8], _: f32) -> Option<Vec<f32>> {
    const LEVELS: [f32; 5] = [-90.0, -20.0, 0.0, 25.0, 110.0];
    let scale = half_at(b, 0) * 0.0078125;
    (0..24).map(|i| LEVELS.get(bits(&b[2..], 3 * i, 3) as usize).map(|l| scale * l)).collect()
}

fn decode_book(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let grid = std::fs::read("../data/vectors/codebooks/iq3s_grid.bin").expect("the expanded table");
    let element = |i: usize| {
        let magnitude = grid[bits(b, 16 + 9 * (i / 4), 9) as usize * 4 + i % 4] as i8;
        let negative = bits(b, 160 + i, 1) == 1;
        let value = if negative { -f32::from(magnitude) } else { f32::from(magnitude) };
        let shift = if bits(b, 224 + i / 8, 1) == 1 { -0.125 } else { 0.125 };
        half_at(b, 0) * (2 * bits(b, 232 + 6 * (i / 16), 6) + 1) as f32 * (value + shift)
    };
    Some((0..64).map(element).collect())
}

fn decode_shifted(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let element = |i: usize| {
        let shift = if bits(b, 144 + i / 8, 1) == 1 { 2 } else { -3 };
        let value = 8 * bits(b, 176 + 2 * i, 2) as i32 - 8 + shift;
        let (sub, low) = (4 * bits(b, 32 + 4 * (i / 16), 4) + 9, bits(b, 96 + 3 * (i / 16), 3));
        half_at(b, 0) * sub as f32 * 0.25 * value as f32 - half_at(b, 2) * low as f32
    };
    Some((0..256).map(element).collect())
}

fn decode_far_apart(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let element = |i: usize| {
        let value = 32 * bits(b, 96 + 3 * i, 3) + bits(b, 80 + i / 16, 1);
        half_at(b, 0) * bits(b, 16 + 4 * (i / 16), 4) as f32 * value as f32
    };
    Some((0..256).map(element).collect())
}

fn decode_two_blocks(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let element = |i: usize| {
        let shift = if bits(b, 96 + i / 8, 1) == 1 { -2 } else { 3 };
        let value = 8 * bits(b, 128 + 2 * i, 2) as i32 - 8 + shift;
        half_at(b, i / 128 * 2) * (2 * bits(b, 32 + 4 * (i / 16), 4) + 1) as f32 * value as f32
    };
    Some((0..256).map(element).collect())
}

fn decode_apart(b: &[u8], _: f32) -> Option<Vec<f32>> {
    const PATTERNS: [[i8; 6]; 5] = [
        [-6, -11, 12, 12, 2, 2],
        [-1, 4, -3, 7, -6, -11],
        [-6, -11, -3, 2, 0, 12],
        [-1, -1, -1, -1, -1, -1],
        [-11, 0, 12, -3, 4, -11],
    ];
    // Elements 0 to 23 are of the first four codes, element after element of each in turn.
    let element = |i: usize| {
        let code = i / 24 * 4 + i % 4;
        let index = bits(b, 32 + code, 1) | bits(b, 30 - 2 * code, 2) << 1;
        PATTERNS.get(index as usize).map(|pattern| half_at(b, 0) * f32::from(-2 * pattern[i % 24 / 4]))
    };
    (0..48).map(element).collect()
}

/// Runs that are not whole steps of every loop.
fn decode_bytes(b: &[u8], _: f32) -> Option<Vec<f32>> {
    Some(b[2..].iter().map(|&q| half_at(b, 0) * (i32::from(q) - 77) as f32).collect())
}

fn decode_nibbles72(b: &[u8], _: f32) -> Option<Vec<f32>> {
    Some((0..72).map(|i| half_at(b, 0) * (nibble(&b[2..], i) - 3) as f32).collect())
}

fn decode_wide8(b: &[u8], _: f32) -> Option<Vec<f32>> {
    Some((0..48).map(|i| half_at(b, 0) * (f32::from(b[4 + i]) - 128.0) + half_at(b, 2)).collect())
}

fn decode_bits1(b: &[u8], outer: f32) -> Option<Vec<f32>> {
    Some((0..8).map(|i| if b[0] >> (7 - i) & 1 == 1 { outer } else { -outer }).collect())
}

fn decode_levels4(b: &[u8], _: f32) -> Option<Vec<f32>> {
    const LEVELS: [f32; 4] = [-7.0, -1.0, 2.0, 9.0];
    let d = bf16::from_le_bytes([b[0], b[1]]).to_f32();
    Some((0..36).map(|i| d * LEVELS[usize::from(b[2 + i % 9] >> (2 * (i / 9)) & 3)]).collect())
}

/// The last byte holds digits 0 and 2 of its number.
fn decode_fives(b: &[u8], _: f32) -> Option<Vec<f32>> {
    const LEVELS: [f32; 5] = [-7.0, -2.0, 0.0, 2.0, 9.0];
    let place = |i: usize| if i < 30 { (i / 3, i % 3) } else { (10, [0, 2][i - 30]) };
    let digit = |(byte, number): (usize, usize)| {
        let v = usize::from(b[2 + byte]) * 125 / 256;
        [v % 5, v / 5 % 5, v / 25][number]
    };
    Some((0..32).map(|i| half_at(b, 0) * LEVELS[digit(place(i))]).collect())
}

fn decode_sevens(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let number = |i: usize| u32::from(b[2 + i % 32]) * 49 / 256;
    let digit = |i: usize| if i < 32 { number(i) / 7 } else { number(i) % 7 };
    Some((0..64).map(|i| half_at(b, 0) * (digit(i) as f32 - 3.0)).collect())
}

fn decode_long_runs(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let scale = |i: usize| half_at(b, 0) * f32::from(b[2 + i / 512] as i8);
    Some((0..1024).map(|i| scale(i) * (bits(&b[4..], 2 * i, 2) as f32 - 2.0)).collect())
}

fn decode_runs256(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let scale = |i: usize| half_at(b, 0) * f32::from(b[4 + i / 256] as i8);
    let low = |i: usize| half_at(b, 2) * nibble(&b[6..], i / 256) as f32;
    Some((0..512).map(|i| scale(i) * (bits(&b[8..], 2 * i, 2) as f32 - 2.0) - low(i)).collect())
}

fn decode_signed_steps(b: &[u8], _: f32) -> Option<Vec<f32>> {
    let element = |i: usize| {
        let step = ((nibble(&b[2..], i / 8) ^ 8) + 1) as f32;
        let magnitude = [1.0, 3.0][nibble(&b[4..], i / 4) as usize >> (i % 4) & 1];
        let sign = if b[8 + i / 8] >> (i % 8) & 1 == 1 { -1.0 } else { 1.0 };
        half_at(b, 0) * step * sign * magnitude
    };
    Some((0..32).map(element).collect())
}

const ALL: [(&str, Decode); 27] = [
    ("odd20", decode_odd20),
    ("split3", decode_split3),
    ("seq3", decode_seq3),
    ("sub_sub", decode_sub_sub),
    ("trits", decode_trits),
    ("table5", decode_table5),
    ("book", decode_book),
    ("apart", decode_apart),
    ("wide8", decode_wide8),
    ("bytes160", decode_bytes),
    ("bytes200", decode_bytes),
    ("nibbles72", decode_nibbles72),
    ("bits1", decode_bits1),
    ("six_runs", decode_six_runs),
    ("cross48", decode_cross48),
    ("cross_product", decode_cross_product),
    ("trits_down", decode_trits_down),
    ("levels4", decode_levels4),
    ("fives", decode_fives),
    ("sevens", decode_sevens),
    ("shifted", decode_shifted),
    ("far_apart", decode_far_apart),
    ("two_blocks", decode_two_blocks),
    ("odds", decode_odds),
    ("long_runs", decode_long_runs),
    ("runs256", decode_runs256),
    ("signed_steps", decode_signed_steps),
];

/// A small generator of our own: the same numbers everywhere, forever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
}

/// Rows of random blocks that decode to finite weights, with those weights.
fn matrix(
    format: &FormatInfo,
    decode: Decode,
    n: usize,
    k: usize,
    random: &mut Random,
) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = Vec::new();
    let mut weights = Vec::new();
    let outer = 0.375f32;
    for _ in 0..n {
        match format.row_header {
            None => {}
            Some(OuterType::F16) => bytes.extend(f16::from_f32(outer).to_le_bytes()),
            Some(_) => bytes.extend(outer.to_le_bytes()),
        }
        for _ in 0..k / format.elements {
            loop {
                let mut block: Vec<u8> = (0..format.bytes).map(|_| random.next() as u8).collect();
                // Radix-3 bytes: only ceil(256 v / 243) occur. Scales: moderate f16 (and bf16) numbers.
                if format.name == "trits" || format.name == "trits_down" {
                    for b in &mut block {
                        *b = (u32::from(*b) * 243 / 256 * 256).div_ceil(243) as u8;
                    }
                }
                if format.name == "trits_down" {
                    block[5] = 0x30 | block[5] & 0x83;
                } else if format.name.starts_with("cross") {
                    for at in [1, 3, 5] {
                        block[at] = 0x30 | block[at] & 0x83;
                    }
                } else if format.row_header.is_none() && format.tensor_tail.is_none() {
                    block[1] = 0x30 | block[1] & 0x83;
                    if ["wide8", "six_runs", "shifted", "two_blocks", "runs256"].contains(&format.name) {
                        block[3] = 0x34 | block[3] & 0x83;
                    }
                }
                if format.name == "table5" {
                    // Meaningful codes only; the others are tested on their own.
                    for i in 0..24 {
                        while bits(&block[2..], 3 * i, 3) > 4 {
                            block[2 + (3 * i + 2) / 8] ^= 1 << ((3 * i + 2) % 8);
                        }
                    }
                }
                if let Some(decoded) = decode(&block, outer) {
                    weights.extend(decoded);
                    bytes.extend(block);
                    break;
                }
            }
        }
    }
    if format.tensor_tail.is_some() {
        bytes.extend(outer.to_le_bytes());
    }
    assert_eq!(bytes.len(), format.tensor_bytes(n, k).expect("fits"), "{}", format.name);
    (bytes, weights)
}

fn kernels(format: usize, op: Op) -> Vec<&'static Entry> {
    let features = CpuProfile::detect().features;
    let these = |e: &&Entry| e.op == op && e.format == format && features.contains(e.features);
    REGISTRY.entries.iter().filter(these).collect()
}

fn only(kernel: &str) -> Restrict {
    Restrict { kernel: Some(kernel.to_string()), ..Restrict::default() }
}

#[test]
fn dequantize_is_bit_exact() {
    let mut random = Random(1);
    for (name, decode) in ALL {
        let (index, format) = REGISTRY.format(name).expect("in this build");
        let (n, k) = (5, format.elements * 3);
        let (bytes, weights) = matrix(format, decode, n, k, &mut random);
        let kernels = kernels(index, Op::Dequantize);
        assert!(!kernels.is_empty());
        for kernel in kernels {
            let request = Request::dequantize(format.name, n, k);
            let prepared =
                REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel.name)).expect("there");
            let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("chosen");
            let mut out = vec![f32::NAN; n * k];
            handle
                .run(&QuantizedMatrix::new(format, n, k, &bytes).expect("sizes"), &mut out)
                .expect("valid codes");
            for (i, (found, expected)) in out.iter().zip(&weights).enumerate() {
                assert!(found == expected, "{}: element {i} is {found}, expected {expected}", kernel.name);
            }
        }
    }
}

/// What the tests above and below go through are all kernels of the registry, those whose bodies are C among them.
#[test]
fn bodies_in_c_are_listed() {
    let all = [
        ("x86_64", ["in_c_dequantize.seq3.avx2.ssse3.in_c", "in_c_product.seq3.avx2.ssse3.sse4.1.in_c"]),
        ("aarch64", ["in_c_dequantize.seq3.neon.dotprod.in_c", "in_c_product.seq3.neon.i8mm.in_c"]),
    ];
    for (arch, names) in all {
        for name in names {
            let entry = REGISTRY.entries.iter().find(|entry| entry.name == name);
            assert_eq!(entry.is_some(), cfg!(target_arch = "x86_64") == (arch == "x86_64"), "{name}");
            if let Some(entry) = entry {
                assert!(
                    entry.plan.starts_with("by hand: `") && entry.plan.ends_with("` of specs/kernels/in_c.c")
                );
            }
        }
    }
}

/// int8 activations given by the caller: against the weights decoded by hand, in f64; and every variant
/// with the bits of every other.
#[test]
fn products_agree_with_the_decoded_weights() {
    // The other tests are done long before: both processors of a small machine for this one.
    std::thread::scope(|scope| {
        for part in ALL.chunks(ALL.len().div_ceil(2)) {
            scope.spawn(|| products_agree(part));
        }
    });
}

fn products_agree(formats: &[(&str, Decode)]) {
    let mut random = Random(2);
    for (name, decode) in formats {
        let (index, format) = REGISTRY.format(name).expect("in this build");
        let activations = &REGISTRY.activations[format.activations];
        for (m, n, blocks) in
            [(1, 1, 1), (1, 37, 7), (2, 16, 8), (3, 50, 4), (5, 33, 8), (9, 65, 16), (17, 3, 2), (33, 40, 3)]
        {
            let k = format.elements * blocks;
            let (bytes, weights) = matrix(format, *decode, n, k, &mut random);
            // Random, or as far from zero as they go: sums that were proven to fit are as large as they get.
            let q: Vec<i8> = (0..m * k)
                .map(|_| random.next() as u8 as i8)
                .map(|q| match m {
                    2 => -128,
                    3 => 127,
                    5 => q >> 7 ^ 127,
                    _ => q,
                })
                .collect();
            let scales: Vec<f32> = (0..m * activations.block.map_or(1, |b| k.div_ceil(b)))
                .map(|i| 0.25 + i as f32 / 64.0)
                .collect();
            let bias: Vec<f32> = (0..n).map(|r| r as f32 - 3.0).collect();
            let step = |t: usize, c: usize| {
                let per_row = scales.len() / m;
                let s = f64::from(scales[t * per_row + activations.block.map_or(0, |b| c / b)]);
                if activations.keeps_multiplier { 1.0 / s } else { s }
            };
            let exact = |t: usize, r: usize| -> f64 {
                let dot: f64 = (0..k)
                    .map(|c| f64::from(weights[r * k + c]) * f64::from(q[t * k + c]) * step(t, c))
                    .sum();
                dot + f64::from(bias[r])
            };
            let exact: Vec<f64> = (0..m * n).map(|i| exact(i / n, i % n)).collect();
            let mut reference: Option<Vec<u32>> = None;
            for kernel in kernels(index, Op::Matmul) {
                if (m as u64) < kernel.shape.m.min || m as u64 > kernel.shape.m.max {
                    continue;
                }
                let shape = Shape::new(m, n, k);
                let request = Request::matmul(format.name, shape).with_input(gristmill::vocab::DType::I8);
                let prepared =
                    REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel.name)).expect("there");
                let matmul = Matmul::new(&prepared.decide(shape)).expect("chosen");
                let threads = Threads::single();
                let packed = matmul
                    .pack(&QuantizedMatrix::new(format, n, k, &bytes).expect("sizes"))
                    .expect("valid codes");
                let mut workspace = Workspace::for_(&matmul, m, k, &threads).expect("small");
                let mut y = vec![f32::NAN; m * n];
                let input = Input::I8 { q: &q, scales: &scales };
                matmul.run(&packed, input, m, Some(&bias), &mut y, &mut workspace, &threads).expect("runs");
                let (mut error, mut power) = (0.0, 1e-30);
                for (y, exact) in y.iter().zip(&exact) {
                    error += (f64::from(*y) - exact).powi(2);
                    power += exact.powi(2);
                }
                assert!(error / power < 1e-10, "{} m={m} n={n} k={k}: NMSE {}", kernel.name, error / power);
                let found: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                match &reference {
                    None => reference = Some(found),
                    Some(expected) => assert_eq!(&found, expected, "{} m={m} n={n} k={k}", kernel.name),
                }
            }
            assert!(reference.is_some(), "{}: nothing ran", format.name);
        }
    }
}

/// What the quantizers make decodes to within half a step of the input, the same bytes on every ISA.
#[test]
fn quantizers_round_trip() {
    let mut random = Random(3);
    let mut ran = 0;
    for (name, _) in ALL {
        let (index, format) = REGISTRY.format(name).expect("in this build");
        if format.quantizers.is_empty() {
            continue;
        }
        let (n, k) = (3, format.elements * 2);
        let x: Vec<f32> = (0..n * k).map(|_| random.next() as f32 / 2f32.powi(30) - 1.0).collect();
        let mut reference: Option<Vec<u8>> = None;
        for kernel in kernels(index, Op::Quantize) {
            let request = Request::quantize(format.name, None, n, k);
            let prepared =
                REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel.name)).expect("there");
            let handle = Quantizer::new(&prepared.decide(request.shape)).expect("chosen");
            let mut bytes = vec![0xaa; format.tensor_bytes(n, k).expect("fits")];
            handle.run(&x, n, k, &mut bytes).expect("finite input");
            assert_eq!(reference.get_or_insert_with(|| bytes.clone()), &bytes, "{}", kernel.name);
            ran += 1;
        }
        let bytes = reference.expect("a quantizer ran");
        let request = Request::dequantize(format.name, n, k);
        let prepared = REGISTRY.prepare(&request).expect("prepared");
        let mut out = vec![0.0; n * k];
        Dequantizer::new(&prepared.decide(request.shape))
            .expect("chosen")
            .run(&QuantizedMatrix::new(format, n, k, &bytes).expect("sizes"), &mut out)
            .expect("valid codes");
        let bound = match format.name {
            "trits" => 1.0,
            // Three steps to the largest.
            "sevens" => 0.5 / 3.0 + 1e-3,
            // Fifteen steps over a range of at most two in each run.
            "six_runs" => 0.08,
            // Magnitudes of a third and the largest, and small weights count little.
            "signed_steps" => 0.5,
            _ => 0.26,
        };
        for (i, (x, y)) in x.iter().zip(&out).enumerate() {
            assert!((x - y).abs() <= bound, "{}: element {i}: {x} became {y}", format.name);
        }
    }
    // At least the reference and one ISA for each format that has a quantizer.
    assert!(ran >= 8, "only {ran} quantizers ran");
}

#[test]
fn codes_without_meaning_are_refused_with_their_position() {
    // Element 7 of the last block: its three bits to 7.
    refused("table5", decode_table5, (2, 48), &[37, 38, 39], 31);
    // Code 6 of the last block to 5 or more: its first element is the third behind the first four codes.
    refused("apart", decode_apart, (2, 96), &[19, 38], 48 + 24 + 2);
}

/// Some bits of the last block of two set: a code without meaning, whose first element is `column`.
fn refused(name: &str, decode: Decode, (n, k): (usize, usize), set: &[usize], column: usize) {
    let (index, format) = REGISTRY.format(name).expect("in this build");
    let (mut bytes, _) = matrix(format, decode, n, k, &mut Random(4));
    let block = 3 * format.bytes;
    for bit in set {
        bytes[block + bit / 8] |= 1 << (bit % 8);
    }
    for kernel in kernels(index, Op::Dequantize) {
        let request = Request::dequantize(format.name, n, k);
        let prepared =
            REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel.name)).expect("there");
        let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("chosen");
        let found =
            handle.run(&QuantizedMatrix::new(format, n, k, &bytes).expect("sizes"), &mut vec![0.0; n * k]);
        match found {
            Err(Error::InvalidCode { row: 1, column: found, .. }) if found == column => {}
            other => panic!("{}: {other:?}", kernel.name),
        }
    }
}
