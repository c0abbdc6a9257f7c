//! How long products should take on a device that nobody here has had: `docs/predictions.md`, worked out from what the compiler made of
//! the kernels, and written down so that the first measurement can prove it wrong.
//!
//! A time is that of a launch and the longest of: bytes at the rate of a copy; products at the rate of the units that take them;
//! instructions at the rate at which schedulers issue them; and, where a kernel waits for the loads that it began, the trips to memory that
//! its bytes take. All of a multiprocessor's blocks are counted, so that tiles that do not divide evenly show.

use super::skipped;
use gristmill::runtime::occupancy::{BlockNeeds, Multiprocessor};
use gristmill_codegen::cuda::compile::{Image, Instructions, compile, cuobjdump, disassemble};
use gristmill_codegen::cuda::toolchain::{Env, discover};
use gristmill_codegen::cuda::{CudaListed, Emitted, emit, jobs};
use gristmill_spec::model::SpecSet;
use gristmill_spec::vocab::{CudaAlgorithm, CudaArch};
use gristmill_spec::{check, shipped};
use std::fmt::Write as _;
use std::path::Path;

const PAGE: &str = "docs/predictions.md";
const BEGIN: &str = "<!-- @generated from images; `BLESS=1 cargo test --test cuda_model predictions`, with a CUDA compiler, rewrites it. -->\n";
/// The compiler of the page.
const COMPILER: &str = "nvcc 13.0.88 cicc 13.0.88 ptxas 13.0.88 by nvrtc";
const END: &str = "<!-- end of what is generated -->\n";

/// A device: what its makers publish, and the rate of a large copy, which others have measured.
struct Device {
    name: &'static str,
    arch: CudaArch,
    cc: (u8, u8),
    multiprocessors: u32,
    /// Cycles and bytes a second.
    clock: f64,
    copy: f64,
    /// Pairs that a multiprocessor multiplies in a cycle: int8 by `mma` and by warpgroups, halves by warpgroups, and
    /// FP4 by block-scaled `mma`.
    mma: f64,
    wgmma: f64,
    halves: f64,
    fp4: f64,
}

const fn arch(major: u8, minor: u8, specific: bool) -> CudaArch {
    CudaArch { major, minor, specific }
}

const DEVICES: [Device; 3] = [
    Device {
        name: "H200",
        arch: arch(9, 0, true),
        cc: (9, 0),
        multiprocessors: 132,
        clock: 1.755e9,
        copy: 4.3e12,
        mma: 2048.0,
        wgmma: 4096.0,
        halves: 2048.0,
        fp4: 0.0,
    },
    Device {
        name: "A100 40GB",
        arch: arch(8, 0, false),
        cc: (8, 0),
        multiprocessors: 108,
        clock: 1.41e9,
        copy: 1.35e12,
        mma: 2048.0,
        wgmma: 0.0,
        halves: 0.0,
        fp4: 0.0,
    },
    // By NVIDIA's figures: 838 TOPS of int8 and 1676 TFLOPS of FP4, dense; 1792 GB/s, of which a copy gets nine tenths at best.
    Device {
        name: "RTX 5090",
        arch: arch(12, 0, true),
        cc: (12, 0),
        multiprocessors: 170,
        clock: 2.407e9,
        copy: 1.6e12,
        mma: 1024.0,
        wgmma: 0.0,
        halves: 0.0,
        fp4: 2048.0,
    },
];

/// Seconds of a launch in a graph, and of a trip to memory.
const LAUNCH: f64 = 1.0e-6;
const TRIP: f64 = 0.7e-6;
/// Instructions of warps that a multiprocessor issues in a cycle, and pairs of bytes that its lanes multiply (`dp4a`).
const ISSUED: f64 = 4.0;
const DP4A: f64 = 256.0;

