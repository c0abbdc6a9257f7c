//! The generated kernels: their units, compiled for the emulator, and how each is launched.

use super::choice::everything;
use super::support::Unit;
use gristmill::REGISTRY;
use gristmill::oracle::{Oracle, first_difference};
use gristmill_codegen::cuda::{CudaListed, DEVICE_HEADER, Emitted, Launch, emit};
use gristmill_spec::model::{Format, SpecSet};
use gristmill_spec::vocab::{CudaAlgorithm, Op, Serves};
use gristmill_spec::{SourceFile, check};
use std::sync::{Arc, Mutex, OnceLock};

/// The specs of this build and what the compiler makes of them.
pub struct Generated {
    pub set: SpecSet,
    pub emitted: Emitted,
    pub oracle: Oracle,
}

/// The specs of this build.
pub fn sources() -> Vec<SourceFile> {
    let source = |source: &gristmill::registry::Source| SourceFile {
        path: source.path.to_owned(),
        bytes: source.bytes.to_vec(),
    };
    REGISTRY.sources.iter().map(source).collect()
}

pub fn generated() -> &'static Generated {
    static MADE: OnceLock<Generated> = OnceLock::new();
    MADE.get_or_init(|| {
        let set = check(&sources()).set.expect("the specs of this build check");
        let emitted = emit(&set).unwrap_or_else(|errors| panic!("{errors:?}"));
        let oracle = Oracle::new(&REGISTRY).expect("the specs of this build check");
        Generated { set, emitted, oracle }
    })
}

/// A listed kernel with its compiled unit.
#[derive(Clone)]
pub struct Kernel {
    pub listed: &'static CudaListed,
    pub unit: Arc<Unit>,
}

impl Kernel {
    /// A number of the launch.
    pub fn number(&self, name: &str) -> usize {
        let launch = &self.listed.plan.launch;
        let found = launch.numbers().into_iter().find(|(of, _)| *of == name);
        found.unwrap_or_else(|| panic!("no `{name}` in {launch:?}")).1 as usize
    }

    pub fn function(&self) -> &'static str {
        self.listed.plan.launch.function()
    }

    /// The weight format's name.
    pub fn format(&self) -> &'static str {
        &generated().set.formats[self.listed.format].name
    }
}

/// The text of a unit without the header in front.
pub fn text_of(unit: &str) -> String {
    let unit = generated().emitted.units.iter().find(|each| each.name == unit);
    unit.expect("every kernel has a unit").text.replace(DEVICE_HEADER, "")
}

/// Every kernel of an op but products of floats and those that quantize their activations; each unit is compiled and loaded once. A kernel that is listed for several
/// shapes is here once.
pub fn kernels(op: Op) -> Vec<Kernel> {
    kernels_where(op, &|listed| !multiplies_floats(listed) && !listed.fused)
}

/// Products that quantize their activations.
pub fn fused_products() -> Vec<Kernel> {
    kernels_where(Op::Matmul, &|listed| listed.fused)
}

/// Products of floats that `wanted` says yes to.
pub fn products_of_floats(wanted: &dyn Fn(&CudaListed) -> bool) -> Vec<Kernel> {
    kernels_where(Op::Matmul, &|listed| {
        multiplies_floats(listed) && listed.algorithm != CudaAlgorithm::MmaFp4 && wanted(listed)
    })
}

/// Products of FP4, which take activations in a form of their own.
pub fn products_of_fp4() -> Vec<Kernel> {
    kernels_of(Op::Matmul, &|_| true, &|listed| listed.algorithm == CudaAlgorithm::MmaFp4)
}

fn multiplies_floats(listed: &CudaListed) -> bool {
    matches!(listed.plan.launch, Launch::Rows { .. })
}

fn kernels_where(op: Op, wanted: &dyn Fn(&CudaListed) -> bool) -> Vec<Kernel> {
    kernels_of(op, &chosen, wanted)
}

fn kernels_of(op: Op, chosen: &dyn Fn(&Format) -> bool, wanted: &dyn Fn(&CudaListed) -> bool) -> Vec<Kernel> {
    let all = &generated().emitted.listed;
    let same = |a: &CudaListed, b: &CudaListed| {
        a.unit == b.unit
            && a.format == b.format
            && a.quantizer == b.quantizer
            && a.plan.launch == b.plan.launch
    };
    let formats = &generated().set.formats;
    let taken =
        |listed: &CudaListed| op.info().serves == Serves::Activations || chosen(&formats[listed.format]);
    let listed = all.iter().enumerate().filter(|(i, listed)| {
        listed.op == op
            && taken(listed)
            && wanted(listed)
            && !all[..*i].iter().any(|earlier| earlier.op == op && same(earlier, listed))
    });
    let listed = listed.map(|(_, listed)| listed);
    listed.map(|listed| Kernel { listed, unit: loaded(&listed.unit) }).collect()
}

fn loaded(name: &str) -> Arc<Unit> {
    static LOADED: Mutex<Vec<(String, Arc<Unit>)>> = Mutex::new(Vec::new());
    let find = |units: &Vec<(String, Arc<Unit>)>| {
        units.iter().find(|(found, _)| found == name).map(|(_, u)| u.clone())
    };
    if let Some(unit) = find(&LOADED.lock().expect("no test panics with it")) {
        return unit;
    }
    // Not locked while compiling, so that tests compile at the same time.
    let unit = Arc::new(Unit::new(name, &text_of(name)));
    let mut units = LOADED.lock().expect("no test panics with it");
    units.push((name.to_owned(), unit.clone()));
    find(&units).unwrap_or(unit)
}

/// Formats whose kernels every run takes: one sum a row, one scale a block, integer scales with minima, a table.
const CHOSEN: [&str; 4] = ["i2_s", "q4_0", "q4_k", "iq4_nl"];

/// Whether kernels of this format are tried; of those shipped, some where not everything is.
fn chosen(format: &Format) -> bool {
    let shipped = format.origin.file.starts_with("kernel-spec/");
    everything() || !shipped || CHOSEN.contains(&format.name.as_str())
}

/// How many cases there are at least where `all` are those of the shipped formats: a run may try a few alone, and a build
/// may hold a few of one's own alone.
pub fn least(all: usize) -> usize {
    if everything() && cfg!(all(feature = "bitnet", feature = "ggml")) { all } else { 1 }
}

/// What a kernel's `fault` holds before a launch.
pub const NO_FAULT: u64 = u64::MAX;

/// Panics at the first difference of f32 values; NaNs are alike.
pub fn same_f32(case: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{case}");
    if let Some(i) = first_difference(expected, found) {
        let (found, expected) = (found[i], expected[i]);
        panic!(
            "{case}: value {i} is {found:e} ({:#x}), expected {expected:e} ({:#x})",
            found.to_bits(),
            expected.to_bits()
        );
    }
}

/// Panics at the first difference of bytes.
pub fn same_bytes(case: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{case}");
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("{case}: byte {at} is {:#x}, expected {:#x}", found[at], expected[at]);
    }
}
