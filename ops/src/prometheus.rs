//! A snapshot as text for Prometheus (exposition format 0.0.4).

use crate::host::{Clock, Host, HugePages};
use crate::snapshot::{
    BatchLoad, CacheLoad, KernelLoad, PoolLoad, Sampled, Snapshot, ThreadLoad, TransferLoad,
};
use std::fmt::{Display, Write};

/// Labels of a sample, and how they are written.
struct Labels<'a>(&'a [(&'a str, &'a dyn Display)]);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{}{name}=\"{value}\"", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The upper bound of a class.
fn most(bound: Option<u64>) -> String {
    bound.map_or("+Inf".to_owned(), |bound| bound.to_string())
}

impl Snapshot {
    /// As text for Prometheus: counters for launches, bytes, faults, copies, pools, caches and fallbacks, histograms for the times that were taken.
    /// `tokens_le` and `weights_le` are the upper bounds of the class of shapes. The count of the histogram is that of samples,
    /// not of launches.
    pub fn to_prometheus(&self) -> String {
        let mut out = String::new();
        self.counter(&mut out, "launches", "Launches of kernels.", |load| Some(load.launches));
        self.counter(&mut out, "read_bytes", "Bytes that launches had to read.", |load| Some(load.bytes_in));
        self.counter(&mut out, "written_bytes", "Bytes that launches wrote.", |load| Some(load.bytes_out));
        self.counter(&mut out, "faults", "Launches that ended in a fault of their input.", |load| {
            load.faults
        });
        head(&mut out, "gristmill_launch_seconds", "histogram", "Times of sampled launches.");
        for load in &self.kernels {
            let Some(time) = &load.time else { continue };
            histogram("gristmill_launch_seconds", time, |name, le, value| {
                sample(&mut out, name, load, le, value);
            });
        }
        for (name, help, of) in THREADS {
            let name = format!("gristmill_threads_{name}_seconds_total");
            let mut seen =
                self.kernels.iter().filter_map(|load| Some((load, load.time.as_ref()?.threads.as_ref()?)));
            let Some(first) = seen.next() else { break };
            head(&mut out, &name, "counter", help);
            for (load, threads) in std::iter::once(first).chain(seen) {
                sample(&mut out, &name, load, None, of(threads) as f64 / 1e9);
            }
        }
        if let Some(batches) = &self.batches {
            self.batches(&mut out, batches);
        }
        self.transfers(&mut out);
        self.pools(&mut out);
        self.caches(&mut out);
        head(&mut out, "gristmill_fallbacks_total", "counter", "Fallbacks that policies allowed.");
        for fallback in &self.fallbacks {
            let labels = Labels(&[
                ("policy", &fallback.policy),
                ("op", &fallback.op),
                ("format", &fallback.format),
                ("device", &fallback.device),
                ("reason", &fallback.reason),
                ("instead", &fallback.instead),
            ]);
            line(&mut out, "gristmill_fallbacks_total", &labels, fallback.runs);
        }
        head(
            &mut out,
            "gristmill_recoveries_total",
            "counter",
            "Steps done because of a kernel that failed.",
        );
        for recovery in &self.recoveries {
            let labels = Labels(&[
                ("step", &recovery.step),
                ("kernel", &recovery.kernel),
                ("id", &recovery.id),
                ("format", &recovery.format),
                ("success", &recovery.success),
            ]);
            line(&mut out, "gristmill_recoveries_total", &labels, recovery.count);
        }
        self.host(&mut out);
        head(&mut out, "gristmill_lost_samples_total", "counter", "Times that were taken and not kept.");
        line(
            &mut out,
            "gristmill_lost_samples_total",
            &Labels(&[("package", &self.package)]),
            self.lost_samples,
        );
        out
    }

    /// What the system said of the machine.
    fn host(&self, out: &mut String) {
        let Some(Host { huge_pages, clock }) = &self.host else { return };
        let mut one = |name: &str, kind: &str, help: &str, value: Option<u64>| {
            let Some(value) = value else { return };
            let name = format!("gristmill_{name}");
            head(out, &name, kind, help);
            line(out, &name, &Labels(&[("package", &self.package)]), value);
        };
        let of_pages = |of: fn(&HugePages) -> u64| huge_pages.as_ref().map(of);
        one(
            "huge_pages_asked_bytes",
            "gauge",
            "Memory that is to lie on huge pages.",
            of_pages(|pages| pages.asked_bytes),
        );
        one(
            "huge_pages_bytes",
            "gauge",
            "What of it lies on huge pages.",
            of_pages(|pages| pages.huge_bytes),
        );
        let of_clock = |of: fn(&Clock) -> Option<u64>| clock.as_ref().and_then(of);
        one(
            "clock_throttled_total",
            "counter",
            "Times that a processor was too hot.",
            of_clock(|clock| clock.throttled),
        );
        one(
            "clock_allowed_mhz",
            "gauge",
            "Clock that the system allows.",
            of_clock(|clock| clock.allowed_mhz),
        );
        one(
            "clock_highest_mhz",
            "gauge",
            "Highest clock of the same processor.",
            of_clock(|clock| clock.highest_mhz),
        );
    }

    fn transfers(&self, out: &mut String) {
        let Some(_) = self.transfers.first() else { return };
        let labels = |load: &TransferLoad, le: Option<&dyn Display>| {
            let mut labels: Vec<(&str, &dyn Display)> = vec![("kind", &load.kind), ("device", &load.device)];
            labels.extend(load.source.as_ref().map(|source| ("source", source as &dyn Display)));
            labels.extend(le.map(|le| ("le", le)));
            Labels(&labels).to_string()
        };
        let counters: [Counter<TransferLoad>; 2] = [
            ("gristmill_transfers_total", "Copies of devices' memory.", |load| load.copies),
            ("gristmill_transfer_bytes_total", "Bytes of these copies.", |load| load.bytes),
        ];
        write_counters(out, &counters, &self.transfers, |load| labels(load, None));
        let name = "gristmill_transfer_seconds";
        head(out, name, "histogram", "Times of sampled copies.");
        for load in &self.transfers {
            let Some(time) = &load.time else { continue };
            histogram(name, time, |name, le, value| line(out, name, &labels(load, le), value));
        }
    }

