//! Registries that contradict themselves: no program, where a compiler can see it; else found by `Registry::check`.

use crate::toy::{FORMATS, REGISTRY, TABLES, TAIL2};
use gristmill_runtime::registry::{
    ActivationInfo, Code, CudaCode, CudaLaunch, DimRule, Entry, EntryFacts, FormatFacts, FormatInfo,
    ImportInfo, LeftOut, Move, OuterType, PackFacts, PackInfo, Registry, RegistryFacts, ShapeRules, Unit,
    WithoutImage,
};
use gristmill_runtime::vocab::{CudaAlgorithm, DType, DeviceKind, Op};
use gristmill_runtime::{Error, registry::KernelId};
use std::panic::catch_unwind;

/// What making it panics with; the same stops a compiler where a static is made.
fn refused(make: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = catch_unwind(make).expect_err("facts that contradict each other");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a text")
}

fn entry(index: usize) -> EntryFacts {
    *REGISTRY.entries[index].facts()
}

/// An entry of the toy registry that does something else.
fn made(facts: EntryFacts) -> Entry {
    // SAFETY: no handle is ever made from what these tests make.
    unsafe { Entry::new(facts) }
}

fn registry(facts: RegistryFacts) -> &'static Registry {
    // SAFETY: as above.
    Box::leak(Box::new(unsafe { Registry::new(facts) }))
}

fn cuda(launch: CudaLaunch) -> Code {
    Code::Cuda(CudaCode {
        images: &[],
        min_cc: (7, 5),
        algorithm: CudaAlgorithm::Dp4a,
        overlaps: false,
        launch,
    })
}

#[test]
fn the_toy_registry_agrees_with_itself() {
    assert_eq!(REGISTRY.check(), Ok(()));
}

#[test]
fn entries_that_contradict_themselves_are_refused() {
    let dequantize =
        |threads, per_thread| CudaLaunch::Elements { op: Op::Dequantize, function: "f", threads, per_thread };
    let none = DimRule { min: 5, max: 4, multiple_of: 1 };
    let any = DimRule { min: 0, max: u64::MAX, multiple_of: 1 };
    let never = DimRule { multiple_of: 0, ..any };
    let Code::Matmul { run, packing, .. } = entry(0).code else { panic!("a product comes first") };
    let empty = Code::Matmul { run, packing, unit: Unit { elements: 4, multiple: 0 } };
    let convert = CudaLaunch::Convert { function: "f", threads: 32, per_thread: 1 };
    let on_gpu = EntryFacts { device: DeviceKind::Cuda, isa: None, ..entry(7) };
    let no_launch = "a launch has no threads";
    let cases = [
        (EntryFacts { name: "", ..entry(0) }, "no name"),
        (EntryFacts { op: Op::Quantize, ..entry(0) }, "of another op"),
        (EntryFacts { code: entry(7).code, ..entry(0) }, "of another op"),
        (EntryFacts { isa: None, ..entry(0) }, "no ISA"),
        (EntryFacts { device: DeviceKind::Cuda, ..entry(0) }, "for another device"),
        (EntryFacts { device: DeviceKind::Metal, isa: None, ..entry(0) }, "for another device"),
        (EntryFacts { code: cuda(dequantize(32, 1)), ..entry(7) }, "for another device"),
        (EntryFacts { code: cuda(dequantize(0, 1)), ..on_gpu }, no_launch),
        (EntryFacts { code: cuda(dequantize(1025, 1)), ..on_gpu }, no_launch),
        (EntryFacts { code: cuda(dequantize(32, 0)), ..on_gpu }, no_launch),
        (EntryFacts { code: cuda(convert), ..on_gpu }, "a conversion"),
        (EntryFacts { code: empty, ..entry(0) }, "a unit of activations is empty"),
        (EntryFacts { shape: ShapeRules { m: none, n: any, k: any }, ..entry(0) }, "no shape"),
        (EntryFacts { shape: ShapeRules { m: any, n: any, k: never }, ..entry(0) }, "no shape"),
    ];
    for (facts, expected) in cases {
        let why = refused(|| {
            let _ = made(facts);
        });
        assert!(why.contains(expected), "{facts:?}: {why}");
    }
}

#[test]
fn formats_and_packings_that_contradict_themselves_are_refused() {
    let tail2 = *FORMATS[TAIL2].facts();
    let formats = [
        (FormatFacts { name: "", ..tail2 }, "no name"),
        (FormatFacts { elements: 0, ..tail2 }, "a block is empty"),
        (FormatFacts { bytes: 0, ..tail2 }, "a block is empty"),
        (FormatFacts { tensor_tail: Some((OuterType::F32, 3)), ..tail2 }, "shorter than its scale"),
        (FormatFacts { row_header: Some(OuterType::F16), ..tail2 }, "both a row header and a tensor tail"),
    ];
    for (facts, expected) in formats {
        let why = refused(|| {
            // SAFETY: as in `made`.
            let _ = unsafe { FormatInfo::new(facts) };
        });
        assert!(why.contains(expected), "{facts:?}: {why}");
    }
    let packing = *entry(0).code.packing().expect("a packed product").facts();
    let packings = [
        (PackFacts { name: "", ..packing }, "no name"),
        (PackFacts { rows: 0, ..packing }, "is empty"),
        (PackFacts { tile_k: 0, ..packing }, "is empty"),
        (PackFacts { tile_bytes: 0, ..packing }, "is empty"),
        (PackFacts { runs: 0, ..packing }, "is empty"),
    ];
    for (facts, expected) in packings {
        let why = refused(|| {
            // SAFETY: as in `made`.
            let _ = unsafe { PackInfo::new(facts) };
        });
        assert!(why.contains(expected), "{facts:?}: {why}");
    }
}

