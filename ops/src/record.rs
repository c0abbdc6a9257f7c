//! What a history holds.

use crate::host::Host;
use crate::snapshot::{CacheLoad, KernelLoad, PoolLoad, RecoveryCount, Snapshot, TransferLoad};
use gristmill_records::receipt::Fallback;
use gristmill_runtime::{Registry, Tuning};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// `gristmill bench --json`.
    Bench,
    /// `gristmill tune`.
    Tune,
    /// A [`Snapshot`].
    Monitor,
}

impl Source {
    /// `bench`, `tune` or `monitor`.
    pub fn name(self) -> &'static str {
        match self {
            Source::Bench => "bench",
            Source::Tune => "tune",
            Source::Monitor => "monitor",
        }
    }
}

/// What was computed. Only times of equal work are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// One shape.
    Shape {
        /// Tokens.
        m: u64,
        /// Rows of the weights.
        n: u64,
        /// Elements of a row.
        k: u64,
        /// Threads.
        threads: u64,
        /// `hot` or `cold` weights.
        memory: String,
        /// Whether quantizing the activations is part of the time; `None` for ops without activations.
        quantizes: Option<bool>,
        /// Type of the activations, where it is another one than f32.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<String>,
    },
    /// Any shapes of a class.
    Class {
        /// Fewest and most tokens.
        tokens: (u64, Option<u64>),
        /// Fewest and most weights.
        weights: (u64, Option<u64>),
        /// Threads, where they are the same for all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threads: Option<u64>,
    },
}

/// The sum of counts from a file, which may be anything.
pub(crate) fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// `1`, `17-64`, or `2049-` for a class without a most.
pub(crate) fn range((from, to): (u64, Option<u64>)) -> String {
    match to {
        Some(to) if to == from => to.to_string(),
        Some(to) => format!("{from}-{to}"),
        None => format!("{from}-"),
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Shape { m, n, k, threads, memory, quantizes, input } => {
                write!(f, "m={m} {n}x{k} threads={threads} {memory}")?;
                match input {
                    Some(input) => write!(f, " {input} input"),
                    None => f.write_str(if *quantizes == Some(false) { " int8 input" } else { "" }),
                }
            }
            Work::Class { tokens, weights, threads } => {
                write!(f, "m={} weights={}", range(*tokens), range(*weights))?;
                threads.map_or(Ok(()), |threads| write!(f, " threads={threads}"))
            }
        }
    }
}

/// What was once measured of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Where it comes from.
    pub source: Source,
    /// When, in seconds since 1970. Of a tuning file, when it was last written.
    pub at: u64,
    /// The processor, by the name that tuning files use.
    pub machine: String,
    /// What the kernel was compiled with, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    /// The kernel's name.
    pub kernel: String,
    /// Its identity: another build's kernel of the same name is another kernel.
    pub id: String,
    /// What it computed.
    pub work: Work,
    /// Median microseconds; absent where no time was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Medians of the rounds of a measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds_us: Vec<f64>,
    /// Percent of the ceiling that was measured beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Which ceiling: `read` or `multiply`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<String>,
    /// 1e9 bytes a second that memory gives, where that was measured beside the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gb_s: Option<f64>,
    /// What it can do, where the record is of a tuning: which others it may stand in for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Serves>,
    /// What a monitor saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<KernelLoad>,
    /// In which program that was: [`Watch::program`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// What a kernel can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serves {
    /// The op.
    pub op: String,
    /// The weight format.
    pub format: String,
    /// The quantizer, where the op is for one of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantizer: Option<String>,
    /// The packing that it reads; absent for a format's own rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<String>,
}

/// What a monitor saw beside single kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// When it was looked at, in seconds since 1970.
    pub at: u64,
    /// The processor.
    pub machine: String,
    /// The program that was watched; of a snapshot that does not name it, the crate whose kernels it ran. Histories of older versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// GPUs on which kernels were launched: the machines of their records, of older versions together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// How long it had watched.
    pub seconds: f64,
    /// The clock was read for one of so many launches.
    pub sampled_every: u64,
    /// Times that were not kept.
    pub lost_samples: u64,
    /// What the system said of the machine; absent where it said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Copies of devices' memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<TransferLoad>,
    /// Allocations of devices' memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolLoad>,
    /// What is made once and used again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheLoad>,
    /// Fallbacks that were taken.
    pub fallbacks: Vec<Fallback>,
    /// What was done where a kernel failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<RecoveryCount>,
}

