//! `alternating`: codes that stand for entries of a codebook, and one scale, each found for the other in turns.
//!
//! Where every entry is -1, 0 or 1 with as many zeros (STQ1_0: one of four), this is what its publisher describes: in each
//! group the weights whose loss costs least become 0, and the scale is the least squares fit of the others.

use super::relative;

/// What a format of this kind is made of.
#[derive(Clone, Copy, Debug)]
pub struct Alternating<'a, T, const W: usize> {
    /// The codebook: `W` integers an entry.
    pub entries: &'a [[T; W]],
    /// How far apart the elements of an entry are in the block.
    pub stride: usize,
    /// The mean magnitude of the integers in the codebook: with it the mean magnitude of a block gives the first scale.
    pub mean: f32,
    /// How often codes, and then the scale, are found.
    pub steps: u32,
}

/// What was found: `C` codes and the scale of the block.
#[derive(Clone, Copy, Debug)]
pub struct Found<const C: usize> {
    /// The entry of each group.
    pub codes: [u16; C],
    /// The scale of the block.
    pub scale: f32,
}

/// `w = scale * entry`, with the entry of least squared error for each group; of equal ones the first. Errors count by
/// `importance`, and without one alike.
#[inline(always)]
pub fn alternating<T, const E: usize, const C: usize, const W: usize>(
    x: &[f32; E],
    importance: Option<&[f32; E]>,
    rule: &Alternating<'_, T, W>,
) -> Found<C>
where
    T: Copy,
    f32: From<T>,
{
    let weights = importance.map_or([1.0; E], relative);
    let mut sum = 0f32;
    for x in x {
        sum += x.abs();
    }
    let mut found = Found { codes: [0; C], scale: sum / E as f32 / rule.mean };
    for _ in 0..rule.steps {
        let (mut sum_xq, mut sum_qq) = (0f32, 0f32);
        for (index, code) in found.codes.iter_mut().enumerate() {
            let first = index / rule.stride * rule.stride * W + index % rule.stride;
            let (mut group, mut counts) = ([0f32; W], [0f32; W]);
            for place in 0..W {
                group[place] = x[first + place * rule.stride];
                counts[place] = weights[first + place * rule.stride];
            }
            let (at, p, q) = best(&group, &counts, rule.entries, found.scale);
            *code = at;
            sum_xq += p;
            sum_qq += q;
        }
        // Where every entry is zero, no scale is better than another.
        if sum_qq > 0.0 {
            found.scale = sum_xq / sum_qq;
        }
    }
    found
}

/// The entry of least squared error at a scale, and its sums of w x q and w q q.
#[inline(always)]
fn best<T, const W: usize>(
    x: &[f32; W],
    weights: &[f32; W],
    entries: &[[T; W]],
    scale: f32,
) -> (u16, f32, f32)
where
    T: Copy,
    f32: From<T>,
{
    // The error is `scale * scale * q - 2 * scale * p` and a constant; divided by the scale's magnitude, nothing underflows.
    let (size, twice) = (scale.abs(), 2f32.copysign(scale));
    let mut least = f32::INFINITY;
    let mut found = (0, 0f32, 0f32);
    for (index, entry) in entries.iter().enumerate() {
        let (mut p, mut q) = (0f32, 0f32);
        // By places, as in `grid`.
        for i in 0..W {
            let value = f32::from(entry[i]);
            p += weights[i] * x[i] * value;
            q += weights[i] * value * value;
        }
        let error = size * q - twice * p;
        if error < least {
            least = error;
            found = (index as u16, p, q);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of two is zero, the other -1 or 1.
    const HALVES: [[i8; 2]; 4] = [[1, 0], [0, 1], [-1, 0], [0, -1]];

    fn halves(x: &[f32; 4], stride: usize) -> Found<2> {
        alternating(x, None, &Alternating { entries: &HALVES, stride, mean: 0.5, steps: 3 })
    }

    #[test]
    fn keeps_the_larger_and_fits_the_scale() {
        let found = halves(&[3.0, -1.0, 0.5, -2.0], 1);
        assert_eq!((found.codes, found.scale), ([0, 3], 2.5));
        // The elements of a code are two apart: 3 and 0.5, -1 and -2.
        let found = halves(&[3.0, -1.0, 0.5, -2.0], 2);
        assert_eq!((found.codes, found.scale), ([0, 3], 2.5));
        let found = halves(&[1.0, -3.0, 0.5, -2.0], 2);
        assert_eq!((found.codes, found.scale), ([0, 2], 2.0));
    }

    #[test]
    fn zeros_have_no_scale_and_the_first_code() {
        let found = halves(&[0.0; 4], 1);
        assert_eq!((found.codes, found.scale), ([0, 0], 0.0));
    }

    #[test]
    fn small_and_large_weights_find_the_same_codes() {
        for size in [1e-30, 1e-3, 1e30] {
            let found = halves(&[0.25 * size, size, -size, 0.5 * size], 1);
            assert_eq!(found.codes, [1, 2], "{size}");
            assert_eq!(found.scale, size, "{size}");
        }
    }
}
