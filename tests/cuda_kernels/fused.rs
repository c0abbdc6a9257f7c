//! Products that quantize their activations: the bits of a product of what `quantize_activations` would give, for floats of
//! every type, any number of panels beside each other, and the same faults.

use super::activations::{Rows, rows};
use super::choice::left_out;
use super::generated::{Kernel, NO_FAULT, fused_products, generated, same_f32};
use super::matmul::{Activations, Packed, Product, WeightBuffers, if_any, on_the_cpu, pack};
use super::mutations::{must_show, mutated};
use super::support::{Buffer, Mistake, Unit, can_run};
use super::tiles::with_tile;
use super::verify::inputs::{self, Weights};
use gristmill::oracle::{Int8Row, Random, Refused};
use gristmill_codegen::cuda::{DEVICE_HEADER, Emitted};
use std::sync::Arc;

/// How a product is launched: threads, CUDA blocks, panels beside each other, and the emulator's seed.
#[derive(Clone, Copy, Debug)]
struct Launch {
    threads: usize,
    blocks: usize,
    side: usize,
    seed: u64,
}

/// The product of `x`, whose first value is number `first` of all activations, and the fault.
fn run(
    kernel: &Kernel,
    unit: &Unit,
    product: &Product,
    (x, first): (&Rows, u64),
    packed: &Packed,
    launch: Launch,
) -> Result<(Vec<f32>, u64), String> {
    let Product { m, n, k, bias, .. } = product;
    let (m, n, k) = (*m, *n, *k);
    let weights = WeightBuffers::of(kernel, packed);
    // The layer in front has just written them.
    let input = Buffer::input("x", &x.bytes).fresh();
    let fault = Buffer::output("fault", &[NO_FAULT]);
    let bias_values = Buffer::input("bias", bias.as_deref().unwrap_or_default());
    let y = Buffer::<f32>::unset("y", m * n);
    // As docs/cuda.md has it.
    let mut arguments = weights.arguments(kernel, k, product.x.scales.len() / m);
    arguments.extend(input.address().to_le_bytes());
    arguments.extend(first.to_le_bytes());
    arguments.extend(fault.address().to_le_bytes());
    arguments.extend(x.kind.to_le_bytes());
    arguments.extend(launch.side.ilog2().to_le_bytes());
    arguments.extend(if_any(bias.is_some(), bias_values.address()).to_le_bytes());
    arguments.extend(y.address().to_le_bytes());
    arguments.extend((m as u32).to_le_bytes());
    arguments.extend((n as u32).to_le_bytes());
    // No part of k.
    arguments.extend([0; 8]);
    let grid = (launch.blocks as u32, m.div_ceil(kernel.number("tokens")) as u32);
    let launched = unit.launch(kernel.function()).grid(grid.0, grid.1).threads(launch.threads as u32);
    launched.structure(&arguments).overlapping(kernel.listed.plan.overlaps).seed(launch.seed).run()?;
    match fault.read()[0] {
        NO_FAULT => Ok((y.try_read()?, NO_FAULT)),
        fault => Ok((Vec::new(), fault)),
    }
}

/// What `quantize_activations` makes of rows of a format's activations, or the fault.
fn quantized(kernel: &Kernel, values: &[f32], k: usize) -> Result<Activations, u64> {
    let oracle = generated().oracle.format(kernel.format()).expect("described");
    let block = oracle.activations().block.map_or(k, |block| block as usize);
    let mut all = Activations { q: Vec::new(), scales: Vec::new() };
    for (row, x) in values.chunks(k).enumerate() {
        let made = Int8Row::quantize(oracle.activations(), x).map_err(|refused| match refused {
            Refused::NonFinite(at) => (row * k + at) as u64 * 4,
            Refused::ScaleOverflow { block: at, .. } => (row * k + at * block) as u64 * 4 + 2,
        })?;
        all.q.extend(made.q);
        all.scales.extend(made.scales);
    }
    Ok(all)
}

/// Weights for activations that are `x`.
fn product(
    kernel: &Kernel,
    random: &mut Random,
    (m, n, k): (usize, usize, usize),
    weights: Weights,
    x: Activations,
    bias: bool,
) -> Product {
    let oracle = generated().oracle.format(kernel.format()).expect("described");
    let tensor = inputs::tensor(&oracle, random, n, k, weights);
    Product { m, n, k, tensor, x, bias: bias.then(|| random.gauss_vec(n, 1.0)) }
}

/// Blocks of the format that rows are made of, so that k is about this.
fn blocks(kernel: &Kernel, k: usize) -> usize {
    let elements = generated().set.formats[kernel.listed.format].elements as usize;
    k.div_ceil(elements).max(1)
}

