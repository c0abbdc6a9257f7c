//! Every reason for which a CUDA kernel is not chosen, on pretended devices: each another one, each with help.

use gristmill_runtime::abi::Fault;
use gristmill_runtime::gpu::{CudaVersion, GpuProfile, NoGpu};
use gristmill_runtime::registry::{
    ActivationInfo, Code, Counters, CudaBuild, CudaCode, CudaImage, CudaLaunch, DimRule, Entry, EntryFacts,
    FormatFacts, FormatInfo, KernelId, PackFacts, PackInfo, Registry, RegistryFacts, ShapeRules, Unit,
    WithoutImage,
};
use gristmill_runtime::vocab::{CudaAlgorithm, CudaArch, DType, DeviceKind, FeatureSet, Op, Precision};
use gristmill_runtime::workspace::WorkspaceSize;
use gristmill_runtime::{
    CpuProfile, Dequantizer, Device, Error, PrecisionMode, Reason, Request, Restrict, Shape, Threads,
};

const fn arch(major: u8, minor: u8) -> CudaArch {
    CudaArch { major, minor, specific: false }
}

const fn at(major: u32, minor: u32) -> CudaVersion {
    CudaVersion { major, minor }
}

/// Machine code of CUDA 13 for 8.0, PTX of CUDA 12.8 for 8.6.
static IMAGES: [CudaImage; 2] = [
    CudaImage { arch: arch(8, 0), ptx: false, driver: at(13, 0), usage: &[], size: 0, packed: b"" },
    CudaImage { arch: arch(8, 6), ptx: true, driver: at(12, 8), usage: &[], size: 0, packed: b"" },
];

const ANY: DimRule = DimRule { min: 0, max: u64::MAX, multiple_of: 1 };
static COUNTERS: Counters = Counters::new();

const DEQUANTIZE: EntryFacts = EntryFacts {
    id: KernelId(1),
    name: "dequantize.plain.cuda",
    op: Op::Dequantize,
    format: 0,
    quantizer: 0,
    device: DeviceKind::Cuda,
    isa: None,
    features: FeatureSet::EMPTY,
    shape: ShapeRules { m: ANY, n: ANY, k: DimRule { min: 0, max: 1024, multiple_of: 1 } },
    source: "here:1",
    plan: "",
    code: Code::Cuda(CudaCode {
        images: &IMAGES,
        min_cc: (7, 5),
        algorithm: CudaAlgorithm::Blocks,
        overlaps: false,
        launch: CudaLaunch::Elements {
            op: Op::Dequantize,
            function: "dequantize_plain",
            threads: 128,
            per_thread: 4,
        },
    }),
    counters: &COUNTERS,
};

// SAFETY: an image of no bytes can't be loaded, so nothing is ever launched.
static ENTRIES: [Entry; 1] = unsafe { [Entry::new(DEQUANTIZE)] };

// SAFETY: no kernel that can be run is for them.
static FORMATS: [FormatInfo; 2] =
    unsafe { [FormatInfo::new(format("plain")), FormatInfo::new(format("other"))] };

const fn format(name: &'static str) -> FormatFacts {
    FormatFacts {
        name,
        doc: "",
        source: "",
        gguf: None,
        elements: 4,
        bytes: 4,
        row_header: None,
        tensor_tail: None,
        quantizers: &[],
        activations: 0,
    }
}

fn candidates(op: Op, format: usize, _: DType, kind: DeviceKind) -> &'static [u16] {
    match (op, format, kind) {
        (Op::Dequantize, 0, DeviceKind::Cuda) => &[0],
        (
            Op::Dequantize | Op::Embed | Op::Quantize | Op::Matmul | Op::Prologue | Op::QuantizeActivations,
            _,
            _,
        ) => &[],
    }
}

fn none(_: Op, _: usize, _: DType, _: DeviceKind) -> &'static [u16] {
    &[]
}

static FAILURES: [(CudaArch, &str); 1] = [(arch(7, 5), "u.cu(3): error: no such instruction\nmore")];
static WITHOUT: [WithoutImage; 2] = [
    WithoutImage {
        name: "dequantize.other.cuda",
        op: Op::Dequantize,
        format: 1,
        source: "here:2",
        failures: &FAILURES,
    },
    WithoutImage { name: "matmul.other.cuda", op: Op::Matmul, format: 1, source: "here:3", failures: &[] },
];
static ARCHS: [CudaArch; 2] = [arch(8, 0), arch(8, 6)];
static ACTIVATIONS: [ActivationInfo; 1] =
    [ActivationInfo { name: "row", doc: "", source: "", block: None, keeps_multiplier: true, prologue: &[] }];

