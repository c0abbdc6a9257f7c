//! Products of halves by warpgroups with one mistake in them: stages that come too late, operands of other rows or tokens.
//! Each must be reported by the emulator, or lead beyond the bound.

use super::choice::left_out;
use super::floats::{Product, beyond_the_bound, product, run};
use super::generated::{Kernel, generated, products_of_floats, sources, text_of};
use super::support::{Mistake, Unit, can_run, tells};
use gristmill::oracle::Random;
use gristmill_codegen::cuda::{DEVICE_HEADER, Emitted, emit};
use gristmill_spec::check;
use std::sync::Arc;

/// Mistakes with barriers, proxies and copies.
const STAGES: &[Mistake] = &[
    (
        "barriers that nobody waited to be made",
        "    gm_sync();\n    if",
        "    if",
        "gm_sync lies between|what is no barrier",
    ),
    (
        "operands that the products don't see",
        "phase);\n    gm_fence_proxy();\n",
        "phase);\n",
        "no gm_fence_proxy of it",
    ),
    (
        "one lane's operands",
        "        gm_sync_warp();\n        if (gm_lane() == 0) gm_barrier_arrive(full",
        "        if (gm_lane() == 0) gm_barrier_arrive(full",
        "no barrier lies between|no gm_fence_proxy|nobody waited for",
    ),
    (
        "blocks that another lane still copies",
        "        // The warp's other lanes have copied too.\n        gm_sync_warp();\n",
        "",
        "no barrier lies between|nobody waited for|never wrote",
    ),
    (
        "a stage too few waited for",
        "gm_copy_wait<Tile::AHEAD>",
        "gm_copy_wait<Tile::AHEAD + 1>",
        "nobody waited for",
    ),
    (
        "a stage that is not there yet",
        "gm_barrier_wait(full, place, phase);",
        "(void)phase;",
        "nobody waited for|never written|no barrier lies between|no gm_fence_proxy",
    ),
    (
        "a place that is still read",
        "gm_barrier_wait(empty, place, phase);",
        "(void)phase;",
        "no barrier lies between|nobody waited for|hasn't waited for|more than the",
    ),
    ("the other phase", "phase = 1;", "phase = 0;", "can't go on"),
    (
        "a phase that doesn't change",
        "phase ^= to == 0;",
        "",
        "can't go on|no barrier lies|hasn't waited for|nobody waited",
    ),
    (
        "an arrival too many to wait for",
        "gm_barrier_init(full, i, BRINGING)",
        "gm_barrier_init(full, i, BRINGING + 1)",
        "can't go on",
    ),
    (
        "an arrival too few to wait for",
        "gm_barrier_init(full, i, BRINGING)",
        "gm_barrier_init(full, i, BRINGING - 1)",
        "no barrier lies between|more than the|never written|no gm_fence_proxy|nobody waited for",
    ),
    (
        "an arrival too few to write",
        "gm_barrier_init(empty, i, MULTIPLYING)",
        "gm_barrier_init(empty, i, MULTIPLYING - 1)",
        "no barrier lies between|more than the|hasn't waited for",
    ),
    (
        "a place given back before it is read",
        "gm_barrier_arrive(empty, before)",
        "gm_barrier_arrive(empty, before * 0 + place)",
        "hasn't waited for|no barrier lies between|can't go on|more than the",
    ),
    (
        "no wait for products",
        "        gm_wgmma_wait<1>();\n",
        "",
        "hasn't waited for|no barrier lies|more than the",
    ),
    ("sums that are read too early", "    gm_wgmma_wait<0>();\n", "", "before it waited"),
    ("no fence of registers", "    gm_wgmma_fence();\n", "", "without gm_wgmma_fence"),
    (
        "blocks beyond a row",
        "gm_min(from + piece * 16, (u32)a.row_bytes - 16)",
        "(from + piece * 16)",
        "not inside|never written|",
    ),
];

