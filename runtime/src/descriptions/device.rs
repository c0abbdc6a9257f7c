//! Devices by name, and what this processor is.

#[cfg(target_arch = "x86_64")]
mod amx;
mod name;
mod topology;

pub use name::Device;
use topology::CachesOf;
pub use topology::{Node, SharedCache, Topology};

use crate::descriptions::names;
use crate::error::Error;
use crate::parallel::affinity;
use gristmill_spec::vocab::{Arch, DeviceKind, Feature, FeatureSet};
use std::sync::OnceLock;

/// Sizes of one core's view of the caches in bytes; `None` where the system does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Caches {
    /// First level, data.
    pub l1d: Option<usize>,
    /// Second level.
    pub l2: Option<usize>,
    /// Third level.
    pub l3: Option<usize>,
}

/// What decisions need to know about a processor.
///
/// [`CpuProfile::detect`] describes the one this program runs on. A profile can also be written by
/// hand, to ask what would be chosen elsewhere; handles for kernels are still made only if the real
/// processor has the features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuProfile {
    /// Architecture.
    pub arch: Arch,
    /// Every feature of the vocabulary that it has.
    pub features: FeatureSet,
    /// Hardware threads that this program may use.
    pub cores: usize,
    /// Physical cores that have at least one of these hardware threads.
    pub physical_cores: usize,
    /// Cache sizes, as the system tells them.
    pub caches: Caches,
    /// Where the processors that this program may use and memory are, and the caches of the first of these processors.
    pub topology: Topology,
}

impl Caches {
    /// Those of one processor.
    fn seen_by(cpu: Option<usize>, topology: &Topology) -> Caches {
        let size = |level: u32| {
            let cache = topology.caches.iter().find(|cache| {
                cache.level == level
                    && !cache.instructions
                    && cpu.is_some_and(|cpu| cache.cpus.contains(&cpu))
            });
            cache.and_then(|cache| cache.bytes)
        };
        // Levels beyond the third play no part in tiling.
        Caches { l1d: size(1), l2: size(2), l3: size(3) }
    }

    /// The last level that the system tells of.
    pub fn last_level(&self) -> Option<usize> {
        self.l3.or(self.l2)
    }

    /// Bytes of activations that a product keeps in the second cache while weights pass by: half of it. Where its size is not known,
    /// half of 512 KiB, the smallest of the processors meant.
    pub(crate) fn activations(&self) -> usize {
        self.l2.unwrap_or(512 << 10) / 2
    }
}

