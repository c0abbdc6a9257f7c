//! Generated text with one mistake in it: what the tests of this folder compare must show each, or the emulator
//! must report it.

use super::blocks::{dequantize, quantize};
use super::choice::left_out;
use super::generated::{Kernel, generated, kernels, text_of};
use super::matmul::{on_the_cpu, pack, product, run};
use super::support::{Mistake, Unit, can_run, tells};
use super::verify::inputs::{self, Tokens, Weights};
use gristmill::oracle::Random;
use gristmill_spec::vocab::Op;

/// Words for memory that is looked at while the launch in front may still be writing it.
const EARLY: &str = "a launch in front may still write it";

const NO_WAIT: Mistake = (
    "no wait for the launch in front",
    "    gm_wait_for_previous();\n",
    "",
    "in front of gm_wait_for_previous",
);

/// The unit of a kernel with its first `from` replaced.
pub fn mutated(kernel: &Kernel, (name, from, to, _): Mistake) -> Unit {
    let text = text_of(&kernel.listed.unit);
    assert!(text.contains(from), "{}: {name}: the text has no `{from}`", kernel.listed.name);
    Unit::new(&kernel.listed.unit, &text.replacen(from, to, 1))
}

/// `outcome`: the emulator's report, or whether the results are right.
pub fn must_show(kernel: &Kernel, (name, from, _, words): Mistake, outcome: Result<bool, String>) {
    let kernel = &kernel.listed.name;
    match outcome {
        Ok(right) => {
            assert!(words.is_empty(), "{kernel}: {name} (`{from}`): no report; right: {right}");
            assert!(!right, "{kernel}: {name} (`{from}`) has no effect");
        }
        Err(report) => {
            // Results that are missing are wrong ones.
            let words = if words.is_empty() { "of a result were never written" } else { words };
            assert!(tells(&report, words), "{kernel}: {name} (`{from}`): {report}");
        }
    }
}

pub fn kernel(op: Op, name: &str) -> Kernel {
    let listed = generated().emitted.listed.iter().any(|listed| listed.name == name);
    assert!(listed, "no kernel is named {name}");
    kernels(op).into_iter().find(|kernel| kernel.listed.name == name).expect("listed")
}

