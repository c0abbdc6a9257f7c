//! Declared transforms of activations: models with folded weights, and declarations that are refused.
#![cfg(feature = "ggml")]

use gristmill::gguf::{ArrayBuf, DevicePlan, DeviceRoom, GgufWriter, LayerOptions, Model, ModelError, Value};
use gristmill::vocab::Isa;
use gristmill::{
    Device, GuardOptions, Input, Linear, Quantizer, REGISTRY, Recording, RecoveryStep, Request, Shape,
    Threads, Workspace,
};
use std::num::NonZeroU64;
use std::path::Path;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const BLOCK: usize = 32;
const ROWS: usize = 12;
/// Widths of the two matrices that are folded.
const WIDTHS: [usize; 2] = [256, 128];

/// Pseudo-random values around 0.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() + next() + next()).collect()
}

fn signs() -> Vec<i8> {
    values(WIDTHS[0] + WIDTHS[1], 5).iter().map(|value| if *value < 0.0 { -1 } else { 1 }).collect()
}

/// The signs of a width.
fn signs_of(width: usize) -> Vec<i8> {
    if width == WIDTHS[0] { signs()[..width].to_vec() } else { signs()[WIDTHS[0]..].to_vec() }
}

/// Rows folded by the definition, in f64: what a converter stores.
fn folded(rows: &[f32], width: usize) -> Vec<f32> {
    let (signs, scale) = (signs_of(width), 1.0 / (BLOCK as f64).sqrt());
    let mut out = Vec::new();
    for (at, _) in rows.iter().enumerate() {
        let (start, row) = (at - at % BLOCK, at % BLOCK);
        let term = |column: usize| {
            let parity = (row & column).count_ones() % 2;
            let value = f64::from(rows[start + column]) * f64::from(signs[(start + column) % width]);
            if parity == 0 { value } else { -value }
        };
        out.push(((0..BLOCK).map(term).sum::<f64>() * scale) as f32);
    }
    out
}

fn q8_0(rows: &[f32], width: usize) -> Result<Vec<u8>, gristmill::Error> {
    let n = rows.len() / width;
    let prepared = REGISTRY.prepare(&Request::quantize("q8_0", None, n, width))?;
    let mut bytes = vec![0; REGISTRY.format("q8_0")?.1.tensor_bytes(n, width)?];
    Quantizer::new(&prepared.decide_as_asked())?.run(rows, n, width, &mut bytes)?;
    Ok(bytes)
}

