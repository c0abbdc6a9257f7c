//! `gristmill verify-receipt`: whether a receipt is one, and says what it is claimed to say.

use super::error::{CliError, Outcome};
use super::limited;
use gristmill::receipt::SCHEMA_VERSION;
use gristmill::registry::Entry;
use gristmill::text::Printable;
use gristmill::vocab::{Arch, DeviceKind, Isa};
use gristmill::{Device, REGISTRY, RecoveryStep};
use gristmill_records::receipt::{Fallback, Kernel, Part, Receipt, Recovery};
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
    let bytes = limited::read(path, MAX_BYTES, "a receipt")?;
    let mut check = Check { unchecked: arguments.unchecked.clone(), ..Check::default() };
    match serde_json::from_slice(&bytes) {
        Ok(value) => check.file(value, &arguments.require),
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

    /// Of a file that is JSON.
    fn file(&mut self, value: Value, require: &[String]) {
        match value.get("schema_version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(SCHEMA_VERSION) => {}
            Some(version) => {
                return self.problem(format!("schema version {version}; this build reads {SCHEMA_VERSION}"));
            }
            None => return self.problem("it has no schema_version: this is not a receipt"),
        }
        match gristmill_records::read::<Receipt>(value) {
            Ok(receipt) => self.receipt(&receipt, require),
            Err(why) => self.problem(format!("it is not as receipts are: {why}")),
        }
    }

    fn receipt(&mut self, receipt: &Receipt, require: &[String]) {
        // That of a joined registry is the names of all.
        let packages: Vec<&str> = receipt.package.split(" + ").collect();
        if !packages.contains(&REGISTRY.package) {
            self.problem(format!(
                "it is of package `{}`, this build is `{}`",
                receipt.package, REGISTRY.package
            ));
        }
        receipt.kernels.iter().for_each(|kernel| self.kernel(kernel, &packages));
        self.once(receipt);
        self.processor(receipt);
        // A device may be claimed only by a kernel that ran on it.
        for device in &receipt.devices {
            let kind = DeviceKind::from_name(device);
            // What was not checked may have run there.
            if kind.is_none_or(|kind| !self.ran_on(kind) && self.others.is_empty()) {
                self.problem(format!("it claims device \"{device}\", but no kernel of it ran there"));
            }
        }
        for Fallback { policy, op, format, instead, .. } in &receipt.fallbacks {
            self.fallbacks.push(format!("policy {policy}: {op} of {format} ran as {instead}"));
        }
        for Recovery { step, kernel, reason, .. } in &receipt.recoveries {
            let of_device = RecoveryStep::from_name(step).is_some_and(RecoveryStep::is_of_device);
            self.recoveries.push(match of_device {
                true => format!("{reason}, step {step}"),
                false => format!("kernel {kernel} failed ({reason}), step {step}"),
            });
        }
        receipt.parts.iter().for_each(|part| self.part(part));
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

    /// A kernel has one line with all of its launches, and its device is one of the receipt's.
    fn once(&mut self, receipt: &Receipt) {
        let key = |kernel: &Kernel| (kernel.package.clone(), kernel.id.clone());
        for (at, kernel) in receipt.kernels.iter().enumerate() {
            if receipt.kernels[..at].iter().any(|other| key(other) == key(kernel)) {
                self.problem(format!("kernel `{}` with id {} is listed twice", kernel.name, kernel.id));
            }
        }
        for &kind in DeviceKind::ALL {
            if self.ran_on(kind) && !receipt.devices.iter().any(|device| device == kind.name()) {
                self.problem(format!("a kernel ran on {}, which is not among its devices", kind.name()));
            }
        }
    }

    /// A kernel of a processor runs on one that has its instructions.
    fn processor(&mut self, receipt: &Receipt) {
        let Some(cpu) = &receipt.cpu else {
            if self.ran_on(DeviceKind::Cpu) {
                self.problem("kernels ran on a processor, and it does not say on which (`cpu`)");
            }
            return;
        };
        let has = |name: &str| cpu.features.iter().any(|feature| feature == name);
        let on_cpu = self.ran.iter().filter(|(entry, _)| entry.device == DeviceKind::Cpu);
        let problems: Vec<String> = on_cpu
            .filter_map(|(entry, _)| {
                let missing: Vec<&str> =
                    entry.features.iter().map(|feature| feature.name()).filter(|name| !has(name)).collect();
                let of = |arch: &Arch| *arch != Arch::Any && arch.name() != cpu.arch;
                let other = entry.isa.map(Isa::arch).filter(of);
                match (other, missing.is_empty()) {
                    (Some(arch), _) => Some(format!(
                        "kernel `{}` is for {}, and the processor is of {}",
                        entry.name,
                        arch.name(),
                        cpu.arch
                    )),
                    (None, false) => Some(format!(
                        "kernel `{}` ran, and the processor lacks {}",
                        entry.name,
                        missing.join(", ")
                    )),
                    (None, true) => None,
                }
            })
            .collect();
        self.problems.extend(problems);
    }

    /// A part of a layer that was divided over devices: like them all, only kernels can have run it.
    fn part(&mut self, part: &Part) {
        let Part { format, n, k, rows: [from, to], runs, .. } = part;
        let Ok(device) = part.device.parse::<Device>() else {
            return self
                .problem(format!("a part of a divided layer is on `{}`, which is no device", part.device));
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

    fn kernel(&mut self, kernel: &Kernel, packages: &[&str]) {
        let Kernel { id, name, package, launches, .. } = kernel;
        if let Some(package) = package.as_deref().filter(|package| *package != REGISTRY.package) {
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
            return self.others.push((name.clone(), package.to_owned()));
        }
        let Some(entry) = REGISTRY.entries.iter().find(|entry| entry.id.to_string() == *id) else {
            let known = REGISTRY.entries.iter().any(|entry| entry.name == name);
            let why = if known { "another build of it" } else { "this build does not know it" };
            return self.problem(format!("kernel `{name}` with id {id}: {why}"));
        };
        if entry.name != name {
            return self.problem(format!("id {id} is that of `{}`, not of `{name}`", entry.name));
        }
        match *launches {
            launches @ 1.. => self.ran.push((entry, launches)),
            0 => self.problem(format!("kernel `{name}` is listed without launches")),
        }
    }
}
