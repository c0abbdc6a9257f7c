//! A kernel that a spec names instead of having it generated: it is listed for each of its formats and gives the
//! oracle's bits; one that does not is caught.

use super::blocks::dequantize;
use super::choice::left_out;
use super::generated::{Kernel, generated, same_f32, sources};
use super::support::{Unit, can_run};
use super::verify::inputs::{self, Weights};
use gristmill::oracle::Random;
use gristmill_codegen::cuda::{DEVICE_HEADER, Emitted, emit};
use gristmill_spec::{check, read_path};
use std::path::Path;
use std::sync::Arc;

/// The specs of this build with the hand-written kernel.
fn emitted() -> Emitted {
    let mut sources = sources();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/invented/by_hand");
    sources.extend(read_path(&folder).expect("readable"));
    let report = check(&sources);
    let set = report.set.unwrap_or_else(|| panic!("{:?}", report.diagnostics));
    emit(&set).unwrap_or_else(|errors| panic!("{errors:?}"))
}

#[test]
fn a_body_by_hand_gives_the_oracle_s_bits() {
    if !can_run("hand-written") || left_out("hand-written") {
        return;
    }
    let emitted: &'static Emitted = Box::leak(Box::new(emitted()));
    let mine = || emitted.listed.iter().filter(|listed| listed.name.starts_with("by_block."));
    let names: Vec<&str> = mine().map(|listed| listed.name.as_str()).collect();
    assert_eq!(names, ["by_block.q4_0.cuda", "by_block.q6_k.cuda", "by_block.q8_0.cuda"]);
    for listed in mine() {
        assert!(listed.hand_written && listed.plan.words.contains("by_block.cu"), "{listed:?}");
        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
        assert_eq!(unit.kernels.len(), 1);
        assert_eq!(unit.kernels[0].0, "dequantize_by_block");
        let text = unit.text.replace(DEVICE_HEADER, "");
        let kernel = Kernel { listed, unit: Arc::new(Unit::new(&unit.name, &text)) };
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let mut random = Random::new(5, kernel.format());
        let (n, k) = (3, 2 * oracle.format().elements as usize);
        let tensor = inputs::tensor(&oracle, &mut random, n, k, Weights::Random);
        let expected: Vec<f32> =
            (0..n).flat_map(|row| oracle.row(&tensor, n, k, row).expect("valid").f32s).collect();
        let run = |unit: &Unit| dequantize(&kernel, unit, &tensor, (n, k), u32::MAX, 1);
        let found = run(&kernel.unit).expect("runs").expect("no fault");
        same_f32(&listed.name, &found, &expected);

        let short = text.replacen("e < ELEMENTS", "e + N < ELEMENTS", 1);
        assert_ne!(short, text);
        let short = Unit::new(&format!("{}_short", unit.name), &short);
        run(&short).expect_err("a value that is never written is seen");
    }
}
