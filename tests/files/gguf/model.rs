//! A file as layers, matrices and values by name, and what is refused.
#![cfg(all(feature = "bitnet", feature = "ggml"))]

use super::data;
use gristmill::gguf::{GgufWriter, Instead, LayerOptions, Model, ModelError, TypeNumbers, Value};
use gristmill::import::ImportError;
use gristmill::{
    Dequantizer, Device, Error, ExpertInput, Input, Linear, LinearOptions, Policy, QuantizedBuf,
    QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict, Routes, Threads,
};
use std::path::{Path, PathBuf};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const K: usize = 256;

/// Weights of `n` rows in a format.
fn quantized(format: &str, n: usize, seed: usize) -> Result<Vec<u8>, Error> {
    let values: Vec<f32> =
        (0..n * K).map(|i| (((i + 7 * seed) * 37 + i / 11) % 101) as f32 / 50.0 - 1.0).collect();
    let prepared = REGISTRY.prepare(&Request::quantize(format, None, n, K))?;
    let mut bytes = vec![0; REGISTRY.format(format)?.1.tensor_bytes(n, K)?];
    Quantizer::new(&prepared.decide_as_asked())?.run(&values, n, K, &mut bytes)?;
    Ok(bytes)
}

/// Name, dimensions, type number, data.
type Tensor<'a> = (&'a str, &'a [u64], u32, Vec<u8>);

