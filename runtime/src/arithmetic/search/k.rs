//! The searches of ggml's K-quants: `k-min` (Q2_K, Q4_K, Q5_K), `k-refine` (Q3_K) and `k-scan` (Q6_K).
//!
//! All have runs of weights with an integer factor each and one float for the block. First the best scale of
//! each run is searched for, then the runs' scales are rounded to factors of a common one, and at last the
//! weights are rounded again, by the scales as they will be read.

use super::{Found, SMALLEST, TRIALS, largest, nearest, weigh};

/// How `k-min` weighs the error of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// By |x|.
    Abs,
    /// By |x| + the root mean square of the run.
    RmsAbs,
}

/// Parameters of `k-min`.
#[derive(Clone, Copy, Debug)]
pub struct KMin {
    /// How errors are weighed.
    pub weights: Weights,
    /// Errors are squared (or taken as they are).
    pub square: bool,
    /// The first trial takes `top + start` steps for the range of a run; each further one 0.1 more.
    pub start: f32,
    /// Trials after the first.
    pub steps: u32,
    /// Largest code.
    pub top: f32,
    /// Largest factor of a run's scale.
    pub run_top: f32,
    /// Largest factor of a run's minimum.
    pub min_top: f32,
}

/// What is tried for a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trials {
    square: bool,
    start: f32,
    by: f32,
    steps: u32,
    line: Line,
}

/// How the best scale and minimum for given codes are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// From plain sums, as the reference has it: where one weight outweighs all others they cancel.
    Plain,
    /// From sums of what lies off the means, which do not; a minimum above 0 becomes 0.
    Centred,
    /// The same with minima of any sign.
    CentredAny,
}

impl Trials {
    /// Where importance is given: what ggml tries then.
    pub(super) const WEIGHTED: Trials =
        Trials { square: true, start: -0.9, by: 0.05, steps: 36, line: Line::Centred };

    /// The same for formats whose minimum may have any sign.
    pub(super) const WEIGHTED_ANY: Trials = Trials { line: Line::CentredAny, ..Trials::WEIGHTED };
}

/// Scale and minimum for each run: `w = scale * factor * code - min * min_factor`, codes from 0.
///
/// With `importance`, squared errors count by it, and more scales are tried than the rule says.
/// `stored` rounds a float to the type that it is stored in.
#[inline(always)]
pub fn k_min<const E: usize, const R: usize>(
    x: &[f32; E],
    importance: Option<&[f32; E]>,
    rule: &KMin,
    stored: impl Fn(f32) -> f32,
) -> Found<E, R> {
    let run = E / R;
    let (mut codes, mut trial) = ([0f32; E], [0f32; E]);
    let (mut scales, mut mins) = ([0f32; R], [0f32; R]);
    let (weights, trials) = match importance {
        Some(importance) => (weigh(x, importance), Trials::WEIGHTED),
        None => {
            let trials = Trials {
                square: rule.square,
                start: rule.start,
                by: 0.1,
                steps: rule.steps,
                line: Line::Plain,
            };
            (magnitudes::<E, R>(x, rule.weights), trials)
        }
    };
    let runs = x.chunks_exact(run).zip(weights.chunks_exact(run));
    for (index, (x, weights)) in runs.enumerate() {
        (scales[index], mins[index]) =
            fit(x, weights, &mut codes[index * run..][..run], &mut trial[..run], rule.top, trials);
    }
    let (scale, runs) = factors::<R>(&scales, rule.run_top);
    let (min, min_runs) = factors::<R>(&mins, rule.min_top);
    let (step, offset) = (stored(scale), stored(min));
    for (index, (x, codes)) in x.chunks_exact(run).zip(codes.chunks_exact_mut(run)).enumerate() {
        let (step, offset) = (step * runs[index], offset * min_runs[index]);
        if step != 0.0 {
            for (code, x) in codes.iter_mut().zip(x) {
                *code = nearest((x + offset) / step, 0.0, rule.top);
            }
        }
    }
    Found {
        codes: codes.map(|code| code as u16),
        scale,
        runs: runs.map(|factor| factor as i32),
        min,
        min_runs: min_runs.map(|factor| factor as i32),
    }
}