#[test]
fn products_of_floats_are_the_cpu_s_bits() {
    if !can_run("products that quantize") {
        return;
    }
    let mut cases = 0;
    for (number, kernel) in fused_products().iter().enumerate() {
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        let threads = kernel.number("threads");
        let fewest = kernel.number("fewest");
        let longest = kernel.listed.shape.k.max as usize / elements;
        let mut random = Random::new(51, &kernel.listed.name);
        // (m, n, blocks, threads, CUDA blocks, panels beside each other)
        let shapes = [
            (1, 1, 1, threads, 1, 1),
            (1, 33, 3, threads, 3, 1),
            (1, 65, 2, threads, 1, 1),
            (1, 130, 5, threads, 2, 2),
            (1, 100, 2, threads, 1, 4),
            (1, 97, blocks(kernel, 600), threads, 2, 4),
            (1, 40, 2, fewest, 2, 1),
            (2, 17, 3, threads, 1, 2),
            // More tiles and units than the CUDA block has threads for at once, and the longest rows.
            (1, 3, blocks(kernel, 4352).min(longest), threads, 1, 1),
            (1, 35, blocks(kernel, 4352).min(longest), threads, 1, 4),
            (1, 18, longest, threads, 2, 1),
        ];
        for (case, (m, n, blocks, threads, grid, side)) in shapes.into_iter().enumerate() {
            let k = blocks * elements;
            let mut floats = random.gauss_vec(m * k, 1.0);
            // Extremes: all of a row at one end or the other, or a row of zeros.
            match case {
                3 => floats.iter_mut().for_each(|x| *x = -3.5),
                4 => floats.iter_mut().enumerate().for_each(|(i, x)| *x = [7.0, -7.0][i % 2]),
                6 => floats.fill(0.0),
                _ => {}
            }
            let x = rows((number + case) as u32 % 3, &floats);
            let made = quantized(kernel, &x.values, k).expect("finite");
            let weights = [Weights::Random, Weights::EveryCode, Weights::Highest, Weights::Lowest][case % 4];
            let product = product(kernel, &mut random, (m, n, k), weights, made, case % 2 == 1);
            let packed = pack(kernel, &product);
            let launch = Launch { threads, blocks: grid, side, seed: cases };
            let name = format!("{} m={m} n={n} k={k} type {} {launch:?}", kernel.listed.name, x.kind);
            let y = run(kernel, &kernel.unit, &product, (&x, 0), &packed, launch);
            let (y, fault) = y.unwrap_or_else(|report| panic!("{name}: {report}"));
            assert_eq!(fault, NO_FAULT, "{name}");
            same_f32(&name, &y, &on_the_cpu(kernel.format(), &product));
            cases += 1;
        }
    }
    println!("{cases} products");
    assert!(cases >= 30, "only {cases} products were computed");
}

/// Tiles of several tokens, which no shipped spec asks for.
#[test]
fn several_tokens_are_quantized_too() {
    if !can_run("tiles of products that quantize") || left_out("tiles of products that quantize") {
        return;
    }
    let mut cases = 0;
    for (tokens, threads) in [(2, 256), (3, 96), (4, 128)] {
        let tile = |tokens, threads| format!("tile        = {{ tokens = {tokens}, threads = {threads} }}");
        let emitted = with_tile(&tile(1, 512), &tile(tokens, threads));
        let emitted: &'static Emitted =
            Box::leak(Box::new(emitted.unwrap_or_else(|errors| panic!("{errors:?}"))));
        for format in ["i2_s", "tq2_0", "i2s_absmax", "q4_k", "q8_0", "iq4_nl"] {
            let name = format!("matmul.{format}.cuda.dp4a.fused");
            let Some(listed) = emitted.listed.iter().find(|listed| listed.name == name) else { continue };
            let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
            let text = unit.text.replace(DEVICE_HEADER, "");
            let kernel = Kernel { listed, unit: Arc::new(Unit::new(&unit.name, &text)) };
            assert_eq!(kernel.number("tokens"), tokens);
            let elements = generated().set.formats[listed.format].elements as usize;
            let mut random = Random::new(54, &name);
            for (m, n, side) in [(1, 20, 1), (2, 33, 2), (5, 70, 1), (9, 16, 2)] {
                let k = blocks(&kernel, 600) * elements;
                let side = if threads / side >= 128.max(16 * tokens) { side } else { 1 };
                let x = rows(m as u32 % 3, &random.gauss_vec(m * k, 1.0));
                let made = quantized(&kernel, &x.values, k).expect("finite");
                let product = product(&kernel, &mut random, (m, n, k), Weights::Random, made, m % 2 == 0);
                let packed = pack(&kernel, &product);
                let launch = Launch { threads, blocks: 2, side, seed: cases };
                let case = format!("{name} tile {tokens}: m={m} n={n} k={k} {launch:?}");
                let y = run(&kernel, &kernel.unit, &product, (&x, 0), &packed, launch);
                let (y, fault) = y.unwrap_or_else(|report| panic!("{case}: {report}"));
                assert_eq!(fault, NO_FAULT, "{case}");
                same_f32(&case, &y, &on_the_cpu(format, &product));
                cases += 1;
            }
        }
    }
    println!("{cases} products");
    assert!(cases >= 12, "only {cases} products were computed");
}