#[test]
fn mistakes_in_products_show() {
    if !can_run("mutations of products") || left_out("mutations of products") {
        return;
    }
    let dp4a: &[Mistake] = &[
        ("no barrier", "    gm_sync();\n", "", "no barrier|never wrote"),
        (
            "a barrier for some",
            "    gm_sync();\n",
            "    if (gm_warp() != 2) gm_sync();\n",
            "can't go on|instead",
        ),
        (
            "an early return",
            "    gm_sync();\n",
            "    if (panel * 16 + gm_thread() >= a.n) return;\n    gm_sync();\n",
            "returned",
        ),
        ("rows beyond the last", " || row >= a.n) return;", ") return;", "not inside|another block"),
        (
            "too many outputs",
            "i >= tokens * 16",
            "i >= tokens * 32",
            "elements|another|not inside|never wrote",
        ),
        ("one tile too many", "(2 + i) * groups < tiles", "(2 + i) * groups <= tiles", "not inside"),
        NO_WAIT,
        (
            "activations too early",
            "gm_load((const u32x4 *)(x_next",
            "gm_load_early((const u32x4 *)(x_next",
            EARLY,
        ),
        ("one loaded too early", "group + i * groups < tiles", "group + i * groups + 129 < tiles", ""),
        ("misaligned codes", "quad * 16;", "quad * 8;", "not aligned"),
        ("a wrong mask", "w.z & 0x30303030u", "w.z & 0xc0c0c0cu", ""),
        ("a wrong shift", ">> 4", ">> 2", ""),
        ("another word", "operands[1][0], x.x", "operands[1][0], x.y", ""),
        ("a lane less", "mask < 32", "mask < 16", ""),
        ("tiles left out", "first += 2 * groups", "first += 3 * groups", ""),
        ("another tile's tokens", "x = x_ahead[i]", "x = x_ahead[1 - i]", ""),
        ("a wrong correction", " + x_sum * a.min", " - x_sum * a.min", ""),
        ("an inverted scale", "y = y / x_scale", "y = y * x_scale", ""),
    ];
    let rows: &[Mistake] = &[
        ("no barrier", "    gm_sync();\n", "", "no barrier|never wrote"),
        (
            "return before the barrier",
            "    gm_sync();\n",
            "    if (gm_warp() > 0) return;\n    gm_sync();\n",
            "returned",
        ),
        ("a warp's sums left out", "warp = 0; warp < 8", "warp = 1; warp < 8", ""),
        ("swapped halves", "weights[0], b", "weights[1], b", ""),
        ("swapped operands", "{x.x, x.y}", "{x.y, x.x}", ""),
        (
            "swapped registers",
            "w[0].x >> 2 & 0x3030303u, w[0].y & 0x3030303u",
            "w[0].y & 0x3030303u, w[0].x >> 2 & 0x3030303u",
            "",
        ),
        ("tokens beyond the last", " || token >= a.m", "", "not inside"),
        ("rows beyond the last", "row >= a.n || ", "", "not inside|no barrier"),
        (
            "inputs beyond the last",
            "gm_min(first_token + c * 8 + g, a.m - 1)",
            "(first_token + c * 8 + g)",
            "not inside",
        ),
        (
            "a divergent mma",
            "gm_mma_16832_us(sums[1][c]",
            "if (gm_lane() < 31) gm_mma_16832_us(sums[1][c]",
            "can't go on|but thread",
        ),
        ("transposed output", "lane % 4 * 2 + at / 32 % 2", "at / 32 % 2 * 4 + lane % 4", ""),
        ("tiles left out", "first += 32", "first += 33", ""),
        NO_WAIT,
    ];
    let shared: &[Mistake] = &[
        ("no barrier", "        gm_sync();\n", "", "no barrier|never wrote"),
        ("one half for all rounds", "half_of_terms ^= 1", "half_of_terms ^= 0", "no barrier lies between"),
        ("the last run left out", "unit < a.units", "unit + 1 < a.units", ""),
        ("a run too many", "i < count", "i <= count", "never wrote|elements|no barrier"),
        ("weights of another run", "next = gm_min(unit + 8", "next = gm_min(unit + 7", ""),
        ("minima forgotten", "= gm_load(a.mins", "= 0.0f * gm_load(a.mins", ""),
        ("integers of another run", "next % 8 * 32 + g", "(next + 1) % 8 * 32 + g", ""),
        ("super-blocks that go on", "total[j] = 0;", "", ""),
    ];
    let ahead: &[Mistake] = &[
        ("no barrier", "            gm_sync();\n", "", "no barrier|never wrote|nobody waited for"),
        ("no wait", "            gm_copy_wait<2>();\n", "", "nobody waited for"),
        NO_WAIT,
        ("a stage too few waited for", "gm_copy_wait<2>", "gm_copy_wait<3>", "nobody waited for"),
        (
            "groups for copies only",
            "        gm_copy_commit();",
            "        if (stage < stages) gm_copy_commit();",
            "nobody waited for",
        ),
        (
            "a stage too few",
            "to = to + 1 == 4",
            "to = to + 1 == 3",
            "no barrier|never wrote|nobody waited for",
        ),
        (
            "tokens beyond the last read",
            "gm_min(first_token + i / 4, a.m - 1)",
            "gm_min(first_token + i / 4, a.m)",
            "not inside|never written",
        ),
        (
            "panels beyond the last read",
            "gm_min(first_panel + i / 64, last_panel)",
            "gm_min(first_panel + i / 64, last_panel + 1)",
            "not inside|never written",
        ),
        ("tokens of another lane", "+ t * 8);", "+ (3 - t) * 8);", ""),
        (
            "integers of another run",
            "own_panel) * 2 + run) * 32 + r",
            "own_panel) * 2 + 1 - run) * 32 + r",
            "",
        ),
        ("super-blocks that go on", "total[half][c][j] = 0;", "", ""),
        ("minima forgotten", "- min[half", "- 0.0f * min[half", ""),
        ("sums that go on", "sums[half][c][j] = 0;", "", ""),
        ("rows beyond the last", "row <= last_row && ", "", "not inside|no barrier"),
        ("tokens beyond the last", "&& token <= last_token", "&& token <= last_token + 1", "not inside"),
    ];
    let prefill: &[Mistake] = &[
        (
            "a stage too many",
            "stage < end) copy",
            "stage <= end) copy",
            "not inside|returned before it waited",
        ),
        ("another panel's weights", "at * 4 + own_panel", "at * 4 + (own_panel ^ 1)", ""),
        ("tokens of another warp", "own_tokens + c * 8 + g) * 32", "c * 8 + g) * 32", ""),
        ("a wrong correction", " + x_sum * a.min", " - x_sum * a.min", ""),
    ];
    let terms: &[Mistake] = &[
        ("no barrier", "        gm_sync();\n", "", "no barrier|never wrote"),
        ("one half for all rounds", ", half ^= 1", "", "no barrier lies between"),
        (
            "a barrier for some",
            "        gm_sync();\n",
            "        if (unit < a.units) gm_sync();\n",
            "can't go on|instead",
        ),
        ("the wrong terms", "low += subtracted[", "low += added[", ""),
        NO_WAIT,
        (
            "another panel fetched early",
            "a.codes + panel * a.stride + group",
            "a.codes + (panel + 4) * a.stride + group",
            "not inside",
        ),
        ("a term too many", "i < count", "i <= count", "never wrote|elements"),
        ("super-blocks that go on", "total = 0; low", "low", ""),
        ("another row's integer", "(scale >> 8)", "(scale >> 16)", ""),
    ];
    let scaled: &[Mistake] = &[
        ("another order", "(half * 128 + i)", "(half * 128 + count - 1 - i)", ""),
        ("another row's scale", "scale.y * x_scale", "scale.z * x_scale", ""),
    ];
    let bytes: &[Mistake] = &[
        ("signed codes", "gm_mma_16832_us(sums[0][c]", "gm_mma_16832_ss(sums[0][c]", ""),
        ("another order", "added[(half_of_terms * 8 + i)", "added[(half_of_terms * 8 + count - 1 - i)", ""),
    ];
    let one_sum: &[Mistake] = &[
        ("no barrier", "        gm_sync();\n", "", "no barrier|never wrote"),
        ("another row's sum", "quarter == 0 ? sums[0][0][0]", "quarter == 1 ? sums[0][0][0]", ""),
        ("a warp's sums left out", "warp = 0; warp < WARPS", "warp = 1; warp < WARPS", ""),
        ("tiles left out", "first += 4 * WARPS", "first += 5 * WARPS", ""),
        ("codes of other tiles", "next = last ? 0 : first + 4", "next = last ? 0 : first + 3", ""),
        (
            "rows beyond the last",
            "gm_warp() == adder && row < a.n",
            "gm_warp() == adder",
            "not inside|another block|no barrier",
        ),
        ("misaligned tokens", "a.x_stride + quarter * 8", "a.x_stride + quarter * 4", "not aligned"),
        ("a wrong correction", " + x_sum * a.min", " - x_sum * a.min", ""),
        NO_WAIT,
    ];
    let one_of_runs: &[Mistake] = &[
        ("no barrier", "            gm_sync();\n", "", "no barrier|never wrote"),
        ("one half for all rounds", ", half_of_terms ^= 1", "", "no barrier lies between"),
        ("the last run left out", "if (unit >= a.units) continue;", "if (unit + 1 >= a.units) continue;", ""),
        ("codes of other runs", "next = last ? 0 : first + 16", "next = last ? 0 : first + 15", ""),
        ("minima forgotten", "min_ahead[e] = (i32)gm_load", "min_ahead[e] = 0 * (i32)gm_load", ""),
        ("another super-block's scale", "gm_min(first / 8 + b,", "gm_min(first / 8 + 1 - b,", ""),
        ("another row's integer", "% 8 * 32 + own_row);", "% 8 * 32 + (own_row ^ 1));", ""),
        NO_WAIT,
    ];
    let all = [
        ("matmul.i2_s.cuda.mma.one", one_sum),
        ("matmul.q4_k.cuda.mma.one", one_of_runs),
        ("matmul.i2_s.cuda.dp4a", dp4a),
        ("matmul.i2_s.cuda.mma", rows),
        ("matmul.q4_k.cuda.mma", shared),
        ("matmul.q4_k.cuda.mma.wide", ahead),
        ("matmul.i2_s.cuda.mma.prefill", prefill),
        ("matmul.q4_k.cuda.dp4a", terms),
        ("matmul.q8_0.cuda.dp4a", scaled),
        ("matmul.q8_0.cuda.mma", bytes),
    ];
    let mut count = 0;
    for (name, mistakes) in all {
        let kernel = kernel(Op::Matmul, name);
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        let k = 2560usize.next_multiple_of(elements);
        // Neither rows nor tokens fill their tiles.
        let (m, n) = (kernel.number("tokens") + 5, 70);
        let mut random = Random::new(21, name);
        let product = product(kernel.format(), &mut random, (m, n, k), Weights::Random, Tokens::I8, false);
        let packed = pack(&kernel, &product);
        let expected = on_the_cpu(kernel.format(), &product);
        let right = |y: Vec<f32>| y.iter().zip(&expected).all(|(y, e)| y.to_bits() == e.to_bits());
        assert_eq!(
            run(&kernel, &kernel.unit, &product, &packed, (true, 0)).map(right),
            Ok(true),
            "{name} itself"
        );
        for mistake in mistakes {
            let unit = mutated(&kernel, *mistake);
            for seed in 0..3 {
                must_show(&kernel, *mistake, run(&kernel, &unit, &product, &packed, (true, seed)).map(right));
            }
            count += 1;
        }
    }
    println!("{count} mistakes");
}

