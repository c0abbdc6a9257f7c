//! Receipts: what ran, written by the launches themselves.
//!
//! A [`Recording`] is attached to handles; from then on every launch of theirs counts in it. A
//! [`Receipt`] can only be made from a recording, so it can't name a kernel that did not run. That holds for the value in the
//! program that made it. Its JSON is a text like any other, unsigned: whoever can write the file can write what they like.

mod parts;

#[cfg(feature = "cuda")]
pub(crate) use parts::PartNote;
pub use parts::PartUse;

use crate::decisions::why_packed::FromMemory;
use crate::decisions::why_packed::HeldOnce;
use crate::device::{CpuProfile, Device};
use crate::recovery::Recovery;
use crate::registry::{KernelId, Registry};
use gristmill_spec::vocab::{DeviceKind, Op};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Version of the JSON that [`Receipt::to_json`] writes.
pub const SCHEMA_VERSION: u32 = 1;

/// Collects the launches of the handles it is attached to. Clones share what they collect.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(crate) ledger: Arc<Ledger>,
}

/// Launches by entry, and the fallbacks that layers stated.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) registry: &'static Registry,
    launches: Box<[AtomicU64]>,
    /// Why weights were packed for an entry, where they were because they are read from memory.
    from_memory: Box<[OnceLock<FromMemory>]>,
    /// The same where one copy serves every number of tokens.
    held_once: Box<[OnceLock<HeldOnce>]>,
    /// Locked when a layer is attached and when a receipt is written, never by a run.
    fallbacks: Mutex<Vec<FallbackRow>>,
    /// Locked as those.
    parts: Mutex<Vec<parts::PartRow>>,
    /// Locked when a kernel failed and when a receipt is written.
    recoveries: Mutex<Recoveries>,
}

/// Steps of recovery: the first [`Recoveries::MOST`], and how many came behind them.
#[derive(Debug, Default)]
struct Recoveries {
    steps: Vec<Recovery>,
    more: u64,
}

impl Recoveries {
    /// Memory that changes again and again must not fill the rest of it.
    const MOST: usize = 1000;

    fn add(&mut self, step: Recovery) {
        if self.steps.len() < Recoveries::MOST {
            self.steps.push(step);
        } else {
            self.more += 1;
        }
    }
}

#[derive(Debug)]
struct FallbackRow {
    note: Arc<FallbackNote>,
    /// Runs that the note had seen when it was attached.
    before: u64,
}

/// A fallback that a policy allowed, and how often it was taken.
#[derive(Debug)]
pub(crate) struct FallbackNote {
    pub(crate) policy: &'static str,
    pub(crate) op: Op,
    pub(crate) format: String,
    pub(crate) device: Device,
    pub(crate) reason: String,
    pub(crate) instead: &'static str,
    pub(crate) runs: AtomicU64,
}

