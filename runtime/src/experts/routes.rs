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
    Each { tokens: usize, per_token: usize },
    Ends(&'a [usize]),
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
        Ok(Routes { lists: Lists::Ends(ends), experts })
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        match self.lists {
            Lists::Each { tokens, .. } => tokens,
            Lists::Ends(ends) => ends.len(),
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
            Lists::Ends(ends) => {
                let begin = token.checked_sub(1).map_or(0, |before| ends[before]);
                begin..ends[token]
            }
        }
    }
}
