//! Running CUDA code without a GPU: units compiled by g++ against the emulator, and launches of their kernels.
//!
//! What each mistake of a kernel looks like stands at `tests/cuda/emulator/emulator.h`.
#![allow(dead_code, reason = "each test file uses a part of this")]

pub mod busy;
mod child;
mod compile;
pub mod fail;
mod fake;
mod hold;
mod launch;
pub mod lose;

use std::io::Write as _;

#[allow(unused_imports, reason = "each test file uses a part of this")]
pub use child::{child, is_child, said};
#[allow(unused_imports, reason = "each test file uses a part of this")]
pub use compile::{Compiled, build, compiler, fake_driver, place_unit, root, unit_file};
#[allow(unused_imports, reason = "each test file uses a part of this")]
pub use hold::at_every_call;
#[allow(unused_imports, reason = "each test file uses a part of this")]
pub use launch::{Buffer, GAP, Launch, Unit};

/// Whether units can be compiled here; if not, says that `what` is left out, or fails if nothing may be.
pub fn can_run(what: &str) -> bool {
    if compiler().is_some() {
        return true;
    }
    let strict = std::env::var_os("GRISTMILL_NO_SKIP").is_some_and(|value| !value.is_empty() && value != "0");
    assert!(!strict, "GRISTMILL_NO_SKIP is set, and {what} can't run: no g++ (or $CXX)");
    // Not by a macro, whose output the test harness keeps to itself.
    let told = writeln!(
        std::io::stderr(),
        "SKIPPED: {what}: no g++ (or $CXX) to compile CUDA code for the emulator"
    );
    told.expect("stderr is there");
    false
}

/// A mistake in a kernel's text: what it is, the text that is there, what is there instead, and words of the emulator's
/// report; where they are empty, the results are wrong.
pub type Mistake = (&'static str, &'static str, &'static str, &'static str);

/// `text` with one place changed, which must be there once.
pub fn mutated(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "`{from}` stands once in the kernel");
    text.replace(from, to)
}

/// Every mistake shows as it should in each order of threads; `unit` compiles the kernels with a place changed.
pub fn all_show<R: PartialEq + std::fmt::Debug>(
    mistakes: &[Mistake],
    right: &R,
    seeds: u64,
    unit: impl Fn(&str, &str) -> Unit,
    run: impl Fn(&Unit, u64) -> Result<R, String>,
) {
    for (name, from, to, words) in mistakes {
        let unit = unit(from, to);
        for seed in 0..seeds {
            match run(&unit, seed) {
                Ok(found) => assert!(words.is_empty() && found != *right, "{name}, seed {seed}: not seen"),
                Err(report) => {
                    assert!(!words.is_empty() && tells(&report, words), "{name}, seed {seed}: {report}");
                }
            }
        }
    }
}

/// Whether the emulator's report has one of these words, which `|` parts.
pub fn tells(report: &str, words: &str) -> bool {
    words.split('|').any(|words| report.contains(words))
}