fn write(path: &Path, tensors: &[Tensor<'_>]) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama"))?;
    for (name, dims, number, data) in tensors {
        writer.tensor(name, dims, *number, data.len() as u64)?;
    }
    let mut stream = writer.write_to(Vec::new())?;
    for (name, _, _, data) in tensors {
        stream.data(name, data)?;
    }
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A model with one of everything.
fn model(folder: &Path) -> Result<Model, Box<dyn std::error::Error>> {
    let path = folder.join("m.gguf");
    let halves = |bits: [u16; 3]| bits.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>();
    write(
        &path,
        &[
            ("token_embd.weight", &[256, 6], 36, quantized("i2_s", 6, 1)?),
            ("blk.0.attn_q.weight", &[256, 4], 12, quantized("q4_k", 4, 2)?),
            ("blk.0.attn_k.weight", &[256, 2], 12, quantized("q4_k", 2, 3)?),
            ("blk.0.attn_v.weight", &[256, 2], 12, quantized("q4_k", 2, 4)?),
            ("blk.1.attn_qkv.weight", &[256, 8], 36, quantized("i2_s", 8, 5)?),
            ("blk.0.ffn_up_exps.weight", &[256, 4, 3], 2, quantized("q4_0", 12, 6)?),
            ("blk.0.norm.weight", &[3], 0, f32s(&[1.0, f32::NAN, -0.5])),
            ("blk.0.bias", &[3, 1], 1, halves([0x3c00, 0xc000, 0x7c00])),
            ("blk.0.row", &[1, 3], 30, halves([0x3f80, 0xc000, 0xff80])),
            ("blk.0.plain.weight", &[256, 2], 0, f32s(&[0.5; 512])),
            ("blk.0.flat.weight", &[256], 12, quantized("q4_k", 1, 7)?),
            ("blk.0.ids", &[4], 26, vec![0; 16]),
            ("blk.0.tl1", &[256, 32], 38, vec![0; 2080]),
            ("none", &[256, 0], 12, Vec::new()),
        ],
    )?;
    Ok(Model::open(path)?)
}

fn forward(layer: &Linear) -> Result<Vec<f32>, Error> {
    let threads = Threads::single();
    let x: Vec<f32> = (0..layer.k()).map(|i| ((i * 29) % 61) as f32 / 30.0 - 1.0).collect();
    let mut y = vec![f32::NAN; layer.n()];
    let mut workspace = layer.workspace(1, &threads)?;
    layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
    Ok(y)
}

fn values(matrix: &QuantizedMatrix<'_>) -> Result<Vec<f32>, Error> {
    let prepared = REGISTRY.prepare(&Request::dequantize(matrix.format().name, matrix.n(), matrix.k()))?;
    let mut values = vec![f32::NAN; matrix.n() * matrix.k()];
    Dequantizer::new(&prepared.decide_as_asked())?.run(matrix, &mut values)?;
    Ok(values)
}

#[test]
fn a_layer_is_one_line() -> Outcome {
    let threads = Threads::new(2)?;
    let options = LayerOptions::new(&threads);
    let layer = Model::open(data("i2_s.gguf"))?.linear("blk.0.attn_q.weight", &options)?;
    assert_eq!((layer.n(), layer.k()), (8, 256));
    let y = forward(&layer)?;
    // The same by hand.
    let model = Model::open(data("i2_s.gguf"))?;
    let tensor = model.file().tensor("blk.0.attn_q.weight").ok_or("it is there")?;
    let bytes = tensor.data()?;
    let matrix = QuantizedMatrix::new(REGISTRY.format("i2_s")?.1, 8, 256, &bytes)?;
    let by_hand = Linear::new(&REGISTRY, &matrix, &options.linear, &threads)?;
    assert_eq!(y, forward(&by_hand)?);
    assert!(y.iter().any(|y| *y != 0.0));
    Ok(())
}

#[test]
fn matrices_come_read_or_mapped() -> Outcome {
    let folder = tempfile::tempdir()?;
    let read = model(folder.path())?;
    // SAFETY: nobody else knows of the file, and it is not written to again.
    let mapped = unsafe { Model::map_with(folder.path().join("m.gguf"), TypeNumbers::new(&REGISTRY)) }?;
    for name in ["token_embd.weight", "blk.0.attn_q.weight", "none"] {
        let (one, other) = (read.matrix(name)?, mapped.matrix(name)?);
        assert_eq!(one.data(), other.data());
        assert_eq!((one.n(), one.k(), one.format().name), (other.n(), other.k(), other.format().name));
    }
    assert_eq!((read.matrix("none")?.n(), read.matrix("none")?.k()), (0, 256));
    Ok(())
}

#[test]
fn rows_of_a_tensor_are_a_matrix_with_its_scale() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = model(folder.path())?;
    for (name, n) in [("blk.1.attn_qkv.weight", 8), ("blk.0.ffn_up_exps.weight", 12)] {
        let all = model.matrix_rows(name, 0..n)?;
        let all = values(&all.matrix())?;
        for rows in [0..4, 4..6, 6..n, 2..2, 0..n] {
            let some = model.matrix_rows(name, rows.clone())?;
            assert_eq!(values(&some.matrix())?, all[rows.start * K..rows.end * K], "{name} {rows:?}");
        }
        let threads = Threads::single();
        let options = LayerOptions::new(&threads);
        let whole = forward(&model.linear_rows(name, 0..n, &options)?)?;
        assert_eq!(forward(&model.linear_rows(name, 2..6, &options)?)?, whole[2..6], "{name}");
        for rows in [0..n + 1, n + 1..n + 2, 3..usize::MAX] {
            let error = model.matrix_rows(name, rows.clone()).expect_err("not so many rows");
            assert!(matches!(&error, ModelError::Rows { n: of, .. } if *of == n), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
    // From memory as from the file.
    let all = model.matrix("blk.1.attn_qkv.weight")?;
    let some = QuantizedBuf::rows_of(&all.matrix(), 3..5)?;
    assert_eq!(some.data(), model.matrix_rows("blk.1.attn_qkv.weight", 3..5)?.data());
    assert!(QuantizedBuf::rows_of(&all.matrix(), 8..9).is_err());
    #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
    let reversed = QuantizedBuf::rows_of(&all.matrix(), 5..3);
    assert!(reversed.is_err());
    Ok(())
}

#[test]
fn stacked_layers_give_one_after_the_other() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = model(folder.path())?;
    let threads = Threads::single();
    let options = LayerOptions::new(&threads);
    let names = ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"];
    let stacked = forward(&model.stacked(&names, &options)?)?;
    let mut apart = Vec::new();
    for name in names {
        apart.extend(forward(&model.linear(name, &options)?)?);
    }
    assert_eq!(stacked, apart);
    let error = model.stacked(&[names[0], "token_embd.weight"], &options).expect_err("another format");
    assert_eq!(
        error.to_string(),
        "tensors `blk.0.attn_q.weight` (q4_k, rows of 256) and `token_embd.weight` (i2_s, rows of 256) can't be one layer: \
         rows must be of one format and length, with the same transform of inputs"
    );
    assert!(matches!(model.stacked(&[], &options), Err(ModelError::Nothing)));
    let error = model.stacked(&[names[0], "blk.9.x"], &options).expect_err("no such tensor");
    assert!(matches!(&error, ModelError::NoTensor { tensor, .. } if tensor == "blk.9.x"), "{error}");
    Ok(())
}

#[test]
fn floats_are_exact_whatever_they_are() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = model(folder.path())?;
    let norm = model.floats("blk.0.norm.weight")?;
    assert!(norm[0] == 1.0 && norm[1].is_nan() && norm[2] == -0.5);
    assert_eq!(model.floats("blk.0.bias")?, [1.0, -2.0, f32::INFINITY]);
    assert_eq!(model.vector("blk.0.bias", 3)?, [1.0, -2.0, f32::INFINITY]);
    assert_eq!(model.vector("blk.0.row", 3)?, [1.0, -2.0, f32::NEG_INFINITY]);
    assert_eq!(model.floats("blk.0.plain.weight")?, [0.5; 512]);
    let mut some = [7.0; 2];
    model.floats_at("blk.0.bias", 1, &mut some)?;
    assert_eq!(some, [-2.0, f32::INFINITY]);
    model.floats_at("blk.0.bias", 3, &mut [])?;
    for first in [2, 3, u64::MAX / 4, u64::MAX] {
        let error = model.floats_at("blk.0.bias", first, &mut some).expect_err("behind its end");
        assert!(
            matches!(&error, ModelError::NoData { .. }) && error.to_string().contains("`blk.0.bias`"),
            "{error}"
        );
    }
    let error = model.vector("blk.0.row", 4).expect_err("another length");
    assert_eq!(error.to_string(), "tensor `blk.0.row` is a vector of 3 values, expected 4");
    let error = model.vector("blk.0.plain.weight", 512).expect_err("a matrix");
    assert!(
        error.to_string().contains("[256, 2]") && error.to_string().contains("expected a vector"),
        "{error}"
    );
    for (name, found) in [("blk.0.ids", "i32"), ("token_embd.weight", "i2_s")] {
        let error = model.floats(name).expect_err("no floats");
        assert!(matches!(&error, ModelError::NotFloats { found: of, .. } if *of == found), "{error}");
        let error = model.floats_at(name, 0, &mut []).expect_err("no floats");
        assert!(matches!(&error, ModelError::NotFloats { found: of, .. } if *of == found), "{error}");
    }
    Ok(())
}

#[test]
fn what_is_no_matrix_is_refused_by_name() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = model(folder.path())?;
    let threads = Threads::single();
    let options = LayerOptions::new(&threads);
    let refused = |name: &str| {
        let error = model.linear(name, &options).expect_err(name);
        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        error
    };
    assert!(matches!(refused("blk.0.plain.weight"), ModelError::NotQuantized { found: "f32", .. }));
    assert!(matches!(refused("blk.0.norm.weight"), ModelError::NotQuantized { found: "f32", .. }));
    let error = refused("blk.0.flat.weight");
    assert!(matches!(&error, ModelError::Dimensions { dims, .. } if *dims == [256]), "{error}");
    let error = refused("blk.0.ffn_up_exps.weight");
    assert!(
        error.to_string().contains("[256, 4, 3]") && error.to_string().contains("matrix_rows"),
        "{error}"
    );
    let error = refused("blk.0.tl1");
    let unknown = ImportError::NoTileSizes { n: 32, k: 256 };
    assert!(matches!(&error, ModelError::Import { why, .. } if *why == unknown), "{error}");
    Ok(())
}

#[test]
fn a_tensor_that_is_elsewhere_is_pointed_at() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = model(folder.path())?;
    let instead = |name: &str| match model.matrix(name) {
        Err(ModelError::NoTensor { tensor, instead }) if tensor == name => instead,
        other => panic!("{other:?}"),
    };
    assert_eq!(instead("output.weight"), Some(Instead::Tied("token_embd.weight".to_owned())));
    let stack = "blk.1.attn_qkv.weight".to_owned();
    assert_eq!(instead("blk.1.attn_k.weight"), Some(Instead::StackedIn(stack)));
    let parts = ["q", "k", "v"].map(|part| format!("blk.0.attn_{part}.weight")).to_vec();
    assert_eq!(instead("blk.0.attn_qkv.weight"), Some(Instead::SplitInto(parts)));
    assert_eq!(instead("blk.0.attn_p.weight"), Some(Instead::Meant("blk.0.attn_q.weight".to_owned())));
    assert_eq!(instead("something else"), None);
    let error = model.matrix("output.weight").expect_err("tied").to_string();
    assert!(
        error.ends_with("help: the output layer is tied to the embedding, `token_embd.weight`"),
        "{error}"
    );
    Ok(())
}