impl Ledger {
    #[inline]
    pub(crate) fn note(&self, index: usize) {
        if let Some(launches) = self.launches.get(index) {
            launches.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Says why weights were packed for an entry; what was said first stays.
    pub(crate) fn packed_for(&self, index: usize, why: FromMemory) {
        if let Some(place) = self.from_memory.get(index) {
            let _ = place.set(why);
        }
    }

    /// The same for one copy of the weights.
    pub(crate) fn held_once_for(&self, index: usize, why: HeldOnce) {
        if let Some(place) = self.held_once.get(index) {
            let _ = place.set(why);
        }
    }

    pub(crate) fn recovered(&self, step: Recovery) {
        let mut recoveries = self.recoveries.lock().unwrap_or_else(PoisonError::into_inner);
        recoveries.add(step);
    }

    /// Says that layers of a format were made without a kernel: once, however many there are.
    pub(crate) fn left_out(&self, step: &Recovery) {
        let mut recoveries = self.recoveries.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |known: &Recovery| (known.step, known.id, &known.format) == (step.step, step.id, &step.format);
        if !recoveries.steps.iter().any(same) {
            recoveries.add(step.clone());
        }
    }

    pub(crate) fn attach(&self, note: &Arc<FallbackNote>) {
        // The list is whole whenever the lock is free, even after a panic elsewhere.
        let mut fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        if !fallbacks.iter().any(|row| Arc::ptr_eq(&row.note, note)) {
            let before = note.runs.load(Ordering::Relaxed);
            fallbacks.push(FallbackRow { note: Arc::clone(note), before });
        }
    }
}

#[cfg(feature = "cuda")]
impl Ledger {
    /// Lets runs of a part of a divided layer count.
    pub(crate) fn attach_part(&self, note: &Arc<PartNote>) {
        // The list is whole whenever the lock is free, even after a panic elsewhere.
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if !parts.iter().any(|row| row.is(note)) {
            parts.push(parts::PartRow::new(note));
        }
    }
}

impl Recording {
    /// A recording of launches of this registry's kernels.
    pub fn new(registry: &'static Registry) -> Recording {
        let launches = registry.entries.iter().map(|_| AtomicU64::new(0)).collect();
        let from_memory = registry.entries.iter().map(|_| OnceLock::new()).collect();
        let held_once = registry.entries.iter().map(|_| OnceLock::new()).collect();
        let (fallbacks, parts, recoveries) = (Mutex::default(), Mutex::default(), Mutex::default());
        let ledger = Ledger { registry, launches, from_memory, held_once, fallbacks, parts, recoveries };
        Recording { ledger: Arc::new(ledger) }
    }

    /// What has run so far.
    pub fn receipt(&self) -> Receipt {
        let Ledger { registry, launches, from_memory, held_once, fallbacks, parts, recoveries } =
            &*self.ledger;
        let mut devices: Vec<DeviceKind> = Vec::new();
        let mut kernels = Vec::new();
        for (index, (entry, launches)) in registry.entries.iter().zip(launches).enumerate() {
            let launches = launches.load(Ordering::Relaxed);
            if launches > 0 {
                let package = registry.package_of(index);
                let from_memory = from_memory.get(index).and_then(|each| each.get().copied());
                let held_once = held_once.get(index).and_then(|each| each.get().copied());
                let (id, name, source) = (entry.id, entry.name, entry.source);
                kernels.push(KernelUse { id, name, source, package, launches, from_memory, held_once });
                if !devices.contains(&entry.device) {
                    devices.push(entry.device);
                }
            }
        }
        let fallbacks = fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let fallbacks = fallbacks.iter().filter_map(FallbackRow::taken).collect();
        let parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.iter().filter_map(parts::PartRow::taken).collect();
        let recoveries = recoveries.lock().unwrap_or_else(PoisonError::into_inner);
        let (recoveries, more_recoveries) = (recoveries.steps.clone(), recoveries.more);
        Receipt { package: registry.package, devices, kernels, fallbacks, parts, recoveries, more_recoveries }
    }
}

impl FallbackRow {
    fn taken(&self) -> Option<Fallback> {
        let FallbackNote { policy, op, format, device, reason, instead, runs } = &*self.note;
        let runs = runs.load(Ordering::Relaxed).saturating_sub(self.before);
        (runs > 0).then(|| Fallback {
            policy,
            op: *op,
            format: format.clone(),
            device: *device,
            reason: reason.clone(),
            instead,
            runs,
        })
    }
}

/// A kernel that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    id: KernelId,
    name: &'static str,
    source: &'static str,
    package: &'static str,
    launches: u64,
    from_memory: Option<FromMemory>,
    held_once: Option<HeldOnce>,
}

impl KernelUse {
    /// Identity.
    pub fn id(&self) -> KernelId {
        self.id
    }

    /// Name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `file:line` of the variant.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The crate that brought the kernel: in receipts of a [joined](Registry::joined) registry one of several.
    pub fn package(&self) -> &'static str {
        self.package
    }

    /// Launches while recorded; at least 1.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Why weights were packed for it, where its packing was taken for having the fewest bytes. Of several models the first.
    pub fn packing_reason(&self) -> Option<&FromMemory> {
        self.from_memory.as_ref()
    }

