//! The kernel `convert` against the conversions of the processor, bit by bit.

use super::generated::{NO_FAULT, text_of};
use super::support::{Buffer, Unit, can_run};
use gristmill::half::{bf16, f16};
use gristmill::oracle::Random;
use gristmill_codegen::cuda::CONVERT;

const F32: u32 = 0;
const F16: u32 = 1;
const BF16: u32 = 2;

/// What the processor makes of a number's bits.
fn expected(bits: u32, from: u32, to: u32) -> u32 {
    if from == to {
        return bits;
    }
    let x = match from {
        F32 => f32::from_bits(bits),
        F16 => f16::from_bits(bits as u16).to_f32(),
        _ => bf16::from_bits(bits as u16).to_f32(),
    };
    match to {
        F32 => x.to_bits(),
        F16 => f16::from_f32(x).to_bits().into(),
        _ => bf16::from_f32(x).to_bits().into(),
    }
}

fn bytes(values: &[u32], ty: u32) -> Vec<u8> {
    let each = |bits: &u32| match ty {
        F32 => bits.to_le_bytes().to_vec(),
        _ => (*bits as u16).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(each).collect()
}

/// How rows lie: their number, values of each, and values from one to the next before and after.
struct Rows {
    rows: usize,
    k: usize,
    src_stride: usize,
    dst_stride: usize,
}

/// Converts; the bytes of the result and the fault.
fn convert(unit: &Unit, src: &[u8], (from, to): (u32, u32), rows: &Rows, faults: bool) -> (Vec<u8>, u64) {
    let width = if to == F32 { 4 } else { 2 };
    let src = Buffer::input("src", src);
    let dst = Buffer::<u8>::unset("dst", rows.rows * rows.dst_stride * width);
    let fault = Buffer::output("fault", &[NO_FAULT]);
    let launch = unit.launch(CONVERT).grid(3, 1).seed(from as u64 * 3 + u64::from(to));
    let launch = launch.arg(&src).arg(from).arg(rows.src_stride as u64).arg(&dst).arg(to);
    let launch = launch.arg(rows.dst_stride as u64).arg(rows.rows as u32).arg(rows.k as u64);
    let launch = if faults { launch.arg(&fault) } else { launch.null() };
    launch.run().unwrap_or_else(|report| panic!("{from} to {to}: {report}"));
    (dst.read(), fault.read()[0])
}

/// Every number of two bytes, and those of four around each border.
fn numbers(ty: u32) -> Vec<u32> {
    if ty != F32 {
        return (0..=0xffff).collect();
    }
    let mut random = Random::new(51, "numbers");
    let mut all: Vec<u32> = (0..40_000).map(|_| random.bits() as u32).collect();
    // Around each number of the narrower types, and half way to the next.
    for high in 0..=0xffffu32 {
        if high % 7 == 0 || high & 0x7fff > 0x7f00 || (high & 0x7fff) < 0x40 {
            all.extend([0, 1, 0x7fff, 0x8000, 0x8001].map(|low| high << 16 | low));
        }
    }
    for bits in (0..=0xffffu16).step_by(11) {
        let x = f16::from_bits(bits).to_f32().to_bits();
        all.extend([x, x | 0x0fff, x | 0x1000, x | 0x1001, x.wrapping_sub(1)]);
    }
    // Halves of the smallest number of f16, and the border of its largest.
    all.extend([0x3300_0000, 0x3300_0001, 0x32ff_ffff, 0x477f_efff, 0x477f_f000, 0x477f_e000]);
    all
}

#[test]
fn every_number_is_converted_as_on_the_processor() {
    if !can_run("convert") {
        return;
    }
    let unit = Unit::new(CONVERT, &text_of(CONVERT));
    for from in [F32, F16, BF16] {
        let values = numbers(from);
        for to in [F32, F16, BF16] {
            let rows = Rows { rows: 1, k: values.len(), src_stride: values.len(), dst_stride: values.len() };
            let (found, fault) = convert(&unit, &bytes(&values, from), (from, to), &rows, false);
            assert_eq!(fault, NO_FAULT);
            let made: Vec<u32> = values.iter().map(|bits| expected(*bits, from, to)).collect();
            let width = if to == F32 { 4 } else { 2 };
            let differs = found.chunks(width).zip(bytes(&made, to).chunks(width)).position(|(a, b)| a != b);
            if let Some(at) = differs {
                let found = &found[at * width..][..width];
                panic!("{from} to {to}: {:#x} became {found:x?}, expected {:#x}", values[at], made[at]);
            }
        }
    }
}

#[test]
fn rows_are_padded_and_faults_told() {
    if !can_run("convert") {
        return;
    }
    let unit = Unit::new(CONVERT, &text_of(CONVERT));
    let mut random = Random::new(52, "rows");
    for (rows, k, src_stride, dst_stride) in [(3, 40, 40, 64), (5, 13, 13, 32), (4, 7, 9, 7), (1, 3, 3, 3)] {
        let x = random.gauss_vec(rows * src_stride, 1.0);
        let values: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
        let shape = Rows { rows, k, src_stride, dst_stride };
        let (found, fault) = convert(&unit, &bytes(&values, F32), (F32, F16), &shape, true);
        assert_eq!(fault, NO_FAULT);
        for row in 0..rows {
            for i in 0..dst_stride {
                let made = if i < k { expected(values[row * src_stride + i], F32, F16) } else { 0 };
                assert_eq!(found[(row * dst_stride + i) * 2..][..2], (made as u16).to_le_bytes());
            }
        }
        // The first of two, and which kind.
        for (bad, kind) in [(f32::NAN, 0), (f32::INFINITY, 0), (65520.0, 3), (65519.0, 4)] {
            let mut values = values.clone();
            values[(rows - 1) * src_stride + 2] = bad.to_bits();
            let (_, fault) = convert(&unit, &bytes(&values, F32), (F32, F16), &shape, true);
            let at = ((rows - 1) * k + 2) as u64;
            assert_eq!(fault, if kind < 4 { at * 4 + kind } else { NO_FAULT }, "{bad}");
        }
    }
}
