//! Products by warpgroups with one mistake in them: stages that come too late, operands that change too early, another
//! description of what is in shared memory. Each must show in the result, or be reported.

use super::choice::left_out;
use super::generated::{generated, sources};
use super::matmul::{on_the_cpu, pack, product, run};
use super::mutations::{kernel, must_show, mutated};
use super::support::{Buffer, Mistake, Unit, can_run};
use super::verify::inputs::{Tokens, Weights};
use gristmill::oracle::Random;
use gristmill_codegen::cuda::{DEVICE_HEADER, emit};
use gristmill_spec::model::Packing;
use gristmill_spec::vocab::Op;
use gristmill_spec::{SourceFile, check};

/// Mistakes with barriers, proxies and copies.
const STAGES: &[Mistake] = &[
    (
        "activations as memory that nobody writes",
        "ahead[i][r] = gm_load_written(",
        "ahead[i][r] = gm_load_once(",
        "a launch in front may still write it",
    ),
    (
        "barriers that nobody waited to be made",
        "    gm_sync();\n",
        "",
        "gm_sync lies between|what is no barrier",
    ),
    (
        "tokens of a kernel that still runs",
        "    gm_wait_for_previous();\n",
        "",
        "in front of gm_wait_for_previous",
    ),
    (
        "barriers that the copies don't see",
        "        gm_fence_proxy();\n    }\n    gm_launch",
        "    }\n    gm_launch",
        "lies no gm_fence_proxy",
    ),
    (
        "tokens that the products don't see",
        "phase);\n    gm_fence_proxy();\n    const",
        "phase);\n    const",
        "no gm_fence_proxy of it",
    ),
    (
        "one lane's tokens",
        "        gm_sync_warp();\n        if (gm_elect()) gm_barrier_arrive(full",
        "        if (gm_elect()) gm_barrier_arrive(full",
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
        "gm_barrier_expect(full, place, 1024)",
        "gm_barrier_expect(full, place, 1040)",
        "can't go on",
    ),
    (
        "bytes that nobody expects",
        "gm_barrier_expect(full, place, 1024)",
        "gm_barrier_expect(full, place, 512)",
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
        "(place * 8 + panel) * 512, codes",
        "(place * 8 + panel) * 512 + 8, codes",
        "not aligned|elements",
    ),
    (
        "panels beyond the last",
        "gm_min(first_panel + panel, last_panel)",
        "(first_panel + panel + 0 * last_panel)",
        "not inside",
    ),
    (
        "a place too few",
        "place = place + 1 == 8 ? 0",
        "place = place + 1 == 7 ? 0",
        "can't go on|no barrier|nobody waited|hasn't waited|in shared memory|never written",
    ),
    ("tokens of another stage", "gm_min(stage + 3, stages - 1)", "gm_min(stage + 1, stages - 1)", ""),
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
    ("sums that are not shifted", ">> (half * 4 + j / 2 * 2)) + x_sum", ">> (half * 4)) + x_sum", ""),
    ("a wrong correction", " + x_sum * a.min", " - x_sum * a.min", ""),
    ("tokens beyond the last", "&& token <= last_token", "&& token <= last_token + 1", "not inside"),
    ("rows beyond the last", "row <= last_row && ", "", "not inside|another block|no barrier"),
];

/// Mistakes in what finishes whole tiles.
const WHOLE: &[Mistake] = &[
    ("sums that are not shifted", ">> (half * 4 + j / 2 * 2)", ">> (half * 4)", ""),
    ("one token's scale for two", "j % 2 ? x_scale.y : x_scale.x", "x_scale.x", ""),
    ("another token's inverse", "j % 2 ? inverse.y : inverse.x", "j % 2 ? inverse.x : inverse.y", ""),
    ("one token's sum for two", "(i32)(j % 2 ? correction.y : correction.x)", "(i32)correction.x", ""),
    (
        "quotients of any scale",
        "return (gm_bits(x) >> 23 & 0xffu) - 67u < 120u;",
        "return true || x > 0.0f;",
        "",
    ),
    ("another row's bias", "gm_load(a.bias + row + r * 8);", "gm_load(a.outer + row + r * 8 + 1);", ""),
    ("another row", "+ half * 16 + j / 2 * 8, epilogue_row", "+ half * 8 + j / 2 * 16, epilogue_row", ""),
    (
        "a tile that is not whole",
        "first_token + 128 <= a.m",
        "first_token + 127 <= a.m",
        "not inside|no barrier",
    ),
    (
        "scales before they are there",
        "        x_scales[own] = x_scale;",
        "        if (own != 7) x_scales[own] = x_scale;",
        "never wrote",
    ),
];

