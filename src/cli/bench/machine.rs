//! The ceilings of this machine, measured whenever a kernel is.

use super::super::table::{Side, Table, measured};
use gristmill::CpuProfile;
use gristmill::ceilings::{Level, ReadBuffers, multiply_peak};
use gristmill::registry::Entry;
use gristmill::vocab::{Feature, FeatureSet, Isa};
use std::io::{self, Write};

/// Milliseconds of one look at a rate.
const LOOK: u32 = 1;
/// Milliseconds for a rate that is printed.
const LONG_LOOK: u32 = 20;

/// What has to be kept to look at ceilings again and again.
pub struct Machine {
    cpu: &'static CpuProfile,
    buffers: Vec<((Level, usize), Option<ReadBuffers>)>,
}

/// What a run of a kernel asks of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Products, in 1e9.
    pub gmacs: f64,
    /// The units that multiply; `None` where nothing is multiplied.
    pub units: Option<(Isa, FeatureSet)>,
    /// Bytes that are read.
    pub bytes: usize,
    /// Whether caches can hold some of them from run to run.
    pub hot: bool,
    /// Threads that do it.
    pub threads: usize,
}

impl Demand {
    /// What a run of `entry` asks for.
    pub fn of(entry: &Entry, gmacs: f64, bytes: usize, hot: bool, threads: usize) -> Demand {
        Demand { gmacs, units: entry.isa.map(|isa| (isa, entry.features)), bytes, hot, threads }
    }
}

impl Machine {
    pub fn new() -> Machine {
        Machine { cpu: CpuProfile::detect(), buffers: Vec::new() }
    }

    /// The least time in seconds that the machine needs for `demand` right now, and what sets it. `None` where
    /// no rate can be had.
    pub fn least_time(&mut self, demand: &Demand) -> Option<(f64, Ceiling)> {
        let multiply = demand
            .units
            .and_then(|(isa, features)| multiply_peak(isa, features, demand.threads, LOOK))
            .map(|rate| (demand.gmacs / rate, Ceiling::Multiply));
        let read = self.read_time(demand).map(|time| (time, Ceiling::Read));
        multiply.into_iter().chain(read).max_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Seconds in which the bytes can be read: from caches what they can hold, the rest from memory.
    fn read_time(&mut self, demand: &Demand) -> Option<f64> {
        let shares = match demand.hot {
            true => Level::shares(demand.bytes, &self.cpu.caches, demand.threads),
            false => [(Level::L2, 0), (Level::L3, 0), (Level::Dram, demand.bytes)],
        };
        let mut time = 0.0;
        for (level, bytes) in shares {
            if bytes > 0 {
                time += bytes as f64 / 1e9 / self.rate(level, demand.threads, LOOK)?;
            }
        }
        Some(time)
    }

    /// GB/s of a level.
    fn rate(&mut self, level: Level, threads: usize, ms: u32) -> Option<f64> {
        let key = (level, threads);
        let at = match self.buffers.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                let bytes = level.typical_bytes(&self.cpu.caches, threads);
                self.buffers.push((key, ReadBuffers::new(bytes, threads)));
                self.buffers.len() - 1
            }
        };
        let buffers = self.buffers.get_mut(at)?.1.as_mut()?;
        // The first window finds other data in the caches.
        buffers.rate(LOOK)?;
        buffers.rate(ms)
    }

    /// Prints every ceiling for `threads` and for one thread.
    pub fn print(&mut self, threads: &[usize], out: &mut dyn Write) -> io::Result<()> {
        let mut counts = vec![1];
        counts.extend_from_slice(threads);
        counts.push(self.cpu.cores);
        counts.sort_unstable();
        counts.dedup();
        let header: Vec<String> = counts.iter().map(|count| format!("threads: {count}")).collect();
        let mut columns = vec![("ceiling", Side::Left), ("unit", Side::Left)];
        columns.extend(header.iter().map(|header| (header.as_str(), Side::Right)));
        let mut table = Table::new(&columns);
        let shown = |rate: Option<f64>| rate.map_or("-".to_owned(), measured);
        for level in Level::ALL {
            let rates = counts.iter().map(|count| shown(self.rate(*level, *count, LONG_LOOK)));
            let row = vec![format!("read {}", level.name()), "GB/s".to_owned()];
            table.row(row.into_iter().chain(rates.collect::<Vec<_>>()));
        }
        // What vectors do, and beside them the unit that multiplies tiles.
        let vectors = self.cpu.features.without(Feature::AmxInt8);
        let tiles = (vectors != self.cpu.features).then_some((Isa::Avx512, "amx-int8", self.cpu.features));
        let units = Isa::ALL.iter().map(|isa| (*isa, isa.name(), vectors));
        for (isa, name, features) in units.chain(tiles) {
            let rate = |count: &usize| multiply_peak(isa, features, *count, LONG_LOOK);
            let rates: Vec<Option<f64>> = counts.iter().map(rate).collect();
            if rates.iter().any(Option::is_some) {
                let row = vec![format!("multiply {name}"), "GMAC/s".to_owned()];
                table.row(row.into_iter().chain(rates.into_iter().map(shown)));
            }
        }
        table.print(out)?;
        writeln!(out)
    }
}

/// What bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// Products that the multiply units finish.
    Multiply,
    /// Bytes that caches or memory deliver.
    Read,
}

impl Ceiling {
    pub fn name(self) -> &'static str {
        match self {
            Ceiling::Multiply => "multiply",
            Ceiling::Read => "read",
        }
    }
}