/// The first value that is not finite, or the first block whose scale is none, is reported by every CUDA block alike.
#[test]
fn faults_are_those_of_the_quantizer() {
    if !can_run("faults of products that quantize") {
        return;
    }
    let mut cases = 0;
    for (number, kernel) in fused_products().iter().enumerate() {
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        let (n, k) = (40, blocks(kernel, 700) * elements);
        let mut random = Random::new(52, &kernel.listed.name);
        let mut sources = inputs::sources(&mut random, k);
        for (value, places) in
            [(f32::NAN, [k - 1, k / 2]), (f32::INFINITY, [0, k - 1]), (f32::NEG_INFINITY, [k / 3, k / 3])]
        {
            let mut x = random.gauss_vec(k, 1.0);
            places.into_iter().for_each(|place| x[place] = value);
            sources.push(("not finite", x));
        }
        sources.push(("beyond an f16 scale", vec![1e30; k]));
        let zeros = Activations { q: vec![0; k], scales: Vec::new() };
        let mut product = product(kernel, &mut random, (1, n, k), Weights::Random, zeros, true);
        let packed = pack(kernel, &product);
        for (case, (source, x)) in sources.iter().enumerate() {
            let x = rows(case as u32 % 3, x);
            let name = format!("{}: {source}, type {}", kernel.listed.name, x.kind);
            let launch =
                Launch { threads: kernel.number("threads"), blocks: 2, side: 1, seed: number as u64 };
            let made = quantized(kernel, &x.values, k);
            if let Ok(made) = &made {
                product.x = Activations { q: made.q.clone(), scales: made.scales.clone() };
            }
            // A later launch of many tokens counts from its first one.
            let first = if case % 2 == 0 { 0 } else { 3 * k as u64 };
            let found = run(kernel, &kernel.unit, &product, (&x, first), &packed, launch);
            let (y, fault) = found.unwrap_or_else(|report| panic!("{name}: {report}"));
            match made {
                Ok(_) => {
                    assert_eq!(fault, NO_FAULT, "{name}");
                    same_f32(&name, &y, &on_the_cpu(kernel.format(), &product));
                }
                Err(expected) => assert_eq!(fault, expected + first * 4, "{name}: the fault"),
            }
            cases += 1;
        }
    }
    println!("{cases} inputs");
    assert!(cases >= 30, "only {cases} inputs were tried");
}

