//! A small registry written by hand, with real kernels: what a build would generate, in miniature.
//!
//! * `header4`: 4 codes of 4 bits (code - 8) in 2 bytes, an f16 scale before each row, no product;
//! * `tail2`: 8 codes of 2 bits (code - 1, 3 means nothing) in 2 bytes, an f32 scale in an 8-byte tail;
//! * `tiny8`: an f16 scale and 4 int8 in 6 bytes, scales per unit in its packing.
#![allow(dead_code, reason = "each test binary uses its own part of this registry")]

use gristmill_runtime::abi::{Fault, MatmulArgs, Step};
use gristmill_runtime::half::f16;
use gristmill_runtime::registry::{
    ActivationInfo, Code, Counters, DimRule, Entry, FormatInfo, KernelId, LeftOut, OuterType, PackInfo,
    Registry, ShapeRules, Unit,
};
use gristmill_runtime::vocab::{DType, DeviceKind, Feature, FeatureSet, Isa, Op};

pub static REGISTRY: Registry = Registry {
    package: "toy",
    formats: &FORMATS,
    activations: &ACTIVATIONS,
    imports: &[],
    entries: &ENTRIES,
    candidates,
    left_out: &[LeftOut { format: "big9", feature: "toy-extra", gguf: None }],
    sources: &[],
    cuda: gristmill_runtime::registry::CudaBuild::FeatureOff,
    without_image: &[],
    convert: None,
};

pub const HEADER4: usize = 0;
pub const TAIL2: usize = 1;
pub const TINY8: usize = 2;

pub static FORMATS: [FormatInfo; 3] = [
    FormatInfo {
        name: "header4",
        doc: "",
        source: "toy/header4.toml",
        gguf: None,
        elements: 4,
        bytes: 2,
        row_header: Some(OuterType::F16),
        tensor_tail: None,
        quantizers: &["absmax"],
        activations: 0,
    },
    FormatInfo {
        name: "tail2",
        doc: "",
        source: "toy/tail2.toml",
        gguf: None,
        elements: 8,
        bytes: 2,
        row_header: None,
        tensor_tail: Some((OuterType::F32, 8)),
        quantizers: &["absmax", "sign"],
        activations: 0,
    },
    FormatInfo {
        name: "tiny8",
        doc: "",
        source: "toy/tiny8.toml",
        gguf: None,
        elements: 4,
        bytes: 6,
        row_header: None,
        tensor_tail: None,
        quantizers: &["absmax"],
        activations: 1,
    },
];

static ACTIVATIONS: [ActivationInfo; 2] = [
    ActivationInfo { name: "row", doc: "", source: "toy/row.toml", block: None, keeps_multiplier: true },
    ActivationInfo {
        name: "step4",
        doc: "",
        source: "toy/step4.toml",
        block: Some(4),
        keeps_multiplier: false,
    },
];

const ANY: DimRule = DimRule { min: 0, max: u64::MAX, multiple_of: 1 };
const FREE: ShapeRules = ShapeRules { m: ANY, n: ANY, k: ANY };
const UNIT_ROW: Unit = Unit { elements: 0, multiple: 16 };
const UNIT_4: Unit = Unit { elements: 4, multiple: 8 };

static PACK_TAIL2: PackInfo = PackInfo {
    name: "p4",
    rows: 4,
    tile_k: 4,
    tile_bytes: 16,
    scales: false,
    mins: false,
    runs: 1,
    min: 0,
    table: None,
    pack: pack_tail2,
    unpack: unpack_tail2,
};
static PACK_TINY8: PackInfo = PackInfo {
    name: "p4",
    rows: 4,
    tile_k: 4,
    tile_bytes: 16,
    scales: true,
    mins: false,
    runs: 1,
    min: 0,
    table: None,
    pack: pack_tiny8,
    unpack: unpack_tiny8,
};

static COUNTERS: [Counters; 13] = [const { Counters::new() }; 13];

const fn entry(index: usize, name: &'static str, op: Op, format: usize, code: Code) -> Entry {
    Entry {
        id: KernelId(0x1000 + index as u64),
        name,
        op,
        format,
        quantizer: 0,
        device: DeviceKind::Cpu,
        isa: Some(Isa::Scalar),
        features: FeatureSet::EMPTY,
        shape: FREE,
        source: "toy/kernels.toml:1",
        plan: "",
        code,
        counters: &COUNTERS[index],
    }
}

