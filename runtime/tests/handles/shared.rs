//! Activations that are quantized once and read by several products.

use crate::toy::{FORMATS, REGISTRY, TAIL2, TINY8, noise, tail2, tiny8};
use gristmill_runtime::half::f16;
use gristmill_runtime::receipt::KernelUse;
use gristmill_runtime::vocab::DeviceKind;
use gristmill_runtime::{
    Device, Error, Input, Linear, LinearOptions, Matmul, Policy, QuantizedMatrix, Recording, Request,
    Restrict, Shape, Threads, Workspace,
};

const K: usize = 24;

fn layer(format: usize, n: usize, k: usize) -> Result<Linear, Error> {
    let bytes = if format == TAIL2 { tail2(n, k) } else { tiny8(n, k) };
    let matrix = QuantizedMatrix::new(&FORMATS[format], n, k, &bytes)?;
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    Linear::new(&REGISTRY, &matrix, &options, &Threads::single())
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

#[test]
fn layers_that_share_give_what_each_gives_alone() -> Result<(), Error> {
    let mut layers = [layer(TAIL2, 9, K)?, layer(TAIL2, 4, K)?, layer(TAIL2, 70, K)?];
    let recording = Recording::new(&REGISTRY);
    let threads = Threads::new(2)?.with_grain(1);
    let x = noise(5 * K, 3);
    let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
    let q: Vec<i8> = x.iter().map(|x| (x * 127.0) as i8).collect();
    for m in [0, 1, 2, 5] {
        let scales = vec![127.0; m];
        let inputs = [
            Input::F32(&x[..m * K]),
            Input::F16(&halves[..m * K]),
            Input::I8 { q: &q[..m * K], scales: &scales },
        ];
        for input in inputs {
            let mut workspace = layers[0].workspace(m, &threads)?;
            let mut own = layers[2].workspace(m, &threads)?;
            for layer in &mut layers {
                layer.record(Some(&recording))?;
            }
            let shared = layers[0].quantize(input, m, &mut workspace, &threads)?;
            assert_eq!((shared.m(), shared.k(), shared.format()), (m, K, "row"));
            for layer in &layers {
                assert!(layers[0].shares_activations_with(layer, m));
                let bias = noise(layer.n(), 8);
                for bias in [None, Some(&bias[..])] {
                    let mut y = vec![f32::NAN; m * layer.n()];
                    layer.forward_quantized(&shared, bias, &mut y, &threads)?;
                    let mut alone = vec![f32::NAN; m * layer.n()];
                    layer.forward(input, m, bias, &mut alone, &mut own, &threads)?;
                    assert_eq!(bits(&y), bits(&alone), "m = {m}, {:?}", input.dtype());
                }
            }
        }
    }
    // Floats were quantized once for the layers that shared and once in each of the others' runs.
    let receipt = recording.receipt();
    let products = |kernel: &&KernelUse| kernel.name().starts_with("matmul");
    let launches = |kernels: &[&KernelUse]| kernels.iter().map(|kernel| kernel.launches()).sum::<u64>();
    let (products, quantizers): (Vec<_>, Vec<_>) = receipt.kernels().iter().partition(products);
    assert_eq!((launches(&quantizers), launches(&products)), (3 * 2 * (1 + 6), 3 * 3 * 12));
    Ok(())
}

#[test]
fn another_layout_is_refused() -> Result<(), Error> {
    let threads = Threads::single();
    let (row, step, short) = (layer(TAIL2, 4, K)?, layer(TINY8, 4, K)?, layer(TAIL2, 4, 16)?);
    assert!(row.shares_activations_with(&row, 1));
    assert!(!row.shares_activations_with(&step, 1) && !step.shares_activations_with(&row, 1));
    assert!(!row.shares_activations_with(&short, 1));
    let x = noise(K, 1);
    let mut workspace = row.workspace(1, &threads)?;
    let mut y = vec![f32::NAN; 4];
    let shared = row.quantize(Input::F32(&x), 1, &mut workspace, &threads)?;
    let refused = step.forward_quantized(&shared, None, &mut y, &threads);
    let Err(Error::ActivationLayout { expected, found, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!(expected, "`step4` rows of 24, in sums over 4 of them that take 8 bytes");
    assert_eq!(found, "`row` rows of 24, in sums over 24 of them that take 32 bytes");
    let what = "a token of the quantized activations";
    let wrong = Error::ShapeMismatch { what, unit: "values", expected: 16, found: K };
    assert_eq!(short.forward_quantized(&shared, None, &mut y, &threads), Err(wrong));
    assert!(y.iter().all(|y| y.is_nan()), "nothing was written");
    Ok(())
}

#[test]
fn wrong_operands_are_refused_by_name() -> Result<(), Error> {
    let threads = Threads::single();
    let layer = layer(TAIL2, 4, K)?;
    let mut x = noise(2 * K, 1);
    let mut workspace = layer.workspace(2, &threads)?;
    let mismatch = |what, expected, found| Error::ShapeMismatch { what, unit: "values", expected, found };
    let short = layer.quantize(Input::F32(&x[1..]), 2, &mut workspace, &threads).map(drop);
    assert_eq!(short, Err(mismatch("activations", 2 * K, 2 * K - 1)));
    let none = layer.quantize(Input::F32(&x), 2, &mut Workspace::new(), &threads).map(drop);
    assert!(matches!(none, Err(Error::WorkspaceTooSmall { .. })));
    let shared = layer.quantize(Input::F32(&x), 2, &mut workspace, &threads)?;
    let mut y = vec![0.0; 8];
    let short = layer.forward_quantized(&shared, None, &mut y[..7], &threads);
    assert_eq!(short, Err(mismatch("the output", 8, 7)));
    let short = layer.forward_quantized(&shared, Some(&[0.0; 3]), &mut y, &threads);
    assert_eq!(short, Err(mismatch("the bias", 4, 3)));
    x[K + 5] = f32::NAN;
    let nan = layer.quantize(Input::F32(&x), 2, &mut workspace, &threads).map(drop);
    assert_eq!(nan, Err(Error::NonFinite { row: 1, column: 5 }));
    Ok(())
}

#[test]
fn kernels_share_as_layers_do() -> Result<(), Error> {
    let shape = Shape::new(2, 8, K);
    let kernel = |format| {
        let prepared = REGISTRY.prepare(&Request::matmul(format, shape))?;
        Matmul::new(&prepared.decide(shape))
    };
    let (row, step) = (kernel("tail2")?, kernel("tiny8")?);
    assert!(row.shares_activations_with(&row, K) && !row.shares_activations_with(&step, K));
    let bytes = tail2(8, K);
    let packed = row.pack(&QuantizedMatrix::new(&FORMATS[TAIL2], 8, K, &bytes)?)?;
    let (threads, x) = (Threads::single(), noise(2 * K, 6));
    let mut workspace = Workspace::for_(&row, 2, K, &threads)?;
    let mut y = [[f32::NAN; 16]; 2];
    row.run(&packed, Input::F32(&x), 2, None, &mut y[0], &mut workspace, &threads)?;
    let shared = row.quantize(Input::F32(&x), 2, K, &mut workspace, &threads)?;
    row.run_quantized(&packed, &shared, None, &mut y[1], &threads)?;
    assert_eq!(bits(&y[0]), bits(&y[1]));
    let other = step.run_quantized(&packed, &shared, None, &mut y[1], &threads);
    assert!(matches!(other, Err(Error::WrongFormat { .. })), "{other:?}");
    Ok(())
}

#[test]
fn without_a_kernel_for_int8_nothing_is_shared() -> Result<(), Error> {
    // `header4` has no product: the policy dequantizes its weights.
    let bytes = vec![0; FORMATS[crate::toy::HEADER4].tensor_bytes(4, K)?];
    let matrix = QuantizedMatrix::new(&FORMATS[crate::toy::HEADER4], 4, K, &bytes)?;
    let restrict = Some(Restrict::default());
    let options = LinearOptions { policy: Policy::Dequantize, restrict, ..LinearOptions::default() };
    let threads = Threads::single();
    let plain = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
    let x = noise(K, 1);
    let mut workspace = plain.workspace(1, &threads)?;
    let refused = plain.quantize(Input::F32(&x), 1, &mut workspace, &threads).map(drop);
    assert!(matches!(refused, Err(Error::NoKernel(_))), "{refused:?}");
    let moved =
        LinearOptions { device: Device { kind: DeviceKind::Cuda, index: 0 }, policy: Policy::Cpu, ..options };
    // A layer that runs on the processor though a GPU was asked for shares as others do, and says where it ran.
    let bytes = tail2(4, K);
    let matrix = QuantizedMatrix::new(&FORMATS[TAIL2], 4, K, &bytes)?;
    let mut moved = Linear::new(&REGISTRY, &matrix, &moved, &threads)?;
    let recording = Recording::new(&REGISTRY);
    moved.record(Some(&recording))?;
    let mut workspace = moved.workspace(1, &threads)?;
    let shared = moved.quantize(Input::F32(&x), 1, &mut workspace, &threads)?;
    moved.forward_quantized(&shared, None, &mut [0.0; 4], &threads)?;
    assert_eq!(recording.receipt().fallbacks().iter().map(|fallback| fallback.runs()).sum::<u64>(), 1);
    Ok(())
}
