//! From logits to a token.

use crate::error::{Error, zeros};
use crate::numerics::exp;
use std::cmp::Ordering;

/// How a token is drawn. What is cut off is cut off in the order of the fields, before the temperature counts, as llama.cpp does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Only so many of the most probable tokens; 0: all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this probability; 1: all.
    pub top_p: f32,
    /// Only tokens with at least this part of the greatest probability; 0: all.
    pub min_p: f32,
    /// Logits are divided by it; 0: the most probable token, always.
    pub temperature: f32,
    /// Of the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// Refuses numbers that mean nothing.
    ///
    /// # Errors
    /// [`Error::Asked`], which names the option.
    pub fn check(&self) -> Result<(), Error> {
        let Sampling { top_p, min_p, temperature, .. } = *self;
        let wrong = |name, value, why| Err(Error::Asked(format!("--{name} {value}: expected {why}")));
        if !(temperature.is_finite() && temperature >= 0.0) {
            return wrong("temperature", temperature, "a number from 0 on");
        }
        if !(0.0..=1.0).contains(&top_p) {
            return wrong("top-p", top_p, "a probability from 0 to 1");
        }
        if !(0.0..=1.0).contains(&min_p) {
            return wrong("min-p", min_p, "a part from 0 to 1");
        }
        Ok(())
    }
}

impl Default for Sampling {
    /// The most probable token.
    fn default() -> Sampling {
        Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, temperature: 0.0, seed: 0 }
    }
}

/// Draws tokens; the same ones for the same logits and seed.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: fastrand::Rng,
    /// Tokens with their logits.
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// For logits of a vocabulary of `vocab`.
    ///
    /// # Errors
    /// Numbers that mean nothing; [`Error::Memory`].
    pub fn new(sampling: Sampling, vocab: usize) -> Result<Sampler, Error> {
        sampling.check()?;
        let Sampling { temperature, seed, .. } = sampling;
        let candidates = zeros("candidates", if temperature == 0.0 { 0 } else { vocab })?;
        Ok(Sampler { sampling, random: fastrand::Rng::with_seed(seed), candidates })
    }

    /// A token. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Logit`].
    pub fn draw(&mut self, logits: &[f32]) -> Result<u32, Error> {
        let Sampling { top_k, top_p, min_p, temperature, .. } = self.sampling;
        if temperature == 0.0 {
            return greatest(logits);
        }
        check(logits)?;
        self.candidates.clear();
        self.candidates.extend((0..).zip(logits.iter().copied()));
        let candidates = &mut self.candidates;
        if (1..candidates.len()).contains(&top_k) {
            candidates.select_nth_unstable_by(top_k - 1, order);
            candidates.truncate(top_k);
        }
        let most = candidates.iter().map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
        let sum = |candidates: &[(u32, f32)], weight: &dyn Fn(f32) -> f32| -> f64 {
            candidates.iter().map(|(_, logit)| f64::from(weight(*logit))).sum()
        };
        let probability = |logit: f32| exp(logit - most);
        // Of everything that `top_k` left.
        let enough =
            if top_p < 1.0 { f64::from(top_p) * sum(candidates, &probability) } else { f64::INFINITY };
        if min_p > 0.0 {
            candidates.retain(|(_, logit)| probability(*logit) >= min_p);
        }
        let mut ranked = Ranked { candidates, sorted: 0 };
        if top_p < 1.0 {
            let (mut reached, mut left) = (0.0, 0);
            while let Some((_, logit)) = ranked.get(left) {
                left += 1;
                reached += f64::from(probability(logit));
                if reached >= enough {
                    break;
                }
            }
            ranked.candidates.truncate(left);
        }
        let weight = |logit: f32| exp((logit - most) / temperature);
        let mut drawn = self.random.f64() * sum(ranked.candidates, &weight);
        let (mut token, mut rank) = (0, 0);
        while let Some((next, logit)) = ranked.get(rank) {
            token = next;
            rank += 1;
            drawn -= f64::from(weight(logit));
            if drawn < 0.0 {
                break;
            }
        }
        Ok(token)
    }
}

