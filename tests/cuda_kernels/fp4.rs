//! Products of FP4: what activations become, against the format's own quantizer and the oracle; products against sums in f64, within
//! the bound of docs/cuda.md; and what can't be multiplied, told at its place.

use super::choice::{everything, left_out};
use super::floats::{Launched, Type, aligned, beyond, launch};
use super::generated::{Kernel, NO_FAULT, generated, products_of_fp4, sources, text_of};
use super::support::{Buffer, Unit, can_run};
use super::verify::inputs::{self, Weights};
use gristmill::oracle::{FormatOracle, Oracle, Random};
use gristmill::{Quantizer, REGISTRY, Request};
use gristmill_codegen::cuda::{CudaListed, DEVICE_HEADER, Emitted, Launch, emit};
use gristmill_spec::model::{Fp4, Scalar};
use gristmill_spec::vocab::CudaAlgorithm;
use gristmill_spec::{SourceFile, check};
use std::sync::Arc;

/// Elements of a stage.
const STAGE: usize = 128;

/// Values of codes.
const E2M1: [f64; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

fn scale_of(scalar: Scalar, bits: u8) -> f64 {
    match scalar {
        Scalar::E8m0Half => 2f64.powi(i32::from(bits) - 127),
        _ if bits < 8 => f64::from(bits) * 2f64.powi(-9),
        _ => f64::from(8 + bits % 8) * 2f64.powi(i32::from(bits / 8) - 10),
    }
}

/// Quantized rows, as a product takes them.
struct Quantized {
    bytes: Vec<u8>,
    stride: usize,
}

fn quantize(kernel: &Kernel, x: &[f32], k: usize, of: Type) -> Result<Quantized, u64> {
    let Launch::Rows { quantizer: Some(quantizer), .. } = &kernel.listed.plan.launch else {
        panic!("a product of FP4")
    };
    let rows = x.len() / k;
    let stride = (k.div_ceil(STAGE) * quantizer.bytes as usize).next_multiple_of(16);
    let src = Buffer::input("x", &of.bytes(x));
    let dst = Buffer::<u8>::unset("quantized", rows * stride);
    let fault = Buffer::output("fault", &[NO_FAULT]);
    let launch = kernel.unit.launch(&quantizer.function).grid(2, 1).threads(quantizer.threads);
    let launch = launch.arg(&src).arg(of.word()).arg(k as u64).arg(&dst).arg(3u32).arg(stride as u64);
    let launch = launch.arg(rows as u32).arg(k as u64).arg(&fault);
    launch.run().unwrap_or_else(|report| panic!("{}: {report}", quantizer.function));
    match fault.read()[0] {
        NO_FAULT => {
            // What lies between rows is never written, and never read.
            Ok(Quantized { bytes: dst.read_first(rows * stride), stride })
        }
        fault => Err(fault),
    }
}

/// What a quantized row stands for, taken apart by what cuda.md says of stages.
fn values(fp4: &Fp4, row: &[u8], k: usize) -> Vec<f64> {
    let stages = k.div_ceil(STAGE);
    let run = fp4.run as usize;
    let mut values = vec![f64::NAN; stages * STAGE];
    for (stage, codes) in row[..stages * 64].chunks(64).enumerate() {
        for word in 0..16 {
            let at = (word % 4 * 4 + word / 4) * 4;
            let bits = u32::from_le_bytes(codes[at..at + 4].try_into().expect("four bytes"));
            let of_run = word * 8 / run;
            let scale = scale_of(fp4.scale, row[stages * 64 + stage * (STAGE / run) + of_run]);
            for (i, first) in fp4.elements.iter().enumerate() {
                let within = *first as usize + word % (run / 8) * fp4.next as usize;
                values[stage * STAGE + of_run * run + within] = E2M1[(bits >> (4 * i) & 15) as usize] * scale;
            }
        }
    }
    assert!(values[k..].iter().all(|x| *x == 0.0), "zeros behind k");
    values.truncate(k);
    values
}

/// Activations of every size that occurs, and of some that do not.
fn activations(random: &mut Random, count: usize) -> Vec<f32> {
    let mut x = random.gauss_vec(count, 1.0);
    for (i, run) in x.chunks_mut(16).enumerate() {
        match i % 7 {
            0 => run.iter_mut().for_each(|x| *x *= 1e-3),
            1 => run.fill(0.0),
            2 => run.iter_mut().for_each(|x| *x = (*x * 4.0).round() / 4.0),
            3 => run.iter_mut().for_each(|x| *x *= 3e3),
            4 => run[3] = -0.0,
            5 => run.iter_mut().for_each(|x| *x *= 1e-6),
            _ => {}
        }
    }
    x
}

/// The bytes that the format's own quantizer makes, as their meaning. It refuses weights beyond the greatest value of `nvfp4`, which
/// activations become.
fn by_the_format(oracle: &FormatOracle<'_>, fp4: &Fp4, x: &[f32], rows: usize, k: usize) -> Vec<f64> {
    let name = &oracle.format().name;
    let greatest = if fp4.scale == Scalar::Ue4m3Half { 6.0 * 448.0 } else { f32::MAX };
    let x: Vec<f32> = x.iter().map(|x| x.clamp(-greatest, greatest)).collect();
    let request = Request::quantize(name, None, rows, k);
    let prepared = REGISTRY.prepare(&request).expect("prepares");
    let quantizer = Quantizer::new(&prepared.decide_as_asked()).expect("a handle");
    let mut bytes = vec![0; quantizer.format().tensor_bytes(rows, k).expect("whole blocks")];
    quantizer.run(&x, rows, k, &mut bytes).expect("finite");
    let row = |row| oracle.row(&bytes, rows, k, row).expect("valid codes").f32s;
    (0..rows).flat_map(row).map(f64::from).collect()
}

#[test]
fn activations_become_what_the_format_quantizes_to() {
    if !can_run("activations as FP4") {
        return;
    }
    let kernels = products_of_fp4();
    let mut formats = Vec::new();
    for kernel in kernels {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let fp4 = oracle.format().fp4().expect("served");
        let mut random = Random::new(61, kernel.format());
        for (rows, k) in [(3, 64), (2, 128), (5, 960), (1, 2880)] {
            let x = activations(&mut random, rows * k);
            for of in [Type::F32, Type::F16, Type::Bf16] {
                let x: Vec<f32> = x.iter().map(|x| of.rounded(*x)).collect();
                let quantized = quantize(&kernel, &x, k, of).expect("finite");
                let found: Vec<f64> =
                    quantized.bytes.chunks(quantized.stride).flat_map(|row| values(&fp4, row, k)).collect();
                let case = format!("{} {rows} x {k} of {of:?}", kernel.format());
                assert_eq!(found, by_the_format(&oracle, &fp4, &x, rows, k), "{case}");
                assert_eq!(found, oracle.fp4(&x).expect("FP4"), "{case}, by the oracle");
            }
        }
        formats.push(kernel.format());
    }
    formats.dedup();
    assert!(!cfg!(feature = "ggml") || formats == ["mxfp4", "nvfp4"], "{formats:?}");
}

#[test]
fn activations_that_are_not_finite_are_told() {
    if !can_run("activations that are not finite") {
        return;
    }
    for kernel in products_of_fp4() {
        let k = 192;
        let mut x = vec![1.0; 3 * k];
        x[2 * k + 77] = f32::NAN;
        x[k + 130] = f32::INFINITY;
        x[k + 131] = f32::NEG_INFINITY;
        let found = quantize(&kernel, &x, k, Type::F32).err();
        assert_eq!(found, Some((k as u64 + 130) * 4), "{}", kernel.listed.name);
    }
}

/// A product: rows of blocks, and what they and the activations stand for.
struct Product {
    shape: (usize, usize, usize),
    blocks: Vec<Vec<u8>>,
    weights: Vec<f64>,
    x: Vec<f32>,
    bias: Option<Vec<f32>>,
}

fn product(
    oracle: &FormatOracle<'_>,
    random: &mut Random,
    (m, n, k): (usize, usize, usize),
    bias: bool,
) -> Product {
    let tensor = inputs::tensor(oracle, random, n, k, Weights::Random);
    let row = |row| oracle.row(&tensor, n, k, row).expect("valid codes").f32s;
    Product {
        shape: (m, n, k),
        blocks: tensor.chunks(tensor.len() / n).map(<[u8]>::to_vec).collect(),
        weights: (0..n).flat_map(row).map(f64::from).collect(),
        x: random.gauss_vec(m * k, 1.0),
        bias: bias.then(|| random.gauss_vec(n, 1.0)),
    }
}

/// Runs a kernel; what it computed, or what the emulator says of it.
fn run(kernel: &Kernel, product: &Product, quantized: &Quantized, seed: u64) -> Result<Vec<f32>, String> {
    let Quantized { bytes, stride } = quantized;
    let (outer, bias) = (vec![1.0; product.shape.1], product.bias.as_deref());
    let launched =
        Launched { shape: product.shape, outer: &outer, x: bytes, x_stride: *stride, x_type: 3, bias };
    let outcome = launch(kernel, &product.blocks, &launched, (false, seed))?;
    outcome.map_err(|fault| format!("fault {fault}"))
}

/// The first output that is farther from the sum in f64 than the bound says.
fn beyond_the_bound(product: &Product, x: &[f64], y: &[f32]) -> Option<String> {
    beyond(&product.weights, x, product.bias.as_deref(), y, product.shape.2)
}

/// Random products of one kernel, within the bound.
fn products(kernel: &Kernel, oracle: &FormatOracle<'_>, shapes: &[(usize, usize, usize)]) {
    let mut random = Random::new(62, &kernel.listed.name);
    for (number, shape) in shapes.iter().enumerate() {
        let product = product(oracle, &mut random, *shape, number % 2 == 1);
        let case = format!("{} {shape:?}", kernel.listed.name);
        let x = quantize(kernel, &product.x, shape.2, Type::F32).expect("finite");
        let y = run(kernel, &product, &x, number as u64);
        let y = y.unwrap_or_else(|report| panic!("{case}: {report}"));
        let beyond = beyond_the_bound(&product, &oracle.fp4(&product.x).expect("FP4"), &y);
        assert_eq!(beyond, None, "{case}");
    }
}

#[test]
fn products_are_within_the_bound() {
    if !can_run("products of FP4") {
        return;
    }
    for kernel in products_of_fp4() {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let rows = kernel.number("rows");
        let shapes =
            [(17, rows + 1, 64), (1, 3, 832), (kernel.number("tokens") + 3, 9, 256), (40, rows, 2880)];
        products(&kernel, &oracle, if everything() { &shapes } else { &shapes[..3] });
    }
}

/// Where every sum is exact in f32, in whatever order, the result must be.
#[test]
fn exact_sums_are_exact() {
    if !can_run("exact sums of FP4") {
        return;
    }
    for kernel in products_of_fp4() {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let mut random = Random::new(63, &kernel.listed.name);
        let shape @ (m, n, k) = (kernel.number("tokens"), 11, 704);
        let mut product = product(&oracle, &mut random, shape, false);
        let one = if oracle.format().fp4().expect("served").scale == Scalar::E8m0Half { 127 } else { 0x38 };
        for (blocks, row) in product.blocks.iter_mut().zip(product.weights.chunks_mut(k)) {
            let format = oracle.format();
            for block in blocks.chunks_mut(format.bytes as usize) {
                for run in 0..oracle.count(1 - format.value.code) {
                    oracle.set_raw(block, 1 - format.value.code, run, one);
                }
            }
            let decoded = oracle.decode(blocks, 1.0).expect("valid codes").f32s;
            row.iter_mut().zip(decoded).for_each(|(weight, w)| *weight = f64::from(w));
        }
        // Each run has a 6 or a -6, so that its scale is 1.
        product.x =
            (0..m * k).map(|i| if i % 16 == 5 { 6.0 } else { random.below(13) as f32 / 2.0 - 3.0 }).collect();
        let x = quantize(&kernel, &product.x, k, Type::F32).expect("finite");
        let y = run(&kernel, &product, &x, 3).unwrap_or_else(|report| panic!("{report}"));
        let meant = oracle.fp4(&product.x).expect("FP4");
        for (at, found) in y.iter().enumerate() {
            let terms = product.weights[at % n * k..][..k].iter().zip(&meant[at / n * k..][..k]);
            let exact: f64 = terms.map(|(w, x)| w * x).sum();
            assert_eq!(f64::from(*found), exact, "{}: {at}", kernel.listed.name);
        }
    }
}

/// Twice the largest scale is no number for tensor cores: such weights are refused when they are packed.
#[test]
fn weights_without_a_scale_are_told() {
    if !can_run("weights that FP4 can't have") {
        return;
    }
    for kernel in products_of_fp4() {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let fp4 = oracle.format().fp4().expect("served");
        let mut random = Random::new(64, kernel.format());
        let mut product = product(&oracle, &mut random, (1, 4, 256), false);
        let check = |blocks: &[Vec<u8>]| {
            let Launch::Rows { check, .. } = &kernel.listed.plan.launch else { panic!("a product of FP4") };
            let (blocks, stride) = aligned(blocks);
            let blocks = Buffer::input("blocks", &blocks);
            let (outer, fault) = (Buffer::input("outer", &[1f32; 4]), Buffer::output("fault", &[NO_FAULT]));
            let launch = kernel.unit.launch(check).grid(1, 1).arg(&blocks).arg(stride as u64);
            launch.arg(&outer).arg(4u32).arg(256u32).arg(3u32).arg(&fault).run().expect("no mistake");
            fault.read()[0]
        };
        assert_eq!(check(&product.blocks), NO_FAULT, "{}", kernel.listed.name);
        // The last block of row 2, whose codes are all 0.5 but for its first.
        let bytes = oracle.format().bytes as usize;
        let at = product.blocks[2].len() - bytes;
        let block = &mut product.blocks[2][at..];
        block[fp4.codes as usize..][..(oracle.format().elements / 2) as usize].fill(0x11);
        block[fp4.codes as usize] = 0x10;
        block[fp4.scales as usize..][..(oracle.format().elements / fp4.run) as usize].fill(0xff);
        let expected = match fp4.scale {
            Scalar::E8m0Half => (2 * 256 + 256 - 32 + 1) * 4 + 3,
            // There it means 0.
            _ => NO_FAULT,
        };
        assert_eq!(check(&product.blocks), expected, "{}", kernel.listed.name);
        if fp4.scale != Scalar::E8m0Half {
            product.weights[2 * 256 + 192..][..64].fill(0.0);
            let x = quantize(&kernel, &product.x, 256, Type::F32).expect("finite");
            let y = run(&kernel, &product, &x, 1).expect("no mistake");
            assert_eq!(beyond_the_bound(&product, &oracle.fp4(&product.x).expect("FP4"), &y), None);
        }
    }
}

/// Formats of one's own: neighbours in a byte, as the OCP's files have them, and scales behind the codes of a longer block.
#[test]
fn other_layouts_are_served() {
    if !can_run("FP4 in other layouts") {
        return;
    }
    let levels = "levels = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]";
    let written = [
        (
            "neighbours",
            32,
            17,
            "e8m0-half",
            "shape = [1], stride = [8]",
            "shape = [32], stride = [4], offset = 8",
        ),
        (
            "behind",
            128,
            72,
            "ue4m3-half",
            "shape = [8], stride = [8], offset = 512",
            "shape = [128], stride = [4]",
        ),
        (
            "quads",
            64,
            34,
            "e8m0-half",
            "shape = [2], stride = [8], offset = 256",
            "shape = [2, 2, 16], stride = [128, 4, 8]",
        ),
    ];
    let mut all: Vec<SourceFile> = sources();
    let like =
        all.iter().find(|source| source.path.ends_with("formats/q8_0.toml")).expect("shipped").path.clone();
    for (name, elements, bytes, scale, scales, codes) in written {
        let text = format!(
            "doc = 'FP4'\nblock = {{ elements = {elements}, bytes = {bytes} }}\n\n\
            [[field]]\nname = 'd'\ntype = '{scale}'\nlayout = {{ {scales} }}\n\n\
            [[field]]\nname = 'qs'\ntype = 'u4'\nlayout = {{ {codes} }}\n\n\
            [value]\ncode = 'qs'\n{levels}\nscale = 'd'\n"
        );
        all.push(SourceFile { path: like.replace("q8_0", name), bytes: text.into_bytes() });
    }
    let report = check(&all);
    let set = report.set.unwrap_or_else(|| panic!("{:?}", report.diagnostics));
    let emitted: &'static Emitted = Box::leak(Box::new(emit(&set).unwrap_or_else(|e| panic!("{e:?}"))));
    let oracle = Oracle::of(set.clone());
    for (name, ..) in written {
        let of = |l: &&CudaListed| l.algorithm == CudaAlgorithm::MmaFp4 && set.formats[l.format].name == name;
        let mut kernels = 0;
        for listed in emitted.listed.iter().filter(of) {
            let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
            let unit = Arc::new(Unit::new(&unit.name, &unit.text.replace(DEVICE_HEADER, "")));
            let kernel = Kernel { listed, unit };
            products(&kernel, &oracle.format(name).expect("described"), &[(5, 35, 384)]);
            kernels += 1;
        }
        assert_eq!(kernels, 2, "{name}");
    }
}

/// One mistake in the text of a kernel shows: as a report of the emulator, or beyond the bound.
#[test]
fn mistakes_show() {
    if !can_run("mistakes in products of FP4") || left_out("mistakes in products of FP4") {
        return;
    }
    let mistakes = [
        ("b0[2] = {v.x, v.y}", "b0[2] = {v.y, v.x}"),
        ("w_scale, i, x_scale, lane, 0)", "w_scale, 1 - i, x_scale, lane, 0)"),
        ("w_scale, i, x_scale, lane, 1)", "w_scale, i, x_scale, 3 - lane, 1)"),
        ("w_scale, i, x_scale, lane, 1)", "w_scale, i, x_scale, lane, 0)"),
        ("(w_at + 8 * t + g) * STAGE_RUNS", "(w_at + 8 * (t ^ 1) + g) * STAGE_RUNS"),
        ("            gm_copy_wait<1>();\n", ""),
        ("            gm_sync();\n", ""),
        ("if (next < stages)", "if (next + 1 < stages)"),
        ("word * 8 < left ? four_bytes", "true ? four_bytes"),
        ("v + bias", "v - bias"),
        ("for (u32 mask = 1; mask < OF_A_RUN", "for (u32 mask = 2; mask < OF_A_RUN"),
    ];
    for kernel in products_of_fp4().into_iter().filter(|kernel| kernel.number("tokens") == 32) {
        let oracle = generated().oracle.format(kernel.format()).expect("described");
        let text = text_of(&kernel.listed.unit);
        for (from, to) in mistakes {
            assert!(text.contains(from), "`{from}` stands in {}", kernel.listed.unit);
            let unit = Arc::new(Unit::new(&kernel.listed.unit, &text.replacen(from, to, 1)));
            let wrong = Kernel { listed: kernel.listed, unit };
            let mut random = Random::new(65, from);
            let k = 384 + oracle.format().elements as usize;
            let product = product(&oracle, &mut random, (37, 70, k), true);
            let meant = oracle.fp4(&product.x).expect("FP4");
            let shown = (0..3).any(|seed| {
                let x = quantize(&wrong, &product.x, k, Type::F32).expect("finite");
                run(&wrong, &product, &x, seed)
                    .map_or(true, |y| beyond_the_bound(&product, &meant, &y).is_some())
            });
            assert!(shown, "{}: `{from}` as `{to}` goes unnoticed", kernel.function());
        }
    }
}
