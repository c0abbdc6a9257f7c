//! What the system says of two things that make all kernels of a program slower: memory on small pages, and a clock that is held back.
//!
//! What the system does not tell is absent. Linux alone is asked; elsewhere, and in most virtual machines as to the clock, all of it is.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// The machine of a program whose kernels are watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Pages of memory that is to lie on huge ones, as packed weights are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// Clocks of the processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
}

/// Memory of the program that huge pages were asked for (`madvise`): packed weights, and what others in the program asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// When the system gives them out, `always`, `madvise` or `never`; `off for this program` where that is so (`prctl`).
    pub mode: String,
    /// Bytes of it that are in memory.
    pub asked_bytes: u64,
    /// Bytes of these that lie on huge pages.
    pub huge_bytes: u64,
}

/// Clocks of the processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// How often a processor was throttled because it was hot since the monitor began: of the one that was most often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<u64>,
    /// The clock in MHz that the system allows at present, of the processor that may least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_mhz: Option<u64>,
    /// The highest clock in MHz of the same processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_mhz: Option<u64>,
}

impl Host {
    /// What the system says now; of throttling how often it happened since the system started.
    pub(crate) fn now() -> Host {
        match cfg!(target_os = "linux") {
            true => Host::under(Path::new("/")),
            false => Host::default(),
        }
    }

    /// The same of the files under a folder.
    fn under(root: &Path) -> Host {
        Host { huge_pages: huge_pages(root), clock: clock(root) }
    }

    /// The same with what happened since `begin` where it counts from the start of the system.
    pub(crate) fn since(mut self, begin: &Host) -> Host {
        if let Some(clock) = &mut self.clock {
            let before = begin.clock.as_ref().and_then(|clock| clock.throttled);
            clock.throttled = clock.throttled.zip(before).map(|(now, before)| now.saturating_sub(before));
        }
        self
    }
}

fn huge_pages(root: &Path) -> Option<HugePages> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let modes = read("sys/kernel/mm/transparent_hugepage/enabled")?;
    let chosen = modes.split_once('[')?.1.split_once(']')?.0;
    let allowed = read("proc/self/status").is_none_or(|status| !status.contains("\nTHP_enabled:\t0\n"));
    let mode = if allowed { chosen } else { "off for this program" };
    let (asked_bytes, huge_bytes) = asked_and_huge(&read("proc/self/smaps")?)?;
    Some(HugePages { mode: mode.to_owned(), asked_bytes, huge_bytes })
}

/// Bytes in memory of the mappings that huge pages were asked for, and bytes of these on huge pages; `None` where mappings have no flags,
/// which say whether they were.
fn asked_and_huge(smaps: &str) -> Option<(u64, u64)> {
    let (mut rss, mut huge) = (0, 0);
    let (mut asked_bytes, mut huge_bytes, mut flags) = (0, 0, false);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or("");
        let mut bytes =
            || words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024);
        match name {
            "Rss:" => rss = bytes(),
            "AnonHugePages:" => huge = bytes(),
            // The last line of a mapping.
            "VmFlags:" => {
                flags = true;
                if words.any(|flag| flag == "hg") {
                    asked_bytes += rss;
                    huge_bytes += huge;
                }
                (rss, huge) = (0, 0);
            }
            _ => {}
        }
    }
    flags.then_some((asked_bytes, huge_bytes))
}