const fn registry(
    cuda: CudaBuild,
    entries: &'static [Entry],
    candidates: fn(Op, usize, DType, DeviceKind) -> &'static [u16],
    without_image: &'static [WithoutImage],
) -> Registry {
    let facts = RegistryFacts {
        package: "gpu",
        formats: &FORMATS,
        activations: &ACTIVATIONS,
        imports: &[],
        entries,
        candidates,
        left_out: &[],
        cuda,
        without_image,
        convert: None,
        experts: None,
        sources: &[],
    };
    // SAFETY: there is no kernel in it that can be run.
    unsafe { Registry::new(facts) }
}

static BUILT: Registry =
    registry(CudaBuild::Built { compiler: "nvcc", architectures: &ARCHS }, &ENTRIES, candidates, &WITHOUT);
static OFF: Registry = registry(CudaBuild::FeatureOff, &[], none, &[]);
static OFF_AND_DESCRIBED: Registry = registry(CudaBuild::FeatureOff, &[], none, &WITHOUT);
static WITHOUT_COMPILER: Registry =
    registry(CudaBuild::NoToolchain { looked: &["PATH: no `nvcc` there"] }, &[], none, &WITHOUT);

const CUDA: Device = Device { kind: DeviceKind::Cuda, index: 0 };

/// The reasons for all kernels, and how they read.
fn reasons(
    registry: &'static Registry,
    op: Op,
    format: &str,
    gpu: Result<GpuProfile, NoGpu>,
    k: usize,
) -> Result<(Vec<Reason>, String), Error> {
    let request = Request {
        op,
        format,
        quantizer: None,
        input: DType::F32,
        device: CUDA,
        shape: Shape::matrix(4, k),
        precision: PrecisionMode::Int8,
        working_set: None,
        threads: 1,
    };
    let prepared = registry.prepare_on(&request, CpuProfile::detect(), Some(gpu), &Restrict::default())?;
    let decision = prepared.decide_as_asked();
    let reasons = decision.rejected().map(|rejection| rejection.reason).collect();
    Ok((reasons, decision.to_string()))
}

fn device(cc: (u8, u8), driver: (u32, u32)) -> Result<GpuProfile, NoGpu> {
    Ok(GpuProfile::pretend(cc, CudaVersion { major: driver.0, minor: driver.1 }))
}

#[test]
fn each_reason_is_another_and_says_what_helps() -> Result<(), Error> {
    let plain = |gpu, k| reasons(&BUILT, Op::Dequantize, "plain", gpu, k);
    let cases = [
        (
            reasons(&OFF, Op::Dequantize, "plain", device((8, 0), (13, 0)), 64)?,
            Reason::CudaFeatureOff,
            "--features cuda",
        ),
        (
            reasons(&WITHOUT_COMPILER, Op::Dequantize, "other", device((8, 0), (13, 0)), 64)?,
            Reason::NoToolchain { looked: &["PATH: no `nvcc` there"] },
            "gristmill doctor",
        ),
        (
            reasons(&BUILT, Op::Dequantize, "other", device((8, 0), (13, 0)), 64)?,
            Reason::NoImageBuilt { failures: &FAILURES },
            "for 75: u.cu(3): error: no such instruction\n",
        ),
        (
            reasons(&BUILT, Op::Matmul, "other", device((8, 0), (13, 0)), 64)?,
            Reason::NoImageBuilt { failures: &[] },
            "GRISTMILL_CUDA_ARCHS",
        ),
        (plain(Err(NoGpu::NoDriver), 64)?, Reason::NoGpu(NoGpu::NoDriver), "install the NVIDIA driver"),
        (plain(Err(NoGpu::NoDevice), 64)?, Reason::NoGpu(NoGpu::NoDevice), "CUDA_VISIBLE_DEVICES"),
        (
            plain(Err(NoGpu::OldDriver { found: at(11, 8) }), 64)?,
            Reason::NoGpu(NoGpu::OldDriver { found: at(11, 8) }),
            "525 or newer",
        ),
        (
            plain(device((8, 0), (12, 9)), 64)?,
            Reason::DriverTooOld { cc: (8, 0), found: at(12, 9), needed: at(13, 0) },
            "supports CUDA 13.0, or build with `pip install --no-deps nvidia-cuda-nvrtc-cu12==12.9.86`",
        ),
        (
            plain(device((9, 0), (12, 7)), 64)?,
            Reason::DriverTooOld { cc: (9, 0), found: at(12, 7), needed: at(12, 8) },
            "naming its libnvrtc.so.12, and GRISTMILL_CUDA_ARCHS=90a",
        ),
        (
            plain(device((7, 0), (13, 0)), 64)?,
            Reason::CapabilityTooLow { needed: (7, 5), found: (7, 0) },
            "needs compute capability 7.5, the device has 7.0",
        ),
        (
            plain(device((7, 5), (13, 0)), 64)?,
            Reason::ArchitectureNotBuilt { cc: (7, 5), built: ARCHS.to_vec() },
            "GRISTMILL_CUDA_ARCHS=80,86,75 cargo build --features cuda",
        ),
    ];
    let mut texts: Vec<String> = Vec::new();
    for ((found, text), expected, words) in cases {
        assert!(found.contains(&expected), "{expected:?} is not in {found:?}");
        assert!(text.contains(words), "`{words}` is not in {text}");
        assert!(!texts.contains(&text), "the same words as before: {text}");
        texts.push(text);
    }
    let (found, _) = plain(device((8, 0), (13, 0)), 2048)?;
    assert!(matches!(found[..], [Reason::ShapeRule(_)]), "{found:?}");
    Ok(())
}

