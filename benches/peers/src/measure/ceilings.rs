//! How fast the machine could do it, as measured beside both sides.

use gristmill::CpuProfile;
use gristmill::ceilings::{Level, ReadBuffers, multiply_peak};

/// The ceilings of a number of threads.
pub struct Ceilings {
    threads: usize,
    buffers: Vec<(Level, Option<ReadBuffers>)>,
}

impl Ceilings {
    pub fn new(threads: usize) -> Ceilings {
        let caches = &CpuProfile::detect().caches;
        let buffers =
            |level: &Level| (*level, ReadBuffers::new(level.typical_bytes(caches, threads), threads));
        Ceilings { threads, buffers: Level::ALL.iter().map(buffers).collect() }
    }

    fn rate(&mut self, level: Level, ms: u32) -> Option<f64> {
        let (_, buffers) = self.buffers.iter_mut().find(|(known, _)| *known == level)?;
        buffers.as_mut()?.rate(1)?;
        buffers.as_mut()?.rate(ms)
    }

    /// Seconds in which the machine could do it right now; 0 if that can't be found out.
    pub fn least_time(
        &mut self,
        entry: &gristmill::registry::Entry,
        gmacs: f64,
        bytes: usize,
        hot: bool,
    ) -> f64 {
        let peak = entry.isa.and_then(|isa| multiply_peak(isa, entry.features, self.threads, 1));
        let multiply = peak.map_or(0.0, |rate| gmacs / rate);
        let shares = match hot {
            true => Level::shares(bytes, &CpuProfile::detect().caches, self.threads),
            false => [(Level::L2, 0), (Level::L3, 0), (Level::Dram, bytes)],
        };
        let time = |(level, bytes): (Level, usize)| match bytes {
            0 => 0.0,
            _ => self.rate(level, 1).map_or(0.0, |rate| bytes as f64 / 1e9 / rate),
        };
        multiply.max(shares.into_iter().map(time).sum())
    }

    pub fn shown(&mut self) -> Vec<(String, f64, String)> {
        let mut shown = Vec::new();
        let on = if self.threads == 1 { String::new() } else { format!(", {} threads", self.threads) };
        for level in Level::ALL {
            if let Some(rate) = self.rate(*level, 40) {
                shown.push((format!("read {}{on}", level.name()), rate, "GB/s".to_owned()));
            }
        }
        for isa in gristmill::vocab::Isa::ALL {
            let vectors = CpuProfile::detect().features.without(gristmill::vocab::Feature::AmxInt8);
            if let Some(rate) = multiply_peak(*isa, vectors, self.threads, 40) {
                shown.push((format!("multiply {}{on}", isa.name()), rate, "GMAC/s".to_owned()));
            }
        }
        shown
    }
}