#[test]
fn tables_that_contradict_each_other_are_refused() {
    let entries = |facts| -> &'static [Entry] { vec![made(facts)].leak() };
    let import = |format, rows, moves| -> &'static [ImportInfo] {
        vec![ImportInfo { name: "i", doc: "", source: "", format, rows, moves }].leak()
    };
    let inside = Move { from: 0, row: 0, to: 0, bits: 16 };
    let moves = |one: Move| -> &'static [Move] { vec![one].leak() };
    let outside = "outside of a block";
    let block = ActivationInfo { block: Some(0), ..TABLES.activations[0] };
    let image = WithoutImage { name: "w", op: Op::QuantizeActivations, format: 2, source: "", failures: &[] };
    let dequantize = CudaLaunch::Elements { op: Op::Dequantize, function: "f", threads: 32, per_thread: 1 };
    let not_convert = CudaCode {
        images: &[],
        min_cc: (5, 0),
        algorithm: CudaAlgorithm::Dp4a,
        overlaps: false,
        launch: dequantize,
    };
    let cases = [
        (RegistryFacts { entries: entries(EntryFacts { format: 3, ..entry(0) }), ..TABLES }, "of no format"),
        (RegistryFacts { entries: entries(EntryFacts { format: 2, ..entry(5) }), ..TABLES }, "of no format"),
        (
            RegistryFacts { entries: entries(EntryFacts { quantizer: 1, ..entry(10) }), ..TABLES },
            "no quantizer",
        ),
        (RegistryFacts { entries: entries(EntryFacts { format: 2, ..entry(10) }), ..TABLES }, "no place for"),
        (RegistryFacts { activations: &TABLES.activations[..1], ..TABLES }, "no activation format"),
        (RegistryFacts { activations: vec![block; 2].leak(), ..TABLES }, "a block of activations is empty"),
        (RegistryFacts { without_image: vec![image].leak(), ..TABLES }, "is of no format"),
        (RegistryFacts { imports: import(3, 2, &[]), ..TABLES }, "an import layout is of no format"),
        (RegistryFacts { imports: import(0, 2, moves(Move { row: 2, ..inside })), ..TABLES }, outside),
        (RegistryFacts { imports: import(0, 2, moves(Move { from: 17, ..inside })), ..TABLES }, outside),
        (RegistryFacts { imports: import(0, 2, moves(Move { to: 1, ..inside })), ..TABLES }, outside),
        (RegistryFacts { imports: import(0, 2, moves(Move { bits: 0, ..inside })), ..TABLES }, outside),
        (RegistryFacts { convert: Some(not_convert), ..TABLES }, "no conversion"),
        (RegistryFacts { experts: Some(not_convert), ..TABLES }, "what experts need"),
    ];
    for (facts, expected) in cases {
        let why = refused(|| {
            let _ = registry(facts);
        });
        assert!(why.contains(expected), "{expected}: {why}");
    }
}

#[test]
fn check_finds_what_a_compiler_cannot() {
    fn nobody(_: Op, _: usize, _: DType, _: DeviceKind) -> &'static [u16] {
        &[]
    }
    fn beyond(_: Op, _: usize, _: DType, _: DeviceKind) -> &'static [u16] {
        &[u16::MAX]
    }
    fn another(_: Op, _: usize, _: DType, _: DeviceKind) -> &'static [u16] {
        &[0]
    }
    fn again(op: Op, format: usize, dtype: DType, device: DeviceKind) -> &'static [u16] {
        match (TABLES.candidates)(op, format, dtype, device) {
            [0, ..] => &[0, 1, 0],
            other => other,
        }
    }
    let twice = |one: EntryFacts, other: EntryFacts| -> &'static [Entry] {
        vec![made(one), made(EntryFacts { id: KernelId(7), ..other })].leak()
    };
    let here = LeftOut { format: "tail2", feature: "f", gguf: None };
    let cases = [
        (RegistryFacts { formats: vec![FORMATS[TAIL2]; 3].leak(), ..TABLES }, "two formats have one name"),
        (
            RegistryFacts { activations: vec![TABLES.activations[0]; 2].leak(), ..TABLES },
            "two activation formats have one name",
        ),
        (RegistryFacts { entries: twice(entry(0), entry(0)), ..TABLES }, "two kernels have one name"),
        (
            RegistryFacts { entries: twice(EntryFacts { id: KernelId(7), ..entry(0) }, entry(1)), ..TABLES },
            "two kernels have one identity",
        ),
        (RegistryFacts { left_out: vec![here].leak(), ..TABLES }, "left out of the build and in it"),
        (RegistryFacts { candidates: nobody, ..TABLES }, "nothing has it as a candidate"),
        (RegistryFacts { candidates: beyond, ..TABLES }, "a kernel that is not there"),
        (RegistryFacts { candidates: another, ..TABLES }, "what it does not serve"),
        (RegistryFacts { candidates: again, ..TABLES }, "stands twice in a list"),
    ];
    for (facts, expected) in cases {
        match registry(facts).check() {
            Err(Error::BrokenRegistry { what, .. }) => assert!(what.contains(expected), "{expected}: {what}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn units_that_there_are_not_have_rows_that_are_too_large() {
    let of = |elements, multiple, k| Unit { elements, multiple }.of_row(k);
    assert_eq!([of(0, 16, 100), of(20, 16, 50), of(0, 4, 0)], [(100, 112, 1), (20, 32, 3), (1, 4, 1)]);
    assert_eq!(of(20, 0, 50), (20, usize::MAX, 3));
    assert_eq!(of(0, 16, usize::MAX), (usize::MAX, usize::MAX, 1));
}
