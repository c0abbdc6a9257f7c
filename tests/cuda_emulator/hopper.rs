//! The emulator of what sm_90a adds: barriers in shared memory with bulk copies, and products by warpgroups. What it
//! computes, and what it refuses to let pass.

#![cfg(target_os = "linux")]

use crate::support::{Buffer, Mistake, Unit, all_show, can_run, mutated};
use gristmill::half::f16;

const KERNELS: &str = include_str!("../cuda/kernels/hopper.cu");
const READERS: &str = include_str!("../cuda/kernels/several_readers.cu");
const HALVES: &str = include_str!("../cuda/kernels/hopper_halves.cu");
const HOPPER: &str = include_str!("../../codegen/cuda/hopper.h");

/// The kernels, with one place changed.
fn unit(from: &str, to: &str) -> Unit {
    compiled(&mutated(KERNELS, from, to))
}

fn compiled(kernels: &str) -> Unit {
    Unit::new("hopper", &format!("{HOPPER}\n#line 1 \"hopper.cu\"\n{kernels}"))
}

fn all_are_seen<T: PartialEq + std::fmt::Debug>(
    mutations: &[Mistake],
    expected: &T,
    run: impl Fn(&Unit, u64) -> Result<T, String>,
) {
    all_show(mutations, expected, 5, unit, run);
}

/// Readers of one place are told apart: all of them are behind the next write, by whichever way they are ordered.
#[test]
fn what_several_read_is_written_again_behind_all_of_them() {
    if !can_run("several readers") {
        return;
    }
    const ROUNDS: u32 = 5;
    let run = |unit: &Unit, seed: u64| {
        let y = Buffer::<u32>::unset("y", 64 * ROUNDS as usize);
        unit.launch("told").arg(&y).arg(ROUNDS).seed(seed).run()?;
        y.try_read()
    };
    let expected: Vec<u32> =
        (0..ROUNDS).flat_map(|round| (0..64).map(move |i| round * 100 + i % 32)).collect();
    let right = compiled(READERS);
    for seed in 0..10 {
        assert_eq!(run(&right, seed).as_ref(), Ok(&expected), "seed {seed}");
    }
    let mutations: &[Mistake] = &[
        (
            "one lane for all",
            "            gm_sync_warp();\n            if (gm_lane() == 0) gm_barrier_arrive(empty, 0)",
            "            if (gm_lane() == 0) gm_barrier_arrive(empty, 0)",
            "a write after a read",
        ),
        (
            "one warp for both",
            "gm_barrier_init(empty, 0, 2)",
            "gm_barrier_init(empty, 0, 1)",
            "a write after a read|more than the 1",
        ),
        (
            "nobody waited for",
            "            gm_barrier_wait(empty, 0, (round + 1) % 2);\n",
            "",
            "can't go on|no barrier lies between",
        ),
        (
            "read again behind the arrival",
            "if (gm_lane() == 0) gm_barrier_arrive(empty, 0);",
            "if (gm_lane() == 0) gm_barrier_arrive(empty, 0);\n            gm_store(y + round * 64 + gm_thread() - 32, value[0] + gm_lane());",
            "no barrier lies between",
        ),
    ];
    let changed = |from: &str, to: &str| compiled(&mutated(READERS, from, to));
    all_show(mutations, &expected, 5, changed, run);
}

