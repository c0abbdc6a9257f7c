//! What the specs allow a kernel to use, compared with what its images use.

use super::image::Image;
use std::fmt;

/// What a kernel may use. Spills are never allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The function's name.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: Option<u32>,
    /// Bytes of static shared memory of a block.
    pub shared: Option<u32>,
    /// `file:line` where that is said.
    pub source: String,
}

/// A kernel that uses more, or is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The kernel.
    pub kernel: String,
    /// The image: `sm_90a`.
    pub target: String,
    /// What it uses too much of, in words.
    pub what: String,
    /// `file:line` of the budget.
    pub source: String,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: kernel `{}` for {} {}", self.source, self.kernel, self.target, self.what)
    }
}

/// Compares every image of machine code with the budgets of the kernels of its unit (`budgets_of`, by unit name).
/// A budget whose kernel is missing in an image is an excess too: it would be checked against nothing.
pub fn excesses<'b>(images: &[Image], budgets_of: impl Fn(&str) -> &'b [Budget]) -> Vec<Excess> {
    let mut found = Vec::new();
    for image in images.iter().filter(|image| !image.ptx) {
        for budget in budgets_of(&image.unit) {
            let mut report = |what: String| {
                found.push(Excess {
                    kernel: budget.kernel.clone(),
                    target: image.target(),
                    what,
                    source: budget.source.clone(),
                });
            };
            let Some(usage) = image.usage.iter().find(|usage| usage.kernel == budget.kernel) else {
                report(format!("is not in the image of unit `{}`", image.unit));
                continue;
            };
            if let Some(allowed) = budget.registers.filter(|allowed| usage.registers > *allowed) {
                report(format!("uses {} registers; the spec allows {allowed}", usage.registers));
            }
            if let Some(allowed) = budget.shared.filter(|allowed| usage.shared > *allowed) {
                report(format!("uses {} bytes of shared memory; the spec allows {allowed}", usage.shared));
            }
            if usage.spill_stores > 0 || usage.spill_loads > 0 {
                report(format!(
                    "spills registers: {} bytes stored, {} bytes loaded",
                    usage.spill_stores, usage.spill_loads
                ));
            } else if usage.stack > 0 {
                report(format!("uses {} bytes of stack; an array is indexed by a variable", usage.stack));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::usage::Usage;
    use super::*;
    use gristmill_spec::vocab::CudaArch;

    fn image(usage: Usage) -> Image {
        Image {
            unit: "u".into(),
            arch: CudaArch { major: 8, minor: 0, specific: false },
            ptx: false,
            bytes: Vec::new(),
            usage: vec![usage],
            warnings: Vec::new(),
            compiler: String::new(),
        }
    }

    #[test]
    fn the_limit_is_allowed_and_one_more_is_not() {
        let budgets =
            [Budget { kernel: "k".into(), registers: Some(32), shared: Some(64), source: "a.toml:3".into() }];
        let words = |usage: Usage| -> Vec<String> {
            excesses(&[image(usage)], |_| &budgets).iter().map(ToString::to_string).collect()
        };
        let at = Usage { kernel: "k".into(), registers: 32, shared: 64, ..Usage::default() };
        assert!(words(at.clone()).is_empty());
        assert_eq!(
            words(Usage { registers: 33, ..at.clone() }),
            ["a.toml:3: kernel `k` for sm_80 uses 33 registers; the spec allows 32"]
        );
        assert_eq!(
            words(Usage { shared: 65, ..at.clone() }),
            ["a.toml:3: kernel `k` for sm_80 uses 65 bytes of shared memory; the spec allows 64"]
        );
        assert_eq!(
            words(Usage { spill_stores: 4, stack: 8, ..at.clone() }),
            ["a.toml:3: kernel `k` for sm_80 spills registers: 4 bytes stored, 0 bytes loaded"]
        );
        assert_eq!(words(Usage { stack: 8, ..at.clone() }).len(), 1);
        assert_eq!(
            words(Usage { kernel: "other".into(), ..at }),
            ["a.toml:3: kernel `k` for sm_80 is not in the image of unit `u`"]
        );
    }
}