enum Entry {
    Number(u32),
    Text(&'static str),
    Flag(bool),
    Array(ArrayBuf),
}

/// The declaration as the publisher writes it.
fn declaration() -> Vec<(&'static str, Entry)> {
    vec![
        ("version", Entry::Number(1)),
        ("transform", Entry::Text("normalized-sylvester-walsh-hadamard")),
        ("axis", Entry::Text("input-last-dimension")),
        ("block_size", Entry::Number(BLOCK as u32)),
        ("sign_mode", Entry::Text("explicit")),
        ("sign_widths", Entry::Array(ArrayBuf::i32s(WIDTHS.map(|width| width as i32)))),
        ("sign_values", Entry::Array(ArrayBuf::i8s(signs()))),
        ("weight_names", Entry::Array(ArrayBuf::strings(["up", "down", "experts"]))),
        ("inverse_weight_names", Entry::Array(ArrayBuf::strings(["token_embd.weight"]))),
    ]
}

/// A model with two folded matrices, an embedding with transformed rows, a stack of experts, and one matrix that is as it is.
fn write(path: &Path, declaration: &[(&'static str, Entry)]) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama"))?;
    for (key, entry) in declaration {
        let value = match entry {
            Entry::Number(number) => Value::U32(*number),
            Entry::Text(text) => Value::String(text),
            Entry::Flag(flag) => Value::Bool(*flag),
            Entry::Array(array) => array.value(),
        };
        writer.metadata(&format!("prism.hadamard.{key}"), value)?;
    }
    let [wide, narrow] = WIDTHS;
    let tensors = [
        ("up", wide, folded(&values(ROWS * wide, 1), wide)),
        ("down", narrow, folded(&values(ROWS * narrow, 2), narrow)),
        ("token_embd.weight", wide, folded(&values(ROWS * wide, 3), wide)),
        ("plain", wide, values(ROWS * wide, 4)),
    ];
    let mut data = Vec::new();
    for (name, width, rows) in &tensors {
        let bytes = q8_0(rows, *width)?;
        writer.tensor(name, &[*width as u64, ROWS as u64], 8, bytes.len() as u64)?;
        data.push((*name, bytes));
    }
    let experts = q8_0(&values(ROWS * wide, 6), wide)?;
    writer.tensor("experts", &[wide as u64, ROWS as u64 / 2, 2], 8, experts.len() as u64)?;
    data.push(("experts", experts));
    let mut stream = writer.write_to(Vec::new())?;
    for (name, bytes) in &data {
        stream.data(name, bytes)?;
    }
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

/// Normalized mean square error of a layer's product against the unfolded weights in f64.
fn error(layer: &Linear, weights: &[f32]) -> Result<f64, gristmill::Error> {
    let threads = Threads::single();
    let (n, k) = (layer.n(), layer.k());
    let x = values(k, 99);
    let mut y = vec![f32::NAN; n];
    layer.forward(Input::F32(&x), 1, None, &mut y, &mut layer.workspace(1, &threads)?, &threads)?;
    let (mut wrong, mut all) = (0.0, 0.0);
    for (row, y) in weights.chunks(k).zip(&y) {
        let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        wrong += (f64::from(*y) - exact).powi(2);
        all += exact.powi(2);
    }
    Ok(wrong / all)
}

#[test]
fn layers_apply_what_the_file_declares() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    write(&path, &declaration())?;
    let threads = Threads::single();
    let options = LayerOptions::new(&threads);
    let [wide, narrow] = WIDTHS;
    let model = Model::open(&path)?;
    let matrices = [("up", wide, 1), ("down", narrow, 2), ("token_embd.weight", wide, 3), ("plain", wide, 4)];
    for (name, width, seed) in matrices {
        let weights = values(ROWS * width, seed);
        let found = error(&model.linear(name, &options)?, &weights)?;
        assert!(found < 2e-4, "{name}: {found:e}");
        let some = &weights[3 * width..9 * width];
        let found = error(&model.linear_rows(name, 3..9, &options)?, some)?;
        assert!(found < 2e-4, "{name}: {found:e}");
    }
    let both = [values(ROWS * wide, 1), values(ROWS * wide, 3)].concat();
    let found = error(&model.stacked(&["up", "token_embd.weight"], &options)?, &both)?;
    assert!(found < 2e-4, "{found:e}");
    // The same file without its declaration, as a reader sees it that knows of none.
    let none = folder.path().join("none.gguf");
    write(&none, &[])?;
    let found = error(&Model::open(&none)?.linear("up", &options)?, &values(ROWS * wide, 1))?;
    assert!(found > 0.5, "{found:e}");
    Ok(())
}

/// Under a guard, too, and in layers that it makes anew; runs are compared with products that are transformed likewise.
#[test]
fn guarded_layers_apply_it_again() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    write(&path, &declaration())?;
    let threads = Threads::single();
    let options = LayerOptions::new(&threads);
    let model = Model::open(&path)?;
    let guard = || GuardOptions { check_every: NonZeroU64::new(1), ..GuardOptions::default() };
    for (name, width) in [("up", WIDTHS[0]), ("plain", WIDTHS[0])] {
        let guard = guard();
        let quarantine = guard.quarantine.clone();
        let layer = model.guarded(name, guard, &options)?;
        let plain = model.linear(name, &options)?;
        let (x, mut workspace) = (values(width, 99), Workspace::new());
        let mut expected = vec![f32::NAN; ROWS];
        plain.forward(
            Input::F32(&x),
            1,
            None,
            &mut expected,
            &mut plain.workspace(1, &threads)?,
            &threads,
        )?;
        let recording = Recording::new(&REGISTRY);
        layer.record(Some(&recording))?;
        let chosen = plain.prepared().decide(Shape::new(1, ROWS, width)).kernel()?;
        // The portable kernel is the last one.
        let runs = if chosen.isa == Some(Isa::Scalar) { 1 } else { 2 };
        for run in 0..runs {
            if run == 1 {
                // What ran is not to be used any more.
                let kernels = recording.receipt();
                let product = kernels.kernels().iter().find(|kernel| kernel.name().starts_with("matmul."));
                quarantine.add(product.ok_or("a product")?.id(), "a test");
            }
            workspace.grow(layer.workspace_size(1, &threads)?)?;
            let mut y = vec![f32::NAN; ROWS];
            layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
            assert_eq!(y, expected, "{name}, run {run}");
        }
        let steps: Vec<_> = recording.receipt().recoveries().iter().map(|recovery| recovery.step).collect();
        assert_eq!(steps, vec![RecoveryStep::DecidedAgain; runs - 1], "{name}");
    }
    let error = model.guarded("experts", guard(), &options).expect_err("a stack");
    assert!(matches!(&error, ModelError::Dimensions { tensor, .. } if tensor == "experts"), "{error}");
    Ok(())
}

/// A plan puts what the processor alone can transform nowhere else.
#[test]
fn a_plan_keeps_transformed_tensors_from_gpus() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    write(&path, &declaration())?;
    let (model, threads) = (Model::open(&path)?, Threads::single());
    let plan = |device| {
        let rooms = [DeviceRoom { device, bytes: u64::MAX, speed: 1.0 }];
        DevicePlan::new(&model, &LayerOptions::new(&threads), &rooms)
    };
    let here = plan(Device::CPU)?;
    assert_eq!((here.device_of("up"), here.without()), (Some(Device::CPU), &[][..]));
    // Whether there is such a device or not.
    let there = plan(Device::cuda(0))?;
    let why = |name: &str| there.without().iter().find(|(tensor, _)| tensor == name).map(|(_, why)| &why[..]);
    for name in ["up", "down", "token_embd.weight"] {
        let why = why(name).ok_or("it has a kernel")?;
        assert!(why.contains("on the processor only, so there is no kernel on cuda:0"), "{name}: {why}");
    }
    assert!(why("plain").is_none_or(|why| !why.contains("processor only")));
    Ok(())
}

#[test]
fn stored_rows_are_lent_to_those_who_transform_them() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    write(&path, &declaration())?;
    let threads = Threads::single();
    let options = LayerOptions::new(&threads);
    let model = Model::open(&path)?;
    let refused = |error: ModelError, name: &str, named_by: &str| match error {
        ModelError::Transformed { tensor, key } => {
            assert_eq!((&tensor[..], &key[..]), (name, named_by));
        }
        other => panic!("{other}"),
    };
    refused(model.matrix("up").expect_err("folded"), "up", "prism.hadamard.weight_names");
    refused(model.matrix_rows("up", 0..1).expect_err("folded"), "up", "prism.hadamard.weight_names");
    let rows = "prism.hadamard.inverse_weight_names";
    refused(model.floats("token_embd.weight").expect_err("rows"), "token_embd.weight", rows);
    let experts = model.experts(&["experts"], &options).expect_err("experts");
    assert!(matches!(&experts, ModelError::TransformedExperts { tensor, .. } if tensor == "experts"));
    let unlike = model.stacked(&["up", "plain"], &options).expect_err("not both transformed");
    assert!(unlike.to_string().contains("without a transform of its inputs"), "{unlike}");
    model.matrix("plain")?;