#[test]
fn bulk_copies_come_when_their_phase_is_over() {
    if !can_run("bulk copies") {
        return;
    }
    let x: Vec<u32> = (0..9 * 64).map(|i| i * 40_503).collect();
    let run = |unit: &Unit, chunks: usize, seed: u64| {
        let (input, y) = (Buffer::input("x", &x), Buffer::<u32>::unset("y", 64 * chunks));
        unit.launch("turned").arg(&input).arg(&y).arg(chunks as u32).seed(seed).run()?;
        y.try_read()
    };
    let expected = |chunks: usize| -> Vec<u32> {
        x[..chunks * 64].chunks(64).flat_map(|chunk| chunk.iter().rev().copied()).collect()
    };
    let right = compiled(KERNELS);
    for chunks in 1..=9 {
        for seed in 0..10 {
            assert_eq!(run(&right, chunks, seed), Ok(expected(chunks)), "{chunks} chunks, seed {seed}");
        }
    }
    let mutations: &[Mistake] = &[
        (
            "no wait for a full place",
            "gm_barrier_wait(full, at, round);",
            "",
            "nobody waited for|never wrote|no barrier lies between",
        ),
        (
            "no wait for an empty place",
            "gm_barrier_wait(empty, at, round ^ 1);",
            "",
            "no barrier lies between|nobody waited for|more than the|over before",
        ),
        (
            "the other phase is waited for",
            "gm_barrier_wait(full, at, round);",
            "gm_barrier_wait(full, at, round ^ 1);",
            "nobody waited for|never wrote|no barrier lies between",
        ),
        (
            "a phase that comes later",
            "gm_barrier_wait(empty, at, round ^ 1);",
            "gm_barrier_wait(empty, at, round);",
            "can't go on",
        ),
        (
            "no fence behind the barriers",
            "        gm_fence_proxy();\n    }\n    gm_sync();\n    for",
            "    }\n    gm_sync();\n    for",
            "lies no gm_fence_proxy",
        ),
        (
            "no barrier behind the barriers",
            "    }\n    gm_sync();\n    for",
            "    }\n    for",
            "gm_sync lies between|what is no barrier",
        ),
        ("no arrival", "gm_barrier_arrive(full, at);", "", "can't go on"),
        (
            "nothing expected",
            "gm_barrier_expect(full, at, 256);",
            "",
            "over before this copy|can't go on|nobody waited for",
        ),
        (
            "half expected",
            "gm_barrier_expect(full, at, 256);",
            "gm_barrier_expect(full, at, 128);",
            "over before this copy|can't go on|nobody waited for",
        ),
        (
            "too much expected",
            "gm_barrier_expect(full, at, 256);",
            "gm_barrier_expect(full, at, 272);",
            "can't go on",
        ),
        (
            "an arrival too many",
            "gm_barrier_arrive(full, at);",
            "gm_barrier_arrive(full, at); gm_barrier_arrive(full, at);",
            "more than the 1|nobody waited for|no barrier lies|over before|can't go on",
        ),
        (
            "one arrival for a warp",
            "gm_barrier_init(empty, i, 32);",
            "gm_barrier_init(empty, i, 1);",
            "no barrier lies between|nobody waited for|over before|can't go on",
        ),
        (
            "the other barrier",
            "128, full, at);\n            gm_barrier_arrive",
            "128, empty, at);\n            gm_barrier_arrive",
            "over before|can't go on",
        ),
        (
            "a misaligned source",
            "(const u8*)(x + c * 64), 128",
            "(const u8*)(x + c * 64 + 1), 128",
            "not aligned to 16",
        ),
        ("a misaligned place", "places, at * 256, (", "places, at * 256 + 8, (", "not aligned to 16"),
        ("a size of no sixteens", "32), 128, full", "32), 120, full", "no multiple of 16"),
        ("beyond the array", "places, at * 256 + 128, (", "places, at * 256 + 400, (", "elements"),
        ("beyond the memory", "(x + c * 64 + 32)", "(x + c * 64 + 32 + 600)", "not inside"),
        (
            "the same place twice",
            "places, at * 256 + 128, (",
            "places, at * 256, (",
            "nobody waited for|no barrier lies",
        ),
        ("a barrier that is written", "gm_barrier_arrive(full, at);", "full[at] = 0;", "which is a barrier"),
        (
            "a barrier made twice",
            "gm_barrier_init(full, i, 1);",
            "gm_barrier_init(full, 0, 1);",
            "there already",
        ),
        (
            "a copy for nobody",
            "c < chunks; c++) {\n        const u32 at",
            "c < chunks + (gm_warp() == 1); c++) {\n        const u32 at",
            "nobody waited for this copy",
        ),
    ];
    all_are_seen(mutations, &expected(8), |unit, seed| run(unit, 8, seed));
}

