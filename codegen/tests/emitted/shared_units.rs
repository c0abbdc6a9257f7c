//! Units that kernels of several variants are in: a user's variant beside the shipped ones takes nothing from these.

use gristmill_codegen::cuda::{Emitted, emit};
use gristmill_spec::{SourceFile, check, render, shipped};

/// The shipped kernels with variants of one's own, which come first.
fn with(variants: &str) -> Emitted {
    let head = "doc = \"mine\"\nop = \"matmul\"\nformats = [\"q5_0\"]\ninput = [\"f32\", \"i8\"]\noutput = \"f32\"\n";
    let mut sources = shipped().expect("the shipped specs are readable");
    let bytes = format!("{head}{variants}").into_bytes();
    sources.push(SourceFile { path: "specs/kernels/mine.toml".into(), bytes });
    let report = check(&sources);
    let set = report.set.unwrap_or_else(|| panic!("{}", render(&sources, &report.diagnostics, false)));
    emit(&set).expect("plans")
}

/// Products in f32 and in halves for the same devices had one unit, with the vocabulary of whichever came first.
#[test]
fn units_of_products_of_floats_hold_what_they_call() {
    let emitted = with(
        "[[cuda]]\nalgorithm = \"fma\"\nmin_cc = \"7.5\"\ntile = { tokens = 4, threads = 128 }\n\
         [[cuda]]\nalgorithm = \"mma_f16\"\n",
    );
    let vocabulary = [
        ("    fma_product<", include_str!("../../cuda/fma.h")),
        ("    product_of_halves<", include_str!("../../cuda/halves.h")),
    ];
    for (call, header) in vocabulary {
        let callers: Vec<_> = emitted.units.iter().filter(|unit| unit.text.contains(call)).collect();
        assert!(callers.len() > 1);
        for unit in callers {
            assert_eq!(unit.text.matches(header).count(), 1, "{} calls {call}", unit.name);
        }
    }
    assert!(emitted.units.iter().any(|unit| unit.name == "rows_q5_0_fma_sm75"));
}

/// A product of integers is in one unit, whatever its variants ask of devices and of images.
#[test]
fn a_unit_serves_all_of_its_variants() {
    let tile = "algorithm = \"mma\"\npacking = \"mma32x64\"\ntile = { tokens = 8, threads = 256 }\n";
    let mine = format!("[[cuda]]\n{tile}min_cc = \"8.6\"\nbudget = {{ registers = 64 }}\n");
    let emitted = with(&mine);
    let listed = |name: &str| emitted.listed.iter().find(|listed| listed.name == name).expect("listed");
    let (mine, shipped) = (listed("mine.q5_0.cuda.mma"), listed("matmul.q5_0.cuda.mma"));
    assert_eq!((mine.min_cc, shipped.min_cc, &mine.unit), ((8, 6), (7, 5), &shipped.unit));
    let unit = emitted.units.iter().find(|unit| unit.name == mine.unit).expect("its unit");
    assert_eq!(unit.min_cc, (7, 5), "the shipped kernel has images for what it runs on");
    let registers: Vec<u32> = unit.kernels.iter().map(|(_, budget)| budget.registers).collect();
    assert_eq!(registers, [64, 80], "{:?}", unit.kernels);
    // Those of floats for one device are a unit, too.
    let fma =
        "[[cuda]]\nalgorithm = \"fma\"\ntile = { tokens = 8, threads = 128 }\nbudget = { registers = 90 }\n";
    let emitted = with(fma);
    let unit = emitted.units.iter().find(|unit| unit.name == "rows_q5_0_fma_sm50").expect("a unit");
    let kernel = unit.kernels.iter().find(|(name, _)| name.ends_with("_128x8")).expect("its kernel");
    assert_eq!(kernel.1.registers, 90);
}