fn clock(root: &Path) -> Option<Clock> {
    let cpus = std::fs::read_dir(root.join("sys/devices/system/cpu")).ok()?;
    let cpus = cpus.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("cpu"));
        name.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut clock = Clock::default();
    for cpu in cpus {
        let counts = ["core_throttle_count", "package_throttle_count"]
            .map(|count| number(&cpu.join("thermal_throttle").join(count)));
        clock.throttled = clock.throttled.max(counts.into_iter().flatten().max());
        let khz =
            ["scaling_max_freq", "cpuinfo_max_freq"].map(|file| number(&cpu.join("cpufreq").join(file)));
        let [Some(allowed), Some(highest)] = khz.map(|khz| khz.map(|khz| khz / 1000)) else { continue };
        // Processors of one machine may differ, so each is held against itself.
        let held_back = |allowed: u64, highest: u64| highest.saturating_sub(allowed);
        let known = clock.allowed_mhz.zip(clock.highest_mhz);
        if known.is_none_or(|(a, h)| held_back(allowed, highest) > held_back(a, h)) {
            (clock.allowed_mhz, clock.highest_mhz) = (Some(allowed), Some(highest));
        }
    }
    Some(clock).filter(|clock| *clock != Clock::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files.
    fn files(files: &[(&str, &str)]) -> std::io::Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
            std::fs::write(path, text)?;
        }
        Ok(folder)
    }

    const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    const SMAPS: &str = "\
7f0000000000-7f0010000000 rw-p 00000000 00:00 0 \nRss:  200000 kB\nAnonHugePages:     40960 kB\nVmFlags: rd wr mr mw me ac hg \n\
7f0020000000-7f0030000000 rw-p 00000000 00:00 0 \nRss:    1000 kB\nAnonHugePages:         0 kB\nVmFlags: rd wr mr mw me ac hg \n\
7f0040000000-7f0050000000 rw-p 00000000 00:00 0 [heap] hg\nRss:  500000 kB\nAnonHugePages:    409600 kB\nVmFlags: rd wr mr mw me ac \n";

    #[test]
    fn memory_that_asked_for_huge_pages_is_told_from_other_memory() -> std::io::Result<()> {
        let folder = files(&[(ENABLED, "always [madvise] never\n"), ("proc/self/smaps", SMAPS)])?;
        let seen = Host::under(folder.path());
        let right =
            HugePages { mode: "madvise".to_owned(), asked_bytes: 201_000 << 10, huge_bytes: 40_960 << 10 };
        assert_eq!(seen, Host { huge_pages: Some(right), clock: None });
        std::fs::write(
            folder.path().join("proc/self/status"),
            "Name:\ta\nTHP_enabled:\t0\nuntag_mask:\t0\n",
        )?;
        let mode = |folder: &tempfile::TempDir| Host::under(folder.path()).huge_pages.map(|pages| pages.mode);
        assert_eq!(mode(&folder).as_deref(), Some("off for this program"));
        // Without flags, or without any of the files, nothing is known.
        std::fs::write(folder.path().join("proc/self/smaps"), "Rss: 1 kB\nAnonHugePages: 0 kB\n")?;
        assert_eq!(mode(&folder), None);
        assert_eq!(Host::under(Path::new("/nowhere")), Host::default());
        Ok(())
    }

    #[test]
    fn the_processor_that_is_held_back_most_is_told() -> std::io::Result<()> {
        let cpu = "sys/devices/system/cpu";
        let all = [
            ("cpu0/cpufreq/scaling_max_freq", "3000000\n"),
            ("cpu0/cpufreq/cpuinfo_max_freq", "3000000\n"),
            // A smaller core, which may do all that it can.
            ("cpu1/cpufreq/scaling_max_freq", "2000000\n"),
            ("cpu1/cpufreq/cpuinfo_max_freq", "2000000\n"),
            ("cpu2/cpufreq/scaling_max_freq", "2400000\n"),
            ("cpu2/cpufreq/cpuinfo_max_freq", "3000000\n"),
            ("cpu0/thermal_throttle/core_throttle_count", "5\n"),
            ("cpu2/thermal_throttle/package_throttle_count", "12\n"),
            ("cpufreq/scaling_max_freq", "1\n"),
        ];
        let all: Vec<(String, &str)> =
            all.iter().map(|(path, text)| (format!("{cpu}/{path}"), *text)).collect();
        let all: Vec<(&str, &str)> = all.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let now = Host::under(files(&all)?.path());
        let clock = Clock { throttled: Some(12), allowed_mhz: Some(2400), highest_mhz: Some(3000) };
        assert_eq!(now.clock, Some(clock.clone()));
        let begin = Host { clock: Some(Clock { throttled: Some(9), ..clock.clone() }), huge_pages: None };
        assert_eq!(now.clone().since(&begin).clock.and_then(|clock| clock.throttled), Some(3));
        assert_eq!(now.since(&Host::default()).clock.and_then(|clock| clock.throttled), None);
        // A folder of processors of which nothing is told.
        let silent = files(&[("sys/devices/system/cpu/cpu0/topology/core_id", "0\n")])?;
        assert_eq!(Host::under(silent.path()), Host::default());
        Ok(())
    }
}