/// Formats, ends of names, and tokens that are looked at, each with every one of `SHAPES`.
const KERNELS: [(&str, &str, u32); 16] = [
    ("i2_s", "dp4a", 1),
    ("i2_s", "mma", 1),
    ("i2_s", "mma", 8),
    ("i2_s", "mma.wide", 128),
    ("i2_s", "mma.prefill", 2048),
    ("i2_s", "wgmma.wide", 512),
    ("i2_s", "wgmma.prefill", 2048),
    ("q4_0", "mma.prefill", 2048),
    ("q4_0", "wgmma.runs", 2048),
    ("q4_k", "mma.prefill", 2048),
    ("q4_k", "wgmma.superblocks", 2048),
    ("q4_k", "wgmma_f16.prefill", 2048),
    ("mxfp4", "mma.prefill", 2048),
    ("mxfp4", "mma_fp4", 128),
    ("mxfp4", "mma_fp4.prefill", 2048),
    ("nvfp4", "mma_fp4.prefill", 2048),
];
/// Rows and k.
const SHAPES: [(u32, u32); 2] = [(2560, 2560), (13_824, 2560)];

/// What a kernel's code does.
struct Code<'a> {
    listed: &'a CudaListed,
    /// Instructions of a warp in the loop that multiplies, for each that multiplies, and pairs that one of these multiplies.
    multiplying: (f64, f64),
    /// Where other warps bring what is multiplied: their instructions for each stage, by four warps.
    bringing: Option<f64>,
    block: BlockNeeds,
}

/// The instruction by which an algorithm multiplies, and pairs of it for each warp, by its tokens where warpgroups multiply.
fn instruction(algorithm: CudaAlgorithm, tokens: u32, cc: (u8, u8)) -> Option<(&'static str, f64)> {
    let tokens = f64::from(tokens);
    Some(match algorithm {
        CudaAlgorithm::Dp4a => ("IDP.4A", 4.0 * 32.0),
        CudaAlgorithm::Mma if cc < (8, 0) => ("IMMA", 8.0 * 8.0 * 16.0),
        CudaAlgorithm::Mma => ("IMMA", 16.0 * 8.0 * 32.0),
        CudaAlgorithm::Wgmma => ("IGMMA", 16.0 * tokens * 32.0),
        CudaAlgorithm::MmaFp4 => ("OMMA", 16.0 * 8.0 * 64.0),
        CudaAlgorithm::WgmmaF16 | CudaAlgorithm::WgmmaBf16 => ("HGMMA", 16.0 * tokens * 16.0),
        _ => return None,
    })
}

/// Numbers of a kernel's launch.
fn number(listed: &CudaListed, name: &str) -> u32 {
    let numbers = listed.plan.launch.numbers();
    numbers.iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("{}: no {name}", listed.name)).1
}

fn code<'a>(listed: &'a CudaListed, image: &Image, all: &Instructions, cc: (u8, u8)) -> Code<'a> {
    let at = &listed.name;
    let (name, pairs) = instruction(listed.algorithm, number(listed, "tokens"), cc)
        .expect("it multiplies integers, halves or FP4");
    let inner = all.loop_with(name, "LDGSTS").unwrap_or_else(|| panic!("{at}: no loop with {name}"));
    let usage = image.usage.iter().find(|usage| usage.kernel == listed.plan.launch.function());
    let usage = usage.unwrap_or_else(|| panic!("{at}: not in its image"));
    // The other warps copy, and store what they copied or rounded for the async proxy.
    let stores = if name == "HGMMA" { "STS.128" } else { "STS.64" };
    let bringing = (name == "IGMMA" || name == "HGMMA").then(|| {
        let other = all.loop_with(stores, "UBLKCP").unwrap_or_else(|| panic!("{at}: no loop with {stores}"));
        // Integers' tokens are brought by a loop of several stages, each with two stores for sixteen bytes of a thread.
        let pieces = number(listed, "tokens") * listed.plan.stage.unwrap_or(16) / 16;
        let stages = if name == "HGMMA" { 1 } else { other.found as u32 / (2 * pieces.div_ceil(128)) };
        4.0 * other.instructions as f64 / f64::from(stages.max(1))
    });
    // What ends a super-block is gone past in all its other runs.
    let often = (inner.instructions - inner.sometimes) as f64;
    let executed = often + inner.sometimes as f64 / f64::from(listed.plan.runs);
    Code {
        listed,
        multiplying: (executed / inner.found as f64, pairs),
        bringing,
        block: BlockNeeds {
            threads: number(listed, "threads"),
            registers: usage.registers,
            shared: usage.shared + listed.plan.launch.shared(),
        },
    }
}

