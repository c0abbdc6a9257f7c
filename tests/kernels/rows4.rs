//! Golden vectors of bitnet.cpp's layout of i2_s with four rows to a byte.
#![cfg(feature = "import")]

use crate::vectors::{Vector, tensors};
use gristmill::runtime::import::Importer;
use gristmill::{Dequantizer, Error, QuantizedMatrix, REGISTRY, Request};

struct Case {
    n: usize,
    k: usize,
    interleaved: Vec<u8>,
    /// The bytes of `i2_s`.
    plain: Vec<u8>,
    y: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let case = |(entry, n, k): (Vector, usize, usize)| {
        let (plain, y) = (entry.bytes("q").expect("q"), entry.floats("y").expect("y"));
        Some(Case { n, k, interleaved: entry.bytes("q_rows4")?, plain, y })
    };
    tensors("I2_S").into_iter().filter_map(case).collect()
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
