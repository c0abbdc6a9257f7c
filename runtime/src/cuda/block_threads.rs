//! Threads of the CUDA blocks of a product, and panels that a block has beside each other: so that no multiprocessor is left empty.

use super::device::{Function, Gpu};

/// Threads that share a panel's k, at least, where a CUDA block does several panels beside each other.
const FEWEST_SHARING: u32 = 128;

/// Threads of a CUDA block of `function`, of which there are `blocks`: half of what a multiprocessor can hold keeps its loads under way, and
/// there is no more than it holds of this kernel.
pub(super) fn threads_of_blocks(
    gpu: &Gpu,
    function: &Function,
    threads: (u32, u32),
    blocks: (u32, u32),
) -> u32 {
    let profile = gpu.profile();
    let half = profile.multiprocessor.threads / 2;
    let wanted = |threads| half.min(threads * gpu.held(function, threads));
    block_threads(threads, blocks, profile.multiprocessors, wanted)
}

/// Threads of a CUDA block where `fewest` to `most` will do: more of them share a row's k where the blocks alone would leave a
/// multiprocessor fewer threads than are `wanted` of it, given blocks of so many.
fn block_threads(
    (fewest, most): (u32, u32),
    blocks: (u32, u32),
    multiprocessors: u32,
    wanted: impl Fn(u32) -> u32,
) -> u32 {
    let wanted = |threads| u64::from(multiprocessors) * u64::from(wanted(threads));
    let blocks = u64::from(blocks.0) * u64::from(blocks.1);
    let mut threads = fewest.max(32);
    while threads * 2 <= most && blocks * u64::from(threads) < wanted(threads) {
        threads *= 2;
    }
    threads
}

/// CUDA blocks of a product that quantizes its activations, and the logarithm of how many panels each has beside each other,
/// which is 0 unless `threads` are a power of two: no more blocks than the multiprocessors hold at once (`held` each), since each quantizes.
pub(super) fn side_by_side(panels: u32, threads: u32, multiprocessors: u32, held: u32) -> (u32, u32) {
    let threads = threads.max(32);
    let held = u64::from(held.max(1)) * u64::from(multiprocessors.max(1));
    let blocks = u64::from(panels).min(held).max(1) as u32;
    let mut sides = 0;
    while threads.is_power_of_two()
        && u64::from(blocks) << sides < u64::from(panels)
        && threads >> (sides + 1) >= FEWEST_SHARING
    {
        sides += 1;
    }
    (blocks, sides)
}

#[cfg(test)]
mod tests {
    use super::{block_threads, side_by_side};

    #[test]
    fn blocks_that_quantize_are_as_many_as_run_at_once() {
        // 2560, 13824 and 131072 rows, one row, and devices of one multiprocessor.
        let of = |panels| side_by_side(panels, 512, 132, 2);
        assert_eq!((of(160), of(864), of(8192), of(1)), ((160, 0), (264, 2), (264, 2), (1, 0)));
        assert_eq!((side_by_side(100, 512, 1, 2), side_by_side(3, 96, 0, 10)), ((2, 2), (3, 0)));
        assert_eq!(side_by_side(100, 384, 1, 2), (2, 0));
        // A multiprocessor that holds one block has one.
        assert_eq!(side_by_side(864, 512, 132, 1), (132, 2));
    }

    #[test]
    fn blocks_that_leave_a_device_empty_get_more_threads() {
        // 2560, 13824 and 131072 rows of sixteen to a block, on 132 multiprocessors.
        let threads = |blocks| block_threads((128, 512), (blocks, 1), 132, |_| 1024);
        assert_eq!((threads(160), threads(864), threads(8192)), (512, 256, 128));
        assert_eq!(block_threads((256, 256), (1, 1), 132, |_| 1024), 256);
        assert_eq!(block_threads((0, 0), (1, 1), 132, |_| 1024), 32);
        // Of a kernel of which a multiprocessor holds 512 threads, and none more in larger blocks, fewer are wanted.
        assert_eq!(block_threads((128, 512), (864, 1), 132, |_| 512), 128);
    }
}