/// Whole tiles, which are finished in another way than those at the edges, unless a token's scale is at the ends of f32's range.
#[test]
fn whole_tiles_are_the_cpu_s_bits() {
    if !can_run("whole tiles by warpgroups") {
        return;
    }
    for name in ["matmul.i2_s.cuda.wgmma.prefill", "matmul.i2_s.cuda.wgmma.wide"] {
        let kernel = kernel(Op::Matmul, name);
        let tokens = kernel.number("tokens");
        let mut random = Random::new(26, name);
        // Whole tiles, those beside them, and one in which a scale is no divisor for a quotient.
        let shape = (3 * tokens - 1, kernel.number("rows") + 40, 384);
        let mut product = product("i2_s", &mut random, shape, Weights::Random, Tokens::F32, true);
        (product.x.scales[tokens + 3], product.x.scales[tokens + 40]) = (1e-39, 1e30);
        let packed = pack(&kernel, &product);
        let expected = on_the_cpu("i2_s", &product);
        let right = |y: Vec<f32>| y.iter().zip(&expected).all(|(y, e)| y.to_bits() == e.to_bits());
        for seed in 0..3 {
            let y = run(&kernel, &kernel.unit, &product, &packed, (true, seed));
            assert_eq!(y.map(right), Ok(true), "{name}, seed {seed}");
        }
        for mistake in WHOLE.iter().filter(|_| name.ends_with("prefill")) {
            let unit = mutated(&kernel, *mistake);
            must_show(&kernel, *mistake, run(&kernel, &unit, &product, &packed, (true, 0)).map(right));
        }
    }
}

