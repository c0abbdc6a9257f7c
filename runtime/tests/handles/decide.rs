//! Selection and its reasons, over pretended processors.

use crate::toy::REGISTRY;
use gristmill_runtime::reason::{BrokenRule, Dim, Disabled, Rule};
use gristmill_runtime::vocab::{Arch, DType, DeviceKind, Feature, FeatureSet, Isa, Op};
use gristmill_runtime::{
    CpuProfile, Device, Error, Matmul, Prepared, Reason, Rejection, Request, Restrict, Shape,
};

const SHAPE: Shape = Shape::new(1, 16, 32);

fn prepare(request: &Request<'_>, features: FeatureSet, restrict: &Restrict) -> Result<Prepared, Error> {
    REGISTRY.prepare_for(request, &CpuProfile::pretend(Arch::X86, features), restrict)
}

fn plain(request: &Request<'_>) -> Result<Prepared, Error> {
    prepare(request, FeatureSet::EMPTY, &Restrict::default())
}

/// The only reason that a request is refused for.
fn reason(request: &Request<'_>) -> Result<(Reason, String), Error> {
    let prepared = plain(request)?;
    let decision = prepared.decide_as_asked();
    assert!(decision.chosen().is_none());
    let rejected: Vec<Rejection> = decision.rejected().collect();
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    Ok((rejected[0].reason.clone(), decision.to_string()))
}

#[test]
fn the_first_that_fits_wins_and_the_others_say_why() -> Result<(), Error> {
    let prepared = plain(&Request::matmul("tail2", SHAPE))?;
    let decision = prepared.decide(SHAPE);
    assert_eq!(decision.chosen().map(|entry| entry.name), Some("matmul.tail2.avx2.decode"));
    let rejected: Vec<Rejection> = decision.rejected().collect();
    let missing = FeatureSet::EMPTY.with(Feature::Avx512vbmi).with(Feature::Neon);
    let broken = BrokenRule { dim: Dim::M, rule: Rule::AtLeast(4), found: 1 };
    assert_eq!(
        rejected,
        [
            Rejection {
                kernel: Some("matmul.tail2.avx512.decode"),
                reason: Reason::FeaturesMissing { missing },
            },
            Rejection { kernel: Some("matmul.tail2.avx2.prefill"), reason: Reason::ShapeRule(broken) },
            Rejection {
                kernel: Some("matmul.tail2.scalar"),
                reason: Reason::Preferred { over: "matmul.tail2.avx2.decode" },
            },
        ]
    );
    let prefill = prepared.decide(Shape { m: 4, ..SHAPE });
    assert_eq!(prefill.chosen().map(|entry| entry.name), Some("matmul.tail2.avx2.prefill"));
    assert_eq!(
        decision.to_string(),
        "matmul of `tail2` (f32) on cpu, m=1 n=16 k=32\n\
         chosen: matmul.tail2.avx2.decode (toy/kernels.toml:1)\n\
         not chosen:\n  \
         - matmul.tail2.avx512.decode: the processor lacks avx512vbmi, neon\n  \
         - matmul.tail2.avx2.prefill: m = 1, but must be at least 4\n  \
         - matmul.tail2.scalar: would work, but `matmul.tail2.avx2.decode` comes first"
    );
    Ok(())
}

#[test]
fn a_pretended_processor_gets_its_kernel_but_no_handle() -> Result<(), Error> {
    let features = FeatureSet::EMPTY.with(Feature::Avx512vbmi).with(Feature::Neon);
    let prepared = prepare(&Request::matmul("tail2", SHAPE), features, &Restrict::default())?;
    let decision = prepared.decide(SHAPE);
    assert_eq!(decision.chosen().map(|entry| entry.name), Some("matmul.tail2.avx512.decode"));
    let error = Matmul::new(&decision).expect_err("no processor has both features");
    assert!(matches!(error, Error::CannotRunHere { .. }), "{error}");
    Ok(())
}

