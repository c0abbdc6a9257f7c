//! A small registry written by hand, with real kernels: what a build would generate, in miniature.
//!
//! * `header4`: 4 codes of 4 bits (code - 8) in 2 bytes, an f16 scale before each row, no product;
//! * `tail2`: 8 codes of 2 bits (code - 1, 3 means nothing) in 2 bytes, an f32 scale in an 8-byte tail;
//! * `tiny8`: an f16 scale and 4 int8 in 6 bytes, scales per unit in its packing.
#![allow(dead_code, reason = "each test binary uses its own part of this registry")]

pub mod kernels;

use gristmill_runtime::half::f16;
use gristmill_runtime::registry::{
    ActivationInfo, Code, Counters, DimRule, Entry, EntryFacts, FormatFacts, FormatInfo, KernelId, LeftOut,
    OuterType, PackFacts, PackInfo, Registry, RegistryFacts, ShapeRules, Unit,
};
use gristmill_runtime::vocab::{DType, DeviceKind, Feature, FeatureSet, Isa, Op};
use kernels::*;

pub const TABLES: RegistryFacts = RegistryFacts {
    package: "toy",
    formats: &FORMATS,
    activations: &ACTIVATIONS,
    imports: &[],
    entries: &ENTRIES,
    candidates,
    left_out: &[LeftOut { format: "big9", feature: "toy-extra", gguf: None }],
    sources: &[],
    cuda: gristmill_runtime::registry::CudaBuild::FeatureOff,
    without_image: &[],
    convert: None,
    experts: None,
};

// SAFETY: entries name the formats for which their code is written, and `row` and `step4` are what `activations_row` and
// `activations_step` write and what the products of their formats read.
pub static REGISTRY: Registry = unsafe { Registry::new(TABLES) };

pub const HEADER4: usize = 0;
pub const TAIL2: usize = 1;
pub const TINY8: usize = 2;

const HEADER4_FACTS: FormatFacts = FormatFacts {
    name: "header4",
    doc: "",
    source: "toy/header4.toml",
    gguf: None,
    elements: 4,
    bytes: 2,
    row_header: Some(OuterType::F16),
    tensor_tail: None,
    quantizers: &["absmax"],
    activations: 0,
};

const TAIL2_FACTS: FormatFacts = FormatFacts {
    name: "tail2",
    doc: "",
    source: "toy/tail2.toml",
    gguf: None,
    elements: 8,
    bytes: 2,
    row_header: None,
    tensor_tail: Some((OuterType::F32, 8)),
    quantizers: &["absmax", "sign"],
    activations: 0,
};

const TINY8_FACTS: FormatFacts = FormatFacts {
    name: "tiny8",
    doc: "",
    source: "toy/tiny8.toml",
    gguf: None,
    elements: 4,
    bytes: 6,
    row_header: None,
    tensor_tail: None,
    quantizers: &["absmax"],
    activations: 1,
};

// SAFETY: the functions below go over blocks of these sizes, and the names stand for one layout each.
pub static FORMATS: [FormatInfo; 3] =
    unsafe { [FormatInfo::new(HEADER4_FACTS), FormatInfo::new(TAIL2_FACTS), FormatInfo::new(TINY8_FACTS)] };

static ACTIVATIONS: [ActivationInfo; 2] = [
    ActivationInfo {
        name: "row",
        doc: "",
        source: "toy/row.toml",
        block: None,
        keeps_multiplier: true,
        prologue: &[],
    },
    ActivationInfo {
        name: "step4",
        doc: "",
        source: "toy/step4.toml",
        block: Some(4),
        keeps_multiplier: false,
        prologue: &[],
    },
];

pub const ANY: DimRule = DimRule { min: 0, max: u64::MAX, multiple_of: 1 };
pub const FREE: ShapeRules = ShapeRules { m: ANY, n: ANY, k: ANY };
pub const UNIT_ROW: Unit = Unit { elements: 0, multiple: 16 };
const UNIT_4: Unit = Unit { elements: 4, multiple: 8 };

