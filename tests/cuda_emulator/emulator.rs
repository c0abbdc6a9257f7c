//! The emulator that generated CUDA code is tested in: what it computes, and what it refuses to let pass.

#![cfg(target_os = "linux")]

use crate::support::{Buffer, GAP, Mistake, Unit, all_show, can_run, mutated};

const REDUCTION: &str = include_str!("../cuda/kernels/reduction.cu");
const GEMV: &str = include_str!("../cuda/kernels/gemv.cu");
const MMA: &str = include_str!("../cuda/kernels/mma.cu");
const OVERLAP: &str = include_str!("../cuda/kernels/overlap.cu");
const COPY: &str = include_str!("../cuda/kernels/copy.cu");
const COUNT: &str = include_str!("../cuda/kernels/count.cu");
const NUMBER: &str = include_str!("../cuda/kernels/number.cu");

/// Numbers without a pattern.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Every mistake is reported in each of ten orders of threads, in the name of its kernel.
fn are_caught<R: PartialEq + std::fmt::Debug>(
    unit: &str,
    text: &str,
    mistakes: &[Mistake],
    run: impl Fn(&Unit, u64) -> Result<R, String>,
) {
    assert!(mistakes.iter().all(|(_, _, _, words)| !words.is_empty()), "each has a report");
    let right = run(&Unit::new(unit, text), 0).expect("without a mistake it runs");
    let mutant = |from: &str, to: &str| Unit::new(unit, &mutated(text, from, to));
    all_show(mistakes, &right, 10, mutant, |mutant, seed| {
        run(mutant, seed).inspect_err(|report| {
            assert!(report.starts_with(&format!("kernel {unit}, block (")), "{report}");
        })
    });
}

fn reduce(unit: &Unit, x: &[i32], blocks: u32, seed: u64) -> Result<Vec<i32>, String> {
    let input = Buffer::input("x", x);
    let sums = Buffer::<i32>::unset("sums", x.len().div_ceil(256));
    let n = x.len() as u32;
    unit.launch("reduction").grid(blocks, 1).arg(&input).arg(&sums).arg(n).seed(seed).run()?;
    Ok(sums.read())
}

#[test]
fn a_reduction_is_right_in_every_order() {
    if !can_run("the reduction") {
        return;
    }
    let unit = Unit::new("reduction", REDUCTION);
    for n in [1usize, 31, 32, 255, 256, 257, 1000] {
        let mut random = Random(n as u64);
        let x: Vec<i32> = (0..n).map(|_| random.next() as i16 as i32).collect();
        let expected: Vec<i32> = x.chunks(256).map(|chunk| chunk.iter().sum()).collect();
        for seed in 0..20 {
            assert_eq!(
                reduce(&unit, &x, n.div_ceil(256) as u32, seed),
                Ok(expected.clone()),
                "n = {n}, seed {seed}"
            );
        }
    }
}

/// What is wrong with the kernel is what the report says, whatever the order.
#[test]
fn mistakes_of_a_reduction_are_reported() {
    if !can_run("mutations of the reduction") {
        return;
    }
    let mutations = [
        ("removed barrier", "    gm_sync();\n", "", "no barrier lies between|never wrote"),
        ("divergent barrier", "gm_sync();", "if (gm_thread() < 96) gm_sync();", "can't go on"),
        ("two barriers", "gm_sync();", "if (gm_warp() < 4) { gm_sync(); } else {\n gm_sync(); }", "instead"),
        ("early return", "i32 sum = 0;", "i32 sum = 0; if (i >= n) return;", "returned"),
        (
            "divergent shuffle",
            "sum += gm_shfl_xor(sum, delta)",
            "if (gm_lane() < 8) sum += gm_shfl_xor(sum, delta)",
            "can't go on|but thread",
        ),
        (
            "unset shared memory",
            "partial[gm_warp()] = sum;",
            "if (gm_warp() > 0) partial[gm_warp()] = sum;",
            "never wrote",
        ),
        ("shared index", "partial[gm_lane()]", "partial[gm_lane() + 1]", "has 8 elements"),
        ("two writers", "if (gm_lane() == 0) partial", "partial", "no barrier lies between"),
        ("out of bounds", "if (i < n) sum", "sum", "not inside an allocation"),
        ("misaligned", "gm_load(x + i)", "gm_load((const i32*)((const u8*)x + 4 * i + 2))", "not aligned"),
        ("wrong output", "gm_store(sums + gm_block(), sum)", "gm_store((i32*)x, sum)", "read-only"),
        ("same output", "sums + gm_block()", "sums", "thread of another block"),
        ("overflow", "sum = gm_load(x + i);", "sum = gm_load(x + i) + 2147483647;", "overflows"),
        ("shuffle too far", "gm_shfl_down(sum, delta)", "gm_shfl_down(sum, 2 * delta)", "32 lanes"),
    ];
    are_caught("reduction", REDUCTION, &mutations, |unit, seed| reduce(unit, &[7; 700], 3, seed));
}

