//! `grid-search` where entries of the codebook have signs of their own and runs of weights are shifted (ggml's IQ1_S and
//! IQ1_M).
//!
//! As exhaustive as [`super::grid`]: every entry with every shift, for every factor that a run may have. With the sums of
//! w x g, w g and w g g over a group, g being the integers of an entry, the error of each shift is three multiplications.

use super::columns::LANES;
use super::grid::{Encode, Scales, least, search, weigh};

/// What a format of this kind is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shifted<'a, T, const W: usize, const S: usize, const H: usize> {
    /// The codebook by [columns](super::columns::columns): `W` integers an entry.
    pub columns: &'a [[[T; LANES]; W]],
    /// The magnitudes of shifted integers, ascending.
    pub levels: &'a [f32],
    /// What each stored shift adds.
    pub shifts: [f32; H],
    /// The factor that each stored factor of a run stands for, times the format's unit; positive, ascending.
    pub factors: [f32; S],
    /// Scales tried for each run, on either side of the one that makes its largest weight the largest level.
    pub steps: u32,
}

/// What was found: `C` codes, `G` stored shifts and `R` stored factors.
#[derive(Clone, Copy, Debug)]
pub struct Found<const C: usize, const G: usize, const R: usize> {
    /// The entry of each group.
    pub codes: [u16; C],
    /// The stored shifts.
    pub shifts: [u16; G],
    /// The scale of the block.
    pub scale: f32,
    /// The stored factor of each run.
    pub runs: [u16; R],
}

/// `w = scale * factor * (entry + shift)`. `None`: a block of zero bytes.
///
/// `stored` rounds the scale to the type that it is stored in.
#[inline(always)]
pub fn shifted_search<
    T,
    const E: usize,
    const C: usize,
    const G: usize,
    const R: usize,
    const W: usize,
    const S: usize,
    const H: usize,
>(
    x: &[f32; E],
    importance: Option<&[f32; E]>,
    rule: &Shifted<'_, T, W, S, H>,
    stored: impl Fn(f32) -> f32,
) -> Option<Found<C, G, R>>
where
    T: Copy,
    f32: From<T>,
{
    let weights = weigh(x, importance);
    let magnitudes = x.map(f32::abs);
    let scales = Scales { levels: rule.levels, factors: rule.factors, steps: rule.steps };
    let Shifted { columns, shifts, .. } = *rule;
    let encoder = Block::<_, E, C, G, R, W, H> { x, weights: &weights, columns, shifts };
    let zero = ([0u16; C], [0u16; G]);
    let found = search::<_, E, R, S>(&magnitudes, &weights, &scales, &encoder, zero, stored);
    found.map(|((codes, shifts), scale, runs)| Found { codes, shifts, scale, runs })
}

/// A block, and what its weights are made of.
struct Block<
    'a,
    T,
    const E: usize,
    const C: usize,
    const G: usize,
    const R: usize,
    const W: usize,
    const H: usize,
> {
    x: &'a [f32; E],
    weights: &'a [f32; E],
    columns: &'a [[[T; LANES]; W]],
    shifts: [f32; H],
}

impl<
    T,
    const E: usize,
    const C: usize,
    const G: usize,
    const R: usize,
    const W: usize,
    const S: usize,
    const H: usize,