const fn matmul(
    run: gristmill_runtime::abi::MatmulFn,
    packing: Option<&'static PackInfo>,
    unit: Unit,
) -> Code {
    Code::Matmul { run, packing, unit }
}

const DECODE: ShapeRules = ShapeRules { m: DimRule { min: 0, max: 3, multiple_of: 1 }, n: ANY, k: ANY };
const PREFILL: ShapeRules =
    ShapeRules { m: DimRule { min: 4, max: u64::MAX, multiple_of: 1 }, n: ANY, k: ANY };
const K8: ShapeRules = ShapeRules { m: ANY, n: ANY, k: DimRule { min: 0, max: u64::MAX, multiple_of: 8 } };

static ENTRIES: [Entry; 13] = [
    Entry {
        isa: Some(Isa::Avx512),
        // No processor has both, so this one never runs, here or anywhere.
        features: FeatureSet::EMPTY.with(Feature::Avx512vbmi).with(Feature::Neon),
        ..entry(
            0,
            "matmul.tail2.avx512.decode",
            Op::Matmul,
            TAIL2,
            matmul(product_tail2, Some(&PACK_TAIL2), UNIT_ROW),
        )
    },
    Entry {
        isa: Some(Isa::Avx2),
        shape: DECODE,
        ..entry(
            1,
            "matmul.tail2.avx2.decode",
            Op::Matmul,
            TAIL2,
            matmul(product_tail2, Some(&PACK_TAIL2), UNIT_ROW),
        )
    },
    Entry {
        isa: Some(Isa::Avx2),
        shape: PREFILL,
        ..entry(
            2,
            "matmul.tail2.avx2.prefill",
            Op::Matmul,
            TAIL2,
            matmul(product_tail2, Some(&PACK_TAIL2), UNIT_ROW),
        )
    },
    entry(3, "matmul.tail2.scalar", Op::Matmul, TAIL2, matmul(rows_tail2, None, UNIT_ROW)),
    Entry {
        shape: K8,
        ..entry(4, "matmul.tiny8.scalar", Op::Matmul, TINY8, matmul(product_tiny8, Some(&PACK_TINY8), UNIT_4))
    },
    entry(
        5,
        "quantize_activations.row.scalar",
        Op::QuantizeActivations,
        0,
        Code::QuantizeActivations(activations_row),
    ),
    entry(
        6,
        "quantize_activations.step4.scalar",
        Op::QuantizeActivations,
        1,
        Code::QuantizeActivations(activations_step),
    ),
    entry(7, "dequantize.header4.scalar", Op::Dequantize, HEADER4, Code::Dequantize(dequantize_header4)),
    entry(8, "dequantize.tail2.scalar", Op::Dequantize, TAIL2, Code::Dequantize(dequantize_tail2)),
    entry(9, "dequantize.tiny8.scalar", Op::Dequantize, TINY8, Code::Dequantize(dequantize_tiny8)),
    entry(
        10,
        "quantize.header4.absmax.scalar",
        Op::Quantize,
        HEADER4,
        Code::Quantize { step: Some(step_7), blocks: quantize_header4 },
    ),
    entry(
        11,
        "quantize.tail2.absmax.scalar",
        Op::Quantize,
        TAIL2,
        Code::Quantize { step: Some(step_1), blocks: quantize_tail2 },
    ),
    Entry {
        quantizer: 1,
        ..entry(
            12,
            "quantize.tail2.sign.scalar",
            Op::Quantize,
            TAIL2,
            Code::Quantize { step: Some(step_1), blocks: sign_tail2 },
        )
    },
];

fn candidates(op: Op, format: usize, dtype: DType, device: DeviceKind) -> &'static [u16] {
    match (op, format, dtype, device) {
        (Op::Matmul, TAIL2, DType::F32 | DType::F16 | DType::Bf16 | DType::I8, DeviceKind::Cpu) => {
            &[0, 1, 2, 3]
        }
        (Op::Matmul, TINY8, DType::F32 | DType::I8, DeviceKind::Cpu) => &[4],
        (Op::QuantizeActivations, 0, DType::F32, DeviceKind::Cpu) => &[5],
        (Op::QuantizeActivations, 1, DType::F32, DeviceKind::Cpu) => &[6],
        (Op::Dequantize, HEADER4, DType::F32, DeviceKind::Cpu) => &[7],
        (Op::Dequantize, TAIL2, DType::F32, DeviceKind::Cpu) => &[8],
        (Op::Dequantize, TINY8, DType::F32, DeviceKind::Cpu) => &[9],
        (Op::Quantize, HEADER4, DType::F32, DeviceKind::Cpu) => &[10],
        (Op::Quantize, TAIL2, DType::F32, DeviceKind::Cpu) => &[11, 12],
        _ => &[],
    }
}

