//! Weights are held once for all numbers of tokens: which packing that is, where kernels of two packings and one of plain rows
//! were measured. And what a decision says where no kernel brings activations to int8.

use crate::toy::kernels::{activations_row, product_tail2, rows_tail2};
use crate::toy::{ANY, FORMATS, P4, TABLES, TAIL2, UNIT_ROW, entry, matmul};
use gristmill_runtime::registry::{
    Code, DimRule, Entry, EntryFacts, KernelId, PackFacts, PackInfo, Registry, RegistryFacts, ShapeRules,
};
use gristmill_runtime::tuning::{self, Measured, ShapeClass, Tuning};
use gristmill_runtime::vocab::{DType, DeviceKind, Op};
use gristmill_runtime::{CpuProfile, Error, Prepared, Request, Restrict, Shape};

// SAFETY: `pack_tail2` writes, and `unpack_tail2` and `product_tail2` read, four bytes for each element of a padded row; the two
// differ in their names alone.
static NARROW: PackInfo = unsafe { PackInfo::new(PackFacts { name: "narrow", ..P4 }) };
// SAFETY: as above.
static WIDE: PackInfo = unsafe { PackInfo::new(PackFacts { name: "wide", ..P4 }) };

/// Rows of activations that are quantized: those whose length is a multiple of 64.
const K64: ShapeRules = ShapeRules { m: ANY, n: ANY, k: DimRule { multiple_of: 64, ..ANY } };

// SAFETY: the functions go over what the facts of `tail2`, its packings and its activations say, on any processor.
static ENTRIES: [Entry; 4] = unsafe {
    [
        Entry::new(entry(
            0,
            "matmul.tail2.narrow",
            Op::Matmul,
            TAIL2,
            matmul(product_tail2, Some(&NARROW), UNIT_ROW),
        )),
        Entry::new(entry(
            1,
            "matmul.tail2.wide",
            Op::Matmul,
            TAIL2,
            matmul(product_tail2, Some(&WIDE), UNIT_ROW),
        )),
        Entry::new(entry(2, "matmul.tail2.rows", Op::Matmul, TAIL2, matmul(rows_tail2, None, UNIT_ROW))),
        Entry::new(EntryFacts {
            shape: K64,
            ..entry(
                3,
                "quantize_activations.row",
                Op::QuantizeActivations,
                0,
                Code::QuantizeActivations(activations_row),
            )
        }),
    ]
};

fn candidates(op: Op, format: usize, dtype: DType, device: DeviceKind) -> &'static [u16] {
    match (op, format, dtype, device) {
        (Op::Matmul, TAIL2, DType::F32 | DType::I8, DeviceKind::Cpu) => &[0, 1, 2],
        (Op::QuantizeActivations, 0, DType::F32, DeviceKind::Cpu) => &[3],
        _ => &[],
    }
}

// SAFETY: as for the toy registry, of which this has the formats and other kernels.
static REGISTRY: Registry =
    unsafe { Registry::new(RegistryFacts { entries: &ENTRIES, candidates, ..TABLES }) };

const N: usize = 16;
const K: usize = 64;

/// What is chosen for one token and for eight where these times were measured of (narrow, wide, rows); 0 is not measured.
fn chosen(one: [f64; 3], eight: [f64; 3]) -> Result<[&'static str; 2], Error> {
    let class = |m| ShapeClass::of(Shape::new(m, N, K));
    let measured = |m, times: [f64; 3]| {
        let mut order: Vec<(KernelId, f64)> =
            (0..3).map(|index| (ENTRIES[index].id, times[index])).filter(|(_, us)| *us > 0.0).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        let on = tuning::cpu().to_owned();
        Measured {
            on,
            op: Op::Matmul,
            format: "tail2".to_owned(),
            quantizer: None,
            class: class(m),
            threads: 1,
            order,
        }
    };
    let tuning = Tuning::of(
        [measured(1, one), measured(8, eight)].into_iter().filter(|m| !m.order.is_empty()).collect(),
    );
    let prepared = prepare(DType::F32, &tuning)?;
    let name = |m| {
        let decision = prepared.decide(Shape::new(m, N, K));
        decision.chosen().map_or("none", |entry| entry.name.trim_start_matches("matmul.tail2."))
    };
    Ok([name(1), name(8)])
}

fn prepare(input: DType, tuning: &Tuning) -> Result<Prepared, Error> {
    let request = Request::matmul(FORMATS[TAIL2].name, Shape::new(1, N, K)).with_input(input);
    REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &Restrict::default(), tuning)
}

#[test]
fn one_packing_serves_all_numbers_of_tokens() -> Result<(), Error> {
    REGISTRY.check()?;
    // The fastest of each would hold the weights twice. Narrow loses 1.5 at eight tokens, wide 2 at one; then the other way.
    assert_eq!(chosen([1.0, 2.0, 9.0], [3.0, 2.0, 9.0])?, ["narrow", "narrow"]);
    assert_eq!(chosen([1.0, 1.4, 9.0], [3.0, 2.0, 9.0])?, ["wide", "wide"]);
    // Losses are counted against the fastest, not by time: the long runs do not decide alone.
    assert_eq!(chosen([1.0, 3.0, 9.0], [200.0, 100.0, 900.0])?, ["narrow", "narrow"]);
    // Plain rows are the file's own bytes: they compete in each class by themselves.
    assert_eq!(chosen([2.0, 3.0, 1.0], [2.0, 3.0, 9.0])?, ["rows", "narrow"]);
    assert_eq!(chosen([2.0, 4.0, 1.0], [4.0, 3.0, 1.0])?, ["rows", "rows"]);
    // A class that was not measured takes the packing of the one that was.
    assert_eq!(chosen([2.0, 1.0, 9.0], [0.0; 3])?, ["wide", "wide"]);
    assert_eq!(chosen([0.0; 3], [2.0, 1.0, 9.0])?, ["wide", "wide"]);
    // A packing that is not measured in some class, where others are, is none to hold weights in.
    assert_eq!(chosen([0.0, 1.0, 9.0], [1.0, 2.0, 9.0])?, ["wide", "wide"]);
    assert_eq!(chosen([1.0, 2.0, 9.0], [9.0, 0.0, 1.0])?, ["narrow", "rows"]);
    // Only rows were measured, and compared with nothing.
    assert_eq!(chosen([0.0, 0.0, 1.0], [0.0; 3])?, ["narrow", "narrow"]);
    assert_eq!(chosen([0.0; 3], [0.0; 3])?, ["narrow", "narrow"]);
    Ok(())
}

#[test]
fn int8_activations_need_a_kernel_that_makes_them() -> Result<(), Error> {
    let of = |input, k| {
        let prepared = prepare(input, &Tuning::none())?;
        let decision = prepared.decide(Shape::new(1, N, k));
        Ok::<_, Error>(decision.chosen().map(|entry| entry.name))
    };
    assert_eq!(of(DType::F32, K)?, Some("matmul.tail2.narrow"));
    // Rows that no kernel quantizes; a caller that has int8 needs none.
    assert_eq!(of(DType::F32, 32)?, None);
    assert_eq!(of(DType::I8, 32)?, Some("matmul.tail2.narrow"));
    Ok(())
}
