//! What a decision says of memory is what packing then takes.

use gristmill::registry::Tier;
use gristmill::vocab::{DeviceKind, Op};
use gristmill::{
    CpuProfile, Error, Linear, LinearOptions, Matmul, Policy, QuantizedMatrix, REGISTRY, Request, Restrict,
    Shape, Threads, Workspace,
};
#[cfg(feature = "bitnet")]
use gristmill::{Dequantizer, Device};

#[test]
fn every_packing_takes_what_is_said_of_it() -> Result<(), Error> {
    let threads = Threads::single();
    let mut ran = 0;
    for entry in REGISTRY.entries.iter().filter(|e| e.op == Op::Matmul && e.device == DeviceKind::Cpu) {
        let format = &REGISTRY.formats[entry.format];
        let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
        for (n, blocks) in [(37, 1), (64, 3)] {
            let k = format.elements.max(64) * blocks;
            let shape = Shape::new(2, n, k);
            let request = Request::matmul(format.name, shape);
            let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only)?;
            let decision = prepared.decide(shape);
            let Ok(matmul) = Matmul::new(&decision) else { continue };
            let memory = decision.memory(&threads)?;
            // Zeros mean something in every shipped format.
            let bytes = vec![0; format.tensor_bytes(n, k)?];
            let Ok(packed) = matmul.pack(&QuantizedMatrix::new(format, n, k, &bytes)?) else {
                panic!("{}: zeros are refused", entry.name)
            };
            assert_eq!(memory.weight_bytes, packed.bytes(), "{} {n}x{k}", entry.name);
            assert_eq!(memory.weight_bytes, matmul.packed_bytes(n, k)?, "{}", entry.name);
            assert_eq!(memory.packing, packed.packing(), "{}", entry.name);
            assert_eq!(memory.workspace, matmul.workspace_size(2, k, &threads)?, "{}", entry.name);
            assert_eq!(
                memory.workspace.bytes(),
                Workspace::for_(&matmul, 2, k, &threads)?.bytes(),
                "{}",
                entry.name
            );
            let bits = 8.0 * packed.bytes() as f64 / (n * k) as f64;
            assert!((memory.bits_per_weight - bits).abs() < 1e-9, "{}", entry.name);
            ran += 1;
        }
    }
    assert!(ran > 0, "no kernel ran");
    Ok(())
}

/// What a layer is said to take before it has weights is what it then holds, in every format.
#[test]
fn every_layer_takes_what_is_said_of_it() -> Result<(), Error> {
    let threads = Threads::single();
    let options = LinearOptions { policy: Policy::Dequantize, ..LinearOptions::default() };
    for format in REGISTRY.formats {
        let (n, k) = (37, format.elements.max(64) * 3);
        let bytes = vec![0; format.tensor_bytes(n, k)?];
        let layer = Linear::new(&REGISTRY, &QuantizedMatrix::new(format, n, k, &bytes)?, &options, &threads)?;
        for m in [1, 7] {
            let memory = Linear::memory(&REGISTRY, format.name, [n, k], &options, m, &threads)?;
            assert_eq!(memory.weight_bytes, layer.weight_bytes(), "{}", format.name);
            assert_eq!(memory.workspace, layer.workspace_size(m, &threads)?, "{}", format.name);
        }
    }
    Ok(())
}

/// Facts of kernels that an engine reads before it loads anything. Names say the instruction set and what is required besides.
#[test]
fn kernels_say_how_far_they_go_and_what_weights_take() -> Result<(), Error> {
    let dots = ["avxvnni", "avx512vnni", "dotprod", "i8mm", "dp4a", "mma", "wgmma"];
    for entry in REGISTRY.entries {
        let word =
            |part: &str| dots.contains(&part) || part.starts_with("mma_") || part.starts_with("wgmma_");
        let expected = match entry.name.split('.').any(word) && entry.op == Op::Matmul {
            true => Tier::ExtremelyOptimized,
            false if entry.name.split('.').any(|part| part == "scalar") => Tier::Optimized,
            false => Tier::HighlyOptimized,
        };
        assert_eq!(entry.tier(), expected, "{}", entry.name);
        let bits = REGISTRY.bits_per_weight(entry);
        assert_eq!(bits.is_some(), entry.op == Op::Matmul, "{}", entry.name);
        if let (Some(bits), DeviceKind::Cpu) = (bits, entry.device) {
            let shape = Shape::new(1, 64, REGISTRY.formats[entry.format].elements << 12);
            let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
            let format = REGISTRY.formats[entry.format].name;
            let prepared =
                REGISTRY.prepare_for(&Request::matmul(format, shape), CpuProfile::detect(), &only)?;
            let Ok(memory) = prepared.decide(shape).memory(&Threads::single()) else { continue };
            // A row has an f32 of its own, or the header of the format.
            assert!((memory.bits_per_weight - bits).abs() < 0.02, "{}: {bits}, {memory:?}", entry.name);
        }
    }
    Ok(())
}

