//! `grid-search`: codes that stand for entries of a codebook, signs in a plane of their own (ggml's IQ2_S and
//! its kin).
//!
//! Not the reference's search but an exhaustive one: the weighted error of an entry at scale c is
//! `c * c * q - 2 * c * p` plus a constant, with p and q sums that do not depend on c, so one pass over the
//! codebook finds the best entry for every factor that a run may have.

use super::columns::LANES;

/// What a format of this kind is made of.
#[derive(Clone, Copy, Debug)]
pub struct Grid<'a, T, const W: usize, const S: usize> {
    /// The codebook by [columns](super::columns::columns): `W` magnitudes an entry.
    pub columns: &'a [[[T; LANES]; W]],
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

/// What the scales of a block are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scales<'a, const S: usize> {
    /// See [`Grid::levels`].
    pub levels: &'a [f32],
    /// See [`Grid::factors`].
    pub factors: [f32; S],
    /// See [`Grid::steps`].
    pub steps: u32,
}

/// The best of what a format has beside its scales, given these.
pub(super) trait Encode<const S: usize> {
    /// What the groups of a block get.
    type Codes: Copy;

    /// The factor of run `run` and the codes of its groups, at the factors' scales `scales`; and the sums of w x q and w q q
    /// over the run, where q is the integer of a weight.
    fn encode(&self, run: usize, scales: [f32; S], codes: &mut Self::Codes) -> (u16, f32, f32);
}

/// What errors count by: without importance x^2 plus half the mean of x^2 in the block, as the reference has it.
#[inline(always)]
pub(super) fn weigh<const E: usize>(x: &[f32; E], importance: Option<&[f32; E]>) -> [f32; E] {
    if let Some(importance) = importance {
        return super::weigh(x, importance);
    }
    let mut sum = 0f32;
    for x in x {
        sum += x * x;
    }
    let floor = 0.5 * (sum / E as f32);
    x.map(|x| floor + x * x)
}

/// Codes, the scale of the block and the stored factors of its runs. `None`: a block of zero bytes.
///
/// `stored` rounds the scale to the type that it is stored in; `zero` is what no search has been made for.
#[inline(always)]
pub(super) fn search<C: Copy, const E: usize, const R: usize, const S: usize>(
    magnitudes: &[f32; E],
    weights: &[f32; E],
    scales: &Scales<'_, S>,
    encoder: &impl Encode<S, Codes = C>,
    zero: C,
    stored: impl Fn(f32) -> f32,
) -> Option<(C, f32, [u16; R])> {
    let mut max = 0f32;
    for (x, weights) in magnitudes.chunks_exact(E / R).zip(weights.chunks_exact(E / R)) {
        let scale = run_scale(x, weights, scales.levels, scales.steps);
        if !scale.is_finite() {
            return Some((zero, scale, [0; R]));
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
        let (mut codes, mut scale, mut runs) = (zero, max / scales.factors[top], [0u16; R]);
        // The second pass starts from the scale that suits the codes of the first.
        for _ in 0..2 {
            let step = stored(scale);
            if step == 0.0 {
                break;
            }
            let (mut sum_xq, mut sum_qq) = (0f32, 0f32);
            for (run, stored) in runs.iter_mut().enumerate() {
                let (chosen, xq, qq) =
                    encoder.encode(run, scales.factors.map(|factor| factor * step), &mut codes);
                *stored = chosen;
                let factor = scales.factors[usize::from(chosen)];
                sum_xq += factor * xq;
                sum_qq += factor * factor * qq;
            }
            if sum_qq > 0.0 && sum_xq > 0.0 {
                scale = sum_xq / sum_qq;
            }
            let step = stored(scale);
            let error = step * step * sum_qq - 2.0 * step * sum_xq;
            if error < least {
                least = error;
                best = Some((codes, scale, runs));
            }
        }
    }
    // No scale that can be stored is better than none, or none is finite: then the first guess is refused.
    let first = max / scales.factors[S - 1];
    if stored(first).is_finite() { best } else { Some((zero, first, [0; R])) }
}

/// `w = scale * factor * entry, negated by signs`. `None`: a block of zero bytes.
///
/// `stored` rounds the scale to the type that it is stored in.
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
    importance: Option<&[f32; E]>,
    grid: &Grid<'_, T, W, S>,
    stored: impl Fn(f32) -> f32,
) -> Option<Found<C, G, R>>
where
    T: Copy,
    f32: From<T>,
{
    let weights = weigh(x, importance);
    let (signs, magnitudes) = signs::<E, G>(x, &weights, grid.parity);
    let scales = Scales { levels: grid.levels, factors: grid.factors, steps: grid.steps };
    let encoder = Magnitudes::<_, E, C, R, W> { x: &magnitudes, weights: &weights, columns: grid.columns };
    let found = search::<_, E, R, S>(&magnitudes, &weights, &scales, &encoder, [0u16; C], stored);
    found.map(|(codes, scale, runs)| Found { codes, signs, scale, runs })
}

