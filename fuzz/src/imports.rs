//! Tensors of other programs: TL1, TL2, interleaved rows, and the text that has the tile sizes.
//!
//! An input is a byte that says which, four numbers of 16 bits for the shape and the tiles, and the data.

use crate::seeds::{Seed, files};
use gristmill::REGISTRY;
use gristmill::import::{Importer, Tiles, tl1, tl2};
use serde_json::Value;

/// Never panics; of what is read there are as many values as the shape says.
pub fn run(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let Some((numbers, bytes)) = rest.split_first_chunk::<10>() else { return };
    let (numbers, _) = numbers.as_chunks::<2>();
    let number = |i: usize| usize::from(u16::from_le_bytes(numbers[i]));
    let (n, k) = (number(0), number(1));
    let tiles = Tiles { bm: number(2), bk: number(3), bmm: number(4) };
    match which % 4 {
        0 | 1 => {
            let read = if which % 4 == 0 { tl1::read } else { tl2::read };
            // Shapes whose bytes an input of this length could have.
            if n.saturating_mul(k) <= bytes.len().saturating_mul(8).saturating_add(1 << 12)
                && let Ok(tensor) = read(bytes, n, k, tiles)
            {
                assert_eq!(tensor.values.len(), n * k);
                assert!(tensor.values.iter().all(|value| (-1..=1).contains(value)));
            }
        }
        2 => {
            for layout in REGISTRY.imports {
                let importer = Importer::new(&REGISTRY, layout.name).expect("a layout of this build");
                if let Ok(converted) = importer.convert(n, k, bytes) {
                    assert_eq!(converted.len(), bytes.len());
                }
            }
        }
        _ => {
            if let Err(error) = Tiles::from_config(&String::from_utf8_lossy(bytes), n, k) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

/// The golden tensors of TL1 and TL2, a tensor of each layout, and a configuration.
pub fn seeds() -> Vec<Seed> {
    let input = |which: u8, numbers: [usize; 5], bytes: &[u8]| {
        let numbers: Vec<u8> = numbers
            .iter()
            .flat_map(|number| u16::try_from(*number).unwrap_or(u16::MAX).to_le_bytes())
            .collect();
        [&[which], numbers.as_slice(), bytes].concat()
    };
    let mut seeds = Vec::new();
    let folder = "tests/data/vectors";
    let vectors: std::collections::BTreeMap<String, Vec<u8>> = files(folder).into_iter().collect();
    let manifest: Value =
        vectors.get("manifest.json").and_then(|text| serde_json::from_slice(text).ok()).expect(folder);
    for entry in manifest["entries"].as_array().into_iter().flatten() {
        let number = |value: &Value, key: &str| value[key].as_u64().map(|number| number as usize);
        let which = match entry["format"].as_str() {
            Some("TL1") => 0,
            Some("TL2") => 1,
            Some(_) | None => continue,
        };
        let tensor = || {
            let q = &entry["q"];
            let file = vectors.get(q["file"].as_str()?)?.get(number(q, "offset")?..)?;
            let numbers = ["rows", "row_len", "BM", "BK", "bm"].map(|key| number(entry, key).unwrap_or(0));
            Some(input(which, numbers, file.get(..number(q, "bytes")?)?))
        };
        seeds.push((
            format!("{} {}", entry["format"], entry["case"]),
            tensor().expect("a tensor of the manifest"),
        ));
    }
    for layout in REGISTRY.imports {
        let importer = Importer::new(&REGISTRY, layout.name).expect("a layout of this build");
        let (n, k) = (layout.rows, importer.format().elements);
        if let Ok(bytes) = importer.tensor_bytes(n, k) {
            seeds.push((layout.name.to_owned(), input(2, [n, k, 0, 0, 0], &vec![0x15; bytes])));
        }
    }
    let config = "[Kernels_0]\nm = 1536\nk = 4096\nbm = 256\nbk = 128\nbmm = 32\n; a comment\n";
    seeds.push(("config".to_owned(), input(3, [1536, 4096, 0, 0, 0], config.as_bytes())));
    seeds
}
