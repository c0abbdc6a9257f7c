//! The emulator's products of FP4: every place where the instruction can find scales, and what it has to refuse.

use super::emulator::Random;
use super::support::{Buffer, Unit, can_run};

const MMA: &str = include_str!("../cuda/kernels/mma_fp4.cu");

fn e2m1(bytes: &[u8], at: usize) -> f32 {
    let code = bytes[at / 2] >> (4 * (at % 2)) & 15;
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code % 8)];
    if code < 8 { magnitude } else { -magnitude }
}

/// Rows of codes, and then eight scales for each.
fn operand(random: &mut Random, rows: usize, scales: &dyn Fn(u8) -> u8) -> Vec<u8> {
    let mut bytes = random.bytes(rows * 32);
    bytes.extend(random.bytes(rows * 8).into_iter().map(scales));
    bytes
}

/// A tile by one kernel, and what it should be: all sums are exact.
fn tile(
    unit: &Unit,
    kernel: &str,
    (a, b): (&[u8], &[u8]),
    places: [u32; 3],
) -> (Result<Vec<f32>, String>, Vec<f32>) {
    let runs = if kernel.ends_with("e8m0") { 2 } else { 4 };
    let scale = |bits: u8| match runs {
        2 => 2f32.powi(i32::from(bits) - 127),
        _ => f32::from(8 + bits % 8) * 2f32.powi(i32::from(bits / 8) - 10),
    };
    let value = |of: &[u8], rows: usize, row: usize, k: usize| {
        e2m1(of, row * 64 + k) * scale(of[rows * 32 + row * 8 + k / (64 / runs)])
    };
    let product = |at: usize| (0..64).map(|k| value(a, 16, at / 8, k) * value(b, 8, at % 8, k)).sum();
    let expected = (0..128).map(product).collect();
    let (a, b, c) = (Buffer::input("a", a), Buffer::input("b", b), Buffer::output("c", &[f32::NAN; 128]));
    let [pair, lane, byte] = places;
    let result = unit.launch(kernel).arg(&a).arg(&b).arg(&c).arg(pair).arg(lane).arg(byte).run();
    (result.map(|()| c.read()), expected)
}

#[test]
fn scales_are_found_at_each_place() {
    if !can_run("mma of FP4") {
        return;
    }
    let unit = Unit::new("mma_fp4", MMA);
    let mut random = Random(7);
    for (kernel, bytes) in [("mma_16864_e8m0", &[0, 2][..]), ("mma_16864_e4m3", &[0])] {
        let near_one = |bits: u8| if kernel.ends_with("e8m0") { 125 + bits % 5 } else { 0x38 + bits % 8 };
        let (a, b) = (operand(&mut random, 16, &near_one), operand(&mut random, 8, &near_one));
        for pair in 0..2 {
            for lane in 0..4 {
                for byte in bytes {
                    let (found, expected) = tile(&unit, kernel, (&a, &b), [pair, lane, *byte]);
                    assert_eq!(found, Ok(expected), "{kernel}: pair {pair}, lane {lane}, byte {byte}");
                }
            }
        }
        for place in [[2, 0, 0], [0, 4, 0], [0, 0, 1]].into_iter().take(1 + bytes.len()) {
            let report = tile(&unit, kernel, (&a, &b), place).0.expect_err("no such place");
            assert!(report.contains("finds no scales at"), "{report}");
        }
    }
}

#[test]
fn scales_that_are_none_show() {
    if !can_run("scales of FP4 that are none") {
        return;
    }
    let unit = Unit::new("mma_fp4", MMA);
    let mut random = Random(8);
    let (a, b) = (operand(&mut random, 16, &|_| 0xb8), operand(&mut random, 8, &|_| 0x38));
    let report = tile(&unit, "mma_16864_e4m3", (&a, &b), [0; 3]).0.expect_err("a sign");
    assert!(report.contains("0xb8 of gm_mma of FP4 has its highest bit set"), "{report}");
    for (kernel, nan) in [("mma_16864_e4m3", 0x7f), ("mma_16864_e8m0", 0xff)] {
        let (a, b) = (operand(&mut random, 16, &|_| 0x38), operand(&mut random, 8, &|_| nan));
        let found = tile(&unit, kernel, (&a, &b), [0; 3]).0.expect("runs");
        assert!(found.iter().all(|y| y.is_nan()), "{kernel}");
    }
    let apart = MMA.replace("a_scales, pair, b_scales", "a_scales, (pair + g) % 2, b_scales");
    let unit = Unit::new("mma_fp4_apart", &apart);
    let (a, b) = (operand(&mut random, 16, &|_| 127), operand(&mut random, 8, &|_| 127));
    let report = tile(&unit, "mma_16864_e8m0", (&a, &b), [0; 3]).0.expect_err("lanes that do not agree");
    assert!(report.contains("do not agree where the scales"), "{report}");
}