#[test]
fn options_count_and_nothing_else() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = model(folder.path())?;
    let threads = Threads::single();
    let mut options = LayerOptions::new(&threads);
    // No kernel there: strict is an error that names the tensor.
    options.linear = LinearOptions { device: Device::cuda(99), ..options.linear };
    let error = model.linear("token_embd.weight", &options).expect_err("no such device");
    assert!(
        matches!(&error, ModelError::Layer { tensors, .. } if *tensors == ["token_embd.weight"]),
        "{error}"
    );
    options.linear.policy = Policy::Cpu;
    assert!(forward(&model.linear("token_embd.weight", &options)?)?.iter().all(|y| y.is_finite()));
    options.linear.restrict =
        Some(Restrict { kernel: Some("no.such.kernel".to_owned()), ..Restrict::default() });
    let error = model.linear("token_embd.weight", &options).expect_err("no such kernel");
    assert!(matches!(&error, ModelError::Layer { error: Error::UnknownKernel { .. }, .. }), "{error}");
    Ok(())
}

/// What a step reads: all tensors, but an embedding of which only rows are looked up.
#[test]
fn a_model_says_how_many_bytes_take_turns() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("w.gguf");
    let embedding = quantized("i2_s", 6, 1)?;
    let up = quantized("q4_k", 4, 2)?;
    let tied: [Tensor<'_>; 2] = [
        ("token_embd.weight", &[256, 6], 36, embedding.clone()),
        ("blk.0.ffn_up.weight", &[256, 4], 12, up.clone()),
    ];
    write(&path, &tied)?;
    let all = (embedding.len() + up.len()) as u64;
    assert_eq!(Model::open(&path)?.file().working_set(), all);
    let apart: Vec<Tensor<'_>> =
        tied.into_iter().chain([("output.weight", &[256, 6][..], 36, embedding)]).collect();
    write(&path, &apart)?;
    let model = Model::open(&path)?;
    assert_eq!(model.file().working_set(), all);
    // What a layer is made with: what was said, else the model's bytes.
    let threads = Threads::single();
    let mut options = LayerOptions::new(&threads);
    let held = |options: &LayerOptions<'_>| -> Result<usize, Box<dyn std::error::Error>> {
        Ok(model.linear("output.weight", options)?.weight_bytes())
    };
    let by_itself = held(&options)?;
    options.linear.working_set = Some(0);
    let small = held(&options)?;
    assert_eq!(by_itself, small);
    options.linear.working_set = Some(u64::MAX);
    let large = held(&options)?;
    // A file that no cache holds: zeros that the disk does not have.
    options.linear.working_set = None;
    let mut writer = GgufWriter::new();
    let matrix = quantized("i2_s", 6, 1)?;
    writer.tensor("output.weight", &[256, 6], 36, matrix.len() as u64)?;
    writer.tensor("plain", &[1 << 20, 1 << 14], 0, 1 << 36)?;
    let mut stream = writer.write_to(std::fs::File::create(&path)?)?;
    stream.data("output.weight", &matrix)?;
    drop(stream);
    let file = std::fs::OpenOptions::new().write(true).open(&path)?;
    file.set_len(file.metadata()?.len().next_multiple_of(32) + (1 << 36))?;
    let model = Model::open(&path)?;
    assert_eq!(model.file().working_set(), (1 << 36) + matrix.len() as u64);
    assert_eq!(model.linear("output.weight", &options)?.weight_bytes(), large);
    Ok(())
}