/// The code of element `i` of 2-bit codes.
fn code2(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 4] >> (2 * (i % 4)) & 3
}

fn absmax(src: &[f32]) -> Result<f32, Fault> {
    match src.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(Fault::NonFinite(at)),
        None => Ok(src.iter().fold(0.0, |max, x| x.abs().max(max))),
    }
}

unsafe fn step_7(src: *const f32, len: usize) -> Result<Step, Fault> {
    // SAFETY: the caller gives a row or a tensor.
    let step = absmax(unsafe { std::slice::from_raw_parts(src, len) })? / 7.0;
    Ok(Step { apply: step, stored: step })
}

unsafe fn step_1(src: *const f32, len: usize) -> Result<Step, Fault> {
    // SAFETY: the caller gives a row or a tensor.
    let step = absmax(unsafe { std::slice::from_raw_parts(src, len) })?;
    Ok(Step { apply: step, stored: step })
}

/// # Safety
/// The buffers hold `blocks` blocks.
unsafe fn blocks<'a>(
    src: *const f32,
    dst: *mut u8,
    elements: usize,
    bytes: usize,
    blocks: usize,
) -> (&'a [f32], &'a mut [u8]) {
    // SAFETY: by this function's contract.
    unsafe {
        (
            std::slice::from_raw_parts(src, elements * blocks),
            std::slice::from_raw_parts_mut(dst, bytes * blocks),
        )
    }
}

unsafe fn quantize_header4(src: *const f32, dst: *mut u8, count: usize, step: Step) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe { blocks(src, dst, 4, 2, count) };
    dst.fill(0);
    for (i, x) in src.iter().enumerate() {
        let q = if step.apply == 0.0 { 0.0 } else { (x / step.apply).round_ties_even() };
        dst[i / 2] |= ((q as i32 + 8) as u8) << (4 * (i % 2));
    }
    Ok(())
}

unsafe fn quantize_tail2(src: *const f32, dst: *mut u8, count: usize, step: Step) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe { blocks(src, dst, 8, 2, count) };
    dst.fill(0);
    for (i, x) in src.iter().enumerate() {
        let q = if step.apply == 0.0 { 0.0 } else { (x / step.apply).round_ties_even() };
        dst[i / 4] |= ((q as i32 + 1) as u8) << (2 * (i % 4));
    }
    Ok(())
}

unsafe fn sign_tail2(src: *const f32, dst: *mut u8, count: usize, _: Step) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe { blocks(src, dst, 8, 2, count) };
    dst.fill(0);
    for (i, x) in src.iter().enumerate() {
        let code = if *x > 0.0 { 2 } else { u8::from(*x == 0.0) };
        dst[i / 4] |= code << (2 * (i % 4));
    }
    Ok(())
}

unsafe fn dequantize_header4(src: *const u8, dst: *mut f32, count: usize, outer: f32) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe {
        (std::slice::from_raw_parts(src, 2 * count), std::slice::from_raw_parts_mut(dst, 4 * count))
    };
    for (i, y) in dst.iter_mut().enumerate() {
        *y = outer * (f32::from(src[i / 2] >> (4 * (i % 2)) & 15) - 8.0);
    }
    Ok(())
}

unsafe fn dequantize_tail2(src: *const u8, dst: *mut f32, count: usize, outer: f32) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe {
        (std::slice::from_raw_parts(src, 2 * count), std::slice::from_raw_parts_mut(dst, 8 * count))
    };
    for (i, y) in dst.iter_mut().enumerate() {
        match code2(src, i) {
            3 => return Err(Fault::InvalidCode(i)),
            code => *y = outer * (f32::from(code) - 1.0),
        }
    }
    Ok(())
}

unsafe fn dequantize_tiny8(src: *const u8, dst: *mut f32, count: usize, _: f32) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe {
        (std::slice::from_raw_parts(src, 6 * count), std::slice::from_raw_parts_mut(dst, 4 * count))
    };
    for (src, dst) in src.chunks(6).zip(dst.chunks_mut(4)) {
        let d = f16::from_le_bytes([src[0], src[1]]).to_f32();
        dst.iter_mut().zip(&src[2..]).for_each(|(y, q)| *y = d * f32::from(*q as i8));
    }
    Ok(())
}