> Encode<S> for Block<'_, T, E, C, G, R, W, H>
where
    T: Copy,
    f32: From<T>,
{
    type Codes = ([u16; C], [u16; G]);

    #[inline(always)]
    fn encode(&self, run: usize, scales: [f32; S], codes: &mut Self::Codes) -> (u16, f32, f32) {
        let (mut twice, mut square) = ([0f32; S], [0f32; S]);
        for s in 0..S {
            (twice[s], square[s]) = (2.0 * scales[s], scales[s] * scales[s]);
        }
        let mut entries = [[[0u16; S]; H]; C];
        let mut shifts = [[0u16; S]; G];
        let mut totals = [0f32; S];
        // The shifts of the run, and the groups that share one.
        let places = run * (G / R)..(run + 1) * (G / R);
        let groups = |place: usize| place * (C / G)..(place + 1) * (C / G);
        for place in places.clone() {
            let mut errors = [[0f32; S]; H];
            for group in groups(place) {
                let mut best = [[f32::INFINITY; S]; H];
                let at = &mut entries[group];
                let (sum_wx, sum_w) = self.plain(group);
                for (step, columns) in self.columns.iter().enumerate() {
                    let [wxg, wg, wgg] = self.sums(columns, group);
                    for lane in 0..LANES {
                        let index = (step * LANES + lane) as u16;
                        let sums = [wxg[lane], wg[lane], wgg[lane]];
                        for h in 0..H {
                            let (p, q) = moved(sums, (sum_wx, sum_w), self.shifts[h]);
                            for s in 0..S {
                                let error = square[s] * q - twice[s] * p;
                                let better = error < best[h][s];
                                best[h][s] = if better { error } else { best[h][s] };
                                at[h][s] = if better { index } else { at[h][s] };
                            }
                        }
                    }
                }
                for (errors, best) in errors.iter_mut().zip(best) {
                    for (error, best) in errors.iter_mut().zip(best) {
                        *error += best;
                    }
                }
            }
            for s in 0..S {
                let chosen = least(&errors.map(|errors| errors[s]));
                shifts[place][s] = chosen as u16;
                totals[s] += errors[chosen][s];
            }
        }
        let chosen = least(&totals);
        let (mut sum_xq, mut sum_qq) = (0f32, 0f32);
        for place in places {
            let shift = shifts[place][chosen];
            codes.1[place] = shift;
            for group in groups(place) {
                let code = entries[group][usize::from(shift)][chosen];
                codes.0[group] = code;
                let code = usize::from(code);
                let ([wxg, wg, wgg], lane) = (self.sums(&self.columns[code / LANES], group), code % LANES);
                let (p, q) = moved(
                    [wxg[lane], wg[lane], wgg[lane]],
                    self.plain(group),
                    self.shifts[usize::from(shift)],
                );
                sum_xq += p;
                sum_qq += q;
            }
        }
        (chosen as u16, sum_xq, sum_qq)
    }
}

impl<T, const E: usize, const C: usize, const G: usize, const R: usize, const W: usize, const H: usize>
    Block<'_, T, E, C, G, R, W, H>
where
    T: Copy,
    f32: From<T>,
{
    /// The sums of w x and w over one group.
    #[inline(always)]
    fn plain(&self, group: usize) -> (f32, f32) {
        let (mut sum_wx, mut sum_w) = (0f32, 0f32);
        for (&x, &weight) in self.x[group * W..][..W].iter().zip(&self.weights[group * W..][..W]) {
            sum_wx += weight * x;
            sum_w += weight;
        }
        (sum_wx, sum_w)
    }

    /// The sums of w x g, w g and w g g of the entries of a step over one group.
    #[inline(always)]
    fn sums(&self, columns: &[[T; LANES]; W], group: usize) -> [[f32; LANES]; 3] {
        let (x, weights) = (&self.x[group * W..][..W], &self.weights[group * W..][..W]);
        let mut sums = [[0f32; LANES]; 3];
        // By places, as in `grid`.
        for i in 0..W {
            for lane in 0..LANES {
                let value = f32::from(columns[i][lane]);
                sums[0][lane] += weights[i] * x[i] * value;
                sums[1][lane] += weights[i] * value;
                sums[2][lane] += weights[i] * value * value;
            }
        }
        sums
    }
}

/// The sums of w x q and w q q, where q is g moved by `shift`, of those of g and of the weights alone.
#[inline(always)]
fn moved([wxg, wg, wgg]: [f32; 3], (wx, w): (f32, f32), shift: f32) -> (f32, f32) {
    (wxg + shift * wx, wgg + shift * (2.0 * wg + shift * w))
}