#[test]
fn damaged_files_never_panic() -> Outcome {
    let folder = tempfile::tempdir()?;
    let whole = model(folder.path())?;
    let names: Vec<String> = whole.file().tensors().map(|tensor| tensor.name().to_owned()).collect();
    let bytes = std::fs::read(folder.path().join("m.gguf"))?;
    let threads = Threads::single();
    let options = LayerOptions::new(&threads);
    let path: PathBuf = folder.path().join("damaged.gguf");
    let header = whole.file().data_start() as usize;
    for at in (0..header).step_by(7) {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            std::fs::write(&path, bytes)?;
            let Ok(model) = Model::open(&path) else { continue };
            for name in &names {
                let _ = (model.matrix(name), model.floats(name), model.vector(name, 3));
                let _ = model.matrix_rows(name, 0..2).map(|some| values(&some.matrix()));
            }
        }
    }
    for length in [0, 3, header / 2, header, bytes.len() - 1000] {
        std::fs::write(&path, &bytes[..length])?;
        assert!(matches!(Model::open(&path), Err(ModelError::File(_))), "{length} bytes");
    }
    // Shorter than when it was opened.
    std::fs::write(&path, &bytes)?;
    let model = Model::open(&path)?;
    std::fs::write(&path, &bytes[..header])?;
    let error = model.linear("blk.0.attn_q.weight", &options).expect_err("it became shorter");
    assert!(matches!(error, ModelError::NoData(_)), "{error}");
    Ok(())
}