/// The machine of what a monitor saw: the processor, or the GPU, where it says which. Older versions did not tell one GPU's launches from
/// another's, so those of several are of all of them.
fn machine_of(load: &KernelLoad, processor: &str, gpus: &[String]) -> String {
    match &load.gpu {
        Some(gpu) => gpu.clone(),
        None if load.is_on_gpu() && !gpus.is_empty() => gpus.join(" + "),
        None => processor.to_owned(),
    }
}

impl Watch {
    /// Where it was, for people: the machine, and the program where that is known.
    pub(crate) fn place(&self) -> String {
        let program = self.program.as_ref().map_or(String::new(), |program| format!(" ({program})"));
        format!("{}{program}", self.machine)
    }

    /// Whether the record is of this monitor, as far as machines and programs go.
    pub(crate) fn is_of(&self, record: &Record) -> bool {
        let load = record.load.as_ref().filter(|_| record.program == self.program);
        load.is_some_and(|load| {
            let known = load.gpu.as_ref().is_none_or(|gpu| self.gpus.contains(gpu));
            known && record.machine == machine_of(load, &self.machine, &self.gpus)
        })
    }
}

/// Records of one file, or of a whole history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// Of kernels.
    pub records: Vec<Record>,
    /// Of monitors.
    pub watches: Vec<Watch>,
    /// What of the input is not used, and why.
    pub set_aside: Vec<String>,
}

impl Records {
    /// What a monitor saw.
    pub fn of_snapshot(snapshot: Snapshot) -> Records {
        let Snapshot {
            at,
            seconds,
            machine,
            gpus,
            compiler,
            package,
            program,
            sampled_every,
            lost_samples,
            host,
            kernels,
            transfers,
            pools,
            caches,
            fallbacks,
            recoveries,
            ..
        } = snapshot;
        let program = program.or(Some(package));
        let record = |load: KernelLoad| Record {
            source: Source::Monitor,
            at,
            machine: machine_of(&load, &machine, &gpus),
            compiler: compiler.clone(),
            kernel: load.kernel.clone(),
            id: load.id.clone(),
            work: Work::Class { tokens: load.tokens, weights: load.weights, threads: None },
            us: load.time.as_ref().map(|time| time.p50_ns as f64 / 1e3),
            rounds_us: Vec::new(),
            percent: None,
            ceiling: None,
            memory_gb_s: None,
            serves: None,
            load: Some(load),
            program: program.clone(),
        };
        let records = kernels.into_iter().map(record).collect();
        let watch = Watch {
            at,
            machine: machine.clone(),
            program: program.clone(),
            gpus,
            seconds,
            sampled_every,
            lost_samples,
            host,
            transfers,
            pools,
            caches,
            fallbacks,
            recoveries,
        };
        Records { records, watches: vec![watch], set_aside: Vec::new() }
    }

    /// What a tuning says of this registry's kernels, as measured at `at`.
    pub fn of_tuning(tuning: &Tuning, registry: &Registry, compiler: Option<&str>, at: u64) -> Records {
        let mut records = Vec::new();
        for measured in tuning.measured() {
            let bounds = |(from, to): (usize, usize)| (from as u64, (to != usize::MAX).then_some(to as u64));
            for (id, us) in &measured.order {
                let Some(entry) = registry.entries.iter().find(|entry| entry.id == *id) else { continue };
                records.push(Record {
                    source: Source::Tune,
                    at,
                    machine: measured.on.clone(),
                    compiler: compiler.map(str::to_owned),
                    kernel: entry.name.to_owned(),
                    id: id.to_string(),
                    work: Work::Class {
                        tokens: bounds(measured.class.tokens()),
                        weights: bounds(measured.class.weights()),
                        threads: Some(measured.threads as u64),
                    },
                    us: Some(*us),
                    rounds_us: Vec::new(),
                    percent: None,
                    ceiling: None,
                    memory_gb_s: None,
                    serves: Some(Serves {
                        op: measured.op.name().to_owned(),
                        format: measured.format.clone(),
                        quantizer: measured.quantizer.clone(),
                        packing: entry.code.packing().map(|packing| packing.name.to_owned()),
                    }),
                    load: None,
                    program: None,
                });
            }
        }
        let set_aside = tuning.set_aside().iter().map(ToString::to_string).collect();
        Records { records, watches: Vec::new(), set_aside }
    }
}
