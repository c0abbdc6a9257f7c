//! Packings of one format beside each other: which one weights are held in is decided once for all numbers of tokens, and
//! dense ternary weights take what they say.
#![cfg(all(feature = "bitnet", target_arch = "x86_64"))]

use gristmill::device::Caches;
use gristmill::registry::{Entry, KernelId};
use gristmill::tuning::{Measured, ShapeClass, Tuning};
use gristmill::vocab::{Arch, Feature, FeatureSet, Op};
use gristmill::{
    CpuProfile, Error, FromMemory, Linear, LinearOptions, QuantizedMatrix, REGISTRY, Reason, Recording,
    Request, Restrict, Shape, Threads,
};

const DENSE: &str = "r32t5";

/// A processor with every x86 feature, or with all but one.
fn processor(without: Option<Feature>) -> CpuProfile {
    let x86 = Feature::ALL.iter().copied().filter(|f| f.arch() == Arch::X86 && Some(*f) != without);
    CpuProfile::pretend(Arch::X86, x86.collect::<FeatureSet>())
}

fn preferring(packing: &str) -> Restrict {
    Restrict { packing: Some(packing.to_owned()), ..Restrict::default() }
}

/// What is chosen for `m` tokens.
fn chosen(format: &str, m: usize, cpu: &CpuProfile, restrict: &Restrict, tuning: &Tuning) -> &'static Entry {
    let shape = Shape::new(m, 2560, 2560);
    let request = Request::matmul(format, shape);
    let prepared = REGISTRY.prepare_tuned(&request, cpu, restrict, tuning).expect("names are known");
    prepared.decide(shape).chosen().expect("the reference takes every shape")
}

fn packing(entry: &Entry) -> Option<&'static str> {
    entry.code.packing().map(|packing| packing.name)
}

#[test]
fn the_dense_packing_is_taken_where_it_is_asked_for_and_can_be_read() {
    let (none, all) = (Tuning::none(), processor(None));
    for m in [1, 3, 4, 100] {
        let untouched = chosen("i2_s", m, &all, &Restrict::default(), &none);
        assert_eq!(packing(untouched), Some("r32k4"), "m = {m}: {}", untouched.name);
        for format in ["i2_s", "tq1_0", "iq1_bn", "iq2_bn", "ptq1_0", "stq1_0"] {
            let dense = chosen(format, m, &all, &preferring(DENSE), &none);
            assert_eq!(packing(dense), Some(DENSE), "{format}, m = {m}: {}", dense.name);
        }
        // Its codes have a fourth value.
        let other = chosen("tq2_0", m, &all, &preferring(DENSE), &none);
        assert_eq!(packing(other), Some("r32k4"), "m = {m}: {}", other.name);
        // Without byte permutes nothing reads it.
        let older = processor(Some(Feature::Avx512vbmi));
        let plain = chosen("i2_s", m, &older, &preferring(DENSE), &none);
        assert_eq!(plain.name, untouched.name, "m = {m}");
    }
}

#[test]
fn why_the_dense_packing_is_not_taken_is_said() {
    let shape = Shape::new(1, 2560, 2560);
    let request = Request::matmul("i2_s", shape);
    let dense = "matmul.i2_s.avx512.avx512vnni.avx512vbmi.dense_decode";
    let reason = |cpu: &CpuProfile| {
        let prepared = REGISTRY.prepare_for(&request, cpu, &Restrict::default()).expect("no names");
        let decision = prepared.decide(shape);
        let rejection = decision.rejected().find(|rejection| rejection.kernel == Some(dense));
        rejection.map(|rejection| rejection.reason.to_string()).unwrap_or_default()
    };
    let newer = reason(&processor(None));
    assert!(newer.ends_with("comes first"), "{newer}");
    let older = reason(&processor(Some(Feature::Avx512vbmi)));
    assert!(older.contains("avx512vbmi"), "{older}");
}

#[test]
fn an_unknown_packing_is_an_error_that_names_the_known_ones() {
    let request = Request::matmul("i2_s", Shape::new(1, 2560, 2560));
    let error = REGISTRY.prepare_for(&request, &processor(None), &preferring("r32t6")).expect_err("unknown");
    assert!(
        matches!(&error, Error::UnknownPacking { nearest: Some("r32t5"), known, .. } if known.len() >= 3)
    );
    // Nothing in the family `bitnet` is computed by lookup.
    let known = if cfg!(feature = "ggml") { "r16k4, r32k4, r32t5, r64b8" } else { "r16k4, r32k4, r32t5" };
    assert!(error.to_string().contains(known), "{error}");
}

