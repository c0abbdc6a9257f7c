//! Versions of CUDA compilers, and which ones are refused.

use std::fmt;

/// A version as `nvcc --version` prints it: 13.0.88.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Of the toolkit.
    pub major: u16,
    /// Of the toolkit.
    pub minor: u16,
    /// Of this compiler.
    pub build: u16,
}

/// Older compilers lack architectures that the specs name, and their images would need nothing that the run time
/// supports: it calls drivers through the CUDA 12.0 interface.
pub const OLDEST: Version = Version::new(12, 0, 0);

/// Compilers whose images are wrong, each with what is wrong and what to take instead.
const BAD: &[(Version, &str)] = &[
    (Version::new(13, 2, 51), "it miscompiles byte-wise reads of packed integers; 13.2.86 has the fix"),
    (Version::new(13, 2, 78), "it miscompiles byte-wise reads of packed integers; 13.2.86 has the fix"),
];

impl Version {
    /// A version from its numbers.
    pub const fn new(major: u16, minor: u16, build: u16) -> Version {
        Version { major, minor, build }
    }

    /// Finds `V13.0.88` in what a tool printed, or in the first lines of PTX.
    pub fn find(text: &str) -> Option<Version> {
        text.split_whitespace().filter_map(|word| word.strip_prefix('V')).find_map(Version::parse)
    }

    fn parse(word: &str) -> Option<Version> {
        let mut numbers = word.trim_end_matches(',').split('.').map(|number| number.parse::<u16>().ok());
        let version = Version::new(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }

    /// Why this compiler is refused, if it is.
    pub fn known_bad(self) -> Option<&'static str> {
        BAD.iter().find(|(version, _)| *version == self).map(|(_, why)| *why)
    }

    /// Whether two parts belong to the same toolkit.
    pub fn same_toolkit(self, other: Version) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.build)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_in_what_tools_print() {
        let nvcc = "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA Corporation\n\
                    Built on Wed_Aug_20_01:58:59_PM_PDT_2025\n\
                    Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0\n";
        assert_eq!(Version::find(nvcc), Some(Version::new(13, 0, 88)));
        assert_eq!(
            Version::find("// Cuda compilation tools, release 12.9, V12.9.86\n"),
            Some(Version::new(12, 9, 86))
        );
        for text in ["", "V", "V13.0", "V13.0.88.1", "V13.x.88", "release 13.0", "V99999.0.0"] {
            assert_eq!(Version::find(text), None, "{text}");
        }
    }

    #[test]
    fn bad_ones_are_known_by_name() {
        assert!(Version::new(13, 2, 51).known_bad().is_some());
        assert!(Version::new(13, 2, 78).known_bad().is_some());
        assert_eq!(Version::new(13, 2, 86).known_bad(), None);
        assert_eq!(Version::new(13, 0, 88).known_bad(), None);
    }
}