    /// Why weights were packed for it, where its packing was taken so that a GPU holds them once. Of several models the first.
    pub fn once_reason(&self) -> Option<&HeldOnce> {
        self.held_once.as_ref()
    }
}

/// A fallback that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    policy: &'static str,
    op: Op,
    format: String,
    device: Device,
    reason: String,
    instead: &'static str,
    runs: u64,
}

impl Fallback {
    /// The policy that allowed it.
    pub fn policy(&self) -> &'static str {
        self.policy
    }

    /// The device that had been asked for.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Why there was no kernel.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What ran in its place.
    pub fn instead(&self) -> &'static str {
        self.instead
    }

    /// How often, while recorded; at least 1.
    pub fn runs(&self) -> u64 {
        self.runs
    }
}

/// What ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    package: &'static str,
    devices: Vec<DeviceKind>,
    kernels: Vec<KernelUse>,
    fallbacks: Vec<Fallback>,
    parts: Vec<PartUse>,
    recoveries: Vec<Recovery>,
    more_recoveries: u64,
}

impl Receipt {
    /// The crate whose registry the kernels are from.
    pub fn package(&self) -> &'static str {
        self.package
    }

    /// Kinds of devices on which a kernel ran.
    pub fn devices(&self) -> &[DeviceKind] {
        &self.devices
    }

    /// Kernels that ran, in the order of the registry.
    pub fn kernels(&self) -> &[KernelUse] {
        &self.kernels
    }

    /// Fallbacks that were taken.
    pub fn fallbacks(&self) -> &[Fallback] {
        &self.fallbacks
    }

    /// Parts of layers that are divided over devices, each with its device, in the order in which they were made.
    pub fn parts(&self) -> &[PartUse] {
        &self.parts
    }

    /// What layers did where a kernel failed, a device was lost or had no memory for all tokens, or a kernel was in quarantine, in order: the first
    /// thousand steps.
    pub fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// How many steps came behind these.
    pub fn more_recoveries(&self) -> u64 {
        self.more_recoveries
    }

    /// The receipt as one JSON object:
    ///
    /// `{"schema_version", "package", "devices": [..], "cpu": {"arch", "features": [..]}, "kernels":
    /// [{"id", "name", "source", "launches"}], "fallbacks": [{"policy", "op", "format", "device",
    /// "reason", "instead", "runs"}]}`. Ids are hexadecimal strings, counts are integers. A kernel whose weights were held in the
    /// packing with the fewest bytes has `"from_memory": {"packing", "instead_of", "working_set", "cache"}` too, one on a GPU whose
    /// one packing is not the preferred one for a token `"held_once": {"packing", "instead_of"}`. Kernels of a
    /// [joined](Registry::joined) registry have their own `"package"` behind `"source"`. Where a layer was divided over devices
    /// there are `"parts": [{"device", "format", "n", "k", "rows": [begin, end], "runs"}]`. Where a guarded, divided or replicated layer did something because a kernel
    /// or a GPU failed there are `"recoveries": [{"step", "op", "format", "kernel", "id", "reason", "then", "attempt", "success", "us"}]`
    /// (no `"then"` where no kernel was left) and `"more_recoveries"`.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        let cpu = CpuProfile::detect();
        field(&mut out, "{", "schema_version", Json::Number(u64::from(SCHEMA_VERSION)));
        field(&mut out, ",", "package", Json::Text(self.package));
        list(&mut out, "devices", self.devices.iter(), |out, device| text(out, device.name()));
        out.push_str(",\"cpu\":");
        field(&mut out, "{", "arch", Json::Text(cpu.arch.name()));
        list(&mut out, "features", cpu.features.iter(), |out, feature| text(out, feature.name()));
        out.push('}');
        list(&mut out, "kernels", self.kernels.iter(), |out, kernel| {
            field(out, "{", "id", Json::Text(&kernel.id.to_string()));
            field(out, ",", "name", Json::Text(kernel.name));
            field(out, ",", "source", Json::Text(kernel.source));
            if kernel.package != self.package {
                field(out, ",", "package", Json::Text(kernel.package));
            }
            field(out, ",", "launches", Json::Number(kernel.launches));
            if let Some(FromMemory { packing, instead_of, working_set, cache }) = kernel.from_memory {
                out.push_str(",\"from_memory\":");
                field(out, "{", "packing", Json::Text(packing));
                field(out, ",", "instead_of", Json::Text(instead_of));
                field(out, ",", "working_set", Json::Number(working_set));
                field(out, ",", "cache", Json::Number(cache));
                out.push('}');
            }
            if let Some(HeldOnce { packing, instead_of }) = kernel.held_once {
                out.push_str(",\"held_once\":");
                field(out, "{", "packing", Json::Text(packing));
                field(out, ",", "instead_of", Json::Text(instead_of));
                out.push('}');
            }
            out.push('}');
        });
        list(&mut out, "fallbacks", self.fallbacks.iter(), |out, fallback| {
            field(out, "{", "policy", Json::Text(fallback.policy));
            field(out, ",", "op", Json::Text(fallback.op.name()));
            field(out, ",", "format", Json::Text(&fallback.format));
            field(out, ",", "device", Json::Text(&fallback.device.to_string()));
            field(out, ",", "reason", Json::Text(&fallback.reason));
            field(out, ",", "instead", Json::Text(fallback.instead));
            field(out, ",", "runs", Json::Number(fallback.runs));
            out.push('}');
        });
        if !self.parts.is_empty() {
            list(&mut out, "parts", self.parts.iter(), |out, part| {
                field(out, "{", "device", Json::Text(&part.device.to_string()));
                field(out, ",", "format", Json::Text(part.format));
                field(out, ",", "n", Json::Number(part.n as u64));
                field(out, ",", "k", Json::Number(part.k as u64));
                list(out, "rows", [part.rows.start, part.rows.end].into_iter(), |out, row| {
                    out.push_str(&row.to_string());
                });
                field(out, ",", "runs", Json::Number(part.runs));
                out.push('}');
            });
        }
        if !self.recoveries.is_empty() {
            list(&mut out, "recoveries", self.recoveries.iter(), |out, recovery| {
                field(out, "{", "step", Json::Text(recovery.step.name()));
                field(out, ",", "op", Json::Text(recovery.op.name()));
                field(out, ",", "format", Json::Text(&recovery.format));
                field(out, ",", "kernel", Json::Text(recovery.kernel));
                field(out, ",", "id", Json::Text(&recovery.id.to_string()));
                field(out, ",", "reason", Json::Text(&recovery.reason));
                if let Some(then) = recovery.then {
                    field(out, ",", "then", Json::Text(then));
                }
                field(out, ",", "attempt", Json::Number(u64::from(recovery.attempt)));
                field(out, ",", "success", Json::Truth(recovery.success));
                let us = u64::try_from(recovery.time.as_micros()).unwrap_or(u64::MAX);
                field(out, ",", "us", Json::Number(us));
                out.push('}');
            });
            field(&mut out, ",", "more_recoveries", Json::Number(self.more_recoveries));
        }
        out.push('}');
        out
    }
}

enum Json<'a> {
    Text(&'a str),
    Number(u64),
    Truth(bool),
}

fn field(out: &mut String, before: &str, name: &str, value: Json<'_>) {
    out.push_str(before);
    text(out, name);
    out.push(':');
    match value {
        Json::Text(value) => text(out, value),
        Json::Number(value) => out.push_str(&value.to_string()),
        Json::Truth(value) => out.push_str(if value { "true" } else { "false" }),
    }
}

fn list<T>(out: &mut String, name: &str, items: impl Iterator<Item = T>, each: impl Fn(&mut String, T)) {
    out.push(',');
    text(out, name);
    out.push_str(":[");
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push(',');
        }
        each(out, item);
    }
    out.push(']');
}

/// A JSON string (RFC 8259, section 7).
fn text(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                // Writing to a String can't fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn strings_are_escaped() {
        let mut out = String::new();
        text(&mut out, "a\"b\\c\n\u{1}é");
        assert_eq!(out, "\"a\\\"b\\\\c\\n\\u0001é\"");
    }
}