pub const P4: PackFacts = PackFacts {
    name: "p4",
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
    pack: pack_tail2,
    unpack: unpack_tail2,
};

// SAFETY: `pack_tail2` writes, and `unpack_tail2` and `product_tail2` read, four bytes for each element of a padded row.
static PACK_TAIL2: PackInfo = unsafe { PackInfo::new(P4) };
// SAFETY: as above for `tiny8`, with a scale for each unit and row; `scale_bytes` tells its layout from the other one's.
static PACK_TINY8: PackInfo =
    unsafe { PackInfo::new(PackFacts { scale_bytes: 4, pack: pack_tiny8, unpack: unpack_tiny8, ..P4 }) };

static COUNTERS: [Counters; 14] = [const { Counters::new() }; 14];

pub const fn entry(index: usize, name: &'static str, op: Op, format: usize, code: Code) -> EntryFacts {
    EntryFacts {
        id: KernelId(0x1000 + index as u64),
        name,
        op,
        format,
        quantizer: 0,
        device: DeviceKind::Cpu,
        isa: Some(Isa::Scalar),
        features: FeatureSet::EMPTY,
        shape: FREE,
        source: "toy/kernels.toml:1",
        plan: "",
        code,
        counters: &COUNTERS[index],
    }
}

pub const fn matmul(
    run: gristmill_runtime::abi::MatmulFn,
    packing: Option<&'static PackInfo>,
    unit: Unit,
) -> Code {
    Code::Matmul { run, packing, unit }
}

const DECODE: ShapeRules = ShapeRules { m: DimRule { min: 0, max: 3, multiple_of: 1 }, n: ANY, k: ANY };
const PREFILL: ShapeRules =
    ShapeRules { m: DimRule { min: 4, max: u64::MAX, multiple_of: 1 }, n: ANY, k: ANY };
const K8: ShapeRules = ShapeRules { m: ANY, n: ANY, k: DimRule { min: 0, max: u64::MAX, multiple_of: 8 } };

// SAFETY: each function below goes over what the facts of its format and packing say, and none uses a feature that not every
// processor has, whatever ISA its name says.
static ENTRIES: [Entry; 14] = unsafe {
    [
        Entry::new(EntryFacts {
            isa: Some(Isa::Avx512),
            // No processor has both, so this one never runs, here or anywhere.
            features: FeatureSet::EMPTY.with(Feature::Avx512vbmi).with(Feature::Neon),
            ..entry(
                0,
                "matmul.tail2.avx512.decode",
                Op::Matmul,
                TAIL2,
                matmul(product_tail2, Some(&PACK_TAIL2), UNIT_ROW),
            )
        }),
        Entry::new(EntryFacts {
            isa: Some(Isa::Avx2),
            shape: DECODE,
            ..entry(
                1,
                "matmul.tail2.avx2.decode",
                Op::Matmul,
                TAIL2,
                matmul(product_tail2, Some(&PACK_TAIL2), UNIT_ROW),
            )
        }),
        Entry::new(EntryFacts {
            isa: Some(Isa::Avx2),
            shape: PREFILL,
            ..entry(
                2,
                "matmul.tail2.avx2.prefill",
                Op::Matmul,
                TAIL2,
                matmul(product_tail2, Some(&PACK_TAIL2), UNIT_ROW),
            )
        }),
        Entry::new(entry(3, "matmul.tail2.scalar", Op::Matmul, TAIL2, matmul(rows_tail2, None, UNIT_ROW))),
        Entry::new(EntryFacts {
            shape: K8,
            ..entry(
                4,
                "matmul.tiny8.scalar",
                Op::Matmul,
                TINY8,
                matmul(product_tiny8, Some(&PACK_TINY8), UNIT_4),
            )
        }),
        Entry::new(entry(
            5,
            "quantize_activations.row.scalar",
            Op::QuantizeActivations,
            0,
            Code::QuantizeActivations(activations_row),
        )),
        Entry::new(entry(
            6,
            "quantize_activations.step4.scalar",
            Op::QuantizeActivations,
            1,
            Code::QuantizeActivations(activations_step),
        )),
        Entry::new(entry(
            7,
            "dequantize.header4.scalar",
            Op::Dequantize,
            HEADER4,
            Code::Dequantize(dequantize_header4),
        )),
        Entry::new(entry(
            8,
            "dequantize.tail2.scalar",
            Op::Dequantize,
            TAIL2,
            Code::Dequantize(dequantize_tail2),
        )),
        Entry::new(entry(
            9,
            "dequantize.tiny8.scalar",
            Op::Dequantize,
            TINY8,
            Code::Dequantize(dequantize_tiny8),
        )),
        Entry::new(entry(
            10,
            "quantize.header4.absmax.scalar",
            Op::Quantize,
            HEADER4,
            Code::Quantize { step: Some(step_7), blocks: quantize_header4, weighs: false },
        )),
        Entry::new(entry(
            11,
            "quantize.tail2.absmax.scalar",
            Op::Quantize,
            TAIL2,
            Code::Quantize { step: Some(step_1), blocks: quantize_tail2, weighs: false },
        )),
        Entry::new(EntryFacts {
            quantizer: 1,
            ..entry(
                12,
                "quantize.tail2.sign.scalar",
                Op::Quantize,
                TAIL2,
                Code::Quantize { step: Some(step_1), blocks: sign_tail2, weighs: false },
            )
        }),
        Entry::new(entry(13, "embed.tail2.scalar", Op::Embed, TAIL2, Code::Embed(embed_tail2))),
    ]
};