#[test]
fn mistakes_in_quantizers_show() {
    if !can_run("mutations of quantizers") || left_out("mutations of quantizers") {
        return;
    }
    let absmean: &[Mistake] = &[
        (
            "no barrier after the codes",
            "        gm_sync_warp();\n        const u32 bytes",
            "        const u32 bytes",
            "no barrier",
        ),
        ("no barrier after the block", "        gm_sync_warp();\n    }\n", "    }\n", "no barrier"),
        ("another warp's words", "words = gm_warp() *", "words = 0 *", "no barrier"),
        ("bytes too many", "i < bytes / 16", "i <= bytes / 16", "no barrier|elements|never wrote|not inside"),
        ("another rounding", "gm_rint(x * apply)", "gm_round(x * apply)", ""),
        (
            "words that keep their bits",
            "all_words[words + i] = 0;",
            "if (first < 8) all_words[words + i] = 0;",
            "",
        ),
        ("a sum of every other value", "i < len; i += 16) sum", "i < len; i += 32) sum", ""),
        (
            "a chunk left out",
            "for (u32 lane = 0; lane < n; lane++)",
            "for (u32 lane = 1; lane < n; lane++)",
            "",
        ),
        ("a scale by all lanes", " || gm_lane() != 0) return;", ") return;", "no barrier"),
        (
            "a shuffle of half a warp",
            "total += gm_shfl(sum, lane)",
            "if (gm_lane() < 16) total += gm_shfl(sum, lane)",
            "can't go on|but thread",
        ),
    ];
    let several: &[Mistake] = &[
        ("a block beyond the last", "there = b < count", "there = true", "not inside"),
        ("the bits of another block", "a += base", "a += 0", ""),
        ("half of a block's lanes", "mask = LANES / 2", "mask = LANES / 4", ""),
        ("the last bytes left out", "i < bytes; i += 32", "i + 2 < bytes; i += 32", ""),
        ("a code in the wrong half", "<< (a & 7)", "<< (a & 3)", ""),
        ("the next word left out", "if (up > 0)", "if (up > 16)", ""),
        ("another lane's values", "* LANES + part);", "* LANES + (part ^ 1));", ""),
    ];
    let search: &[Mistake] = &[
        (
            "no barrier before the codes",
            "        gm_sync_warp();\n        if (gm_lane() == 0)",
            "        if (gm_lane() == 0)",
            "no barrier",
        ),
        ("too many runs", "        if (run < RUNS) {\n", "        {\n", "elements|no barrier|index"),
        ("a minimum by the wrong sign", "(x[n] + offset) / step", "(x[n] - offset) / step", ""),
    ];
    for (name, mistakes) in [
        ("quantize.i2_s.absmean.cuda", absmean),
        ("quantize.q4_0.signed_absmax.cuda", several),
        ("quantize.q4_k.k_min.cuda", search),
    ] {
        let kernel = kernel(Op::Quantize, name);
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        // The last of the blocks that a warp does together are fewer.
        let (n, k) = (3, 44 * elements);
        let mut random = Random::new(22, name);
        let mut x = random.gauss_vec(n * k, 1.0);
        // Ties of the rounding, where the scale is one.
        x.iter_mut().step_by(3).for_each(|x| *x = x.signum() * 0.5);
        let mean = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / x.len() as f64;
        x[0] += ((1.0 - mean) * x.len() as f64) as f32;
        let right = kernel_tensor(&kernel, &kernel.unit, &x, (n, k), 0).expect("runs");
        for mistake in mistakes {
            let unit = mutated(&kernel, *mistake);
            let outcomes: Vec<_> = (0..3)
                .map(|seed| kernel_tensor(&kernel, &unit, &x, (n, k), seed).map(|found| found == right))
                .collect();
            outcomes.into_iter().for_each(|outcome| must_show(&kernel, *mistake, outcome));
        }
    }
}