#[test]
fn products_by_a_warpgroup_are_exact() {
    if !can_run("wgmma") {
        return;
    }
    let mut state = 7u64;
    let mut bytes = |count: usize| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u8
        };
        (0..count).map(|_| next()).collect()
    };
    let run = |unit: &Unit, a: &[u8], b: &[u8], seed: u64| {
        let (a, b) = (Buffer::input("a", a), Buffer::input("b", b));
        let c = Buffer::<i32>::unset("c", 64 * 16);
        unit.launch("product").arg(&a).arg(&b).arg(&c).seed(seed).run()?;
        c.try_read()
    };
    let expected = |a: &[u8], b: &[u8]| -> Vec<i32> {
        let dot = |row: usize, column: usize| {
            (0..64).map(|k| i32::from(a[row * 64 + k]) * i32::from(b[column * 64 + k] as i8)).sum()
        };
        (0..64 * 16).map(|at| dot(at / 16, at % 16)).collect()
    };
    let right = compiled(KERNELS);
    let (a, b) = (bytes(64 * 64), bytes(16 * 64));
    for (a, b) in [(a.clone(), b.clone()), (vec![0xff; 64 * 64], vec![0x80; 16 * 64])] {
        for seed in 0..5 {
            assert_eq!(run(&right, &a, &b, seed), Ok(expected(&a, &b)), "seed {seed}");
        }
    }
    let mutations: &[Mistake] = &[
        (
            "no fence for the other proxy",
            "        gm_fence_proxy();\n    }\n    gm_sync();\n    i32",
            "    }\n    gm_sync();\n    i32",
            "no gm_fence_proxy of it",
        ),
        (
            "no barrier",
            "    }\n    gm_sync();\n    i32",
            "    }\n    i32",
            "no barrier lies between|never written|no gm_fence_proxy",
        ),
        ("no fence of registers", "    gm_wgmma_fence();\n", "", "without gm_wgmma_fence"),
        ("no wait", "    gm_wgmma_wait<0>();\n", "", "before it waited"),
        ("a wait for nothing", "gm_wgmma_wait<0>", "gm_wgmma_wait<1>", "before it waited"),
        ("no commit", "    gm_wgmma_commit();\n", "", "before it waited"),
        (
            "sums that are read too early",
            "    gm_wgmma_commit();\n",
            "    gm_wgmma_commit();\n    sums[0] ^= 1;\n",
            "touched before",
        ),
        (
            "an operand that changes",
            "    gm_wgmma_commit();\n",
            "    gm_wgmma_commit();\n    as[1][3] ^= 1;\n",
            "changed before",
        ),
        (
            "sums of another product",
            "as[step], gm_wgmma_operand(bs, step",
            "as[0], gm_wgmma_operand(bs, step",
            "",
        ),
        (
            "a warp that doesn't take part",
            "    gm_wgmma_commit();\n",
            "    if (gm_warp() < 3) gm_wgmma_commit();\n",
            "same warpgroup",
        ),
        (
            "a store to what is read",
            "    gm_wgmma_commit();\n",
            "    gm_wgmma_commit();\n    gm_shared_put(bs, gm_thread() * 4, 0u);\n",
            "hasn't waited for",
        ),
        (
            "a store behind one's own wait only",
            "    gm_wgmma_wait<0>();\n",
            "    gm_wgmma_wait<0>();\n    gm_shared_put(bs, (gm_thread() ^ 32) * 4, 0u);\n",
            "no barrier lies between",
        ),
        ("columns that overlap", "256, 128));", "256, 64));", ""),
        ("columns beyond the array", "256, 128));", "256, 512));", "beyond its array"),
        ("halves of k exchanged", "k / 16 % 2 * 256", "(1 - k / 16 % 2) * 256", ""),
        (
            "a swizzle of 64 bytes",
            "gm_wgmma_operand(bs, step * 512, 256, 128));",
            "gm_wgmma_operand(bs, step * 512, 256, 128) | 2ull << 62);",
            "has a swizzle",
        ),
        (
            "a bit that means nothing",
            "gm_wgmma_operand(bs, step * 512, 256, 128));",
            "gm_wgmma_operand(bs, step * 512, 256, 128) | 1ull << 46);",
            "outside its fields",
        ),
        ("a start between sixteens", "bs, step * 512, 256", "bs, step * 504, 256", "multiples of 16"),
    ];
    all_are_seen(mutations, &expected(&a, &b), |unit, seed| run(unit, &a, &b, seed));
    // One sum that leaves i32, from where it starts.
    let high = unit("i32 sums[8] = {};", "i32 sums[8] = {0, 2147483647 - 64 * 255 * 127 + 1};");
    let report = run(&high, &vec![0xff; 64 * 64], &vec![0x7f; 16 * 64], 0).expect_err("beyond i32");
    assert!(report.contains("beyond i32"), "{report}");
}

/// Operands of the kernel `halves` that are small integers, so that sums are exact, and its outputs.
fn halves() -> [Vec<f32>; 3] {
    let numbers = |count: usize, by: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * by + i / 32 * 7) % 127) as f32 - 63.0).collect()
    };
    let (a, b) = (numbers(64 * 32, 31), numbers(16 * 32, 57));
    let dot = |at: usize| (0..32).map(|k| a[at / 16 * 32 + k] * b[at % 16 * 32 + k]).sum::<f32>();
    let c = (0..64 * 16).map(dot).collect();
    [a, b, c]
}