/// A block without its signs, and the codebook.
struct Magnitudes<'a, T, const E: usize, const C: usize, const R: usize, const W: usize> {
    x: &'a [f32; E],
    weights: &'a [f32; E],
    columns: &'a [[[T; LANES]; W]],
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

impl<T, const E: usize, const C: usize, const R: usize, const W: usize, const S: usize> Encode<S>
    for Magnitudes<'_, T, E, C, R, W>
where
    T: Copy,
    f32: From<T>,
{
    type Codes = [u16; C];

    #[inline(always)]
    fn encode(&self, run: usize, scales: [f32; S], codes: &mut [u16; C]) -> (u16, f32, f32) {
        let groups = run * (C / R)..(run + 1) * (C / R);
        let (mut twice, mut square) = ([0f32; S], [0f32; S]);
        for s in 0..S {
            (twice[s], square[s]) = (2.0 * scales[s], scales[s] * scales[s]);
        }
        let mut entries = [[0u16; S]; C];
        let mut totals = [0f32; S];
        for group in groups.clone() {
            let mut best = [f32::INFINITY; S];
            let mut at = [0u16; S];
            for (step, columns) in self.columns.iter().enumerate() {
                let (p, q) = sums(self.x, self.weights, columns, group);
                for lane in 0..LANES {
                    let index = (step * LANES + lane) as u16;
                    for s in 0..S {
                        let error = square[s] * q[lane] - twice[s] * p[lane];
                        let better = error < best[s];
                        best[s] = if better { error } else { best[s] };
                        at[s] = if better { index } else { at[s] };
                    }
                }
            }
            entries[group] = at;
            for (total, best) in totals.iter_mut().zip(best) {
                *total += best;
            }
        }
        let chosen = least(&totals);
        let (mut sum_xq, mut sum_qq) = (0f32, 0f32);
        for group in groups {
            codes[group] = entries[group][chosen];
            let code = usize::from(codes[group]);
            let (p, q) = sums(self.x, self.weights, &self.columns[code / LANES], group);
            sum_xq += p[code % LANES];
            sum_qq += q[code % LANES];
        }
        (chosen as u16, sum_xq, sum_qq)
    }
}

/// The place of the smallest of some errors, the first of equal ones.
#[inline(always)]
pub(super) fn least(errors: &[f32]) -> usize {
    let mut chosen = 0;
    for (at, error) in errors.iter().enumerate() {
        if *error < errors[chosen] {
            chosen = at;
        }
    }
    chosen
}

/// The sums of w x q and w q q of the entries of a step for one group.
#[inline(always)]
fn sums<T: Copy, const W: usize>(
    x: &[f32],
    weights: &[f32],
    columns: &[[T; LANES]; W],
    group: usize,
) -> ([f32; LANES], [f32; LANES])
where
    f32: From<T>,
{
    let (x, weights) = (&x[group * W..][..W], &weights[group * W..][..W]);
    let (mut p, mut q) = ([0f32; LANES], [0f32; LANES]);
    // By places and not by `zip`, which is not always inlined: this is the innermost loop.
    for i in 0..W {
        for lane in 0..LANES {
            let value = f32::from(columns[i][lane]);
            p[lane] += weights[i] * x[i] * value;
            q[lane] += weights[i] * value * value;
        }
    }
    (p, q)
}
