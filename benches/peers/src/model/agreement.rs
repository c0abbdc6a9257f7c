//! Whether both sides compute the same model: logits of a prompt, and how far greedy continuations go together.

use super::theirs::Model;
use crate::error::Error;
use decoder::sample::greatest;
use decoder::{Decoder, Wanted};
use gristmill_records::peers::{Agreement, Decision};

/// Compares both sides on `prompt`, from which `generate` tokens are generated. Both contexts are empty before and after.
pub fn compare(
    ours: &mut Decoder,
    theirs: &mut Model,
    setting: &str,
    prompt: &[u32],
    generate: usize,
) -> Result<Agreement, Error> {
    let vocab = ours.config.vocab;
    ours.rewind(0);
    theirs.clear();
    theirs.feed(prompt, true)?;
    let all = ours.feed(prompt, Wanted::All)?;
    let (mut difference, mut variance, mut worst, mut same) = (0.0, 0.0, 0.0f64, 0);
    for (index, ours) in all.chunks_exact(vocab).enumerate() {
        let theirs = theirs.logits(index)?;
        let (d, v) = distance(ours, theirs);
        difference += d;
        variance += v;
        // Not a number is the worst.
        worst = if d / v > worst || (d / v).is_nan() { d / v } else { worst };
        same += usize::from(greatest(ours)? == greatest(theirs)?);
    }
    let mut agreement = Agreement {
        setting: setting.to_owned(),
        prompt_tokens: prompt.len(),
        nmse: difference / variance,
        worst_nmse: worst,
        same_greatest: same,
        greedy_tokens: generate,
        greedy_equal: 0,
        closest: None,
    };
    let mut logits = all[(prompt.len() - 1) * vocab..].to_vec();
    let mut last = prompt.len() - 1;
    while agreement.greedy_equal < generate {
        let other = theirs.logits(last)?;
        let (mine, other_token) = (greatest(&logits)?, greatest(other)?);
        let decision = decision_of(&logits, other);
        if mine != other_token {
            agreement.closest = Some(decision);
            break;
        }
        if agreement.closest.is_none_or(|closest| decision.our_margin < closest.our_margin) {
            agreement.closest = Some(decision);
        }
        agreement.greedy_equal += 1;
        logits.copy_from_slice(ours.feed(&[mine], Wanted::Last)?);
        theirs.feed(&[mine], false)?;
        last = 0;
    }
    ours.rewind(0);
    theirs.clear();
    Ok(agreement)
}

fn decision_of(ours: &[f32], theirs: &[f32]) -> Decision {
    let (difference, variance) = distance(ours, theirs);
    let root = |squares: f64| (squares / ours.len() as f64).sqrt();
    Decision {
        our_margin: margin(ours),
        their_margin: margin(theirs),
        difference: root(difference),
        deviation: root(variance),
    }
}

/// Sums of squares: of the differences, and of `b` around its mean.
fn distance(a: &[f32], b: &[f32]) -> (f64, f64) {
    let square = |x: f64| x * x;
    let mean = b.iter().map(|b| f64::from(*b)).sum::<f64>() / b.len() as f64;
    let difference = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (difference, b.iter().map(|b| square(f64::from(*b) - mean)).sum())
}

/// The greatest less the second.
fn margin(logits: &[f32]) -> f64 {
    let mut first = [f32::NEG_INFINITY; 2];
    for logit in logits {
        if *logit > first[0] {
            first = [*logit, first[0]];
        } else if *logit > first[1] {
            first[1] = *logit;
        }
    }
    f64::from(first[0]) - f64::from(first[1])
}

#[cfg(test)]
mod tests {
    use super::{distance, margin};

    #[test]
    fn margins_count_equal_logits_as_none() {
        assert_eq!(margin(&[1.0, 4.0, 2.5]), 1.5);
        assert_eq!(margin(&[4.0, 4.0, 2.5]), 0.0);
    }

    #[test]
    fn a_difference_is_relative_to_what_varies() {
        // A constant that is added to all logits changes no choice, but would hide differences.
        let (difference, variance) = distance(&[101.0, 99.0], &[101.0, 98.0]);
        assert_eq!((difference, variance), (1.0, 4.5));
    }
}

/// One line for a reader.
pub fn print(agreement: &Agreement) {
    println!(
        "logits of {} tokens, {}: NMSE {:.1e}, at most {:.1e} of a token; {} of {} with the same greatest",
        agreement.prompt_tokens,
        agreement.setting,
        agreement.nmse,
        agreement.worst_nmse,
        agreement.same_greatest,
        agreement.prompt_tokens
    );
    println!("  greedy: {} of {} tokens equal", agreement.greedy_equal, agreement.greedy_tokens);
    if let Some(closest) = agreement.closest {
        let what = if agreement.greedy_equal < agreement.greedy_tokens {
            "the next one"
        } else {
            "the closest decision"
        };
        println!(
            "  {what}: leads by {:.4} (ours) and {:.4} (theirs) where logits of a deviation of {:.3} differ by {:.4}",
            closest.our_margin, closest.their_margin, closest.deviation, closest.difference
        );
    }
}
