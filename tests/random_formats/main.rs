//! The random formats of this build (`rf_SEED_INDEX`), through every kernel that this machine can run and through the
//! emulator, against the decoder that knows where each bit was placed.
//!
//! A build holds some where `GRISTMILL_EXTRA_SPECS` names a folder that `codegen/examples/random_formats.rs` wrote;
//! `tests/random_formats/run` does all of it. `GRISTMILL_RANDOM_FORMATS` says how many there must be.
#![cfg(all(feature = "cli", target_os = "linux"))]

mod drawn;
mod emulated;
#[path = "../../oracle/src/random.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod random;
#[path = "../cuda/support/mod.rs"]
mod support;

use drawn::{Data, Drawn};
use gristmill::oracle::{Oracle, first_difference};
use gristmill::registry::{Entry, FormatInfo};
use gristmill::vocab::{DType, DeviceKind, Op};
use gristmill::{
    CpuProfile, Dequantizer, Input, Matmul, QuantizedMatrix, REGISTRY, Request, Restrict, Shape, Threads,
    Workspace,
};
use random::Random;
use std::io::Write as _;
use std::sync::Once;

/// A format of this build, drawn again.
pub struct Subject {
    /// Its place among the formats of this build.
    pub index: usize,
    /// What the build knows of it.
    pub info: &'static FormatInfo,
    /// What the draw knows of it.
    pub drawn: Drawn,
}

/// The random formats of this build.
pub fn subjects() -> Vec<Subject> {
    let drawn = |(index, info): (usize, &'static FormatInfo)| {
        Some(Subject { index, info, drawn: Drawn::of_name(info.name)? })
    };
    let found: Vec<Subject> = REGISTRY.formats.iter().enumerate().filter_map(drawn).collect();
    let least = std::env::var("GRISTMILL_RANDOM_FORMATS").map_or(0, |n| n.parse().expect("a number"));
    assert!(found.len() >= least, "{} random formats in this build, wanted {least}", found.len());
    if found.is_empty() {
        // Once, and not by a macro, whose output the test harness keeps to itself. Nothing that a machine lacks: a build of their own
        // tests them, so GRISTMILL_NO_SKIP has no say here.
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            let what =
                "LEFT OUT: random formats: this build has none; tests/random_formats/run makes one that has";
            writeln!(std::io::stderr(), "{what}").expect("stderr is there");
        });
    }
    found
}

/// What to do about a find.
pub fn context(subject: &Subject) -> String {
    let files = subject.drawn.files();
    let (path, text) = &files[0];
    format!("{path}:\n{}", String::from_utf8_lossy(text))
}

/// Runs a check of every format and fails with all that were found wrong, each with its spec.
pub fn all_right(subjects: &[Subject], check: impl Fn(&Subject) -> Result<(), String>) {
    let wrong = subjects.iter().filter_map(|subject| Some((subject, check(subject).err()?)));
    let wrong: Vec<String> =
        wrong.map(|(subject, what)| format!("{}: {what}\n{}", subject.info.name, context(subject))).collect();
    assert!(
        wrong.is_empty(),
        "{} of {} formats are wrong\n{}",
        wrong.len(),
        subjects.len(),
        wrong.join("\n----\n")
    );
}

/// Compares f32 values bit by bit; NaNs are alike.
pub fn same(case: &str, found: &[f32], expected: &[f32]) -> Result<(), String> {
    match first_difference(expected, found) {
        _ if found.len() != expected.len() => Err(format!("{case}: {} values", found.len())),
        None => Ok(()),
        Some(i) => Err(format!(
            "{case}: element {i} is {:e} ({:#010x}), expected {:e} ({:#010x})",
            found[i],
            found[i].to_bits(),
            expected[i],
            expected[i].to_bits()
        )),
    }
}

/// Rows, blocks and numbers of the tensors that are decoded.
pub const TENSORS: [(usize, usize, Data); 5] = [
    (1, 1, Data::Moderate),
    (3, 2, Data::Moderate),
    (2, 5, Data::Wild),
    (1, 9, Data::Wild),
    (7, 1, Data::Wild),
];

/// Kernels of the processor that can run here.
fn kernels(op: Op, format: usize) -> Vec<&'static Entry> {
    let features = CpuProfile::detect().features;
    let can = |entry: &&'static Entry| {
        entry.op == op
            && entry.format == format
            && entry.device == DeviceKind::Cpu
            && features.contains(entry.features)
    };
    REGISTRY.entries.iter().filter(can).collect()
}

fn only(kernel: &Entry) -> Restrict {
    Restrict { kernel: Some(kernel.name.to_owned()), ..Restrict::default() }
}

#[test]
fn dequantize_gives_the_drawn_bits() {
    let oracle = Oracle::new(&REGISTRY).expect("the specs of this build check");
    let subjects = subjects();
    all_right(&subjects, |subject| dequantize(&oracle, subject));
    println!("{} formats", subjects.len());
}