/// Mistakes with what is multiplied, and where it goes.
const VALUES: &[Mistake] = &[
    ("the other rows", "16) + group * 1024", "16) + (1 - group) * 1024", ""),
    ("core matrices of rows that overlap", "Tile::ROWS * 16, 128)", "Tile::ROWS * 16, 64)", ""),
    ("tokens without their swizzle", "(gm_lane() % 8 ^ token % 8) * 16", "gm_lane() % 8 * 16", ""),
    ("another k", "Tile::X_BYTES, step * 32)", "Tile::X_BYTES, (step ^ 1) * 32)", ""),
    (
        "another row's blocks",
        "gm_min(first_row + row, a.n - 1) *",
        "gm_min(first_row + (row ^ 1), a.n - 1) *",
        "",
    ),
    ("operands exchanged", "Tile::multiply(sums, w, x)", "Tile::multiply(sums, x, w)", "|no barrier lies"),
    ("the next eight of a row", "pieces[i]);\n            //", "pieces[i ^ 1]);\n            //", ""),
    ("weights behind the last", "if (e + i * 8 >= a.k)", "if (e + i * 8 > a.k)", ""),
    ("half a stage twice", "a.x_stride + gm_lane() % 8 * 8;", "a.x_stride + gm_lane() % 4 * 8;", ""),
    (
        "another token's activations",
        "(const u32x4 *)(x[i] - back))",
        "(const u32x4 *)(x[i ^ 1] - back))",
        "|not inside|never written",
    ),
    ("activations that go on too far", "x[i] += Tile::STAGE", "x[i] += Tile::STAGE / 2", ""),
    ("weights of the first stage", "e = stage * Tile::STAGE + half * 32", "e = half * 32", ""),
    (
        "the block before",
        "const u32 unit = raw_unit<Tile>(stage), row",
        "const u32 unit = raw_unit<Tile>(stage) / 2 * 2, row",
        "|nobody waited for|never wrote",
    ),
    ("a bias that is subtracted", "sums[i] + bias[down]", "sums[i] - bias[down]", ""),
    (
        "a row beyond the last",
        "row + down * 8 < a.n && ",
        "row + down * 8 <= a.n && ",
        "not inside|was there",
    ),
    ("a token beyond the last", "token + column < a.m", "token + column <= a.m", "not inside"),
    (
        "rows of another lane",
        "gm_warp() * 16 + gm_lane() / 4, token",
        "gm_warp() * 16 + gm_lane() % 8, token",
        "|not inside|was there|never written",
    ),
];

/// What the kernels share.
const HEADER: &str = include_str!("../../codegen/cuda/wgmma_halves.h");

/// The kernel with a place of its own text or of the header changed, which stands there once.
fn wrong(kernel: &Kernel, (name, from, to, _): &Mistake) -> Kernel {
    let (text, function) = (text_of(&kernel.listed.unit), kernel.function());
    let find = |what: &str| text.find(what).unwrap_or_else(|| panic!("`{what}` stands in the unit"));
    let (begin, end) = (find(&format!("struct {function}_tile")), find(&format!("GM_EXPORT({function})")));
    let own = &text[begin..end];
    let places = own.matches(from).count() + HEADER.matches(from).count();
    assert_eq!(places, 1, "{name}: `{from}` stands once for {function}");
    // Without the unit's other kernels.
    let front = text[..find("#ifndef GM_EMULATOR\n// d += a * b")].replace(HEADER, &HEADER.replace(from, to));
    let text = format!("{front}{}GM_EXPORT({function})\n", own.replace(from, to));
    Kernel { listed: kernel.listed, unit: Arc::new(Unit::new(&kernel.listed.unit, &text)) }
}