/// Where codes fill bytes in packings, weights take what they take in a file: scales are as wide there, and only an f32 a row
/// comes on top, or a byte for the integer of a run that has six bits in the file. What a codebook of the file says in fewer bits
/// takes as many as its values need.
#[cfg(any(feature = "ggml", feature = "iq"))]
#[test]
fn weights_take_little_more_than_in_a_file() -> Result<(), Error> {
    let (n, k) = (256, 4096);
    // With `r16k4`, which every processor reads, and with `r32k4`.
    let limits: &[(&str, f64, f64)] = &[
        #[cfg(feature = "ggml")]
        ("q2_0", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("q2_k", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("q3_k", 1.34, 1.05),
        #[cfg(feature = "ggml")]
        ("q4_0", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("q4_1", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("q4_k", 1.04, 1.04),
        #[cfg(feature = "ggml")]
        ("q5_0", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("q5_1", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("q5_k", 1.03, 1.03),
        #[cfg(feature = "ggml")]
        ("q6_k", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("q8_0", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("iq4_nl", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("iq4_xs", 1.02, 1.02),
        #[cfg(feature = "ggml")]
        ("mxfp4", 1.01, 1.01),
        #[cfg(feature = "ggml")]
        ("nvfp4", 1.01, 1.01),
        #[cfg(feature = "iq")]
        ("iq1_s", 1.43, 1.43),
        #[cfg(feature = "iq")]
        ("iq1_m", 1.40, 1.40),
        #[cfg(feature = "iq")]
        ("iq2_xxs", 2.10, 1.61),
        #[cfg(feature = "iq")]
        ("iq2_xs", 1.87, 1.44),
        #[cfg(feature = "iq")]
        ("iq2_s", 1.69, 1.30),
        #[cfg(feature = "iq")]
        ("iq3_xxs", 1.42, 1.42),
        #[cfg(feature = "iq")]
        ("iq3_s", 1.26, 1.26),
    ];
    let mut seen = 0;
    for (name, sixteen, thirty_two) in limits {
        let format = REGISTRY.format(name)?.1;
        let bytes = vec![0; format.tensor_bytes(n, k)?];
        let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
        for (packing, limit) in [("r16k4", sixteen), ("r32k4", thirty_two)] {
            // Not what the environment may ask for.
            let restrict = Restrict { packing: Some(packing.to_owned()), ..Restrict::default() };
            // Where the processor has no kernel that reads it, the layer would hold another one.
            let shape = Shape::new(1, n, k);
            let prepared =
                REGISTRY.prepare_for(&Request::matmul(name, shape), CpuProfile::detect(), &restrict)?;
            if prepared.decide(shape).memory(&Threads::single())?.packing != Some(packing) {
                continue;
            }
            let options = LinearOptions { restrict: Some(restrict), ..Default::default() };
            let layer = Linear::new(&REGISTRY, &matrix, &options, &Threads::single())?;
            let ratio = layer.weight_bytes() as f64 / bytes.len() as f64;
            assert!(
                (1.0..=*limit).contains(&ratio),
                "{name} in {packing}: {ratio} times as large as in a file"
            );
            seen += 1;
        }
    }
    assert!(seen >= limits.len(), "{seen} of {} were packed", limits.len());
    Ok(())
}

#[cfg(feature = "bitnet")]
#[test]
fn what_has_no_memory_says_why() -> Result<(), Error> {
    let threads = Threads::single();
    let of = |request: &Request<'_>, shape| {
        REGISTRY
            .prepare_for(request, CpuProfile::detect(), &Restrict::default())?
            .decide(shape)
            .memory(&threads)
    };
    // Large enough that padding and outer scales count for little: two bits a weight.
    let shape = Shape::new(1, 4096, 4096);
    let memory = of(&Request::matmul("i2_s", shape), shape)?;
    assert!((2.0..2.02).contains(&memory.bits_per_weight), "{memory:?}");
    let huge = Shape::new(1, usize::MAX / 64, 256);
    assert!(matches!(of(&Request::matmul("i2_s", huge), huge), Err(Error::TooLarge { .. })));
    let none = Shape::new(1, 0, 256);
    assert_eq!(of(&Request::matmul("i2_s", none), none)?.bits_per_weight, 0.0);
    let split = Shape::new(1, 8, 100);
    assert!(matches!(of(&Request::matmul("i2_s", split), split), Err(Error::KNotMultiple { .. })));
    let shape = Shape::matrix(8, 256);
    assert!(matches!(of(&Request::dequantize("i2_s", 8, 256), shape), Err(Error::WrongOp { .. })));
    let gpu = Request::matmul("i2_s", shape).on(Device { kind: DeviceKind::Rocm, index: 0 });
    assert!(matches!(of(&gpu, shape), Err(Error::NoKernel(_))));
    Ok(())
}

/// Rows of a tensor with a scale behind all of them, by index of row.
#[cfg(feature = "bitnet")]
#[test]
fn rows_are_dequantized_apart() -> Result<(), Error> {
    let (n, k) = (9, 256);
    let format = REGISTRY.format("i2_s")?.1;
    let mut bytes: Vec<u8> =
        (0..format.tensor_bytes(n, k)?).map(|i| [0x00, 0x55, 0xaa, 0x19][i % 4]).collect();
    let tail = n * format.row_bytes(k)?;
    bytes[tail..tail + 4].copy_from_slice(&0.37f32.to_le_bytes());
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    let prepared = REGISTRY.prepare(&Request::dequantize("i2_s", n, k))?;
    let dequantizer = Dequantizer::new(&prepared.decide_as_asked())?;
    let mut all = vec![0.0; n * k];
    dequantizer.run(&matrix, &mut all)?;
    assert!(all.contains(&0.37) && all.contains(&-0.37));
    for rows in [0..1, 4..5, 2..9, 9..9, 0..9] {
        let mut some = vec![f32::NAN; rows.len() * k];
        dequantizer.rows(&matrix, rows.clone(), &mut some)?;
        assert_eq!(some, all[rows.start * k..rows.end * k], "{rows:?}");
    }
    Ok(())
}
