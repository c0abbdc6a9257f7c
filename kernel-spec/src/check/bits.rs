//! Whose each bit of a block or of a tile is.

/// Owners of the bits of one piece of memory.
pub(super) struct BitMap<O>(Vec<Option<O>>);

/// Why bits can't be claimed.
pub(super) enum Conflict<O> {
    /// This bit lies outside.
    Beyond(i64),
    /// This bit is taken.
    Taken(O, i64),
}

/// Bits that nobody claimed.
pub(super) struct Uncovered {
    /// The first, and how many follow each other from there.
    pub(super) first: usize,
    pub(super) run: usize,
    /// How many there are.
    pub(super) all: usize,
}

impl<O: Copy + PartialEq> BitMap<O> {
    pub(super) fn new(bits: usize) -> Self {
        BitMap(vec![None; bits])
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Claims `bits` bits from `first` on; of bits that can't be claimed, the ones before stay claimed.
    pub(super) fn claim(&mut self, owner: O, first: i64, bits: u32) -> Result<(), Conflict<O>> {
        let end = first.saturating_add(i64::from(bits));
        if first < 0 || end > self.0.len() as i64 {
            return Err(Conflict::Beyond(if first < 0 { first } else { end - 1 }));
        }
        for at in first..end {
            let slot = &mut self.0[at as usize];
            match *slot {
                Some(other) => return Err(Conflict::Taken(other, at)),
                None => *slot = Some(owner),
            }
        }
        Ok(())
    }

    /// Whether `owner` has the bit, which must be inside.
    pub(super) fn has(&self, owner: O, bit: usize) -> bool {
        self.0[bit] == Some(owner)
    }

    pub(super) fn uncovered(&self) -> Option<Uncovered> {
        let first = self.0.iter().position(Option::is_none)?;
        let run = self.0[first..].iter().take_while(|bit| bit.is_none()).count();
        let all = self.0.iter().filter(|bit| bit.is_none()).count();
        Some(Uncovered { first, run, all })
    }
}