#[test]
fn mistakes_in_products_by_warpgroups_show() {
    if !can_run("mutations of products by warpgroups") || left_out("mutations of products by warpgroups") {
        return;
    }
    let name = "matmul.i2_s.cuda.wgmma.prefill";
    let kernel = kernel(Op::Matmul, name);
    assert_eq!(generated().set.formats[kernel.listed.format].name, "i2_s");
    // Neither rows nor tokens fill their tiles; stages go round several times.
    let (m, n, k) = (kernel.number("tokens") + 5, 70, 1280);
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

/// A format without a scale in its blocks, of `bits` bits.
fn format(bits: u32) -> String {
    format!(
        "doc = \"{bits} bits under a row's scale\"
block = {{ elements = 32, bytes = {} }}

[[field]]
name = \"q\"
type = \"u{bits}\"
layout = {{ shape = [32], stride = [{bits}] }}

[value]
code = \"q\"
zero = {}
scale = \"row.f32\"
",
        4 * bits,
        1 << (bits - 1),
    )
}

/// The bit of (row, k) in a tile of `bits`, from the packing's description.
fn bit(packing: &Packing, bits: u32, row: u32, k: u32) -> u32 {
    let tile = packing.tiles.iter().find(|tile| tile.code.bits() == bits).expect("a tile of that width");
    let (mut rest, mut address) = ([row, k], 0);
    for digit in tile.digits.iter().rev() {
        let axis = &mut rest[usize::from(digit.axis == gristmill_spec::model::Axis::K)];
        address += *axis % digit.extent * digit.stride;
        *axis /= digit.extent;
    }
    address
}

/// No shipped format has rows of one sum with codes wider than two bits, but any may.
#[test]
fn codes_of_four_and_eight_bits_are_exact() {
    if !can_run("wide codes by warpgroups") || left_out("wide codes by warpgroups") {
        return;
    }
    for (bits, tile_bytes) in [(4, 512), (8, 1024)] {
        let mut sources = sources();
        let path = format!("kernel-spec/formats/w{bits}.toml");
        sources.push(SourceFile { path, bytes: format(bits).into_bytes() });
        let report = check(&sources);
        let set = report.set.unwrap_or_else(|| panic!("{:?}", report.diagnostics));
        let emitted = emit(&set).unwrap_or_else(|errors| panic!("{errors:?}"));
        let name = format!("matmul.w{bits}.cuda.wgmma.wide");
        let listed = emitted.listed.iter().find(|listed| listed.name == name).expect("listed");
        let text = &emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit").text;
        let unit = Unit::new(&listed.unit, &text.replace(DEVICE_HEADER, ""));
        let packing = &set.packings[listed.packing.expect("products have packings")];
        // 256 rows and 64 tokens to a CUDA block; an odd number of stages of 32 k.
        let (m, n, k) = (70, 300, 224);
        let mut random = Random::new(25, &name);
        let w: Vec<u32> = (0..n * k).map(|_| random.below(1 << bits) as u32).collect();
        let x: Vec<i8> = (0..m * k).map(|_| (random.below(256) as i32 - 128) as i8).collect();
        let sums: Vec<i32> = x.chunks(k).map(|x| x.iter().map(|x| i32::from(*x)).sum()).collect();
        let stride = k / 32 * tile_bytes;
        let mut codes = vec![0u8; n.div_ceil(32) * stride];
        for (at, code) in w.iter().enumerate() {
            let (row, k) = (at / k, at % k);
            let address = bit(packing, bits, row as u32 % 32, k as u32 % 32) as usize;
            codes[row / 32 * stride + k / 32 * tile_bytes + address / 8] |= (code << (address % 8)) as u8;
        }
        let (codes, x_in) = (Buffer::input("codes", &codes), Buffer::input("x", &x));
        let (x_scales, x_sums) = (Buffer::input("x_scales", &vec![1f32; m]), Buffer::input("x_sums", &sums));
        let (outer, y) = (Buffer::input("outer", &vec![0.5f32; n]), Buffer::<f32>::unset("y", m * n));
        let zero = 1i32 << (bits - 1);
        // As docs/cuda.md has it.
        let mut arguments = Vec::new();
        arguments.extend(codes.address().to_le_bytes());
        arguments.extend((stride as u64).to_le_bytes());
        arguments.extend([0; 16]);
        arguments.extend((-zero).to_le_bytes());
        arguments.extend((k as u32).to_le_bytes());
        arguments.extend([0; 8]);
        arguments.extend(outer.address().to_le_bytes());
        arguments.extend([1u32, 1].map(u32::to_le_bytes).concat());
        arguments.extend(x_in.address().to_le_bytes());
        arguments.extend((k as u64).to_le_bytes());
        arguments.extend(x_scales.address().to_le_bytes());
        arguments.extend(x_sums.address().to_le_bytes());
        arguments.extend([0; 8]);
        arguments.extend(y.address().to_le_bytes());
        arguments.extend([m as u32, n as u32].map(u32::to_le_bytes).concat());
        arguments.extend([0; 8]);
        let launch = unit.launch(&listed.unit).grid(n.div_ceil(256) as u32, m.div_ceil(64) as u32);
        let launch = launch.shared(listed.plan.launch.shared());
        launch.structure(&arguments).run().unwrap_or_else(|report| panic!("{name}: {report}"));
        for (at, y) in y.read().into_iter().enumerate() {
            let (token, row) = (at / n, at % n);
            let dot: i32 = (0..k).map(|i| (w[row * k + i] as i32 - zero) * i32::from(x[token * k + i])).sum();
            assert_eq!(y, dot as f32 * 0.5, "{name}: token {token}, row {row}");
        }
    }
}