/// What helps with other formats or ops of a registry is no help with what nobody described.
#[test]
fn what_nobody_described_has_no_other_reason() -> Result<(), Error> {
    for registry in [&OFF_AND_DESCRIBED, &WITHOUT_COMPILER, &BUILT] {
        for (op, format) in [(Op::Matmul, "plain"), (Op::Quantize, "other")] {
            let (found, text) = reasons(registry, op, format, device((8, 0), (13, 0)), 64)?;
            assert!(matches!(found[..], [Reason::OpNotDescribed { .. }]), "{text}");
        }
    }
    Ok(())
}

/// What a product on a GPU needs besides its operands it has there.
#[test]
fn a_product_of_a_gpu_needs_no_workspace_on_the_processor() -> Result<(), Error> {
    let shape = Shape::new(3, 8, 64);
    let request = Request::matmul("plain", shape).on(CUDA).with_precision(PrecisionMode::F32);
    let gpu = device((8, 0), (13, 0));
    let prepared = OF_PRODUCTS.prepare_on(&request, CpuProfile::detect(), Some(gpu), &Restrict::default())?;
    let memory = prepared.decide(shape).memory(&Threads::single())?;
    assert_eq!((memory.weight_bytes, memory.workspace), (8 * 64 + 8 * 4, WorkspaceSize::default()));
    Ok(())
}

#[test]
fn a_pretended_device_gets_its_kernel_but_no_handle() -> Result<(), Error> {
    for (cc, driver) in [((8, 0), (13, 0)), ((8, 6), (12, 8)), ((9, 0), (12, 8)), ((12, 1), (13, 0))] {
        let request = Request::dequantize("plain", 4, 64).on(CUDA);
        let gpu = device(cc, driver);
        let prepared = BUILT.prepare_on(&request, CpuProfile::detect(), Some(gpu), &Restrict::default())?;
        let decision = prepared.decide_as_asked();
        assert_eq!(
            decision.chosen().map(|entry| entry.name),
            Some("dequantize.plain.cuda"),
            "{cc:?}: {decision}"
        );
        // Where there is a device, the images above are not what it can run.
        assert!(Dequantizer::new(&decision).is_err());
    }
    Ok(())
}

/// Products of `plain`: of int8 first, of floats behind it; and what quantizes activations, up to eight tokens in the second.
// SAFETY: as above.
static PRODUCTS: [Entry; 4] = unsafe {
    [
        Entry::new(EntryFacts {
            id: KernelId(2),
            name: "matmul.plain.cuda.int8",
            op: Op::Matmul,
            shape: FREE,
            code: Code::Cuda(CudaCode {
                algorithm: CudaAlgorithm::Dp4a,
                launch: CudaLaunch::Matmul {
                    function: "int8",
                    threads: 128,
                    fewest: 32,
                    rows: 4,
                    tokens: 1,
                    packing: &PACKING,
                    unit: Unit { elements: 0, multiple: 16 },
                    split: None,
                    shared: 0,
                    fused: false,
                    grouped: None,
                },
                ..CODE
            }),
            ..DEQUANTIZE
        }),
        Entry::new(EntryFacts {
            id: KernelId(3),
            name: "matmul.plain.cuda.f32",
            op: Op::Matmul,
            shape: FREE,
            code: Code::Cuda(CudaCode {
                algorithm: CudaAlgorithm::Fma,
                launch: CudaLaunch::Rows {
                    function: "f32",
                    check: "check",
                    check_threads: 128,
                    precision: Precision::F32,
                    threads: 128,
                    fewest: 32,
                    rows: 4,
                    tokens: 1,
                    shared: 0,
                    quantizer: None,
                },
                ..CODE
            }),
            ..DEQUANTIZE
        }),
        Entry::new(QUANTIZE_ACTIVATIONS),
        Entry::new(EntryFacts {
            id: KernelId(5),
            name: "quantize_activations.row.cuda.few",
            shape: ShapeRules { m: DimRule { min: 0, max: 8, multiple_of: 1 }, ..FREE },
            ..QUANTIZE_ACTIVATIONS
        }),
    ]
};

