//! What a monitor has seen. What was not measured is absent, never zero.

use crate::host::Host;
use gristmill_records::receipt::Fallback;
use gristmill_runtime::ThreadUse;
use gristmill_runtime::observe::RanBatch;
use gristmill_runtime::vocab::DeviceKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Thirty thousand years.
const LONGEST_SECONDS: f64 = 1e12;

/// What a monitor has seen up to a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`Snapshot::SCHEMA`].
    pub schema: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// How long the monitor has watched.
    pub seconds: f64,
    /// The processor, by the name that tuning files use.
    pub machine: String,
    /// GPUs on which kernels were launched, by such names, each once; absent where none were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// What the kernels were compiled with, where the program says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    /// The crate whose kernels are watched.
    pub package: String,
    /// The program: what it calls itself, or its executable's name. Older versions did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The clock was read for one of so many launches of a kernel and class.
    pub sampled_every: u64,
    /// Times that were taken and not kept, since another thread was keeping one of the same kernel and class.
    pub lost_samples: u64,
    /// What the system says of the machine; absent where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Kernels that were launched, a row for each class of shapes.
    pub kernels: Vec<KernelLoad>,
    /// Batches of products; absent where none ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batches: Option<BatchLoad>,
    /// Copies of devices' memory; absent where there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<TransferLoad>,
    /// Allocations of devices' memory; absent where there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolLoad>,
    /// What is made once and used again; absent where nothing was looked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheLoad>,
    /// Fallbacks that were taken.
    pub fallbacks: Vec<Fallback>,
    /// What layers did where a kernel or a device failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<RecoveryCount>,
}

/// A kernel in one class of shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelLoad {
    /// Name.
    pub kernel: String,
    /// Identity.
    pub id: String,
    /// The device: `cpu`, `cuda:1`. Older versions wrote `cuda` for all GPUs together.
    pub device: String,
    /// What the GPU is called in tuning files; absent on the processor, and where older versions wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Fewest and most tokens of the class; without a most, it is open.
    pub tokens: (u64, Option<u64>),
    /// Fewest and most weights of the class.
    pub weights: (u64, Option<u64>),
    /// Launches.
    pub launches: u64,
    /// Bytes that the launches had to read, each operand of a launch once.
    pub bytes_in: u64,
    /// Bytes that they wrote.
    pub bytes_out: u64,
    /// Launches that ended in a fault of their input; absent for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<u64>,
    /// Times; absent where none were taken. Those of GPUs are by the device's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Sampled>,
}

/// What tells the rows of kernels from each other: kernel, identity, device, class.
pub(crate) type Row<'l> = ([&'l str; 3], [(u64, Option<u64>); 2]);

impl KernelLoad {
    pub(crate) fn row(&self) -> Row<'_> {
        ([&self.kernel, &self.id, &self.device], [self.tokens, self.weights])
    }
}

/// Times of some launches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// How many launches they are of; those with a fault are not among them.
    pub samples: u64,
    /// Nanoseconds of all of them together.
    pub sum_ns: u64,
    /// Bytes that these launches had to read.
    pub bytes_in: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Percentiles, to two digits.
    pub p50_ns: u64,
    /// 90 of 100 were not longer.
    pub p90_ns: u64,
    /// 99 of 100 were not longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How the threads of these launches were used; absent where nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<ThreadLoad>,
    /// How many were not longer than each of a row of times, the last of which is not below the longest.
    pub buckets: Vec<Bucket>,
}

/// Copies of one kind, of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferLoad {
    /// Which way: the names of [`TransferKind`](gristmill_runtime::observe::TransferKind).
    pub kind: String,
    /// The device; of two the one that copies go to.
    pub device: String,
    /// The device that they come from, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// How many.
    pub copies: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Times by the device's clock; absent where none were taken. `bytes_in` are those of the timed ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Sampled>,
}

impl TransferLoad {
    /// `to-device cuda:0`, `between-devices cuda:1 to cuda:0`.
    pub fn name(&self) -> String {
        let from = self.source.as_ref().map_or(String::new(), |source| format!("{source} to "));
        format!("{} {from}{}", self.kind, self.device)
    }

    /// Seconds that all took, were they as long for each byte as those that were timed.
    pub fn estimated_seconds(&self) -> Option<f64> {
        let time = self.time.as_ref().filter(|time| time.bytes_in > 0)?;
        Some(time.sum_ns as f64 / time.bytes_in as f64 * self.bytes as f64 / 1e9)
    }
}