/// Kernels of all classes of weights like 2560x2560 on [`processor`] with every feature, with times by the packing and whether they decode.
fn tuning(us: impl Fn(&str, bool) -> f64) -> Tuning {
    let index = REGISTRY.formats.iter().position(|format| format.name == "i2_s").expect("shipped");
    let mut all = Vec::new();
    for class in ShapeClass::all() {
        let (from, to) = class.tokens();
        let takes = |entry: &&Entry| {
            let m = &entry.shape.m;
            entry.op == Op::Matmul
                && entry.format == index
                && entry.device == gristmill::vocab::DeviceKind::Cpu
                && (m.min..=m.max).contains(&(to.min(1 << 20) as u64))
        };
        let mut order: Vec<(KernelId, f64)> = REGISTRY
            .entries
            .iter()
            .filter(takes)
            .filter_map(|entry| Some((entry.id, us(packing(entry)?, from <= 1))))
            .collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        all.push(Measured {
            on: gristmill::tuning::cpu_of(&processor(None)),
            op: Op::Matmul,
            format: "i2_s".to_owned(),
            quantizer: None,
            class,
            threads: 1,
            order,
        });
    }
    Tuning::of(all)
}

#[test]
fn a_tuning_holds_weights_in_one_packing_for_all_numbers_of_tokens() {
    let cpu = processor(None);
    let packings = |tuning: &Tuning, restrict: &Restrict| -> Vec<Option<&'static str>> {
        [1, 2, 8, 40, 300].iter().map(|m| packing(chosen("i2_s", *m, &cpu, restrict, tuning))).collect()
    };
    // Dense decodes in half the time, and loses a tenth in each other class.
    let dense_wins = tuning(|packing, decode| match (packing, decode) {
        (DENSE, true) => 10.0,
        (DENSE, false) => 110.0,
        (_, true) => 20.0,
        (_, false) => 100.0,
    });
    assert_eq!(packings(&dense_wins, &Restrict::default()), [Some(DENSE); 5]);
    // It gains a tenth, and loses a half in each other class.
    let dense_loses = tuning(|packing, decode| match (packing, decode) {
        (DENSE, true) => 18.0,
        (DENSE, false) => 150.0,
        (_, true) => 20.0,
        (_, false) => 100.0,
    });
    let kept = packings(&dense_loses, &Restrict::default());
    assert!(kept.iter().all(|packing| *packing == kept[0] && *packing != Some(DENSE)), "{kept:?}");
    // What is asked for goes before what was measured.
    assert_eq!(packings(&dense_loses, &preferring(DENSE)), [Some(DENSE); 5]);
}

const CACHE: usize = 32 << 20;

/// As [`processor`], with caches as a server has them.
fn cached(without: Option<Feature>) -> CpuProfile {
    let caches = Caches { l1d: Some(32 << 10), l2: Some(1 << 20), l3: Some(CACHE) };
    CpuProfile { caches, ..processor(without) }
}

/// Packings chosen for several numbers of tokens, and why, with so many bytes of weights taking turns.
fn held(
    format: &str,
    working_set: Option<u64>,
    cpu: &CpuProfile,
    restrict: &Restrict,
    tuning: &Tuning,
) -> (Vec<Option<&'static str>>, Option<FromMemory>) {
    let shape = |m| Shape::new(m, 2560, 2560);
    let request = Request::matmul(format, shape(1)).with_working_set(working_set);
    let prepared = REGISTRY.prepare_tuned(&request, cpu, restrict, tuning).expect("names are known");
    let decisions = [1, 3, 4, 300].map(|m| prepared.decide(shape(m)));
    let packings =
        decisions.iter().map(|decision| packing(decision.chosen().expect("the reference"))).collect();
    let why: Vec<Option<FromMemory>> =
        decisions.iter().map(|decision| decision.packing_reason().copied()).collect();
    assert!(why.iter().all(|one| *one == why[0]), "{why:?}");
    (packings, why[0])
}

