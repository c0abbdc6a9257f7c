//! Tiles that no shipped spec asks for: an edit of the spec's tile is all it takes, and the bits stay the CPU's.

use super::generated::{Kernel, generated, same_f32, sources};
use super::matmul::{on_the_cpu, pack, product, run};
use super::random::Random;
use super::support::{Unit, can_run};
use super::verify::inputs::{Tokens, Weights};
use gristmill_codegen::Error;
use gristmill_codegen::cuda::{DEVICE_HEADER, Emitted, emit};
use gristmill_spec::check;
use gristmill_spec::vocab::Op;
use std::sync::Arc;

/// The specs of this build with another tile in place of the first such one that the CUDA variants of matmul have.
fn with_tile(from: &str, to: &str) -> Result<Emitted, Vec<Error>> {
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

const DP4A: &str = "tile      = { tokens = 1, threads = 512 }";
const MMA: &str = "tile      = { tokens = 8, threads = 256 }";

#[test]
fn any_tile_gives_the_cpu_s_bits() {
    if !can_run("tiles") {
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

#[test]
fn a_tile_beyond_shared_memory_is_refused() {
    let errors = with_tile(DP4A, "tile = { tokens = 8, threads = 512 }").expect_err("128 KiB of terms");
    let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("8 tokens and 512 threads") && text.contains("of shared memory"), "{text}");
}