/// Allocations of a device's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolLoad {
    /// The device.
    pub device: String,
    /// How many.
    pub allocations: u64,
    /// Bytes that they asked for.
    pub bytes: u64,
    /// Allocations for which the pool took more from the device; all others it served with what it had. Absent where the device has no pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grew: Option<u64>,
    /// Bytes that it took then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_bytes: Option<u64>,
    /// Bytes in buffers when it was looked at; absent where the device is open no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
    /// Bytes that pools had taken from the device, as of the last allocation there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
}

/// Looks for something that is made once and used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLoad {
    /// What: the names of [`Cache`](gristmill_runtime::observe::Cache).
    pub cache: String,
    /// For which device.
    pub device: String,
    /// How often it was there.
    pub hits: u64,
    /// How often it was not.
    pub misses: u64,
}

/// Batches, each of which is several products as one job. Their launches are counted with their kernels too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLoad {
    /// How many ran.
    pub batches: u64,
    /// Products in all of them.
    pub products: u64,
    /// How many were timed.
    pub samples: u64,
    /// Nanoseconds of these; absent where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_ns: Option<u64>,
    /// How the threads of these were used; absent where nobody asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<ThreadLoad>,
}

impl BatchLoad {
    pub(crate) fn take(&mut self, batch: &RanBatch) {
        self.batches += 1;
        self.products += batch.products as u64;
        let Some(time) = batch.time else { return };
        self.samples += 1;
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns = Some(self.sum_ns.unwrap_or(0).saturating_add(ns));
        if let Some(seen) = &batch.threads {
            self.threads.get_or_insert_default().take(seen);
        }
    }
}

/// How threads were used, in sums over launches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadLoad {
    /// How many launches they are of.
    pub samples: u64,
    /// The most threads that there were.
    pub most_threads: u64,
    /// Nanoseconds that launches lasted, times the threads that there were.
    pub available_ns: u64,
    /// Nanoseconds that threads worked.
    pub busy_ns: u64,
    /// Nanoseconds that the busiest thread of each launch worked.
    pub longest_ns: u64,
    /// Nanoseconds that threads worked in the mean of all that there were.
    pub mean_ns: u64,
}

impl ThreadLoad {
    pub(crate) fn take(&mut self, seen: &ThreadUse) {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let threads = seen.threads.max(1) as u64;
        self.samples += 1;
        self.most_threads = self.most_threads.max(threads);
        self.available_ns = self.available_ns.saturating_add(ns(seen.wall).saturating_mul(threads));
        self.busy_ns = self.busy_ns.saturating_add(ns(seen.busy));
        self.longest_ns = self.longest_ns.saturating_add(ns(seen.longest));
        self.mean_ns = self.mean_ns.saturating_add(ns(seen.busy) / threads);
    }

    /// The part of their time that threads worked: 1 if nobody waited.
    pub fn utilisation(&self) -> Option<f64> {
        (self.available_ns > 0).then(|| self.busy_ns as f64 / self.available_ns as f64)
    }

    /// How much longer the busiest thread of a launch worked than the mean: 1 if all worked as long.
    pub fn imbalance(&self) -> Option<f64> {
        (self.mean_ns > 0).then(|| self.longest_ns as f64 / self.mean_ns as f64)
    }
}

/// Samples up to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The time, a power of two of a microsecond.
    pub le_ns: u64,
    /// Samples that were not longer, to two digits of the time.
    pub count: u64,
}

/// How often a step was done because of a kernel that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryCount {
    /// Name of the step.
    pub step: String,
    /// The kernel.
    pub kernel: String,
    /// Its identity.
    pub id: String,
    /// The weight format.
    pub format: String,
    /// Whether the run that followed failed in no kernel.
    pub success: bool,
    /// What was seen, the first time.
    pub reason: String,
    /// The kernel that was there then, the last time; absent where none was left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// How often.
    pub count: u64,
    /// Seconds of all of them, with the runs that followed.
    pub seconds: f64,
}

impl Sampled {
    /// Mean nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.samples as f64
    }

    /// Gigabytes that were read in a second of these launches.
    pub fn gb_s(&self) -> f64 {
        self.bytes_in as f64 / self.sum_ns as f64
    }
}

