//! One measurement.

use super::machine::Ceiling;
use super::plan::Memory;
use gristmill::registry::KernelId;
use gristmill::vocab::Isa;
use gristmill_records::bench::Measurement;

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) kernel: &'static str,
    pub(super) id: KernelId,
    pub(super) format: &'static str,
    pub(super) isa: Option<Isa>,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) threads: usize,
    pub(super) memory: Memory,
    /// `None` for ops without activations.
    pub(super) quantizes_activations: Option<bool>,
    pub(super) seconds: f64,
    /// Medians of the rounds.
    pub(super) rounds: Vec<f64>,
    /// Median deviation of the rounds' medians, as a part of `seconds`.
    pub(super) noise: f64,
    /// `None` where nothing is multiplied.
    pub(super) gmac_s: Option<f64>,
    /// Of products: bytes that the weights take in a file, whatever they take in memory.
    pub(super) gb_s: f64,
    pub(super) ceiling: Ceiling,
    /// The lower ceiling; that of reading for so many bytes as weights take in a file.
    pub(super) percent: f64,
    /// What a weight takes in a file.
    pub(super) file_bits: f64,
    /// What it takes in the memory that the op reads, or where it packs weights writes; scales included.
    pub(super) memory_bits: f64,
}

/// Bits that each of `n` x `k` weights takes of `bytes`.
pub fn bits_per_weight(bytes: usize, n: usize, k: usize) -> f64 {
    8.0 * bytes as f64 / (n as f64 * k as f64)
}

impl Record {
    /// The record with when it was made and by what: what a history keeps it by.
    pub(super) fn dated(&self, at: u64) -> Measurement {
        Measurement {
            at: Some(at),
            machine: Some(gristmill::tuning::cpu().to_owned()),
            compiler: Some(gristmill::kernels::COMPILER.to_owned()),
            ..self.measurement()
        }
    }

    pub(super) fn measurement(&self) -> Measurement {
        Measurement {
            at: None,
            machine: None,
            compiler: None,
            kernel: self.kernel.to_owned(),
            id: Some(self.id.to_string()),
            format: self.format.to_owned(),
            isa: self.isa.map(|isa| isa.name().to_owned()),
            m: self.m as u64,
            n: self.n as u64,
            k: self.k as u64,
            threads: self.threads as u64,
            memory: self.memory.name().to_owned(),
            includes_activation_quantization: self.quantizes_activations,
            us: self.seconds * 1e6,
            rounds_us: self.rounds.iter().map(|seconds| seconds * 1e6).collect(),
            gmac_s: self.gmac_s,
            gb_s: self.gb_s,
            ceiling: Some(self.ceiling.name().to_owned()),
            // Of what was not measured, as of nothing, there is no percentage.
            percent: Some(self.percent).filter(|percent| percent.is_finite()),
            file_bits_per_weight: Some(self.file_bits),
            memory_bits_per_weight: Some(self.memory_bits),
        }
    }
}