#[test]
fn unknown_formats_are_named_with_their_nearest() -> Result<(), Error> {
    let prepared = plain(&Request::matmul("tial2", SHAPE))?;
    let error = prepared.decide(SHAPE).kernel().expect_err("no such format");
    assert!(matches!(&error, Error::UnknownFormat { nearest: Some("tail2"), .. }), "{error}");
    assert!(error.to_string().contains("this build knows: header4, tail2, tiny8"), "{error}");
    let (reason, text) = reason(&Request::matmul("tial2", SHAPE))?;
    assert!(matches!(reason, Reason::NoSpec { .. }));
    assert!(text.contains("no format `tial2` is described (did you mean `tail2`?)"), "{text}");
    Ok(())
}

#[test]
fn left_out_formats_say_which_feature_compiles_them() -> Result<(), Error> {
    let error = plain(&Request::matmul("big9", SHAPE))?.decide(SHAPE).kernel().expect_err("left out");
    assert_eq!(error, Error::NotCompiled { format: "big9", feature: "toy-extra" });
    assert!(error.to_string().contains("cargo build --features toy-extra"), "{error}");
    let (reason, text) = reason(&Request::matmul("big9", SHAPE))?;
    assert!(matches!(reason, Reason::NotCompiled { .. }));
    assert!(text.contains("help: cargo build --features toy-extra"), "{text}");
    Ok(())
}

#[test]
fn ops_and_types_that_nobody_described() -> Result<(), Error> {
    let (op, _) = reason(&Request::matmul("header4", SHAPE))?;
    assert_eq!(op, Reason::OpNotDescribed { op: Op::Matmul, described: vec![Op::Quantize, Op::Dequantize] });
    let (op, _) = reason(&Request::quantize("tiny8", None, 1, 8))?;
    assert_eq!(op, Reason::OpNotDescribed { op: Op::Quantize, described: vec![Op::Dequantize, Op::Matmul] });
    let (dtype, text) = reason(&Request::matmul("tiny8", SHAPE).with_input(DType::Bf16))?;
    assert_eq!(
        dtype,
        Reason::DTypeNotDescribed { dtype: DType::Bf16, described: vec![DType::F32, DType::I8] }
    );
    assert!(text.contains("help: convert to one of: f32, i8"), "{text}");
    Ok(())
}

#[test]
fn other_devices_get_a_true_no() -> Result<(), Error> {
    let cuda = Device { kind: DeviceKind::Cuda, index: 0 };
    let (off, text) = reason(&Request::matmul("tail2", SHAPE).on(cuda))?;
    assert_eq!(off, Reason::CudaFeatureOff);
    assert!(text.contains("help: cargo build --features cuda"), "{text}");
    for kind in [DeviceKind::Rocm, DeviceKind::Metal] {
        let device = Device { kind, index: 0 };
        let (reason, text) = reason(&Request::matmul("tail2", SHAPE).on(device))?;
        assert_eq!(reason, Reason::DeviceNotDescribed { kind });
        assert!(text.contains(&format!("no kernel is described for {kind}")), "{text}");
        assert!(!text.contains("not compiled"), "{text}");
        assert!(text.contains("policy `cpu`"), "{text}");
    }
    let prepared = plain(&Request::matmul("tail2", SHAPE).on(Device { kind: DeviceKind::Cpu, index: 1 }))?;
    let decision = prepared.decide(SHAPE);
    assert!(decision.chosen().is_none());
    assert!(decision.rejected().all(|r| matches!(r.reason, Reason::DeviceAbsent { .. })));
    Ok(())
}

#[test]
fn shape_rules_name_the_rule_and_the_number() -> Result<(), Error> {
    let prepared = plain(&Request::matmul("tiny8", SHAPE))?;
    assert!(prepared.decide(Shape::new(1, 4, 16)).chosen().is_some());
    let decision = prepared.decide(Shape::new(1, 4, 12));
    let broken = BrokenRule { dim: Dim::K, rule: Rule::MultipleOf(8), found: 12 };
    assert_eq!(decision.rejected().map(|r| r.reason).collect::<Vec<_>>(), [Reason::ShapeRule(broken)]);
    let error = decision.kernel().expect_err("12 is no multiple of 8").to_string();
    assert!(error.contains("matmul.tiny8.scalar: k = 12, but must be a multiple of 8"), "{error}");
    let decision = prepared.decide(Shape::new(1, 4, 10));
    assert_eq!(
        decision.rejected().map(|r| r.reason).collect::<Vec<_>>(),
        [Reason::PartialBlock { elements: 4, k: 10 }]
    );
    let error = decision.kernel().expect_err("10 is not whole blocks");
    assert_eq!(error, Error::KNotMultiple { format: "tiny8", elements: 4, k: 10 });
    Ok(())
}

