//! Quantizers for tables of levels: `level-scan` (ggml's IQ4_NL, IQ4_XS) and `nearest-level` (MXFP4, NVFP4).

use super::{Found, SMALLEST, TRIALS, inverse, largest, nearest, relative, weigh};
use crate::number;

/// Parameters of `level-scan`.
#[derive(Clone, Copy, Debug)]
pub struct LevelScan<'a> {
    /// The levels, ascending; the first is negative.
    pub levels: &'a [f32],
    /// This many larger and as many smaller scales are tried, a unit apart at the first level.
    pub steps: u32,
    /// Smallest and largest factor of a run; `None`: the block has one scale and no factors.
    pub runs: Option<(f32, f32)>,
}

/// A scale (for each run) of a table of levels: `w = scale (* factor) * levels[code]`. Without `importance`, errors count by
/// x^2.
#[inline(always)]
pub fn level_scan<const E: usize, const R: usize>(
    x: &[f32; E],
    importance: Option<&[f32; E]>,
    rule: &LevelScan<'_>,
) -> Found<E, R> {
    let run = E / R;
    let weights = importance.map_or_else(|| x.map(|x| x * x), |importance| weigh(x, importance));
    let mut scales = [0f32; R];
    for ((x, weights), scale) in x.chunks_exact(run).zip(weights.chunks_exact(run)).zip(&mut scales) {
        *scale = scan(x, weights, rule);
    }
    let mut found = Found::ZERO;
    found.scale = largest(&scales);
    if let Some((low, high)) = rule.runs {
        found.scale /= low;
        let per = inverse(found.scale);
        found.runs = scales.map(|scale| nearest(per * scale, low, high) as i32);
        // By the unrounded scale, as the reference has it.
        scales = found.runs.map(|factor| found.scale * factor as f32);
    }
    for ((x, codes), scale) in x.chunks_exact(run).zip(found.codes.chunks_exact_mut(run)).zip(scales) {
        let per = inverse(scale);
        for (code, x) in codes.iter_mut().zip(x) {
            *code = index(rule.levels, per * x) as u16;
        }
    }
    found
}

/// The best scale of a run.
#[inline(always)]
fn scan(x: &[f32], weights: &[f32], rule: &LevelScan<'_>) -> f32 {
    let max = largest(x);
    if max.abs() < SMALLEST {
        return 0.0;
    }
    let first = rule.levels[0];
    let steps = rule.steps as i32;
    let (mut scale, mut best) = (0f32, 0f32);
    // The scale without a step comes first.
    let mut trial = -steps - 1;
    while trial <= steps {
        // Those beyond the last step are computed for nothing.
        let mut per = [0f32; TRIALS];
        for (i, per) in per.iter_mut().enumerate() {
            let step = trial + i as i32;
            *per = if step < -steps { 1.0 / (-max / first) } else { (step as f32 + first) / max };
        }
        let [sums_qx, sums_qq] = sums_of_trials(x, weights, per, rule.levels);
        for (i, (sum_qx, sum_qq)) in sums_qx.into_iter().zip(sums_qq).enumerate() {
            let step = trial + i as i32;
            if step < -steps {
                // NaN stays NaN: sums that overflowed must be refused and not become a zero.
                scale = if sum_qq <= 0.0 { 0.0 } else { sum_qx / sum_qq };
                best = scale * sum_qx;
            } else if step <= steps && sum_qq > 0.0 && sum_qx * sum_qx > best * sum_qq {
                scale = sum_qx / sum_qq;
                best = scale * sum_qx;
            }
        }
        trial += TRIALS as i32;
    }
    scale
}

/// The sums of w q x and w q q for several inverse scales, a vector lane to each: every sum is taken in the order of the weights.
#[inline(always)]
fn sums_of_trials(x: &[f32], weights: &[f32], per: [f32; TRIALS], levels: &[f32]) -> [[f32; TRIALS]; 2] {
    let (mut sum_qx, mut sum_qq) = ([0f32; TRIALS], [0f32; TRIALS]);
    for (&x, &w) in x.iter().zip(weights) {
        let mut nearest = [levels[0]; TRIALS];
        for pair in levels.windows(2) {
            for i in 0..TRIALS {
                let y = per[i] * x;
                // As in `index`: a tie goes to the upper one, NaN to the lowest.
                nearest[i] = if y - pair[0] >= pair[1] - y { pair[1] } else { nearest[i] };
            }
        }
        for i in 0..TRIALS {
            sum_qx[i] += w * nearest[i] * x;
            sum_qq[i] += w * nearest[i] * nearest[i];
        }
    }
    [sum_qx, sum_qq]
}

/// The nearest of ascending levels; a tie goes to the upper one.
#[inline(always)]
fn index(levels: &[f32], y: f32) -> usize {
    let above = levels.iter().filter(|&&level| y >= level).count();
    if above == 0 {
        return 0;
    }
    let below = above - 1;
    if above == levels.len() || y - levels[below] < levels[above] - y { below } else { above }
}

/// Scales of `nearest-level`.
#[derive(Clone, Copy, Debug)]
pub struct StoredScales<E, D> {
    /// The stored scale for a largest magnitude; none where it is too large for its type.
    pub encode: E,
    /// The value of a stored scale.
    pub decode: D,
    /// The largest stored scale.
    pub last: u8,
    /// With importance, as many smaller and as many larger stored scales are tried.
    pub reach: u8,
}

