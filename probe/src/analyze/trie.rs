//! Whether the names that a Mach-O library exports are a tree.
//!
//! They are stored as a trie: nodes that point at others by their offset. In a file that a linker wrote each node is
//! reached once. The reader of `object` refuses a node that leads back to itself, but follows shared ones each time, so
//! that a few hundred bytes could stand for more names than can ever be listed.

use super::at::At;
use super::budget::Budget;
use crate::error::Error;

/// More levels than names of any library have where they part; reading takes time with the square of it.
const MOST_LEVELS: usize = 1000;

/// Refuses a trie that is none.
///
/// # Errors
/// [`Error::Malformed`] if a node is reached twice, lies outside of the data, or is too deep.
pub(super) fn check(at: &At<'_>, budget: &Budget, data: &[u8]) -> Result<(), Error> {
    let malformed = |what: &str| at.malformed(format!("its table of exports {what}"));
    let mut seen = vec![false; data.len()];
    let mut levels: Vec<Node<'_>> = vec![node(data, 0).ok_or_else(|| malformed("is cut off"))?];
    while let Some(last) = levels.last_mut() {
        if last.children == 0 {
            levels.pop();
            continue;
        }
        last.children -= 1;
        let (edge, child) = last.edge().ok_or_else(|| malformed("is cut off"))?;
        budget.take(at, edge)?;
        let fresh = usize::try_from(child).ok().and_then(|child| Some((child, seen.get_mut(child)?)));
        let Some((child, seen)) = fresh.filter(|(child, _)| *child != 0) else {
            return Err(malformed("leads out of itself"));
        };
        if std::mem::replace(seen, true) {
            return Err(malformed("leads to one name on several ways"));
        }
        if levels.len() >= MOST_LEVELS {
            return Err(malformed("has too many levels"));
        }
        levels.push(node(data, child).ok_or_else(|| malformed("is cut off"))?);
    }
    Ok(())
}

/// The rest of a node: its edges.
struct Node<'a> {
    rest: &'a [u8],
    children: u8,
}

fn node(data: &[u8], at: usize) -> Option<Node<'_>> {
    let mut rest = data.get(at..)?;
    let terminal = uleb(&mut rest)?;
    rest = rest.get(usize::try_from(terminal).ok()?..)?;
    let (children, rest) = rest.split_first()?;
    Some(Node { rest, children: *children })
}

impl Node<'_> {
    /// The length of an edge's text, and where it leads.
    fn edge(&mut self) -> Option<(usize, u64)> {
        let length = self.rest.iter().position(|byte| *byte == 0)?;
        self.rest = self.rest.get(length + 1..)?;
        Some((length, uleb(&mut self.rest)?))
    }
}

/// A number in base 128, low digits first.
fn uleb(rest: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0u32);
    loop {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        let digit = u64::from(byte & 0x7F);
        value |= digit.checked_shl(shift).filter(|moved| moved >> shift == digit)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn checked(data: &[u8]) -> Result<(), String> {
        let at = At { path: Path::new("any"), member: None };
        check(&at, &Budget::of(data.len()), data).map_err(|error| error.to_string())
    }

    #[test]
    fn trees_pass_and_others_do_not() {
        // A node without a name and one child "a", which ends there.
        assert_eq!(checked(&[0, 1, b'a', 0, 5, 2, 0, 0, 0]), Ok(()));
        assert_eq!(checked(&[0, 0]), Ok(()));
        for (data, why) in [
            (&[][..], "cut off"),
            (&[0], "cut off"),
            (&[0, 1, b'a'], "cut off"),
            (&[0, 1, b'a', 0, 0x80], "cut off"),
            (&[0, 1, b'a', 0, 100], "out of itself"),
            (&[0, 1, b'a', 0, 0], "out of itself"),
            (&[0, 2, b'a', 0, 8, b'b', 0, 8, 0, 0], "several ways"),
            (&[0xFF; 30], "cut off"),
        ] {
            let error = checked(data).expect_err("no tree");
            assert!(error.contains(why), "{data:?}: {error}");
        }
        // A chain of nodes, each with one child.
        let chain = |levels: usize| {
            let mut data = Vec::new();
            for level in 0..levels {
                let next = (level + 1) * 6;
                data.extend([0, 1, b'x', 0, (next & 0x7F) as u8 | 0x80, (next >> 7) as u8]);
            }
            data.extend([0, 0]);
            data
        };
        assert_eq!(checked(&chain(900)), Ok(()));
        assert!(checked(&chain(1500)).expect_err("too deep").contains("too many levels"));
    }
}
