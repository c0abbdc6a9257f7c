//! Seeded numbers that are the same on every machine and in every version: the digest of `verify` rests on
//! them. (Published generators state no such promise for their distributions.)

use gristmill_spec::Fnv;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream for a seed and a name, so that adding a test does not change the inputs of others.
    pub fn new(seed: u64, name: &str) -> Random {
        Random(Fnv::EMPTY.with(&seed.to_le_bytes()).with(name.as_bytes()).get())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (0 for 0), near enough to uniform for tests.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Bell-shaped with mean 0 and variance 1: the sum of eight uniform 16-bit numbers. Only exact integer
    /// arithmetic and one multiplication, so that no machine's libm has a say.
    pub fn gauss(&mut self) -> f32 {
        const EVEN: u64 = 0x0000_ffff_0000_ffff;
        let (a, b) = (self.bits(), self.bits());
        // Two sums of four beside each other.
        let sums = (a & EVEN) + (a >> 16 & EVEN) + (b & EVEN) + (b >> 16 & EVEN);
        let sum = (sums & 0xffff_ffff) + (sums >> 32);
        // Mean 8 * 65535 / 2, variance 8 * (2^32 - 1) / 12.
        (sum as f32 - 262_140.0) * (1.0 / 53_509.7)
    }

    /// `len` bell-shaped numbers of standard deviation `sigma`.
    pub fn gauss_vec(&mut self, len: usize, sigma: f32) -> Vec<f32> {
        (0..len).map(|_| self.gauss() * sigma).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_never_change() {
        // From state 0, as published with the generator.
        let mut random = Random(0);
        assert_eq!([random.bits(), random.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn gauss_has_mean_0_and_variance_1() {
        let mut random = Random::new(7, "gauss");
        let values = random.gauss_vec(100_000, 1.0);
        let mean: f64 = values.iter().map(|v| f64::from(*v)).sum::<f64>() / 1e5;
        let variance: f64 = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }
}
