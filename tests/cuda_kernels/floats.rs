//! Products of floats, by every kernel that rounds weights to halves or takes them as f32, against sums in f64: within the
//! bound of docs/cuda.md, and exactly where every sum is exact in f32.

use super::choice::{everything, left_out};
use super::generated::{Kernel, NO_FAULT, generated, least, products_of_floats, sources};
use super::support::{Buffer, Unit, can_run};
use super::verify::inputs::{self, Weights};
use gristmill::REGISTRY;
use gristmill::half::{bf16, f16};
use gristmill::oracle::Random;
use gristmill_codegen::cuda::{CudaListed, DEVICE_HEADER, Emitted, Launch, emit};
use gristmill_spec::vocab::Precision;
use gristmill_spec::{SourceFile, check};
use std::sync::Arc;

/// A type of activations, or what a kernel rounds to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    F32,
    F16,
    Bf16,
}

impl Type {
    pub fn word(self) -> u32 {
        self as u32
    }

    /// The nearest number of the type.
    pub fn rounded(self, x: f32) -> f32 {
        match self {
            Type::F32 => x,
            Type::F16 => f16::from_f32(x).to_f32(),
            Type::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// Bytes of values that are the type's.
    pub fn bytes(self, values: &[f32]) -> Vec<u8> {
        let each = |x: &f32| match self {
            Type::F32 => x.to_le_bytes().to_vec(),
            Type::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
            Type::Bf16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(each).collect()
    }
}

/// What a kernel multiplies.
pub fn of_kernel(listed: &CudaListed) -> Type {
    match listed.plan.launch {
        Launch::Rows { precision: Precision::F16, .. } => Type::F16,
        Launch::Rows { precision: Precision::Bf16, .. } => Type::Bf16,
        _ => Type::F32,
    }
}

/// A product to compute: rows of blocks without headers, what each row's scale is multiplied with, and all weights as f32.
pub struct Product {
    m: usize,
    n: usize,
    k: usize,
    blocks: Vec<Vec<u8>>,
    outer: Vec<f32>,
    weights: Vec<f32>,
    x: Vec<f32>,
    bias: Option<Vec<f32>>,
}

/// Random weights of a shipped format, and activations.
pub fn product(format: &str, random: &mut Random, (m, n, k): (usize, usize, usize), bias: bool) -> Product {
    let oracle = generated().oracle.format(format).expect("described");
    let tensor = inputs::tensor(&oracle, random, n, k, Weights::Random);
    of_tensor(format, random, (m, n, k), bias, &tensor)
}

fn of_tensor(
    format: &str,
    random: &mut Random,
    (m, n, k): (usize, usize, usize),
    bias: bool,
    tensor: &[u8],
) -> Product {
    let oracle = generated().oracle.format(format).expect("described");
    let (_, info) = REGISTRY.format(format).expect("in this build");
    let row_bytes = info.row_bytes(k).expect("whole blocks");
    let header = info.row_header.map_or(0, |outer| outer.bytes());
    let rows: Vec<_> = (0..n).map(|row| oracle.row(tensor, n, k, row).expect("valid codes")).collect();
    Product {
        m,
        n,
        k,
        blocks: (0..n).map(|row| tensor[row * row_bytes + header..(row + 1) * row_bytes].to_vec()).collect(),
        outer: rows.iter().map(|row| row.outer).collect(),
        weights: rows.into_iter().flat_map(|row| row.f32s).collect(),
        x: random.gauss_vec(m * k, 1.0),
        bias: bias.then(|| random.gauss_vec(n, 1.0)),
    }
}

/// Rows at multiples of sixteen bytes, and the bytes from one to the next.
pub fn aligned(blocks: &[Vec<u8>]) -> (Vec<u8>, usize) {
    let stride = blocks[0].len().next_multiple_of(16);
    let padded = blocks.iter().flat_map(|row| {
        let mut row = row.clone();
        row.resize(stride, 0xa5);
        row
    });
    (padded.collect(), stride)
}

/// What a product over rows is launched with, beside its weights.
pub struct Launched<'a> {
    /// Tokens, rows, k.
    pub shape: (usize, usize, usize),
    pub outer: &'a [f32],
    /// Rows of activations of type `x_type`, `x_stride` values apart.
    pub x: &'a [u8],
    pub x_stride: usize,
    pub x_type: u32,
    pub bias: Option<&'a [f32]>,
}

/// Launches a kernel; what it computed, or the fault.
pub fn launch(
    kernel: &Kernel,
    blocks: &[Vec<u8>],
    launched: &Launched<'_>,
    (fewest, seed): (bool, u64),
) -> Result<Result<Vec<f32>, u64>, String> {
    let Launched { shape: (m, n, k), outer, x, x_stride, x_type, bias } = *launched;
    let (blocks, stride) = aligned(blocks);
    let blocks = Buffer::input("blocks", &blocks);
    let outer = Buffer::input("outer", outer);
    let x = Buffer::input("x", x);
    let bias_values = Buffer::input("bias", bias.unwrap_or_default());
    let y = Buffer::<f32>::unset("y", m * n);
    let fault = Buffer::output("fault", &[NO_FAULT]);
    // As docs/cuda.md has it.
    let mut arguments = Vec::new();
    for word in [
        blocks.address(),
        stride as u64,
        outer.address(),
        x.address(),
        x_stride as u64,
        0,
        if bias.is_some() { bias_values.address() } else { 0 },
        y.address(),
        fault.address(),
    ] {
        arguments.extend(word.to_le_bytes());
    }
    for word in [x_type, k as u32, m as u32, n as u32] {
        arguments.extend(word.to_le_bytes());
    }
    let grid = (n.div_ceil(kernel.number("rows")) as u32, m.div_ceil(kernel.number("tokens")) as u32);
    let threads = kernel.number(if fewest { "fewest" } else { "threads" }) as u32;
    let launch = kernel.unit.launch(kernel.function()).grid(grid.0, grid.1).threads(threads);
    let launch = launch.shared(kernel.number("shared") as u32);
    launch.structure(&arguments).seed(seed).run()?;
    Ok(match fault.read()[0] {
        NO_FAULT => Ok(y.try_read()?),
        fault => Err(fault),
    })
}

/// Runs a kernel with activations of type `x_type`; what it computed, or the fault.
pub fn run(
    kernel: &Kernel,
    product: &Product,
    x_type: Type,
    how: (bool, u64),
) -> Result<Result<Vec<f32>, u64>, String> {
    let Product { m, n, k, blocks, outer, x, bias, .. } = product;
    // What rounds weights reads whole stages of activations.
    let x_stride = if of_kernel(kernel.listed) == Type::F32 { *k } else { k.next_multiple_of(32) };
    let padded: Vec<f32> = x
        .chunks(*k)
        .flat_map(|row| {
            let mut row = row.to_vec();
            row.resize(x_stride, 0.0);
            row
        })
        .collect();
    let (shape, bias, x) = ((*m, *n, *k), bias.as_deref(), x_type.bytes(&padded));
    let launched = Launched { shape, outer, x: &x, x_stride, x_type: x_type.word(), bias };
    launch(kernel, blocks, &launched, how)
}

/// The first output that is farther from the sum in f64 than the bound says, of weights and activations as they are multiplied.
pub fn beyond(weights: &[f64], x: &[f64], bias: Option<&[f32]>, y: &[f32], k: usize) -> Option<String> {
    let n = weights.len() / k;
    y.iter().enumerate().find_map(|(at, found)| {
        let (token, row) = (at / n, at % n);
        let terms = weights[row * k..][..k].iter().zip(&x[token * k..][..k]).map(|(w, x)| w * x);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let bias = f64::from(bias.map_or(0.0, |bias| bias[row]));
        let (expected, found) = (sum + bias, f64::from(*found));
        let bound = (1.125 * k as f64 + 32.0) * 2f64.powi(-23) * (size + bias.abs());
        let away = (found - expected).abs();
        // NaN is far from everything.
        (away.is_nan() || away > bound).then(|| {
            format!(
                "y[{token}, {row}] is {found:e}, expected {expected:e}, {away:e} away where {bound:e} is allowed"
            )
        })
    })
}

/// The same of a kernel's product.
pub fn beyond_the_bound(kernel: &Kernel, product: &Product, x_type: Type, y: &[f32]) -> Option<String> {
    let rounds = of_kernel(kernel.listed);
    let weights: Vec<f64> = product.weights.iter().map(|w| f64::from(rounds.rounded(*w))).collect();
    assert!(weights.iter().all(|w| w.is_finite()), "the weights are to fit");
    let x: Vec<f64> = product.x.iter().map(|x| f64::from(rounds.rounded(x_type.rounded(*x)))).collect();
    beyond(&weights, &x, product.bias.as_deref(), y, product.k)
}

/// Panics where an output is farther from the sum in f64 than the bound says.
fn within_the_bound(case: &str, kernel: &Kernel, product: &Product, x_type: Type, y: &[f32]) {
    if let Some(found) = beyond_the_bound(kernel, product, x_type, y) {
        panic!("{case}: {found}");
    }
}

/// Whether every format's kernel of this type is tried; of types whose text differs in a word only, some.
fn tried(listed: &CudaListed) -> bool {
    let format = generated().set.formats[listed.format].name.as_str();
    of_kernel(listed) != Type::Bf16 || ["i2_s", "q4_k", "q8_0"].contains(&format)
}

#[test]
fn products_are_within_the_bound() {
    if !can_run("products of floats") {
        return;
    }
    let mut cases = 0;
    for kernel in products_of_floats(&tried) {
        let elements = generated().set.formats[kernel.listed.format].elements as usize;
        let mut random = Random::new(41, &kernel.listed.name);
        let (tile, rounds) = (kernel.number("tokens"), of_kernel(kernel.listed));
        // Tiles of many tokens are slow in the emulator.
        let shapes: &[(usize, usize, usize)] = match (rounds, tile) {
            (Type::F32, 1) => &[(1, 5, 1), (1, 9, 5), (3, 4, 2)],
            (Type::F32, _) => &[(8, 6, 3), (5, 1, 1), (11, 3, 2)],
            (_, 128 | 256) => &[(20, 40, 1)],
            (_, _) => &[(17, 70, 1), (40, 3, 2)],
        };
        for (number, (m, n, blocks)) in shapes.iter().enumerate() {
            let k = elements * blocks * if elements < 64 { 3 } else { 1 };
            let product = product(kernel.format(), &mut random, (*m, *n, k), number % 2 == 0);
            let x_types = if rounds == Type::F32 { [Type::F32, Type::F16, Type::Bf16] } else { [rounds; 3] };
            let x_type = x_types[number];
            let case = format!("{} m={m} n={n} k={k}, {x_type:?}", kernel.listed.name);
            let y = run(&kernel, &product, x_type, (number == 1, number as u64));
            let y = y.unwrap_or_else(|report| panic!("{case}: {report}"));
            let y = y.unwrap_or_else(|fault| panic!("{case}: fault {fault}"));
            within_the_bound(&case, &kernel, &product, x_type, &y);
            cases += 1;
        }
    }
    println!("{cases} products");
    assert!(cases >= least(60), "only {cases} products were computed");
}

/// Small integers: every sum is exact in f32, in whatever order, so that the result must be.
#[test]
fn exact_sums_are_exact() {
    if !can_run("exact sums") {
        return;
    }
    for kernel in products_of_floats(&|listed| generated().set.formats[listed.format].name == "i2_s") {
        let mut random = Random::new(42, &kernel.listed.name);
        let tile = kernel.number("tokens");
        let shapes = [(tile + 1, 3, 512), (tile, kernel.number("rows") + 1, 1280)];
        for (m, n, k) in shapes.into_iter().take(if everything() { 2 } else { 1 }) {
            let oracle = generated().oracle.format("i2_s").expect("described");
            let mut tensor = inputs::tensor(&oracle, &mut random, n, k, Weights::Random);
            let (_, info) = REGISTRY.format("i2_s").expect("in this build");
            let tail = n * info.row_bytes(k).expect("whole blocks");
            tensor[tail..tail + 4].copy_from_slice(&1f32.to_le_bytes());
            let mut product = of_tensor("i2_s", &mut random, (m, n, k), false, &tensor);
            product.x = (0..m * k).map(|_| random.below(255) as f32 - 127.0).collect();
            let rounds = of_kernel(kernel.listed);
            let y = run(&kernel, &product, rounds, (false, 7)).expect("no mistake").expect("no fault");
            for (i, found) in y.iter().enumerate() {
                let (token, row) = (i / n, i % n);
                let terms = (0..k).map(|j| product.weights[row * k + j] * product.x[token * k + j]);
                assert_eq!(*found, terms.sum::<f32>(), "{}: y[{token}, {row}]", kernel.listed.name);
            }
        }
    }
}

/// A format of twenty elements: rows that are no whole stages, blocks that are no whole eights.
#[test]
fn rows_may_end_within_a_stage() {
    if !can_run("short stages") || left_out("short stages") {
        return;
    }
    let mut sources: Vec<SourceFile> = sources();
    let like = sources.iter().find(|source| source.path.ends_with("formats/q8_0.toml")).expect("shipped");
    let text = "doc = 'twenty bytes and a scale'\nblock = { elements = 20, bytes = 22 }\n\n\
        [[field]]\nname = 'd'\ntype = 'f16'\n\n\
        [[field]]\nname = 'qs'\ntype = 'i8'\nlayout = { shape = [20], stride = [8], offset = 16 }\n\n\
        [value]\ncode = 'qs'\nscale = 'd'\n";
    sources.push(SourceFile { path: like.path.replace("q8_0", "twenty"), bytes: text.as_bytes().to_vec() });
    let report = check(&sources);
    let set = report.set.unwrap_or_else(|| panic!("{:?}", report.diagnostics));
    let emitted: &'static Emitted = Box::leak(Box::new(emit(&set).unwrap_or_else(|e| panic!("{e:?}"))));
    let mut tried = 0;
    for listed in emitted.listed.iter().filter(|l| l.name.starts_with("matmul.twenty.cuda.")) {
        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("its unit");
        let text = unit.text.replace(DEVICE_HEADER, "");
        if !matches!(listed.plan.launch, Launch::Rows { .. }) {
            continue;
        }
        let kernel = Kernel { listed, unit: Arc::new(Unit::new(&unit.name, &text)) };
        let mut random = Random::new(43, &listed.name);
        for (m, n, blocks) in [(3, 5, 1), (9, 33, 3), (1, 2, 13)] {
            let k = 20 * blocks;
            let mut product = Product {
                m,
                n,
                k,
                blocks: Vec::new(),
                outer: vec![1.0; n],
                weights: Vec::new(),
                x: random.gauss_vec(m * k, 1.0),
                bias: None,
            };
            for _ in 0..n {
                let mut row = Vec::new();
                for _ in 0..blocks {
                    let d = f16::from_f32(0.01 + random.below(100) as f32 / 64.0);
                    row.extend(d.to_le_bytes());
                    for _ in 0..20 {
                        let q = random.bits() as i8;
                        row.push(q.cast_unsigned());
                        product.weights.push(d.to_f32() * f32::from(q));
                    }
                }
                product.blocks.push(row);
            }
            let x_type = of_kernel(listed);
            let case = format!("{} m={m} n={n} k={k}", listed.name);
            let y = run(&kernel, &product, x_type, (false, 3));
            let y = y.unwrap_or_else(|report| panic!("{case}: {report}")).expect("no fault");
            within_the_bound(&case, &kernel, &product, x_type, &y);
            tried += 1;
        }
    }
    assert!(tried >= 15, "{tried}");
}

/// What can't be multiplied is told, at its place.
#[test]
fn faults_are_told() {
    if !can_run("faults of products of floats") {
        return;
    }
    let (m, n, k) = (3, 9, 64);
    for kernel in products_of_floats(&|listed| generated().set.formats[listed.format].name == "q4_0") {
        let mut random = Random::new(44, &kernel.listed.name);
        let rounds = of_kernel(kernel.listed);
        let mut product = product("q4_0", &mut random, (m, n, k), false);
        if rounds == Type::F32 {
            product.x[2 * k + 5] = f32::NAN;
            product.x[2 * k + 6] = f32::INFINITY;
            let found = run(&kernel, &product, Type::F32, (false, 1)).expect("no mistake");
            assert_eq!(found, Err((2 * k as u64 + 5) * 4), "{}", kernel.listed.name);
        }
        // Weights: 8 * 60000 is beyond f16, and within the others; an infinite scale is beyond all.
        for (scale, fits) in [(60000.0, [true, false, true]), (f32::INFINITY, [false; 3]), (1.0, [true; 3])] {
            let block = &mut product.blocks[4][18..36];
            block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            // Element 32 + 3 is -8 times the scale; the first of the block that is beyond.
            block[2..].fill(0x99);
            block[5] = 0x90;
            let (blocks, stride) = aligned(&product.blocks);
            let (blocks, outer) = (Buffer::input("blocks", &blocks), Buffer::input("outer", &vec![1f32; n]));
            for (number, fits) in fits.into_iter().enumerate() {
                let fault = Buffer::output("fault", &[NO_FAULT]);
                let Launch::Rows { check, .. } = &kernel.listed.plan.launch else {
                    panic!("a product of floats")
                };
                let launch = kernel.unit.launch(check).grid(2, 1);
                let launch = launch.arg(&blocks).arg(stride as u64).arg(&outer).arg(n as u32).arg(k as u32);
                launch.arg(number as u32).arg(&fault).run().expect("no mistake");
                let at = if scale.is_finite() { 35 } else { 32 };
                let expected = if fits { NO_FAULT } else { (4 * k as u64 + at) * 4 + 3 };
                assert_eq!(fault.read()[0], expected, "{} {scale} {number}", kernel.listed.name);
            }
        }
    }
}

/// One mistake in the text of a kernel shows: as a report of the emulator, or beyond the bound.
#[test]
fn mistakes_show() {
    if !can_run("mistakes in products of floats") || left_out("mistakes in products of floats") {
        return;
    }
    let mistakes = [
        (Type::F32, 8, "gm_fma(q[r][j], x[j], part)", "gm_fma(q[r][j], x[0], part)"),
        (Type::F32, 8, "    gm_sync();\n    const u32 row", "    const u32 row"),
        (Type::F32, 8, "e += gm_threads() * AT_ONCE", "e += 2 * gm_threads() * AT_ONCE"),
        (Type::F16, 32, "b0[2] = {v.x, v.y}", "b0[2] = {v.y, v.x}"),
        (Type::F16, 32, "gm_copy_wait<1>();", ""),
        (Type::F16, 32, "        gm_sync();\n", ""),
        (Type::F16, 32, "if (next < stages)", "if (next + 1 < stages)"),
        (Type::F16, 32, "v + bias", "v - bias"),
    ];
    for (rounds, tile, from, to) in mistakes {
        let of = |listed: &CudaListed| {
            let format = &generated().set.formats[listed.format].name;
            let tiled = matches!(listed.plan.launch, Launch::Rows { tokens, .. } if tokens == tile);
            format == "q4_0" && of_kernel(listed) == rounds && tiled
        };
        let kernel = products_of_floats(&of).pop().expect("it is listed");
        let text = super::generated::text_of(&kernel.listed.unit);
        let after = text.find(&format!(") {}(Rows a)", kernel.function())).expect("the kernel");
        let (before, own) = text.split_at(after);
        // In the kernel itself, or in what it calls.
        let text = if own.contains(from) {
            format!("{before}{}", own.replacen(from, to, 1))
        } else {
            assert!(before.contains(from), "`{from}` stands in the unit of {}", kernel.function());
            format!("{}{own}", before.replacen(from, to, 1))
        };
        let wrong = Kernel { listed: kernel.listed, unit: Arc::new(Unit::new(&kernel.listed.unit, &text)) };
        let mut random = Random::new(45, from);
        // Rows that one thread alone does not go through.
        let product = product("q4_0", &mut random, (9, 5, 2560), true);
        let shown = (0..3).any(|seed| match run(&wrong, &product, rounds, (false, seed)) {
            Err(_) | Ok(Err(_)) => true,
            Ok(Ok(y)) => beyond_the_bound(&wrong, &product, rounds, &y).is_some(),
        });
        assert!(shown, "{}: `{from}` as `{to}` goes unnoticed", kernel.function());
        let y = run(&kernel, &product, rounds, (false, 1)).expect("no mistake").expect("no fault");
        within_the_bound("without a mistake", &kernel, &product, rounds, &y);
    }
}
