//! `verify`: what runs, what is skipped, and a digest that does not depend on who computed it.
#![cfg(all(feature = "cli", feature = "bitnet", feature = "ggml"))]

use crate::common::{command, finished, gristmill, words};
use gristmill_records::verify::Verification;

#[test]
fn every_kernel_of_a_format_agrees_with_the_oracle() {
    for format in ["i2_s", "q4_k", "int8_row"] {
        let ran = gristmill(["verify", "--quick", "--json", "--format", format]).code(0);
        let done: Verification = ran.record();
        assert_eq!(done.wrong, 0, "{done:?}");
        let skipped: u64 = done.skipped.iter().map(|skipped| skipped.kernels).sum();
        assert!(done.ran > 0 && done.ran + skipped == done.of, "{done:?}");
        assert_eq!(done.kernels.len() as u64, done.of);
        for kernel in &done.kernels {
            assert!(kernel.status != "ok" || kernel.cases > 0, "{kernel:?}");
        }
    }
}

#[test]
fn the_digest_is_that_of_the_results_and_not_of_the_kernels() {
    let digest = |isa: &str| {
        let json = gristmill(words(&format!("verify --quick --json --format i2_s --isa {isa}"))).json();
        (json["ran"].as_u64(), json["digest"].as_str().map(str::to_owned))
    };
    let (ran, scalar) = digest("scalar");
    assert!(ran > Some(0) && scalar.is_some());
    let (ran, avx2) = digest("avx2");
    if ran > Some(0) {
        assert_eq!(avx2, scalar);
    } else {
        println!("ran 0 of 1; skipped 1: the processor lacks avx2");
    }
    let other = gristmill(words("verify --quick --json --format tq2_0 --isa scalar")).json();
    assert_ne!(other["digest"].as_str().map(str::to_owned), scalar);
}

#[test]
fn one_kernel_can_be_asked_for() {
    gristmill(words("verify --quick matmul.i2_s.scalar"))
        .code(0)
        .says("ran 1 of 1 kernel")
        .says("0 wrong")
        .says("exact");
}

/// A check of which nothing ran is none that passed.
#[test]
fn a_kernel_that_can_t_run_here_is_no_success() {
    let json = gristmill(words("list --json")).code(0).json();
    let kernels = json["kernels"].as_array().expect("a list");
    let other = kernels.iter().find(|kernel| kernel["device"] == "cpu" && kernel["runs_here"] == false);
    let Some(name) = other.and_then(|kernel| kernel["name"].as_str()) else {
        println!("ran 0 of 1; skipped 1: this processor runs every kernel");
        return;
    };
    for more in ["", " --json"] {
        gristmill(words(&format!("verify --quick {name}{more}"))).code(2).says("the processor lacks");
    }
}

/// The portable kernels run beside those of a GPU, and say nothing of it.
#[test]
fn a_device_of_which_nothing_is_checked_is_no_success() {
    // A machine with a GPU, and a build with kernels for it, has something to check.
    let gpu = std::path::Path::new("/dev/nvidiactl").exists();
    for device in ["cuda:0", "rocm:0", "metal:0"].into_iter().skip(usize::from(gpu)) {
        for more in ["", " --json", " --format q4_0"] {
            let ran = gristmill(words(&format!("verify --quick --device {device}{more}"))).code(1);
            let ran = ran.complains(&format!("no kernel of {device} was checked"));
            assert!(ran.stdout.is_empty(), "{}", ran.stdout);
        }
    }
}

#[test]
fn skips_become_failures_on_request() {
    let no_skip = |line: &str| finished(command().args(words(line)).env("GRISTMILL_NO_SKIP", "1").output());
    no_skip("verify --quick --format i2_s --isa scalar").code(0);
    // Nothing to check is not "nothing wrong".
    no_skip("verify --quick --format int8_row --isa avxvnni").code(1).complains("no kernel of this build");
}
