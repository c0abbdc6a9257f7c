//! Occupancy: how many CUDA blocks of a kernel a multiprocessor holds at once, by what it has and what they need.

/// Threads of a warp.
const WARP: u32 = 32;
/// Partitions of a multiprocessor, each with its share of the registers, on every device since compute capability 7.0.
const PARTITIONS: u32 = 4;
/// Registers are given to a warp in such portions.
const REGISTERS: u32 = 256;
/// Registers of a thread, at most.
const MOST_REGISTERS: u32 = 255;

/// What a multiprocessor has for the CUDA blocks that run on it, as the driver tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Threads that it holds at once, at most.
    pub threads: u32,
    /// Blocks that it holds at once, at most.
    pub blocks: u32,
    /// Registers of 32 bits.
    pub registers: u32,
    /// Bytes of shared memory.
    pub shared: u32,
    /// Bytes of it that each block takes for the driver.
    pub reserved_shared: u32,
    /// Shared memory is given in portions of so many bytes.
    pub shared_granule: u32,
}

/// What a block of a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNeeds {
    /// Threads.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory, what the kernel declares and what a launch gives together.
    pub shared: u32,
}

impl Multiprocessor {
    /// Portions of shared memory by compute capability, which no driver tells.
    pub const fn shared_granule_of(cc: (u8, u8)) -> u32 {
        if cc.0 < 8 { 256 } else { 128 }
    }

    /// How many such blocks it holds at once; 0 for a block that does not fit. That of NVIDIA's `cuda_occupancy.h` for blocks
    /// with one barrier, with as much shared memory as there is (a driver's preference for the L1 cache may leave less).
    pub fn blocks(&self, block: &BlockNeeds) -> u32 {
        let warps = block.threads.div_ceil(WARP);
        if warps == 0 || block.registers > MOST_REGISTERS {
            return 0;
        }
        let registers = (block.registers * WARP).next_multiple_of(REGISTERS);
        let in_partition = (self.registers / PARTITIONS).checked_div(registers);
        let by_registers = in_partition.map_or(u32::MAX, |held| held * PARTITIONS / warps);
        let granule = u64::from(self.shared_granule.max(1));
        let shared = (u64::from(block.shared) + u64::from(self.reserved_shared)).next_multiple_of(granule);
        let by_shared = u64::from(self.shared).checked_div(shared);
        let by_shared = by_shared.map_or(u32::MAX, |held| u32::try_from(held).unwrap_or(u32::MAX));
        (self.threads / WARP / warps).min(self.blocks).min(by_registers).min(by_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockNeeds, Multiprocessor};

    /// Made by `runtime/tests/occupancy/table.cc` from NVIDIA's own header.
    const TABLE: &str = include_str!("../tests/occupancy/cuda-13.0.88.txt");

    #[test]
    fn blocks_are_as_many_as_nvidias_header_says() {
        let (mut device, mut devices, mut held) = (None, Vec::new(), [0; 33]);
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let numbers: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            match numbers[..] {
                [cc, threads, blocks, registers, shared, reserved_shared] => {
                    let shared_granule =
                        Multiprocessor::shared_granule_of(((cc / 10) as u8, (cc % 10) as u8));
                    device = Some(Multiprocessor {
                        threads,
                        blocks,
                        registers,
                        shared,
                        reserved_shared,
                        shared_granule,
                    });
                    devices.push(cc);
                }
                [threads, registers, shared, blocks] => {
                    let block = BlockNeeds { threads, registers, shared };
                    let found = device.expect("a device comes first").blocks(&block);
                    assert_eq!(found, blocks, "{device:?}: {block:?}");
                    held[blocks as usize] += 1;
                }
                _ => panic!("{line}"),
            }
        }
        assert_eq!(devices, [75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121]);
        // Blocks that do not fit are among them, and the most of each device.
        assert!(held.iter().sum::<i32>() > 2000, "{held:?}");
        assert!([0, 16, 24, 32].iter().all(|blocks| held[*blocks] > 0), "{held:?}");
    }

    #[test]
    fn nothing_is_too_large_to_be_asked() {
        let all = Multiprocessor {
            threads: u32::MAX,
            blocks: u32::MAX,
            registers: u32::MAX,
            shared: u32::MAX,
            reserved_shared: u32::MAX,
            shared_granule: 0,
        };
        let most = BlockNeeds { threads: u32::MAX, registers: 255, shared: u32::MAX };
        assert_eq!(all.blocks(&most), 0);
        assert_eq!(all.blocks(&BlockNeeds { threads: 0, registers: 0, shared: 0 }), 0);
        let none = Multiprocessor { threads: 0, blocks: 0, registers: 0, shared: 0, ..all };
        assert_eq!(none.blocks(&BlockNeeds { threads: 32, registers: 0, shared: 0 }), 0);
    }
}
