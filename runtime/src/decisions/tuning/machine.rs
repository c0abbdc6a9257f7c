//! What processors and GPUs are called in tuning files.

use crate::device::CpuProfile;
use crate::gpu::GpuProfile;
use std::fmt::Write;
use std::sync::OnceLock;

/// What the line of a processor begins with.
pub(super) const CPU: &str = "cpu ";
/// What the line of a GPU begins with.
pub(super) const GPU: &str = "gpu ";

/// What a GPU is called in tuning files: its name, compute capability, and what its driver supports.
pub fn gpu(profile: &GpuProfile) -> String {
    let GpuProfile { name, cc: (major, minor), driver, .. } = profile;
    // One line, whatever the driver says.
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{GPU}{name} {major}.{minor} driver {driver}")
}

/// What `cuda:index` is called in tuning files; `None` where it can't be asked, and without the feature `cuda`.
pub fn gpu_at(index: u32) -> Option<String> {
    #[cfg(feature = "cuda")]
    return crate::cuda::detect(index).ok().map(|profile| gpu(&profile));
    #[cfg(not(feature = "cuda"))]
    {
        let _ = index;
        None
    }
}

/// What this processor is called in tuning files: architecture, features, and what the system says of its make.
pub fn cpu() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(name_cpu)
}

/// What a processor is called in tuning files: [`cpu`] for this one, and for a pretended one its architecture and features, since it
/// has no make.
pub fn cpu_of(profile: &CpuProfile) -> String {
    let here = CpuProfile::detect();
    match (profile.arch, profile.features) == (here.arch, here.features) {
        true => cpu().to_owned(),
        false => by_features(profile),
    }
}

fn by_features(profile: &CpuProfile) -> String {
    let mut name = format!("{CPU}{}", profile.arch.name());
    for feature in profile.features.iter() {
        let _ = write!(name, " {}", feature.name());
    }
    name
}

fn name_cpu() -> String {
    let mut name = by_features(CpuProfile::detect());
    const KEYS: &[&str] =
        &["vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant"];
    // Elsewhere than on Linux the features have to do.
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // One processor of several: a blank line ends it.
    let first = info.split("\n\n").next().unwrap_or_default();
    for line in first.lines() {
        if let Some((key, value)) = line.split_once(':')
            && KEYS.contains(&key.trim())
        {
            let _ = write!(name, " {}", value.trim());
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_processor_has_a_name_on_one_line() {
        assert!(cpu().starts_with(&format!("cpu {}", CpuProfile::detect().arch.name())));
        assert!(!cpu().contains('\n'));
    }
}
