//! Products of FP4 through the runtime's handles, on fake GPUs that have such tensor cores and on one that has not.
#![cfg(all(feature = "cuda", feature = "cli"))]

use crate::images::{GPU, bits, parent, tried, values};
use crate::precision::{in_all_ways, quantized, within};
use crate::support::{is_child, said};
use gristmill::cuda::Gpu;
use gristmill::oracle::{FormatOracle, Oracle};
use gristmill::registry::FormatInfo;
use gristmill::vocab::Precision;
use gristmill::{
    Error, Input, Linear, LinearOptions, Matmul, PrecisionMode, QuantizedMatrix, REGISTRY, Recording,
    Request, Shape, Threads, Workspace,
};

/// Compute capabilities, and whether the build has kernels of FP4 for them.
const DEVICES: [(&str, bool); 3] = [("sm_90", false), ("sm_120", true), ("sm_121", true)];

fn format(name: &str) -> &'static FormatInfo {
    REGISTRY.format(name).expect("in this build").1
}

/// Rows of a format, and their weights as they are multiplied.
fn weights(oracle: &FormatOracle<'_>, n: usize, k: usize) -> (Vec<u8>, Vec<f64>) {
    let bytes = quantized(format(&oracle.format().name), n, k).expect("quantizes");
    let row = |row| oracle.row(&bytes, n, k, row).expect("valid codes").f32s;
    let weights = (0..n).flat_map(row).map(f64::from).collect();
    (bytes, weights)
}

fn matmul(format: &FormatInfo, mode: PrecisionMode, shape: Shape) -> Matmul {
    let request = Request::matmul(format.name, shape).on(GPU).with_precision(mode);
    let prepared = REGISTRY.prepare(&request).expect("prepares");
    Matmul::new(&prepared.decide_as_asked()).expect("a handle")
}

#[test]
fn fp4_is_multiplied_where_it_was_asked_for() {
    for (device, _) in DEVICES {
        if let Some(output) = parent("fp4_is_multiplied_where_it_was_asked_for", device) {
            assert_eq!(said(&output), "", "{device}: all memory is given back");
        }
    }
    if !is_child() {
        return;
    }
    let cc = Gpu::open(0).expect("opens").profile().cc;
    let has_fp4 = DEVICES.iter().any(|(device, has)| *has && *device == format!("sm_{}{}", cc.0, cc.1));
    let (many, most) = if has_fp4 { ("mma_fp4", "mma_fp4.prefill") } else { ("mma_f16", "wgmma_f16.wide") };
    let oracle = Oracle::new(&REGISTRY).expect("the specs check");
    for name in ["mxfp4", "nvfp4"] {
        let oracle = oracle.format(name).expect("described");
        for (mode, m, expected) in [
            (PrecisionMode::Fp4, 1, "fma.decode"),
            (PrecisionMode::Fp4, 16, "fma.few"),
            (PrecisionMode::Fp4, 20, many),
            (PrecisionMode::Fp4, 300, most),
            (PrecisionMode::F16, 20, "mma_f16"),
            (PrecisionMode::Auto, 20, "mma"),
            (PrecisionMode::Int8, 20, "mma"),
        ] {
            let shape = Shape::new(m, if m == 300 { 9 } else { 37 }, 320);
            let kernel = matmul(format(name), mode, shape).entry().name;
            assert_eq!(kernel, format!("matmul.{name}.cuda.{expected}"), "{mode}, m = {m}");
        }
        if has_fp4 {
            for shape in [Shape::new(20, 37, 320), Shape::new(17, 5, 64), Shape::new(300, 9, 192)] {
                products(&oracle, shape);
            }
        }
    }
    // Formats that are not FP4 take what is next.
    for format in tried() {
        let kernel =
            matmul(format, PrecisionMode::Fp4, Shape::new(20, 8, format.elements.max(32))).entry().name;
        assert!(kernel.ends_with(".mma_f16"), "{kernel}");
    }
}

