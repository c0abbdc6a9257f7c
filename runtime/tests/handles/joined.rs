//! Several registries as one.

use crate::toy::{FORMATS, REGISTRY, TABLES, TAIL2, entry, noise, tail2};
use gristmill_runtime::registry::{
    ActivationInfo, Entry, EntryFacts, FormatFacts, FormatInfo, ImportInfo, KernelId, LeftOut, Registry,
    RegistryFacts,
};
use gristmill_runtime::tuning::{self, Measured, ShapeClass, Tuning};
use gristmill_runtime::vocab::{DType, DeviceKind, Op};
use gristmill_runtime::{
    CpuProfile, Disagreement, Error, Input, Linear, LinearOptions, Matmul, QuantizedMatrix, Recording,
    Request, Restrict, Shape, Threads, Workspace,
};

/// A crate's own registry: `alpha` (the blocks of `tail2`, and its activations), `tail2` with a product of its own beside one that
/// is the toy's.
fn own(change: impl FnOnce(&mut Vec<EntryFacts>, &mut Vec<FormatFacts>)) -> &'static Registry {
    let tail2 = FormatFacts { activations: 1, quantizers: &["own", "sign"], ..*FORMATS[TAIL2].facts() };
    let mut formats = vec![FormatFacts { name: "alpha", ..tail2 }, tail2];
    let same = *REGISTRY.entries[3].facts();
    let mut entries = vec![
        EntryFacts { id: KernelId(1), ..entry(0, "matmul.alpha.own", Op::Matmul, 0, same.code) },
        EntryFacts { id: KernelId(2), ..entry(1, "matmul.tail2.own", Op::Matmul, 1, same.code) },
        EntryFacts { format: 1, ..same },
        EntryFacts { format: 1, ..*REGISTRY.entries[5].facts() },
        EntryFacts { format: 1, quantizer: 1, ..*REGISTRY.entries[12].facts() },
    ];
    change(&mut entries, &mut formats);
    // SAFETY: `alpha` has the layout of `tail2`, and each function is that of the toy registry for it.
    let entries: Vec<Entry> = entries.into_iter().map(|facts| unsafe { Entry::new(facts) }).collect();
    // SAFETY: as above.
    let formats: Vec<FormatInfo> =
        formats.into_iter().map(|facts| unsafe { FormatInfo::new(facts) }).collect();
    // Another activation format in front, so that indices are not the toy's.
    let first = ActivationInfo { name: "other", ..REGISTRY.activations[1] };
    let facts = RegistryFacts {
        package: "own",
        formats: Vec::leak(formats),
        activations: Vec::leak(vec![first, REGISTRY.activations[0]]),
        entries: Vec::leak(entries),
        candidates: |op, format, dtype, device| match (op, format, dtype, device) {
            (Op::Matmul, 0, DType::F32, DeviceKind::Cpu) => &[0],
            (Op::Matmul, 1, DType::F32, DeviceKind::Cpu) => &[1, 2],
            (Op::QuantizeActivations, 1, DType::F32, DeviceKind::Cpu) => &[3],
            (Op::Quantize, 1, DType::F32, DeviceKind::Cpu) => &[4],
            _ => &[],
        },
        left_out: &[LeftOut { format: "tiny8", feature: "more", gguf: None }],
        ..TABLES
    };
    // SAFETY: as above; the activation format of both is `row`.
    Box::leak(Box::new(unsafe { Registry::new(facts) }))
}