/// Blocks read what others of the same launch wrote, where a counter told them; launch after launch.
#[test]
fn blocks_hear_of_each_other_by_counters() {
    if !can_run("counters") {
        return;
    }
    let x: Vec<u32> = (0..3 * 128).collect();
    let from = |unit: &Unit, counter: u32, seed: u64| {
        let (input, parts) = (Buffer::input("x", &x), Buffer::<u32>::unset("parts", 3 * 128));
        let counters = Buffer::output("counters", &[counter; 2]);
        let launch = |seed| {
            let y = Buffer::<u32>::unset("y", 128);
            let launch = unit.launch("count").grid(2, 1).layers(3).seed(seed);
            launch.arg(&input).arg(&parts).arg(&counters).arg(&y).run()?;
            y.try_read()
        };
        Ok::<_, String>([launch(seed)?, launch(seed + 100)?].concat())
    };
    let run = |unit: &Unit, seed: u64| from(unit, 0, seed);
    let sums: Vec<u32> = (0..128).map(|i| 3 * i + 3 * 128).collect();
    let unit = Unit::new("count", COUNT);
    for seed in 0..30 {
        assert_eq!(run(&unit, seed), Ok([&sums[..], &sums[..]].concat()), "seed {seed}");
    }
    let report = from(&unit, 3, 1).expect_err("an earlier launch left it so");
    assert!(report.contains("a counter that is 3, and counts to 3"), "{report}");
    let mutations = [
        (
            "a count before the stores",
            "    gm_sync();\n    if (gm_thread",
            "    if (gm_thread",
            "thread of another block",
        ),
        (
            "a count that not all heard of",
            "    gm_sync();\n    if (!last",
            "    if (!last",
            "no barrier|never wrote",
        ),
        (
            "no count",
            "gm_count(counters + gm_block(), layers) + 1 == layers",
            "gm_load(counters + gm_block()) == 0",
            "another block|never written",
        ),
        ("the last but one", "+ 1 == layers", "+ 2 == layers", "never written"),
        (
            "another block's parts",
            "z * layer + at",
            "z * layer + (at + 64) % 128",
            "another block|never written",
        ),
        ("memory that never changes", "gm_load(parts", "gm_load_once(parts", "another"),
    ];
    are_caught("count", COUNT, &mutations, |unit, seed| run(unit, seed));
}

