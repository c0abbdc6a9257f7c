//! Whether k is divided over CUDA blocks, and into how many parts: where a product has fewer tiles than the device has
//! multiprocessors, or a few more than a whole number of them each.

use crate::registry::{CudaLaunch, CudaSplit};
use crate::request::Shape;

/// Most parts: beyond, adding them up takes longer than what is saved.
const MOST: u32 = 64;
/// Bytes that a multiprocessor stores in a cycle while all others do too, and that it loads while most have ended.
const STORED: u64 = 24;
const LOADED: u64 = 48;
/// Cycles until what was stored is known to another multiprocessor and has come there.
const HANDED_OVER: u64 = 2000;

/// A product's CUDA blocks without division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// How many.
    count: u64,
    /// Outputs of each.
    outputs: u64,
    /// Elements along k.
    k: u64,
}

impl Tiles {
    /// Of so many rows and tokens each, of a product of `m` tokens with `n` rows of `k`.
    pub(crate) fn new((rows, tokens): (u32, u32), (m, n, k): (usize, usize, usize)) -> Tiles {
        let tiles = |of: usize, each: u32| (of as u64).div_ceil(u64::from(each.max(1)));
        Tiles {
            count: tiles(n, rows).saturating_mul(tiles(m, tokens)),
            outputs: u64::from(rows) * u64::from(tokens),
            k: k as u64,
        }
    }

    /// Into how many parts to divide k, from 1 to as many as there are stages: the fewest of those by which the
    /// multiprocessor with most to do is done first, as estimated by whole rounds of blocks, their stages, and what handing
    /// over and adding up parts takes. 1 unless that saves an eighth.
    pub(crate) fn layers(self, split: CudaSplit, multiprocessors: u32) -> u32 {
        let stages = self.k.div_ceil(u64::from(split.stage.max(1))).max(1);
        let at_once = u64::from(multiprocessors.max(1)) * u64::from(split.blocks_per_sm.max(1));
        // More blocks than this have no multiprocessor to themselves in any case.
        if self.count >= 2 * at_once {
            return 1;
        }
        let cycles = |layers: u64| {
            let rounds = self.count.saturating_mul(layers).div_ceil(at_once);
            let own = rounds.saturating_mul(stages.div_ceil(layers)).saturating_mul(u64::from(split.cycles));
            let bytes = self.outputs.saturating_mul(4);
            let handed = match layers {
                1 => 0,
                _ => HANDED_OVER + bytes / STORED + (layers - 1) * bytes / LOADED,
            };
            own.saturating_add(handed)
        };
        let most = stages.min(u64::from(MOST)) as u32;
        let best = (1..=most).min_by_key(|layers| cycles(u64::from(*layers))).unwrap_or(1);
        let (whole, divided) = (cycles(1), cycles(u64::from(best)));
        if divided <= whole - whole / 8 { best } else { 1 }
    }
}

impl CudaLaunch {
    /// Split-K: into how many parts a product of `shape` divides k over CUDA blocks, on a device with so many multiprocessors; 1
    /// where it is not divided. (As for all tokens in one launch; a device takes 65535 tiles of them at once, at least.)
    pub fn split_k(&self, shape: Shape, multiprocessors: u32) -> u32 {
        match *self {
            CudaLaunch::Matmul { rows, tokens, split: Some(split), .. } => {
                Tiles::new((rows, tokens), (shape.m, shape.n, shape.k)).layers(split, multiprocessors)
            }
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Tiles};
    use crate::registry::CudaSplit;

    /// 256 rows and 128 or 64 tokens by `wgmma`, and eight tokens by `mma`.
    const TALL: CudaSplit = CudaSplit { stage: 64, cycles: 512, blocks_per_sm: 1 };
    const WIDE: CudaSplit = CudaSplit { stage: 64, cycles: 256, blocks_per_sm: 1 };
    const FEW: CudaSplit = CudaSplit { stage: 2048, cycles: 800, blocks_per_sm: 4 };

    fn layers(split: CudaSplit, count: u64, outputs: u64, k: u64) -> u32 {
        Tiles { count, outputs, k }.layers(split, 132)
    }

    #[test]
    fn few_tiles_and_much_k_are_divided() {
        // 66 tiles leave half of the device idle, 33 three quarters.
        assert_eq!(layers(TALL, 66, 256 * 128, 6912), 2);
        assert_eq!(layers(TALL, 33, 256 * 128, 28_672), 4);
        // 133 tiles: one multiprocessor would do two of them.
        assert!(layers(TALL, 133, 256 * 128, 28_672) > 1);
        assert!(layers(WIDE, 20, 256 * 64, 6912) > 1);
        assert!(layers(FEW, 16, 256, 28_672) > 4);
    }

    #[test]
    fn what_would_save_nothing_is_not_divided() {
        // Each multiprocessor has one already, or several.
        assert_eq!(layers(TALL, 132, 256 * 128, 28_672), 1);
        assert_eq!(layers(TALL, 264, 256 * 128, 28_672), 1);
        assert_eq!(layers(TALL, 100_000, 256 * 128, 28_672), 1);
        // Handing over takes longer than what little k there is.
        assert_eq!(layers(TALL, 66, 256 * 128, 2560), 1);
        assert_eq!(layers(WIDE, 20, 256 * 64, 1024), 1);
        assert_eq!(layers(FEW, 80, 256, 2560), 1);
        assert_eq!(layers(FEW, 32, 256, 8192), 1);
    }

    #[test]
    fn there_are_no_more_parts_than_stages() {
        for k in (1..3000).step_by(if cfg!(miri) { 97 } else { 1 }) {
            for split in [TALL, WIDE, FEW] {
                let slow = CudaSplit { cycles: 1_000_000, ..split };
                let parts = layers(slow, 1, 1, k);
                assert!(u64::from(parts) <= k.div_ceil(u64::from(split.stage)), "k = {k}: {parts}");
                assert!((1..=MOST).contains(&parts));
            }
        }
        assert_eq!(layers(CudaSplit { cycles: 1_000_000, ..FEW }, 1, 1, 2048 * 7), 7);
        assert_eq!(layers(TALL, 1, 1, 0), 1);
        assert_eq!(layers(CudaSplit { stage: 0, cycles: 0, blocks_per_sm: 0 }, 1, 1, u64::MAX), 1);
        assert_eq!(Tiles { count: u64::MAX, outputs: u64::MAX, k: u64::MAX }.layers(TALL, 0), 1);
        assert_eq!(layers(TALL, 0, 0, 0), 1);
    }
}