fn products(oracle: &FormatOracle<'_>, shape: Shape) {
    let Shape { m, n, k } = shape;
    let format = format(&oracle.format().name);
    let (bytes, weights) = weights(oracle, n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("sizes");
    let mut matmul = matmul(format, PrecisionMode::Fp4, shape);
    assert_eq!(matmul.entry().precision(), Some(Precision::Fp4));
    let recording = Recording::new(&REGISTRY);
    matmul.record(Some(&recording)).expect("records");
    let packed = matmul.pack(&matrix).expect("packs");
    let mut row = vec![0.0; k];
    matmul.unpack_row(&packed, n - 1, &mut row).expect("unpacks");
    let expected: Vec<f32> = weights[(n - 1) * k..].iter().map(|w| *w as f32).collect();
    assert_eq!(bits(&row), bits(&expected), "a row unpacked");
    let all = in_all_ways(&matmul, &packed, m, |case, x, bias, y| {
        within(case, &weights, &oracle.fp4(x).expect("FP4"), bias, y, k);
    });
    all.expect("runs");
    let receipt = recording.receipt();
    assert!(receipt.kernels().iter().any(|kernel| kernel.name().contains("mma_fp4")), "{receipt:?}");
}

#[test]
fn what_is_no_fp4_is_told_where_it_is() {
    parent("what_is_no_fp4_is_told_where_it_is", "sm_120");
    if !is_child() {
        return;
    }
    let (m, n, k) = (20, 6, 64);
    let threads = Threads::single();
    for name in ["mxfp4", "nvfp4"] {
        let format = format(name);
        let mut bytes = quantized(format, n, k).expect("quantizes");
        let matmul = matmul(format, PrecisionMode::Fp4, Shape::new(m, n, k));
        let pack = |bytes: &[u8]| matmul.pack(&QuantizedMatrix::new(format, n, k, bytes).expect("sizes"));
        let packed = pack(&bytes).expect("packs");
        let mut workspace = Workspace::for_(&matmul, m, k, &threads).expect("memory");
        let mut run = |at: usize, value: f32| {
            let (mut x, mut y) = (values(m * k, 2), vec![0.0; m * n]);
            x[at] = value;
            matmul.run(&packed, Input::F32(&x), m, None, &mut y, &mut workspace, &threads)
        };
        assert_eq!(run(k + 9, f32::INFINITY), Err(Error::NonFinite { row: 1, column: 9 }), "{name}");
        assert_eq!(run(3, f32::NAN), Err(Error::NonFinite { row: 0, column: 3 }), "{name}");
        assert_eq!(run(0, f32::MAX), Ok(()), "{name}: the largest is quantized as any other");
        let q = vec![1i8; m * k];
        let int8 = Input::I8 { q: &q, scales: &vec![1.0; 2 * m] };
        let refused = matmul.run(&packed, int8, m, None, &mut vec![0.0; m * n], &mut workspace, &threads);
        assert!(matches!(refused, Err(Error::WrongInput { .. })), "{refused:?}");
        if name == "mxfp4" {
            // The second block of row 3: an exponent of 255, and weights of 1 times half of that.
            let at = (3 * k / 32 + 1) * format.bytes;
            bytes[at] = 255;
            bytes[at + 1..at + 17].fill(0x11);
            let beyond = Error::BeyondPrecision { what: "the weight", row: 3, column: 32 };
            assert_eq!(pack(&bytes).err(), Some(beyond));
        }
    }
}

#[test]
fn a_layer_of_fp4_holds_its_weights_once() {
    parent("a_layer_of_fp4_holds_its_weights_once", "sm_120");
    if !is_child() {
        return;
    }
    let oracle = Oracle::new(&REGISTRY).expect("the specs check");
    let oracle = oracle.format("mxfp4").expect("described");
    let (n, k, threads) = (37, 2880, Threads::single());
    let format = format("mxfp4");
    let (bytes, weights) = weights(&oracle, n, k);
    let matrix = QuantizedMatrix::new(format, n, k, &bytes).expect("sizes");
    let options = LinearOptions { device: GPU, precision: PrecisionMode::Fp4, ..LinearOptions::default() };
    let layer = Linear::new(&REGISTRY, &matrix, &options, &threads).expect("a layer");
    let held = n * (format.row_bytes(k).expect("whole blocks").next_multiple_of(16) + 4);
    assert!(layer.weight_bytes() <= held + 256, "{} bytes: held once", layer.weight_bytes());
    let mut workspace = layer.workspace(33, &threads).expect("memory");
    for m in [1, 16, 17, 33] {
        let (x, mut y) = (values(m * k, 9), vec![0.0; m * n]);
        layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads).expect("runs");
        let plain = || x.iter().map(|x| f64::from(*x)).collect();
        let meant = if m <= 16 { plain() } else { oracle.fp4(&x).expect("FP4") };
        within(&format!("a layer, m = {m}"), &weights, &meant, None, &y, k);
    }
}
