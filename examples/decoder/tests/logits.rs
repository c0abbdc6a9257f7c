//! Logits against a naive forward pass in f64, and against themselves.

mod copies;
mod naive;

use copies::declaring;
use decoder::config::ARCHITECTURES;
use decoder::make_model::Recipe;
use decoder::{CacheFormat, Decoder, Options, Wanted};
use gristmill::Threads;
use gristmill::gguf::Value;
use naive::{Naive, through_q8_0};
use std::path::{Path, PathBuf};

/// A small model: heads of a size that fills no register, three queries to a key, more positions than a block of the cache.
fn recipe(architecture: &str, format: &str) -> Recipe {
    Recipe {
        architecture: architecture.to_owned(),
        layers: 2,
        embd: 256,
        ffn: 384,
        heads: 6,
        kv_heads: 2,
        head: Some(42),
        vocab: 300,
        context: 128,
        experts: (5, 2),
        formats: vec![format.to_owned()],
        embedding: "f32".to_owned(),
        head_format: None,
        rope_freqs: architecture == "llama",
        vocabulary: false,
        seed: 7,
    }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| index * 7919 % 300).collect()
}

fn options(threads: usize, batch: usize) -> Options {
    Options { threads, batch: Some(batch), head: Some("f32".to_owned()), ..Options::default() }
}

/// All logits, in one batch.
fn logits(path: &Path, tokens: &[u32], cache: CacheFormat) -> Vec<f64> {
    let mut decoder = Decoder::load(path, &Options { cache, ..options(2, 64) }).unwrap();
    decoder.feed(tokens, Wanted::All).unwrap().iter().map(|logit| f64::from(*logit)).collect()
}

/// The normalized mean squared error.
fn nmse(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let error: f64 = found.iter().zip(expected).map(|(found, expected)| (found - expected).powi(2)).sum();
    error / expected.iter().map(|expected| expected * expected).sum::<f64>()
}

#[test]
fn logits_are_those_of_a_naive_forward_pass() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for architecture in ARCHITECTURES.iter().map(|architecture| architecture.name) {
        // f32 products differ by rounding and by the cache in f16; the others quantize activations to int8.
        for (format, bound) in [("f32", 1e-6), ("f16", 1e-6), ("q8_0", 1e-3), ("i2_s", 1e-2)] {
            // Rows of blocks are whole blocks.
            let head = if ["i2_s", "q8_0"].contains(&format) { 64 } else { 42 };
            let recipe = Recipe { head: Some(head), ..recipe(architecture, format) };
            recipe.write(&path, &Threads::single()).unwrap();
            let expected = Naive::open(&path).logits(&tokens(36)).concat();
            let found = nmse(&logits(&path, &tokens(36), CacheFormat::F16), &expected);
            // Where activations of int8 make a token go through another expert, its logits are others.
            let bound = if architecture == "qwen3moe" && bound > 1e-4 { 5e-2 } else { bound };
            println!("{architecture} {format}: NMSE {found:.2e}");
            assert!(
                found < bound,
                "{architecture} {format}: NMSE {found:.2e}, expected less than {bound:.0e}"
            );
        }
    }
}

/// Half of each head is rotated, and positions are divided by a factor, which files have under two names.
#[test]
fn rotations_of_a_part_and_with_a_factor_are_those_of_a_naive_pass() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("model.gguf");
    // Either kind of pairs.
    for architecture in ["llama", "qwen2"] {
        let recipe = Recipe { head: Some(64), rope_freqs: false, ..recipe(architecture, "f32") };
        recipe.write(&made, &Threads::single()).unwrap();
        let whole = logits(&made, &tokens(36), CacheFormat::F16);
        let declare = |path: &Path, key: &str, value| {
            PathBuf::from(declaring(path.to_str().unwrap(), &format!("{architecture}.{key}"), value))
        };
        for factor in ["rope.scaling.factor", "rope.scale_linear"] {
            let path = declare(&made, factor, Value::F32(4.0));
            let factor_alone = Naive::open(&path).logits(&tokens(36)).concat();
            let path = declare(&path, "rope.dimension_count", Value::U32(32));
            let expected = Naive::open(&path).logits(&tokens(36)).concat();
            let found = nmse(&logits(&path, &tokens(36), CacheFormat::F16), &expected);
            assert!(found < 1e-6, "{architecture}, {factor}: NMSE {found:.2e}");
            // Each of both matters.
            let without = [nmse(&whole, &factor_alone), nmse(&factor_alone, &expected)];
            println!("{architecture}, {factor}: NMSE {found:.2e}, {without:?} without");
            assert!(without.iter().all(|nmse| *nmse > 1e-3), "{architecture}, {factor}: {without:?}");
        }
    }
}