#[test]
fn weights_that_do_not_stay_in_the_caches_are_held_in_the_fewest_bytes() {
    let (free, none) = (Restrict::default(), Tuning::none());
    let cpu = cached(None);
    let beyond = Some(CACHE as u64 + 1);
    for format in ["i2_s", "tq1_0", "iq1_bn", "iq2_bn"] {
        let (packings, why) = held(format, beyond, &cpu, &free, &none);
        assert_eq!(packings, [Some(DENSE); 4], "{format}");
        let said = FromMemory {
            packing: DENSE,
            instead_of: "r32k4",
            working_set: CACHE as u64 + 1,
            cache: CACHE as u64,
        };
        assert_eq!(why, Some(said), "{format}");
        // What fits stays in what is fastest from caches, and so does what nobody knows the size of.
        for working_set in [None, Some(0), Some(CACHE as u64)] {
            assert_eq!(
                held(format, working_set, &cpu, &free, &none),
                (vec![Some("r32k4"); 4], None),
                "{format}"
            );
        }
        // Caches that nobody knows hold everything.
        let unknown = held(format, beyond, &processor(None), &free, &none);
        assert_eq!(unknown, (vec![Some("r32k4"); 4], None), "{format}");
    }
    // Runs of 32, which trits fill up to 40: two bits again.
    assert_eq!(held("ptq1_0", beyond, &cpu, &free, &none), (vec![Some("r32k4"); 4], None));
    // Without a third level the second one counts.
    let two = CpuProfile { caches: Caches { l3: None, ..cpu.caches }, ..cpu.clone() };
    assert_eq!(held("i2_s", Some(2 << 20), &two, &free, &none).0, [Some(DENSE); 4]);
    assert_eq!(held("i2_s", Some(1 << 20), &two, &free, &none).0, [Some("r32k4"); 4]);
}

#[test]
fn fewer_bytes_are_not_bought_with_older_instructions() {
    let (free, none) = (Restrict::default(), Tuning::none());
    let huge = Some(u64::MAX);
    // A fourth value; no byte permutes; held to AVX2, where nothing reads trits.
    assert_eq!(held("tq2_0", huge, &cached(None), &free, &none), (vec![Some("r32k4"); 4], None));
    let older = cached(Some(Feature::Avx512vbmi));
    assert_eq!(held("i2_s", huge, &older, &free, &none), (vec![Some("r32k4"); 4], None));
    let avx2 = Restrict { isa: Some(gristmill::vocab::Isa::Avx2), ..Restrict::default() };
    assert_eq!(held("i2_s", huge, &cached(None), &avx2, &none), (vec![Some("r16k4"); 4], None));
    // Every format: what is held instead has fewer bytes, and its kernels the same features or more.
    for format in REGISTRY.formats {
        let shape = Shape::new(1, 2560, 2560);
        let of = |working_set| {
            let request = Request::matmul(format.name, shape).with_working_set(working_set);
            let prepared = REGISTRY.prepare_for(&request, &cached(None), &free).expect("no names");
            let decision = prepared.decide(shape);
            let bytes = decision.memory(&Threads::single()).expect("a product").weight_bytes;
            (decision.chosen().expect("the reference"), bytes)
        };
        let (small, large) = (of(Some(0)), of(huge));
        if small.0.id != large.0.id {
            assert!(large.1 < small.1, "{}: {} and {} bytes", format.name, small.1, large.1);
            assert!(large.0.features.contains(small.0.features), "{}", format.name);
        }
    }
    // Where padding to whole tiles takes more than trits save: 64 elements are 80 in trits.
    let short = Shape::new(1, 64, 128);
    let request = Request::matmul("i2_s", short).with_working_set(huge);
    let prepared = REGISTRY.prepare_for(&request, &cached(None), &free).expect("no names");
    let memory = |name: &str| {
        let prepared = REGISTRY.prepare_for(&request, &cached(None), &preferring(name)).expect("known");
        prepared.decide(short).memory(&Threads::single()).expect("a product").weight_bytes
    };
    let chosen = prepared.decide(short).chosen().and_then(packing).expect("packed");
    assert_eq!(chosen, if memory(DENSE) < memory("r32k4") { DENSE } else { "r32k4" });
}

#[test]
fn a_measured_order_and_a_stated_packing_go_before_bytes() {
    let cpu = cached(None);
    let huge = Some(u64::MAX);
    let free = Restrict::default();
    let two_bits = held("i2_s", huge, &cpu, &preferring("r32k4"), &Tuning::none());
    assert_eq!(two_bits, (vec![Some("r32k4"); 4], None));
    let kept = tuning(|packing, _| if packing == DENSE { 30.0 } else { 20.0 });
    let (packings, why) = held("i2_s", huge, &cpu, &free, &kept);
    assert!(packings.iter().all(|packing| *packing != Some(DENSE)), "{packings:?}");
    assert_eq!(why, None);
    // And where it says the same, it is the reason.
    let dense = tuning(|packing, _| if packing == DENSE { 20.0 } else { 30.0 });
    assert_eq!(held("i2_s", huge, &cpu, &free, &dense), (vec![Some(DENSE); 4], None));
    // A tuning of another format says nothing of this one.
    assert_eq!(held("iq2_bn", huge, &cpu, &free, &kept).0, [Some(DENSE); 4]);
}