/// q = round(x * 127 / absmax), the multiplier kept, over groups of `group`.
fn quantize_row(x: &[f32], group: usize, mut put: impl FnMut(usize, f32, i8)) -> Result<(), Fault> {
    for (block, x) in x.chunks(group).enumerate() {
        let max = absmax(x).map_err(|fault| match fault {
            Fault::NonFinite(at) => Fault::NonFinite(block * group + at),
            other => other,
        })?;
        let multiplier = 127.0 / max.max(1e-5);
        for (i, x) in x.iter().enumerate() {
            put(block * group + i, multiplier, (x * multiplier).round_ties_even() as i8);
        }
    }
    Ok(())
}

unsafe fn activations_row(
    x: *const f32,
    k: usize,
    unit: usize,
    padded: usize,
    q: *mut i8,
    scales: *mut f32,
    sums: *mut i32,
) -> Result<(), Fault> {
    let units = k.div_ceil(unit);
    // SAFETY: by the ABI; this format has one scale a row.
    unsafe {
        let (x, q) = (std::slice::from_raw_parts(x, k), std::slice::from_raw_parts_mut(q, units * padded));
        let sums = std::slice::from_raw_parts_mut(sums, units);
        q.fill(0);
        sums.fill(0);
        quantize_row(x, k, |i, multiplier, value| {
            *scales = multiplier;
            q[i / unit * padded + i % unit] = value;
            sums[i / unit] += i32::from(value);
        })
    }
}

unsafe fn activations_step(
    x: *const f32,
    k: usize,
    unit: usize,
    padded: usize,
    q: *mut i8,
    scales: *mut f32,
    sums: *mut i32,
) -> Result<(), Fault> {
    let units = k.div_ceil(unit);
    // SAFETY: by the ABI; this format has one scale for four elements.
    unsafe {
        let (x, q) = (std::slice::from_raw_parts(x, k), std::slice::from_raw_parts_mut(q, units * padded));
        let scales = std::slice::from_raw_parts_mut(scales, k.div_ceil(4));
        let sums = std::slice::from_raw_parts_mut(sums, units);
        q.fill(0);
        sums.fill(0);
        quantize_row(x, 4, |i, multiplier, value| {
            scales[i / 4] = 1.0 / multiplier;
            q[i / unit * padded + i % unit] = value;
            sums[i / unit] += i32::from(value);
        })
    }
}

unsafe fn pack_tail2(
    src: *const u8,
    stride: usize,
    rows: usize,
    k: usize,
    codes: *mut u8,
    scales: *mut f32,
    mins: *mut f32,
) -> Result<(), Fault> {
    assert!(scales.is_null() && mins.is_null());
    for row in 0..rows {
        // SAFETY: by the ABI.
        let src = unsafe { std::slice::from_raw_parts(src.add(row * stride), k / 4) };
        for i in 0..k {
            match code2(src, i) {
                3 => return Err(Fault::InvalidCode(row * k + i)),
                // SAFETY: a panel is 4 bytes for each element of the padded row.
                code => unsafe { *codes.add(i * 4 + row) = code },
            }
        }
    }
    Ok(())
}

unsafe fn unpack_tail2(
    codes: *const u8,
    _: *const f32,
    _: *const f32,
    outer: f32,
    row: usize,
    k: usize,
    dst: *mut f32,
) {
    for i in 0..k {
        // SAFETY: as packed.
        unsafe { *dst.add(i) = outer * (f32::from(*codes.add(i * 4 + row)) - 1.0) }
    }
}

unsafe fn pack_tiny8(
    src: *const u8,
    stride: usize,
    rows: usize,
    k: usize,
    codes: *mut u8,
    scales: *mut f32,
    mins: *mut f32,
) -> Result<(), Fault> {
    assert!(mins.is_null());
    for row in 0..rows {
        for unit in 0..k / 4 {
            // SAFETY: by the ABI; units are padded from 4 to 8 elements.
            unsafe {
                let block = std::slice::from_raw_parts(src.add(row * stride + unit * 6), 6);
                *scales.add(unit * 4 + row) = f16::from_le_bytes([block[0], block[1]]).to_f32();
                for i in 0..4 {
                    *codes.add((unit * 8 + i) * 4 + row) = block[2 + i];
                }
                // Not zero, so that activations which are not padded with zeros show.
                for i in 4..8 {
                    *codes.add((unit * 8 + i) * 4 + row) = 1;
                }
            }
        }
    }
    Ok(())
}

