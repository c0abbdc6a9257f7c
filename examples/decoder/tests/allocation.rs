//! A step allocates nothing: no thread of the process does while tokens are taken in and drawn.

#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use decoder::make_model::Recipe;
use decoder::sample::{Sampler, Sampling};
use decoder::{CacheFormat, Decoder, Options, Wanted};
use gristmill::Threads;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The only test of this file, so that nothing else allocates meanwhile.
#[test]
fn a_step_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (architecture, format, embedding) in
        [("bitnet-b1.58", "i2_s", "f16"), ("llama", "q4_k", "q6_k"), ("qwen3moe", "q8_0", "f32")]
    {
        let recipe = Recipe {
            architecture: architecture.to_owned(),
            layers: 2,
            embd: 256,
            ffn: 256,
            heads: 4,
            kv_heads: 2,
            head: None,
            vocab: 300,
            context: 128,
            experts: (4, 2),
            formats: vec![format.to_owned()],
            embedding: embedding.to_owned(),
            head_format: None,
            rope_freqs: false,
            vocabulary: false,
            seed: 1,
        };
        recipe.write(&path, &Threads::single()).unwrap();
        for (threads, cache) in CacheFormat::ALL.iter().flat_map(|cache| [(1, *cache), (2, *cache)]) {
            let options = Options { threads, cache, ..Options::default() };
            let mut decoder = Decoder::load(&path, &options).unwrap();
            let sampling = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, min_p: 0.01, seed: 3 };
            let mut sampler = Sampler::new(sampling, 300).unwrap();
            let prompt: Vec<u32> = (0..20).collect();
            let mut token = sampler.draw(decoder.feed(&prompt, Wanted::Last).unwrap()).unwrap();
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for _ in 0..20 {
                token = sampler.draw(decoder.feed(&[token], Wanted::Last).unwrap()).unwrap();
            }
            decoder.feed(&prompt, Wanted::Last).unwrap();
            let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
            let name = cache.name();
            assert_eq!(
                made, 0,
                "{architecture}, {threads} threads, {name}: allocations in 20 steps and a prompt"
            );
        }
    }
}
