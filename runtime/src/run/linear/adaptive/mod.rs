//! Kernels that take turns on the real work of layers until it is known which one is the fastest.
//!
//! Off unless [`LinearOptions::adaptive`](super::LinearOptions::adaptive) asks for it. In the first calls of a matrix and class of tokens the
//! kernels that read the packing which weights are held in take turns, each seven times and once before to warm up; then the one
//! with the least median stays: of products alone, as some calls quantize their activations in front of them and others don't. All have the same bits, so nobody sees it but in time. A call allocates and locks nothing: during the
//! trial it reads the clock twice and adds to two counters, afterwards it reads one number.

mod times;

use crate::decide::Prepared;
use crate::error::Error;
use crate::registry::{Entry, Registry};
use crate::request::Shape;
use crate::run::choice::Choice;
use crate::tuning::{Measured, ShapeClass, cpu};
use gristmill_spec::vocab::Op;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use times::Times;

/// Kernels that take turns at most: the first ones in the order of decisions.
const MOST: usize = 12;
/// In the place of a decision that is not made yet.
const UNDECIDED: u32 = u32::MAX;

/// What layers find out together about their kernels: one for all layers of a model. A clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Adaptive {
    /// Locked where layers are made and where somebody looks, never in a call.
    trials: Arc<Mutex<Vec<Arc<Trial>>>>,
}

/// What was found out about the kernels for matrices of one format and size and a class of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapted {
    /// The weight format.
    pub format: String,
    /// Rows of the weights.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// The class of shapes.
    pub class: ShapeClass,
    /// Threads of the layers.
    pub threads: usize,
    /// Turns that were taken.
    pub turns: usize,
    /// Turns of the whole trial.
    pub of: usize,
    /// The kernel that stays; `None` while the trial goes on.
    pub chosen: Option<&'static str>,
    /// The kernels, that of the decision first, each with its median microseconds for a token, without the quantization of activations; `None`
    /// where too few of its runs were timed, or it was given up after the first.
    pub kernels: Vec<(&'static str, Option<f64>)>,
}

impl std::fmt::Display for Adapted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Adapted { format, n, k, threads, turns, of, chosen, kernels, class } = self;
        let (from, to) = class.tokens();
        let tokens = if to == usize::MAX { format!("{from} and more") } else { format!("{from} to {to}") };
        write!(f, "{format} {n}x{k}, {tokens} tokens, {threads} threads: ")?;
        match chosen {
            Some(chosen) => write!(f, "`{chosen}` after {of} calls in turns")?,
            None => write!(f, "not decided, {turns} of {of} calls in turns")?,
        }
        for (at, (name, us)) in kernels.iter().enumerate() {
            f.write_str(if at == 0 { "; a token: " } else { ", " })?;
            match us {
                Some(us) => write!(f, "`{name}` {us:.3} us")?,
                None => write!(f, "`{name}` not measured")?,
            }
        }
        Ok(())
    }
}

/// A trial.
#[derive(Debug)]
struct Trial {
    registry: &'static Registry,
    format: String,
    n: usize,
    k: usize,
    class: ShapeClass,
    threads: usize,
    /// That of the decision first.
    entries: Vec<&'static Entry>,
    /// Turns that were given out.
    given: AtomicU32,
    /// Turns that have ended.
    ended: AtomicU32,
    /// Picoseconds for a token.
    times: Times,
    /// Which of the entries stays.
    fixed: AtomicU32,
}

/// A trial, with the places of its kernels among those of a layer.
#[derive(Clone, Debug)]
pub(super) struct LayerTrial {
    trial: Arc<Trial>,
    choices: Vec<usize>,
}

/// A turn that a call has. Who drops it without [`time`](Turn::time) has no time.
#[derive(Debug)]
pub(super) struct Turn<'t> {
    trial: &'t Trial,
    place: usize,
    tokens: usize,
    timed: bool,
}

impl Adaptive {
    /// What was found out so far, in the order in which layers were made.
    pub fn adapted(&self) -> Vec<Adapted> {
        self.all().iter().map(|trial| trial.adapted()).collect()
    }

    /// Trials that are decided, as what a tuning holds: with [`Tuning::of`](crate::Tuning::of) and
    /// [`Tuning::text`](crate::Tuning::text) other programs start with what was found out, and `gristmill explain` shows it. Times are those of
    /// a token, multiplied to the shape that the class is measured by; of several matrices of a class, those of the largest.
    pub fn measured(&self) -> Vec<Measured> {
        let mut trials = self.all();
        trials.retain(|trial| trial.chosen().is_some());
        trials.sort_by_key(|trial| std::cmp::Reverse(trial.n.saturating_mul(trial.k)));
        let mut all: Vec<Measured> = Vec::new();
        for trial in trials {
            let Shape { m, n, k } = trial.class.example();
            let scale = m as f64 * (n as f64 * k as f64) / (trial.n as f64 * trial.k as f64).max(1.0);
            let adapted = trial.adapted().kernels;
            let mut order: Vec<_> = trial
                .entries
                .iter()
                .zip(adapted)
                .filter_map(|(entry, (_, us))| Some((entry.id, us? * scale)))
                .collect();
            order.sort_by(|a, b| a.1.total_cmp(&b.1));
            let (format, class, threads) = (trial.format.clone(), trial.class, trial.threads);
            let known = |m: &Measured| m.format == format && m.class == class && m.threads == threads;
            if order.is_empty() || all.iter().any(known) {
                continue;
            }
            let on = cpu().to_owned();
            all.push(Measured { on, op: Op::Matmul, format, quantizer: None, class, threads, order });
        }
        all
    }