/// A prediction, in seconds.
struct Time {
    blocks: u32,
    limit: &'static str,
    bytes: f64,
    memory: f64,
    products: f64,
    issue: f64,
    waiting: f64,
}

impl Time {
    fn all(&self) -> f64 {
        LAUNCH + [self.memory, self.products, self.issue, self.waiting].into_iter().fold(0.0, f64::max)
    }

    fn bound(&self) -> &'static str {
        let all = [
            (self.memory, "memory"),
            (self.products, "products"),
            (self.issue, "instructions"),
            (self.waiting, "latency"),
        ];
        all.into_iter().fold((0.0, ""), |most, next| if next.0 > most.0 { next } else { most }).1
    }
}

/// Bytes of a weight, with its share of scales: packed, or in the format's own rows.
fn bytes_of_weight(set: &SpecSet, listed: &CudaListed) -> f64 {
    let format = &set.formats[listed.format];
    let (bytes, weights) = listed.plan.packed.unwrap_or((format.bytes, format.elements));
    f64::from(bytes) / f64::from(weights)
}

fn time(set: &SpecSet, code: &Code<'_>, device: &Device, (m, n, k): (u32, u32, u32)) -> Time {
    let Code { listed, multiplying: (instructions, pairs), bringing, block } = code;
    let (rows, tokens) = (number(listed, "rows"), number(listed, "tokens"));
    let occupancy = Multiprocessor::of(device.cc).expect("known").occupancy(block);
    let tiles = n.div_ceil(rows) * m.div_ceil(tokens);
    // Of the multiprocessor that has the most.
    let here = f64::from(tiles.div_ceil(device.multiprocessors));
    let of_tile = f64::from(rows) * f64::from(tokens) * f64::from(k);
    let rate = match listed.algorithm {
        CudaAlgorithm::Dp4a => DP4A,
        CudaAlgorithm::Mma => device.mma,
        CudaAlgorithm::Wgmma => device.wgmma,
        CudaAlgorithm::MmaFp4 => device.fp4,
        _ => device.halves,
    };
    let brought = bringing.zip(listed.plan.stage).map_or(0.0, |(each, of)| each * f64::from(k.div_ceil(of)));
    let issued = here * (of_tile / pairs * instructions + brought);
    let weights = f64::from(n) * f64::from(k) * bytes_of_weight(set, listed);
    let of_activation = match (listed.algorithm, listed.packing) {
        (CudaAlgorithm::MmaFp4, _) => bytes_of_weight(set, listed),
        (_, Some(_)) => 1.0,
        (_, None) => 2.0,
    };
    let activations = f64::from(m) * f64::from(k) * of_activation;
    let bytes = weights + activations + 4.0 * f64::from(m) * f64::from(n);
    // Kernels of few tokens load sixteen bytes a lane, two or four times before they use the first.
    let ahead = match (listed.algorithm, tokens) {
        (CudaAlgorithm::Dp4a, _) => 2.0,
        (CudaAlgorithm::Mma, ..=16) => 4.0,
        _ => 0.0,
    };
    let at_once = f64::from(occupancy.blocks.min(tiles.div_ceil(device.multiprocessors)).max(1));
    let under_way = at_once * f64::from(block.threads) * 16.0 * ahead;
    let of_multiprocessor = here * f64::from(rows) * f64::from(k) * bytes_of_weight(set, listed);
    Time {
        blocks: occupancy.blocks,
        limit: occupancy.limit.name(),
        bytes,
        memory: bytes / device.copy,
        products: here * of_tile / rate / device.clock,
        issue: issued / ISSUED / device.clock,
        waiting: if ahead > 0.0 { (of_multiprocessor / under_way).ceil() * TRIP } else { 0.0 },
    }
}