#[test]
fn experts_are_tensors_of_three_dimensions() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("experts.gguf");
    write(
        &path,
        &[
            ("gate", &[256, 4, 3], 2, quantized("q4_0", 12, 1)?),
            ("up", &[256, 5, 3], 2, quantized("q4_0", 15, 2)?),
            // With a scale behind all of them.
            ("down", &[256, 8, 3], 36, quantized("i2_s", 24, 3)?),
            ("flat", &[256, 12], 2, quantized("q4_0", 12, 4)?),
            ("fewer", &[256, 6, 2], 2, quantized("q4_0", 12, 5)?),
            ("plain", &[256, 1, 3], 0, f32s(&[0.5; 768])),
            ("none", &[256, 4, 0], 2, Vec::new()),
        ],
    )?;
    let model = Model::open(&path)?;
    let threads = Threads::single();
    let options = LayerOptions::new(&threads);
    let x: Vec<f32> = (0..K).map(|i| ((i * 29) % 61) as f32 / 30.0 - 1.0).collect();
    for (names, heights) in [(&["gate", "up"][..], &[4, 5][..]), (&["down"], &[8])] {
        let experts = model.experts(names, &options)?;
        let n: usize = heights.iter().sum();
        assert_eq!((experts.count(), experts.n(), experts.k()), (3, n, K));
        let list = [2, 0, 1];
        let mut y = vec![f32::NAN; 3 * n];
        let mut workspace = experts.workspace(1, 3, &threads)?;
        let (input, routes) = (ExpertInput::Tokens(Input::F32(&x)), Routes::each(1, 3, &list)?);
        experts.forward(input, &routes, None, &mut y, &mut workspace, &threads)?;
        for (y, expert) in y.chunks(n).zip(list) {
            let mut expected = Vec::new();
            for (name, height) in names.iter().zip(heights) {
                let rows = expert as usize * height..(expert as usize + 1) * height;
                expected.extend(forward(&model.linear_rows(name, rows, &options)?)?);
            }
            assert_eq!(y, expected, "expert {expert} of {names:?}");
        }
    }
    let refused =
        |names: &[&str]| model.experts(names, &options).map(drop).map_err(|error| error.to_string());
    let says = |names: &[&str], what: &str| {
        let error = refused(names).expect_err("it is refused");
        assert!(error.contains(what), "{error}");
    };
    says(&["flat"], "not a stack of experts");
    says(&["gate", "fewer"], "2 experts of q4_0, rows of 256");
    says(&["gate", "down"], "3 experts of i2_s, rows of 256");
    says(&["plain"], "f32");
    says(&["none"], "a stack that has no elements");
    says(&["missing"], "missing");
    assert!(matches!(model.experts(&[], &options), Err(ModelError::Nothing)));
    Ok(())
}