fn candidates(op: Op, format: usize, dtype: DType, device: DeviceKind) -> &'static [u16] {
    match (op, format, dtype, device) {
        (Op::Matmul, TAIL2, DType::F32 | DType::F16 | DType::Bf16 | DType::I8, DeviceKind::Cpu) => {
            &[0, 1, 2, 3]
        }
        (Op::Matmul, TINY8, DType::F32 | DType::I8, DeviceKind::Cpu) => &[4],
        (Op::QuantizeActivations, 0, DType::F32, DeviceKind::Cpu) => &[5],
        (Op::QuantizeActivations, 1, DType::F32, DeviceKind::Cpu) => &[6],
        (Op::Dequantize, HEADER4, DType::F32, DeviceKind::Cpu) => &[7],
        (Op::Dequantize, TAIL2, DType::F32, DeviceKind::Cpu) => &[8],
        (Op::Dequantize, TINY8, DType::F32, DeviceKind::Cpu) => &[9],
        (Op::Quantize, HEADER4, DType::F32, DeviceKind::Cpu) => &[10],
        (Op::Quantize, TAIL2, DType::F32, DeviceKind::Cpu) => &[11, 12],
        (Op::Embed, TAIL2, DType::F32 | DType::F16 | DType::Bf16, DeviceKind::Cpu) => &[13],
        _ => &[],
    }
}

/// Numbers between -1 and 1 that repeat in every run.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// `n` rows of `k` weights of `tail2`, made by its quantizer, and their values.
pub fn tail2(n: usize, k: usize) -> Vec<u8> {
    let request = gristmill_runtime::Request::quantize("tail2", None, n, k);
    let prepared = REGISTRY.prepare(&request).expect("a request of the toy registry");
    let quantizer = gristmill_runtime::Quantizer::new(&prepared.decide_as_asked()).expect("a quantizer");
    let mut bytes = vec![0xff; FORMATS[TAIL2].tensor_bytes(n, k).expect("whole blocks")];
    quantizer.run(&noise(n * k, 7), n, k, &mut bytes).expect("finite values");
    bytes
}

/// `n` rows of `k` weights of `tiny8`.
pub fn tiny8(n: usize, k: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (block, x) in noise(n * k, 9).chunks(4).enumerate() {
        bytes.extend(f16::from_f32(0.01 * (1 + block % 5) as f32).to_le_bytes());
        bytes.extend(x.iter().map(|x| (x * 127.0) as i8 as u8));
    }
    bytes
}
