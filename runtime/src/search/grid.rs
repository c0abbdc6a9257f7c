//! `grid-search`: codes that stand for entries of a codebook, signs in a plane of their own (ggml's IQ2_S and
//! its kin).
//!
//! Not the reference's search but an exhaustive one: the weighted error of an entry at scale c is
//! `c * c * q - 2 * c * p` plus a constant, with p and q sums that do not depend on c, so one pass over the
//! codebook finds the best entry for every factor that a run may have.

/// What a format of this kind is made of.
#[derive(Clone, Copy, Debug)]
pub struct Grid<'a, T, const W: usize, const S: usize> {
    /// The codebook: `W` magnitudes an entry.
    pub entries: &'a [[T; W]],
    /// The magnitudes that occur in it, ascending.
    pub levels: &'a [f32],
    /// The factor that each stored factor of a run stands for, times the format's unit; positive, ascending.
    pub factors: [f32; S],
    /// Scales tried for each run, on either side of the one that makes its largest weight the largest level.
    pub steps: u32,
    /// A mask has one bit too few; the missing top bit makes the number of ones even.
    pub parity: bool,
}

/// What was found: `C` codes, `G` sign masks and `R` stored factors.
#[derive(Clone, Copy, Debug)]
pub struct Found<const C: usize, const G: usize, const R: usize> {
    /// The entry of each group.
    pub codes: [u16; C],
    /// The sign masks.
    pub signs: [u16; G],
    /// The scale of the block.
    pub scale: f32,
    /// The stored factor of each run.
    pub runs: [u16; R],
}

/// Guesses of the block's scale, from the largest factor down.
const STARTS: usize = 3;

/// Runs with smaller weights than this get no say in the scale.
const SMALLEST: f32 = 1e-8;

/// `w = scale * factor * entry, negated by signs`. `None`: a block of zero bytes.
///
/// Errors are weighed by x^2 plus half the mean of x^2 in the block, as the reference does without importance
/// weights. `stored` rounds the scale to the type that it is stored in.
#[inline(always)]
pub fn grid_search<
    T,
    const E: usize,
    const C: usize,
    const G: usize,
    const R: usize,
    const W: usize,
    const S: usize,
>(
    x: &[f32; E],
    grid: &Grid<'_, T, W, S>,
    stored: impl Fn(f32) -> f32,
) -> Option<Found<C, G, R>>
where
    T: Copy,
    f32: From<T>,
{
    let mut sum = 0f32;
    for x in x {
        sum += x * x;
    }
    let floor = 0.5 * (sum / E as f32);
    let weights = x.map(|x| floor + x * x);
    let (signs, magnitudes) = signs::<E, G>(x, &weights, grid.parity);
    let mut found = Found { codes: [0; C], signs, scale: 0.0, runs: [0; R] };
    let mut max = 0f32;
    for (x, weights) in magnitudes.chunks_exact(E / R).zip(weights.chunks_exact(E / R)) {
        let scale = run_scale(x, weights, grid.levels, grid.steps);
        if !scale.is_finite() {
            return Some(Found { scale, ..found });
        }
        max = max.max(scale);
    }
    if max == 0.0 {
        return None;
    }
    // The run of largest scale need not have the largest factor: a smaller one may suit the others better.
    let mut least = f32::INFINITY;
    let mut best = None;
    for top in (0..S).rev().take(STARTS) {
        let mut trial = Found { scale: max / grid.factors[top], ..found };
        // The second pass starts from the scale that suits the codes of the first.
        for _ in 0..2 {
            let step = stored(trial.scale);
            if step == 0.0 {
                break;
            }
            let (mut sum_xq, mut sum_qq) = (0f32, 0f32);
            for run in 0..R {
                let groups = run * (C / R)..(run + 1) * (C / R);
                let (codes, factor) = (&mut trial.codes, &mut trial.runs[run]);
                let (xq, qq) = encode(&magnitudes, &weights, grid, step, groups, codes, factor);
                let factor = grid.factors[usize::from(trial.runs[run])];
                sum_xq += factor * xq;
                sum_qq += factor * factor * qq;
            }
            if sum_qq > 0.0 && sum_xq > 0.0 {
                trial.scale = sum_xq / sum_qq;
            }
            let step = stored(trial.scale);
            let error = step * step * sum_qq - 2.0 * step * sum_xq;
            if error < least {
                least = error;
                best = Some(trial);
            }
        }
    }
    // No scale that can be stored is better than none, or none is finite: then the first guess is refused.
    found.scale = max / grid.factors[S - 1];
    if stored(found.scale).is_finite() { best } else { Some(found) }
}