/// By falling logit, equals by number, so that the order is one.
fn order(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Candidates in their [`order`], as far as somebody looks: nearly always at a few of a vocabulary, whose sorting would take longer than
/// all else of a draw.
struct Ranked<'c> {
    candidates: &'c mut Vec<(u32, f32)>,
    /// So many are in their place.
    sorted: usize,
}

impl Ranked<'_> {
    /// The candidate of this rank.
    fn get(&mut self, rank: usize) -> Option<(u32, f32)> {
        /// How many are brought into order first; then three times as many as there are.
        const FIRST: usize = 64;
        if rank >= self.sorted {
            let rest = &mut self.candidates[self.sorted..];
            let next = (3 * self.sorted).max(FIRST).min(rest.len());
            if (1..rest.len()).contains(&next) {
                rest.select_nth_unstable_by(next - 1, order);
            }
            rest[..next].sort_unstable_by(order);
            self.sorted += next;
        }
        self.candidates.get(rank).copied()
    }
}

/// Refuses logits that no token can be drawn by: of what is not a number nothing is the greatest, and beside infinity nothing else has a
/// probability. A token that is never meant may have negative infinity.
fn check(logits: &[f32]) -> Result<(), Error> {
    match logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        Some(token) => Err(Error::Logit { token, value: logits[token] }),
        None => Ok(()),
    }
}

