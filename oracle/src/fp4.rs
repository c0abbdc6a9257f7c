//! Activations as FP4, for products of formats that are: MXFP4 and NVFP4.

use crate::FormatOracle;
use gristmill_spec::model::{Factor, FieldType, Scalar};

/// Magnitudes of E2M1.
const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

impl FormatOracle<'_> {
    /// What a product in FP4 takes `x` for: in each run of the format, values of E2M1 times one scale of the format's type. The
    /// scale follows from the largest magnitude: of MXFP4 it is the power of two that takes the power of two of the largest to
    /// that of 6; of NVFP4 the e4m3 nearest to a sixth of the largest, of two the greater, where all above 240 are 448 and none below 2^-6 becomes that.
    /// Then the nearest value is taken, of two the smaller. `None` for a format with other scales.
    pub fn fp4(&self, x: &[f32]) -> Option<Vec<f64>> {
        let format = self.format();
        let [Factor::Field(field)] = format.value.scale[..] else { return None };
        let field = &format.fields[field];
        let scale: fn(f64) -> f64 = match field.ty {
            FieldType::Scalar(Scalar::E8m0Half) => power,
            FieldType::Scalar(Scalar::Ue4m3Half) => e4m3,
            _ => return None,
        };
        let run = (format.elements / field.count) as usize;
        let of_run = |run: &[f32]| {
            let largest = run.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
            let scale = scale(largest);
            run.iter().map(move |x| nearest(f64::from(*x), scale)).collect::<Vec<_>>()
        };
        Some(x.chunks(run).flat_map(of_run).collect())
    }
}

/// The value of E2M1 times `scale` that is nearest to `x`.
fn nearest(x: f64, scale: f64) -> f64 {
    let away = |magnitude: &f64| (magnitude * scale - x.abs()).abs();
    let best =
        MAGNITUDES.iter().copied().reduce(|best, next| if away(&next) < away(&best) { next } else { best });
    best.unwrap_or(0.0) * scale * x.signum()
}

fn power(largest: f64) -> f64 {
    // The largest power of two that is not above; an f32 has no smaller one than 2^-149.
    let floor = (-149..128).rev().find(|power| 2f64.powi(*power) <= largest);
    2f64.powi(floor.map_or(-127, |power| (power - 2).max(-127)))
}

fn e4m3(largest: f64) -> f64 {
    // Computed in f32 by those who quantize, and rounded there once.
    let wanted = f64::from((largest / 6.0) as f32).min(448.0);
    if wanted < 2f64.powi(-6) {
        return (wanted * 512.0 + 0.5).floor().min(7.0) / 512.0;
    }
    let all = (1..=15).flat_map(|exponent| (8..16).map(move |m| f64::from(m) * 2f64.powi(exponent - 10)));
    let nearest =
        all.reduce(|best, next| if (next - wanted).abs() <= (best - wanted).abs() { next } else { best });
    nearest.map_or(0.0, |scale| if scale > 240.0 { 448.0 } else { scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_by_hand() {
        // 6 = 1.5 * 2^2: 1 becomes 4 times 2^-2.
        assert_eq!([1.0, 1.99, 2.0, 6.0, 7.9].map(power), [0.25, 0.25, 0.5, 1.0, 1.0]);
        assert_eq!(power(0.0), 2f64.powi(-127));
        assert_eq!(power(2f64.powi(-149)), 2f64.powi(-127));
        assert_eq!([6.0, 6.0 * 1.0625, 6.0 * 1.06, 0.0, 1e9].map(e4m3), [1.0, 1.125, 1.0, 0.0, 448.0]);
        assert_eq!(e4m3(6.0 * 7.9 / 512.0), 7.0 / 512.0);
    }

    #[test]
    fn values_by_hand() {
        assert_eq!(
            [0.25, 0.75, 5.0, 5.1, 9.0, -1.8].map(|x| nearest(x, 1.0)),
            [0.0, 0.5, 4.0, 6.0, 6.0, -2.0]
        );
        assert_eq!(nearest(0.2, 2.0), 0.0);
    }
}
