//! The lists that a run sends to a GPU.

use super::groups::{self, Groups};
use super::routes::Routes;
use crate::cuda::{Lists, TILE};

/// The lists that a run sends to the GPU, one behind the other: tiles, the row of each place, the place of each pair, the end of
/// each token's pairs.
pub(super) struct Sent {
    tiles: usize,
    pairs: usize,
    tokens: usize,
}

impl Sent {
    pub(super) fn of(routes: &Routes<'_>) -> Sent {
        // A tile has a pair at least.
        Sent { tiles: TILE * routes.pairs(), pairs: routes.pairs(), tokens: routes.tokens() }
    }

    pub(super) fn len(&self) -> Option<usize> {
        self.tiles.checked_add(self.pairs)?.checked_add(self.pairs)?.checked_add(self.tokens)
    }

    pub(super) fn at(&self, address: u64) -> Lists {
        let (rows, places) = (self.tiles, self.tiles + self.pairs);
        Lists { address, rows, places, ends: places + self.pairs }
    }

    /// All but the tiles.
    pub(super) fn fill(&self, numbers: &mut [u32], groups: &Groups<'_>, routes: &Routes<'_>) {
        let (rows, rest) = numbers[self.tiles..].split_at_mut(self.pairs);
        let (places, ends) = rest.split_at_mut(self.pairs);
        rows.copy_from_slice(groups.rows());
        for (pair, place) in places.iter_mut().enumerate() {
            *place = groups.place(pair) as u32;
        }
        for (token, end) in ends[..self.tokens].iter_mut().enumerate() {
            *end = routes.pairs_of(token).end as u32;
        }
    }
}

/// Numbers of the workspace that a run needs for `tokens` tokens with `pairs` pairs.
pub(super) fn indices(tokens: usize, pairs: usize, experts: usize) -> Option<usize> {
    let sent = Sent { tiles: pairs.checked_mul(TILE)?, pairs, tokens };
    groups::indices(pairs, experts)?.checked_add(sent.len()?)
}
