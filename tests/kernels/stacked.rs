//! Matrices that are packed one above the other give what each gives alone, bit for bit, whatever their sizes are beside
//! those of panels; and what does not go together is refused.
#![cfg(feature = "ggml")]

use gristmill::registry::FormatInfo;
use gristmill::vocab::Op;
use gristmill::{
    CpuProfile, Error, Input, Linear, LinearOptions, Matmul, Policy, QuantizedMatrix, Quantizer, REGISTRY,
    Request, Restrict, Shape, Threads, Workspace,
};

/// Values of another size for each seed, so that scales differ.
fn values(count: usize, seed: u32) -> Vec<f32> {
    crate::random::Random::new(seed.into(), "stacked").gauss_vec(count, seed as f32)
}

/// A tensor by the format's default quantizer; `None` if it has none.
fn quantized(format: &FormatInfo, n: usize, k: usize, seed: u32) -> Result<Option<Vec<u8>>, Error> {
    if format.quantizers.is_empty() {
        return Ok(None);
    }
    let prepared = REGISTRY.prepare(&Request::quantize(format.name, None, n, k))?;
    let quantizer = Quantizer::new(&prepared.decide_as_asked())?;
    let mut bytes = vec![0; format.tensor_bytes(n, k)?];
    quantizer.run(&values(n * k, seed), n, k, &mut bytes)?;
    Ok(Some(bytes))
}

fn product(
    matmul: &Matmul,
    matrices: &[QuantizedMatrix<'_>],
    x: &[f32],
    m: usize,
) -> Result<Vec<u32>, Error> {
    let threads = Threads::single();
    let packed = matmul.pack_stacked(matrices, &threads)?;
    let (n, k) = (packed.n(), packed.k());
    let mut y = vec![f32::NAN; m * n];
    let mut workspace = Workspace::for_(matmul, m, k, &threads)?;
    matmul.run(&packed, Input::F32(x), m, None, &mut y, &mut workspace, &threads)?;
    Ok(y.iter().map(|y| y.to_bits()).collect())
}

#[test]
fn a_stack_gives_what_its_matrices_give() -> Result<(), Error> {
    // Within a panel, over its edge, several panels, nothing.
    let heights = [5, 0, 37, 16, 70, 1];
    let mut kernels = 0;
    for format in REGISTRY.formats {
        let (m, k) = (3, 2 * format.elements);
        let mut tensors = Vec::new();
        for (seed, n) in heights.into_iter().enumerate() {
            tensors.push(quantized(format, n, k, seed as u32 + 1)?);
        }
        let Some(tensors) = tensors.into_iter().collect::<Option<Vec<_>>>() else { continue };
        let matrices =
            tensors.iter().zip(heights).map(|(bytes, n)| QuantizedMatrix::new(format, n, k, bytes));
        let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
        let n: usize = heights.iter().sum();
        let x = values(m * k, 99);
        let of_format = |entry: &&gristmill::registry::Entry| {
            entry.op == Op::Matmul
                && entry.isa.is_some()
                && REGISTRY.formats[entry.format].name == format.name
        };
        for entry in REGISTRY.entries.iter().filter(of_format) {
            let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
            let request = Request::matmul(format.name, Shape { m, n, k });
            let prepared = REGISTRY.prepare_for(&request, CpuProfile::detect(), &only)?;
            // Not for this processor, or for other numbers of tokens.
            let Ok(matmul) = Matmul::new(&prepared.decide_as_asked()) else { continue };
            let together = product(&matmul, &matrices, &x, m)?;
            let mut first = 0;
            for matrix in &matrices {
                let alone = product(&matmul, std::slice::from_ref(matrix), &x, m)?;
                for row in 0..m {
                    let here = &together[row * n + first..][..matrix.n()];
                    assert_eq!(
                        here,
                        &alone[row * matrix.n()..][..matrix.n()],
                        "{} from row {first}",
                        entry.name
                    );
                }
                first += matrix.n();
            }
            kernels += 1;
        }
    }
    assert!(kernels > 30, "only {kernels} kernels were tried");
    Ok(())
}

#[test]
fn layers_take_stacks_with_and_without_kernels() -> Result<(), Error> {
    let (_, format) = REGISTRY.format("q4_0")?;
    let (m, k) = (2, 64);
    let tensors = [quantized(format, 20, k, 1)?, quantized(format, 7, k, 2)?].map(Option::unwrap_or_default);
    let matrices =
        [QuantizedMatrix::new(format, 20, k, &tensors[0])?, QuantizedMatrix::new(format, 7, k, &tensors[1])?];
    let x = values(m * k, 3);
    let threads = Threads::single();
    let all: Vec<String> = REGISTRY
        .entries
        .iter()
        .filter(|entry| entry.op == Op::Matmul)
        .map(|entry| entry.name.to_owned())
        .collect();
    for disabled in [Vec::new(), all] {
        let restrict = Some(Restrict { disabled, ..Restrict::default() });
        let options = LinearOptions { policy: Policy::Dequantize, restrict, ..LinearOptions::default() };
        let forward = |matrices: &[QuantizedMatrix<'_>]| -> Result<Vec<f32>, Error> {
            let layer = Linear::stacked(&REGISTRY, matrices, &options, &threads)?;
            let mut y = vec![f32::NAN; m * layer.n()];
            let mut workspace = layer.workspace(m, &threads)?;
            layer.forward(Input::F32(&x), m, None, &mut y, &mut workspace, &threads)?;
            Ok(y)
        };
        let (together, upper, lower) =
            (forward(&matrices)?, forward(&matrices[..1])?, forward(&matrices[1..])?);
        for row in 0..m {
            assert_eq!(together[row * 27..][..20], upper[row * 20..][..20]);
            assert_eq!(together[row * 27 + 20..][..7], lower[row * 7..][..7]);
        }
    }
    Ok(())
}

#[test]
fn what_does_not_go_together_is_refused() -> Result<(), Error> {
    let (_, q4_0) = REGISTRY.format("q4_0")?;
    let (_, q8_0) = REGISTRY.format("q8_0")?;
    let (four, eight, long) = (vec![0; 18], vec![0; 34], vec![0; 36]);
    let four = QuantizedMatrix::new(q4_0, 1, 32, &four)?;
    let eight = QuantizedMatrix::new(q8_0, 1, 32, &eight)?;
    let long = QuantizedMatrix::new(q4_0, 1, 64, &long)?;
    let stacked = |matrices: &[QuantizedMatrix<'_>]| {
        Linear::stacked(&REGISTRY, matrices, &LinearOptions::default(), &Threads::single()).map(drop)
    };
    assert_eq!(stacked(&[four, four]), Ok(()));
    assert_eq!(stacked(&[four, eight]), Err(Error::MixedFormats { first: "q4_0", other: "q8_0" }));
    assert!(matches!(stacked(&[four, long]), Err(Error::ShapeMismatch { expected: 32, found: 64, .. })));
    assert_eq!(stacked(&[]), Err(Error::NothingStacked));
    Ok(())
}
