//! Rows that another program interleaves: layouts described by TOML alone, against the rows put together by hand.

use gristmill::runtime::import::Importer;
use gristmill::{Error, Registry};

mod seq3 {
    gristmill::kernel!("tests/invented/seq3.toml", "tests/invented/imports/seq3_of_3.toml");
}
mod odd20 {
    gristmill::kernel!("tests/invented/odd20.toml", "tests/invented/imports/odd20_of_2.toml");
}

fn random(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn bit(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 8] >> (at % 8) & 1
}

/// Checks that the layout `name` turns what `interleave` makes of rows back into these rows, byte for byte.
/// `interleave` takes the blocks of each row of a panel at one place along k.
fn round_trips(registry: &'static Registry, name: &str, header: usize, interleave: fn(&[&[u8]]) -> Vec<u8>) {
    let importer = Importer::new(registry, name).expect("in this build");
    let (format, rows) = (importer.format(), importer.layout().rows);
    for (seed, (panels, blocks)) in [(1, 1), (2, 1), (1, 3), (3, 5), (0, 2)].into_iter().enumerate() {
        let (n, k) = (panels * rows, blocks * format.elements);
        let row_bytes = header + blocks * format.bytes;
        let plain = random(n * row_bytes, seed as u32 + 1);
        let mut interleaved = Vec::new();
        for panel in plain.chunks(rows * row_bytes) {
            let of_rows: Vec<&[u8]> = panel.chunks(row_bytes).collect();
            of_rows.iter().for_each(|row| interleaved.extend(&row[..header]));
            for block in 0..blocks {
                let at = header + block * format.bytes;
                let blocks: Vec<&[u8]> = of_rows.iter().map(|row| &row[at..at + format.bytes]).collect();
                interleaved.extend(interleave(&blocks));
            }
        }
        assert_eq!(interleaved.len(), importer.tensor_bytes(n, k).expect("fits"));
        assert_eq!(importer.convert(n, k, &interleaved), Ok(plain), "{name}: {n} x {k}");
    }
}

#[test]
fn split_values_and_row_headers_come_apart() {
    round_trips(&seq3::REGISTRY, "seq3_of_3", 4, |blocks| {
        let mut tile = vec![0u8; 45];
        for (row, block) in blocks.iter().enumerate() {
            for k in 0..40 {
                for (part, to) in [(0, 6 * k + 2 * row), (1, 6 * k + 2 * row + 1), (2, 240 + 40 * row + k)] {
                    tile[to / 8] |= bit(block, 3 * k + part) << (to % 8);
                }
            }
        }
        tile
    });
}

