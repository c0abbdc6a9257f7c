//! Which loops prefetch weights, and how far ahead.

use super::{FormatPlan, PackPlan, Primitives};

/// The prefetch distance in bytes, where callers do not say. Hardware prefetchers stop at the end of a page, so this is a page.
const DISTANCE: u32 = 4096;

/// The same beside a matrix unit: half a page, as its maker's processors want it.
const DISTANCE_OF_TILES: u32 = 2048;

/// How loops prefetch weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The prefetch distance in bytes; none: callers say whether a kernel prefetches, and how far ahead.
    pub distance: Option<u32>,
    /// How many runs ahead terms are prefetched, or super-blocks where runs have integers.
    pub terms: u32,
}

/// Where codes are decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodedTo {
    Registers,
    Buffer,
    /// A buffer for a matrix unit.
    BufferOfUnit,
}

impl Prefetch {
    /// For tiles of so many `tokens`: where a token reads weights once, and where it was measured to pay for several. Callers have a say
    /// where single tokens read weights as fast as memory delivers, since some processors' prefetchers do better alone there. They have none
    /// where codes are decoded to a buffer, or have upper bits in nibbles: those take so long to decode that `q3_k` and `iq2_s` lost a tenth on
    /// Zen 4 without prefetches.
    pub(super) fn new(
        plan: &FormatPlan<'_>,
        pack: &PackPlan<'_>,
        primitives: &Primitives,
        tokens: u32,
        to: DecodedTo,
    ) -> Option<Prefetch> {
        let told =
            tokens == 1 && to == DecodedTo::Registers && !pack.upper.is_some_and(|upper| upper.nibbles);
        let distance = if to == DecodedTo::BufferOfUnit { DISTANCE_OF_TILES } else { DISTANCE };
        let tiles = plan.k_group_tiles(pack.tile.k).max(1) * plan.runs();
        (tokens == 1 || primitives.prefetches).then_some(Prefetch {
            distance: (!told).then_some(distance),
            terms: (DISTANCE / pack.tile.bytes / tiles).max(1),
        })
    }

    /// Whether callers say if a kernel prefetches.
    pub(crate) fn is_told(self) -> bool {
        self.distance.is_none()
    }
}
