//! How far ahead of what they read kernels of one token prefetch weights.

use crate::device::CpuProfile;
use gristmill_spec::vocab::{Feature, FeatureSet};
use std::sync::OnceLock;

/// A distance where no other was measured: hardware prefetchers stop at the end of a page.
const PAGE: u32 = 4096;

/// Who made a processor, as far as distances depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    Intel,
    /// AMD's family 19h with AVX-512 (Zen 3, which has none, is of this family too).
    Zen4,
    Other,
}

/// Bytes between the weights that a kernel with these features reads and those that it prefetches, by what was measured to be best
/// on this processor. 0: none, where the hardware's prefetchers do better alone.
pub(super) fn prefetch_distance(kernel: FeatureSet) -> u32 {
    static MAKER: OnceLock<Maker> = OnceLock::new();
    distance(*MAKER.get_or_init(maker), kernel)
}

/// On Zen 4 none for whole cache lines at a time, and a page for halves of them, which its prefetchers follow less well (products
/// held to AVX2 read weights up to 1.3 times as fast so). Half a page on Intel's, where weights of two to six bits came 8 to 25 %
/// faster from memory than a page ahead.
fn distance(maker: Maker, kernel: FeatureSet) -> u32 {
    match maker {
        Maker::Zen4 if kernel.has(Feature::Avx512f) => 0,
        Maker::Intel => PAGE / 2,
        Maker::Zen4 | Maker::Other => PAGE,
    }
}

/// This processor's.
fn maker() -> Maker {
    let avx512 = CpuProfile::detect().features.has(Feature::Avx512f);
    // The first product asks, and products allocate nothing.
    match signature().as_ref().map(|(name, family)| (name.as_flattened(), family)) {
        Some((b"AuthenticAMD", 0x19)) if avx512 => Maker::Zen4,
        Some((b"GenuineIntel", _)) => Maker::Intel,
        _ => Maker::Other,
    }
}

/// The name of the maker and the number of the family: AMD64 Architecture Programmer's Manual, volume 3, CPUID functions 0 and 1.
#[cfg(target_arch = "x86_64")]
fn signature() -> Option<([[u8; 4]; 3], u32)> {
    use std::arch::x86_64::__cpuid;
    #[allow(unused_unsafe, reason = "the intrinsic is safe in newer compilers only")]
    // SAFETY: every x86-64 processor has the instruction, and functions 0 and 1 of it.
    let (name, version) = unsafe { (__cpuid(0), __cpuid(1)) };
    let (base, extended) = (version.eax >> 8 & 0xf, version.eax >> 20 & 0xff);
    Some(([name.ebx, name.edx, name.ecx].map(u32::to_le_bytes), base + extended))
}

#[cfg(not(target_arch = "x86_64"))]
fn signature() -> Option<([[u8; 4]; 3], u32)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn makers_and_zen_4_are_what_linux_calls_so() {
        let info = std::fs::read_to_string("/proc/cpuinfo").expect("Linux has it");
        let first = info.split("\n\n").next().expect("a processor");
        let value = |key: &str| {
            let of = |line: &str| {
                line.split_once(':').filter(|(name, _)| name.trim() == key).map(|(_, v)| v.trim().to_owned())
            };
            first.lines().find_map(of).unwrap_or_default()
        };
        let avx512 = value("flags").split(' ').any(|flag| flag == "avx512f");
        let zen4 = value("vendor_id") == "AuthenticAMD" && value("cpu family") == "25" && avx512;
        let expected = match value("vendor_id").as_str() {
            _ if zen4 => Maker::Zen4,
            "GenuineIntel" => Maker::Intel,
            _ => Maker::Other,
        };
        assert_eq!(maker(), expected);
    }

    #[test]
    fn only_whole_lines_on_zen_4_are_left_to_the_hardware() {
        let avx2 = FeatureSet::EMPTY.with(Feature::Avx2);
        let avx512 = avx2.with(Feature::Avx512f);
        let of = |maker| [avx2, avx512].map(|kernel| distance(maker, kernel));
        assert_eq!(of(Maker::Zen4), [4096, 0]);
        assert_eq!(of(Maker::Intel), [2048, 2048]);
        assert_eq!(of(Maker::Other), [4096, 4096]);
    }
}