#[test]
fn several_fields_come_apart() {
    round_trips(&odd20::REGISTRY, "odd20_of_2", 0, |blocks| {
        let mut tile = [&blocks[0][..2], &blocks[1][..2]].concat();
        for k in 0..20 {
            let nibble = |row: usize| blocks[row][2 + k / 2] >> (4 * (k % 2)) & 15;
            tile.push(nibble(0) | nibble(1) << 4);
        }
        tile
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let importer = Importer::new(&odd20::REGISTRY, "odd20_of_2").expect("in this build");
    let refused = |n, k, bytes: usize| importer.convert(n, k, &vec![0; bytes]).expect_err("does not fit");
    assert_eq!(refused(3, 20, 36), Error::RowsNotMultiple { layout: "odd20_of_2", rows: 2, n: 3 });
    assert_eq!(refused(2, 30, 48), Error::KNotMultiple { format: "odd20", elements: 20, k: 30 });
    let shape = |found| Error::ShapeMismatch { what: "odd20_of_2", unit: "bytes", expected: 24, found };
    assert_eq!(refused(2, 20, 23), shape(23));
    assert_eq!(refused(2, 20, 25), shape(25));
    assert_eq!(refused(usize::MAX - 1, 20, 0), Error::TooLarge { what: "a tensor" });
    let error = Importer::new(&odd20::REGISTRY, "odd20_of_4").expect_err("not described");
    assert_eq!(
        error.to_string(),
        "unknown import layout `odd20_of_4` (did you mean `odd20_of_2`?)\n  help: this build knows: odd20_of_2"
    );
}

/// Golden vectors of bitnet.cpp's layout with four rows to a byte.
#[cfg(feature = "import")]
mod i2_s_rows4 {
    use super::*;
    use gristmill::{Dequantizer, QuantizedMatrix, REGISTRY, Request};
    use serde_json::Value;
    use std::path::PathBuf;

    struct Case {
        n: usize,
        k: usize,
        interleaved: Vec<u8>,
        /// The bytes of `i2_s`.
        plain: Vec<u8>,
        y: Vec<f32>,
    }

    fn cases() -> Vec<Case> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
        let text = std::fs::read(folder.join("manifest.json")).expect("the manifest is there");
        let manifest: Value = serde_json::from_slice(&text).expect("the manifest is JSON");
        let number = |v: &Value| v.as_u64().expect("a number") as usize;
        let array = |entry: &Value, key: &str| {
            let part = &entry[key];
            let file = std::fs::read(folder.join(part["file"].as_str().expect("a name"))).expect("is there");
            file[number(&part["offset"])..][..number(&part["bytes"])].to_vec()
        };
        let entries = manifest["entries"].as_array().expect("a list").iter();
        let all = entries.filter(|entry| entry["format"] == "I2_S" && entry.get("q_rows4").is_some());
        all.map(|entry| {
            let y = array(entry, "y").as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let (n, k) = (number(&entry["rows"]), number(&entry["row_len"]));
            Case { n, k, interleaved: array(entry, "q_rows4"), plain: array(entry, "q"), y }
        })
        .collect()
    }

    #[test]
    fn is_the_tensor_that_bitnet_cpp_packed() {
        let importer = Importer::new(&REGISTRY, "i2_s_rows4").expect("in this build");
        let cases = cases();
        assert!(cases.len() >= 6, "only {} golden cases were found", cases.len());
        for Case { n, k, interleaved, plain, y } in cases {
            let mut bytes = importer.convert(n, k, &interleaved).expect("as long as it should be");
            // What stands behind the scale means nothing, and differs.
            let end = n * k / 4 + 4;
            assert_eq!(bytes[..end], plain[..end]);
            assert_eq!(bytes[end..], interleaved[end..]);
            bytes.truncate(importer.tensor_bytes(n, k).expect("fits"));
            let request = Request::dequantize("i2_s", n, k);
            let prepared = REGISTRY.prepare(&request).expect("in this build");
            let handle = Dequantizer::new(&prepared.decide(request.shape)).expect("a kernel");
            let mut out = vec![f32::NAN; n * k];
            let matrix = QuantizedMatrix::new(importer.format(), n, k, &bytes).expect("sizes agree");
            handle.run(&matrix, &mut out).expect("valid codes");
            assert_eq!(out, y);
        }
    }

    #[test]
    fn codes_that_mean_nothing_are_named_by_their_place() {
        let importer = Importer::new(&REGISTRY, "i2_s_rows4").expect("in this build");
        let (n, k) = (8, 256);
        let mut data = vec![0b01_01_01_01; n * k / 4 + 32];
        data[n * k / 4..][..4].copy_from_slice(&1f32.to_le_bytes());
        assert!(importer.convert(n, k, &data).is_ok());
        // Rows 4 to 7, column 77: the third of them.
        data[k + 77] |= 0b00_00_11_00;
        let expected = Error::InvalidCode { format: "i2_s", row: 6, column: 77 };
        assert_eq!(importer.convert(n, k, &data), Err(expected));
    }

    /// It has the type id and size of `i2_s`, so only its name can choose it.
    #[test]
    fn is_no_format() {
        assert!(REGISTRY.format("i2_s_rows4").is_err());
        assert!(REGISTRY.import("i2_s_rows4").is_ok());
        assert!(REGISTRY.import("i2_s").is_err());
    }
}