/// Launches that begin before those in front of them have ended: nothing is touched that may still be written.
#[test]
fn overlapping_launches_wait_for_those_in_front() {
    if !can_run("overlapping launches") {
        return;
    }
    let run = |unit: &Unit, seed: u64| {
        let weights = Buffer::input("weights", &(1..=192).collect::<Vec<u32>>());
        let x = Buffer::input("x", &[3; 192]);
        let [between, y] = ["between", "y"].map(|name| Buffer::<u32>::unset(name, 192));
        let launch = || unit.launch("products").grid(3, 1).seed(seed).arg(&weights);
        launch().arg(&x).arg(&between).run()?;
        launch().arg(&between).arg(&y).overlapping(true).run()?;
        // Not even what the one before the last has written is sure to be there.
        launch().arg(&y).arg(&between).overlapping(true).run()?;
        between.try_read()
    };
    let expected: Vec<u32> = (1..=192u32).map(|w| 3 * w * w * w).collect();
    assert_eq!(run(&Unit::new("products", OVERLAP), 1), Ok(expected));
    let late = "a launch in front may still write it";
    let mistakes = [
        ("no wait", "    gm_wait_for_previous();\n", "", "in front of gm_wait_for_previous"),
        ("a wait of some", "gm_wait", "if (gm_thread() > 5) gm_wait", "in front of gm_wait_for_previous"),
        (
            "an early return",
            "    gm_wait",
            "    if (gm_thread() > 5) return;\n    gm_wait",
            "returned without",
        ),
        ("inputs too early", "gm_load(x + i)", "gm_load_early(x + i)", late),
        (
            "inputs fetched too early",
            "gm_prefetch_early((const u8 *)(weights",
            "gm_prefetch_early((const u8 *)(x",
            late,
        ),
        (
            "a store too early",
            "    gm_wait",
            "    gm_store(y + i, w);\n    gm_wait",
            "in front of gm_wait_for_previous",
        ),
        (
            "weights beyond the last",
            "gm_load_early(weights + i)",
            "gm_load_early(weights + i + 1)",
            "not inside",
        ),
    ];
    are_caught("products", OVERLAP, &mistakes, run);
}

/// Copies to shared memory: what came is there behind a wait and a barrier, and nobody sees it, or writes there, earlier.
#[test]
fn copies_come_when_they_were_waited_for() {
    if !can_run("copies to shared memory") {
        return;
    }
    let x: Vec<u32> = (0..7 * 64).map(|i| i * 40_503).collect();
    let run = |unit: &Unit, chunks: usize, seed: u64| {
        let (input, y) = (Buffer::input("x", &x), Buffer::<u32>::unset("y", 64 * chunks));
        unit.launch("reversed").arg(&input).arg(&y).arg(chunks as u32).threads(64).seed(seed).run()?;
        y.try_read()
    };
    let unit = Unit::new("reversed", COPY);
    for chunks in 1..=7 {
        let expected: Vec<u32> = x[..chunks * 64].chunks(64).flat_map(|c| c.iter().rev().copied()).collect();
        for seed in 0..5 {
            assert_eq!(run(&unit, chunks, seed), Ok(expected.clone()), "{chunks} chunks, seed {seed}");
        }
    }
    let mutations = [
        ("a group too few waited for", "gm_copy_wait<1>", "gm_copy_wait<2>", "nobody waited for"),
        ("no wait", "        gm_copy_wait<1>();\n", "", "nobody waited for"),
        ("no barrier", "        gm_sync();\n", "", "no barrier|nobody waited for|never wrote"),
        (
            "a wait behind the barrier",
            "gm_copy_wait<1>();\n        gm_sync();",
            "gm_sync();\n        gm_copy_wait<1>();",
            "no barrier|nobody waited for|never wrote",
        ),
        ("a stage too few", "next % 3", "next % 2", "no barrier|nobody waited for|never wrote"),
        (
            "no groups at first",
            "        gm_copy_commit();\n    }\n    for",
            "    }\n    for",
            "nobody waited for",
        ),
        (
            "no groups for nothing",
            "        gm_copy_commit();  //",
            "        if (next < chunks) gm_copy_commit();  //",
            "nobody waited for",
        ),
        ("a copy for nobody", "next < chunks", "next <= chunks", "returned before it waited"),
        ("a copy of what is not there", "next < chunks", "next <= chunks + 2", "not inside"),
        ("a misaligned copy", "x + next * 64", "(const u32*)((const u8*)x + 2) + next * 64", "not aligned"),
        ("a copy beside the array", "next % 3 * 64", "next * 64", "which has 192 elements"),
    ];
    are_caught("reversed", COPY, &mutations, |unit, seed| run(unit, 6, seed));
    // What a failed launch of more threads left on its way is not the next one's.
    let more = Unit::new("reversed", &mutated(&COPY.replace("64", "96"), "        gm_copy_wait<1>();\n", ""));
    let (input, y) = (Buffer::input("x", &x), Buffer::<u32>::unset("y", 96));
    let launch = more.launch("reversed").arg(&input).arg(&y).arg(1u32).threads(96);
    assert!(launch.run().expect_err("no wait").contains("nobody waited for"));
    assert!(run(&unit, 2, 0).is_ok());
}