#[test]
fn a_decision_says_that_bytes_decided() {
    let shape = Shape::new(1, 2560, 2560);
    let request = Request::matmul("i2_s", shape).with_working_set(Some(512 << 20));
    let prepared = REGISTRY.prepare_for(&request, &cached(None), &Restrict::default()).expect("no names");
    let decision = prepared.decide(shape);
    let two_bits = "matmul.i2_s.avx512.avx512vnni.decode";
    let rejection =
        decision.rejected().find(|rejection| rejection.kernel == Some(two_bits)).expect("it stands there");
    assert!(
        matches!(rejection.reason, Reason::MoreBytes { why: FromMemory { packing: DENSE, .. }, .. }),
        "{rejection}"
    );
    let text = decision.to_string();
    let line = "weights are held in `r32t5` instead of `r32k4`: 512.0 MiB of weights take turns, a cache of 32.0 MiB";
    assert!(text.contains(line), "{text}");
}

/// A layer in the dense packing holds its weights once, in four fifths of the bytes that two bits take, and computes the
/// same bits.
#[test]
fn a_dense_layer_is_smaller_and_computes_the_same() -> Result<(), Error> {
    let needed = [Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vnni, Feature::Avx512vbmi];
    let needed: FeatureSet = needed.into_iter().collect();
    if !CpuProfile::detect().features.contains(needed) {
        println!("ran 0 of 1; skipped 1: this processor has no byte permutes");
        return Ok(());
    }
    let (n, k) = (192, 2560);
    let (_, format) = REGISTRY.format("i2_s")?;
    let mut tensor = vec![0u8; format.tensor_bytes(n, k)?];
    let (codes, tail) = tensor.split_at_mut(n * format.row_bytes(k)?);
    for (i, byte) in codes.iter_mut().enumerate() {
        // Codes 0 to 2 in each two bits.
        *byte = (0..4).fold(0, |byte, field| (byte << 2) | ((i * 31 + i / 7 + field * 5) % 3) as u8);
    }
    tail[..4].copy_from_slice(&0.5f32.to_le_bytes());
    let matrix = QuantizedMatrix::new(format, n, k, &tensor)?;
    let threads = Threads::new(2)?;
    let layer = |packing: &str| {
        let options = LinearOptions { restrict: Some(preferring(packing)), ..LinearOptions::default() };
        Linear::new(&REGISTRY, &matrix, &options, &threads)
    };
    let (plain, dense) = (layer("r32k4")?, layer(DENSE)?);
    let scales = n * size_of::<f32>();
    assert_eq!(plain.weight_bytes() - scales, n * k / 4);
    assert_eq!(dense.weight_bytes() - scales, n * k / 5);
    for m in [1, 2, 4, 11] {
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let run = |layer: &Linear| -> Result<Vec<u32>, Error> {
            let mut workspace = layer.workspace(m, &threads)?;
            let mut y = vec![0.0; m * n];
            layer.forward(gristmill::Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
            Ok(y.into_iter().map(f32::to_bits).collect())
        };
        assert_eq!(run(&dense)?, run(&plain)?, "m = {m}");
    }
    // A layer of a model takes it by itself, and its receipt says why.
    let restrict = Some(Restrict::default());
    let mut receipts = Vec::new();
    for working_set in [Some(u64::MAX), None] {
        let options = LinearOptions { restrict: restrict.clone(), working_set, ..LinearOptions::default() };
        let mut layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording))?;
        let (x, mut y) = (vec![1.0; k], vec![0.0; n]);
        let mut workspace = layer.workspace(1, &threads)?;
        layer.forward(gristmill::Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
        receipts.push((layer.weight_bytes(), recording.receipt()));
    }
    let known = CpuProfile::detect().caches.last_level().is_some();
    let [(large, from_memory), (small, from_caches)] = &receipts[..] else { panic!("two layers") };
    assert_eq!(*large, if known { dense.weight_bytes() } else { plain.weight_bytes() });
    assert_eq!(*small, plain.weight_bytes());
    let why = |receipt: &gristmill::Receipt| {
        receipt.kernels().iter().find_map(|kernel| kernel.packing_reason().copied())
    };
    assert_eq!(why(from_memory).map(|why| (why.packing, why.instead_of)), known.then_some((DENSE, "r32k4")));
    assert_eq!(from_memory.to_json().contains("\"from_memory\":{\"packing\":\"r32t5\""), known);
    assert_eq!(why(from_caches), None);
    assert!(!from_caches.to_json().contains("from_memory"));
    Ok(())
}