/// The tensor of finite values, on a grid of which every warp does several blocks.
fn kernel_tensor(
    kernel: &Kernel,
    unit: &Unit,
    x: &[f32],
    shape: (usize, usize),
    seed: u64,
) -> Result<Vec<u8>, String> {
    quantize(kernel, unit, x, shape, 2, seed)
        .map(|found| found.unwrap_or_else(|fault| fault.to_le_bytes().to_vec()))
}

#[test]
fn mistakes_in_dequantize_show() {
    if !can_run("mutations of dequantize") || left_out("mutations of dequantize") {
        return;
    }
    let runs: &[Mistake] = &[
        (
            "no barrier after the bytes",
            "        gm_sync();\n        if constexpr",
            "        if constexpr",
            "no barrier|never wrote",
        ),
        (
            "no barrier after the scales",
            "            gm_sync();\n        }\n        GM_UNROLL_ROUNDS",
            "        }\n        GM_UNROLL_ROUNDS",
            "no barrier|never wrote",
        ),
        ("no barrier after the values", "        gm_sync();\n    }\n", "    }\n", "no barrier"),
        (
            "elements too many",
            "if (element >= count * ELEMENTS) continue;",
            "",
            "not inside|never wrote|elements",
        ),
        ("blocks left out", "(u64)gm_blocks() * AT_ONCE", "(u64)gm_blocks() * (AT_ONCE + 1)", ""),
        ("blocks twice", "(u64)gm_blocks() * AT_ONCE", "(u64)gm_blocks() * (AT_ONCE / 2)", "another block"),
        ("a misaligned store", "ELEMENTS + element, out)", "ELEMENTS + element + 1, out)", "not aligned"),
        ("another run's scale", "% ELEMENTS / RUN;", "% ELEMENTS / RUN / 2;", ""),
        ("a sum the other way", "s * (f32)v - o", "o - s * (f32)v", ""),
        ("a code of another byte", "codes >> (8 * j)", "codes >> (8 * (3 - j))", ""),
    ];
    // Blocks of 210 bytes: neither they nor the tensor end where sixteen bytes do.
    let odd: &[Mistake] = &[
        ("bytes beyond the tensor", "(size - base) / 16,", "(size - base + 15) / 16,", "not inside"),
        (
            "wrong last bytes",
            "i < span; i += THREADS) bytes[i] = gm",
            "i < span; i += THREADS) bytes[i] = 1 + gm",
            "",
        ),
        ("high bits of another element", "(a & 7) & 0x3030303u) << 4", "(a & 6) & 0x3030303u) << 3", ""),
    ];
    // Rows of an f16 and blocks of 13 bytes, which start anywhere.
    let rows: &[Mistake] = &[
        ("misaligned bytes", "base = begin / 16 * 16", "base = begin", "not aligned"),
        ("blocks at the wrong place", "row_bytes) - base);", "row_bytes) - begin);", ""),
        (
            "another row's scale",
            "outer_of(src + b / (k / ELEMENTS)",
            "outer_of(src + b / (k / ELEMENTS + 1)",
            "",
        ),
        ("another block's place", "places[i / RUNS]", "places[(i / RUNS + 1) % 64]", ""),
        ("a wrong power of three", "(place & 127)", "(place & 126)", ""),
    ];
    for (name, mistakes) in [("q4_k", runs), ("q6_k", odd), ("iq1_bn", rows)] {
        let kernel = kernel(Op::Dequantize, &format!("dequantize.{name}.cuda"));
        let oracle = generated().oracle.format(name).expect("described");
        // Several rounds for each of two CUDA blocks, the last one with fewer blocks.
        let (n, k) = (3, 29 * 256);
        let tensor = inputs::tensor(&oracle, &mut Random::new(23, name), n, k, Weights::Random);
        let values = |unit: &Unit, seed| dequantize(&kernel, unit, &tensor, (n, k), 2, seed);
        let right = values(&kernel.unit, 0).expect("runs").expect("valid");
        for mistake in mistakes {
            let unit = mutated(&kernel, *mistake);
            for seed in 0..3 {
                must_show(&kernel, *mistake, values(&unit, seed).map(|found| found.as_ref() == Ok(&right)));
            }
        }
    }
}