impl KernelLoad {
    /// Whether it ran on a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.device.split(':').next() == Some(DeviceKind::Cuda.name())
    }

    /// ` on cuda:1`; nothing on the processor.
    pub(crate) fn on(&self) -> String {
        if self.is_on_gpu() { format!(" on {}", self.device) } else { String::new() }
    }

    /// Seconds that all launches took, were they as long as those that were timed.
    pub fn estimated_seconds(&self) -> Option<f64> {
        let time = self.time.as_ref().filter(|time| time.samples > 0)?;
        Some(time.mean_ns() * self.launches as f64 / 1e9)
    }
}

fn any_twice<K: Ord>(mut keys: impl Iterator<Item = K>) -> bool {
    let mut known = BTreeSet::new();
    !keys.all(|key| known.insert(key))
}

impl Snapshot {
    /// What [`schema`](Snapshot::schema) must be.
    pub const SCHEMA: &'static str = "gristmill monitor 1";

    /// Refuses what no monitor writes: times of no launch or copy, times below zero or of ages, names that hold more than a line, and a
    /// row twice: of two with other counts nobody knows which one later counts go on from.
    pub(crate) fn check(&self) -> Result<(), String> {
        let watched = ("seconds", self.seconds);
        let recovered = self.recoveries.iter().map(|step| ("recoveries.seconds", step.seconds));
        for (field, seconds) in std::iter::once(watched).chain(recovered) {
            if !(0.0..=LONGEST_SECONDS).contains(&seconds) {
                return Err(format!("`{field}`: {seconds:?}, expected a time from 0 to {LONGEST_SECONDS:?}"));
            }
        }
        if let Some((field, name)) = self.names().find(|(_, name)| name.contains(char::is_control)) {
            return Err(format!("`{field}`: {name:?} holds a control character"));
        }
        let repeated = [
            ("kernels", any_twice(self.kernels.iter().map(KernelLoad::row))),
            (
                "transfers",
                any_twice(self.transfers.iter().map(|load| (&load.kind, &load.device, &load.source))),
            ),
            ("pools", any_twice(self.pools.iter().map(|load| &load.device))),
            ("caches", any_twice(self.caches.iter().map(|load| (&load.cache, &load.device)))),
        ];
        if let Some((field, _)) = repeated.iter().find(|(_, twice)| *twice) {
            return Err(format!("a row of `{field}` stands there twice"));
        }
        let kernels = self.kernels.iter().filter_map(|load| Some((&load.kernel, load.time.as_ref()?)));
        let copies = self.transfers.iter().filter_map(|load| Some((&load.kind, load.time.as_ref()?)));
        match kernels.chain(copies).find(|(_, time)| time.samples == 0) {
            Some((name, _)) => Err(format!("`time` of {name} is of 0 samples")),
            None => Ok(()),
        }
    }

    /// What is printed as part of a line, with the field that holds it.
    fn names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let program = [("machine", &self.machine), ("package", &self.package)]
            .into_iter()
            .chain(self.program.as_ref().map(|program| ("program", program)));
        let kernels = self.kernels.iter().flat_map(|load| {
            let gpu = load.gpu.as_ref().map(|gpu| ("kernels.gpu", gpu));
            [("kernels.kernel", &load.kernel), ("kernels.id", &load.id), ("kernels.device", &load.device)]
                .into_iter()
                .chain(gpu)
        });
        let transfers = self.transfers.iter().flat_map(|load| {
            let source = load.source.as_ref().map(|source| ("transfers.source", source));
            [("transfers.kind", &load.kind), ("transfers.device", &load.device)].into_iter().chain(source)
        });
        let pools = self.pools.iter().map(|load| ("pools.device", &load.device));
        let caches = self
            .caches
            .iter()
            .flat_map(|load| [("caches.cache", &load.cache), ("caches.device", &load.device)]);
        let recoveries = self.recoveries.iter().flat_map(|load| {
            let then = load.then.as_ref().map(|then| ("recoveries.then", then));
            [
                ("recoveries.step", &load.step),
                ("recoveries.kernel", &load.kernel),
                ("recoveries.id", &load.id),
                ("recoveries.format", &load.format),
            ]
            .into_iter()
            .chain(then)
        });
        let all = program.chain(kernels).chain(transfers).chain(pools).chain(caches).chain(recoveries);
        all.map(|(field, name)| (field, name.as_str()))
    }

    /// As one JSON object.
    pub fn to_json(&self) -> String {
        // Numbers and strings, with strings for keys: nothing of it can fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