fn dequantize(oracle: &Oracle, subject: &Subject) -> Result<(), String> {
    let (info, drawn) = (subject.info, &subject.drawn);
    if (info.elements, info.bytes) != (drawn.elements, drawn.bytes) {
        return Err(format!("a block of {} elements in {} bytes", info.elements, info.bytes));
    }
    let oracle = oracle.format(info.name).map_err(|error| error.to_string())?;
    let kernels = kernels(Op::Dequantize, subject.index);
    if kernels.is_empty() {
        return Err("no kernels".to_owned());
    }
    let mut random = Random::new(31, info.name);
    for (n, blocks, data) in TENSORS {
        let k = blocks * drawn.elements;
        let tensor = drawn.tensor(&mut random, n, blocks, data);
        // Products are compared with the oracle, so it must read the same weights.
        for row in 0..n {
            let found = oracle.row(&tensor.bytes, n, k, row).map_err(|error| error.to_string())?.f32s;
            same("the oracle", &found, &tensor.weights[row * k..][..k])?;
        }
        for kernel in &kernels {
            let said = |error: gristmill::Error| format!("{}: {error}", kernel.name);
            let matrix = QuantizedMatrix::new(info, n, k, &tensor.bytes).map_err(said)?;
            let request = Request::dequantize(info.name, n, k);
            let prepared =
                REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel)).map_err(said)?;
            let handle = Dequantizer::new(&prepared.decide(request.shape)).map_err(said)?;
            let mut out = vec![f32::NAN; n * k];
            handle.run(&matrix, &mut out).map_err(said)?;
            same(kernel.name, &out, &tensor.weights)?;
        }
    }
    Ok(())
}

#[test]
fn products_agree_with_the_drawn_weights() {
    let subjects = subjects();
    all_right(&subjects, products);
    println!("{} formats", subjects.len());
}

/// int8 activations given by the caller: every kernel near f64 sums of the drawn weights, and with the bits of every other.
fn products(subject: &Subject) -> Result<(), String> {
    let (info, drawn) = (subject.info, &subject.drawn);
    let activations = &REGISTRY.activations[info.activations];
    let kernels = kernels(Op::Matmul, subject.index);
    let mut random = Random::new(32, info.name);
    for (m, n, blocks) in [(1, 5, 1), (1, 37, 3), (3, 18, 4), (5, 33, 2), (9, 3, 8), (33, 18, 2)] {
        let k = blocks * drawn.elements;
        if activations.block.is_some_and(|block| !k.is_multiple_of(block)) {
            continue;
        }
        let tensor = drawn.tensor(&mut random, n, blocks, Data::Moderate);
        // Some as far from zero as they go, so that sums that were proven to fit are as large as they get.
        let q: Vec<i8> = (0..m * k)
            .map(|_| (random.below(256) as u8).cast_signed())
            .map(|q| match m {
                3 => 127,
                5 => -128,
                9 => q >> 7 ^ 127,
                _ => q,
            })
            .collect();
        let per_row = activations.block.map_or(1, |block| k.div_ceil(block));
        let scales: Vec<f32> = (0..m * per_row).map(|i| 0.25 + (i % 50) as f32 / 64.0).collect();
        let step = |t: usize, c: usize| {
            let s = f64::from(scales[t * per_row + activations.block.map_or(0, |block| c / block)]);
            if activations.keeps_multiplier { 1.0 / s } else { s }
        };
        // Errors are compared with what is added up, not with what is left of it: terms may cancel.
        let (mut exact, mut size) = (vec![0.0; m * n], 0.0);
        for t in 0..m {
            for r in 0..n {
                for c in 0..k {
                    let product = f64::from(tensor.weights[r * k + c]) * f64::from(q[t * k + c]) * step(t, c);
                    exact[t * n + r] += product;
                    size += product * product;
                }
            }
        }
        let mut reference: Option<Vec<u32>> = None;
        for kernel in &kernels {
            let rules = &kernel.shape;
            let shape = Shape::new(m, n, k);
            let takes = [(rules.m, m), (rules.n, n), (rules.k, k)].into_iter().all(|(rule, value)| {
                (rule.min..=rule.max).contains(&(value as u64))
                    && (value as u64).is_multiple_of(rule.multiple_of.max(1))
            });
            if !takes {
                continue;
            }
            let case = format!("{} m={m} n={n} k={k}", kernel.name);
            let said = |error: gristmill::Error| format!("{case}: {error}");
            let request = Request::matmul(info.name, shape).with_input(DType::I8);
            let prepared =
                REGISTRY.prepare_for(&request, CpuProfile::detect(), &only(kernel)).map_err(said)?;
            let matmul = Matmul::new(&prepared.decide(shape)).map_err(said)?;
            let matrix = QuantizedMatrix::new(info, n, k, &tensor.bytes).map_err(said)?;
            let packed = matmul.pack(&matrix).map_err(said)?;
            let threads = Threads::single();
            let mut workspace = Workspace::for_(&matmul, m, k, &threads).map_err(said)?;
            let mut y = vec![f32::NAN; m * n];
            let input = Input::I8 { q: &q, scales: &scales };
            matmul.run(&packed, input, m, None, &mut y, &mut workspace, &threads).map_err(said)?;
            let error: f64 = y.iter().zip(&exact).map(|(y, exact)| (f64::from(*y) - exact).powi(2)).sum();
            if error.is_nan() || error > 1e-9 * size {
                return Err(format!("{case}: squared error {error:e} of {size:e}"));
            }
            let found: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
            if reference.get_or_insert_with(|| found.clone()) != &found {
                return Err(format!("{case}: other bits than {}", kernels[0].name));
            }
        }
        if reference.is_none() {
            return Err(format!("m={m} n={n} k={k}: no kernel takes it"));
        }
    }
    Ok(())
}
