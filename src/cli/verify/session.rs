//! What has been run, what was wrong with it, and the digest of the results.

use super::super::error::CliError;
use super::guard;
use crate::opened::Opened;
use gristmill::oracle::{FormatOracle, first_difference};
use gristmill::registry::{Entry, FormatInfo};
use gristmill::vocab::{DType, DeviceKind, Op};
use gristmill::{CpuProfile, Device, Fnv, PrecisionMode, Prepared, REGISTRY, Request, Restrict, Shape};

/// A result that is not what it must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The input: shape and what it was filled with.
    pub case: String,
    /// Which part of the result.
    pub at: String,
    /// What it must be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: expected {}, found {}", self.case, self.at, self.expected, self.found)
    }
}

/// What one kernel did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Whether it was asked for.
    pub selected: bool,
    /// Why it did not run.
    pub skipped: Option<String>,
    /// Cases that it ran.
    pub cases: usize,
    /// The first problem.
    pub problem: Option<Problem>,
    /// Largest normalized mean square error against f64, where sums are not integers.
    pub nmse: Option<f64>,
}

/// A differential run.
pub struct Session<'o> {
    /// By index of the registry's entries.
    pub reports: Vec<Report>,
    /// Of results that are the same on every machine.
    pub digest: Fnv,
    /// Fewer and smaller cases.
    pub quick: bool,
    /// Where kernels run that are not for the processor.
    pub device: Device,
    /// That device: each case has handles of its own, and opening it for each would take longer than all else.
    pub opened: Opened,
    /// Called with the kernel that runs next.
    pub progress: &'o dyn Fn(&str),
}

/// An entry that can run here.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Index in the registry.
    pub index: usize,
    /// The entry.
    pub entry: &'static Entry,
    /// Where it runs.
    pub device: Device,
}

impl Kernel {
    /// Whether it runs on the processor, so that its raw functions can be called. Others run through handles only.
    pub fn on_cpu(&self) -> bool {
        self.device.kind == DeviceKind::Cpu
    }

    /// Whether its family lists activations of this type; handles refuse the others.
    pub fn reads(&self, input: DType) -> bool {
        let entry = self.entry;
        let listed = (REGISTRY.candidates)(entry.op, entry.format, input, entry.device);
        listed.iter().any(|index| usize::from(*index) == self.index)
    }
}

impl Session<'_> {
    /// Entries of an op and format that were selected and can run.
    pub fn kernels(&self, op: Op, format: usize) -> Vec<Kernel> {
        let wanted = |(entry, report): &(&Entry, &Report)| {
            entry.op == op && entry.format == format && report.selected && report.skipped.is_none()
        };
        let all = REGISTRY.entries.iter().zip(&self.reports).enumerate();
        all.filter(|(_, pair)| wanted(pair))
            .map(|(index, (entry, _))| Kernel { index, entry, device: on(entry, self.device) })
            .collect()
    }

    /// Runs one case of one kernel and notes how it went.
    ///
    /// # Errors
    /// Only what keeps the run from going on; a wrong result is a note.
    pub fn case(
        &mut self,
        kernel: Kernel,
        run: impl FnOnce() -> Result<Result<(), Problem>, CliError>,
    ) -> Result<(), CliError> {
        guard::running(kernel.entry.name);
        if self.reports[kernel.index].cases == 0 {
            (self.progress)(kernel.entry.name);
        }
        let outcome = run()?;
        let report = &mut self.reports[kernel.index];
        report.cases += 1;
        if let Err(problem) = outcome {
            report.problem.get_or_insert(problem);
            // A kernel that loses the device is not to fail all behind it.
            self.opened.renew(self.device);
        }
        Ok(())
    }

    /// Adds bytes of a result to the digest.
    pub fn digest(&mut self, bytes: &[u8]) {
        self.digest = self.digest.with(bytes);
    }

    /// Adds f32 results to the digest.
    pub fn digest_f32(&mut self, values: &[f32]) {
        for value in values {
            // Which NaN comes of an overflow is the processor's own.
            let bits = if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
            self.digest(&bits.to_le_bytes());
        }
    }
}

