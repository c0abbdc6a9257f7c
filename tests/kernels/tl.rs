//! TL1 and TL2 tensors of bitnet.cpp's converters, exactly, and into formats of ours.

use crate::vectors::of;
use gristmill::runtime::import::{ImportError, Ternary, Tiles, tl1, tl2};
#[cfg(feature = "bitnet")]
use gristmill::{Dequantizer, QuantizedMatrix, Quantizer, REGISTRY, Request};

struct Case {
    name: String,
    tl2: bool,
    n: usize,
    k: usize,
    tiles: Tiles,
    q: Vec<u8>,
    y: Vec<f32>,
}

impl Case {
    fn read(&self, q: &[u8], tiles: Tiles) -> Result<Ternary, ImportError> {
        if self.tl2 { tl2::read(q, self.n, self.k, tiles) } else { tl1::read(q, self.n, self.k, tiles) }
    }
}

fn cases() -> Vec<Case> {
    let all = ["TL1", "TL2"].into_iter().flat_map(of);
    let cases: Vec<Case> = all
        .map(|e| Case {
            name: format!("{} {}", e["format"], e["case"]),
            tl2: e["format"] == "TL2",
            n: e.number("rows"),
            k: e.number("row_len"),
            tiles: Tiles { bm: e.number("BM"), bk: e.number("BK"), bmm: e.number("bm") },
            q: e.bytes("q").expect("q"),
            y: e.floats("y").expect("y"),
        })
        .collect();
    assert_eq!(cases.len(), 6);
    cases
}

#[test]
fn every_weight_is_exact() {
    for case in cases() {
        let found = case.read(&case.q, case.tiles).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(found.weights().expect("memory"), case.y, "{}", case.name);
    }
}

/// Through the quantizers of the ternary formats and back: the same weights (up to the f16 scale of tq2_0).
#[test]
#[cfg(feature = "bitnet")]
fn imported_weights_survive_packing() {
    let mut packed = 0;
    for case in cases() {
        let weights = case.read(&case.q, case.tiles).expect("sound").weights().expect("memory");
        for (format, quantizer) in [("i2_s", Some("sign")), ("tq2_0", None)] {
            let Some(info) = REGISTRY.formats.iter().find(|f| f.name == format) else { continue };
            if !case.k.is_multiple_of(info.elements) {
                continue;
            }
            let (n, k) = (case.n, case.k);
            let request = Request::quantize(format, quantizer, n, k);
            let handle =
                Quantizer::new(&REGISTRY.prepare(&request).expect("known").decide_as_asked()).expect("runs");
            let mut bytes = vec![0; info.tensor_bytes(n, k).expect("fits")];
            handle.run(&weights, n, k, &mut bytes).expect("finite");
            let request = Request::dequantize(format, n, k);
            let handle = Dequantizer::new(&REGISTRY.prepare(&request).expect("known").decide_as_asked())
                .expect("runs");
            let mut out = vec![f32::NAN; n * k];
            handle.run(&QuantizedMatrix::new(info, n, k, &bytes).expect("sizes"), &mut out).expect("valid");
            for (out, y) in out.iter().zip(&case.y) {
                let rounded = if format == "tq2_0" { half::f16::from_f32(*y).to_f32() } else { *y };
                assert_eq!(*out, rounded, "{} in {format}", case.name);
            }
            packed += 1;
        }
    }
    assert!(packed >= 4, "only {packed} tensors were packed");
}

#[test]
fn tiles_that_do_not_fit_are_refused() {
    for case in cases() {
        let Tiles { bm, bk, bmm } = case.tiles;
        for tiles in [
            Tiles { bm: 0, ..case.tiles },
            Tiles { bm: bm + 16, ..case.tiles },
            Tiles { bm: case.n * 2, ..case.tiles },
            Tiles { bk: 0, ..case.tiles },
            Tiles { bk: bk + 4, ..case.tiles },
            Tiles { bmm: 0, ..case.tiles },
            Tiles { bmm: bmm + 16, ..case.tiles },
            Tiles { bmm: 96, ..case.tiles },
        ] {
            match case.read(&case.q, tiles) {
                Err(ImportError::Tiles { .. }) => {}
                other => panic!("{} with {tiles:?}: {:?}", case.name, other.map(|_| "taken")),
            }
        }
        for size in [0, 3, case.q.len() - 1, case.q.len() - 32] {
            let found = case.read(&case.q[..size], case.tiles);
            assert!(matches!(found, Err(ImportError::Size { .. })), "{} with {size} bytes", case.name);
        }
    }
    // Sizes whose product does not fit are no reason to panic.
    let huge = usize::MAX / 64 * 64;
    assert!(tl1::read(&[0; 64], huge, huge, Tiles { bm: 64, bk: 64, bmm: 32 }).is_err());
    assert!(tl2::read(&[0; 64], huge, huge, Tiles { bm: 32, bk: 96, bmm: 32 }).is_err());
}

#[test]
fn codes_without_meaning_are_refused_where_they_stand() {
    for case in cases() {
        let codes = if case.tl2 {
            case.n * (case.k / case.tiles.bk * case.tiles.bk) / 6
        } else {
            case.n * case.k / 4
        };
        for at in [0, 1, 17, codes / 2, codes - 1] {
            let mut q = case.q.clone();
            q[at] |= 0xf;
            match case.read(&q, case.tiles) {
                Err(ImportError::Code { byte, code: 15, row, column, .. }) => {
                    assert_eq!(byte, at, "{}", case.name);
                    assert!(row < case.n && column < case.k, "{}", case.name);
                }
                other => panic!("{} at {at}: {:?}", case.name, other.map(|_| "taken")),
            }
        }
        let mut q = case.q.clone();
        let at = q.len() - 32;
        q[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(matches!(case.read(&q, case.tiles), Err(ImportError::Scale { .. })), "{}", case.name);
    }
}
