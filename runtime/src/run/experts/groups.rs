//! The pairs of tokens and experts in the order of the experts, so that each expert's tokens lie together.

use super::routes::Routes;
use crate::error::Error;

/// Pairs sorted by expert, and within one by token. What is sorted is called a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups<'w> {
    /// First place of each expert, and the end of all.
    starts: &'w [u32],
    /// The row of activations that belongs to each place.
    rows: &'w [u32],
    /// The place of each pair.
    places: &'w [u32],
}

/// Numbers that [`Groups::sort`] needs for `pairs` pairs of `experts` experts.
pub(crate) fn indices(pairs: usize, experts: usize) -> Option<usize> {
    pairs.checked_mul(2)?.checked_add(experts.checked_mul(2)?)?.checked_add(1)
}

impl<'w> Groups<'w> {
    /// Sorts by counting. `memory` holds [`indices`] numbers; `by_pair` says that each pair has a row of its own, else each
    /// token has one.
    ///
    /// # Errors
    /// [`Error::NoSuchExpert`], [`Error::DuplicateExpert`].
    pub(crate) fn sort(
        routes: &Routes<'_>,
        experts: usize,
        by_pair: bool,
        memory: &'w mut [u32],
    ) -> Result<Groups<'w>, Error> {
        let list = routes.experts();
        let too_large = Error::TooLarge { what: "the list of experts" };
        // Tokens are counted from one, and 0 is none.
        let fits = |count: usize| u32::try_from(count).is_ok_and(|count| count < u32::MAX);
        if !fits(list.len()) || !fits(routes.tokens()) {
            return Err(too_large);
        }
        let (starts, memory) = memory.split_at_mut(experts + 1);
        let (marks, memory) = memory.split_at_mut(experts);
        let (rows, memory) = memory.split_at_mut(list.len());
        let places = &mut memory[..list.len()];
        starts.fill(0);
        marks.fill(0);
        for token in 0..routes.tokens() {
            for (position, expert) in list[routes.pairs_of(token)].iter().copied().enumerate() {
                let Some(mark) = marks.get_mut(expert as usize) else {
                    return Err(Error::NoSuchExpert { token, position, expert, experts });
                };
                if *mark == token as u32 + 1 {
                    return Err(Error::DuplicateExpert { token, position, expert });
                }
                *mark = token as u32 + 1;
                starts[expert as usize + 1] += 1;
            }
        }
        for expert in 0..experts {
            starts[expert + 1] += starts[expert];
        }
        marks.copy_from_slice(&starts[..experts]);
        for token in 0..routes.tokens() {
            for pair in routes.pairs_of(token) {
                let next = &mut marks[list[pair] as usize];
                rows[*next as usize] = if by_pair { pair as u32 } else { token as u32 };
                places[pair] = *next;
                *next += 1;
            }
        }
        Ok(Groups { starts, rows, places })
    }

    /// First place of `expert`, and how many it has.
    pub(crate) fn of(&self, expert: usize) -> (usize, usize) {
        let (start, end) = (self.starts[expert] as usize, self.starts[expert + 1] as usize);
        (start, end - start)
    }

    pub(crate) fn experts(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn rows(&self) -> &'w [u32] {
        self.rows
    }

    pub(crate) fn place(&self, pair: usize) -> usize {
        self.places[pair] as usize
    }

    /// Whether pairs have the order of places already.
    pub(crate) fn in_order(&self) -> bool {
        self.places.iter().enumerate().all(|(pair, place)| pair == *place as usize)
    }

    /// Whether the rows of each expert lie one behind the other where they are.
    pub(crate) fn rows_together(&self) -> bool {
        (0..self.experts()).all(|expert| {
            let (start, count) = self.of(expert);
            self.rows[start..start + count].windows(2).all(|rows| rows[1] == rows[0] + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted_by_expert_and_token() -> Result<(), Error> {
        let ends = [2, 2, 3, 5];
        let list = [3, 1, 1, 0, 3];
        let routes = Routes::lists(&ends, &list)?;
        let mut memory = vec![9; indices(5, 5).unwrap_or(0)];
        let groups = Groups::sort(&routes, 5, false, &mut memory)?;
        let of: Vec<(usize, usize)> = (0..5).map(|expert| groups.of(expert)).collect();
        assert_eq!(of, [(0, 1), (1, 2), (3, 0), (3, 2), (5, 0)]);
        assert_eq!(groups.rows(), [3, 0, 2, 0, 3]);
        assert_eq!((0..5).map(|pair| groups.place(pair)).collect::<Vec<_>>(), [3, 1, 2, 0, 4]);
        assert!(!groups.in_order() && !groups.rows_together());
        let groups = Groups::sort(&routes, 5, true, &mut memory)?;
        assert_eq!(groups.rows(), [3, 1, 2, 0, 4]);
        Ok(())
    }
}
