//! Loading a model takes hardly more memory than the model: no large tensor is in memory twice beside all others.
#![cfg(target_os = "linux")]

use decoder::make_model::Recipe;
use decoder::{Decoder, Options};
use gristmill::Threads;

/// A line of `/proc/self/status`, in bytes: resident memory (`VmRSS`) or the most of it so far (`VmHWM`).
fn resident(line: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':')?.strip_suffix(" kB"));
    kib.unwrap_or_else(|| panic!("the system says no {line}")).trim().parse::<usize>().unwrap() << 10
}

/// The only test of this file, so that nothing else takes memory meanwhile. The head is the largest tensor, as in small published
/// models.
#[test]
fn loading_takes_a_tenth_more_than_what_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (architecture, layers, format, embedding, head_format) in [
        ("llama", 16, "q8_0", "q8_0", None),
        ("llama", 16, "q8_0", "q4_0", Some("q8_0")),
        // Experts in floats are read one after the other from tensors of all of them.
        ("qwen3moe", 1, "f32", "q8_0", None),
    ] {
        let recipe = Recipe {
            architecture: architecture.to_owned(),
            layers,
            embd: 256,
            ffn: 1024,
            heads: 4,
            kv_heads: 2,
            head: None,
            vocab: 65536,
            context: 64,
            experts: (16, 2),
            formats: vec![format.to_owned()],
            embedding: embedding.to_owned(),
            head_format: head_format.map(str::to_owned),
            rope_freqs: false,
            vocabulary: false,
            seed: 1,
        };
        recipe.write(&path, &Threads::single()).unwrap();
        // The most is counted anew from here on.
        if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
            println!(
                "LEFT OUT: memory while a model is loaded: the system counts it for the whole program only ({error})"
            );
            return;
        }
        let before = resident("VmRSS");
        let decoder = Decoder::load(&path, &Options::default()).unwrap();
        let (held, most) = (resident("VmRSS") - before, resident("VmHWM") - before);
        let (cache, buffers) = decoder.working_bytes();
        let counted = decoder.weights.bytes() + cache + buffers;
        drop(decoder);
        assert!(held > 30 << 20, "{held} bytes are not what a model of 32 million weights takes");
        assert!(
            most <= held + held / 10,
            "{architecture}, embedding {embedding}, head {head_format:?}: {most} bytes at most, {held} afterwards"
        );
        // Pages of the file are resident too, where it is mapped.
        let file = std::fs::metadata(&path).unwrap().len() as usize;
        assert!(
            held <= counted + file + counted / 10,
            "{architecture}, embedding {embedding}: {held} bytes afterwards, of which {counted} are counted, and {file} in the file"
        );
    }
}
