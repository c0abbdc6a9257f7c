//! The cache: what is stored comes back, in the order that attention reads, from as many bytes as are announced.

use decoder::cache::{BLOCK, Cache, CacheFormat, GROUP};
use decoder::config::{Config, Rope, RopePairs, architecture};
use decoder::error::Error;
use gristmill::half::f16;
use gristmill::{Dequantizer, QuantizedMatrix, Quantizer, REGISTRY, Request, Restrict, Threads};

const CONTEXT: usize = 101;
const LAYERS: usize = 2;
const KV_HEADS: usize = 3;

fn config(head: usize) -> Config {
    let architecture = architecture("llama").unwrap();
    assert_eq!(architecture.pairs, RopePairs::Neighbours);
    Config {
        architecture,
        layers: LAYERS,
        embd: 64,
        ffn: 64,
        heads: KV_HEADS,
        kv_heads: KV_HEADS,
        head,
        vocab: 100,
        context: CONTEXT,
        eps: 1e-5,
        rope: Rope { dims: head, base: 10_000.0, scale: 1.0 },
        experts: None,
    }
}

fn cache(head: usize, format: CacheFormat) -> Cache {
    Cache::new(&config(head), CONTEXT, format, &Restrict::default(), &Threads::single()).unwrap()
}

/// Numbers of magnitudes that differ from group to group; `seed` tells layers, keys and values apart.
fn rows(head: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let magnitudes: Vec<f32> = (0..7).map(|power| 10f32.powi(power - 3)).collect();
    (0..CONTEXT * KV_HEADS * head)
        .map(|index| (random.f32() - 0.5) * magnitudes[index / GROUP % magnitudes.len()])
        .collect()
}

/// What the format keeps of `rows`, by functions that the decoder does not use or as a matrix.
fn kept(format: CacheFormat, rows: &[f32], head: usize) -> Vec<f32> {
    if format == CacheFormat::F16 {
        return rows.iter().map(|value| f16::from_f32(*value).to_f32()).collect();
    }
    let n = rows.len() / head;
    let prepared = REGISTRY.prepare(&Request::quantize("q8_0", None, n, head)).unwrap();
    let quantizer = Quantizer::new(&prepared.decide_as_asked()).unwrap();
    let mut bytes = vec![0; quantizer.format().tensor_bytes(n, head).unwrap()];
    quantizer.run(rows, n, head, &mut bytes).unwrap();
    let matrix = QuantizedMatrix::new(quantizer.format(), n, head, &bytes).unwrap();
    let prepared = REGISTRY.prepare(&Request::dequantize("q8_0", n, head)).unwrap();
    let mut values = vec![0.0; rows.len()];
    Dequantizer::new(&prepared.decide_as_asked()).unwrap().run(&matrix, &mut values).unwrap();
    values
}

#[test]
fn what_is_stored_comes_back() {
    for (format, head) in [
        (CacheFormat::F16, 42),
        (CacheFormat::F16, 64),
        (CacheFormat::Q8_0, 32),
        (CacheFormat::Q8_0, 96),
        (CacheFormat::Q8_0, 256),
    ] {
        let (mut cache, threads) = (cache(head, format), Threads::new(2).unwrap());
        let width = KV_HEADS * head;
        // Of each layer its keys, then its values.
        let sides: Vec<Vec<f32>> = (0..2 * LAYERS as u64).map(|seed| rows(head, seed)).collect();
        let row = |side: usize, position: usize| &sides[side][position * width..][..width];
        for layer in 0..LAYERS {
            // Across borders of blocks, and one by one.
            for (first, m) in [(0, 1), (1, 4), (5, 70), (75, 26)] {
                let [key, value] = [0, 1].map(|side| move |token| row(2 * layer + side, first + token));
                cache.store(layer, first, m, key, value, &threads).unwrap();
            }
        }
        let kept: Vec<Vec<f32>> = sides.iter().map(|side| kept(format, side, head)).collect();
        let mut out = vec![f32::NAN; head * BLOCK];
        for (layer, kv_head) in (0..LAYERS).flat_map(|layer| (0..KV_HEADS).map(move |head| (layer, head))) {
            let read = cache.head(layer, kv_head);
            let expected = |side: usize, position: usize, element: usize| {
                kept[2 * layer + side][position * width + kv_head * head + element].to_bits()
            };
            for position in 0..CONTEXT {
                let (block, lane) = (position / BLOCK, position % BLOCK);
                let name = |element: usize| {
                    format!(
                        "{} of {head}: layer {layer}, head {kv_head}, {position}, {element}",
                        format.name()
                    )
                };
                read.keys(block, &mut out);
                for element in 0..head {
                    let found = out[element * BLOCK + lane].to_bits();
                    assert_eq!(found, expected(0, position, element), "key, {}", name(element));
                }
                read.values(block, &mut out);
                for element in 0..head {
                    let found = out[lane * head + element].to_bits();
                    assert_eq!(found, expected(1, position, element), "value, {}", name(element));
                }
            }
        }
    }
}

#[test]
fn a_cache_in_q8_0_takes_34_64_of_one_in_f16() {
    for head in [32, 96, 128, 256] {
        let bytes = CacheFormat::ALL.map(|format| {
            let bytes = cache(head, format).bytes();
            assert_eq!(bytes, Cache::bytes_for(&config(head), CONTEXT, format).unwrap());
            bytes
        });
        // 101 positions are four blocks; keys and values.
        assert_eq!(bytes[0], 128 * head * KV_HEADS * LAYERS * 2 * 2);
        assert_eq!(bytes[1] * 64, bytes[0] * 34);
    }
}

#[test]
fn what_q8_0_cannot_hold_is_refused() {
    for head in [2, 42, 80, 250] {
        let config = config(head);
        let made = Cache::new(&config, CONTEXT, CacheFormat::Q8_0, &Restrict::default(), &Threads::single())
            .map(|_| ());
        for refused in [made, Cache::bytes_for(&config, CONTEXT, CacheFormat::Q8_0).map(|_| ())] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, Error::CacheFormat { format: "q8_0", group: 32, head: of } if of == head)
            );
            let text = error.to_string();
            assert!(
                text.contains(&format!("those of this model have {head}\n"))
                    && text.contains("help: --cache f16"),
                "{text}"
            );
        }
        assert_eq!(cache(head, CacheFormat::F16).format(), CacheFormat::F16);
    }
    let (good, mut bad) = (vec![1.0; KV_HEADS * 64], vec![1.0; KV_HEADS * 64]);
    bad[100] = f32::INFINITY;
    let mut cache = cache(64, CacheFormat::Q8_0);
    for (key, value) in [(&bad, &good), (&good, &bad)] {
        let stored = cache.store(1, 0, 1, |_| key, |_| value, &Threads::single());
        assert!(matches!(stored, Err(Error::Kernel(_))), "{stored:?}");
    }
}
