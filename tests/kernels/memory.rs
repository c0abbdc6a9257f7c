//! What a decision says of memory is what packing then takes.

use gristmill::vocab::{DeviceKind, Op};
use gristmill::{
    CpuProfile, Dequantizer, Device, Error, Matmul, QuantizedMatrix, REGISTRY, Request, Restrict, Shape,
    Threads, Workspace,
};

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

/// Where codes fill bytes in packings, weights take what they take in a file: scales are as wide there, and only an f32 a row
/// comes on top, or a byte for the integer of a run that has six bits in the file.
#[cfg(feature = "ggml")]
#[test]
fn weights_take_little_more_than_in_a_file() -> Result<(), Error> {
    let (n, k) = (256, 4096);
    let limits = [
        ("q2_0", 1.01),
        ("q4_0", 1.01),
        ("q4_1", 1.01),
        ("q8_0", 1.01),
        ("iq4_nl", 1.01),
        ("mxfp4", 1.01),
        ("nvfp4", 1.01),
        ("iq4_xs", 1.02),
        ("q4_k", 1.04),
    ];
    for (name, limit) in limits {
        let format = REGISTRY.format(name)?.1;
        let bytes = vec![0; format.tensor_bytes(n, k)?];
        let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
        // Not what the environment may ask for.
        let options = gristmill::LinearOptions { restrict: Some(Restrict::default()), ..Default::default() };
        let layer = gristmill::Linear::new(&REGISTRY, &matrix, &options, &Threads::single())?;
        let ratio = layer.weight_bytes() as f64 / bytes.len() as f64;
        assert!((1.0..=limit).contains(&ratio), "{name}: {ratio} times as large as in a file");
    }
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