    fn pools(&self, out: &mut String) {
        for (name, kind, help, of) in POOLS {
            let mut known = self.pools.iter().filter_map(|pool| Some((pool, of(pool)?))).peekable();
            if known.peek().is_none() {
                continue;
            }
            head(out, name, kind, help);
            for (pool, value) in known {
                line(out, name, &Labels(&[("device", &pool.device)]), value);
            }
        }
    }

    fn caches(&self, out: &mut String) {
        let Some(_) = self.caches.first() else { return };
        let counters: [Counter<CacheLoad>; 2] = [
            ("gristmill_cache_hits_total", "Times that what is kept was there.", |load| load.hits),
            ("gristmill_cache_misses_total", "Times that it was not.", |load| load.misses),
        ];
        write_counters(out, &counters, &self.caches, |load| {
            Labels(&[("cache", &load.cache), ("device", &load.device)]).to_string()
        });
    }

    fn batches(&self, out: &mut String, load: &BatchLoad) {
        let mut one = |name: &str, help: &str, value: &dyn Display| {
            let name = format!("gristmill_batch{name}_total");
            head(out, &name, "counter", help);
            line(out, &name, &Labels(&[("package", &self.package)]), value);
        };
        one("es", "Batches of products.", &load.batches);
        one("_products", "Products of batches.", &load.products);
        one("_samples", "Batches whose time was taken.", &load.samples);
        if let Some(ns) = load.sum_ns {
            one("_seconds", "Time of sampled batches.", &(ns as f64 / 1e9));
        }
        if let Some(threads) = &load.threads {
            for (name, help, of) in THREADS {
                one(&format!("_threads_{name}_seconds"), help, &(of(threads) as f64 / 1e9));
            }
        }
    }

    fn counter(&self, out: &mut String, name: &str, help: &str, value: impl Fn(&KernelLoad) -> Option<u64>) {
        let name = format!("gristmill_{name}_total");
        head(out, &name, "counter", help);
        for load in &self.kernels {
            if let Some(value) = value(load) {
                sample(out, &name, load, None, value);
            }
        }
    }
}

/// Metrics of pools: name, kind, help, and which of its numbers it is.
type OfPools = (&'static str, &'static str, &'static str, fn(&PoolLoad) -> Option<u64>);
const POOLS: [OfPools; 6] = [
    ("gristmill_pool_allocations_total", "counter", "Allocations of a device's memory.", |of| {
        Some(of.allocations)
    }),
    ("gristmill_pool_allocated_bytes_total", "counter", "Bytes that they asked for.", |of| Some(of.bytes)),
    ("gristmill_pool_grown_total", "counter", "Those for which the pool took more from the device.", |of| {
        of.grew
    }),
    ("gristmill_pool_grown_bytes_total", "counter", "Bytes that it took then.", |of| of.grown_bytes),
    ("gristmill_pool_held_bytes", "gauge", "Bytes in buffers.", |of| of.held_bytes),
    ("gristmill_pool_reserved_bytes", "gauge", "Bytes that pools have taken from the device.", |of| {
        of.reserved_bytes
    }),
];

/// A counter: its name, help, and which number it is.
type Counter<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Each counter, with a sample for each row.
fn write_counters<T>(out: &mut String, counters: &[Counter<T>], rows: &[T], labels: impl Fn(&T) -> String) {
    for (name, help, of) in counters {
        head(out, name, "counter", help);
        for row in rows {
            line(out, name, &labels(row), of(row));
        }
    }
}

/// Metrics of the use of threads.
const THREADS: [Counter<ThreadLoad>; 4] = [
    ("available", "Sampled time, times the threads that there were.", |of| of.available_ns),
    ("busy", "Time that threads worked, of what was sampled.", |of| of.busy_ns),
    ("longest", "Time that the busiest thread worked, each time that was sampled.", |of| of.longest_ns),
    ("mean", "Time that threads worked in the mean of all, each time that was sampled.", |of| of.mean_ns),
];

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String can't fail, here and below.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// The samples of a histogram: name, upper bound and value.
fn histogram(name: &str, time: &Sampled, mut write: impl FnMut(&str, Option<&dyn Display>, &dyn Display)) {
    let bucket = format!("{name}_bucket");
    for of in &time.buckets {
        write(&bucket, Some(&(of.le_ns as f64 / 1e9)), &of.count);
    }
    write(&bucket, Some(&"+Inf"), &time.samples);
    write(&format!("{name}_sum"), None, &(time.sum_ns as f64 / 1e9));
    write(&format!("{name}_count"), None, &time.samples);
}

fn line(out: &mut String, name: &str, labels: &impl Display, value: impl Display) {
    let _ = writeln!(out, "{name}{{{labels}}} {value}");
}

fn sample(out: &mut String, name: &str, load: &KernelLoad, le: Option<&dyn Display>, value: impl Display) {
    let (tokens, weights) = (most(load.tokens.1), most(load.weights.1));
    let mut labels: Vec<(&str, &dyn Display)> = vec![
        ("kernel", &load.kernel),
        ("id", &load.id),
        ("device", &load.device),
        ("tokens_le", &tokens),
        ("weights_le", &weights),
    ];
    labels.extend(le.map(|le| ("le", le)));
    line(out, name, &Labels(&labels), value);
}
