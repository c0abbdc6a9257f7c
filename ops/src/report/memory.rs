//! What monitors saw of memory: copies, allocations, and whether what is kept was used again.

use super::moved::{Moved, On};
use super::{ENOUGH, Newest, Report};
use crate::record::{Watch, sum};
use crate::snapshot::{CacheLoad, PoolLoad, TransferLoad};
use gristmill_runtime::observe::{Cache, TransferKind};
use std::fmt::Write;

/// A part of the time of GPUs' kernels in percent from which on copies to and from them are unusually long.
const LONG_COPIES: f64 = 25.0;
/// Captures, growths or workspaces from which on it counts that there are so many.
const MANY: u64 = 100;
/// A part of all looks or allocations in percent from which on there are unusually many of these.
const OFTEN: f64 = 10.0;

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Whether there are so many, and so many of all.
fn often(part: u64, of: u64) -> bool {
    part >= MANY && percent(part, of) > OFTEN
}

impl Report {
    /// What the newest look of each program saw.
    pub(super) fn memory(&mut self, newest: &Newest<'_>) {
        for watch in &newest.watches {
            let machine = &watch.machine;
            self.transfers.extend(watch.transfers.iter().map(|load| Moved {
                machine: machine.clone(),
                name: load.name(),
                copies: load.copies,
                bytes: load.bytes,
                seconds: load.estimated_seconds(),
                gb_s: load.time.as_ref().filter(|time| time.sum_ns > 0).map(|time| time.gb_s()),
            }));
            let on = |seen: &PoolLoad| On { machine: machine.clone(), seen: seen.clone() };
            self.pools.extend(watch.pools.iter().map(on));
            let on = |seen: &CacheLoad| On { machine: machine.clone(), seen: seen.clone() };
            self.caches.extend(watch.caches.iter().map(on));
            self.long_copies(newest, watch);
            for pool in &watch.pools {
                self.grown(pool, &watch.place());
            }
            for load in &watch.caches {
                self.missed(load, &watch.place());
            }
        }
    }

    /// Copies between the processor and devices beside the kernels of these.
    fn long_copies(&mut self, newest: &Newest<'_>, watch: &Watch) {
        let kinds = [TransferKind::ToDevice, TransferKind::FromDevice, TransferKind::ThroughHost];
        let of_host = |load: &&TransferLoad| kinds.iter().any(|kind| kind.name() == load.kind);
        let copies: Vec<&TransferLoad> = watch.transfers.iter().filter(of_host).collect();
        let samples = sum(copies.iter().filter_map(|load| Some(load.time.as_ref()?.samples)));
        let seconds: f64 = copies.iter().filter_map(|load| load.estimated_seconds()).sum();
        let (mut kernels, mut products, mut timed) = (0.0, 0u64, 0u64);
        for record in newest.loads.iter().filter(|record| watch.is_of(record)) {
            let Some(load) = record.load.as_ref().filter(|load| load.is_on_gpu()) else { continue };
            kernels += load.estimated_seconds().unwrap_or(0.0);
            timed = timed.saturating_add(load.time.as_ref().map_or(0, |time| time.samples));
            let launches = if load.kernel.starts_with("matmul") { load.launches } else { 0 };
            products = products.saturating_add(launches);
        }
        let percent = 100.0 * seconds / kernels;
        if samples < ENOUGH || timed < ENOUGH || percent.is_nan() || percent <= LONG_COPIES {
            return;
        }
        let bytes = sum(copies.iter().map(|load| load.bytes));
        let each = match products {
            0 => String::new(),
            products => format!("; {} bytes for each of {products} products", bytes / products),
        };
        self.found(
            format!("copies take long beside the kernels of GPUs on {}", watch.place()),
            format!(
                "{seconds:.3} s of copies between processor and devices ({samples} timed), {kernels:.3} s of kernels ({timed} timed), \
                 {percent:.0} %{each}"
            ),
            "leave activations and results on the device (`Linear::forward_on_device`), and let what must be copied go from page-locked memory \
             beside the kernels (`Gpu::upload`)",
        );
    }

