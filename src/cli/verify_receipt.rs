//! `gristmill verify-receipt`: whether a receipt is one, and says what it is claimed to say.

use super::error::{CliError, Outcome};
use gristmill::receipt::SCHEMA_VERSION;
use gristmill::registry::Entry;
use gristmill::text::Printable;
use gristmill::vocab::DeviceKind;
use gristmill::{Device, REGISTRY, RecoveryStep};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;

/// Check a receipt: its schema, that this build knows its kernels, and what it says ran
///
/// Shows that the file is whole and of this build: its kernels have the ids that a hash of their code, compiler and flags gives
/// here, and its devices are those of its kernels. It does not show who wrote the file: a receipt is not signed. A receipt of several
/// packages (a crate's own kernels beside these) is checked as far as this build has its kernels. Exits with 1 if something is
/// wrong with it.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Receipt, as `gristmill run --receipt` writes it
    pub(super) file: PathBuf,
    /// A kind of device on which a kernel must have run (cpu, cuda), or the name of a kernel that must have run
    #[arg(long, value_name = "DEVICE or KERNEL")]
    require: Vec<String>,
    /// A package of the receipt whose kernels this build does not have, and which are told and not checked
    #[arg(long, value_name = "PACKAGE")]
    unchecked: Vec<String>,
}

/// Largest receipt that is read: one line for each kernel of a registry of thousands.
const MAX_BYTES: u64 = 16 << 20;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let path = &arguments.file;
    let size = std::fs::metadata(path).map_err(CliError::file("read", path))?.len();
    if size > MAX_BYTES {
        let what = format!("`{}` has {size} bytes, too many for a receipt", path.display());
        return Err(CliError::usage(what, "give a file that `gristmill run --receipt` wrote"));
    }
    let bytes = std::fs::read(path).map_err(CliError::file("read", path))?;
    let mut check = Check { unchecked: arguments.unchecked.clone(), ..Check::default() };
    match serde_json::from_slice(&bytes) {
        Ok(receipt) => check.receipt(&receipt, &arguments.require),
        Err(error) => check.problems.push(format!("it is not JSON: {error}")),
    }
    for (entry, launches) in &check.ran {
        writeln!(out, "ran: {} ({launches}x, {}, {})", entry.name, entry.device, entry.id)?;
    }
    for (name, package) in &check.others {
        writeln!(out, "not checked: {} of {}", Printable(name), Printable(package))?;
    }
    for fallback in &check.fallbacks {
        writeln!(out, "fallback: {}", Printable(fallback))?;
    }
    for part in &check.parts {
        writeln!(out, "part: {}", Printable(part))?;
    }
    for recovery in &check.recoveries {
        writeln!(out, "recovery: {}", Printable(recovery))?;
    }
    for problem in &check.problems {
        writeln!(out, "wrong: {}", Printable(problem))?;
    }
    let verdict = match (check.problems.is_empty(), check.others.is_empty()) {
        (true, true) => {
            "valid for this build; it is not signed, so it proves as much as you trust whoever wrote it"
        }
        (true, false) => {
            "valid for this build, but for what was not checked; it is not signed, so it proves as much as you trust whoever wrote it"
        }
        (false, _) => "not valid",
    };
    writeln!(out, "{}: {verdict}", path.display())?;
    Ok(if check.problems.is_empty() { Outcome::Yes } else { Outcome::Failed })
}