/// A device moves 32 bytes at a time, of one place in either memory: right results don't show that halves go apart.
#[test]
fn copies_that_go_apart_are_reported() {
    if !can_run("copies in halves") {
        return;
    }
    let x: Vec<u32> = (0..2048 * 4).map(|i| i * 40_503).collect();
    let run = |place: &str| {
        let kernel = include_str!("../cuda/kernels/copy_sixteens.cu").replace("place(i)", place);
        let (input, y) = (Buffer::input("x", &x), Buffer::<u32>::unset("y", x.len()));
        Unit::new("through", &kernel).launch("through").arg(&input).arg(&y).threads(256).run()?;
        y.try_read()
    };
    for whole in ["i", "(i ^ 1)", "(i ^ i / 8 % 8)", "(i / 2 % 32 * 64 + i / 64 * 2 + i % 2)"] {
        let y = run(whole).unwrap_or_else(|report| panic!("{whole}: {report}"));
        assert!(y == x, "{whole}");
    }
    for apart in ["(i % 2 * 1024 + i / 2)", "((i + 1) % 2048)", "(i % 8 * 256 + i / 8)"] {
        let report = run(apart).expect_err(apart);
        assert!(report.contains("halves of one go to different ones"), "{apart}: {report}");
    }
}

/// Global memory that kernels share: what is not there yet, and what others change at the same time.
#[test]
fn mistakes_with_global_memory_are_reported() {
    if !can_run("global memory") {
        return;
    }
    let text = "
GM_KERNEL(32) worst(const u32 *x, u32 *result, u32 *copy) {
    const u32 v = gm_load(x + gm_thread());
    gm_atomic_max(result, v);
    const u32 seen = v;
    gm_store(copy + gm_block() * 32 + gm_thread(), seen);
}
GM_EXPORT(worst)
";
    let values: Vec<u32> = (0..32).map(|i| i * 7 % 32).collect();
    let run = |text: &str, set: bool| {
        let unit = Unit::new("worst", text);
        let x = if set { Buffer::input("x", &values) } else { Buffer::unset("x", 32) };
        let (result, copy) = (Buffer::output("result", &[0u32]), Buffer::<u32>::unset("copy", 64));
        unit.launch("worst").grid(2, 1).arg(&x).arg(&result).arg(&copy).run()?;
        Ok::<_, String>(result.read()[0])
    };
    assert_eq!(run(text, true), Ok(31));
    let report = run(text, false).expect_err("nobody wrote x");
    assert!(report.contains("`x`, which has 128 bytes: never written"), "{report}");
    let plain = mutated(text, "seen = v", "seen = gm_load(result)");
    let report = run(&plain, true).expect_err("others change the result meanwhile");
    assert!(report.contains("no barrier lies between"), "{report}");
    let blocks = mutated(text, "gm_block() * 32 + ", "");
    let report = run(&blocks, true).expect_err("both blocks write the same");
    assert!(report.contains("another block"), "{report}");
}

