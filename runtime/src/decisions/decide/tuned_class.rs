//! A class of shapes as a tuning puts its candidates, and what it says of a decision.

use super::candidate::Candidate;
use crate::registry::KernelId;

/// Candidates of a class of shapes as a tuning puts them.
#[derive(Debug)]
pub(super) struct TunedClass {
    /// In order.
    pub(super) candidates: Box<[Candidate]>,
    /// Times of those that were measured for this class or for one that stands for it, in microseconds; the fastest first.
    pub(super) times: Box<[(KernelId, f64)]>,
    /// On how many threads.
    pub(super) threads: usize,
    /// The packing that weights are held in for all numbers of tokens, where there is one for this reason.
    pub(super) packing: Option<&'static str>,
}

/// What a tuning says of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedBy {
    /// On how many threads the kernels were measured.
    pub threads: usize,
    /// How many threads work on it, where fewer than there are were measured to be faster.
    pub fewer_threads: Option<usize>,
    /// Microseconds of the chosen kernel; `None` where it was not measured.
    pub us: Option<f64>,
    /// The fastest kernel that was measured, and its microseconds.
    pub fastest: Option<(&'static str, f64)>,
    /// Weights are held in this packing for all numbers of tokens, since its kernels lose least to the fastest of each number.
    pub packing: Option<&'static str>,
}

impl std::fmt::Display for TunedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TunedBy { threads, fewer_threads, us, fastest, packing } = self;
        let measured = match threads {
            1 => "measured on one thread".to_owned(),
            more => format!("measured on {more} threads"),
        };
        match us {
            Some(us) => write!(f, "{us:.3} us, {measured}")?,
            None => write!(f, "not measured, among others that were, {measured}")?,
        }
        if let (Some((name, best)), Some(us)) = (fastest, us)
            && best < us
        {
            write!(f, "; the fastest was `{name}`, {best:.3} us")?;
        }
        if let Some(packing) = packing {
            write!(
                f,
                "; weights are held in `{packing}` for all numbers of tokens, which loses least over them"
            )?;
        }
        match fewer_threads {
            Some(1) => f.write_str("; one thread works on it, since more were slower"),
            Some(fewer) => write!(f, "; {fewer} threads work on it, since more were slower"),
            None => Ok(()),
        }
    }
}

impl TunedClass {
    /// Microseconds that were measured of a candidate.
    pub(super) fn time(&self, candidate: &Candidate) -> Option<f64> {
        self.times.iter().find(|(id, _)| *id == candidate.entry.id).map(|(_, us)| *us)
    }

    /// The packing, where `candidate` reads another and was measured to be faster than `chosen`, with both times in nanoseconds.
    pub(super) fn held_instead_of(
        &self,
        candidate: &Candidate,
        chosen: &Candidate,
    ) -> Option<(&'static str, [u64; 2])> {
        let packing = self.packing.filter(|packing| candidate.packing() != Some(packing))?;
        let (theirs, ours) = (self.time(candidate)?, self.time(chosen)?);
        // Whole nanoseconds, which are exact far beyond any time of a kernel.
        (theirs < ours).then(|| (packing, [theirs, ours].map(|us| (us * 1e3).round() as u64)))
    }
}