#[test]
fn mistakes_in_products_that_quantize_show() {
    if !can_run("mutations of products that quantize") || left_out("mutations of products that quantize") {
        return;
    }
    const EARLY: &str = "a launch in front may still write it";
    let rows_of: &[Mistake] = &[
        ("no wait", "    gm_wait_for_previous();\n", "", "in front of gm_wait_for_previous"),
        (
            "activations too early",
            "    gm_wait_for_previous();\n",
            "    if (gm_load_early((const u32 *)a.x) == 1) return;\n    gm_wait_for_previous();\n",
            EARLY,
        ),
        (
            "no barrier behind the sizes",
            "size_of_warp[gm_warp()] = largest;\n    gm_sync();",
            "size_of_warp[gm_warp()] = largest;",
            "no barrier|never wrote",
        ),
        (
            "no barrier behind the values",
            "sum_of_warp[gm_warp()] = sum;\n    gm_sync();",
            "sum_of_warp[gm_warp()] = sum;",
            "no barrier|never wrote",
        ),
        (
            "a warp's values left out",
            "load_round(row, gm_thread() * 4, all",
            "load_round(row, gm_thread() * 4 + 128, all",
            "",
        ),
        ("another rounding", "gm_rint(x * apply)", "gm_round(x * apply)", ""),
        ("another scale", "const f32 kept = apply", "const f32 kept = 2.0f * apply", ""),
        ("another tile's tokens", "tile * 16)", "(tile ^ 1) * 16)", ""),
        ("one half for all panels", ", half ^= 1)", ")", "no barrier"),
        ("another side's sums", "side * (sharing / 32)", "0", ""),
        ("panels left out", "panel += apart, half", "panel += 2 * apart, half", ""),
        ("weights of the panel before", "(u64)(panel + apart) * a.stride", "(u64)panel * a.stride", ""),
        (
            "a panel too many",
            "until = !last || more ? tiles : 0",
            "until = !last || more ? tiles : tiles",
            "not inside",
        ),
        ("rows beyond the last", "t < tokens && row < a.n", "t < tokens", "not inside|another block"),
    ];
    let shared: &[Mistake] = &[
        (
            "no barrier behind the values",
            "    }\n    gm_sync();\n    const u32 half",
            "    }\n    const u32 half",
            "no barrier|never wrote",
        ),
        (
            "half of a block's lanes",
            "== 32) v = gm_warp_max(v);",
            "== 32) v = gm_max(v, gm_shfl_xor(v, 1));",
            "",
        ),
        ("sums of half the lanes", "mask < unit / EACH", "mask < unit / EACH / 2", ""),
        ("another super-block's scale", "block * 256 / 256", "(block ^ 1) * 256 / 256", ""),
        ("another run's sum", "+ unit];", "+ (unit ^ 1)];", ""),
        ("no barrier behind the sums", "        gm_sync();\n    }\n", "    }\n", "no barrier"),
        ("another side's terms", "side * groups + i", "i", ""),
    ];
    let scaled: &[Mistake] = &[
        ("lanes of another block", "mask < LANES;", "mask < 2 * LANES;", ""),
        ("a block left out", "first < blocks; first +=", "first + 4 < blocks; first +=", "never wrote"),
        ("a scale of another block", "to.scales[to", "to.scales[1 + to", "never wrote|no barrier"),
        ("a scale that is not stored", "gm_f16_to_f32(gm_f32_to_f16(stored))", "stored", ""),
        ("one half for all rounds", ", half ^= 1", "", "no barrier"),
    ];
    let by_mma: &[Mistake] = &[
        ("no wait", "    gm_wait_for_previous();\n", "", "in front of gm_wait_for_previous"),
        ("one half for all panels", ", half_of_sums ^= 1)", ")", "no barrier"),
        ("panels left out", "panel += gm_blocks(), half", "panel += 2 * gm_blocks(), half", ""),
        ("codes of the panel before", "(u64)(next_panel) * a.stride", "(u64)(panel) * a.stride", ""),
        ("a panel too many", "if (next_panel < panels)", "if (next_panel <= panels)", "not inside"),
        ("another quarter's tokens", "+ 0 + quarter * 8", "+ 0 + (3 - quarter) * 8", ""),
    ];
    let mut count = 0;
    for (name, mistakes) in [
        ("matmul.i2_s.cuda.mma.fused", by_mma),
        ("matmul.i2_s.cuda.dp4a.fused", rows_of),
        ("matmul.q4_k.cuda.dp4a.fused", shared),
        ("matmul.q8_0.cuda.dp4a.fused", scaled),
    ] {
        let Some(kernel) = fused_products().into_iter().find(|kernel| kernel.listed.name == name) else {
            continue;
        };
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        // Several panels after each other and beside each other, the last ones missing and not whole.
        let (n, k) = (220, 2560usize.next_multiple_of(elements));
        let mut random = Random::new(53, name);
        let mut floats = random.gauss_vec(k, 1.0);
        // Ties of the rounding.
        floats.iter_mut().step_by(3).for_each(|x| *x = x.signum() * 0.5);
        floats[5] = 127.0;
        let x = rows(0, &floats);
        let made = quantized(&kernel, &x.values, k).expect("finite");
        let product = product(&kernel, &mut random, (1, n, k), Weights::Random, made, true);
        let packed = pack(&kernel, &product);
        let expected = on_the_cpu(kernel.format(), &product);
        let threads = kernel.number("threads");
        let right = |(y, fault): (Vec<f32>, u64)| {
            fault == NO_FAULT && y.iter().zip(&expected).all(|(y, e)| y.to_bits() == e.to_bits())
        };
        let launch = |seed| Launch { threads, blocks: 3, side: 2, seed };
        let outcome = run(&kernel, &kernel.unit, &product, (&x, 0), &packed, launch(0)).map(right);
        assert_eq!(outcome, Ok(true), "{name} itself");
        for mistake in mistakes {
            let unit = mutated(&kernel, *mistake);
            for seed in 0..2 {
                let outcome = run(&kernel, &unit, &product, (&x, 0), &packed, launch(seed)).map(right);
                must_show(&kernel, *mistake, outcome);
            }
            count += 1;
        }
    }
    println!("{count} mistakes");
}
