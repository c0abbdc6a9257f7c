//! Products by warpgroups with one mistake in them: stages that come too late, operands that change too early, another
//! description of what is in shared memory. Each must show in the result, or be reported.

use super::generated::generated;
use super::matmul::{on_the_cpu, pack, product, run};
use super::mutations::{Mistake, kernel, must_show, mutated};
use super::random::Random;
use super::support::can_run;
use super::verify::inputs::{Tokens, Weights};
use gristmill_spec::vocab::Op;

/// Mistakes with barriers, proxies and copies.
const STAGES: &[Mistake] = &[
    (
        "barriers that nobody waited to be made",
        "    gm_sync();\n",
        "",
        "gm_sync lies between|what is no barrier",
    ),
    (
        "barriers that the copies don't see",
        "        gm_fence_proxy();\n    }\n    gm_sync",
        "    }\n    gm_sync",
        "lies no gm_fence_proxy",
    ),
    (
        "tokens that the products don't see",
        "        gm_fence_proxy();\n        gm_sync_warp",
        "        gm_sync_warp",
        "no gm_fence_proxy of it",
    ),
    (
        "one lane's tokens",
        "        gm_sync_warp();\n        if (gm_lane() == 0) gm_barrier_arrive(full",
        "        if (gm_lane() == 0) gm_barrier_arrive(full",
        "no barrier lies between|no gm_fence_proxy",
    ),
    (
        "one lane's weights read",
        "    gm_sync_warp();\n    if (gm_lane() == 0) gm_barrier_arrive(empty",
        "    if (gm_lane() == 0) gm_barrier_arrive(empty",
        "no barrier lies between",
    ),
    (
        "a stage that is not there yet",
        "gm_barrier_wait(full, place, phase);",
        "(void)phase;",
        "nobody waited for|never wrote|no barrier lies between",
    ),
    (
        "a place that is still read",
        "gm_barrier_wait(empty, place, phase);",
        "(void)phase;",
        "no barrier lies between|nobody waited for|hasn't waited for|more than the",
    ),
    ("the other phase", "place = 0, phase = 1;", "place = 0, phase = 0;", "can't go on"),
    (
        "a phase that doesn't change",
        "phase ^= place == 0;",
        "phase ^= place == 7;",
        "can't go on|no barrier lies between|hasn't waited for|nobody waited for",
    ),
    (
        "bytes that nobody copies",
        "gm_barrier_expect(full, place, 4096)",
        "gm_barrier_expect(full, place, 4112)",
        "can't go on",
    ),
    (
        "bytes that nobody expects",
        "gm_barrier_expect(full, place, 4096)",
        "gm_barrier_expect(full, place, 3584)",
        "was over before this copy|can't go on",
    ),
    (
        "an arrival too many to wait for",
        "gm_barrier_init(full, i, 4)",
        "gm_barrier_init(full, i, 5)",
        "can't go on|written by",
    ),
    (
        "an arrival too few to wait for",
        "gm_barrier_init(full, i, 4)",
        "gm_barrier_init(full, i, 3)",
        "no barrier lies between|more than the|never written|was over before|nobody waited for",
    ),
    (
        "a place given back before it is read",
        "release<1>(empty, before);",
        "release<1>(empty, place);",
        "hasn't waited for|no barrier lies between|can't go on",
    ),
    ("a copy of half a row", ", codes, 512, full", ", codes, 520, full", "no multiple of 16"),
    (
        "a copy to the wrong place",
        "(place * 8 + i) * 512, codes",
        "(place * 8 + i) * 512 + 8, codes",
        "not aligned|elements",
    ),
    (
        "panels beyond the last",
        "gm_min(first_panel + i, last_panel)",
        "(first_panel + i + 0 * last_panel)",
        "not inside",
    ),
    (
        "a place too few",
        "place = place + 1 == 3 ? 0",
        "place = place + 1 == 2 ? 0",
        "can't go on|no barrier|nobody waited|hasn't waited|in shared memory|never written",
    ),
    ("tokens of another stage", "gm_min(stage + 2, stages - 1)", "gm_min(stage + 1, stages - 1)", ""),
];