fn all_show(kernel: &Kernel, product: &Product, mistakes: &[Mistake]) {
    let x_type = super::floats::of_kernel(kernel.listed);
    let y = run(kernel, product, x_type, (false, 1)).expect("no mistake").expect("no fault");
    assert_eq!(beyond_the_bound(kernel, product, x_type, &y), None, "without a mistake");
    for mistake in mistakes {
        let (name, .., words) = mistake;
        let wrong = wrong(kernel, mistake);
        let shown = (0..3).any(|seed| match run(&wrong, product, x_type, (false, seed)) {
            Err(report) => {
                assert!(!words.is_empty() && tells(&report, words), "{name}, seed {seed}: {report}");
                true
            }
            Ok(Err(_)) => true,
            Ok(Ok(y)) => beyond_the_bound(&wrong, product, x_type, &y).is_some(),
        });
        assert!(shown, "{}: {name} goes unnoticed", kernel.function());
    }
}

/// The kernel of the first of these formats that this build has.
fn of_format(formats: &[&str], algorithm: &str) -> Kernel {
    let found = formats.iter().find_map(|format| {
        let name = format!("matmul.{format}.cuda.{algorithm}");
        products_of_floats(&|listed| listed.name == name).pop()
    });
    found.unwrap_or_else(|| panic!("{algorithm} is listed for one of {formats:?}"))
}

#[test]
fn mistakes_in_warpgroups_of_halves_show() {
    if !can_run("mistakes in warpgroups of halves") || left_out("mistakes in warpgroups of halves") {
        return;
    }
    let kernel = of_format(&["q4_0", "i2_s"], "wgmma_f16.wide");
    let elements = generated().set.formats[kernel.listed.format].elements as usize;
    let mut random = Random::new(46, kernel.format());
    // As many stages as make every place twice; rows and tokens that fill no tile.
    let shape = (70, 100, (9 * 64 + 32) / elements * elements);
    let product = product(kernel.format(), &mut random, shape, true);
    all_show(&kernel, &product, STAGES);
    all_show(&kernel, &product, VALUES);
}

/// Tiles that the shipped variants don't have: one and three times 64 tokens.
#[test]
fn other_tiles_of_halves() {
    if !can_run("other tiles of halves") || left_out("other tiles of halves") {
        return;
    }
    let mut sources = sources();
    for source in sources.iter_mut().filter(|source| source.path.ends_with("kernels/matmul.toml")) {
        let text = String::from_utf8(source.bytes.clone()).expect("text");
        let text = text.replace("tokens = 128, threads = 384", "tokens = 64, threads = 384");
        source.bytes =
            text.replace("tokens = 256, threads = 384", "tokens = 192, threads = 384").into_bytes();
    }
    // The int8 variants of 384 threads change with them, to a tile that they have too.
    let report = check(&sources);
    let set = report.set.unwrap_or_else(|| panic!("{:?}", report.diagnostics));
    let emitted: &'static Emitted = Box::leak(Box::new(emit(&set).unwrap_or_else(|e| panic!("{e:?}"))));
    let mut tried = 0;
    for algorithm in ["wgmma_f16.prefill", "wgmma_f16.wide", "wgmma_bf16.prefill", "wgmma_bf16.wide"] {
        let name = format!("matmul.i2_s.cuda.{algorithm}");
        let listed = emitted.listed.iter().find(|listed| listed.name == name).expect("listed");
        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
        let text = unit.text.replace(DEVICE_HEADER, "");
        let kernel = Kernel { listed, unit: Arc::new(Unit::new(&unit.name, &text)) };
        let tokens = kernel.number("tokens");
        assert_eq!(tokens, if algorithm.ends_with("wide") { 64 } else { 192 });
        let mut random = Random::new(47, &name);
        for (m, n) in [(tokens, 128), (tokens + 7, 33)] {
            let product = product("i2_s", &mut random, (m, n, 640), m > tokens);
            let x_type = super::floats::of_kernel(listed);
            let y = run(&kernel, &product, x_type, (false, m as u64)).expect("no mistake").expect("no fault");
            assert_eq!(beyond_the_bound(&kernel, &product, x_type, &y), None, "{name}, m={m} n={n}");
            tried += 1;
        }
    }
    assert_eq!(tried, 8);
}
