//! Images as they stand in a binary: blocks in the LZ4 format, which `gristmill-codegen` packs.

/// Unpacks a block until `bytes` is full or the block ends; returns how many bytes that were. `None` where it is damaged.
pub(crate) fn unpack(packed: &[u8], bytes: &mut [u8]) -> Option<usize> {
    let (mut rest, mut done) = (packed, 0);
    loop {
        let token = take(&mut rest)?;
        let literals = number(token >> 4, &mut rest)?;
        let (taken, behind) = rest.split_at_checked(literals)?;
        rest = behind;
        let room = literals.min(bytes.len() - done);
        bytes[done..done + room].copy_from_slice(&taken[..room]);
        done += room;
        // The last sequence has no match.
        if rest.is_empty() || done == bytes.len() {
            return Some(done);
        }
        let offset = usize::from(u16::from_le_bytes([take(&mut rest)?, take(&mut rest)?]));
        let length = number(token & 15, &mut rest)?.checked_add(4)?.min(bytes.len() - done);
        let from = done.checked_sub(offset).filter(|_| offset > 0)?;
        // A match may reach into what it writes.
        for at in 0..length {
            bytes[done + at] = bytes[from + at];
        }
        done += length;
        if done == bytes.len() {
            return Some(done);
        }
    }
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (first, behind) = rest.split_first()?;
    *rest = behind;
    Some(*first)
}

/// A length that starts in its half of the token.
fn number(half: u8, rest: &mut &[u8]) -> Option<usize> {
    let mut value = usize::from(half);
    let mut more = half == 15;
    while more {
        let byte = take(rest)?;
        value = value.checked_add(usize::from(byte))?;
        more = byte == 255;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::unpack;

    /// Two literals, a match of 4 + 15 + 3 that reaches into itself, five literals.
    const BLOCK: &[u8] = b"\x2fab\x02\x00\x03\x50vwxyz";

    #[test]
    fn a_block_is_unpacked_as_far_as_there_is_room() {
        let whole = b"abababababababababababab"[..].iter().chain(b"vwxyz").copied().collect::<Vec<u8>>();
        let mut bytes = [0; 40];
        assert_eq!(unpack(BLOCK, &mut bytes), Some(29));
        assert_eq!(bytes[..29], whole);
        for room in 1..29 {
            let mut bytes = vec![0; room];
            assert_eq!(unpack(BLOCK, &mut bytes), Some(room));
            assert_eq!(bytes, whole[..room]);
        }
    }

    #[test]
    fn damage_is_no_panic() {
        for cut in 0..BLOCK.len() {
            // Cut between sequences a block is a shorter one.
            let found = unpack(&BLOCK[..cut], &mut [0; 40]);
            assert!(found.is_none() || found == Some(2), "{cut}: {found:?}");
        }
        for at in 0..BLOCK.len() {
            for value in 0..=255 {
                let mut bad = BLOCK.to_vec();
                bad[at] = value;
                let _ = unpack(&bad, &mut [0; 40]);
            }
        }
        assert_eq!(unpack(b"\x10a\x02\x00", &mut [0; 40]), None);
        assert_eq!(unpack(b"\x10a\x00\x00", &mut [0; 40]), None);
    }
}
