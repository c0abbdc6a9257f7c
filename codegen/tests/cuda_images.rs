//! The images of the shipped kernels, where a CUDA compiler is: every unit compiles for every architecture, no kernel
//! uses more than its spec allows, none spills, and the instructions are those that the algorithms promise.
//!
//! Products of floats are most of the code, and differ between formats in how blocks are decoded only: without `GRISTMILL_TESTS=all`
//! each of their units is compiled for one of its architectures in turn, and the instructions of other products are looked at so, too.
//!
//! Images are kept in the build's folder for temporary files, so that a second run compiles what changed.

use gristmill_codegen::cuda::build::units;
use gristmill_codegen::cuda::compile::{
    Budget, Image, Instructions, Unit as Wanted, compile, cuobjdump, disassemble, excesses,
};
use gristmill_codegen::cuda::toolchain::{Env, Toolchain, discover};
use gristmill_codegen::cuda::{Unit as Emitted, emit, jobs, needed_driver};
use gristmill_spec::vocab::CudaArch;
use gristmill_spec::{check, shipped};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

#[path = "../../tests/choice/mod.rs"]
mod choice;

/// Architectures that a build has no machine code for unless it is asked for: the oldest that kernels are for, which CUDA 13 does not know
/// any more, and those that come as PTX.
const IF_ASKED: [CudaArch; 4] = [
    CudaArch { major: 5, minor: 0, specific: false },
    CudaArch { major: 6, minor: 1, specific: false },
    CudaArch { major: 7, minor: 5, specific: false },
    CudaArch { major: 12, minor: 0, specific: false },
];

/// Bytes of shared memory that a CUDA block has on sm_90, those that a launch gives it among them.
const SHARED_ON_HOPPER: u32 = 227 * 1024;

/// Budgets of a unit's kernels.
fn budgets(unit: &Emitted) -> Vec<Budget> {
    let each = unit.kernels.iter().map(|(kernel, allowed)| Budget {
        kernel: kernel.clone(),
        registers: Some(allowed.registers),
        shared: Some(allowed.shared),
        source: unit.name.clone(),
    });
    each.collect()
}