/// Runs with a scale of their own, read off their largest magnitude, and the nearest level for each weight;
/// of equally near levels the first. The stored scale is in `runs`. With `importance`, neighbouring scales are tried, and
/// the one of least error is taken, of equally good ones the one that would have been without. None where a run's scale is too
/// large to be stored.
#[inline(always)]
pub fn nearest_level<const E: usize, const R: usize>(
    x: &[f32; E],
    importance: Option<&[f32; E]>,
    levels: &[f32],
    scales: &StoredScales<impl Fn(f32) -> Option<u8>, impl Fn(u8) -> f32>,
) -> Option<Found<E, R>> {
    let run = E / R;
    let weights = importance.map(relative);
    let mut found = Found::ZERO;
    for (index, (x, codes)) in x.chunks_exact(run).zip(found.codes.chunks_exact_mut(run)).enumerate() {
        let mut raw = (scales.encode)(number::abs_max(x))?;
        if let Some(weights) = &weights {
            let weights = &weights[index * run..][..run];
            let mut least = nearest_error(x, weights, levels, (scales.decode)(raw));
            for other in raw.saturating_sub(scales.reach)..=raw.saturating_add(scales.reach).min(scales.last)
            {
                let error = nearest_error(x, weights, levels, (scales.decode)(other));
                if error < least {
                    (least, raw) = (error, other);
                }
            }
        }
        let scale = (scales.decode)(raw);
        found.runs[index] = raw.into();
        for (code, x) in codes.iter_mut().zip(x) {
            let mut best = (levels[0] * scale - x).abs();
            for (level, value) in levels.iter().enumerate().skip(1) {
                let off = (value * scale - x).abs();
                if off < best {
                    best = off;
                    *code = level as u16;
                }
            }
        }
    }
    Some(found)
}

/// The error of a run at a scale.
#[inline(always)]
fn nearest_error(x: &[f32], weights: &[f32], levels: &[f32], scale: f32) -> f32 {
    let mut error = 0f32;
    for (x, weight) in x.iter().zip(weights) {
        let least = levels.iter().fold(f32::INFINITY, |least, level| (level * scale - x).abs().min(least));
        error += weight * least * least;
    }
    error
}

/// The exponent for which the power of two in `max` meets the power of two in the largest level `top`; values
/// up to the next power of two saturate. Below the smallest exponent it stays there. There is one for every f32.
#[inline(always)]
pub fn e8m0_half(max: f32, top: f32) -> Option<u8> {
    if max == 0.0 {
        return Some(0);
    }
    let exponent = |value: f32| (value.to_bits() >> 23) as i32 - 127;
    Some((exponent(max) - exponent(top) + 128).clamp(0, 254) as u8)
}

/// The scale that makes `max` the largest level `top`: e4m3 rounded half up on its fourth bit. None from halfway between 448,
/// which is the greatest, and what would follow it.
#[inline(always)]
pub fn ue4m3_half(max: f32, top: f32) -> Option<u8> {
    // Stored is twice what is decoded.
    let scale = max / (top * 0.5);
    if scale >= 464.0 {
        return None;
    }
    let bits = scale.to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        // Subnormal: multiples of 2^-9.
        return Some((scale * 512.0 + 0.5).trunc().min(7.0) as u8);
    }
    let rounded = ((exponent as u32) << 3 | bits >> 20 & 7) + (bits >> 19 & 1);
    Some(if rounded >= 15 << 3 { 0x7e } else { rounded as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_upper_level() {
        let levels = [-4.0, -1.0, 2.0];
        let cases =
            [(-9.0, 0), (-4.0, 0), (-2.6, 0), (-2.5, 1), (-1.0, 1), (0.4, 1), (0.5, 2), (2.0, 2), (7.0, 2)];
        for (y, expected) in cases {
            assert_eq!(index(&levels, y), expected, "y = {y}");
        }
    }

    #[test]
    fn scales_without_a_mantissa_are_powers_of_two() {
        // Levels up to 12 (6, doubled): 6 = 1.5 * 2^2, so 1 = 2^0 gets 2^(0 - 2).
        for (max, e) in
            [(0.0, 0), (1.0, 125), (1.99, 125), (2.0, 126), (6.0, 127), (1e-40, 0), (f32::MAX, 252)]
        {
            assert_eq!(e8m0_half(max, 12.0), Some(e), "max = {max}");
        }
    }

    #[test]
    fn e4m3_scales_round_half_up() {
        let cases = [
            (0.0, 0),
            (6.0, 0x38),
            (6.0 * 1.0625, 0x39),
            (6.0 * 1.06, 0x38),
            (6.0 * 1.99, 0x40),
            (6.0 / 512.0, 1),
            (6.0 * 7.6 / 512.0, 7),
            (6.0 * 239.0, 0x77),
            (6.0 * 256.0, 0x7e),
            (6.0 * 463.9, 0x7e),
        ];
        for (max, bits) in cases {
            assert_eq!(ue4m3_half(max, 12.0), Some(bits), "max = {max}");
        }
        for max in [6.0 * 464.0, 1e9, 1e20, f32::MAX] {
            assert_eq!(ue4m3_half(max, 12.0), None, "max = {max}");
        }
    }
}