#[test]
fn launches_that_no_device_takes_are_reported() {
    if !can_run("launch limits") {
        return;
    }
    let unit = Unit::new("reduction", REDUCTION);
    let (x, sums) = (Buffer::input("x", &[1i32; 256]), Buffer::output("sums", &[0i32]));
    for (threads, grid, expected) in
        [(288, (1, 1), "bounds"), (40, (1, 1), "warps"), (256, (0, 1), "grid"), (256, (1, 65536), "grid")]
    {
        let launch = unit.launch("reduction").grid(grid.0, grid.1).threads(threads);
        let report = launch.arg(&x).arg(&sums).arg(256u32).run().expect_err(expected);
        assert!(report.contains(expected), "{report}");
    }
}

/// One product, and what it should be.
fn gemv(unit: &Unit, n: usize, k: usize, blocks: u32) -> (Result<Vec<i32>, String>, Vec<i32>) {
    let mut random = Random((n * k) as u64);
    let codes = random.bytes(n * k / 4);
    let x: Vec<i8> = random.bytes(k).into_iter().map(|byte| byte as i8).collect();
    let code = |row: usize, i: usize| codes[row * k / 4 + i / 16 * 4 + i % 4] >> (i % 16 / 4 * 2) & 3;
    let product = |row| (0..k).map(|i| (i32::from(code(row, i)) - 1) * i32::from(x[i])).sum();
    let expected = (0..n).map(product).collect();
    let (codes, x) = (Buffer::input("codes", &codes), Buffer::input("x", &x));
    let y = Buffer::<i32>::unset("y", n);
    let launch = unit.launch("gemv").grid(blocks, 1);
    let result = launch.arg(&codes).arg(&x).arg(&y).arg(n as u32).arg(k as u32).run();
    (result.and_then(|()| y.try_read()), expected)
}

#[test]
fn a_product_by_dp4a_is_exact() {
    if !can_run("dp4a") {
        return;
    }
    let unit = Unit::new("gemv", GEMV);
    for (n, k) in [(1, 64), (4, 2048), (7, 192), (33, 4160)] {
        let (found, expected) = gemv(&unit, n, k, n.div_ceil(4) as u32);
        assert_eq!(found, Ok(expected), "{n} x {k}");
    }
}

#[test]
fn a_large_product_takes_little_time() {
    if !can_run("a large product") {
        return;
    }
    let unit = Unit::new("gemv", GEMV);
    let start = std::time::Instant::now();
    let (found, expected) = gemv(&unit, 2560, 2560, 640);
    println!("2560 x 2560: {:?}, with the expected values", start.elapsed());
    assert_eq!(found, Ok(expected));
}

/// What lies beyond a buffer must not hang on what the allocator put there: another buffer that nobody has written
/// would be reported as read too early, one that was written not at all.
#[test]
fn buffers_lie_apart() {
    if !can_run("buffers") {
        return;
    }
    let buffers: Vec<Buffer<u8>> = (0..64).map(|i| Buffer::unset("a buffer", i * 57 % 4096)).collect();
    let mut places: Vec<(u64, u64)> =
        buffers.iter().enumerate().map(|(i, each)| (each.address(), (i * 57 % 4096) as u64)).collect();
    places.sort_unstable();
    for (one, next) in places.iter().zip(&places[1..]) {
        assert!(one.0 + one.1 + GAP as u64 <= next.0, "{one:?} and {next:?}");
    }
}

#[test]
fn mistakes_of_a_product_are_seen() {
    if !can_run("mutations of the product") {
        return;
    }
    let unit = Unit::new("gemv", GEMV);
    let report = gemv(&unit, 33, 128, 8).0.expect_err("a grid that lacks its last block");
    assert_eq!(report, "4 of 132 bytes of a result were never written");
    let unit = Unit::new("gemv", &mutated(GEMV, "if (row >= n) return;", ""));
    let report = gemv(&unit, 33, 128, 9).0.expect_err("rows beyond the last");
    assert!(report.contains("`codes`"), "{report}");
    let unit = Unit::new("gemv", &mutated(GEMV, "i < k / 64", "i <= k / 64"));
    let report = gemv(&unit, 32, 2048, 8).0.expect_err("one step too many");
    assert!(report.contains("not inside an allocation"), "{report}");
    for (from, to) in [("- sum", "+ sum"), ("mask = 16", "mask = 8"), ("0x03030303u << 2 * f", "0x03030303u")]
    {
        let unit = Unit::new("gemv", &mutated(GEMV, from, to));
        let (found, expected) = gemv(&unit, 8, 2048, 2);
        assert_ne!(found.expect("no access is wrong"), expected, "{from} -> {to}");
    }
}

