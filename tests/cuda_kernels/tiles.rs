//! Tiles that no shipped spec asks for: an edit of the spec's tile is all it takes, and the bits stay the CPU's.

use super::choice::left_out;
use super::generated::{Kernel, generated, same_f32, sources};
use super::matmul::{on_the_cpu, pack, product, run};
use super::support::{Unit, can_run};
use super::verify::inputs::{Tokens, Weights};
use gristmill::oracle::Random;
use gristmill_codegen::Error;
use gristmill_codegen::cuda::{CudaListed, DEVICE_HEADER, Emitted, emit};
use gristmill_spec::check;
use gristmill_spec::vocab::Op;
use std::sync::Arc;

/// The specs of this build with another tile in place of the first such one that the CUDA variants of matmul have.
pub fn with_tile(from: &str, to: &str) -> Result<Emitted, Vec<Error>> {
    let mut sources = sources();
    let spec = sources.iter_mut().find(|source| source.path.ends_with("kernels/matmul.toml"));
    let spec = spec.expect("it is shipped");
    let text = String::from_utf8(spec.bytes.clone()).expect("text");
    assert!(text.contains(from), "`{from}` stands in the spec");
    spec.bytes = text.replacen(from, to, 1).into_bytes();
    let report = check(&sources);
    let set = report.set.unwrap_or_else(|| panic!("{:?}", report.diagnostics));
    emit(&set)
}

const WGMMA: &str =
    "name      = \"prefill\"\npacking   = \"mma32x64\"\ntile      = { tokens = 128, threads = 384 }";
const DP4A: &str = "tile      = { tokens = 1, threads = 512 }";
const MMA: &str = "tile      = { tokens = 8, threads = 256 }";

#[test]
fn any_tile_gives_the_cpu_s_bits() {
    if !can_run("tiles") || left_out("tiles") {
        return;
    }
    // One integer sum, short and long runs, minima, lookups; tiles that divide nothing evenly.
    let formats = ["i2_s", "tq2_0", "q4_k", "q8_0", "q6_k", "iq4_nl"];
    let tiles = [
        (DP4A, "dp4a", 2, 256),
        (DP4A, "dp4a", 3, 64),
        (DP4A, "dp4a", 8, 128),
        (MMA, "mma", 8, 32),
        (MMA, "mma", 16, 96),
        (MMA, "mma", 24, 96),
    ];
    let mut cases = 0;
    for (from, algorithm, tokens, threads) in tiles {
        let to = format!("tile = {{ tokens = {tokens}, threads = {threads} }}");
        let emitted: &'static Emitted =
            Box::leak(Box::new(with_tile(from, &to).unwrap_or_else(|errors| panic!("{errors:?}"))));
        for format in formats {
            let name = format!("matmul.{format}.cuda.{algorithm}");
            let listed =
                emitted.listed.iter().find(|l| l.op == Op::Matmul && l.name == name).expect("listed");
            let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
            let text = unit.text.replace(DEVICE_HEADER, "");
            let kernel = Kernel { listed, unit: Arc::new(Unit::new(&unit.name, &text)) };
            assert_eq!(kernel.number("tokens"), tokens);
            let elements = generated().set.formats[listed.format].elements as usize;
            let mut random = Random::new(31, &name);
            for m in [1, 2, 3, 7, 8, 9, 17] {
                let (n, k) = (17 + 5 * m, elements * (1 + 1600 / elements));
                let product =
                    product(format, &mut random, (m, n, k), Weights::Random, Tokens::I8, m % 2 == 0);
                let packed = pack(&kernel, &product);
                let case = format!("{name} tile {tokens} x {threads}: m={m} n={n} k={k}");
                let y = run(&kernel, &kernel.unit, &product, &packed, (m % 2 == 0, cases));
                let y = y.unwrap_or_else(|report| panic!("{case}: {report}"));
                same_f32(&case, &y, &on_the_cpu(format, &product));
                cases += 1;
            }
        }
    }
    println!("{cases} products");
}

/// One warpgroup that multiplies or two, any number of tokens that their registers hold.
#[test]
fn any_tile_of_warpgroups_gives_the_cpu_s_bits() {
    if !can_run("tiles of warpgroups") || left_out("tiles of warpgroups") {
        return;
    }
    let mut cases = 0;
    for (tokens, threads) in [(32, 256), (64, 256), (96, 256), (128, 256), (32, 384), (96, 384)] {
        let to = WGMMA.split_once("tile").expect("a tile").0;
        let to = format!("{to}tile = {{ tokens = {tokens}, threads = {threads} }}");
        let emitted: &'static Emitted =
            Box::leak(Box::new(with_tile(WGMMA, &to).unwrap_or_else(|errors| panic!("{errors:?}"))));
        let is_it = |l: &&CudaListed| l.op == Op::Matmul && l.name.ends_with(".cuda.wgmma.prefill");
        let mut units: Vec<&str> = Vec::new();
        for listed in emitted.listed.iter().filter(is_it) {
            if units.contains(&listed.unit.as_str()) {
                continue;
            }
            units.push(&listed.unit);
            let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
            let text = unit.text.replace(DEVICE_HEADER, "");
            let kernel = Kernel { listed, unit: Arc::new(Unit::new(&unit.name, &text)) };
            let format = &generated().set.formats[listed.format];
            let (elements, rows) = (format.elements as usize, kernel.number("rows"));
            assert_eq!((kernel.number("tokens"), rows), (tokens, threads - 128));
            let mut random = Random::new(32, &listed.name);
            for (m, n, k) in [(1, 1, elements), (tokens + 1, rows + 33, 3 * elements), (tokens / 2, 40, 768)]
            {
                let product = product(
                    &format.name,
                    &mut random,
                    (m, n, k.next_multiple_of(elements)),
                    Weights::Random,
                    Tokens::I8,
                    m % 2 == 0,
                );
                let packed = pack(&kernel, &product);
                let case = format!("{} tile {tokens} x {threads}: m={m} n={n} k={k}", listed.name);
                let y = run(&kernel, &kernel.unit, &product, &packed, (false, cases));
                let y = y.unwrap_or_else(|report| panic!("{case}: {report}"));
                same_f32(&case, &y, &on_the_cpu(&format.name, &product));
                cases += 1;
            }
        }
        assert!(!units.is_empty(), "some format has rows of one sum");
    }
    println!("{cases} products");
}

#[test]
fn a_tile_beyond_shared_memory_is_refused() {
    let errors = with_tile(DP4A, "tile = { tokens = 8, threads = 512 }").expect_err("128 KiB of terms");
    let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("8 tokens and 512 threads") && text.contains("of shared memory"), "{text}");
}