/// The index of the greatest value, of equals the first.
///
/// # Errors
/// [`Error::Logit`].
pub fn greatest(values: &[f32]) -> Result<u32, Error> {
    check(values)?;
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    Ok(best as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each token is drawn in 20,000 times.
    fn drawn(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling, logits.len()).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.draw(logits).unwrap() as usize] += 1;
        }
        counts
    }

    /// Logits of the probabilities 0.1, 0.4, 0.2, 0.3.
    fn logits() -> Vec<f32> {
        [0.1f32, 0.4, 0.2, 0.3].map(f32::ln).to_vec()
    }

    #[test]
    fn greedy_is_the_first_of_the_greatest() {
        assert_eq!(greatest(&[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
        assert_eq!(drawn(Sampling::default(), &logits()), [0, 20_000, 0, 0]);
    }

    #[test]
    fn tokens_come_with_their_probabilities() {
        let counts = drawn(Sampling { temperature: 1.0, ..Sampling::default() }, &logits());
        for (count, expected) in counts.iter().zip([2000, 8000, 4000, 6000]) {
            assert!(count.abs_diff(expected) < 300, "{counts:?}");
        }
        // Half the temperature squares the probabilities: 1, 16, 4, 9 of 30.
        let counts = drawn(Sampling { temperature: 0.5, ..Sampling::default() }, &logits());
        for (count, expected) in counts.iter().zip([667, 10_667, 2667, 6000]) {
            assert!(count.abs_diff(expected) < 300, "{counts:?}");
        }
    }

    #[test]
    fn what_is_cut_off_is_never_drawn() {
        let at = |sampling: Sampling| drawn(Sampling { temperature: 2.0, ..sampling }, &logits());
        let none = Sampling::default();
        let which = |counts: Vec<usize>| counts.iter().map(|count| *count > 0).collect::<Vec<_>>();
        assert_eq!(which(at(Sampling { top_k: 2, ..none })), [false, true, false, true]);
        assert_eq!(which(at(Sampling { top_p: 0.69, ..none })), [false, true, false, true]);
        assert_eq!(which(at(Sampling { top_p: 0.71, ..none })), [false, true, true, true]);
        assert_eq!(which(at(Sampling { min_p: 0.6, ..none })), [false, true, false, true]);
        assert_eq!(which(at(none)), [true; 4]);
    }

    /// Everything sorted, as the definition has it.
    fn by_definition(sampling: Sampling, random: f64, logits: &[f32]) -> u32 {
        let Sampling { top_k, top_p, min_p, temperature, .. } = sampling;
        let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        sorted.sort_by(order);
        if top_k > 0 {
            sorted.truncate(top_k);
        }
        let most = sorted[0].1;
        let probability = |logit: f32| f64::from(exp(logit - most));
        if top_p < 1.0 {
            let all: f64 = sorted.iter().map(|(_, logit)| probability(*logit)).sum();
            let mut sum = 0.0;
            let reached = sorted.iter().position(|(_, logit)| {
                sum += probability(*logit);
                sum >= f64::from(top_p) * all
            });
            sorted.truncate(reached.map_or(sorted.len(), |last| last + 1));
        }
        sorted.retain(|(_, logit)| probability(*logit) >= f64::from(min_p));
        let weight = |logit: f32| f64::from(exp((logit - most) / temperature));
        let mut drawn = random * sorted.iter().map(|(_, logit)| weight(*logit)).sum::<f64>();
        let found = sorted.iter().find(|(_, logit)| {
            drawn -= weight(*logit);
            drawn < 0.0
        });
        found.unwrap_or(&sorted[sorted.len() - 1]).0
    }

    /// Flat and steep logits, with equals, of a vocabulary that is not brought into order at once.
    #[test]
    fn tokens_are_those_of_the_definition() {
        let mut random = fastrand::Rng::with_seed(5);
        for (spread, temperature) in [(0.01, 1.0), (3.0, 0.7), (3.0, 4.0), (30.0, 1.0)] {
            let logits: Vec<f32> = (0..1000).map(|_| (random.f32() * 50.0).round() / 50.0 * spread).collect();
            for (top_k, top_p, min_p) in [
                (0, 1.0, 0.0),
                (40, 1.0, 0.0),
                (300, 0.9, 0.0),
                (0, 0.95, 0.0),
                (0, 0.3, 0.0),
                (0, 0.0, 0.0),
                (0, 1.0, 0.2),
                (0, 0.9, 0.05),
                (1000, 0.9, 0.5),
                (1, 0.5, 1.0),
            ] {
                let sampling = Sampling { top_k, top_p, min_p, temperature, seed: 9 };
                let mut sampler = Sampler::new(sampling, logits.len()).unwrap();
                let mut numbers = fastrand::Rng::with_seed(9);
                for _ in 0..200 {
                    let expected = by_definition(sampling, numbers.f64(), &logits);
                    assert_eq!(sampler.draw(&logits).unwrap(), expected, "spread {spread}, {sampling:?}");
                }
            }
        }
    }

    /// A NaN is greater than nothing and equal to nothing: the first token, or the last, would be drawn for ever.
    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        for wrong in [f32::NAN, f32::INFINITY] {
            let logits = [0.5, 1.0, wrong, 2.0];
            for temperature in [0.0, 1.0] {
                let mut sampler = Sampler::new(Sampling { temperature, ..Sampling::default() }, 4).unwrap();
                let error = sampler.draw(&logits).unwrap_err().to_string();
                assert!(error.starts_with(&format!("the logit of token 2 is {wrong}")), "{error}");
            }
        }
        assert_eq!(drawn(Sampling::default(), &[f32::NEG_INFINITY, 0.0]), [0, 20_000]);
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(drawn(warm, &[f32::NEG_INFINITY, 0.0]), [0, 20_000]);
    }

    #[test]
    fn a_seed_gives_one_sequence() {
        let sequence = |seed| {
            let mut sampler =
                Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }, 4).unwrap();
            (0..50).map(|_| sampler.draw(&logits()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        for (name, sampling) in [
            ("temperature", Sampling { temperature: -1.0, ..Sampling::default() }),
            ("top-p", Sampling { top_p: 1.5, ..Sampling::default() }),
            ("min-p", Sampling { min_p: f32::NAN, ..Sampling::default() }),
        ] {
            assert!(Sampler::new(sampling, 4).unwrap_err().to_string().contains(name));
        }
    }
}
