//! Rows that another program interleaves: layouts described by TOML alone, against the rows put together by hand.

use gristmill::Error;
use gristmill::runtime::import::Importer;
use gristmill_invented::REGISTRY;

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
fn round_trips(name: &str, header: usize, interleave: fn(&[&[u8]]) -> Vec<u8>) {
    let importer = Importer::new(&REGISTRY, name).expect("in this build");
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
    round_trips("seq3_of_3", 4, |blocks| {
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
    round_trips("odd20_of_2", 0, |blocks| {
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
    let importer = Importer::new(&REGISTRY, "odd20_of_2").expect("in this build");
    let refused = |n, k, bytes: usize| importer.convert(n, k, &vec![0; bytes]).expect_err("does not fit");
    assert_eq!(refused(3, 20, 36), Error::RowsNotMultiple { layout: "odd20_of_2", rows: 2, n: 3 });
    assert_eq!(refused(2, 30, 48), Error::KNotMultiple { format: "odd20", elements: 20, k: 30 });
    let shape = |found| Error::ShapeMismatch { what: "odd20_of_2", unit: "bytes", expected: 24, found };
    assert_eq!(refused(2, 20, 23), shape(23));
    assert_eq!(refused(2, 20, 25), shape(25));
    assert_eq!(refused(usize::MAX - 1, 20, 0), Error::TooLarge { what: "a tensor" });
    let error = Importer::new(&REGISTRY, "odd20_of_4").expect_err("not described");
    assert_eq!(
        error.to_string(),
        "unknown import layout `odd20_of_4` (did you mean `odd20_of_2`?)\n  help: this build knows: odd20_of_2, seq3_of_3"
    );
}
