//! `gristmill quantize --imatrix`.
#![cfg(all(feature = "cli", feature = "ggml"))]

use crate::common::{gristmill, text};
use gristmill::gguf::{GgufFile, GgufWriter, Model, TypeNumbers, Value};
use gristmill::{Dequantizer, REGISTRY, Request};
use gristmill_records::quantize::Quantized;
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const N: usize = 520;
const K: usize = 512;

/// Numbers from -1 to 1 that look like chance.
fn numbers(count: usize, mut state: u32) -> Vec<f32> {
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// What a squared error costs in each column: much in one of eight.
fn importance() -> Vec<f32> {
    (0..K).map(|column| if column % 8 == 3 { 100.0 } else { 1.0 }).collect()
}

fn write(path: &Path, kind: &str, tensors: &[(&str, &[u64], Vec<f32>)]) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.type", Value::String(kind))?;
    writer.metadata("general.architecture", Value::String("llama"))?;
    for (name, dims, values) in tensors {
        writer.tensor(name, dims, 0, 4 * values.len() as u64)?;
    }
    let mut stream = writer.write_to(Vec::new())?;
    for (name, _, values) in tensors {
        stream.data(name, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

/// The NMSE of tensor `w` in a file, each column counted by its importance.
fn weighted(path: &Path, x: &[f32]) -> Result<f64, Box<dyn std::error::Error>> {
    let model = Model::open(path)?;
    let held = model.matrix("w")?;
    let matrix = held.matrix();
    let prepared = REGISTRY.prepare(&Request::dequantize(matrix.format().name, N, K))?;
    let mut q = vec![0.0; N * K];
    Dequantizer::new(&prepared.decide_as_asked())?.run(&matrix, &mut q)?;
    let importance = importance();
    let (mut error, mut energy) = (0.0, 0.0);
    for ((x, q), w) in x.iter().zip(&q).zip(importance.iter().cycle()) {
        let w = f64::from(*w);
        error += w * (f64::from(*x) - f64::from(*q)).powi(2);
        energy += w * f64::from(*x).powi(2);
    }
    Ok(error / energy)
}

#[test]
fn errors_are_weighed_and_told() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [model, imatrix, plain, out, one] =
        ["model.gguf", "i.gguf", "plain.gguf", "out.gguf", "one.gguf"].map(|name| folder.path().join(name));
    let x = numbers(N * K, 3);
    let dims: &[u64] = &[K as u64, N as u64];
    let small: &[u64] = &[K as u64, 2];
    write(
        &model,
        "model",
        &[
            ("w", dims, x.clone()),
            ("unknown", small, numbers(2 * K, 4)),
            ("unreached", small, numbers(2 * K, 5)),
            ("norm", &[K as u64], numbers(K, 6)),
        ],
    )?;
    let sums: Vec<f32> = importance().iter().map(|value| value * 16.0).collect();
    let k: &[u64] = &[K as u64];
    write(
        &imatrix,
        "imatrix",
        &[
            ("w.in_sum2", k, sums.clone()),
            ("w.counts", &[1], vec![16.0]),
            ("unreached.in_sum2", k, vec![0.0; K]),
            ("unreached.counts", &[1], vec![0.0]),
        ],
    )?;
    for format in ["q2_k", "q6_k"] {
        gristmill(["quantize", text(&model), "-o", text(&plain), "--format", format]).code(0);
        let with = ["--format", format, "--imatrix", text(&imatrix)];
        let json = ["quantize", text(&model), "-o", text(&out), "--json", "--threads", "2"];
        let said: Quantized = gristmill(json.into_iter().chain(with)).code(0).record();
        let (before, after) = (weighted(&plain, &x)?, weighted(&out, &x)?);
        assert!(after < before, "{format}: {after:e} with importance, {before:e} without");
        let told = said.tensors[0].weighted_nmse.ok_or("a number")?;
        assert!((told - after).abs() <= 1e-9 * after, "{format}: {told:e} is said, it is {after:e}");
        assert_eq!(said.tensors[1].weighted_nmse, None, "{said:?}");
        // The same bytes whatever the threads, and what was used stands in the file.
        gristmill(["quantize", text(&model), "-o", text(&one), "--threads", "1"].into_iter().chain(with))
            .code(0)
            .says("weighted")
            .says("without importance, of which the file has none: unknown, unreached");
        assert!(std::fs::read(&out)? == std::fs::read(&one)?, "{format} with one thread and with two");
        let types = TypeNumbers::new(&REGISTRY);
        let [written, unweighted] =
            [&out, &plain].map(|path| GgufFile::open(path, &|tensor| types.size(tensor)));
        let (written, unweighted) = (written?, unweighted?);
        let used = written.value("quantize.imatrix.file").and_then(|value| value.as_str());
        assert_eq!(used, Some("i.gguf"));
        let entries = written.value("quantize.imatrix.entries_count").and_then(|value| value.as_u64());
        assert_eq!(entries, Some(2));
        for name in ["unknown", "unreached"] {
            let [a, b] = [&written, &unweighted].map(|file| file.tensor(name).map(|t| t.data()));
            assert_eq!(a.ok_or("there")??, b.ok_or("there")??, "{name} is quantized as without");
        }
    }
    Ok(())
}

/// Each expert has importance of its own, and one that no token reached has none.
#[test]
fn experts_are_weighed_one_by_one() -> Outcome {
    const ROWS: usize = 3;
    let folder = tempfile::tempdir()?;
    let [model, imatrix, out, plain] =
        ["model.gguf", "i.gguf", "out.gguf", "plain.gguf"].map(|name| folder.path().join(name));
    let x = numbers(3 * ROWS * K, 9);
    write(&model, "model", &[("experts", &[K as u64, ROWS as u64, 3], x.clone())])?;
    let sums = [importance(), vec![0.0; K], importance().into_iter().rev().collect()].concat();
    let counts = vec![1.0, 0.0, 2.0];
    write(
        &imatrix,
        "imatrix",
        &[("experts.in_sum2", &[K as u64, 3], sums.clone()), ("experts.counts", &[1, 3], counts)],
    )?;
    let with = ["quantize", text(&model), "-o", text(&out), "--format", "q2_k", "--imatrix", text(&imatrix)];
    gristmill(with).code(0).says("without importance, of which the file has none: experts (1 of 3 matrices)");
    let said: Quantized = gristmill(with.into_iter().chain(["--json"])).code(0).record();
    let of = &said.tensors[0];
    assert_eq!((of.matrices, of.without_importance, &of.why_copied), (3, Some(1), &None), "{said:?}");
    gristmill(["quantize", text(&model), "-o", text(&plain), "--format", "q2_k"]).code(0);
    let types = TypeNumbers::new(&REGISTRY);
    let bytes = |path: &Path| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let file = GgufFile::open(path, &|tensor| types.size(tensor))?;
        let tensor = file.tensor("experts").ok_or("there")?;
        assert_eq!(tensor.dims(), [K as u64, ROWS as u64, 3]);
        Ok(tensor.data()?.into_owned())
    };
    let (weighed, unweighted) = (bytes(&out)?, bytes(&plain)?);
    let (_, format) = REGISTRY.format("q2_k")?;
    let each = format.tensor_bytes(ROWS, K)?;
    let threads = gristmill::Threads::single();
    for (matrix, x) in x.chunks_exact(ROWS * K).enumerate() {
        let prepared = REGISTRY.prepare(&Request::quantize("q2_k", None, ROWS, K))?;
        let kernel = gristmill::Quantizer::new(&prepared.decide_as_asked())?;
        let mut expected = vec![0; each];
        let sums = &sums[matrix * K..][..K];
        match matrix {
            1 => kernel.run(x, ROWS, K, &mut expected)?,
            // Only proportions count, so sums do as means.
            _ => kernel.run_weighted(x, sums, ROWS, K, &mut expected, &threads)?,
        }
        let part = matrix * each..(matrix + 1) * each;
        assert!(weighed[part.clone()] == expected[..], "matrix {matrix}");
        assert_eq!(weighed[part.clone()] == unweighted[part], matrix == 1, "matrix {matrix}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_written() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [model, imatrix, out] = ["model.gguf", "i.gguf", "out.gguf"].map(|name| folder.path().join(name));
    write(&model, "model", &[("w", &[256, 2], numbers(512, 3))])?;
    let quantize = |format: &str| {
        let line = ["quantize", text(&model), "-o", text(&out), "--imatrix", text(&imatrix), "--format"];
        let ran = gristmill(line.into_iter().chain([format])).code(1);
        assert!(!out.exists(), "something was written: {}", ran.stderr);
        ran
    };
    quantize("q4_k").complains("i.gguf");
    write(&imatrix, "imatrix", &[("w.in_sum2", &[128], vec![1.0; 128]), ("w.counts", &[1], vec![1.0])])?;
    quantize("q4_k").complains("tensor `w` is a matrix of 256 columns").complains("1 by 128");
    std::fs::write(&imatrix, [&1u32.to_le_bytes()[..], &1u32.to_le_bytes(), b"w", &[0; 64]].concat())?;
    let old = quantize("q4_k").complains("not a GGUF file").complains("llama-imatrix --in-file OLD.dat");
    assert_eq!(old.stderr.matches("i.gguf").count(), 1, "{}", old.stderr);
    quantize("q8_0").complains("takes no importance of columns").complains("q4_k");
    write(&imatrix, "imatrix", &[("v.in_sum2", &[256], vec![1.0; 256]), ("v.counts", &[1], vec![1.0])])?;
    quantize("q4_k").complains("importance of no matrix").complains("such as `v`");
    write(&imatrix, "imatrix", &[("w.in_sum2", &[256], vec![-1.0; 256]), ("w.counts", &[1], vec![1.0])])?;
    quantize("q4_k").complains("value 0 is -1");
    write(&imatrix, "model", &[("w.in_sum2", &[256], vec![1.0; 256])])?;
    quantize("q4_k").complains("`general.type` is `model`");
    let same =
        ["quantize", text(&model), "-o", text(&imatrix), "--imatrix", text(&imatrix), "--format", "q4_k"];
    gristmill(same).code(1).complains("are one file");
    Ok(())
}