fn names(registry: &'static Registry, format: &str) -> Result<Vec<&'static str>, Error> {
    let prepared = registry.prepare_for(
        &Request::matmul(format, Shape::new(1, 8, 16)),
        CpuProfile::detect(),
        &Restrict::default(),
    )?;
    let decision = prepared.decide_as_asked();
    Ok(decision
        .chosen()
        .map(|entry| entry.name)
        .into_iter()
        .chain(decision.rejected().filter_map(|r| r.kernel))
        .collect())
}

#[test]
fn kernels_of_the_first_come_first_and_what_both_have_is_there_once() -> Result<(), Error> {
    let own = own(|_, _| {});
    assert_eq!(own.check(), Ok(()));
    let joined = Registry::joined(&[own, &REGISTRY])?;
    assert_eq!(joined.check(), Ok(()));
    assert_eq!(joined.package, "own + toy");
    assert_eq!(
        joined.formats.iter().map(|f| f.name).collect::<Vec<_>>(),
        ["alpha", "header4", "tail2", "tiny8"]
    );
    assert_eq!(joined.activations.iter().map(|f| f.name).collect::<Vec<_>>(), ["other", "row", "step4"]);
    assert_eq!(
        joined.left_out.iter().map(|l| l.format).collect::<Vec<_>>(),
        ["big9"],
        "`tiny8` is held by one"
    );
    // Five of its own, of which three are the toy's; fourteen of the toy.
    assert_eq!(joined.entries.len(), 2 + 14);
    assert_eq!(names(joined, "alpha")?, ["matmul.alpha.own"]);
    let tail2 = ["matmul.tail2.own", "matmul.tail2.scalar"];
    let all = names(joined, "tail2")?;
    assert_eq!((all[0], all.len()), (tail2[0], 5));
    assert_eq!(names(Registry::joined(&[&REGISTRY, own])?, "tail2")?.last(), Some(&tail2[0]));
    // Each alone says what it said before.
    assert_eq!((names(own, "tail2")?, names(&REGISTRY, "tail2")?.len()), (tail2.to_vec(), 4));
    // Quantizers come together, the first one's in front, and kernels are found by the name of theirs.
    assert_eq!(joined.format("tail2")?.1.quantizers, ["own", "sign", "absmax"]);
    for name in ["sign", "absmax"] {
        let request = Request::quantize("tail2", Some(name), 8, 16);
        let prepared = joined.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
        assert_eq!(prepared.decide_as_asked().kernel()?.name, format!("quantize.tail2.{name}.scalar"));
    }
    // A joined registry joins too, and one with itself is itself.
    let again = Registry::joined(&[joined, joined])?;
    assert_eq!((again.check(), again.package, again.entries.len()), (Ok(()), "own + toy", 16));
    Ok(())
}

#[test]
fn a_kernel_of_one_name_is_that_of_the_first() -> Result<(), Error> {
    let replaced = own(|entries, _| entries[2].id = KernelId(77));
    for (registries, id) in
        [([replaced, &REGISTRY], KernelId(77)), ([&REGISTRY, replaced], REGISTRY.entries[3].id)]
    {
        let joined = Registry::joined(&registries)?;
        assert_eq!((joined.check(), joined.entries.len()), (Ok(()), 16));
        let kernel = joined.entries.iter().find(|entry| entry.name == "matmul.tail2.scalar");
        assert_eq!(kernel.map(|entry| entry.id), Some(id));
    }
    Ok(())
}

#[test]
fn receipts_and_tunings_tell_kernels_apart() -> Result<(), Error> {
    let joined = Registry::joined(&[own(|_, _| {}), &REGISTRY])?;
    let (n, k, threads) = (8, 16, Threads::single());
    let bytes = tail2(n, k);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], n, k, &bytes)?;
    let recording = Recording::new(joined);
    let x = noise(k, 1);
    let run = |tuning: Tuning| -> Result<Vec<f32>, Error> {
        let options = LinearOptions {
            restrict: Some(Restrict::default()),
            tuning: Some(std::sync::Arc::new(tuning)),
            ..LinearOptions::default()
        };
        let mut layer = Linear::new(joined, &matrix, &options, &threads)?;
        layer.record(Some(&recording))?;
        let mut y = vec![f32::NAN; n];
        layer.forward(Input::F32(&x), 1, None, &mut y, &mut layer.workspace(1, &threads)?, &threads)?;
        Ok(y)
    };
    let line = |id| {
        let text = format!("gristmill tuning 2\n{}\nmatmul tail2 0 {id}:1.0\n", tuning::cpu());
        Tuning::parse(&text, joined, tuning::cpu())
    };
    assert_eq!(ShapeClass::of(Shape::new(1, n, k)).index(), 0);
    let toys =
        REGISTRY.entries.iter().find(|entry| entry.name == "matmul.tail2.avx2.decode").expect("the toy's");
    let first = run(Tuning::none())?;
    let tuned = line(toys.id);
    assert!(matches!(tuned.measured(), [Measured { order, .. }] if order.len() == 1), "{tuned:?}");
    assert_eq!(run(tuned)?, first);
    let receipt = recording.receipt();
    let ran: Vec<_> = receipt.kernels().iter().map(|k| (k.name(), k.package(), k.launches())).collect();
    // The quantizer of activations is one kernel of both, and that of the first.
    let expected = [
        ("matmul.tail2.own", "own", 1),
        ("quantize_activations.row.scalar", "own", 2),
        ("matmul.tail2.avx2.decode", "toy", 1),
    ];
    assert_eq!(ran, expected);
    let json = receipt.to_json();
    assert!(
        json.contains(r#""package":"own + toy""#) && json.contains(r#""package":"toy","launches":1"#),
        "{json}"
    );
    // A recording of one of them takes no launches of the joined one.
    let foreign = Recording::new(&REGISTRY);
    let prepared = joined.prepare_for(
        &Request::matmul("tail2", Shape::new(1, n, k)),
        CpuProfile::detect(),
        &Restrict::default(),
    )?;
    let mut kernel = Matmul::new(&prepared.decide_as_asked())?;
    assert!(matches!(kernel.record(Some(&foreign)), Err(Error::ForeignRecording { .. })));
    // Weights that were described by one registry are those of the other.
    let packed = kernel.pack(&matrix)?;
    let mut y = vec![f32::NAN; n];
    let mut workspace = Workspace::for_(&kernel, 1, k, &threads)?;
    kernel.run(&packed, Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
    assert_eq!(y, first);
    Ok(())
}

/// A format of the first registry is in front of those of the next, whichever names come first.
#[test]
fn import_layouts_are_of_their_own_format() -> Result<(), Error> {
    fn with_import(registry: &'static Registry, format: &str, import: &'static str) -> &'static Registry {
        let format = registry.formats.iter().position(|known| known.name == format).expect("a format");
        let layout = ImportInfo { name: import, doc: "", source: "toy/i.toml", format, rows: 2, moves: &[] };
        let facts = RegistryFacts {
            package: registry.package,
            formats: registry.formats,
            activations: registry.activations,
            entries: registry.entries,
            candidates: registry.candidates,
            imports: Vec::leak(vec![layout]),
            ..TABLES
        };
        // SAFETY: the registry with an import layout of one of its formats beside what it had.
        Box::leak(Box::new(unsafe { Registry::new(facts) }))
    }
    let toy = with_import(&REGISTRY, "tail2", "tail2_rows2");
    let own = own(|_, _| {});
    for (first, next) in [(toy, own), (own, toy), (toy, with_import(own, "alpha", "alpha_rows2"))] {
        let joined = Registry::joined(&[first, next])?;
        assert_eq!(joined.check(), Ok(()));
        for import in joined.imports {
            let format = joined.formats[import.format].name;
            assert_eq!(Some(format), import.name.strip_suffix("_rows2"), "{}", joined.package);
        }
    }
    let refused = Registry::joined(&[toy, with_import(own, "alpha", "tail2_rows2")]);
    let Err(Error::Joined(why)) = refused else { panic!("one name for layouts of two formats") };
    assert_eq!((why.what, why.name, why.differ), ("import layout", "tail2_rows2", "the format"));
    Ok(())
}