fn run_halves(unit: &Unit, a: &[f32], b: &[f32], given: u32, seed: u64) -> Result<Vec<f32>, String> {
    let halves =
        |values: &[f32]| -> Vec<u16> { values.iter().map(|x| f16::from_f32(*x).to_bits()).collect() };
    let (a, b) = (Buffer::input("a", &halves(a)), Buffer::input("b", &halves(b)));
    let c = Buffer::<f32>::unset("c", 64 * 16);
    unit.launch("halves").arg(&a).arg(&b).arg(&c).shared(given).seed(seed).run()?;
    c.try_read()
}

/// Small integers, and operands of which the device keeps 24 bits.
#[test]
fn products_of_halves_by_a_warpgroup() {
    if !can_run("wgmma of halves") {
        return;
    }
    let [a, b, expected] = halves();
    let right = compiled(HALVES);
    for seed in 0..5 {
        assert_eq!(run_halves(&right, &a, &b, 5120, seed), Ok(expected.clone()), "seed {seed}");
    }
    // With 2^24 in the sum, what is below 2 is cut off from each of the others.
    let (mut large, mut ones) = (vec![0.0; 64 * 32], vec![0.0; 16 * 32]);
    large[..3].copy_from_slice(&[4096.0, 1.5, 1.5]);
    ones[..3].copy_from_slice(&[4096.0, 1.0, 1.0]);
    assert_eq!(run_halves(&right, &large, &ones, 5120, 0).expect("runs")[0], 16_777_216.0);
    let little = run_halves(&right, &a, &b, 5104, 0).expect_err("too little");
    assert!(little.contains("of which the launch gives 5104"), "{little}");
    let much = run_halves(&right, &a, &b, 228 * 1024, 0).expect_err("too much");
    assert!(much.contains("where a block has 232448"), "{much}");
    let mutations: &[Mistake] = &[
        ("no wait for copies", "    gm_copy_wait<0>();\n", "", "nobody waited for"),
        (
            "no fence for the other proxy",
            "    gm_fence_proxy();\n    gm_sync();\n    f32",
            "    gm_sync();\n    f32",
            "no gm_fence_proxy of it",
        ),
        (
            "no barrier",
            "    gm_sync();\n    f32",
            "    f32",
            "no barrier lies between|never written|no gm_fence_proxy|nobody waited for",
        ),
        ("rows that overlap", "step * 2048, 1024, 128)", "step * 2048, 1024, 64)", ""),
        (
            "rows beyond the array",
            "step * 2048, 1024, 128)",
            "step * 2048, 1024, 512)",
            "operand A of gm_wgmma goes beyond",
        ),
        ("columns that overlap", "step * 512, 256, 128)", "step * 512, 256, 0)", ""),
        ("k exchanged", "(bs, step * 512", "(bs, (1 - step) * 512", ""),
        ("another type", "gm_wgmma_f16(sums", "gm_wgmma_bf16(sums", ""),
        (
            "operands of their own",
            "gm_wgmma_operand(as, step * 2048",
            "gm_wgmma_operand(as, gm_warp() % 2 * 0 + (step ^ gm_warp() / 3) * 2048",
            "another operand A",
        ),
        ("arrays that overlap", "16 * 64, 64 * 64)", "16 * 64, 63 * 64)", "in another array"),
    ];
    let unit = |from: &str, to: &str| compiled(&mutated(HALVES, from, to));
    all_show(mutations, &expected, 5, unit, |unit, seed| run_halves(unit, &a, &b, 5120, seed));
}

