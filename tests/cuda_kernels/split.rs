//! Products whose k is divided over CUDA blocks: the same bits for any number of parts, in any order of the blocks, launch
//! after launch on the same memory; and mistakes with what blocks hand each other.

use super::choice::{everything, left_out};
use super::generated::{Kernel, generated, kernels, same_f32};
use super::matmul::{Layers, Packed, Product, on_the_cpu, pack, product, run_layers};
use super::mutations::{kernel, must_show, mutated};
use super::support::{Mistake, Unit, can_run};
use super::verify::inputs::{Tokens, Weights};
use gristmill::oracle::Random;
use gristmill_codegen::cuda::{Launch, emit};
use gristmill_spec::model::CudaBody;
use gristmill_spec::vocab::{CudaAlgorithm, Op};

/// Two launches on the same memory; what each leaves in `y`.
fn twice(
    kernel: &Kernel,
    unit: &Unit,
    product: &Product,
    packed: &Packed,
    layers: u32,
    seed: u64,
) -> Result<[Vec<f32>; 2], String> {
    let layers = Layers::new(kernel, (product.m, product.n), layers);
    let launch = |seed| run_layers(kernel, unit, product, packed, (false, seed), Some(&layers));
    let both = [launch(2 * seed)?, launch(2 * seed + 1)?];
    let left = layers.counters().into_iter().filter(|counter| *counter != 0).count();
    if left > 0 { Err(format!("{left} counters are not zero")) } else { Ok(both) }
}

fn divides(kernel: &Kernel) -> bool {
    matches!(kernel.listed.plan.launch, Launch::Matmul { split: Some(_), .. })
}

#[test]
fn split_k_gives_the_cpu_s_bits() {
    if !can_run("k in parts") {
        return;
    }
    let mut cases = 0;
    for kernel in kernels(Op::Matmul).into_iter().filter(divides) {
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        let [rows, tokens, stage] = ["rows", "tokens", "stage"].map(|name| kernel.number(name));
        let mut random = Random::new(61, &kernel.listed.name);
        // Parts of different length, of one stage each, one part; whole tiles, and those at the edges.
        let shapes = [
            (tokens / 2 + 1, 33, 3, 3),
            (3, 40, 9, 2),
            (tokens, rows, 5, 2),
            (tokens + 1, rows + 7, 7, 3),
            (1, 1, 4, 4),
            (2 * tokens, rows, 1, 1),
        ];
        for (m, n, stages, layers) in shapes.into_iter().take(if everything() { 6 } else { 2 }) {
            // The last stage is not whole where blocks allow it.
            let k = (stages * stage - stage / 2).next_multiple_of(elements);
            let layers = layers.min(k.div_ceil(stage)) as u32;
            let case = format!("{} m={m} n={n} k={k}, {layers} parts", kernel.listed.name);
            let bias = cases % 2 == 0;
            let tokens = if cases % 3 == 0 { Tokens::F32 } else { Tokens::I8 };
            let product = product(kernel.format(), &mut random, (m, n, k), Weights::Random, tokens, bias);
            let packed = pack(&kernel, &product);
            let both = twice(&kernel, &kernel.unit, &product, &packed, layers, cases);
            let both = both.unwrap_or_else(|report| panic!("{case}: {report}"));
            let expected = on_the_cpu(kernel.format(), &product);
            both.iter().for_each(|y| same_f32(&case, y, &expected));
            cases += 1;
        }
    }
    println!("{cases} products");
    assert!(cases > 0 || !kernels(Op::Matmul).iter().any(|kernel| kernel.number("elements") == 0));
}

/// Whether k may be divided. Where runs of k have scales, the order of f32 sums is the CPU's, and nothing may be. Of the kernels for one
/// token none is: there are as many of their CUDA blocks as of any tile's, and each divides k over its warps.
fn may_be_divided(name: &str, launch: &Launch) -> bool {
    let Launch::Matmul { elements, tokens, .. } = *launch else { return false };
    elements == 0 && tokens > 1 && (name.contains(".mma") || name.contains(".wgmma"))
}

#[test]
fn only_rows_of_one_sum_are_divided() {
    for listed in &generated().emitted.listed {
        let Launch::Matmul { split, .. } = listed.plan.launch else { continue };
        let expected = may_be_divided(&listed.name, &listed.plan.launch);
        assert_eq!(split.is_some(), expected, "{}: {}", listed.name, listed.plan);
        let said = listed.plan.words.contains("split-K");
        assert_eq!(said, split.is_some(), "{}", listed.plan);
    }
}

