//! What the macros expand to, at work: a format from a file, decisions over it, and the same answers while
//! compiling as at run time.

use gristmill::request::Restrict;
use gristmill::vocab::{DType, DeviceKind, Op};
use gristmill::{
    CpuProfile, Device, Matmul, PrecisionMode, QuantizedMatrix, Quantizer, Registry, Request, Shape, Threads,
    Workspace,
};

mod nibble {
    gristmill::kernel!("tests/specs/formats/nibble.toml");
}

// The caller's own names do not meet those that generated code imports.
mod beside {
    #![allow(dead_code, reason = "only there to clash, if anything could")]

    pub struct Registry;
    pub struct Entry;
    pub enum Op {}

    gristmill::kernel!(
        beside,
        r#"
        doc   = "2 bits a weight without a quantizer"
        block = { elements = 4, bytes = 1 }

        [[field]]
        name   = "q"
        type   = "u2"
        layout = { shape = [4], stride = [2], offset = 0 }

        [value]
        code = "q"
        zero = 1
        "#,
    );
}

gristmill::require!(nibble, matmul, nibble, f32, cpu);
gristmill::require!(nibble, quantize, nibble, f32, cpu);
gristmill::require!(self::nibble, quantize_activations, int8_row, f32, cpu);
gristmill::require!(crate::beside, dequantize, "beside", f32, "cpu");

type Tested = Result<(), Box<dyn std::error::Error>>;

#[test]
fn the_tables_of_a_registry_agree() -> Tested {
    nibble::REGISTRY.check()?;
    beside::REGISTRY.check()?;
    Ok(())
}

#[test]
fn formats_of_macros_and_shipped_ones_are_one_registry() -> Tested {
    let joined = Registry::joined(&[&nibble::REGISTRY, &beside::REGISTRY, &gristmill::REGISTRY])?;
    joined.check()?;
    assert_eq!(joined.package, "gristmill-macros + gristmill-kernels");
    let all = gristmill::REGISTRY.formats.len() + 2;
    assert_eq!(joined.formats.len(), all);
    let registries =
        [(&nibble::REGISTRY, "nibble"), (&beside::REGISTRY, "beside"), (&gristmill::REGISTRY, "i2_s")];
    for (registry, format) in registries {
        if registry.format(format).is_err() {
            // A build without that family.
            continue;
        }
        let request = Request::matmul(format, Shape::new(1, 8, 256));
        let [alone, together] = [registry, joined].map(|registry| {
            let prepared = registry.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
            prepared
                .decide_as_asked()
                .kernel()
                .map(|entry| (entry.name, entry.id, entry.code.packing().map(|p| p.name)))
        });
        let ((name, _, packing), (expected, _, same)) = (together?, alone?);
        assert_eq!((name, packing), (expected, same), "{format}");
    }
    Ok(())
}

#[test]
fn a_format_from_a_file_multiplies() -> Tested {
    let registry = &nibble::REGISTRY;
    assert_eq!(registry.package, "gristmill-macros");
    let (_, format) = registry.format("nibble")?;
    assert_eq!(format.source, "tests/specs/formats/nibble.toml:1");
    let (n, k) = (5, 64);
    // Eighths of a power of two: every value of the product is exact.
    let weights: Vec<f32> = (0..n * k).map(|i| ((i * 7 + i / 9) % 15) as f32 - 7.0).collect();
    let quantize = registry.prepare(&Request::quantize("nibble", None, n, k))?;
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    Quantizer::new(&quantize.decide_as_asked())?.run(&weights, n, k, &mut bytes)?;

    let product = registry.prepare(&Request::matmul("nibble", Shape::new(1, n, k)))?;
    let decision = product.decide_as_asked();
    let kernel = Matmul::new(&decision)?;
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    let packed = kernel.pack(&matrix)?;
    let x: Vec<f32> = (0..k).map(|i| if i % 3 == 0 { 127.0 } else { -127.0 }).collect();
    let (mut y, threads) = (vec![0.0; n], Threads::single());
    let mut workspace = Workspace::for_(&kernel, 1, k, &threads)?;
    kernel.run(&packed, gristmill::Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
    for (row, y) in y.iter().enumerate() {
        let exact: f32 = weights[row * k..][..k].iter().zip(&x).map(|(w, x)| w * x).sum();
        assert!((y - exact).abs() <= 1e-3 * exact.abs().max(1.0), "row {row}: {y} and not {exact}");
    }
    Ok(())
}

/// For every op, type and device: `why_not`, which `require!` asks, and decisions give the same answer in the
/// same words.
#[test]
fn compile_time_and_run_time_agree() -> Tested {
    let all = [
        (&nibble::REGISTRY, nibble::why_not as fn(Op, &str, DType, DeviceKind) -> gristmill::require::Text),
        (&beside::REGISTRY, beside::why_not),
        (&gristmill::REGISTRY, gristmill::kernels::why_not),
    ];
    let mut refused = 0;
    for (registry, why_not) in all {
        for format in ["nibble", "beside", "int8_row", "q8_0", "i2_s", "no_such_format"] {
            for (&op, &input) in Op::ALL.iter().flat_map(|op| DType::ALL.iter().map(move |input| (op, input)))
            {
                for &kind in DeviceKind::ALL {
                    let device = Device { kind, index: 0 };
                    let request = Request {
                        op,
                        format,
                        quantizer: None,
                        input,
                        device,
                        shape: Shape::new(1, 8, 256),
                        precision: PrecisionMode::Int8,
                        working_set: None,
                        threads: 1,
                    };
                    let prepared =
                        registry.prepare_for(&request, CpuProfile::detect(), &Restrict::default())?;
                    let decision = prepared.decide_as_asked();
                    let text = why_not(op, format, input, kind);
                    assert_eq!(text.is_empty(), decision.chosen().is_some(), "{decision}\n{}", text.as_str());
                    if text.is_empty() {
                        continue;
                    }
                    refused += 1;
                    let words = decision.to_string();
                    // A compiler does not guess at misspelt names.
                    let reason = words.lines().nth(1).and_then(|line| line.split(" (did you mean").next());
                    let said = text.as_str().lines().nth(1);
                    assert_eq!(said, reason, "{decision}");
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
    Ok(())
}