/// The products of one tile by one kernel, unsigned and signed, and what they should be.
fn tile(unit: &Unit, kernel: &str, a: &[u8], b: &[u8]) -> (Result<Vec<i32>, String>, Vec<i32>) {
    let product = |signed: bool, at: usize| {
        let (row, column) = (&a[at / 8 * 32..][..32], &b[at % 8 * 32..][..32]);
        let of = |byte: u8| if signed { i32::from(byte as i8) } else { i32::from(byte) };
        row.iter().zip(column).map(|(&a, &b)| of(a) * i32::from(b as i8)).sum()
    };
    let expected = [false, true].into_iter().flat_map(|signed| (0..128).map(move |at| product(signed, at)));
    let expected = expected.collect();
    let (a, b) = (Buffer::input("a", a), Buffer::input("b", b));
    let c = Buffer::output("c", &[i32::MIN; 256]);
    let result = unit.launch(kernel).arg(&a).arg(&b).arg(&c).run();
    (result.map(|()| c.read()), expected)
}

#[test]
fn tensor_core_tiles_are_exact() {
    if !can_run("mma") {
        return;
    }
    let unit = Unit::new("mma", MMA);
    let mut random = Random(5);
    for kernel in ["mma_16832", "mma_16816", "mma_8816", "mma_16832_of_8816"] {
        let inputs = [(random.bytes(512), random.bytes(256)), (vec![0xff; 512], vec![0x80; 256])];
        for (a, b) in inputs {
            let (found, expected) = tile(&unit, kernel, &a, &b);
            assert_eq!(found, Ok(expected), "{kernel}");
        }
    }
}

#[test]
fn swapped_operands_are_seen() {
    if !can_run("mutations of mma") {
        return;
    }
    let mut random = Random(6);
    let (a, b) = (random.bytes(512), random.bytes(256));
    let swaps = [
        ("word(a, g + 8, k), word(a, g, k + 16)", "word(a, g, k + 16), word(a, g + 8, k)"),
        ("{word(b, g, k), word(b, g, k + 16)}", "{word(b, g, k + 16), word(b, g, k)}"),
        ("gm_mma_16832_us(us", "gm_mma_16832_ss(us"),
        ("word(a, g, k), word(a, g + 8, k), w", "word(b, g, k), word(a, g + 8, k), w"),
    ];
    // The kernel that is launched, the first of them.
    let (first, _) = MMA.split_once("GM_EXPORT(mma_16832)").expect("there are several");
    let first = format!("{first}GM_EXPORT(mma_16832)\n");
    for (from, to) in swaps {
        let unit = Unit::new("mma", &mutated(&first, from, to));
        let (found, expected) = tile(&unit, "mma_16832", &a, &b);
        assert_ne!(found.expect("no access is wrong"), expected, "{from} -> {to}");
    }
    // A matrix in the place of a larger one.
    let unit = Unit::new("mma", MMA);
    let small = Buffer::input("b", &b);
    let c = Buffer::output("c", &[i32::MIN; 256]);
    let report = unit.launch("mma_16832").arg(&small).arg(&small).arg(&c).run().expect_err("b is no a");
    assert!(report.contains("`b`, which has 256 bytes"), "{report}");
}

