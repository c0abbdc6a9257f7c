//! The kernels of the toy registry, in plain Rust. Each is called by the ABI of its op, which is its contract.
#![allow(clippy::missing_safety_doc, reason = "the ABI is the contract of all of them")]

use gristmill_runtime::abi::{Fault, MatmulArgs, Step};
use gristmill_runtime::half::{bf16, f16};
use gristmill_runtime::vocab::DType;

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

pub unsafe fn step_7(src: *const f32, len: usize) -> Result<Step, Fault> {
    // SAFETY: the caller gives a row or a tensor.
    let step = absmax(unsafe { std::slice::from_raw_parts(src, len) })? / 7.0;
    Ok(Step { apply: step, stored: step })
}

pub unsafe fn step_1(src: *const f32, len: usize) -> Result<Step, Fault> {
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

/// Codes of `bits` bits, the first of a byte lowest.
fn put_codes(src: &[f32], dst: &mut [u8], bits: usize, code: impl Fn(f32) -> u8) {
    let each = 8 / bits;
    dst.fill(0);
    for (i, x) in src.iter().enumerate() {
        dst[i / each] |= code(*x) << (bits * (i % each));
    }
}

/// x in steps, to nearest even.
fn rounded(x: f32, step: Step) -> i32 {
    if step.apply == 0.0 { 0 } else { (x / step.apply).round_ties_even() as i32 }
}

pub unsafe fn quantize_header4(
    src: *const f32,
    dst: *mut u8,
    count: usize,
    step: Step,
    _: *const f32,
) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe { blocks(src, dst, 4, 2, count) };
    put_codes(src, dst, 4, |x| (rounded(x, step) + 8) as u8);
    Ok(())
}

pub unsafe fn quantize_tail2(
    src: *const f32,
    dst: *mut u8,
    count: usize,
    step: Step,
    _: *const f32,
) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe { blocks(src, dst, 8, 2, count) };
    put_codes(src, dst, 2, |x| (rounded(x, step) + 1) as u8);
    Ok(())
}

pub unsafe fn sign_tail2(
    src: *const f32,
    dst: *mut u8,
    count: usize,
    _: Step,
    _: *const f32,
) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe { blocks(src, dst, 8, 2, count) };
    put_codes(src, dst, 2, |x| if x > 0.0 { 2 } else { u8::from(x == 0.0) });
    Ok(())
}

pub unsafe fn dequantize_header4(
    src: *const u8,
    dst: *mut f32,
    count: usize,
    outer: f32,
) -> Result<(), Fault> {
    // SAFETY: by the ABI.
    let (src, dst) = unsafe {
        (std::slice::from_raw_parts(src, 2 * count), std::slice::from_raw_parts_mut(dst, 4 * count))
    };
    for (i, y) in dst.iter_mut().enumerate() {
        *y = outer * (f32::from(src[i / 2] >> (4 * (i % 2)) & 15) - 8.0);
    }
    Ok(())
}

pub unsafe fn dequantize_tail2(src: *const u8, dst: *mut f32, count: usize, outer: f32) -> Result<(), Fault> {
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

pub unsafe fn embed_tail2(
    src: *const u8,
    dst: *mut u8,
    count: usize,
    outer: f32,
    to: DType,
) -> Result<(), Fault> {
    let mut values = vec![0.0; 8 * count];
    // SAFETY: by the ABI, which says the same of the blocks.
    unsafe { dequantize_tail2(src, values.as_mut_ptr(), count, outer) }?;
    for (i, y) in values.into_iter().enumerate() {
        // SAFETY: by the ABI there is room for a value of the type for each element, aligned for it.
        unsafe {
            match to {
                DType::F32 => *dst.cast::<f32>().add(i) = y,
                DType::F16 => *dst.cast::<f16>().add(i) = f16::from_f32(y),
                DType::Bf16 => *dst.cast::<bf16>().add(i) = bf16::from_f32(y),
                DType::I8 => unreachable!("not a type of this op"),
            }
        }
    }
    Ok(())
}

pub unsafe fn dequantize_tiny8(src: *const u8, dst: *mut f32, count: usize, _: f32) -> Result<(), Fault> {
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

pub unsafe fn activations_row(
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

pub unsafe fn activations_step(
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

pub unsafe fn pack_tail2(
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

pub unsafe fn unpack_tail2(
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

pub unsafe fn pack_tiny8(
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

pub unsafe fn unpack_tiny8(
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

pub unsafe fn product_tail2(args: &MatmulArgs) {
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

pub unsafe fn rows_tail2(args: &MatmulArgs) {
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

pub unsafe fn product_tiny8(args: &MatmulArgs) {
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