#[test]
fn restrictions_disable_and_say_so() -> Result<(), Error> {
    let request = Request::matmul("tail2", SHAPE);
    let chosen = |restrict: Restrict| -> Result<Option<&'static str>, Error> {
        let prepared = prepare(&request, FeatureSet::EMPTY, &restrict)?;
        Ok(prepared.decide(SHAPE).chosen().map(|entry| entry.name))
    };
    let isa = Restrict { isa: Some(Isa::Sse41), ..Restrict::default() };
    assert_eq!(chosen(isa.clone())?, Some("matmul.tail2.scalar"));
    let kernel = Restrict { kernel: Some(String::from("matmul.tail2.scalar")), ..Restrict::default() };
    assert_eq!(chosen(kernel.clone())?, Some("matmul.tail2.scalar"));
    let disabled =
        Restrict { disabled: vec![String::from("matmul.tail2.avx2.decode")], ..Restrict::default() };
    assert_eq!(chosen(disabled.clone())?, Some("matmul.tail2.scalar"));
    let why = |restrict: &Restrict| -> Result<Vec<Reason>, Error> {
        let prepared = prepare(&request, FeatureSet::EMPTY, restrict)?;
        Ok(prepared.decide(SHAPE).rejected().map(|r| r.reason).skip(1).take(1).collect())
    };
    // The second rejected is avx2.prefill for the list (shape first) and avx2.decode elsewhere.
    assert_eq!(why(&isa)?, [Reason::Disabled(Disabled::Isa(Isa::Sse41))]);
    assert_eq!(why(&kernel)?, [Reason::Disabled(Disabled::Only("matmul.tail2.scalar"))]);
    assert_eq!(why(&disabled)?, [Reason::Disabled(Disabled::Listed)]);
    // Another op and another format are not touched by a kernel restriction.
    let prepared = prepare(&Request::matmul("tiny8", SHAPE), FeatureSet::EMPTY, &kernel)?;
    assert!(prepared.decide(SHAPE).chosen().is_some());
    let prepared = prepare(&Request::dequantize("tail2", 4, 8), FeatureSet::EMPTY, &kernel)?;
    assert!(prepared.decide_as_asked().chosen().is_some());
    Ok(())
}

#[test]
fn restrictions_must_name_kernels_that_exist() {
    let restrict = Restrict { kernel: Some(String::from("matmul.tail2.sclar")), ..Restrict::default() };
    let error =
        prepare(&Request::matmul("tail2", SHAPE), FeatureSet::EMPTY, &restrict).expect_err("misspelt");
    assert!(matches!(error, Error::UnknownKernel { nearest: Some("matmul.tail2.scalar"), .. }), "{error}");
}

#[test]
fn a_product_without_an_activation_kernel_is_a_no() -> Result<(), Error> {
    let restrict =
        Restrict { disabled: vec![String::from("quantize_activations.row.scalar")], ..Restrict::default() };
    let prepared = prepare(&Request::matmul("tail2", SHAPE), FeatureSet::EMPTY, &restrict)?;
    let error = prepare(&Request::matmul("tail2", SHAPE), FeatureSet::EMPTY, &restrict)?
        .decide(SHAPE)
        .kernel()
        .expect_err("nothing quantizes the activations")
        .to_string();
    assert!(error.contains("activations can't be quantized to `row`"), "{error}");
    assert!(error.contains("quantize_activations.row.scalar: disabled by name"), "{error}");
    let refused = |r: &Rejection| matches!(r.reason, Reason::NoActivations(_));
    assert_eq!(prepared.decide(SHAPE).rejected().filter(refused).count(), 2);
    let ready =
        prepare(&Request::matmul("tail2", SHAPE).with_input(DType::I8), FeatureSet::EMPTY, &restrict)?;
    assert!(ready.decide(SHAPE).chosen().is_some());
    Ok(())
}