/// A kernel that is written by hand is divided if it knows of the grid's layers.
#[test]
fn kernels_by_hand_are_divided_if_they_say_so() {
    for (text, divided) in [("by_hand", false), ("by_hand: gm_blocks_z()", true)] {
        let mut set = generated().set.clone();
        let of_matmul = set.kernels.iter_mut().filter(|kernel| kernel.op == Op::Matmul);
        let variants = of_matmul.flat_map(|kernel| &mut kernel.cuda);
        for variant in variants.filter(|variant| variant.algorithm == CudaAlgorithm::Mma) {
            let (file, function) = ("by_hand.cu".to_string(), "by_hand".to_string());
            variant.body = Some(CudaBody { file, text: text.to_string(), function });
        }
        let emitted = emit(&set).unwrap_or_else(|errors| panic!("{errors:?}"));
        for listed in &emitted.listed {
            let Launch::Matmul { split, .. } = listed.plan.launch else { continue };
            let knows = divided || !listed.hand_written;
            let expected = knows && may_be_divided(&listed.name, &listed.plan.launch);
            assert_eq!(split.is_some(), expected, "{}: {text}", listed.name);
        }
    }
}

/// Mistakes with what blocks hand each other.
const HANDED_OVER: &[Mistake] = &[
    (
        "one lane's sums",
        "        gm_sync_warp();\n        u32 before",
        "        u32 before",
        "of another block",
    ),
    (
        "sums that only one lane heard of",
        "return;\n        gm_sync_warp();\n        for",
        "return;\n        for",
        "of another block",
    ),
    (
        "a counter that goes on",
        "- gm_warp(), gm_blocks_z());",
        "- gm_warp(), 0xffffffffu);",
        "of another block",
    ),
    (
        "a counter that ends too early",
        "- gm_warp(), gm_blocks_z());",
        "- gm_warp(), gm_blocks_z() - 1);",
        "never written|of another",
    ),
    (
        "others not waited for",
        "+ 1 < gm_blocks_z()) return;",
        "+ 2 < gm_blocks_z()) return;",
        "never written|of another block",
    ),
    ("a part left out", "for (u32 z = 0; z < gm", "for (u32 z = 1; z < gm", ""),
    ("a part twice", "            if (z == gm_block_z()) continue;\n", "", ""),
    (
        "another tile's sums",
        "(u64)tile * gm_blocks_z()",
        "(u64)(0 * tile) * gm_blocks_z()",
        "of another block|no barrier",
    ),
    ("another layer's place", " + gm_block_z() * ", " + 0 * gm_block_z() * ", "of another block"),
    ("stages left out", "z * count / gm_blocks_z()", "z * (count / gm_blocks_z())", ""),
];

#[test]
fn mistakes_in_what_blocks_hand_over_show() {
    if !can_run("mutations of k in parts") || left_out("mutations of k in parts") {
        return;
    }
    let names = ["matmul.i2_s.cuda.wgmma.wide", "matmul.i2_s.cuda.mma.wide", "matmul.i2_s.cuda.mma"];
    for name in names {
        let kernel = kernel(Op::Matmul, name);
        let [rows, tokens, stage] = ["rows", "tokens", "stage"].map(|name| kernel.number(name));
        let (m, n, k) = (tokens + 3, rows + 9, 7 * stage);
        let mut random = Random::new(62, name);
        let product =
            product("i2_s", &mut random, (m, n, k.next_multiple_of(128)), Weights::Random, Tokens::I8, true);
        let packed = pack(&kernel, &product);
        let expected = on_the_cpu("i2_s", &product);
        let right = |both: [Vec<f32>; 2]| {
            both.iter()
                .flatten()
                .zip(expected.iter().chain(&expected))
                .all(|(y, e)| y.to_bits() == e.to_bits())
        };
        for seed in 0..5 {
            let itself = twice(&kernel, &kernel.unit, &product, &packed, 3, seed);
            assert_eq!(itself.map(right), Ok(true), "{name} itself, seed {seed}");
        }
        for mistake in HANDED_OVER {
            let unit = mutated(&kernel, *mistake);
            for seed in 0..2 {
                must_show(&kernel, *mistake, twice(&kernel, &unit, &product, &packed, 3, seed).map(right));
            }
        }
    }
    println!("{} mistakes", names.len() * HANDED_OVER.len());
}