    fn grown(&mut self, pool: &PoolLoad, machine: &str) {
        let (Some(grew), Some(bytes)) = (pool.grew, pool.grown_bytes) else { return };
        if often(grew, pool.allocations) {
            self.found(
                format!("the memory pool of {} grows again and again on {machine}", pool.device),
                format!("it grew for {grew} of {} allocations, by {bytes} bytes together", pool.allocations),
                "let it keep what it has (`Gpu::keep_memory`), or take it at once (`Gpu::reserve_memory`)",
            );
        }
    }

    fn missed(&mut self, load: &CacheLoad, machine: &str) {
        let CacheLoad { cache, device, hits, misses } = load;
        let (hits, misses) = (*hits, *misses);
        let looks = hits.saturating_add(misses);
        let is = |kept: Cache| cache == kept.name();
        let (what, because, advice) = if is(Cache::Workspace) && often(misses, looks) {
            (
                format!("memory of workspaces for {device} is made again and again"),
                format!("{misses} times of {looks}"),
                "make workspaces once, for the most tokens that there will be (`Workspace::for_all`, `Linear::warm_up`), and keep them",
            )
        } else if is(Cache::Graph) && misses >= MANY && hits < misses {
            (
                format!("graphs are captured and hardly launched again on {device}"),
                format!("{misses} captures, {hits} launches of graphs that had been launched before"),
                "keep graphs: each launch computes with what is in its buffers then (`DeviceBuffer::write`)",
            )
        } else if is(Cache::Ptx) && misses > 0 {
            (
                format!("the driver compiled kernels for {device}"),
                format!("{misses} images were PTX when they were loaded"),
                "name the device's architecture when you build (GRISTMILL_CUDA_ARCHS), so that machine code is in the binary",
            )
        } else if is(Cache::Tuning) && misses > 0 {
            (
                format!("a tuning for {device} has no times for some of what was asked for"),
                format!("none for {misses} of {looks} requests, by op, format and threads"),
                "run `gristmill tune` with these formats, on as many threads",
            )
        } else {
            return;
        };
        self.found(format!("{what}, on {machine}"), because, advice);
    }

    /// Tables of it as text.
    pub(super) fn write_memory(&self, out: &mut String) -> std::fmt::Result {
        if !self.transfers.is_empty() {
            writeln!(out, "\nCopies of devices' memory (times estimated from timed copies)")?;
        }
        for Moved { name, copies, bytes, seconds, gb_s, .. } in &self.transfers {
            write!(out, "  {name}: {copies} copies, {bytes} bytes")?;
            if let (Some(seconds), Some(gb_s)) = (seconds, gb_s) {
                write!(out, ", {seconds:.3} s, {gb_s:.1} GB/s")?;
            }
            writeln!(out)?;
        }
        if !self.pools.is_empty() {
            writeln!(out, "\nAllocations of devices' memory")?;
        }
        for On { seen: pool, .. } in &self.pools {
            write!(out, "  {}: {} allocations, {} bytes", pool.device, pool.allocations, pool.bytes)?;
            if let (Some(grew), Some(bytes)) = (pool.grew, pool.grown_bytes) {
                write!(out, "; the pool grew for {grew} of them, by {bytes} bytes")?;
            }
            for (bytes, what) in [(pool.held_bytes, "held"), (pool.reserved_bytes, "reserved")] {
                if let Some(bytes) = bytes {
                    write!(out, "; {bytes} bytes {what}")?;
                }
            }
            writeln!(out)?;
        }
        if !self.caches.is_empty() {
            writeln!(out, "\nKept and used again")?;
        }
        for On { seen: CacheLoad { cache, device, hits, misses }, .. } in &self.caches {
            writeln!(out, "  {cache} for {device}: {hits} hits, {misses} misses")?;
        }
        Ok(())
    }
}