/// What was found in a receipt.
#[derive(Default)]
struct Check {
    /// Packages whose kernels are not checked.
    unchecked: Vec<String>,
    ran: Vec<(&'static Entry, u64)>,
    /// Kernels of those, each with its package.
    others: Vec<(String, String)>,
    fallbacks: Vec<String>,
    /// Parts of divided layers.
    parts: Vec<String>,
    recoveries: Vec<String>,
    problems: Vec<String>,
}

impl Check {
    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    fn receipt(&mut self, receipt: &Value, require: &[String]) {
        match receipt.get("schema_version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(SCHEMA_VERSION) => {}
            Some(version) => {
                self.problem(format!("schema version {version}; this build reads {SCHEMA_VERSION}"))
            }
            None => return self.problem("it has no schema_version: this is not a receipt"),
        }
        let package = receipt.get("package").and_then(Value::as_str);
        // That of a joined registry is the names of all.
        let packages: Vec<&str> = package.unwrap_or_default().split(" + ").collect();
        match package {
            Some(_) if packages.contains(&REGISTRY.package) => {}
            Some(package) => {
                self.problem(format!("it is of package `{package}`, this build is `{}`", REGISTRY.package));
            }
            None => self.problem("it names no package"),
        }
        match receipt.get("kernels").and_then(Value::as_array) {
            Some(kernels) => kernels.iter().for_each(|kernel| self.kernel(kernel, &packages)),
            None => self.problem("it has no list of kernels"),
        }
        let Some(devices) = receipt.get("devices").and_then(Value::as_array) else {
            return self.problem("it has no list of devices");
        };
        // A device may be claimed only by a kernel that ran on it.
        for device in devices {
            let kind = device.as_str().and_then(DeviceKind::from_name);
            // What was not checked may have run there.
            if kind.is_none_or(|kind| !self.ran_on(kind) && self.others.is_empty()) {
                self.problem(format!("it claims device {device}, but no kernel of it ran there"));
            }
        }
        for fallback in receipt.get("fallbacks").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| fallback.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
            let [policy, op, format, instead] = ["policy", "op", "format", "instead"].map(text);
            self.fallbacks.push(format!("policy {policy}: {op} of {format} ran as {instead}"));
        }
        for step in receipt.get("recoveries").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
            let [step, kernel, reason] = ["step", "kernel", "reason"].map(text);
            let of_device = RecoveryStep::from_name(&step).is_some_and(RecoveryStep::is_of_device);
            self.recoveries.push(match of_device {
                true => format!("{reason}, step {step}"),
                false => format!("kernel {kernel} failed ({reason}), step {step}"),
            });
        }
        for part in receipt.get("parts").and_then(Value::as_array).into_iter().flatten() {
            self.part(part);
        }
        for wanted in require {
            let met = match DeviceKind::from_name(wanted) {
                Some(kind) => self.ran_on(kind),
                None => self.ran.iter().any(|(entry, _)| entry.name == wanted),
            };
            if !met {
                self.problem(format!("`{wanted}` is required, but no such kernel ran"));
            }
        }
    }

    /// A part of a layer that was divided over devices: like them all, only kernels can have run it.
    fn part(&mut self, part: &Value) {
        let text = |key: &str| part.get(key).and_then(Value::as_str);
        let number = |key: &str| part.get(key).and_then(Value::as_u64);
        let row = |at: usize| part.get("rows").and_then(|rows| rows.get(at)).and_then(Value::as_u64);
        let device = text("device").and_then(|device| device.parse::<Device>().ok());
        let all = (device, text("format"), number("n"), number("k"), number("runs"), row(0), row(1));
        let (Some(device), Some(format), Some(n), Some(k), Some(runs), Some(from), Some(to)) = all else {
            return self.problem("a part of a divided layer lacks its device, format, shape, rows or runs");
        };
        if from >= to || to > n {
            self.problem(format!("a part has rows {from} to {to} of {n}"));
        }
        if !self.ran_on(device.kind) && self.others.is_empty() {
            self.problem(format!("it has a part on {device}, but no kernel of it ran there"));
        }
        self.parts.push(format!("rows {from} to {to} of {format} {n}x{k} on {device}, {runs} runs"));
    }

    fn ran_on(&self, kind: DeviceKind) -> bool {
        self.ran.iter().any(|(entry, _)| entry.device == kind)
    }

    fn kernel(&mut self, kernel: &Value, packages: &[&str]) {
        let text = |key: &str| kernel.get(key).and_then(Value::as_str);
        let (Some(id), Some(name)) = (text("id"), text("name")) else {
            return self.problem(format!("a kernel has no id or no name: {kernel}"));
        };
        if let Some(package) = text("package").filter(|package| *package != REGISTRY.package) {
            if !packages.contains(&package) {
                return self
                    .problem(format!("kernel `{name}` is of `{package}`, which the receipt is not of"));
            }
            if !self.unchecked.iter().any(|known| known == package) {
                return self.problem(format!(
                    "kernel `{name}` is of package `{package}`, which this build does not have; check it with that package's \
                     program, or say `--unchecked {package}`"
                ));
            }
            return self.others.push((name.to_owned(), package.to_owned()));
        }
        let Some(entry) = REGISTRY.entries.iter().find(|entry| entry.id.to_string() == id) else {
            let known = REGISTRY.entries.iter().any(|entry| entry.name == name);
            let why = if known { "another build of it" } else { "this build does not know it" };
            return self.problem(format!("kernel `{name}` with id {id}: {why}"));
        };
        if entry.name != name {
            return self.problem(format!("id {id} is that of `{}`, not of `{name}`", entry.name));
        }
        match kernel.get("launches").and_then(Value::as_u64) {
            Some(launches @ 1..) => self.ran.push((entry, launches)),
            Some(0) | None => self.problem(format!("kernel `{name}` is listed without launches")),
        }
    }
}
