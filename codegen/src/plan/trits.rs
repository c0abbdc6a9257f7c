//! Which byte stands for which five trits.
//!
//! Any numbering would do for memory, so this one is made for the byte permutes of AVX-512 VBMI, which look up one of
//! 64 entries by six bits. Four trits have 81 values. The first 64 are the low six bits of a byte, and the fifth trit
//! is the two bits above: two lookups' work in one, and no lookup for the fifth. The other 17 values times three fifth
//! trits, 51, follow behind the escape of both upper bits set, with two tables of their own.

/// Trits that one lookup gives.
const LOOKED_UP: u32 = 4;
/// Values of four trits that a table holds.
const TABLE: u32 = 64;
/// The upper bits: the fifth trit, or all set where the other tables are meant.
pub const ESCAPE: u8 = 0xc0;

/// Tables of 64 entries that take the low six bits of a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Four trits, in two bits each, the first in the lowest.
    pub plain: [u8; 64],
    /// The same behind the escape.
    pub escaped: [u8; 64],
    /// The fifth trit behind the escape, in the topmost two bits.
    pub fifth: [u8; 64],
}

/// The byte for each five trits, numbered with the first as the least significant digit.
pub fn bytes() -> [u8; 243] {
    std::array::from_fn(|number| {
        let (four, fifth) = (number as u32 % 81, number as u32 / 81);
        match four.checked_sub(TABLE) {
            None => ((fifth << 6) | four) as u8,
            Some(beyond) => ESCAPE | (beyond * 3 + fifth) as u8,
        }
    })
}

/// The tables that undo [`bytes`].
pub fn tables() -> Tables {
    let mut tables = Tables { plain: [0; 64], escaped: [0; 64], fifth: [0; 64] };
    for (number, byte) in bytes().into_iter().enumerate() {
        let (four, fifth) = (number as u32 % 81, number as u32 / 81);
        let fields =
            (0..LOOKED_UP).fold(0, |fields, trit| fields | ((four / 3u32.pow(trit) % 3) << (2 * trit)));
        let index = usize::from(byte & !ESCAPE);
        if byte & ESCAPE == ESCAPE {
            tables.escaped[index] = fields as u8;
            tables.fifth[index] = (fifth as u8) << 6;
        } else {
            tables.plain[index] = fields as u8;
        }
    }
    tables
}

/// The trits of each byte in two bits each, the first in the lowest; zero for bytes that stand for nothing.
pub fn fields() -> [u16; 256] {
    let mut fields = [0; 256];
    for (number, byte) in bytes().into_iter().enumerate() {
        let number = number as u32;
        fields[usize::from(byte)] =
            (0..5).fold(0, |all, trit| all | ((number / 3u32.pow(trit) % 3) << (2 * trit)) as u16);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel does to a byte, written from the instructions' definitions.
    fn decoded(tables: &Tables, byte: u8) -> [u8; 5] {
        let low = usize::from(byte % 64);
        let (four, fifth) = if byte >= 192 {
            (tables.escaped[low], tables.fifth[low] / 64)
        } else {
            (tables.plain[low], byte / 64)
        };
        [four % 4, four / 4 % 4, four / 16 % 4, four / 64, fifth]
    }

    #[test]
    fn every_five_trits_have_a_byte_of_their_own_that_gives_them_back() {
        let (bytes, tables, fields) = (bytes(), tables(), fields());
        let mut seen = [false; 256];
        let mut number = 0;
        for e in 0..3 {
            for d in 0..3 {
                for c in 0..3 {
                    for b in 0..3 {
                        for a in 0..3u8 {
                            let byte = bytes[number];
                            assert!(!std::mem::replace(&mut seen[usize::from(byte)], true), "{byte} twice");
                            assert_eq!(decoded(&tables, byte), [a, b, c, d, e], "byte {byte}");
                            let word = fields[usize::from(byte)];
                            let each =
                                [word, word >> 2, word >> 4, word >> 6, word >> 8].map(|w| (w & 3) as u8);
                            assert_eq!(each, [a, b, c, d, e], "byte {byte}");
                            number += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(number, 243);
        // Padding is zero.
        assert_eq!(bytes[0], 0);
    }
}