unsafe fn unpack_tiny8(
    codes: *const u8,
    scales: *const f32,
    _: *const f32,
    _: f32,
    row: usize,
    k: usize,
    dst: *mut f32,
) {
    for i in 0..k {
        // SAFETY: as packed.
        unsafe {
            let q = *codes.add((i / 4 * 8 + i % 4) * 4 + row) as i8;
            *dst.add(i) = *scales.add(i / 4 * 4 + row) * f32::from(q);
        }
    }
}

/// # Safety
/// `args` are as the ABI says.
unsafe fn each_output(args: &MatmulArgs, value: impl Fn(usize, usize) -> f32) {
    for token in 0..args.m {
        for row in args.row_begin..args.row_end {
            // SAFETY: by this function's contract.
            unsafe {
                let bias = if args.bias.is_null() { 0.0 } else { *args.bias.add(row) };
                *args.y.add(token * args.n + row) = value(token, row) + bias;
            }
        }
    }
}

unsafe fn product_tail2(args: &MatmulArgs) {
    assert_eq!(args.row_begin % 4, 0);
    // SAFETY: by the ABI.
    unsafe {
        each_output(args, |token, row| {
            let codes = args.codes.add(row / 4 * args.stride);
            let x = args.x.add(token * args.x_stride);
            let sum: i32 =
                (0..args.k).map(|i| i32::from(*codes.add(i * 4 + row % 4)) * i32::from(*x.add(i))).sum();
            let offset = *args.x_sums.add(token);
            (sum - offset) as f32 / *args.x_scales.add(token) * *args.outer.add(row)
        });
    }
}

unsafe fn rows_tail2(args: &MatmulArgs) {
    // SAFETY: by the ABI.
    unsafe {
        each_output(args, |token, row| {
            let codes = std::slice::from_raw_parts(args.codes.add(row * args.stride), args.k / 4);
            let x = args.x.add(token * args.x_stride);
            let sum: i32 = (0..args.k).map(|i| (i32::from(code2(codes, i)) - 1) * i32::from(*x.add(i))).sum();
            sum as f32 / *args.x_scales.add(token) * *args.outer.add(row)
        });
    }
}

unsafe fn product_tiny8(args: &MatmulArgs) {
    assert_eq!(args.units, args.x_blocks);
    // SAFETY: by the ABI; a unit is a block of weights and of activations.
    unsafe {
        each_output(args, |token, row| {
            let panel = row / 4;
            let mut sum = 0.0;
            for unit in 0..args.units {
                let codes = args.codes.add(panel * args.stride + unit * 32);
                let x = args.x.add(token * args.x_stride + unit * 8);
                // All eight, so that padding that is not zero shows.
                let dot: i32 =
                    (0..8).map(|i| i32::from(*codes.add(i * 4 + row % 4) as i8) * i32::from(*x.add(i))).sum();
                let scale = *args.scales.add((panel * args.units + unit) * 4 + row % 4);
                sum += dot as f32 * scale * *args.x_scales.add(token * args.x_blocks + unit);
            }
            sum
        });
    }
}

/// Numbers between -1 and 1 that repeat in every run.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// `n` rows of `k` weights of `tail2`, made by its quantizer, and their values.
pub fn tail2(n: usize, k: usize) -> Vec<u8> {
    let request = gristmill_runtime::Request::quantize("tail2", None, n, k);
    let prepared = REGISTRY.prepare(&request).expect("a request of the toy registry");
    let quantizer = gristmill_runtime::Quantizer::new(&prepared.decide_as_asked()).expect("a quantizer");
    let mut bytes = vec![0xff; FORMATS[TAIL2].tensor_bytes(n, k).expect("whole blocks")];
    quantizer.run(&noise(n * k, 7), n, k, &mut bytes).expect("finite values");
    bytes
}

/// `n` rows of `k` weights of `tiny8`.
pub fn tiny8(n: usize, k: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (block, x) in noise(n * k, 9).chunks(4).enumerate() {
        bytes.extend(f16::from_f32(0.01 * (1 + block % 5) as f32).to_le_bytes());
        bytes.extend(x.iter().map(|x| (x * 127.0) as i8 as u8));
    }
    bytes
}
