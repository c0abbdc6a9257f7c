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
    for (embedding, head_format) in [("q8_0", None), ("q4_0", Some("q8_0"))] {
        let recipe = Recipe {
            architecture: "llama".to_owned(),
            layers: 16,
            embd: 256,
            ffn: 1024,
            heads: 4,
            kv_heads: 2,
            head: None,
            vocab: 65536,
            context: 64,
            experts: (4, 2),
            formats: vec!["q8_0".to_owned()],
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
        drop(decoder);
        assert!(held > 30 << 20, "{held} bytes are not what a model of 32 million weights takes");
        assert!(
            most <= held + held / 10,
            "embedding {embedding}, head {head_format:?}: {most} bytes at most, {held} afterwards"
        );
    }
}