/// f32 values at which conversions and roundings change, and random ones.
fn values() -> Vec<f32> {
    let mut random = Random(9);
    let mut values: Vec<f32> = (0..20_000).map(|_| f32::from_bits(random.next() as u32)).collect();
    // Between any two neighbours of binary16 and of bfloat16: the middle, and the next values to its sides.
    for bits in 0..=u16::MAX {
        for of in [half::f16::from_bits(bits).to_f32(), f32::from_bits(u32::from(bits) << 16)] {
            let middle = [0x1000, 0x8000].map(|half_step| of.to_bits().wrapping_add(half_step));
            let near = |bits: u32| [-1i32, 0, 1].map(|step| f32::from_bits(bits.wrapping_add_signed(step)));
            values.extend([of.to_bits(), middle[0], middle[1]].into_iter().flat_map(near));
        }
    }
    values.extend((-400..400).map(|i| i as f32 / 4.0));
    values.extend([0.499_999_97, -0.499_999_97, 8_388_607.5, 2_147_483_500.0, -2_147_483_648.0, 1e30, -0.0]);
    values
}

fn same(found: f32, expected: f32) -> bool {
    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
}

#[test]
fn number_formats_are_read_as_on_the_cpu() {
    if !can_run("number formats") {
        return;
    }
    let unit = Unit::new("number", NUMBER);
    let floats = [(); 2].map(|()| Buffer::output("floats", &[0f32; 65536]));
    let launch = unit.launch("halves").grid(256, 1);
    launch.arg(&floats[0]).arg(&floats[1]).run().expect("runs");
    let (f16, bf16) = (floats[0].read(), floats[1].read());
    for bits in 0..=u16::MAX {
        let expected = half::f16::from_bits(bits).to_f32();
        assert_eq!(f16[usize::from(bits)].to_bits(), expected.to_bits(), "f16 {bits:#x}");
        assert_eq!(bf16[usize::from(bits)].to_bits(), u32::from(bits) << 16, "bf16 {bits:#x}");
    }
}

#[test]
fn number_formats_are_written_as_on_the_cpu() {
    if !can_run("number formats") {
        return;
    }
    let unit = Unit::new("number", NUMBER);
    let values = values();
    let x = Buffer::input("x", &values);
    let (f16, bf16) = (Buffer::<u32>::unset("f16", values.len()), Buffer::<u32>::unset("bf16", values.len()));
    let launch = unit.launch("narrow").grid(values.len().div_ceil(256) as u32, 1);
    launch.arg(&x).arg(&f16).arg(&bf16).arg(values.len() as u32).run().expect("runs");
    for ((x, f16), bf16) in values.iter().zip(f16.read()).zip(bf16.read()) {
        assert_eq!(f16, u32::from(half::f16::from_f32(*x).to_bits()), "f16 of {x} ({:#x})", x.to_bits());
        assert_eq!(bf16, u32::from(half::bf16::from_f32(*x).to_bits()), "bf16 of {x} ({:#x})", x.to_bits());
    }
}

#[test]
fn numbers_are_rounded_as_on_the_cpu() {
    if !can_run("rounding") {
        return;
    }
    let unit = Unit::new("number", NUMBER);
    let values = values();
    let x = Buffer::input("x", &values);
    let y = Buffer::<f32>::unset("y", 8 * values.len());
    let integers = Buffer::<i32>::unset("integers", 2 * values.len());
    let launch = unit.launch("round").grid(values.len().div_ceil(256) as u32, 1);
    launch.arg(&x).arg(&y).arg(&integers).arg(values.len() as u32).run().expect("runs");
    let (y, integers) = (y.read(), integers.read());
    for (i, x) in values.iter().enumerate() {
        let expected = [
            x.round_ties_even(),
            x.round(),
            x.trunc(),
            x.floor(),
            x.abs(),
            3f32.copysign(*x),
            x.min(1.0),
            x.max(1.0),
        ];
        for (j, expected) in expected.into_iter().enumerate() {
            assert!(same(y[8 * i + j], expected), "function {j} of {x}: {} for {expected}", y[8 * i + j]);
        }
        assert_eq!((integers[2 * i], integers[2 * i + 1]), (*x as i32, i32::from(x.is_finite())), "{x}");
    }
}