#[test]
fn logits_of_a_cache_in_q8_0_are_those_of_a_naive_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tokens = tokens(40);
    for architecture in ARCHITECTURES.iter().map(|architecture| architecture.name) {
        // Three groups.
        let recipe = Recipe { head: Some(96), ..recipe(architecture, "f32") };
        recipe.write(&path, &Threads::single()).unwrap();
        let expected = Naive::open(&path).logits_through(&tokens, through_q8_0).concat();
        let found = logits(&path, &tokens, CacheFormat::Q8_0);
        let naive = nmse(&found, &expected);
        let f16 = nmse(&found, &logits(&path, &tokens, CacheFormat::F16));
        println!("{architecture}: NMSE {naive:.2e} from the naive pass, {f16:.2e} from the cache in f16");
        // A few values in ten thousand lie so near to a half that f32 and f64 round them to different codes.
        assert!(naive < 1e-6, "{architecture}: NMSE {naive:.2e} from the naive pass");
        assert!((1e-5..1e-3).contains(&f16), "{architecture}: NMSE {f16:.2e} from the cache in f16");
    }
}

#[test]
fn logits_are_the_same_bits_in_any_batch_and_on_any_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for architecture in ARCHITECTURES.iter().map(|architecture| architecture.name) {
        let recipe = Recipe {
            formats: ["q4_k", "q6_k", "f16"].map(str::to_owned).to_vec(),
            embd: 256,
            ffn: 256,
            heads: 4,
            head: Some(64),
            ..recipe(architecture, "q4_k")
        };
        recipe.write(&path, &Threads::single()).unwrap();
        let tokens = tokens(40);
        let runs = [(1, 40), (2, 40), (3, 7), (2, 1)];
        let mut first: [Option<Vec<u32>>; 2] = [None, None];
        for (cache, (threads, batch)) in
            CacheFormat::ALL.iter().flat_map(|cache| runs.map(|run| (*cache, run)))
        {
            let mut decoder = Decoder::load(&path, &Options { cache, ..options(threads, batch) }).unwrap();
            // What a conversation was before must not matter.
            decoder.feed(&tokens[20..], Wanted::Last).unwrap();
            decoder.rewind(0);
            let mut bits = Vec::new();
            for tokens in tokens.chunks(batch) {
                bits.extend(decoder.feed(tokens, Wanted::All).unwrap().iter().map(|logit| logit.to_bits()));
            }
            let last: Vec<u32> = bits[bits.len() - 300..].to_vec();
            let expected = first[cache as usize].get_or_insert_with(|| bits.clone());
            let name = cache.name();
            assert!(*expected == bits, "{architecture}, {name}: {threads} threads, batches of {batch}");
            decoder.rewind(0);
            let logits = decoder.feed(&tokens, Wanted::Last).unwrap();
            assert!(
                logits.iter().map(|logit| logit.to_bits()).eq(last),
                "{architecture}, {name}: the last alone"
            );
        }
        assert!(first[0] != first[1], "{architecture}: either cache");
    }
}

/// The head of f16 becomes q6_k, and the logits stay near.
#[test]
fn a_head_of_floats_is_quantized() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let recipe =
        Recipe { embedding: "f16".to_owned(), head: Some(64), heads: 4, ..recipe("bitnet-b1.58", "i2_s") };
    recipe.write(&path, &Threads::single()).unwrap();
    let exact = Naive::open(&path).logits(&tokens(20));
    let mut errors = Vec::new();
    for head in [None, Some("q8_0"), Some("q3_k")] {
        let options = Options { head: head.map(str::to_owned), ..options(2, 64) };
        let mut decoder = Decoder::load(&path, &options).unwrap();
        let found = decoder.weights.head.requantized.clone().unwrap();
        assert_eq!((found.from, found.to), ("f16", head.unwrap_or("q6_k")));
        let logits = decoder.feed(&tokens(20), Wanted::All).unwrap();
        let pairs = logits.iter().zip(exact.iter().flatten());
        let (error, signal) = pairs.fold((0.0, 0.0), |sum, (logit, exact)| {
            (sum.0 + (f64::from(*logit) - exact).powi(2), sum.1 + exact * exact)
        });
        errors.push((found.nmse, error / signal));
    }
    println!("{errors:?}");
    let [q6_k, q8_0, q3_k] = errors[..] else { panic!("three heads") };
    assert!(q8_0.0 < q6_k.0 && q6_k.0 < q3_k.0 && q6_k.0 < 1e-3, "{errors:?}");
    assert!(q8_0.1 < 2e-2 && q6_k.1 < 2e-2 && q3_k.1 > q6_k.1, "{errors:?}");
    let refused =
        Decoder::load(&path, &Options { head: Some("i2_s".to_owned()), ..options(1, 64) }).unwrap_err();
    assert!(refused.to_string().contains("one scale for a whole tensor"), "{refused}");
}
