//! What a monitor counts of memory: copies, allocations of pools, and whether what is kept was used again.
//!
//! Each costs a few additions to counters of its row; nothing waits. Rows are few: kinds of copies and caches, times devices.

use crate::rows::Rows;
use crate::snapshot::{CacheLoad, PoolLoad, TransferLoad};
use crate::times::Times;
use gristmill_runtime::Device;
use gristmill_runtime::observe::{Allocation, Cache, Lookup, Transfer, TransferKind, held_memory};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Memory {
    transfers: Rows<(TransferKind, Device, Option<Device>), Copies>,
    pools: Rows<Device, Allocations>,
    caches: Rows<(Cache, Device), Lookups>,
}

#[derive(Debug, Default)]
struct Copies {
    count: AtomicU64,
    bytes: AtomicU64,
    times: Times,
}

#[derive(Debug, Default)]
struct Allocations {
    count: AtomicU64,
    bytes: AtomicU64,
    /// Those of which it is known whether the pool grew.
    of_pools: AtomicU64,
    grew: AtomicU64,
    grown_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Lookups {
    hits: AtomicU64,
    misses: AtomicU64,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Memory {
    fn copies(&self, transfer: &Transfer) -> &Copies {
        self.transfers.of((transfer.kind, transfer.device, transfer.source))
    }

    /// Whether the time of a copy that begins now is kept: of one of so many, and not of the first, unless of all.
    pub(crate) fn is_sampled(&self, transfer: &Transfer, every: u64) -> bool {
        read(&self.copies(transfer).count) % every == every - 1
    }

    pub(crate) fn transferred(&self, transfer: &Transfer) {
        let copies = self.copies(transfer);
        add(&copies.count, 1);
        add(&copies.bytes, transfer.bytes);
    }

    /// Whether the time was kept.
    pub(crate) fn timed(&self, transfer: &Transfer) -> bool {
        transfer.time.is_none_or(|time| self.copies(transfer).times.take(time, transfer.bytes, None))
    }

    pub(crate) fn allocated(&self, allocation: &Allocation) {
        let row = self.pools.of(allocation.device);
        add(&row.count, 1);
        add(&row.bytes, allocation.bytes);
        if let Some(grown) = allocation.grown {
            add(&row.of_pools, 1);
            add(&row.grew, u64::from(grown > 0));
            add(&row.grown_bytes, grown);
        }
    }

    pub(crate) fn looked_up(&self, lookup: Lookup) {
        let row = self.caches.of((lookup.cache, lookup.device));
        add(if lookup.hit { &row.hits } else { &row.misses }, 1);
    }

    pub(crate) fn transfers(&self) -> Vec<TransferLoad> {
        let load = |((kind, device, source), row): ((TransferKind, Device, Option<Device>), &Copies)| {
            let copies = read(&row.count);
            (copies > 0).then(|| TransferLoad {
                kind: kind.name().to_owned(),
                device: device.to_string(),
                source: source.map(|source| source.to_string()),
                copies,
                bytes: read(&row.bytes),
                time: row.times.sampled(),
            })
        };
        self.transfers.sorted().into_iter().filter_map(load).collect()
    }

    pub(crate) fn pools(&self) -> Vec<PoolLoad> {
        let held = held_memory();
        let load = |(device, row): (Device, &Allocations)| {
            let known = |counter| (read(&row.of_pools) > 0).then(|| read(counter));
            let held = held.iter().find(|held| held.device == device);
            PoolLoad {
                device: device.to_string(),
                allocations: read(&row.count),
                bytes: read(&row.bytes),
                grew: known(&row.grew),
                grown_bytes: known(&row.grown_bytes),
                held_bytes: held.map(|held| held.bytes),
                reserved_bytes: held.and_then(|held| held.reserved),
            }
        };
        self.pools.sorted().into_iter().map(load).collect()
    }

    pub(crate) fn caches(&self) -> Vec<CacheLoad> {
        let load = |((cache, device), row): ((Cache, Device), &Lookups)| CacheLoad {
            cache: cache.name().to_owned(),
            device: device.to_string(),
            hits: read(&row.hits),
            misses: read(&row.misses),
        };
        self.caches.sorted().into_iter().map(load).collect()
    }
}