/// An operand in lines of 128 bytes, whose swizzle stands in the PTX ISA by example; here it is written out from its rule. Its k are the
/// first or the second half of each line.
#[test]
fn products_of_halves_in_lines() {
    if !can_run("wgmma of lines") {
        return;
    }
    let [a, b, expected] = halves();
    let run = |unit: &Unit, seed: u64| run_halves(unit, &a, &b, 96 * 64, seed);
    for first in [0, 4] {
        let mut lines = HALVES.to_string();
        for (from, to) in [
            ("bs, 16 * 64,", "bs, 16 * 128,"),
            (
                "gm_thread() % 4 * 256 + gm_thread() / 4 * 16",
                "gm_thread() / 4 * 128 + ((gm_thread() % 4 + FIRST) ^ gm_thread() / 4 % 8) * 16",
            ),
            ("gm_wgmma_operand(bs, step * 512, 256, 128)", "gm_wgmma_lines(bs, 0, FIRST * 16 + step * 32)"),
        ] {
            lines = mutated(&lines, from, to);
        }
        let lines = lines.replace("FIRST", &first.to_string());
        assert_eq!(run(&compiled(&lines), 0), Ok(expected.clone()), "from sixteen {first} on");
        // The reader's fence serves as well as the writer's.
        let fences = "    gm_fence_proxy();\n    gm_sync();\n";
        let of_readers = mutated(&lines, fences, "    gm_sync();\n    gm_fence_proxy();\n");
        assert_eq!(run(&compiled(&of_readers), 0), Ok(expected.clone()), "from sixteen {first} on");
        let mutations: &[Mistake] = &[
            ("lines as they are", " ^ gm_thread() / 4 % 8)", ")", "was never written"),
            ("lines of other rows", "/ 4 % 8)", "/ 4 % 8 ^ 1)", ""),
            ("no fence", fences, "    gm_sync();\n", "no gm_fence_proxy of it or of"),
            (
                "fences of some readers",
                fences,
                "    gm_sync();\n    if (gm_warp() != 2) gm_fence_proxy();\n",
                "no gm_fence_proxy of it or of",
            ),
            ("another k", "+ step * 32)", "+ (step ^ 1) * 32)", ""),
            ("k beyond a line", "+ step * 32)", "+ 112 + step * 32)", "no place"),
            (
                "lines from anywhere on",
                "gm_wgmma_lines(bs, 0,",
                "gm_wgmma_lines(bs, 128,",
                "no multiple of 1024",
            ),
            ("rows beyond the array", "bs, 16 * 128,", "bs, 15 * 128,", "which has 1920 elements"),
        ];
        all_show(mutations, &expected, 2, |from, to| compiled(&mutated(&lines, from, to)), run);
    }
}

/// Divisions without a division: the same bits for integers by anything between 2^-60 and 2^60, near ties above all.
#[test]
fn quotients_are_rounded_as_divisions_are() {
    if !can_run("quotients") {
        return;
    }
    let mut state = 11u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 20
    };
    let (mut ys, mut xs) = (Vec::new(), Vec::new());
    for i in 0..400_000u32 {
        let significand = match i % 5 {
            0 => 0,
            1 => 0x7f_ffff - (next() % 4) as u32,
            _ => next() as u32 & 0x7f_ffff,
        };
        let x = f32::from_bits((67 + (next() % 120) as u32) << 23 | significand);
        // A value halfway between two quotients, times the divisor: what rounds to its sides.
        let quotient = f64::from(f32::from_bits(127 << 23 | next() as u32 & 0x7f_ffff));
        let tie = ((quotient + 2f64.powi(-24)) * f64::from(f32::from_bits(127 << 23 | significand))) as f32;
        let near = f32::from_bits(tie.to_bits() + (next() % 3) as u32 - 1) * 2f32.powi((next() % 30) as i32);
        ys.push(if i % 2 == 0 { near } else { (next() as i32) as f32 });
        xs.push(x);
    }
    ys.extend([0.0, 1.0, -2_147_483_648.0, 3.0]);
    xs.extend([3.0, 2f32.powi(-60), 2f32.powi(60) - 2f32.powi(40), 1.0]);
    let (y, x) = (Buffer::input("y", &ys), Buffer::input("x", &xs));
    let out = Buffer::<f32>::unset("out", ys.len());
    let launch = compiled(KERNELS);
    launch.launch("quotients").arg(&y).arg(&x).arg(&out).arg(ys.len() as u32).run().expect("runs");
    for ((y, x), found) in ys.iter().zip(&xs).zip(out.read()) {
        assert_eq!(found.to_bits(), (y / x).to_bits(), "{y:e} / {x:e}: {found:e}");
    }
    // What could end beyond f32's range is left to a division.
    let others = [0.0, f32::MIN_POSITIVE, 2f32.powi(-61), 2f32.powi(60), f32::INFINITY, f32::NAN];
    let (y, x) = (Buffer::input("y", &[1.0; 6]), Buffer::input("x", &others));
    let out = Buffer::<f32>::unset("out", 6);
    launch.launch("quotients").arg(&y).arg(&x).arg(&out).arg(6u32).run().expect("runs");
    assert_eq!(out.read(), [0.0; 6]);
}
