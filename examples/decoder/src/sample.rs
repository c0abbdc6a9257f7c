//! From logits to a token.

use crate::error::{Error, zeros};
use crate::numerics::exp;

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
    /// Tokens with their logits, then their weights.
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
        // Equals by number, so that the order is one.
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let mut left = candidates.len();
        if (1..left).contains(&top_k) {
            candidates.select_nth_unstable_by(top_k - 1, order);
            left = top_k;
        }
        let candidates = &mut candidates[..left];
        candidates.sort_unstable_by(order);
        let most = candidates.first().map_or(0.0, |(_, logit)| *logit);
        if top_p < 1.0 {
            let all: f64 = candidates.iter().map(|(_, logit)| f64::from(exp(logit - most))).sum();
            let mut sum = 0.0;
            let reached = candidates.iter().position(|(_, logit)| {
                sum += f64::from(exp(logit - most));
                sum >= f64::from(top_p) * all
            });
            left = reached.map_or(left, |last| last + 1);
        }
        if min_p > 0.0 {
            left =
                candidates[..left].iter().take_while(|(_, logit)| exp(logit - most) >= min_p).count().max(1);
        }
        let candidates = &mut candidates[..left];
        let mut sum = 0.0f64;
        for (_, logit) in candidates.iter_mut() {
            *logit = exp((*logit - most) / temperature);
            sum += f64::from(*logit);
        }
        let mut drawn = self.random.f64() * sum;
        for (token, weight) in candidates.iter() {
            drawn -= f64::from(*weight);
            if drawn < 0.0 {
                return Ok(*token);
            }
        }
        Ok(candidates.last().map_or(0, |(token, _)| *token))
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
