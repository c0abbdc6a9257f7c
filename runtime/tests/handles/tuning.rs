//! Tuning files: what of them is used, what is set aside with which words, and what decisions make of it.

use crate::toy::{FORMATS, REGISTRY, TAIL2, noise};
use gristmill_runtime::gpu::{CudaVersion, GpuProfile};
use gristmill_runtime::registry::KernelId;
use gristmill_runtime::tuning::{self, Measured, SetAside, ShapeClass, Tuning};
use gristmill_runtime::vocab::{Arch, Feature, FeatureSet, Op};
use gristmill_runtime::{
    CpuProfile, Dequantizer, Error, Executor, Input, Linear, LinearOptions, Prepared, QuantizedMatrix,
    Quantizer, Reason, Request, Restrict, Shape, Threads,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const HEAD: &str = "gristmill tuning 3\n";
const HERE: &str = "cpu here";

/// Kernels of the toy registry for products of `tail2`.
const DECODE: &str = "0000000000001001";
const PREFILL: &str = "0000000000001002";
const SCALAR: &str = "0000000000001003";
const OF_TINY8: &str = "0000000000001004";
const ACTIVATIONS: &str = "0000000000001005";

fn id(word: &str) -> KernelId {
    KernelId(u64::from_str_radix(word, 16).expect("a number"))
}

#[test]
fn lines_are_used_or_set_aside_with_the_reason() {
    let class = |n: u8| ShapeClass::all().nth(n.into()).expect("a class");
    let of = |op, format: &str, n: u8, order: &[(&str, f64)]| Measured {
        on: HERE.to_owned(),
        op,
        format: format.to_owned(),
        quantizer: None,
        class: class(n),
        threads: 1,
        order: order.iter().map(|(word, us)| (id(word), *us)).collect(),
    };
    /// A line, what is taken of it, and what is set aside: the line's number and words of the reason.
    type Case = (String, Vec<Measured>, Vec<(usize, &'static str)>);
    let cases: Vec<Case> = vec![
        // The fastest first, whatever the order in the file.
        (
            format!("matmul tail2 0 1 {SCALAR}:3 {DECODE}:1.5 {PREFILL}:2"),
            vec![of(Op::Matmul, "tail2", 0, &[(DECODE, 1.5), (PREFILL, 2.0), (SCALAR, 3.0)])],
            vec![],
        ),
        // The last class, and one beyond.
        (
            format!("matmul tail2 31 1 {SCALAR}:1"),
            vec![of(Op::Matmul, "tail2", 31, &[(SCALAR, 1.0)])],
            vec![],
        ),
        (format!("matmul tail2 32 1 {SCALAR}:1"), vec![], vec![(3, "it names no class of shapes")]),
        (format!("matmul tail2 -1 1 {SCALAR}:1"), vec![], vec![(3, "it names no class of shapes")]),
        ("matmul tail2".to_owned(), vec![], vec![(3, "it names no class of shapes")]),
        ("matmul".to_owned(), vec![], vec![(3, "it names no format")]),
        (format!("product tail2 0 1 {SCALAR}:1"), vec![], vec![(3, "it begins with no op")]),
        (format!("matmul tail3 0 1 {SCALAR}:1"), vec![], vec![(3, "format `tail3` is not in this build")]),
        // Sixteen digits, a colon, and a time above 0.
        (format!("matmul tail2 0 1 0{SCALAR}:1"), vec![], vec![(3, "is no kernel id and time")]),
        ("matmul tail2 0 1 1003:1".to_owned(), vec![], vec![(3, "`1003:1` is no kernel id and time")]),
        (format!("matmul tail2 0 1 {SCALAR}"), vec![], vec![(3, "is no kernel id and time")]),
        (format!("matmul tail2 0 1 {SCALAR}:0"), vec![], vec![(3, "is no kernel id and time")]),
        (format!("matmul tail2 0 1 {SCALAR}:-1"), vec![], vec![(3, "is no kernel id and time")]),
        (format!("matmul tail2 0 1 {SCALAR}:inf"), vec![], vec![(3, "is no kernel id and time")]),
        (format!("matmul tail2 0 1 {SCALAR}:NaN"), vec![], vec![(3, "is no kernel id and time")]),
        (
            format!("matmul tail2 0 1 {SCALAR}:1 {SCALAR}:2"),
            vec![],
            vec![(3, "kernel 0000000000001003 stands in it twice")],
        ),
        // A kernel of another op, of another format, and of nobody; the others of the line are used.
        (
            format!("dequantize tail2 0 1 {SCALAR}:1"),
            vec![],
            vec![(3, "kernel 0000000000001003 of `tail2` is not in this build; tune again")],
        ),
        (
            format!("matmul tail2 0 1 {OF_TINY8}:1 {SCALAR}:2"),
            vec![of(Op::Matmul, "tail2", 0, &[(SCALAR, 2.0)])],
            vec![(3, "kernel 0000000000001004 of `tail2` is not in this build; tune again")],
        ),
        (
            format!("matmul tail2 0 1 {SCALAR}:2 0123456789abcdef:1"),
            vec![of(Op::Matmul, "tail2", 0, &[(SCALAR, 2.0)])],
            vec![(3, "kernel 0123456789abcdef of `tail2` is not in this build; tune again")],
        ),
        // Activation formats are numbered apart.
        (
            format!("quantize_activations row 0 1 {ACTIVATIONS}:1"),
            vec![of(Op::QuantizeActivations, "row", 0, &[(ACTIVATIONS, 1.0)])],
            vec![],
        ),
        // The number of threads.
        (
            format!("matmul tail2 0 2 {SCALAR}:1"),
            vec![Measured { threads: 2, ..of(Op::Matmul, "tail2", 0, &[(SCALAR, 1.0)]) }],
            vec![],
        ),
        (format!("matmul tail2 0 0 {SCALAR}:1"), vec![], vec![(3, "it names no number of threads")]),
        (format!("matmul tail2 0 32769 {SCALAR}:1"), vec![], vec![(3, "it names no number of threads")]),
        ("matmul tail2 0".to_owned(), vec![], vec![(3, "it names no number of threads")]),
        // Quantizers are those of the format, and only of the op that is by them.
        (
            format!("matmul tail2/absmax 0 1 {SCALAR}:1"),
            vec![],
            vec![(3, "names a quantizer, and the op matmul has none")],
        ),
        (
            format!("quantize tail2/best 0 1 {SCALAR}:1"),
            vec![],
            vec![(3, "quantizer `best` of `tail2` is not in this build")],
        ),
        // Blank lines count as lines.
        (format!("\n\nmatmul tail2 99 1 {SCALAR}:1"), vec![], vec![(5, "it names no class of shapes")]),
        // Another processor's lines are skipped, a GPU's are kept.
        (
            format!("cpu another\nmatmul tail2 0 1 {SCALAR}:1\nnonsense"),
            vec![],
            vec![(3, "measured on `another`, this processor is `here`")],
        ),
        (
            format!("gpu any\nmatmul tail2 0 1 {SCALAR}:1"),
            vec![Measured { on: "gpu any".to_owned(), ..of(Op::Matmul, "tail2", 0, &[(SCALAR, 1.0)]) }],
            vec![],
        ),
    ];
    for (lines, measured, aside) in cases {
        let text = format!("{HEAD}{HERE}\n{lines}\n");
        let tuning = Tuning::parse(&text, &REGISTRY, HERE);
        assert_eq!(tuning.measured(), &measured[..], "{lines}");
        let found = tuning.set_aside();
        assert_eq!(found.len(), aside.len(), "{lines}: {found:?}");
        for (SetAside { line, why }, (at, words)) in found.iter().zip(aside) {
            assert_eq!(*line, at, "{lines}: {why}");
            assert!(why.contains(words), "{lines}: {why}");
        }
    }
}

#[test]
fn files_that_are_set_aside_whole() {
    for (text, line, why) in [
        ("", 1, "it does not begin with `gristmill tuning 3`"),
        ("gristmill tuning 4\n", 1, "it does not begin with `gristmill tuning 3`"),
        (
            "gristmill tuning 1\ncpu here\n",
            1,
            "it begins with `gristmill tuning 1`, whose classes of shapes are others: tune again",
        ),
        (HEAD, 2, "no line `cpu NAME` or `gpu NAME`"),
        ("gristmill tuning 3\nmatmul tail2 0\ncpu here\n", 2, "no line `cpu NAME` or `gpu NAME` before it"),
    ] {
        let tuning = Tuning::parse(text, &REGISTRY, HERE);
        assert!(tuning.measured().is_empty());
        assert_eq!(tuning.set_aside(), [SetAside { line, why: why.to_owned() }], "{text}");
        assert_eq!(tuning.set_aside()[0].to_string(), format!("line {line}: {why}"));
    }
    let missing = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no such tuning");
    let tuning = Tuning::read(&missing, &REGISTRY);
    assert!(tuning.measured().is_empty());
    assert_eq!(tuning.set_aside()[0].line, 0);
    let words = tuning.set_aside()[0].to_string();
    assert!(words.starts_with('`') && words.contains("no such tuning` can't be read: "), "{words}");
    // One that can be read is read for this processor.
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("a tuning");
    std::fs::write(&file, format!("{HEAD}{}\nmatmul tail2 0 1 {SCALAR}:1\n", tuning::cpu())).expect("a file");
    assert_eq!(Tuning::read(&file, &REGISTRY).measured().len(), 1);
    // The same with nothing behind it, up to a size that no tuning has.
    let lengthen =
        |bytes| std::fs::File::options().write(true).open(&file).and_then(|file| file.set_len(bytes));
    lengthen(Tuning::LARGEST + 1).expect("a file");
    let large = Tuning::read(&file, &REGISTRY);
    assert!(large.measured().is_empty());
    let words = large.set_aside()[0].to_string();
    assert!(words.contains("a tuning` is larger than 16777216 bytes"), "{words}");
    std::fs::remove_file(&file).expect("the file");
}

/// What `text` writes, `parse` reads; and what it finds of others it keeps, of this machine only other classes.
#[test]
fn what_is_written_is_read_again() {
    let lines = format!(
        "{HERE}\nmatmul tail2 3 1 {DECODE}:1.500 {SCALAR}:2.000\nmatmul tiny8 3 1 {OF_TINY8}:4.000\n"
    );
    let tuning = Tuning::parse(&format!("{HEAD}{lines}"), &REGISTRY, HERE);
    assert_eq!(tuning.measured().len(), 2);
    assert_eq!(tuning.text(""), format!("{HEAD}{lines}"));
    // Of another processor the same line stays, of this one it is replaced, and so is its name once nothing is left.
    let other = format!("cpu another\nmatmul tail2 3 1 {SCALAR}:9.000\n");
    let existing =
        format!("{HEAD}{other}\n{HERE}\nmatmul tail2 3 1 {SCALAR}:9.000\nmatmul tail2 40 1 {SCALAR}:9.000\n");
    let kept = format!("{HERE}\nmatmul tail2 40 1 {SCALAR}:9.000\n");
    assert_eq!(tuning.text(&existing), format!("{HEAD}{other}{kept}{lines}"));
    let replaced = format!("{HEAD}{HERE}\nmatmul tail2 3 1 {SCALAR}:9.000\n");
    assert_eq!(tuning.text(&replaced), format!("{HEAD}{lines}"));
    // A line before any machine is of nobody.
    assert_eq!(tuning.text(&format!("{HEAD}matmul tail2 4 1 {SCALAR}:9.000\n")), format!("{HEAD}{lines}"));
}

/// A file of version 2 is read as measured on one thread, and written as one of today.
#[test]
fn files_without_threads_are_read_as_of_one() {
    let text = format!("gristmill tuning 2\n{HERE}\nmatmul tail2 3 {DECODE}:1.500 {SCALAR}:2.000\n");
    let tuning = Tuning::parse(&text, &REGISTRY, HERE);
    assert!(tuning.set_aside().is_empty(), "{:?}", tuning.set_aside());
    assert_eq!(tuning.measured()[0].threads, 1);
    assert_eq!(tuning.text(""), format!("{HEAD}{HERE}\nmatmul tail2 3 1 {DECODE}:1.500 {SCALAR}:2.000\n"));
    // What a line of today means, it does not mean there: `1` is no kernel.
    let today = text.replace("tail2 3 ", "tail2 3 1 ");
    let why = Tuning::parse(&today, &REGISTRY, HERE).set_aside()[0].why.clone();
    assert!(why.contains("`1` is no kernel id and time"), "{why}");
}

#[test]
fn classes_of_shapes() {
    let class = |m, n, k| ShapeClass::of(Shape::new(m, n, k)).index();
    let tokens = [
        (0, 0),
        (1, 0),
        (2, 1),
        (4, 1),
        (5, 2),
        (16, 2),
        (17, 3),
        (64, 3),
        (65, 4),
        (256, 4),
        (257, 5),
        (512, 5),
        (513, 6),
        (1024, 6),
        (1025, 7),
        (usize::MAX, 7),
    ];
    for (m, tokens) in tokens {
        assert_eq!(class(m, 1, 1), tokens, "m = {m}");
        for (weights, first) in [
            (1 << 20, 0),
            ((1 << 20) + 1, 8),
            (1 << 22, 8),
            ((1 << 22) + 1, 16),
            (1 << 24, 16),
            ((1 << 24) + 1, 24),
        ] {
            assert_eq!(class(m, 1, weights), first + tokens, "m = {m}, {weights} weights");
            assert_eq!(class(m, weights, 1), first + tokens, "m = {m}, {weights} weights");
        }
    }
    let ranges: Vec<(usize, usize)> = ShapeClass::all().skip(3).take(6).map(ShapeClass::tokens).collect();
    assert_eq!(ranges, [(17, 64), (65, 256), (257, 512), (513, 1024), (1025, usize::MAX), (0, 1)]);
    assert_eq!(ShapeClass::all().count(), ShapeClass::COUNT);
    assert_eq!(ShapeClass::COUNT, 32);
    let examples: Vec<Shape> = ShapeClass::all().map(ShapeClass::example).collect();
    let tokens: Vec<usize> = examples.iter().take(8).map(|shape| shape.m).collect();
    assert_eq!(tokens, [1, 4, 16, 64, 256, 512, 1024, 2048]);
}

#[test]
fn machines_have_names_on_one_line() {
    let gpu = GpuProfile {
        name: "a\tname \n of two".to_owned(),
        ..GpuProfile::pretend((9, 0), CudaVersion { major: 12, minor: 8 })
    };
    assert_eq!(tuning::gpu(&gpu), "gpu a name of two 9.0 driver 12.8");
    let words: Vec<&str> = tuning::cpu().split(' ').collect();
    let here = CpuProfile::detect();
    assert_eq!((words[0], words[1]), ("cpu", here.arch.name()));
    for feature in here.features.iter() {
        assert!(words.contains(&feature.name()), "{} is not in {words:?}", feature.name());
    }
    // Behind the features stands what the system says of the make, where it says it as Linux does.
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    for key in ["vendor_id", "cpu family", "model", "stepping"] {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == key));
        if let Some((_, value)) = line.and_then(|line| line.split_once(':')) {
            assert!(words.contains(&value.trim()), "{key} is not in {words:?}");
        }
    }
}

fn measured(format: &str, class: ShapeClass, order: &[(&str, f64)]) -> Measured {
    Measured {
        on: tuning::cpu().to_owned(),
        op: Op::Matmul,
        format: format.to_owned(),
        quantizer: None,
        class,
        threads: 1,
        order: order.iter().map(|(word, us)| (id(word), *us)).collect(),
    }
}

fn prepare(tuning: &Tuning, restrict: &Restrict) -> Result<Prepared, Error> {
    let cpu = CpuProfile::detect();
    REGISTRY.prepare_tuned(&Request::matmul("tail2", Shape::new(1, 16, 32)), cpu, restrict, tuning)
}

#[test]
fn decisions_follow_the_class_that_was_measured() -> Result<(), Error> {
    let small = ShapeClass::of(Shape::new(1, 16, 32));
    let of = |measured: Vec<Measured>| prepare(&Tuning::of(measured), &Restrict::default());
    let chosen =
        |prepared: &Prepared, m, n, k| prepared.decide(Shape::new(m, n, k)).chosen().map(|entry| entry.name);
    let scalar = of(vec![measured("tail2", small, &[(SCALAR, 1.0), (DECODE, 2.0)])])?;
    assert_eq!(chosen(&scalar, 1, 16, 32), Some("matmul.tail2.scalar"));
    // Another number of tokens and other weights are other classes.
    assert_eq!(chosen(&scalar, 2, 16, 32), Some("matmul.tail2.avx2.decode"));
    assert_eq!(chosen(&scalar, 1, 1 << 16, 32), Some("matmul.tail2.avx2.decode"));
    // Which one was slower is said of the one that stands before it in the list.
    let rejected: Vec<Reason> = scalar.decide(Shape::new(1, 16, 32)).rejected().map(|r| r.reason).collect();
    assert!(rejected.contains(&Reason::Slower { than: "matmul.tail2.scalar" }), "{rejected:?}");
    // Rules go before measurements.
    let prefill = of(vec![measured("tail2", small, &[(PREFILL, 1.0), (SCALAR, 2.0), (DECODE, 3.0)])])?;
    assert_eq!(chosen(&prefill, 1, 16, 32), Some("matmul.tail2.scalar"));
    // What was not measured keeps its place, before those that were and behind.
    let behind = of(vec![measured("tail2", small, &[(SCALAR, 1.0), (PREFILL, 2.0)])])?;
    assert_eq!(chosen(&behind, 1, 16, 32), Some("matmul.tail2.avx2.decode"));
    let alone = of(vec![measured("tail2", small, &[(SCALAR, 1.0)])])?;
    assert_eq!(chosen(&alone, 1, 16, 32), Some("matmul.tail2.avx2.decode"));
    // On a processor more tokens than were measured follow the order of those that were, if these are many.
    let order = &[(SCALAR, 1.0), (PREFILL, 2.0), (DECODE, 3.0)];
    let many = of(vec![measured("tail2", ShapeClass::of(Shape::new(128, 16, 32)), order)])?;
    let tokens =
        [1, 64, 65, 256, 257, 1024, 4096].map(|m| chosen(&many, m, 16, 32) == Some("matmul.tail2.scalar"));
    assert_eq!(tokens, [false, false, true, true, true, true, true]);
    let few = of(vec![measured("tail2", ShapeClass::of(Shape::new(64, 16, 32)), order)])?;
    assert_ne!(chosen(&few, 128, 16, 32), Some("matmul.tail2.scalar"));
    // What was measured of another format, op or machine changes nothing.
    let other = measured("tiny8", small, &[(SCALAR, 1.0)]);
    assert_eq!(chosen(&of(vec![other])?, 1, 16, 32), Some("matmul.tail2.avx2.decode"));
    let other = Measured { op: Op::Dequantize, ..measured("tail2", small, &[(SCALAR, 1.0)]) };
    assert_eq!(chosen(&of(vec![other])?, 1, 16, 32), Some("matmul.tail2.avx2.decode"));
    let other = Measured { on: "cpu another".to_owned(), ..measured("tail2", small, &[(SCALAR, 1.0)]) };
    assert_eq!(chosen(&of(vec![other])?, 1, 16, 32), Some("matmul.tail2.avx2.decode"));
    // A packing that was asked for goes before what was measured.
    let restrict = Restrict { packing: Some("p4".to_owned()), ..Restrict::default() };
    let order = vec![measured("tail2", small, &[(SCALAR, 1.0), (DECODE, 2.0)])];
    let asked = prepare(&Tuning::of(order), &restrict)?;
    assert_eq!(chosen(&asked, 2, 16, 32), Some("matmul.tail2.avx2.decode"));
    Ok(())
}

/// What was measured here says nothing of a processor that is only pretended; that one has a name of its own.
#[test]
fn a_pretended_processor_follows_its_own_tuning() -> Result<(), Error> {
    // Both of them no processor has.
    let features = FeatureSet::EMPTY.with(Feature::Avx512vbmi).with(Feature::Neon);
    let pretended = CpuProfile::pretend(Arch::X86, features);
    let shape = Shape::new(1, 16, 32);
    let request = Request::matmul("tail2", shape);
    let chosen = |on: String, cpu: &CpuProfile| -> Result<_, Error> {
        let order = [(SCALAR, 1.0), ("0000000000001000", 2.0), (DECODE, 3.0)];
        let order = Measured { on, ..measured("tail2", ShapeClass::of(shape), &order) };
        let prepared =
            REGISTRY.prepare_tuned(&request, cpu, &Restrict::default(), &Tuning::of(vec![order]))?;
        let decision = prepared.decide(shape);
        Ok((decision.chosen().map(|entry| entry.name), decision.tuned_by().is_some()))
    };
    let (here, there) = (tuning::cpu_of(CpuProfile::detect()), tuning::cpu_of(&pretended));
    assert_eq!((here.as_str(), there.as_str()), (tuning::cpu(), "cpu x86_64 avx512vbmi neon"));
    assert_eq!(chosen(here.clone(), &pretended)?, (Some("matmul.tail2.avx512.decode"), false));
    assert_eq!(chosen(there.clone(), &pretended)?, (Some("matmul.tail2.scalar"), true));
    assert_eq!(chosen(here, CpuProfile::detect())?, (Some("matmul.tail2.scalar"), true));
    assert_eq!(chosen(there, CpuProfile::detect())?, (Some("matmul.tail2.avx2.decode"), false));
    Ok(())
}

/// A decision follows what was measured on its number of threads, and says how many work.
#[test]
fn decisions_follow_their_number_of_threads() -> Result<(), Error> {
    let small = ShapeClass::of(Shape::new(1, 16, 32));
    let on = |threads, order: &[(&str, f64)]| Measured { threads, ..measured("tail2", small, order) };
    let tuning = Tuning::of(vec![
        on(1, &[(SCALAR, 10.0), (DECODE, 20.0)]),
        on(2, &[(DECODE, 6.0), (SCALAR, 7.0)]),
        on(4, &[(DECODE, 9.0), (SCALAR, 9.5)]),
    ]);
    let cpu = CpuProfile::detect();
    let shape = Shape::new(1, 16, 32);
    let found = |threads| -> Result<_, Error> {
        let request = Request::matmul("tail2", shape).with_threads(threads);
        let prepared = REGISTRY.prepare_tuned(&request, cpu, &Restrict::default(), &tuning)?;
        let decision = prepared.decide(shape);
        let why = decision.tuned_by().expect("a tuned class");
        let text = decision.to_string();
        Ok((decision.chosen().map(|entry| entry.name), why.threads, why.fewer_threads, why.us, text))
    };
    let (scalar, decode) = (Some("matmul.tail2.scalar"), Some("matmul.tail2.avx2.decode"));
    let (chosen, threads, fewer, us, text) = found(1)?;
    assert_eq!((chosen, threads, fewer, us), (scalar, 1, None, Some(10.0)));
    assert!(text.contains("\nby the tuning: 10.000 us, measured on one thread"), "{text}");
    let (chosen, threads, fewer, us, text) = found(3)?;
    assert_eq!((chosen, threads, fewer, us), (decode, 2, None, Some(6.0)));
    assert!(text.contains("measured on 2 threads") && !text.contains("work on it"), "{text}");
    // Four are slower than two: two work.
    let (chosen, threads, fewer, us, text) = found(4)?;
    assert_eq!((chosen, threads, fewer, us), (decode, 2, Some(2), Some(6.0)));
    assert!(text.contains("2 threads work on it, since more were slower"), "{text}");
    // A class that nothing is known of has no reason.
    let request = Request::matmul("tail2", Shape::new(1, 1 << 16, 32));
    let prepared = REGISTRY.prepare_tuned(&request, cpu, &Restrict::default(), &tuning)?;
    assert_eq!(prepared.decide_as_asked().tuned_by(), None);
    Ok(())
}

/// Threads of the program that count jobs.
struct Counted(Arc<AtomicUsize>);

impl Executor for Counted {
    fn count(&self) -> usize {
        2
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (0..parts).for_each(part);
    }
}

/// Where one thread was measured to be faster than two, the other one is left alone, by products and by what goes over blocks; bits stay.
#[test]
fn threads_that_were_slower_are_left_alone() -> Result<(), Error> {
    let (n, k) = (300, 40);
    let jobs = Arc::new(AtomicUsize::new(0));
    let threads = Threads::lent(Counted(Arc::clone(&jobs)))?.with_grain(1);
    let asked = || jobs.swap(0, Ordering::Relaxed);
    let class = ShapeClass::of(Shape::new(1, n, k));
    let of = |op, kernel: &str, quantizer: Option<&str>, threads, us| Measured {
        op,
        threads,
        quantizer: quantizer.map(str::to_owned),
        ..measured("tail2", class, &[(kernel, us)])
    };
    let entry = |op: Op| {
        let found = REGISTRY.entries.iter().find(|entry| entry.op == op && entry.format == TAIL2);
        found.map(|entry| (entry.id.to_string(), FORMATS[TAIL2].quantizers.get(entry.quantizer).copied()))
    };
    let (dequantize, _) = entry(Op::Dequantize).expect("a dequantizer");
    let (quantize, quantizer) = entry(Op::Quantize).expect("a quantizer");
    let lines = |one: f64, two: f64| {
        Tuning::of(vec![
            of(Op::Matmul, DECODE, None, 1, one),
            of(Op::Matmul, DECODE, None, 2, two),
            of(Op::Dequantize, &dequantize, None, 1, one),
            of(Op::Dequantize, &dequantize, None, 2, two),
            of(Op::Quantize, &quantize, quantizer, 1, one),
            of(Op::Quantize, &quantize, quantizer, 2, two),
        ])
    };
    let cpu = CpuProfile::detect();
    let x = noise(n * k, 3);
    let mut seen: Vec<(Vec<u8>, Vec<f32>, Vec<f32>)> = Vec::new();
    for (tuning, expected) in [(lines(1.0, 2.0), 0), (lines(2.0, 1.0), 1)] {
        let prepare = |request: Request<'static>| {
            REGISTRY.prepare_tuned(&request.with_threads(2), cpu, &Restrict::default(), &tuning)
        };
        let quantizer = prepare(Request::quantize("tail2", None, n, k))?;
        let mut bytes = vec![0; FORMATS[TAIL2].tensor_bytes(n, k)?];
        Quantizer::new(&quantizer.decide_as_asked())?.run_on(&x, n, k, &mut bytes, &threads)?;
        assert_eq!(asked(), expected, "quantize");
        let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
        let dequantizer = prepare(Request::dequantize("tail2", n, k))?;
        let mut values = vec![0.0; n * k];
        Dequantizer::new(&dequantizer.decide_as_asked())?.run_on(&matrix, &mut values, &threads)?;
        assert_eq!(asked(), expected, "dequantize");
        // A layer takes the number from its threads.
        let options = LinearOptions { tuning: Some(Arc::new(tuning.clone())), ..LinearOptions::default() };
        let layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
        asked();
        let mut y = vec![0.0; n];
        let mut workspace = layer.workspace(1, &threads)?;
        layer.forward(Input::F32(&x[..k]), 1, None, &mut y, &mut workspace, &threads)?;
        assert_eq!(asked(), expected, "forward");
        let rows = layer.quantize(Input::F32(&x[..k]), 1, &mut workspace, &threads)?;
        layer.forward_quantized(&rows, None, &mut y, &threads)?;
        assert_eq!(asked(), expected, "forward_quantized");
        seen.push((bytes, values, y));
    }
    assert!(seen[0] == seen[1], "the same bits on one thread and on two");
    Ok(())
}