    fn all(&self) -> Vec<Arc<Trial>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The trials of a layer by class of tokens; none where only one kernel comes into question.
    pub(super) fn trials(
        &self,
        prepared: &Prepared,
        [n, k]: [usize; 2],
        threads: usize,
        choices: &[Choice],
    ) -> Vec<Option<LayerTrial>> {
        let of_class = |class: ShapeClass| {
            let (mut entries, mut places) = (Vec::new(), Vec::new());
            for candidate in prepared.alternatives(class, [n, k]) {
                let of_entry = |choice: &Choice| std::ptr::eq(choice.matmul.entry(), candidate.entry);
                let Some(place) = choices.iter().position(of_entry) else { continue };
                // Activations that one of them quantized must be what all others read.
                let first = choices.get(places.first().copied().unwrap_or(place));
                let same = first.is_some_and(|first| {
                    let choice = &choices[place];
                    first.packed == choice.packed && first.matmul.shares_activations_with(&choice.matmul, k)
                });
                if same && entries.len() < MOST {
                    entries.push(candidate.entry);
                    places.push(place);
                }
            }
            (entries.len() > 1).then(|| {
                let trial = self.trial(prepared, [n, k], class, threads, entries);
                LayerTrial { trial, choices: places }
            })
        };
        ShapeClass::of(Shape { m: 1, n, k }).siblings().map(of_class).collect()
    }

    /// The trial of these kernels, which other layers may have begun.
    fn trial(
        &self,
        prepared: &Prepared,
        [n, k]: [usize; 2],
        class: ShapeClass,
        threads: usize,
        entries: Vec<&'static Entry>,
    ) -> Arc<Trial> {
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |trial: &&Arc<Trial>| {
            let kernels = trial.entries.iter().zip(&entries);
            std::ptr::eq(trial.registry, prepared.registry())
                && trial.format == prepared.format_name()
                && (trial.n, trial.k, trial.class, trial.threads) == (n, k, class, threads)
                && trial.entries.len() == entries.len()
                && kernels.into_iter().all(|(a, b)| std::ptr::eq(*a, *b))
        };
        if let Some(known) = trials.iter().find(same) {
            return Arc::clone(known);
        }
        let trial = Arc::new(Trial {
            registry: prepared.registry(),
            format: prepared.format_name().to_owned(),
            n,
            k,
            class,
            threads,
            given: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            times: Times::of(entries.len()),
            fixed: AtomicU32::new(UNDECIDED),
            entries,
        });
        trials.push(Arc::clone(&trial));
        trial
    }
}

impl LayerTrial {
    /// Which of the layer's kernels stays, once that is known.
    #[inline]
    pub(super) fn fixed(&self) -> Option<usize> {
        match self.trial.fixed.load(Ordering::Relaxed) {
            UNDECIDED => None,
            place => self.choices.get(place as usize).copied(),
        }
    }

    /// The next turn of a call with so many tokens, and whose it is; `None` where all were given out. `fits` says whether one of the
    /// layer's kernels takes the call.
    pub(super) fn turn(&self, tokens: usize, fits: impl Fn(usize) -> bool) -> Option<(usize, Turn<'_>)> {
        let trial = &*self.trial;
        let all = trial.times.turns();
        if trial.given.load(Ordering::Relaxed) as usize >= all {
            return None;
        }
        let place = trial.given.fetch_add(1, Ordering::Relaxed) as usize;
        if place >= all {
            return None;
        }
        let kernel = trial.times.kernel(place);
        let choice = self.choices.get(kernel).copied()?;
        // The kernel of the decision runs in the place of one that is given up or takes other numbers of tokens, without a time.
        let timed = !trial.times.given_up(kernel) && fits(choice);
        let choice = if timed { choice } else { self.choices.first().copied()? };
        let turn = Turn { trial, place, tokens, timed: timed && tokens > 0 };
        fits(choice).then_some((choice, turn))
    }

    pub(super) fn adapted(&self) -> Adapted {
        self.trial.adapted()
    }
}

impl Turn<'_> {
    /// Takes the time of `product`, in which alone kernels differ, if it ends well.
    pub(super) fn time(self, product: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let started = Instant::now();
        product()?;
        let time = started.elapsed().as_nanos().saturating_mul(1000) / self.tokens.max(1) as u128;
        if self.timed {
            self.trial.times.keep(self.place, u64::try_from(time).unwrap_or(u64::MAX));
        }
        Ok(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Whoever ends the last turn sees the times of all others.
        let ended = self.trial.ended.fetch_add(1, Ordering::AcqRel) as usize + 1;
        if ended == self.trial.times.turns() {
            self.trial.decide();
        }
    }
}

impl Trial {
    fn decide(&self) {
        self.fixed.store(u32::try_from(self.times.fastest()).unwrap_or(0), Ordering::Relaxed);
    }

    fn chosen(&self) -> Option<&'static str> {
        match self.fixed.load(Ordering::Relaxed) {
            UNDECIDED => None,
            place => self.entries.get(place as usize).map(|entry| entry.name),
        }
    }

    fn adapted(&self) -> Adapted {
        let all = self.times.turns();
        let us = |kernel: usize| Some(self.times.median(kernel)? as f64 / 1e6);
        Adapted {
            format: self.format.clone(),
            n: self.n,
            k: self.k,
            class: self.class,
            threads: self.threads,
            turns: (self.ended.load(Ordering::Relaxed) as usize).min(all),
            of: all,
            chosen: self.chosen(),
            kernels: self.entries.iter().enumerate().map(|(at, entry)| (entry.name, us(at))).collect(),
        }
    }
}