/// What errors count by without importance.
#[inline(always)]
fn magnitudes<const E: usize, const R: usize>(x: &[f32; E], kind: Weights) -> [f32; E] {
    let run = E / R;
    let mut weights = [0f32; E];
    for (x, weights) in x.chunks_exact(run).zip(weights.chunks_exact_mut(run)) {
        let floor = match kind {
            Weights::Abs => 0.0,
            Weights::RmsAbs => (sum(x.iter().map(|x| x * x)) / run as f32).sqrt(),
        };
        for (weight, x) in weights.iter_mut().zip(x) {
            *weight = floor + x.abs();
        }
    }
    weights
}

#[inline(always)]
fn sum(terms: impl Iterator<Item = f32>) -> f32 {
    // Not `Iterator::sum`, whose neutral element is -0.0.
    terms.fold(0.0, |sum, term| sum + term)
}

/// A common step for non-negative numbers, and what each is in it, up to `top`.
#[inline(always)]
fn factors<const R: usize>(values: &[f32; R], top: f32) -> (f32, [f32; R]) {
    let mut max = 0f32;
    for &value in values {
        if !value.is_finite() {
            return (value, [0.0; R]);
        }
        if value > max {
            max = value;
        }
    }
    let inverse = top / max;
    let inverse = if max > 0.0 && inverse.is_finite() { inverse } else { 0.0 };
    (max / top, values.map(|value| nearest(inverse * value, 0.0, top)))
}

/// The scale and the minimum (as what is subtracted) of one run; fills in its codes.
#[inline(always)]
pub(super) fn fit(
    x: &[f32],
    weights: &[f32],
    codes: &mut [f32],
    trial: &mut [f32],
    top: f32,
    trials: Trials,
) -> (f32, f32) {
    let (mut min, mut max) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (0f32, 0f32);
    for (&x, &w) in x.iter().zip(weights) {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
        sum_w += w;
        sum_x += w * x;
    }
    let any = trials.line == Line::CentredAny;
    if min > 0.0 && !any {
        min = 0.0;
    }
    codes.fill(0.0);
    if max == min {
        return (0.0, -min);
    }
    let range = max - min;
    if !(top / range).is_finite() {
        return (0.0, 0.0);
    }
    let error = |scale: f32, min: f32, codes: &[f32]| {
        sum(x.iter().zip(weights).zip(codes).map(|((&x, &w), &code)| {
            let off = scale * code + min - x;
            w * if trials.square { off * off } else { off.abs() }
        }))
    };
    let per = top / range;
    let mut scale = 1.0 / per;
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = nearest(per * (x - min), 0.0, top);
    }
    let mut best = error(scale, min, codes);
    for step in 0..=trials.steps {
        // With the minimum that is best so far, as the reference has it.
        let per = (trials.start + trials.by * step as f32 + top) / (max - min);
        let (mut sum_l, mut sum_ll, mut sum_xl) = (0f32, 0f32, 0f32);
        for ((code, &x), &w) in trial.iter_mut().zip(x).zip(weights) {
            let l = nearest(per * (x - min), 0.0, top);
            *code = l;
            sum_l += w * l;
            sum_ll += w * l * l;
            sum_xl += w * l * x;
        }
        let line = match trials.line {
            Line::Plain => {
                let d = sum_w * sum_ll - sum_l * sum_l;
                let line = ((sum_w * sum_xl - sum_x * sum_l) / d, (sum_ll * sum_x - sum_l * sum_xl) / d);
                (d > 0.0).then_some(line)
            }
            Line::Centred | Line::CentredAny => {
                let (mean_x, mean_l) = (sum_x / sum_w, sum_l / sum_w);
                let (mut off_ll, mut off_xl) = (0f32, 0f32);
                for ((&l, &x), &w) in trial.iter().zip(x).zip(weights) {
                    off_ll += w * (l - mean_l) * (l - mean_l);
                    off_xl += w * (l - mean_l) * (x - mean_x);
                }
                let scale = off_xl / off_ll;
                (off_ll > 0.0).then_some((scale, mean_x - scale * mean_l))
            }
        };
        if let Some((mut this_scale, mut this_min)) = line {
            if this_min > 0.0 && !any {
                this_min = 0.0;
                this_scale = sum_xl / sum_ll;
            }
            let this = error(this_scale, this_min, trial);
            if this < best {
                codes.copy_from_slice(trial);
                (best, scale, min) = (this, this_scale, this_min);
            }
        }
    }
    (scale, -min)
}

