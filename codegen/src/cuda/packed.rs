//! Images as they stand in a binary: blocks in the LZ4 format (as its "LZ4 Block Format Description" has it), a third of the
//! bytes of machine code and of PTX. The runtime unpacks what a device loads.

/// Fewer bytes than these are not worth a reference.
const SHORTEST: usize = 4;
/// The format wants its last five bytes as they are, and no match that starts in the last twelve.
const LAST_LITERALS: usize = 5;
const LAST_MATCH: usize = 12;
/// How far back a reference reaches.
const WINDOW: usize = 65535;
/// Earlier places with the same hash that are looked at. Eight times as many make images 2 % smaller.
const CANDIDATES: usize = 64;
const HASH_BITS: u32 = 14;

/// Packs `bytes` as one block; what would not become smaller stays as it is.
pub(crate) fn pack(bytes: &[u8]) -> Vec<u8> {
    let packed = block(bytes);
    if packed.len() < bytes.len() { packed } else { bytes.to_vec() }
}

fn block(bytes: &[u8]) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let mut packed = Vec::with_capacity(bytes.len() / 3);
    // The newest place of each hash, and for each place the one before with its hash.
    let mut newest = vec![NONE; 1 << HASH_BITS];
    let mut before = vec![NONE; bytes.len()];
    let hash = |at: usize| {
        let word = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        (word.wrapping_mul(2_654_435_761) >> (32 - HASH_BITS)) as usize
    };
    let matches_end = bytes.len().saturating_sub(LAST_LITERALS);
    let starts_end = bytes.len().saturating_sub(LAST_MATCH);
    let (mut at, mut literals) = (0, 0);
    while at < starts_end {
        let mut best = (0, 0);
        let mut candidate = newest[hash(at)];
        for _ in 0..CANDIDATES {
            let from = candidate as usize;
            if candidate == NONE || at - from > WINDOW {
                break;
            }
            // Only what is longer than the best so far is of interest.
            if at + best.0 < matches_end && bytes[from + best.0] == bytes[at + best.0] {
                let length = same(&bytes[from..], &bytes[at..matches_end]);
                if length > best.0 {
                    best = (length, at - from);
                }
            }
            candidate = before[from];
        }
        let (length, offset) = best;
        let end = if length < SHORTEST { at + 1 } else { at + length };
        if length >= SHORTEST {
            sequence(&mut packed, &bytes[literals..at], Some((length, offset)));
            literals = end;
        }
        for place in at..end.min(starts_end) {
            let hash = hash(place);
            before[place] = newest[hash];
            newest[hash] = place as u32;
        }
        at = end;
    }
    sequence(&mut packed, &bytes[literals..], None);
    packed
}

/// How many bytes both start with, where `later` is the shorter one.
fn same(earlier: &[u8], later: &[u8]) -> usize {
    let (mut eights, length) = (0, later.len());
    while eights + 8 <= length && earlier[eights..eights + 8] == later[eights..eights + 8] {
        eights += 8;
    }
    let rest = earlier[eights..].iter().zip(&later[eights..]).take_while(|(a, b)| a == b).count();
    eights + rest
}

/// Literals and, but for the last sequence, a match: its length and how far back it starts.
fn sequence(packed: &mut Vec<u8>, literals: &[u8], found: Option<(usize, usize)>) {
    let more = found.map_or(0, |(length, _)| length - SHORTEST);
    packed.push((literals.len().min(15) as u8) << 4 | more.min(15) as u8);
    number(packed, literals.len());
    packed.extend_from_slice(literals);
    if let Some((_, offset)) = found {
        packed.extend_from_slice(&(offset as u16).to_le_bytes());
        number(packed, more);
    }
}

/// What of a number does not fit into its half of the token.
fn number(packed: &mut Vec<u8>, value: usize) {
    if let Some(mut rest) = value.checked_sub(15) {
        while rest >= 255 {
            packed.push(255);
            rest -= 255;
        }
        packed.push(rest as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::{block, pack};

    fn number(packed: &[u8], at: &mut usize, half: u8) -> usize {
        let (mut value, mut more) = (usize::from(half), half == 15);
        while more {
            value += usize::from(packed[*at]);
            more = packed[*at] == 255;
            *at += 1;
        }
        value
    }

    /// The format's document read literally: a sequence after another, byte after byte.
    fn unpack(packed: &[u8]) -> Vec<u8> {
        let (mut at, mut bytes) = (0, Vec::new());
        loop {
            let token = packed[at];
            at += 1;
            let literals = number(packed, &mut at, token >> 4);
            bytes.extend_from_slice(&packed[at..at + literals]);
            at += literals;
            if at == packed.len() {
                assert!(literals >= 5 || bytes.len() == literals, "the last five bytes are literals");
                return bytes;
            }
            let offset = usize::from(packed[at]) + 256 * usize::from(packed[at + 1]);
            at += 2;
            for _ in 0..number(packed, &mut at, token & 15) + 4 {
                bytes.push(bytes[bytes.len() - offset]);
            }
        }
    }

    #[test]
    fn what_is_packed_comes_back() {
        let mut state = 1u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        let noise: Vec<u8> = (0..70_000).map(|_| random() as u8).collect();
        let few: Vec<u8> = (0..70_000).map(|_| (random() % 3) as u8).collect();
        // The same again, nearer than the window is wide and farther.
        let near = [&noise[..60_000], &noise[..60_000]].concat();
        let far = [&noise[..], &noise[..]].concat();
        for length in (0..40).chain([254, 255, 256, 269, 270, 271, 525, 70_000]) {
            for bytes in [&noise[..length], &few[..length], &vec![7; length]] {
                assert_eq!(unpack(&block(bytes)), bytes, "{length}");
            }
        }
        assert_eq!(unpack(&block(&near)), near);
        assert_eq!(unpack(&block(&far)), far);
        assert!(pack(&near).len() < 61_000 && pack(&vec![7; 70_000]).len() < 300);
        assert!(pack(&few).len() < few.len() / 2);
        // What can't be packed stays.
        assert!(block(&noise).len() < noise.len() + noise.len() / 255 + 16);
        assert_eq!(pack(&noise), noise);
        assert_eq!(pack(&few), block(&few));
    }
}