/// The kernels that are looked at, of the devices' architectures, with the lines of the page.
fn section(
    set: &SpecSet,
    emitted: &Emitted,
    images: &[Image],
    disassembled: &dyn Fn(&Image, &str) -> Instructions,
) -> String {
    let mut out = String::from(BEGIN);
    for device in &DEVICES {
        let Device { name, multiprocessors, clock, copy, .. } = device;
        let _ = write!(
            out,
            "\n**{name}**: {multiprocessors} multiprocessors at {:.3} GHz, a copy at {:.2} TB/s; machine code for {}.\n\n\
             | kernel | m | n, k | registers | shared bytes | blocks (by) | instructions a product | MB | memory | products | instructions | latency | predicted |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
            clock / 1e9,
            copy / 1e12,
            device.arch,
        );
        for (format, end, m) in KERNELS {
            let name = format!("matmul.{format}.cuda.{end}");
            let listed = emitted.listed.iter().find(|listed| listed.name == name).expect("it is listed");
            let image = images
                .iter()
                .find(|image| image.unit == listed.unit && image.arch == device.arch && !image.ptx);
            let Some(image) = image else { continue };
            let code = code(listed, image, &disassembled(image, listed.plan.launch.function()), device.cc);
            for (n, k) in SHAPES {
                let time = time(set, &code, device, (m, n, k));
                let us = |seconds: f64| format!("{:.1}", seconds * 1e6);
                let _ = writeln!(
                    out,
                    "| `{format}` {end} | {m} | {n}, {k} | {} | {} | {} ({}) | {:.1} | {:.1} | {} | {} | {} | {} | **{}** ({}) |",
                    code.block.registers,
                    code.block.shared,
                    time.blocks,
                    time.limit,
                    code.multiplying.0,
                    time.bytes / 1e6,
                    us(time.memory),
                    us(time.products),
                    us(time.issue),
                    us(time.waiting),
                    us(time.all()),
                    time.bound(),
                );
            }
        }
    }
    out.push('\n');
    out.push_str(END);
    out
}

#[test]
fn predictions_are_what_the_images_say() {
    let env = Env::of_process();
    let found = discover(&env, None).found;
    let Some((toolchain, tool)) = found.and_then(|found| cuobjdump(&found, &env).map(|tool| (found, tool)))
    else {
        return skipped("no CUDA compiler, or no cuobjdump");
    };
    let set = check(&shipped().expect("readable")).set.expect("the shipped specs have no mistakes");
    let emitted = emit(&set).expect("plans");
    let named = |listed: &&CudaListed| {
        KERNELS.iter().any(|(format, end, _)| listed.name == format!("matmul.{format}.cuda.{end}"))
    };
    let wanted: Vec<&str> = emitted.listed.iter().filter(named).map(|listed| listed.unit.as_str()).collect();
    let archs = DEVICES.map(|device| device.arch);
    let units = emitted.units.iter().filter(|unit| wanted.contains(&unit.name.as_str()));
    let units: Vec<_> = units
        .map(|unit| {
            let mut unit = unit.compiled_for(&archs);
            unit.ptx.clear();
            unit
        })
        .collect();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-images");
    let made = compile(&units, &toolchain, &cache, jobs()).expect("a cache");
    let failures: Vec<String> = made.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let disassembled = |image: &Image, kernel: &str| {
        let mut kernels = disassemble(&tool, &env, &image.bytes).expect("cuobjdump reads it");
        kernels.remove(kernel).expect("it is in its image")
    };
    let expected = section(&set, &emitted, &made.images, &disassembled);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path).expect("the page");
    let from = page.find(BEGIN).expect("the page has a place for the tables");
    let to = page.find(END).expect("the tables have an end") + END.len();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, [&page[..from], &expected, &page[to..]].concat()).expect("it is written");
    } else if toolchain.identity() == COMPILER {
        assert_eq!(&page[from..to], expected);
    } else {
        skipped("another compiler than that of the page");
    }
}
