//! The images of this build on a fake driver: which kernels are tried, and the emulated units behind their images.
#![allow(dead_code, reason = "each test file uses a part of this")]

use super::support::{build, can_run, child, is_child, place_unit};
use gristmill::registry::{Code, CudaBuild, Entry, FormatInfo};
use gristmill::vocab::Serves;
use gristmill::{Device, REGISTRY};
use std::path::Path;
use std::process::Output;

pub const GPU: Device = Device { kind: gristmill::vocab::DeviceKind::Cuda, index: 0 };

/// Formats that are tried: whole rows and units, headers and tails, minima, tables.
const TRIED: &[&str] = &["i2_s", "i2s_absmax", "tq2_0", "q8_0", "q4_k", "iq4_nl"];

/// Formats of which the tests of FP4 alone launch kernels.
const OF_FP4: &[&str] = &["mxfp4", "nvfp4"];

pub fn tried() -> impl Iterator<Item = &'static FormatInfo> {
    REGISTRY.formats.iter().filter(|format| TRIED.contains(&format.name))
}

fn named(entry: &Entry) -> &'static str {
    REGISTRY.served(entry.op).nth(entry.format).unwrap_or_default()
}

/// CUDA entries that the tests launch.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    REGISTRY.entries.iter().filter(|entry| {
        matches!(entry.code, Code::Cuda(_))
            && (entry.op.info().serves == Serves::Activations
                || [TRIED, OF_FP4].iter().any(|formats| formats.contains(&named(entry))))
    })
}

/// Compiles the units of the tried kernels for the emulator, and puts them where the fake driver finds them for the
/// images of this build.
pub fn place_units(folder: &Path) {
    let sources: Vec<gristmill_spec::SourceFile> = gristmill_spec::shipped().expect("readable");
    let set = gristmill_spec::check(&sources).set.expect("the shipped specs have no mistakes");
    let emitted = gristmill_codegen::cuda::emit(&set).expect("plans");
    for entry in entries() {
        let Code::Cuda(code) = &entry.code else { continue };
        let listed =
            emitted.listed.iter().find(|listed| listed.name == entry.name).expect("it was built from them");
        let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("of a unit");
        let text = unit.text.replace(gristmill_codegen::cuda::DEVICE_HEADER, "");
        let compiled = build(&unit.name, &text).unwrap_or_else(|said| panic!("{said}"));
        for image in code.images {
            place_unit(folder, &image.unpacked().expect("as it was built"), &compiled);
        }
    }
    use gristmill_codegen::cuda::{CONVERT, EXPERTS};
    for (name, code) in [(CONVERT, REGISTRY.convert), (EXPERTS, REGISTRY.experts)] {
        let Some(code) = code else { continue };
        let unit = emitted.units.iter().find(|unit| unit.name == name).expect("it was built");
        let text = unit.text.replace(gristmill_codegen::cuda::DEVICE_HEADER, "");
        let compiled = build(name, &text).unwrap_or_else(|said| panic!("{said}"));
        for image in code.images {
            place_unit(folder, &image.unpacked().expect("as it was built"), &compiled);
        }
    }
}

/// Puts the unit of `kernel` there with one text in place of another.
pub fn place_changed(folder: &Path, kernel: &str, from: &str, to: &str) {
    let sources: Vec<gristmill_spec::SourceFile> = gristmill_spec::shipped().expect("readable");
    let set = gristmill_spec::check(&sources).set.expect("the shipped specs have no mistakes");
    let emitted = gristmill_codegen::cuda::emit(&set).expect("plans");
    let entry = entries().find(|entry| entry.name == kernel).expect("it is tried");
    let Code::Cuda(code) = &entry.code else { panic!("{kernel} is a kernel for GPUs") };
    let listed = emitted.listed.iter().find(|listed| listed.name == kernel).expect("it was built from them");
    let unit = emitted.units.iter().find(|unit| unit.name == listed.unit).expect("of a unit");
    let text = unit.text.replace(gristmill_codegen::cuda::DEVICE_HEADER, "");
    assert!(text.contains(from), "`{from}` stands in {}", unit.name);
    let compiled = build(&format!("{}_changed", unit.name), &text.replace(from, to));
    for image in code.images {
        let image = image.unpacked().expect("as it was built");
        place_unit(folder, &image, compiled.as_ref().unwrap_or_else(|said| panic!("{said}")));
    }
}

pub fn has_images() -> bool {
    let strict = std::env::var_os("GRISTMILL_NO_SKIP").is_some_and(|value| value == "1");
    let built = matches!(REGISTRY.cuda, CudaBuild::Built { .. }) && entries().next().is_some();
    assert!(built || !strict, "this build has no CUDA images: {:?}", REGISTRY.cuda);
    built
}

/// Runs the test `name` as a process with a fake driver; `None` in that process, or where it can't run.
pub fn parent(name: &str, settings: &str) -> Option<Output> {
    if is_child() || !can_run(name) {
        return None;
    }
    if !has_images() {
        println!("SKIPPED: {name}: this build has no CUDA images");
        return None;
    }
    let units = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-handle-units");
    place_units(&units);
    Some(child(name, settings, &units))
}

/// Devices that take the images: of the oldest and of the newest architecture that was built.
pub fn devices() -> [String; 2] {
    let CudaBuild::Built { architectures, .. } = REGISTRY.cuda else { return Default::default() };
    let of = |cc: Option<(u8, u8)>| {
        let (major, minor) = cc.expect("one was built");
        format!("sm_{major}{minor}")
    };
    let all = || architectures.iter().map(|arch| arch.cc());
    [of(all().min()), of(all().max())]
}

/// The device whose warpgroups multiply, where it was built and is none of [`devices`].
#[allow(dead_code, reason = "not every test that takes this in has its kernels")]
pub fn with_warpgroups() -> Option<String> {
    let CudaBuild::Built { architectures, .. } = REGISTRY.cuda else { return None };
    let built = architectures.iter().any(|arch| arch.cc() == (9, 0));
    Some("sm_90".to_string()).filter(|device| built && !devices().contains(device))
}

/// The first of [`devices`].
pub fn settings() -> String {
    let [oldest, _] = devices();
    oldest
}

/// Values that are not all alike, without a generator of random ones.
pub fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let each = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32) * 2.0 - 1.0
    };
    std::iter::repeat_with(each).take(count).collect()
}

/// For comparing.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