/// Mistakes with the products themselves.
const PRODUCTS: &[Mistake] = &[
    ("no fence", "    gm_wgmma_fence();\n", "", "without gm_wgmma_fence"),
    (
        "an operand made behind the fence",
        "    gm_wgmma_fence();\n",
        "    gm_wgmma_fence();\n    operands[0][0][0] ^= 1u;\n",
        "written behind gm_wgmma_fence",
    ),
    ("one set of operands", "phase, odd, sums);", "phase, even, sums);", "changed before gm_wgmma_wait"),
    (
        "a stage too few waited for",
        "release<1>(empty, before);",
        "release<2>(empty, before);",
        "hasn't waited for|changed before",
    ),
    ("no wait", "    gm_wgmma_wait<PENDING>();\n", "", "hasn't waited for|changed before"),
    ("no wait at the end", "        gm_wgmma_wait<0>();\n", "", "before it waited"),
    (
        "sums read too early",
        "    gm_wgmma_commit();\n",
        "    gm_wgmma_commit();\n    sums[0][1] ^= 1;\n",
        "touched before gm_wgmma_wait",
    ),
    (
        "a warp too few",
        "        gm_wgmma_us(sums[1]",
        "        if (gm_warp() != 2) gm_wgmma_us(sums[1]",
        "same warpgroup",
    ),
    (
        "another operand for a warp",
        "step * 4160, 2048",
        "step * 4160 + (gm_warp() == 1) * 16, 2048",
        "another operand B",
    ),
    (
        "columns too far apart",
        "2048, 128);",
        "2048, 144);",
        "never written|beyond its array|no barrier|on its way|hasn't",
    ),
    (
        "exchanged distances",
        "2048, 128);",
        "128, 2048);",
        "never written|beyond its array|on its way|no barrier",
    ),
    ("an odd distance", "2048, 128);", "2048, 130);", "not all multiples of 16"),
    ("another step's tokens", "step * 4160, 2048", "(1 - step) * 4160, 2048", ""),
    ("words in the order of k", "u32x2{x.x, x.z}", "u32x2{x.x, x.y}", ""),
    ("exchanged halves of a piece", "piece % 2 * 8;", "(1 - piece % 2) * 8;", ""),
    ("exchanged rows", "operands[step][0], x);", "operands[step][1], x);", ""),
    ("sums that are not shifted", ">> (half * 4 + j / 2 * 2)", ">> (half * 4)", ""),
    ("a wrong correction", " + x_sum * a.min", " - x_sum * a.min", ""),
    ("tokens beyond the last", "&& token <= last_token", "&& token <= last_token + 1", "not inside"),
    ("rows beyond the last", "row <= last_row && ", "", "not inside|another block|no barrier"),
];

#[test]
fn mistakes_in_products_by_warpgroups_show() {
    if !can_run("mutations of products by warpgroups") {
        return;
    }
    let name = "matmul.i2_s.cuda.wgmma.prefill";
    let kernel = kernel(Op::Matmul, name);
    assert_eq!(generated().set.formats[kernel.listed.format].name, "i2_s");
    // Neither rows nor tokens fill their tiles; stages go round several times.
    let (m, n, k) = (kernel.number("tokens") + 5, 70, 640);
    let mut random = Random::new(24, name);
    let product = product("i2_s", &mut random, (m, n, k), Weights::Random, Tokens::I8, false);
    let packed = pack(&kernel, &product);
    let expected = on_the_cpu("i2_s", &product);
    let right = |y: Vec<f32>| y.iter().zip(&expected).all(|(y, e)| y.to_bits() == e.to_bits());
    for seed in 0..10 {
        let itself = run(&kernel, &kernel.unit, &product, &packed, (true, seed));
        assert_eq!(itself.map(right), Ok(true), "{name} itself, seed {seed}");
    }
    for mistake in STAGES.iter().chain(PRODUCTS) {
        let unit = mutated(&kernel, *mistake);
        for seed in 0..3 {
            must_show(&kernel, *mistake, run(&kernel, &unit, &product, &packed, (true, seed)).map(right));
        }
    }
    println!("{} mistakes", STAGES.len() + PRODUCTS.len());
}
