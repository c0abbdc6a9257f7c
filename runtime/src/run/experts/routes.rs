//! Which experts tokens go to.

use crate::error::Error;
use std::ops::Range;

/// Which experts each token goes to: for each token a list of numbers of experts, one list behind the other. A token and
/// one of its experts are a pair; pairs are numbered in the order of the lists.
#[derive(Clone, Copy, Debug)]
pub struct Routes<'a> {
    lists: Lists<'a>,
    experts: &'a [u32],
}

#[derive(Clone, Copy, Debug)]
enum Lists<'a> {
    Each {
        tokens: usize,
        per_token: usize,
    },
    /// Of which so many pairs lie in front.
    Ends {
        ends: &'a [usize],
        before: usize,
    },
}

impl<'a> Routes<'a> {
    /// Every one of `tokens` tokens goes to `per_token` experts: `experts` holds `tokens * per_token` numbers.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::TooLarge`].
    pub fn each(tokens: usize, per_token: usize, experts: &'a [u32]) -> Result<Routes<'a>, Error> {
        let what = "the list of experts";
        let expected = tokens.checked_mul(per_token).ok_or(Error::TooLarge { what })?;
        if experts.len() != expected {
            return Err(Error::ShapeMismatch { what, unit: "values", expected, found: experts.len() });
        }
        Ok(Routes { lists: Lists::Each { tokens, per_token }, experts })
    }

    /// Token `t` goes to `experts[ends[t - 1]..ends[t]]`, the first one to `experts[..ends[0]]`; lists may be empty.
    ///
    /// # Errors
    /// [`Error::ExpertLists`] where an end lies before the one in front of it; [`Error::ShapeMismatch`] where the last is not
    /// the end of `experts`.
    pub fn lists(ends: &'a [usize], experts: &'a [u32]) -> Result<Routes<'a>, Error> {
        if let Some(before) = ends.windows(2).position(|ends| ends[1] < ends[0]) {
            let token = before + 1;
            return Err(Error::ExpertLists { token, begin: ends[before], end: ends[token] });
        }
        let expected = ends.last().copied().unwrap_or(0);
        if experts.len() != expected {
            let (what, found) = ("the list of experts", experts.len());
            return Err(Error::ShapeMismatch { what, unit: "values", expected, found });
        }
        Ok(Routes { lists: Lists::Ends { ends, before: 0 }, experts })
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        match self.lists {
            Lists::Each { tokens, .. } => tokens,
            Lists::Ends { ends, .. } => ends.len(),
        }
    }

    /// How many pairs of a token and an expert there are.
    pub fn pairs(&self) -> usize {
        self.experts.len()
    }

    /// How many tokens go to an expert.
    pub(crate) fn count_of(&self, expert: u32) -> usize {
        self.experts.iter().filter(|other| **other == expert).count()
    }

    /// The expert of each pair.
    pub(crate) fn experts(&self) -> &'a [u32] {
        self.experts
    }

    /// The pairs of a token that there is.
    pub(crate) fn pairs_of(&self, token: usize) -> Range<usize> {
        match self.lists {
            Lists::Each { per_token, .. } => token * per_token..(token + 1) * per_token,
            Lists::Ends { ends, before } => {
                let begin = token.checked_sub(1).map_or(before, |previous| ends[previous]);
                begin - before..ends[token] - before
            }
        }
    }

    /// The first `tokens`, and those behind them.
    #[cfg(feature = "cuda")]
    pub(super) fn split_at(&self, tokens: usize) -> (Routes<'a>, Routes<'a>) {
        let pairs = tokens.checked_sub(1).map_or(0, |last| self.pairs_of(last).end);
        let (experts, behind) = self.experts.split_at(pairs);
        let (first, others) = match self.lists {
            Lists::Each { tokens: all, per_token } => {
                (Lists::Each { tokens, per_token }, Lists::Each { tokens: all - tokens, per_token })
            }
            Lists::Ends { ends, before } => {
                let (ends, ends_behind) = ends.split_at(tokens);
                (Lists::Ends { ends, before }, Lists::Ends { ends: ends_behind, before: before + pairs })
            }
        };
        (Routes { lists: first, experts }, Routes { lists: others, experts: behind })
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_pairs_of_their_tokens() -> Result<(), Error> {
        let experts = [4, 5, 6, 7, 8, 9];
        for routes in [Routes::each(3, 2, &experts)?, Routes::lists(&[3, 3, 4, 6], &experts)?] {
            let lists = |routes: &Routes<'_>| -> Vec<Vec<u32>> {
                (0..routes.tokens()).map(|token| routes.experts()[routes.pairs_of(token)].to_vec()).collect()
            };
            let all = lists(&routes);
            for tokens in 0..=routes.tokens() {
                let (first, others) = routes.split_at(tokens);
                assert_eq!([lists(&first), lists(&others)].concat(), all);
                assert_eq!((first.tokens(), first.pairs() + others.pairs()), (tokens, routes.pairs()));
                // Parts of parts.
                let (next, last) = others.split_at(others.tokens() / 2);
                assert_eq!([lists(&first), lists(&next), lists(&last)].concat(), all);
            }
        }
        Ok(())
    }
}