    let model = model.transformed_by_caller();
    let stored = model.matrix("token_embd.weight")?;
    let prepared = REGISTRY.prepare(&Request::dequantize("q8_0", ROWS, WIDTHS[0]))?;
    let mut found = vec![f32::NAN; ROWS * WIDTHS[0]];
    gristmill::Dequantizer::new(&prepared.decide_as_asked())?.run(&stored.matrix(), &mut found)?;
    let transforms = model.transforms().ok_or("declared")?;
    transforms.of_rows("token_embd.weight").ok_or("of rows")?.inverse(&mut found)?;
    let expected = values(ROWS * WIDTHS[0], 3);
    assert!(found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 0.03));
    assert!(transforms.of_rows("up").is_none() && transforms.of_inputs("plain").is_none());
    assert_eq!((transforms.block(), transforms.is_signed(), transforms.counts()), (BLOCK, true, (3, 1)));
    Ok(())
}

#[test]
fn a_declaration_that_is_not_understood_is_refused() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    let refused = |key: &'static str, entry: Option<Entry>, named: &str, why: &str| -> Outcome {
        let mut declared = declaration();
        declared.retain(|(known, _)| *known != key);
        declared.extend(entry.map(|entry| (key, entry)));
        write(&path, &declared)?;
        match Model::open(&path) {
            Err(ModelError::Transform(error)) => {
                assert_eq!(error.key, format!("prism.hadamard.{named}"));
                assert!(error.why.contains(why), "{key}: {error}");
            }
            other => panic!("{key}: {other:?}"),
        }
        Ok(())
    };
    let array = |array| Some(Entry::Array(array));
    refused("version", Some(Entry::Number(2)), "version", "2, expected 1")?;
    refused("version", Some(Entry::Text("1")), "version", "not an integer")?;
    refused("version", None, "version", "missing")?;
    refused("seed", Some(Entry::Number(1)), "seed", "no such key")?;
    refused("transform", Some(Entry::Text("haar")), "transform", "`haar`, expected `normalized")?;
    refused("transform", None, "transform", "missing")?;
    refused("axis", Some(Entry::Text("output")), "axis", "`output`")?;
    refused("axis", Some(Entry::Number(0)), "axis", "not a string")?;
    refused("block_size", None, "block_size", "missing")?;
    for block in [0, 1, 24] {
        refused("block_size", Some(Entry::Number(block)), "block_size", "power of two")?;
    }
    refused("block_size", Some(Entry::Number(512)), "weight_names", "whole blocks")?;
    refused("sign_mode", Some(Entry::Text("random")), "sign_mode", "`identity` or `explicit`")?;
    refused("sign_mode", Some(Entry::Text("identity")), "sign_values", "there are signs")?;
    refused("sign_widths", None, "sign_values", "384 signs more")?;
    refused("sign_widths", array(ArrayBuf::i32s([256])), "sign_values", "128 signs more")?;
    refused("sign_widths", array(ArrayBuf::i32s([192, 192])), "sign_widths", "second time")?;
    refused("sign_widths", array(ArrayBuf::i32s([320, 64])), "sign_widths", "none is 128")?;
    refused("sign_widths", array(ArrayBuf::i32s([-1])), "sign_widths", "integers from 0 on")?;
    refused("sign_widths", array(ArrayBuf::u64s([u64::MAX])), "sign_values", "384 signs, of which")?;
    refused("sign_values", array(ArrayBuf::i8s([1; 100])), "sign_values", "100 signs, of which width 256")?;
    refused("sign_values", array(ArrayBuf::i8s([2; 384])), "sign_values", "1 and -1")?;
    refused("weight_names", array(ArrayBuf::strings(["gone"])), "weight_names", "no tensor `gone`")?;
    refused("weight_names", array(ArrayBuf::u32s([1])), "weight_names", "strings")?;
    refused("weight_names", Some(Entry::Text("up")), "weight_names", "not an array")?;
    refused("gdn_v_grouped", Some(Entry::Flag(true)), "gdn_v_grouped", "not supported")?;
    let nothing: Vec<_> = declaration().into_iter().filter(|(key, _)| !key.ends_with("names")).collect();
    write(&path, &nothing)?;
    let error = Model::open(&path).expect_err("no names").to_string();
    assert!(error.contains("prism.hadamard.weight_names") && error.contains("help: "), "{error}");
    // What changes nothing is understood.
    let mut declared = declaration();
    declared.push(("gdn_v_grouped", Entry::Flag(false)));
    write(&path, &declared)?;
    Model::open(&path)?;
    let unsigned = |(key, _): &(&str, Entry)| !key.starts_with("sign_");
    let mut declared: Vec<_> = declaration().into_iter().filter(unsigned).collect();
    declared.push(("sign_mode", Entry::Text("identity")));
    write(&path, &declared)?;
    assert!(!Model::open(&path)?.transforms().ok_or("declared")?.is_signed());
    Ok(())
}