#[test]
fn images_are_what_the_specs_promise() {
    let env = Env::of_process();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-images");
    let found = discover(&env, None);
    let strict = std::env::var_os("GRISTMILL_NO_SKIP").is_some_and(|value| value == "1");
    let Some(toolchain) = &found.found else {
        assert!(!strict, "no CUDA compiler: {:?}", found.looked);
        println!("skipped: no CUDA compiler");
        return;
    };
    let set = check(&shipped().expect("readable")).set.expect("the shipped specs have no mistakes");
    let emitted = emit(&set).expect("plans");
    let mut units = units(&emitted.units, &set, &set.cuda.architectures, &set.cuda.specific);
    // What a compiler makes for other architectures is looked at all the same.
    for (unit, emitted) in units.iter_mut().zip(&emitted.units) {
        let more = emitted.compiled_for(&IF_ASKED).archs.into_iter().filter(|arch| toolchain.supports(*arch));
        unit.archs.extend(more);
        unit.archs.sort_unstable();
    }
    let in_turn =
        choice::left_out("all but one image of each unit of products of floats, and looks at others");
    if in_turn {
        let rows = units.iter_mut().filter(|unit| of_floats(&unit.name));
        rows.for_each(one_in_turn);
    }
    let images: usize = units.iter().map(|unit| unit.archs.len() + unit.ptx.len()).sum();
    let start = Instant::now();
    let made = compile(&units, toolchain, &cache, jobs()).expect("a cache");
    println!(
        "{toolchain}: {images} images of {} units, {} compiled now, in {:.1} s with {} jobs; {} KiB",
        units.len(),
        made.compiled,
        start.elapsed().as_secs_f64(),
        jobs(),
        made.images.iter().map(|image| image.bytes.len()).sum::<usize>() / 1024,
    );
    let start = Instant::now();
    let again = compile(&units, toolchain, &cache, jobs()).expect("a cache");
    println!("again: {} compiled, in {:.2} s", again.compiled, start.elapsed().as_secs_f64());
    let failures: Vec<String> = made.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!((made.images.len(), again.compiled), (images, 0));
    let warned = made.images.iter().flat_map(|i| &i.warnings).map(String::as_str);
    // CUDA 12 says so of every architecture that CUDA 13 does not know.
    let warned: BTreeSet<&str> =
        warned.filter(|warning| !warning.contains("Architectures prior to")).collect();
    assert!(warned.is_empty(), "{warned:#?}");

    // All drivers of CUDA 12 take the PTX, those from 12.4 on (PTX 8.4) products of unsigned by signed bytes by warpgroups, and those
    // from 12.8 on (PTX 8.7), on 12.1 from 12.9 on, products of FP4.
    // (NVRTC alone has no assembler to try older versions with.)
    for image in made.images.iter().filter(|image| image.ptx && matches!(toolchain, Toolchain::Nvcc(_))) {
        let needed = needed_driver(&image.bytes, true);
        let minor = match image.arch {
            CudaArch { major: 12, minor, .. } => 8 + u32::from(minor),
            _ if image.unit.contains("matmul_wgmma") => 4,
            _ => 0,
        };
        let allowed = (12, minor);
        assert!(needed <= allowed, "{} for {} needs CUDA {needed:?}", image.unit, image.target());
    }

    let by_unit: BTreeMap<&str, Vec<Budget>> =
        emitted.units.iter().map(|unit| (unit.name.as_str(), budgets(unit))).collect();
    let over = excesses(&made.images, |unit| by_unit.get(unit).map_or(&[], Vec::as_slice));
    let over: Vec<String> = over.iter().map(ToString::to_string).collect();
    assert!(over.is_empty(), "{}", over.join("\n"));
    let mut given = 0;
    for listed in emitted.listed.iter().filter(|listed| listed.plan.launch.shared() > 0) {
        let of_kernel = made.images.iter().filter(|image| image.unit == listed.unit).flat_map(|i| &i.usage);
        for usage in of_kernel.filter(|usage| usage.kernel == listed.plan.launch.function()) {
            let launch = listed.plan.launch.shared();
            assert!(
                usage.shared + launch <= SHARED_ON_HOPPER,
                "{}: {} + {launch}",
                listed.name,
                usage.shared
            );
            given += 1;
        }
    }
    assert!(given > 0, "products by warpgroups are given shared memory");
    let used: usize = made.images.iter().map(|image| image.usage.len()).sum();
    println!("{used} kernels in images, all within their budgets");

    let Some(tool) = cuobjdump(toolchain, &env) else {
        assert!(!strict, "no cuobjdump");
        println!("skipped: instructions (no cuobjdump)");
        return;
    };
    // Disassembling takes longer than compiling, and 12.0 is compiled as 9.0 is: the architectures that differ, and of products of floats
    // (or of all) one for each unit, in turn. Products of FP4 are for 12.0 alone.
    let differs = [(7, 5), (8, 0), (9, 0)];
    let machine = |i: &&Image| !i.ptx && (i.arch.specific || differs.contains(&i.arch.cc()));
    let has_turn = |image: &Image| {
        let own: Vec<CudaArch> =
            made.images.iter().filter(machine).filter(|i| i.unit == image.unit).map(|i| i.arch).collect();
        own[number(&image.unit) % own.len()] == image.arch
    };
    let wanted = |i: &&Image| multiplies(&i.unit) && (!in_turn && !of_floats(&i.unit) || has_turn(i));
    let products: Vec<&Image> = made.images.iter().filter(machine).filter(wanted).collect();
    let (next, looked_at) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let look = || {
        while let Some(image) = products.get(next.fetch_add(1, Ordering::Relaxed)) {
            let kernels = disassemble(&tool, &env, &image.bytes).expect("cuobjdump reads it");
            for usage in &image.usage {
                promised(image, &usage.kernel, &kernels[&usage.kernel]);
                looked_at.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| (0..jobs()).for_each(|_| _ = scope.spawn(look)));
    let looked_at = looked_at.into_inner();
    println!("instructions of {looked_at} products looked at");
    assert!(looked_at > 0);
}

/// Whether a unit holds products of floats, over the format's own rows.
fn of_floats(unit: &str) -> bool {
    unit.starts_with("rows_")
}

/// Whether a unit holds products.
fn multiplies(unit: &str) -> bool {
    unit.contains("matmul") || of_floats(unit)
}

/// A number by which turns go: one that no order of formats or algorithms goes along with.
fn number(unit: &str) -> usize {
    unit.bytes().map(usize::from).sum()
}

/// Leaves a unit one image: of machine code for one of its architectures, or of PTX.
fn one_in_turn(unit: &mut Wanted) {
    let turn = number(&unit.name) % (unit.archs.len() + unit.ptx.len());
    if turn < unit.archs.len() {
        (unit.archs, unit.ptx) = (vec![unit.archs[turn]], Vec::new());
    } else {
        (unit.archs, unit.ptx) = (Vec::new(), vec![unit.ptx[turn - unit.archs.len()]]);
    }
}

/// A product of floats multiplies with fused multiply-adds or tensor cores of halves, which get their activations by copies
/// of sixteen bytes; what looks at weights beside it multiplies nothing.
fn promised_of_floats(at: &str, image: &Image, kernel: &str, code: &Instructions) {
    let (fma, halves, copies) = (code.count("FFMA"), code.count("HMMA"), code.count("LDGSTS.128"));
    if kernel.ends_with("_check") {
        assert_eq!(halves, 0, "{at}: {halves} HMMA");
    } else if kernel.contains("_fma_") {
        assert!(fma > 0 && halves == 0, "{at}: {fma} FFMA, {halves} HMMA");
        assert!(code.count("LDG.128") > 0, "{at}: no 16-byte load");
    } else if kernel.ends_with("_quantize") {
        assert_eq!(code.count("OMMA"), 0, "{at}: a product");
    } else if kernel.contains("_mma_fp4_") {
        // Two steps for each of two tiles of rows and each of the tokens' tiles; operands of two steps in a load.
        let (products, loads) = (code.count("OMMA.SF.16864"), code.count("LDS.128"));
        assert!(products >= 16, "{at}: {products} OMMA");
        assert!(loads * 4 >= products, "{at}: {loads} LDS.128 for {products} OMMA");
        assert!(copies > 0 && halves == 0, "{at}: {copies} copies to shared memory, {halves} HMMA");
    } else if kernel.contains("_wgmma_") {
        // Tokens and blocks by copies, both operands in shared memory, stages reported to barriers.
        for (name, least) in [("HGMMA", 8), ("SYNCS", 4), ("STS.128", 4)] {
            assert!(code.count(name) >= least, "{at}: {} {name}", code.count(name));
        }
        assert!(copies > 0 && halves == 0, "{at}: {copies} copies to shared memory, {halves} HMMA");
    } else {
        assert!(kernel.contains("_mma_"), "{at}: an algorithm that this test does not know");
        assert!(halves > 0, "{at}: no HMMA");
        assert_eq!(copies > 0, image.arch.major >= 8, "{at}: {copies} copies to shared memory");
    }
}

/// A product multiplies with the instruction that its algorithm is named for, loads 16 bytes at a time or copies them to
/// shared memory, and keeps everything in registers.
fn promised(image: &Image, kernel: &str, code: &Instructions) {
    let at = format!("{kernel} for {}", image.target());
    assert_eq!((code.count("LDL"), code.count("STL")), (0, 0), "{at}: local memory");
    if of_floats(&image.unit) {
        return promised_of_floats(&at, image, kernel, code);
    }
    // What waits for the launch in front (`ACQBULK`) lets the next one begin, and has fetched weights before.
    let can_wait = image.arch.major >= 9;
    let waits = code.count("ACQBULK") > 0 && code.in_front("PREEXIT", "ACQBULK");
    assert_eq!(waits, can_wait, "{at}: launches overlap");
    // Loads that take memory for unchanging are of weights: a kernel in front may still write all else, and products by
    // warpgroups read nothing else but that and what they copy in bulk.
    assert!(!code.in_front("LDG.CONSTANT", "ACQBULK"), "{at}: loads of constant memory before the wait");
    let early = code.in_front("CCTL.PF2", "ACQBULK") || code.in_front("LDG.128", "ACQBULK");
    if kernel.contains("wgmma") {
        assert_eq!(code.count("LDG.CONSTANT"), 0, "{at}: activations read as constant memory");
        assert!(early, "{at}: weights before the wait");
        // Tokens by sixteen bytes, codes in bulk, both reported to barriers; no product that waits for the one before.
        for (name, least) in [("IGMMA.U8.S8", 2), ("UBLKCP", 1), ("SYNCS", 4), ("LDG.128", 2), ("LDS.128", 1)]
        {
            assert!(code.count(name) >= least, "{at}: {} {name}", code.count(name));
        }
        assert_eq!(code.count("IMMA") + code.count("IDP.4A"), 0, "{at}: products by another instruction");
        return;
    }
    // Which expert a block of a grouped form has is told by memory that a kernel in front may still write, so it fetches nothing before.
    let (name, grouped) = match kernel.strip_suffix("_grouped") {
        Some(name) => (name, true),
        None => (kernel, false),
    };
    // Products of many tokens copy ahead, where the architecture can.
    let many = name.rsplit('x').next().and_then(|tokens| tokens.parse().ok()).is_some_and(|n: u32| n > 16);
    let copies = code.count("LDGSTS.128");
    assert!(code.count("LDG.128") + copies > 0, "{at}: no 16-byte load");
    assert_eq!(copies > 0, many && image.arch.major >= 8, "{at}: {copies} copies to shared memory");
    assert!(many || early == (can_wait && !grouped), "{at}: weights before the wait");
    let (dp4a, mma) = (code.count("IDP.4A"), code.count("IMMA"));
    if kernel.contains("dp4a") {
        assert!(dp4a > 0 && mma == 0, "{at}: {dp4a} IDP.4A, {mma} IMMA");
    } else {
        assert!(kernel.contains("mma"), "{at}: an algorithm that this test does not know");
        assert!(mma > 0, "{at}: no IMMA");
    }
}