/// Sign masks, and the values without their signs. Where parity forbids a mask, the weight whose sign matters
/// least is stored with the wrong one, and keeps a negative magnitude.
#[inline(always)]
fn signs<const E: usize, const G: usize>(
    x: &[f32; E],
    weights: &[f32; E],
    parity: bool,
) -> ([u16; G], [f32; E]) {
    let mut magnitudes = x.map(f32::abs);
    let mut masks = [0u16; G];
    let width = E / G;
    for (group, mask) in masks.iter_mut().enumerate() {
        let first = group * width;
        let x = &x[first..][..width];
        for (bit, &x) in x.iter().enumerate() {
            *mask |= u16::from(x < 0.0) << bit;
        }
        if parity {
            if mask.count_ones() % 2 == 1 {
                let (mut least, mut at) = (f32::INFINITY, 0);
                for (bit, (&x, &weight)) in x.iter().zip(&weights[first..]).enumerate() {
                    let matters = weight * x * x;
                    if matters < least {
                        (least, at) = (matters, bit);
                    }
                }
                *mask ^= 1 << at;
                magnitudes[first + at] = -magnitudes[first + at];
            }
            *mask &= (1 << (width - 1)) - 1;
        }
    }
    (masks, magnitudes)
}

/// The best scale of a run whose weights may take any level.
#[inline(always)]
fn run_scale(x: &[f32], weights: &[f32], levels: &[f32], steps: u32) -> f32 {
    let max = x.iter().fold(0f32, |max, &x| max.max(x));
    if max < SMALLEST {
        return 0.0;
    }
    let top = levels[levels.len() - 1];
    let (mut scale, mut best) = (0f32, 0f32);
    let steps = steps as i32;
    for step in -steps..=steps {
        let per = top * (1.0 + 0.02 * step as f32) / max;
        let (mut sum_xq, mut sum_qq) = (0f32, 0f32);
        for (&x, &weight) in x.iter().zip(weights) {
            let y = per * x;
            // Level i + 1 from the middle between it and level i.
            let index = levels.windows(2).filter(|pair| y > 0.5 * (pair[0] + pair[1])).count();
            let q = levels[index];
            sum_xq += weight * x * q;
            sum_qq += weight * q * q;
        }
        if !sum_xq.is_finite() {
            return sum_xq;
        }
        if sum_xq > 0.0 && sum_xq * sum_xq > best * sum_qq {
            scale = sum_xq / sum_qq;
            best = scale * sum_xq;
        }
    }
    scale
}

/// The best factor of a run and the best entry of each of its groups, at the block's scale `step`; returns
/// the sums of w x q and w q q over the run.
#[inline(always)]
fn encode<T, const C: usize, const W: usize, const S: usize>(
    x: &[f32],
    weights: &[f32],
    grid: &Grid<'_, T, W, S>,
    step: f32,
    groups: std::ops::Range<usize>,
    codes: &mut [u16; C],
    factor: &mut u16,
) -> (f32, f32)
where
    T: Copy,
    f32: From<T>,
{
    let scales = grid.factors.map(|factor| factor * step);
    let (twice, square) = (scales.map(|c| 2.0 * c), scales.map(|c| c * c));
    let mut entries = [[0u16; S]; C];
    let mut totals = [0f32; S];
    for group in groups.clone() {
        let mut best = [f32::INFINITY; S];
        let mut at = [0u16; S];
        for (index, entry) in grid.entries.iter().enumerate() {
            let (p, q) = sums(x, weights, entry, group);
            for s in 0..S {
                let error = square[s] * q - twice[s] * p;
                let better = error < best[s];
                best[s] = if better { error } else { best[s] };
                at[s] = if better { index as u16 } else { at[s] };
            }
        }
        entries[group] = at;
        for (total, best) in totals.iter_mut().zip(best) {
            *total += best;
        }
    }
    let mut chosen = 0;
    for s in 1..S {
        if totals[s] < totals[chosen] {
            chosen = s;
        }
    }
    *factor = chosen as u16;
    let (mut sum_xq, mut sum_qq) = (0f32, 0f32);
    for group in groups {
        codes[group] = entries[group][chosen];
        let (p, q) = sums(x, weights, &grid.entries[usize::from(codes[group])], group);
        sum_xq += p;
        sum_qq += q;
    }
    (sum_xq, sum_qq)
}

/// The sums of w x q and w q q of one entry for one group.
#[inline(always)]
fn sums<T: Copy, const W: usize>(x: &[f32], weights: &[f32], entry: &[T; W], group: usize) -> (f32, f32)
where
    f32: From<T>,
{
    let (x, weights) = (&x[group * W..][..W], &weights[group * W..][..W]);
    let (mut p, mut q) = (0f32, 0f32);
    for ((&x, &weight), &value) in x.iter().zip(weights).zip(entry) {
        let value = f32::from(value);
        p += weight * x * value;
        q += weight * value * value;
    }
    (p, q)
}