/// A format with its meaning.
#[derive(Clone, Copy)]
pub struct Subject<'o> {
    /// Index in the registry.
    pub index: usize,
    /// As the runtime knows it.
    pub info: &'static FormatInfo,
    /// What it means.
    pub oracle: &'o FormatOracle<'o>,
}

/// Where an entry runs in a session for `device`.
pub fn on(entry: &Entry, device: Device) -> Device {
    if entry.device == device.kind { device } else { Device { kind: entry.device, index: 0 } }
}

/// The request that only this kernel can serve, prepared for its device; the environment is not read.
///
/// # Errors
/// None that a registry's own entry could cause.
pub fn prepared(kernel: Kernel, quantizer: Option<&str>, input: DType) -> Result<Prepared, CliError> {
    let Kernel { entry, device, .. } = kernel;
    let format = super::super::list::name_of(entry);
    let (op, shape) = (entry.op, Shape::new(1, 1, 1));
    let precision = entry.precision().map_or(PrecisionMode::Auto, PrecisionMode::from);
    let request =
        Request { op, format, quantizer, input, device, shape, precision, working_set: None, threads: 1 };
    let only = Restrict { kernel: Some(entry.name.to_owned()), ..Restrict::default() };
    Ok(REGISTRY.prepare_for(&request, CpuProfile::detect(), &only)?)
}

/// Compares f32 results bit by bit; all NaN count as one value.
///
/// # Errors
/// The first difference, at `name(index)`.
pub fn same_f32(
    case: &str,
    expected: &[f32],
    found: &[f32],
    name: impl Fn(usize) -> String,
) -> Result<(), Problem> {
    agree(case, "number of values", &expected.len(), &found.len())?;
    let words = |value: f32| format!("{value:e} (0x{:08x})", value.to_bits());
    no_difference(case, first_difference(expected, found), name, |at| [words(expected[at]), words(found[at])])
}

/// Compares other results.
///
/// # Errors
/// The first difference, at `name(index)`.
pub fn same<T: PartialEq + std::fmt::Debug>(
    case: &str,
    expected: &[T],
    found: &[T],
    name: impl Fn(usize) -> String,
) -> Result<(), Problem> {
    agree(case, "number of values", &expected.len(), &found.len())?;
    let first = expected.iter().zip(found).position(|(e, f)| e != f);
    no_difference(case, first, name, |at| [format!("{:?}", expected[at]), format!("{:?}", found[at])])
}

/// That no value differs, of which `first` is the first that does.
///
/// # Errors
/// The difference, at `name(first)`, of what `values(first)` says is expected and found.
pub fn no_difference(
    case: &str,
    first: Option<usize>,
    name: impl Fn(usize) -> String,
    values: impl Fn(usize) -> [String; 2],
) -> Result<(), Problem> {
    let Some(at) = first else { return Ok(()) };
    let [expected, found] = values(at);
    Err(Problem { case: case.to_owned(), at: name(at), expected, found })
}

/// Compares two things as a whole.
///
/// # Errors
/// If they differ.
pub fn agree<T: PartialEq + std::fmt::Debug>(
    case: &str,
    at: &str,
    expected: &T,
    found: &T,
) -> Result<(), Problem> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
    Err(Problem { case: case.to_owned(), at: at.to_owned(), expected, found })
}

/// That nothing was written outside a buffer.
///
/// # Errors
/// If something was.
pub fn untouched(case: &str, buffer: &str, intact: bool) -> Result<(), Problem> {
    agree(
        case,
        &format!("memory beside {buffer}"),
        &"untouched",
        &if intact { "untouched" } else { "written to" },
    )
}

/// A registry entry whose code is of another op than it says.
///
/// # Errors
/// Always.
pub fn wrong_code(case: &str) -> Result<(), Problem> {
    agree(case, "registry", &"code of the entry's op", &"code of another op")
}