/// How the best scale of a run is searched for where there is no minimum.
#[derive(Clone, Copy, Debug)]
pub enum Search {
    /// From one start, single codes are moved as long as that helps, at most so many passes.
    Refine(u32),
    /// This many larger and as many smaller scales are tried, 0.1 of a step apart at the largest code.
    Scan(u32),
}

/// Parameters of `k-refine` and `k-scan`.
#[derive(Clone, Copy, Debug)]
pub struct KSigned {
    /// How runs are searched.
    pub search: Search,
    /// Codes count from -half to half - 1 and are stored with `half` added.
    pub half: f32,
    /// Smallest factor of a run: what the run of largest scale gets.
    pub low: f32,
    /// Largest factor of a run.
    pub high: f32,
}

/// A scale for each run: `w = scale * factor * (code - half)`. `None`: a block of zero bytes. Without `importance`, errors
/// count by x^2.
#[inline(always)]
pub fn k_signed<const E: usize, const R: usize>(
    x: &[f32; E],
    importance: Option<&[f32; E]>,
    rule: &KSigned,
    stored: impl Fn(f32) -> f32,
) -> Option<Found<E, R>> {
    let run = E / R;
    let (half, bound) = (rule.half, rule.half - 1.0);
    let mut codes = [0f32; E];
    let weights = importance.map_or_else(|| x.map(|x| x * x), |importance| weigh(x, importance));
    let mut scales = [0f32; R];
    let counted = x.chunks_exact(run).zip(weights.chunks_exact(run));
    for (((x, weights), codes), scale) in counted.zip(codes.chunks_exact_mut(run)).zip(&mut scales) {
        let max = largest(x);
        if max.abs() < SMALLEST {
            // Code 0 and not the code of zero, as the reference leaves it.
            continue;
        }
        *scale = match rule.search {
            Search::Refine(passes) => refine(x, weights, codes, max, half, passes),
            Search::Scan(steps) => scan(x, weights, codes, max, Integers::halves(half), steps),
        };
        for code in codes {
            *code += half;
        }
    }
    let max = largest(&scales);
    let zero = match rule.search {
        Search::Refine(_) => max == 0.0,
        Search::Scan(_) => max.abs() < SMALLEST,
    };
    if zero {
        return None;
    }
    let per = rule.low / max;
    let scale = 1.0 / per;
    let runs = scales.map(|scale| nearest(per * scale, rule.low, rule.high));
    let step = stored(scale);
    for ((x, codes), factor) in x.chunks_exact(run).zip(codes.chunks_exact_mut(run)).zip(runs) {
        let step = step * factor;
        if step != 0.0 {
            for (code, x) in codes.iter_mut().zip(x) {
                *code = nearest(x / step, -half, bound) + half;
            }
        }
    }
    // An infinite scale has the inverse 0 and would look like a sound one.
    let scale = if max.is_finite() { scale } else { max };
    Some(Found {
        codes: codes.map(|code| code as u16),
        scale,
        runs: runs.map(|factor| factor as i32),
        ..Found::ZERO
    })
}

/// The integers that codes stand for, from `low` to `high`, and what the weight of greatest magnitude becomes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Integers {
    pub top: f32,
    pub low: f32,
    pub high: f32,
}

impl Integers {
    fn halves(half: f32) -> Integers {
        Integers { top: -half, low: -half, high: half - 1.0 }
    }
}

