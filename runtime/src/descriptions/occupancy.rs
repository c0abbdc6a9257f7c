//! How many CUDA blocks of a kernel a multiprocessor holds at once, by what NVIDIA publishes: the table "Technical Specifications per
//! Compute Capability" of the CUDA programming guide, and the rules of the toolkit's `cuda_occupancy.h`, with which a test compares
//! this. What a driver says of a real device (`cuOccupancyMaxActiveBlocksPerMultiprocessor`) goes by the same rules.

/// What a multiprocessor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Threads at once.
    pub threads: u32,
    /// CUDA blocks at once.
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

/// What a CUDA block takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNeeds {
    /// Threads.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory, those that the launch gives among them.
    pub shared: u32,
}

/// What keeps a multiprocessor from holding more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Its threads.
    Threads,
    /// Its number of blocks.
    Blocks,
    /// Its registers.
    Registers,
    /// Its shared memory.
    Shared,
}

impl Limit {
    /// As a word in sentences.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Threads => "threads",
            Limit::Blocks => "blocks",
            Limit::Registers => "registers",
            Limit::Shared => "shared memory",
        }
    }
}

/// How many blocks are there at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Blocks; 0 where one is too large.
    pub blocks: u32,
    /// What there would have to be more of.
    pub limit: Limit,
}

/// Registers of a warp come in multiples of this.
const REGISTERS_OF_WARP: u32 = 256;
/// Registers of a thread, at most.
const MOST_REGISTERS: u32 = 255;
/// Parts of a multiprocessor, each with a quarter of its registers and of a block's warps.
const PARTITIONS: u32 = 4;

impl Multiprocessor {
    /// The multiprocessors of a compute capability. `None` for those that the tables do not have.
    pub const fn of((major, minor): (u8, u8)) -> Option<Multiprocessor> {
        // Threads, blocks, KiB of shared memory.
        let (threads, blocks, shared) = match (major, minor) {
            (7, 0) => (2048, 32, 96),
            (7, 5) => (1024, 16, 64),
            (8, 0) => (2048, 32, 164),
            (8, 6) => (1536, 16, 100),
            (8, 7) => (1536, 16, 164),
            (8, 9) => (1536, 24, 100),
            (9, 0) | (10, 0 | 3) => (2048, 32, 228),
            (11, 0) => (1536, 24, 228),
            (12, 0 | 1) => (1536, 24, 100),
            _ => return None,
        };
        let old = major < 8;
        Some(Multiprocessor {
            threads,
            blocks,
            registers: 64 * 1024,
            shared: shared * 1024,
            reserved_shared: if old { 0 } else { 1024 },
            shared_granule: Multiprocessor::shared_granule_of((major, minor)),
        })
    }

    /// Portions of shared memory by compute capability, which no driver tells.
    pub const fn shared_granule_of(cc: (u8, u8)) -> u32 {
        if cc.0 < 8 { 256 } else { 128 }
    }

    /// How many such blocks it holds at once; 0 for a block that does not fit, or that is no kernel's. With one barrier, and with as much shared
    /// memory as there is (a driver's preference for the L1 cache may leave less).
    pub fn blocks(&self, block: &BlockNeeds) -> u32 {
        if block.threads == 0 || block.registers > MOST_REGISTERS { 0 } else { self.occupancy(block).blocks }
    }

    /// How many such blocks it holds at once.
    pub fn occupancy(&self, block: &BlockNeeds) -> Occupancy {
        let warps = block.threads.div_ceil(32).max(1);
        let of_warp = block.registers.saturating_mul(32).next_multiple_of(REGISTERS_OF_WARP).max(1);
        // A block's warps are dealt to the partitions in turn, so that the registers of some may lie idle.
        let by_registers = if of_warp.saturating_mul(warps.next_multiple_of(PARTITIONS)) > self.registers {
            0
        } else {
            self.registers / PARTITIONS / of_warp * PARTITIONS / warps
        };
        let taken = block.shared.saturating_add(self.reserved_shared);
        let by_shared = match taken.checked_next_multiple_of(self.shared_granule.max(1)) {
            Some(0) => u32::MAX,
            Some(bytes) => self.shared / bytes,
            None => 0,
        };
        let all = [
            (self.threads / 32 / warps, Limit::Threads),
            (self.blocks, Limit::Blocks),
            (by_registers, Limit::Registers),
            (by_shared, Limit::Shared),
        ];
        let least = |least: (u32, Limit), next: (u32, Limit)| if next.0 < least.0 { next } else { least };
        let (blocks, limit) = all[1..].iter().copied().fold(all[0], least);
        Occupancy { blocks, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occupancy(cc: (u8, u8), threads: u32, registers: u32, shared: u32) -> (u32, Limit) {
        let of = Multiprocessor::of(cc).expect("known").occupancy(&BlockNeeds { threads, registers, shared });
        (of.blocks, of.limit)
    }

    #[test]
    fn each_limit_holds() {
        assert_eq!(occupancy((9, 0), 1024, 32, 0), (2, Limit::Threads));
        assert_eq!(occupancy((9, 0), 32, 32, 0), (32, Limit::Blocks));
        assert_eq!(occupancy((8, 9), 32, 32, 0), (24, Limit::Blocks));
        assert_eq!(occupancy((9, 0), 384, 168, 0), (1, Limit::Registers));
        assert_eq!(occupancy((9, 0), 256, 128, 0), (2, Limit::Registers));
        assert_eq!(occupancy((9, 0), 128, 32, 227 * 1024), (1, Limit::Shared));
        assert_eq!(occupancy((9, 0), 128, 32, 113 * 1024), (2, Limit::Shared));
        // A KiB of each block is the system's, from 8.0 on.
        assert_eq!(occupancy((8, 6), 128, 32, 50 * 1024), (1, Limit::Shared));
        assert_eq!(occupancy((7, 5), 128, 32, 32 * 1024), (2, Limit::Shared));
        // Five warps leave registers of three partitions idle: 17 warps a partition, 68 in all.
        assert_eq!(occupancy((9, 0), 160, 30, 0), (12, Limit::Threads));
        assert_eq!(occupancy((9, 0), 160, 80, 0), (4, Limit::Registers));
    }

    #[test]
    fn what_is_too_large_is_nowhere() {
        assert_eq!(occupancy((9, 0), 1024, 255, 0), (0, Limit::Registers));
        assert_eq!(occupancy((12, 0), 32, 16, 100 * 1024), (0, Limit::Shared));
        assert_eq!(occupancy((12, 0), 32, 16, u32::MAX), (0, Limit::Shared));
        assert_eq!(Multiprocessor::of((6, 1)), None);
        assert_eq!(Multiprocessor::of((13, 0)), None);
    }

    /// Made by `runtime/tests/occupancy/table.cc` from NVIDIA's own header.
    const TABLE: &str = include_str!("../../tests/occupancy/cuda-13.0.88.txt");

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
                    // What is known of devices that are not there.
                    assert_eq!(device, Multiprocessor::of(((cc / 10) as u8, (cc % 10) as u8)), "{cc}");
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