#[test]
fn what_has_one_name_and_is_not_the_same_is_refused() {
    const KERNELS: &str = "toy/kernels.toml:1";
    const TAIL2_SPEC: &str = "toy/tail2.toml";
    let differs = |what, name, at, differ| {
        let (packages, sources) = (["toy", "own"], [at, at]);
        Error::Joined(Box::new(Disagreement { what, name, packages, sources, differ }))
    };
    let refused = |own| Registry::joined(&[&REGISTRY, own]).expect_err("one name for two things");
    let other = own(|entries, _| entries[0].name = "matmul.tail2.scalar");
    assert_eq!(refused(other), differs("kernel", "matmul.tail2.scalar", KERNELS, "the format"));
    assert_eq!(
        refused(other).to_string(),
        "the kernel `matmul.tail2.scalar` of package `own` (toy/kernels.toml:1) is not that of package `toy` (toy/kernels.toml:1): they differ \
         in the format, and in one registry a name stands for one thing\n  help: give one of them another name in its spec, compile both \
         packages from the same spec, or keep their registries apart"
    );
    let renamed = own(|entries, _| entries[2].name = "matmul.tail2.another");
    assert_eq!(
        refused(renamed),
        differs("kernel", "matmul.tail2.another", KERNELS, "the name, with one identity")
    );
    let wider = own(|_, formats| formats[1].bytes = 4);
    assert_eq!(refused(wider), differs("format", "tail2", TAIL2_SPEC, "the layout of blocks"));
    let activations = own(|_, formats| formats[1].activations = 0);
    assert_eq!(refused(activations), differs("format", "tail2", TAIL2_SPEC, "the activation format"));
    let tiny = REGISTRY.activations[1];
    let facts = RegistryFacts {
        package: "own",
        formats: &[],
        entries: &[],
        activations: Vec::leak(vec![ActivationInfo { block: Some(8), ..tiny }]),
        candidates: |_, _, _, _| &[],
        ..TABLES
    };
    // SAFETY: it has no kernels.
    let changed: &'static Registry = Box::leak(Box::new(unsafe { Registry::new(facts) }));
    assert_eq!(
        refused(changed),
        differs("activation format", "step4", "toy/step4.toml", "the elements of a block")
    );
}