const FREE: ShapeRules = ShapeRules { m: ANY, n: ANY, k: ANY };

const CODE: CudaCode = match DEQUANTIZE.code {
    Code::Cuda(code) => code,
    _ => unreachable!(),
};

const QUANTIZE_ACTIVATIONS: EntryFacts = EntryFacts {
    id: KernelId(4),
    name: "quantize_activations.row.cuda",
    op: Op::QuantizeActivations,
    shape: FREE,
    code: Code::Cuda(CudaCode {
        launch: CudaLaunch::Activations {
            op: Op::QuantizeActivations,
            function: "quantize_activations",
            threads: 128,
        },
        ..CODE
    }),
    ..DEQUANTIZE
};

// SAFETY: the functions touch no memory.
static PACKING: PackInfo = unsafe {
    PackInfo::new(PackFacts {
        name: "p",
        rows: 4,
        tile_k: 4,
        tile_bytes: 16,
        scale_bytes: 0,
        min_bytes: 0,
        runs: 1,
        span: 1,
        scale_integer_bits: 8,
        min_integer_bits: 8,
        flag_bits: 0,
        meaning: "",
        min: 0,
        table: None,
        pack,
        unpack,
    })
};

unsafe fn pack(
    _: *const u8,
    _: usize,
    _: usize,
    _: usize,
    _: *mut u8,
    _: *mut f32,
    _: *mut f32,
) -> Result<(), Fault> {
    Ok(())
}

unsafe fn unpack(_: *const u8, _: *const f32, _: *const f32, _: f32, _: usize, _: usize, _: *mut f32) {}

fn products(op: Op, format: usize, _: DType, kind: DeviceKind) -> &'static [u16] {
    match (op, format, kind) {
        (Op::Matmul, 0, DeviceKind::Cuda) => &[0, 1],
        (Op::QuantizeActivations, 0, DeviceKind::Cuda) => &[2, 3],
        _ => &[],
    }
}

static OF_PRODUCTS: Registry =
    registry(CudaBuild::Built { compiler: "nvcc", architectures: &ARCHS }, &PRODUCTS, products, &[]);

/// What a layer is to hold for all numbers of tokens is what decisions for each of them choose: where nothing quantizes activations, a
/// product of floats, and why it is not the other one is no tuning's doing.
#[test]
fn products_whose_activations_nothing_quantizes_are_left_to_floats() -> Result<(), Error> {
    let (int8, floats) = ("matmul.plain.cuda.int8", "matmul.plain.cuda.f32");
    let all = "quantize_activations.row.cuda";
    let few = "quantize_activations.row.cuda.few";
    for (disabled, of_one, of_many, packings) in [
        (&[][..], int8, int8, &[Some("p")][..]),
        (&[all], int8, floats, &[Some("p"), None]),
        (&[all, few], floats, floats, &[None]),
    ] {
        let disabled = disabled.iter().map(|name| String::from(*name)).collect();
        let restrict = Restrict { disabled, ..Restrict::default() };
        let request =
            Request::matmul("plain", Shape::new(1, 8, 64)).on(CUDA).with_precision(PrecisionMode::Auto);
        let gpu = Some(device((8, 0), (13, 0)));
        let prepared = OF_PRODUCTS.prepare_on(&request, CpuProfile::detect(), gpu, &restrict)?;
        for (m, expected) in [(1, of_one), (8, of_one), (9, of_many), (1000, of_many)] {
            let decision = prepared.decide(Shape::new(m, 8, 64));
            assert_eq!(decision.chosen().map(|entry| entry.name), Some(expected), "m = {m}: {decision}");
            let [other] = &decision.rejected().collect::<Vec<_>>()[..] else { panic!("{decision}") };
            match (expected == floats, &other.reason) {
                (true, Reason::NoActivations(refusal)) => assert_eq!(refusal.format, "row"),
                (false, Reason::Preferred { over }) => assert_eq!(*over, int8),
                (_, found) => panic!("m = {m}: {found:?}"),
            }
        }
        let held: Vec<_> = prepared.packings(8, 64)?.into_iter().map(|(packing, _)| packing).collect();
        assert_eq!(held, packings, "{disabled:?}", disabled = restrict.disabled);
    }
    Ok(())
}