/// Codes by one inverse scale; the sums of w x l and w l l.
#[inline(always)]
fn rounded(x: &[f32], weights: &[f32], codes: &mut [f32], per: f32, integers: Integers) -> (f32, f32) {
    let (mut sum_xl, mut sum_ll) = (0f32, 0f32);
    for ((code, &x), &w) in codes.iter_mut().zip(x).zip(weights) {
        let l = nearest(per * x, integers.low, integers.high);
        *code = l;
        sum_xl += w * x * l;
        sum_ll += w * l * l;
    }
    (sum_xl, sum_ll)
}

#[inline(always)]
fn refine(x: &[f32], weights: &[f32], codes: &mut [f32], max: f32, half: f32, passes: u32) -> f32 {
    let (mut sum_xl, mut sum_ll) = rounded(x, weights, codes, -half / max, Integers::halves(half));
    for _ in 0..passes {
        let mut changed = false;
        for ((code, &x), &w) in codes.iter_mut().zip(x).zip(weights) {
            let mut xl = sum_xl - w * x * *code;
            if xl > 0.0 {
                let mut ll = sum_ll - w * *code * *code;
                let l = nearest(x * ll / xl, -half, half - 1.0);
                if l != *code {
                    xl += w * x * l;
                    ll += w * l * l;
                    if ll > 0.0 && xl * xl * sum_ll > sum_xl * sum_xl * ll {
                        (*code, sum_xl, sum_ll) = (l, xl, ll);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    // NaN stays NaN: sums that overflowed must be refused and not become a zero.
    if sum_ll <= 0.0 { 0.0 } else { sum_xl / sum_ll }
}

/// The sums of [`rounded`] for several inverse scales, a vector lane to each: every sum is taken in the order of the weights.
#[inline(always)]
fn sums_of_trials(x: &[f32], weights: &[f32], per: [f32; TRIALS], integers: Integers) -> [[f32; TRIALS]; 2] {
    let (mut sum_xl, mut sum_ll) = ([0f32; TRIALS], [0f32; TRIALS]);
    for (&x, &w) in x.iter().zip(weights) {
        for i in 0..TRIALS {
            let l = nearest(per[i] * x, integers.low, integers.high);
            sum_xl[i] += w * x * l;
            sum_ll[i] += w * l * l;
        }
    }
    [sum_xl, sum_ll]
}

/// The best scale of a run, of those by which its weight of greatest magnitude, `max`, becomes about `integers.top`.
#[inline(always)]
pub(super) fn scan(
    x: &[f32],
    weights: &[f32],
    codes: &mut [f32],
    max: f32,
    integers: Integers,
    steps: u32,
) -> f32 {
    let (sum_xl, sum_ll) = rounded(x, weights, codes, integers.top / max, integers);
    let mut scale = if sum_ll != 0.0 { sum_xl / sum_ll } else { 0.0 };
    let mut best = scale * sum_xl;
    let steps = steps as i32;
    let mut taken = None;
    let mut first = -steps;
    while first <= steps {
        // Those beyond the last step are computed for nothing.
        let mut per = [0f32; TRIALS];
        for (i, per) in per.iter_mut().enumerate() {
            *per = (integers.top - 0.1 * (first + i as i32) as f32) / max;
        }
        let [sums_xl, sums_ll] = sums_of_trials(x, weights, per, integers);
        for (i, (sum_xl, sum_ll)) in sums_xl.into_iter().zip(sums_ll).enumerate() {
            let step = first + i as i32;
            if step <= steps && step != 0 && sum_ll > 0.0 && sum_xl * sum_xl > best * sum_ll {
                taken = Some(per[i]);
                scale = sum_xl / sum_ll;
                best = scale * sum_xl;
            }
        }
        first += TRIALS as i32;
    }
    if let Some(per) = taken {
        for (code, &x) in codes.iter_mut().zip(x) {
            *code = nearest(per * x, integers.low, integers.high);
        }
    }
    scale
}