impl CpuProfile {
    /// This processor; probed once for the whole program.
    pub fn detect() -> &'static CpuProfile {
        static PROFILE: OnceLock<CpuProfile> = OnceLock::new();
        PROFILE.get_or_init(|| {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
            let allowed = affinity::of_caller();
            let named = allowed.as_deref().unwrap_or_default();
            let all = Topology::here(named, CachesOf::One);
            // All that were read are that processor's; of those that share them the first may be another one.
            let cpu = named.iter().min().or(all.caches.iter().flat_map(|cache| &cache.cpus).min());
            let caches = Caches::seen_by(cpu.copied(), &all);
            let topology = all.allowed(allowed.as_deref());
            CpuProfile {
                arch: ARCH,
                features: Feature::ALL.iter().copied().filter(|feature| has(*feature)).collect(),
                cores,
                physical_cores: physical(cores, &topology),
                caches,
                topology,
            }
        })
    }

    /// A processor that has just these features, for asking what would be chosen there.
    pub fn pretend(arch: Arch, features: FeatureSet) -> CpuProfile {
        CpuProfile {
            arch,
            features,
            cores: 1,
            physical_cores: 1,
            caches: Caches::default(),
            topology: Topology::default(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
const ARCH: Arch = Arch::X86;
#[cfg(target_arch = "aarch64")]
const ARCH: Arch = Arch::Aarch64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCH: Arch = Arch::Any;

#[cfg(target_arch = "x86_64")]
fn has(feature: Feature) -> bool {
    match feature {
        Feature::Ssse3 => is_x86_feature_detected!("ssse3"),
        Feature::Sse41 => is_x86_feature_detected!("sse4.1"),
        Feature::Avx2 => is_x86_feature_detected!("avx2"),
        Feature::F16c => is_x86_feature_detected!("f16c"),
        Feature::AvxVnni => is_x86_feature_detected!("avxvnni"),
        Feature::Avx512f => is_x86_feature_detected!("avx512f"),
        Feature::Avx512bw => is_x86_feature_detected!("avx512bw"),
        Feature::Avx512dq => is_x86_feature_detected!("avx512dq"),
        Feature::Avx512vl => is_x86_feature_detected!("avx512vl"),
        Feature::Avx512vnni => is_x86_feature_detected!("avx512vnni"),
        Feature::Avx512vbmi => is_x86_feature_detected!("avx512vbmi"),
        Feature::AmxInt8 => amx::int8(),
        Feature::Neon | Feature::Dotprod | Feature::I8mm => false,
    }
}

#[cfg(target_arch = "aarch64")]
fn has(feature: Feature) -> bool {
    match feature {
        Feature::Neon => std::arch::is_aarch64_feature_detected!("neon"),
        Feature::Dotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
        Feature::I8mm => std::arch::is_aarch64_feature_detected!("i8mm"),
        Feature::Ssse3
        | Feature::Sse41
        | Feature::Avx2
        | Feature::F16c
        | Feature::AvxVnni
        | Feature::Avx512f
        | Feature::Avx512bw
        | Feature::Avx512dq
        | Feature::Avx512vl
        | Feature::Avx512vnni
        | Feature::Avx512vbmi
        | Feature::AmxInt8 => false,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has(_: Feature) -> bool {
    false
}

/// Physical cores that have at least one of `threads` hardware threads; `threads` where the system does not say which share a
/// core.
fn physical(threads: usize, topology: &Topology) -> usize {
    match topology.cores.len() {
        0 => threads,
        cores => cores.clamp(1, threads.max(1)),
    }
}

impl std::str::FromStr for Device {
    type Err = Error;

    /// Reads `cpu`, `cuda`, `cuda:1` and so on; the index defaults to 0 and `cpu` takes none.
    fn from_str(text: &str) -> Result<Device, Error> {
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text, None),
        };
        let unknown = || Error::UnknownDevice {
            name: text.to_owned(),
            nearest: names::nearest(name, DeviceKind::ALL.iter().map(|kind| kind.name())),
        };
        let kind = DeviceKind::from_name(name).ok_or_else(unknown)?;
        let index = match index {
            None => 0,
            // `parse` would take "+1"; a device is written with digits alone.
            Some(digits) if kind != DeviceKind::Cpu && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| unknown())?
            }
            Some(_) => return Err(unknown()),
        };
        Ok(Device { kind, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_read_back_as_they_print() -> Result<(), Error> {
        for text in ["cpu", "cuda:0", "cuda:7", "rocm:0", "metal:1"] {
            assert_eq!(text.parse::<Device>()?.to_string(), text);
        }
        assert_eq!("cuda".parse::<Device>()?, Device::cuda(0));
        assert_eq!("cuda:7".parse::<Device>()?, Device::cuda(7));
        Ok(())
    }

    #[test]
    fn unknown_devices_are_refused_with_the_list() {
        for text in ["", "cdua:0", "cpu:0", "cuda:", "cuda:+1", "cuda:99999999999", "gpu", "cuda:0:1"] {
            let error = text.parse::<Device>().expect_err(text);
            assert!(error.to_string().contains("cpu, cuda:0, rocm:0, metal:0"), "{error}");
        }
        assert!("cdua".parse::<Device>().expect_err("misspelt").to_string().contains("did you mean `cuda`?"));
    }

    fn cores(cores: &[&[usize]]) -> Topology {
        Topology { cores: cores.iter().map(|core| core.to_vec()).collect(), ..Topology::default() }
    }

    #[test]
    fn threads_of_one_core_count_once() {
        let smt = cores(&[&[0, 4], &[1, 5]]);
        assert_eq!(physical(4, &smt), 2);
        assert_eq!(physical(2, &smt.clone().restricted_to(&[0, 4])), 1);
        assert_eq!(physical(3, &cores(&[&[0], &[1], &[2]])), 3);
        assert_eq!(physical(1, &smt), 1, "no more than threads");
        assert_eq!(physical(3, &Topology::default()), 3, "the system does not say");
        assert_eq!(physical(0, &smt), 1);
    }

    #[test]
    fn caches_are_those_of_one_processor() {
        let cache = |level, instructions, bytes, cpus: &[usize]| SharedCache {
            level,
            instructions,
            bytes: Some(bytes),
            cpus: cpus.to_vec(),
        };
        let caches = vec![
            cache(1, false, 48, &[0]),
            cache(1, true, 32, &[0]),
            cache(1, false, 96, &[1]),
            cache(2, false, 1000, &[0]),
            cache(3, false, 9000, &[0, 1]),
        ];
        let topology = Topology { caches, ..Topology::default() };
        let seen = |cpu| Caches::seen_by(cpu, &topology);
        assert_eq!(seen(Some(0)), Caches { l1d: Some(48), l2: Some(1000), l3: Some(9000) });
        assert_eq!(seen(Some(1)), Caches { l1d: Some(96), l2: None, l3: Some(9000) });
        assert_eq!(seen(None), Caches::default());
    }

    #[test]
    fn activations_take_half_of_the_second_cache() {
        let of = |l2| Caches { l1d: Some(1), l2, l3: Some(3) }.activations();
        assert_eq!(of(Some(2 << 20)), 1 << 20);
        assert_eq!(of(None), 256 << 10);
    }

    #[test]
    fn detection_claims_features_of_its_own_architecture_only() {
        let profile = CpuProfile::detect();
        assert!(profile.cores >= 1);
        assert!(profile.features.iter().all(|feature| feature.arch() == profile.arch));
    }
}
